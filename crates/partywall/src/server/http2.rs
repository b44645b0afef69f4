//! The same services over HTTP/2: for callers that are elsewhere, or are not ours, and for tools.
//!
//! ```text
//! accept -> one task per connection -> one per call: handler -> head -> body -> trailers
//!   deadline passed at any point: the handler or the body is dropped, DEADLINE_EXCEEDED
//!   panic at any point: INTERNAL, the connection goes on
//!   reset by the caller, or its death: the handler or the body is dropped
//! stop: no more connections, each is told to send no more calls, and ends with its last
//! ```
//!
//! A call means what it means on a ring ([`crate::ring::server`]), with one difference: while a
//! caller takes none of an answer, nobody looks at the deadline of that call. Requests that are not
//! gRPC's (of a layer that speaks gRPC-Web, say) get the service's answer as it is.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http_body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use partywall_shm::listen::{self, BoundPath};
use rustix::net::SocketType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::Connected;

use super::{Dispatch, Services};
use crate::error::Error;
use crate::peer::Deadline;
use crate::ring;
use crate::wire;

/// How long nobody is taken in while the process has no descriptors or memory for one more.
const SHORT_OF: Duration = Duration::from_millis(50);
/// Connections that may wait to be taken in; as tokio's.
const BACKLOG: i32 = 1024;

/// How long a connection without calls may take to end.
const TO_END: Duration = Duration::from_secs(1);

/// A bound address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _own: BoundPath },
}

impl Listener {
    /// Binds `http://host:port`.
    pub(super) async fn tcp(url: &str) -> Result<Self, Error> {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let refused = |source: io::Error| {
            use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
            let remedy = match source.kind() {
                AddrInUse => " (remedy: stop who listens there, or take another port)",
                AddrNotAvailable => " (remedy: take an address of this host)",
                PermissionDenied => " (remedy: take a port from 1024 on)",
                _ => "",
            };
            Error::Io { what: format!("listening at {url}{remedy}"), source }
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        Ok(Self::Tcp(listener))
    }

    /// Binds a path; a socket that nobody listens at any more is replaced, and nothing else is.
    pub(super) fn unix(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { what: format!("listening at {}", path.display()), source };
        let (socket, own) = listen::listen(path, SocketType::STREAM, BACKLOG, |_| ())?;
        let listener = UnixListener::from_std(socket.into()).map_err(io)?;
        Ok(Self::Unix { listener, _own: own })
    }

    /// Serves until it is time to stop, then lets the calls under way finish.
    pub(super) async fn serve(
        self,
        services: Services,
        streams: u32,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        if let Self::Tcp(listener) = &self {
            let _ = listener.local_addr().map(|at| tracing::info!(%at, "HTTP/2"));
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop(stopped.clone()) => break,
                accepted = self.accept() => match accepted {
                    Ok(Accepted::Tcp(io)) => {
                        let service = services.for_one();
                        connections.spawn(serve_connection(io, service, streams, stopped.clone()));
                    }
                    Ok(Accepted::Unix(io)) => {
                        let service = services.for_one();
                        connections.spawn(serve_connection(io, service, streams, stopped.clone()));
                    }
                    Err(why) if is_shortage(&why) => {
                        tracing::warn!(%why, "no connection is taken in for a moment");
                        tokio::time::sleep(SHORT_OF).await;
                    }
                    // The caller has hung up again.
                    Err(why) => tracing::debug!(%why, "a connection was not taken in"),
                },
                Some(_ended) = connections.join_next() => {}
            }
        }
        // From here on nobody can connect.
        drop(self);
        while connections.join_next().await.is_some() {}
        Ok(())
    }

    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (io, _) = listener.accept().await?;
                // A small answer must not wait until the caller has acknowledged the one before.
                let _gone = io.set_nodelay(true);
                Accepted::Tcp(io)
            }
            Self::Unix { listener, .. } => Accepted::Unix(listener.accept().await?.0),
        })
    }
}

/// Whether taking in a connection failed for want of something of this process or the system.
fn is_shortage(why: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|e| why.raw_os_error() == Some(e.raw_os_error()))
}

enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Serves one connection, of so many calls at a time, until the caller ends it; once `stopped` says
/// so, until its last call has ended.
pub(crate) async fn serve_connection<I>(
    io: I,
    service: Arc<dyn Dispatch>,
    streams: u32,
    stopped: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let info = io.connect_info();
    let calls = Arc::new(());
    let call = Arc::clone(&calls);
    let service = hyper::service::service_fn(move |request: http::Request<_>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(info.clone());
        answer(&*service, request, Arc::clone(&call))
    });
    let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_header_list_size(wire::LIST_BYTES)
        .max_concurrent_streams(streams)
        // A caller may give up all its calls at once, and the others that share its connection go on.
        .max_pending_accept_reset_streams(streams as usize);
    let mut connection = std::pin::pin!(http2.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = stop(stopped) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                // Its caller does not answer; no call of its is lost.
                () = without_calls(&calls) => return,
            }
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection over HTTP/2 has ended");
    }
}

/// Waits until a connection, which has been told to send no more calls, has had a second to end and has
/// none open. `calls` is held by the connection, by its service and by each call.
async fn without_calls(calls: &Arc<()>) {
    loop {
        tokio::time::sleep(TO_END).await;
        if Arc::strong_count(calls) == 2 {
            return;
        }
    }
}

async fn stop(mut stopped: watch::Receiver<bool>) {
    let _stopped = stopped.wait_for(|stop| *stop).await;
}

type Timer = Option<Pin<Box<Sleep>>>;

fn is_over(timer: &mut Timer, cx: &mut Context<'_>) -> bool {
    timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
}

/// Answers one request.
fn answer(
    service: &dyn Dispatch,
    mut request: http::Request<Body>,
    open: Arc<()>,
) -> impl Future<Output = Result<http::Response<Answered>, Infallible>> + use<> {
    let ends = wire::parse_timeout(request.headers()).and_then(|t| Instant::now().checked_add(t));
    if let Some(at) = ends {
        request.extensions_mut().insert(Deadline(at));
    }
    let grpc = request.headers().get(CONTENT_TYPE).is_some_and(is_grpc);
    if grpc {
        // As on a ring.
        request.headers_mut().remove(TE);
    }
    let mut handler = service.call(request);
    async move {
        let mut timer: Timer = ends.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let answered = std::future::poll_fn(|cx| {
            if is_over(&mut timer, cx) {
                return Poll::Ready(Err(ring::server::expired()));
            }
            std::panic::catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx))).map_or_else(
                |_| Poll::Ready(Err(ring::server::panicked())),
                |polled| polled.map(Ok),
            )
        });
        let answered = answered.await.and_then(|mut response| {
            if !grpc {
                return Ok(response);
            }
            let told = response.headers().contains_key(wire::GRPC_STATUS);
            if !told && response.status() != http::StatusCode::OK {
                return Err(wire::http_status(&response));
            }
            *response.status_mut() = http::StatusCode::OK;
            let headers = response.headers_mut();
            wire::of_a_call(headers);
            if !told {
                wire::check_response(headers)?;
            }
            Ok(response)
        });
        let mut response = answered.unwrap_or_else(Status::into_http);
        let ended = grpc && response.headers().contains_key(wire::GRPC_STATUS);
        if ended && let Some(mut fitting) = wire::fit(response.headers()) {
            fitting.entry(CONTENT_TYPE).or_insert(wire::GRPC);
            *response.headers_mut() = fitting;
        }
        Ok(response.map(|body| Answered { body, timer, grpc, ended, _open: open }))
    }
}

/// Whether a call with this content type is one of gRPC's own, whose answer ends with trailers.
fn is_grpc(content_type: &http::HeaderValue) -> bool {
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The body of an answer, with its deadline.
struct Answered {
    body: Body,
    timer: Timer,
    /// It ends with trailers.
    grpc: bool,
    ended: bool,
    /// The call is open until this is dropped.
    _open: Arc<()>,
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
            return Poll::Ready(Some(this.end(ring::server::expired())));
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
            Err(_) => Some(this.end(ring::server::panicked())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (!self.grpc && self.body.is_end_stream())
    }
}
