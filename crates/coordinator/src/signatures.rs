//! Signed programs: the signature beside a program's file, and the keys whose signatures count.
//!
//! ```text
//! PROGRAM.sig --read, at most 64 KiB--> Found --with the digest of the sealed copy--> Program, or why not
//! ```
//!
//! What is found is checked against what was sealed, never against the file: so the digest is that of what
//! runs. A signature proves itself, so anybody may own or write its file. The files of keys and the list of
//! what is revoked decide whom the coordinator believes, so nobody else may write these ([`Kind::Key`]).
//!
//! A signature has to count when its process starts; a policy that is read again looks once more, with its
//! own keys, list and time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use partywall_trust::{Program, PublicKey, Revoked, SignatureError};
use sha2::{Digest as _, Sha256};

use crate::place::Kind;

/// The most bytes of a signature's file, and of a key's.
const LARGEST: u64 = 64 << 10;
/// The most bytes of the list of what is revoked.
const LARGEST_LIST: u64 = 4 << 20;
/// The most keys whose signatures count.
pub const KEYS: usize = 64;

/// A file of a key, or the list of what is revoked, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {text}", .path.display())]
pub struct SignaturesError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and the remedy.
    pub text: String,
}

/// Whose signatures of programs count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signatures {
    keys: Vec<PublicKey>,
    revoked: Revoked,
}

impl Signatures {
    /// The keys of these files, and the list of what is revoked. Blocks for as long as their file system
    /// likes.
    ///
    /// # Errors
    /// [`SignaturesError`]
    pub fn load(keys: &[PathBuf], revoked: Option<&Path>) -> Result<Self, SignaturesError> {
        let wrong = |path: &Path, text: String| SignaturesError { path: path.into(), text };
        let mut all = Self::default();
        for path in keys {
            let remedy = "name a public key's file, as `partywall sign --new-key` makes it";
            let text = Kind::Key.read(path, LARGEST);
            let text = text.map_err(|why| wrong(path, why.said(remedy)))?;
            let key = PublicKey::from_pem(&text);
            all.keys.push(key.map_err(|e| wrong(path, format!("{e}; remedy: {remedy}")))?);
        }
        if let Some(path) = revoked {
            let text = Kind::Revoked.read(path, LARGEST_LIST);
            let text = text.map_err(|why| {
                let remedy = "write the list, which may be empty, or correct the path";
                wrong(path, why.said(remedy))
            })?;
            let list = Revoked::parse(&text);
            all.revoked = list.map_err(|e| wrong(path, format!("{e}; remedy: correct it")))?;
        }
        Ok(all)
    }

    /// What a signature says of a program with this digest, and the id of the key, if it counts `now`; for a
    /// service of this name where one is given.
    ///
    /// # Errors
    /// [`SignatureError`]
    pub fn check(
        &self,
        found: &Found,
        digest: [u8; 32],
        service: Option<&str>,
        now: SystemTime,
    ) -> Result<(Program, String), SignatureError> {
        let envelope = found.0.as_ref().map_err(Clone::clone)?;
        Program::verify(envelope, (&self.keys, &self.revoked), digest, service, now)
    }
}

/// What was found where a signature would be: that of whoever has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found(Result<Vec<u8>, SignatureError>);

impl Found {
    /// What is in the file beside a program ([`beside`]).
    pub fn beside(program: &Path) -> Self {
        Self::at(&beside(program))
    }

    /// What is in this file.
    pub fn at(path: &Path) -> Self {
        let bad = |text: String| SignatureError::Malformed(format!("{}: {text}", path.display()));
        Self(match read(path) {
            Ok(bytes) if bytes.len() as u64 > LARGEST => {
                Err(bad(format!("over {LARGEST} bytes, the most of a signature")))
            }
            Ok(bytes) => Ok(bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let text = format!("there is no signature file {}", path.display());
                Err(SignatureError::Unsigned(text))
            }
            Err(e) => Err(bad(e.to_string())),
        })
    }
}

/// What was found beside the program of a process that the coordinator has started, or of the image of a
/// process in a container, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    pub(crate) found: Arc<Found>,
    pub(crate) at: SystemTime,
}

impl Beside {
    /// What is in a directory of signatures of images, now.
    pub(crate) fn of_image(directory: &Path, image: &str) -> Self {
        let found = Arc::new(Found::at(&of_image(directory, image)));
        Self { found, at: SystemTime::now() }
    }
}

/// The file with the signature of a program: its name, and `.sig`.
pub fn beside(program: &Path) -> PathBuf {
    let mut path = OsString::from(program);
    path.push(".sig");
    path.into()
}

/// The command that signs a program, or an image of this id, for a service.
pub fn command(image: Option<&str>, service: &str) -> String {
    let what = image.map_or_else(|| "PROGRAM".into(), |image| format!("--image {image}"));
    format!("partywall sign {what} --service {service} --key KEY")
}

/// The file with the signature of an image in a directory of those: the digits of its id, and `.sig`.
pub fn of_image(directory: &Path, image: &str) -> PathBuf {
    beside(&directory.join(image.rsplit(':').next().unwrap_or_default()))
}

/// One byte more than may be, where there are so many. What is no file keeps nobody waiting.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("this is no regular file")),
    }
}

/// SHA-256 of a file.
///
/// # Errors
/// What the system says; that it is no file.
pub fn digest_of(path: &Path) -> io::Result<[u8; 32]> {
    let (mut file, mut digest) = (open(path)?, Sha256::new());
    let mut bytes = vec![0; 64 << 10];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(digest.finalize().into()),
            some => digest.update(&bytes[..some]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_trust::SigningKey;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    #[test]
    fn keys_and_lists_that_others_can_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (key, list) = (dir.path().join("a.pub"), dir.path().join("revoked"));
        let load = || {
            let loaded = Signatures::load(std::slice::from_ref(&key), Some(&list));
            loaded.map_err(|e| e.to_string())
        };
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let missing = load().unwrap_err();
        assert!(
            missing.contains("a.pub: No such file") && missing.contains("--new-key"),
            "{missing}"
        );
        fs::write(&key, SigningKey::generate().public().to_pem()).unwrap();
        let missing = load().unwrap_err();
        assert!(missing.contains("revoked: No such file") && missing.contains("may be empty"));
        fs::write(&list, "# none\n").unwrap();
        load().unwrap();
        for (path, harm) in [(&key, "have its own programs trusted"), (&list, "take back what is")]
        {
            chmod(path, 0o664);
            let refused = load().unwrap_err();
            assert!(refused.contains(harm) && refused.contains("remedy: chmod go-w"), "{refused}");
            chmod(path, 0o644);
        }
        fs::write(&list, "abc\n").unwrap();
        let refused = load().unwrap_err();
        assert!(refused.contains("revoked: line 1: `abc` is no SHA-256"), "{refused}");
        fs::write(&key, "abc\n").unwrap();
        let refused = load().unwrap_err();
        assert!(
            refused.contains("a.pub: this is no public key") && refused.contains("remedy: name")
        );
    }

    #[test]
    fn what_lies_beside_a_program_is_bounded_and_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("a.b");
        assert_eq!(beside(&program), dir.path().join("a.b.sig"));
        let none = Signatures::default();
        let reason = || {
            let found = Found::beside(&program);
            none.check(&found, [0; 32], None, SystemTime::now()).unwrap_err().to_string()
        };
        assert!(reason().starts_with("unsigned: there is no signature file /"), "{}", reason());
        fs::write(beside(&program), vec![b' '; LARGEST as usize + 1]).unwrap();
        assert!(reason().contains("a.b.sig: over 65536 bytes"), "{}", reason());
        fs::write(beside(&program), "{}").unwrap();
        assert!(reason().starts_with("no signature: this is no DSSE envelope"), "{}", reason());
        fs::remove_file(beside(&program)).unwrap();
        // Whose reader would wait for a writer.
        let pipe = std::process::Command::new("mkfifo").arg(beside(&program)).status().unwrap();
        assert!(pipe.success() && reason().contains("this is no regular file"), "{}", reason());
        fs::remove_file(beside(&program)).unwrap();
        fs::create_dir(beside(&program)).unwrap();
        assert!(reason().contains("this is no regular file"), "{}", reason());
        assert!(digest_of(&program).is_err() && digest_of(dir.path()).is_err());
        fs::write(&program, "abc").unwrap();
        assert_eq!(digest_of(&program).unwrap(), crate::identity::digest(b"abc"));
    }

    #[test]
    fn a_signature_beside_a_program_is_checked_by_the_keys() {
        let dir = tempfile::tempdir().unwrap();
        let (program, now) = (dir.path().join("web"), SystemTime::now());
        let key = SigningKey::generate();
        let said = Program::new("web", vec![], now, Duration::from_secs(60));
        fs::write(beside(&program), said.sign("web", [3; 32], &key)).unwrap();
        let file = dir.path().join("a.pub");
        fs::write(&file, key.public().to_pem()).unwrap();
        let trusted = Signatures::load(&[file], None).unwrap();
        let found = Found::beside(&program);
        let checked = trusted.check(&found, [3; 32], Some("web"), now).unwrap();
        assert_eq!(checked, (said, key.public().id()));
        assert!(trusted.check(&found, [4; 32], Some("web"), now).is_err());
        assert!(Signatures::default().check(&found, [3; 32], Some("web"), now).is_err());
    }
}
