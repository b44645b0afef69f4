//! What a `.proto` file demands of links, at both ends: stubs of a file with demands and of the same one
//! without, over links and connections of all kinds.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use partywall::{Channel, Endpoint, Routes, Seal, Server, Target, blocking};
use partywall_testkit::Host;
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tower::Service;

/// Stubs with demands.
mod demanding {
    pub(crate) use partywall_stubs_tests::demands as pb;
    include!("services.rs");
}

/// Stubs without.
mod free {
    pub(crate) use partywall_stubs_tests::free as pb;
    include!("services.rs");
}

/// Lets this user serve and call `test` over links that are sealed, or not.
fn policy(seal: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nseal = '{seal}'\n\
         [service.test.call]\nme = ['*']\n"
    )
}

/// Serves until the end of the test.
fn serve(host: &Host, at: &str, routes: Routes) {
    tokio::spawn(
        Server::builder().coordinator(&host.socket).add_routes(routes).serve(at.to_owned()),
    );
}

/// Serves at an address of its own; the address.
async fn serve_at(host: &Host, at: &str, routes: Routes) -> String {
    let router = Server::builder().coordinator(&host.socket).add_routes(routes);
    let bound = router.bind(at).await.unwrap();
    let is_address = |target: &&Target| !matches!(target, Target::Name(_));
    let url = bound.addresses().iter().find(is_address).unwrap().to_string();
    tokio::spawn(bound.serve());
    url
}

async fn connect(host: &Host, target: &str) -> Channel {
    let endpoint = Endpoint::from_shared(target.to_owned()).unwrap().coordinator(&host.socket);
    endpoint.wait_for_ready(true).connect().await.unwrap()
}

async fn connect_test(host: &Host) -> Channel {
    connect(host, "partywall:///test").await
}

type Came = Vec<(&'static str, Result<(), Status>)>;

fn all_pass(came: Came) {
    assert_eq!(came.len(), 11);
    for (kind, came) in came {
        assert!(came.is_ok(), "{kind}: {came:?}");
    }
}

fn is_refused(status: &Status, words: &[&str]) -> bool {
    status.code() == Code::FailedPrecondition
        && words.iter().all(|word| status.message().contains(word))
}

fn all_are_refused(came: Came, words: &[&str]) {
    assert_eq!(came.len(), 11);
    for (kind, came) in came {
        let status = came.expect_err(kind);
        assert!(is_refused(&status, words), "{kind}: {status:?} lacks {words:?}");
    }
}

const UNSEALED: [&str; 3] = [
    "seal `sealed` is required, and there is `off` on the link of this call, by the .proto file of demands.v1.",
    "remedy: `seal = \"required\"` under the [service.NAME] that is called",
    "https://",
];
const UNKNOWN: [&str; 3] = [
    "seal `sealed` is required, and there is `off`, by the .proto file of demands.v1.",
    "nothing is known of what protects this channel",
    "remedy: make the client of a partywall::Channel",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_refuse_plain_links_before_they_send() {
    let host = Host::with(&policy("off"));
    let service = free::Counting::default();
    serve(&host, "test", service.routes());
    let channel = connect_test(&host).await;
    all_are_refused(demanding::sealed_calls(&channel).await, &UNSEALED);
    assert_eq!(service.take(), 0, "nothing was sent");
    // What demands nothing passes, and so do stubs without demands.
    let mut partly = demanding::PartlyClient::new(channel.clone());
    partly.free(demanding::text()).await.unwrap();
    assert_eq!(service.take(), 1);
    let status = partly.one(demanding::text()).await.unwrap_err();
    assert!(status.message().contains("the .proto file of demands.v1.Partly/One;"), "{status:?}");
    all_pass(free::sealed_calls(&channel).await);
    assert_eq!(service.take(), 11);
    // By way of the endpoint's own limits, on a lazy channel, and within one process.
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let limited = endpoint.clone().concurrency_limit(3).timeout(Duration::from_secs(60));
    all_are_refused(demanding::sealed_calls(&limited.connect_lazy()).await, &UNSEALED);
    let balanced = endpoint.balance(partywall::Balance::RoundRobin).connect().await.unwrap();
    all_are_refused(demanding::sealed_calls(&balanced).await, &UNSEALED);
    let own = Server::builder().add_routes(service.routes()).in_process().unwrap();
    all_are_refused(demanding::sealed_calls(&own).await, &UNSEALED);
    assert_eq!(service.take(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_refuse_callers_whose_stubs_demand_nothing() {
    let host = Host::with(&policy("off"));
    let service = demanding::Counting::default();
    serve(&host, "test", service.routes());
    let channel = connect_test(&host).await;
    all_are_refused(free::sealed_calls(&channel).await, &UNSEALED);
    assert_eq!(service.take(), 0, "no handler was called");
    free::PartlyClient::new(channel.clone()).free(free::text()).await.unwrap();
    assert_eq!(service.take(), 1);
    // Behind an interceptor, and by a server that knows no links.
    let behind = tonic::service::interceptor::InterceptedService::new(service.wholly(), Ok);
    let own = Server::builder().add_service(behind).in_process().unwrap();
    let refused = free::WhollyClient::new(own).one(free::text()).await.unwrap_err();
    assert!(is_refused(&refused, &UNSEALED), "{refused:?}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let tonics = tonic::transport::Server::builder()
        .add_service(service.wholly())
        .add_service(service.partly());
    tokio::spawn(tonics.serve_with_incoming(incoming));
    let tonics = tonic::transport::Channel::from_shared(url).unwrap().connect().await.unwrap();
    all_are_refused(free::sealed_calls(&tonics).await, &UNSEALED);
    assert_eq!(service.take(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_a_demand_pass_over_sealed_links() {
    let host = Host::with(&policy("required"));
    let service = demanding::Counting::default();
    serve(&host, "test", service.routes());
    let channel = connect_test(&host).await;
    assert_eq!(channel.route().unwrap().security().seal, Seal::Sealed);
    all_pass(demanding::sealed_calls(&channel).await);
    all_pass(free::sealed_calls(&channel).await);
    let intercepted = |request: Request<()>| Ok(request);
    let behind = tonic::service::interceptor::InterceptedService::new(channel.clone(), intercepted);
    all_pass(demanding::sealed_calls(&behind).await);
    service.take();
    // What is beyond a sealed link is not there.
    let mut wholly = demanding::WhollyClient::new(channel.clone());
    let refused = wholly.started(demanding::text()).await.unwrap_err();
    let words = ["evidence `started` is required", "demands.v1.Wholly/Started", "`partywall up`"];
    assert!(is_refused(&refused, &words), "{refused:?}");
    let refused = wholly.signed(tokio_stream::iter([demanding::text()])).await.unwrap_err();
    let words = ["sign `signed` is required", "demands.v1.Wholly/Signed", "`sign = \"required\"`"];
    assert!(is_refused(&refused, &words), "{refused:?}");
    let mut wholly = free::WhollyClient::new(channel.clone());
    let refused = wholly.started(free::text()).await.unwrap_err();
    assert!(is_refused(&refused, &["evidence `started` is required"]), "{refused:?}");
    let refused = wholly.signed(tokio_stream::iter([free::text()])).await.unwrap_err();
    assert!(is_refused(&refused, &["sign `signed` is required"]), "{refused:?}");
    assert_eq!(service.take(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_clients_check_the_link_that_a_call_takes() {
    for (seal, passes) in [("off", false), ("required", true)] {
        let host = Host::with(&policy(seal));
        let service = free::Counting::default();
        serve(&host, "test", service.routes());
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let calls = move || {
            let channel = blocking::Channel::connect(endpoint.wait_for_ready(true)).unwrap();
            let mut client = demanding::pb::partly_blocking::PartlyClient::new(channel);
            client.free(demanding::text()).unwrap();
            for _ in 0..2 {
                match client.one(demanding::text()) {
                    Ok(_) => assert!(passes),
                    Err(status) => assert!(!passes && is_refused(&status, &UNSEALED), "{status:?}"),
                }
            }
        };
        tokio::task::spawn_blocking(calls).await.unwrap();
        assert_eq!(service.take(), if passes { 3 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_refuse_http2_without_tls() {
    let host = Host::with(&policy("off"));
    let (strict, lax) = (demanding::Counting::default(), free::Counting::default());
    let url = serve_at(&host, "http://127.0.0.1:0", strict.routes()).await;
    all_are_refused(free::sealed_calls(&connect(&host, &url).await).await, &UNSEALED);
    let url = serve_at(&host, "http://127.0.0.1:0", lax.routes()).await;
    all_are_refused(demanding::sealed_calls(&connect(&host, &url).await).await, &UNSEALED);
    assert_eq!((strict.take(), lax.take()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutual_tls_is_sealed_at_both_ends() {
    let host = Host::with(&policy("off"));
    let service = demanding::Counting::default();
    let url = serve_at(&host, "test,https://127.0.0.1:0", service.routes()).await;
    assert!(url.starts_with("https://"), "{url}");
    let channel = connect(&host, &url).await;
    all_pass(demanding::sealed_calls(&channel).await);
    all_pass(free::sealed_calls(&channel).await);
    service.take();
    // A certificate is given for what was observed.
    let mut wholly = demanding::WhollyClient::new(channel.clone());
    let refused = wholly.started(demanding::text()).await.unwrap_err();
    let words = ["evidence `started` is required, and there is `observed`"];
    assert!(is_refused(&refused, &words), "{refused:?}");
    let refused = free::WhollyClient::new(channel).started(free::text()).await.unwrap_err();
    assert!(is_refused(&refused, &words), "{refused:?}");
    assert_eq!(service.take(), 0);
}

/// A layer of a program's own around some channel.
#[derive(Clone)]
struct Layer<T>(T);

impl<T> Service<http::Request<Body>> for Layer<T>
where
    T: Service<http::Request<Body>>,
{
    type Response = T::Response;
    type Error = T::Error;
    type Future = T::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> T::Future {
        self.0.call(request)
    }
}

/// Answers at once, whatever it is asked.
#[derive(Clone)]
struct Hasty;

impl Service<http::Request<Body>> for Hasty {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        let good = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            "0".parse().unwrap(),
        )]);
        let message = http_body_util::Full::from(&b"\0\0\0\0\0"[..]);
        let body = message.with_trailers(std::future::ready(Some(Ok(good))));
        let mut response = http::Response::new(Body::new(body));
        response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        Box::pin(std::future::ready(Ok(response)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_of_which_nothing_is_known_get_no_message() {
    let host = Host::with(&policy("required"));
    let service = free::Counting::default();
    let url = serve_at(&host, "http://127.0.0.1:0", service.routes()).await;
    let tonics = tonic::transport::Channel::from_shared(url).unwrap().connect().await.unwrap();
    all_are_refused(demanding::sealed_calls(&tonics).await, &UNKNOWN);
    // tonic's channel somewhere behind a layer, and a channel that looks at no message.
    all_are_refused(demanding::sealed_calls(&Layer(tonics.clone())).await, &UNKNOWN);
    all_are_refused(demanding::sealed_calls(&Layer(Hasty)).await, &UNKNOWN);
    all_pass(free::sealed_calls(&Layer(Hasty)).await);
    assert_eq!(service.take(), 0);
    all_pass(free::sealed_calls(&Layer(tonics)).await);
    // Ours behind the same layer passes; one that loses what the request takes along does not.
    serve(&host, "test", service.routes());
    let channel = connect_test(&host).await;
    all_pass(demanding::sealed_calls(&Layer(channel.clone())).await);
    service.take();
    let losing = |mut request: Request<()>| {
        request.extensions_mut().clear();
        Ok(request)
    };
    let losing = tonic::service::interceptor::InterceptedService::new(channel.clone(), losing);
    all_are_refused(demanding::sealed_calls(&losing).await, &UNKNOWN);
    all_are_refused(demanding::sealed_calls(&channel.into_tonic()).await, &UNKNOWN);
    assert_eq!(service.take(), 0);
}
