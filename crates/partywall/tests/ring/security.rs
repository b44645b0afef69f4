//! Both ends of a link and the coordinator's list say the same of what protects it. Links between processes
//! and between domains are in the system tests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use partywall::{
    Channel, Confidentiality, Endpoint, Evidence, Isolation, Route, Routes, Security, Server,
    blocking, security_of,
};
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve};

/// Services that note what protects each request.
fn noting() -> (Routes, Arc<Mutex<Vec<Security>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let raw = Raw::new(move |request| {
        keep.lock().unwrap().push(security_of(request.extensions()));
        async { ok() }
    });
    (Routes::default().add_service(raw), seen)
}

/// Calls; what the caller's end and the server's end say.
async fn both_ends(mut channel: Channel, seen: &Mutex<Vec<Security>>) -> (Security, Security) {
    let answer = channel.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(answer.status(), 200);
    let callers = channel.route().expect("a route").security();
    (callers, seen.lock().unwrap().pop().expect("a request"))
}

/// What the list says of each link.
async fn listed(host: &Host) -> Vec<Security> {
    let socket = host.socket.clone();
    let list = move || partywall::operator::links(Some(&socket)).unwrap();
    let links = tokio::task::spawn_blocking(list).await.unwrap();
    links.iter().map(|link| link.security).collect()
}

/// A process that calls a name which it serves itself is no other process to itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_of_a_link_to_oneself_has_isolation_none() {
    let host = Host::open();
    let (routes, seen) = noting();
    let running = host.serve(routes).await;
    let expected = Security::new(Isolation::None, Confidentiality::Space, Evidence::Observed);
    let channel = host.connect().await;
    assert!(matches!(channel.route(), Some(Route::Ring { .. })));
    assert_eq!(both_ends(channel, &seen).await, (expected, expected));
    let socket = host.socket.clone();
    let call = move || {
        let mut channel = blocking::Channel::connect(
            Endpoint::from_static("partywall:///test").coordinator(socket),
        )
        .unwrap();
        channel.call_bytes("/test.Raw/Any", b"").unwrap_err();
        channel.server().unwrap().security()
    };
    let callers = tokio::task::spawn_blocking(call).await.unwrap();
    assert_eq!((callers, seen.lock().unwrap().pop()), (expected, Some(expected)));
    assert_eq!(listed(&host).await, [expected; 2]);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn security_of_an_in_process_pair_has_evidence_none() {
    let (routes, seen) = noting();
    let channel = Server::builder().add_routes(routes).in_process().unwrap();
    let expected = Security::new(Isolation::None, Confidentiality::Space, Evidence::None);
    assert_eq!(both_ends(channel, &seen).await, (expected, expected));
}

/// Over HTTP/2, at an address and at a name whose address is the policy's.
async fn over_http2(url: &str, expected: Security) {
    let host = Host::with(&format!(
        "[service.here]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
         [names]\ntest = '{url}'\n"
    ));
    let (routes, seen) = noting();
    let running = host.serve_at(&format!("here,{url}"), routes).await;
    for target in [url, "partywall:///test"] {
        let endpoint = Endpoint::new(target).unwrap().coordinator(&host.socket);
        let endpoint = endpoint.wait_for_ready(true);
        let channel = tokio::time::timeout(Duration::from_secs(10), endpoint.connect()).await;
        let channel = channel.expect("in time").unwrap();
        assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
        assert_eq!(both_ends(channel, &seen).await, (expected, expected), "{target}");
    }
    assert_eq!(listed(&host).await, [expected]);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_of_a_unix_socket_is_user_without_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("h2.sock").display());
    over_http2(&url, Security::new(Isolation::Process, Confidentiality::User, Evidence::None))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_of_a_network_is_open() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    over_http2(&url, Security::new(Isolation::Process, Confidentiality::Open, Evidence::None))
        .await;
}

#[test]
fn a_request_that_came_over_nothing_has_the_lowest_levels() {
    assert_eq!(security_of(&http::Extensions::new()), Security::LOWEST);
}
