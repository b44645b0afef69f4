//! `--metrics`: an endpoint for Prometheus.

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use partywall_shm::address::Address;
use partywall_shm::listen;
use rustix::net::SocketType;

/// Upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 18] = [
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2,
    0.1, 0.5, 1.0, 10.0,
];

/// The choice, flattened into the arguments of a command.
#[derive(clap::Args)]
pub(crate) struct Exporter {
    /// Show what the coordinator counts to Prometheus, at http://HOST:PORT or unix:PATH. Whoever can
    /// connect there can read it.
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
    };
    let port = uri.port_u16().ok_or("a port is missing; write http://HOST:PORT")?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().map_err(|e| format!("{host}: {e}"))?;
    found.next().map(At::Tcp).ok_or_else(|| format!("{host} has no address"))
}

/// Listens where it was asked for, inside a runtime; whether anything is to be counted.
pub(crate) fn serve(exporter: &Exporter) -> Result<bool, Box<dyn Error>> {
    let Some(at) = &exporter.metrics else { return Ok(false) };
    let builder = PrometheusBuilder::new();
    let builder = match at {
        At::Tcp(address) => builder.with_http_listener(*address),
        At::Unix(path) => {
            free(path)?;
            builder.with_http_uds_listener(path)
        }
    };
    let durations = Matcher::Suffix("_seconds".into());
    let builder = builder.set_buckets_for_metric(durations, &BUCKETS)?;
    builder.install().map_err(|error| {
        format!("--metrics: {error}; remedy: take an address of this host that is free")
    })?;
    Ok(true)
}

/// Frees the path of a socket that nobody listens at. The exporter would remove whatever is there.
fn free(path: &Path) -> Result<(), String> {
    let bound = listen::listen(path, SocketType::STREAM, 1, |_| ());
    bound.map(drop).map_err(|error| format!("--metrics: {error}"))
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
        let refused = serve(&Exporter { metrics: Some(At::Unix(path.clone())) }).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "kept");
    }

    /// Such as the coordinator's own.
    #[test]
    fn a_socket_in_use_at_the_path_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used.sock");
        let used = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let refused = serve(&Exporter { metrics: Some(At::Unix(path.clone())) }).unwrap_err();
        assert!(refused.to_string().contains("used.sock"), "{refused}");
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        used.accept().unwrap();
    }
}
