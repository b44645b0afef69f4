//! Connections that come in, at a bound address or by a stream of the program's own.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::security::Security;
use partywall_shm::listen;
use partywall_shm::socket;
use rustix::net::SocketType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, UdsConnectInfo};

use super::connection::{self, stop};
use super::connections::Connections;
use super::tls;
use crate::dispatch::BoxError;
use crate::error::Error;
use crate::server::options::Served;
use crate::target::Target;
use crate::unix;

/// How long no connection is accepted while the process has no descriptors or memory for one more.
const SHORT_OF: Duration = Duration::from_millis(50);
/// Connections that may wait to be accepted; as tokio's.
const BACKLOG: i32 = 1024;

/// How often it is said that connections are refused.
const REFUSED: Duration = Duration::from_secs(10);

/// A bound address.
pub(in crate::server) enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, tls::Terms),
    Unix(PathBuf, unix::Listener),
}

impl Listener {
    /// Binds `http://host:port`.
    pub(in crate::server) async fn tcp(url: &str) -> Result<Self, Error> {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let refused = |source| Error::Bind { url: url.into(), source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let _ = listener.local_addr().map(|at| tracing::info!(%at, "HTTP/2"));
        Ok(Self::Tcp(listener))
    }

    /// Binds `https://host:port`.
    pub(in crate::server) async fn tls(url: &str, terms: tls::Terms) -> Result<Self, Error> {
        let refused = |error| match error {
            Error::Bind { source, .. } => Error::Bind { url: url.into(), source },
            other => other,
        };
        let plain = url.replacen("https", "http", 1);
        match Self::tcp(&plain).await.map_err(refused)? {
            Self::Tcp(listener) => Ok(Self::Tls(listener, terms)),
            other => Ok(other),
        }
    }

    /// Binds a path; a socket that nobody listens at any more is replaced, and nothing else is.
    pub(in crate::server) fn unix(path: &Path) -> Result<Self, Error> {
        Self::unix_that(path, socket::refuse_descriptors)
    }

    fn unix_that(path: &Path, refuse: fn(BorrowedFd<'_>) -> bool) -> Result<Self, Error> {
        let io = |source| Error::Io { what: format!("listening at {}", path.display()), source };
        let mut plain = false;
        let (socket, own) = listen::listen(path, SocketType::STREAM, BACKLOG, |socket| {
            plain = refuse(socket.as_fd());
        })?;
        let listener = UnixListener::from_std(socket.into()).map_err(io)?;
        Ok(Self::Unix(path.into(), unix::Listener::new(listener, own, plain)))
    }

    /// Where it listens, with the port that the kernel has chosen.
    pub(in crate::server) fn address(&self) -> Result<Target, Error> {
        match self {
            Self::Tcp(listener) => {
                let what = "asking for the port of a socket";
                let io = |source| Error::Io { what: what.into(), source };
                Ok(Target::Http(format!("http://{}", listener.local_addr().map_err(io)?)))
            }
            Self::Tls(listener, _) => {
                let what = "asking for the port of a socket";
                let io = |source| Error::Io { what: what.into(), source };
                Ok(Target::Https(format!("https://{}", listener.local_addr().map_err(io)?)))
            }
            Self::Unix(path, _) => Ok(Target::Unix(path.clone())),
        }
    }

    /// Serves until it is time to stop, with at most so many connections.
    pub(in crate::server) async fn serve(
        self,
        served: Served,
        most: usize,
        stopped: watch::Receiver<bool>,
    ) {
        match self {
            Self::Tcp(listener) => {
                let incoming = served.options.http2.incoming(listener);
                serve(incoming, served, most, stopped).await;
            }
            Self::Tls(listener, terms) => {
                let incoming = served.options.http2.incoming(listener);
                let incoming =
                    incoming.map(move |tcp| tcp.map(|tcp| tls::Stream::new(terms.clone(), tcp)));
                serve(incoming, served, most, stopped).await;
            }
            Self::Unix(_, listener) => serve(listener, served, most, stopped).await,
        }
    }
}

/// Serves what comes until it is time to stop, and no longer than a drain may take after that. When no more
/// comes, those that have come are served until they end.
pub(in crate::server) async fn serve<I, IO, IE>(
    incoming: I,
    served: Served,
    most: usize,
    stopped: watch::Receiver<bool>,
) where
    I: Stream<Item = Result<IO, IE>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IE: Into<BoxError>,
{
    let within = served.options.drain;
    let over = async {
        stop(stopped.clone()).await;
        tokio::time::sleep(within).await;
    };
    tokio::select! {
        () = serve_among(Connections::new(most), incoming, served, stopped.clone()) => {}
        () = over => tracing::warn!(?within, "HTTP/2 calls are open after the drain"),
    }
}

async fn serve_among<I, IO, IE>(
    admitted: Arc<Connections>,
    incoming: I,
    served: Served,
    stopped: watch::Receiver<bool>,
) where
    I: Stream<Item = Result<IO, IE>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IE: Into<BoxError>,
{
    let mut connections = JoinSet::new();
    accept(incoming, &admitted, &served, &stopped, &mut connections).await;
    // From here on nobody can connect.
    while connections.join_next().await.is_some() {}
}

/// Takes in what comes, each connection in a task of its own.
async fn accept<I, IO, IE>(
    incoming: I,
    admitted: &Arc<Connections>,
    served: &Served,
    stopped: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) where
    I: Stream<Item = Result<IO, IE>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IE: Into<BoxError>,
{
    let mut incoming = pin!(incoming);
    let mut full = None;
    loop {
        let io = tokio::select! {
            () = stop(stopped.clone()) => return,
            io = incoming.next() => match io {
                Some(io) => io.map_err(Into::into),
                None => return,
            },
            Some(_ended) = connections.join_next() => continue,
        };
        match io {
            Ok(io) => {
                let (user, security) = told_of(&io.connect_info());
                match admitted.admit(user) {
                    Some(admitted) => {
                        let (services, options) =
                            (served.services.for_one(), served.options.clone());
                        let stopped = stopped.clone();
                        connections.spawn(async move {
                            let row = admitted.connection();
                            let io = (io, security);
                            connection::serve(io, services, &options, stopped, row).await;
                        });
                    }
                    None => warn_of_refused(&mut full, user, admitted.most()),
                }
            }
            Err(why) if is_shortage(&*why) => {
                tracing::warn!(%why, "no connection is accepted for a moment");
                admitted.end_one();
                tokio::time::sleep(SHORT_OF).await;
            }
            // The caller has hung up again.
            Err(why) => tracing::debug!(%why, "a connection was not accepted"),
        }
    }
}

/// The caller's user, where the kernel says so, and what protects a connection.
fn told_of(info: &dyn Any) -> (Option<u32>, Security) {
    if let Some(unix) = info.downcast_ref::<UdsConnectInfo>() {
        (unix.peer_cred.map(|peer| peer.uid()), Security::UNIX_SOCKET)
    } else if info.is::<tls::Caller>() {
        (None, Security::MUTUAL_TLS)
    } else if info.is::<TcpConnectInfo>() {
        (None, Security::NETWORK)
    } else {
        (None, Security::LOWEST)
    }
}

/// Whether taking in a connection failed for want of something of this process or the system.
fn is_shortage(why: &(dyn std::error::Error + 'static)) -> bool {
    use rustix::io::Errno;
    let code = why.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|e| code == Some(e.raw_os_error()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Routes;
    use crate::server::options::Options;
    use partywall_testkit::lingering;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use tokio::net::TcpStream;

    const LINGER: Duration = Duration::from_secs(5);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    #[tokio::test]
    async fn an_address_that_cannot_be_bound_is_an_error_with_one_remedy_by_its_cause() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let used = format!("http://{}", taken.local_addr().unwrap());
        // No label of a name is so long, so nobody is asked.
        let unknown = format!("http://{}:1", "a".repeat(64));
        let elsewhere = "http://192.0.2.1:0".to_owned();
        for (url, remedy) in [
            (used, "stop who listens there, or take another port"),
            (unknown, "take a host name that can be resolved, or an address"),
            (elsewhere, "take an address of this host"),
        ] {
            let error = Listener::tcp(&url).await.err().expect("an error").to_string();
            assert!(error.starts_with(&format!("listening at {url}: ")), "{error}");
            assert_eq!(error.split_once("remedy: ").unwrap().1, remedy);
        }
    }

    /// Serves nothing, so that each call is UNIMPLEMENTED.
    fn serve(
        listener: Listener,
        connections: Arc<Connections>,
    ) -> (watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let (stop, stopped) = watch::channel(false);
        let served = Served::new(Routes::default(), Options::default());
        let serving = async move {
            match listener {
                Listener::Tcp(tcp) => {
                    let incoming = served.options.http2.incoming(tcp);
                    serve_among(connections, incoming, served, stopped).await;
                }
                Listener::Unix(_, unix) => serve_among(connections, unix, served, stopped).await,
                Listener::Tls(..) => unreachable!("none is made here"),
            }
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
    async fn descriptors_sent_to_a_path_block_no_thread_of_the_server() {
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
    async fn silent_connections_leave_room_for_others() {
        let listener = Listener::tcp("http://127.0.0.1:0").await.unwrap();
        let Target::Http(url) = listener.address().unwrap() else { unreachable!() };
        let at = url.trim_start_matches("http://").to_owned();
        let (stop, serving) = serve(listener, Connections::new(32));
        let channel = tonic::transport::Endpoint::from_shared(url.clone()).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(TcpStream::connect(&at).await.unwrap());
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
