//! Clients without a runtime.

use std::time::{Duration, Instant};

use partywall::blocking::Channel;
use partywall::{Endpoint, Server};
use partywall_stubs_tests::ours;
use partywall_testkit::Host;
use tonic::Code;
use tonic::metadata::MetadataValue;

use ours::pb::greeter_blocking::GreeterClient;
use ours::pb::greeter_server::GreeterServer;
use ours::pb::{HelloReply, HelloRequest};

/// A service at a name, and a client of it.
fn serving(host: &Host) -> GreeterClient {
    let socket = host.socket.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut server = Server::builder().coordinator(socket);
        let router = server.add_service(GreeterServer::new(ours::Echo::default()));
        runtime.block_on(router.serve("test")).unwrap();
    });
    let endpoint = Endpoint::from_static("partywall:///test").wait_for_ready(true);
    GreeterClient::new(Channel::connect(endpoint.coordinator(&host.socket)).unwrap())
}

fn hello(name: &str, bytes: usize) -> HelloRequest {
    HelloRequest { name: name.into(), blob: vec![7; bytes] }
}

#[test]
fn a_blocking_client_calls_messages_of_all_sizes() {
    let host = Host::open();
    let mut client = serving(&host);
    for bytes in [0, 32, 1000, 100_000, 3 << 20, 32, 0] {
        let reply: HelloReply = client.say_hello(hello("you", bytes)).unwrap().into_inner();
        assert_eq!((reply.text.as_str(), reply.blob.len()), ("hello, you", bytes));
    }
    client.r#type(HelloRequest::default()).unwrap();
    #[expect(deprecated, reason = "as its proto says")]
    client.nothing(()).unwrap();
}

#[test]
fn metadata_and_statuses_pass_both_ways() {
    let host = Host::open();
    let mut client = serving(&host);
    client.say_hello(hello("first", 0)).unwrap();
    let plain = client.say_hello(hello("second", 0)).unwrap();
    assert!(plain.metadata().is_empty(), "{:?}", plain.metadata());
    assert!(plain.get_ref().seen.is_empty(), "{:?}", plain.get_ref().seen);
    let mut request = tonic::Request::new(hello("you", 0));
    request.metadata_mut().insert("x-one", MetadataValue::from_static("1"));
    request.metadata_mut().insert_bin("x-two-bin", MetadataValue::from_bytes(b"\0\xff"));
    let reply = client.say_hello(request).unwrap();
    assert_eq!(reply.metadata().len(), 2);
    assert_eq!(reply.metadata().get("x-one").unwrap(), "1");
    assert_eq!(reply.metadata().get_bin("x-two-bin").unwrap().to_bytes().unwrap(), &b"\0\xff"[..]);
    let failed = client.say_hello(hello("5:nobody", 3)).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::NotFound, "nobody"));
    assert_eq!(failed.details(), &[7; 3]);
    assert_eq!(client.say_hello(hello("panics", 0)).unwrap_err().code(), Code::Internal);
    client.say_hello(hello("after it", 0)).unwrap();
}

#[test]
fn a_deadline_ends_a_blocking_call_in_time() {
    let host = Host::open();
    let mut client = serving(&host);
    client.say_hello(hello("first", 0)).unwrap();
    let deadline = Duration::from_millis(50);
    for _ in 0..3 {
        let mut slow = tonic::Request::new(hello("slow", 0));
        slow.set_timeout(deadline);
        let begin = Instant::now();
        assert_eq!(client.say_hello(slow).unwrap_err().code(), Code::DeadlineExceeded);
        let took = begin.elapsed();
        assert!(took >= deadline, "{took:?}");
        assert!(took < deadline + Duration::from_secs(1), "{took:?}");
        client.say_hello(hello("after it", 0)).unwrap();
    }
}

#[test]
fn limits_hold_in_both_directions() {
    let host = Host::open();
    let client = serving(&host).max_encoding_message_size(1000).max_decoding_message_size(500);
    let mut client = client;
    for _ in 0..2 {
        client.say_hello(hello("you", 400)).unwrap();
        let long = client.say_hello(hello("you", 600)).unwrap_err();
        assert_eq!(long.code(), Code::OutOfRange, "{long}");
        let longer = client.say_hello(hello("you", 1000)).unwrap_err();
        assert_eq!(longer.code(), Code::OutOfRange, "{longer}");
        assert!(longer.message().contains("encoded message length"), "{longer}");
    }
}
