//! The services with their layers, as links and connections call them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{Service, ServiceExt};

use crate::lock::lock;
use crate::telemetry;

mod limits;

pub(crate) use limits::Limits;

/// An error of a layer.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An answer on its way.
pub(crate) type Answer = Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;

/// What answers the requests of one link or connection.
pub(crate) trait Dispatch: Send + Sync {
    /// Answers one request; an error of a layer becomes a status.
    fn call(&self, request: http::Request<Body>) -> Answer;
}

/// Makes what answers, anew for each link and connection: so none waits for the lock of another.
#[derive(Clone)]
pub(crate) struct Services(Arc<dyn Fn() -> Arc<dyn Dispatch> + Send + Sync>);

impl Services {
    pub(crate) fn new<S, B>(service: S, limits: Limits) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let first = Stacked::new(service);
        Self(Arc::new(move || limits.around(first.copy())))
    }

    /// For one more link or connection.
    pub(crate) fn for_one(&self) -> Arc<dyn Dispatch> {
        self.0()
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

impl<S, B> Dispatch for Stacked<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn call(&self, request: http::Request<Body>) -> Answer {
        let service = self.copy();
        let handle = |request| -> Answer {
            let answer = service.oneshot(request);
            Box::pin(async move {
                match answer.await {
                    Ok(response) => response.map(Body::new),
                    Err(error) => status_of(error.into()).into_http(),
                }
            })
        };
        match telemetry::server(&request) {
            None => handle(request),
            Some(call) => Box::pin(telemetry::serve(call, request, handle)),
        }
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
