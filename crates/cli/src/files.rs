//! Files of keys, certificates and signatures, which are there whole or not at all; and times, as all see
//! them.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What becomes of a file of that name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// It is replaced.
    Replace,
    /// It stays, and that is an error.
    Refuse,
}

/// Writes a file of this mode: under another name first, whole and on the disk. What a symbolic link leads to
/// is replaced, and not the link; into what is no regular file, such as `/dev/stdout`, the bytes are written.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, over: Over) -> io::Result<()> {
    let mut target = path.to_path_buf();
    if over == Over::Replace
        && let Ok(found) = fs::metadata(path)
    {
        if !found.is_file() {
            return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
        }
        target = fs::canonicalize(path)?;
    }
    let path = &*target;
    let fresh = fresh(path);
    // What a crash has left.
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| match over {
        Over::Replace => fs::rename(&fresh, path),
        Over::Refuse => fs::hard_link(&fresh, path),
    });
    if over == Over::Refuse || written.is_err() {
        let _goes_with_the_next = fs::remove_file(&fresh);
    }
    written?;
    sync_directory(path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")))
}

/// Has the names of a directory on the disk.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn fresh(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// A time, as RFC 3339 has it.
pub(crate) fn date(time: SystemTime) -> String {
    let mut text = String::new();
    match write!(text, "{}", humantime::format_rfc3339_seconds(time)) {
        Ok(()) => text,
        Err(_) => "after the year 9999".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_there_whole_with_its_mode_and_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        fs::write(dir.path().join(".a.key.new"), "of a crash").unwrap();
        write(&path, b"one", 0o600, Over::Refuse).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = write(&path, b"two", 0o600, Over::Refuse).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write(&path, b"three", 0o644, Over::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("no/a"), b"", 0o600, Over::Replace).is_err());
    }

    #[test]
    fn what_a_link_leads_to_is_replaced_and_no_device_is() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| dir.path().join(name));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, b"after", 0o600, Over::Replace).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || fs::read(pipe).unwrap())
        };
        write(&pipe, b"through", 0o600, Over::Replace).unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
        let whole = write(Path::new("/dev/full"), b"no room", 0o600, Over::Replace).unwrap_err();
        assert_eq!(whole.kind(), io::ErrorKind::StorageFull);
        assert!(write(dir.path(), b"", 0o600, Over::Replace).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_date_is_one_of_rfc_3339() {
        assert_eq!(date(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
        let late = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 40);
        assert_eq!(date(late), "after the year 9999");
    }
}
