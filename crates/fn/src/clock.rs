//! The time, as exactly as the runtime lets functions see it.
//!
//! The runtime writes it into a page of memory now and then: reading it is no call. Where functions may see
//! it exactly, the time stamp counter tells what has passed since. Elsewhere that counter is closed to them.

use core::time::Duration;

/// The words of the clock's page.
pub mod page {
    /// Nanoseconds since the host's start, with its sleep (CLOCK_BOOTTIME).
    pub const BOOT: usize = 0;
    /// What is added to them for nanoseconds since 1970 (CLOCK_REALTIME).
    pub const REAL: usize = 1;
    /// The time stamp counter at `BOOT`; 0 where functions do not see it.
    pub const TICKS: usize = 2;
    /// Nanoseconds of 2^32 ticks.
    pub const RATE: usize = 3;
    /// How far the page is behind at most, in nanoseconds.
    pub const RESOLUTION: usize = 4;
    /// How many words there are.
    pub const WORDS: usize = 5;
}

/// The time since the host's start, with its sleep. Differences of it measure time.
pub fn monotonic() -> Duration {
    Duration::from_nanos(now().0)
}

/// The time since 1970-01-01 00:00 UTC, without leap seconds.
pub fn unix() -> Duration {
    let (boot, real) = now();
    Duration::from_nanos(boot.wrapping_add(real))
}

/// How far behind these times are at most.
pub fn resolution() -> Duration {
    Duration::from_nanos(crate::rt::clock(page::RESOLUTION))
}

fn now() -> (u64, u64) {
    let ticks = crate::rt::clock(page::TICKS);
    let (mut boot, real) = (crate::rt::clock(page::BOOT), crate::rt::clock(page::REAL));
    if ticks != 0 {
        let passed = crate::rt::ticks().saturating_sub(ticks);
        boot += ((u128::from(passed) * u128::from(crate::rt::clock(page::RATE))) >> 32) as u64;
    }
    (boot, real)
}
