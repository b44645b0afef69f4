//! What comes with an answer or a status beside its message.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http_body::Frame;
use http_body_util::StreamBody;
use partywall::{Endpoint, Server, blocking};
use partywall_stubs_tests::{Own, Settings, code_and_text, ours, tonics};
use partywall_testkit::Host;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use ours::pb::greeter_blocking;
use ours::pb::greeter_client::GreeterClient;
use ours::pb::keeper_client::KeeperClient;
use ours::pb::{HelloReply, HelloRequest};

use super::requests::{NOT_SENT, names};
use super::ways::{Serving, named};

/// Calls until it is known which way a method goes, and one more.
const CALLS: usize = 3;

fn hello(name: &str, bytes: usize) -> HelloRequest {
    HelloRequest { name: name.into(), blob: vec![7; bytes] }
}

/// A service at a name.
async fn serving(host: &Host) -> (Endpoint, Serving) {
    let mut server = Server::builder().coordinator(&host.socket);
    let router = server.add_service(ours::greeter(ours::Echo::default(), Settings::default()));
    named(router, host).await
}

#[tokio::test]
async fn metadata_of_a_status_are_what_the_service_has_set() {
    let service = ours::greeter(ours::Echo::default(), Settings::default());
    let channel = Server::builder().add_service(service).in_process().unwrap();
    let mut client = GreeterClient::new(channel.clone());
    let mut limited = GreeterClient::new(channel).max_decoding_message_size(100);
    for _ in 0..CALLS {
        for bytes in [0, 200, 300_000] {
            let failed = client.say_hello(hello("5:nobody", bytes)).await.unwrap_err();
            assert_eq!(failed.code(), Code::NotFound);
            assert!(failed.metadata().is_empty(), "{failed:?}");
            if bytes > 0 {
                let refused = limited.say_hello(hello("quiet", bytes)).await.unwrap_err();
                assert_eq!(refused.code(), Code::OutOfRange);
                assert!(refused.metadata().is_empty(), "{refused:?}");
            }
        }
    }
}

/// Says that its answers are compressed, which they are not.
struct Lies;

#[tonic::async_trait]
impl ours::pb::keeper_server::Keeper for Lies {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        let mut response = Response::new(request.into_inner());
        response.metadata_mut().insert("grpc-encoding", "gzip".parse().unwrap());
        Ok(response)
    }
}

#[tokio::test]
async fn an_encoding_that_a_client_does_not_take_is_refused() {
    let service = ours::pb::keeper_server::KeeperServer::new(Lies);
    let channel = Server::builder().add_service(service).in_process().unwrap();
    for _ in 0..CALLS {
        let (message, settings) = (Own::default(), Settings::default());
        let native = ours::keep(channel.clone(), message.clone(), settings).await;
        let ordinary = tonics::keep(channel.clone(), message, settings).await;
        let (native, ordinary) = (code_and_text(native), code_and_text(ordinary));
        assert_eq!(native, ordinary);
        assert_eq!(native.0, Code::Unimplemented, "{native:?}");
    }
}

/// Sets names that tonic does not let a program send, and one of its own, of an answer or of a status.
struct Says;

/// What its service fails with.
const FAILS: Code = Code::NotFound;

#[tonic::async_trait]
impl ours::pb::keeper_server::Keeper for Says {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        let (mut metadata, message) = (MetadataMap::new(), request.into_inner());
        for name in NOT_SENT.into_iter().chain(["x-own"]) {
            metadata.insert(name, "7".parse().unwrap());
        }
        match message.answer {
            0 => Ok(Response::from_parts(metadata, message, tonic::Extensions::new())),
            _ => Err(Status::with_metadata(FAILS, "as it was asked", metadata)),
        }
    }
}

/// What a call comes to, and the metadata of that.
fn said(called: Result<Response<Own>, Status>) -> (Code, MetadataMap) {
    match called {
        Ok(answer) => (Code::Ok, answer.into_parts().0),
        Err(status) => (status.code(), status.metadata().clone()),
    }
}

#[tokio::test]
async fn an_answer_does_not_say_what_tonic_does_not_let_it_say() {
    let host = Host::open();
    let mut server = Server::builder().coordinator(&host.socket);
    let router = server.add_service(ours::pb::keeper_server::KeeperServer::new(Says));
    let (endpoint, _serving) = named(router, &host).await;
    let channel = endpoint.clone().connect().await.unwrap();
    let mut native = KeeperClient::new(channel.clone());
    let mut ordinary = tonics::pb::keeper_client::KeeperClient::new(channel);
    let asked = [(0, Code::Ok), (1, FAILS)];
    let own = |answer| Own { answer, ..Own::default() };
    for (answer, expected) in [asked; CALLS].into_iter().flatten() {
        let (code, metadata) = said(native.keep(own(answer)).await);
        assert_eq!((code, names(&metadata)), (expected, ["x-own".into()].into()));
        let (code, mut metadata) = said(ordinary.keep(own(answer)).await);
        // HTTP's own, which tonic shows.
        assert_eq!(metadata.remove("content-type").unwrap(), "application/grpc");
        let status = metadata.remove("grpc-status");
        assert!(status.is_none_or(|status| status == "0"), "{metadata:?}");
        assert_eq!((code, names(&metadata)), (expected, ["x-own".into()].into()));
    }
    let calls = move || {
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let mut client = ours::pb::keeper_blocking::KeeperClient::new(channel);
        for (answer, expected) in [asked; CALLS].into_iter().flatten() {
            let (code, metadata) = said(client.keep(own(answer)));
            assert_eq!((code, names(&metadata)), (expected, ["x-own".into()].into()));
        }
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}

/// Answers by a message without fields, with metadata before it and after it.
#[derive(Clone)]
struct Trailing;

impl tonic::server::NamedService for Trailing {
    const NAME: &str = "stubs.v1.Keeper";
}

impl Service<http::Request<Body>> for Trailing {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        let mut trailers = Status::ok("").into_http::<()>().headers().clone();
        trailers.insert("x-after", http::HeaderValue::from_static("2"));
        trailers.insert("x-both", http::HeaderValue::from_static("2"));
        let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(trailers)];
        let frames = frames.map(Ok::<_, Status>);
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let mut answer = http::Response::new(body);
        let set = [("content-type", "application/grpc"), ("x-before", "1"), ("x-both", "1")];
        for (name, value) in set {
            answer.headers_mut().insert(name, http::HeaderValue::from_static(value));
        }
        ready(Ok(answer))
    }
}

/// Each answer has the metadata before its message and those after it.
fn has_both(metadata: &MetadataMap) {
    assert_eq!(metadata.get("x-before").unwrap(), "1", "{metadata:?}");
    assert_eq!(metadata.get("x-after").unwrap(), "2", "{metadata:?}");
}

#[tokio::test]
async fn trailing_metadata_of_an_answer_reach_each_client() {
    let host = Host::open();
    let mut server = Server::builder().coordinator(&host.socket);
    let (endpoint, _serving) = named(server.add_service(Trailing), &host).await;
    let channel = endpoint.clone().connect().await.unwrap();
    let mut native = KeeperClient::new(channel.clone());
    let mut ordinary = tonics::pb::keeper_client::KeeperClient::new(channel);
    for _ in 0..CALLS {
        let answer = native.keep(Own::default()).await.unwrap();
        has_both(answer.metadata());
        let expected = ["x-after", "x-before", "x-both"].map(str::to_owned);
        assert_eq!(names(answer.metadata()), expected.into());
        let other = ordinary.keep(Own::default()).await.unwrap();
        has_both(other.metadata());
        let both =
            |metadata: &MetadataMap| metadata.get_all("x-both").iter().cloned().collect::<Vec<_>>();
        assert_eq!(both(answer.metadata()), both(other.metadata()));
    }
    let calls = move || {
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let mut client = ours::pb::keeper_blocking::KeeperClient::new(channel);
        for _ in 0..CALLS {
            has_both(client.keep(Own::default()).unwrap().metadata());
        }
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}

#[tokio::test]
async fn a_service_sees_no_authority_among_the_metadata() {
    let host = Host::open();
    let (endpoint, _serving) = serving(&host).await;
    let origin = endpoint.origin("http://example.com".parse().unwrap());
    let mut client =
        tonics::pb::greeter_client::GreeterClient::new(origin.connect().await.unwrap());
    let mut seen = Vec::new();
    for _ in 0..CALLS {
        let request = tonics::pb::HelloRequest { name: "you".into(), ..Default::default() };
        let reply = client.say_hello(request).await.unwrap().into_inner();
        seen.push(reply.seen.into_keys().collect::<Vec<_>>());
    }
    assert!(seen.iter().flatten().all(|name| !name.contains("host")), "{seen:?}");
}

#[tokio::test]
async fn limits_of_a_blocking_client_and_of_its_channel_are_apart() {
    let host = Host::open();
    let (endpoint, _serving) = serving(&host).await;
    let calls = move || {
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        channel.max_decoding_message_size(16 << 20);
        let mut client = greeter_blocking::GreeterClient::new(channel);
        let reply = client.say_hello(hello("quiet", (4 << 20) - 30)).unwrap();
        assert_eq!(reply.get_ref().blob.len(), (4 << 20) - 30);
        let mut client = client.max_decoding_message_size(10);
        for bytes in [100, 1000, 300_000] {
            let refused = client.say_hello(hello("quiet", bytes)).unwrap_err();
            let len = prost::Message::encoded_len(&HelloReply {
                text: "hello, quiet".into(),
                blob: vec![7; bytes],
                ..HelloReply::default()
            });
            let text = format!(
                "Error, decoded message length too large: found {len} bytes, the limit is: 10 bytes"
            );
            assert_eq!(code_and_text::<()>(Err(refused)), (Code::OutOfRange, text));
        }
        let request = prost::Message::encode_to_vec(&hello("quiet", 100));
        let reply = client.into_inner().call_bytes("/stubs.v1.Greeter/SayHello", &request).unwrap();
        assert!(reply.len() > 100);
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}
