//! tonic's client and server code joined with no transport between, in one thread: what the stubs
//! themselves cost.

use super::client::echoes;
use super::stubs::ordinary;
use super::tonic_net::runtime;
use crate::case::{CALL_SIZES, Case, Mode, Placement};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Stubs without a transport.
pub const TONIC_INLINE: Contender = Contender::new(
    Kind::Floor,
    "tonic-inline",
    "tonic's client and server code joined in one thread, with no transport between",
    || {
        CALL_SIZES
            .map(|size| Case::call(Mode::Latency, Some(size), Placement::SameCore, None))
            .into()
    },
    call,
);

fn call(seat: &mut Seat) -> Result<Figures> {
    // The server is a service, and a client calls any service.
    let client = ordinary::client(ordinary::service());
    runtime()?.block_on(echoes(client, seat))
}
