#![allow(unsafe_code, reason = "close_range(2) has no safe wrapper")]
//! Closing sockets whose last close(2) can take as long as another process likes.
//!
//! What a process has sent on a Unix socket and nobody has received goes with the socket's last
//! reference, on the thread that gives it up. There can be a TCP socket among it that lingers
//! (`SO_LINGER`, socket(7)). The kernel does not linger for a thread that ends, so:
//!
//! ```text
//! closer      takes what waits; starts a thread, waits until that has copies
//! thread        copies the table of descriptors (close_range(2), CLOSE_RANGE_UNSHARE); says so
//! closer      closes its own, which are not the last any more; says so
//! thread        ends, and the copies with it
//! ```
//!
//! No step waits for another process. The closer starts with the first socket and ends when
//! nothing waits; without a thread for it, sockets wait for the next one that is to be closed.
//! Where close_range(2) is forbidden the closer itself gives up the last reference: then it may
//! linger, and later sockets wait for it.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::threads;

/// Stack of each thread here, in bytes.
const STACK: usize = 64 * 1024;
/// How long the closer waits before it tries again to start a thread.
const NO_THREAD: Duration = Duration::from_millis(10);

struct Waiting {
    sockets: Vec<OwnedFd>,
    /// The closer's thread runs.
    running: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { sockets: Vec::new(), running: false });

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a socket closed on another thread, soon.
pub(crate) fn close(socket: OwnedFd) {
    let mut waiting = waiting();
    waiting.sockets.push(socket);
    if !waiting.running {
        waiting.running = thread("partywall-close", run);
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    threads::spawn(thread, run).is_ok()
}

fn run() {
    loop {
        let mut waiting = waiting();
        let sockets = std::mem::take(&mut waiting.sockets);
        if sockets.is_empty() {
            waiting.running = false;
            return;
        }
        drop(waiting);
        let held = loop {
            match hold_copies() {
                Some(held) => break held,
                None => std::thread::sleep(NO_THREAD),
            }
        };
        drop(sockets);
        drop(held);
    }
}

/// Starts a thread with a copy of every descriptor, which ends when the value is dropped; none
/// when no thread can be started.
fn hold_copies() -> Option<mpsc::Sender<()>> {
    let (held, dropped) = mpsc::channel::<()>();
    let (copied, ready) = mpsc::channel();
    let hold = move || {
        let _own_table = unshare_table();
        let _heard = copied.send(());
        let _ended = dropped.recv();
    };
    thread("partywall-end", hold).then(|| {
        let _copied = ready.recv();
        held
    })
}

/// Gives this thread a table of descriptors of its own, a copy of the process's.
fn unshare_table() -> std::io::Result<()> {
    const NONE: libc::c_uint = libc::c_uint::MAX;
    // SAFETY: the range is empty but for a number that no descriptor has, so nothing is closed;
    // from here on this thread uses no descriptor, and ends.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, NONE, NONE, libc::CLOSE_RANGE_UNSHARE as libc::c_uint)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn lingering_sockets_hold_nothing_up() {
        // More of them than there could be threads for, each 2 s, nested in queues.
        let peers: Vec<_> = (0..64)
            .map(|_| {
                let (ours, theirs) = socket::pair().unwrap();
                let (slow, other) = partywall_testkit::lingering(Duration::from_secs(2)).unwrap();
                socket::send(theirs.as_fd(), b"x", &[slow.as_fd()]).unwrap();
                drop(slow);
                close(ours);
                (theirs, other)
            })
            .collect();
        let start = Instant::now();
        for (theirs, _) in &peers {
            let deadline = start + Duration::from_secs(1);
            assert!(socket::wait_readable(theirs.as_fd(), deadline).unwrap(), "not closed in 1 s");
        }
    }

    #[test]
    fn the_last_close_is_the_thread_that_ends() {
        let (ours, theirs) = socket::pair().unwrap();
        let held = hold_copies().unwrap();
        drop(ours);
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(!socket::wait_readable(theirs.as_fd(), soon).unwrap(), "it had no copy");
        drop(held);
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(socket::wait_readable(theirs.as_fd(), deadline).unwrap());
    }
}
