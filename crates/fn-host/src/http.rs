//! Functions over HTTP/1.1 and HTTP/2 at one address: `POST /NAME` with the request as its body, and gRPC's
//! `Invoke` for stock clients.
//!
//! ```text
//! connection -> Server of Partywall: HTTP/1.1 or HTTP/2, deadlines and statuses of gRPC
//!                 -> a place among [`CALLS`], until the answer is written or its caller is gone
//!                      -> the whole body -> POST: [`Host::invoke`]
//!                                        `-> gRPC: [`service`], as over rings
//! ```
//!
//! | answer to `POST /NAME` | when |
//! | --- | --- |
//! | 200 and the reply | the function has replied |
//! | the code of its status, and its text | the function has answered with an error, or there was no reply |
//! | 404 | there is no such function, or `network` may not call it |
//! | 405, 408, 411 to 413, 415, 431 | not POST; no body in time, or none that can be read; too long |
//! | 429 with `retry-after` | the function's owner is beyond its limits |
//! | 503 | too many calls, or the host ends |
//!
//! The header `partywall-call` has the number of the call, which its log lines carry. `partywall-status` has
//! the code of the status where it is not OK. The header `partywall-timeout-ms` of a request is its deadline.
//! Callers by gRPC have the same in metadata, status and `grpc-timeout`.
//!
//! Nobody vouches for who connects. No connection has more than an eighth of the places. There are [`BODY`]
//! for a body and [`LONGEST`] bytes of it, and 30 s for a head over HTTP/1.1. Connections are as many as
//! [`partywall::Server`] takes; one without a call goes for a new one. A caller that closes its connection,
//! or resets its stream, ends its call.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body::{Frame, SizeHint};
use partywall::{Bound, Server};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::Service as _;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::host::Host;
use crate::policy::Caller;
use crate::proto::functions_server::FunctionsServer;
use crate::reply::{AGAIN, CALL};
use crate::service::{self, Service};

/// Calls at once, whose requests and replies are in memory.
pub const CALLS: usize = 1024;
/// How long a body may take.
pub const BODY: Duration = Duration::from_secs(60);
/// The most bytes of a body; gRPC's message around it may have a little more.
pub const LONGEST: usize = partywall_functions::dispatcher::MESSAGE;

const STATUS: &str = "partywall-status";
const TIMEOUT: &str = "partywall-timeout-ms";

/// Listens for calls of a host's functions; [`Bound::serve`] answers them.
///
/// # Errors
/// The kernel's.
pub async fn bind(host: Arc<Host>, address: SocketAddr) -> Result<Bound, partywall::Error> {
    bind_routes(routes(host), address).await
}

/// Listens for requests of these routes.
pub(crate) async fn bind_routes(
    routes: Router,
    address: SocketAddr,
) -> Result<Bound, partywall::Error> {
    let routes = tonic::service::Routes::from(routes);
    let mut server = Server::builder().accept_http1(true).max_concurrent_streams(CALLS as u32 / 8);
    server.add_routes(routes).bind(address).await
}

fn routes(host: Arc<Host>) -> Router {
    let places = Arc::new(Semaphore::new(CALLS));
    let methods = format!("/{}/{{method}}", FunctionsServer::<Service>::NAME);
    Router::new()
        .route("/{name}", post(call).fallback(other_method))
        .fallback(no_function)
        .with_state(host.clone())
        .layer(map_response(no_guess))
        .route(&methods, post(grpc).with_state(service::of(host)))
        .layer(from_fn_with_state(places, placed))
}

/// What a function says is of the kind that is said, whatever it looks like to a browser.
pub(crate) async fn no_guess(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Gives a call its place, until its answer is written.
async fn placed(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(place) = places.try_acquire_owned() else {
        let text = "there are too many calls at once; try again";
        let full = NoCall(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, text.into());
        if is_grpc(request.headers()) {
            return full.status().into_http();
        }
        let mut response = full.plain();
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return *response;
    };
    next.run(request).await.map(|body| Body::new(Placed { body, _place: place }))
}

/// The body of an answer, which has its call's place.
struct Placed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What no function is called for: as HTTP says it, and as gRPC does.
struct NoCall(StatusCode, Code, String);

impl NoCall {
    fn plain(self) -> Box<Response> {
        plain(self.0, &self.2)
    }

    fn status(self) -> Status {
        Status::new(self.1, self.2)
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// A call by gRPC. The service answers a caller whom nobody vouches for by `Invoke` alone.
async fn grpc(State(mut service): State<FunctionsServer<Service>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !is_grpc(&head.headers) {
        let text = "gRPC's requests have the content-type application/grpc; a function is called with POST \
                    /NAME as well";
        return *plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    match read(body, service::LONGEST + PREFIX).await {
        Ok(body) => {
            let Ok(response) = service.call(Request::from_parts(head, Body::from(body))).await;
            response.map(Body::new)
        }
        Err(refused) => refused.status().into_http(),
    }
}

/// What gRPC has before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

async fn other_method() -> Response {
    let text = "a function is called with POST; its request is the body\n";
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], text).into_response()
}

async fn no_function() -> Response {
    (StatusCode::NOT_FOUND, "a function is called with POST /NAME\n").into_response()
}

async fn call(
    State(host): State<Arc<Host>>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    match answer(&host, &name, request).await {
        Ok(response) => response,
        Err(refused) => *refused,
    }
}

async fn answer(host: &Arc<Host>, name: &str, request: Request) -> Result<Response, Box<Response>> {
    let (head, body) = request.into_parts();
    let deadline = deadline(&head.headers)?;
    let body = read(body, LONGEST).await.map_err(NoCall::plain)?;
    match host.invoke(&Caller::Network, name, body.into(), deadline).await {
        Ok(reply) => {
            let kind = (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            let mut response = ([kind], reply.body).into_response();
            response.headers_mut().insert(CALL, reply.call.into());
            Ok(response)
        }
        Err(status) => Err(refusal(&status)),
    }
}

fn plain(code: StatusCode, text: &str) -> Box<Response> {
    Box::new((code, format!("{text}\n")).into_response())
}

fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Box<Response>> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let milliseconds = value.to_str().ok().and_then(|text| text.parse::<u32>().ok());
    let milliseconds = milliseconds.filter(|number| *number > 0).ok_or_else(|| {
        plain(StatusCode::BAD_REQUEST, "partywall-timeout-ms: write milliseconds, from 1 on")
    })?;
    Ok(Instant::now().checked_add(Duration::from_millis(milliseconds.into())))
}

/// The whole body.
async fn read(body: Body, most: usize) -> Result<Bytes, NoCall> {
    let long = || {
        let text =
            format!("the request is longer than {most} bytes, the most that a function takes");
        NoCall(StatusCode::PAYLOAD_TOO_LARGE, Code::OutOfRange, text)
    };
    if body.size_hint().lower() > most as u64 {
        return Err(long());
    }
    match tokio::time::timeout(BODY, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_long(&error) => Err(long()),
        Ok(Err(error)) => {
            Err(NoCall(StatusCode::BAD_REQUEST, Code::Internal, format!("the body: {error}")))
        }
        Err(_) => {
            let text = "the body did not come in time";
            Err(NoCall(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, text.into()))
        }
    }
}

fn is_long(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A status as HTTP has it.
fn refusal(status: &Status) -> Box<Response> {
    let mut response = plain(code(status.code()), status.message());
    let headers = response.headers_mut();
    headers.insert(STATUS, (status.code() as i32).into());
    let number = |key| status.metadata().get(key)?.to_str().ok()?.parse::<u64>().ok();
    if let Some(call) = number(CALL) {
        headers.insert(CALL, call.into());
    }
    if status.code() == Code::ResourceExhausted {
        let seconds = number(AGAIN).unwrap_or(1000).div_ceil(1000).max(1);
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The code of HTTP for one of a status, as google.rpc.Code maps them.
fn code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call has its place until its answer is written or its caller is gone, and one more is told to try
    /// again, in its own words.
    #[tokio::test]
    async fn calls_beyond_their_places_are_unavailable() {
        let places = Arc::new(Semaphore::new(1));
        let mut routes = Router::new()
            .route("/f", post(|| async { "reply" }))
            .layer(from_fn_with_state(places, placed));
        let mut ask = async |kind: &str| {
            let request = Request::post("/f").header(CONTENT_TYPE, kind).body(Body::empty());
            routes.call(request.unwrap()).await.unwrap()
        };
        let first = ask("text/plain").await;
        assert_eq!(first.status(), StatusCode::OK);
        let full = ask("text/plain").await;
        assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(full.headers()[RETRY_AFTER], "1");
        let full = ask("application/grpc+proto").await;
        assert_eq!(
            (full.status(), &full.headers()["grpc-status"]),
            (StatusCode::OK, &"14".parse().unwrap())
        );
        assert_eq!(to_bytes(first.into_body(), 10).await.unwrap(), "reply");
        assert_eq!(ask("text/plain").await.status(), StatusCode::OK);
    }
}
