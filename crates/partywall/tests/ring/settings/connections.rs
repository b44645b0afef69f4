//! What is set for HTTP/2 and TCP is seen by who listens at the address, whether the target is that address
//! or a name that the policy maps to it.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use partywall::{Endpoint, Error, Route, Security};
use tonic::Code;

use super::super::setup::Host;
use super::{any, call, held, soon};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// A frame of HTTP/2: its type and payload.
fn frame(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload)?;
    Ok((head[3], payload))
}

/// The settings of a connection that begins, by their numbers, and its window beyond the first 65,535
/// bytes.
fn begun(stream: &mut TcpStream) -> (BTreeMap<u16, u32>, u32) {
    stream.set_read_timeout(Some(super::LONG)).unwrap();
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).unwrap();
    assert_eq!(preface, PREFACE);
    let (kind, payload) = frame(stream).unwrap();
    assert_eq!(kind, SETTINGS);
    let settings =
        payload.as_chunks::<6>().0.iter().map(|s| {
            (u16::from_be_bytes([s[0], s[1]]), u32::from_be_bytes([s[2], s[3], s[4], s[5]]))
        });
    let settings = settings.collect();
    let (kind, payload) = frame(stream).unwrap();
    assert_eq!(kind, WINDOW_UPDATE);
    (settings, u32::from_be_bytes(payload.try_into().unwrap()))
}

/// A listener, and endpoints that lead to it: by its address, and by a name.
fn listener() -> (TcpListener, Host, [Endpoint; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let host = Host::with(&format!("[service.far.call]\nanyone = ['*']\n[names]\nfar = '{url}'\n"));
    let endpoints =
        [&*url, "partywall:///far"].map(|t| Endpoint::new(t).unwrap().coordinator(&host.socket));
    (listener, host, endpoints)
}

async fn accepted(listener: &TcpListener) -> (TcpStream, std::net::SocketAddr) {
    let listener = listener.try_clone().unwrap();
    tokio::task::spawn_blocking(move || listener.accept().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_gets_the_limits_of_http2() {
    let (listener, _host, endpoints) = listener();
    for endpoint in endpoints {
        let endpoint = endpoint
            .initial_stream_window_size(100_000)
            .initial_connection_window_size(200_000)
            .http2_header_table_size(5000)
            .http2_max_header_list_size(70_000)
            .max_frame_size(20_000);
        let channel = endpoint.connect().await.unwrap();
        let (mut stream, _) = accepted(&listener).await;
        let begun = tokio::task::spawn_blocking(move || begun(&mut stream)).await.unwrap();
        let (settings, window) = begun;
        for (number, value) in [(1, 5000), (4, 100_000), (5, 20_000), (6, 70_000)] {
            assert_eq!(settings.get(&number), Some(&value), "{endpoint:?}: {settings:?}");
        }
        assert_eq!(window, 200_000 - 65_535);
        drop(channel);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_kept_alive_as_it_is_set() {
    let (listener, _host, endpoints) = listener();
    for endpoint in endpoints {
        let tasks = Arc::new(AtomicUsize::new(0));
        let channel = endpoint
            .http2_keep_alive_interval(Duration::from_millis(20))
            .keep_alive_timeout(Duration::from_millis(50))
            .keep_alive_while_idle(true)
            .executor(Counting(Arc::clone(&tasks)))
            .tcp_keepalive(Some(Duration::from_secs(60)))
            .local_address(Some([127, 0, 0, 7].into()))
            .connect()
            .await
            .unwrap();
        let (mut stream, from) = accepted(&listener).await;
        assert_eq!(from.ip(), std::net::IpAddr::from([127, 0, 0, 7]));
        assert!(tasks.load(Ordering::SeqCst) > 0, "the executor runs the connection");
        assert!(has_keepalive_timer(from.port()), "the kernel asks as well");
        let frames = tokio::task::spawn_blocking(move || {
            begun(&mut stream);
            std::iter::from_fn(|| frame(&mut stream).ok()).map(|f| f.0).collect::<Vec<_>>()
        });
        // A server that does not answer loses the connection, which ends its reading.
        let frames = soon(frames).await.unwrap();
        assert!(frames.contains(&PING), "{frames:?}");
        drop(channel);
    }
}

/// Counts tasks, and spawns them.
#[derive(Clone)]
struct Counting(Arc<AtomicUsize>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Counting {
    fn execute(&self, task: F) {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(task);
    }
}

/// Whether the kernel's list of sockets has a keepalive timer for that of a local port: see proc(5).
fn has_keepalive_timer(port: u16) -> bool {
    let list = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ours = format!(":{port:04X}");
    list.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 5 && fields[1].ends_with(&ours) && fields[5].starts_with("02:")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connector_of_the_programs_own_makes_the_connections() {
    let mut held = held().await;
    let path = held.service.address.strip_prefix("unix:").unwrap().to_owned();
    let connector = move || {
        let path = path.clone();
        tower::service_fn(move |uri: http::Uri| {
            assert_eq!(uri.to_string(), "http://greeter.example/");
            let path = path.clone();
            async move {
                Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?))
            }
        })
    };
    let endpoint = Endpoint::from_static("http://greeter.example");
    let eager = endpoint.connect_with_connector(connector()).await.unwrap();
    for channel in [eager, endpoint.connect_with_connector_lazy(connector())] {
        let Some(Route::Http2 { url, security }) = channel.route() else { panic!("no address") };
        assert_eq!((&*url, security), ("http://greeter.example", Security::LOWEST));
        let calling = tokio::spawn(async move { call(&channel, any()).await });
        held.begun().await.send(()).unwrap();
        calling.await.unwrap().unwrap();
    }
    let name = Endpoint::from_static("partywall:///test");
    let error = name.connect_with_connector(connector()).await.unwrap_err();
    assert!(matches!(error, Error::Setting { name: "connect_with_connector", .. }), "{error}");
    let status = call(&name.connect_with_connector_lazy(connector()), any()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let error = endpoint.ring_only(true).connect_with_connector(connector()).await.unwrap_err();
    assert!(matches!(error, Error::NoRing { .. }), "{error}");
}

/// Fails so many times, then connects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connector_that_fails_is_waited_for_or_named() {
    let mut held = held().await;
    let path = held.service.address.strip_prefix("unix:").unwrap().to_owned();
    let connector = move |failures: usize| {
        let (path, left) = (path.clone(), Arc::new(AtomicUsize::new(failures)));
        tower::service_fn(move |_: http::Uri| {
            let (path, left) = (path.clone(), Arc::clone(&left));
            async move {
                let taken =
                    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                match taken {
                    Ok(_) => Err("the tunnel is down".into()),
                    Err(_) => Ok::<_, tower::BoxError>(TokioIo::new(
                        tokio::net::UnixStream::connect(path).await?,
                    )),
                }
            }
        })
    };
    let endpoint = Endpoint::from_static("http://greeter.example");
    let error = endpoint.connect_with_connector(connector(1)).await.unwrap_err();
    assert!(error.to_string().contains("the tunnel is down"), "{error}");
    let endpoint = endpoint.wait_for_ready(true);
    let channel = endpoint.connect_with_connector(connector(3)).await.unwrap();
    let calling = tokio::spawn(async move { call(&channel, any()).await });
    held.begun().await.send(()).unwrap();
    calling.await.unwrap().unwrap();
}
