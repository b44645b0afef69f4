//! One connection, and its calls.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http_body::Frame;
use hyper_util::rt::TokioIo;
use partywall_abi::security::Security;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::Connected;

use super::connections::{Connection, Heard, Open};
use super::tls::Caller;
use crate::attach;
use crate::dispatch::{BoxError, HttpDispatch};
use crate::peer::Deadline;
use crate::server::options::Options;
use crate::status;
use crate::telemetry::{self, Route, Side};
use crate::wire;

/// How long a connection without calls may take to end when it is told to.
const TO_END: Duration = Duration::from_secs(1);

/// How long a connection that goes for another one may take, and longer only while it has a call open.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// Serves one connection until the caller ends it; once `stopped` says so, or it has its age, until its
/// last call has ended. Its requests say what protects it.
pub(crate) async fn serve<I>(
    (io, security): (I, Security),
    service: Arc<dyn HttpDispatch>,
    options: &Options,
    stopped: watch::Receiver<bool>,
    row: Arc<Connection>,
) where
    I: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let _open = telemetry::Link::opened(Side::Server, Route::Http2, security);
    let info = io.connect_info();
    let calls = Arc::clone(&row);
    let service = hyper::service::service_fn(move |request: http::Request<_>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(info.clone());
        request.extensions_mut().insert(security);
        answer(&service, request, calls.begin())
    });
    let http = options.http2.builder(options.bounds.calls_per_link as u32);
    let io = TokioIo::new(options.http2.timed(Heard::new(io, Arc::clone(&row))));
    let mut connection = pin!(http.serve_connection(io, service));
    let (look, grace) = tokio::select! {
        // What has come counts before the time that it took.
        biased;
        ended = &mut connection => return note(ended),
        () = stop(stopped) => (TO_END, None),
        () = after(options.age.most) => (TO_END, options.age.grace),
        // A call that has come already is answered.
        () = row.has_to_go() => (LAST_CALLS, None),
    };
    // Its caller is told. One that does not answer loses no call.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => note(ended),
        () = without_calls(&row, look) => {}
        () = after(grace) => tracing::debug!("calls of a connection over HTTP/2 are open after its age"),
    }
}

fn note(ended: Result<(), BoxError>) {
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection over HTTP/2 has ended");
    }
}

/// Waits so long, or for ever.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until a connection, which has been told to send no more calls, has had this time to end, in which
/// its preface may come with a call, and has none open.
async fn without_calls(connection: &Connection, look: Duration) {
    loop {
        tokio::time::sleep(look).await;
        if connection.is_idle() {
            return;
        }
    }
}

pub(super) async fn stop(mut stopped: watch::Receiver<bool>) {
    let _stopped = stopped.wait_for(|stop| *stop).await;
}

type Timer = Option<Pin<Box<Sleep>>>;

fn is_over(timer: &mut Timer, cx: &mut Context<'_>) -> bool {
    timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
}

/// Answers one request.
fn answer(
    service: &Arc<dyn HttpDispatch>,
    mut request: http::Request<Body>,
    open: Open,
) -> impl Future<Output = Result<http::Response<Answered>, Infallible>> + use<> {
    let (grpc, knows_status) =
        (wire::is_grpc(request.headers()), wire::knows_status(request.headers()));
    let ends = knows_status.then(|| wire::parse_timeout(request.headers())).flatten();
    let ends = ends.and_then(|t| Instant::now().checked_add(t));
    if let Some(at) = ends {
        request.extensions_mut().insert(Deadline(at));
    }
    // As on a ring.
    let fits = match grpc {
        true => {
            request.headers_mut().remove(TE);
            let path = request.uri().path();
            let fits = wire::check_request(path, request.headers());
            fits.inspect_err(|status| telemetry::refused(path, status.code()))
        }
        false => Ok(()),
    };
    let caller = request.extensions().get::<Caller>().cloned();
    let handler = fits.map(|()| match caller {
        None => service.call(request),
        Some(caller) => {
            let service = Arc::clone(service);
            Box::pin(async move {
                match caller.may_call(request.uri().path()).await {
                    Ok(certified) => {
                        let mut request = request;
                        request.extensions_mut().insert(certified);
                        service.call(request).await
                    }
                    Err(denied) => denied.into_http(),
                }
            })
        }
    });
    async move {
        let mut timer: Timer = ends.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let answered = match handler {
            Ok(mut handler) => {
                std::future::poll_fn(|cx| {
                    if is_over(&mut timer, cx) {
                        return Poll::Ready(Err(status::expired_in_service()));
                    }
                    let polled =
                        std::panic::catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx)));
                    polled.map_or_else(
                        |_| Poll::Ready(Err(status::panicked())),
                        |polled| polled.map(Ok),
                    )
                })
                .await
            }
            Err(refused) => Err(refused),
        };
        let answered = answered.and_then(|mut response| {
            attach::refuse_over_http2(response.extensions_mut())?;
            if !grpc {
                return Ok(response);
            }
            let has_status = response.headers().contains_key(wire::GRPC_STATUS);
            if !has_status && response.status() != http::StatusCode::OK {
                return Err(wire::http_status(&response));
            }
            *response.status_mut() = http::StatusCode::OK;
            let headers = response.headers_mut();
            wire::of_a_call(headers);
            if !has_status {
                wire::check_response(headers)?;
            }
            Ok(response)
        });
        let mut response = answered.unwrap_or_else(|status| {
            let mut response = status.into_http();
            if !knows_status {
                *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            }
            response
        });
        let ended = grpc && response.headers().contains_key(wire::GRPC_STATUS);
        if ended && let Some(mut fitting) = wire::fit(response.headers()) {
            fitting.entry(CONTENT_TYPE).or_insert(wire::GRPC);
            *response.headers_mut() = fitting;
        }
        Ok(response.map(|body| Answered { body, timer, grpc, ended, _open: open }))
    }
}

/// The body of an answer, with its deadline.
struct Answered {
    body: Body,
    timer: Timer,
    /// It ends with trailers.
    grpc: bool,
    ended: bool,
    /// The call is open until this is dropped.
    _open: Open,
}

impl Answered {
    /// The last frame. An answer that is none of gRPC's has no trailers that could say that it is cut
    /// off: its stream is reset (RFC 9113, section 8.1).
    fn end(&mut self, status: Status) -> Result<Frame<Bytes>, Status> {
        self.ended = true;
        self.body = Body::empty();
        if !self.grpc {
            return Err(status);
        }
        let trailers = wire::headers_of(&status);
        Ok(Frame::trailers(wire::fit(&trailers).unwrap_or(trailers)))
    }
}

impl http_body::Body for Answered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if is_over(&mut this.timer, cx) {
            return Poll::Ready(Some(this.end(status::expired_in_service())));
        }
        let body = Pin::new(&mut this.body);
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_frame(cx)));
        Poll::Ready(match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(None)) if this.grpc => Some(this.end(wire::no_trailers())),
            Ok(Poll::Ready(None)) => None,
            Ok(Poll::Ready(Some(Ok(frame)))) => Some(Ok(match frame.into_trailers() {
                Err(data) => data,
                Ok(trailers) => {
                    this.ended = true;
                    Frame::trailers(wire::fit(&trailers).unwrap_or(trailers))
                }
            })),
            Ok(Poll::Ready(Some(Err(status)))) => Some(this.end(status)),
            Err(_) => Some(this.end(status::panicked())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (!self.grpc && self.body.is_end_stream())
    }
}
