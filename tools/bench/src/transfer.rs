//! The `transfer` bench: client and server set all bytes of a block by turns and pass it to the other side.
//!
//! It is Bindox's evaluation: one iteration is that both set all and both pass once. Who receives a block
//! reads eight bytes of each page, which depend on the iteration and the page; one that reads something wrong
//! answers with something wrong, so that the client learns of it. A contender either copies the block, of
//! which each side has one, or lets the other side have its memory.
//!
//! After the timed iterations there are some more, while a thread of the client looks again and again what
//! both processes and the host hold; the most of each is published, above what they held before either side
//! made anything, as a multiple of the data. Below a mebibyte that would say nothing.
//!
//! The client may be in a container, and the server on the host: bytes then go over the engine's bridge where
//! they go by TCP, and a socket or a memory file is passed into the container where it has no name.
//!
//! Several clients are threads of the client's process, each with a connection of its own; their data is
//! that of all of them.

pub mod chunks;
pub mod drive;
pub mod fill_floor;
#[cfg(feature = "opponents")]
pub mod iceoryx;
pub mod memfd_floor;
pub mod parcels;
pub mod seal_floor;
pub mod stream;
pub mod tonic;
pub mod turn;
pub mod udp;

use std::os::fd::OwnedFd;

use crate::case::{BLOCK_SIZES, CLIENTS, CLIENTS_BYTES, Case, Place, Wait};
use crate::contender::{Ends, Side};
use crate::error::Result;
use crate::seat::Seat;

/// Every size, and every number of clients.
pub fn cases(wait: Option<Wait>) -> Vec<Case> {
    let several = CLIENTS.iter().filter(|clients| **clients > 1);
    let several = several.map(|clients| Case::transfer(CLIENTS_BYTES, *clients, wait));
    BLOCK_SIZES.into_iter().map(|bytes| Case::transfer(bytes, 1, wait)).chain(several).collect()
}

/// The same with sides that sleep.
pub fn sleeping() -> Vec<Case> {
    cases(Some(Wait::Block))
}

/// The same, and every size with the one client in a container.
pub fn sleeping_here_and_contained() -> Vec<Case> {
    let block = |bytes| Case::transfer(bytes, 1, Some(Wait::Block)).at(Place::ClientInContainer);
    sleeping().into_iter().chain(BLOCK_SIZES.map(block)).collect()
}

/// How many clients there are.
pub fn clients(case: &Case) -> usize {
    case.clients.unwrap_or(1) as usize
}

/// A connection for each client: the server's end, then the client's.
pub fn pairs(case: &Case, pair: impl Fn() -> Result<(OwnedFd, OwnedFd)>) -> Result<Ends> {
    let mut ends = Vec::new();
    for _ in 0..clients(case) {
        let (server, client) = pair()?;
        ends.extend([(Side::Server, server), (Side::Client, client)]);
    }
    Ok(Ends(ends))
}

/// What makes this side's end of each connection of [`pairs`] of its descriptor and the length of a block.
pub fn makers<E>(
    seat: &mut Seat,
    side: Side,
    make: fn(OwnedFd, usize) -> Result<E>,
) -> Result<Vec<impl FnOnce() -> Result<E> + use<E>>> {
    let case = seat.case();
    let bytes = case.bytes();
    let places = (0..clients(&case)).map(|client| 2 * client + usize::from(side == Side::Client));
    places.map(|place| seat.take(place).map(|fd| move || make(fd, bytes))).collect()
}
