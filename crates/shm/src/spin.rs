//! How long a waiter spins before it sleeps: a budget learned from its recent waits.
//!
//! Spinning wins when the answer comes sooner than a sleep and a wake-up take; it loses when the
//! peer needs this very CPU to answer, or answers late. So:
//!
//! * A waiter whose peer was last seen on its own CPU does not spin at all: sleeping hands over.
//! * While spins succeed, the budget is four times the average successful wait, 2 to 50 us.
//! * Three spins in vain in a row end spinning; every 16th, then 32nd, ... 1024th wait tries once
//!   more, and one success restores it.
//!
//! Times go in, a budget comes out; [`Spin::until`] is the loop around it for who need look for one
//! thing only.

use std::time::{Duration, Instant};

use partywall_abi::sync::spin_hint;

#[cfg(not(loom))]
use partywall_abi::sync::{AtomicBool, Ordering};

/// The longest that any waiter spins.
pub const LONGEST: Duration = Duration::from_micros(50);
const SHORTEST: Duration = Duration::from_micros(2);
const MISSES: u32 = 3;
const FIRST_RETRY: u32 = 16;
const LAST_RETRY: u32 = 1024;
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;

#[cfg(not(loom))]
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Lets this process's waiters spin (the default), or makes all of them sleep at once.
#[cfg(not(loom))]
pub fn allow(spinning: bool) {
    ALLOWED.store(spinning, Ordering::Relaxed);
}

/// What one waiter has learned.
#[derive(Debug, Clone)]
pub struct Spin {
    mean_ns: u64,
    misses: u32,
    retry_every: u32,
    since: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Self { mean_ns: 5_000, misses: 0, retry_every: FIRST_RETRY, since: 0 }
    }
}

impl Spin {
    /// How long to spin now.
    ///
    /// `same_cpu`: the peer was last seen on the CPU that asks.
    pub fn budget(&mut self, same_cpu: bool) -> Duration {
        #[cfg(not(loom))]
        if !ALLOWED.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        if same_cpu {
            return Duration::ZERO;
        }
        if self.misses >= MISSES {
            self.since += 1;
            if self.since < self.retry_every {
                return Duration::ZERO;
            }
            self.since = 0;
            return LONGEST;
        }
        Duration::from_nanos(self.mean_ns * 4).clamp(SHORTEST, LONGEST)
    }

    /// Spins until `found` says so, at most for the budget, and learns from it; whether it was found.
    ///
    /// # Errors
    /// What `found` says.
    pub fn until<E>(
        &mut self,
        same_cpu: bool,
        mut found: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let budget = self.budget(same_cpu);
        if budget.is_zero() {
            return Ok(false);
        }
        let start = Instant::now();
        while start.elapsed() < budget {
            for _ in 0..LOOKS {
                if found()? {
                    self.hit(start.elapsed());
                    return Ok(true);
                }
                spin_hint();
            }
        }
        self.miss();
        Ok(false)
    }

    /// A spin found what it waited for after `waited`.
    pub fn hit(&mut self, waited: Duration) {
        let ns = waited.as_nanos().min(LONGEST.as_nanos()) as u64;
        self.mean_ns = (self.mean_ns * 7 + ns) / 8;
        self.misses = 0;
        self.retry_every = FIRST_RETRY;
        self.since = 0;
    }

    /// A spin ended in vain.
    pub fn miss(&mut self) {
        if self.misses >= MISSES {
            self.retry_every = (self.retry_every * 2).min(LAST_RETRY);
        } else {
            self.misses += 1;
        }
        self.mean_ns = (self.mean_ns * 2).min(LONGEST.as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_never_spins() {
        let mut s = Spin::default();
        s.hit(Duration::from_nanos(100));
        assert_eq!(s.budget(true), Duration::ZERO);
    }

    #[test]
    fn success_keeps_spinning_within_bounds() {
        let mut s = Spin::default();
        for _ in 0..100 {
            s.hit(Duration::from_nanos(120));
        }
        assert_eq!(s.budget(false), SHORTEST);
        for _ in 0..100 {
            s.hit(Duration::from_micros(49));
        }
        assert_eq!(s.budget(false), LONGEST);
    }

    #[test]
    fn a_spin_ends_with_what_it_waits_for_with_an_error_or_with_its_budget() {
        let mut s = Spin::default();
        let mut looks = 0;
        let found = s.until(false, || {
            looks += 1;
            Ok::<_, ()>(looks == 5)
        });
        assert_eq!((found, looks, s.misses), (Ok(true), 5, 0));
        assert_eq!(s.until(false, || Err("broken")), Err("broken"));
        assert_eq!(s.until(true, || Err("not to be asked")), Ok(false));
        let start = Instant::now();
        assert_eq!(s.until(false, || Ok::<_, ()>(false)), Ok(false));
        assert!(start.elapsed() >= SHORTEST);
        assert_eq!(s.misses, 1);
    }

    #[test]
    fn misses_end_it_and_retries_grow_rare() {
        let mut s = Spin::default();
        for _ in 0..3 {
            assert_ne!(s.budget(false), Duration::ZERO);
            s.miss();
        }
        let mut spun = 0;
        for _ in 0..10_000 {
            if s.budget(false) != Duration::ZERO {
                spun += 1;
                s.miss();
            }
        }
        assert!((10..=20).contains(&spun), "{spun} tries in 10,000 waits");
        while s.budget(false) == Duration::ZERO {}
        s.hit(Duration::from_micros(1));
        assert_ne!(s.budget(false), Duration::ZERO);
    }
}
