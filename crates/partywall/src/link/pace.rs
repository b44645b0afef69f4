//! How many calls are open at an end, and how long they are while somebody watches.
//!
//! ```text
//! off     a change costs one look at a flag
//!   measure()   asked by the coordinator, since an operator watches the name
//! on      each change adds the calls that were open times the time since the last one, and those that ended
//!   LEASE without measure()
//! off     with the next change
//! ```
//!
//! By Little's law the time that calls were open, over the calls that have ended, is how long a call is on
//! average. So no call remembers when it began. A change that comes while measuring begins may be missed:
//! then one call more or less is counted, once.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use partywall_abi::control::PaceStats;
use partywall_abi::sync::{AtomicBool, AtomicUsize, Ordering};

use crate::lock::lock;

/// How long an end measures after it was last asked.
const LEASE: Duration = Duration::from_secs(10);

/// The number of open calls, for those who need not know exactly. One thread at a time sets it.
#[derive(Default)]
pub(crate) struct OpenCalls {
    count: AtomicUsize,
    measures: AtomicBool,
    meter: Mutex<Option<Meter>>,
}

struct Meter {
    began: Instant,
    until: Instant,
    /// When it was last brought up to date, and how many calls are open since.
    last: Instant,
    open: usize,
    ended: u64,
    /// Time that calls were open, one beside the other.
    spent: Duration,
}

impl Meter {
    fn new(now: Instant, open: usize) -> Self {
        let (ended, spent) = (0, Duration::ZERO);
        Self { began: now, until: now + LEASE, last: now, open, ended, spent }
    }

    /// From now on so many are open.
    fn pass(&mut self, now: Instant, open: usize) {
        let passed = now.saturating_duration_since(self.last);
        let calls = u32::try_from(self.open).unwrap_or(u32::MAX);
        self.spent = self.spent.saturating_add(passed.saturating_mul(calls));
        self.ended += self.open.saturating_sub(open) as u64;
        (self.last, self.open) = (now.max(self.last), open);
    }
}

impl OpenCalls {
    /// As it was last set.
    #[inline]
    pub(crate) fn get(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, open: usize) {
        self.count.store(open, Ordering::Relaxed);
        if self.measures.load(Ordering::Relaxed) {
            self.changed(open, Instant::now());
        }
    }

    #[cold]
    fn changed(&self, open: usize, now: Instant) {
        let mut meter = lock(&self.meter);
        match meter.as_mut().filter(|meter| now <= meter.until) {
            Some(meter) => meter.pass(now, open),
            None => {
                *meter = None;
                self.measures.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Measures from now on for a while, and says what was measured so far.
    pub(crate) fn measure(&self) -> PaceStats {
        self.measure_at(Instant::now())
    }

    fn measure_at(&self, now: Instant) -> PaceStats {
        let mut slot = lock(&self.meter);
        self.measures.store(true, Ordering::Relaxed);
        let meter = slot.take().filter(|meter| now <= meter.until);
        let meter = slot.insert(meter.unwrap_or_else(|| Meter::new(now, self.get())));
        meter.pass(now, meter.open);
        meter.until = now + LEASE;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let elapsed = now.saturating_duration_since(meter.began);
        PaceStats::new(nanos(elapsed), meter.ended, nanos(meter.spent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_time_of_calls_is_measured_while_somebody_asks() {
        let (calls, start) = (OpenCalls::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let set = |open: usize, ms: u64| {
            calls.count.store(open, Ordering::Relaxed);
            if calls.measures.load(Ordering::Relaxed) {
                calls.changed(open, at(ms));
            }
        };
        let pace = |ms: u64| {
            let pace = calls.measure_at(at(ms));
            (pace.elapsed_ns / 1_000_000, pace.ended, pace.open_ns / 1_000_000)
        };
        set(1, 0);
        set(0, 5);
        assert_eq!(pace(10), (0, 0, 0), "nothing before the first question");
        // Three calls of 10, 20 and 30 ms, two of them at once.
        for (open, ms) in [(1, 20), (0, 30), (1, 40), (2, 50), (1, 60), (0, 80)] {
            set(open, ms);
        }
        assert_eq!(pace(110), (100, 3, 60));
        // One that lasts counts as it goes.
        set(1, 200);
        assert_eq!(pace(300), (290, 3, 160));
        let lease = LEASE.as_millis() as u64;
        set(0, 300 + lease);
        assert_eq!(pace(300 + lease).1, 4);
        set(1, 301 + 2 * lease);
        assert!(!calls.measures.load(Ordering::Relaxed), "nobody asks any more");
        assert_eq!(pace(302 + 2 * lease), (0, 0, 0));
    }
}
