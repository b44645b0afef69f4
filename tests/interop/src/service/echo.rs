//! The metadata echo, done on HTTP messages because a tonic handler cannot set trailers.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Layer, Service};

use super::{ECHO_INITIAL, ECHO_TRAILING};
use crate::{BoxError, BoxFuture};

const INITIAL: HeaderName = HeaderName::from_static(ECHO_INITIAL);
const TRAILING: HeaderName = HeaderName::from_static(ECHO_TRAILING);
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Adds the metadata echo to a service: [`ECHO_INITIAL`] goes back in the response headers,
/// [`ECHO_TRAILING`] in its trailers, all values of each, in order.
///
/// A response that consists of trailers only has both in its single block of headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoHeaders;

impl<S> Layer<S> for EchoHeaders {
    type Service = Echoed<S>;

    fn layer(&self, inner: S) -> Echoed<S> {
        Echoed { inner }
    }
}

/// A service inside [`EchoHeaders`].
#[derive(Clone, Debug)]
pub struct Echoed<S> {
    inner: S,
}

impl<S: NamedService> NamedService for Echoed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<Request<B>> for Echoed<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let initial = copy(request.headers(), &INITIAL);
        let trailing = copy(request.headers(), &TRAILING);
        let response = self.inner.call(request);
        Box::pin(async move {
            let (mut parts, body) = response.await?.into_parts();
            append(&mut parts.headers, initial);
            let body = Body::new(body);
            if parts.headers.contains_key(GRPC_STATUS) {
                append(&mut parts.headers, trailing);
                return Ok(Response::from_parts(parts, body));
            }
            Ok(Response::from_parts(parts, Body::new(EchoBody { inner: body, trailing })))
        })
    }
}

fn copy(from: &HeaderMap, name: &HeaderName) -> HeaderMap {
    from.get_all(name).iter().map(|value| (name.clone(), value.clone())).fold(
        HeaderMap::new(),
        |mut map, (name, value)| {
            map.append(name, value);
            map
        },
    )
}

/// Adds every value of `from`; `extend` would replace those already there.
fn append(to: &mut HeaderMap, from: HeaderMap) {
    for (name, value) in &from {
        to.append(name, value.clone());
    }
}

/// A response body that adds to the trailers which pass through it.
#[derive(Debug)]
struct EchoBody {
    inner: Body,
    trailing: HeaderMap,
}

impl HttpBody for EchoBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, trailing } = self.get_mut();
        Pin::new(inner).poll_frame(cx).map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                append(trailers, std::mem::take(trailing));
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Full, StreamBody};
    use tower::{ServiceExt, service_fn};

    use super::*;

    fn request() -> Request<Body> {
        Request::builder()
            .header(ECHO_INITIAL, "first")
            .header(ECHO_TRAILING, "AAE")
            .header(ECHO_TRAILING, "AgM")
            .header("other", "kept back")
            .body(Body::empty())
            .unwrap()
    }

    fn values(map: &HeaderMap, name: &str) -> Vec<String> {
        map.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn trailers_are_extended() {
        let inner = service_fn(|_: Request<Body>| async {
            let mut trailers = HeaderMap::new();
            trailers.insert(GRPC_STATUS, "0".parse().unwrap());
            let frames = [Frame::data(Bytes::from_static(b"data")), Frame::trailers(trailers)];
            let frames = tokio_stream::iter(frames.map(Ok::<_, Status>));
            Ok::<_, Infallible>(Response::new(Body::new(StreamBody::new(frames))))
        });
        let response = EchoHeaders.layer(inner).oneshot(request()).await.unwrap();
        assert_eq!(values(response.headers(), ECHO_INITIAL), ["first"]);
        assert!(!response.headers().contains_key(ECHO_TRAILING));
        assert!(!response.headers().contains_key("other"));
        let collected = response.into_body().collect().await.unwrap();
        let trailers = collected.trailers().unwrap().clone();
        assert_eq!(values(&trailers, ECHO_TRAILING), ["AAE", "AgM"]);
        assert_eq!(values(&trailers, "grpc-status"), ["0"]);
        assert_eq!(collected.to_bytes(), "data");
    }

    #[tokio::test]
    async fn a_response_of_trailers_only_has_everything_in_its_headers() {
        let inner = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Status::aborted("no").into_http::<Body>())
        });
        let response = EchoHeaders.layer(inner).oneshot(request()).await.unwrap();
        assert_eq!(values(response.headers(), ECHO_INITIAL), ["first"]);
        assert_eq!(values(response.headers(), ECHO_TRAILING), ["AAE", "AgM"]);
        assert!(response.into_body().is_end_stream());
    }

    #[tokio::test]
    async fn a_body_without_trailers_gets_none() {
        let inner = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"data"))))
        });
        let response = EchoHeaders.layer(inner).oneshot(request()).await.unwrap();
        assert!(response.into_body().collect().await.unwrap().trailers().is_none());
    }
}
