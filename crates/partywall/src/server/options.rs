//! What a server bounds.

use std::sync::Arc;
use std::time::Duration;

use partywall_abi::limits;

use super::Server;
use crate::dispatch::Services;
use crate::link::account::{Accounts, Bounds};

/// How long calls that are open may go on when a server ends, unless it is set.
const DRAIN: Duration = Duration::from_secs(30);

/// What a server bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    bounds: Bounds,
    drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { bounds: Bounds::default(), drain: DRAIN }
    }
}

/// What the links and connections of a server share.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) services: Services,
    pub(super) accounts: Arc<Accounts>,
    /// Calls of an HTTP/2 connection.
    pub(super) streams: u32,
    pub(super) drain: Duration,
}

impl Served {
    pub(super) fn new(services: Services, options: Options) -> Self {
        let Options { bounds, drain } = options;
        let streams = bounds.calls_per_link as u32;
        Self { services, accounts: Accounts::new(bounds), streams, drain }
    }
}

impl<L> Server<L> {
    /// How many calls one link, or one HTTP/2 connection, may have open at a time: 1,024 unless set,
    /// at most 65,536 and at least one. The caller is told, and its next call waits there; a caller
    /// on a ring that does not wait gets RESOURCE_EXHAUSTED.
    pub fn max_concurrent_streams(mut self, most: impl Into<Option<u32>>) -> Self {
        let most = most.into().map_or(limits::STREAMS, |most| most as usize);
        self.options.bounds.calls_per_link = most.clamp(1, limits::STREAMS_MAX);
        self
    }

    /// How many calls one caller, a process, may have open at a time over all its links, beside one
    /// on each link: 4,096 unless set. All processes of one user together may have four times as
    /// many. A call beyond that gets RESOURCE_EXHAUSTED. Over a ring only.
    pub fn max_calls_per_caller(mut self, most: usize) -> Self {
        self.options.bounds.calls = most;
        self
    }

    /// How many bytes of requests this server holds for one caller, a process, over all its links:
    /// 256 MiB unless set; four times as many for all processes of one user. Over a ring only.
    ///
    /// Counted are requests that no handler has taken, and messages while they are put together, by
    /// the length that they announce. A message keeps its share until its request has ended, for
    /// decoders keep their memory as long. A message for which there is no room waits; if only such
    /// shares are in its way for 5 s, its call gets RESOURCE_EXHAUSTED. A message of any size has
    /// room when its caller holds nothing else. What handlers make of messages is not counted.
    pub fn max_request_bytes_per_caller(mut self, most: u64) -> Self {
        self.options.bounds.bytes = most;
        self
    }

    /// How long calls that are open may go on when the server is told to end: 30 s unless set. Those
    /// that are still open then end with UNAVAILABLE; an HTTP/2 connection is closed.
    pub fn drain_timeout(mut self, most: Duration) -> Self {
        self.options.drain = most;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of those that no test of a whole server reaches.
    #[test]
    fn what_is_not_set_is_what_the_documents_say() {
        let Options { bounds, drain } = Options::default();
        assert_eq!((bounds.bytes, drain), (256 << 20, Duration::from_secs(30)));
        assert_eq!(bounds.patience, Duration::from_secs(5));
    }
}
