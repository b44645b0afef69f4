//! What HTTP shows of a call, and answers that no tonic handler can give.

use std::convert::Infallible;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::{CallState, End, Handle};
use crate::BoxFuture;

/// Request header that asks for one of these answers instead of the service's:
///
/// | value | answer |
/// | --- | --- |
/// | `head` | OK, and each header of the request with [`SEEN`] before its name |
/// | `started TAG MS`, `ended TAG MS` | OK, and what the [`Handle`] says within that time |
/// | `panic`, `panic-later` | none: the handler panics, or its body after the head |
/// | `broken` | a head, then a body that fails with DATA_LOSS |
/// | `plain STATUS` | that HTTP status, and a text (none for 200) without trailers |
/// | `told STATUS` | that HTTP status, UNAUTHENTICATED with a message and metadata |
/// | `details TEXT`, `details-later TEXT` | NOT_FOUND, whose details are that text, at once or after a head |
/// | `aborted N`, `aborted-later N` | ABORTED with a message of N bytes, at once or after a head |
/// | `trailers N` | OK with N bytes of metadata in the trailers |
pub const PROBE: &str = "x-interop-probe";
/// What the names of headers begin with that were seen in the request.
pub const SEEN: &str = "x-seen-";
/// Response header: nanoseconds to the deadline that the request's extensions tell.
pub const DEADLINE: &str = "x-deadline-ns";
/// Response headers of `started` and `ended`: [`CallState`].
const STATE: [&str; 3] = ["x-state-known", "x-state-deadline-ns", "x-state-end"];

const DETAILS: &str = "grpc-status-details-bin";

/// Finds the deadline of a call in the extensions of its request.
pub type FindDeadline = fn(&Extensions) -> Option<Instant>;

/// A service that answers to [`PROBE`].
#[derive(Clone, Debug)]
pub struct Probed<S> {
    inner: S,
    probe: Probe,
}

impl<S> Probed<S> {
    /// Answers itself where a request asks for it, and lets `inner` answer the others.
    pub fn new(inner: S, probe: Probe) -> Self {
        Self { inner, probe }
    }
}

impl<S: NamedService> NamedService for Probed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Probed<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.headers().contains_key(PROBE) {
            self.probe.call(request)
        } else {
            Box::pin(self.inner.call(request))
        }
    }
}

/// A service of its own that answers to [`PROBE`], beside one whose calls it knows of.
#[derive(Clone, Debug)]
pub struct Probe {
    handle: Handle,
    deadline: FindDeadline,
}

impl Probe {
    /// Knows of the calls that `handle` watches; `deadline` finds the deadline that the transport tells.
    pub fn new(handle: Handle, deadline: FindDeadline) -> Self {
        Self { handle, deadline }
    }
}

impl NamedService for Probe {
    const NAME: &'static str = "partywall.interop.Probe";
}

impl Service<Request<Body>> for Probe {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = request.headers().get(PROBE).map(HeaderValue::as_bytes).unwrap_or_default();
        let asked = String::from_utf8_lossy(asked).into_owned();
        let left = (self.deadline)(request.extensions());
        let left = left.map(|at| at.saturating_duration_since(Instant::now()));
        let (handle, headers) = (self.handle.clone(), request.headers().clone());
        Box::pin(async move { Ok(answer(&asked, &handle, &headers, left).await) })
    }
}

async fn answer(
    asked: &str,
    handle: &Handle,
    request: &HeaderMap,
    left: Option<Duration>,
) -> Response<Body> {
    let words: Vec<_> = asked.split(' ').collect();
    let within = |ms: &str| Duration::from_millis(number(ms));
    match words[..] {
        ["head"] => good(seen(request, left)),
        ["started", tag, ms] => good(told(handle.started(tag, within(ms)).await)),
        ["ended", tag, ms] => {
            let end = handle.ended(tag, within(ms)).await;
            good(told(end.and_then(|_| handle.call(tag))))
        }
        ["panic"] => panic!("as asked"),
        ["panic-later"] => body(vec![]).map(|_| Body::new(Panics(false))),
        ["broken"] => body(vec![Err(Status::data_loss("as asked"))]),
        ["plain", status] => {
            // After a good status, tonic would take a text for a message.
            let text = Ok(Frame::data(Bytes::from_static(b"no gRPC")));
            let mut plain = body(if status == "200" { vec![] } else { vec![text] });
            *plain.status_mut() = StatusCode::from_u16(number(status)).expect("a status");
            plain.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
            plain
        }
        ["told", status] => {
            let mut told: Response<Body> = Status::unauthenticated("no token").into_http();
            *told.status_mut() = StatusCode::from_u16(number(status)).expect("a status");
            told.headers_mut().insert("x-why", HeaderValue::from_static("asked"));
            told
        }
        ["details", text] => {
            let mut told: Response<Body> = Status::not_found("lost").into_http();
            told.headers_mut().insert(DETAILS, text.parse().expect("ASCII"));
            told
        }
        ["details-later", text] => {
            let mut trailers = HeaderMap::new();
            Status::not_found("lost").add_header(&mut trailers).expect("ASCII");
            trailers.insert(DETAILS, text.parse().expect("ASCII"));
            body(vec![Ok(Frame::trailers(trailers))])
        }
        ["aborted", n] => aborted(n).into_http(),
        ["aborted-later", n] => {
            let mut trailers = HeaderMap::new();
            aborted(n).add_header(&mut trailers).expect("ASCII");
            body(vec![Ok(Frame::trailers(trailers))])
        }
        ["trailers", n] => {
            let mut trailers = HeaderMap::new();
            Status::ok("").add_header(&mut trailers).expect("ASCII");
            let value = HeaderValue::try_from("x".repeat(number(n))).expect("ASCII");
            trailers.insert("x-long", value);
            body(vec![Ok(Frame::trailers(trailers))])
        }
        _ => Status::invalid_argument(format!("{PROBE}: `{asked}` means nothing")).into_http(),
    }
}

fn number<N: FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number that fits"))
}

fn aborted(bytes: &str) -> Status {
    Status::new(Code::Aborted, "x".repeat(number(bytes)))
}

fn good(headers: HeaderMap) -> Response<Body> {
    let mut response: Response<Body> = Status::ok("").into_http();
    for (name, value) in &headers {
        response.headers_mut().append(name, value.clone());
    }
    response
}

fn body(frames: Vec<Result<Frame<Bytes>, Status>>) -> Response<Body> {
    let body = http_body_util::StreamBody::new(tokio_stream::iter(frames));
    let mut response = Response::new(Body::new(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}

fn seen(request: &HeaderMap, left: Option<Duration>) -> HeaderMap {
    let mut seen = HeaderMap::new();
    for (name, value) in request {
        let name: HeaderName = format!("{SEEN}{name}").parse().expect("a longer name");
        seen.append(name, value.clone());
    }
    if let Some(left) = left {
        seen.insert(DEADLINE, HeaderValue::from(left.as_nanos() as u64));
    }
    seen
}

fn told(state: Option<CallState>) -> HeaderMap {
    let mut told = HeaderMap::new();
    let Some(CallState { deadline, end }) = state else { return told };
    told.insert(STATE[0], HeaderValue::from_static("1"));
    if let Some(left) = deadline {
        told.insert(STATE[1], HeaderValue::from(left.as_nanos() as u64));
    }
    if let Some(end) = end {
        told.insert(STATE[2], HeaderValue::from(end as u8 as u16));
    }
    told
}

/// Reads what `started` and `ended` answer.
pub(crate) fn state(told: &HeaderMap) -> Option<CallState> {
    let get = |name| told.get(name).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    get(STATE[0])?;
    let end = match get(STATE[2]) {
        Some(n) if n == End::Finished as u64 => Some(End::Finished),
        Some(_) => Some(End::Dropped),
        None => None,
    };
    Some(CallState { deadline: get(STATE[1]).map(Duration::from_nanos), end })
}

/// A body that gives one piece of a message and panics then.
struct Panics(bool);

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        assert!(!std::mem::replace(&mut self.0, true), "as asked");
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x09half")))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        let deadline = Some(Duration::from_nanos(7));
        for state in [
            None,
            Some(CallState { deadline: None, end: None }),
            Some(CallState { deadline, end: Some(End::Finished) }),
            Some(CallState { deadline, end: Some(End::Dropped) }),
        ] {
            assert_eq!(super::state(&told(state)), state);
        }
    }
}
