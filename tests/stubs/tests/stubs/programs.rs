// What programs do with stubs: wrappers, interceptors, layers, derives, services beside theirs. This file is
// compiled for both generators, without a difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use partywall::{Channel, Server};
use stubs::pb::greeter_client::GreeterClient;
use stubs::pb::greeter_server::GreeterServer;
use stubs::pb::{HelloReply, HelloRequest};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::service::LayerExt as _;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tower::ServiceBuilder;

use super::ways::{Serving, listening};

/// A service over a ring, and over HTTP/2.
async fn channels() -> ([Channel; 2], Serving) {
    let router = || Server::builder().add_service(GreeterServer::new(stubs::Echo::default()));
    let (http2, serving) = listening(router()).await;
    ([router().in_process().unwrap(), http2], serving)
}

fn hello(name: &str) -> HelloRequest {
    HelloRequest { name: name.into(), blob: vec![1, 2] }
}

#[tokio::test]
async fn a_wrapper_is_generic_over_its_transport() {
    let (channels, _serving) = channels().await;
    for channel in channels {
        let mut plain = stubs::Wrapper(GreeterClient::new(channel.clone()));
        let shared = tower::util::BoxCloneService::new(channel);
        let mut boxed = stubs::Wrapper(GreeterClient::new(shared));
        for _ in 0..3 {
            assert_eq!(plain.hello("you").await.unwrap().text, "hello, you");
            assert_eq!(boxed.hello("you").await.unwrap().text, "hello, you");
        }
        assert_eq!(plain.hello("9:why").await.unwrap_err().code(), Code::FailedPrecondition);
    }
}

#[tokio::test]
async fn an_interceptor_of_a_client_sees_each_call() {
    let (channels, _serving) = channels().await;
    for channel in channels {
        let mut named: stubs::Tagging = stubs::tagging(channel.clone(), stubs::Tag("mine"));
        let mut calls = 0;
        let mut counts = GreeterClient::with_interceptor(channel, move |mut request: Request<()>| {
            calls += 1;
            request.metadata_mut().insert("x-calls", calls.into());
            // The third is not let through.
            if calls == 3 { Err(Status::resource_exhausted("enough")) } else { Ok(request) }
        });
        for round in 1..5 {
            let reply = named.say_hello(hello("you")).await.unwrap();
            assert_eq!(reply.metadata().get("x-tag").unwrap(), "mine");
            let counted = counts.say_hello(hello("you")).await;
            if round == 3 {
                assert_eq!(counted.unwrap_err().message(), "enough");
            } else {
                let reply = counted.unwrap();
                assert_eq!(reply.metadata().get("x-calls").unwrap(), &round.to_string());
            }
        }
    }
}

#[tokio::test]
async fn a_layer_around_a_client_sees_each_call() {
    let (channels, _serving) = channels().await;
    for channel in channels {
        let layered = ServiceBuilder::new()
            .map_request(|mut request: http::Request<Body>| {
                let path = request.uri().path().parse().unwrap();
                request.headers_mut().insert("x-path", path);
                request
            })
            .service(channel);
        let mut client = GreeterClient::new(layered);
        for _ in 0..3 {
            let reply = client.say_hello(hello("you")).await.unwrap();
            assert_eq!(reply.metadata().get("x-path").unwrap(), "/stubs.v1.Greeter/SayHello");
        }
    }
}

#[tokio::test]
async fn an_interceptor_that_refuses_is_not_passed_by() {
    let channel = Server::builder().add_service(stubs::refusing()).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for _ in 0..5 {
        let refused = client.say_hello(HelloRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
}

/// What five calls come to.
async fn five_calls(channel: Channel) -> [Code; 5] {
    let mut client = GreeterClient::new(channel);
    let mut codes = [Code::Ok; 5];
    for code in &mut codes {
        let called = client.say_hello(hello("you")).await;
        *code = called.map_or_else(|status| status.code(), |_| Code::Ok);
    }
    codes
}

#[tokio::test]
async fn what_refuses_all_but_the_first_call_is_not_passed_by() {
    let but_first = || {
        let calls = AtomicUsize::new(0);
        Arc::new(move |request: Request<()>| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(request),
            _ => Err(Status::unauthenticated("nobody is let in any more")),
        })
    };
    let refuse = but_first();
    let service =
        GreeterServer::with_interceptor(stubs::Echo::default(), move |request| refuse(request));
    let intercepted = Server::builder().add_service(service).in_process().unwrap();
    // A layer around the service alone.
    let refuse = but_first();
    let layer = tonic::service::InterceptorLayer::new(move |request| refuse(request));
    let service = layer.named_layer(GreeterServer::new(stubs::Echo::default()));
    let layered = Server::builder().add_service(service).in_process().unwrap();
    let codes = [five_calls(intercepted).await, five_calls(layered).await];
    let mut expected = [Code::Unauthenticated; 5];
    expected[0] = Code::Ok;
    assert_eq!(codes, [expected; 2]);
}

#[tokio::test]
async fn a_layer_that_refuses_is_not_passed_by() {
    let service = || GreeterServer::new(stubs::Echo::default());
    let refuse = |_: Request<()>| Err(Status::unauthenticated("nobody is let in"));
    let mut server = Server::builder().layer(tonic::service::InterceptorLayer::new(refuse));
    let mut client = GreeterClient::new(server.add_service(service()).in_process().unwrap());
    for _ in 0..5 {
        let refused = client.say_hello(HelloRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    // A limit of the server's holds as well.
    let mut server = Server::builder().timeout(std::time::Duration::from_millis(20));
    let mut client = GreeterClient::new(server.add_service(service()).in_process().unwrap());
    for _ in 0..3 {
        let late = client.say_hello(hello("slow")).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
    }
}

#[tokio::test]
async fn health_and_reflection_are_served_beside() {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<GreeterServer<stubs::Echo>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(stubs::DESCRIPTORS)
        .build_v1()
        .unwrap();
    let mut server = Server::builder();
    let router = server.add_service(GreeterServer::new(stubs::Echo::default()));
    let channel = router.add_service(health).add_service(reflection).in_process().unwrap();
    let mut client = GreeterClient::new(channel.clone());
    for _ in 0..3 {
        client.say_hello(hello("you")).await.unwrap();
    }
    let service = "stubs.v1.Greeter".to_owned();
    let asked = HealthCheckRequest { service: service.clone() };
    let health = HealthClient::new(channel.clone()).check(asked).await.unwrap();
    assert_eq!(health.into_inner().status, 1, "serving");
    let ask = |message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(service.clone())),
    ];
    let answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter(questions))
        .await;
    let mut answers = answers.unwrap().into_inner();
    let listed = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(listed)) = listed else { panic!("{listed:?}") };
    assert!(listed.service.iter().any(|listed| listed.name == service), "{listed:?}");
    let file = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::FileDescriptorResponse(file)) = file else { panic!("{file:?}") };
    let [file] = &file.file_descriptor_proto[..] else { panic!("one file is expected") };
    assert!(stubs::DESCRIPTORS.windows(file.len()).any(|part| part == file), "another file");
}

#[test]
fn messages_have_the_derives_that_were_asked_for() {
    fn is_eq<T: Eq>(value: T) -> T {
        value
    }
    assert_eq!(is_eq(HelloReply::default()), HelloReply::default());
    assert!(hello("a") < hello("b"));
}
