//! The same work without a service: one process reads and counts, with a new buffer for each text or
//! with the same one again. Whether the memory of a new buffer is new too is the allocator's choice, as
//! in any program.

use super::count::answer;
use super::{cases, drive, read_into};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// A new buffer each time, as a service that keeps nothing has.
pub const FLOOR: Contender = Contender::new(
    Kind::Floor,
    "floor",
    "one process reads the text into a new buffer and counts",
    || cases(None),
    |seat| call(seat, true),
);

/// The same buffer again.
pub const FLOOR_REUSE: Contender = Contender::new(
    Kind::Floor,
    "floor-reuse",
    "the same with one buffer that is used again",
    || cases(None),
    |seat| call(seat, false),
);

fn call(seat: &Seat, fresh: bool) -> Result<Figures> {
    let mut buffer = Vec::new();
    drive(seat, |text, op| {
        if fresh {
            buffer = Vec::new();
        }
        read_into(&text.path, text.bytes, &mut buffer)?;
        Ok(answer(op, &buffer))
    })
}
