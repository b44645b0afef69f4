//! Paths that decide whom the coordinator believes, and what a command does: nobody but root and its user may
//! be able to change what is there.
//!
//! Whoever can write a directory on the way to a file, or the file itself, decides what is found. So
//! each directory on the way, each symbolic link, which are followed one by one, and the file itself must
//! belong to root or that user, and be writable by nobody else; a directory with the sticky bit may
//! be, for others can neither rename nor remove what is not theirs in it. To write a socket is to
//! connect to it, which others may.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use zeroize::Zeroizing;

/// Symbolic links that are followed, as the kernel does (path_resolution(7)).
const LINKS: usize = 40;

/// What is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The policy's file.
    Policy,
    /// A file of an authority.
    Authority,
    /// A key whose signatures count.
    Key,
    /// A private key that signs programs.
    Signer,
    /// The list of programs and keys whose signatures count no more.
    Revoked,
    /// The socket of a container engine.
    Engine,
    /// A directory that has, at any depth, what a command has written of its run.
    Run,
}

/// Why a path is not used.
pub enum Why {
    /// It cannot be looked at.
    Io(io::Error),
    /// What is wrong, and the remedy.
    Text(String),
}

impl Why {
    /// What to say of it; `remedy` is that of what cannot be looked at.
    pub fn said(self, remedy: &str) -> String {
        match self {
            Self::Io(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                let own = rustix::process::geteuid().as_raw();
                format!("{e}; remedy: let user {own} read it, and enter each directory of the path")
            }
            Self::Io(e) => format!("{e}; remedy: {remedy}"),
            Self::Text(text) => text,
        }
    }
}

impl Kind {
    fn is(self, found: FileType) -> bool {
        match self {
            Self::Policy | Self::Authority | Self::Key | Self::Signer | Self::Revoked => {
                found.is_file()
            }
            Self::Engine => found.is_socket(),
            Self::Run => found.is_dir(),
        }
    }

    fn is_none(self) -> Why {
        let text = match self {
            Self::Policy => "this is no regular file; remedy: name the policy's file",
            Self::Authority => {
                "this is no regular file; remedy: name a directory that `partywall ca init` has made"
            }
            Self::Key => "this is no regular file; remedy: name a public key's file",
            Self::Signer => "this is no regular file; remedy: name a private key's file",
            Self::Revoked => "this is no regular file; remedy: name the list of what is revoked",
            Self::Engine => "this is no socket; remedy: name the engine's socket",
            Self::Run => "this is no directory; remedy: remove it",
        };
        Why::Text(text.into())
    }

    /// What others could do, and what is to be kept elsewhere.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Policy => ("change the policy", "the policy"),
            Self::Authority => ("certify whom it likes", "the authority"),
            Self::Key => ("have its own programs trusted", "the key"),
            Self::Signer => ("sign with another key", "the key"),
            Self::Revoked => ("take back what is revoked", "the list"),
            Self::Engine => ("answer as the engine", "the engine's socket"),
            Self::Run => ("change what this command does", "XDG_RUNTIME_DIR"),
        }
    }

    /// Where it is without symbolic links, every step looked at, for a coordinator or command of this user.
    ///
    /// # Errors
    /// [`Why`].
    pub fn find(self, path: &Path, user: u32) -> Result<PathBuf, Why> {
        let absolute = std::path::absolute(path).map_err(Why::Io)?;
        let mut left: Vec<PathBuf> = parts(&absolute);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        self.check(&at, &fs::symlink_metadata(&at).map_err(Why::Io)?, user)?;
        while let Some(part) = left.pop() {
            if part == Path::new("..") {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            let found = fs::symlink_metadata(&next).map_err(Why::Io)?;
            if found.is_symlink() {
                self.check(&next, &found, user)?;
                links += 1;
                if links > LINKS {
                    return Err(Why::Io(rustix::io::Errno::LOOP.into()));
                }
                let target = fs::read_link(&next).map_err(Why::Io)?;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                left.extend(parts(&target));
                continue;
            }
            // Of what it cannot be no rights are to be changed.
            if left.is_empty() && !self.is(found.file_type()) {
                return Err(self.is_none());
            }
            self.check(&next, &found, user)?;
            at = next;
        }
        match self.is(fs::symlink_metadata(&at).map_err(Why::Io)?.file_type()) {
            true => Ok(at),
            false => Err(self.is_none()),
        }
    }

    /// The text of a file of at most `most` bytes that [`Kind::find`] finds for this user.
    ///
    /// # Errors
    /// [`Why`].
    pub fn read(self, path: &Path, most: u64) -> Result<String, Why> {
        text_of(self.open(path)?, most)
    }

    /// The same of a private key, which nobody but its owner can reach.
    ///
    /// # Errors
    /// [`Why`].
    pub fn read_secret(self, path: &Path, most: u64) -> Result<Zeroizing<String>, Why> {
        let file = self.open(path)?;
        let mode = file.metadata().map_err(Why::Io)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Why::Text(format!(
                "others than its owner can reach this private key (mode {mode:o}); remedy: `chmod 600 {}`, and \
                 another key if somebody may have read it",
                path.display()
            )));
        }
        text_of(file, most).map(Zeroizing::new)
    }

    fn open(self, path: &Path) -> Result<File, Why> {
        let real = self.find(path, rustix::process::geteuid().as_raw())?;
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(real);
        opened.map_err(Why::Io)
    }

    fn check(self, at: &Path, found: &Metadata, user: u32) -> Result<(), Why> {
        const STICKY: u32 = 0o1000;
        let (shown, owner) = (at.display(), found.uid());
        let (harm, what) = self.words();
        if owner != 0 && owner != user {
            return Err(Why::Text(format!(
                "user {owner} owns {shown} and could {harm}; remedy: chown it to root or to user {user}, or \
                 keep {what} elsewhere"
            )));
        }
        let (mode, sticky) = (found.mode(), found.is_dir() && found.mode() & STICKY != 0);
        let has_mode = !found.is_symlink() && !found.file_type().is_socket();
        if mode & 0o022 != 0 && !sticky && has_mode {
            return Err(Why::Text(format!(
                "others can write {shown} (mode {:o}) and could {harm}; remedy: chmod go-w {shown}",
                mode & 0o7777
            )));
        }
        Ok(())
    }
}

/// The text of a file, read into memory that does not move: it may be secret.
fn text_of(file: File, most: u64) -> Result<String, Why> {
    let length = file.metadata().map_err(Why::Io)?.len().min(most);
    let mut text = String::with_capacity(length as usize + 1);
    file.take(most + 1).read_to_string(&mut text).map_err(Why::Io)?;
    match text.len() as u64 > most {
        true => Err(Why::Text(format!("over {most} bytes; remedy: name the file that is meant"))),
        false => Ok(text),
    }
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<PathBuf> {
    let part = |c: Component<'_>| match c {
        Component::Normal(_) | Component::ParentDir => Some(PathBuf::from(c.as_os_str())),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    let mut parts: Vec<_> = path.components().filter_map(part).collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn found(kind: Kind, path: &Path, user: u32) -> Result<PathBuf, String> {
        kind.find(path, user).map_err(|why| match why {
            Why::Text(text) => text,
            Why::Io(e) => e.to_string(),
        })
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        fs::write(&file, "").unwrap();
        let own = fs::symlink_metadata(&file).unwrap().uid();
        assert_eq!(found(Kind::Policy, &file, own), Ok(file.clone()));
        let refused = found(Kind::Policy, &file, own + 1);
        match own {
            0 => assert!(refused.is_ok(), "root may"),
            _ => assert!(refused.unwrap_err().contains("chown")),
        }
    }

    #[test]
    fn socket_that_others_could_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, own) = (dir.path().join("engine.sock"), rustix::process::geteuid().as_raw());
        let _listener = UnixListener::bind(&path).unwrap();
        // Whoever may connect to it replaces nothing.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(found(Kind::Engine, &path, own), Ok(path.clone()));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let open = found(Kind::Engine, &path, own).unwrap_err();
        assert!(open.contains("could answer as the engine; remedy: chmod go-w"), "{open}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(found(Kind::Engine, &file, own).unwrap_err().contains("no socket"));
    }
}
