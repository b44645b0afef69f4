//! One meaning on every route: gRPC's interoperability cases, deadlines of calls of every shape, and
//! what HTTP shows of a call, with one test body over every route there is. Domains run the same in
//! `tests/system`.

use std::net::SocketAddr;
use std::time::Instant;

use partywall::{Channel, Deadline, Endpoint, Route, Routes, Server};
use partywall_interop::cases::{self, Env, Transport, run};
use partywall_interop::service::{Handle, Mounted, Probed, probed};
use tonic::transport::server::TcpIncoming;

use super::setup::{Host, Serve};

fn service(handle: Handle) -> Probed<Mounted> {
    probed(handle, |extensions| extensions.get::<Deadline>().map(|at| at.0))
}

/// Whose the two ends of a route are.
#[derive(Clone, Copy)]
struct Ends {
    client: bool,
    server: bool,
}

const OURS: Ends = Ends { client: true, server: true };
const OUR_CLIENT: Ends = Ends { client: true, server: false };
const OUR_SERVER: Ends = Ends { client: false, server: true };

/// Runs every case that these ends are to pass, and reports all that failed.
async fn hold<T: Transport>(link: &str, ends: Ends, env: Env<T>) {
    let mut cases = cases::all();
    assert_eq!(cases.len(), 48);
    cases.extend(cases::timeouts());
    let mut env = env;
    if ends.client {
        cases.extend(cases::of_clients());
        env = env.names_itself("partywall/1");
    } else {
        // What tonic's client says of its own deadline.
        env = env.tonic_deadlines();
    }
    if ends.server {
        cases.extend(cases::of_servers());
    }
    let failed = run(link, cases, &env).await;
    let texts: Vec<_> = failed.iter().map(ToString::to_string).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
}

async fn over_the_ring(link: &str) {
    let host = Host::open();
    let handle = Handle::default();
    let running = host.serve(Routes::default().add_service(service(handle.clone()))).await;
    let channel = host.connect().await;
    assert!(matches!(channel.route(), Some(Route::Ring { .. })));
    let socket = host.socket.clone();
    let connect = move || {
        let endpoint = Endpoint::new("partywall:///test").map(|e| e.coordinator(&socket));
        async move { endpoint?.connect().await }
    };
    hold(link, OURS, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_the_ring_multi_thread() {
    over_the_ring("ring, two threads").await;
}

#[tokio::test]
async fn every_case_over_the_ring_current_thread() {
    over_the_ring("ring, one thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_the_ring_in_one_process() {
    let handle = Handle::default();
    let connect = {
        let handle = handle.clone();
        move || {
            let router = Server::builder().add_service(service(handle.clone()));
            std::future::ready(router.in_process())
        }
    };
    let channel = connect().await.unwrap();
    hold("in process", OURS, Env::new(channel, handle, connect)).await;
}

/// Serves at `listen` beside the ring, and calls there.
async fn over_http2(link: &str, listen: &str) {
    let host = Host::open();
    let handle = Handle::default();
    let routes = Routes::default().add_service(service(handle.clone()));
    let running = host.serve_at(&format!("test,{listen}"), routes).await;
    let target = listen.to_owned();
    let connect = move || {
        let endpoint = Endpoint::new(target.as_str()).map(|e| e.wait_for_ready(true));
        async move { endpoint?.connect().await }
    };
    let channel = connect().await.unwrap();
    assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
    hold(link, OURS, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2() {
    let dir = tempfile::tempdir().unwrap();
    let target = format!("unix:{}", dir.path().join("h2.sock").display());
    over_http2("unix", &target).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2_by_tcp() {
    over_http2("tcp", &format!("http://{}", free_port())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_a_name_that_is_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("far.sock").display());
    let host = Host::with(&format!(
        "[service.here]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
         [names]\ntest = '{url}'\n"
    ));
    let handle = Handle::default();
    let routes = Routes::default().add_service(service(handle.clone()));
    let running = host.serve_at(&format!("here,{url}"), routes).await;
    let socket = host.socket.clone();
    let connect = move || {
        let endpoint = Endpoint::new("partywall:///test").map(|e| e.coordinator(&socket));
        async move { endpoint?.wait_for_ready(true).connect().await }
    };
    let channel = connect().await.unwrap();
    assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
    hold("[names]", OURS, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_a_client_against_a_stock_tonic_server() {
    let handle = Handle::default();
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let target = format!("http://{}", incoming.local_addr().unwrap());
    let mut server = tonic::transport::Server::builder();
    let router = server.add_service(service(handle.clone()));
    let incoming = incoming.with_nodelay(Some(true));
    let server = tokio::spawn(router.serve_with_incoming(incoming));
    let connect = move || Channel::connect(target.clone());
    let channel = connect().await.unwrap();
    hold("to tonic", OUR_CLIENT, Env::new(channel, handle, connect)).await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_a_server_for_a_stock_tonic_client() {
    let handle = Handle::default();
    let address = free_port();
    let router = Server::builder().add_service(service(handle.clone()));
    let serving = tokio::spawn(router.serve(address));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connect = move || {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    };
    let begin = Instant::now();
    let channel = loop {
        match connect().await {
            Ok(channel) => break channel,
            Err(e) => assert!(begin.elapsed().as_secs() < 10, "{e}"),
        }
    };
    hold("from tonic", OUR_SERVER, Env::new(channel, handle, connect)).await;
    serving.abort();
}

/// A crate that takes tonic's channel alone has this between its own end and the ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_tonics_channel_over_the_ring() {
    let host = Host::open();
    let handle = Handle::default();
    let running = host.serve(Routes::default().add_service(service(handle.clone()))).await;
    let ring = host.connect().await;
    let connect = move || std::future::ready(Ok::<_, partywall::Error>(ring.clone().into_tonic()));
    let channel = connect().await.unwrap();
    hold("adapter", OUR_SERVER, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stock_go_client_passes_against_our_http2_listener() {
    let host = Host::open();
    let address = free_port();
    let routes = Routes::default().add_service(service(Handle::default()));
    let running = host.serve_at(&format!("test,http://{address}"), routes).await;
    host.connect().await;
    let passed =
        tokio::task::spawn_blocking(move || partywall_interop::go_client::run_all(address));
    assert_eq!(passed.await.unwrap().unwrap(), 16);
    running.stop().await.unwrap();
}

/// It names the escaped path as its authority, which is none in HTTP/2's sense, unless it is given another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_of_python_calls_at_a_path_with_an_authority_set() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h2.sock");
    let routes = Routes::default().add_service(service(Handle::default()));
    let running = host.serve_at(&format!("test,unix:{}", path.display()), routes).await;
    host.connect().await;
    let python = |options: &'static [&'static str]| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || partywall_interop::python_client::call(&path, options))
    };
    let told = python(&["grpc.default_authority=localhost"]).await.unwrap().unwrap();
    assert_eq!(told, "answered with 104 bytes");
    let untold = python(&[]).await.unwrap().unwrap();
    assert!(!untold.starts_with("answered"), "the option is not needed any more: {untold}");
    running.stop().await.unwrap();
}
