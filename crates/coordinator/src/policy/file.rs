//! A policy's file: nobody but root and the coordinator's user may be able to change it.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::read::LARGEST;
use super::{Policy, PolicyError};
use crate::place::{Kind, Why};

impl Policy {
    /// Reads and checks a file, and those of keys that it names. Blocks for as long as its file system likes.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let text = Self::text_of(path)?;
        let mut policy = Self::parse(&path.display().to_string(), &text)?;
        policy.load_signatures()?;
        Ok(policy)
    }

    /// The text of a file that nobody else can change. Blocks as [`Policy::load`].
    ///
    /// # Errors
    /// [`PolicyError::Read`], [`PolicyError::File`].
    pub fn text_of(path: &Path) -> Result<String, PolicyError> {
        let file = path.display().to_string();
        let unreadable = |source| PolicyError::Read { file: file.clone(), source };
        let own = rustix::process::geteuid().as_raw();
        let real = Kind::Policy.find(path, own).map_err(|why| match why {
            Why::Io(source) => unreadable(source),
            Why::Text(text) => PolicyError::File { file: file.clone(), text },
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
}
