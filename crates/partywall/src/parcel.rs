//! Payloads that are not copied on their way.
//!
//! A parcel is memory that travels as a descriptor, and is mapped by whoever gets it. Where the policy has
//! `descriptors = 1` or more for a caller, messages from 128 KiB to 128 MiB travel in parcels. By default
//! these are the link's own, and are used again: by native stubs a message is copied when it is encoded and
//! when it comes. The first two of a link travel as bytes. From [`pack_from`] on they are sealed ones,
//! which cost fresh pages and no second copy: `bytes` fields of the receiver are parts of the parcel
//! (`configure().bytes(".")` of partywall-build makes them `bytes::Bytes`).
//!
//! ```
//! use partywall::parcel::{Draft, Sealed};
//!
//! # fn main() -> Result<(), partywall::parcel::ParcelError> {
//! let mut draft = Draft::new(1 << 20)?;
//! draft.fill(7);
//! let pixels = draft.seal()?.into_bytes();
//! assert!(Sealed::of(&pixels).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! What arrives is [`Sealed`]: the kernel keeps everybody from changing it, its sender too. On a link without
//! descriptors, and over HTTP/2, the same message travels as bytes; [`Sealed::of`] tells which it was.
//!
//! The pages are paid for by who makes the parcel, until all who have it have dropped it. A parcel that is
//! not sealed, not whole or too short ends the link, and its sender is blamed. A receiver has at most 4 of a
//! link unread, and 64 of a caller's links together, or one of each; what is beyond travels as bytes.
//!
//! # Fields
//!
//! A long `bytes` field that a program writes into a [`Buffer`] of its channel is not copied on its way
//! into an owned parcel.
//!
//! # Attachments
//!
//! A program's own memory goes beside a message, with no copy at all ([`Attach`]):
//!
//! | what | who writes | how it is read | each time it crosses |
//! |---|---|---|---|
//! | [`Sealed`] | nobody any more | `&[u8]` | fresh pages |
//! | [`Owned`], read by a [`View`] | its owner, again and again | by words, or copied; a change is told | no page, no copy |
//! | [`Lease`] | whoever has it, by the word of both | by words, or copied | no page, no copy |
//! | a [`Descriptor`] | | as a file | |
//!
//! Only services that may harm each other anyway are to pass leases: see `leases = true` of the policy.

use partywall_shm::parcel::budget;
pub use partywall_shm::parcel::lease::Lease;
pub use partywall_shm::parcel::view::{Owned, View};
pub use partywall_shm::parcel::{Draft, ParcelError, Sealed};
pub use partywall_shm::region::Words;

pub use crate::attach::Attach;
pub use crate::attachment::{Attachment, Descriptor};
pub use crate::buffer::Buffer;

use crate::link::{account, parcels};

/// Has this process make at most so many bytes of owned parcels for messages, on all its links together: 1
/// GiB unless set. Each link has 256 MiB of them at most (of a server's:
/// [`Server::max_parcel_bytes_per_caller`](crate::Server::max_parcel_bytes_per_caller)), and keeps what it
/// has made until it ends. Long messages beyond that go as bytes. What a program makes itself, to attach
/// it, is its own affair. All of it together, with that of the account's other processes, is bounded by the
/// quota `parcel_bytes` of the policy ([`has_made`]).
///
/// ```
/// partywall::parcel::own_at_most(64 << 20);
/// ```
pub fn own_at_most(bytes: usize) {
    account::own_at_most(bytes);
}

/// How many bytes this process has made for parcels and attachments, and not dropped: what counts against
/// `parcel_bytes` of its account. What has come from peers is not among them.
///
/// ```
/// let before = partywall::parcel::has_made();
/// let draft = partywall::parcel::Draft::new(1 << 20)?;
/// assert!(partywall::parcel::has_made() >= before + draft.len());
/// # Ok::<(), partywall::parcel::ParcelError>(())
/// ```
pub fn has_made() -> usize {
    budget::has()
}

/// Has this process put messages of so many bytes and more into sealed parcels.
///
/// Unless it is set, that is 2 MiB where the system gives huge pages to shared memory that asks for some
/// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), and no message elsewhere: each one takes fresh
/// pages, and to have small ones cleared costs more than to copy the message.
///
/// ```
/// partywall::parcel::pack_from(1 << 20);
/// ```
pub fn pack_from(bytes: usize) {
    parcels::pack_from(bytes);
}
