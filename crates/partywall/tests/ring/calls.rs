//! What callers and services can rely on, one property a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use partywall::{Endpoint, Error, Peer, Route, Routes, Security, Server, blocking};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{BoolValue, Payload, SimpleRequest, SimpleResponse};
use partywall_interop::service::{Handle, test_service_with};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve, Warnings};

const UNARY: &str = "/grpc.testing.TestService/UnaryCall";

fn simple(size: usize) -> SimpleRequest {
    let body = Bytes::from(vec![7; size]);
    let payload = Some(Payload { body, ..Payload::default() });
    SimpleRequest { response_size: size as i32, payload, ..SimpleRequest::default() }
}

fn testing() -> Routes {
    Routes::default().add_service(test_service_with(Handle::default()))
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |s| s.code())
}

#[tokio::test]
async fn the_handler_sees_who_calls() {
    // A program file is read only for a policy that goes by what /proc tells of it.
    let asks = format!("program = 'sha256:{}'\nevidence = 'observed'", "00".repeat(32));
    let host = Host::with(&format!(
        "[principal.other]\n{asks}\n[service.test]\nregister = ['anyone']\n\
         [service.test.call]\nanyone = ['*']\n"
    ));
    let raw = Raw::new(|request| async move {
        let peer = request.extensions().get::<Peer>().expect("a peer").clone();
        assert_eq!(peer.pid(), Some(std::process::id()));
        assert_eq!(peer.uid(), rustix::process::geteuid().as_raw());
        assert!(matches!(peer.digest(), partywall::Digest::Observed(_)));
        ok()
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let mut channel = host.connect().await;
    let response = channel.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "0");
    let Some(Route::Ring { server }) = channel.route() else { panic!("{channel:?}") };
    assert_eq!(server.pid(), Some(std::process::id()));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_program_is_not_read_unless_the_policy_asks_for_it() {
    let host = Host::open();
    let raw = Raw::new(|request| async move {
        let peer = request.extensions().get::<Peer>().expect("a peer").clone();
        assert_eq!(peer.digest(), partywall::Digest::Unknown);
        ok()
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let response = host.connect().await.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "0");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_denied_call_never_reaches_the_handler() {
    let host = Host::with(
        "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['test.Raw/Allowed']\n",
    );
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    let raw = Raw::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { ok() }
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let mut channel = host.connect().await;
    let allowed = channel.call(request("Allowed", Body::empty())).await.unwrap();
    assert_eq!(allowed.headers()["grpc-status"], "0");
    let denied = channel.call(request("Other", Body::empty())).await.unwrap();
    assert_eq!(denied.headers()["grpc-status"], "7");
    assert_eq!(reached.load(Ordering::SeqCst), 1);
    let links = tokio::task::spawn_blocking({
        let socket = host.socket.clone();
        move || partywall::operator::links(Some(&socket)).unwrap()
    })
    .await
    .unwrap();
    assert_eq!(links.len(), 1);
    assert_eq!((links[0].stats.calls, links[0].stats.denied), (2, 1));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_dropped_server_leaves_no_registration() {
    let host = Host::open();
    let router = Server::builder().coordinator(&host.socket).add_routes(testing());
    let mut serving = Box::pin(router.serve("test"));
    let connected = tokio::select! {
        ended = &mut serving => panic!("{ended:?}"),
        channel = host.connect() => channel,
    };
    drop((serving, connected));
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        match endpoint.connect_timeout(Duration::from_millis(500)).connect().await {
            Err(Error::NotServed { text }) => {
                assert!(text.contains("nobody serves") && text.contains("remedy: "), "{text}");
                return;
            }
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
}

#[tokio::test]
async fn denied_call_is_refused_with_remedy() {
    let host = Host::with("");
    let served = Server::builder().coordinator(&host.socket).add_routes(testing()).serve("test");
    let error = served.await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(error.to_string().contains("[service.test] register"), "{error}");
    let connected =
        Endpoint::from_static("partywall:///test").coordinator(&host.socket).connect().await;
    assert!(connected.unwrap_err().to_string().contains("[service.test.call]"));
}

#[tokio::test]
async fn without_a_coordinator_the_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("none.sock");
    let error = Endpoint::from_static("partywall:///test").coordinator(&nowhere).connect().await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("none.sock") && text.contains("partywall coordinator"), "{text}");
}

#[tokio::test]
async fn health_reflection_interceptors_and_layers_mount_unchanged() {
    let host = Host::open();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("x", tonic_health::ServingStatus::Serving).await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let layer = tower::layer::layer_fn(move |inner: Routes| {
        let counted = Arc::clone(&counted);
        tower::ServiceBuilder::new()
            .map_request(move |r: http::Request<Body>| {
                counted.fetch_add(1, Ordering::SeqCst);
                r
            })
            .service(inner)
    });
    let guarded = tonic::service::interceptor::InterceptedService::new(
        test_service_with(Handle::default()),
        |request: tonic::Request<()>| match request.metadata().get("x-key") {
            Some(_) => Ok(request),
            None => Err(Status::unauthenticated("no key")),
        },
    );
    let router = Server::builder()
        .coordinator(&host.socket)
        .layer(layer)
        .add_service(health)
        .add_service(reflection)
        .add_service(guarded);
    let task = tokio::spawn(router.serve("test"));
    let channel = host.connect().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let check = tonic_health::pb::HealthCheckRequest { service: "x".into() };
    assert_eq!(health.check(check).await.unwrap().into_inner().status, 1);
    let mut reflect =
        tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(
            channel.clone(),
        );
    let list = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            tonic_reflection::pb::v1::server_reflection_request::MessageRequest::ListServices(
                String::new(),
            ),
        ),
    };
    let mut answers =
        reflect.server_reflection_info(tokio_stream::once(list)).await.unwrap().into_inner();
    assert!(format!("{:?}", answers.message().await.unwrap()).contains("grpc.health.v1.Health"));
    let mut client = TestServiceClient::new(channel.clone());
    assert_eq!(code(client.unary_call(simple(1)).await), Code::Unauthenticated);
    let with_key = |mut r: tonic::Request<()>| {
        r.metadata_mut().insert("x-key", "1".parse().unwrap());
        Ok(r)
    };
    let mut client = TestServiceClient::with_interceptor(channel, with_key);
    client.unary_call(simple(1)).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 4);
    task.abort();
}

/// One stream whose reader sleeps on 1 GiB neither stops its sibling nor grows this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_reader_holds_its_window_and_stops_no_other() {
    const TOTAL: u64 = 1 << 30;
    let host = Host::open();
    let offered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&offered);
    let raw = Raw::new(move |r| {
        let count = Arc::clone(&count);
        async move {
            if r.uri().path().ends_with("Small") {
                return ok();
            }
            let chunk = Bytes::from(vec![1; 64 * 1024]);
            let chunks = tokio_stream::iter(0..TOTAL / chunk.len() as u64);
            let frames = tokio_stream::StreamExt::map(chunks, move |_| {
                count.fetch_add(chunk.len() as u64, Ordering::SeqCst);
                Ok::<_, Status>(http_body::Frame::data(chunk.clone()))
            });
            http::Response::new(Body::new(http_body_util::StreamBody::new(frames)))
        }
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let mut channel = host.connect().await;
    let mut stalled = channel.call(request("Big", Body::empty())).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    for _ in 0..100 {
        channel.call(request("Small", Body::empty())).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // Sent: at most the window, what the body sender holds, and the one chunk it looks ahead.
    let under_way = offered.load(Ordering::SeqCst);
    assert!(under_way <= (1 << 20) + 3 * 64 * 1024, "{under_way} bytes under way");
    let mut read = 0;
    while read < TOTAL / 4 {
        read += stalled.frame().await.unwrap().unwrap().into_data().unwrap().len() as u64;
        assert!(offered.load(Ordering::SeqCst) - read <= (1 << 20) + 3 * 64 * 1024);
    }
    drop(stalled);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn readers_that_stall_leave_the_link_what_was_read_before() {
    let host = Host::open();
    let raw = Raw::new(move |r| async move {
        let small = r.uri().path().ends_with("Small");
        let (chunk, chunks) = if small { (32, 1) } else { (64 * 1024, 1024) };
        let chunk = Bytes::from(vec![1; chunk]);
        let frames = tokio_stream::StreamExt::map(tokio_stream::iter(0..chunks), move |_| {
            Ok::<_, Status>(http_body::Frame::data(chunk.clone()))
        });
        http::Response::new(Body::new(http_body_util::StreamBody::new(frames)))
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let mut channel = host.connect().await;
    // What this one has read is owed to the link, and is not yet worth a grant of its own.
    let mut reading = channel.call(request("Big", Body::empty())).await.unwrap();
    for _ in 0..24 {
        reading.frame().await.unwrap().unwrap();
    }
    let mut stalled = Vec::new();
    for _ in 0..3 {
        stalled.push(channel.call(request("Big", Body::empty())).await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Nobody reads now; another call's answer needs some of what is owed.
    let small = async {
        let mut small = channel.call(request("Small", Body::empty())).await.unwrap();
        small.frame().await.unwrap().unwrap().into_data().unwrap().len()
    };
    let small = tokio::time::timeout(Duration::from_secs(5), small).await;
    assert_eq!(small.expect("stuck without credit"), 32);
    drop((reading, stalled));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn drained_server_finishes_open_calls_and_takes_no_more() {
    let host = Host::open();
    let raw = Raw::new(|r| async move {
        if r.uri().path().ends_with("Slow") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ok()
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    host.connect().await;
    // A channel that does not wait for the next server.
    let endpoint = Endpoint::from_static("partywall:///test");
    let mut channel = endpoint.coordinator(&host.socket).connect().await.unwrap();
    let slow = tokio::spawn(channel.call(request("Slow", Body::empty())));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    running.stop().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert_eq!(slow.await.unwrap().unwrap().headers()["grpc-status"], "0");
    let late = channel.call(request("Any", Body::empty())).await;
    assert_eq!(late.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_lost_when_an_instance_drains_under_load() {
    let host = Host::open();
    let mut old = host.serve(testing()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let channel = host.connect().await;
        for size in [1, 3000, 200_000] {
            let (mut client, stop) = (TestServiceClient::new(channel.clone()), Arc::clone(&stop));
            callers.spawn(async move {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    client.unary_call(simple(size)).await?;
                    calls += 1;
                }
                Ok::<u32, Status>(calls)
            });
        }
    }
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let new = host.serve(testing()).await;
        // It is there before the other one goes.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        std::mem::replace(&mut old, new).stop().await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(calls) = callers.join_next().await {
        assert!(calls.unwrap().unwrap() > 10);
    }
    old.stop().await.unwrap();
}

#[test]
fn caller_with_an_idle_runtime_finds_the_next_instance() {
    let host = Host::open();
    let servers = tokio::runtime::Runtime::new().unwrap();
    let mut old = servers.block_on(host.serve(testing()));
    // This one runs during its calls alone, so it hears of nothing in between.
    let caller = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut client = TestServiceClient::new(caller.block_on(host.connect()));
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let mut blocking = blocking::Channel::connect(endpoint).unwrap();
    let request = prost::Message::encode_to_vec(&simple(10));
    for _ in 0..5 {
        caller.block_on(client.unary_call(simple(10))).unwrap();
        blocking.call_bytes(UNARY, &request).unwrap();
        let new = servers.block_on(host.serve(testing()));
        std::thread::sleep(Duration::from_millis(20));
        servers.block_on(std::mem::replace(&mut old, new).stop()).unwrap();
    }
    servers.block_on(old.stop()).unwrap();
}

#[tokio::test]
async fn a_call_that_is_kept_unpolled_holds_up_no_other() {
    let host = Host::open();
    let running = host.serve(testing()).await;
    let mut client = TestServiceClient::new(host.connect().await);
    client.unary_call(simple(1)).await.unwrap();
    for _ in 0..100 {
        let mut other = client.clone();
        let mut kept = std::pin::pin!(other.unary_call(simple(1)));
        // It waits for the doorbell, and is never polled again for it.
        assert!(futures_pending(kept.as_mut()).await);
        client.unary_call(simple(1)).await.unwrap();
        client.unary_call(simple(1)).await.unwrap();
        kept.await.unwrap();
    }
    running.stop().await.unwrap();
}

/// Polls once; whether it is pending.
async fn futures_pending<F: Future>(mut f: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(f.as_mut().poll(cx).is_pending())).await
}

/// A call that sends for long reads alone meanwhile; with others around, it leaves the reading to
/// the driver once it waits for its answer.
#[tokio::test]
async fn long_requests_are_answered_while_there_is_company() {
    let host = Host::open();
    let running = host.serve(testing()).await;
    let channel = host.connect().await;
    let mut client = TestServiceClient::new(channel.clone());
    let mut other = TestServiceClient::new(channel);
    for _ in 0..100 {
        let both =
            async { tokio::join!(client.unary_call(simple(1)), other.unary_call(simple(1))) };
        let (one, two) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        assert!(one.is_ok() && two.is_ok());
        for _ in 0..10 {
            let request = SimpleRequest { response_size: 314_159, ..simple(271_828) };
            let call = client.unary_call(request);
            let answer = tokio::time::timeout(Duration::from_secs(10), call).await;
            assert!(answer.expect("an answer").is_ok());
        }
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_idle_link_is_closed_when_its_server_has_gone() {
    let host = Host::open();
    let running = host.serve(testing()).await;
    host.connect().await;
    // It does not wait for the next server.
    let endpoint = Endpoint::from_static("partywall:///test");
    let channel = endpoint.coordinator(&host.socket).connect().await.unwrap();
    let mut client = TestServiceClient::new(channel.clone());
    for _ in 0..20 {
        client.unary_call(simple(1)).await.unwrap();
    }
    assert!(channel.route().is_some());
    running.stop().await.unwrap();
    let start = Instant::now();
    while channel.route().is_some() {
        assert!(start.elapsed() < Duration::from_millis(100), "nobody has seen the hang-up");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_channel_finds_the_next_instance_and_waits_for_one() {
    let host = Host::open();
    let first = host.serve(testing()).await;
    let channel = host.connect().await;
    let mut client = TestServiceClient::new(channel.clone());
    client.unary_call(simple(1)).await.unwrap();
    first.stop().await.unwrap();
    let waiting = tokio::spawn(async move { client.unary_call(simple(10)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    let second = host.serve(testing()).await;
    waiting.await.unwrap().unwrap();
    second.stop().await.unwrap();
    // A deadline ends the waiting (once this side has seen that the link is gone).
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut client = TestServiceClient::new(channel);
    let mut r = tonic::Request::new(simple(1));
    r.set_timeout(Duration::from_millis(50));
    assert_eq!(code(client.unary_call(r).await), Code::DeadlineExceeded);
}

#[tokio::test]
async fn remote_name_is_reached_over_http2_and_has_that_route() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("far.sock").display());
    let policy = format!(
        "[service.here]\nregister = ['anyone']\n[service.test.call]\nanyone = ['grpc.testing.TestService/UnaryCall']\n\
         [names]\ntest = '{url}'\n"
    );
    let host = Host::with(&policy);
    let running = host.serve_at(&format!("here,{url}"), testing()).await;
    while !dir.path().join("far.sock").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let endpoint = || Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let warnings = Warnings::default();
    let reading = tracing::subscriber::set_default(warnings.clone());
    let channel = endpoint().connect().await.unwrap();
    drop(reading);
    let warned = warnings.read();
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    for part in ["go over the network", "name=test", &format!("url=\"{url}\"")] {
        assert!(warning.contains(part), "`{part}` is not in {warning}");
    }
    assert!(matches!(channel.route(), Some(Route::Http2 { url: found, .. }) if found == url));
    let mut client = TestServiceClient::new(channel);
    client.unary_call(simple(1000)).await.unwrap();
    assert_eq!(
        code(client.empty_call(partywall_interop::proto::Empty {}).await),
        Code::PermissionDenied
    );
    let refused = endpoint().ring_only(true).connect().await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let socket = host.socket.clone();
    let blocking = tokio::task::spawn_blocking(move || {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
        let refused = blocking::Channel::connect(endpoint);
        (refused.unwrap_err().code(), partywall::operator::links(Some(&socket)).unwrap())
    });
    let (code, links) = blocking.await.unwrap();
    assert_eq!(code, Code::FailedPrecondition);
    assert!(links.iter().all(|l| l.security == Security::UNIX_SOCKET && l.url == url));
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_channel_takes_every_size_status_and_deadline() {
    let host = Host::open();
    let running = host.serve(testing()).await;
    host.connect().await;
    let socket = host.socket.clone();
    tokio::task::spawn_blocking(move || {
        let mut channel = blocking::Channel::connect(
            Endpoint::from_static("partywall:///test").coordinator(socket),
        )
        .unwrap();
        for size in [0, 1, 100, 20_000, 90_000, 1 << 20, 3 << 20] {
            let reply: SimpleResponse =
                channel.unary(UNARY, tonic::Request::new(simple(size))).unwrap().into_inner();
            assert_eq!(reply.payload.map_or(0, |p| p.body.len()), size);
        }
        let too_large = channel.unary::<_, SimpleResponse>(
            UNARY,
            tonic::Request::new(SimpleRequest { response_size: 5 << 20, ..simple(1) }),
        );
        assert_eq!(too_large.unwrap_err().code(), Code::OutOfRange);
        let unknown = channel.call_bytes("/no.Such/Method", b"").unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
        let mut slow = tonic::Request::new(simple(1));
        slow.metadata_mut().insert(partywall_interop::service::DELAY_MS, "5000".parse().unwrap());
        slow.set_timeout(Duration::from_millis(50));
        let start = Instant::now();
        let late = channel.unary::<_, SimpleResponse>(UNARY, slow).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert!(start.elapsed() < Duration::from_secs(1));
        // The link goes on.
        channel.call_bytes(UNARY, b"").unwrap();
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_panicking_handler_is_internal_and_the_link_goes_on() {
    let host = Host::open();
    let raw = Raw::new(|r| async move {
        assert!(!r.uri().path().ends_with("Panic"), "as asked");
        ok()
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let mut channel = host.connect().await;
    for _ in 0..10 {
        let r = channel.call(request("Panic", Body::empty())).await.unwrap();
        assert_eq!(r.headers()["grpc-status"], "13");
        let r = channel.call(request("Fine", Body::empty())).await.unwrap();
        assert_eq!(r.headers()["grpc-status"], "0");
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn compression_shows_on_the_link_both_ways() {
    use tonic::codec::CompressionEncoding::{Gzip, Zstd};
    let host = Host::open();
    let service = || test_service_with(Handle::default());
    // Requests: what the caller sends.
    let accepting = service().accept_compressed(Gzip).accept_compressed(Zstd);
    let running = host.serve(Routes::default().add_service(accepting)).await;
    let stats = async || {
        let socket = host.socket.clone();
        let links =
            tokio::task::spawn_blocking(move || partywall::operator::links(Some(&socket)).unwrap());
        let links = links.await.unwrap();
        let sum = |of: fn(&partywall::operator::LinkStats) -> u64| {
            links.iter().map(|l| of(&l.stats)).sum()
        };
        let (received, sent): (u64, u64) = (sum(|s| s.received_bytes), sum(|s| s.sent_bytes));
        (received, sent)
    };
    let channel = host.connect().await;
    let mut sizes = Vec::new();
    for encoding in [None, Some(Gzip), Some(Zstd)] {
        let mut client = TestServiceClient::new(channel.clone());
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        let before = stats().await.0;
        let request = SimpleRequest { response_size: 1, ..simple(100_000) };
        client.unary_call(request).await.unwrap();
        sizes.push(stats().await.0 - before);
    }
    assert!(sizes[0] > 100_000, "{sizes:?}");
    assert!(sizes[1] < 2_000 && sizes[2] < 2_000, "{sizes:?}");
    drop(channel);
    running.stop().await.unwrap();
    // Replies: what the service sends.
    let mut sizes = Vec::new();
    for encoding in [None, Some(Gzip), Some(Zstd)] {
        let sending = encoding.map_or_else(service, |e| service().send_compressed(e));
        let running = host.serve(Routes::default().add_service(sending)).await;
        let mut client = TestServiceClient::new(host.connect().await);
        client = client.accept_compressed(Gzip).accept_compressed(Zstd);
        let before = stats().await.1;
        let mut asked = SimpleRequest { response_size: 100_000, ..simple(1) };
        asked.response_compressed = Some(BoolValue { value: encoding.is_some() });
        let reply = client.unary_call(asked).await.unwrap().into_inner();
        assert_eq!(reply.payload.unwrap().body.len(), 100_000);
        sizes.push(stats().await.1 - before);
        drop(client);
        running.stop().await.unwrap();
    }
    assert!(sizes[0] > 100_000, "{sizes:?}");
    assert!(sizes[1] < 2_000 && sizes[2] < 2_000, "{sizes:?}");
}

#[tokio::test]
async fn a_link_outlives_the_coordinator() {
    let host = Host::open();
    let running = host.serve(testing()).await;
    let mut client = TestServiceClient::new(host.connect().await);
    client.unary_call(simple(1)).await.unwrap();
    let socket = host.socket.clone();
    drop(host);
    assert!(!socket.exists());
    for _ in 0..10 {
        client.unary_call(simple(1000)).await.unwrap();
    }
    // A question that fails shows that this process has seen the end of the conversation.
    let endpoint = Endpoint::from_static("partywall:///test");
    endpoint.coordinator(&socket).connect().await.unwrap_err();
    // The server waits for the next coordinator, and stops when it is asked to.
    running.stop().await.unwrap();
}

/// From the 129th on they had no answer: tokio lets a task that has not yielded poll so often.
#[tokio::test]
async fn orders_of_a_task_that_does_not_yield_are_answered() {
    let host = Host::open();
    for _ in 0..200 {
        partywall::operator::links(Some(&host.socket)).unwrap();
    }
}
