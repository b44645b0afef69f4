#![allow(unsafe_code, reason = "the time stamp counter is an intrinsic")]
//! A clock cheap enough to be read twice in a call of 100 ns.
//!
//! Where the time stamp counter ticks evenly (`constant_tsc nonstop_tsc`) it is the clock, elsewhere
//! it is `CLOCK_MONOTONIC`. The driver calibrates once and hands the result to every process, so
//! that all of them count in the same unit.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Where ticks come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Source {
    /// The time stamp counter; instructions before and after may overlap with the reading.
    Counter,
    /// The same, read once everything before it is done.
    Settled,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
}

/// Converts between ticks and nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ticker {
    source: Source,
    ns_per_tick: f64,
}

impl Ticker {
    /// Measures the counter against the monotonic clock; blocks for about 40 ms.
    pub fn calibrate() -> Self {
        if !counter_is_even() {
            return Self { source: Source::Monotonic, ns_per_tick: 1.0 };
        }
        let (wall, ticks) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(40));
        let ticks = counter().wrapping_sub(ticks);
        let wall = wall.elapsed();
        let ns_per_tick = wall.as_nanos() as f64 / ticks as f64;
        Self { source: Source::Counter, ns_per_tick }
    }

    /// The same clock, for calls as short as its own reading: a stamp waits until everything before
    /// it is done (`rdtscp`), where the processor has that.
    pub fn settled(self) -> Self {
        let settles = self.source == Source::Counter && has_flag("rdtscp");
        Self { source: if settles { Source::Settled } else { self.source }, ..self }
    }

    /// Whether ticks are those of the time stamp counter.
    pub fn counts_cycles(self) -> bool {
        self.source != Source::Monotonic
    }

    /// The time now, in ticks since an arbitrary start.
    #[inline(always)]
    pub fn now(self) -> u64 {
        match self.source {
            Source::Counter => counter(),
            Source::Settled => settled_counter(),
            Source::Monotonic => monotonic_ns(),
        }
    }

    /// How many ticks `span` lasts.
    pub fn ticks(self, span: Duration) -> u64 {
        (span.as_nanos() as f64 / self.ns_per_tick) as u64
    }

    /// How many nanoseconds `ticks` last.
    pub fn ns(self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// What the clock is, for the report.
    pub fn describe(self) -> String {
        let ghz = 1.0 / self.ns_per_tick;
        match self.source {
            Source::Counter => format!("tsc at {ghz:.4} GHz"),
            Source::Settled => format!("tsc at {ghz:.4} GHz, by rdtscp"),
            Source::Monotonic => "CLOCK_MONOTONIC".to_owned(),
        }
    }
}

/// The clock of functions: nanoseconds by the time stamp counter, as the page says that functions read
/// (`partywall_fn::clock`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stamps {
    /// The time at `ticks`.
    pub boot: u64,
    /// The counter then.
    pub ticks: u64,
    /// Nanoseconds of 2^32 ticks.
    pub rate: u64,
}

impl Stamps {
    /// Measures the counter as [`Ticker::calibrate`] does.
    pub fn measure() -> Self {
        let (wall, ticks) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(40));
        let passed = u128::from(counter().wrapping_sub(ticks));
        let rate = ((wall.elapsed().as_nanos() << 32) / passed.max(1)) as u64;
        Self { boot: 1 << 40, ticks, rate }
    }

    /// The time now.
    #[inline(always)]
    pub fn now(self) -> u64 {
        let passed = counter().saturating_sub(self.ticks);
        self.boot + ((u128::from(passed) * u128::from(self.rate)) >> 32) as u64
    }
}

fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn counter_is_even() -> bool {
    has_flag("constant_tsc") && has_flag("nonstop_tsc")
}

/// Whether an x86-64 processor has a feature.
fn has_flag(flag: &str) -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cfg!(target_arch = "x86_64") && flags.split_whitespace().any(|word| word == flag)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets user space read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn settled_counter() -> u64 {
    let mut cpu = 0;
    // SAFETY: `Ticker::settled` has seen that the processor has the instruction; `cpu` is a valid
    // place for the number that it also writes.
    unsafe { core::arch::x86_64::__rdtscp(&mut cpu) }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    monotonic_ns()
}

#[cfg(not(target_arch = "x86_64"))]
fn settled_counter() -> u64 {
    monotonic_ns()
}
