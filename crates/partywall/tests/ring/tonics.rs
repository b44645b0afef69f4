//! What tonic's types and bounds allow, ours do as well: most of these tests hold by compiling.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use partywall::{Channel, Peer, Route, Router, Routes, Server};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{Empty, Payload, SimpleRequest};
use partywall_interop::service::{DELAY_MS, Handle, test_service_with};
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tower::util::{BoxCloneService, BoxCloneServiceLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve};

fn router() -> Router {
    Server::builder().add_service(test_service_with(Handle::default()))
}

async fn empty(channel: Channel) -> Result<(), Status> {
    TestServiceClient::new(channel).empty_call(Empty {}).await.map(drop)
}

/// A client layer that is written for tonic's channel names these types.
type Boxed = BoxCloneService<http::Request<Body>, http::Response<Body>, tower::BoxError>;

#[tokio::test]
async fn client_layer_for_tonics_body_takes_the_channel() {
    let channel = router().in_process().unwrap();
    let boxed: Boxed = channel.clone().map_err(Into::into).boxed_clone();
    TestServiceClient::new(boxed).empty_call(Empty {}).await.unwrap();
    let layered = ServiceBuilder::new()
        .layer(tonic::service::interceptor::InterceptorLayer::new(|request: Request<()>| {
            Ok(request)
        }))
        .concurrency_limit(4)
        .map_response(|response: http::Response<Body>| response)
        .service(channel);
    TestServiceClient::new(layered).empty_call(Empty {}).await.unwrap();
}

/// tonic's own set of services, beside one that is added afterwards.
#[tokio::test]
async fn routes_of_tonics_builder_are_served() {
    let mut builder = tonic::service::Routes::builder();
    builder.add_service(test_service_with(Handle::default()));
    let routes: tonic::service::Routes = builder.routes();
    let raw = Raw::new(|_| async { ok() });
    let router = Server::builder().add_routes(routes).add_service(raw).add_optional_service(
        None::<tonic_health::pb::health_server::HealthServer<tonic_health::server::HealthService>>,
    );
    let mut channel = router.in_process().unwrap();
    empty(channel.clone()).await.unwrap();
    let answer = channel.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "0");
    let mut unknown = request("Any", Body::empty());
    *unknown.uri_mut() = "/no.Such/Method".parse().unwrap();
    let answer = channel.call(unknown).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "12");
    let none = Server::builder().add_optional_service(None::<Raw>).in_process().unwrap();
    assert_eq!(empty(none).await.unwrap_err().code(), Code::Unimplemented);
}

/// A layer whose services may move between threads, and not be shared by them.
#[tokio::test]
async fn a_layer_that_is_not_sync_is_taken() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let unshared = tower::layer::layer_fn(move |inner: Routes| {
        let (unshared, count) = (std::cell::Cell::new(0), Arc::clone(&count));
        BoxCloneService::new(inner.map_request(move |request: http::Request<Body>| {
            unshared.set(unshared.get() + 1);
            count.fetch_add(1, Ordering::SeqCst);
            request
        }))
    });
    let service = test_service_with(Handle::default());
    let router = Server::builder().layer(unshared).add_service(service.clone());
    empty(router.in_process().unwrap()).await.unwrap();
    let stack = ServiceBuilder::new()
        .layer(BoxCloneServiceLayer::new(tower::layer::util::Identity::new()))
        .into_inner();
    let router = Server::builder().layer(stack).add_service(service);
    empty(router.in_process().unwrap()).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// As in tonic, the first layer is the outermost.
#[tokio::test]
async fn layers_are_in_the_order_of_tonics() {
    fn names(name: &'static str) -> impl Layer<Routes, Service = Boxed> + Clone
where {
        tower::layer::layer_fn(move |inner: Routes| {
            let named = inner.map_request(move |mut request: http::Request<Body>| {
                request.headers_mut().append("x-layer", name.parse().unwrap());
                request
            });
            named.map_err(|never: Infallible| match never {}).boxed_clone()
        })
    }
    fn then(name: &'static str) -> impl Layer<Boxed, Service = Boxed> + Clone {
        tower::layer::layer_fn(move |inner: Boxed| {
            let named = inner.map_request(move |mut request: http::Request<Body>| {
                request.headers_mut().append("x-layer", name.parse().unwrap());
                request
            });
            named.boxed_clone()
        })
    }
    let raw = Raw::new(|request| async move {
        let layers = request.headers().get_all("x-layer").iter();
        let layers = layers.map(|v| v.to_str().unwrap()).collect::<Vec<_>>().join(" ");
        Status::aborted(layers).into_http()
    });
    let ours = Server::builder().layer(then("first")).layer(names("second"));
    let mut channel = ours.clone().add_service(raw).in_process().unwrap();
    let answer = channel.call(request("Any", Body::empty())).await.unwrap();
    assert_eq!(Status::from_header_map(answer.headers()).unwrap().message(), "first second");
}

#[tokio::test]
async fn servers_are_spawned_with_borrowed_and_owned_addresses() {
    let host = Host::open();
    let serving = {
        let name = String::from("test");
        let router = Server::builder().coordinator(&host.socket).add_routes(Routes::default());
        tokio::spawn(router.serve(&name))
    };
    host.connect().await;
    serving.abort();
    let name = String::from("test");
    let router = Server::builder().coordinator(&host.socket).add_routes(Routes::default());
    drop(router.serve_with_shutdown(name, async {}));
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(router_at(address, stopped));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!serving.is_finished());
    drop(stop);
    serving.await.unwrap().unwrap();
}

fn router_at(
    address: SocketAddr,
    stopped: tokio::sync::oneshot::Receiver<()>,
) -> impl Future<Output = Result<(), partywall::Error>> + Send + 'static {
    router().serve_with_shutdown(address, async { drop(stopped.await) })
}

/// What wants to stop a server may borrow, and need not move between threads.
#[tokio::test]
async fn a_shutdown_may_borrow_and_stay_on_its_thread() {
    let calls = std::rc::Rc::new(std::cell::Cell::new(0));
    let shutdown = async { calls.set(calls.get() + 1) };
    router().serve_with_shutdown("http://127.0.0.1:0", shutdown).await.unwrap();
    assert_eq!(calls.get(), 1);
}

/// A mock needed a coordinator.
#[tokio::test]
async fn a_mock_needs_no_coordinator() {
    let seen = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&seen);
    let raw = Raw::new(move |request| {
        *keep.lock().unwrap() = request.extensions().get::<Peer>().cloned();
        async { ok() }
    });
    let server = Server::builder().add_service(raw);
    let server = server.add_service(test_service_with(Handle::default()));
    let mut channel = server.in_process().unwrap();
    channel.call(request("Any", Body::empty())).await.unwrap();
    let peer = seen.lock().unwrap().take().expect("a peer");
    assert_eq!(peer.pid(), Some(std::process::id()));
    assert!(matches!(channel.route(), Some(Route::Ring { server }) if server.uid() == peer.uid()));
    let mut client = TestServiceClient::new(channel.clone());
    let body = vec![7; 3 << 20].into();
    let payload = Some(Payload { body, ..Payload::default() });
    let large = SimpleRequest { response_size: 3 << 20, payload, ..SimpleRequest::default() };
    assert_eq!(
        client.unary_call(large).await.unwrap().into_inner().payload.unwrap().body.len(),
        3 << 20
    );
    let mut slow = Request::new(SimpleRequest::default());
    slow.metadata_mut().insert(DELAY_MS, 5_000.into());
    slow.set_timeout(Duration::from_millis(50));
    assert_eq!(client.unary_call(slow).await.unwrap_err().code(), Code::DeadlineExceeded);
}
