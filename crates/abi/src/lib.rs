//! Every byte that two Partywall processes share.
//!
//! Nothing here does I/O, allocates shared memory or reads a clock: the crate holds the shapes
//! (ring layout, descriptors, call frames, control messages), their limits, and the atomics
//! that the rings are built from. `docs/abi.md` has the same facts as byte tables.
//!
//! Bytes that come from outside are an allegation: every decoder takes a copied slice, checks
//! it whole and returns a typed value or an error that says what was wrong and where.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod codec;
pub mod control;
pub mod domain;
pub mod frame;
pub mod function;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod layout;
pub mod limits;
pub mod name;
pub mod security;
pub mod sync;
pub mod version;

/// Version of everything in this crate. A process and its coordinator agree on one that both speak
/// ([`version::Versions`]); the two ends of a link refuse each other where they have not the same one.
pub const VERSION: u16 = 3;
