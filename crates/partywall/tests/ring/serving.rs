//! Servers that are bound before they serve, and servers on connections that the program accepts.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use partywall::{Channel, Error, Router, Routes, Security, Server, Target, security_of};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::{Service, ServiceExt};

use super::service::{Raw, ok, request};
use super::setup::Host;

/// A service that tells what protects the connection of a call.
fn told() -> Raw {
    Raw::new(|request: http::Request<Body>| async move {
        let mut answer = ok();
        let told = format!("{:?}", security_of(request.extensions()));
        answer.headers_mut().insert("x-security", told.parse().unwrap());
        answer
    })
}

fn router(host: &Host) -> Router {
    Server::builder().coordinator(&host.socket).add_service(told())
}

/// Does not wait for a server that is not there.
async fn connect(host: &Host, at: &Target) -> Result<Channel, Error> {
    partywall::Endpoint::new(at.to_string())?.coordinator(&host.socket).connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_server_is_found_at_all_addresses_and_answers_on_serve() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let at = format!("test, http://127.0.0.1:0, http://localhost:0, unix:{}", path.display());
    let bound = router(&host).bind(at).await.unwrap();
    let addresses = bound.addresses().to_vec();
    let [Target::Name(name), Target::Http(one), Target::Http(other), Target::Unix(unix)] =
        &addresses[..]
    else {
        panic!("{addresses:?}");
    };
    assert_eq!((name.as_str(), unix), ("test", &path));
    assert!(one != other && !one.ends_with(":0") && !other.ends_with(":0"), "{one} {other}");
    let plain = one.trim_start_matches("http://").to_owned();
    std::net::TcpStream::connect(plain).unwrap();
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    let calls = async {
        for at in &addresses {
            let mut channel = connect(&host, at).await.unwrap();
            channel.call(request("Any", Body::empty())).await.unwrap();
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = bound.serve_with_shutdown(async { drop(stopped.await) });
    let calls = async {
        calls.await;
        drop(stop);
    };
    // The calls begin before anybody serves.
    let ((), served) = tokio::join!(calls, serving);
    served.unwrap();
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_learns_whether_others_serve_its_name() {
    // One that may serve a name and call nothing there.
    let host = Host::with("[service.test]\nregister = ['anyone']\n");
    let (soon, late) = (Duration::from_millis(100), Duration::from_secs(20));
    let first = router(&host).bind("test").await.unwrap();
    assert_eq!(first.others(late).await, 0);
    // Another process, by another socket: a process has one connection to a coordinator.
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("same.sock");
    std::os::unix::fs::symlink(&host.socket, &own).unwrap();
    let other = Server::builder().coordinator(&own).add_service(told());
    let second = other.bind("test").await.unwrap();
    assert_eq!((first.others(soon).await, second.others(soon).await), (1, 1));
    // One that is about to end is waited for.
    let begun = std::time::Instant::now();
    let ends = async {
        tokio::time::sleep(soon).await;
        drop(first);
    };
    assert_eq!(tokio::join!(second.others(late), ends).0, 0);
    assert!(begun.elapsed() < late);
}

#[tokio::test]
async fn a_server_that_is_bound_and_never_serves_leaves_nothing() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let bound = router(&host).bind(format!("test,unix:{}", path.display())).await.unwrap();
    let addresses = bound.addresses().to_vec();
    drop(bound);
    assert!(!path.exists());
    for at in &addresses {
        let refused = connect(&host, at).await;
        assert!(refused.is_err(), "{at}: {refused:?}");
    }
    drop(router(&host).bind(format!("test,unix:{}", path.display())).await.unwrap());
}

/// Its process goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_ends_its_calls_on_each_route() {
    const LONG: Duration = Duration::from_secs(10);
    let host = Host::open();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let service = Raw::new(move |_| {
        let begun = begun.clone();
        async move {
            begun.send(()).unwrap();
            std::future::pending().await
        }
    });
    let router = Server::builder().coordinator(&host.socket).add_service(service);
    let bound = router.bind("test,http://127.0.0.1:0").await.unwrap();
    let addresses = bound.addresses().to_vec();
    let serving = tokio::spawn(bound.serve().into_future());
    let (mut channels, mut calls) = (Vec::new(), Vec::new());
    for at in &addresses {
        let mut channel = connect(&host, at).await.unwrap();
        calls.push(tokio::spawn(channel.call(request("Any", Body::empty()))));
        begins.recv().await.unwrap();
        channels.push(channel);
    }
    serving.abort();
    for (at, call) in addresses.iter().zip(calls) {
        let ended = tokio::time::timeout(LONG, call).await.expect("an end of the call").unwrap();
        assert_eq!(ended.unwrap_err().code(), tonic::Code::Unavailable, "{at}");
    }
    for (at, mut channel) in addresses.iter().zip(channels) {
        let next = channel.call(request("Any", Body::empty()));
        let next = tokio::time::timeout(LONG, next).await.expect("an end of the next call");
        assert_eq!(next.unwrap_err().code(), tonic::Code::Unavailable, "{at}");
    }
}

#[tokio::test]
async fn a_bind_that_fails_names_the_address_and_gives_up_the_others() {
    let host = Host::open();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let url = format!("http://{}", taken.local_addr().unwrap());
    let refused = router(&host).bind(format!("unix:{},{url}", path.display())).await.unwrap_err();
    assert!(refused.to_string().contains(&url), "{refused}");
    assert!(!path.exists());
}

/// Calls over a connection that the test has made itself; what protects it.
async fn call<I>(io: I) -> String
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut io = Some(io);
    let once = tower::service_fn(move |_| {
        let io = io.take().map(TokioIo::new).ok_or_else(|| std::io::Error::other("a second one"));
        std::future::ready(io)
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let mut channel = endpoint.connect_with_connector(once).await.unwrap();
    let answer = channel.ready().await.unwrap().call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "0");
    answer.headers()["x-security"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn accepted_connections_are_served_with_their_security() {
    let router = || Server::builder().add_service(told());
    let (client, server) = tokio::io::duplex(1 << 16);
    let one = tokio_stream::once(Ok::<_, std::io::Error>(server));
    let serving = tokio::spawn(router().serve_with_incoming(one));
    assert_eq!(call(client).await, format!("{:?}", Security::LOWEST));
    serving.await.unwrap().unwrap();

    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = tcp.local_addr().unwrap();
    let serving = tokio::spawn(router().serve_with_incoming(TcpListenerStream::new(tcp)));
    let security = call(TcpStream::connect(at).await.unwrap()).await;
    assert_eq!(security, format!("{:?}", Security::NETWORK));
    serving.abort();

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let unix = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let serving = tokio::spawn(router().serve_with_incoming(unix));
    let security = call(UnixStream::connect(&path).await.unwrap()).await;
    assert_eq!(security, format!("{:?}", Security::UNIX_SOCKET));
    serving.abort();
}

#[tokio::test]
async fn shutdown_finishes_open_calls_of_accepted_connections() {
    let (begun_tx, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let go = std::sync::Arc::new(tokio::sync::Notify::new());
    let waits = std::sync::Arc::clone(&go);
    let slow = Raw::new(move |_| {
        let (begun, waits) = (begun_tx.clone(), waits.clone());
        async move {
            begun.send(()).unwrap();
            waits.notified().await;
            let mut answer = ok();
            answer.headers_mut().insert("x-security", "done".parse().unwrap());
            answer
        }
    });
    let (client, server) = tokio::io::duplex(1 << 16);
    // A stream that does not end, of things that stay on their thread.
    let local = std::rc::Rc::new(());
    let incoming = tokio_stream::once(Ok::<_, std::io::Error>(server));
    let incoming = tokio_stream::StreamExt::chain(incoming, tokio_stream::pending());
    let incoming = tokio_stream::StreamExt::map(incoming, |io| {
        let _here = &local;
        io
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let router = Server::builder().add_routes(Routes::default()).add_service(slow);
    let serving = router.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
    let calls = async {
        let call = tokio::spawn(call(client));
        begun.recv().await.unwrap();
        drop(stop);
        tokio::task::yield_now().await;
        go.notify_one();
        call.await.unwrap()
    };
    let ended = async { tokio::join!(serving, calls) };
    let (served, told) = tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
    served.unwrap();
    assert_eq!(told, "done");
}
