//! gRPC's interoperability cases, over the ring and over Partywall's own HTTP/2 listener, with one
//! test body.

use std::path::PathBuf;

use partywall::{Channel, Route, Routes};
use partywall_interop::cases::{Env, all};
use partywall_interop::service::{Handle, mounted};

use super::setup::Host;

/// Runs every case and reports all that failed.
async fn run_all(channel: Channel, handle: Handle, target: String, socket: PathBuf) {
    let mut failures = Vec::new();
    let cases = all::<Channel>();
    assert!(cases.len() > 40, "only {} cases", cases.len());
    for case in cases {
        let (target, socket) = (target.clone(), socket.clone());
        let connect = move || {
            let builder = Channel::builder(&target).map(|b| b.coordinator(&socket));
            async move { builder?.connect().await }
        };
        let env = Env::new(channel.clone(), handle.clone(), connect);
        if let Err(error) = case.run(env).await {
            failures.push(format!("{}: {error}", case.name()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

async fn over_the_ring() {
    let host = Host::open();
    let handle = Handle::default();
    let running = host.serve(Routes::default().add_service(mounted(handle.clone()))).await;
    let channel = host.connect().await;
    assert!(matches!(channel.route(), Some(Route::Ring { .. })));
    run_all(channel, handle, "partywall:///test".into(), host.socket.clone()).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_the_ring_multi_thread() {
    over_the_ring().await;
}

#[tokio::test]
async fn every_case_over_the_ring_current_thread() {
    over_the_ring().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2() {
    let host = Host::open();
    let handle = Handle::default();
    let dir = tempfile::tempdir().unwrap();
    let target = format!("unix:{}", dir.path().join("h2.sock").display());
    let routes = Routes::default().add_service(mounted(handle.clone()));
    let running = host.serve_at(&format!("test,{target}"), routes).await;
    host.connect().await;
    let channel = Channel::connect(&target).await.unwrap();
    assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
    run_all(channel, handle, target, host.socket.clone()).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stock_go_client_passes_against_our_http2_listener() {
    let host = Host::open();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let routes = Routes::default().add_service(mounted(Handle::default()));
    let running = host.serve_at(&format!("test,http://{address}"), routes).await;
    host.connect().await;
    let passed =
        tokio::task::spawn_blocking(move || partywall_interop::go_client::run_all(address));
    assert_eq!(passed.await.unwrap().unwrap(), 16);
    running.stop().await.unwrap();
}
