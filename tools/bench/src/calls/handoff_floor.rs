//! A bare hand-over: two processes that take turns with a futex and carry nothing but a number.

use super::{ANYWHERE, bare};
use crate::case::{Case, Mode, Wait};
use crate::contender::{Contender, Ends, Side};
use crate::error::Result;
use crate::seat::Seat;
use crate::sys::handoff::{STEP, change, hand_over};
use crate::sys::shared::{self, Shared};

/// The contender.
#[derive(Debug)]
pub struct HandoffFloor;

const REQUEST: usize = 0;
const REPLY: usize = 64;
const GONE: u32 = u32::MAX - 1;

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
        let mut hand = || {
            hand_over(request, last + STEP);
            let seen = change(reply, last);
            last += STEP;
            seen == last
        };
        if seat.case().mode == Some(Mode::Latency) {
            loop {
                let begun = meter.now();
                let right = hand();
                let ended = meter.now();
                if !right {
                    meter.count_wrong()?;
                }
                if !meter.lap(begun, ended) {
                    break;
                }
            }
        } else {
            meter.one_by_one(|number, seen| {
                if hand() {
                    seen.copy_from_slice(number);
                }
                Ok(())
            })?;
        }
        hand_over(request, GONE);
        seat.finish(meter.figures());
        Ok(())
    }
}
