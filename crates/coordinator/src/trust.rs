//! Who certifies the keys of processes, and by which clock certificates are over.
//!
//! ```text
//! policy file   [authority] directory   authority.pem, authority.key, trusted/*.pem     of mode 0600,
//! checked
//!               without one             an authority for the life of this coordinator
//! ```
//!
//! The private key of the authority is in this process alone, and in its file.
//!
//! The clock is the wall's at the start, and goes on by CLOCK_BOOTTIME (clock_gettime(2)): who sets the
//! wall's clock back revives no certificate, and who sets it forward ends none. The certified processes are
//! told the time by it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use partywall_abi::control::{Root, TrustMessage};
use partywall_abi::limits;
use partywall_trust::{
    Authority, AuthorityError, CertificateError, Id, IdError, LEAF_LIFE, PublicKey, Roots,
    TrustDomain,
};
use rustix::time::{ClockId, clock_gettime};

use crate::place::{Kind, Why};

/// The trust domain where the policy names none.
pub const DOMAIN: &str = "partywall.local";
/// The file with the certificates of an authority, in its directory.
pub const CERTIFICATES: &str = "authority.pem";
/// The file with its private key.
pub const KEY: &str = "authority.key";
/// The directory in it with other roots that are trusted, as PEM.
pub const TRUSTED: &str = "trusted";
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
    pub fn for_this_run(domain: &str) -> Result<Self, TrustError> {
        let (domain, clock) = (TrustDomain::new(domain)?, Clock::now());
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
    pub fn load(domain: &str, directory: &Path) -> Result<Self, TrustError> {
        let (domain, clock) = (TrustDomain::new(domain)?, Clock::now());
        let (certificates, key) = (directory.join(CERTIFICATES), directory.join(KEY));
        let text = read(&certificates, false)?;
        let secret = zeroize::Zeroizing::new(read(&key, true)?);
        let authority = Authority::from_pem(&domain, &text, &secret, clock.time());
        let authority = authority.map_err(|e| {
            let path = if matches!(e, AuthorityError::Key(_)) { key } else { certificates };
            wrong(path, format!("{e}; remedy: `partywall ca init`, or correct [authority]"))
        })?;
        let mut trust = Self::of(authority, clock)?;
        let trusted = directory.join(TRUSTED);
        let mut files = match fs::read_dir(&trusted) {
            Ok(files) => files
                .map(|file| file.map(|file| file.path()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| wrong(trusted, e.to_string()))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(wrong(trusted, e.to_string())),
        };
        files.retain(|file| file.extension().is_some_and(|e| e == "pem"));
        files.sort();
        for file in files {
            let text = read(&file, false)?;
            let added = trust.roots.add_pem(&domain, &text);
            added.map_err(|e| wrong(file, format!("{e}; remedy: remove it, or write a root")))?;
        }
        let bytes: usize = trust.roots.certificates().map(|(_, der)| der.len()).sum();
        if bytes > ROOTS_BYTES {
            let text = format!(
                "the roots have {bytes} bytes together, and {ROOTS_BYTES} go into a message; remedy: remove \
                 those that sign nothing any more"
            );
            return Err(wrong(directory.join(TRUSTED), text));
        }
        Ok(trust)
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

/// The text of a file that nobody else can change, and, if it is secret, nobody else can read.
fn read(path: &Path, is_secret: bool) -> Result<String, TrustError> {
    let fail = |e: std::io::Error| wrong(path, format!("{e}; remedy: `partywall ca init`"));
    let own = rustix::process::geteuid().as_raw();
    let real = Kind::Authority.find(path, own).map_err(|why| match why {
        Why::Io(e) => fail(e),
        Why::Text(text) => wrong(path, text),
    })?;
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(real)
        .map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.mode() & 0o7777;
    if is_secret && mode & 0o077 != 0 {
        let text = format!(
            "others than its owner can reach this private key (mode {mode:o}); remedy: `chmod 600 {}`, and \
             `partywall ca rotate` if somebody may have read it",
            path.display()
        );
        return Err(wrong(path, text));
    }
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > LARGEST {
        return Err(wrong(path, format!("over {LARGEST} bytes; remedy: name an authority's file")));
    }
    Ok(text)
}

impl From<CertificateError> for TrustError {
    fn from(error: CertificateError) -> Self {
        Self::Authority(error.into())
    }
}
