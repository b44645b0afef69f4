//! Sleeping on a word that two processes share.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while `word` is `value`. Returns on a wake, on a signal, and if the value differs.
#[inline]
pub fn wait(word: &AtomicU32, value: u32) {
    // A spurious return is harmless: every caller looks at its condition again.
    let _ = futex::wait(word, Flags::empty(), value, None);
}

/// Wakes one process asleep on `word`.
#[inline]
pub fn wake(word: &AtomicU32) {
    // Waking fails only for an address that is not mapped, which a reference excludes.
    let _ = futex::wake(word, Flags::empty(), 1);
}

/// Sleeps until `done` accepts the value of `word`, and returns that value.
///
/// # Errors
/// `TimedOut` after `limit`.
pub fn wait_until(
    word: &AtomicU32,
    limit: Duration,
    done: impl Fn(u32) -> bool,
) -> io::Result<u32> {
    let end = Instant::now() + limit;
    loop {
        let value = word.load(Acquire);
        if done(value) {
            return Ok(value);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let span = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match futex::wait(word, Flags::empty(), value, Some(&span)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
