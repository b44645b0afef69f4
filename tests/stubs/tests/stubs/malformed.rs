//! Data that are no message, or several: each end takes them natively as it does by tonic's stubs.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use partywall::{Channel, Endpoint, Server, blocking};
use partywall_stubs_tests::{Asked, Caller as _, Outcome, Settings, ours, tonics};
use partywall_testkit::{Host, Random};
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::{Code, Status};

use super::ways::{LONG, listening};

/// More than the limit of these tests.
const LONGEST: usize = 300;

/// Most bytes of a message that is taken.
const MOST: usize = LONGEST - 100;

/// A field of `text`, or of `name`.
fn field(random: &mut Random) -> Vec<u8> {
    let text = vec![b'n'; random.below(LONGEST / 2)];
    let len = text.len();
    // Tag 1, of a length with one byte or two.
    let len = if len < 128 { vec![len as u8] } else { vec![len as u8 | 0x80, (len >> 7) as u8] };
    [&[0x0a][..], &len, &text].concat()
}

/// Bytes where a message is expected: most have one thing wrong.
fn data(random: &mut Random) -> Vec<u8> {
    let mut message = match random.below(4) {
        0 => random.bytes(LONGEST),
        _ => field(random),
    };
    let len = message.len() as u32;
    let (compressed, len) = match random.below(8) {
        0 => (1, len),
        1 => (2 + random.below(254) as u8, len),
        2 => (0, len + 1 + random.below(9) as u32),
        3 => (0, len.saturating_sub(1 + random.below(9) as u32)),
        4 => (0, random.draw() as u32),
        _ => (0, len),
    };
    if random.below(4) == 0 && !message.is_empty() {
        let at = random.below(message.len());
        message[at] = random.draw() as u8;
    }
    let mut data = [&[compressed][..], &len.to_be_bytes(), &message].concat();
    match random.below(8) {
        0 => data.truncate(random.below(8)),
        1 => data.extend_from_within(..),
        _ => {}
    }
    data
}

fn body(data: Vec<u8>, trailers: Option<http::HeaderMap>) -> Body {
    let data = (!data.is_empty()).then(|| Frame::data(Bytes::from(data)));
    let frames = data.into_iter().chain(trailers.map(Frame::trailers)).map(Ok::<_, Status>);
    Body::new(StreamBody::new(tokio_stream::iter(frames.collect::<Vec<_>>())))
}

/// Answers with these data.
#[derive(Clone, Default)]
struct Raw(Arc<Mutex<Vec<u8>>>);

impl tonic::server::NamedService for Raw {
    const NAME: &str = "stubs.v1.Greeter";
}

impl Service<http::Request<Body>> for Raw {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        let trailers = Status::ok("").into_http::<()>().headers().clone();
        let mut answer = http::Response::new(body(self.0.lock().unwrap().clone(), Some(trailers)));
        let grpc = http::HeaderValue::from_static("application/grpc");
        answer.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        ready(Ok(answer))
    }
}

/// What a client without a runtime says of these data of an answer, of which others say `one`. It takes no
/// more of all of an answer than a message within its limit has, with its prefix; the others take the first
/// message of two.
fn without_a_runtime(data: &[u8], one: &Outcome) -> Outcome {
    match data {
        [_, l0, l1, l2, l3, rest @ ..] if rest.len() > MOST => {
            let said = u32::from_be_bytes([*l0, *l1, *l2, *l3]);
            Outcome::failed(&Status::out_of_range(format!(
                "Error, decoded message length too large: found {said} bytes, the limit is: {MOST} bytes"
            )))
        }
        _ => one.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_no_message_are_refused_on_each_way() {
    let host = Host::open();
    let raw = Raw::default();
    let router = || Server::builder().coordinator(&host.socket).add_service(raw.clone());
    let bound = router().bind("test").await.unwrap();
    tokio::spawn(bound.serve().into_future());
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let ring = endpoint.clone().connect().await.unwrap();
    let (http2, _serving) = listening(router()).await;
    let settings = Settings { decoded: Some(MOST), ..Settings::default() };
    let mut native = ours::caller(ring.clone(), settings);
    let mut ordinary = tonics::caller(ring, settings);
    let mut over_http2 = ours::caller(http2, settings);
    let connect = move || blocking::Channel::connect(endpoint).unwrap();
    let channel = tokio::task::spawn_blocking(connect).await.unwrap();
    let mut blocking = ours::Threaded::new(channel, settings);
    let mut random = Random::new(41);
    let mut codes = std::collections::BTreeMap::<i32, usize>::new();
    let mut other = 0;
    for trial in 0..partywall_testkit::trials(20_000) {
        let data = data(&mut random);
        raw.0.lock().unwrap().clone_from(&data);
        let asked = Asked::default();
        let one = native.hello(&asked).await;
        *codes.entry(one.code as i32).or_default() += 1;
        assert_eq!(ordinary.hello(&asked).await, one, "{trial}: {data:?}");
        assert_eq!(over_http2.hello(&asked).await, one, "{trial}: HTTP/2, {data:?}");
        let wanted = without_a_runtime(&data, &one);
        assert_eq!(blocking.hello(&asked).await, wanted, "{trial}: blocking, {data:?}");
        // What is too long for all is so in the same words.
        assert!(one.code != Code::OutOfRange || wanted == one, "{trial}: {data:?}");
        other += usize::from(wanted != one);
    }
    assert!(other > 20, "{other}");
    let expected = [Code::Ok, Code::OutOfRange, Code::Internal];
    assert!(
        expected.iter().all(|code| codes.get(&(*code as i32)).is_some_and(|n| *n > 20)),
        "{codes:?}"
    );
}

/// What a request with these data comes to.
async fn call(channel: &mut Channel, data: Vec<u8>) -> Outcome {
    let mut request = http::Request::new(body(data, None));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static("/stubs.v1.Greeter/SayHello");
    let grpc = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    let answer = tokio::time::timeout(LONG, channel.call(request)).await.expect("an answer");
    let (head, body) = answer.unwrap().into_parts();
    let collected = body.collect().await.unwrap();
    let mut trailers = head.headers;
    trailers.extend(collected.trailers().cloned().unwrap_or_default());
    let mut outcome = Outcome::failed(&Status::from_header_map(&trailers).expect("a status"));
    let answer = collected.to_bytes();
    if let [0, _, _, _, _, answer @ ..] = &answer[..] {
        let answer = ours::pb::HelloReply::decode(answer).expect("an answer");
        outcome.reply = Some((answer.text, answer.blob, Default::default()));
    }
    assert_eq!(outcome.reply.is_some(), outcome.is_ok(), "{outcome:?}");
    outcome
}

#[tokio::test]
async fn requests_that_are_no_message_are_refused_on_each_way() {
    let settings = Settings { decoded: Some(MOST), ..Settings::default() };
    let router = || Server::builder().add_service(ours::greeter(ours::Echo::default(), settings));
    let tonics = Server::builder().add_service(tonics::greeter(tonics::Echo::default(), settings));
    let mut native = router().in_process().unwrap();
    let mut ordinary = tonics.in_process().unwrap();
    let (mut http2, _serving) = listening(router()).await;
    let mut random = Random::new(43);
    let mut codes = std::collections::BTreeMap::<i32, usize>::new();
    for trial in 0..partywall_testkit::trials(20_000) {
        let data = data(&mut random);
        let one = call(&mut native, data.clone()).await;
        *codes.entry(one.code as i32).or_default() += 1;
        let other = call(&mut ordinary, data.clone()).await;
        let third = call(&mut http2, data.clone()).await;
        assert_eq!(one, other, "{trial}: {data:?}");
        assert_eq!(one, third, "{trial}: HTTP/2, {data:?}");
    }
    let expected = [Code::Ok, Code::OutOfRange, Code::Internal];
    assert!(
        expected.iter().all(|code| codes.get(&(*code as i32)).is_some_and(|n| *n > 20)),
        "{codes:?}"
    );
}
