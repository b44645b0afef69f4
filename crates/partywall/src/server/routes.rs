//! Which service a path belongs to.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::stubs::Table;
use bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Service, ServiceExt};

/// An answer on its way.
pub(crate) type Answer = Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;

/// A service at its name.
#[derive(Clone)]
struct Mounted {
    call: Arc<dyn Fn(http::Request<Body>) -> Answer + Send + Sync>,
    table: Arc<Table>,
}

/// A service that a server takes: a server that tonic generates, such as `GreeterServer`, also with an
/// interceptor. Each type that meets these bounds has this trait; no type implements it itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no server that tonic generates",
    note = "write `GreeterServer::new(service)`; a type of your own has to meet the bounds of \
            `partywall::GrpcServer`"
)]
pub trait GrpcServer:
    Service<
        http::Request<Body>,
        Response: axum::response::IntoResponse,
        Error = Infallible,
        Future: Send + 'static,
    > + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> GrpcServer for S where
    S: Service<
            http::Request<Body>,
            Response: axum::response::IntoResponse,
            Error = Infallible,
            Future: Send + 'static,
        > + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A set of services by their gRPC names; a path that belongs to none is UNIMPLEMENTED.
///
/// It can be made of [`tonic::service::Routes`], whose services it asks for every path that
/// belongs to none of its own. Its own are found by one look into a table.
///
/// ```
/// # let (_reporter, service) = tonic_health::server::health_reporter();
/// let of_tonic = tonic::service::Routes::default();
/// let routes = partywall::Routes::from(of_tonic).add_service(service);
/// let router = partywall::Server::builder().add_routes(routes);
/// # let _ = router;
/// ```
#[derive(Clone, Default)]
pub struct Routes {
    services: Arc<BTreeMap<&'static str, Mounted>>,
    others: Option<tonic::service::Routes>,
}

impl From<tonic::service::Routes> for Routes {
    fn from(routes: tonic::service::Routes) -> Self {
        Self { others: Some(routes.prepare()), ..Self::default() }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services = self.services.keys().collect::<Vec<_>>();
        f.debug_struct("Routes").field("services", &services).field("others", &self.others).finish()
    }
}

impl Routes {
    /// Adds a service, in place of one with the same name.
    pub fn add_service<S: GrpcServer>(mut self, service: S) -> Self {
        let call = Arc::new(move |request| -> Answer {
            let answer = service.clone().oneshot(request);
            Box::pin(async move {
                let Ok(response) = answer.await;
                // A tonic service's own response passes through unwrapped.
                let mut response = Some(response);
                let own = (&mut response as &mut dyn std::any::Any)
                    .downcast_mut::<Option<http::Response<Body>>>()
                    .and_then(Option::take);
                match (own, response) {
                    (Some(own), _) => own,
                    (None, Some(other)) => {
                        axum::response::IntoResponse::into_response(other).map(Body::new)
                    }
                    (None, None) => unreachable!("taken only by the first arm"),
                }
            })
        });
        let mounted = Mounted { call, table: Arc::new(Table::of::<S>()) };
        Arc::make_mut(&mut self.services).insert(S::NAME, mounted);
        self
    }

    /// Where the service of a path puts its table.
    pub(crate) fn table(&self, path: &str) -> Option<&Arc<Table>> {
        Some(&self.mounted(path)?.table)
    }

    fn mounted(&self, path: &str) -> Option<&Mounted> {
        let (name, _method) = path.strip_prefix('/')?.split_once('/')?;
        self.services.get(name)
    }

    /// Answers a request by the service of its path.
    pub(crate) fn answer(&self, request: http::Request<Body>) -> Answer {
        let path = request.uri().path();
        match (self.mounted(path), &self.others) {
            (Some(service), _) => (service.call)(request),
            (None, Some(others)) => {
                let answer = others.clone().oneshot(request);
                Box::pin(async move {
                    let Ok(response) = answer.await;
                    response
                })
            }
            (None, None) => {
                let status = Status::unimplemented(format!("no service has the path {path}"));
                Box::pin(std::future::ready(status.into_http()))
            }
        }
    }
}

/// An answer of [`Routes`].
pub struct RoutesFuture(Answer);

impl fmt::Debug for RoutesFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutesFuture")
    }
}

impl Future for RoutesFuture {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl<B> Service<http::Request<B>> for Routes
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = RoutesFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> RoutesFuture {
        // tonic's own body stays as it is.
        RoutesFuture(self.answer(request.map(Body::new)))
    }
}
