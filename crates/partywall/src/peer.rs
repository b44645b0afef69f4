//! What a handler learns about its caller and its call.

use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{Digest, Identity, Isolation};

/// Who calls, as the kernel told the coordinator when the link was made.
///
/// A handler finds it with `request.extensions().get::<partywall::Peer>()`. It is there for calls
/// over a ring only: over HTTP/2 nobody vouches for the caller.
#[derive(Clone, Debug)]
pub struct Peer {
    identity: Arc<Identity>,
    link: u64,
    isolation: Isolation,
}

impl Peer {
    pub(crate) fn new(identity: Identity, link: u64, isolation: Isolation) -> Self {
        Self { identity: Arc::new(identity), link, isolation }
    }

    /// User.
    pub fn uid(&self) -> u32 {
        self.identity.uid
    }

    /// Primary group.
    pub fn gid(&self) -> u32 {
        self.identity.gid
    }

    /// Process number as the coordinator sees it; none when its PID namespace cannot.
    pub fn pid(&self) -> Option<u32> {
        self.identity.pid
    }

    /// What is known of its program file.
    pub fn digest(&self) -> Digest {
        self.identity.digest
    }

    /// Control group path, empty when unknown.
    pub fn cgroup(&self) -> &str {
        &self.identity.cgroup
    }

    /// The policy's names for it.
    pub fn principals(&self) -> &[String] {
        &self.identity.principals
    }

    /// The link's number, as `partywall links` shows it.
    pub fn link(&self) -> u64 {
        self.link
    }

    /// What keeps caller and service apart.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }
}

/// When the caller stops waiting; in a request's extensions when the call has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Instant);
