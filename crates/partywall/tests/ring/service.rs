//! A service of the tests' own: each method is a closure over bytes, by gRPC's plain `grpc.testing`
//! messages where those do.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

type Answer = Pin<Box<dyn Future<Output = http::Response<Body>> + Send>>;

/// A service at `/test.Raw/*` whose every call goes to one function.
#[derive(Clone)]
pub(crate) struct Raw(Arc<dyn Fn(http::Request<Body>) -> Answer + Send + Sync>);

impl Raw {
    pub(crate) fn new<F, Fut>(f: F) -> Self
    where
        F: Fn(http::Request<Body>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = http::Response<Body>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(f(request))))
    }
}

impl NamedService for Raw {
    const NAME: &'static str = "test.Raw";
}

impl Service<http::Request<Body>> for Raw {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = (self.0)(request);
        Box::pin(async move { Ok(answer.await) })
    }
}

/// An OK response without a message.
pub(crate) fn ok() -> http::Response<Body> {
    tonic::Status::ok("").into_http()
}

/// A request for `/test.Raw/METHOD` with a body.
pub(crate) fn request(method: &str, body: Body) -> http::Request<Body> {
    http::Request::builder().uri(format!("/test.Raw/{method}")).body(body).unwrap()
}
