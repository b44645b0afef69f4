//! `--metrics`: an endpoint for Prometheus.
//!
//! Whoever can connect may be hostile. An exchange is one request and one answer, within a time; of too many
//! connections the oldest goes; and all that ask within a second get the same text. All of it is done by a
//! thread of its own, so that a reader holds up neither the coordinator nor what `up` runs.

mod endpoint;

use std::error::Error;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use partywall_shm::address::Address;
use partywall_shm::listen::{self, BoundPath};
use partywall_shm::socket;
use rustix::fs::OFlags;
use rustix::net::SocketType;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};

use endpoint::Text;

/// Upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 18] = [
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2,
    0.1, 0.5, 1.0, 10.0,
];

/// How often what has been recorded is summed up, read or not.
const UPKEEP: Duration = Duration::from_secs(5);
/// The mode of a path: to connect is to write.
const MODE: u32 = 0o660;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The choice, flattened into the arguments of a command.
#[derive(clap::Args)]
pub(crate) struct Exporter {
    /// Show what is counted to Prometheus, at http://HOST:PORT or unix:PATH, as /metrics.
    /// Whoever can connect there can read it: at a path the user and the group of this process.
    #[arg(long, value_name = "ADDRESS", value_parser = parse)]
    metrics: Option<At>,
}

/// Where metrics are read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

fn parse(text: &str) -> Result<At, String> {
    let uri = match Address::parse(text).map_err(|e| e.to_string())? {
        Address::Unix(path) => return Ok(At::Unix(path)),
        Address::Http(uri) => uri,
        Address::Https(_) => {
            return Err(format!("`{text}`: metrics are shown without TLS; write http://HOST:PORT"));
        }
    };
    let port = uri.port_u16().ok_or("a port is missing; write http://HOST:PORT")?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().map_err(|e| format!("{host}: {e}"))?;
    found.next().map(At::Tcp).ok_or_else(|| format!("{host} has no address"))
}

/// An endpoint, which is there as long as the value.
pub(crate) struct Serving {
    /// Taken when it is dropped only.
    runtime: Option<Runtime>,
    /// Removes the path.
    own: Option<BoundPath>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.own.take());
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Listens where it was asked for; none where nothing is to be counted.
pub(crate) fn serve(exporter: &Exporter) -> Result<Option<Serving>, Box<dyn Error>> {
    let Some(at) = &exporter.metrics else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("metrics")
        .enable_all()
        .build()?;
    let on = runtime.handle().clone();
    // From here on an error ends it without a wait.
    let mut serving = Serving { runtime: Some(runtime), own: None };
    let entered = on.enter();
    let listener = match at {
        At::Tcp(address) => Listener::Tcp(tcp(*address)?),
        At::Unix(path) => {
            let (listener, own) = unix(path).map_err(|error| format!("--metrics: {error}"))?;
            serving.own = Some(own);
            Listener::Unix(listener)
        }
    };
    drop(entered);
    let durations = Matcher::Suffix("_seconds".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(durations, &BUCKETS)?;
    let handle = builder.install_recorder()?;
    let rendered = handle.clone();
    let text = Arc::new(Text::new(move || rendered.render()));
    on.spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            handle.run_upkeep();
        }
    });
    match listener {
        Listener::Tcp(tcp) => on.spawn(endpoint::serve(TcpListenerStream::new(tcp), text)),
        Listener::Unix(unix) => on.spawn(endpoint::serve(UnixListenerStream::new(unix), text)),
    };
    Ok(Some(serving))
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

fn tcp(address: SocketAddr) -> Result<TcpListener, String> {
    let bound = std::net::TcpListener::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket)
    });
    let remedy = "take an address of this host that is free";
    bound.map_err(|error| format!("--metrics http://{address}: {error}; remedy: {remedy}"))
}

/// Nobody can connect before the path has its mode.
fn unix(path: &Path) -> Result<(UnixListener, BoundPath), Box<dyn Error>> {
    let mut restricted = Ok(());
    let (socket, own) = listen::listen(path, SocketType::STREAM, BACKLOG, |socket| {
        // Where the kernel cannot, what is sent is closed by the endpoint's thread, which holds up nobody.
        let _refuses = socket::refuse_descriptors(socket.as_fd());
        restricted = restrict(path);
    })?;
    restricted.map_err(|error| format!("{}: chmod: {error}", path.display()))?;
    Ok((UnixListener::from_std(socket.into())?, own))
}

/// Gives a path its mode, whatever the umask is; a link that somebody has put there is not followed.
fn restrict(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let file = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(file, Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_the_host_or_a_path() {
        assert_eq!(parse("http://127.0.0.1:9464"), Ok(At::Tcp("127.0.0.1:9464".parse().unwrap())));
        assert_eq!(parse("http://[::1]:9464"), Ok(At::Tcp("[::1]:9464".parse().unwrap())));
        assert_eq!(parse("unix:/run/m.sock"), Ok(At::Unix("/run/m.sock".into())));
        assert!(parse("127.0.0.1:9464").is_err());
        assert!(parse("http://127.0.0.1").unwrap_err().contains("port"));
    }

    #[test]
    fn a_file_at_the_path_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        let refused = serve(&Exporter { metrics: Some(At::Unix(path.clone())) }).err().unwrap();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "kept");
    }

    /// Such as the coordinator's own.
    #[test]
    fn a_socket_in_use_at_the_path_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used.sock");
        let used = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let refused = serve(&Exporter { metrics: Some(At::Unix(path.clone())) }).err().unwrap();
        assert!(refused.to_string().contains("used.sock"), "{refused}");
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        used.accept().unwrap();
    }
}
