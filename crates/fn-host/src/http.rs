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
//! | 400, 405, 408, 413 to 415, 431 | no request of HTTP, or a body that breaks off; not POST; too slow; too long |
//! | 429 with `retry-after` | the function's owner is beyond its limits |
//! | 503 | too many calls, or the host ends |
//!
//! The header `partywall-call` has the number of the call, which its log lines carry. `partywall-status` has
//! the code of the status where it is not OK. The header `partywall-timeout-ms` of a request is its deadline.
//! Callers by gRPC have the same in metadata, status and `grpc-timeout`.
//!
//! Nobody vouches for who connects. No connection has more than an eighth of the places. There are [`BODY`]
//! for a body and [`LONGEST`] bytes of it, and 30 s for a head over HTTP/1.1. Of a longer body [`UNWANTED`]
//! bytes more are read for nobody, for many a caller does not look for an answer before it has sent all.
//! Connections are as many as [`partywall::Server`] takes; one without a call goes for a new one. A caller
//! that closes its connection, or resets its stream, ends its call.
//!
//! | a caller does not take its reply | then |
//! | --- | --- |
//! | its connection takes nothing for [`REPLY`] | the connection is closed |
//! | its stream of HTTP/2 has no window | what is left of the reply is dropped after [`REPLY`], with the call's place |

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, EXPECT, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use partywall::{Bound, Server};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
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
/// How long a reply may take to be read.
pub const REPLY: Duration = Duration::from_secs(60);
/// The most bytes of a body; gRPC's message around it may have a little more.
pub const LONGEST: usize = partywall_functions::dispatcher::MESSAGE;
/// The most bytes that are read of a body behind those.
pub const UNWANTED: usize = 4 * LONGEST;
/// How long those may make a pause.
pub const PAUSE: Duration = Duration::from_secs(1);

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
    let mut server = Server::builder()
        .accept_http1(true)
        .max_concurrent_streams(CALLS as u32 / 8)
        .write_timeout(Some(REPLY));
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
    next.run(request).await.map(|body| Body::new(Placed::new(body, place, REPLY)))
}

/// The body of an answer. It goes piece by piece, so that what its caller does not take stays here, and is
/// dropped with the call's place when its time is over.
struct Placed {
    held: Arc<Mutex<Option<Held>>>,
    timer: Option<AbortHandle>,
}

struct Held {
    body: Body,
    /// What has come of it and has not gone.
    rest: Bytes,
    _place: OwnedSemaphorePermit,
}

/// Bytes that go at once.
const PIECE: usize = 64 << 10;

impl Placed {
    fn new(body: Body, place: OwnedSemaphorePermit, within: Duration) -> Self {
        let is_short = body.size_hint().upper().is_some_and(|bytes| bytes <= PIECE as u64);
        let held = Held { body, rest: Bytes::new(), _place: place };
        let held = Arc::new(Mutex::new(Some(held)));
        let timer = (!is_short).then(|| {
            let held = held.clone();
            let over = async move {
                tokio::time::sleep(within).await;
                drop(lock(&held).take());
            };
            tokio::spawn(over).abort_handle()
        });
        Self { held, timer }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // Now, and not when the timer's task is dropped.
        drop(lock(&self.held).take());
        self.timer.iter().for_each(AbortHandle::abort);
    }
}

impl HttpBody for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut held = lock(&self.held);
        let Some(Held { body, rest, .. }) = &mut *held else {
            let why = io::Error::new(io::ErrorKind::TimedOut, "the caller reads no reply");
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        };
        if rest.is_empty() {
            match ready!(Pin::new(body).poll_frame(cx)).map(|found| found.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => *rest = bytes,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(why)) => return Poll::Ready(Some(Err(why))),
                None => return Poll::Ready(None),
            }
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        let held = lock(&self.held);
        held.as_ref().is_some_and(|held| held.rest.is_empty() && held.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let held = lock(&self.held);
        let Some(Held { body, rest, .. }) = &*held else { return SizeHint::default() };
        let (of_body, rest) = (body.size_hint(), rest.len() as u64);
        let mut hint = SizeHint::default();
        hint.set_lower(of_body.lower() + rest);
        of_body.upper().into_iter().for_each(|upper| hint.set_upper(upper + rest));
        hint
    }
}

fn lock(held: &Mutex<Option<Held>>) -> MutexGuard<'_, Option<Held>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
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
    match read(body, service::LONGEST + PREFIX, &head.headers).await {
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
    let body = read(body, LONGEST, &head.headers).await.map_err(NoCall::plain)?;
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

/// The whole body. Who expects a word before it sends one (`Expect: 100-continue`) has the answer instead.
async fn read(mut body: Body, most: usize, headers: &HeaderMap) -> Result<Bytes, NoCall> {
    let long = || {
        let text =
            format!("the request is longer than {most} bytes, the most that a function takes");
        NoCall(StatusCode::PAYLOAD_TOO_LARGE, Code::OutOfRange, text)
    };
    if HttpBody::size_hint(&body).lower() > most as u64 {
        if !headers.contains_key(EXPECT) {
            tokio::spawn(throw_away(body));
        }
        return Err(long());
    }
    match tokio::time::timeout(BODY, Limited::new(&mut body, most).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            tokio::spawn(throw_away(body));
            Err(long())
        }
        Ok(Err(error)) => {
            Err(NoCall(StatusCode::BAD_REQUEST, Code::Internal, format!("the body: {error}")))
        }
        Err(_) => {
            let text = "the body did not come in time";
            Err(NoCall(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, text.into()))
        }
    }
}

/// Reads what is left of a body, beside the answer. If it were left unread, the kernel would reset the
/// connection, and the answer could be lost with it.
async fn throw_away(body: Body) {
    let mut body = Limited::new(body, UNWANTED);
    let until = tokio::time::Instant::now() + BODY;
    let next = async |body: &mut Limited<Body>| {
        let in_time = tokio::time::timeout(PAUSE, body.frame());
        matches!(tokio::time::timeout_at(until, in_time).await, Ok(Ok(Some(Ok(_)))))
    };
    while next(&mut body).await {}
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
        assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "reply");
        assert_eq!(ask("text/plain").await.status(), StatusCode::OK);
    }

    /// What is not taken in its time goes with its place; what is taken comes whole.
    #[tokio::test]
    async fn a_reply_that_is_not_taken_gives_its_place_back() {
        let places = Arc::new(Semaphore::new(1));
        let long = |within| {
            let place = places.clone().try_acquire_owned().unwrap();
            Placed::new(Body::from(vec![7; 3 * PIECE + 1]), place, within)
        };
        let taken = Body::new(long(Duration::from_secs(3600)));
        assert_eq!(taken.size_hint().exact(), Some(3 * PIECE as u64 + 1));
        assert_eq!(taken.collect().await.unwrap().to_bytes(), vec![7; 3 * PIECE + 1]);
        assert_eq!(places.available_permits(), 1);
        let mut left = long(Duration::from_millis(50));
        let first = left.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), places.available_permits()), (PIECE, 0));
        drop(places.acquire().await.unwrap());
        assert!(left.frame().await.unwrap().unwrap_err().to_string().contains("reads no reply"));
    }
}
