//! What is recorded of calls and links.

use std::time::Duration;

use partywall::{Channel, Endpoint, Seal, Security, Sign, blocking};
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::proto::{
    EchoStatus, Empty, Payload, ResponseParameters, SimpleRequest, SimpleResponse,
    StreamingOutputCallRequest,
};
use partywall_testkit::OPEN;
use prost::Message;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::setup::{Served, eventually, metric, values};

const UNARY: &str = "grpc.testing.TestService/UnaryCall";
const DURATIONS: [&str; 2] =
    ["rpc_client_call_duration_seconds_count", "rpc_server_call_duration_seconds_count"];

fn ask(bytes: usize) -> SimpleRequest {
    let payload = Payload { body: vec![1; bytes].into(), ..Payload::default() };
    SimpleRequest { payload: Some(payload), response_size: 64, ..SimpleRequest::default() }
}

/// What both sides have counted of a method: calls that have begun, and have ended with this status.
fn counted(method: &str, code: &str) -> [f64; 4] {
    let begun =
        |side| metric("partywall_calls_begun_total", &[("side", side), ("rpc_method", method)]);
    let ended = |name| metric(name, &[("rpc_method", method), ("rpc_response_status_code", code)]);
    let [client, server] = DURATIONS;
    [begun("client"), begun("server"), ended(client), ended(server)]
}

/// Bytes and messages of requests and answers, of the client's side and of the server's.
fn passed() -> [[f64; 2]; 4] {
    let kinds = [
        ("bytes", "request"),
        ("messages", "request"),
        ("bytes", "answer"),
        ("messages", "answer"),
    ];
    kinds.map(|(unit, direction)| {
        ["client", "server"].map(|side| {
            let labels = [("side", side), ("direction", direction), ("rpc_method", UNARY)];
            metric(&format!("partywall_call_{unit}_total"), &labels)
        })
    })
}

/// A message as gRPC sends it, with five bytes before it.
fn framed(message: &impl Message) -> f64 {
    (message.encoded_len() + 5) as f64
}

async fn unary(channel: Channel, request: SimpleRequest) -> SimpleResponse {
    TestServiceClient::new(channel).unary_call(request).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_bytes_and_messages_are_counted_alike_on_every_route() {
    let served = Served::new(OPEN).await;
    let request = ask(1000);
    let mut before = (counted(UNARY, "OK"), passed());
    // After a call of each route: its own numbers, and no others.
    let mut check = |route, answer: &SimpleResponse| {
        let now = (counted(UNARY, "OK"), passed());
        assert_eq!(now.0, before.0.map(|n| n + 1.0), "{route}");
        let one = [framed(&request), 1.0, framed(answer), 1.0];
        for (at, one) in one.into_iter().enumerate() {
            assert_eq!(now.1[at], before.1[at].map(|n| n + one), "{route}, {at}");
        }
        assert_eq!(metric("partywall_calls_under_way", &[]), 0.0);
        before = now;
    };
    for (route, channel) in [("ring", served.ring().await), ("http2", served.http2().await)] {
        let answer = unary(channel, request.clone()).await;
        eventually(|| metric("partywall_calls_under_way", &[]) == 0.0).await;
        check(route, &answer);
    }
    let (endpoint, asked) = (served.endpoint(), request.clone());
    let calling = move || {
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        channel.unary(&format!("/{UNARY}"), tonic::Request::new(asked)).unwrap().into_inner()
    };
    let answer: SimpleResponse = tokio::task::spawn_blocking(calling).await.unwrap();
    eventually(|| metric("partywall_calls_under_way", &[]) == 0.0).await;
    check("blocking", &answer);
}

#[tokio::test]
async fn each_message_of_a_stream_and_each_status_are_counted() {
    let served = Served::new(OPEN).await;
    let mut client = TestServiceClient::new(served.ring().await);
    let parameters = |size| ResponseParameters { size, ..ResponseParameters::default() };
    let request = StreamingOutputCallRequest {
        response_parameters: [1, 70_000, 0].map(parameters).to_vec(),
        ..StreamingOutputCallRequest::default()
    };
    let mut stream = client.streaming_output_call(request).await.unwrap().into_inner();
    assert_eq!(metric("partywall_calls_under_way", &[("side", "client")]), 1.0);
    while stream.message().await.unwrap().is_some() {}
    let method = ("rpc_method", "grpc.testing.TestService/StreamingOutputCall");
    for side in ["client", "server"] {
        let labels = [method, ("side", side), ("direction", "answer")];
        assert_eq!(metric("partywall_call_messages_total", &labels), 3.0, "{side}");
    }
    // Given up by the client, whose service hears of it.
    let request = StreamingOutputCallRequest {
        response_parameters: vec![
            parameters(1),
            ResponseParameters { interval_us: 60_000_000, ..parameters(1) },
        ],
        ..StreamingOutputCallRequest::default()
    };
    let mut stream = client.streaming_output_call(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    drop(stream);
    let cancelled = [method, ("rpc_response_status_code", "CANCELLED")];
    eventually(|| DURATIONS.iter().all(|name| metric(name, &cancelled) == 1.0)).await;
    // A status of the handler's own, and a deadline.
    let mut request = ask(0);
    request.response_status =
        Some(EchoStatus { code: Code::DataLoss as i32, message: "lost".into() });
    client.unary_call(request).await.unwrap_err();
    assert_eq!(counted(UNARY, "DATA_LOSS")[2..], [1.0; 2]);
    let mut request = tonic::Request::new(StreamingOutputCallRequest {
        response_parameters: vec![ResponseParameters { interval_us: 60_000_000, ..parameters(1) }],
        ..StreamingOutputCallRequest::default()
    });
    request.set_timeout(Duration::from_millis(50));
    let late = async { client.streaming_output_call(request).await?.into_inner().message().await };
    assert_eq!(late.await.unwrap_err().code(), Code::DeadlineExceeded);
    let late = [method, ("rpc_response_status_code", "DEADLINE_EXCEEDED")];
    let [client, server] = DURATIONS;
    eventually(|| metric(client, &late) == 1.0).await;
    // The service's own timer, or the caller's word where that comes first.
    eventually(|| metric(server, &late) + metric(server, &cancelled) == 2.0).await;
}

#[tokio::test]
async fn endpoint_timeout_counts_until_the_answer_begins() {
    let served = Served::new(OPEN).await;
    let ended = |method: &'static str, code: &'static str| {
        let method = format!("grpc.testing.TestService/{method}");
        let labels = [("rpc_method", method.as_str()), ("rpc_response_status_code", code)];
        metric("rpc_client_call_duration_seconds_count", &labels)
    };
    let within = Duration::from_millis(300);
    let endpoints = [served.endpoint(), Endpoint::new(served.url.clone()).unwrap()];
    for (so_far, endpoint) in (0_u8..).map(f64::from).zip(endpoints) {
        let channel = endpoint.timeout(within).connect().await.unwrap();
        let mut client = TestServiceClient::new(channel);
        // A method has labels once it has answered; this one's answer begins when the requests are over.
        client.streaming_input_call(tokio_stream::empty()).await.unwrap();
        let late = client.streaming_input_call(tokio_stream::pending()).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        eventually(|| ended("StreamingInputCall", "DEADLINE_EXCEEDED") == so_far + 1.0).await;
        let one = StreamingOutputCallRequest {
            response_parameters: vec![ResponseParameters { size: 1, ..<_>::default() }],
            ..<_>::default()
        };
        let requests = tokio_stream::once(one).chain(tokio_stream::pending());
        let mut stream = client.full_duplex_call(requests).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        tokio::time::sleep(2 * within).await;
        drop(stream);
        eventually(|| ended("FullDuplexCall", "CANCELLED") == so_far + 1.0).await;
    }
    assert_eq!(ended("StreamingInputCall", "CANCELLED"), 0.0);
    assert_eq!(ended("FullDuplexCall", "DEADLINE_EXCEEDED"), 0.0);
}

/// Calls a path that the generated client does not have.
async fn call_path(channel: Channel, path: &str) -> Code {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<Empty, Empty>::default();
    let path = path.parse().unwrap();
    let answer = grpc.unary(tonic::Request::new(Empty {}), path, codec).await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn unknown_paths_and_denied_calls_make_no_labels() {
    let policy = "[service.test]\nregister = ['anyone']\n[service.test.call]\n\
                  anyone = ['grpc.testing.TestService/*']\n";
    let served = Served::new(policy).await;
    let other = || {
        let of = |name| metric(name, &[("rpc_method", "_OTHER")]);
        DURATIONS.map(of)
    };
    let before = other();
    let (ring, http2) = (served.ring().await, served.http2().await);
    for n in 0..100 {
        let path = format!("/grpc.testing.TestService/Made{n}");
        assert_eq!(call_path(ring.clone(), &path).await, Code::Unimplemented);
        let path = format!("/made.up{n}.Service/Method");
        assert_eq!(call_path(ring.clone(), &path).await, Code::PermissionDenied);
        assert_eq!(call_path(http2.clone(), &path).await, Code::Unimplemented);
    }
    eventually(|| other() == before.map(|n| n + 300.0)).await;
    for name in DURATIONS.into_iter().chain(["partywall_calls_begun_total"]) {
        let made: Vec<_> = values(name, "rpc_method");
        assert!(!made.iter().any(|value| value.to_lowercase().contains("made")), "{made:?}");
    }
    let denied = [("rpc_method", "_OTHER"), ("rpc_response_status_code", "PERMISSION_DENIED")];
    assert!(DURATIONS.iter().all(|name| metric(name, &denied) >= 100.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_links_have_the_security_that_their_ends_see() {
    let uid = rustix::process::geteuid().as_raw();
    let signed = format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nsign = 'required'\n\
         [service.test.call]\nme = ['*']\n"
    );
    security_of_open_links(OPEN, (Seal::Off, Sign::Off)).await;
    security_of_open_links(&signed, (Seal::Sealed, Sign::Signed)).await;
}

async fn security_of_open_links(policy: &str, of_rings: (Seal, Sign)) {
    let served = Served::new(policy).await;
    let open = |side, route, security: Security| {
        let labels = [
            ("side", side),
            ("route", route),
            ("isolation", security.isolation.word()),
            ("confidentiality", security.confidentiality.word()),
            ("evidence", security.evidence.word()),
            ("seal", security.seal.word()),
            ("sign", security.sign.word()),
        ];
        metric("partywall_links", &labels)
    };
    for (route, channel) in [("ring", served.ring().await), ("http2", served.http2().await)] {
        unary(channel.clone(), ask(1)).await;
        let security = channel.route().unwrap().security();
        let protection = if route == "ring" { of_rings } else { (Seal::Off, Sign::Off) };
        assert_eq!((security.seal, security.sign), protection, "{route}");
        for side in ["client", "server"] {
            assert_eq!(open(side, route, security), 1.0, "{side}, {route}, {security}");
            let all = [("side", side), ("route", route)];
            assert_eq!(metric("partywall_links", &all), 1.0, "no other on {route}");
            assert!(metric("partywall_links_opened_total", &all) >= 1.0);
        }
        drop(channel);
        eventually(|| metric("partywall_links", &[("route", route)]) == 0.0).await;
    }
    let endpoint = served.endpoint();
    let calling = move || {
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        channel.call_bytes(&format!("/{UNARY}"), b"").unwrap();
        open("client", "ring", channel.server().unwrap().security())
    };
    assert_eq!(tokio::task::spawn_blocking(calling).await.unwrap(), 1.0);
    eventually(|| metric("partywall_links", &[]) == 0.0).await;
}
