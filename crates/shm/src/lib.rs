//! Shared memory at work: outboxes, the ring of records in them, how a side sleeps and is woken,
//! and how descriptors travel.
//!
//! The crate knows records, not calls. What a record means is the business of the crates above. Unsafe code
//! lives in [`region`] (memory that another process writes), [`slot`] (a buffer in it), [`parcel`] (memory
//! that others have mapped), [`socket`] (ancillary data), [`kept`] (file leases), [`namespace`] (ioctl),
//! `closer` (a table of descriptors for one thread) and [`spawn`] (between fork and exec) alone.

#[cfg(not(loom))]
pub mod address;
#[cfg(not(loom))]
mod closer;
pub mod death;
#[cfg(not(loom))]
pub mod descriptors;
pub mod failpoint;
#[cfg(not(loom))]
pub mod follow;
#[cfg(not(loom))]
pub mod fork;
pub mod region;
pub mod ring;
pub mod spin;

#[cfg(not(loom))]
pub mod kept;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod listen;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod namespace;
#[cfg(not(loom))]
pub mod parcel;
#[cfg(not(loom))]
pub mod reactor;
#[cfg(not(loom))]
pub mod setup;
#[cfg(not(loom))]
pub mod slot;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod spawn;
pub mod threads;
#[cfg(not(loom))]
pub mod users;

#[cfg(all(loom, test))]
mod loom_tests;

#[cfg(all(not(loom), any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(all(not(loom), test))]
mod ring_tests;
