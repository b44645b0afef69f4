//! What both kinds of stubs do over a ring.

use partywall::Server;
use partywall_stubs_tests::{ours, tonics};
use tonic::Code;

#[tokio::test]
async fn generated_stubs_call_over_a_ring() {
    use ours::pb::{HelloRequest, greeter_client::GreeterClient, greeter_server::GreeterServer};
    let channel =
        Server::builder().add_service(GreeterServer::new(ours::Echo)).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for round in 0..5 {
        let request = HelloRequest { name: "ring".into(), blob: vec![7; 10 * round] };
        let reply = client.say_hello(request).await.unwrap();
        assert_eq!(reply.get_ref().text, "hello, ring");
        assert_eq!(reply.get_ref().blob.len(), 10 * round);
        let mut keys: Vec<_> = reply.get_ref().seen.keys().cloned().collect();
        keys.sort();
        println!("{round}: {keys:?} {:?}", reply.metadata());
    }
    let failed =
        client.say_hello(HelloRequest { name: "5:nobody".into(), ..Default::default() }).await;
    assert_eq!(failed.unwrap_err().code(), Code::NotFound);
    let panicked =
        client.say_hello(HelloRequest { name: "panics".into(), ..Default::default() }).await;
    assert_eq!(panicked.unwrap_err().code(), Code::Internal);
    client.r#type(HelloRequest::default()).await.unwrap();
    #[expect(deprecated, reason = "as its proto says")]
    client.nothing(()).await.unwrap();
    let long = HelloRequest { name: "ring".into(), blob: vec![7; 3 << 20] };
    assert_eq!(client.say_hello(long).await.unwrap().into_inner().blob.len(), 3 << 20);
}

#[tokio::test]
async fn an_interceptor_that_refuses_is_not_passed_by() {
    use ours::pb::{HelloRequest, greeter_client::GreeterClient};
    let channel = Server::builder().add_service(ours::refusing()).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for _ in 0..5 {
        let refused = client.say_hello(HelloRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let _compiled_as_well = tonics::refusing();
}

#[tokio::test]
async fn a_layer_that_refuses_is_not_passed_by() {
    use ours::pb::{HelloRequest, greeter_client::GreeterClient, greeter_server::GreeterServer};
    let refuse = |_: tonic::Request<()>| Err(tonic::Status::unauthenticated("nobody is let in"));
    let refuse = tonic::service::InterceptorLayer::new(refuse);
    let mut server = Server::builder().layer(refuse);
    let channel = server.add_service(GreeterServer::new(ours::Echo)).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for _ in 0..5 {
        let refused = client.say_hello(HelloRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    // A limit of the server's holds as well.
    let mut server = Server::builder().timeout(std::time::Duration::from_millis(20));
    let channel = server.add_service(GreeterServer::new(ours::Echo)).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for _ in 0..3 {
        let slow = HelloRequest { name: "slow".into(), ..HelloRequest::default() };
        let late = client.say_hello(slow).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
    }
}
