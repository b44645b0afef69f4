#![allow(unsafe_code, reason = "POSIX timers have no safe interface")]
//! The timer of a worker that gives up functions by itself: for a machine without a CPU for the dispatcher.
//!
//! The timer is set for one tick at a time, and by the tick's handler for the next one. One that comes while
//! another is handled sets it for twice as long as that one has, so that ticks never come faster than they
//! are handled for long. A submission says how many quanta its function has.
//!
//! | a tick finds | then the timer is set for |
//! | --- | --- |
//! | no function, nor one that is about to run, or one that has as long as it likes | nothing; the next submission sets it for a quantum |
//! | one that is about to run | a quantum |
//! | a function that the tick before has not found | a quantum |
//! | the same function, which has had less than its quanta since it was found first | what is left of them |
//! | the same function, which has had its quanta | nothing: the function is given up |
//!
//! The timer goes by the clock, and what a function has had by the CPU time of this thread, for others may
//! want its CPU. A function is given up after its quanta and before two more have passed, if it has the CPU
//! to itself; else at the first tick by which it has had them. Short functions cost a signal, a
//! clock_gettime(2) and a timer_settime(2) in a quantum, however many they are, and none when it is set; one
//! behind a long function costs one more, so that it does not have what was left to that.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, compiler_fence};
use std::time::Duration;

use super::account::cpu_ns;

/// The signal of a tick.
pub(super) const TICK: i32 = libc::SIGALRM;

/// The kernel's number of this worker's timer.
static NUMBER: AtomicI32 = AtomicI32::new(0);
/// The quantum, in nanoseconds.
static QUANTUM: AtomicU64 = AtomicU64::new(0);
/// Whether it is set for sure, for a quantum at most: not behind a tick that has doubled it. The worker
/// writes it while no function runs, and its handlers.
static IS_SET: AtomicBool = AtomicBool::new(false);
/// How often a quantum is doubled, for the ticks that are being handled, one within the other.
static DOUBLED: AtomicU32 = AtomicU32::new(0);
/// It is not doubled more often.
const MOST: u32 = 16;
/// The quanta of the function that runs or is about to; 0 where it is not given up by this timer.
static QUANTA: AtomicU32 = AtomicU32::new(0);
/// The submission that the last tick has found.
static FOUND: AtomicU32 = AtomicU32::new(0);
/// The CPU time of this thread, in nanoseconds, when the function has had its quanta.
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// A timer of this thread.
#[derive(Debug)]
pub(super) struct Timer;

impl Timer {
    /// One that does not tick yet (timer_create(2), SIGEV_THREAD_ID). A process has one.
    pub(super) fn new(quantum_ns: u64) -> io::Result<Self> {
        // SAFETY: zeros are a valid value.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = TICK;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let (mut number, clock) = (0_i32, libc::CLOCK_MONOTONIC);
        // SAFETY: both pointers are to values that live.
        let made = unsafe {
            libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut number)
        };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        NUMBER.store(number, Relaxed);
        QUANTUM.store(quantum_ns, Relaxed);
        Ok(Self)
    }

    /// The kernel's number of it.
    pub(super) fn number(&self) -> i32 {
        NUMBER.load(Relaxed)
    }

    /// A function is about to run that has so many quanta; 0 is as many as it likes.
    #[inline]
    pub(super) fn begin(&self, quanta: u16) {
        QUANTA.store(quanta.into(), Relaxed);
        // A tick from here on finds a function.
        compiler_fence(SeqCst);
        if quanta != 0 && !IS_SET.load(Relaxed) {
            set(1);
        }
    }
}

/// No function runs any more.
#[inline]
pub(super) fn end() {
    QUANTA.store(0, Relaxed);
}

/// A tick, by which `running` is found on the CPU, maybe within a handler; whether it is given up.
pub(super) fn tick(running: u32, is_within: bool) -> bool {
    IS_SET.store(false, Relaxed);
    let doubled = if is_within { MOST.min(DOUBLED.load(Relaxed) + 1) } else { 0 };
    DOUBLED.store(doubled, Relaxed);
    let least = 1 << doubled;
    let (quanta, quantum_ns) = (QUANTA.load(Relaxed), QUANTUM.load(Relaxed));
    if quanta == 0 {
        return false;
    }
    if running == 0 {
        // One that is about to run has seen that the timer is set.
        set(least);
        return false;
    }
    let had_ns = cpu_ns();
    if FOUND.load(Relaxed) != running {
        // Its quanta are from here on.
        UNTIL.store(had_ns + u64::from(quanta) * quantum_ns, Relaxed);
        compiler_fence(SeqCst);
        FOUND.store(running, Relaxed);
        set(least);
        return false;
    }
    let left_ns = UNTIL.load(Relaxed).saturating_sub(had_ns);
    let left = left_ns.div_ceil(quantum_ns) as u32;
    if left > 0 {
        set(left.max(least));
    }
    left == 0
}

/// A function is given up, maybe within a handler that has been about to set the timer, or in front of one
/// that the kernel has been about to enter for a tick: nobody knows whether it is set.
pub(super) fn given_up() {
    IS_SET.store(false, Relaxed);
}

/// Sets the timer for one tick after so many quanta.
fn set(quanta: u32) {
    IS_SET.store(quanta == 1, Relaxed);
    let quantum = Duration::from_nanos(QUANTUM.load(Relaxed));
    // The CPU time that has passed then is less than the clock's by what interrupts take.
    let time = quantum * quanta + quantum / 8;
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let time =
        libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let times = libc::itimerspec { it_interval: none, it_value: time };
    let (number, none) = (NUMBER.load(Relaxed), std::ptr::null_mut::<libc::itimerspec>());
    // SAFETY: the times live; nothing is written.
    let set = unsafe { libc::syscall(libc::SYS_timer_settime, number, 0, &raw const times, none) };
    if set != 0 {
        // A timer that exists takes such times. This is a handler's code too, which must not panic.
        // SAFETY: ends the process.
        unsafe { libc::_exit(99) }
    }
}
