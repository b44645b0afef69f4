//! The same services over HTTP/2: for callers that are elsewhere, or are not ours, and for tools.
//!
//! ```text
//! accept -> one task per connection -> one per call: handler -> head -> body -> trailers
//!   deadline passed at any point: the handler or the body is dropped, DEADLINE_EXCEEDED
//!   panic at any point: INTERNAL, the connection goes on
//!   reset by the caller, or its death: the handler or the body is dropped
//! too many connections, or one that says nothing: module `connections`
//! stop: no more connections, each is told to send no more calls, and ends with its last
//! ```
//!
//! A call means what it means on a ring ([`crate::link::service`]), with one difference: while a
//! caller takes none of an answer, nobody looks at the deadline of that call. Requests that are not
//! gRPC's (of a layer that speaks gRPC-Web, say) get the service's answer as it is.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
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
use partywall_abi::security::Security;
use partywall_shm::listen::{self, BoundPath};
use partywall_shm::socket;
use rustix::net::SocketType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::Connected;

use crate::dispatch::{Dispatch, Services};
use crate::error::Error;
use crate::peer::Deadline;
use crate::{link, unix, wire};

mod connections;

pub(crate) use connections::Connection;
pub(super) use connections::most;
use connections::{Admitted, Connections, Heard, Open};

/// How long nobody is taken in while the process has no descriptors or memory for one more.
const SHORT_OF: Duration = Duration::from_millis(50);
/// Connections that may wait to be taken in; as tokio's.
const BACKLOG: i32 = 1024;

/// How often it is said that connections are refused.
const REFUSED: Duration = Duration::from_secs(10);

/// How long a connection without calls may take to end.
const TO_END: Duration = Duration::from_secs(1);

/// How long a connection that goes for another one may take, and longer only while it has a call open.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// A bound address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: unix::Listener, _own: BoundPath },
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
        Self::unix_that(path, socket::refuse_descriptors)
    }

    fn unix_that(path: &Path, refuse: fn(BorrowedFd<'_>) -> bool) -> Result<Self, Error> {
        let io = |source| Error::Io { what: format!("listening at {}", path.display()), source };
        let mut plain = false;
        let (socket, own) = listen::listen(path, SocketType::STREAM, BACKLOG, |socket| {
            plain = refuse(socket.as_fd());
        })?;
        let listener = UnixListener::from_std(socket.into()).map_err(io)?;
        Ok(Self::Unix { listener: unix::Listener::new(listener, plain), _own: own })
    }

    /// Serves until it is time to stop, then lets the calls under way finish.
    pub(super) async fn serve(
        self,
        services: Services,
        (streams, most): (u32, usize),
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        self.serve_those(services, (streams, Connections::new(most)), stopped).await
    }

    async fn serve_those(
        self,
        services: Services,
        (streams, admitted): (u32, Arc<Connections>),
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let mut full = None;
        if let Self::Tcp(listener) = &self {
            let _ = listener.local_addr().map(|at| tracing::info!(%at, "HTTP/2"));
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop(stopped.clone()) => break,
                accepted = self.accept() => match accepted {
                    Ok(accepted) => match admitted.admit(accepted.user()) {
                        Some(admitted) => {
                            let (services, stopped) = (services.for_one(), stopped.clone());
                            connections.spawn(accepted.serve(services, streams, stopped, admitted));
                        }
                        None => warn_of_refused(&mut full, accepted.user(), admitted.most()),
                    },
                    Err(why) if is_shortage(&why) => {
                        tracing::warn!(%why, "no connection is taken in for a moment");
                        admitted.end_one();
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
            Self::Unix { listener, .. } => Accepted::Unix(listener.accept().await?),
        })
    }
}

/// Whether taking in a connection failed for want of something of this process or the system.
fn is_shortage(why: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|e| why.raw_os_error() == Some(e.raw_os_error()))
}

/// Says, now and then, that connections are refused.
fn warn_of_refused(last: &mut Option<Instant>, user: Option<u32>, most: usize) {
    if last.is_none_or(|at| at.elapsed() >= REFUSED) {
        *last = Some(Instant::now());
        tracing::warn!(
            ?user,
            most,
            "HTTP/2 connections are refused: there are as many as this process has descriptors for, or as \
             one user may have, and none is idle; remedy: let it have more (`ulimit -n`)"
        );
    }
}

enum Accepted {
    Tcp(TcpStream),
    Unix(unix::Stream),
}

impl Accepted {
    /// The caller's user, where the kernel says so.
    fn user(&self) -> Option<u32> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(io) => io.peer().ok().map(|peer| peer.uid()),
        }
    }

    async fn serve(
        self,
        service: Arc<dyn Dispatch>,
        streams: u32,
        stopped: watch::Receiver<bool>,
        admitted: Admitted,
    ) {
        let row = admitted.connection();
        match self {
            Self::Tcp(io) => {
                serve_connection((io, Security::NETWORK), service, streams, stopped, row).await;
            }
            Self::Unix(io) => {
                serve_connection((io, Security::UNIX_SOCKET), service, streams, stopped, row).await;
            }
        }
    }
}

/// Serves one connection, of so many calls at a time, until the caller ends it; once `stopped` says
/// so, until its last call has ended. Its requests say what protects it.
pub(crate) async fn serve_connection<I>(
    (io, security): (I, Security),
    service: Arc<dyn Dispatch>,
    streams: u32,
    stopped: watch::Receiver<bool>,
    row: Arc<Connection>,
) where
    I: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let info = io.connect_info();
    let calls = Arc::clone(&row);
    let service = hyper::service::service_fn(move |request: http::Request<_>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(info.clone());
        request.extensions_mut().insert(security);
        answer(&*service, request, calls.begin())
    });
    let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_header_list_size(wire::LIST_BYTES)
        .max_concurrent_streams(streams)
        // A caller may give up all its calls at once, and the others that share its connection go on.
        .max_pending_accept_reset_streams(streams as usize);
    let mut connection = std::pin::pin!(
        http2.serve_connection(TokioIo::new(Heard::new(io, Arc::clone(&row))), service)
    );
    let ended = tokio::select! {
        // What has come counts before the time that it took.
        biased;
        ended = &mut connection => Some(ended),
        () = stop(stopped) => None,
        () = row.has_to_go() => {
            // Its caller is told, and a call that has come already is answered.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                _ended = connection => {}
                () = last_calls(&row) => {}
            }
            return;
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                // Its caller does not answer; no call of its is lost.
                () = without_calls(&row) => return,
            }
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection over HTTP/2 has ended");
    }
}

/// Waits until a connection that has to go for another one has had a moment, in which its preface may come
/// with a call, and has no call open.
async fn last_calls(connection: &Connection) {
    loop {
        tokio::time::sleep(LAST_CALLS).await;
        if connection.is_idle() {
            return;
        }
    }
}

/// Waits until a connection, which has been told to send no more calls, has had a second to end and has
/// none open.
async fn without_calls(connection: &Connection) {
    loop {
        tokio::time::sleep(TO_END).await;
        if connection.is_idle() {
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
    open: Open,
) -> impl Future<Output = Result<http::Response<Answered>, Infallible>> + use<> {
    let ends = wire::parse_timeout(request.headers()).and_then(|t| Instant::now().checked_add(t));
    if let Some(at) = ends {
        request.extensions_mut().insert(Deadline(at));
    }
    let grpc = request.headers().get(CONTENT_TYPE).is_some_and(is_grpc);
    // As on a ring.
    let fits = match grpc {
        true => {
            request.headers_mut().remove(TE);
            wire::check_request(request.uri().path(), request.headers())
        }
        false => Ok(()),
    };
    let handler = fits.map(|()| service.call(request));
    async move {
        let mut timer: Timer = ends.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let answered = match handler {
            Ok(mut handler) => {
                std::future::poll_fn(|cx| {
                    if is_over(&mut timer, cx) {
                        return Poll::Ready(Err(link::service::expired()));
                    }
                    let polled =
                        std::panic::catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx)));
                    polled.map_or_else(
                        |_| Poll::Ready(Err(link::service::panicked())),
                        |polled| polled.map(Ok),
                    )
                })
                .await
            }
            Err(refused) => Err(refused),
        };
        let answered = answered.and_then(|mut response| {
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
            return Poll::Ready(Some(this.end(link::service::expired())));
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
            Err(_) => Some(this.end(link::service::panicked())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (!self.grpc && self.body.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Routes;
    use partywall_testkit::lingering;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const LINGER: Duration = Duration::from_secs(5);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    /// Serves nothing, so that each call is UNIMPLEMENTED.
    fn serve(
        listener: Listener,
        connections: Arc<Connections>,
    ) -> (watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let (stop, stopped) = watch::channel(false);
        let services = Services::new(Routes::default());
        let serving = async move {
            listener.serve_those(services, (16, connections), stopped).await.unwrap()
        };
        (stop, tokio::spawn(serving))
    }

    async fn call(url: &str) -> tonic::Code {
        let endpoint = tonic::transport::Endpoint::from_shared(url.to_string()).unwrap();
        let channel = endpoint.connect().await.unwrap();
        call_on(channel).await
    }

    async fn call_on(channel: tonic::transport::Channel) -> tonic::Code {
        let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
        client.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap_err().code()
    }

    /// One for each worker thread and the whole server hung, ring callers included.
    #[tokio::test]
    async fn descriptors_that_are_sent_to_a_path_hold_up_no_thread_of_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h2.sock");
        // As on kernels before 6.16, which let them in, and as on this one.
        for refuse in [|_: BorrowedFd<'_>| false, socket::refuse_descriptors] {
            let lets_in = !refuse(socket::pair().unwrap().0.as_fd());
            let listener = Listener::unix_that(&path, refuse).unwrap();
            let (stop, serving) = serve(listener, Connections::new(64));
            let begin = Instant::now();
            let attack = || {
                let peer = UnixStream::connect(&path).unwrap();
                let (slow, other) = lingering(LINGER).unwrap();
                let sent = socket::send(peer.as_fd(), PREFACE, &[slow.as_fd()]);
                assert_eq!(sent.is_ok(), lets_in, "{sent:?}");
                // The last one to have it is who receives it; one that was not sent would linger here.
                if lets_in {
                    drop(slow);
                } else {
                    let _kept = std::mem::ManuallyDrop::new(slow);
                }
                (peer, other)
            };
            let _hostile: Vec<_> = (0..8).map(|_| attack()).collect();
            for _ in 0..3 {
                assert_eq!(
                    call(&format!("unix:{}", path.display())).await,
                    tonic::Code::Unimplemented
                );
            }
            // One that nobody has accepted goes with the listener.
            let _last = attack();
            stop.send_replace(true);
            serving.await.unwrap();
            assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        }
    }

    /// Connections that said nothing took all descriptors of the server, and its ring callers with them.
    #[tokio::test]
    async fn connections_that_say_nothing_leave_the_others_their_way_in() {
        let listener = Listener::tcp("http://127.0.0.1:0").await.unwrap();
        let Listener::Tcp(tcp) = &listener else { unreachable!() };
        let at = tcp.local_addr().unwrap();
        let (stop, serving) = serve(listener, Connections::new(32));
        let url = format!("http://{at}");
        let channel = tonic::transport::Endpoint::from_shared(url.clone()).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(TcpStream::connect(at).await.unwrap());
            tokio::task::yield_now().await;
        }
        assert_eq!(call(&url).await, tonic::Code::Unimplemented);
        assert_eq!(call_on(channel).await, tonic::Code::Unimplemented, "it had begun");
        // Those that had to go hear of it.
        let end = Instant::now() + Duration::from_secs(5);
        let mut gone = 0;
        while gone < 168 && Instant::now() < end {
            let over = |s: &TcpStream| {
                let mut bytes = [0; 64];
                loop {
                    match s.try_read(&mut bytes) {
                        Ok(0) => return true,
                        Ok(_) => {}
                        Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
                    }
                }
            };
            tokio::time::sleep(Duration::from_millis(10)).await;
            silent.retain(|s| !over(s));
            gone = 200 - silent.len();
        }
        assert!((168..200).contains(&gone), "{gone} of 200 are gone, and 32 may be there");
        drop(silent);
        stop.send_replace(true);
        serving.await.unwrap();
    }

    /// It was there for as long as its caller liked.
    #[tokio::test]
    async fn a_connection_without_a_preface_is_closed() {
        const WITHIN: Duration = Duration::from_secs(1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h2.sock");
        let connections = Connections::within(32, WITHIN);
        let (_stop, _serving) = serve(Listener::unix(&path).unwrap(), connections);
        let ask = |said: &'static [u8]| {
            let mut peer = UnixStream::connect(&path).unwrap();
            peer.write_all(said).unwrap();
            peer.set_read_timeout(Some(5 * WITHIN)).unwrap();
            tokio::task::spawn_blocking(move || {
                let begin = Instant::now();
                let over = peer.read_to_end(&mut Vec::new());
                (said.len(), over.is_ok(), begin.elapsed())
            })
        };
        for asked in [&PREFACE[..0], &PREFACE[..23], PREFACE].map(ask) {
            let (bytes, over, took) = asked.await.unwrap();
            assert_eq!(over, bytes < 24, "after {bytes} bytes");
            assert!(took >= WITHIN, "{took:?} after {bytes} bytes");
        }
    }
}
