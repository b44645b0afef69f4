//! A call that is alone reads its own answer, so that a unary call switches to no other task.
//!
//! Who else reads, and how nobody sleeps beside a record, is told in [`super::reader`].
//!
//! # Company
//!
//! A lone call that finds its answer at once would keep others from ever beginning theirs. So a call
//! that had company in the last [`ALONE`] leaves the reading to the driver, whose turn comes after
//! other callers', and so does every [`PROBE`]th that had none, to see whether there is some.

use std::task::Context;
use std::time::{Duration, Instant};

use partywall_abi::sync::{Ordering, spin_hint};
use partywall_shm::spin::Plan;

use super::broken::Broken;
use super::core::{Core, guard};
use super::reader::{Record, Rx, TURN, Taken};
use super::stream;

/// Calls after which one that had company counts as alone again.
pub(super) const ALONE: u32 = 64;
/// Every so many calls alone one makes room for company.
const PROBE: u32 = 32;

impl Core {
    /// Reads for the only call under way, and arranges for its task to be woken when there is
    /// more. False when somebody else reads; then [`Core::settle`] is due.
    ///
    /// `spin`: the call has just been sent, so its answer may come while this spins. `on_record`
    /// says whether the call `id` has its answer now.
    pub(crate) fn read_alone(
        &self,
        cx: &Context<'_>,
        id: u32,
        spin: bool,
        mut on_record: impl FnMut(Record) -> Result<bool, Broken>,
    ) -> bool {
        if self.open_calls() != 1 || self.closed().is_some() {
            return false;
        }
        if spin && self.in_company() {
            // While it was sending it may have been the one, and a bell have woken it alone.
            self.leave_alone(id, false);
            return false;
        }
        let (mut spin, mut left) = (spin, TURN);
        if !spin && let Err(why) = self.listen() {
            self.close(&why);
            return true;
        }
        let read = loop {
            if let Err(why) = self.serve_stalled() {
                break Err(why);
            }
            let Some(mut rx) = self.try_rx() else { return false };
            match self.take_turn(&mut rx, &mut left, &mut on_record) {
                Ok(Taken::All) => {}
                Ok(Taken::Enough) => break Ok(0),
                Ok(Taken::Turn) => {
                    cx.waker().wake_by_ref();
                    break Ok(1);
                }
                Err(why) => break Err(why),
            }
            if std::mem::take(&mut spin) {
                match rx.spin.plan(self.bell().same_cpu()) {
                    Plan::Sleep => {}
                    Plan::Spin(budget) => match self.spin(&mut rx, budget, &mut on_record) {
                        Ok(true) => break Ok(0),
                        Ok(false) => {}
                        Err(why) => break Err(why),
                    },
                    Plan::HandOver => {
                        self.awake(&mut rx);
                        if let Err(why) = self.after_release(&mut rx) {
                            break Err(why);
                        }
                        drop(rx);
                        self.hand_over();
                        continue;
                    }
                }
            }
            match self.announce(&mut rx) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(why) => break Err(why),
            }
            drop(rx);
            if !self.alone(cx, id) {
                // Another call was opened meanwhile, and may have found `rx` taken.
                break Ok(1);
            }
            match self.listen() {
                Ok(true) => {}
                Ok(false) => return true,
                Err(why) => break Err(why),
            }
        };
        match read {
            // Calls that came while this one read have left the looking to it.
            Ok(own) => {
                if guard(&self.streams).len() > own {
                    self.wake_driver();
                }
            }
            Err(why) => self.close(&why),
        }
        true
    }

    /// Whether a new call is to let others begin theirs before it is waited for: there were others
    /// a while ago, or it is time to see whether there are now.
    fn in_company(&self) -> bool {
        let calls = self.calls_alone.load(Ordering::Relaxed);
        self.calls_alone.store(calls.checked_add(1).unwrap_or(ALONE), Ordering::Relaxed);
        calls < ALONE || calls.is_multiple_of(PROBE)
    }

    /// Makes a call the lone one; false when it is not alone any more.
    fn alone(&self, cx: &Context<'_>, id: u32) -> bool {
        let mut ears = guard(&self.doorbell.ears);
        match &mut ears.lone {
            Some((lone, waker)) if *lone == id => stream::register(waker, cx),
            lone => *lone = Some((id, Some(cx.waker().clone()))),
        }
        drop(ears);
        // Either this sees the second call, or that one's `revoke` sees this.
        if guard(&self.streams).is_lone() {
            return true;
        }
        self.revoke();
        false
    }

    /// A second call was opened: the first one reads no more.
    pub(crate) fn revoke(&self) {
        if guard(&self.doorbell.ears).lone.take().is_some() {
            self.wake_driver();
        }
    }

    /// The lone call has its answer or is given up.
    pub(crate) fn leave_alone(&self, id: u32, answered: bool) {
        let mut ears = guard(&self.doorbell.ears);
        if !matches!(ears.lone, Some((lone, _)) if lone == id) {
            return;
        }
        ears.lone = None;
        drop(ears);
        // A bell that woke only a call that is not polled again, or records of others.
        let mut left = !answered || !guard(&self.streams).is_empty();
        if !left && !self.doorbell.armed.load(Ordering::Relaxed) {
            left = !matches!(self.listen(), Ok(false));
        }
        if left {
            self.wake_driver();
        }
    }

    /// Spins until `on_record` says that it is enough; false when the budget is used up.
    fn spin(
        &self,
        rx: &mut Rx,
        budget: Duration,
        mut on_record: impl FnMut(Record) -> Result<bool, Broken>,
    ) -> Result<bool, Broken> {
        self.awake(rx);
        let start = Instant::now();
        let (mut rounds, mut taken) = (0_u32, 0);
        while taken < TURN {
            if rx.consumer.ready() {
                let Some(record) = self.take(rx)? else { continue };
                if on_record(record)? {
                    rx.spin.hit(start.elapsed());
                    return Ok(true);
                }
                taken += 1;
                continue;
            }
            rounds += 1;
            if rounds > 32 {
                spin_hint();
            }
            if rounds.is_multiple_of(64) && start.elapsed() >= budget {
                break;
            }
        }
        rx.spin.miss();
        Ok(false)
    }
}
