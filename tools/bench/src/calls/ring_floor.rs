//! The least a ring can cost: [`super::ring`] with nothing around it.

use super::cases;
use super::ring::{Client, Shape, create, echo};
use crate::case::{Case, Mode, Wait};
use crate::contender::{Contender, Ends, Side};
use crate::error::Result;
use crate::meter::{Duplex, pipelined};
use crate::seat::Seat;
use crate::sys::shared::Shared;

/// The contender.
#[derive(Debug)]
pub struct RingFloor;

/// As many slots as a pipeline of this size has calls in flight.
fn shape(case: &Case) -> Shape {
    let wait = case.wait.unwrap_or(Wait::Block);
    let full = Case { mode: Some(Mode::Pipelined), ..*case };
    Shape { size: case.bytes(), slots: full.window(), wait }
}

/// Sides that sleep exchange whole windows, so that one wake-up serves all of them.
fn batched(case: &Case) -> bool {
    pipelined(case) && case.wait == Some(Wait::Block)
}

impl Contender for RingFloor {
    fn name(&self) -> &'static str {
        "ring-floor"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        cases(&[Wait::Spin, Wait::Block])
    }

    fn open(&self, case: &Case) -> Result<Ends> {
        Ok(Ends(vec![(Side::Both, create(&shape(case))?)]))
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        let memory = Shared::map(seat.take(0)?)?;
        let case = seat.case();
        seat.ready();
        echo(&memory, shape(&case), if batched(&case) { case.window() } else { 1 });
        Ok(())
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let memory = Shared::map(seat.take(0)?)?;
        let case = seat.case();
        let mut ring = Client::new(&memory, shape(&case));
        let mut meter = seat.meter()?;
        if batched(&case) {
            let size = case.bytes();
            meter.by_window(|requests, replies| {
                requests.chunks_exact(size).for_each(|request| ring.put(request));
                ring.wake();
                replies.chunks_exact_mut(size).for_each(|reply| ring.take(reply));
                Ok(())
            })?;
        } else if pipelined(&case) {
            meter.sliding(&mut ring)?;
        } else {
            meter.one_by_one(|request, reply| {
                ring.put(request);
                ring.wake();
                ring.take(reply);
                Ok(())
            })?;
        }
        seat.finish(meter.figures());
        Ok(())
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
