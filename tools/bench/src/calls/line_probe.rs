//! One word bounced between two cores: what a hand-over through memory costs.
//!
//! The word is the number of the call; the client prepares and checks it as it does the payload of
//! any other call, so that a line rests as long between calls as everyone's. The word moves on
//! through a page, line by line: how long a line takes depends on where in the cache it lives, and
//! one line alone would be luck.
//!
//! Neither side pauses between looks. On some processors a pause lets the writer keep the line and
//! saves a transfer, but only in some of the runs, as the pauses happen to fall; without one the
//! figure is the same in every run. That makes it a yardstick, not the least possible.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::bare;
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::sys::shared::{self, Shared};

/// A bounced word.
pub const LINE_PROBE: Contender = Contender::new(
    Kind::Floor,
    "line-probe",
    "one word bounced between two cores",
    || bare(Wait::Spin),
    call,
)
.opened(open)
.served(serve);

const GONE: u64 = u64::MAX;
const LINE: usize = 64;
const LINES: u64 = 64;

/// The line in which call `number` happens.
fn place(memory: &Shared, number: u64) -> &AtomicU64 {
    memory.long((number % LINES) as usize * LINE)
}

fn open(_: &Case) -> Result<Ends> {
    Ok(Ends(vec![(Side::Both, shared::create(LINES as usize * LINE)?)]))
}

fn serve(seat: &mut Seat) -> Result<()> {
    let memory = Shared::map(seat.take(0)?)?;
    seat.ready();
    for number in 0.. {
        let (line, request) = (place(&memory, number), 2 * number + 1);
        loop {
            // SYNC(line.bounce)
            match line.load(Acquire) {
                GONE => return Ok(()),
                seen if seen == request => break,
                _ => {}
            }
        }
        // SYNC(line.bounce)
        line.store(request + 1, Release);
    }
    Ok(())
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let memory = Shared::map(seat.take(0)?)?;
    let mut next = 0;
    let figures = seat.meter()?.one_by_one(|request, reply| {
        let number = u64::from_le_bytes(request.try_into()?);
        let (line, request) = (place(&memory, number), 2 * number + 1);
        next = number + 1;
        // SYNC(line.bounce)
        line.store(request, Release);
        let seen = loop {
            // SYNC(line.bounce)
            match line.load(Acquire) {
                seen if seen == request => {}
                seen => break seen,
            }
        };
        reply.copy_from_slice(&((seen - 2) / 2).to_le_bytes());
        Ok(())
    })?;
    place(&memory, next).store(GONE, Release);
    Ok(figures)
}
