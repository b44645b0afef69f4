//! `partywall ca`: an authority in a directory.
//!
//! ```text
//! DIR (mode 0700)   authority.pem            its certificate, and those above it
//!                   authority.key            its private key, mode 0600
//!                   trusted/*.pem            further roots that are trusted
//!                   authority.key.next       while it is replaced: the key of the next certificate
//! ```
//!
//! # Replacing it
//!
//! A new authority gets there in this order, by `init` as by `rotate`. What is written is written under
//! another name first, and is on the disk (fsync(2)) before it gets its own (rename(2)).
//!
//! | step | a crash after it leaves |
//! | --- | --- |
//! | `trusted/old-DIGITS.pem`, the old root | the old authority, whose root is trusted twice: as before |
//! | `authority.key.next`, the new key | the same, with a key that nobody uses |
//! | `authority.pem`, the new certificate | the new authority: its key is `authority.key.next`, where the coordinator looks for it as well |
//! | `authority.key.next` becomes `authority.key` | the new authority |
//!
//! The next `rotate` finishes what a crash has left: a next key that is the certificate's becomes its key,
//! and any other one is removed. One of these commands at a time has a directory, by a lock on that
//! (flock(2)).

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use partywall_coordinator::place::Kind;
use partywall_coordinator::trust::{
    CERTIFICATES, CROSSED, Clock, DOMAIN, KEY, NEXT, TRUSTED, Trust, read, trusted_files,
};
use partywall_trust::{Authority, AuthorityError, CertificateError, Described, Pin, TrustDomain};
use rustix::fs::{FlockOperation, flock};

use crate::files::{self, Over};

pub(crate) const HELP: &str = "\
An authority certifies the processes of a coordinator, for sealed links. A policy names its directory:

  [authority]
  domain = \"shop.example\"
  directory = \"/var/lib/partywall/authority\"

Examples:
  partywall ca init /var/lib/partywall/authority --domain shop.example
  partywall ca show /var/lib/partywall/authority
  partywall ca show /var/lib/partywall/authority --pem > roots.pem
  partywall ca rotate /var/lib/partywall/authority";

/// The most bytes of a file of certificates, or of a key.
const LARGEST: u64 = 64 << 10;
/// How many digits of its fingerprint the name of an old root's file has.
const DIGITS: usize = 16;
/// How long the old root says that the new one is to be believed: all processes have heard of that by then.
const CROSS: Duration = Duration::from_secs(24 * 3600);

/// What is to be done with an authority.
#[derive(Subcommand)]
pub(crate) enum Order {
    /// Make an authority in a directory, or take one that another authority has certified.
    Init(Init),
    /// Replace the authority by a new root; the old root stays trusted.
    Rotate(Rotate),
    /// Show an authority, and the roots that are trusted beside it.
    Show(Show),
}

/// A new authority.
#[derive(clap::Args)]
pub(crate) struct Init {
    /// Its directory, which is made.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Its trust domain. Unless given: that of the certificate with --from, else `partywall.local`.
    #[arg(long, value_name = "NAME", value_parser = domain)]
    domain: Option<TrustDomain>,
    /// Take these certificates as its own: its own one first, then each that has signed the one before it.
    #[arg(long, value_name = "CERTS.pem", requires = "key")]
    from: Option<PathBuf>,
    /// The private key of the first certificate, of P-256 as PKCS #8.
    #[arg(long, value_name = "KEY.pem", requires = "from")]
    key: Option<PathBuf>,
}

/// Another root.
#[derive(clap::Args)]
pub(crate) struct Rotate {
    /// The directory of the authority.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The trust domain, where the certificate does not have it.
    #[arg(long, value_name = "NAME", value_parser = domain)]
    domain: Option<TrustDomain>,
}

/// What there is.
#[derive(clap::Args)]
pub(crate) struct Show {
    /// The directory of the authority.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print the roots that are trusted as PEM, and nothing else: for `openssl verify -CAfile`.
    #[arg(long)]
    pem: bool,
}

fn domain(text: &str) -> Result<TrustDomain, String> {
    TrustDomain::new(text).map_err(|e| e.to_string())
}

/// Does it.
pub(crate) fn run(order: &Order) -> Result<ExitCode, Box<dyn Error>> {
    let text = match order {
        Order::Init(init) => init.run()?,
        Order::Rotate(rotate) => rotate.run()?,
        Order::Show(show) => show.run()?,
    };
    crate::say(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A place at which a test has it fail, as a crash there would.
type Failpoint<'f> = &'f mut dyn FnMut(&'static str) -> io::Result<()>;

fn on(step: &'static str) -> io::Result<()> {
    tracing::debug!(step, "authority");
    Ok(())
}

impl Init {
    fn run(&self) -> Result<String, Box<dyn Error>> {
        let now = SystemTime::now();
        let authority = match (&self.from, &self.key) {
            (Some(from), Some(key)) => self.taken(from, key, now)?,
            _ => {
                let domain = self.domain.clone().map_or_else(|| TrustDomain::new(DOMAIN), Ok)?;
                Authority::new(&domain, now)?
            }
        };
        let directory = Directory::make(&self.directory)?;
        directory.install(&authority, &[], &mut on)?;
        let shown = self.directory.display();
        Ok(format!(
            "{shown}: the authority of trust domain `{domain}`, which holds until {until}\n\
             pin: {pin}\n\
             next: name it in the policy, and start the coordinator\n\
             \x20 [authority]\n  domain = \"{domain}\"\n  directory = \"{absolute}\"\n",
            pin = Pin::of_certificate(authority.root())?,
            domain = authority.domain(),
            until = files::date(authority.not_after()),
            absolute = std::path::absolute(&self.directory)?.display()
        ))
    }

    /// One that is certified elsewhere.
    fn taken(&self, from: &Path, key: &Path, now: SystemTime) -> Result<Authority, Box<dyn Error>> {
        let remedy = "correct the path";
        let wrong = |path: &Path, text: String| format!("{}: {text}", path.display());
        let text = Kind::Authority.read(from, LARGEST);
        let text = text.map_err(|why| wrong(from, why.said(remedy)))?;
        let secret = Kind::Authority.read_secret(key, LARGEST);
        let secret = secret.map_err(|why| wrong(key, why.said(remedy)))?;
        let none =
            |e: CertificateError| wrong(from, format!("{e}; remedy: name certificates in PEM"));
        let all = Described::all(&text).map_err(none)?;
        let domain = domain_of(from, &all, self.domain.as_ref())?
            .map_or_else(|| TrustDomain::new(DOMAIN), Ok)?;
        Authority::from_pem(&domain, &text, &secret, now).map_err(|e| {
            match e {
                AuthorityError::Key(_) => wrong(
                    key,
                    format!(
                        "{e}; remedy: write one of another form as such, by `openssl pkcs8 -topk8 -nocrypt`"
                    ),
                ),
                _ => wrong(from, format!("{e}; remedy: name the certificates of an authority, and its key")),
            }
            .into()
        })
    }
}

/// The trust domain of certificates, the first one that has one; or the one that is given, which must not
/// be another.
fn domain_of(
    file: &Path,
    all: &[Described],
    given: Option<&TrustDomain>,
) -> Result<Option<TrustDomain>, String> {
    let said = all.iter().find_map(|certificate| certificate.domain.clone());
    match (said, given) {
        (Some(said), Some(given)) if said != *given => Err(format!(
            "{}: the certificate is one of trust domain `{said}`, not of `{given}`; remedy: drop --domain",
            file.display()
        )),
        (said, given) => Ok(said.or_else(|| given.cloned())),
    }
}

impl Rotate {
    fn run(&self) -> Result<String, Box<dyn Error>> {
        let directory = Directory::open(&self.directory)?;
        let (old, old_file) = directory.rotate(self.domain.as_ref(), &mut on)?;
        let now = Described::all(&read(&directory.path.join(CERTIFICATES))?)?.swap_remove(0);
        let (shown, old_file) = (self.directory.display(), self.directory.join(old_file));
        Ok(format!(
            "{shown}: a new root, which holds until {until}: SHA-256 {new}\n\
             the old root stays trusted, as {old_file}: SHA-256 {old}\n\
             next: `partywall policy reload`, from when on the coordinator certifies by the new one\n\
             then: remove {old_file} when the last certificate by the old one is over: an hour after the \
             reload, or `life_seconds` of the policy; and reload again\n",
            until = files::date(now.not_after),
            new = now.fingerprint(),
            old = old.fingerprint(),
            old_file = old_file.display(),
        ))
    }
}

impl Show {
    fn run(&self) -> Result<String, Box<dyn Error>> {
        let file = self.directory.join(CERTIFICATES);
        let own = Described::all(&read(&file)?).map_err(|e| format!("{}: {e}", file.display()))?;
        let Some(root) = own.last() else { return Err(no_certificate(&file).into()) };
        let mut trusted = Vec::new();
        for file in trusted_files(&self.directory)? {
            let all = Described::all(&read(&file)?);
            trusted.push((all.map_err(|e| format!("{}: {e}", file.display()))?, file));
        }
        if self.pem {
            let others =
                trusted.iter().flat_map(|(all, _)| all).filter(|other| other.der != root.der);
            return Ok([root].into_iter().chain(others).map(Described::to_pem).collect());
        }
        let domain = match domain_of(&file, &own, None)? {
            Some(domain) => format!("trust domain     {domain}\n"),
            None => {
                "trust domain     not in the certificate; [authority] of the policy has it\n".into()
            }
        };
        let mut text = domain;
        for (at, certificate) in own.iter().enumerate() {
            let what = if at == 0 { "authority" } else { "signed by" };
            text += &shown(what, certificate, None);
        }
        for (all, file) in &trusted {
            for certificate in all {
                text += &shown("trusted as well", certificate, Some(file));
            }
        }
        Ok(text)
    }
}

fn shown(what: &str, certificate: &Described, file: Option<&PathBuf>) -> String {
    let file =
        file.map(|file| format!("\n  file           {}", file.display())).unwrap_or_default();
    format!(
        "{what:<16} {subject}{file}\n  SHA-256        {print}\n  pin            {pin}\n  holds          {from} to \
         {until}\n",
        subject = certificate.subject,
        print = certificate.fingerprint(),
        pin = certificate.pin,
        from = files::date(certificate.not_before),
        until = files::date(certificate.not_after),
    )
}

fn no_certificate(file: &Path) -> String {
    format!(
        "{}: no `-----BEGIN CERTIFICATE-----` in it; remedy: `partywall ca init` in another directory",
        file.display()
    )
}

/// The directory of an authority, which this command alone changes now.
struct Directory {
    path: PathBuf,
    _locked: File,
}

impl Directory {
    /// One for a new authority.
    fn make(path: &Path) -> Result<Self, String> {
        let wrong = |text: String| format!("{}: {text}", path.display());
        let made = fs::DirBuilder::new().mode(0o700).create(path);
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(format!("{e}; remedy: make the directory above it")));
            }
            made => made.map_err(|e| wrong(e.to_string()))?,
        }
        let directory = Self::open(path)?;
        let there = [CERTIFICATES, KEY].into_iter().find(|name| path.join(name).exists());
        if let Some(name) = there {
            return Err(wrong(format!(
                "there is an authority already ({name}), and certificates by it are worth nothing without its \
                 key; remedy: `partywall ca rotate {}`, or name another directory",
                path.display()
            )));
        }
        Ok(directory)
    }

    /// One that is there.
    fn open(path: &Path) -> Result<Self, String> {
        let wrong = |text: String| format!("{}: {text}", path.display());
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => {
                wrong(format!("{e}; remedy: `partywall ca init {}`", path.display()))
            }
            _ => wrong(e.to_string()),
        };
        let own = rustix::process::geteuid().as_raw();
        let opened = File::open(path).map_err(missing)?;
        let found = opened.metadata().map_err(missing)?;
        if !found.is_dir() {
            return Err(wrong("this is no directory; remedy: name one".into()));
        }
        if found.uid() != own {
            return Err(wrong(format!(
                "user {} owns it, and not user {own}; remedy: do this as that user",
                found.uid()
            )));
        }
        if found.mode() & 0o077 != 0 {
            return Err(wrong(format!(
                "others can reach it (mode {:o}), and a private key is kept there; remedy: `chmod 700 {}`, or \
                 name another directory",
                found.mode() & 0o7777,
                path.display()
            )));
        }
        flock(&opened, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            wrong("another `partywall ca` is at work in it; wait for its end".into())
        })?;
        Ok(Self { path: path.into(), _locked: opened })
    }

    /// Finishes what a crash has left.
    fn finish(&self, authority: &str, domain: &TrustDomain) -> Result<(), Box<dyn Error>> {
        let next = self.path.join(NEXT);
        if !next.exists() {
            return Ok(());
        }
        let secret = Kind::Authority.read_secret(&next, LARGEST);
        let secret =
            secret.map_err(|why| format!("{}: {}", next.display(), why.said("remove it")))?;
        let read = Authority::from_pem(domain, authority, &secret, SystemTime::now());
        let done = match read {
            Err(AuthorityError::OtherKey(_) | AuthorityError::Key(_)) => fs::remove_file(&next),
            // Though it may be over.
            _ => fs::rename(&next, self.path.join(KEY)),
        };
        done.map_err(|e| format!("{}: {e}", next.display()))?;
        Ok(())
    }

    /// Replaces the authority by a new root; the old root, and its file.
    fn rotate(
        &self,
        given: Option<&TrustDomain>,
        failpoint: Failpoint<'_>,
    ) -> Result<(Described, PathBuf), Box<dyn Error>> {
        let file = self.path.join(CERTIFICATES);
        let text = read(&file)?;
        let all = Described::all(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let old = all.last().ok_or_else(|| no_certificate(&file))?;
        let domain = domain_of(&file, &all, given)?.ok_or_else(|| {
            format!(
                "{}: the certificate has no trust domain; remedy: give that of [authority] by --domain",
                file.display()
            )
        })?;
        self.finish(&text, &domain)?;
        let now = SystemTime::now();
        let new = Authority::new(&domain, now)?;
        // An authority that is over, or whose key is lost, is replaced all the same.
        let crossed = match Trust::load(domain.as_str(), &self.path, Clock::now()) {
            Ok(trust) => {
                let room = trust.has_room(new.root().len());
                room.map_err(|text| format!("{}: {text}", self.path.join(TRUSTED).display()))?;
                trust.cross(&new, CROSS)?
            }
            Err(why) => {
                crate::remark(&format!("note: the authority could not be used: {why}"));
                String::new()
            }
        };
        let digits = old.fingerprint();
        let name = PathBuf::from(TRUSTED).join(format!("old-{}.pem", &digits[..DIGITS]));
        self.install(&new, &[(&name, &old.to_pem()), (Path::new(CROSSED), &crossed)], failpoint)?;
        Ok((old.clone(), name))
    }

    /// Puts an authority there, and before it what an old root leaves: its certificate among those that are
    /// trusted, and what it says of this one.
    fn install(
        &self,
        authority: &Authority,
        old: &[(&Path, &str)],
        failpoint: Failpoint<'_>,
    ) -> Result<(), Box<dyn Error>> {
        let at = |name: &Path| self.path.join(name);
        let trusted = at(Path::new(TRUSTED));
        let failed = |path: PathBuf| move |e: io::Error| format!("{}: {e}", path.display());
        match fs::DirBuilder::new().mode(0o700).create(&trusted) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(failed(trusted.clone()))?,
        }
        let mut put = |name: &Path, text: &str, mode: u32| {
            let written = files::write(&at(name), text.as_bytes(), mode, Over::Replace);
            written.map_err(failed(at(name)))?;
            failpoint("written").map_err(failed(at(name)))
        };
        let (certificates, key) = authority.to_pem();
        for (name, text) in old {
            put(name, text, 0o600)?;
        }
        put(Path::new(NEXT), &key, 0o600)?;
        put(Path::new(CERTIFICATES), &certificates, 0o600)?;
        let (next, last) = (at(Path::new(NEXT)), at(Path::new(KEY)));
        fs::rename(&next, &last).map_err(failed(next))?;
        files::sync_directory(&self.path).map_err(failed(self.path.clone()))?;
        failpoint("renamed").map_err(failed(last))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
