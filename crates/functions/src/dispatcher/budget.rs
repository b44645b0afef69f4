//! How much of its budget a function has had, whoever else wants its worker's CPU.
//!
//! The dispatcher sees by the clock since when a function is the first of its worker's, and takes all that
//! time for the function's. Shortly before its budget is over by the clock ([`LEAD`]) it looks once whether
//! that is true. The kernel says how often the worker has lost its CPU to somebody else. It also says how
//! much CPU time the worker has had. That is right while the worker is off its CPU, and up to a tick old (1
//! to 10 ms) while it is on it.
//!
//! | the worker | the function | is stopped |
//! | --- | --- | --- |
//! | was woken and does not run yet | begins now | |
//! | has run since it was last seen, and has kept its CPU | has had all the time | after its budget, by the clock |
//! | else | has had its budget at most | after its budget once more, by the kernel's account |
//!
//! So a function that has its CPU to itself has its budget to the microsecond, and one that shares it has its
//! budget at least, and twice its budget and two ticks at most. The first change of the account is not
//! counted, for it may be of before. A worker that has no CPU time at all for [`DEAF`] is stopped or starved,
//! and its function is taken for one beyond its budget.
//!
//! The dispatcher can lose its own CPU: it believes what it has seen for twice [`LEAD`], and looks again
//! then.
//!
//! Where the kernel says nothing (no `/proc`), the clock alone decides.
//!
//! | of a call | costs |
//! | --- | --- |
//! | that ends before | nothing |
//! | that does not | a read of `/proc/PID/status`, 4 to 9 us of the dispatcher's, before its budget is over |
//! | on a shared CPU | that, and a clock_gettime(2) every [`AGAIN`] |

use std::time::Duration;

use super::worker::Worker;
use super::{AGAIN, DEAF};

/// How long before the end of a budget it is looked, at most; else half of the budget.
const LEAD: Duration = Duration::from_micros(15);

/// What is known of the time that the first function has had.
#[derive(Debug, Clone, Copy, Default)]
enum Known {
    /// Nothing: it was not looked.
    #[default]
    Nothing,
    /// Its worker was woken and does not run yet, since then at least.
    Waking { since_ns: u64 },
    /// It has had all of it until then.
    All { looked_ns: u64 },
    /// It has had so much at most when the worker's CPU time was `from_ns`, if the account was right then.
    /// That was last looked at and has last changed at these times, to `last_ns`.
    Most {
        had_ns: u64,
        from_ns: u64,
        is_right: bool,
        last_ns: u64,
        changed_ns: u64,
        looked_ns: u64,
    },
}

/// What a process's functions have of their budgets.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// When the first function has begun, as far as is known; without one, when the last one has ended.
    began_ns: u64,
    known: Known,
    /// The submission that was the first when it was last looked, and how often the worker had lost its CPU.
    seen: Option<(u32, u64)>,
}

impl Budget {
    /// Another function is the first one, or there is none.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.began_ns, self.known) = (now_ns, Known::Nothing);
    }

    pub(super) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The worker has begun: what it has lost before is none of its functions' business.
    pub(super) fn greet(&mut self, worker: &Worker, now_ns: u64) {
        self.begin(now_ns);
        // No submission has this number.
        self.seen = worker.preempted().map(|lost| (0, lost));
    }

    /// The CPU time that the first function has had, at most.
    #[inline]
    pub(super) fn had_ns(&self, worker: &Worker, now_ns: u64) -> u64 {
        let all_ns = now_ns.saturating_sub(self.began_ns);
        match self.known {
            Known::Most { had_ns, from_ns, .. } => {
                let since_ns = worker.cpu_ns().map(|now| now.saturating_sub(from_ns));
                since_ns.map_or(all_ns, |since_ns| all_ns.min(had_ns + since_ns))
            }
            _ => all_ns,
        }
    }

    /// When it is to be looked whether the first function, which has so much left, is beyond that.
    #[inline]
    pub(super) fn next_ns(&self, left_ns: u64) -> u64 {
        match self.known {
            Known::Nothing | Known::Waking { .. } => {
                let lead_ns = (left_ns / 2).min(LEAD.as_nanos() as u64);
                self.began_ns.saturating_add(left_ns - lead_ns)
            }
            Known::All { .. } => self.began_ns.saturating_add(left_ns),
            Known::Most { looked_ns, .. } => looked_ns.saturating_add(AGAIN.as_nanos() as u64),
        }
    }

    /// Whether it is beyond that: submission `number`, which has so much left.
    pub(super) fn is_over(
        &mut self,
        worker: &Worker,
        (number, left_ns): (u32, u64),
        now_ns: u64,
    ) -> bool {
        let deaf_ns = DEAF.as_nanos() as u64;
        let is_known = match self.known {
            Known::Nothing | Known::Waking { .. } => false,
            // The dispatcher can lose its CPU as well.
            Known::All { looked_ns } => now_ns - looked_ns < 2 * LEAD.as_nanos() as u64,
            Known::Most { .. } => true,
        };
        if !is_known {
            self.look(worker, number, now_ns);
        }
        match &mut self.known {
            Known::Nothing => false,
            Known::Waking { since_ns } => now_ns.saturating_sub(*since_ns) > deaf_ns,
            Known::All { .. } => now_ns >= self.began_ns.saturating_add(left_ns),
            Known::Most { from_ns, is_right, last_ns, changed_ns, looked_ns, .. } => {
                *looked_ns = now_ns;
                let now_cpu_ns = worker.cpu_ns().unwrap_or(u64::MAX);
                if now_cpu_ns != *last_ns {
                    (*last_ns, *changed_ns) = (now_cpu_ns, now_ns);
                    // What was had before may have been accounted for only now.
                    if !std::mem::replace(is_right, true) {
                        *from_ns = now_cpu_ns;
                    }
                }
                now_cpu_ns.saturating_sub(*from_ns) >= left_ns
                    || now_ns.saturating_sub(*changed_ns) > deaf_ns
            }
        }
    }

    #[cold]
    fn look(&mut self, worker: &Worker, number: u32, now_ns: u64) {
        if worker.is_waking() {
            let since_ns = match self.known {
                Known::Waking { since_ns } => since_ns,
                _ => self.began_ns,
            };
            (self.began_ns, self.known) = (now_ns, Known::Waking { since_ns });
            return;
        }
        let lost = worker.preempted();
        let had_ns = now_ns.saturating_sub(self.began_ns);
        // It had its CPU when that was seen, or has ended what was the first then, and so has run since.
        let had = matches!(self.known, Known::All { .. });
        let has_kept = |(first, lost): (u32, u64), now| (had || first != number) && lost == now;
        self.known = match (self.seen.zip(lost), worker.cpu_ns()) {
            (Some((seen, lost)), Some(cpu_ns)) if !has_kept(seen, lost) => {
                let (from_ns, last_ns, changed_ns, looked_ns) = (cpu_ns, cpu_ns, now_ns, now_ns);
                Known::Most { had_ns, from_ns, is_right: false, last_ns, changed_ns, looked_ns }
            }
            _ => Known::All { looked_ns: now_ns },
        };
        self.seen = lost.map(|lost| (number, lost));
    }
}
