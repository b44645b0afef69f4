//! A bare hand-over: two processes that take turns with a futex and carry nothing.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::{ANYWHERE, bare};
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Result, Side};
use crate::seat::Seat;
use crate::sys::futex;
use crate::sys::shared::{self, Shared};

/// The contender.
#[derive(Debug)]
pub struct HandoffFloor;

const GONE: u32 = u32::MAX;
const REQUEST: usize = 0;
const REPLY: usize = 64;

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
            // SYNC(handoff.request)
            match request.load(Acquire) {
                GONE => return Ok(()),
                seen if seen == last => futex::wait(request, last),
                seen => {
                    last = seen;
                    // SYNC(handoff.reply)
                    reply.store(seen, Release);
                    futex::wake(reply);
                }
            }
        }
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let memory = Shared::map(seat.take(0)?)?;
        let (request, reply) = (memory.word(REQUEST), memory.word(REPLY));
        let mut meter = seat.meter()?;
        let mut last = 0u32;
        loop {
            let begun = meter.now();
            // SYNC(handoff.request)
            request.store(last + 1, Release);
            futex::wake(request);
            // SYNC(handoff.reply)
            let seen = loop {
                match reply.load(Acquire) {
                    seen if seen == last => futex::wait(reply, last),
                    seen => break seen,
                }
            };
            let ended = meter.now();
            last += 1;
            if seen != last {
                meter.count_wrong()?;
            }
            if !meter.lap(begun, ended) {
                break;
            }
        }
        request.store(GONE, Release);
        futex::wake(request);
        seat.finish(meter.figures());
        Ok(())
    }
}
