//! Serving: tonic-generated services at a name, and beside it over HTTP/2.
//!
//! ```no_run
//! # async fn f(shutdown: tokio::sync::oneshot::Receiver<()>) -> Result<(), partywall::Error> {
//! let mut server = partywall::Server::builder();
//! let router = server.add_routes(partywall::Routes::default()); // .add_service(GreeterServer::new(..))
//! router.serve_with_shutdown("greeter,unix:/run/greeter.sock", async { drop(shutdown.await) }).await
//! # }
//! ```

mod addresses;
mod bound;
#[cfg(feature = "http2")]
mod http2;
mod in_process;
mod names;
#[cfg(not(feature = "http2"))]
mod no_http2;
mod options;
pub(crate) mod routes;
mod serving;

use std::future::{Future, Pending};

use tower::Layer;
use tower::layer::util::{Identity, Stack};

pub use addresses::Addresses;
pub use bound::Bound;
#[cfg(feature = "http2")]
pub(crate) use http2::{Connection, serve_connection};
#[cfg(not(feature = "http2"))]
use no_http2 as http2;
pub use routes::{GrpcServer, Routes, RoutesFuture};
pub use serving::Serving;

pub(crate) use self::options::Options;
use self::options::Served;
use crate::channel::Channel;
use crate::coordinator::Place;
use crate::dispatch::HttpService;
use crate::error::Error;

/// Builds a [`Router`]: settings and layers first, then services.
///
/// ```no_run
/// use std::time::Duration;
/// use partywall::Server;
/// use tower::limit::ConcurrencyLimitLayer;
///
/// # async fn f() -> Result<(), partywall::Error> {
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// Server::builder()
///     .timeout(Duration::from_secs(2))
///     .layer(ConcurrencyLimitLayer::new(64))
///     .add_service(service) // such as GreeterServer::new(..)
///     .serve("greeter")
///     .await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Server<L = Identity> {
    layer: L,
    socket: Option<std::path::PathBuf>,
    options: Options,
}

impl Server {
    /// A server without layers.
    pub fn builder() -> Self {
        Self { layer: Identity::new(), socket: None, options: Options::default() }
    }
}

impl<L> Server<L> {
    /// Adds a tower layer around the services. As in tonic, the layer that is added first is the
    /// outermost: it sees a request before those that are added after it.
    pub fn layer<N>(self, layer: N) -> Server<Stack<N, L>> {
        let (socket, options) = (self.socket, self.options);
        Server { layer: Stack::new(layer, self.layer), socket, options }
    }

    /// Uses the coordinator that listens at `path`, instead of looking in the usual places.
    pub fn coordinator(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Adds a service.
    pub fn add_service(&mut self, service: impl GrpcServer) -> Router<L>
    where
        L: Clone,
    {
        self.add_routes(Routes::default().add_service(service))
    }

    /// Adds a service if there is one.
    pub fn add_optional_service(&mut self, service: Option<impl GrpcServer>) -> Router<L>
    where
        L: Clone,
    {
        self.add_routes(Routes::default()).add_optional_service(service)
    }

    /// Adds a set of services: [`Routes`], or tonic's own.
    pub fn add_routes(&mut self, routes: impl Into<Routes>) -> Router<L>
    where
        L: Clone,
    {
        let (layer, socket) = (self.layer.clone(), self.socket.clone());
        Router { layer, routes: routes.into(), socket, options: self.options.clone() }
    }
}

/// Services with layers, ready to be served: at names and addresses ([`Router::serve`]), in this process
/// alone ([`Router::in_process`]), or on connections of the program's own
/// ([`Router::serve_with_incoming`]).
///
/// ```
/// use partywall::{Channel, Server};
/// use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (_reporter, service) = tonic_health::server::health_reporter();
/// let router = Server::builder().add_service(service);
/// let bound = router.bind("http://127.0.0.1:0").await?; // or "greeter,unix:/run/greeter.sock"
/// let target = bound.addresses()[0].to_string();
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let server = tokio::spawn(bound.serve_with_shutdown(async { drop(stopped.await) }));
///
/// let mut client = HealthClient::new(Channel::connect(target).await?);
/// client.check(HealthCheckRequest::default()).await?;
/// drop((client, stop));
/// server.await??; // its last call has ended
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Router<L = Identity> {
    layer: L,
    routes: Routes,
    socket: Option<std::path::PathBuf>,
    options: Options,
}

impl<L> Router<L> {
    /// Adds a service.
    pub fn add_service(mut self, service: impl GrpcServer) -> Self {
        self.routes = self.routes.add_service(service);
        self
    }

    /// Adds a service if there is one.
    pub fn add_optional_service(self, service: Option<impl GrpcServer>) -> Self {
        match service {
            Some(service) => self.add_service(service),
            None => self,
        }
    }

    /// Serves until an error, by [`Router::bind`] and [`Bound::serve`] in one.
    ///
    /// # Errors
    /// As [`Router::serve_with_shutdown`].
    pub fn serve(self, at: impl Into<Addresses>) -> Serving<Pending<()>>
    where
        L: Layer<Routes, Service: HttpService>,
    {
        self.serve_with_shutdown(at, std::future::pending())
    }

    /// Serves until `shutdown` is ready, then takes no new calls and waits for those under way, at
    /// most for [`Server::drain_timeout`].
    ///
    /// `at` says where ([`Addresses`]): at names of the coordinator (`greeter`), and at addresses
    /// for HTTP/2 (`unix:/path`, `http://host:port`), which answer anyone who can connect: the
    /// caller's identity is not verified there, and the policy's method sets do not apply. All of a server's
    /// addresses together have at most three quarters of this process's descriptors (RLIMIT_NOFILE) as
    /// connections, and a quarter of that beside a name. Beyond, a connection without calls goes for a new
    /// one. At a path each user has at most half of what the others leave.
    ///
    /// # Errors
    /// [`Error::Denied`] when the policy does not let this process serve the name,
    /// [`Error::NoCoordinator`], and [`Error::Bind`] or [`Error::Listen`] when an address cannot be bound.
    /// When the coordinator ends, links go on, and names are served again as soon as another one listens at
    /// its path; only a socket that was handed over (`PARTYWALL_FD`) has no other one, and then serving ends
    /// everywhere with [`Error::CoordinatorGone`].
    pub fn serve_with_shutdown<F>(self, at: impl Into<Addresses>, shutdown: F) -> Serving<F>
    where
        F: Future<Output = ()>,
        L: Layer<Routes, Service: HttpService>,
    {
        let (served, place) = self.served();
        let at = at.into();
        let run = |stop| async move { Bound::new(at, served, place).await?.run(stop).await };
        Serving::new(run, shutdown)
    }

    /// Binds: registers the names and listens at the addresses, and serves nobody yet. When it returns,
    /// callers find the server. Calls to its addresses wait until it serves ([`Bound::serve`]), and so do
    /// those of channels with `wait_for_ready` to its names. Without it a channel to a name waits about one
    /// second, and then its calls fail with UNAVAILABLE unless another instance answers.
    ///
    /// # Errors
    /// As [`Router::serve_with_shutdown`].
    pub async fn bind(self, at: impl Into<Addresses>) -> Result<Bound, Error>
    where
        L: Layer<Routes, Service: HttpService>,
    {
        let (served, place) = self.served();
        Bound::new(at.into(), served, place).await
    }

    /// A channel to these services in this process, over rings as between processes, without a
    /// coordinator: for tests, and for mocks of a service. Layers and deadlines work as elsewhere; a
    /// handler sees this process as its caller, with isolation `none` and evidence `none`. The services
    /// end with the channel's last clone and call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_reporter, mock) = tonic_health::server::health_reporter();
    /// let channel = partywall::Server::builder().add_service(mock).in_process()?;
    /// let security = channel.route().expect("it is connected").security();
    /// assert_eq!(security, partywall::Security::IN_PROCESS);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Link`] when there is no memory for the rings, [`Error::Io`] without descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn in_process(self) -> Result<Channel, Error>
    where
        L: Layer<Routes, Service: HttpService>,
    {
        let served = self.served().0;
        served.check()?;
        served.options.pins.need_proof("a link in one process is plain")?;
        in_process::channel(&served)
    }

    fn served(self) -> (Served, Place)
    where
        L: Layer<Routes, Service: HttpService>,
    {
        let place = self.socket.map_or_else(Place::find, Place::Path);
        (Served::new(self.layer.layer(self.routes), self.options), place)
    }
}
