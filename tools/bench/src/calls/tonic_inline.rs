//! tonic's client and server code joined with no transport between, in one thread: what the stubs
//! themselves cost.

use super::stubs::{BenchClient, one_by_one, service};
use super::tonic_net::runtime;
use crate::case::{CALL_SIZES, Case, Mode, Placement};
use crate::contender::Contender;
use crate::error::Result;
use crate::seat::Seat;

/// The contender.
#[derive(Debug)]
pub struct TonicInline;

impl Contender for TonicInline {
    fn name(&self) -> &'static str {
        "tonic-inline"
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        let case = |size| Case::call(Mode::Latency, Some(size), Placement::SameCore, None);
        CALL_SIZES.map(case).into()
    }

    fn paired(&self) -> bool {
        false
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let mut meter = seat.meter()?;
        // The server is a service, and a client calls any service.
        runtime()?.block_on(one_by_one(BenchClient::new(service()), &mut meter))?;
        seat.finish(meter.figures());
        Ok(())
    }
}
