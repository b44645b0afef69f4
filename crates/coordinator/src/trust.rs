//! Who certifies the keys of processes, and by which clock certificates are over.
//!
//! ```text
//! policy file   [authority] directory   authority.pem, authority.key, trusted/*.pem     of mode 0600,
//! checked
//!                                       crossed.pem, where it was rotated
//!               without one             an authority for the life of this coordinator
//! ```
//!
//! The private key of the authority is in this process alone, and in its file.
//!
//! Processes hear of a new authority one after the other. So what it signs goes with a certificate of the old
//! root for its key (`crossed.pem`), by which those believe it who do not know the new root yet.
//!
//! The clock is the wall's when the policy is read, and goes on by CLOCK_BOOTTIME (clock_gettime(2)): who
//! sets the wall's clock back revives no certificate, and who sets it forward ends none. The certified
//! processes are told the time by it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use partywall_abi::control::{Root, TrustMessage};
use partywall_abi::limits;
use partywall_trust::{
    Authority, AuthorityError, CertificateError, Id, IdError, LEAF_LIFE, PublicKey, ROOTS, Roots,
    TrustDomain,
};
use rustix::time::{ClockId, clock_gettime};
use zeroize::Zeroizing;

use crate::place::{Kind, Why};

/// The trust domain where the policy names none.
pub const DOMAIN: &str = "partywall.local";
/// The file with the certificates of an authority, in its directory.
pub const CERTIFICATES: &str = "authority.pem";
/// The file with its private key.
pub const KEY: &str = "authority.key";
/// The private key of certificates that are there already, while it is on its way to [`KEY`].
pub const NEXT: &str = "authority.key.next";
/// The directory in it with other roots that are trusted, as PEM.
pub const TRUSTED: &str = "trusted";
/// The file in it with certificates of earlier roots for the authority's key.
pub const CROSSED: &str = "crossed.pem";
/// The most bytes of one of these files.
const LARGEST: u64 = 64 << 10;
/// The most bytes of all roots: they go into one message, with a chain.
const ROOTS_BYTES: usize = limits::CONTROL_BYTES / 2;
/// The most names in one certificate.
const NAMES: usize = 32;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A file of it cannot be used.
    #[error("{}: {text}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and the remedy.
        text: String,
    },
    /// The trust domain.
    #[error(transparent)]
    Domain(#[from] IdError),
    /// It could not be made.
    #[error("no authority can be made: {0}")]
    Authority(#[from] AuthorityError),
}

/// A clock that nobody sets back or forward.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    wall: SystemTime,
    boot: Duration,
}

impl Clock {
    /// The time now, as the wall's clock has it, from here on.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), boot: boottime() }
    }

    /// What it shows.
    pub fn time(&self) -> SystemTime {
        self.wall + boottime().saturating_sub(self.boot)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::now()
    }
}

fn boottime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// An authority, those that are trusted beside it, and the clock.
#[derive(Debug)]
pub struct Trust {
    authority: Authority,
    roots: Roots,
    clock: Clock,
    life: Duration,
}

/// Who a process is to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) id: Id,
    /// The names that it may serve.
    pub(crate) serves: Vec<String>,
}

impl Trust {
    /// An authority that lives as long as this value.
    ///
    /// # Errors
    /// [`TrustError`]
    pub fn for_this_run(domain: &str, clock: Clock) -> Result<Self, TrustError> {
        let domain = TrustDomain::new(domain)?;
        Self::of(Authority::new(&domain, clock.time())?, clock)
    }

    fn of(authority: Authority, clock: Clock) -> Result<Self, TrustError> {
        let mut roots = Roots::default();
        authority.trusted(&mut roots).map_err(AuthorityError::from)?;
        Ok(Self { authority, roots, clock, life: LEAF_LIFE })
    }

    /// The authority of a directory, as `partywall ca init` makes it, and the roots that are trusted beside
    /// it. Blocks for as long as its file system likes.
    ///
    /// # Errors
    /// [`TrustError`]
    pub fn load(domain: &str, directory: &Path, clock: Clock) -> Result<Self, TrustError> {
        let domain = TrustDomain::new(domain)?;
        let mut authority = authority(&domain, directory, clock.time())?;
        let crossed = directory.join(CROSSED);
        if crossed.exists() {
            let added = authority.crossed_by(&read(&crossed)?);
            added.map_err(|e| wrong(crossed, format!("{e}; remedy: remove it")))?;
        }
        let mut trust = Self::of(authority, clock)?;
        for file in trusted_files(directory)? {
            let added = trust.roots.add_pem(&domain, &read(&file)?);
            added.map_err(|e| wrong(file, format!("{e}; remedy: remove it, or write a root")))?;
        }
        if let Err(text) = trust.has_room(0) {
            return Err(wrong(directory.join(TRUSTED), text));
        }
        Ok(trust)
    }

    /// Whether another root of so many bytes can be trusted beside those that are.
    ///
    /// # Errors
    /// Why not, and the remedy.
    pub fn has_room(&self, another: usize) -> Result<(), String> {
        let remedy = "remedy: remove those that sign nothing any more";
        let count = self.roots.certificates().count();
        let bytes = self.roots.certificates().map(|(_, der)| der.len()).sum::<usize>() + another;
        if bytes > ROOTS_BYTES {
            return Err(format!(
                "the roots have {bytes} bytes together, and {ROOTS_BYTES} go into a message; {remedy}"
            ));
        }
        if another > 0 && count == ROOTS {
            return Err(format!("there are {count} roots, and {ROOTS} are the most; {remedy}"));
        }
        Ok(())
    }

    /// What it says of the next authority, for those who know its root alone, as PEM ([`CROSSED`]).
    ///
    /// # Errors
    /// [`AuthorityError`]
    pub fn cross(&self, next: &Authority, life: Duration) -> Result<String, AuthorityError> {
        self.authority.cross(next, (self.time(), life))
    }

    /// The same, whose certificates hold for so long.
    #[must_use]
    pub fn with_life(self, life: Duration) -> Self {
        Self { life, ..self }
    }

    /// Its trust domain.
    pub fn domain(&self) -> &TrustDomain {
        self.authority.domain()
    }

    /// Who may sign certificates, in DER, with their trust domains.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The time by which certificates are over.
    pub fn time(&self) -> SystemTime {
        self.clock.time()
    }

    /// Who a process is of which the policy says so; `user` is for one that is nobody by name.
    pub(crate) fn name(&self, principal: Option<&str>, user: u32, serves: Vec<String>) -> Name {
        let domain = self.domain();
        let id = principal.and_then(|name| domain.service(name).ok());
        let mut serves = serves;
        serves.truncate(NAMES);
        Name { id: id.unwrap_or_else(|| domain.user(user)), serves }
    }

    /// Certifies a process's key, or says why not.
    pub(crate) fn certify(
        &self,
        request: u32,
        name: &Name,
        key: &[u8],
        proof: &[u8],
    ) -> Result<TrustMessage, String> {
        let key = PublicKey::from_der(key)
            .map_err(|_| "a key for a certificate is one of P-256 in DER".to_string())?;
        if !key.fits(&[TrustMessage::PROOF, &key.to_der()].concat(), proof) {
            return Err("the key for a certificate has not signed itself".into());
        }
        let now = self.time();
        let dns: Vec<_> = name.serves.iter().map(String::as_str).chain(["localhost"]).collect();
        let dns: Vec<_> = dns.into_iter().map(String::from).collect();
        let chain = self.authority.issue(&name.id, &dns, &key, (now, self.life));
        let chain = chain.map_err(|e| e.to_string())?;
        let root = |(domain, der): (&TrustDomain, &[u8])| Root {
            domain: domain.as_str().into(),
            certificate: der.to_vec(),
        };
        Ok(TrustMessage::Certified {
            request,
            now: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            chain: chain.certificates().to_vec(),
            roots: self.roots.certificates().map(root).collect(),
        })
    }
}

fn wrong(path: impl Into<PathBuf>, text: String) -> TrustError {
    TrustError::File { path: path.into(), text }
}

/// What to do about a file that is not there.
const MISSING: &str = "`partywall ca init`";

/// The text of a file of an authority that nobody else can change.
///
/// # Errors
/// [`TrustError::File`].
pub fn read(path: &Path) -> Result<String, TrustError> {
    let read = Kind::Authority.read(path, LARGEST);
    read.map_err(|why| wrong(path, why.said(MISSING)))
}

/// The same of its private key, which nobody else can read either.
fn read_secret(path: &Path) -> Result<Zeroizing<String>, TrustError> {
    let read = Kind::Authority.read_secret(path, LARGEST);
    read.map_err(|why| wrong(path, why.said(MISSING)))
}

/// The files with other roots that are trusted, of an authority's directory.
///
/// # Errors
/// [`TrustError::File`].
pub fn trusted_files(directory: &Path) -> Result<Vec<PathBuf>, TrustError> {
    let trusted = directory.join(TRUSTED);
    let files = match fs::read_dir(&trusted) {
        Ok(files) => files.map(|file| file.map(|file| file.path())).collect::<Result<Vec<_>, _>>(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    };
    let mut files = files.map_err(|e| wrong(trusted, Why::Io(e).said(MISSING)))?;
    files.retain(|file| file.extension().is_some_and(|e| e == "pem"));
    files.sort();
    Ok(files)
}

/// The authority whose files are there. While its key is replaced, that of the certificate is there under
/// another name ([`NEXT`]); both are looked at once more where another authority was put there meanwhile.
fn authority(
    domain: &TrustDomain,
    directory: &Path,
    now: SystemTime,
) -> Result<Authority, TrustError> {
    let certificates = directory.join(CERTIFICATES);
    let keys = [KEY, NEXT].map(|name| directory.join(name));
    let mut why = None;
    for _ in 0..2 {
        let text = read(&certificates)?;
        for path in &keys {
            let secret = match read_secret(path) {
                Ok(secret) => secret,
                Err(e) if !path.exists() => {
                    why = why.or(Some(e));
                    continue;
                }
                Err(e) => return Err(e),
            };
            let e = match Authority::from_pem(domain, &text, &secret, now) {
                Ok(authority) => return Ok(authority),
                Err(e) => e,
            };
            let of = if matches!(e, AuthorityError::Key(_)) { path } else { &certificates };
            let text = format!("{e}; remedy: `partywall ca init`, or correct [authority]");
            why = match e {
                AuthorityError::OtherKey(_) => Some(wrong(of, text)),
                _ => return Err(wrong(of, text)),
            };
        }
    }
    Err(why.expect("each of the files had a reason"))
}

impl From<CertificateError> for TrustError {
    fn from(error: CertificateError) -> Self {
        Self::Authority(error.into())
    }
}

#[cfg(test)]
mod tests;
