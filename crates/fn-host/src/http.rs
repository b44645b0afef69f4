//! Functions over HTTP: `POST /NAME` with the request as its body.
//!
//! | answer | when |
//! | --- | --- |
//! | 200 and the reply | the function has replied |
//! | the code of its status, and its text | the function has answered with an error, or there was no reply |
//! | 404 | there is no such function, or `network` may not call it |
//! | 400, 405, 408, 413, 414, 431 | no HTTP; not POST; no body in time; too long |
//! | 429 with `retry-after` | the function's owner is beyond its limits |
//! | 503 | too many connections, or the host ends |
//!
//! The header `partywall-call` has the number of the call, which its log lines carry. `partywall-status` has
//! the code of the status where it is not OK. The header `partywall-timeout-ms` of a request is its deadline.
//!
//! Nobody vouches for who connects. There are at most [`CONNECTIONS`] connections, [`HEAD`] for a head to
//! come, [`BODY`] for a body, and [`LONGEST`] bytes of it. Of one that is longer, [`UNWANTED`] bytes more are
//! read for nobody, for many a caller looks for no answer before it has sent all. A caller that closes its
//! connection ends its call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, EXPECT, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::host::Host;
use crate::policy::Caller;
use crate::reply::{AGAIN, CALL};

/// Connections at once.
pub const CONNECTIONS: usize = 1024;
/// How long the head of a request may take to come, and a connection be idle.
pub const HEAD: Duration = Duration::from_secs(30);
/// How long a body may take.
pub const BODY: Duration = Duration::from_secs(60);
/// The most bytes of a body.
pub const LONGEST: usize = partywall_functions::dispatcher::MESSAGE;
/// The most bytes that are read of a body behind those.
pub const UNWANTED: usize = 4 * LONGEST;
/// How long those may make a pause.
pub const PAUSE: Duration = Duration::from_secs(1);

const STATUS: &str = "partywall-status";
const TIMEOUT: &str = "partywall-timeout-ms";

/// Where functions are called.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves the functions of a host, for ever.
    pub async fn serve(self, host: Arc<Host>) {
        self.serve_routes(routes(host)).await;
    }

    /// Serves these routes with the limits of connections.
    pub(crate) async fn serve_routes(self, routes: Router) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let routes = routes.layer(axum::middleware::map_response(no_guess));
        loop {
            let stream = match self.0.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // As with no descriptors left: what ends makes room.
                    tracing::warn!("HTTP: accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tokio::spawn(full(stream));
                continue;
            };
            let service = TowerToHyperService::new(routes.clone());
            tokio::spawn(async move {
                let mut connection = http1::Builder::new();
                connection.timer(TokioTimer::new()).header_read_timeout(HEAD);
                // What a connection ends by is its caller's affair.
                let _ended = connection.serve_connection(TokioIo::new(stream), service).await;
                drop(place);
            });
        }
    }
}

/// What a function says is of the kind that is said, whatever it looks like to a browser.
async fn no_guess(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// One connection too many.
async fn full(mut stream: tokio::net::TcpStream) {
    use tokio::io::AsyncWriteExt as _;
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
                   content-length: 21\r\n\r\ntoo many connections\n";
    let _gone = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer)).await;
}

fn routes(host: Arc<Host>) -> Router {
    Router::new()
        .route("/{name}", post(call).fallback(other_method))
        .fallback(no_function)
        .with_state(host)
}

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
    let body = read(body, head.headers.contains_key(EXPECT)).await?;
    match host.invoke(&Caller::Network, name, body, deadline).await {
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
async fn read(mut body: Body, waits: bool) -> Result<Vec<u8>, Box<Response>> {
    let long = || {
        let text =
            format!("the request is longer than {LONGEST} bytes, the most that a function takes");
        plain(StatusCode::PAYLOAD_TOO_LARGE, &text)
    };
    if HttpBody::size_hint(&body).lower() > LONGEST as u64 {
        if !waits {
            tokio::spawn(throw_away(body));
        }
        return Err(long());
    }
    match tokio::time::timeout(BODY, Limited::new(&mut body, LONGEST).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            tokio::spawn(throw_away(body));
            Err(long())
        }
        Ok(Err(error)) => Err(plain(StatusCode::BAD_REQUEST, &format!("the body: {error}"))),
        Err(_) => Err(plain(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
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
