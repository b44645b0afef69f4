//! Connections that the program accepts itself.

use std::future::Future;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tonic::transport::server::Connected;
use tower::Layer;

use super::connections::most;
use super::listener::serve;
use crate::dispatch::{BoxError, HttpService};
use crate::error::Error;
use crate::server::{Router, Routes};

/// Serving connections that the program accepts itself, in builds with the feature `http2`.
impl<L> Router<L> {
    /// Serves HTTP/2 on connections that the program accepts itself; see
    /// [`Router::serve_with_incoming_shutdown`].
    ///
    /// # Errors
    /// As there.
    pub async fn serve_with_incoming<I, IO, IE>(self, incoming: I) -> Result<(), Error>
    where
        I: Stream<Item = Result<IO, IE>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IE: Into<BoxError>,
        L: Layer<Routes, Service: HttpService>,
    {
        self.serve_with_incoming_shutdown(incoming, std::future::pending()).await
    }

    /// Serves HTTP/2 on connections that the program accepts itself, as tonic's function of this name: any
    /// stream of sockets, of TLS connections, of pipes in memory. When `shutdown` is ready the stream is
    /// dropped, and calls that are open have [`Server::drain_timeout`](crate::Server::drain_timeout) to
    /// end. A stream that ends leaves the connections that have come: they are served until their callers
    /// end them, or `shutdown` is ready.
    ///
    /// No coordinator is asked, and the caller's identity is not verified: a handler finds no
    /// [`Peer`](crate::Peer). The options of TCP sockets are the program's own. What protects a connection
    /// ([`security_of`](crate::security_of)) follows from what its type says by [`Connected`]:
    ///
    /// | [`Connected::ConnectInfo`] | security |
    /// | --- | --- |
    /// | `UdsConnectInfo` | [`Security::UNIX_SOCKET`](crate::Security::UNIX_SOCKET) |
    /// | `TcpConnectInfo` | [`Security::NETWORK`](crate::Security::NETWORK) |
    /// | any other | [`Security::LOWEST`](crate::Security::LOWEST) |
    ///
    /// The connections have at most three quarters of this process's descriptors (RLIMIT_NOFILE). Beyond,
    /// a connection without calls is closed for a new one.
    ///
    /// # Unix sockets of the program's own
    ///
    /// A handler finds the `UdsConnectInfo` of a [`tokio::net::UnixStream`] in the extensions of a request.
    /// Its `peer_cred` is what the kernel says of the process that connected (SO_PEERCRED): user, group and
    /// process number at that time. It says nothing of the program, and nothing of a process that has the
    /// socket by inheritance or by SCM_RIGHTS. Each user has at most half of the connections that the others
    /// leave.
    ///
    /// A caller may send descriptors over such a socket. Nobody takes them: the kernel closes them on the
    /// thread that reads, a worker of the runtime, and that can block it for as long as the caller likes.
    /// For callers that are not trusted, serve at `unix:/PATH` instead ([`Router::serve`]), where
    /// descriptors block nobody. Else have the listener refuse them before it listens, by the socket option
    /// SO_PASSRIGHTS (Linux 6.16 and later).
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let (client, server) = tokio::io::duplex(1 << 16);
    /// let router = partywall::Server::builder().add_routes(partywall::Routes::default());
    /// let incoming = tokio_stream::once(Ok::<_, std::io::Error>(server));
    /// tokio::spawn(router.serve_with_incoming(incoming));
    /// # drop(client); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// An error of the stream ends nothing: it is logged, and the next connection is taken.
    pub async fn serve_with_incoming_shutdown<I, IO, IE, F>(
        self,
        incoming: I,
        shutdown: F,
    ) -> Result<(), Error>
    where
        I: Stream<Item = Result<IO, IE>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IE: Into<BoxError>,
        F: Future<Output = ()>,
        L: Layer<Routes, Service: HttpService>,
    {
        let (served, _) = self.served();
        let stop = tokio::sync::watch::Sender::new(false);
        let serving = serve(incoming, served, most(false), stop.subscribe());
        let stopping = async {
            shutdown.await;
            stop.send_replace(true);
            std::future::pending().await
        };
        tokio::select! {
            () = serving => Ok(()),
            never = stopping => never,
        }
    }
}
