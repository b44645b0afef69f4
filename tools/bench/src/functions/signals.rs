#![allow(unsafe_code, reason = "a signal handler, and a shared mapping that it writes")]
//! When handlers begin: of a periodic timer, and of a signal that another core sends.
//!
//! ```text
//! byte   what                                                          who writes
//!   0    how often the handler has begun                               the handler
//!  64    stamps of its last 65,536 begins, the n-th at 64 + 8 (n % 65,536)   the handler
//! ```
//!
//! A process spins on the second core. Its handler writes the stamp, then the count. The dispatcher's side
//! spins on the first: it sends a signal at a time that it has set, and looks at the count.
//!
//! | row | figure |
//! |---|---|
//! | `timer` | how far apart two begins are, less the period; without its sign |
//! | `bare-signal`, deviation | from the time that was set, a period after the begin before, to the handler's stamp |
//! | `bare-signal`, kills | from the stamp before pidfd_send_signal(2) to the handler's stamp |

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cell::{Cell, Measure, More};
use super::load::quantiles;
use super::task::Task;
use super::{BUDGET_US, PERIODS, alarm, program};
use crate::case::{Case, Mode};
use crate::error::Result;
use crate::row::Figures;
use crate::sys::clock::Stamps;
use crate::sys::shared::{self, Shared};
use crate::sys::{cpu, fd, parent};

const BEGINS: usize = 1 << 17;
const STAMPS: usize = 64;
const BYTES: usize = STAMPS + 8 * BEGINS;
/// How long begins may not come, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// The signal of functions' dispatchers.
const STOP: i32 = libc::SIGURG;

static MEMORY: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static CLOCK: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

extern "C" fn handler(_: i32) {
    let [boot, ticks, rate] = [0, 1, 2].map(|at: usize| CLOCK[at].load(Ordering::Relaxed));
    let stamp = Stamps { boot, ticks, rate }.now();
    let memory = MEMORY.load(Ordering::Relaxed);
    // SAFETY: mapped for as long as the process lives, and a word of it.
    let count = unsafe { AtomicU32::from_ptr(memory.cast()) };
    let number = count.load(Ordering::Relaxed);
    let at = memory.wrapping_add(STAMPS + 8 * (number as usize % BEGINS));
    // SAFETY: as above; a multiple of 8 behind a page's begin.
    let place = unsafe { AtomicU64::from_ptr(at.cast()) };
    place.store(stamp, Ordering::Relaxed);
    // SYNC(functions.begun)
    count.store(number.wrapping_add(1), Ordering::Release);
}

/// The process that spins; it comes back only to say why it ends. Its arguments are the descriptor of the
/// memory, the period in microseconds (0: no timer), its CPU, the clock, and its parent.
pub fn main(arguments: &[String]) -> String {
    match spin(arguments) {
        Ok(()) => "the process that spins has ended".into(),
        Err(why) => format!("the process that spins cannot begin: {why}"),
    }
}

fn spin(arguments: &[String]) -> Result<()> {
    let [memory, period, cpu, stamps, parent] = arguments else {
        return Err("five arguments".into());
    };
    parent::end_with(parent.parse()?)?;
    cpu::pin(cpu.parse()?)?;
    // SAFETY: its parent names the descriptor once.
    let memory = Shared::map(unsafe { fd::take(memory.parse()?) }?)?;
    let stamps: Stamps = serde_json::from_str(stamps)?;
    for (word, value) in CLOCK.iter().zip([stamps.boot, stamps.ticks, stamps.rate]) {
        word.store(value, Ordering::Relaxed);
    }
    MEMORY.store(memory.at(0, BYTES), Ordering::Relaxed);
    alarm::handle(libc::SIGALRM, handler)?;
    alarm::handle(STOP, handler)?;
    handler(0);
    let period: u64 = period.parse()?;
    if period != 0 {
        alarm::every(period)?;
    }
    loop {
        std::hint::spin_loop();
    }
}

/// A process that spins, from outside.
struct Spinning {
    child: Child,
    pidfd: OwnedFd,
    memory: Shared,
    stamps: Stamps,
}

impl Spinning {
    /// One whose handler has begun once.
    fn start(task: &Task, period: u64) -> Result<Self> {
        let file = shared::create(BYTES.next_multiple_of(4096))?;
        let memory = Shared::map(&file)?;
        fd::inherit(file.as_fd())?;
        let numbers = [file.as_raw_fd() as u64, period, task.cpus[1] as u64];
        let [file, period, cpu] = numbers.map(|number| number.to_string());
        let (stamps, parent) =
            (serde_json::to_string(&task.stamps)?, std::process::id().to_string());
        let program = program("spin", &[&file, &period, &cpu, &stamps, &parent])?;
        let child = Command::new(&program[0]).args(&program[1..]).spawn()?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        let spinning = Self { child, pidfd: pidfd?, memory, stamps: task.stamps };
        match spinning.begun(1)? {
            true => Ok(spinning),
            false => Err("the process that spins does not begin".into()),
        }
    }

    fn count(&self) -> u32 {
        // SYNC(functions.begun)
        self.memory.word(0).load(Ordering::Acquire)
    }

    fn stamp(&self, number: u32) -> u64 {
        self.memory.long(STAMPS + 8 * (number as usize % BEGINS)).load(Ordering::Relaxed)
    }

    /// Waits until the handler has begun so often; false if that does not come.
    fn begun(&self, count: u32) -> Result<bool> {
        let (mut last, mut heard) = (self.count(), self.stamps.now());
        while (self.count().wrapping_sub(count) as i32) < 0 {
            let (count, now) = (self.count(), self.stamps.now());
            if count != last {
                (last, heard) = (count, now);
            } else if now > heard + PATIENCE_NS {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
        Ok(true)
    }

    /// Sends the signal at a time; when, and the handler's stamp.
    fn signal(&self, at: u64) -> Result<(u64, u64)> {
        let number = self.count();
        let signal = Signal::from_named_raw(STOP).ok_or("no such signal")?;
        let mut sent = self.stamps.now();
        while sent < at {
            std::hint::spin_loop();
            sent = self.stamps.now();
        }
        pidfd_send_signal(&self.pidfd, signal)?;
        match self.begun(number.wrapping_add(1))? {
            true => Ok((sent, self.stamp(number))),
            false => Err("a signal was lost".into()),
        }
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        // One that has ended has done so by itself.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The rows of a periodic timer.
pub fn of_timer(task: &Task) -> Result<Vec<(Case, Figures)>> {
    let mut rows = Vec::new();
    for period in PERIODS {
        let spinning = Spinning::start(task, period.into())?;
        // The first stamp is none of the timer's, and all must be among the last that are kept.
        let count = task.begins.min(BEGINS as u32 / 2);
        let is_over = spinning.begun(count + 2)?;
        let there = if is_over { count } else { spinning.count().saturating_sub(2) };
        let apart = |at: u32| spinning.stamp(at + 1) as f64 - spinning.stamp(at) as f64;
        let off: Vec<f64> = (1..=there).map(|at| apart(at) - f64::from(period) * 1e3).collect();
        rows.push((case(task, Measure::Deviation, period), figures(&off)));
    }
    Ok(rows)
}

/// The rows of a signal that the other core sends.
pub fn of_signal(task: &Task) -> Result<Vec<(Case, Figures)>> {
    let spinning = Spinning::start(task, 0)?;
    let mut rows = Vec::new();
    for period in PERIODS {
        let mut last = spinning.stamps.now();
        let mut off = Vec::with_capacity(task.begins as usize);
        for _ in 0..task.begins {
            let at = last + u64::from(period) * 1000;
            (_, last) = spinning.signal(at)?;
            off.push(last as f64 - at as f64);
        }
        rows.push((case(task, Measure::Deviation, period), figures(&off)));
    }
    let mut delays = Vec::with_capacity(task.kills as usize);
    let mut last = spinning.stamps.now();
    for _ in 0..task.kills {
        let (sent, stamp) = spinning.signal(last + u64::from(BUDGET_US) * 1000)?;
        last = stamp;
        delays.push(stamp as f64 - sent as f64);
    }
    rows.push((case(task, Measure::Kills, BUDGET_US), figures(&delays)));
    Ok(rows)
}

fn case(task: &Task, measure: Measure, quantum_us: u32) -> Case {
    let cell = Cell::of(measure).every(Some(quantum_us));
    Case::functions(Mode::Warm, task.count.into(), cell)
}

/// Quantiles without the sign, and the standard deviation with it.
fn figures(times: &[f64]) -> Figures {
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    let mut sizes: Vec<u64> = times.iter().map(|time| time.abs() as u64).collect();
    let [p50_ns, p99_ns, p999_ns] = quantiles(&mut sizes);
    let more = More { calls: Some(count), deviation_ns: Some(variance.sqrt()), ..More::default() };
    Figures { p50_ns, p99_ns, p999_ns, functions: Some(more), ..Figures::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_have_no_sign_and_their_spread_has() {
        let figures = figures(&[-100.0, 100.0, -100.0, 100.0]);
        let more = figures.functions.expect("figures of functions");
        assert_eq!((figures.p50_ns, more.deviation_ns), (Some(100.0), Some(100.0)));
    }
}
