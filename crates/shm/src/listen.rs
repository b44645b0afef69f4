//! Listening at a path: a dead socket there is taken over, and nothing else is touched.
//!
//! ```text
//! lock the directory (flock(2)), so that two that start do not take the path from each other;
//!   any user can hold that lock: who does not get it in LOCK_TIME does without
//! bind; if something is there:
//!   no socket              refused: it is somebody's file
//!   a socket that answers  refused: somebody listens there
//!   a dead socket          removed, and bound again
//! at the end: lock the directory; remove the path if it is still this socket
//!   without the lock in LOCK_TIME it stays, as a dead socket
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody listens there.
    #[error("{}: somebody is listening here; remedy: stop that one, or take another path", .path.display())]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// Something is there that is no socket.
    #[error("{}: this is no socket, and is left alone; remedy: take another path", .path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit into an address.
    #[error("{}: the path has {found} bytes, and an address holds {LONGEST}; remedy: take a shorter one", .path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        found: usize,
    },
    /// A system call failed.
    #[error("{}: {call}: {source}{}", .path.display(), remedy(source))]
    Io {
        /// The path.
        path: PathBuf,
        /// Which call.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// What to do about it, as the end of a sentence.
fn remedy(error: &io::Error) -> &'static str {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        NotFound => "; remedy: make its directory, or correct the path",
        PermissionDenied | ReadOnlyFilesystem => {
            "; remedy: let this user write to its directory, or take another path"
        }
        _ => "",
    }
}

/// Longest path of a socket, in bytes (unix(7)).
pub const LONGEST: usize = 107;

/// How long another one may have the lock: it takes microseconds to do what it is for.
const LOCK_TIME: Duration = Duration::from_millis(100);
/// How long until the lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Device, number and time of birth: a number is used again when its file is gone.
#[derive(Debug, PartialEq, Eq)]
struct Made(u64, u64, Option<SystemTime>);

impl Made {
    fn of(metadata: &fs::Metadata) -> Self {
        Self(metadata.dev(), metadata.ino(), metadata.created().ok())
    }
}

/// A path that a socket of this process is bound to; dropping it removes the path, if it is still
/// that socket's.
#[derive(Debug)]
pub struct BoundPath {
    path: PathBuf,
    /// Which file it was made as.
    file: Made,
}

impl BoundPath {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        let ours = |m: &fs::Metadata| Made::of(m) == self.file;
        if let Ok(Some(_locked)) = lock(&self.path)
            && fs::symlink_metadata(&self.path).is_ok_and(|m| ours(&m))
        {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// Locks the directory of a path until the file is dropped; none when somebody else holds the lock
/// for [`LOCK_TIME`].
fn lock(path: &Path) -> io::Result<Option<File>> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    let end = Instant::now() + LOCK_TIME;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(directory)),
            Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Binds a socket and listens, close-on-exec and non-blocking; `before` is called on it first.
///
/// Blocks while another program takes over a path in the same directory, 100 ms at most.
///
/// # Errors
/// [`ListenError`].
pub fn listen(
    path: &Path,
    kind: SocketType,
    backlog: i32,
    before: impl FnOnce(&OwnedFd),
) -> Result<(OwnedFd, BoundPath), ListenError> {
    let fail = |call: &'static str| {
        move |source: io::Error| ListenError::Io { path: path.into(), call, source }
    };
    let found = path.as_os_str().len();
    if found > LONGEST {
        return Err(ListenError::TooLong { path: path.into(), found });
    }
    let address = SocketAddrUnix::new(path).map_err(|e| fail("socket path")(e.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || {
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
            .map_err(|e| fail("socket")(e.into()))
    };
    let locked = lock(path).map_err(fail("open or lock of its directory"))?;
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => {
            let there = fs::symlink_metadata(path).map_err(fail("lstat"))?;
            if !there.file_type().is_socket() {
                return Err(ListenError::NoSocket { path: path.into() });
            }
            match rustix::net::connect(new()?, &address) {
                // Nobody listens at this socket, whatever its kind is.
                Err(Errno::CONNREFUSED) => {}
                Err(e) if e != Errno::AGAIN && e != Errno::PROTOTYPE => {
                    return Err(fail("connect")(e.into()));
                }
                _ => return Err(ListenError::Busy { path: path.into() }),
            }
            fs::remove_file(path).map_err(fail("unlink"))?;
            rustix::net::bind(&socket, &address).map_err(|e| fail("bind")(e.into()))?;
        }
        Err(e) => return Err(fail("bind")(e.into())),
    }
    let bound = fs::symlink_metadata(path).map_err(fail("lstat"))?;
    let bound = BoundPath { path: path.into(), file: Made::of(&bound) };
    before(&socket);
    rustix::net::listen(&socket, backlog).map_err(|e| fail("listen")(e.into()))?;
    drop(locked);
    Ok((socket, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqpacket(path: &Path) -> Result<(OwnedFd, BoundPath), ListenError> {
        listen(path, SocketType::SEQPACKET, 64, |_| ())
    }

    /// Waits until nobody listens at the path: a thread that closes something elsewhere in this
    /// process has copies of all descriptors for a moment (`closer`).
    fn until_dead(path: &Path) {
        let address = SocketAddrUnix::new(path).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let caller =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let connected = rustix::net::connect(caller.unwrap(), &address);
            if connected == Err(rustix::io::Errno::CONNREFUSED) {
                return;
            }
            assert!(std::time::Instant::now() < end, "somebody listens still: {connected:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_is_left_alone_and_a_dead_socket_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data.txt");
        fs::write(&file, "precious").unwrap();
        let refused = seqpacket(&file).unwrap_err();
        assert!(matches!(refused, ListenError::NoSocket { .. }), "{refused}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(seqpacket(&link).unwrap_err(), ListenError::NoSocket { .. }));
        assert!(link.exists());
        assert!(seqpacket(dir.path()).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");

        let path = dir.path().join("s.sock");
        let (socket, bound) = seqpacket(&path).unwrap();
        assert!(matches!(seqpacket(&path).unwrap_err(), ListenError::Busy { .. }));
        let other_kind = listen(&path, SocketType::STREAM, 1, |_| ()).unwrap_err();
        assert!(matches!(other_kind, ListenError::Busy { .. }), "{other_kind}");
        drop(socket);
        until_dead(&path);
        let (_socket, again) = seqpacket(&path).unwrap();
        // The path is the new one's now.
        drop(bound);
        assert!(path.exists());
        drop(again);
        assert!(!path.exists());
    }

    #[test]
    fn a_path_that_is_another_sockets_by_now_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let (_a, bound) = seqpacket(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (_b, _other) = seqpacket(&path).unwrap();
        drop(bound);
        assert!(path.exists());
    }

    #[test]
    fn directory_lock_delays_neither_start_nor_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let hostile = File::open(dir.path()).unwrap();
        rustix::fs::flock(&hostile, FlockOperation::LockExclusive).unwrap();
        let start = Instant::now();
        let (socket, bound) = seqpacket(&path).unwrap();
        drop(bound);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        drop(socket);
        until_dead(&path);
        // What stays is a dead socket, which the next one takes over.
        seqpacket(&path).unwrap();
    }

    #[test]
    fn many_that_start_at_a_dead_socket_leave_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let left_behind = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        rustix::net::bind(left_behind.unwrap(), &SocketAddrUnix::new(&path).unwrap()).unwrap();
        until_dead(&path);
        let won: Vec<_> = std::thread::scope(|s| {
            let starts: Vec<_> = (0..8).map(|_| s.spawn(|| seqpacket(&path).ok())).collect();
            starts.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1);
        let address = SocketAddrUnix::new(&path).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let caller =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        rustix::net::connect(caller.unwrap(), &address).unwrap();
    }

    #[test]
    fn a_path_that_is_too_long_is_named_with_the_limit() {
        let refused = seqpacket(&PathBuf::from(format!("/tmp/{}", "x".repeat(200)))).unwrap_err();
        assert!(refused.to_string().contains("205 bytes"), "{refused}");
        assert!(refused.to_string().contains("107"), "{refused}");
    }
}
