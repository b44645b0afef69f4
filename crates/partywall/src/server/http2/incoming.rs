//! Connections that the program accepts itself.

use std::future::Future;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::transport::server::Connected;
use tower::{Layer, Service};

use super::connections::most;
use super::listener::serve;
use crate::dispatch::BoxError;
use crate::error::Error;
use crate::server::{Router, Routes};

/// Serving connections that the program accepts itself, in builds with the feature `http2`.
impl<L> Router<L> {
    /// Serves HTTP/2 on connections that the program accepts itself; see
    /// [`Router::serve_with_incoming_shutdown`].
    ///
    /// # Errors
    /// As there.
    pub async fn serve_with_incoming<I, IO, IE, B>(self, incoming: I) -> Result<(), Error>
    where
        I: Stream<Item = Result<IO, IE>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IE: Into<BoxError>,
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.serve_with_incoming_shutdown(incoming, std::future::pending()).await
    }

    /// Serves HTTP/2 on connections that the program accepts itself, as tonic's function of this name: any
    /// stream of sockets, of TLS connections, of pipes in memory. When `shutdown` is ready the stream is
    /// dropped, and calls that are open have [`Server::drain_timeout`](crate::Server::drain_timeout) to
    /// end. A stream that ends leaves the connections that have come: they are served until their callers
    /// end them, or `shutdown` is ready.
    ///
    /// No coordinator is asked, and the caller's identity is not verified. The options of TCP sockets are the
    /// program's own. What protects a connection ([`security_of`](crate::security_of)) is what its type says
    /// by [`Connected`]: a Unix socket, or TCP; of all others the lowest level is told.
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
    pub async fn serve_with_incoming_shutdown<I, IO, IE, F, B>(
        self,
        incoming: I,
        shutdown: F,
    ) -> Result<(), Error>
    where
        I: Stream<Item = Result<IO, IE>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IE: Into<BoxError>,
        F: Future<Output = ()>,
        L: Layer<Routes>,
        L::Service:
            Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send,
        <L::Service as Service<http::Request<Body>>>::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (served, _) = self.served();
        let stop = tokio::sync::watch::Sender::new(false);
        let serving = serve(incoming, served, most(false), stop.subscribe());
        let told = async {
            shutdown.await;
            stop.send_replace(true);
            std::future::pending().await
        };
        tokio::select! {
            () = serving => Ok(()),
            never = told => never,
        }
    }
}
