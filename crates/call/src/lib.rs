//! The protocol of calls over a link, without I/O, clock, runtime or threads.
//!
//! A [`Connection`] is one end. Its owner takes records off a ring and asks what they mean
//! ([`Connection::handle`]), asks what may be sent before it writes a record
//! ([`Connection::reserve`], [`Connection::commit`]), and sends the control records that are due
//! ([`Connection::control`]). The connection never holds message data; where it needs the time, that
//! is an argument. Records are described in [`partywall_abi::frame`], their rules in [`Rule`].
//!
//! ```text
//! owner                                         Connection
//! a record was taken          -- handle ----->  Event: what it means, for which call
//! the program took data       -- taken ------>  Window records become due
//! a program wants to send     -- reserve ---->  Permit: so much, with these flags; or Blocked
//! room on the ring is its own -- commit ----->  credit is spent; an END may close the call
//! the record is written
//! a program gives up          -- reset ------>  a Reset record becomes due
//! room on the ring            -- control ---->  the record that is due next
//! it is written               -- control_sent
//! the call is of no more use  -- release ---->  all that it held goes back to the windows
//! ```
//!
//! # A call
//!
//! ```text
//! caller   open -> begun (its head is on the ring) -> closed (trailers or a reset came, or a reset was sent)
//! service  open (a head came) -> closed (the answer's END is on the ring, or a reset came or was sent)
//! ```
//!
//! An open call is found by its number and takes a place; a closed one keeps what has come until
//! it is released. A caller's places are those that the service has said; a call of a caller
//! that does not keep to them is reset with RESOURCE_EXHAUSTED.
//!
//! # Draining
//!
//! ```text
//! service   Drain ->                  takes calls on until the caller has said Drain too
//! caller    no new calls; when the heads of those that were opened are on the ring: <- Drain
//! service   finishes the calls it has, and ends
//! ```
//!
//! So no call is lost between a caller that has opened it and a service that ends. To a caller
//! that does not acknowledge within [`DRAIN_TIME`] new calls are refused by resets.
//!
//! # Death
//!
//! The connection knows nothing of it. An owner that finds the peer gone hands over what is left
//! on the ring, and ends all calls; dropping a connection is enough.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "cases"))]
pub mod cases;
mod connection;
mod control;
mod error;
mod event;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod messages;
mod metadata;
mod numbers;
#[cfg(test)]
mod simulator;
mod window;

pub use connection::{Connection, DRAIN_TIME};
pub use control::Control;
pub use error::{Error, Rule};
pub use event::{Blocked, Event, Key, NotOpened, Permit, Record, Want};
pub use messages::{Messages, SHORT, Seen};
