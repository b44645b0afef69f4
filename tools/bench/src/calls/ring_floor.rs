//! The least a ring can cost: [`super::ring`] with nothing around it.

use super::ring::{Client, Shape, create, echo};
use super::spinning_or_sleeping;
use crate::case::{Case, Mode, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::meter::Duplex;
use crate::row::Figures;
use crate::seat::Seat;
use crate::sys::shared::Shared;

/// A ring and nothing else.
pub const RING_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "ring-floor",
    "the least code that a ring needs",
    spinning_or_sleeping,
    call,
)
.opened(|case| Ok(Ends(vec![(Side::Both, create(&shape(case))?)])))
.served(serve);

/// As many slots as a pipeline of this size has calls in flight.
fn shape(case: &Case) -> Shape {
    let full = Case { mode: Some(Mode::Pipelined), ..*case };
    Shape { size: case.bytes(), slots: full.window(), wait: case.wait.unwrap_or(Wait::Block) }
}

/// Sides that sleep exchange whole windows, so that one wake-up serves all of them.
fn batched(case: &Case) -> bool {
    case.is_pipelined() && case.sleeps()
}

fn serve(seat: &mut Seat) -> Result<()> {
    let memory = Shared::map(seat.take(0)?)?;
    let case = seat.case();
    seat.ready();
    echo(&memory, shape(&case), if batched(&case) { case.window() } else { 1 });
    Ok(())
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let memory = Shared::map(seat.take(0)?)?;
    let case = seat.case();
    let mut ring = Client::new(&memory, shape(&case));
    let meter = seat.meter()?;
    if batched(&case) {
        let size = case.bytes();
        meter.by_window(|requests, replies| {
            requests.chunks_exact(size).for_each(|request| ring.put(request));
            ring.wake();
            replies.chunks_exact_mut(size).for_each(|reply| ring.take(reply));
            Ok(())
        })
    } else if case.is_pipelined() {
        meter.sliding(&mut ring)
    } else {
        meter.one_by_one(|request, reply| {
            ring.send(request)?;
            ring.receive(reply)
        })
    }
}

impl Duplex for Client<'_> {
    fn send(&mut self, request: &[u8]) -> Result<()> {
        self.put(request);
        self.wake();
        Ok(())
    }

    fn receive(&mut self, reply: &mut [u8]) -> Result<()> {
        self.take(reply);
        Ok(())
    }
}
