//! Targets and options mean what they say wherever a channel connects to, and a listener takes
//! nothing that is not its own.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partywall::{Balance, Channel, Endpoint, Error, Route, Routes, Server};
use partywall_abi::control::{Message, RegistryMessage};
use partywall_abi::name::ServiceName;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{Empty, SimpleRequest, StreamingOutputCallRequest};
use partywall_interop::service::{DELAY_MS, Handle, test_service_with};
use partywall_testkit::Conversation;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tonic::Code;
use tonic::body::Body;
use tower::Service;

use super::service::request;
use super::setup::{Host, OPEN, Serve};

fn routes() -> Routes {
    Routes::default().add_service(test_service_with(Handle::default()))
}

async fn empty(channel: &Channel) -> Result<(), tonic::Status> {
    TestServiceClient::new(channel.clone()).empty_call(Empty {}).await.map(drop)
}

/// `connect_lazy` and `connect` panicked.
#[tokio::test]
async fn an_address_that_is_none_is_an_error_and_no_panic() {
    for text in ["http://a b", "http://", "http://h:x", "http://h:1/path", "unix:", "unix:a\0b"] {
        let error = Endpoint::new(text).map(drop).unwrap_err();
        assert!(matches!(error, Error::Target(_)), "{error}");
        assert!(error.to_string().contains("write "), "{error}");
        let error = Channel::connect(text).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
    // A target that was made by hand.
    let channel = Endpoint::from_static("http://h:1").connect_lazy();
    assert!(matches!(channel.route(), Some(Route::Http2 { url, .. }) if url == "http://h:1"));
}

/// A lazy channel needs no runtime until its first call.
#[test]
fn a_lazy_channel_can_be_made_anywhere() {
    for target in ["partywall:///x", "http://127.0.0.1:1", "unix:/x"] {
        let channel = Endpoint::new(target).unwrap().connect_lazy();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(empty(&channel)).unwrap_err().code(), Code::Unavailable);
    }
}

/// A listener that takes nobody in, and the connections that fill its queue.
fn full() -> (String, Vec<OwnedFd>) {
    let socket = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let listener = socket();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        let filling = socket();
        rustix::io::ioctl_fionbio(&filling, true).unwrap();
        let _under_way = rustix::net::connect(&filling, &address);
        held.push(filling);
    }
    assert!(held.iter().all(|fd| fd.as_raw_fd() > 0 && sockopt::socket_error(fd).is_ok()));
    held.push(listener);
    let address = std::net::SocketAddr::try_from(address).unwrap();
    (format!("http://{address}"), held)
}

/// It was 5 s, whatever was set.
#[tokio::test]
async fn the_connect_timeout_is_that_of_every_target() {
    let (url, _held) = full();
    let within = Duration::from_millis(200);
    let host = Host::with(&format!("[service.far.call]\nanyone = ['*']\n[names]\nfar = '{url}'\n"));
    for target in [&*url, "partywall:///far"] {
        let endpoint = || {
            let endpoint = Endpoint::new(target).unwrap().coordinator(&host.socket);
            endpoint.connect_timeout(within)
        };
        let start = Instant::now();
        let error = endpoint().connect().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut(t) if t == within), "{target}: {error}");
        assert!(start.elapsed() < within * 5, "{target}: {:?}", start.elapsed());
        let start = Instant::now();
        let status = empty(&endpoint().connect_lazy()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{target}: {status}");
        assert!(start.elapsed() < within * 5, "{target}: {:?}", start.elapsed());
    }
}

/// An instance that takes links and opens none failed each second connect, after twice the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_opens_no_links_is_passed_over_in_time() {
    let host = Host::open();
    let hung = Conversation::open(&host.socket).unwrap();
    let name = ServiceName::new("test").unwrap();
    hung.say(&RegistryMessage::Register { request: 1, name, places: 64 }.into()).unwrap();
    assert!(matches!(
        hung.next().unwrap().0,
        Message::Registry(RegistryMessage::Registered { .. })
    ));
    std::thread::spawn(move || {
        // Between offers there is word of links that their callers have filled.
        let kept: Vec<_> = (0..100).filter_map(|_| hung.adopt().ok()).collect();
        drop(kept);
    });
    let endpoint = || Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let within = Duration::from_millis(300);
    let start = Instant::now();
    let error = endpoint().connect_timeout(within).connect().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let took = start.elapsed();
    assert!(took >= within && took < 2 * within, "{took:?}: {error}");
    let late = endpoint().connect_timeout(within);
    let late = tokio::task::spawn_blocking(|| partywall::blocking::Channel::connect(late));
    let error = late.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut(t) if t == within), "{error}");
    let running = host.serve(routes()).await;
    host.connect().await;
    for _ in 0..4 {
        empty(&endpoint().connect().await.unwrap()).await.unwrap();
    }
    running.stop().await.unwrap();
}

/// A few hundred links a second, of a channel without calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_end_each_link_at_once_are_asked_less_and_less_often() {
    let host = Host::open();
    let made = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let ends = Conversation::open(&host.socket).unwrap();
        let name = ServiceName::new("test").unwrap();
        ends.say(&RegistryMessage::Register { request: 1, name, places: 64 }.into()).unwrap();
        ends.next().unwrap();
        let made = Arc::clone(&made);
        std::thread::spawn(move || {
            ends.serve(|link| {
                drop(link);
                made.fetch_add(1, Ordering::Relaxed);
            })
        });
    }
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let endpoint = endpoint.wait_for_ready(true).balance(Balance::RoundRobin);
    let channel = endpoint.connect_lazy();
    empty(&channel).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let so_far = made.load(Ordering::Relaxed);
    drop(channel);
    // At most two for each in a round, and 10 ms, 20 ms and so on up to a second between rounds.
    assert!((2..=8 * 9).contains(&so_far), "{so_far} links in three seconds");
}

/// The call went over the network.
#[tokio::test]
async fn an_address_over_the_network_is_no_ring() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let target = format!("unix:{}", dir.path().join("s").display());
    let running = host.serve_at(&target, routes()).await;
    Endpoint::new(target.as_str()).unwrap().wait_for_ready(true).connect().await.unwrap();
    let endpoint = || Endpoint::new(target.as_str()).unwrap().ring_only(true);
    let error = endpoint().connect().await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains("only a ring was asked for"), "{error}");
    let lazy = endpoint().connect_lazy();
    assert!(lazy.route().is_none());
    assert_eq!(empty(&lazy).await.unwrap_err().code(), Code::FailedPrecondition);
    running.stop().await.unwrap();
}

/// Who cannot be reached is named, and why.
#[tokio::test]
async fn an_address_where_nobody_listens_is_named_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nobody.sock");
    for target in [format!("unix:{}", path.display()), "http://127.0.0.1:1".to_owned()] {
        let error = Channel::connect(&target).await.unwrap_err();
        let status =
            empty(&Endpoint::new(target.as_str()).unwrap().connect_lazy()).await.unwrap_err();
        assert_eq!((error.code(), status.code()), (Code::Unavailable, Code::Unavailable));
        for text in [error.to_string(), status.message().to_owned()] {
            assert!(text.contains(&target) && text.contains("os error"), "{text}");
        }
    }
}

/// Begins a call that waits, makes what it waits for, and expects an answer.
async fn waits<R>(channel: Channel, start: impl AsyncFnOnce() -> R) -> R {
    // A deadline still ends the waiting.
    let mut hurried = tonic::Request::new(Empty {});
    hurried.set_timeout(Duration::from_millis(50));
    let status = TestServiceClient::new(channel.clone()).empty_call(hurried).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let waiting = tokio::spawn(async move { empty(&channel).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    let started = start().await;
    let answer = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    answer.expect("the call goes on waiting").unwrap().unwrap();
    started
}

/// It failed at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_waits_for_an_address_and_for_its_return() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unix = format!("unix:{}", path.display());
    let by_name =
        Host::with(&format!("[service.far.call]\nanyone = ['*']\n[names]\nfar = '{unix}'\n"));
    let host = Host::open();
    for (target, listen) in [
        (&*unix, &*unix),
        (&*format!("http://{free}"), &*format!("http://{free}")),
        ("partywall:///far", &unix),
    ] {
        let endpoint = Endpoint::new(target).unwrap().coordinator(&by_name.socket);
        let channel = endpoint.wait_for_ready(true).connect_lazy();
        let first = waits(channel.clone(), async || host.serve_at(listen, routes()).await).await;
        first.stop().await.unwrap();
        // Once this side has seen that the connection is gone.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let second = waits(channel.clone(), async || host.serve_at(listen, routes()).await).await;
        assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
        second.stop().await.unwrap();
    }
}

/// A stream that was cut off looked like one that had ended well.
#[tokio::test]
async fn a_response_over_http2_without_a_status_is_an_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
            // An empty message, and then no more than the stream's end.
            body.send_data(bytes::Bytes::from_static(&[0; 5]), true).unwrap();
        }
    });
    let channel = Channel::connect(&url).await.unwrap();
    let request = StreamingOutputCallRequest::default();
    let call = TestServiceClient::new(channel).streaming_output_call(request).await;
    let mut responses = call.unwrap().into_inner();
    assert!(responses.message().await.unwrap().is_some());
    let status = responses.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status}");
    assert!(status.message().contains("without a status"), "{status}");
}

/// Trailers of over 38,912 bytes were cut without a word, and the code of a status was lost.
#[tokio::test]
async fn http2_oversize_fails_and_is_never_truncated() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let long = "x".repeat(60_000);
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        for (of_head, status) in [(true, "0"), (false, "0"), (false, "15")] {
            let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut head = http::Response::new(());
            let mut trailers = http::HeaderMap::new();
            head.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            trailers.insert("grpc-status", status.parse().unwrap());
            let longer = if of_head { head.headers_mut() } else { &mut trailers };
            longer.insert("x-long", long.parse().unwrap());
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(bytes::Bytes::from_static(&[0; 5]), false).unwrap();
            body.send_trailers(trailers).unwrap();
        }
        std::future::poll_fn(|cx| connection.poll_closed(cx)).await.unwrap();
    });
    let channel = Channel::connect(&url).await.unwrap();
    for code in [Code::ResourceExhausted, Code::ResourceExhausted, Code::DataLoss] {
        let status = empty(&channel).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
}

/// The limits of a head were a ring's for our own callers alone.
#[tokio::test]
async fn a_stock_callers_head_has_the_limits_of_a_ring() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let running = host.serve_at(&format!("test,unix:{}", path.display()), routes()).await;
    host.connect().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", path.display()));
    let mut client = TestServiceClient::new(endpoint.unwrap().connect().await.unwrap());
    for (bytes, code) in [(10_000, Code::Ok), (30_000, Code::ResourceExhausted)] {
        let mut request = tonic::Request::new(Empty {});
        request.metadata_mut().insert("x-long", "x".repeat(bytes).parse().unwrap());
        let answer = client.empty_call(request).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| Code::Ok), code);
    }
    running.stop().await.unwrap();
}

/// It stayed on the network for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_moves_from_network_to_ring_when_the_name_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("s").display());
    let host = Host::with(&format!(
        "[service.far]\nregister = ['anyone']\nfallback = true\n\
         [service.far.call]\nanyone = ['*']\n[names]\nfar = '{unix}'\n"
    ));
    let remote = host.serve_at(&unix, routes()).await;
    let endpoint = Endpoint::from_static("partywall:///far").coordinator(&host.socket);
    let channel = endpoint.wait_for_ready(true).connect().await.unwrap();
    // No call fails meanwhile.
    let until = async |ring: bool| {
        let start = Instant::now();
        loop {
            empty(&channel).await.unwrap();
            match channel.route() {
                Some(Route::Ring { .. }) if ring => return,
                Some(Route::Http2 { .. }) if !ring => return,
                _ => assert!(start.elapsed() < Duration::from_secs(5)),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(false).await;
    let here = host.serve_at("far", routes()).await;
    until(true).await;
    here.stop().await.unwrap();
    until(false).await;
    remote.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_waits_for_a_name_and_for_its_return() {
    let host = Host::open();
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let endpoint = endpoint.wait_for_ready(true);
    let lazy = endpoint.connect_lazy();
    let connecting = tokio::spawn(async move { endpoint.connect().await });
    let running = waits(lazy.clone(), async || host.serve(routes()).await).await;
    let eager = connecting.await.unwrap().unwrap();
    empty(&eager).await.unwrap();
    running.stop().await.unwrap();
    let running = waits(lazy, async || host.serve(routes()).await).await;
    empty(&eager).await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_without_wait_for_ready_fails_and_connects_later() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let unix = format!("unix:{}", dir.path().join("s").display());
    let [name, address] = ["partywall:///test", &*unix].map(|target| {
        // It would take that long to wait.
        let endpoint = Endpoint::new(target).unwrap().connect_timeout(Duration::from_secs(60));
        endpoint.coordinator(&socket)
    });
    let (by_name, by_address) = (name.connect_lazy(), address.connect_lazy());
    let fails = async |why: &dyn Fn(&Error) -> bool| {
        for (endpoint, channel) in [(&name, &by_name), (&address, &by_address)] {
            let failed = async {
                (endpoint.connect().await.unwrap_err(), empty(channel).await.unwrap_err())
            };
            let failed = tokio::time::timeout(Duration::from_secs(10), failed).await;
            let (error, status) = failed.expect("at once");
            assert!(why(&error) || matches!(error, Error::Http2(_)), "{error}");
            assert_eq!((error.code(), status.code()), (Code::Unavailable, Code::Unavailable));
            assert_eq!(
                status.message().contains("nobody serves"),
                error.to_string().contains("nobody serves")
            );
        }
    };
    fails(&|error| matches!(error, Error::NoCoordinator { .. })).await;
    let host = Host::at(&socket, OPEN);
    fails(&|error| matches!(error, Error::NotServed { .. })).await;
    let running = host.serve_at(&format!("test,{unix}"), routes()).await;
    address.wait_for_ready(true).connect().await.unwrap();
    host.connect().await;
    empty(&by_name).await.unwrap();
    empty(&by_address).await.unwrap();
    running.stop().await.unwrap();
}

/// It failed at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_waits_for_a_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&socket);
    let channel = endpoint.wait_for_ready(true).connect_lazy();
    let (host, running) = waits(channel, async || {
        let host = Host::at(&socket, OPEN);
        let running = host.serve(routes()).await;
        (host, running)
    })
    .await;
    running.stop().await.unwrap();
    drop(host);
    // What waiting does not help is told at once.
    let file = dir.path().join("file");
    std::fs::create_dir(&file).unwrap();
    let endpoint = Endpoint::from_static("partywall:///test");
    let within = Duration::from_secs(5);
    let denied = Host::with("");
    let endpoint = endpoint.coordinator(&denied.socket).wait_for_ready(true);
    let error = tokio::time::timeout(within, endpoint.connect()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
}

/// The connection ends in the middle of a call, and nothing is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_is_unavailable() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let [served, path] = ["served", "relayed"].map(|name| dir.path().join(name));
    let running = host.serve_at(&format!("unix:{}", served.display()), routes()).await;
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let relay = tokio::spawn(async move {
        let (mut caller, _) = listener.accept().await.unwrap();
        let mut service = loop {
            match tokio::net::UnixStream::connect(&served).await {
                Ok(service) => break service,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        tokio::io::copy_bidirectional(&mut caller, &mut service).await
    });
    let endpoint = Endpoint::new(format!("unix:{}", path.display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut client = TestServiceClient::new(channel.clone());
    let mut slow = tonic::Request::new(SimpleRequest::default());
    slow.metadata_mut().insert(DELAY_MS, 60_000.into());
    let mut unary = client.clone();
    let unary = tokio::spawn(async move { unary.unary_call(slow).await.map(drop) });
    let mut later = partywall_interop::proto::StreamingOutputCallRequest::default();
    for interval_us in [0, 60_000_000] {
        let parameters = partywall_interop::proto::ResponseParameters {
            size: 1,
            interval_us,
            ..Default::default()
        };
        later.response_parameters.push(parameters);
    }
    let mut stream = client.streaming_output_call(later).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    relay.abort();
    let ended = async { (unary.await.unwrap().unwrap_err(), stream.message().await.unwrap_err()) };
    let (unary, stream) = tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap();
    assert_eq!((unary.code(), stream.code()), (Code::Unavailable, Code::Unavailable));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn draining_listener_finishes_open_calls_and_removes_its_path() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let target = format!("unix:{}", path.display());
    let running = host.serve_at(&target, routes()).await;
    let endpoint = Endpoint::new(target.as_str()).unwrap().wait_for_ready(true);
    let mut client = TestServiceClient::new(endpoint.connect().await.unwrap());
    let mut slow = tonic::Request::new(SimpleRequest::default());
    slow.metadata_mut().insert(DELAY_MS, 300.into());
    let slow = tokio::spawn(async move { client.unary_call(slow).await.map(drop) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = tokio::spawn(running.stop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!path.exists(), "nobody can connect any more");
    assert!(!stopping.is_finished());
    slow.await.unwrap().unwrap();
    stopping.await.unwrap().unwrap();
}

async fn refused_at(path: &Path) -> String {
    let at = format!("unix:{}", path.display());
    let serving = Server::builder().add_routes(routes()).serve(&at);
    let refused = tokio::time::timeout(Duration::from_secs(5), serving).await;
    refused.expect("it serves").unwrap_err().to_string()
}

/// `serve("unix:/path")` deleted a file at that path.
#[tokio::test]
async fn a_file_is_never_taken_for_a_dead_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("data.txt"), dir.path().join("link"));
    std::fs::write(&file, "important").unwrap();
    symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let text = refused_at(path).await;
        assert!(text.contains("no socket") && text.contains(path.to_str().unwrap()), "{text}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "important");
    }
    let living = dir.path().join("living");
    let _listener = std::os::unix::net::UnixListener::bind(&living).unwrap();
    let text = refused_at(&living).await;
    assert!(text.contains("somebody is listening here"), "{text}");
    assert!(living.exists());
}

/// A server that ended removed whatever had its path.
#[tokio::test]
async fn a_path_is_given_up_only_where_it_is_still_ones_own() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let target = format!("unix:{}", path.display());
    // The dead socket is replaced.
    let first = host.serve_at(&target, routes()).await;
    let endpoint = || Endpoint::new(target.as_str()).unwrap().wait_for_ready(true);
    let mut channel = endpoint().connect().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = host.serve_at(&target, routes()).await;
    endpoint().connect().await.unwrap();
    first.stop().await.unwrap();
    assert!(path.exists(), "the second server's");
    channel.call(request("Any", Body::empty())).await.unwrap();
    second.stop().await.unwrap();
    assert!(!path.exists());
}
