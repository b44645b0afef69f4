//! A bare hand-over: two processes that take turns with a futex and carry nothing but a number.
//!
//! There is one word for each direction: the number of the last hand-over, and in the lowest bit
//! whether the other side sleeps until it changes. Whoever hands over wakes only a side that sleeps:
//! a side that was preempted on its way to sleep needs no system call.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{ANYWHERE, bare};
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Result, Side};
use crate::seat::Seat;
use crate::sys::futex;
use crate::sys::shared::{self, Shared};

/// The contender.
#[derive(Debug)]
pub struct HandoffFloor;

const REQUEST: usize = 0;
const REPLY: usize = 64;
const ASLEEP: u32 = 1;
const STEP: u32 = 2;
const GONE: u32 = u32::MAX - ASLEEP;

impl Contender for HandoffFloor {
    fn name(&self) -> &'static str {
        "handoff-floor"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        bare(Wait::Block, &ANYWHERE)
    }

    fn open(&self, _: &Case) -> Result<Ends> {
        Ok(Ends(vec![(Side::Both, shared::create(4096)?)]))
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let memory = Shared::map(seat.take(0)?)?;
        let (request, reply) = (memory.word(REQUEST), memory.word(REPLY));
        seat.ready();
        let mut last = 0;
        loop {
            last = change(request, last);
            if last == GONE {
                return Ok(());
            }
            hand_over(reply, last);
        }
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let memory = Shared::map(seat.take(0)?)?;
        let (request, reply) = (memory.word(REQUEST), memory.word(REPLY));
        let mut meter = seat.meter()?;
        let mut last = 0;
        loop {
            let begun = meter.now();
            hand_over(request, last + STEP);
            let seen = change(reply, last);
            let ended = meter.now();
            last += STEP;
            if seen != last {
                meter.count_wrong()?;
            }
            if !meter.lap(begun, ended) {
                break;
            }
        }
        hand_over(request, GONE);
        seat.finish(meter.figures());
        Ok(())
    }
}

/// Publishes `number`, and wakes the other side if it sleeps.
#[inline]
fn hand_over(word: &AtomicU32, number: u32) {
    // SYNC(handoff.number)
    if word.swap(number, AcqRel) & ASLEEP != 0 {
        futex::wake(word);
    }
}

/// Sleeps until the word no longer says `last`; returns what it says.
#[inline]
fn change(word: &AtomicU32, last: u32) -> u32 {
    loop {
        // SYNC(handoff.number)
        match word.load(Acquire) {
            seen if seen == last | ASLEEP => futex::wait(word, seen),
            seen if seen == last => {
                // If this fails the number has just changed.
                let _ = word.compare_exchange(last, last | ASLEEP, Relaxed, Relaxed);
            }
            seen => return seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hand_over_is_lost() {
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while last < 20_000 * STEP {
                    last = change(&words[0], last);
                    hand_over(&words[1], last);
                }
            });
            for number in (STEP..=20_000 * STEP).step_by(STEP as usize) {
                hand_over(&words[0], number);
                assert_eq!(change(&words[1], number - STEP), number);
            }
        });
    }
}
