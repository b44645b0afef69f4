//! Signed messages on their way: what is passed on, and what never is.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use partywall_trust::{Authority, Id, TrustDomain};
use tonic::Code;
use tonic::body::Body;

use super::*;
use crate::coordinator::Place;
use crate::link::signed::{JOINED, Signing};
use crate::pins::Pins;

const METHOD: &str = "/a.B/C";

/// Two ends of a channel, and who certifies them.
struct Two {
    authority: Authority,
    caller: Arc<Signing>,
    server: Arc<Signing>,
}

fn ids() -> [Id; 2] {
    let domain = TrustDomain::new("a.example").unwrap();
    ["web", "server"].map(|name| domain.service(name).unwrap())
}

fn process(authority: &Authority, id: &Id) -> Arc<Client> {
    let client = Arc::new(Client::new(Place::Path(PathBuf::from("/none"))));
    client.is(Own::certified_by(authority, id, &[], SystemTime::now()));
    client
}

impl Two {
    fn new() -> Self {
        let [web, server] = ids();
        let authority = Authority::new(&web.domain(), SystemTime::now()).unwrap();
        let (callers, servers) = (process(&authority, &web), process(&authority, &server));
        let caller = Signing::new(&callers, [7; 32], "g", (&server, &Pins::default()), false);
        let server = Signing::new(&servers, [7; 32], "g", (&web, &Pins::default()), false);
        Self { authority, caller, server }
    }

    /// Both ends of a call of a method.
    fn call(&self, method: &str) -> [Arc<Call>; 2] {
        [self.caller.call(method), self.server.called(method)]
    }
}

/// A body that brings these pieces.
struct Pieces(VecDeque<Result<Bytes, Status>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|piece| piece.map(Frame::data)))
    }
}

/// A body of these data, in pieces of so many bytes.
fn body(data: &[u8], piece: usize) -> Body {
    let pieces = data.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece)));
    Body::new(Pieces(pieces.collect()))
}

/// What a body brings, and how it ends.
fn read(mut body: Body) -> (Vec<u8>, Result<(), Status>) {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut all = Vec::new();
    loop {
        match Pin::new(&mut body).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => all.extend_from_slice(&frame.into_data().unwrap()),
            Poll::Ready(Some(Err(why))) => return (all, Err(why)),
            Poll::Ready(None) => return (all, Ok(())),
            Poll::Pending => panic!("nobody has to be waited for"),
        }
    }
}

fn message(text: &[u8]) -> Vec<u8> {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat()
}

fn whole(body: Body) -> Vec<u8> {
    let (data, ended) = read(body);
    ended.unwrap();
    data
}

/// The messages among data that were passed on: those whose last byte is there.
fn delivered(mut data: &[u8]) -> usize {
    let mut whole = 0;
    while data.len() >= 5 {
        let length = u32::from_be_bytes(data[1..5].try_into().unwrap()) as usize;
        let Some(rest) = data.get(5 + length..) else { break };
        (whole, data) = (whole + 1, rest);
    }
    whole
}

#[test]
fn messages_pass_as_they_were_signed_in_whatever_pieces() {
    let two = Two::new();
    let long = vec![9; 3 * JOINED];
    for texts in [&[&b""[..]][..], &[b"one"], &[b"one", b"", b"three"], &[&long, b"after"], &[]] {
        let data: Vec<u8> = texts.iter().flat_map(|text| message(text)).collect();
        for piece in [1, 2, 5, 7, 64, 1 << 20] {
            let [caller, server] = two.call(METHOD);
            let sent = whole(SigningBody::of(&caller, Way::Request, body(&data, piece)));
            assert_eq!(sent.len() > data.len(), !texts.is_empty());
            for again in [1, 3, 5, 600, 1 << 20] {
                let server = two.server.called(METHOD);
                assert_eq!(
                    whole(VerifyingBody::of(&server, Way::Request, body(&sent, again))),
                    data
                );
            }
            assert_eq!(whole(VerifyingBody::of(&server, Way::Request, body(&sent, 100))), data);
            let sent = whole(SigningBody::of(&server, Way::Reply, body(&data, piece)));
            assert_eq!(whole(VerifyingBody::of(&caller, Way::Reply, body(&sent, 100))), data);
        }
    }
}

/// Each byte of a message and of its signature, changed and cut: nothing of it is passed on whole.
#[test]
fn row_36_altered_messages_are_never_delivered() {
    let two = Two::new();
    let [caller, server] = two.call(METHOD);
    let data = message(b"a message");
    let sent = whole(SigningBody::of(&caller, Way::Request, body(&data, 100)));
    assert_eq!(whole(VerifyingBody::of(&server, Way::Request, body(&sent, 100))), data);
    for at in 0..sent.len() {
        let mut changed = sent.clone();
        changed[at] ^= 1 << (at % 8);
        for piece in [13, 1 << 20] {
            let server = two.server.called(METHOD);
            let (came, ended) =
                read(VerifyingBody::of(&server, Way::Request, body(&changed, piece)));
            assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated, "byte {at}");
            // One that says that it is longer is passed on in part.
            assert!(!came.starts_with(&data) && delivered(&came) == 0, "byte {at}: {came:?}");
        }
    }
    for cut in 1..sent.len() {
        let server = two.server.called(METHOD);
        let (came, ended) = read(VerifyingBody::of(&server, Way::Request, body(&sent[..cut], 100)));
        assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated, "cut at {cut}");
        assert_eq!(delivered(&came), 0, "cut at {cut}");
    }
}

#[test]
fn rows_37_and_39_messages_elsewhere_are_never_delivered() {
    let two = Two::new();
    let signed = |call: &Arc<Call>, texts: &[&[u8]]| {
        let data: Vec<u8> = texts.iter().flat_map(|text| message(text)).collect();
        whole(SigningBody::of(call, Way::Request, body(&data, 1 << 20)))
    };
    let [caller, _] = two.call(METHOD);
    let one = signed(&caller, &[b"one"]);
    // Signed as the second one of its call.
    let two_of = signed(&two.caller.call(METHOD), &[b"one", b"two"]);
    // Signatures differ in length.
    let at = message(b"one").len();
    let length = u32::from_be_bytes(two_of[at + 1..at + 5].try_into().unwrap()) as usize;
    let (first, second) = two_of.split_at(at + 5 + length);
    let refused = |call: Arc<Call>, sent: &[u8], whole: usize| {
        let (came, ended) = read(VerifyingBody::of(&call, Way::Request, body(sent, 1 << 20)));
        assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
        assert_eq!(delivered(&came), whole);
    };
    let called = || two.server.called(METHOD);
    refused(called(), second, 0);
    refused(called(), &[second, first].concat(), 0);
    refused(called(), &[first, first].concat(), 1);
    refused(called(), &[first, &one].concat(), 1);
    refused(two.server.called("/a.B/D"), &one, 0);
    // On another channel, of another name, and a request as an answer.
    let servers = two.server.client();
    let other = Signing::new(servers, [8; 32], "g", (&ids()[0], &Pins::default()), false);
    refused(other.called(METHOD), &one, 0);
    let other = Signing::new(servers, [7; 32], "h", (&ids()[0], &Pins::default()), false);
    refused(other.called(METHOD), &one, 0);
    let (came, ended) = read(VerifyingBody::of(&caller, Way::Reply, body(&one, 1 << 20)));
    assert!(ended.is_err() && came.is_empty());
    // By a key of which none is pinned, and by one of which one is.
    let pinned = |two: &Two| {
        let mut pins = Pins::default();
        pins.add(partywall_trust::Pin::of_certificate(two.authority.root()).unwrap());
        Signing::new(servers, [7; 32], "g", (&ids()[0], &pins), false).called(METHOD)
    };
    refused(pinned(&Two::new()), &one, 0);
    let (came, ended) = read(VerifyingBody::of(&pinned(&two), Way::Request, body(&one, 1 << 20)));
    assert!(ended.is_ok() && delivered(&came) == 1);
    // By somebody else, and by somebody of another authority.
    let [web, server] = ids();
    let third = process(&two.authority, &server);
    let third = Signing::new(&third, [7; 32], "g", (&server, &Pins::default()), false);
    refused(called(), &signed(&third.call(METHOD), &[b"one"]), 0);
    let stranger = Two::new();
    let stranger = Signing::new(
        &process(&stranger.authority, &web),
        [7; 32],
        "g",
        (&server, &Pins::default()),
        false,
    );
    refused(called(), &signed(&stranger.call(METHOD), &[b"one"]), 0);
    // A message without a signature, and a signature without a message.
    refused(called(), &message(b"plain"), 0);
    refused(called(), &[&message(b"plain")[..], &message(b"more")].concat(), 0);
    refused(called(), &one[message(b"one").len()..], 0);
}

#[test]
fn a_reply_is_to_the_requests_that_were_made() {
    let two = Two::new();
    let request = |caller: &Arc<Call>, text: &[u8]| {
        whole(SigningBody::of(caller, Way::Request, body(&message(text), 1 << 20)))
    };
    let reply = |server: &Arc<Call>, text: &[u8]| {
        whole(SigningBody::of(server, Way::Reply, body(&message(text), 1 << 20)))
    };
    let [caller, server] = two.call(METHOD);
    let sent = request(&caller, b"ten");
    whole(VerifyingBody::of(&server, Way::Request, body(&sent, 100)));
    let answer = reply(&server, b"yes");
    assert_eq!(whole(VerifyingBody::of(&caller, Way::Reply, body(&answer, 100))), message(b"yes"));
    // The same answer to another request of another call, and to the same request of one.
    for text in [b"one", b"ten"] {
        let [caller, _] = two.call(METHOD);
        request(&caller, text);
        let (came, ended) = read(VerifyingBody::of(&caller, Way::Reply, body(&answer, 100)));
        assert!(ended.is_err() && came.is_empty());
    }
    // A service that has taken another request than was made of it, and one that has taken more.
    let [caller, server] = two.call(METHOD);
    let [other, _] = two.call(METHOD);
    request(&caller, b"mine");
    whole(VerifyingBody::of(&server, Way::Request, body(&request(&other, b"its own"), 100)));
    let (came, ended) =
        read(VerifyingBody::of(&caller, Way::Reply, body(&reply(&server, b"yes"), 100)));
    assert!(ended.is_err() && came.is_empty());
    let [caller, _] = two.call(METHOD);
    let (came, ended) = read(VerifyingBody::of(&caller, Way::Reply, body(&answer, 100)));
    let why = ended.unwrap_err();
    assert!(why.message().contains("requests that were not made") && came.is_empty(), "{why}");
    // A service that has read nothing says so, and is believed that.
    let [caller, server] = two.call(METHOD);
    request(&caller, b"not read");
    let early = reply(&server, b"early");
    assert_eq!(whole(VerifyingBody::of(&caller, Way::Reply, body(&early, 100))), message(b"early"));
}

#[test]
fn a_certificate_that_is_renewed_is_verified_and_another_is_not() {
    let two = Two::new();
    let [web, _] = ids();
    let sent = |two: &Two| {
        let call = two.caller.call(METHOD);
        whole(SigningBody::of(&call, Way::Request, body(&message(b"one"), 100)))
    };
    let taken = |sent: &[u8]| {
        read(VerifyingBody::of(&two.server.called(METHOD), Way::Request, body(sent, 100)))
    };
    let first = sent(&two);
    taken(&first).1.unwrap();
    let verified = two.server.verified().unwrap();
    taken(&sent(&two)).1.unwrap();
    assert!(Arc::ptr_eq(&verified, &two.server.verified().unwrap()), "once");
    two.caller.client().is(Own::certified_by(&two.authority, &web, &[], SystemTime::now()));
    taken(&sent(&two)).1.unwrap();
    assert!(!Arc::ptr_eq(&verified, &two.server.verified().unwrap()));
    // One of the same name by another authority.
    let stranger = Authority::new(&web.domain(), SystemTime::now()).unwrap();
    two.caller.client().is(Own::certified_by(&stranger, &web, &[], SystemTime::now()));
    let (came, ended) = taken(&sent(&two));
    assert!(ended.unwrap_err().message().contains("not signed by a trusted authority"));
    assert!(came.is_empty());
}

#[test]
fn what_is_no_message_is_not_signed() {
    let two = Two::new();
    for data in [&[2, 0, 0, 0, 0][..], &[64, 0, 0, 0, 0], &[0, 0, 0, 0, 9, 1], &[0, 0]] {
        let call = two.caller.call(METHOD);
        let (_, ended) = read(SigningBody::of(&call, Way::Request, body(data, 100)));
        assert_eq!(ended.unwrap_err().code(), Code::Internal, "{data:?}");
    }
    // What goes wrong before passes as it is.
    let call = two.caller.call(METHOD);
    let failing = Pieces([Ok(message(b"one").into()), Err(Status::aborted("here"))].into());
    let (came, ended) = read(SigningBody::of(&call, Way::Request, Body::new(failing)));
    assert_eq!((ended.unwrap_err().code(), delivered(&came) > 0), (Code::Aborted, true));
}
