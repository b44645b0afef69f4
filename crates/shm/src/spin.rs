//! How a waiter waits before it sleeps, learned from its recent waits.
//!
//! Sleeping costs the peer a system call to wake the sleeper, and the sleeper one to sleep. Two
//! things may save both:
//!
//! ```text
//! spin        the peer runs on another CPU: look again and again
//! yield       the peer was last seen on this very CPU: sched_yield(2) once, then look
//! ```
//!
//! * While spins succeed, the budget is four times the average successful wait, 16 to 50 us.
//! * A yield gives the CPU to the peer, which is not asleep if it yields as well; two ends
//!   that take turns so pay one system call each per exchange. Nothing is burnt: while the waiter
//!   is away, somebody else runs.
//! * Each has a record of its own. Three in vain in a row end it; every 16th, then 32nd, ... 1024th
//!   wait tries once more, and one success restores it.
//! * Where the CPU has other work, sched_yield(2) comes back late (a time slice: milliseconds).
//!   After one that took over 1 ms there is none for a hundred times as long as it took, whatever
//!   was found: such ones cost at most a hundredth of the time. After one that took over 50 us
//!   there is none for as long as it took.
//!
//! Times go in, a [`Plan`] comes out; [`Spin::spin`] is the loop for who need look for one thing
//! only.

use std::time::{Duration, Instant};

use partywall_abi::sync::spin_hint;

#[cfg(not(loom))]
use partywall_abi::sync::{AtomicBool, Ordering};

/// The longest that any waiter spins.
pub const LONGEST: Duration = Duration::from_micros(50);
/// A waiter that sleeps too early costs its peer's next record a wake-up, 15 to 40 us.
const SHORTEST: Duration = Duration::from_micros(16);
const MISSES: u32 = 3;
const FIRST_RETRY: u32 = 16;
const LAST_RETRY: u32 = 1024;
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// A hand-over that took longer is a late one. A machine under another one's load takes longer
/// than [`LONGEST`] now and then; a time slice of other work is longer than this.
const LATE: Duration = Duration::from_millis(1);
/// How many times as long as a late hand-over took there is none.
const REST: u32 = 100;

#[cfg(not(loom))]
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Lets this process's waiters spin (the default), or makes them yield or sleep at once.
#[cfg(not(loom))]
pub fn allow(spinning: bool) {
    ALLOWED.store(spinning, Ordering::Relaxed);
}

/// What a waiter does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Sleep,
    /// Looks until the time is up.
    Spin(Duration),
    /// Calls [`yield_cpu`], and looks.
    Yield,
}

/// Gives the CPU to whoever else is to run on it; when it began and how long it took.
pub fn yield_cpu() -> (Instant, Duration) {
    let start = Instant::now();
    rustix::thread::sched_yield();
    (start, start.elapsed())
}

/// How often something has paid.
#[derive(Debug, Clone)]
struct Luck {
    misses: u32,
    retry_every: u32,
    since: u32,
}

impl Luck {
    const NEW: Self = Self { misses: 0, retry_every: FIRST_RETRY, since: 0 };

    /// Whether it has not failed of late.
    fn good(&self) -> bool {
        self.misses < MISSES
    }

    /// Whether to try it now.
    fn try_now(&mut self) -> bool {
        if self.good() {
            return true;
        }
        self.since += 1;
        if self.since < self.retry_every {
            return false;
        }
        self.since = 0;
        true
    }

    fn miss(&mut self) {
        if self.good() {
            self.misses += 1;
        } else {
            self.retry_every = (self.retry_every * 2).min(LAST_RETRY);
        }
    }
}

/// What one waiter has learned.
#[derive(Debug, Clone)]
pub struct Spin {
    mean_ns: u64,
    spins: Luck,
    yields: Luck,
    rest_until: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Self {
        Self { mean_ns: 5_000, spins: Luck::NEW, yields: Luck::NEW, rest_until: None }
    }
}

impl Spin {
    /// What to do now.
    ///
    /// `same_cpu`: the peer was last seen on the CPU that asks.
    pub fn plan(&mut self, same_cpu: bool) -> Plan {
        if same_cpu {
            if self.rest_until.is_some_and(|until| Instant::now() < until) {
                return Plan::Sleep;
            }
            self.rest_until = None;
            return if self.yields.try_now() { Plan::Yield } else { Plan::Sleep };
        }
        #[cfg(not(loom))]
        if !ALLOWED.load(Ordering::Relaxed) {
            return Plan::Sleep;
        }
        let well = self.spins.good();
        match self.spins.try_now() {
            false => Plan::Sleep,
            true if well => {
                let budget = Duration::from_nanos(self.mean_ns * 4);
                Plan::Spin(budget.clamp(SHORTEST, LONGEST))
            }
            true => Plan::Spin(LONGEST),
        }
    }

    /// Spins for `budget` until `found` says so, and learns from it; whether it was found.
    ///
    /// # Errors
    /// What `found` says.
    pub fn spin<E>(
        &mut self,
        budget: Duration,
        mut found: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
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

    /// A yield as [`yield_cpu`] says was made, and what was waited for is there or not.
    pub fn yielded(&mut self, (start, took): (Instant, Duration), there: bool) {
        match there {
            true => self.yields = Luck::NEW,
            false => self.yields.miss(),
        }
        if took > LONGEST {
            let times = if took > LATE { REST } else { 1 };
            self.rest_until = Some(start + took + took * times);
        }
    }

    /// A spin found what it waited for after `waited`.
    pub fn hit(&mut self, waited: Duration) {
        let ns = waited.as_nanos().min(LONGEST.as_nanos()) as u64;
        self.mean_ns = (self.mean_ns * 7 + ns) / 8;
        self.spins = Luck::NEW;
    }

    /// A spin ended in vain.
    pub fn miss(&mut self) {
        self.spins.miss();
        self.mean_ns = (self.mean_ns * 2).min(LONGEST.as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(3);

    fn spins(plan: Plan) -> bool {
        matches!(plan, Plan::Spin(_))
    }

    #[test]
    fn one_cpu_never_spins_but_hands_over() {
        let mut s = Spin::default();
        s.hit(Duration::from_nanos(100));
        for _ in 0..100 {
            assert_eq!(s.plan(true), Plan::Yield);
            s.yielded((Instant::now(), SHORT), true);
        }
        assert!(spins(s.plan(false)));
    }

    #[test]
    fn yields_in_vain_end_and_retries_grow_rare() {
        let mut s = Spin::default();
        let mut tries = 0;
        for _ in 0..10_000 {
            if s.plan(true) == Plan::Yield {
                tries += 1;
                s.yielded((Instant::now(), SHORT), false);
            }
        }
        assert!((10..=20).contains(&tries), "{tries} tries in 10,000 waits");
        assert!(spins(s.plan(false)), "spinning has a record of its own");
        while s.plan(true) != Plan::Yield {}
        s.yielded((Instant::now(), SHORT), true);
        assert_eq!(s.plan(true), Plan::Yield);
    }

    #[test]
    fn yields_that_come_back_late_cost_a_hundredth_of_the_time() {
        let took = Duration::from_millis(3);
        let mut s = Spin::default();
        let begun = Instant::now().checked_sub(took * REST).unwrap() + Duration::from_millis(50);
        s.yielded((begun, took), true);
        assert_eq!(s.plan(true), Plan::Sleep);
        assert!(spins(s.plan(false)), "another CPU is another matter");
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(s.plan(true), Plan::Yield);
    }

    #[test]
    fn success_keeps_spinning_within_bounds() {
        let mut s = Spin::default();
        for _ in 0..100 {
            s.hit(Duration::from_nanos(120));
        }
        assert_eq!(s.plan(false), Plan::Spin(SHORTEST));
        for _ in 0..100 {
            s.hit(Duration::from_micros(49));
        }
        assert_eq!(s.plan(false), Plan::Spin(LONGEST));
    }

    #[test]
    fn spin_ends_on_success_error_or_budget() {
        let mut s = Spin::default();
        let mut looks = 0;
        let found = s.spin(SHORTEST, || {
            looks += 1;
            Ok::<_, ()>(looks == 5)
        });
        assert_eq!((found, looks, s.spins.misses), (Ok(true), 5, 0));
        assert_eq!(s.spin(SHORTEST, || Err("broken")), Err("broken"));
        let start = Instant::now();
        assert_eq!(s.spin(SHORTEST, || Ok::<_, ()>(false)), Ok(false));
        assert!(start.elapsed() >= SHORTEST);
        assert_eq!(s.spins.misses, 1);
    }

    #[test]
    fn misses_end_spinning_and_retries_grow_rare() {
        let mut s = Spin::default();
        for _ in 0..3 {
            assert!(spins(s.plan(false)));
            s.miss();
        }
        let mut spun = 0;
        for _ in 0..10_000 {
            if spins(s.plan(false)) {
                spun += 1;
                s.miss();
            }
        }
        assert!((10..=20).contains(&spun), "{spun} tries in 10,000 waits");
        while !spins(s.plan(false)) {}
        s.hit(Duration::from_micros(1));
        assert!(spins(s.plan(false)));
    }
}
