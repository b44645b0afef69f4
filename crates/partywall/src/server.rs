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
mod routes;
mod serving;

use std::future::{Future, Pending};

use bytes::Bytes;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service};

pub use addresses::Addresses;
pub use bound::Bound;
#[cfg(feature = "http2")]
pub(crate) use http2::{Connection, serve_connection};
#[cfg(not(feature = "http2"))]
use no_http2 as http2;
pub use routes::Routes;
pub use serving::Serving;

pub(crate) use self::options::Options;
use self::options::Served;
use crate::agent::Place;
use crate::channel::Channel;
use crate::dispatch::BoxError;
use crate::error::Error;

/// Builds a [`Router`]: layers first, then services.
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
    pub fn add_service<S>(&mut self, service: S) -> Router<L>
    where
        L: Clone,
        S: Service<http::Request<Body>, Error = std::convert::Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        self.add_routes(Routes::default().add_service(service))
    }

    /// Adds a service if there is one.
    pub fn add_optional_service<S>(&mut self, service: Option<S>) -> Router<L>
    where
        L: Clone,
        S: Service<http::Request<Body>, Error = std::convert::Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
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

/// Services with layers, ready to be served.
#[derive(Debug)]
pub struct Router<L = Identity> {
    layer: L,
    routes: Routes,
    socket: Option<std::path::PathBuf>,
    options: Options,
}

impl<L> Router<L> {
    /// Adds a service.
    pub fn add_service<S>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Error = std::convert::Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        self.routes = self.routes.add_service(service);
        self
    }

    /// Adds a service if there is one.
    pub fn add_optional_service<S>(self, service: Option<S>) -> Self
    where
        S: Service<http::Request<Body>, Error = std::convert::Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        match service {
            Some(service) => self.add_service(service),
            None => self,
        }
    }

    /// Serves until an error; see [`Router::serve_with_shutdown`]. It is [`Router::bind`] and
    /// [`Bound::serve`] in one.
    ///
    /// # Errors
    /// As there.
    pub fn serve<B>(self, at: impl Into<Addresses>) -> Serving<Pending<()>>
    where
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
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
    /// [`Error::NoCoordinator`], and [`Error::Io`] when an address cannot be bound. When the coordinator
    /// ends, links go on, and names are served again as soon as another one listens at its path; only
    /// a socket that was handed over (`PARTYWALL_FD`) has no other one, and then serving ends everywhere
    /// with [`Error::CoordinatorGone`].
    pub fn serve_with_shutdown<F, B>(self, at: impl Into<Addresses>, shutdown: F) -> Serving<F>
    where
        F: Future<Output = ()>,
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (served, place) = self.served();
        let at = at.into();
        let run = |stop| async move { Bound::new(at, served, place).await?.run(stop).await };
        Serving::new(run, shutdown)
    }

    /// Binds: registers the names and listens at the addresses, and serves nobody yet. When it returns,
    /// callers find the server, and their calls wait until it serves ([`Bound::serve`]).
    ///
    /// # Errors
    /// As [`Router::serve_with_shutdown`].
    pub async fn bind<B>(self, at: impl Into<Addresses>) -> Result<Bound, Error>
    where
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (served, place) = self.served();
        Bound::new(at.into(), served, place).await
    }

    /// A channel to these services in this process, over rings as between processes, without a
    /// coordinator: for tests, and for mocks of a service. Layers and deadlines work as elsewhere; a
    /// handler sees this process as its caller, with isolation `none` and evidence `none`. The
    /// services end with the
    /// channel's last clone and call.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), partywall::Error> {
    /// # let service = partywall::Routes::default();
    /// let mut server = partywall::Server::builder();
    /// let channel = server.add_routes(service).in_process()?; // .add_service(GreeterServer::new(Mock))
    /// // let mut client = GreeterClient::new(channel);
    /// # let _ = channel; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Link`] when there is no memory for the rings, [`Error::Io`] without descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn in_process<B>(self) -> Result<Channel, Error>
    where
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        in_process::channel(&self.served().0)
    }

    fn served<B>(self) -> (Served, Place)
    where
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let place = self.socket.map_or_else(Place::find, Place::Path);
        (Served::new(self.layer.layer(self.routes), self.options), place)
    }
}
