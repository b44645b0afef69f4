//! The caller's end: what a tonic-generated client takes.

mod adapter;
mod http2;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, LinkStats};
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::Security;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use crate::agent::{self, Agent, Booked, Connected, End, Place, Watching};
use crate::error::Error;
use crate::link::caller::{self, Call, Caller};
use crate::lock::lock;
use crate::peer::Peer;
use crate::target::Target;

use http2::{Address, Patience};

/// How long connecting may take unless it is set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server that has taken a link may take to open it.
const OPEN_TIME: Duration = Duration::from_secs(2);
/// How often a channel that waits for a name asks again, beside being told.
const RECHECK: Duration = Duration::from_secs(10);

/// How calls of a channel travel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Route {
    /// Through a ring on this host, to the process with this identity.
    Ring {
        /// Who serves, as the kernel told the coordinator.
        server: Peer,
    },
    /// Over HTTP/2 to this address; nobody vouches for who answers.
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

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ring { server } => write!(f, "ring to {server}"),
            Self::Http2 { url, .. } => write!(f, "HTTP/2 to {url}"),
        }
    }
}

/// Makes a [`Channel`].
#[derive(Clone, Debug)]
pub struct Builder {
    target: Target,
    socket: Option<PathBuf>,
    connect_timeout: Duration,
    wait_for_ready: bool,
    ring_only: bool,
}

impl Builder {
    /// Uses the coordinator that listens at `path`, instead of looking in the usual places.
    pub fn coordinator(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// How long connecting may take, to whatever target; 5 s unless set. With
    /// [`Builder::wait_for_ready`] this is for each attempt.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Waits until the service is there, when connecting and when a link or a connection has ended,
    /// instead of failing with UNAVAILABLE: until there is a coordinator, until somebody serves the
    /// name, until something answers at the address. A call's own deadline still ends it.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// Refuses a route over the network, even when the policy offers one: connecting, or each call
    /// of a lazy channel, fails with FAILED_PRECONDITION then.
    pub fn ring_only(mut self, only: bool) -> Self {
        self.ring_only = only;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error`], each variant for its reason; [`Error::Refused`] with FAILED_PRECONDITION for an
    /// address over the network where only a ring was asked for.
    pub async fn connect(self) -> Result<Channel, Error> {
        let channel = self.connect_lazy();
        match &*channel.kind {
            Kind::Name(named) => drop(named.connected().await?),
            Kind::Http2(remote) => remote.connect().await?,
            Kind::Link(_) => {}
            Kind::Refused(text) => return Err(not_a_ring(text.clone())),
        }
        Ok(channel)
    }

    /// A channel that connects at its first call. Where [`Builder::connect`] would fail, its calls
    /// do.
    pub fn connect_lazy(self) -> Channel {
        let kind = match &self.target {
            Target::Name(name) => Kind::Name(Named {
                name: name.clone(),
                place: self.socket.clone().map_or_else(Place::find, Place::Path),
                options: self,
                current: Mutex::new(None),
                connecting: tokio::sync::Mutex::new(()),
            }),
            target => match Address::of(target) {
                Ok(address) if self.ring_only => {
                    let url = &address.url;
                    Kind::Refused(format!("{url} is no name, and only a ring was asked for"))
                }
                Ok(address) => {
                    let waits = self.wait_for_ready;
                    let within = self.connect_timeout;
                    let patience = Patience { within, first: waits, later: waits };
                    Kind::Http2(Remote { address, patience, channel: OnceLock::new() })
                }
                // A target that was made by hand.
                Err(error) => Kind::Refused(error.to_string()),
            },
        };
        Channel { kind: Arc::new(kind) }
    }
}

fn not_a_ring(text: String) -> Error {
    Error::Refused { code: tonic::Code::FailedPrecondition, text }
}

/// A way to call one service; cheap to clone, shared by all calls.
///
/// It takes the place of `tonic::transport::Channel` in a generated client. When its link ends,
/// the next call asks the coordinator for a new one, with the next instance of the name.
#[derive(Clone)]
pub struct Channel {
    kind: Arc<Kind>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("route", &self.route()).finish()
    }
}

enum Kind {
    Name(Named),
    Http2(Remote),
    /// A link that nobody introduced.
    Link(Connection),
    /// Why there can be no calls.
    Refused(String),
}

/// An address over the network.
struct Remote {
    address: Address,
    patience: Patience,
    channel: OnceLock<tonic::transport::Channel>,
}

impl Remote {
    async fn connect(&self) -> Result<(), Error> {
        let channel = self.address.connect(self.patience).await?;
        let _first = self.channel.set(channel);
        Ok(())
    }

    fn channel(&self) -> tonic::transport::Channel {
        self.channel.get_or_init(|| self.address.lazy(self.patience)).clone()
    }
}

struct Named {
    name: ServiceName,
    place: Place,
    options: Builder,
    current: Mutex<Option<Arc<Connection>>>,
    /// One task connects; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

/// What a name led to.
enum Connection {
    Ring {
        link: Arc<Caller>,
        server: Peer,
    },
    Http2 {
        route: Box<Route>,
        channel: tonic::transport::Channel,
        remote: Arc<Redirected>,
        /// Says when somebody serves the name here.
        watch: Watching,
        booked: Booked,
    },
}

/// What the coordinator says of calls that go over the network.
struct Redirected(Mutex<Result<MethodSet, Status>>);

impl Redirected {
    fn new(methods: MethodSet) -> Self {
        Self(Mutex::new(Ok(methods)))
    }

    fn rights(&self) -> std::sync::MutexGuard<'_, Result<MethodSet, Status>> {
        lock(&self.0)
    }

    /// Whether a call may begin.
    fn may_call(&self, path: &str) -> Result<(), Status> {
        match &*self.rights() {
            Ok(methods) if methods.covers(path) => Ok(()),
            Ok(methods) => Err(crate::error::denied("this process", path, methods)),
            Err(over) => Err(over.clone()),
        }
    }
}

impl End for Redirected {
    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }

    fn end(&self, status: Status) {
        *self.rights() = Err(status);
    }

    // Over the network nobody here knows.
    fn peer_died(&self) {}

    fn allow(&self, _peer: Identity, methods: MethodSet) {
        if let Ok(allowed) = &mut *self.rights() {
            *allowed = methods;
        }
    }
}

impl Channel {
    /// Connects to `partywall:///name`, `http://host:port` or `unix:/path`.
    ///
    /// # Errors
    /// [`Error`], each variant for its reason.
    pub async fn connect(target: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(target)?.connect().await
    }

    /// As [`Channel::connect`], with choices.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn builder(target: impl AsRef<str>) -> Result<Builder, Error> {
        let target = Target::parse(target.as_ref())?;
        Ok(Builder {
            target,
            socket: None,
            connect_timeout: CONNECT_TIMEOUT,
            wait_for_ready: false,
            ring_only: false,
        })
    }

    /// A channel with a link of its own, which does not come back when that has ended.
    pub(crate) fn on(link: Arc<Caller>, server: Peer) -> Self {
        Self { kind: Arc::new(Kind::Link(Connection::Ring { link, server })) }
    }

    /// This channel as tonic's own type, for crates that take no other.
    ///
    /// Its calls go to an HTTP/2 server in this process, over memory, and from there where this
    /// channel's go. So they cost what HTTP/2 costs, and tonic's own rules hold at that end: the
    /// code of a deadline that passes before the answer begins may be CANCELLED. Must be called
    /// inside a tokio runtime, which drives both ends.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = partywall::Channel::connect("partywall:///collector").await?;
    /// let channel: tonic::transport::Channel = channel.into_tonic();
    /// # let _ = channel; Ok(()) }
    /// ```
    pub fn into_tonic(self) -> tonic::transport::Channel {
        adapter::tonic_channel(self)
    }

    /// How calls travel now; `None` before the first connect and between two links.
    pub fn route(&self) -> Option<Route> {
        match &*self.kind {
            Kind::Http2(remote) => Some(remote.address.route()),
            Kind::Name(named) => Some(named.usable()?.route()),
            Kind::Link(connection) => connection.usable().then(|| connection.route()),
            Kind::Refused(_) => None,
        }
    }
}

impl Named {
    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<Connection>>> {
        lock(&self.current)
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        let current = self.current();
        current.as_ref().filter(|c| c.usable()).cloned()
    }

    /// The connection, made if there is none.
    async fn connected(&self) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        let _one = self.connecting.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        // The old link ends with its last call.
        self.current().take();
        let connection = Arc::new(self.connect().await?);
        *self.current() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let mut waiting = Waiting::new();
        let mut first = None;
        let within = self.options.connect_timeout;
        let mut until = Instant::now() + within;
        loop {
            let (agent, attempt) = match agent::get_async(&self.place, left(until)).await {
                Ok(agent) => {
                    let attempt = self.attempt(&agent, until).await;
                    (Some(agent), attempt)
                }
                Err(error) => (None, Err(error)),
            };
            let attempt = attempt.map_err(|error| match error {
                // Of which this attempt had what was left.
                Error::TimedOut(_) => Error::TimedOut(within),
                error => error,
            });
            match attempt {
                // The instance was about to go; the next introduction is to another one.
                Err(error @ Error::Link(_)) if first.is_none() => first = Some(error),
                Err(error) if self.options.wait_for_ready && error.may_pass() => {
                    tracing::debug!(name = %self.name, %error, "not connected; waiting");
                    // Of other failures the watch on a name tells nothing.
                    let told = matches!(error, Error::Refused { .. } | Error::Link(_));
                    waiting.wait(agent.as_ref().filter(|_| told), &self.name).await;
                    until = Instant::now() + within;
                }
                // If there is none, the link that broke is what there is to tell.
                Err(error) if !self.options.wait_for_ready => {
                    let first = first.filter(|_| !matches!(error, Error::TimedOut(_)));
                    return Err(first.unwrap_or(error));
                }
                attempt => return attempt,
            }
        }
    }

    async fn attempt(&self, agent: &Arc<Agent>, until: Instant) -> Result<Connection, Error> {
        match agent.connect(&self.name)?.wait(left(until)).await? {
            Connected::Link(linked) => {
                let (server, number) = (linked.terms.peer.clone(), linked.terms.link);
                // A server that has adopted the link and does not open it hangs: the next one may
                // answer, and an attempt must leave time for that.
                let (link, security) = caller::open(*linked, left(until).min(OPEN_TIME)).await?;
                let server = Peer::new(server, number, security);
                Ok(Connection::Ring { link, server })
            }
            Connected::Redirect { url, methods, booked } => {
                if self.options.ring_only {
                    let name = &self.name;
                    let text = format!("`{name}` is reached over {url}");
                    return Err(not_a_ring(format!("{text}, and only a ring was asked for")));
                }
                let address = Address::of(&Target::parse(&url)?)?;
                let later = self.options.wait_for_ready;
                let within = self.options.connect_timeout;
                let connecting = address.connect(Patience { within, first: false, later });
                let connected = tokio::time::timeout(left(until), connecting).await;
                let channel = connected.map_err(|_| Error::TimedOut(within))??;
                tracing::warn!(
                    name = %self.name,
                    url,
                    "nobody serves this name here; its calls go over the network, where nobody \
                     vouches for who answers"
                );
                let remote = Arc::new(Redirected::new(methods));
                let end: Arc<dyn End> = Arc::clone(&remote) as _;
                booked.attach(Arc::downgrade(&end));
                let watch = agent.watch(&self.name)?;
                let route = Box::new(address.route());
                Ok(Connection::Http2 { route, channel, remote, watch, booked })
            }
        }
    }
}

/// How long it is until then.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A wait between two attempts to connect: until somebody serves the name, or a while.
struct Waiting {
    watch: Option<Watching>,
    pause: Duration,
}

impl Waiting {
    fn new() -> Self {
        Self { watch: None, pause: http2::PAUSES.0 }
    }

    /// Waits; with an agent, for what its watch on the name tells.
    async fn wait(&mut self, agent: Option<&Arc<Agent>>, name: &ServiceName) {
        if let Some(agent) = agent {
            if self.watch.is_none() {
                self.watch = agent.watch(name).ok();
            }
            if let Some(watch) = &mut self.watch {
                let somebody = async { watch.instances.wait_for(|n| *n > 0).await.map(drop) };
                match tokio::time::timeout(RECHECK, somebody).await {
                    // Whatever the watch does not tell is found by asking again; not without a
                    // pause, for a server that refuses links.
                    Ok(Ok(())) => return tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(_) => return,
                    Ok(Err(_gone)) => {}
                }
                self.watch = None;
            }
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(http2::PAUSES.1);
    }
}

impl Connection {
    fn usable(&self) -> bool {
        match self {
            Self::Ring { link, .. } => link.usable(),
            // The ring is the way as soon as there is one.
            Self::Http2 { remote, watch, .. } => {
                *watch.instances.borrow() == 0 && remote.rights().is_ok()
            }
        }
    }

    fn route(&self) -> Route {
        match self {
            Self::Ring { server, .. } => Route::Ring { server: server.clone() },
            Self::Http2 { route, .. } => Route::clone(route),
        }
    }

    /// Waits until a call may begin here, if it has to; an error when none may any more.
    async fn place(&self) -> Result<Option<caller::Place>, ()> {
        match self {
            Self::Ring { link, .. } => link.place().await.map(Some).ok_or(()),
            Self::Http2 { .. } => Ok(None),
        }
    }

    /// Begins a call; the request comes back when this connection takes no more, or none without
    /// waiting for a place.
    fn begin(
        &self,
        request: http::Request<Body>,
        place: Option<caller::Place>,
    ) -> Result<State, Box<http::Request<Body>>> {
        Ok(match self {
            Self::Ring { link, .. } => match link.call(request, place) {
                Ok(call) => State::Ring(Box::new(call)),
                Err(caller::Refused::Back(request)) => return Err(request),
                Err(caller::Refused::Status(status)) => State::Failed(Some(status)),
            },
            Self::Http2 { channel, remote, booked, .. } => {
                if let Err(status) = remote.may_call(request.uri().path()) {
                    tracing::debug!(link = booked.link(), %status, "denied before it was sent");
                    return Ok(State::Failed(Some(status)));
                }
                State::Http2(http2::begin(channel.clone(), request))
            }
        })
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // A call waits for its place itself: its deadline counts then, and it can be dropped.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        ResponseFuture(match &*self.kind {
            Kind::Http2(remote) => State::Http2(http2::begin(remote.channel(), request)),
            Kind::Link(connection) => self.begun(connection.begin(request, None)),
            Kind::Refused(text) => State::Failed(Some(Status::failed_precondition(text))),
            Kind::Name(named) => {
                let begun = match named.usable() {
                    Some(connection) => connection.begin(request, None),
                    None => Err(Box::new(request)),
                };
                self.begun(begun)
            }
        })
    }
}

impl Channel {
    /// A call that was begun; else one that waits for a connection or a place.
    fn begun(&self, begun: Result<State, Box<http::Request<Body>>>) -> State {
        begun.unwrap_or_else(|request| {
            let kind = Arc::clone(&self.kind);
            State::Connecting(Box::pin(connect_and_begin(kind, *request)))
        })
    }
}

impl Kind {
    /// Waits until a call may begin, and begins it.
    async fn begin(
        &self,
        mut request: http::Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<State, Status> {
        loop {
            let named;
            let connection = match self {
                Self::Name(name) => {
                    named = name.connected().await?;
                    &*named
                }
                Self::Link(connection) => connection,
                Self::Http2(_) | Self::Refused(_) => unreachable!("these begin at once"),
            };
            let Ok(place) = connection.place().await else {
                if matches!(self, Self::Link(_)) {
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
            match connection.begin(request, place) {
                Ok(state) => return Ok(state),
                // It began to drain meanwhile.
                Err(back) => request = *back,
            }
        }
    }
}

async fn connect_and_begin(kind: Arc<Kind>, request: http::Request<Body>) -> State {
    let timeout = crate::wire::parse_timeout(request.headers());
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let begin = kind.begin(request, deadline);
    let begun = match timeout {
        None => begin.await,
        Some(timeout) => match tokio::time::timeout(timeout, begin).await {
            Ok(begun) => begun,
            Err(_) => Err(caller::expired()),
        },
    };
    begun.unwrap_or_else(|status| State::Failed(Some(status)))
}

/// A call of a [`Channel`] on its way to an answer. Dropping it cancels the call.
pub struct ResponseFuture(State);

enum State {
    Ring(Box<Call>),
    Http2(http2::Answer),
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
        loop {
            match &mut self.0 {
                State::Ring(call) => return call.poll(cx),
                State::Http2(answer) => return answer.as_mut().poll(cx),
                State::Failed(status) => {
                    let status = status.take().unwrap_or_else(|| Status::internal("polled twice"));
                    return Poll::Ready(Err(status));
                }
                State::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(next) => self.0 = next,
                },
            }
        }
    }
}
