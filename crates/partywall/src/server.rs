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
mod http2;
mod in_process;
mod options;
mod routes;
mod serving;

use std::collections::HashMap;
use std::future::{Future, Pending};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use partywall_abi::name::ServiceName;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service};

pub use addresses::Addresses;
pub(crate) use http2::{Connection, serve_connection};
pub use routes::Routes;
pub use serving::Serving;

use self::options::{Options, Served};
use crate::agent::{self, Event, Place, Registered};
use crate::channel::Channel;
use crate::dispatch::{BoxError, Services};
use crate::error::Error;
use crate::link;
use crate::target::Target;

/// How often a server whose coordinator is gone looks whether its links have closed.
const ORPHANED: Duration = Duration::from_secs(1);

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
        Router { layer, routes: routes.into(), socket, options: self.options }
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

    /// Serves until an error; see [`Router::serve_with_shutdown`].
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
    /// for HTTP/2 (`unix:/path`, `http://host:port`), which answer anyone who can connect: nobody
    /// vouches for a caller there, and the policy's method sets do not apply. All of a server's
    /// addresses together have at most three quarters of this process's descriptors (RLIMIT_NOFILE) as
    /// connections, and a quarter of that beside a name. Beyond, a connection without calls goes for a new
    /// one. At a path each user has at most half of what the others leave.
    ///
    /// # Errors
    /// [`Error::Refused`] when the policy does not let this process serve the name,
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
        let (served, socket) = self.served();
        let at = at.into();
        Serving::new(move |stop| run(at, served, socket, stop), shutdown)
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

    fn served<B>(self) -> (Served, Option<std::path::PathBuf>)
    where
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let services = Services::new(self.layer.layer(self.routes));
        (Served::new(services, self.options), self.socket)
    }
}

/// Serves everywhere until it is time to stop, or until one of them fails.
async fn run(
    at: Addresses,
    served: Served,
    socket: Option<std::path::PathBuf>,
    stop: watch::Sender<bool>,
) -> Result<(), Error> {
    let targets = at.targets()?;
    let is_name = |target: &Target| matches!(target, Target::Name(_));
    let listeners = targets.iter().filter(|target| !is_name(target)).count().max(1);
    let connections = http2::most(targets.iter().any(is_name)) / listeners;
    let place = socket.map_or_else(Place::find, Place::Path);
    let mut stopped = stop.subscribe();
    let mut tasks = tokio::task::JoinSet::new();
    for target in targets {
        let (served, stopped) = (served.clone(), stop.subscribe());
        match target {
            Target::Name(name) => {
                let agent = agent::get_async(&place, place.patience()).await?;
                let registered = agent.register(&name, places()).await?;
                tasks.spawn(serve_name(name, registered, served, stopped));
            }
            Target::Http(url) => {
                let listener = http2::Listener::tcp(&url).await?;
                tasks.spawn(serve_http2(listener, served, connections, stopped));
            }
            Target::Unix(path) => {
                let listener = http2::Listener::unix(&path)?;
                tasks.spawn(serve_http2(listener, served, connections, stopped));
            }
        }
    }
    let mut result = Ok(());
    tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => {}
        Some(ended) = tasks.join_next() => result = flatten(ended),
    }
    // Everybody hears of it and finishes what is under way.
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        result = result.and(flatten(ended));
    }
    result
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|e| match e.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Error::CoordinatorGone("the runtime is shutting down")),
    })
}

/// Serves HTTP/2 until it is time to stop, and no longer than a drain may take after that.
async fn serve_http2(
    listener: http2::Listener,
    served: Served,
    connections: usize,
    stopped: watch::Receiver<bool>,
) -> Result<(), Error> {
    let Served { services, streams, drain, .. } = served;
    let mut stop = stopped.clone();
    let over = async {
        let _dropped = stop.wait_for(|stop| *stop).await.is_err();
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        ended = listener.serve(services, (streams, connections), stopped) => ended,
        () = over => {
            tracing::warn!(within = ?drain, "HTTP/2 calls are open after the drain");
            Ok(())
        }
    }
}

/// Links that this process has descriptors for: three quarters of its limit, one for each.
fn places() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(u32::MAX, |n| u32::try_from(n / 4 * 3).unwrap_or(u32::MAX))
}

/// Takes the links that a name is offered, until it is time to stop.
async fn serve_name(
    name: ServiceName,
    mut registered: Registered,
    Served { services, accounts, drain, .. }: Served,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut links: Vec<Weak<link::service::Service>> = Vec::new();
    let mut adopting: HashMap<u64, link::service::Adopting> = HashMap::new();
    let mut result = Ok(());
    loop {
        let event = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            event = registered.events.recv() => event,
        };
        match event {
            Some(Event::Offer(offer)) => {
                let link = offer.terms.link;
                match link::service::adopt(offer) {
                    Ok(adopted) => drop(adopting.insert(link, adopted)),
                    Err(why) => tracing::warn!(link, %why, "a link was not adopted"),
                }
            }
            Some(Event::Open((link, security), callers)) => {
                let Some(adopted) = adopting.remove(&link) else { continue };
                let callers = (callers, security);
                match link::service::open(adopted, callers, services.for_one(), &accounts) {
                    Ok(link) => {
                        if links.len() == links.capacity() {
                            links.retain(|l| l.strong_count() > 0);
                        }
                        links.push(Arc::downgrade(&link));
                    }
                    Err(why) => tracing::warn!(link, %why, "a link was not opened"),
                }
            }
            Some(Event::Over(link)) => drop(adopting.remove(&link)),
            Some(Event::Lost) => {
                tracing::info!(%name, links = links.len(), "the coordinator has gone; links go on");
                adopting.clear();
            }
            Some(Event::Ended(why)) => {
                result = Err(why);
                break;
            }
            None => break,
        }
    }
    tracing::debug!(%name, links = links.len(), "draining");
    drop(registered);
    drop(adopting);
    let links: Vec<_> = links.iter().filter_map(Weak::upgrade).collect();
    if result.is_err() {
        // Without a coordinator no link can come, but those that are there go on.
        while !*stopped.borrow() && !links.iter().all(|l| l.is_closed()) {
            let _look = tokio::time::timeout(ORPHANED, stopped.changed()).await;
        }
        // An end that was asked for is none that came too early.
        if *stopped.borrow() {
            result = Ok(());
        }
    }
    links.iter().for_each(|link| link.drain());
    let mut finishing = tokio::task::JoinSet::new();
    for link in links {
        finishing.spawn(async move { link.finish(drain).await });
    }
    while finishing.join_next().await.is_some() {}
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Connected;

    const WAIT: Duration = Duration::from_secs(10);
    const POLICY: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";

    #[tokio::test]
    async fn a_link_whose_set_up_fails_is_closed_in_the_books() {
        let host = partywall_testkit::Host::with(POLICY);
        let path = host.socket.clone();
        let name = ServiceName::new("g").unwrap();
        let router = Server::builder().coordinator(&path).add_routes(Routes::default());
        let serving = tokio::spawn(router.serve("g"));
        let served = name.clone();
        let host = tokio::task::spawn_blocking(move || {
            let serving = host.coordinator.serving(&served);
            assert!(serving.recv_timeout(Duration::from_secs(10)).is_ok());
            host
        });
        let _host = host.await.unwrap();
        let agent = {
            let place = Place::Path(path.clone());
            agent::get_async(&place, place.patience()).await.unwrap()
        };
        let link = async || match agent.connect(&name).unwrap().wait(WAIT).await {
            Ok(Connected::Link(linked)) => linked,
            _ => panic!("no link"),
        };
        // One that says that it is ready, and has filled nothing.
        let hollow = link().await;
        hollow.booked.adopted(crate::Security::HIGHEST);
        let hung_up = link().await;
        drop(hung_up);
        let filled = link::caller::fill(*link().await).unwrap();
        filled.1.adopted(crate::Security::HIGHEST);
        drop((hollow, filled));
        for _ in 0..500 {
            let at = path.clone();
            let rows =
                tokio::task::spawn_blocking(move || crate::operator::links(Some(&at)).unwrap());
            let rows = rows.await.unwrap();
            if rows.iter().all(|row| !row.open) {
                serving.abort();
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the coordinator keeps links that never opened");
    }
}
