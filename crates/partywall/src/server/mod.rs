//! Serving: tonic-generated services at a name, and beside it over HTTP/2.
//!
//! ```no_run
//! # async fn f(shutdown: tokio::sync::oneshot::Receiver<()>) -> Result<(), partywall::Error> {
//! let mut server = partywall::Server::builder();
//! let router = server.add_routes(partywall::Routes::default()); // .add_service(GreeterServer::new(..))
//! router.serve_with_shutdown("greeter,unix:/run/greeter.sock", async { drop(shutdown.await) }).await
//! # }
//! ```

mod http2;
mod routes;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use partywall_abi::name::ServiceName;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service, ServiceExt};

pub use routes::Routes;

use crate::agent::{self, Place, Registered};
use crate::error::Error;
use crate::ring;
use crate::target::Target;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How often a server whose coordinator is gone looks whether its links have closed.
const ORPHANED: Duration = Duration::from_secs(1);

/// The services with their layers, as the links see them.
pub(crate) trait Dispatch: Send + Sync {
    /// Answers one request; an error of a layer becomes a status.
    fn call(
        &self,
        request: http::Request<Body>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;
}

/// Builds a [`Router`]: layers first, then services.
#[derive(Clone, Debug)]
pub struct Server<L = Identity> {
    layer: L,
    socket: Option<std::path::PathBuf>,
}

impl Server {
    /// A server without layers.
    pub fn builder() -> Self {
        Self { layer: Identity::new(), socket: None }
    }
}

impl<L> Server<L> {
    /// Adds a tower layer around everything that is added so far.
    pub fn layer<N>(self, layer: N) -> Server<Stack<N, L>> {
        Server { layer: Stack::new(layer, self.layer), socket: self.socket }
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

    /// Adds a set of services.
    pub fn add_routes(&mut self, routes: Routes) -> Router<L>
    where
        L: Clone,
    {
        let (layer, socket) = (self.layer.clone(), self.socket.clone());
        Router { layer, routes, socket }
    }
}

/// Services with layers, ready to be served.
#[derive(Debug)]
pub struct Router<L = Identity> {
    layer: L,
    routes: Routes,
    socket: Option<std::path::PathBuf>,
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
    pub async fn serve<B>(self, at: &str) -> Result<(), Error>
    where
        L: Layer<Routes>,
        L::Service: Service<http::Request<Body>, Response = http::Response<B>>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.serve_with_shutdown(at, std::future::pending()).await
    }

    /// Serves until `shutdown` is ready, then takes no new calls and waits for those under way.
    ///
    /// `at` is a list with commas: names at the coordinator (`greeter`), and addresses for HTTP/2
    /// (`unix:/path`, `http://host:port`), which answer anyone who can connect: nobody vouches
    /// for a caller there, and the policy's method sets do not apply.
    ///
    /// # Errors
    /// [`Error::Refused`] when the policy does not let this process serve the name,
    /// [`Error::NoCoordinator`], [`Error::Io`] when an address cannot be bound, and
    /// [`Error::CoordinatorGone`] when the coordinator ends while names are served: links go on
    /// until the callers close them, new ones cannot come.
    pub async fn serve_with_shutdown<B>(
        self,
        at: &str,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error>
    where
        L: Layer<Routes>,
        L::Service: Service<http::Request<Body>, Response = http::Response<B>>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let dispatch: Arc<dyn Dispatch> = Arc::new(Stacked(self.layer.layer(self.routes)));
        let targets =
            at.split(',').map(Target::parse_listen).collect::<Result<Vec<Target>, _>>()?;
        let place = self.socket.map_or_else(Place::find, Place::Path);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        for target in targets {
            match target {
                Target::Name(name) => {
                    let registered = agent::get_async(&place).await?.register(&name).await?;
                    let dispatch = Arc::clone(&dispatch);
                    tasks.spawn(serve_name(name, registered, dispatch, stopped.clone()));
                }
                Target::Http(url) => {
                    let listener = http2::Listener::tcp(&url).await?;
                    tasks.spawn(listener.serve(Arc::clone(&dispatch), stopped.clone()));
                }
                Target::Unix(path) => {
                    let listener = http2::Listener::unix(&path)?;
                    tasks.spawn(listener.serve(Arc::clone(&dispatch), stopped.clone()));
                }
            }
        }
        let mut shutdown = std::pin::pin!(shutdown);
        let mut result = Ok(());
        tokio::select! {
            () = &mut shutdown => {}
            Some(ended) = tasks.join_next() => result = flatten(ended),
        }
        // Everybody hears of it and finishes what is under way.
        let _listening = stop.send(true);
        while let Some(ended) = tasks.join_next().await {
            result = result.and(flatten(ended));
        }
        result
    }
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|e| match e.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Error::CoordinatorGone("the runtime is shutting down")),
    })
}

/// Takes the links that a name is offered, until it is time to stop.
async fn serve_name(
    name: ServiceName,
    mut registered: Registered,
    dispatch: Arc<dyn Dispatch>,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut links: Vec<Weak<ring::server::Link>> = Vec::new();
    let mut opening = tokio::task::JoinSet::new();
    let mut result = Ok(());
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            offer = registered.offers.recv() => match offer {
                Some((offer, booked)) => {
                    let (link, agent) = (offer.link, Arc::clone(&registered.agent));
                    let open = ring::server::open(offer, Arc::clone(&dispatch), agent);
                    opening.spawn(async move {
                        let opened = open.await;
                        if opened.is_ok() {
                            booked.hand_on();
                        }
                        (link, opened)
                    });
                }
                None => {
                    result = Err(Error::CoordinatorGone("no new links can come"));
                    break;
                }
            },
            Some(opened) = opening.join_next() => match opened {
                Ok((_, Ok(link))) => {
                    if links.len() == links.capacity() {
                        links.retain(|l| l.strong_count() > 0);
                    }
                    links.push(Arc::downgrade(&link));
                }
                Ok((link, Err(why))) => tracing::warn!(link, %why, "a link was not opened"),
                Err(_) => {}
            },
        }
    }
    tracing::debug!(%name, links = links.len(), "draining");
    drop(registered);
    opening.abort_all();
    while let Some(opened) = opening.join_next().await {
        // One that was open already is drained like the others.
        if let Ok((_, Ok(link))) = opened {
            links.push(Arc::downgrade(&link));
        }
    }
    let links: Vec<_> = links.iter().filter_map(Weak::upgrade).collect();
    if result.is_err() {
        // Without a coordinator no link can come, but those that are there go on.
        while !*stopped.borrow() && !links.iter().all(|l| l.is_closed()) {
            let _look = tokio::time::timeout(ORPHANED, stopped.changed()).await;
        }
    }
    links.iter().for_each(|link| link.drain());
    let mut finishing = tokio::task::JoinSet::new();
    for link in links {
        finishing.spawn(async move { link.finish().await });
    }
    while finishing.join_next().await.is_some() {}
    result
}

/// A tower service as the links call it.
struct Stacked<S>(S);

impl<S, B> Dispatch for Stacked<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn call(
        &self,
        request: http::Request<Body>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Body>> + Send>> {
        let answer = self.0.clone().oneshot(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => response.map(Body::new),
                Err(error) => Status::from_error(error.into()).into_http(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Connected;
    use partywall_coordinator::{Coordinator, Policy};
    use partywall_shm::socket;
    use std::os::fd::AsFd;

    const POLICY: &str = "[service.g]\nregister = ['anyone']\n[service.g.call]\nanyone = ['*']\n";

    #[tokio::test]
    async fn a_link_whose_set_up_fails_is_closed_in_the_books() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.sock");
        let policy = Policy::parse("test", POLICY).unwrap();
        let coordinator = Coordinator::start(Some(&path), policy).unwrap();
        let name = ServiceName::new("g").unwrap();
        let router = Server::builder().coordinator(&path).add_routes(Routes::default());
        let serving = tokio::spawn(router.serve("g"));
        let served = name.clone();
        let coordinator = tokio::task::spawn_blocking(move || {
            assert!(coordinator.serving(&served).recv_timeout(Duration::from_secs(10)).is_ok());
            coordinator
        });
        let _coordinator = coordinator.await.unwrap();
        let agent = agent::get_async(&Place::Path(path.clone())).await.unwrap();
        let link = async || match agent.connect(&name).unwrap().wait().await {
            Ok(Connected::Link(linked)) => linked,
            _ => panic!("no link"),
        };
        let garbage = link().await;
        socket::send(garbage.socket.as_fd(), b"garbage", &[]).unwrap();
        let hung_up = link().await;
        drop(hung_up);
        for _ in 0..500 {
            let at = path.clone();
            let rows = tokio::task::spawn_blocking(move || crate::links(Some(&at)).unwrap());
            let rows = rows.await.unwrap();
            assert_eq!(rows.len(), 2);
            if rows.iter().all(|row| !row.open) {
                serving.abort();
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the coordinator keeps links that never opened");
    }
}
