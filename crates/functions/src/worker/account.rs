#![allow(unsafe_code, reason = "what the kernel says of this thread, asked in a handler")]
//! What a function has had of its worker's CPU, where the dispatcher wants it stopped.
//!
//! The dispatcher goes by the clock. Only the kernel knows whether others have had the CPU meanwhile, and it
//! tells the thread itself at once and exactly: how often it was off its CPU (getrusage(2)), and its CPU time
//! (clock_gettime(2)). So the handler asks, and only when the dispatcher wants a function stopped: calls that
//! end in time pay nothing.
//!
//! | the handler finds that this thread | the function |
//! | --- | --- |
//! | has not been off its CPU since the handler has asked last, for a function before | has had all the time: is stopped |
//! | has been off | has what the dispatcher says is left, from now on |
//! | was found so before in this function, and that time is over | is stopped |
//!
//! A function that was off its CPU has its budget at least, and twice that at most: nobody knows how much it
//! has had until it is asked for the first time. A worker that has slept was off its CPU too.
//!
//! The three words below are of handlers alone, one of which may interrupt another: each finds words that are
//! of its function, or of one before. So what is counted from is written before whose it is, and that before
//! how often the thread was off its CPU; a handler that comes between counts anew. All are of one thread:
//! the compiler alone could change their order.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

/// How often this thread had been off its CPU when that was asked last.
static OFF: AtomicU64 = AtomicU64::new(0);
/// The submission that has so much CPU time from when it was asked for, and the thread's CPU time then.
static OF: AtomicU32 = AtomicU32::new(0);
static UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// The worker begins: what was before is none of its functions' business.
pub(super) fn begin() -> io::Result<()> {
    OFF.store(off().ok_or_else(io::Error::last_os_error)?, Relaxed);
    Ok(())
}

/// Whether submission `running`, which is on the CPU, is beyond its budget, of which so much was left to it
/// if it has not had all the time. For handlers.
pub(super) fn is_over(running: u32, left_us: u32) -> bool {
    if left_us == 0 {
        return true;
    }
    if OF.load(Relaxed) == running {
        return cpu_ns() >= UNTIL_NS.load(Relaxed);
    }
    let Some(off) = off() else { fail() };
    if OFF.load(Relaxed) == off {
        return true;
    }
    UNTIL_NS.store(cpu_ns() + u64::from(left_us) * 1000, Relaxed);
    compiler_fence(SeqCst);
    OF.store(running, Relaxed);
    compiler_fence(SeqCst);
    OFF.store(off, Relaxed);
    false
}

/// The CPU time of this thread, in nanoseconds.
pub(super) fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = libc::CLOCK_THREAD_CPUTIME_ID;
    // SAFETY: writes `time`, which lives here, and nothing else.
    let got = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    if got != 0 {
        fail()
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How often this thread has been off its CPU, by its own will or not.
fn off() -> Option<u64> {
    // SAFETY: zeros are a valid value.
    let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: writes `usage`, which lives here, and nothing else.
    let got = unsafe { libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, &raw mut usage) };
    (got == 0).then_some((usage.ru_nvcsw + usage.ru_nivcsw) as u64)
}

/// A thread is told both. This is a handler's code, which must not panic.
fn fail() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(96) }
}
