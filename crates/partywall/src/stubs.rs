//! What code that `partywall-build` generates is made of. Other code has no use for it, and it may change
//! with each release of that crate.
//!
//! # The native way of a unary call
//!
//! ```text
//! caller    client::Grpc: is the client's channel a partywall::Channel, with a ring?
//!             no:  tonic's own way
//!             yes: prost encodes into the reserved record; the answer is decoded from its one copy
//! service   http_calls: is the service of the path one that was generated, has it offered its table, and is
//!           the request one message that is not compressed?
//!             no:  the request goes to the service as HTTP has it, with the offer in its extensions
//!             yes: decoded from its one copy, handled, encoded into the reserved record
//!
//! long      in a parcel: encoded there, decoded from there; in several records: put together ([`gather`])
//! ```
//!
//! Both ends decide for themselves: what travels is the same either way, but for a method's number in
//! place of its path. A service offers its table when the first request reaches it the ordinary way.
//! One that answers without that has none. The table counts if the service that was mounted is of the
//! very type that offers: whatever is wrapped, by an interceptor or a layer, is another type and is
//! never passed by.
//!
//! What a `.proto` file demands of a call's link is checked on both ends, on either way: see the module
//! `demand`.
//!
//! # What the compiler makes of it
//!
//! A program may have hundreds of methods. What does not depend on the types of a method's messages is
//! compiled once, behind the traits `Messages` of a call, `Handler` of its answer and `Encode` of a message.
//! That is all of the native way, and all of tonic's ordinary way but what its codec points at. What is
//! compiled for each method is how its messages are encoded and decoded, and the generated functions.
//!
//! # What a call costs
//!
//! Allocations of a unary call without metadata, both sides together, on one thread each. The test
//! `allocations` of `tests/stubs` asserts them; each is given back by the end of the call.
//!
//! | who allocates | native | of a client without a runtime | by tonic's stubs |
//! |---|---|---|---|
//! | the records, copied off their rings | 2 | 1: answers come into one buffer | 2 |
//! | the call in the service, from its handler to its answer | 1 | 1 | |
//! | the request's extensions: the map, its table, the caller in it | 3 | 3 | 3 |
//! | the handler's future, which `async_trait` boxes | 1 | 1 | 1 |
//! | tonic, `http` and what is between | | | 41 |
//! | all | 7 | 6 | 47 |
//! | a `Vec<u8>` in each message: the request's own, and what either side decodes | +3 | +4 | +3 |
//!
//! prost makes `Bytes` of a field before it makes a vector. They share a record of up to 64 bytes at no cost.
//! Those of a longer one take one allocation more at each side, as those of the buffer of a client without a
//! runtime do.
//!
//! Copies of a byte of a message, both sides together:
//!
//! | who copies | native, in one record | of a client without a runtime | in a sealed parcel | in an owned one | in several records |
//! |---|---|---|---|---|---|
//! | prost, which encodes a field | 1: into the record | 1 | 1: into the parcel | 1: into the parcel | 1 |
//! | the sender, into the records | | | | | 1 |
//! | who reads the ring or the parcel, into private memory | 1 | 1 | | 1 | 1 |
//! | who puts the message together | | | | | 1 |
//! | prost, which decodes a field of type `Bytes` from there | 0: it shares it | of an answer 1 | 0 | 0 | 0 |
//! | all | 2 | 2 and 3 | 1 | 2 | 4 |
//! | a field of type `Vec<u8>` | +1 | +1 | +1 | +1 | +1 |
//!
//! By time they are as follows, with what caches add: the slope of a request's median time over its size, by
//! that of memcpy, on one core of an EPYC (Zen 4). The command is
//! `cargo run --release -p partywall-bench -- domain`; docs/measurements.md has the intervals.
//!
//! | request with a field of type `Bytes` | ring | domains | ring, tonic's stubs | domains, tonic's stubs |
//! |---|---|---|---|---|
//! | 16 to 56 KiB, natively in one record | 3.3 | 2.5 | 22.7 | 5.5 |
//! | 64 KiB to 64 MiB, in pieces | 10.3 | 10.1 | 10.0 | 9.9 |
//!
//! The 22.7 is more than copies; its cause is not known.

#[cfg(feature = "blocking")]
mod blocking;
mod client;
pub(crate) mod codec;
pub(crate) mod demand;
mod demanding;
pub(crate) mod gather;
mod lifetime;
pub(crate) mod message;
pub(crate) mod method;
pub(crate) mod native;
mod service;
pub(crate) mod unary;

#[cfg(feature = "blocking")]
pub use blocking::Blocking;
pub use client::Grpc;
pub use demand::{Demand, refused};
pub use demanding::Demanding;
pub use message::Settings;
pub use method::Method;
pub use service::{Begun, Generated, Incoming, Served, begin, offer, ordinary};
pub(crate) use service::{Call, Entry, Offer, Table};
pub use unary::Unary;
