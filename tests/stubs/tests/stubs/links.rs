//! The list of links says which way the calls of each method went: the service's end decides.

use std::path::Path;
use std::time::{Duration, Instant};

use partywall::operator::{LinkInfo, LinkMethods, MethodStats};
use partywall::{Bound, Channel, Endpoint, Server};
use partywall_stubs_tests::{ours, tonics};
use partywall_testkit::{Host, Random};
use tokio_stream::StreamExt as _;
use tonic::codec::CompressionEncoding;
use tonic::service::InterceptorLayer;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::rights::Changing;

const LONG: Duration = Duration::from_secs(10);
const HELLO: &str = "/stubs.v1.Greeter/SayHello";

/// Serves in the background.
fn serve(bound: Bound) {
    tokio::spawn(bound.serve());
}

fn server(socket: &Path) -> Server {
    Server::builder().coordinator(socket)
}

async fn connect(socket: &Path) -> Channel {
    Endpoint::from_static("partywall:///test").coordinator(socket).connect().await.unwrap()
}

/// The links that an operator sees.
pub(crate) async fn links(socket: &Path) -> Vec<LinkInfo> {
    let socket = socket.to_owned();
    let asked = tokio::task::spawn_blocking(move || partywall::operator::links(Some(&socket)));
    asked.await.unwrap().unwrap()
}

/// What is said of the methods of the only link.
pub(crate) async fn methods(socket: &Path) -> LinkMethods {
    let [link] = &links(socket).await[..] else { panic!("one link is expected") };
    link.methods.clone()
}

/// Its only method was called so often natively, and so often ordinarily.
pub(crate) fn only(methods: &LinkMethods, path: &str, native: u64, ordinary: u64) {
    assert_eq!(methods.most_called, [MethodStats::new(path, native, ordinary)]);
    assert_eq!(methods.more, 0);
}

async fn greet(channel: &Channel, calls: usize) {
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel.clone());
    for _ in 0..calls {
        let reply = client.say_hello(ours::pb::HelloRequest::default()).await.unwrap();
        assert_eq!(reply.into_inner().text, "hello, ");
    }
}

fn greeter() -> ours::pb::greeter_server::GreeterServer<ours::Echo> {
    ours::pb::greeter_server::GreeterServer::new(ours::Echo::default())
}

#[tokio::test]
async fn unary_calls_of_a_generated_service_are_native_but_for_the_first() {
    let host = Host::open();
    serve(server(&host.socket).add_service(greeter()).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 10).await;
    only(&methods(&host.socket).await, HELLO, 9, 1);
    // The first call was that of the service, not of each method, and not of each link.
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel.clone());
    for _ in 0..3 {
        client.r#type(ours::pb::HelloRequest::default()).await.unwrap();
    }
    let paths = |listed: &[MethodStats]| {
        listed.iter().map(|m| (m.path.clone(), m.native, m.ordinary)).collect::<Vec<_>>()
    };
    let of_type = ("/stubs.v1.Greeter/Type".to_owned(), 3, 0);
    assert_eq!(paths(&methods(&host.socket).await.most_called), [(HELLO.into(), 9, 1), of_type]);
    drop((client, channel));
    let again = connect(&host.socket).await;
    greet(&again, 2).await;
    // The link that is closed is in the list with its last counts, once its server has told them.
    let begin = Instant::now();
    let links = loop {
        let links = links(&host.socket).await;
        let open = links.iter().map(|link| link.open);
        if open.eq([false, true]) && links[0].methods.most_called.len() == 2 {
            break links;
        }
        assert!(begin.elapsed() < LONG, "{links:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(links[0].methods.most_called[0], MethodStats::new(HELLO, 9, 1));
    only(&links[1].methods, HELLO, 2, 0);
    assert_eq!(links[1].stats.calls, 2);
}

#[tokio::test]
async fn calls_by_tonics_stubs_are_native_where_the_service_is_generated() {
    let host = Host::open();
    serve(server(&host.socket).add_service(greeter()).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    let mut client = tonics::pb::greeter_client::GreeterClient::new(channel);
    for _ in 0..10 {
        client.say_hello(tonics::pb::HelloRequest::default()).await.unwrap();
    }
    only(&methods(&host.socket).await, HELLO, 9, 1);
}

#[tokio::test]
async fn calls_of_tonics_service_are_ordinary() {
    let host = Host::open();
    let service = tonics::pb::greeter_server::GreeterServer::new(tonics::Echo::default());
    serve(server(&host.socket).add_service(service).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 10).await;
    only(&methods(&host.socket).await, HELLO, 0, 10);
}

#[tokio::test]
async fn calls_of_a_service_that_is_wrapped_are_ordinary() {
    // Behind an interceptor, which has the calls refused.
    let host = Host::open();
    serve(server(&host.socket).add_service(ours::refusing()).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel);
    for _ in 0..10 {
        let refused = client.say_hello(ours::pb::HelloRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    only(&methods(&host.socket).await, HELLO, 0, 10);
    // In a set of tonic's own, which says nothing of what is in it.
    let host = Host::open();
    let routes = tonic::service::Routes::new(greeter());
    serve(server(&host.socket).add_routes(routes).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 10).await;
    only(&methods(&host.socket).await, HELLO, 0, 10);
    // Below a layer of the server.
    let host = Host::open();
    let pass: fn(Request<()>) -> Result<Request<()>, Status> = Ok;
    let mut layered = server(&host.socket).layer(InterceptorLayer::new(pass));
    serve(layered.add_service(greeter()).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 10).await;
    only(&methods(&host.socket).await, HELLO, 0, 10);
}

#[tokio::test]
async fn streams_are_ordinary() {
    let host = Host::open();
    serve(server(&host.socket).add_service(greeter()).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 2).await;
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel);
    let request = ours::pb::HelloRequest::default;
    let requests = || tokio_stream::iter([request(), request()]);
    for _ in 0..3 {
        let counted = client.count(request()).await.unwrap().into_inner();
        assert_eq!(counted.collect::<Vec<_>>().await.len(), 3);
        client.collect(requests()).await.unwrap();
        let answers = client.chat(requests()).await.unwrap().into_inner();
        assert_eq!(answers.collect::<Vec<_>>().await.len(), 2);
    }
    let streams = ["Chat", "Collect", "Count"].map(|name| format!("/stubs.v1.Greeter/{name}"));
    let mut expected: Vec<_> = streams.iter().map(|path| MethodStats::new(path, 0, 3)).collect();
    expected.push(MethodStats::new(HELLO, 1, 1));
    assert_eq!(methods(&host.socket).await.most_called, expected);
}

#[tokio::test]
async fn requests_in_several_records_are_native_and_compressed_ones_are_not() {
    let host = Host::open();
    let greeter = greeter().accept_compressed(CompressionEncoding::Gzip);
    serve(server(&host.socket).add_service(greeter).bind("test").await.unwrap());
    let channel = connect(&host.socket).await;
    greet(&channel, 2).await;
    let plain = ours::pb::greeter_client::GreeterClient::new(channel);
    let packed = plain.clone().send_compressed(CompressionEncoding::Gzip);
    // The longest record has 61 KiB. What is compressed here is no shorter.
    for (bytes, packs, native, ordinary) in [
        (56 << 10, false, 2, 1),
        (64 << 10, false, 3, 1),
        (3 << 20, false, 4, 1),
        (3 << 20, true, 4, 2),
        (56 << 10, true, 4, 3),
        (3 << 20, false, 5, 3),
    ] {
        let mut random = Random::new(bytes as u64);
        let blob: Vec<_> = (0..bytes).map(|_: usize| random.draw() as u8).collect();
        let request = ours::pb::HelloRequest { name: "you".into(), blob: blob.clone() };
        let mut client = if packs { packed.clone() } else { plain.clone() };
        let reply = client.say_hello(request).await.unwrap().into_inner();
        assert!(reply.text == "hello, you" && reply.blob == blob, "{bytes} bytes");
        only(&methods(&host.socket).await, HELLO, native, ordinary);
    }
}

#[tokio::test]
async fn methods_beyond_sixteen_are_a_number_and_denied_ones_are_not_listed() {
    let policy = "[service.test]\nregister = ['anyone']\n[service.test.call]\n\
                  anyone = ['stubs.v1.Greeter/*']\n";
    let host = Host::with(policy);
    serve(server(&host.socket).add_service(greeter()).bind("test").await.unwrap());
    let mut client = tonic::client::Grpc::new(connect(&host.socket).await);
    let mut call = async |path: String| -> Code {
        let codec = ProstCodec::<ours::pb::HelloRequest, ours::pb::HelloReply>::default();
        let request = Request::new(ours::pb::HelloRequest::default());
        client.ready().await.unwrap();
        client.unary(request, path.parse().unwrap(), codec).await.unwrap_err().code()
    };
    for n in 0..20 {
        for _ in 0..=n {
            let code = call(format!("/stubs.v1.Greeter/M{n:02}")).await;
            assert_eq!(code, Code::Unimplemented);
        }
    }
    assert_eq!(call("/another.Service/Method".into()).await, Code::PermissionDenied);
    let [link] = &links(&host.socket).await[..] else { panic!("one link is expected") };
    assert_eq!((link.stats.calls, link.stats.denied), (20 * 21 / 2 + 1, 1));
    let expected = (4..20)
        .rev()
        .map(|n: u64| MethodStats::new(&format!("/stubs.v1.Greeter/M{n:02}"), 0, n + 1));
    assert_eq!(link.methods.most_called, expected.collect::<Vec<_>>());
    assert_eq!(link.methods.more, 4);
}

#[tokio::test]
async fn counts_of_methods_outlive_a_reload() {
    let coordinator = Changing::new();
    let socket = coordinator.socket.clone();
    serve(server(&socket).add_service(greeter()).bind("test").await.unwrap());
    let channel = connect(&socket).await;
    greet(&channel, 5).await;
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel.clone());
    let mut answered = 5;
    for (methods, code) in [("stubs.v1.Greeter/Type", Code::PermissionDenied), ("*", Code::Ok)] {
        assert_eq!(coordinator.allow(methods).await, 1);
        // Its ends hear of it a little later.
        let begin = Instant::now();
        loop {
            let called = client.say_hello(ours::pb::HelloRequest::default()).await;
            answered += u64::from(called.is_ok());
            if called.map_or_else(|status| status.code(), |_| Code::Ok) == code {
                break;
            }
            assert!(begin.elapsed() < LONG, "{code} never comes");
        }
    }
    only(&methods(&socket).await, HELLO, answered - 1, 1);
}
