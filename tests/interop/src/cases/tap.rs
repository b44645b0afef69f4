//! A transport that notes what passes through it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::Service;

use super::Transport;
use crate::BoxFuture;
use crate::framing::{BodyLog, Watched};

/// What one call carried.
#[derive(Clone, Debug, Default)]
pub struct CallLog {
    /// The request's messages.
    pub request: BodyLog,
    /// The response's messages and trailers.
    pub response: BodyLog,
    /// The response's headers, once they are here.
    pub headers: Option<HeaderMap>,
}

/// Wraps a transport and keeps the [`CallLog`] of the latest call; clones share it.
#[derive(Clone, Debug)]
pub struct Tap<T> {
    inner: T,
    latest: Arc<Mutex<CallLog>>,
}

impl<T> Tap<T> {
    /// Wraps `inner`.
    pub fn new(inner: T) -> Self {
        Self { inner, latest: Arc::default() }
    }

    /// The log of the latest call. Its bodies go on being filled.
    pub fn latest(&self) -> CallLog {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T: Transport> Service<Request<Body>> for Tap<T> {
    type Response = Response<Body>;
    type Error = T::Error;
    type Future = BoxFuture<Result<Response<Body>, T::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let log = CallLog::default();
        let latest = Arc::clone(&self.latest);
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = log.clone();
        let request = request.map(|body| Body::new(Watched::new(body, log.request)));
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            latest.lock().unwrap_or_else(PoisonError::into_inner).headers =
                Some(response.headers().clone());
            Ok(response.map(|body| Body::new(Watched::new(Body::new(body), log.response))))
        })
    }
}
