//! The caller's end: what a tonic-generated client takes.
//!
//! ```text
//! Endpoint -> Channel: [limits, time, headers ->] Plain -> a link | HTTP/2
//!                       only if set (settings)      |
//!                                                   name: the coordinator says which (named)
//! ```

#[cfg(feature = "http2")]
mod adapter;
mod balance;
#[cfg(feature = "http2")]
mod dial;
mod endpoint;
#[cfg(feature = "http2")]
mod http2;
mod keeper;
mod named;
#[cfg(not(feature = "http2"))]
mod no_http2;
#[cfg(feature = "http2")]
mod over;
#[cfg(feature = "http2")]
mod remotes;
mod settings;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use partywall_abi::security::Security;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use crate::buffer::Buffer;
use crate::error::Error;
use crate::http_calls::caller::Call;
use crate::link::caller::Caller;
use crate::peer::Peer;
use crate::status;
use crate::stubs::demand;
use crate::telemetry::{self, Side};

#[cfg(not(feature = "http2"))]
use self::{no_http2 as dial, no_http2 as http2, no_http2 as remotes};
pub use balance::Balance;
use balance::Link;
use dial::{Address, Patience};
use endpoint::Destination;
pub use endpoint::Endpoint;
pub(crate) use named::Connection;
use named::Named;
use settings::{Answer, Limited};

/// How calls of a channel travel ([`Channel::route`]).
///
/// ```
/// use partywall::{Route, Server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// let channel = Server::builder().add_service(service).in_process()?;
/// match channel.route() {
///     Some(Route::Ring { server }) => assert_eq!(server.pid(), Some(std::process::id())),
///     Some(route) => panic!("over the network, protected by {}", route.security()),
///     None => panic!("not connected"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Route {
    /// Through a ring on this host, to the process with this identity.
    Ring {
        /// Who serves, as the kernel told the coordinator.
        server: Peer,
    },
    /// Over HTTP/2 to this address; the identity of who answers is not verified.
    Http2 {
        /// The address.
        url: String,
        /// What protects a connection to it.
        security: Security,
    },
}

impl Route {
    /// What protects the calls.
    pub fn security(&self) -> Security {
        match self {
            Self::Ring { server } => server.security(),
            Self::Http2 { security, .. } => *security,
        }
    }
}

impl Route {
    /// Has a call say how it travels.
    pub(crate) fn tell(&self, call: &telemetry::Call) {
        let (link, transport) = match self {
            Self::Ring { server } => (Some(server.link()), telemetry::RING),
            Self::Http2 { url, .. } if url.starts_with("unix:") => (None, "unix"),
            Self::Http2 { .. } => (None, "tcp"),
        };
        call.over(link, self.security(), transport);
    }

    /// A channel over the network, as the metrics have it.
    fn opened(&self) -> telemetry::Link {
        telemetry::Link::opened(Side::Client, telemetry::Route::Http2, self.security())
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ring { server } => write!(f, "ring to {server}"),
            Self::Http2 { url, .. } => write!(f, "HTTP/2 to {url}"),
        }
    }
}

/// A way to call one service; cheap to clone, shared by all calls.
///
/// It takes the place of `tonic::transport::Channel` in a generated client. When its link ends,
/// the next call asks the coordinator for a new one, with the next instance of the name.
///
/// ```
/// use partywall::{Channel, Server};
/// use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// # let bound = Server::builder().add_service(service).bind("http://127.0.0.1:0").await?;
/// # let target = bound.addresses()[0].to_string();
/// # tokio::spawn(bound.serve());
/// // let target = "partywall:///greeter";
/// let channel = Channel::connect(target).await?;
/// println!("calls travel by {}", channel.route().expect("it is connected"));
/// let (mut one, mut two) = (HealthClient::new(channel.clone()), HealthClient::new(channel));
/// let (first, second) = tokio::join!(
///     one.check(HealthCheckRequest::default()),
///     two.check(HealthCheckRequest::default()),
/// );
/// assert!(first.is_ok() && second.is_ok());
/// # Ok(()) }
/// ```
///
/// # When the service is not there
///
/// A channel waits if its endpoint says [`Endpoint::wait_for_ready`]. Otherwise connecting fails, and so
/// does each call that finds no link or connection and cannot make one within
/// [`Endpoint::connect_timeout`]: with UNAVAILABLE when there is no coordinator, when nobody serves the
/// name, or when nothing answers at the address. The call after it tries again. Calls that are under way
/// when their link ends fail with UNAVAILABLE in either case: the service may have seen them.
#[derive(Clone)]
pub struct Channel {
    plain: Plain,
    limited: Option<Box<Limited<Plain>>>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("route", &self.route()).finish()
    }
}

/// A channel without what its endpoint sets for each call.
#[derive(Clone)]
struct Plain(Arc<Kind>);

enum Kind {
    Name(Named),
    Http2(Remote),
    /// A link that nobody introduced.
    Link(Arc<Connection>),
    /// Why there can be no calls.
    Refused(Status),
}

/// An address over the network.
struct Remote {
    address: Box<Address>,
    patience: Patience,
    channel: OnceLock<(http2::Transport, telemetry::Link)>,
}

impl Remote {
    async fn connect(&self) -> Result<(), Error> {
        let channel = self.address.connect(self.patience).await?;
        let _first = self.channel.set((channel, self.address.route().opened()));
        Ok(())
    }

    fn channel(&self) -> http2::Transport {
        let open = || (self.address.lazy(self.patience), self.address.route().opened());
        self.channel.get_or_init(open).0.clone()
    }
}

impl Channel {
    /// Connects to `partywall:///name`, `http://host:port` or `unix:/path`, within 5 s. [`Endpoint`] has
    /// other settings.
    ///
    /// # Errors
    /// [`Error`], each variant for its reason.
    pub async fn connect(target: impl AsRef<str>) -> Result<Self, Error> {
        Endpoint::try_from(target.as_ref())?.connect().await
    }

    /// An endpoint from a URI; one that is no target fails when connecting.
    pub fn builder(uri: http::Uri) -> Endpoint {
        Endpoint::from(uri)
    }

    /// An endpoint from a static text: [`Endpoint::from_static`].
    ///
    /// # Panics
    /// When the text is no target.
    pub fn from_static(target: &'static str) -> Endpoint {
        Endpoint::from_static(target)
    }

    /// An endpoint from text that is made while the program runs: [`Endpoint::from_shared`].
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn from_shared(target: impl Into<Bytes>) -> Result<Endpoint, Error> {
        Endpoint::from_shared(target)
    }

    /// The channel of an endpoint to where that leads.
    fn of(endpoint: &Endpoint, to: Result<Destination, Error>) -> Self {
        let kind = match to {
            Ok(Destination::Name(name)) => Kind::Name(Named::of(endpoint, name)),
            Ok(Destination::Address(address)) => {
                let waits = endpoint.wait_for_ready;
                let within = endpoint.connect_timeout;
                let patience = Patience { within, first: waits, later: waits };
                Kind::Http2(Remote { address, patience, channel: OnceLock::new() })
            }
            Err(error) => Kind::Refused(error.into()),
        };
        let plain = Plain(Arc::new(kind));
        Self { limited: Limited::of(&endpoint.settings, plain.clone()).map(Box::new), plain }
    }

    async fn connected(&self) -> Result<(), Error> {
        match &*self.plain.0 {
            Kind::Name(named) => {
                named.connected().await?;
                keeper::keep(&self.plain.0);
                Ok(())
            }
            Kind::Http2(remote) => remote.connect().await,
            Kind::Link(_) | Kind::Refused(_) => Ok(()),
        }
    }

    /// A channel with a link of its own, which does not come back when that has ended.
    pub(crate) fn on(link: Arc<Caller>, server: Peer) -> Self {
        let kind = Kind::Link(Arc::new(Connection::Ring { link, server, host: None }));
        Self { plain: Plain(Arc::new(kind)), limited: None }
    }

    /// A ring for a call to which this channel adds nothing, if there is one.
    #[inline]
    pub(crate) fn ring(&self) -> Option<Arc<Connection>> {
        if self.limited.is_some() {
            return None;
        }
        let ring = match &*self.plain.0 {
            Kind::Name(named) => named.links.pick()?,
            Kind::Link(connection) => Arc::clone(connection),
            Kind::Http2(_) | Kind::Refused(_) => return None,
        };
        ring.link().is_some().then_some(ring)
    }

    /// Memory for a long `bytes` field of a message that is sent on this channel. It is in a parcel of the
    /// link where the policy lets descriptors cross, the field has from 128 KiB to just below 128 MiB, and
    /// the link has memory to spare: it has at most four such at a time, and as many bytes as the memory of
    /// one caller. Else, and before the first connect, it is memory of this process: a size that
    /// cannot be allocated aborts the process, as with `Vec`.
    pub async fn buffer(&self, len: usize) -> Buffer {
        let link = match &*self.plain.0 {
            Kind::Name(named) => named.links.peek(),
            Kind::Link(connection) => Some(Arc::clone(connection)),
            Kind::Http2(_) | Kind::Refused(_) => None,
        };
        let blank = match link.as_ref().and_then(|link| link.link()) {
            Some(link) => link.blank(len).await,
            None => None,
        };
        Buffer::of(blank, len)
    }

    /// How calls travel now; `None` before the first connect and between two links. Of a channel with a
    /// [`Balance`], how some of them do.
    pub fn route(&self) -> Option<Route> {
        match &*self.plain.0 {
            Kind::Http2(remote) => Some(remote.address.route()),
            Kind::Name(named) => Some(named.links.peek()?.route()),
            Kind::Link(connection) => connection.usable().then(|| connection.route()),
            Kind::Refused(_) => None,
        }
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match &mut self.limited {
            // A call waits for its place itself: its deadline counts then, and it can be dropped.
            None => Poll::Ready(Ok(())),
            Some(limited) => limited.poll_ready(cx),
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        match &mut self.limited {
            None => self.plain.call(request),
            Some(limited) => {
                ResponseFuture { state: State::Elsewhere(limited.call(request)), telemetry: None }
            }
        }
    }
}

impl Service<http::Request<Body>> for Plain {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        match telemetry::client(&request) {
            None => ResponseFuture { state: self.begin(request, None), telemetry: None },
            Some(call) => {
                let request = call.request(request);
                let state = call.guarded(|| self.begin(request, Some(&call)));
                ResponseFuture { state, telemetry: Some(call) }
            }
        }
    }
}

impl Plain {
    /// Begins a call; one that has to wait for a connection or a place does so in its future.
    #[inline]
    fn begin(
        &self,
        request: http::Request<Body>,
        telemetry: Option<&Arc<telemetry::Call>>,
    ) -> State {
        let begun = match &*self.0 {
            Kind::Http2(remote) => {
                if let Some(call) = telemetry {
                    remote.address.route().tell(call);
                }
                let found = || remote.address.route().security();
                Ok(match demand::may_begin(request.extensions(), found) {
                    Ok(()) => {
                        State::Elsewhere(http2::begin(http2::Way::One(remote.channel()), request))
                    }
                    Err(status) => State::Failed(Some(status)),
                })
            }
            Kind::Refused(why) => Ok(State::Failed(Some(why.clone()))),
            Kind::Link(connection) => connection.begin(request, None, telemetry),
            Kind::Name(named) => match named.links.pick() {
                Some(connection) => connection.begin(request, None, telemetry),
                None => Err(Box::new(request)),
            },
        };
        begun.unwrap_or_else(|request| {
            let (kind, telemetry) = (Arc::clone(&self.0), telemetry.cloned());
            State::Connecting(Box::pin(connect_and_begin(kind, *request, telemetry)))
        })
    }
}

impl Kind {
    /// Waits until a call may begin, and begins it.
    async fn begin(
        self: &Arc<Self>,
        mut request: http::Request<Body>,
        deadline: Option<Instant>,
        telemetry: Option<&Arc<telemetry::Call>>,
    ) -> Result<State, Status> {
        loop {
            let named;
            let connection = match &**self {
                Self::Name(name) => {
                    named = name.connected().await?;
                    keeper::keep(self);
                    &*named
                }
                Self::Link(connection) => connection,
                Self::Http2(_) | Self::Refused(_) => unreachable!("these begin at once"),
            };
            let Ok(place) = connection.place().await else {
                if matches!(**self, Self::Link(_)) {
                    return Err(Status::unavailable("the server is draining"));
                }
                // It drains; the next look finds another one.
                continue;
            };
            if let Some(deadline) = deadline {
                // The call has waited: it has less time left.
                let left = deadline.saturating_duration_since(Instant::now());
                crate::wire::set_timeout(request.headers_mut(), left);
            }
            match connection.begin(request, place, telemetry) {
                Ok(state) => return Ok(state),
                // It began to drain meanwhile.
                Err(back) => request = *back,
            }
        }
    }
}

async fn connect_and_begin(
    kind: Arc<Kind>,
    request: http::Request<Body>,
    telemetry: Option<Arc<telemetry::Call>>,
) -> State {
    let timeout = crate::wire::parse_timeout(request.headers());
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let begin = kind.begin(request, deadline, telemetry.as_ref());
    let begun = match timeout {
        None => begin.await,
        Some(timeout) => match tokio::time::timeout(timeout, begin).await {
            Ok(begun) => begun,
            Err(_) => Err(status::expired()),
        },
    };
    begun.unwrap_or_else(|status| State::Failed(Some(status)))
}

/// A call of a [`Channel`] on its way to an answer. Dropping it cancels the call.
pub struct ResponseFuture {
    state: State,
    telemetry: Option<Arc<telemetry::Call>>,
}

enum State {
    Ring(Box<Call>),
    /// Over HTTP/2, or by way of limits.
    Elsewhere(Answer),
    Connecting(Pin<Box<dyn Future<Output = State> + Send>>),
    Failed(Option<Status>),
}

impl std::fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseFuture")
    }
}

impl Future for ResponseFuture {
    type Output = Result<http::Response<Body>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { state, telemetry } = &mut *self;
        let Some(call) = telemetry else { return state.poll(cx) };
        call.guarded(|| state.poll(cx)).map(|answer| call.answered(answer))
    }
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<http::Response<Body>, Status>> {
        loop {
            match self {
                State::Ring(call) => return call.poll(cx),
                State::Elsewhere(answer) => return answer.as_mut().poll(cx),
                State::Failed(status) => {
                    let status = status.take().unwrap_or_else(|| Status::internal("polled twice"));
                    return Poll::Ready(Err(status));
                }
                State::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(next) => *self = next,
                },
            }
        }
    }
}
