//! More methods than can have a number on a link.

use partywall::stubs::{Blocking, Grpc, Method, Unary};
use partywall::{Channel, Server, blocking};
use partywall_stubs_tests::ours;
use partywall_testkit::Host;
use tonic::{Code, Request};

use ours::pb::greeter_client::GreeterClient;
use ours::pb::greeter_server::GreeterServer;
use ours::pb::{HelloReply, HelloRequest, greeter_blocking};

use super::links;
use super::ways::named;

/// More than the numbers of a link.
const METHODS: usize = 260;

/// Methods of the service, which it has not.
fn methods() -> Vec<&'static Method> {
    let method = |number| -> &'static Method {
        let name: &'static str = format!("M{number}").leak();
        let path: &'static str = format!("/stubs.v1.Greeter/{name}").leak();
        Box::leak(Box::new(Method::new("stubs.v1.Greeter", name, path)))
    };
    (0..METHODS).map(method).collect()
}

/// Calls each method twice: a number is used from the second call on.
async fn call_all(channel: Channel) {
    let mut grpc = Grpc::new(channel);
    for method in methods().into_iter().flat_map(|method| [method; 2]) {
        let mut call = Unary::<_, HelloReply>::new(method, Request::new(HelloRequest::default()));
        let status = grpc.call(&mut call).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{method:?}: {status}");
    }
}

#[tokio::test]
async fn methods_beyond_all_numbers_are_called_by_their_paths() {
    let host = Host::open();
    let mut server = Server::builder().coordinator(&host.socket);
    let service = GreeterServer::new(ours::Echo::default());
    let (endpoint, _serving) = named(server.add_service(service), &host).await;
    let channel = endpoint.clone().connect().await.unwrap();
    let mut client = GreeterClient::new(channel.clone());
    client.say_hello(HelloRequest::default()).await.unwrap();
    call_all(channel.clone()).await;
    // One that has its number, and one that can have none any more, over the same link.
    for _ in 0..3 {
        client.say_hello(HelloRequest::default()).await.unwrap();
        let answer = client.r#type(HelloRequest::default()).await.unwrap();
        assert!(answer.metadata().is_empty(), "it has gone natively: {answer:?}");
    }
    let listed = links::methods(&host.socket).await;
    let [hello, ..] = &listed.most_called[..] else { panic!("methods are expected") };
    assert_eq!((hello.native, hello.ordinary), (3, 1), "{listed:?}");
    drop((client, channel));
    // The same without a runtime.
    let calls = move || {
        let mut blocking = Blocking::new(blocking::Channel::connect(endpoint).unwrap());
        for method in methods().into_iter().flat_map(|method| [method; 2]) {
            let request = Request::new(HelloRequest::default());
            let status = blocking.call::<_, HelloReply>(method, request).unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{method:?}: {status}");
        }
        let mut client = greeter_blocking::GreeterClient::new(blocking.into_inner());
        for _ in 0..3 {
            client.say_hello(HelloRequest::default()).unwrap();
        }
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}
