//! The same work without a service: one process reads and counts.

use super::count::answer;
use super::{cases, drive, read_into};
use crate::case::Case;
use crate::contender::Contender;
use crate::error::Result;
use crate::seat::Seat;

/// Reads and counts, with a new buffer for each text or with the same one again. Whether the memory
/// of a new buffer is new too is the allocator's choice, as in any program.
#[derive(Debug)]
pub struct Floor {
    name: &'static str,
    fresh: bool,
}

/// A new buffer each time, as a service that keeps nothing has.
pub static FLOOR: Floor = Floor { name: "floor", fresh: true };

/// The same buffer again.
pub static FLOOR_REUSE: Floor = Floor { name: "floor-reuse", fresh: false };

impl Contender for Floor {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, None)
    }

    fn paired(&self) -> bool {
        false
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let mut buffer = Vec::new();
        drive(seat, |text, op| {
            if self.fresh {
                buffer = Vec::new();
            }
            read_into(&text.path, text.bytes, &mut buffer)?;
            Ok(answer(op, &buffer))
        })
    }
}
