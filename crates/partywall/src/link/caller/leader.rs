//! The leader: a call that is the only one under way reads its own answer, so that a unary call
//! switches to no other task.
//!
//! A call leads from its first wait until it has its answer, is dropped, or a second call is opened
//! ([`Caller::depose`]): a future may be kept without being polled, so nobody else may depend on it.
//! Whoever stops reading while others wait wakes the driver. Who else reads, and how nobody sleeps
//! beside a record, is in [`crate::link::driver`].
//!
//! # Company
//!
//! A leader that finds its answer at once would keep others from ever beginning their calls. So a call
//! that had company in the last [`ALONE`] leaves the reading to the driver, whose turn comes after
//! other callers', and so does every [`PROBE`]th that had none, to see whether there is some.

use std::task::Context;
use std::time::{Duration, Instant};

use partywall_abi::sync::{Ordering, spin_hint};
use partywall_call::Key;
use partywall_shm::spin::Plan;

use super::Caller;
use crate::link::Own;
use crate::link::TURN;
use crate::link::broken::Broken;
use crate::link::inbound::Rx;
use crate::link::mailbox::Answer;

/// Looks without a pause, and looks between two readings of the clock.
const QUICK_LOOKS: u32 = 64;
/// Calls after which one that had company counts as alone again.
pub(super) const ALONE: u32 = 64;
/// Every so many calls alone one makes room for company.
const PROBE: u32 = 32;

/// How a turn of taking records ended.
enum Turn {
    /// None is left.
    All,
    /// The one that was waited for was among them.
    Own(Own),
    /// There may be more.
    Over,
}

/// What came of a call's look at its link.
pub(super) enum Looked {
    /// Somebody else reads; then [`Caller::park`] is due.
    NotReader,
    /// It reads: its task is woken when there is more, or has its answer in the mailbox.
    Reads,
    /// All of its answer: it is over and released.
    Whole(Answer),
}

impl Caller {
    /// A call was opened, and there are so many with it.
    pub(super) fn opened(&self, open: usize) {
        if open > 1 {
            self.alone.store(0, Ordering::Relaxed);
        }
        if open == 2 {
            self.depose();
        }
    }

    /// Reads for the only call under way, and arranges for its task to be woken when there is more.
    ///
    /// `spin`: the call has just been sent, so its answer may come while this spins. `leads` is set when it
    /// becomes the leader, even where it does not stay the reader.
    pub(super) fn lead(&self, cx: &Context<'_>, own: Key, spin: bool, leads: &mut bool) -> Looked {
        let link = &self.link;
        if link.calls.open_calls() != 1 || link.closed().is_some() {
            return Looked::NotReader;
        }
        if spin && self.in_company() {
            // While it was sending it may have led, and a bell have woken it alone.
            if std::mem::take(leads) {
                self.resign(own, false);
            }
            return Looked::NotReader;
        }
        let (own, looked) = match self.try_lead(cx, own, spin, leads) {
            Ok(Led::NotReader) => return Looked::NotReader,
            Ok(Led::Waits) => return Looked::Reads,
            Ok(Led::Over) => (1, Looked::Reads),
            Ok(Led::Answered(Own::Whole(answer))) => (0, Looked::Whole(answer)),
            Ok(Led::Answered(_)) => (0, Looked::Reads),
            Err(why) => {
                link.close(&why);
                return Looked::Reads;
            }
        };
        // Calls that came while this one read have left the looking to it.
        if link.calls.open_now() > own {
            link.listener.wake_driver();
        }
        looked
    }

    fn try_lead(
        &self,
        cx: &Context<'_>,
        own: Key,
        mut spin: bool,
        leads: &mut bool,
    ) -> Result<Led, Broken> {
        let link = &self.link;
        let mut left = TURN;
        if !spin {
            link.listen()?;
        }
        loop {
            link.serve_stalled()?;
            let Some(mut rx) = link.inbound.try_lock() else { return Ok(Led::NotReader) };
            match self.take_turn(&mut rx, &mut left, Some(own))? {
                Turn::All => {}
                Turn::Own(answer) => return Ok(Led::Answered(answer)),
                Turn::Over => {
                    cx.waker().wake_by_ref();
                    return Ok(Led::Over);
                }
            }
            if std::mem::take(&mut spin) {
                match rx.spin.plan(link.bell().same_cpu()) {
                    Plan::Sleep => {}
                    Plan::Spin(budget) => match self.spin(&mut rx, budget, own)? {
                        Own::Nothing => {}
                        answer => return Ok(Led::Answered(answer)),
                    },
                    Plan::Yield => {
                        link.inbound.awake(&mut rx);
                        link.after_release(&mut rx)?;
                        drop(rx);
                        link.yield_cpu();
                        continue;
                    }
                }
            }
            if !link.sleep(&mut rx)? {
                continue;
            }
            drop(rx);
            *leads = true;
            link.listener.lead(own, cx);
            // Either this sees the second call, or that one's `depose` sees this.
            if !link.calls.is_single() {
                self.depose();
                // Another call was opened meanwhile, and may have found `rx` taken.
                return Ok(Led::Over);
            }
            if !link.listen()? {
                return Ok(Led::Waits);
            }
        }
    }

    /// Takes records until there is none, the call `own` has its answer, or `left` are taken.
    fn take_turn(&self, rx: &mut Rx, left: &mut u32, own: Option<Key>) -> Result<Turn, Broken> {
        while *left > 0 {
            *left -= 1;
            let Some(record) = self.link.inbound.take(rx)? else { return Ok(Turn::All) };
            match self.link.deliver(record, own)? {
                Own::Nothing => {}
                answer => return Ok(Turn::Own(answer)),
            }
        }
        self.link.after_release(rx)?;
        Ok(Turn::Over)
    }

    /// Whether a new call is to let others begin theirs before it is waited for: there were others
    /// a while ago, or it is time to see whether there are now.
    fn in_company(&self) -> bool {
        let calls = self.alone.load(Ordering::Relaxed);
        self.alone.store(calls.checked_add(1).unwrap_or(ALONE), Ordering::Relaxed);
        calls < ALONE || calls.is_multiple_of(PROBE)
    }

    /// A second call was opened: the first one reads no more.
    pub(super) fn depose(&self) {
        if self.link.listener.depose() {
            self.link.listener.wake_driver();
        }
    }

    /// The leader has its answer or is given up.
    pub(super) fn resign(&self, own: Key, answered: bool) {
        let link = &self.link;
        if !link.listener.resign(own) {
            return;
        }
        // A bell that woke only a call that is not polled again, or records of others.
        let mut left = !answered || link.calls.open_now() > 0;
        if !left && !link.listener.is_armed() {
            left = !matches!(link.listen(), Ok(false));
        }
        if left {
            link.listener.wake_driver();
        }
    }

    /// Spins until the call `own` has its answer; nothing when the budget is used up.
    fn spin(&self, rx: &mut Rx, budget: Duration, own: Key) -> Result<Own, Broken> {
        let link = &self.link;
        link.inbound.awake(rx);
        // A clock costs as much as many looks: the first ones go without, and none is read between the
        // answer and its call.
        let (mut start, mut waited) = (None, Duration::ZERO);
        let (mut rounds, mut taken) = (0_u32, 0);
        while taken < TURN {
            if rx.ready() {
                let Some(record) = link.inbound.take(rx)? else { continue };
                match link.deliver(record, Some(own))? {
                    Own::Nothing => {}
                    answer => {
                        rx.spin.hit(waited);
                        return Ok(answer);
                    }
                }
                taken += 1;
                continue;
            }
            rounds += 1;
            if rounds > QUICK_LOOKS {
                spin_hint();
            }
            if rounds.is_multiple_of(QUICK_LOOKS) {
                waited = start.get_or_insert_with(Instant::now).elapsed();
                if waited >= budget {
                    break;
                }
            }
        }
        rx.spin.miss();
        Ok(Own::Nothing)
    }

    /// Looks once, on a link without calls: what came meanwhile may concern the next one.
    pub(super) fn poll_once(&self) {
        let link = &self.link;
        let Some(mut rx) = link.inbound.try_lock() else { return };
        let ready = rx.ready();
        let taken =
            if ready { self.take_turn(&mut rx, &mut { TURN }, None).map(drop) } else { Ok(()) };
        drop(rx);
        match taken {
            // A call that came meanwhile may have found `rx` taken.
            Ok(()) if ready || link.calls.open_now() > 0 => link.listener.wake_driver(),
            Ok(()) => {}
            Err(why) => link.close(&why),
        }
    }

    /// Before a task waits for the peer: polls once more, then sets the need-wakeup flag or asks the
    /// driver to stay awake.
    pub(super) fn park(&self) {
        if let Err(why) = self.try_park() {
            self.link.close(&why);
        }
    }

    fn try_park(&self) -> Result<(), Broken> {
        let link = &self.link;
        let mut left = TURN;
        loop {
            if link.inbound.is_cared_for() || link.closed().is_some() {
                return Ok(());
            }
            let Some(mut rx) = link.inbound.try_lock() else { return Ok(()) };
            if !matches!(self.take_turn(&mut rx, &mut left, None)?, Turn::All) {
                link.listener.wake_driver();
                return Ok(());
            }
            // On several threads the driver is woken by bell alone: a task that wakes it may go on
            // computing, and the runtime lets no other thread run what a task has woken last.
            let plan = match link.many_threads {
                true => Plan::Sleep,
                false => rx.spin.plan(link.bell().same_cpu()),
            };
            if !matches!(plan, Plan::Sleep) {
                // The driver's turn comes after those of other callers.
                rx.ask(plan);
                link.inbound.stay(&mut rx);
                link.listener.wake_driver();
                return Ok(());
            }
            if link.sleep(&mut rx)? {
                return Ok(());
            }
        }
    }
}

/// How an attempt to lead ended.
enum Led {
    /// Somebody else reads.
    NotReader,
    /// The task is woken when the peer rings.
    Waits,
    /// It reads no more, and its call is still open.
    Over,
    /// It reads no more: it has its answer, or a part of that.
    Answered(Own),
}
