//! What setting and reading costs when nothing is passed: one process that does the work of both sides on one
//! block.

use super::cases;
use super::clients;
use super::drive::{End, measure};
use super::turn::{Reader, Turn};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// One process.
pub const FILL_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "fill-floor",
    "one process that sets and reads a block of its own twice, and passes nothing",
    || cases(None),
    call,
);

fn call(seat: &mut Seat) -> Result<Figures> {
    let case = seat.case();
    let make = move || Ok(Alone { block: vec![0; case.bytes()] });
    measure(seat, vec![make; clients(&case)])
}

struct Alone {
    block: Vec<u8>,
}

impl Alone {
    /// One side's setting, and the other side's reading.
    fn set(&mut self, turn: Turn, reader: &mut Reader) {
        turn.fill(&mut self.block);
        reader.read(&self.block);
    }
}

impl End for Alone {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        let mut other = Reader::new(turn, self.block.len());
        self.set(turn, &mut other);
        if other.is_right() { Ok(()) } else { Err("a block that was just set is wrong".into()) }
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        self.set(reader.turn(), reader);
        Ok(true)
    }
}
