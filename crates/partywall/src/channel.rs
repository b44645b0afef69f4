//! The caller's end: what a tonic-generated client takes.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use partywall_abi::control::Isolation;
use partywall_abi::name::{MethodSet, ServiceName};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use crate::agent::{self, Agent, Booked, Connected, Place};
use crate::error::Error;
use crate::peer::Peer;
use crate::ring::body::{Inner, ResponseBody};
use crate::ring::client::{self, Call};
use crate::target::Target;

/// How long connecting may take unless it is set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    },
}

impl Route {
    /// What keeps caller and service apart.
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::Ring { server } => server.isolation(),
            Self::Http2 { .. } => Isolation::Network,
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

    /// How long connecting may take; 5 s unless set. With [`Builder::wait_for_ready`] this is for
    /// each attempt.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Waits until somebody serves the name, when connecting and when a link has ended, instead
    /// of failing with UNAVAILABLE. A call's own deadline still ends it.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// Refuses a route over the network, even when the policy offers one.
    pub fn ring_only(mut self, only: bool) -> Self {
        self.ring_only = only;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error`], each variant for its reason.
    pub async fn connect(self) -> Result<Channel, Error> {
        let channel = self.connect_lazy();
        if let Kind::Name(named) = &*channel.kind {
            named.connected().await?;
        } else if let Kind::Http2 { url, .. } = &*channel.kind {
            let connected = http2(url, CONNECT_TIMEOUT)?.connect().await?;
            return Ok(Channel::http2(url.clone(), connected));
        }
        Ok(channel)
    }

    /// A channel that connects at its first call; must be made inside a tokio runtime.
    ///
    /// # Panics
    /// When the target is an HTTP/2 address that tonic cannot parse; [`Builder::connect`] returns
    /// that as an error.
    pub fn connect_lazy(self) -> Channel {
        let kind = match &self.target {
            Target::Name(name) => Kind::Name(Named {
                name: name.clone(),
                place: self.socket.clone().map_or_else(Place::find, Place::Path),
                options: self,
                current: Mutex::new(None),
                connecting: tokio::sync::Mutex::new(()),
            }),
            Target::Http(url) => return lazy_http2(url.clone(), self.connect_timeout),
            Target::Unix(path) => {
                return lazy_http2(format!("unix:{}", path.display()), self.connect_timeout);
            }
        };
        Channel { kind: Arc::new(kind) }
    }
}

fn lazy_http2(url: String, timeout: Duration) -> Channel {
    let endpoint = http2(&url, timeout).expect("an address that tonic can parse");
    Channel::http2(url, endpoint.connect_lazy())
}

fn http2(url: &str, timeout: Duration) -> Result<tonic::transport::Endpoint, Error> {
    let endpoint = tonic::transport::Endpoint::from_shared(url.to_string())?;
    Ok(endpoint.connect_timeout(timeout))
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
    Http2 { url: String, channel: tonic::transport::Channel },
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
    Ring { link: Arc<client::Link>, server: Peer },
    Http2 { url: String, channel: tonic::transport::Channel, methods: MethodSet, report: Booked },
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

    fn http2(url: String, channel: tonic::transport::Channel) -> Self {
        Self { kind: Arc::new(Kind::Http2 { url, channel }) }
    }

    /// How calls travel now; `None` before the first connect and between two links.
    pub fn route(&self) -> Option<Route> {
        match &*self.kind {
            Kind::Http2 { url, .. } => Some(Route::Http2 { url: url.clone() }),
            Kind::Name(named) => Some(match &*named.usable()? {
                Connection::Ring { server, .. } => Route::Ring { server: server.clone() },
                Connection::Http2 { url, .. } => Route::Http2 { url: url.clone() },
            }),
        }
    }
}

impl Named {
    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<Connection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut watching = None;
        let mut first = None;
        loop {
            let agent = match agent::get_async(&self.place).await {
                Ok(agent) => agent,
                Err(error) => return Err(first.unwrap_or(error)),
            };
            let attempt = match self.attempt(&agent).await {
                // The instance was about to go; the next introduction is to another one.
                Err(error @ Error::Link(_)) if first.is_none() => {
                    first = Some(error);
                    continue;
                }
                // If there is none, the link that broke is what there is to tell.
                Err(error) if !self.options.wait_for_ready => Err(first.take().unwrap_or(error)),
                attempt => attempt,
            };
            let unavailable = matches!(
                &attempt,
                Err(Error::Refused { code: tonic::Code::Unavailable, .. } | Error::Link(_))
            );
            if !(self.options.wait_for_ready && unavailable) {
                return attempt;
            }
            let watch = match &mut watching {
                Some(watch) => watch,
                none => none.insert(Watching::new(&agent, &self.name)?),
            };
            watch.somebody().await?;
        }
    }

    async fn attempt(&self, agent: &Arc<Agent>) -> Result<Connection, Error> {
        let within = self.options.connect_timeout;
        let answer = tokio::time::timeout(within, agent.connect(&self.name)?.wait());
        match answer.await.map_err(|_| Error::TimedOut(within))?? {
            Connected::Link(linked) => {
                let (server, number) = (linked.server.clone(), linked.link);
                let (link, isolation) = client::open(linked, within).await?;
                let server = Peer::new(server, number, isolation);
                Ok(Connection::Ring { link, server })
            }
            Connected::Redirect { url, methods, booked: report } => {
                if self.options.ring_only {
                    let name = &self.name;
                    return Err(Error::Refused {
                        code: tonic::Code::FailedPrecondition,
                        text: format!(
                            "`{name}` is reached over {url}, and only a ring was asked for"
                        ),
                    });
                }
                let channel = http2(&url, within)?.connect().await?;
                Ok(Connection::Http2 { url, channel, methods, report })
            }
        }
    }
}

/// A watch on a name, ended with the value.
struct Watching {
    agent: Arc<Agent>,
    request: u32,
    instances: tokio::sync::watch::Receiver<u32>,
}

impl Watching {
    fn new(agent: &Arc<Agent>, name: &ServiceName) -> Result<Self, Error> {
        let (request, instances) = agent.watch(name)?;
        Ok(Self { agent: Arc::clone(agent), request, instances })
    }

    /// Waits for a change after which somebody serves the name, and a little, so that a server
    /// that refuses links is not asked without pause.
    async fn somebody(&mut self) -> Result<(), Error> {
        self.instances
            .wait_for(|n| *n > 0)
            .await
            .map_err(|_| Error::CoordinatorGone("nobody tells when the name is served"))?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.agent.unwatch(self.request);
    }
}

impl Connection {
    fn usable(&self) -> bool {
        match self {
            Self::Ring { link, .. } => link.usable(),
            Self::Http2 { .. } => true,
        }
    }

    /// Begins a call; the request comes back when this connection takes no more.
    fn begin(&self, request: http::Request<Body>) -> Result<State, Box<http::Request<Body>>> {
        Ok(match self {
            Self::Ring { link, .. } => match link.call(request) {
                Ok(call) => State::Ring(Box::new(call)),
                Err(client::Refused::Draining(request)) => return Err(request),
                Err(client::Refused::Status(status)) => State::Failed(Some(status)),
            },
            Self::Http2 { channel, methods, report, .. } => {
                let path = request.uri().path();
                if !methods.covers(path) {
                    let text = format!("the policy does not let this process call {path}");
                    tracing::debug!(link = report.link, path, "denied before it was sent");
                    return Ok(State::Failed(Some(Status::permission_denied(text))));
                }
                begin_http2(channel.clone(), request)
            }
        })
    }
}

fn begin_http2(mut channel: tonic::transport::Channel, request: http::Request<Body>) -> State {
    State::Http2(Box::pin(async move {
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(from_transport)?;
        let deadline = crate::wire::parse_timeout(request.headers());
        let answer = channel.call(request);
        let response = match deadline {
            Some(timeout) => {
                tokio::time::timeout(timeout, answer).await.map_err(|_| client::expired())?
            }
            None => answer.await,
        };
        let response = response.map_err(from_transport)?;
        // A tonic server's own timer may be first; it says CANCELLED as well.
        match Status::from_header_map(response.headers()) {
            Some(status) if is_tonic_timeout(&status) => Err(client::expired()),
            _ => Ok(response.map(|body| ResponseBody(Inner::Http2(body)))),
        }
    }))
}

/// tonic reports an expired `grpc-timeout` as CANCELLED; a gRPC caller expects the code of its
/// own deadline.
fn from_transport(error: tonic::transport::Error) -> Status {
    let status = Status::from_error(error.into());
    if is_tonic_timeout(&status) { client::expired() } else { status }
}

fn is_tonic_timeout(status: &Status) -> bool {
    status.code() == tonic::Code::Cancelled && status.message() == "Timeout expired"
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        ResponseFuture(match &*self.kind {
            Kind::Http2 { channel, .. } => begin_http2(channel.clone(), request),
            Kind::Name(named) => {
                let begun = match named.usable() {
                    Some(connection) => connection.begin(request),
                    None => Err(Box::new(request)),
                };
                begun.unwrap_or_else(|request| {
                    let kind = Arc::clone(&self.kind);
                    State::Connecting(Box::pin(connect_and_begin(kind, *request)))
                })
            }
        })
    }
}

async fn connect_and_begin(kind: Arc<Kind>, mut request: http::Request<Body>) -> State {
    let Kind::Name(named) = &*kind else { unreachable!("only names connect later") };
    let timeout = crate::wire::parse_timeout(request.headers());
    let begin = async {
        loop {
            match named.connected().await {
                Ok(connection) => match connection.begin(request) {
                    Ok(state) => return state,
                    // It began to drain meanwhile.
                    Err(back) => request = *back,
                },
                Err(error) => return State::Failed(Some(error.into())),
            }
        }
    };
    match timeout {
        None => begin.await,
        Some(timeout) => match tokio::time::timeout(timeout, begin).await {
            Ok(state) => state,
            Err(_) => State::Failed(Some(client::expired())),
        },
    }
}

/// A call of a [`Channel`] on its way to an answer. Dropping it cancels the call.
pub struct ResponseFuture(State);

enum State {
    Ring(Box<Call>),
    Http2(Pin<Box<dyn Future<Output = Result<http::Response<ResponseBody>, Status>> + Send>>),
    Connecting(Pin<Box<dyn Future<Output = State> + Send>>),
    Failed(Option<Status>),
}

impl std::fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseFuture")
    }
}

impl Future for ResponseFuture {
    type Output = Result<http::Response<ResponseBody>, Status>;

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
