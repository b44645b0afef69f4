//! How much of its budget a function has had, whoever else wants its worker's CPU.
//!
//! The dispatcher sees by the clock since when a function is the first of its worker's. When its budget is
//! over by the clock, it tells the worker to stop it (a signal), and what is left of the budget should the
//! function not have had all that time: the worker knows, and stops it at once or when it has had that too
//! (`crate::worker`'s account).
//!
//! | the worker | is told | until |
//! | --- | --- | --- |
//! | was woken and does not run yet | nothing: its function begins now | it runs |
//! | has all the time for its own | once | the function is stopped, at once |
//! | was off its CPU, or slept | when what is left is over, and then as often as a sixteenth of that may be, or every [`AGAIN`] | the function has had it |
//! | has had that and [`STALE`] by the kernel's account; or the call is not wanted any more | to stop it whatever it has had, after [`AGAIN`] and ever longer times | it is [`DEAF`] |
//!
//! A worker that has had no CPU time at all for [`STARVED`] is stopped or starved: that is nobody's fault,
//! and it is ended.
//!
//! So a function that has its CPU to itself has its budget to the microsecond, and one that shares it has its
//! budget at least, and twice that and a sixteenth at most, or [`AGAIN`]. The kernel's account of another
//! process is up to a tick old (1 to 10 ms) while that runs: it is what holds a worker to its word that does
//! not keep it.
//!
//! What a function is billed is by the clock where that is little, and else by the account.
//!
//! | of a call | costs |
//! | --- | --- |
//! | that ends before | nothing; a clock_gettime(2) if it took longer than [`STALE`] |
//! | that does not | a signal; two or more where it was off its CPU |

use std::time::Duration;

use super::worker::Worker;
use super::{AGAIN, DEAF};

/// How old the kernel's account of a worker may be, twice.
const STALE: Duration = Duration::from_millis(20);
/// How long a worker that is told something may have no CPU time.
const STARVED: Duration = Duration::from_secs(2);
/// A worker is told again when another part of what is left may be over, of so many.
const PARTS: u64 = 16;
/// How much later than what is left to a function its worker is told again: it looks when it is told.
const LATER: Duration = Duration::from_micros(5);

/// What a worker was told of its first function.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// When it was told this first and last.
    first_ns: u64,
    last_ns: u64,
    /// What the function has left if it was off its CPU; 0 is nothing, and it stops at once.
    left_ns: u64,
    /// The worker's CPU time by the kernel's account: at first, and at last.
    from_ns: u64,
    to_ns: u64,
    /// When that has last changed.
    changed_ns: u64,
}

impl Told {
    /// What the worker has had since, by the account.
    fn had_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// What a process's functions have of their budgets.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// The worker's CPU time by the kernel's account, at some time before the first function has begun.
    account_ns: u64,
    /// When the first function has begun, as far as is known; without one, when the last one has ended.
    began_ns: u64,
    /// Since when its worker was seen to be woken and not to run.
    waking_ns: Option<u64>,
    told: Option<Told>,
}

impl Budget {
    /// Another function is the first one, or there is none.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.began_ns, self.waking_ns, self.told) = (now_ns, None, None);
    }

    pub(super) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Whether its worker was told to stop the first function.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// The first function has ended: the CPU time that it has had. That is by the clock up to [`STALE`], and
    /// beyond by the account, as far as that is not older.
    #[inline]
    pub(super) fn ended_ns(&mut self, worker: &Worker, now_ns: u64) -> u64 {
        let all_ns = now_ns.saturating_sub(self.began_ns);
        if all_ns <= STALE.as_nanos() as u64 {
            return all_ns;
        }
        let before_ns = self.account_ns;
        self.rest(worker);
        let had_ns = self.account_ns.saturating_sub(before_ns);
        all_ns.min(had_ns.max(STALE.as_nanos() as u64 / 2))
    }

    /// No function runs.
    pub(super) fn rest(&mut self, worker: &Worker) {
        self.account_ns = worker.cpu_ns().unwrap_or(self.account_ns);
    }

    /// When the worker is to be told something, of a first function that has so much left.
    #[inline]
    pub(super) fn next_ns(&self, left_ns: u64) -> u64 {
        let Some(told) = self.told else { return self.began_ns.saturating_add(left_ns) };
        if left_ns == 0 && told.left_ns != 0 {
            return 0;
        }
        let Told { first_ns, last_ns, left_ns, .. } = told;
        let again_ns = AGAIN.as_nanos() as u64;
        let wait_ns = match left_ns {
            // Each time twice as long, so that signals never come faster than a worker handles them.
            0 => (last_ns - first_ns).max(again_ns),
            _ if first_ns == last_ns => left_ns + LATER.as_nanos() as u64,
            // It has not had that before, by the account, which is old.
            _ => {
                let had_ns = told.had_ns() + STALE.as_nanos() as u64 / 2;
                left_ns.saturating_sub(had_ns).max(left_ns / PARTS).max(again_ns)
            }
        };
        last_ns.saturating_add(wait_ns)
    }

    /// It is time: what the worker is told, of a first function that has so much left. That is how much it
    /// has left if it was off its CPU, or that the worker is deaf; or nothing.
    pub(super) fn tell(&mut self, worker: &Worker, left_ns: u64, now_ns: u64) -> Option<Tell> {
        let (deaf_ns, starved_ns) = (DEAF.as_nanos() as u64, STARVED.as_nanos() as u64);
        let Some(told) = &mut self.told else {
            if left_ns != 0 && worker.is_waking() {
                let since_ns = *self.waking_ns.get_or_insert(self.began_ns);
                self.began_ns = now_ns;
                return (now_ns - since_ns > starved_ns).then_some(Tell::Starved);
            }
            let (first_ns, last_ns, changed_ns) = (now_ns, now_ns, now_ns);
            let (from_ns, to_ns) = (0, 0);
            self.told = Some(Told { first_ns, last_ns, left_ns, from_ns, to_ns, changed_ns });
            return Some(Tell::Stop { left_ns });
        };
        told.last_ns = now_ns;
        if told.left_ns == 0 {
            return Some(match now_ns - told.first_ns > deaf_ns {
                true => Tell::Deaf,
                false => Tell::Stop { left_ns: 0 },
            });
        }
        let to_ns = worker.cpu_ns().unwrap_or(u64::MAX);
        if to_ns != told.to_ns {
            (told.to_ns, told.changed_ns) = (to_ns, now_ns);
        }
        let is_over = told.had_ns() > told.left_ns + STALE.as_nanos() as u64;
        if left_ns == 0 || is_over {
            (told.left_ns, told.first_ns) = (0, now_ns);
        } else if now_ns - told.changed_ns > starved_ns {
            return Some(Tell::Starved);
        }
        Some(Tell::Stop { left_ns: told.left_ns })
    }

    /// The worker was told: what it has had of its CPU before. The first signal does not wait for that.
    pub(super) fn account(&mut self, worker: &Worker) {
        if let Some(told) = self.told.as_mut().filter(|told| told.first_ns == told.last_ns) {
            let from_ns = worker.cpu_ns().unwrap_or(u64::MAX);
            (told.from_ns, told.to_ns) = (from_ns, from_ns);
        }
    }
}

/// What is done about a function that has had its budget by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// Its worker is told to stop it, with so much left if it was off its CPU.
    Stop {
        /// In nanoseconds; 0 is at once.
        left_ns: u64,
    },
    /// Its worker does not hear that.
    Deaf,
    /// Its worker has no CPU.
    Starved,
}
