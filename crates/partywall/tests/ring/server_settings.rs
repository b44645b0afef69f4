//! What a server sets for its calls and connections, on a ring and over HTTP/2.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use partywall::{Channel, Endpoint, Error, Peer, Routes, Server, Target};
use partywall_interop::service::{Handle, test_service_with};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, OPEN};

const LONG: Duration = Duration::from_secs(10);

/// A server with a ring and a TCP port.
struct Both {
    host: Host,
    addresses: Vec<Target>,
    serving: JoinHandle<Result<(), Error>>,
}

impl Drop for Both {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(server: Server, service: Raw) -> Both {
    serve_routes(server, Routes::default().add_service(service)).await
}

async fn serve_routes(server: Server, routes: Routes) -> Both {
    let host = Host::open();
    let router = server.coordinator(&host.socket).add_routes(routes);
    let bound = router.bind("test,http://127.0.0.1:0").await.unwrap();
    let addresses = bound.addresses().to_vec();
    Both { host, addresses, serving: tokio::spawn(bound.serve()) }
}

impl Both {
    async fn connect(&self, at: &Target) -> Channel {
        let endpoint = Endpoint::new(at.to_string()).unwrap();
        endpoint.coordinator(&self.host.socket).connect().await.unwrap()
    }
}

/// The status of a call, with the headers of a good answer.
async fn call(channel: Channel, method: &str) -> Result<http::HeaderMap, Status> {
    soon(answer(channel, method)).await
}

/// What is to happen soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("an end of the wait")
}

async fn answer(mut channel: Channel, method: &str) -> Result<http::HeaderMap, Status> {
    let answer = channel.call(request(method, Body::empty())).await?;
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => {
            let (parts, body) = answer.into_parts();
            let body = body.collect().await?;
            let trailers = body.trailers().and_then(Status::from_header_map);
            trailers.filter(|status| status.code() != Code::Ok).map_or(Ok(parts.headers), Err)
        }
    }
}

/// Adds one to a number when it is dropped.
struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeout_drops_a_late_handler_and_no_late_body() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let drops = Arc::clone(&dropped);
    let service = Raw::new(move |request: http::Request<Body>| {
        let counts = request.uri().path().ends_with("Stays").then(|| Counts(drops.clone()));
        async move {
            if counts.is_some() {
                std::future::pending::<()>().await;
            }
            let late = tokio_stream::once(()).then(|()| async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let mut trailers = http::HeaderMap::new();
                Status::ok("").add_header(&mut trailers).unwrap();
                Ok::<_, Status>(http_body::Frame::<Bytes>::trailers(trailers))
            });
            let body = http_body_util::StreamBody::new(late);
            let mut answer = http::Response::new(Body::new(body));
            answer.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            answer
        }
    });
    let both = serve(Server::builder().timeout(Duration::from_millis(50)), service).await;
    for (number, at) in (1..).zip(&both.addresses) {
        let channel = both.connect(at).await;
        let refused = call(channel.clone(), "Stays").await.unwrap_err();
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{at}: {refused}");
        assert_eq!(dropped.load(Ordering::SeqCst), number, "{at}");
        call(channel, "Streams").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_of_a_connection_run_up_to_the_concurrency_limit() {
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (runs, most) = (Arc::clone(&now), Arc::clone(&peak));
    let service = Raw::new(move |_| {
        let (runs, most) = (Arc::clone(&runs), Arc::clone(&most));
        async move {
            most.fetch_max(runs.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            runs.fetch_sub(1, Ordering::SeqCst);
            ok()
        }
    });
    for limit in [Some(2), None] {
        let server = Server::builder();
        let server = match limit {
            Some(limit) => server.concurrency_limit_per_connection(limit),
            None => server,
        };
        let both = serve(server, service.clone()).await;
        for at in &both.addresses {
            peak.store(0, Ordering::SeqCst);
            let channel = both.connect(at).await;
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let channel = channel.clone();
                calls.spawn(async move { call(channel, "Any").await });
            }
            while let Some(called) = calls.join_next().await {
                called.unwrap().unwrap();
            }
            let peak = peak.load(Ordering::SeqCst);
            assert!(limit.map_or(peak > 2, |limit| peak == limit), "{at}: {peak} of {limit:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_shed_refuses_calls_beyond_their_connections_limit() {
    let (began, mut begun) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&go);
    let service = Raw::new(move |_| {
        let (began, waits) = (began.clone(), Arc::clone(&waits));
        async move {
            began.send(()).unwrap();
            waits.acquire().await.unwrap().forget();
            ok()
        }
    });
    let server = Server::builder().concurrency_limit_per_connection(1).load_shed(true);
    let both = serve(server, service).await;
    for at in &both.addresses {
        let channels = [both.connect(at).await, both.connect(at).await];
        let calls = channels
            .clone()
            .map(|channel| tokio::spawn(async move { call(channel, "Any").await.map(drop) }));
        for _ in 0..2 {
            soon(begun.recv()).await.unwrap();
        }
        for channel in channels.clone() {
            let refused = call(channel, "Any").await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{at}: {refused}");
        }
        go.add_permits(2);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        go.add_permits(1);
        let [channel, _] = channels;
        call(channel, "Any").await.unwrap();
        soon(begun.recv()).await.unwrap();
    }
}

/// How deep this thread is in spans.
struct Depth(Arc<AtomicUsize>);

impl tracing::Subscriber for Depth {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "partywall_test"
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, _event: &tracing::Event<'_>) {}

    fn enter(&self, _span: &tracing::span::Id) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn exit(&self, _span: &tracing::span::Id) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_handler_runs_in_the_span_that_is_made_of_its_request() {
    let depth = Arc::new(AtomicUsize::new(0));
    let _set = tracing::subscriber::set_default(Depth(Arc::clone(&depth)));
    let service = Raw::new(move |_| {
        let depth = Arc::clone(&depth);
        async move {
            let before = depth.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            let mut answer = ok();
            let told = format!("{before} {}", depth.load(Ordering::SeqCst));
            answer.headers_mut().insert("x-depth", told.parse().unwrap());
            answer
        }
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&seen);
    let server = Server::builder().trace_fn(move |request| {
        let known = request.extensions().get::<Peer>().is_some();
        requests.lock().unwrap().push((request.uri().path().to_owned(), known));
        tracing::info_span!(target: "partywall_test", "call")
    });
    let both = serve(server, service).await;
    for at in &both.addresses {
        let headers = call(both.connect(at).await, "Any").await.unwrap();
        assert_eq!(headers["x-depth"], "1 1", "{at}");
    }
    let path = || "/test.Raw/Any".to_owned();
    assert_eq!(*seen.lock().unwrap(), [(path(), true), (path(), false)]);
}

/// A service that tells by which link or connection a call has come; `Waits` waits to be told to go.
fn numbered(go: Arc<Notify>) -> Raw {
    Raw::new(move |request: http::Request<Body>| {
        let go = Arc::clone(&go);
        let told = request.extensions();
        let link = told.get::<Peer>().map(|peer| peer.link().to_string());
        let tcp = told.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let over = link.or(tcp.map(|at| at.to_string())).expect("one of the two routes");
        let waits = request.uri().path().ends_with("Waits");
        async move {
            if waits {
                go.notified().await;
            }
            let mut answer = ok();
            answer.headers_mut().insert("x-over", over.parse().unwrap());
            answer
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_connections_of_age_are_replaced_with_no_call_lost() {
    let go = Arc::new(Notify::new());
    let server = Server::builder().max_connection_age(Duration::from_millis(50));
    let both = serve(server, numbered(Arc::clone(&go))).await;
    for at in &both.addresses {
        let channel = both.connect(at).await;
        let long = tokio::spawn({
            let channel = channel.clone();
            async move { call(channel, "Waits").await }
        });
        let calls = (0..4).map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move {
                let (mut over, begin) = (HashSet::new(), Instant::now());
                while over.len() < 4 {
                    assert!(begin.elapsed() < LONG, "after {over:?}");
                    let headers = call(channel.clone(), "Any").await.unwrap();
                    over.insert(headers["x-over"].clone());
                }
                over
            })
        });
        for calls in calls.collect::<Vec<_>>() {
            calls.await.unwrap();
        }
        // It has outlived the age of its own several times.
        assert!(!long.is_finished(), "{at}");
        go.notify_one();
        long.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_outlives_its_age_until_a_coordinator_can_make_another() {
    let age = Duration::from_millis(300);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("coordinator.sock");
    let host = Host::at(&socket, OPEN);
    let server = Server::builder().max_connection_age(age).coordinator(&socket);
    let routes = Routes::default().add_service(numbered(Arc::default()));
    let bound = { server }.add_routes(routes).bind("test").await.unwrap();
    let serving = tokio::spawn(bound.serve());
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
    let channel = endpoint.connect().await.unwrap();
    drop(host);
    let last = call(channel.clone(), "Any").await.unwrap()["x-over"].clone();
    let begin = Instant::now();
    while begin.elapsed() < 4 * age {
        let over = call(channel.clone(), "Any").await.unwrap()["x-over"].clone();
        assert_eq!(over, last, "after {:?}", begin.elapsed());
    }
    let _host = Host::at(&socket, OPEN);
    let begin = Instant::now();
    while call(channel.clone(), "Any").await.unwrap()["x-over"] == last {
        assert!(begin.elapsed() < LONG, "the link goes on beside a coordinator");
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_caller_changes_links_of_age_and_loses_no_call() {
    let server = Server::builder().max_connection_age(Duration::from_millis(20));
    let routes = Routes::default().add_service(test_service_with(Handle::default()));
    let both = serve_routes(server, routes).await;
    let socket = both.host.socket.clone();
    let calls = move || {
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(socket);
        let mut channel = partywall::blocking::Channel::connect(endpoint).unwrap();
        let (mut links, begin) = (HashSet::new(), Instant::now());
        while links.len() < 4 {
            assert!(begin.elapsed() < LONG, "after {links:?}");
            channel.call_bytes("/grpc.testing.TestService/EmptyCall", b"").unwrap();
            links.insert(channel.server().unwrap().link());
        }
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_ends_when_the_grace_of_its_connection_is_over() {
    let short = Duration::from_millis(50);
    let server = Server::builder().max_connection_age(short).max_connection_age_grace(short);
    let both = serve(server, numbered(Arc::default())).await;
    for at in &both.addresses {
        let ended = call(both.connect(at).await, "Waits").await.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable, "{at}: {ended}");
    }
}

/// A program that is written for tonic's server, whose type alone it names.
macro_rules! stock_program {
    ($name:ident, $server:ty) => {
        async fn $name(
            incoming: tokio_stream::wrappers::TcpListenerStream,
            stopped: tokio::sync::oneshot::Receiver<()>,
        ) -> Result<(), Box<dyn std::error::Error>> {
            let second = Some(Duration::from_secs(1));
            let reflection = tonic_reflection::server::Builder::configure();
            <$server>::builder()
                .timeout(Duration::from_secs(30))
                .concurrency_limit_per_connection(32)
                .load_shed(true)
                .trace_fn(|_| tracing::info_span!("call"))
                .accept_http1(true)
                .max_connection_age(Duration::from_secs(600))
                .max_connection_age_grace(Duration::from_secs(60))
                .max_concurrent_streams(64)
                .max_concurrent_streams(Some(64))
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(None)
                .http2_keepalive_interval(second)
                .http2_keepalive_timeout(second)
                .http2_adaptive_window(Some(false))
                .http2_max_pending_accept_reset_streams(Some(64))
                .http2_max_local_error_reset_streams(Some(64))
                .http2_max_header_list_size(1 << 14)
                .tcp_keepalive(second)
                .tcp_keepalive_interval(second)
                .tcp_keepalive_retries(Some(3))
                .tcp_nodelay(true)
                .max_frame_size(1 << 15)
                .layer(tower::ServiceBuilder::new().into_inner())
                .layer(tonic_web::GrpcWebLayer::new())
                .layer(tonic::service::InterceptorLayer::new(|mut request: tonic::Request<()>| {
                    request.metadata_mut().insert("x-seen", "yes".parse().unwrap());
                    Ok::<_, Status>(request)
                }))
                .add_service(Raw::new(|request: http::Request<Body>| async move {
                    let mut answer = ok();
                    let seen = request.headers()["x-seen"].clone();
                    answer.headers_mut().insert("x-seen", seen);
                    answer
                }))
                .add_optional_service(Some(reflection.build_v1()?))
                .serve_with_incoming_shutdown(incoming, async { drop(stopped.await) })
                .await?;
            Ok(())
        }
    };
}

stock_program!(on_tonic, tonic::transport::Server);
stock_program!(on_partywall, partywall::Server);

#[tokio::test]
async fn program_for_tonics_server_compiles_with_ours() {
    for ours in [false, true] {
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", tcp.local_addr().unwrap());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(tcp);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let calls = async {
            let channel = Channel::connect(at.as_str()).await.unwrap();
            let headers = call(channel, "Any").await.unwrap();
            assert_eq!(headers["x-seen"], "yes");
            drop(stop);
        };
        let served = async {
            if ours {
                on_partywall(incoming, stopped).await
            } else {
                on_tonic(incoming, stopped).await
            }
        };
        let (served, ()) = tokio::join!(served, calls);
        served.unwrap();
    }
}
