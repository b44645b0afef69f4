//! How a sleeping peer is told that something is on its ring.
//!
//! ```text
//! Ring   a byte on the link's socket, which wakes a task of the peer
//! Gate   for a peer of the same launcher: this thread takes the records itself  ([`gate`])
//! ```
//!
//! A peer that does not sleep is told nothing.

use std::time::Instant;

use partywall_shm::ring::Wake;

use super::Link;
use super::broken::Broken;

pub(crate) mod gate;
mod predictor;

/// A request that is whole on the ring, and whose call looks for its answer next.
pub(crate) struct Sent<'a> {
    pub(crate) stream: u32,
    pub(crate) path: &'a str,
    /// When its call's time is over.
    pub(crate) due: Option<Instant>,
}

/// A way to tell a sleeping peer.
pub(super) trait Tell: Send + Sync {
    /// Tells it, with nothing locked. `sent` is set for the last record if that was a whole request.
    fn tell(&self, link: &Link, sent: Option<Sent<'_>>) -> Result<(), Broken>;
}

/// By the doorbell.
pub(super) struct Ring;

impl Tell for Ring {
    fn tell(&self, link: &Link, _sent: Option<Sent<'_>>) -> Result<(), Broken> {
        link.wake_peer(Wake::Doorbell)
    }
}
