//! Bare shared memory: both processes map one file and hand it over with a futex. Nothing keeps either from
//! changing what the other one reads.

use std::os::fd::OwnedFd;

use super::drive::{End, measure_pairs, serve_pairs};
use super::turn::{Reader, Turn};
use super::{pairs, sleeping_here_and_contained};
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind};
use crate::error::Result;
use crate::sys::shared::Turns;

/// One shared mapping.
pub const MEMFD_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "memfd-floor",
    "one memory file that both processes have mapped and trust each other with",
    sleeping_here_and_contained,
    |seat| measure_pairs(seat, |fd, _| Ok(Mapped(Turns::map(fd, true)?))),
)
.opened(open)
.served(|seat| serve_pairs(seat, |fd, _| Ok(Mapped(Turns::map(fd, false)?))));

fn open(case: &Case) -> Result<Ends> {
    pairs(case, || {
        let file: OwnedFd = Turns::create(case.bytes())?;
        Ok((file.try_clone()?, file))
    })
}

struct Mapped(Turns);

impl End for Mapped {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        turn.fill(self.0.block().ok_or("it is the other side's turn")?);
        self.0.hand_over();
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let has_come = self.0.wait();
        reader.read(self.0.block().unwrap_or_default());
        Ok(has_come)
    }
}
