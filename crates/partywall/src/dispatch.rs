//! The services with their layers, as links and connections call them.

use std::any::Any;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{Service, ServiceExt};

use crate::lock::lock;
pub(crate) use crate::server::routes::Answer;
use crate::server::routes::Routes;
use crate::telemetry;

mod limits;

pub(crate) use limits::Limits;

/// An error of a layer.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A tower service over HTTP, as layers around [`Routes`] make it. Each type that meets these
/// bounds has this trait; no type implements it itself.
#[diagnostic::on_unimplemented(
    message = "the layers of the server do not make an HTTP service of its routes",
    note = "it has to be `Clone + Send`, take `http::Request<tonic::body::Body>`, answer with `http::Response<B>` \
            and fail with what becomes a boxed error"
)]
pub trait HttpService:
    Service<
        http::Request<Body>,
        Response = http::Response<<Self as HttpService>::ResponseBody>,
        Error: Into<BoxError>,
        Future: Send,
    > + Clone
    + Send
    + 'static
{
    /// The body of its answers.
    type ResponseBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<
            http::Request<Body>,
            Response = http::Response<B>,
            Error: Into<BoxError>,
            Future: Send,
        > + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type ResponseBody = B;
}

/// What answers the requests of one link or connection.
pub(crate) trait HttpDispatch: Send + Sync {
    /// Answers one request; an error of a layer becomes a status.
    fn call(&self, request: http::Request<Body>) -> Answer;
}

/// Makes what answers, anew for each link and connection: so none waits for the lock of another.
#[derive(Clone)]
pub(crate) struct Services {
    one: Arc<dyn Fn() -> Arc<dyn HttpDispatch> + Send + Sync>,
    /// The routes, where there is nothing around them.
    bare: Option<Routes>,
}

impl Services {
    pub(crate) fn new(service: impl HttpService, limits: Limits) -> Self {
        let routes = (&service as &dyn Any).downcast_ref::<Routes>();
        let bare = routes.filter(|_| limits.are_none()).cloned();
        if let Some(routes) = &bare {
            let one: Arc<dyn HttpDispatch> = Arc::new(routes.clone());
            return Self { one: Arc::new(move || Arc::clone(&one)), bare };
        }
        let first = Stacked::new(service);
        Self { one: Arc::new(move || limits.around(first.copy())), bare }
    }

    /// The routes, where no layer and no limit is around them.
    pub(crate) fn bare(&self) -> Option<&Routes> {
        self.bare.as_ref()
    }

    /// For one more link or connection.
    pub(crate) fn for_one(&self) -> Arc<dyn HttpDispatch> {
        (self.one)()
    }
}

/// A tower service, which only one thread at a time may touch, and which is cloned for each call.
struct Stacked<S>(Mutex<S>);

impl<S: Clone> Stacked<S> {
    fn new(service: S) -> Self {
        Self(Mutex::new(service))
    }

    fn copy(&self) -> S {
        lock(&self.0).clone()
    }
}

impl<S: HttpService> HttpDispatch for Stacked<S> {
    fn call(&self, request: http::Request<Body>) -> Answer {
        let service = self.copy();
        told(request, |request| {
            let answer = service.oneshot(request);
            Box::pin(async move {
                match answer.await {
                    Ok(response) => response.map(Body::new),
                    Err(error) => status_of(error.into()).into_http(),
                }
            })
        })
    }
}

/// Nothing is around them, so none of the above is needed.
impl HttpDispatch for Routes {
    fn call(&self, request: http::Request<Body>) -> Answer {
        told(request, |request| self.answer(request))
    }
}

/// Has a request handled, and tells of it where somebody listens.
fn told(
    request: http::Request<Body>,
    handle: impl FnOnce(http::Request<Body>) -> Answer,
) -> Answer {
    match telemetry::server(&request) {
        None => handle(request),
        Some(call) => Box::pin(telemetry::serve(call, request, handle)),
    }
}

/// The status of an error of a layer.
fn status_of(error: BoxError) -> Status {
    if error.is::<Elapsed>() {
        Status::deadline_exceeded("the server's own time for a handler has passed")
    } else if error.is::<Overloaded>() {
        Status::resource_exhausted("the server takes no more calls of this link or connection now")
    } else {
        Status::from_error(error)
    }
}
