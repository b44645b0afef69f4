//! The rings and the blocking link against a model, a hostile peer and the clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::layout::{self, Geometry, INLINE_BYTES, SleepMode};
use partywall_abi::sync::Ordering;
use proptest::prelude::*;

use crate::link::{Link, LinkError};
use crate::ring::{Violation, Wake};
use crate::setup::local_pair;
use crate::{memory, socket};
use std::os::fd::AsFd;

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 31 + i * 7) as u8).collect()
}

#[derive(Debug, Clone)]
enum Op {
    Push(usize),
    Pop,
}

proptest! {
    /// Contents, order, fullness and emptiness agree with a queue that knows the sizes.
    #[test]
    fn model_of_a_ring(
        slots in 1u32..5, arena in 1u32..20,
        ops in proptest::collection::vec(
            prop_oneof![(0usize..400).prop_map(Op::Push), Just(Op::Pop)], 1..300),
    ) {
        let g = Geometry::new(1 << slots, arena * 64).unwrap();
        let (a, b) = local_pair(g).unwrap();
        let (mut p, mut c) = (a.producer, b.consumer);
        let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push(len) => {
                    let bytes = pattern(i, len % (g.record_bytes() + 1));
                    let (first, second) = bytes.split_at(bytes.len() / 3);
                    let used: u64 = model.iter().map(|(_, m)| layout::arena_need(m.len())).sum();
                    let fits = model.len() < g.slots() as usize
                        && used + layout::arena_need(bytes.len()) <= u64::from(g.arena_bytes());
                    prop_assert_eq!(p.try_push(5, 1, i as u32, &[first, second]).unwrap(), fits);
                    if fits { model.push_back((i as u32, bytes)); }
                }
                Op::Pop => {
                    let d = c.peek().unwrap();
                    prop_assert_eq!(d.is_some(), !model.is_empty());
                    if let Some((stream, bytes)) = model.pop_front() {
                        let d = d.unwrap();
                        prop_assert_eq!((d.kind, d.flags, d.stream, d.len as usize), (5, 1, stream, bytes.len()));
                        let mut got = Vec::new();
                        c.read(&mut got);
                        prop_assert_eq!(got, bytes);
                        c.release();
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_every_size_pass_between_threads() {
    let (a, b) = local_pair(Geometry::new(8, 1024).unwrap()).unwrap();
    let (mut a, mut b) = (Link::new(a).unwrap(), Link::new(b).unwrap());
    let sizes = [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 255, 256, 257, 1023, 1024, 1025, 100_000];
    let echo = std::thread::spawn(move || {
        let mut m = Vec::new();
        for _ in 0..sizes.len() * 20 {
            b.receive(&mut m, 1 << 20, None).unwrap();
            b.send(&m, None).unwrap();
        }
    });
    let mut m = Vec::new();
    for round in 0..20 {
        for (i, size) in sizes.into_iter().enumerate() {
            let bytes = pattern(round * 100 + i, size);
            a.send(&bytes, None).unwrap();
            a.receive(&mut m, 1 << 20, None).unwrap();
            assert!(m == bytes, "round {round}, {size} bytes");
        }
    }
    echo.join().unwrap();
}

#[test]
fn a_message_over_the_limit_ends_in_an_error() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut a, mut b) = (Link::new(a).unwrap(), Link::new(b).unwrap());
    a.send(&[0; 101], None).unwrap();
    let r = b.receive(&mut Vec::new(), 100, None);
    assert!(matches!(r, Err(LinkError::TooLarge { limit: 100 })));
}

#[test]
fn a_deadline_ends_a_wait() {
    let (a, _b) = local_pair(Geometry::DEFAULT).unwrap();
    let mut a = Link::new(a).unwrap();
    let start = Instant::now();
    let r = a.receive(&mut Vec::new(), 100, Some(start + Duration::from_millis(30)));
    assert!(matches!(r, Err(LinkError::TimedOut)));
    assert!((30..300).contains(&start.elapsed().as_millis()));
    let big = vec![0; 1 << 20];
    let r = a.send(&big, Some(Instant::now() + Duration::from_millis(30)));
    assert!(matches!(r, Err(LinkError::TimedOut)), "no one takes it: {r:?}");
}

#[test]
fn death_wakes_a_sleeper_and_what_was_sent_before_counts() {
    for delay_us in [0, 50, 500, 5_000] {
        let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
        let mut a = Link::new(a).unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(delay_us));
            let mut b = b;
            assert!(b.producer.try_push(5, 0, 0, &[b"last"]).unwrap());
            let wake = b.producer.notify().unwrap();
            b.bell.carry_out(wake).unwrap();
            drop(b);
        });
        let mut m = Vec::new();
        a.receive(&mut m, 100, None).unwrap();
        assert_eq!(m, b"last");
        let start = Instant::now();
        assert!(matches!(a.receive(&mut m, 100, None), Err(LinkError::Dead)));
        assert!(start.elapsed() < Duration::from_millis(100));
        killer.join().unwrap();
    }
}

#[test]
fn sender_without_room_is_woken_by_the_death() {
    let (a, b) = local_pair(Geometry::new(2, 64).unwrap()).unwrap();
    let mut a = Link::new(a).unwrap();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(b);
    });
    assert!(matches!(a.send(&[1; 10_000], None), Err(LinkError::Dead)));
    killer.join().unwrap();
}

/// Our ends against a peer whose outbox the test writes.
fn hostile() -> (crate::ring::Producer, crate::ring::Consumer, crate::region::Outbox, Geometry) {
    let g = Geometry::new(2, 64).unwrap();
    let (ours, theirs) = (memory::create(g).unwrap(), memory::create(g).unwrap());
    let own = Arc::new(memory::adopt(ours.writer.as_fd(), g).unwrap());
    let hostile = memory::adopt(theirs.writer.as_fd(), g).unwrap();
    let peer = Arc::new(memory::accept(theirs.reader.as_fd(), g).unwrap());
    let p = crate::ring::Producer::new(g, own.clone(), peer.clone());
    (p, crate::ring::Consumer::new(g, own, peer), hostile, g)
}

#[test]
fn every_broken_rule_is_named() {
    let (_, mut c, hostile, g) = hostile();
    hostile.write_words(g.slot_at(0) + 4, [1 << 20, 0, 0]);
    hostile.u32(g.slot_at(0)).store(layout::stamp(0), Ordering::Release);
    assert_eq!(c.peek(), Err(Violation::Descriptor { position: 0 }));

    let (_, mut c, hostile, g) = self::hostile();
    hostile.write_words(g.slot_at(0) + 4, [1, 0, 49]);
    hostile.u32(g.slot_at(0)).store(layout::stamp(0), Ordering::Release);
    assert_eq!(c.peek(), Err(Violation::Length { position: 0, found: 49, limit: 48 }));

    let (mut p, _, hostile, _) = self::hostile();
    assert!(p.try_push(1, 0, 0, &[]).unwrap() && p.try_push(1, 0, 0, &[]).unwrap());
    hostile.u64(layout::TAKEN_SLOTS_AT).store(3, Ordering::Release);
    let ahead = Violation::Taken { claimed: 3, before: 0, produced: 2 };
    assert_eq!(p.try_push(1, 0, 0, &[]), Err(ahead));
    hostile.u64(layout::TAKEN_SLOTS_AT).store(1, Ordering::Release);
    assert!(p.try_push(1, 0, 0, &[]).unwrap());
    hostile.u64(layout::TAKEN_SLOTS_AT).store(0, Ordering::Release);
    let back = Violation::Taken { claimed: 0, before: 1, produced: 3 };
    assert_eq!(p.try_push(1, 0, 0, &[]), Err(back));

    let (mut p, _, hostile, _) = self::hostile();
    hostile.u32(layout::CONSUMER_SLEEP_AT).store(7, Ordering::Release);
    assert_eq!(p.notify(), Err(Violation::SleepWord { word: 7 }));
}

#[test]
fn payload_cannot_forge_a_record() {
    let (a, b) = local_pair(Geometry::new(2, 256).unwrap()).unwrap();
    let (mut p, mut c) = (a.producer, b.consumer);
    // Every word of the payload looks like the stamp of the next record.
    let forged: Vec<u8> = layout::stamp(1).to_le_bytes().repeat(16);
    for i in 0..100_u64 {
        assert!(p.try_push(5, 0, 9, &[&forged[..48]]).unwrap());
        assert_eq!(c.peek().unwrap().unwrap().stream, 9);
        c.release();
        assert_eq!(c.peek().unwrap(), None, "record {i}");
    }
}

#[test]
fn a_flood_of_bells_ends_the_link_and_a_few_do_not() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    for _ in 0..60 {
        socket::ring(b.bell.as_fd()).unwrap();
    }
    assert_eq!(a.bell.drain().unwrap(), 60);
    for _ in 0..60 {
        socket::ring(b.bell.as_fd()).unwrap();
    }
    assert!(matches!(a.bell.drain(), Err(LinkError::Flood { bells: 120, .. })));
    // Another thread sleeps on until it sees the end.
    (0..100).for_each(|_| a.bell.slept());
    assert!(matches!(a.bell.end(), LinkError::Flood { bells: 120, .. }));
}

#[test]
fn a_bell_brings_no_descriptors() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    let sent = socket::send(b.bell.as_fd(), &[0], &[a.bell.as_fd()]);
    match sent {
        // The kernel knows that none are wanted (Linux 6.16).
        Err(e) => assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error())),
        Ok(()) => assert!(matches!(a.bell.drain(), Err(LinkError::SetupShape(_)))),
    }
}

#[test]
fn bells_are_drained_before_the_socket_is_full_of_them() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut c, mut p) = (a.consumer, b.producer);
    for i in 0..5_000 {
        if a.bell.must_drain() {
            a.bell.drain().unwrap();
        }
        a.bell.slept();
        assert!(c.prepare_sleep(SleepMode::Doorbell));
        assert!(p.try_push(5, 0, 9, &[b"x"]).unwrap());
        let wake = p.notify().unwrap();
        assert_eq!(wake, Wake::Doorbell, "announcement {i}");
        b.bell.carry_out(wake).unwrap();
        // Each bell is one that the socket had room for.
        assert!(socket::unread(b.bell.as_fd()).unwrap() > 0);
        c.awake();
        c.peek().unwrap().unwrap();
        c.release();
    }
}

#[test]
fn whether_a_record_was_taken_is_known_after_the_peer_has_gone() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut p, mut c) = (a.producer, b.consumer);
    for _ in 0..2 {
        assert!(p.try_push(5, 0, 9, &[b"x"]).unwrap());
    }
    c.peek().unwrap().unwrap();
    c.release();
    drop((c, b.producer, b.bell));
    assert!(p.was_taken(0).unwrap());
    assert!(!p.was_taken(1).unwrap());
}

#[test]
fn a_file_is_read_straight_into_the_ring_and_comes_whole() {
    use std::io::{Seek, Write};
    let (a, b) = local_pair(Geometry::new(8, 4096).unwrap()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    let whole = pattern(3, 300_000);
    file.write_all(&whole).unwrap();
    let sizes = [0, 1, 48, 49, 1023, 1024, 1025, 4096, 65_536, 131_072, 1];
    let reader = std::thread::spawn(move || {
        let mut link = Link::new(b).unwrap();
        let mut got = Vec::new();
        for _ in sizes {
            let mut message = Vec::new();
            link.receive(&mut message, 1 << 20, None).unwrap();
            got.push(message);
        }
        (got, link)
    });
    let mut link = Link::new(a).unwrap();
    file.rewind().unwrap();
    for size in sizes {
        link.send_from(file.as_fd(), size, None).unwrap();
    }
    let mut at = 0;
    let (got, _peer) = reader.join().unwrap();
    for (message, size) in got.iter().zip(sizes) {
        assert!(message[..] == whole[at..at + size], "{size} bytes at {at}");
        at += size;
    }
    file.seek(std::io::SeekFrom::End(-500)).unwrap();
    let early = link.send_from(file.as_fd(), 3_000, None);
    assert!(matches!(early, Err(LinkError::Io { call: "read", .. })), "{early:?}");
}

#[test]
fn while_both_ends_are_awake_nobody_is_woken() {
    let (a, b) = local_pair(Geometry::DEFAULT).unwrap();
    let (mut p, mut c) = (a.producer, b.consumer);
    for i in 0..10_000 {
        assert!(p.try_push(5, 0, 9, &[&pattern(i, 60)]).unwrap());
        // To be woken takes a system call; this takes none.
        assert_eq!(p.notify().unwrap(), Wake::Done, "record {i}");
        c.peek().unwrap().unwrap();
        c.release();
        assert_eq!(c.notify().unwrap(), Wake::Done, "record {i}");
    }
    assert_eq!(socket::unread(a.bell.as_fd()).unwrap(), 0);
    assert_eq!(socket::unread(b.bell.as_fd()).unwrap(), 0);
}
