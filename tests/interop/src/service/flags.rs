//! Which request messages were compressed.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Layer, Service};

use crate::BoxError;
use crate::framing::{BodyLog, Watched};

/// Tells the service which request messages were compressed.
///
/// Without it the service goes by the `grpc-encoding` header, which is right for clients that
/// compress all messages of a call or none, as tonic's do.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestFlags;

impl<S> Layer<S> for RequestFlags {
    type Service = Flagged<S>;

    fn layer(&self, inner: S) -> Flagged<S> {
        Flagged { inner }
    }
}

/// A service inside [`RequestFlags`].
#[derive(Clone, Debug)]
pub struct Flagged<S> {
    inner: S,
}

impl<S: NamedService> NamedService for Flagged<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Flagged<S>
where
    S: Service<Request<Body>>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let log = BodyLog::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(log.clone());
        let body = Body::new(Watched::new(Body::new(body), log));
        self.inner.call(Request::from_parts(parts, body))
    }
}

/// Where to learn about a request's messages.
#[derive(Debug)]
pub(super) enum Source {
    Log(BodyLog),
    Header { encoded: bool },
}

pub(super) fn source<M>(request: &tonic::Request<M>) -> Source {
    match request.extensions().get::<BodyLog>() {
        Some(log) => Source::Log(log.clone()),
        None => {
            let encoding = request.metadata().get("grpc-encoding");
            Source::Header { encoded: encoding.is_some_and(|name| name != "identity") }
        }
    }
}

/// Whether the message just taken from the request was compressed; to be asked once for each.
pub(super) fn next_compressed(source: &Source) -> bool {
    match source {
        Source::Log(log) => log.pop().is_some_and(|prefix| prefix.compressed),
        Source::Header { encoded } => *encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_decides_without_a_log() {
        let mut request = tonic::Request::new(());
        assert!(!next_compressed(&source(&request)));
        request.metadata_mut().insert("grpc-encoding", "identity".parse().unwrap());
        assert!(!next_compressed(&source(&request)));
        request.metadata_mut().insert("grpc-encoding", "gzip".parse().unwrap());
        assert!(next_compressed(&source(&request)));
    }
}
