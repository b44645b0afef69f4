#![allow(unsafe_code, reason = "the time stamp counter is an intrinsic")]
//! A clock cheap enough to be read twice in a call of 100 ns.
//!
//! Where the time stamp counter ticks evenly (`constant_tsc nonstop_tsc`) it is the clock, elsewhere
//! it is `CLOCK_MONOTONIC`. The driver calibrates once and hands the result to every process, so
//! that all of them count in the same unit.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Converts between ticks and nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ticker {
    counter: bool,
    ns_per_tick: f64,
}

impl Ticker {
    /// Measures the counter against the monotonic clock; blocks for about 40 ms.
    pub fn calibrate() -> Self {
        if !counter_is_even() {
            return Self { counter: false, ns_per_tick: 1.0 };
        }
        let (wall, ticks) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(40));
        let ticks = counter().wrapping_sub(ticks);
        let wall = wall.elapsed();
        Self { counter: true, ns_per_tick: wall.as_nanos() as f64 / ticks as f64 }
    }

    /// The time now, in ticks since an arbitrary start.
    #[inline(always)]
    pub fn now(self) -> u64 {
        if self.counter { counter() } else { monotonic_ns() }
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
        if self.counter {
            format!("tsc at {:.4} GHz", 1.0 / self.ns_per_tick)
        } else {
            "CLOCK_MONOTONIC".to_owned()
        }
    }
}

fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn counter_is_even() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    cfg!(target_arch = "x86_64") && has("constant_tsc") && has("nonstop_tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets user space read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    monotonic_ns()
}
