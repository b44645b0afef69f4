//! Rows 21 and 23: numbers out of their range, and cursors that jump.

use std::time::Duration;

use partywall_abi::frame::{self, END, HEAD, Kind, RequestHead, TRAILERS};
use partywall_abi::layout;
use partywall_abi::sync::Ordering;
use partywall_attacks::{Hand, UNARY, call_head};

use super::{Attacked, NOBODYS, OPEN, callers_end, nobodys};

const FRAME: u8 = Kind::Frame as u8;

/// Publishes a descriptor in the slot that the victim reads next.
fn publish(hand: &mut Hand, words: [u32; 3]) {
    let position = hand.producer.position();
    let at = hand.geometry().slot_at(position);
    hand.outbox.write_words(at + 4, words);
    hand.outbox.u32(at).store(layout::stamp(position), Ordering::Release);
    hand.wake().unwrap();
}

fn too_long(found: u32, limit: usize) -> String {
    format!("the peer broke a rule of the ring: record 0: {found} bytes, the limit is {limit}")
}

/// A head whose fields are these bytes.
fn head(fields: &[u8]) -> Vec<u8> {
    [&(fields.len() as u32).to_le_bytes(), fields].concat()
}

/// A head with this path length, and this behind its path.
fn head_of(length: u16, rest: &[u8]) -> Vec<u8> {
    let mut fields = vec![0xff; 8];
    fields.extend_from_slice(&length.to_le_bytes());
    fields.extend_from_slice(b"/x.Y/Z");
    fields.extend_from_slice(rest);
    head(&fields)
}

#[test]
fn row_21_numbers_out_of_range_end_the_link() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let mut hand = attacked.link();
    publish(&mut hand, [1 << 20, 1, 0]);
    let bits = "the peer broke a rule of the ring: record 0: a descriptor with unknown bits";
    attacked.ends(hand, bits);
    let (geometry, most) = {
        let hand = attacked.link();
        (hand.geometry(), hand.geometry().record_bytes())
    };
    for found in [most as u32 + 1, geometry.arena_bytes() + 1, 1 << 31, u32::MAX] {
        let mut hand = attacked.link();
        let limit = hand.geometry().record_bytes();
        publish(&mut hand, [u32::from(FRAME), 1, found]);
        attacked.ends(hand, &too_long(found, limit));
    }
    // Lengths inside of a record: of a head, of its path, of names and values of its metadata.
    let entry = |name: u16, value: u32| {
        [&[1, 0][..], &name.to_le_bytes(), b"a", &value.to_le_bytes(), b"b"].concat()
    };
    let cases = [
        (u32::MAX.to_le_bytes().to_vec(), "head length: 4294967295 is over the limit of 20480"),
        (
            [&99_u32.to_le_bytes()[..], &[0; 98]].concat(),
            "head length: the bytes end at 4 inside the field",
        ),
        (head_of(1025, &[0; 2000]), "path: 1025 is over the limit of 1024"),
        (head_of(99, b"\0\0"), "path: the bytes end at 10 inside the field"),
        (head_of(6, &[0xff, 0xff]), "metadata count: 65535 is over the limit of 512"),
        (head_of(6, &entry(u16::MAX, 1)), "metadata name: 65535 is over the limit of 20480"),
        (head_of(6, &entry(1, u32::MAX)), "metadata value: the bytes end at 7 inside the field"),
        (head_of(6, &[0, 0, 7]), "1 bytes are left over after the last field"),
    ];
    let expected = cases.each_ref().map(|(_, why)| why.to_string());
    let found = cases.map(|(payload, _)| {
        let mut hand = attacked.link();
        hand.try_say(FRAME, HEAD | END, 1, &payload).unwrap();
        let why = attacked.ends_somehow(hand);
        why.strip_prefix("the peer sent a record that cannot be read: ").unwrap().to_owned()
    });
    assert_eq!(found, expected);
}

#[test]
fn row_21_a_caller_ends_the_link_likewise() {
    let bits = "the peer broke a rule of the ring: record 0: a descriptor with unknown bits";
    callers_end(OPEN, |_, hand| publish(hand, [1 << 16, 1, 0]), bits);
    let found = u32::MAX;
    let attack = |_: &_, hand: &mut Hand| publish(hand, [u32::from(FRAME), 1, found]);
    // The first links of an account are wide.
    callers_end(OPEN, attack, &too_long(found, layout::Geometry::WIDE.record_bytes()));
    let unread = |why: &str| format!("the peer sent a record that cannot be read: {why}");
    let attack = |_: &_, hand: &mut Hand| {
        let payload = [&[0xff; 4][..], &[0; 40]].concat();
        hand.try_say(FRAME, HEAD | TRAILERS | END, 1, &payload).unwrap();
    };
    callers_end(OPEN, attack, &unread("head length: 4294967295 is over the limit of 20480"));
}

/// Asks of the victim what it answers at once, so often, and takes nothing of that.
fn ask(hand: &mut Hand, times: u32, first: u32) {
    for stream in first..first + times {
        hand.say(FRAME, HEAD | END, stream, &nobodys()).unwrap();
    }
}

#[test]
fn row_23_a_consumer_that_jumps_or_goes_back_ends_the_link() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let words = [layout::TAKEN_SLOTS_AT, layout::TAKEN_ARENA_AT];
    for at in words {
        // All of these have low words that are right.
        for claimed in [1 << 32, 1 << 63, u64::MAX, 1 << 20] {
            let mut hand = attacked.link();
            hand.outbox.u64(at).store(claimed, Ordering::Release);
            ask(&mut hand, 300, 1);
            let why = attacked.ends_somehow(hand);
            let begin = format!(
                "the peer broke a rule of the ring: the consumer claims to have taken {claimed}, after 0 and of "
            );
            let produced = why.strip_prefix(&begin).unwrap_or_else(|| panic!("{why}"));
            assert!(produced.parse::<u64>().unwrap() < claimed, "{why}");
        }
    }
    // One that has taken some, and says later that it has taken none.
    let mut hand = attacked.link();
    for stream in 1..400 {
        ask(&mut hand, 1, stream);
        assert_eq!(hand.status(stream).unwrap().0, NOBODYS);
    }
    hand.outbox.u64(layout::TAKEN_SLOTS_AT).store(0, Ordering::Release);
    ask(&mut hand, 300, 400);
    let why = attacked.ends_somehow(hand);
    let begin = "the peer broke a rule of the ring: the consumer claims to have taken 0, after ";
    let rest = why.strip_prefix(begin).unwrap_or_else(|| panic!("{why}"));
    assert!(rest.split_once(" and of ").unwrap().0.parse::<u64>().unwrap() >= 128, "{why}");
}

/// A record is there when its slot has the stamp of its number. Any other stamp is none: nothing is taken,
/// and the next good record is the next one.
#[test]
fn row_23_stamps_out_of_turn_are_no_records() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let mut hand = attacked.link();
    let slots = u64::from(hand.geometry().slots());
    let mut stream = 0;
    let mut call = |hand: &mut Hand| {
        stream += 1;
        hand.say(FRAME, HEAD | END, stream, &nobodys()).unwrap();
        assert_eq!(hand.status(stream).unwrap().0, NOBODYS);
    };
    for lap in 0..3 {
        // One whole lap beyond which the slot had other stamps.
        let position = hand.producer.position();
        assert!(position >= lap * slots);
        let forged = [
            position + 1,
            position + slots,
            position.wrapping_sub(1),
            position.wrapping_sub(slots),
            position ^ (1 << 31),
        ];
        let (at, previous) =
            (hand.geometry().slot_at(position), hand.geometry().slot_at(position.wrapping_sub(1)));
        for wrong in forged {
            let whole = call_head(UNARY, b"");
            hand.outbox.write_words(at + 4, [u32::from(FRAME) | 5 << 8, 999, whole.len() as u32]);
            hand.outbox.u32(at).store(layout::stamp(wrong), Ordering::Release);
            hand.ring();
        }
        // What was taken is published once more.
        if position > 0 {
            let again = layout::stamp(position - 1);
            hand.outbox.u32(previous).store(again, Ordering::Release);
            hand.ring();
        }
        assert_eq!(hand.hear_within(Duration::from_millis(50)).unwrap().filter(|a| a.2 != 0), None);
        (0..slots + 5).for_each(|_| call(&mut hand));
    }
    attacked.stays(hand);
}

/// The head of a request as others write it, so that the forged ones above differ from it in what they say.
#[test]
fn row_21_the_same_bytes_with_right_numbers_are_answered() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let mut good = Vec::new();
    frame::write_block(&mut good, |out| RequestHead::write(out, None, "/x.Y/Z", 0)).unwrap();
    assert_eq!(good, head_of(6, &[0, 0]));
    let mut hand = attacked.link();
    hand.try_say(FRAME, HEAD | END, 1, &good).unwrap();
    assert_eq!(hand.status(1).unwrap().0, NOBODYS);
    attacked.stays(hand);
}
