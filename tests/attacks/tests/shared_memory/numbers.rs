//! Row 27: what is released, credited or named twice, late, or by somebody else's number.
//!
//! Memory of a ring is released by its consumer's cursor (row 23). The numbers of calls, credits, methods
//! and parcels are those of the call protocol, whose rules have a case each in `partywall_call::cases`: all
//! of them are sent here by a hostile process to a service and to a caller. Owned parcels have generations.

use std::collections::HashSet;
use std::os::fd::AsFd;

use partywall_abi::frame::{ATTACHED, END, HEAD, Kind, Owned, PARCEL, PLAIN, ParcelRef};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_attacks::{Hand, Town, UNARY, call_head, message, request, silently};
use partywall_call::Rule;
use partywall_call::cases::{self, Case, STREAMS};
use partywall_shm::parcel::owned::Memory;
use partywall_shm::parcel::{Draft, Sealed};
use partywall_shm::socket::{self, Passed};
use partywall_testkit::Conversation;
use prost::Message;

use super::{Attacked, OPEN, PARCELS, PROGRAMS, logged, opens};

/// Sends the records of a case.
fn play(hand: &mut Hand, case: &Case) {
    for (kind, flags, stream, payload) in &case.records {
        // The end may come in the middle of a record that is sent in parts, or of a flood.
        if hand.is_ended().unwrap() {
            return;
        }
        if !case.takes_nothing {
            while hand.hear_within(std::time::Duration::ZERO).unwrap().is_some() {}
        }
        hand.say_long(*kind, *flags, *stream, payload).unwrap();
    }
}

/// Whether a link between processes can show it. A plain frame is one record, however long; and data of a
/// call that is over are credited again while they are discarded, so that no window ends in the middle of
/// them.
fn can_be_shown(case: &Case) -> bool {
    let (record, window) = (Geometry::WIDE.record_bytes(), limits::LINK_WINDOW as usize);
    case.records.iter().all(|(_, flags, stream, payload)| {
        let is_discarded = *stream != 1 && payload.len() > window;
        let is_too_long = flags & PLAIN != 0 && payload.len() > record;
        !is_discarded && !is_too_long
    })
}

/// How the reason begins for which a victim ends the link. No descriptors are promised on it, so that what is
/// attached is nothing that the two have agreed on.
fn reason(case: &Case) -> String {
    let attached = case.records.iter().any(|(_, flags, ..)| flags & ATTACHED != 0);
    match case.rule {
        Some(Rule::OverParcels) if attached => {
            partywall_call::Error::from(Rule::NotAgreed).to_string()
        }
        Some(rule) => partywall_call::Error::from(rule).to_string(),
        None => "the peer sent a record that cannot be read: ".into(),
    }
}

fn conversation(town: &Town, case: &Case) -> Conversation {
    match case.is_older {
        true => silently(&town.socket()).unwrap(),
        false => town.hostile(),
    }
}

/// A service whose handlers take nothing and never answer. What it breaks only after it has asked for a
/// drain is left to `service_ends_a_link_on_each_broken_rule_with_blame`: this service is to go on.
#[test]
fn row_27_each_broken_rule_of_calls_ends_the_link_of_a_service() {
    let streams = STREAMS.to_string();
    let all: Vec<Case> =
        cases::callers().into_iter().filter(|case| !case.drains && can_be_shown(case)).collect();
    let mut rules = HashSet::new();
    for part in all.chunks(25) {
        let mut attacked = Attacked::new(OPEN, &["--streams", &streams]);
        for case in part {
            attacked.hostile = conversation(&attacked.town, case);
            let mut hand = attacked.link();
            play(&mut hand, case);
            let why = attacked.ends_somehow(hand);
            assert!(why.starts_with(&reason(case)), "{case:?}: {why}");
            rules.insert(case.rule.map(|rule| std::mem::discriminant(&rule)));
        }
    }
    assert!(rules.len() > 15, "{} rules", rules.len());
}

/// A caller that has sent one byte and waits for an answer, of which it takes the head.
#[test]
fn row_27_each_broken_rule_of_calls_ends_the_link_of_a_caller() {
    let all: Vec<Case> = cases::services().into_iter().filter(can_be_shown).collect();
    for part in all.chunks(12) {
        let town = Town::new(PROGRAMS, OPEN);
        let _service = town.service(&[]);
        let mut witness = town.witness();
        for case in part {
            let hostile = conversation(&town, case);
            let (mut caller, mut hand) = opens(&town, &hostile, &[]);
            caller.say("raw");
            let mut sent = 0;
            while sent < 1 {
                let (flags, payload) = hand.hear_frame(1).unwrap();
                let part = partywall_abi::frame::Request::decode(flags, &payload).unwrap();
                sent += part.data.len();
            }
            play(&mut hand, case);
            hand.until_ended();
            let why = logged(&caller, hand.link);
            assert!(why.starts_with(&reason(case)), "{case:?}: {why}");
            town.blamed(hand.link, None);
            let said = caller.line();
            let status = format!("Unavailable: link {}: {why}", hand.link);
            assert!(said == status || said == "answered", "{case:?}: {said}");
            assert_eq!(witness.asked("call 100"), "ok");
        }
    }
}

fn parcel(bytes: &[u8]) -> Sealed {
    let mut draft = Draft::new(bytes.len()).unwrap();
    draft.copy_from_slice(bytes);
    draft.seal().unwrap()
}

/// A link whose service takes parcels, and has answered a call by packet 0.
fn used(attacked: &Attacked, good: &Sealed) -> (Hand, Passed) {
    let mut hand = attacked.link();
    let socket = Hand::granted(&attacked.hostile).unwrap();
    while hand.hear().unwrap().0 != Kind::Parcels {}
    packet(&socket, 0, good);
    names(&mut hand, 1, 0, good);
    assert_eq!(hand.status(1).unwrap(), (0, String::new()));
    (hand, socket)
}

fn packet(socket: &Passed, number: u64, parcel: &Sealed) {
    socket::send(socket.as_fd(), &number.to_le_bytes(), &[parcel.as_fd()]).unwrap();
}

fn names(hand: &mut Hand, stream: u32, packet: u64, parcel: &Sealed) {
    let parcel = ParcelRef { packet, offset: 0, bytes: parcel.len() as u64, owned: None };
    let payload = call_head(UNARY, &parcel.encode());
    hand.try_say(Kind::Frame as u8, HEAD | END | PARCEL, stream, &payload).unwrap();
}

#[test]
fn row_27_packets_twice_late_or_of_others_end_the_link() {
    let good = parcel(&message(&request(1, 2000).encode_to_vec()));
    let missing = "descriptor socket: a packet that a record names is missing";
    let turn = "descriptor socket: a packet out of turn";
    let mut attacked = Attacked::new(PARCELS, &[]);
    // Packets that are sent, and the number that a record names then.
    let cases: [(&[u64], u64, &str); 7] = [
        // One that was used up.
        (&[], 0, missing),
        (&[1], 0, turn),
        // The same number twice.
        (&[0], 1, turn),
        (&[0], 0, turn),
        // One from before, after the next.
        (&[2, 1], 1, turn),
        // One that is not there yet, and never.
        (&[1], 2, missing),
        (&[], u64::MAX, missing),
    ];
    for (packets, named, why) in cases {
        let (mut hand, socket) = used(&attacked, &good);
        packets.iter().for_each(|number| packet(&socket, *number, &good));
        names(&mut hand, 2, named, &good);
        attacked.ends(hand, why);
    }
    // A packet of another link of the same process.
    let (one, ones) = used(&attacked, &good);
    let (mut other, _others) = used(&attacked, &good);
    packet(&ones, 1, &good);
    names(&mut other, 2, 1, &good);
    other.until_ended();
    assert_eq!(logged(&attacked.service, other.link), missing);
    attacked.town.blamed(other.link, None);
    drop(other);
    attacked.stays(one);
}

/// A request in an owned parcel, whose place is lent with this generation.
fn lends(hand: &mut Hand, stream: u32, (place, generation): (u32, u32), bytes: usize) {
    let owned = Some(Owned { place, generation });
    let parcel = ParcelRef { packet: 0, offset: 0, bytes: bytes as u64, owned };
    let payload = call_head(UNARY, &parcel.encode());
    hand.try_say(Kind::Frame as u8, HEAD | END | PARCEL, stream, &payload).unwrap();
}

/// A link whose service has read an owned parcel twice, of the generations 1 and 2, and given it back.
fn lent(attacked: &Attacked, memory: &mut Memory) -> Hand {
    let mut hand = attacked.link();
    let socket = Hand::granted(&attacked.hostile).unwrap();
    while hand.hear().unwrap().0 != Kind::Parcels {}
    socket::send(socket.as_fd(), &0_u64.to_le_bytes(), &[memory.as_fd()]).unwrap();
    for generation in [1, 2] {
        let asked = message(&request(generation.into(), 2000).encode_to_vec());
        memory[..asked.len()].copy_from_slice(&asked);
        lends(&mut hand, generation, (3, generation), asked.len());
        assert_eq!(hand.status(generation).unwrap(), (0, String::new()));
    }
    hand
}

#[test]
fn row_27_owned_parcels_twice_late_or_of_others_end_the_link() {
    let mut memory = Memory::new(4096).unwrap();
    let mut attacked = Attacked::new(PARCELS, &[]);
    let rule = |rule| partywall_call::Error::from(rule).to_string();
    // Lent by a generation from before, by the same once more, and by one that is not the next.
    for generation in [1, 2, 4, 0] {
        let mut hand = lent(&attacked, &mut memory);
        lends(&mut hand, 3, (3, generation), 1);
        attacked.ends(hand, &rule(Rule::LentTwice(3)));
    }
    // Given back by who has never had it.
    for generation in [0, 1, 2, 3] {
        let mut hand = lent(&attacked, &mut memory);
        let generation = u32::to_le_bytes(generation);
        hand.try_say(Kind::Release as u8, 0, 3, &generation).unwrap();
        attacked.ends(hand, &rule(Rule::NotLent(3)));
    }
    // A place of another link of the same process: here nobody has brought its memory.
    let one = lent(&attacked, &mut memory);
    let mut other = attacked.link();
    let _socket = Hand::granted(&attacked.hostile).unwrap();
    while other.hear().unwrap().0 != Kind::Parcels {}
    lends(&mut other, 1, (3, 1), 1);
    other.until_ended();
    let missing = "descriptor socket: a packet that a record names is missing";
    assert_eq!(logged(&attacked.service, other.link), missing);
    attacked.town.blamed(other.link, None);
    drop(other);
    attacked.stays(one);
}
