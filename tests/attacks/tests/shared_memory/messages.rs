//! Row 29: messages of another type, bytes that no encoder writes, nesting bombs, texts that are none.
//!
//! gRPC has no numbers of types: a method's path says which type its message has, and the decoder of that
//! type refuses what is none. The link goes on: it is the call's error, on either side and by either stubs.

use std::os::fd::AsFd;

use partywall_abi::control::{LinkMessage, RegistryMessage, Setup};
use partywall_abi::frame::{END, HEAD, Kind, PLAIN_RESPONSE, TRAILERS};
use partywall_attacks::{Hand, Town, UNARY, call_head, good_answer, message, register};
use partywall_shm::{memory, socket};

use super::{Attacked, CALLERS, OPEN, PROGRAMS, opens};

const FRAME: u8 = Kind::Frame as u8;

const OK: u8 = 0;
const OUT_OF_RANGE: u8 = 11;
const INTERNAL: u8 = 13;

/// INTERNAL, with a text that begins with [`DECODER`].
const MALFORMED: u8 = 0xff;

const DECODER: &str = "failed to decode Protobuf message: ";

const TOO_LARGE: &str =
    "Error, decoded message length too large: found 4294967295 bytes, the limit is: 4194304 bytes";

/// Data of a request, and the code and the text with which its call ends; the type is `SimpleRequest`.
fn requests() -> Vec<(&'static str, Vec<u8>, (u8, &'static str))> {
    let bytes = |bytes: &[u8]| message(bytes);
    let prefix = |flag: u8, len: u32, rest: &[u8]| [&[flag], &len.to_be_bytes()[..], rest].concat();
    vec![
        ("nothing", bytes(&[]), (OK, "")),
        ("fields that nobody knows", bytes(&[0xa2, 6, 2, 0xff, 0xff, 0xa8, 6, 9]), (OK, "")),
        ("a varint with bytes to spare", bytes(&[0x10, 0x80, 0x80, 0x80, 0x80, 0]), (OK, "")),
        ("a bool of 2", bytes(&[0x20, 2]), (OK, "")),
        ("the same field again", bytes(&[0x10, 9, 0x10, 0]), (OK, "")),
        (
            "a field of another type",
            bytes(&[0x18, 1]),
            (
                MALFORMED,
                "SimpleRequest.payload: invalid wire type: Varint (expected LengthDelimited)",
            ),
        ),
        (
            "a varint of eleven bytes",
            bytes(&[&[0x10][..], &[0x80; 10], &[1]].concat()),
            (MALFORMED, "SimpleRequest.response_size: invalid varint"),
        ),
        ("field 0", bytes(&[0, 1]), (MALFORMED, "invalid tag value: 0")),
        ("a wire type that is none", bytes(&[0x0e]), (MALFORMED, "invalid wire type value: 6")),
        (
            "a text that is none",
            bytes(&[0x3a, 4, 0x12, 2, 0xff, 0xfe]),
            (
                MALFORMED,
                "EchoStatus.message: SimpleRequest.response_status: invalid string value: data is not UTF-8 encoded",
            ),
        ),
        (
            "groups in groups",
            bytes(&[0x0b; 20_000]),
            (
                MALFORMED,
                "SimpleRequest.response_type: invalid wire type: StartGroup (expected Varint)",
            ),
        ),
        (
            "groups that nobody knows",
            bytes(&[0xa3, 6].repeat(10_000)),
            (MALFORMED, "recursion limit reached"),
        ),
        ("the end of no group", bytes(&[0xa4, 6]), (MALFORMED, "unexpected end group tag")),
        (
            "a length beyond the end",
            bytes(&[0x1a, 0x7f]),
            (MALFORMED, "SimpleRequest.payload: buffer underflow"),
        ),
        (
            "a length that wraps",
            bytes(&[&[0x1a][..], &[0xff; 9], &[1]].concat()),
            (MALFORMED, "SimpleRequest.payload: buffer underflow"),
        ),
        ("no message", Vec::new(), (INTERNAL, "Missing request message.")),
        ("half a prefix", vec![0, 0, 0], (INTERNAL, "Unexpected EOF decoding stream.")),
        (
            "a prefix of more than comes",
            prefix(0, 100, &[0; 50]),
            (INTERNAL, "Unexpected EOF decoding stream."),
        ),
        ("a prefix of 4 GiB", prefix(0, u32::MAX, &[0; 50]), (OUT_OF_RANGE, TOO_LARGE)),
        (
            "a flag that is none",
            prefix(7, 0, &[]),
            (
                INTERNAL,
                "protocol error: received message with invalid compression flag: 7 (valid flags are 0 and 1), while sending request",
            ),
        ),
        (
            "compressed by nothing",
            prefix(1, 2, &[0x10, 0]),
            (
                INTERNAL,
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ),
        ),
        // Of one message that is due the first is taken, as tonic does it.
        ("two messages", [bytes(&[]), bytes(&[])].concat(), (OK, "")),
    ]
}

fn requests_end_their_calls(service: &[&str]) {
    let mut attacked = Attacked::new(OPEN, service);
    let mut hand = attacked.link();
    let expected: Vec<_> = requests()
        .into_iter()
        .map(|(what, _, (code, text))| match code {
            MALFORMED => (what, INTERNAL, format!("{DECODER}{text}")),
            code => (what, code, text.to_owned()),
        })
        .collect();
    let mut found = Vec::new();
    for (stream, (what, data, _)) in (1..).zip(requests()) {
        hand.say_long(FRAME, HEAD | END, stream, &call_head(UNARY, &data)).unwrap();
        let (code, text) = hand.status(stream).unwrap();
        found.push((what, code, text));
    }
    assert_eq!(found, expected);
    attacked.stays(hand);
}

#[test]
fn row_29_a_service_refuses_what_is_no_message() {
    requests_end_their_calls(&[]);
}

#[test]
fn row_29_a_native_service_refuses_what_is_no_message() {
    requests_end_their_calls(&["--native"]);
}

/// Data of an answer, and how its call ends by stubs of either generator and by a blocking channel; the
/// type is `SimpleResponse`.
fn answers() -> Vec<(&'static str, Vec<u8>, [String; 2])> {
    let both = |tonics: &str, blocking: &str| [tonics.to_owned(), blocking.to_owned()];
    let malformed = |why: &str| {
        [
            format!("Internal: {DECODER}{why}"),
            format!("Internal: decoding the reply: {DECODER}{why}"),
        ]
    };
    let prefix = |flag: u8, len: u32, rest: &[u8]| [&[flag], &len.to_be_bytes()[..], rest].concat();
    vec![
        (
            "a field of another type",
            message(&[0x08, 1]),
            malformed(
                "SimpleResponse.payload: invalid wire type: Varint (expected LengthDelimited)",
            ),
        ),
        (
            "a text that is none",
            message(&[0x12, 2, 0xff, 0xfe]),
            malformed("SimpleResponse.username: invalid string value: data is not UTF-8 encoded"),
        ),
        (
            "groups in groups",
            message(&[0x0b; 20_000]),
            malformed(
                "SimpleResponse.payload: invalid wire type: StartGroup (expected LengthDelimited)",
            ),
        ),
        (
            "a length that wraps",
            message(&[&[0x0a][..], &[0xff; 9], &[1]].concat()),
            malformed("SimpleResponse.payload: buffer underflow"),
        ),
        (
            "no message",
            Vec::new(),
            both("Internal: Missing response message.", "Internal: a reply without a message"),
        ),
        (
            "a prefix of more than comes",
            prefix(0, 100, &[0; 50]),
            both(
                "Internal: Missing response message.",
                "Internal: a reply with more or less than one message",
            ),
        ),
        (
            "a prefix of 4 GiB",
            prefix(0, u32::MAX, &[0; 50]),
            both(
                "OutOfRange: Error, decoded message length too large: found 4294967295 bytes, the limit is: 4194304 bytes",
                "Internal: a reply with more or less than one message",
            ),
        ),
        (
            "a flag that is none",
            prefix(7, 0, &[]),
            both(
                "Internal: protocol error: received message with invalid compression flag: 7 (valid flags are 0 and 1) while receiving response with status: 200 OK",
                "Internal: a compressed reply, which was not asked for",
            ),
        ),
        (
            "compressed by nothing",
            prefix(1, 2, &[0x10, 0]),
            both(
                "Internal: protocol error: received message with compressed-flag but no grpc-encoding was specified",
                "Internal: a compressed reply, which was not asked for",
            ),
        ),
        // The first, which is empty, is taken by tonic's rule.
        (
            "two messages",
            [message(&[]), message(&[])].concat(),
            both("Unknown: a wrong answer", "Internal: a reply with more or less than one message"),
        ),
    ]
}

#[test]
fn row_29_a_caller_refuses_what_is_no_message() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let hostile = town.hostile();
        let (mut caller, mut hand) = opens(&town, &hostile, arguments);
        let honest = |caller: &mut partywall_attacks::Victim, hand: &mut Hand| {
            caller.say("call 300");
            hand.answer().unwrap();
            assert_eq!(caller.line(), "ok", "{arguments:?}");
        };
        let (mut found, blocking) = (Vec::new(), *arguments == ["--blocking"]);
        for (what, data, _) in answers() {
            honest(&mut caller, &mut hand);
            caller.say("call 500");
            hand.asked().unwrap();
            // As a native service answers, and as any other does.
            let (flags, payload) = match arguments.contains(&"--native") {
                true => (PLAIN_RESPONSE, data),
                false => (HEAD | TRAILERS | END, good_answer(&data)),
            };
            hand.say(FRAME, flags, hand.stream, &payload).unwrap();
            found.push((what, caller.line()));
        }
        honest(&mut caller, &mut hand);
        let expected: Vec<_> = answers()
            .into_iter()
            .map(|(what, _, text)| (what, text[usize::from(blocking)].clone()))
            .collect();
        assert_eq!(found, expected, "{arguments:?}");
        assert!(!hand.is_ended().unwrap());
    }
    town.witness();
}

/// The one packet by which a service says that a link is open.
#[test]
fn row_29_a_caller_opens_no_link_by_a_setup_that_is_none() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    let good = |link| Setup { link }.encode().to_vec();
    let mut found = Vec::new();
    for arguments in CALLERS {
        for n in 0..4 {
            let hostile = town.hostile();
            let registration = register(&hostile, "bad").unwrap();
            let mut caller = town.caller(&[arguments, &["--name", "bad"]].concat());
            caller.say("open");
            let (terms, own, end) = hostile.offered().unwrap();
            let outbox = memory::adopt(own.as_fd(), terms.geometry).unwrap();
            let (link, security) = (terms.link, terms.security);
            hostile.say(&LinkMessage::Adopted { link, security }.into()).unwrap();
            hostile.opened().unwrap();
            memory::begin(&outbox, terms.geometry);
            let packet = match n {
                0 => good(link + 1),
                1 => good(link)[..15].to_vec(),
                2 => [&good(link)[..], &[0]].concat(),
                _ => [&b"PWxx"[..], &good(link)[4..]].concat(),
            };
            socket::send(end.as_fd(), &packet, &[]).unwrap();
            found.push(caller.line());
            town.blamed(link, None);
            hostile.say(&RegistryMessage::Unregister { registration }.into()).unwrap();
        }
    }
    let expected = [
        "of another link",
        "setup link: the bytes end at 8 inside the field",
        "1 bytes are left over after the last field",
        "setup magic: 2021152592 has no meaning here",
    ];
    let remedy = "remedy: build the service and this program from the same release";
    let expected = expected.map(|why| format!("Unavailable: link: setup message: {why}; {remedy}"));
    assert_eq!(found, vec![expected; CALLERS.len()].concat());
    town.witness();
}
