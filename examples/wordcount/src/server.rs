//! The server's surroundings: where it listens and when it stops.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::{fs::FileTypeExt, net::UnixStream as BlockingStream},
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    task::{Context, Poll},
};

use clap::Parser;
use tokio::{
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
};
use tokio_stream::Stream;

use crate::{Error, exit};

/// Counts words for its callers until Ctrl-C or SIGTERM.
#[derive(Debug, Parser)]
struct Options {
    /// Where to serve: `unix:/path` over gRPC; over Partywall a name and, after commas, the
    /// HTTP/2 addresses to serve at as well, `unix:/path` or `http://host:port`
    #[arg(value_name = "LISTEN")]
    listen: String,
}

/// Ends when the server is to stop.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the command-line server. `serve` serves at the given place until the shutdown.
pub async fn run<S>(serve: S) -> ExitCode
where
    S: AsyncFnOnce(String, Shutdown) -> Result<(), Error>,
{
    let options = Options::parse();
    let served = async {
        let shutdown = shutdown()?;
        serve(options.listen, shutdown).await
    };
    exit(served.await)
}

fn shutdown() -> io::Result<Shutdown> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(Box::pin(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }))
}

/// The connections at a Unix socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct Incoming {
    listener: UnixListener,
    path: PathBuf,
}

/// Listens at `unix:/path`.
pub fn unix(listen: &str) -> Result<Incoming, Error> {
    let path = listen.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path));
    let path = match path {
        Some(path) if !path.is_empty() && !path.contains(',') => Path::new(path),
        _ => return Err(format!("cannot serve at `{listen}`: give one `unix:/path`").into()),
    };
    let listener = bind(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "; stop the server there or choose another path",
            ErrorKind::InvalidInput => "; choose a shorter path",
            _ => "; check that the directory exists and can be written",
        };
        format!("cannot serve at `{listen}`: {error}{remedy}")
    })?;
    Ok(Incoming { listener, path: path.to_owned() })
}

/// Binds a socket. One that a server left behind when it was killed makes way.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_dead(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

fn is_dead(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    is_socket && BlockingStream::connect(path).is_err_and(refused)
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.listener.poll_accept(cx).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // If it is already gone, that is as good.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(listen: &str) -> String {
        unix(listen).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn only_a_unix_socket_is_served() {
        for listen in ["", "wordcount", "unix:", "unix://", "unix:/a,unix:/b", "http://[::1]:1"] {
            assert_eq!(error(listen), format!("cannot serve at `{listen}`: give one `unix:/path`"));
        }
    }

    #[tokio::test]
    async fn sockets_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listen = format!("unix:{}", path.display());

        let incoming = unix(&listen).unwrap();
        let other = format!("unix://{}", path.display());
        assert!(error(&other).ends_with("; stop the server there or choose another path"));
        drop(incoming);
        assert!(!path.exists());

        // Left behind: nobody listens there any more.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(unix(&listen).unwrap());

        // A file of another kind is never removed.
        fs::write(&path, "data").unwrap();
        assert!(error(&listen).contains("in use"));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[tokio::test]
    async fn paths_that_cannot_be() {
        assert!(error("unix:/no/such/directory/s").ends_with("exists and can be written"));
        assert!(error(&format!("unix:/{}", "x".repeat(200))).ends_with("choose a shorter path"));
    }
}
