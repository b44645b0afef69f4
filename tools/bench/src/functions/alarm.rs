#![allow(unsafe_code, reason = "a signal handler")]
//! `sigalrm`: hashing in a process that a periodic timer interrupts, as ATC'18 preempts functions.
//!
//! The worker hashes what it is asked for behind the runtime's ring. Its handler of SIGALRM reads the clock
//! and looks how long the function has run, as theirs does; as in their measurement, none is ended.

use std::sync::atomic::{AtomicU64, Ordering};

use partywall_abi::function::{Input, Submission};

use super::ring::Place;
use super::sha512;
use crate::error::Result;
use crate::sys::clock::Stamps;

/// When the function has begun; 0 is none.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// How often it had run for longer than a quantum.
static OVER: AtomicU64 = AtomicU64::new(0);
/// The quantum in nanoseconds, and the clock's parameters.
static QUANTUM: AtomicU64 = AtomicU64::new(0);
static CLOCK: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn clock() -> Stamps {
    let [boot, ticks, rate] = [0, 1, 2].map(|at: usize| CLOCK[at].load(Ordering::Relaxed));
    Stamps { boot, ticks, rate }
}

extern "C" fn handler(_: i32) {
    let begun = BEGUN.load(Ordering::Relaxed);
    let ran = clock().now().saturating_sub(begun);
    if begun != 0 && ran > QUANTUM.load(Ordering::Relaxed) {
        OVER.fetch_add(1, Ordering::Relaxed);
    }
}

/// Has `signal` handled, on the stack of whatever it interrupts; system calls go on behind it.
pub fn handle(signal: i32, handler: extern "C" fn(i32)) -> Result<()> {
    // SAFETY: zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler touches atomics and nothing else.
    let failed = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Starts the timer of SIGALRM (ITIMER_REAL) with this period in microseconds.
pub fn every(period_us: u64) -> Result<()> {
    let period = libc::timeval { tv_sec: 0, tv_usec: period_us as libc::suseconds_t };
    let timer = libc::itimerval { it_interval: period, it_value: period };
    // SAFETY: a system call that reads this value.
    let failed =
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// The worker; it comes back only to say why it ends. Its arguments are the period in microseconds (0: no
/// timer), and the clock.
pub fn main(arguments: &[String]) -> String {
    match run(arguments) {
        Ok(()) => "the worker under a timer has ended".into(),
        Err(why) => format!("the worker under a timer cannot begin: {why}"),
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [period, stamps] = arguments else { return Err("two arguments".into()) };
    let place = Place::open()?;
    let period: u64 = period.parse()?;
    let stamps: Stamps = serde_json::from_str(stamps)?;
    for (word, value) in CLOCK.iter().zip([stamps.boot, stamps.ticks, stamps.rate]) {
        word.store(value, Ordering::Relaxed);
    }
    QUANTUM.store(period * 1000, Ordering::Relaxed);
    handle(libc::SIGALRM, handler)?;
    // It begins with the first call: a period that is too short for all else is no reason not to begin.
    let period = (period != 0).then_some(period);
    let hash = |(stamps, period): &mut (Stamps, Option<u64>), submission: &Submission| {
        period.take().map_or(Ok(()), every)?;
        let begun = stamps.now();
        BEGUN.store(begun, Ordering::Relaxed);
        let blocks = match submission.input {
            Input::Short(short) => short.words[0],
            Input::Long { .. } => 0,
        };
        let sum = sha512::sum(blocks);
        BEGUN.store(0, Ordering::Relaxed);
        Ok([sum, begun])
    };
    place.serve(&mut (stamps, period), hash, |_| ())
}
