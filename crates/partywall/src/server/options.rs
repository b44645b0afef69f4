//! What is set for a server, on each route.

use std::sync::Arc;
use std::time::Duration;

use partywall_abi::limits;
use partywall_trust::Pin;
use tokio::sync::Semaphore;

use super::Server;
use super::http2::Settings;
use crate::dispatch::{HttpService, Limits, Services};
use crate::error::Error;
use crate::link::account::{Accounts, Bounds};
use crate::pins::Pins;

/// How long calls that are open may go on when a server ends, unless it is set.
const DRAIN: Duration = Duration::from_secs(30);

/// What is set for a server.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(super) bounds: Bounds,
    limits: Limits,
    pub(super) drain: Duration,
    pub(super) age: Age,
    pub(super) pins: Pins,
    #[cfg_attr(not(feature = "http2"), expect(dead_code, reason = "nothing can be set"))]
    pub(super) http2: Settings,
}

impl Default for Options {
    fn default() -> Self {
        let (limits, http2) = (Limits::default(), Settings::default());
        let (age, pins) = (Age::default(), Pins::default());
        Self { bounds: Bounds::default(), limits, drain: DRAIN, age, pins, http2 }
    }
}

/// How long a link or connection is used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age {
    /// Then its caller is asked to make its calls over another one.
    pub(super) most: Option<Duration>,
    /// How long the calls that are open may go on then.
    pub(super) grace: Option<Duration>,
}

/// What the links and connections of a server share.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) services: Services,
    pub(super) accounts: Arc<Accounts>,
    pub(super) options: Options,
}

impl Served {
    /// # Errors
    /// [`Error::Setting`] for a limit that lets no call begin.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.options.limits.concurrency {
            Some(0) => Err(Error::lets_no_call_begin("concurrency_limit_per_connection")),
            _ => Ok(()),
        }
    }

    pub(super) fn new(service: impl HttpService, options: Options) -> Self {
        let services = Services::new(service, options.limits.clone());
        Self { services, accounts: Accounts::new(options.bounds), options }
    }
}

impl<L> Server<L> {
    /// How long a handler may take to answer with its head: as long as it likes unless set. Then it is
    /// dropped, and the call ends with DEADLINE_EXCEEDED, as by a deadline of the caller's that is
    /// shorter. (tonic's server answers CANCELLED in both cases.) The body of an answer has no such limit.
    #[must_use]
    pub fn timeout(mut self, most: Duration) -> Self {
        self.options.limits.timeout = Some(most);
        self
    }

    /// How many handlers of one link, or one HTTP/2 connection, run at a time: as many as there are calls
    /// unless set. A handler runs until it has answered with its head. Calls beyond it wait here, or with
    /// [`Server::load_shed`] are refused.
    #[must_use]
    pub fn concurrency_limit_per_connection(mut self, most: usize) -> Self {
        self.options.limits.concurrency = Some(most.min(Semaphore::MAX_PERMITS));
        self
    }

    /// Refuses calls with RESOURCE_EXHAUSTED while the services, or
    /// [`Server::concurrency_limit_per_connection`], take none, instead of letting them wait: false unless
    /// set.
    #[must_use]
    pub fn load_shed(mut self, shed: bool) -> Self {
        self.options.limits.load_shed = shed;
        self
    }

    /// Makes a span for each call, in which its handler runs until it has answered with its head. `span`
    /// sees the head of the request, and what is known of the caller (its [`Peer`](crate::Peer) over a
    /// ring) in the extensions.
    ///
    /// ```
    /// let server = partywall::Server::builder()
    ///     .trace_fn(|request| tracing::info_span!("call", path = request.uri().path()));
    /// ```
    #[must_use]
    pub fn trace_fn<F>(mut self, span: F) -> Self
    where
        F: Fn(&http::Request<()>) -> tracing::Span + Send + Sync + 'static,
    {
        self.options.limits.span = Some(Arc::new(span));
        self
    }

    /// How long a link, or an HTTP/2 connection, is used: for ever unless set. Then its caller is asked to
    /// make its next calls over another one, which a [`Channel`](crate::Channel) does without losing a
    /// call, and it ends with the last call on it. A link waits for a coordinator that can make
    /// another one, and the link of [`Router::in_process`](super::Router::in_process) has no age.
    #[must_use]
    pub fn max_connection_age(mut self, most: Duration) -> Self {
        self.options.age.most = Some(most);
        self
    }

    /// How long calls may go on after [`Server::max_connection_age`]: as long as they like unless set. Those
    /// that are still open then end with UNAVAILABLE; an HTTP/2 connection is closed.
    #[must_use]
    pub fn max_connection_age_grace(mut self, most: Duration) -> Self {
        self.options.age.grace = Some(most);
        self
    }

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

    /// How many bytes of owned parcels this server makes for answers to one caller, a process, over all its
    /// links: 256 MiB unless set; four times as many for all processes of one user. Long answers beyond that
    /// go as bytes, and with 0 all do.
    pub fn max_parcel_bytes_per_caller(mut self, most: usize) -> Self {
        self.options.bounds.owned = most;
        self
    }

    /// Takes calls only of callers whose certificate is by this key: its own one, or one of those who have
    /// signed it, up to the root. Of several pins one is enough. A caller that is certified by others, and
    /// each link that is not sealed, is refused, and so the policy needs `seal = "required"` for the names;
    /// serving at `http://` or `unix:`, and [`Router::in_process`](super::Router::in_process), fails with
    /// [`Error::NotPinned`]. See [`Endpoint::pin`](crate::Endpoint::pin).
    #[must_use]
    pub fn pin(mut self, pin: Pin) -> Self {
        self.options.pins.add(pin);
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
    fn options_default_to_the_documented_values() {
        let Options { bounds, drain, .. } = Options::default();
        assert_eq!((bounds.bytes, drain), (256 << 20, Duration::from_secs(30)));
        assert_eq!(bounds.owned, 256 << 20);
        assert_eq!(bounds.patience, Duration::from_secs(5));
    }
}
