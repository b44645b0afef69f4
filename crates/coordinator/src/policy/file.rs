//! A policy's file: nobody but root and the coordinator's user may be able to change it.
//!
//! Whoever can write the file, or a directory on the way to it, decides who may call whom. So each
//! directory on the way, symbolic links followed one by one, and the file itself must belong to
//! root or the coordinator's user, and be writable by nobody else; a directory with the sticky bit
//! may be, for others can neither rename nor remove what is not theirs in it.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::read::LARGEST;
use super::{Policy, PolicyError};

/// Symbolic links that are followed, as the kernel does (path_resolution(7)).
const LINKS: usize = 40;

impl Policy {
    /// Reads and checks a file. Blocks for as long as its file system likes.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let text = Self::text_of(path)?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// The text of a file that nobody else can change. Blocks as [`Policy::load`].
    ///
    /// # Errors
    /// [`PolicyError::Read`], [`PolicyError::File`].
    pub fn text_of(path: &Path) -> Result<String, PolicyError> {
        let file = path.display().to_string();
        let unreadable = |source| PolicyError::Read { file: file.clone(), source };
        let real = resolve(path, rustix::process::geteuid().as_raw()).map_err(|why| match why {
            Why::Io(source) => unreadable(source),
            Why::File(text) => PolicyError::File { file: file.clone(), text },
        })?;
        let mut text = String::new();
        let opened = fs::File::open(real).map_err(unreadable)?;
        opened.take(LARGEST + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > LARGEST {
            let text = format!(
                "over {LARGEST} bytes, the most that a policy may have; remedy: name a policy's file"
            );
            return Err(PolicyError::File { file, text });
        }
        Ok(text)
    }
}

enum Why {
    Io(io::Error),
    File(String),
}

/// The file without symbolic links, every step looked at.
fn resolve(path: &Path, user: u32) -> Result<PathBuf, Why> {
    let absolute = std::path::absolute(path).map_err(Why::Io)?;
    let mut left: Vec<PathBuf> = parts(&absolute);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    check(&at, &fs::symlink_metadata(&at).map_err(Why::Io)?, user)?;
    while let Some(part) = left.pop() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let found = fs::symlink_metadata(&next).map_err(Why::Io)?;
        if found.is_symlink() {
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
        // Of what cannot be a policy no rights are to be changed.
        if left.is_empty() && !found.is_file() {
            return Err(no_file());
        }
        check(&next, &found, user)?;
        at = next;
    }
    match fs::symlink_metadata(&at).map_err(Why::Io)?.is_file() {
        true => Ok(at),
        false => Err(no_file()),
    }
}

fn no_file() -> Why {
    Why::File("this is no regular file; remedy: name the policy's file".into())
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

fn check(at: &Path, found: &Metadata, user: u32) -> Result<(), Why> {
    const STICKY: u32 = 0o1000;
    let shown = at.display();
    let owner = found.uid();
    if owner != 0 && owner != user {
        return Err(Why::File(format!(
            "user {owner} owns {shown} and could change the policy; remedy: chown it to root or to \
             user {user}, or keep the policy elsewhere"
        )));
    }
    let (mode, sticky) = (found.mode(), found.is_dir() && found.mode() & STICKY != 0);
    if mode & 0o022 != 0 && !sticky {
        return Err(Why::File(format!(
            "others can write {shown} (mode {:o}) and could change the policy; remedy: chmod go-w \
             {shown}",
            mode & 0o7777
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn load(path: &Path) -> Result<(), String> {
        Policy::load(path).map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn a_policy_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (sub, other) = (dir.path().join("sub"), dir.path().join("other"));
        fs::create_dir(&sub).unwrap();
        fs::create_dir(&other).unwrap();
        let file = sub.join("policy.toml");
        fs::write(&file, "").unwrap();
        chmod(&file, 0o644);
        chmod(&sub, 0o755);
        load(&file).unwrap();
        for mode in [0o664, 0o646] {
            chmod(&file, mode);
            let error = load(&file).unwrap_err();
            assert!(error.contains("others can write") && error.contains("chmod go-w"), "{error}");
        }
        chmod(&file, 0o644);
        chmod(&sub, 0o777);
        assert!(load(&file).unwrap_err().contains("sub (mode 777)"));
        chmod(&sub, 0o1777);
        load(&file).unwrap();
        // A link in a directory that others can write, to a file that they cannot.
        chmod(&sub, 0o755);
        symlink(&file, other.join("link")).unwrap();
        load(&other.join("link")).unwrap();
        chmod(&other, 0o777);
        assert!(load(&other.join("link")).unwrap_err().contains("other (mode 777)"));
        // And by a path that goes there and back.
        assert!(load(&other.join("../sub/policy.toml")).unwrap_err().contains("other (mode 777)"));
    }

    #[test]
    fn policy_file_missing_or_irregular_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap_err().contains("this is no regular file"));
        // Which everybody can write, and should go on to.
        let device = load(Path::new("/dev/null")).unwrap_err();
        assert!(
            device.contains("this is no regular file") && !device.contains("chmod"),
            "{device}"
        );
        let missing = load(&dir.path().join("p.toml")).unwrap_err();
        assert!(
            missing.contains("p.toml") && missing.contains("write a policy there"),
            "{missing}"
        );
        symlink("loop", dir.path().join("loop")).unwrap();
        let looped = load(&dir.path().join("loop")).unwrap_err();
        assert!(looped.contains("correct the symbolic links"), "{looped}");
        let latin = dir.path().join("latin.toml");
        fs::write(&latin, b"# caf\xe9\n").unwrap();
        assert!(load(&latin).unwrap_err().contains("save it as UTF-8"));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        fs::write(&file, "").unwrap();
        let found = fs::symlink_metadata(&file).unwrap();
        assert!(check(&file, &found, found.uid()).is_ok());
        let refused = check(&file, &found, found.uid() + 1);
        match (found.uid(), refused) {
            (0, refused) => assert!(refused.is_ok(), "root may"),
            (_, Err(Why::File(text))) => assert!(text.contains("chown"), "{text}"),
            _ => panic!("taken"),
        }
    }
}
