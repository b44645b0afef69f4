//! A bare hand-over: two processes that take turns with a futex and carry nothing but a number.

use super::bare;
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::sys::handoff::{STEP, change, hand_over};
use crate::sys::shared::{self, Shared};

/// A futex hand-over.
pub const HANDOFF_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "handoff-floor",
    "two processes that take turns with a futex",
    || bare(Wait::Block),
    call,
)
.opened(open)
.served(serve);

const REQUEST: usize = 0;
const REPLY: usize = 64;
const GONE: u32 = u32::MAX - 1;

fn open(_: &Case) -> Result<Ends> {
    Ok(Ends(vec![(Side::Both, shared::create(4096)?)]))
}

fn serve(seat: &mut Seat) -> Result<()> {
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

fn call(seat: &mut Seat) -> Result<Figures> {
    let memory = Shared::map(seat.take(0)?)?;
    let (request, reply) = (memory.word(REQUEST), memory.word(REPLY));
    let mut last = 0;
    let figures = seat.meter()?.one_by_one(|number, seen| {
        hand_over(request, last + STEP);
        if change(reply, last) == last + STEP {
            seen.copy_from_slice(number);
        }
        last += STEP;
        Ok(())
    })?;
    hand_over(request, GONE);
    Ok(figures)
}
