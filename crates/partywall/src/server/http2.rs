//! The same services over HTTP/2, by tonic's own server: for callers that are elsewhere, or are
//! not ours, and for tools.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::body::Body;
use tower::Service;

use super::Dispatch;
use crate::error::Error;

/// A bound address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds `http://host:port`.
    pub(super) async fn tcp(url: &str) -> Result<Self, Error> {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let what = format!("listening at {url}");
        let listener =
            TcpListener::bind(address).await.map_err(|source| Error::Io { what, source })?;
        Ok(Self::Tcp(listener))
    }

    /// Binds a path; a socket that nobody listens at any more is replaced.
    pub(super) fn unix(path: &Path) -> Result<Self, Error> {
        let fail = |source| Error::Io { what: format!("listening at {}", path.display()), source };
        let listener = match UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                match std::os::unix::net::UnixStream::connect(path) {
                    Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                    _ => return Err(fail(e)),
                }
                std::fs::remove_file(path).map_err(fail)?;
                UnixListener::bind(path).map_err(fail)?
            }
            other => other.map_err(fail)?,
        };
        Ok(Self::Unix(listener, path.into()))
    }

    /// Serves until it is time to stop, then lets the calls under way finish.
    pub(super) async fn serve(
        self,
        dispatch: Arc<dyn Dispatch>,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let router = axum::Router::new().fallback_service(Bridge(dispatch));
        let server =
            tonic::transport::Server::builder().add_routes(tonic::service::Routes::from(router));
        let stop = async move {
            let _dropped = stopped.wait_for(|stop| *stop).await;
        };
        match self {
            Self::Tcp(listener) => {
                let _ = listener.local_addr().map(|at| tracing::info!(%at, "HTTP/2"));
                let incoming = TcpListenerStream::new(listener);
                server.serve_with_incoming_shutdown(incoming, stop).await?;
            }
            Self::Unix(listener, path) => {
                let incoming = UnixListenerStream::new(listener);
                let served = server.serve_with_incoming_shutdown(incoming, stop).await;
                let _gone = std::fs::remove_file(path);
                served?;
            }
        }
        Ok(())
    }
}

/// The services as axum calls them.
#[derive(Clone)]
struct Bridge(Arc<dyn Dispatch>);

impl Service<http::Request<axum::body::Body>> for Bridge {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let answer = self.0.call(request.map(Body::new));
        Box::pin(async move { Ok(answer.await) })
    }
}
