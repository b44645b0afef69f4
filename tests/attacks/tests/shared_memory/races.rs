//! Row 22: memory that changes while a victim reads it.
//!
//! A thread of this process changes what is under the victim's eyes as fast as it can. What a victim has
//! taken is a copy: it is checked, and used, and never looked at again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use partywall_abi::frame::{self, END, HEAD, Kind};
use partywall_abi::layout;
use partywall_abi::sync::Ordering;
use partywall_attacks::{UNARY, call_head, message};
use partywall_interop::proto::{Payload, SimpleRequest, SimpleResponse};
use prost::Message;

use super::{Attacked, OPEN, nobodys};

const FRAME: u8 = Kind::Frame as u8;

/// Bytes of a request's pattern, which its answer has [`TIMES`] times.
const PATTERN: usize = 8 * 1024;
const TIMES: usize = 4;

/// Runs `change` again and again on a thread of its own, while `work` runs.
fn beside<T>(change: impl Fn(u64) + Sync, work: impl FnOnce() -> T) -> T {
    let (over, times) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Relaxed) {
                change(times.fetch_add(1, Relaxed));
            }
        });
        while times.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let done = work();
        over.store(true, Relaxed);
        done
    })
}

/// A handler that looked at the pattern where its caller can write it would repeat another one each time.
fn patterns_are_copied_once(service: &[&str]) {
    /// Calls at least, and at most until one was struck.
    const CALLS: std::ops::Range<u32> = 20..2000;
    let mut attacked = Attacked::new(OPEN, service);
    let mut hand = attacked.link();
    let (geometry, outbox) = (hand.geometry(), Arc::clone(&hand.outbox));
    let payload = Payload { body: vec![b'A'; PATTERN].into(), ..Payload::default() };
    let asked = SimpleRequest {
        response_size: (PATTERN * TIMES) as i32,
        payload: Some(payload),
        ..SimpleRequest::default()
    };
    let record = call_head(UNARY, &message(&asked.encode_to_vec()));
    let size = geometry.arena_bytes() as usize;
    let need = layout::arena_need(record.len()) as usize;
    // The body is the end of the record; whole words of it are changed.
    let (mut offset, mut torn) = (0, 0);
    for stream in 1..CALLS.end {
        if stream > CALLS.start && torn > 0 {
            break;
        }
        let body = (offset + record.len() - PATTERN).next_multiple_of(4)..offset + record.len();
        let word = |at: usize| outbox.u32((geometry.arena_base() + at % size) & !3);
        let change = |n: u64| {
            let value = if n.is_multiple_of(2) { *b"BBBB" } else { *b"AAAA" };
            for at in body.clone().step_by(4).take(PATTERN / 4 - 1) {
                word(at).store(u32::from_le_bytes(value), Ordering::Relaxed);
            }
        };
        let mut answer = Vec::new();
        beside(change, || {
            hand.say(FRAME, HEAD | END, stream, &record).unwrap();
            loop {
                let (flags, payload) = hand.hear_frame(stream).unwrap();
                let part = frame::Response::decode(flags, &payload).unwrap();
                let frame::Data::Here(data) = part.data else { panic!("a parcel") };
                answer.extend_from_slice(data);
                if let Some(trailers) = part.trailers {
                    assert_eq!(trailers.code, 0);
                    break;
                }
            }
        });
        let answer = SimpleResponse::decode(&answer[5..]).unwrap().payload.unwrap().body;
        let (first, rest) = answer.split_at(PATTERN);
        assert_eq!(answer.len(), PATTERN * TIMES);
        assert!(rest.chunks(PATTERN).all(|again| again == first), "it was read more than once");
        let count = |wanted: u8| first.iter().filter(|byte| **byte == wanted).count();
        assert_eq!(count(b'A') + count(b'B'), PATTERN);
        torn += usize::from(count(b'A') > 0 && count(b'B') > 0);
        offset = (offset + need) % size;
    }
    assert!(torn > 0, "the attack never struck");
    attacked.stays(hand);
}

#[test]
fn row_22_a_request_that_changes_is_copied_once() {
    patterns_are_copied_once(&[]);
}

#[test]
fn row_22_a_native_request_that_changes_is_copied_once() {
    patterns_are_copied_once(&["--native"]);
}

/// The length of a record is either the one that is right, and the record is taken, or one that is refused:
/// never one that was checked as the other.
#[test]
fn row_22_a_length_that_changes_is_right_or_refused() {
    let (mut taken, mut refused, mut rounds) = (0, 0, 0);
    while taken == 0 || refused == 0 {
        rounds += 1;
        assert!(rounds <= 20, "{taken} taken, {refused} refused");
        // The audit log has so many lines of an account at once.
        let mut attacked = Attacked::new(OPEN, &[]);
        for _ in 0..20 {
            let mut hand = attacked.link();
            let (outbox, at) = (Arc::clone(&hand.outbox), hand.geometry().slot_at(0) + 12);
            let (record, limit) = (nobodys(), hand.geometry().record_bytes());
            assert!(record.len() <= layout::INLINE_BYTES);
            let change = |n: u64| {
                let value = if n.is_multiple_of(4) { record.len() as u32 } else { u32::MAX };
                outbox.u32(at).store(value, Ordering::Relaxed);
            };
            let answer = beside(change, || {
                hand.say(FRAME, HEAD | END, 1, &record).unwrap();
                loop {
                    match hand.hear_within(std::time::Duration::from_millis(1)).unwrap() {
                        Some((Kind::Frame, _, 1, _)) => return true,
                        _ if hand.is_ended().unwrap() => return false,
                        _ => {}
                    }
                }
            });
            if answer {
                taken += 1;
                attacked.stays(hand);
                continue;
            }
            refused += 1;
            let why = format!(
                "the peer broke a rule of the ring: record 0: 4294967295 bytes, the limit is {limit}"
            );
            attacked.ends(hand, &why);
        }
    }
}
