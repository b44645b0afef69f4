//! What an endpoint sets means the same on each route: over a ring, at an address, and by a name that the
//! policy maps to an address.

mod connections;
mod stock;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use partywall::{Balance, Channel, Endpoint, Error, Routes, blocking};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};

use super::service::{Raw, ok, request};
use super::setup::{Host, Running, Serve};

/// A service on each route.
struct Everywhere {
    host: Host,
    _dir: tempfile::TempDir,
    address: String,
    _running: Running,
}

impl Everywhere {
    async fn serve<F, Fut>(handler: F) -> Self
    where
        F: Fn(http::Request<Body>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = http::Response<Body>> + Send + 'static,
    {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", dir.path().join("s").display());
        let host = Host::with(&format!(
            "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
             [service.far.call]\nanyone = ['*']\n[names]\nfar = '{address}'\n"
        ));
        let routes = Routes::default().add_service(Raw::new(handler));
        let running = host.serve_at(&format!("test,{address}"), routes).await;
        let service = Self { host, _dir: dir, address, _running: running };
        let [address, name, _] = service.endpoints();
        address.connect().await.unwrap();
        name.connect().await.unwrap();
        service
    }

    fn endpoints(&self) -> [Endpoint; 3] {
        [&*self.address, "partywall:///test", "partywall:///far"].map(|target| {
            let endpoint = Endpoint::new(target).unwrap().wait_for_ready(true);
            endpoint.coordinator(&self.host.socket)
        })
    }
}

/// What is to happen soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("an end of the wait")
}

async fn call(channel: &Channel, request: http::Request<Body>) -> Result<(), Status> {
    let mut channel = channel.clone();
    let calling = async {
        let answer = channel.ready().await?.call(request).await?;
        let status = Status::from_header_map(answer.headers());
        let trailers = answer.into_body().collect().await?.trailers().cloned();
        Ok::<_, Status>(status.or_else(|| Status::from_header_map(&trailers?)).expect("a status"))
    };
    let status = soon(calling).await?;
    if status.code() == Code::Ok { Ok(()) } else { Err(status) }
}

fn any() -> http::Request<Body> {
    request("Any", Body::empty())
}

fn within(mut request: http::Request<Body>, timeout: &'static str) -> http::Request<Body> {
    request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static(timeout));
    request
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

/// Says when a handler is dropped.
struct Dropped(mpsc::UnboundedSender<bool>, bool);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _gone = self.0.send(self.1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_ends_a_call_whose_head_is_late_and_its_handler() {
    let (tx, mut dropped) = mpsc::unbounded_channel();
    let service = Everywhere::serve(move |request| {
        let guard = Dropped(tx.clone(), request.headers().contains_key("grpc-timeout"));
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    })
    .await;
    for endpoint in service.endpoints() {
        for (endpoint, request, told) in [
            (endpoint.clone().timeout(SHORT), any(), false),
            (endpoint.clone().timeout(SHORT), within(any(), "30S"), true),
            (endpoint.timeout(LONG), within(any(), "100m"), true),
        ] {
            let channel = endpoint.connect().await.unwrap();
            let start = Instant::now();
            let status = call(&channel, request).await.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{endpoint:?}: {status}");
            assert!(start.elapsed() >= SHORT && start.elapsed() < LONG / 2, "{endpoint:?}");
            assert_eq!(
                soon(dropped.recv()).await,
                Some(told),
                "{endpoint:?}: who tells the service"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_does_not_end_a_stream_whose_head_has_come() {
    let service = Everywhere::serve(|_| async {
        let (tx, late) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            tokio::time::sleep(3 * SHORT).await;
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            let _gone = tx.send(Ok::<_, Status>(Frame::<Bytes>::trailers(trailers)));
        });
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(late);
        http::Response::new(Body::new(StreamBody::new(frames)))
    })
    .await;
    for endpoint in service.endpoints() {
        let channel = endpoint.timeout(SHORT).connect().await.unwrap();
        call(&channel, any()).await.unwrap();
    }
}

/// A call that waits for a name, or for an address, waited without end.
#[tokio::test]
async fn a_timeout_ends_the_waiting_of_a_call_for_its_service() {
    let host = Host::open();
    for target in ["partywall:///test", "http://127.0.0.1:1"] {
        let endpoint = Endpoint::from_static(target).coordinator(&host.socket);
        let channel = endpoint.wait_for_ready(true).timeout(SHORT).connect_lazy();
        let status = call(&channel, any()).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{target}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrency_limit_holds_for_all_clones_of_a_channel() {
    let most = Arc::new(AtomicUsize::new(0));
    let (now, seen) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&most));
    let service = Everywhere::serve(move |_| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&seen));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            ok()
        }
    })
    .await;
    for (endpoint, limit) in service.endpoints().into_iter().flat_map(|e| [(e.clone(), 2), (e, 8)])
    {
        most.store(0, Ordering::SeqCst);
        let channel = endpoint.concurrency_limit(limit).connect().await.unwrap();
        let calls = (0..8).map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { call(&channel, any()).await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!(most <= limit && (limit == 8 || most == limit), "{most} of {limit}");
    }
}

/// What holds the calls of [`held`].
struct Held {
    service: Everywhere,
    begun: mpsc::UnboundedReceiver<(oneshot::Sender<()>, Option<Duration>)>,
}

impl Held {
    /// What lets the next call go that comes to the service.
    async fn begun(&mut self) -> oneshot::Sender<()> {
        self.begun_with_time().await.0
    }

    /// That, and the time that the service is told of.
    async fn begun_with_time(&mut self) -> (oneshot::Sender<()>, Option<Duration>) {
        soon(self.begun.recv()).await.unwrap()
    }
}

/// The time of a `grpc-timeout`, by gRPC's protocol.
fn time(told: &http::HeaderValue) -> Duration {
    let (number, unit) = told.to_str().unwrap().split_at(told.len() - 1);
    let number = number.parse().unwrap();
    match unit {
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => panic!("{told:?}"),
    }
}

/// A service whose calls end when they are let go.
async fn held() -> Held {
    let (tx, begun) = mpsc::unbounded_channel();
    let service = Everywhere::serve(move |request| {
        let (tx, told) = (tx.clone(), request.headers().get("grpc-timeout").map(time));
        async move {
            let (go, gone) = oneshot::channel();
            tx.send((go, told)).unwrap();
            gone.await.unwrap();
            ok()
        }
    })
    .await;
    Held { service, begun }
}

/// A program's own, with an error of its own, as tonic takes it.
struct Place(&'static str);

impl TryFrom<Place> for Endpoint {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn try_from(Place(name): Place) -> Result<Self, Self::Error> {
        if name.is_empty() { Err("no place".into()) } else { Ok(Self::try_from(name)?) }
    }
}

#[test]
fn endpoint_is_made_of_what_becomes_one_with_any_error() {
    Endpoint::new(Place("partywall:///test")).unwrap();
    let wrong = Endpoint::new(Place("ftp://x")).unwrap_err();
    assert!(matches!(wrong, Error::Target(_)), "{wrong}");
    let none = Endpoint::new(Place("")).unwrap_err();
    assert!(matches!(&none, Error::Setting { name: "target", why } if why == "no place"), "{none}");
    let uri = || "http://127.0.0.1:1".parse::<http::Uri>().unwrap();
    Endpoint::new(uri()).unwrap();
    assert_eq!(format!("{:?}", Channel::builder(uri())), format!("{:?}", Endpoint::from(uri())));
}

/// What programs write that want no limit at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_at_the_end_of_their_range_panic_nowhere() {
    let service = Everywhere::serve(|_| async { ok() }).await;
    for endpoint in service.endpoints() {
        let most = endpoint.clone().concurrency_limit(usize::MAX).buffer_size(usize::MAX);
        let most = most.connect_timeout(Duration::MAX).timeout(Duration::MAX);
        let seldom = endpoint.clone().rate_limit(1, Duration::MAX);
        let none = endpoint.clone().concurrency_limit(1).buffer_size(0);
        for endpoint in [most, seldom, none] {
            call(&endpoint.connect().await.unwrap(), any()).await.unwrap();
        }
        let zero = endpoint.clone().concurrency_limit(0).connect().await.unwrap_err();
        assert!(matches!(zero, Error::Setting { name: "concurrency_limit", .. }), "{zero}");
        let at_once = endpoint.timeout(Duration::ZERO).connect().await.unwrap();
        assert_eq!(call(&at_once, any()).await.unwrap_err().code(), Code::DeadlineExceeded);
    }
    let server = || partywall::Server::builder().concurrency_limit_per_connection(usize::MAX);
    let channel = server().add_routes(partywall::Routes::default()).in_process().unwrap();
    assert_eq!(call(&channel, any()).await.unwrap_err().code(), Code::Unimplemented);
    let mut none = partywall::Server::builder().concurrency_limit_per_connection(0);
    let refused = none.add_routes(partywall::Routes::default()).in_process().unwrap_err();
    let name = "concurrency_limit_per_connection";
    assert!(matches!(&refused, Error::Setting { name: found, .. } if *found == name), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_counts_while_a_call_waits_and_timeout_does_not() {
    let mut held = held().await;
    for endpoint in held.service.endpoints() {
        let channel = endpoint.concurrency_limit(1).timeout(LONG).connect().await.unwrap();
        let spawn = |request| {
            let channel = channel.clone();
            tokio::spawn(async move { call(&channel, request).await })
        };
        let first = spawn(any());
        let first_go = held.begun().await;
        let status = spawn(within(any(), "50m")).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        let last = spawn(any());
        first_go.send(()).unwrap();
        first.await.unwrap().unwrap();
        held.begun().await.send(()).unwrap();
        last.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_of_a_call_that_has_waited_is_told_the_time_that_is_left() {
    const WHOLE: Duration = Duration::from_secs(20);
    let mut held = held().await;
    for endpoint in held.service.endpoints() {
        let channel = endpoint.clone().concurrency_limit(1).connect().await.unwrap();
        let first = tokio::spawn({
            let channel = channel.clone();
            async move { call(&channel, any()).await }
        });
        let first_go = held.begun().await;
        let begin = Instant::now();
        let waiting = channel.clone();
        let mut second = Box::pin(async move { call(&waiting, within(any(), "20S")).await });
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx))).await.is_pending()
        );
        let queued = Instant::now();
        tokio::time::sleep(3 * SHORT).await;
        let waited = queued.elapsed();
        first_go.send(()).unwrap();
        first.await.unwrap().unwrap();
        let second = tokio::spawn(second);
        let (go, told) = held.begun_with_time().await;
        let told = told.expect("a time");
        assert!(told + waited <= WHOLE, "{endpoint:?}: {told:?} after {waited:?}");
        // Less by what a `grpc-timeout` can round off, at most.
        let all = begin.elapsed() + Duration::from_millis(1);
        assert!(told + all >= WHOLE, "{endpoint:?}: {told:?} within {all:?}");
        go.send(()).unwrap();
        second.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_whose_buffer_is_full_is_not_ready() {
    let mut held = held().await;
    for endpoint in held.service.endpoints() {
        let endpoint = endpoint.concurrency_limit(1).buffer_size(1);
        let mut channel = endpoint.connect().await.unwrap();
        let mut calls = Vec::new();
        // One is under way, one waits for the limit, one is in the buffer.
        for _ in 0..3 {
            calls.push(tokio::spawn(channel.ready().await.unwrap().call(any())));
        }
        let mut full = channel.clone();
        let ready = std::future::poll_fn(|cx| Poll::Ready(full.poll_ready(cx).is_ready()));
        assert!(!ready.await, "{endpoint:?}");
        for call in calls {
            held.begun().await.send(()).unwrap();
            call.await.unwrap().unwrap();
        }
        full.ready().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_spreads_calls_over_time() {
    let service = Everywhere::serve(|_| async { ok() }).await;
    for endpoint in service.endpoints() {
        let channel = endpoint.rate_limit(2, SHORT).connect().await.unwrap();
        let start = Instant::now();
        for _ in 0..5 {
            call(&channel.clone(), any()).await.unwrap();
        }
        assert!(start.elapsed() >= 2 * SHORT, "{:?}", start.elapsed());
    }
}

/// The URI and the user agent of the last request.
type Seen = Arc<Mutex<Option<(String, String)>>>;

async fn noting() -> (Everywhere, Seen) {
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let service = Everywhere::serve(move |request| {
        let agent = request.headers()[http::header::USER_AGENT].to_str().unwrap().to_owned();
        assert!(!request.headers().contains_key(http::header::HOST));
        *note.lock().unwrap() = Some((request.uri().to_string(), agent));
        async { ok() }
    })
    .await;
    (service, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_agent_is_between_the_requests_and_the_librarys() {
    let (service, seen) = noting().await;
    for endpoint in service.endpoints() {
        let channel = endpoint.user_agent("Greeter/2").unwrap().connect().await.unwrap();
        let mut named = any();
        named.headers_mut().insert("user-agent", http::HeaderValue::from_static("own/1"));
        for (request, expected) in
            [(any(), "Greeter/2 partywall/1"), (named, "own/1 Greeter/2 partywall/1")]
        {
            call(&channel, request).await.unwrap();
            let (_, agent) = seen.lock().unwrap().take().unwrap();
            // Over HTTP/2 tonic adds itself.
            assert_eq!(agent.split(" tonic/").next(), Some(expected));
        }
    }
    let error = Endpoint::from_static("partywall:///test").user_agent("a\nb").unwrap_err();
    assert!(matches!(error, Error::Setting { name: "user_agent", .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_is_the_authority_that_a_service_sees() {
    let (service, seen) = noting().await;
    for endpoint in service.endpoints() {
        let origin = http::Uri::from_static("http://greeter.example:8080");
        let channel = endpoint.clone().origin(origin).connect().await.unwrap();
        call(&channel, any()).await.unwrap();
        let (uri, _) = seen.lock().unwrap().take().unwrap();
        assert_eq!(uri, "http://greeter.example:8080/test.Raw/Any", "{endpoint:?}");
        let endpoint = endpoint.origin(http::Uri::from_static("/no/origin"));
        let error = endpoint.connect().await.unwrap_err();
        assert!(matches!(error, Error::Setting { name: "origin", .. }), "{error}");
        let status = call(&endpoint.connect_lazy(), any()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_channel_keeps_the_settings_of_its_endpoint() {
    let (service, seen) = noting().await;
    let [_, endpoint, _] = service.endpoints();
    let called = move || {
        let endpoint = endpoint.user_agent("Greeter/2").unwrap();
        let endpoint = endpoint.origin(http::Uri::from_static("http://greeter.example"));
        let mut channel = blocking::Channel::connect(&endpoint).unwrap();
        // The answer has no message.
        channel.call_bytes("/test.Raw/Any", b"").unwrap_err();
        let limited = blocking::Channel::connect(endpoint.clone().rate_limit(1, SHORT));
        assert!(matches!(limited.unwrap_err(), Error::Setting { name: "rate_limit", .. }));
        let balanced = blocking::Channel::connect(endpoint.clone().balance(Balance::RoundRobin));
        assert!(matches!(balanced.unwrap_err(), Error::Setting { name: "balance", .. }));
        let none = blocking::Channel::connect(endpoint.concurrency_limit(0)).unwrap_err();
        assert!(matches!(none, Error::Setting { name: "concurrency_limit", .. }));
        let refused = blocking::Channel::connect("http://127.0.0.1:1").unwrap_err();
        assert!(matches!(refused, Error::NoRing { .. }), "{refused}");
    };
    tokio::task::spawn_blocking(called).await.unwrap();
    let (uri, agent) = seen.lock().unwrap().take().unwrap();
    assert_eq!((&*uri, &*agent), ("http://greeter.example/test.Raw/Any", "Greeter/2 partywall/1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_call_ends_with_the_timeout_of_its_endpoint() {
    let service = Everywhere::serve(|_| std::future::pending()).await;
    let [_, endpoint, _] = service.endpoints();
    let host = Host::open();
    let called = move || {
        let mut channel = blocking::Channel::connect(endpoint.timeout(SHORT)).unwrap();
        let start = Instant::now();
        let status = channel.call_bytes("/test.Raw/Any", b"").unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(start.elapsed() >= SHORT && start.elapsed() < LONG);
        // Nobody serves it: within the time to connect that is told at once.
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let error = blocking::Channel::connect(&endpoint).unwrap_err();
        assert!(matches!(error, Error::NotServed { .. }), "{error}");
    };
    tokio::task::spawn_blocking(called).await.unwrap();
}

/// It failed at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_channel_waits_for_a_coordinator_and_for_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
    let error = blocking::Channel::connect(&endpoint).unwrap_err();
    assert!(matches!(error, Error::NoCoordinator { .. }), "{error}");
    let (tx, connected) = oneshot::channel();
    let waiting = std::thread::spawn(move || {
        let mut channel = blocking::Channel::connect(endpoint.wait_for_ready(true)).unwrap();
        tx.send(()).unwrap();
        channel.call_bytes("/test.Raw/Any", b"").unwrap_err().code()
    });
    let host = Host::at(&socket, super::setup::OPEN);
    let routes = Routes::default().add_service(Raw::new(|_| async { ok() }));
    let _running = host.serve(routes).await;
    soon(connected).await.unwrap();
    let code = tokio::task::spawn_blocking(move || waiting.join().unwrap()).await.unwrap();
    assert_eq!(code, Code::Internal, "the answer has no message");
}

/// Where there is one instance, or one address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_balance_over_one_instance_or_address_changes_no_call() {
    let (service, seen) = noting().await;
    for endpoint in service.endpoints() {
        for balance in [Balance::RoundRobin, Balance::LeastOutstanding] {
            let channel = endpoint.clone().balance(balance).connect_lazy();
            call(&channel, any()).await.unwrap();
            call(&channel, any()).await.unwrap();
            assert!(channel.route().is_some());
            assert!(seen.lock().unwrap().take().is_some(), "{endpoint:?}");
        }
    }
}

#[tokio::test]
async fn wrong_target_is_refused_as_text_at_once_and_as_uri_on_use() {
    for text in ["ftp://h", "h:1", "partywall://h/x"] {
        for error in [
            Endpoint::from_shared(text).unwrap_err(),
            Channel::from_shared(text).unwrap_err(),
            Endpoint::try_from(text.to_owned()).unwrap_err(),
            text.parse::<Endpoint>().unwrap_err(),
        ] {
            assert!(matches!(error, Error::Target(_)), "{error}");
            assert!(error.to_string().contains("write partywall:///NAME"), "{error}");
        }
    }
    assert!(matches!(Endpoint::from_shared(&b"\xff"[..]), Err(Error::Target(_))));
    let endpoint = Endpoint::from(http::Uri::from_static("ftp://h"));
    assert_eq!(endpoint.connect().await.unwrap_err().code(), Code::InvalidArgument);
    let status = call(&endpoint.connect_lazy(), any()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let uri = |text| Endpoint::from_static(text).uri().to_string();
    assert_eq!(uri("http://h:1"), "http://h:1/");
    assert_eq!(uri("partywall:///x"), "http://localhost/");
    assert!(std::panic::catch_unwind(|| Channel::from_static("nothing")).is_err());
}
