//! The driver: the task that reads a link's ring, unless a call does.
//!
//! # Who reads
//!
//! ```text
//! driver   a task per link; reads unless a call does
//! leader   on the caller's side, a call that is the only one under way: its own task waits for
//!          the doorbell and takes its answer ([`super::caller`])
//! ```
//!
//! Whoever reads holds `rx`. Where calls read, it is held from taking a record to having handed it
//! over ([`Next`]), so that the records of one call stay in order, and nobody waits for it: who finds
//! it taken leaves the looking to the one who has it (a driver comes back). A leader holds it for
//! the learned spin budget, at most 50 us; nobody holds it while sched_yield(2) gives the CPU to the
//! peer ([`partywall_shm::spin`]). On the service's side, where the driver alone reads and runs handlers,
//! it is held for the time of one record. Each reader takes at most [`TURN`] records, then lets
//! others run, whatever the peer sends.
//!
//! # Not sleeping beside a record
//!
//! A task that is about to wait for the peer polls once more, then sets the need-wakeup flag or has
//! the driver stay if waiting awake pays, unless somebody else has `rx`. Invariant: whoever lets `rx` go
//! without the flag set wakes the driver while calls are open. While no call is under way a caller may
//! stay awake: then there is nothing to be woken for, and the next call looks first.

use std::future::Future as _;
use std::sync::MutexGuard;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use partywall_abi::sync::spin_hint;
use partywall_shm::spin::Plan;

use super::Link;
use super::TURN;
use super::broken::Broken;
use super::inbound::Record;
use super::inbound::Rx;

/// How long a driver leaves the CPU to the peer in one poll, and how often.
const YIELD_TIME: Duration = Duration::from_micros(100);
const YIELDS: u32 = 16;
/// Looks without a pause, and looks between two readings of the clock.
const QUICK_LOOKS: u32 = 64;
/// The longest a driver spins in one poll; between portions other tasks run.
const SPIN_PORTION: Duration = Duration::from_micros(4);

/// A record, and the right to read the next one for as long as this is being handed over.
pub(super) struct Next<'a> {
    pub(super) record: Record,
    _held: Option<MutexGuard<'a, Rx>>,
}

/// What one driver remembers.
pub(super) struct Driver {
    /// Calls read as well.
    calls_read: bool,
    /// It has been polled.
    started: bool,
    /// Since when nothing has come, while spinning.
    idle_since: Option<Instant>,
    plan: Plan,
    /// Records taken in this poll, and whether any since it last looked whether to wait.
    taken: u32,
    any: bool,
    /// How often and how long it gave the CPU to the peer in this poll.
    yields: u32,
    away: Duration,
}

impl Driver {
    /// The driver of a link that calls read as well, or do not.
    pub(super) fn new(calls_read: bool) -> Self {
        Self {
            calls_read,
            started: false,
            idle_since: None,
            plan: Plan::Sleep,
            taken: 0,
            any: false,
            yields: 0,
            away: Duration::ZERO,
        }
    }

    /// A poll of its task begins.
    pub(super) fn begin(&mut self, link: &Link) {
        if !std::mem::replace(&mut self.started, true) {
            link.listener.forget_driver();
        }
        (self.taken, self.any, self.yields, self.away) = (0, false, 0, Duration::ZERO);
    }

    /// The next record; the task is woken when there is one.
    pub(super) fn poll_record<'a>(
        &mut self,
        link: &'a Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Next<'a>, Broken>> {
        let mut waited = None;
        loop {
            if link.closed().is_some() {
                return Poll::Ready(Err(Broken::Closed));
            }
            if self.taken >= TURN {
                return yield_now(cx);
            }
            let Some(mut rx) = waited.take().or_else(|| link.inbound.try_lock()) else {
                // A leader reads, or a driver that has transferred its role looks last.
                return yield_now(cx);
            };
            // Nobody comes in while it hands records over: they would overtake each other.
            if link.inbound.needs_wakeup() {
                link.inbound.awake(&mut rx);
            }
            let record = link.inbound.take(&mut rx)?;
            if record.is_none() || self.taken % 16 == 15 {
                link.after_release(&mut rx)?;
            }
            if let Some(record) = record {
                self.taken += 1;
                self.any = true;
                if !self.calls_read {
                    link.inbound.hands_over();
                }
                let held = self.calls_read.then_some(rx);
                return Poll::Ready(Ok(Next { record, _held: held }));
            }
            drop(rx);
            link.serve_stalled()?;
            match self.stay_awake(link) {
                Awake::Record(rx) => {
                    waited = rx;
                    continue;
                }
                Awake::NotYet if link.many_threads => {
                    // To the end of a queue that idle threads take from.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Awake::NotYet => return yield_now(cx),
                Awake::No => {}
            }
            if !link.sleep(&mut link.inbound.lock())? {
                continue;
            }
            // Whoever read meanwhile may have taken the flag back.
            if !link.listener.wait_as_driver(cx) || link.closed().is_some() {
                continue;
            }
            if !link.listen()? {
                return Poll::Pending;
            }
        }
    }

    /// Waits awake for a little while, as was learned.
    fn stay_awake<'a>(&mut self, link: &'a Link) -> Awake<'a> {
        let any = std::mem::take(&mut self.any);
        let mut rx = link.inbound.lock();
        let asked = rx.take_asked();
        if any || asked.is_some() || self.idle_since.is_none() {
            self.idle_since = None;
            if !any && asked.is_none() {
                return Awake::No;
            }
            self.plan = asked.unwrap_or_else(|| rx.spin.plan(link.bell().same_cpu()));
            // Others run first: callers whose answers have come are why more will come, and with
            // handlers at work there is no CPU to give away.
            let others = any && link.calls.open_calls() > usize::from(self.calls_read);
            let later = match self.plan {
                Plan::Sleep => others && self.calls_read,
                Plan::Spin(_) => others,
                Plan::Yield => others || self.yields >= YIELDS || self.away >= YIELD_TIME,
            };
            if later {
                link.inbound.stay(&mut rx);
                self.idle_since = Some(Instant::now());
                return Awake::NotYet;
            }
            // A leader reads for itself.
            if self.calls_read && asked.is_none() {
                link.inbound.awake(&mut rx);
                return Awake::No;
            }
        }
        link.inbound.awake(&mut rx);
        let budget = match self.plan {
            Plan::Spin(budget) => budget,
            Plan::Sleep => {
                self.idle_since = None;
                return Awake::No;
            }
            Plan::Yield => {
                self.idle_since = None;
                drop(rx);
                let (took, there) = link.yield_cpu();
                self.yields += 1;
                self.away += took;
                return if there { Awake::Record(None) } else { Awake::No };
            }
        };
        // A clock costs as much as many looks: the first ones go without, and none is read between a record
        // and its handler.
        let (mut start, mut waited) = (None, Duration::ZERO);
        let mut rounds = 0_u32;
        loop {
            if rx.ready() {
                rx.spin.hit(waited);
                return Awake::Record(Some(rx));
            }
            rounds += 1;
            if rounds > QUICK_LOOKS {
                spin_hint();
            }
            if rounds.is_multiple_of(QUICK_LOOKS) {
                let now = Instant::now();
                let start = *start.get_or_insert(now);
                waited = now - *self.idle_since.get_or_insert(start);
                if waited >= budget {
                    rx.spin.miss();
                    self.idle_since = None;
                    return Awake::No;
                }
                if now - start >= SPIN_PORTION {
                    link.inbound.stay(&mut rx);
                    return Awake::NotYet;
                }
            }
        }
    }
}

/// How a driver's waiting awake ended.
enum Awake<'a> {
    /// A record is there.
    Record(Option<MutexGuard<'a, Rx>>),
    /// Others are to run, and then it looks again.
    NotYet,
    /// It is time to sleep.
    No,
}

/// Lets every other task run, the runtime's main one too, which `wake_by_ref` would not.
fn yield_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    let yielding = std::pin::pin!(tokio::task::yield_now());
    let _pending = yielding.poll(cx);
    Poll::Pending
}
