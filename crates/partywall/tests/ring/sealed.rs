//! Links whose records are sealed: the same calls, and who the other end is.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body::Body as _;
use http_body_util::{BodyExt as _, StreamBody};
use partywall::{Channel, Endpoint, Peer, Route, Routes, Seal, Security, blocking};
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve};

const SEALED: &str = "[principal.me]\nuid = UID\n[service.test]\nregister = ['me']\nseal = 'required'\n\
                      [service.test.call]\nme = ['*']\n";

fn policy(more: &str) -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    format!("{more}{}", SEALED.replace("UID", &uid))
}

/// What a service is told of each caller.
type Seen = Arc<Mutex<Vec<Peer>>>;

fn noting() -> (Routes, Seen) {
    let seen = Seen::default();
    let keep = Arc::clone(&seen);
    let raw = Raw::new(move |request| {
        let peer = request.extensions().get::<Peer>().expect("a call over a ring").clone();
        keep.lock().unwrap().push(peer);
        async { ok() }
    });
    (Routes::default().add_service(raw), seen)
}

async fn call(channel: &mut Channel) {
    let answer = channel.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(answer.status(), 200);
}

fn is_sealed(security: Security) -> bool {
    security.seal == Seal::Sealed
}

/// Calls by a channel of each kind, by links of each kind of handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_links_tell_both_ends_who_the_other_one_is() {
    let host = Host::with(&policy(""));
    let (routes, seen) = noting();
    let running = host.serve(routes).await;
    let id = "spiffe://partywall.local/service/me";
    // At first contact, and then as each is known to the other.
    for _ in 0..3 {
        let mut channel = host.connect().await;
        call(&mut channel).await;
        let peer = seen.lock().unwrap().pop().unwrap();
        assert_eq!((peer.spiffe_id(), is_sealed(peer.security())), (Some(id), true));
        let Some(Route::Ring { server, .. }) = channel.route() else { panic!("a ring") };
        assert_eq!((server.spiffe_id(), is_sealed(server.security())), (Some(id), true));
    }
    let socket = host.socket.clone();
    let blocking = move || {
        for _ in 0..3 {
            let endpoint = Endpoint::from_static("partywall:///test").coordinator(socket.clone());
            let mut channel = blocking::Channel::connect(endpoint).unwrap();
            channel.call_bytes("/test.Raw/Any", &[7; 100_000]).unwrap_err();
            let server = channel.server().unwrap();
            assert_eq!((server.spiffe_id(), is_sealed(server.security())), (Some(id), true));
        }
    };
    tokio::task::spawn_blocking(blocking).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 3);
    let socket = host.socket.clone();
    let list = move || partywall::operator::links(Some(&socket)).unwrap();
    let links = tokio::task::spawn_blocking(list).await.unwrap();
    assert!(links.iter().all(|link| is_sealed(link.security)), "{links:?}");
    running.stop().await.unwrap();
}

/// Another authority, while calls go on: links that are open stay, and new ones are made by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_authority_ends_no_sealed_link_and_loses_no_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    let write = |domain: &str| {
        let more = format!("harden = false\n[authority]\ndomain = '{domain}'\n");
        std::fs::write(&file, policy(&more)).unwrap();
    };
    write("one.example");
    let socket = dir.path().join("c.sock");
    let options = Options {
        listen: Listen::At(socket.clone()),
        policy_file: Some(file.clone()),
        ..Options::default()
    };
    let coordinator = Coordinator::start_with(Policy::load(&file).unwrap(), options).unwrap();
    let (routes, seen) = noting();
    let router = partywall::Server::builder().coordinator(&socket).add_routes(routes);
    let serving = tokio::spawn(router.serve("test"));
    let connect = async || {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
        endpoint.wait_for_ready(true).connect().await
    };
    let mut first = connect().await.unwrap();
    call(&mut first).await;
    let link = format!("{:?}", first.route().unwrap());
    for domain in ["two.example", "three.example"] {
        write(domain);
        let (done, reloaded) = tokio::sync::oneshot::channel();
        coordinator.reload(move |result| drop(done.send(result.map_err(|e| e.to_string()))));
        reloaded.await.unwrap().unwrap();
        call(&mut first).await;
        assert_eq!(format!("{:?}", first.route().unwrap()), link, "the open link goes on");
        let mut other = connect().await.unwrap();
        for _ in 0..3 {
            call(&mut other).await;
        }
        let id = seen.lock().unwrap().pop().unwrap();
        assert_eq!(id.spiffe_id(), Some(&*format!("spiffe://{domain}/service/me")));
    }
    serving.abort();
}

/// Certificates of ten seconds, while calls and links go on for longer than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_while_links_are_made() {
    let host = Host::with(&policy("[authority]\nlife_seconds = 10\n"));
    let (routes, seen) = noting();
    let running = host.serve(routes).await;
    let mut kept = host.connect().await;
    let (start, mut links) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(14) {
        call(&mut kept).await;
        let mut channel = host.connect().await;
        call(&mut channel).await;
        links += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(links > 50, "{links}");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 2 * links);
    assert!(seen.iter().all(|peer| peer.spiffe_id().is_some()));
    running.stop().await.unwrap();
}

/// A body of one message, which then neither goes on nor ends.
fn open_ended() -> Body {
    let message = http_body::Frame::data(bytes::Bytes::from_static(&[0, 0, 0, 0, 1, 7]));
    let first = tokio_stream::once(Ok::<_, tonic::Status>(message));
    Body::new(StreamBody::new(first.chain(tokio_stream::pending())))
}

/// What is left of a body after its first piece: true where it has ended well.
async fn ends_well(body: &mut Body) -> bool {
    loop {
        match body.frame().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return false,
            None => return body.is_end_stream(),
        }
    }
}

/// The end of a call is a sealed record like any other. What ends a link without one, from inside or from
/// outside, ends no stream as its sender would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_cut_ends_no_sealed_stream_well() {
    enum Cut {
        Server,
        Caller,
        Coordinator,
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("policy.toml"), dir.path().join("c.sock"));
    for cut in [Cut::Server, Cut::Caller, Cut::Coordinator] {
        std::fs::write(&file, policy("harden = false\n")).unwrap();
        let options = Options {
            listen: Listen::At(socket.clone()),
            policy_file: Some(file.clone()),
            ..Options::default()
        };
        let coordinator = Coordinator::start_with(Policy::load(&file).unwrap(), options).unwrap();
        let (done, mut served) = tokio::sync::mpsc::unbounded_channel();
        let raw = Raw::new(move |request| {
            let (done, mut body) = (done.clone(), request.into_body());
            tokio::spawn(async move {
                assert!(body.frame().await.unwrap().unwrap().is_data());
                done.send(None).unwrap();
                done.send(Some(ends_well(&mut body).await)).unwrap();
            });
            async { http::Response::new(open_ended()) }
        });
        let router = partywall::Server::builder().coordinator(&socket).add_service(raw);
        let serving = tokio::spawn(router.serve("test"));
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
        let mut channel = endpoint.wait_for_ready(true).connect().await.unwrap();
        let answer = channel.call(request("Any", open_ended())).await.unwrap();
        let mut body = Some(answer.into_body());
        assert!(body.as_mut().unwrap().frame().await.unwrap().unwrap().is_data());
        assert_eq!(served.recv().await, Some(None), "the request is under way as well");
        match cut {
            Cut::Server => serving.abort(),
            Cut::Caller => drop(body.take()),
            Cut::Coordinator => {
                std::fs::write(&file, "harden = false\n[service.test]\nregister = ['anyone']\n")
                    .unwrap();
                let (done, reloaded) = tokio::sync::oneshot::channel();
                coordinator
                    .reload(move |result| drop(done.send(result.map_err(|e| e.to_string()))));
                reloaded.await.unwrap().unwrap();
            }
        }
        if let Some(mut body) = body {
            assert!(!ends_well(&mut body).await);
        }
        drop(channel);
        assert_eq!(served.recv().await, Some(Some(false)));
        serving.abort();
    }
}
