//! What one caller can have of a service, and of a caller's own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use partywall::{Channel, Endpoint, Routes, Server};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{Payload, SimpleRequest, SimpleResponse};
use partywall_interop::service::{DELAY_MS, Handle, test_service_with};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve};

const MIB: usize = 1 << 20;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn testing() -> Routes {
    Routes::default().add_service(test_service_with(Handle::default()))
}

fn simple(size: usize) -> SimpleRequest {
    let payload = Some(Payload { body: vec![7; size].into(), ..Payload::default() });
    SimpleRequest { payload, ..SimpleRequest::default() }
}

/// The beginning of a message of `announced` bytes: `sent` of them in pieces, and then nothing until
/// `more` has a permit; then the rest.
fn message(announced: usize, sent: usize, more: Arc<Semaphore>) -> Body {
    let mut head = vec![0];
    head.extend_from_slice(&(announced as u32).to_be_bytes());
    let (pieces, piece) = mpsc::unbounded_channel::<Bytes>();
    pieces.send(head.into()).unwrap();
    let chunk = Bytes::from(vec![7; 64 * 1024]);
    let cut = move |mut left: usize| {
        let chunk = chunk.clone();
        std::iter::from_fn(move || {
            let len = left.min(chunk.len());
            left -= len;
            (len > 0).then(|| chunk.slice(..len))
        })
    };
    cut(sent).for_each(|piece| pieces.send(piece).unwrap());
    let rest = cut(announced - sent);
    tokio::spawn(async move {
        more.acquire().await.unwrap().forget();
        rest.for_each(|piece| {
            let _gone = pieces.send(piece);
        });
    });
    let pieces = tokio_stream::wrappers::UnboundedReceiverStream::new(piece);
    let frames = tokio_stream::StreamExt::map(pieces, |piece| Ok::<_, Status>(Frame::data(piece)));
    Body::new(StreamBody::new(frames))
}

/// What has come to the handlers of [`counting`].
#[derive(Default)]
struct Came {
    bytes: AtomicU64,
    whole: AtomicUsize,
}

/// Reads each request piece by piece and counts; `Ask` is answered at once.
fn counting(came: &Arc<Came>) -> Routes {
    let came = Arc::clone(came);
    Routes::default().add_service(Raw::new(move |request| {
        let came = Arc::clone(&came);
        async move {
            let ask = request.uri().path().ends_with("Ask");
            let mut body = request.into_body();
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return Status::internal("cut off").into_http() };
                let len = frame.into_data().map_or(0, |data| data.len());
                came.bytes.fetch_add(len as u64, Ordering::SeqCst);
            }
            came.whole.fetch_add(usize::from(!ask), Ordering::SeqCst);
            ok()
        }
    }))
}

/// Waits until a count has not changed for a while, and says what it is.
async fn settled(count: &AtomicU64) -> u64 {
    let (mut last, mut same) = (count.load(Ordering::SeqCst), 0);
    while same < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = count.load(Ordering::SeqCst);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

async fn fan_out(channel: Channel) {
    let mut calls = JoinSet::new();
    for n in 0..2_000 {
        let mut client = TestServiceClient::new(channel.clone());
        calls.spawn(async move {
            let mut slow = tonic::Request::new(SimpleRequest { response_size: n, ..simple(1) });
            slow.metadata_mut().insert(DELAY_MS, "20".parse().unwrap());
            client.unary_call(slow).await.map(|reply| (n, reply.into_inner()))
        });
    }
    while let Some(done) = calls.join_next().await {
        let (n, reply): (i32, SimpleResponse) = done.unwrap().unwrap();
        assert_eq!(reply.payload.map_or(0, |p| p.body.len()), n as usize);
    }
}

#[tokio::test]
async fn two_thousand_calls_at_once_all_succeed_over_ring_and_http2() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("h2.sock").display());
    let running = host.serve_at(&format!("test,{url}"), testing()).await;
    fan_out(host.connect().await).await;
    fan_out(Channel::connect(&url).await.unwrap()).await;
    running.stop().await.unwrap();
}

/// A service whose calls are answered one by one, in the order in which they have come, and how
/// many those are.
fn one_by_one(go: &Arc<Semaphore>, came: &Arc<std::sync::Mutex<Vec<String>>>) -> Routes {
    let (go, came) = (Arc::clone(go), Arc::clone(came));
    Routes::default().add_service(Raw::new(move |request| {
        let (go, came) = (Arc::clone(&go), Arc::clone(&came));
        async move {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            came.lock().unwrap().push(name);
            go.acquire().await.unwrap().forget();
            ok()
        }
    }))
}

#[tokio::test]
async fn call_without_a_place_waits_in_turn_until_deadline_or_drop() {
    let host = Host::open();
    let (go, came) = (Arc::new(Semaphore::new(0)), Arc::default());
    let server = Server::builder().max_concurrent_streams(2);
    let running = host.serve_by(server, "test", one_by_one(&go, &came)).await;
    let channel = host.connect().await;
    let mut calls = HashMap::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let mut call = Box::pin(channel.clone().call(request(name, Body::empty())));
        let pending = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending()));
        assert!(pending.await);
        calls.insert(name, tokio::spawn(call));
        tokio::task::yield_now().await;
    }
    let mut hasty = request("hasty", Body::empty());
    hasty.headers_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let (start, hasty) = (Instant::now(), channel.clone().call(hasty).await);
    assert_eq!(hasty.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let seen = || came.lock().unwrap().clone();
    assert_eq!(seen(), ["a", "b"], "only two have places");
    // The first in the queue is given up, and nobody loses a place by that.
    calls.remove("c").unwrap().abort();
    for (n, done) in ["a", "b", "d", "e"].into_iter().enumerate() {
        go.add_permits(1);
        let answer = tokio::time::timeout(LONG, calls.remove(done).unwrap()).await;
        answer.expect("no place came free").unwrap().unwrap();
        let all = ["a", "b", "d", "e", "f"];
        let end = Instant::now() + LONG;
        while seen().len() < (n + 3).min(5) {
            assert!(Instant::now() < end, "{:?}", seen());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(seen(), all[..(n + 3).min(5)]);
    }
    go.add_permits(1);
    calls.remove("f").unwrap().await.unwrap().unwrap();
    running.stop().await.unwrap();
}

/// The time that a call has waited for a place is no longer its handler's.
#[tokio::test]
async fn a_call_that_has_waited_has_less_time_left() {
    let host = Host::open();
    let hurry = Arc::new(Notify::new());
    let wait = Arc::clone(&hurry);
    let raw = Raw::new(move |r| {
        let wait = Arc::clone(&wait);
        async move {
            if r.uri().path().ends_with("First") {
                wait.notified().await;
                return ok();
            }
            let left = r.extensions().get::<partywall::Deadline>().unwrap().0 - Instant::now();
            Status::aborted(left.as_millis().to_string()).into_http()
        }
    });
    let server = Server::builder().max_concurrent_streams(1);
    let running = host.serve_by(server, "test", Routes::default().add_service(raw)).await;
    let channel = host.connect().await;
    let first = tokio::spawn(channel.clone().call(request("First", Body::empty())));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut second = request("Second", Body::empty());
    second.headers_mut().insert("grpc-timeout", "20S".parse().unwrap());
    let second = tokio::spawn(channel.clone().call(second));
    tokio::time::sleep(Duration::from_millis(500)).await;
    hurry.notify_one();
    let answer = second.await.unwrap().unwrap();
    let left: u64 = answer.headers()["grpc-message"].to_str().unwrap().parse().unwrap();
    assert!((10_000..19_600).contains(&left), "{left} ms");
    first.await.unwrap().unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_caller_has_so_many_calls_over_all_its_links() {
    let host = Host::open();
    let (go, came) = (Arc::new(Semaphore::new(0)), Arc::<std::sync::Mutex<Vec<String>>>::default());
    let server = Server::builder().max_concurrent_streams(8).max_calls_per_caller(10);
    let running = host.serve_by(server, "test", one_by_one(&go, &came)).await;
    let channels = [host.connect().await, host.connect().await];
    let mut calls = JoinSet::new();
    for channel in &channels {
        (0..8).for_each(|_| {
            calls.spawn(channel.clone().call(request("Call", Body::empty())));
        });
    }
    let (mut good, mut refused) = (0, 0);
    while let Some(done) = calls.join_next().await {
        match done.unwrap() {
            Ok(_) => good += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert!(status.message().contains("max_calls_per_caller"), "{status}");
                refused += 1;
            }
        }
        if refused == 4 && good == 0 {
            // What is given back by one link the other one can have.
            go.add_permits(64);
        }
    }
    // One on each link, and ten beside them.
    assert_eq!((good, refused), (12, 4));
    for channel in &channels {
        (0..8).for_each(|_| {
            calls.spawn(channel.clone().call(request("Call", Body::empty())));
        });
        while let Some(done) = calls.join_next().await {
            done.unwrap().unwrap();
        }
    }
    running.stop().await.unwrap();
}

/// 1,024 calls of a link, beyond which they wait, and 4,096 of a caller beside one on each link.
#[tokio::test]
async fn a_server_that_sets_no_bounds_has_those_that_are_promised() {
    let host = Host::open();
    let (go, came) = (Arc::new(Semaphore::new(0)), Arc::<std::sync::Mutex<Vec<String>>>::default());
    let running = host.serve(one_by_one(&go, &came)).await;
    let mut calls = JoinSet::new();
    let begin = |channel: &Channel, many: usize, calls: &mut JoinSet<_>| {
        (0..many).for_each(|_| {
            calls.spawn(channel.clone().call(request("Call", Body::empty())));
        });
    };
    let first = host.connect().await;
    begin(&first, 1_034, &mut calls);
    let open = || came.lock().unwrap().len();
    let until = async |wanted: usize| {
        let start = Instant::now();
        while open() < wanted && start.elapsed() < LONG {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(open(), wanted);
    };
    until(1_024).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(host.connect().await);
        begin(others.last().unwrap(), 1_024, &mut calls);
    }
    until(4_096 + 5).await;
    go.add_permits(10_000);
    let (mut good, mut refused) = (0, 0);
    while let Some(done) = calls.join_next().await {
        match done.unwrap() {
            Ok(_) => good += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                refused += 1;
            }
        }
    }
    assert_eq!((good, refused), (4_096 + 5 + 10, 1_019));
    running.stop().await.unwrap();
}

/// Forty requests of 4 MiB have room for two at a time, on a link whose window holds four.
#[tokio::test]
async fn large_messages_that_have_no_room_together_all_arrive() {
    let host = Host::open();
    let came = Arc::<Came>::default();
    for (bytes, links) in [(8 * MIB, 1), (8 * MIB, 3), (0, 2)] {
        let server = Server::builder().max_request_bytes_per_caller(bytes as u64);
        let running = host.serve_by(server, "test", counting(&came)).await;
        let mut channels = Vec::new();
        for _ in 0..links {
            channels.push(host.connect().await);
        }
        let mut calls = JoinSet::new();
        let (last, came_before) = (Arc::new(Semaphore::new(0)), settled(&came.bytes).await);
        for n in 0..40 {
            // The first two have room; what the others send meanwhile uses up the link's window.
            let more = if n < 2 { Arc::clone(&last) } else { Arc::new(Semaphore::new(1)) };
            let body = message(4 * MIB, MIB, more);
            calls.spawn(channels[n % links].clone().call(request("Long", body)));
            if n == 1 {
                settled(&came.bytes).await;
            }
        }
        assert!(settled(&came.bytes).await - came_before < 40 * 4 * MIB as u64);
        last.add_permits(2);
        let all = async {
            while let Some(done) = calls.join_next().await {
                assert_eq!(done.unwrap().unwrap().headers()["grpc-status"], "0");
            }
        };
        let whole = || came.whole.load(Ordering::SeqCst);
        let stuck = tokio::time::timeout(LONG, all).await;
        assert!(stuck.is_ok(), "stuck with {} of 40: {bytes} bytes, {links} links", whole());
        running.stop().await.unwrap();
    }
    assert_eq!(came.whole.load(Ordering::SeqCst), 120);
}

#[tokio::test]
async fn endless_requests_stay_in_bounds_and_stop_no_other_call() {
    let host = Host::open();
    let came = Arc::<Came>::default();
    let server = Server::builder().max_request_bytes_per_caller(16 * MIB as u64);
    let running = host.serve_by(server, "test", counting(&came)).await;
    let channel = host.connect().await;
    let more = Arc::new(Semaphore::new(0));
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let body = message(4 * MIB, 4 * MIB - 1, Arc::clone(&more));
        calls.spawn(channel.clone().call(request("Long", body)));
    }
    let held = settled(&came.bytes).await;
    // And the heads of the messages.
    assert!(held <= 16 * MIB as u64 + 100, "{held} bytes are being put together");
    assert!(held >= 15 * MIB as u64, "only {held} bytes came");
    // On the same link: a call with a short message, and one that is as long as a record holds.
    for len in [100, 30_000] {
        let body = Body::new(http_body_util::Full::new(Bytes::from(vec![0; 5 + len])));
        let asked = tokio::time::timeout(LONG, channel.clone().call(request("Ask", body))).await;
        assert!(asked.expect("a short call is stuck").is_ok());
    }
    // Given up, they make room.
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    let body = message(4 * MIB, 4 * MIB, Arc::new(Semaphore::new(1)));
    let last = tokio::time::timeout(LONG, channel.clone().call(request("Long", body))).await;
    assert!(last.expect("what was given up holds room").is_ok());
    running.stop().await.unwrap();
}

/// A message that a handler has taken keeps its share while its request goes on.
#[tokio::test]
async fn whole_messages_of_requests_that_go_on_count_as_well() {
    let host = Host::open();
    let server = Server::builder().max_request_bytes_per_caller(8 * MIB as u64);
    let running = host.serve_by(server, "test", testing()).await;
    let channel = host.connect().await;
    let more = Arc::new(Semaphore::new(0));
    let mut calls = JoinSet::new();
    let unary = |body: Body| {
        let mut r = request("", body);
        *r.uri_mut() = http::Uri::from_static("/grpc.testing.TestService/UnaryCall");
        channel.clone().call(r)
    };
    for _ in 0..6 {
        // The message is whole, and its request does not end: there is one more byte to come.
        let mut whole = vec![0, 0, 0x20, 0, 0, 0x1a, 0xfc, 0xff, 0x7f, 0x12, 0xf8, 0xff, 0x7f];
        whole.resize(5 + 2 * MIB, 0);
        let first = Bytes::from(whole);
        let after = message(1, 0, Arc::clone(&more));
        let frames = tokio_stream::once(Ok::<_, Status>(Frame::data(first)));
        let after = http_body_util::BodyStream::new(after);
        let body = StreamBody::new(tokio_stream::StreamExt::chain(frames, after));
        calls.spawn(unary(Body::new(body)));
    }
    let mut refused = 0;
    for _ in 0..2 {
        let done = tokio::time::timeout(LONG, calls.join_next()).await;
        let done = done.expect("all are held").unwrap().unwrap();
        let code = done
            .map_or_else(|s| s.code(), |r| Status::from_header_map(r.headers()).unwrap().code());
        refused += usize::from(code == Code::ResourceExhausted);
    }
    assert_eq!(refused, 2, "four of 2 MiB have room");
    assert!(futures_none(&mut calls), "a third was refused");
    drop(calls);
    let mut client = TestServiceClient::new(channel.clone());
    client.unary_call(simple(3 * MIB)).await.unwrap();
    running.stop().await.unwrap();
}

/// Whether none is done.
fn futures_none<T: 'static>(calls: &mut JoinSet<T>) -> bool {
    calls.try_join_next().is_none()
}

/// A service that begins answers and does not finish them.
#[tokio::test]
async fn answers_that_never_end_hold_a_bounded_part_and_stop_no_other() {
    let host = Host::open();
    let raw = Raw::new(|r| async move {
        if r.uri().path().ends_with("Ask") {
            return ok();
        }
        http::Response::new(message(4 * MIB, 4 * MIB - 1, Arc::new(Semaphore::new(0))))
    });
    let running = host.serve(Routes::default().add_service(raw)).await;
    let channel = host.connect().await;
    let came = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    for _ in 0..80 {
        let (mut channel, came) = (channel.clone(), Arc::clone(&came));
        calls.spawn(async move {
            let mut answer = channel.call(request("Long", Body::empty())).await.unwrap();
            while let Some(frame) = answer.frame().await {
                let len = frame.unwrap().into_data().unwrap().len();
                came.fetch_add(len as u64, Ordering::SeqCst);
            }
        });
    }
    let held = settled(&came).await;
    assert!(held <= 256 * MIB as u64 + 1000, "{held} bytes are being put together");
    assert!(held >= 250 * MIB as u64, "only {held} bytes came");
    let asked = channel.clone().call(request("Ask", Body::empty()));
    assert!(tokio::time::timeout(LONG, asked).await.expect("a short call is stuck").is_ok());
    drop(calls);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn open_calls_do_not_keep_a_server_from_ending() {
    let host = Host::open();
    let (go, came) = (Arc::new(Semaphore::new(0)), Arc::<std::sync::Mutex<Vec<String>>>::default());
    let server = Server::builder().drain_timeout(Duration::from_millis(300));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("h2.sock").display());
    let running = host.serve_by(server, &format!("test,{url}"), one_by_one(&go, &came)).await;
    host.connect().await;
    let endpoint = Endpoint::from_static("partywall:///test");
    let mut channel = endpoint.coordinator(&host.socket).connect().await.unwrap();
    let sticky = tokio::spawn(channel.call(request("Sticky", Body::empty())));
    let mut http2 = Channel::connect(&url).await.unwrap();
    let _sticky_as_well = tokio::spawn(http2.call(request("Sticky", Body::empty())));
    while came.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let start = Instant::now();
    let stopped = tokio::time::timeout(LONG, running.stop()).await;
    stopped.expect("the server does not end").unwrap();
    let took = start.elapsed();
    assert!((300..5_000).contains(&took.as_millis()), "{took:?}");
    let status = sticky.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the server has ended"), "{status}");
}
