//! What HTTP's own clients, servers and layers do.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Limited;
use partywall::{Channel, Endpoint, Routes, Server};
use partywall_interop::proto::Empty;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{Handle, test_service_with};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tower::{Service, ServiceExt};

use super::setup::{Host, OPEN, Running, Serve};

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn serve(host: &Host, routes: Routes) -> (SocketAddr, Running) {
    let address = free_port();
    let running = host.serve_at(&format!("test,http://{address}"), routes).await;
    let start = Instant::now();
    while let Err(why) = TcpStream::connect(address).await {
        assert!(start.elapsed() < Duration::from_secs(10), "{why}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (address, running)
}

fn service() -> Routes {
    Routes::default().add_service(test_service_with(Handle::default()))
}

/// They had the whole time of a drain, 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_not_answer_do_not_hold_a_stop_up() {
    let host = Host::open();
    let (address, running) = serve(&host, service()).await;
    let silent = TcpStream::connect(address).await.unwrap();
    let mut frozen = TcpStream::connect(address).await.unwrap();
    // The preface and empty SETTINGS: RFC 9113, section 3.4.
    frozen.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let channel = Channel::connect(format!("http://{address}")).await.unwrap();
    TestServiceClient::new(channel).empty_call(Empty {}).await.unwrap();
    let start = Instant::now();
    running.stop().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop((silent, frozen));
}

#[tokio::test]
async fn layers_that_change_the_body_of_requests_are_taken() {
    let limited = tower::layer::layer_fn(|inner: Routes| {
        inner.map_request(|r: http::Request<Body>| r.map(|body| Limited::new(body, 64)))
    });
    let router = Server::builder().layer(limited).add_service(test_service_with(Handle::default()));
    let channel = router.in_process().unwrap();
    TestServiceClient::new(channel).empty_call(Empty {}).await.unwrap();
}

/// Routes of plain HTTP: one with a path that is no method's, one whose body fails.
fn plain() -> Routes {
    let router = axum::Router::new()
        .route("/plain", axum::routing::any(|| async { Status::ok("").into_http::<Body>() }))
        .route(
            "/broken",
            axum::routing::any(|| async {
                let parts = [Ok(Bytes::from("first half")), Err(std::io::Error::other("on fire"))];
                axum::body::Body::from_stream(tokio_stream::iter(parts))
            }),
        );
    Routes::from(tonic::service::Routes::from(router))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_are_no_methods_are_found_on_each_route() {
    let host = Host::open();
    let (address, running) = serve(&host, plain()).await;
    let far = Channel::connect(format!("http://{address}")).await.unwrap();
    for mut channel in [host.connect().await, far] {
        for (path, code) in [("/plain", "0"), ("/elsewhere", "12"), ("/a/b/c", "12")] {
            let mut request = http::Request::post(path).body(Body::empty()).unwrap();
            let grpc = http::HeaderValue::from_static("application/grpc");
            request.headers_mut().insert("content-type", grpc);
            let answer = channel.ready().await.unwrap().call(request).await.unwrap();
            assert_eq!(answer.headers()["grpc-status"], code, "{path} by {:?}", channel.route());
        }
    }
    running.stop().await.unwrap();
}

/// A caller that sends `grpc-timeout` and watches no clock of its own had no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_enforces_deadlines_that_callers_do_not() {
    let host = Host::open();
    let waits = axum::routing::any(std::future::pending::<http::Response<axum::body::Body>>);
    let routes = tonic::service::Routes::from(axum::Router::new().route("/test.Test/Wait", waits));
    let (address, running) = serve(&host, Routes::from(routes)).await;
    let io = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}/test.Test/Wait"))
        .header("content-type", "application/grpc")
        .header("grpc-timeout", "100m");
    let start = Instant::now();
    let (answer, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    let answer = answer.await.unwrap();
    let took = start.elapsed();
    assert_eq!(answer.headers()["grpc-status"], "4");
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(5), "{took:?}");
    drop(client);
    running.stop().await.unwrap();
}

/// The listener went down with the coordinator, which it has no need of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_keeps_address_and_name_at_the_next_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("coordinator.sock");
    let host = Host::at(&socket, OPEN);
    let (address, running) = serve(&host, service()).await;
    let far = Channel::connect(format!("http://{address}")).await.unwrap();
    let mut far = TestServiceClient::new(far);
    far.empty_call(Empty {}).await.unwrap();
    drop(host);
    for _ in 0..10 {
        far.empty_call(Empty {}).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let host = Host::at(&socket, OPEN);
    TestServiceClient::new(host.connect().await).empty_call(Empty {}).await.unwrap();
    far.empty_call(Empty {}).await.unwrap();
    running.stop().await.unwrap();
}

/// It looked whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_whose_body_fails_is_reset() {
    let host = Host::open();
    let (address, running) = serve(&host, plain()).await;
    let io = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(format!("http://{address}/broken")).body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    // The reset can overtake what was sent before it.
    let whole = async {
        let mut body = answer.await?.into_body();
        while let Some(data) = body.data().await {
            assert_eq!(data?, "first half");
        }
        Ok::<(), h2::Error>(())
    };
    let end = whole.await.unwrap_err();
    assert_eq!(end.reason(), Some(h2::Reason::INTERNAL_ERROR));
    drop(client);
    running.stop().await.unwrap();
}

/// gRPC's proposal A6, "transparent retries".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_call_is_sent_again_when_its_connection_ends() {
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let target = format!("http://{}", incoming.local_addr().unwrap());
    let mut server =
        tonic::transport::Server::builder().max_connection_age(Duration::from_millis(20));
    let router = server.add_service(test_service_with(Handle::default()));
    let server = tokio::spawn(router.serve_with_incoming(incoming));
    let channel = Endpoint::new(target).unwrap().wait_for_ready(true).connect().await.unwrap();
    let calls = (0..8).map(|_| {
        let mut client = TestServiceClient::new(channel.clone());
        tokio::spawn(async move {
            let (start, mut calls, mut canceled) = (Instant::now(), 0, 0);
            while start.elapsed() < Duration::from_secs(3) {
                // A call that has left is not sent again, and hears that the connection is lost.
                match client.empty_call(Empty {}).await {
                    Ok(_) => calls += 1,
                    Err(status) => canceled += u32::from(status.message().contains("canceled")),
                }
            }
            (calls, canceled)
        })
    });
    for calls in calls.collect::<Vec<_>>() {
        let (calls, canceled) = calls.await.unwrap();
        assert!(calls > 100 && canceled == 0, "{canceled} calls beside {calls} good ones");
    }
    server.abort();
}

/// As tonic's own server: who reads them there reads them here.
#[tokio::test]
async fn handlers_see_what_tonic_says_of_a_connection() {
    use super::service::{Raw, ok};
    use tonic::transport::server::{TcpConnectInfo, UdsConnectInfo};
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let address = free_port();
    let service = Raw::new(|request: http::Request<Body>| async move {
        let told = request.extensions();
        let tcp = told.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let uds = told.get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
        let text = format!("{} {:?}", tcp.is_some(), uds.map(|cred| cred.uid()));
        let mut answer = ok();
        answer.headers_mut().insert("x-told", text.parse().unwrap());
        answer
    });
    let at = format!("test,http://{address},unix:{}", path.display());
    let running = host.serve_at(&at, Routes::default().add_service(service)).await;
    let own = rustix::process::geteuid().as_raw();
    let expected = [
        (format!("http://{address}"), "true None".to_owned()),
        (format!("unix:{}", path.display()), format!("false Some({own})")),
    ];
    for (uri, told) in expected {
        let channel = Endpoint::new(uri.as_str()).unwrap().wait_for_ready(true);
        let mut channel = channel.connect().await.unwrap();
        let answer = channel.call(super::service::request("Call", Body::empty())).await.unwrap();
        assert_eq!(answer.headers()["x-told"], told.as_str(), "{uri}");
        assert_eq!(answer.headers()["grpc-status"], "0");
    }
    running.stop().await.unwrap();
}
