#![allow(unsafe_code, reason = "pthread_sigmask(3) has no safe wrapper")]
//! Threads of the library in other people's programs: no signal is delivered on them.
//!
//! A program may block a signal in its own threads only after this library has started one, to take it
//! by signalfd(2) or sigwait(3); it would be delivered here. So these threads begin with those signals
//! blocked that processes are sent. Not blocked are signals that tell of the thread's own doing
//! (`SIGSEGV` and the like, `SIGSYS`, `SIGTRAP`), which would kill it, those of profilers and timers of its
//! own (`SIGPROF`, `SIGVTALRM`), and the real-time ones, which C libraries and launchers use.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

const BLOCKED: [libc::c_int; 18] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGXCPU,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Starts a thread as std does, with signals blocked.
///
/// # Errors
/// Those of [`Builder::spawn`].
pub fn spawn<T: Send + 'static>(
    thread: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread begins with its maker's mask.
    let before = block();
    let spawned = thread.spawn(run);
    restore(&before);
    spawned
}

fn block() -> libc::sigset_t {
    let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigemptyset(3) makes the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in BLOCKED {
        // SAFETY: the set was made above, and the number is a signal's.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is whole, and there is room for the one before; it cannot fail with SIG_BLOCK.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: the kernel has written it.
    unsafe { before.assume_init() }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: the set is one that the kernel has given.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn threads_of_the_library_take_no_signals_of_the_program() {
        let before = blocked();
        let there = spawn(Builder::new(), blocked).unwrap().join().unwrap();
        for signal in BLOCKED {
            assert_ne!(there & (1 << (signal - 1)), 0, "signal {signal}");
        }
        for signal in [libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP, libc::SIGBUS, libc::SIGPROF] {
            assert_eq!(there & (1 << (signal - 1)), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
    }
}
