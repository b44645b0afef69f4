//! What code that `partywall-build` generates is made of. Other code has no use for it, and it may change
//! with each release of that crate.
//!
//! # The native way of a unary call
//!
//! ```text
//! caller    client::Grpc: is the client's channel a partywall::Channel, with a ring?
//!             no:  tonic's own way
//!             yes: prost encodes into the reserved record; the answer is decoded from its one copy
//! service   http_calls: is the service of the path one that was generated, and has it offered its table?
//!             no:  the request goes to the service as HTTP has it, with the offer in its extensions
//!             yes: decoded from its one copy, handled, encoded into the reserved record
//! ```
//!
//! Both ends decide for themselves: what travels is the same either way, but for a method's number in
//! place of its path. A service offers its table when the first request reaches it the ordinary way.
//! One that answers without that has none. The table counts if the service that was mounted is of the
//! very type that offers: whatever is wrapped, by an interceptor or a layer, is another type and is
//! never passed by.

use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "blocking")]
mod blocking;
mod client;
mod lifetime;
mod message;
mod service;

#[cfg(feature = "blocking")]
pub use blocking::Blocking;
pub use client::Grpc;
#[cfg(feature = "blocking")]
pub(crate) use message::{Encode, Outgoing, decode};
pub(crate) use message::{is_sole, too_short};
pub(crate) use service::{Answering, Call, Offer, Slot};
pub use service::{Entry, Generated, Incoming, Settings, entry, offer};

/// A method of a service, as its stubs name it.
#[derive(Debug)]
pub struct Method {
    service: &'static str,
    name: &'static str,
    path: &'static str,
    /// Its place in the tables of links; 0 until the first call.
    id: AtomicUsize,
}

/// Methods of this process that have been called.
static METHODS: AtomicUsize = AtomicUsize::new(0);

impl Method {
    /// The method `name` of `service`, which together have this path.
    pub const fn new(service: &'static str, name: &'static str, path: &'static str) -> Self {
        Self { service, name, path, id: AtomicUsize::new(0) }
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn path(&self) -> &'static str {
        self.path
    }

    /// Its place in the tables of links.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        match self.id.load(Ordering::Relaxed) {
            0 => self.first_place(),
            id => id - 1,
        }
    }

    #[cold]
    fn first_place(&self) -> usize {
        let new = METHODS.fetch_add(1, Ordering::Relaxed) + 1;
        match self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new - 1,
            Err(there) => there - 1,
        }
    }
}
