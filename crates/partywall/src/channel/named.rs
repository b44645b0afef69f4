//! The channel of a name: what the coordinator's answer leads to, and the next one when that has ended.
//!
//! ```text
//! ask the coordinator -> a link to an instance -> calls, until it closes or drains -> ask again
//!                     \> addresses (remotes)   -> calls, until somebody serves the name here, or the
//!                                                 coordinator ends it -> ask again
//! ```

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderValue, header};
use partywall_abi::control::{Identity, LinkStats};
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::{Seal, Security};
use partywall_shm::address::Addresses;
use tonic::Status;
use tonic::body::Body;

use super::balance::{Link, Links};
use super::remotes::Remotes;
use super::{Endpoint, Route, State, http2};
use crate::backoff::Backoff;
use crate::coordinator::{self, Client, Connected, End, Place, Tracked, Watching};
use crate::error::Error;
use crate::http_calls;
use crate::link::caller::{self, Caller};
use crate::lock::lock;
use crate::peer::Peer;
use crate::stubs::demand;
use crate::target::{Target, TargetError};
use crate::telemetry;
use crate::time;

/// How often a channel that waits for a name asks again, beside being told.
const RECHECK: Duration = Duration::from_secs(10);

/// The channel of a name.
pub(super) struct Named {
    pub(super) name: ServiceName,
    place: Place,
    endpoint: Box<Endpoint>,
    /// The authority of its requests on a ring.
    host: Option<HeaderValue>,
    pub(super) links: Links<Connection>,
    /// One task connects; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

/// What a name led to.
pub(crate) enum Connection {
    Ring {
        link: Arc<Caller>,
        server: Peer,
        /// The authority of its requests.
        host: Option<HeaderValue>,
    },
    Http2 {
        route: Box<Route>,
        remotes: Arc<Remotes>,
        remote: Arc<Redirected>,
        /// Says when somebody serves the name here.
        watch: Watching,
        tracked: Tracked,
        _told: telemetry::Link,
    },
}

/// What the coordinator says of calls that go over the network.
pub(crate) struct Redirected(Mutex<Result<MethodSet, Status>>);

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

impl Named {
    /// The channel of an endpoint's name.
    pub(super) fn of(endpoint: &Endpoint, name: ServiceName) -> Self {
        Self {
            name,
            place: endpoint.place(),
            endpoint: Box::new(endpoint.clone()),
            host: endpoint.host(),
            links: Links::new(endpoint.balance),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    /// The connection for a call, made if there is none.
    pub(super) async fn connected(&self) -> Result<Arc<Connection>, Error> {
        loop {
            if let Some(connection) = self.links.pick() {
                return Ok(connection);
            }
            let _one = self.connecting.lock().await;
            if self.links.peek().is_none() {
                self.links.add(self.connect().await?);
            }
        }
    }

    /// How many instances serve the name, as it changes.
    pub(super) async fn watch(&self) -> Result<Watching, Error> {
        coordinator::get_async(&self.place, self.endpoint.connect_timeout).await?.watch(&self.name)
    }

    /// A link to the next instance, or none.
    pub(super) async fn attempt_once(&self) -> Result<Connection, Error> {
        let until = time::after(self.endpoint.connect_timeout);
        let client = coordinator::get_async(&self.place, left(until)).await?;
        self.attempt(&client, until).await
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let mut waiting = Waiting::new();
        let mut first = None;
        let within = self.endpoint.connect_timeout;
        let mut until = time::after(within);
        loop {
            let (client, attempt) = match coordinator::get_async(&self.place, left(until)).await {
                Ok(client) => {
                    let attempt = self.attempt(&client, until).await;
                    (Some(client), attempt)
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
                Err(error) if self.endpoint.wait_for_ready && error.may_pass() => {
                    tracing::debug!(name = %self.name, %error, "not connected; waiting");
                    // Of other failures the watch on a name tells nothing.
                    let is_notified = matches!(
                        error,
                        Error::NotServed { .. } | Error::NotTaken { .. } | Error::Link(_)
                    );
                    waiting.wait(client.as_ref().filter(|_| is_notified), &self.name).await;
                    until = time::after(within);
                }
                // If there is none, the link that broke is what there is to tell.
                Err(error) if !self.endpoint.wait_for_ready => {
                    let first = first.filter(|_| !matches!(error, Error::TimedOut(_)));
                    return Err(first.unwrap_or(error));
                }
                attempt => return attempt,
            }
        }
    }

    async fn attempt(&self, client: &Arc<Client>, until: Instant) -> Result<Connection, Error> {
        match client.connect(&self.name)?.wait(left(until)).await? {
            Connected::Link(linked) => {
                // A server that has adopted the link and does not open it hangs: the next one may
                // answer, and an attempt must leave time for that.
                let (within, pins) = (left(until).min(caller::OPEN_TIME), &self.endpoint.pins);
                let (link, server) = caller::open(*linked, pins, within).await?;
                let host = self.host.clone();
                Ok(Connection::Ring { link, server, host })
            }
            Connected::Redirect { url, methods, tracked } => {
                if self.endpoint.ring_only {
                    return Err(Error::no_ring(self.name.to_string(), &format!("at {url}")));
                }
                let addresses = Addresses::parse(&url).map_err(TargetError::from)?;
                let targets = addresses.texts().map(Target::parse);
                let targets = targets.collect::<Result<Vec<_>, _>>()?;
                targets.iter().try_for_each(|target| self.endpoint.is_proven(target))?;
                let security = addresses.security();
                let connecting = Remotes::connect(&self.endpoint, &self.name, targets);
                let connected = tokio::time::timeout(left(until), connecting).await;
                let within = self.endpoint.connect_timeout;
                let remotes = Arc::new(connected.map_err(|_| Error::TimedOut(within))??);
                tracing::warn!(
                    name = %self.name,
                    url,
                    "nobody serves this name here; its calls go over the network{}",
                    if security.seal == Seal::Sealed { "" } else { ", and the identity of who answers is not verified" }
                );
                let remote = Arc::new(Redirected::new(methods));
                let end: Arc<dyn End> = Arc::clone(&remote) as _;
                tracked.attach(Arc::downgrade(&end));
                let watch = client.watch(&self.name)?;
                let route = Box::new(Route::Http2 { url, security });
                let _told = route.opened();
                Ok(Connection::Http2 { route, remotes, remote, watch, tracked, _told })
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
    backoff: Backoff,
}

impl Waiting {
    fn new() -> Self {
        Self { watch: None, backoff: Backoff::new() }
    }

    /// Waits; with a client, for what its watch on the name tells.
    async fn wait(&mut self, client: Option<&Arc<Client>>, name: &ServiceName) {
        if let Some(client) = client {
            if self.watch.is_none() {
                self.watch = client.watch(name).ok();
            }
            if let Some(watch) = &mut self.watch {
                let served = *watch.instances.borrow() > 0;
                let somebody = async { watch.instances.wait_for(|n| *n > 0).await.map(drop) };
                match tokio::time::timeout(RECHECK, somebody).await {
                    // Whatever the watch does not tell is found by asking again; not without a
                    // pause, for a server that refuses links, or ends them.
                    Ok(Ok(())) if served => return tokio::time::sleep(self.backoff.pause()).await,
                    Ok(Ok(())) => return self.backoff = Backoff::new(),
                    Err(_) => return,
                    Ok(Err(_gone)) => {}
                }
                self.watch = None;
            }
        }
        tokio::time::sleep(self.backoff.pause()).await;
    }
}

impl Link for Connection {
    fn usable(&self) -> bool {
        match self {
            Self::Ring { link, .. } => link.usable(),
            // The ring is the way as soon as there is one.
            Self::Http2 { remote, watch, .. } => {
                *watch.instances.borrow() == 0 && remote.rights().is_ok()
            }
        }
    }

    fn outstanding(&self) -> usize {
        match self {
            Self::Ring { link, .. } => link.open_calls(),
            Self::Http2 { .. } => 0,
        }
    }

    fn is_to_the_instance_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ring { server, .. }, Self::Ring { server: other, .. }) => server.is_same(other),
            _ => false,
        }
    }
}

impl Connection {
    /// Its link, if calls go over one and nothing is added to them.
    #[inline]
    pub(crate) fn link(&self) -> Option<&Arc<Caller>> {
        match self {
            Self::Ring { link, host: None, .. } if link.signing().is_none() => Some(link),
            _ => None,
        }
    }

    /// What protects its calls.
    #[inline]
    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Ring { server, .. } => server.security(),
            Self::Http2 { route, .. } => route.security(),
        }
    }

    pub(crate) fn route(&self) -> Route {
        match self {
            Self::Ring { server, .. } => Route::Ring { server: server.clone() },
            Self::Http2 { route, .. } => Route::clone(route),
        }
    }

    /// Waits until a call may begin here, if it has to; an error when none may any more.
    pub(super) async fn place(&self) -> Result<Option<caller::Place>, ()> {
        match self {
            Self::Ring { link, .. } => link.place().await.map(Some).ok_or(()),
            Self::Http2 { .. } => Ok(None),
        }
    }

    /// Begins a call; the request comes back when this connection takes no more, or none without
    /// waiting for a place.
    pub(super) fn begin(
        &self,
        mut request: http::Request<Body>,
        place: Option<caller::Place>,
        telemetry: Option<&Arc<telemetry::Call>>,
    ) -> Result<State, Box<http::Request<Body>>> {
        if let Some(call) = telemetry {
            self.route().tell(call);
        }
        if let Err(status) = demand::may_begin(request.extensions(), || self.security()) {
            return Ok(State::Failed(Some(status)));
        }
        Ok(match self {
            Self::Ring { link, host, .. } => {
                if let Some(host) = host {
                    request.headers_mut().insert(header::HOST, host.clone());
                }
                match http_calls::caller::call(link, request, place) {
                    Ok(call) => State::Ring(call),
                    Err(http_calls::caller::Refused::Back(request)) => return Err(request),
                    Err(http_calls::caller::Refused::Status(status)) => State::Failed(Some(status)),
                }
            }
            Self::Http2 { remotes, remote, tracked, .. } => {
                if let Err(status) = remote.may_call(request.uri().path()) {
                    tracing::debug!(link = tracked.link(), %status, "denied before it was sent");
                    return Ok(State::Failed(Some(status)));
                }
                State::Elsewhere(http2::begin(http2::Way::OneOf(Arc::clone(remotes)), request))
            }
        })
    }
}
