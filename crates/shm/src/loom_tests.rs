//! Models of every ordering that the rings rely on, explored by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p partywall-shm --lib loom_`.

use std::sync::Arc;

use loom::thread;
use partywall_abi::layout::{self, Geometry, SleepMode};
use partywall_abi::sync::Ordering;

use crate::death::Death;
use crate::region::{self, Inbox, Outbox};
use crate::ring::{Consumer, Producer, Wake};

fn rings() -> (Producer, Consumer, [Arc<Inbox>; 2], [Arc<Outbox>; 2]) {
    let g = Geometry::new(2, 64).unwrap();
    let (out_a, in_a) = region::pair(g);
    let (out_b, in_b) = region::pair(g);
    let (out_a, in_a) = (Arc::new(out_a), Arc::new(in_a));
    let (out_b, in_b) = (Arc::new(out_b), Arc::new(in_b));
    // A produces into its outbox; B consumes from it.
    let producer = Producer::new(g, out_a.clone(), in_b.clone());
    let consumer = Consumer::new(g, out_b.clone(), in_a.clone());
    (producer, consumer, [in_a, in_b], [out_a, out_b])
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// covers SYNC(ring.publish) SYNC(ring.take)
#[test]
fn loom_records_arrive_whole_and_room_comes_back() {
    model(|| {
        let (mut p, mut c, _ins, _outs) = rings();
        let producer = thread::spawn(move || {
            for i in 0..3_u8 {
                while !p.try_push(5, 0, u32::from(i), &[&[i], &[i]]).unwrap() {
                    thread::yield_now();
                }
            }
        });
        for i in 0..3_u8 {
            let d = loop {
                match c.peek().unwrap() {
                    Some(d) => break d,
                    None => thread::yield_now(),
                }
            };
            let mut payload = Vec::new();
            c.read(&mut payload);
            c.release();
            assert_eq!((d.stream, &payload[..]), (u32::from(i), &[i, i][..]));
        }
        producer.join().unwrap();
    });
}

/// covers SYNC(ring.sleep) for a consumer that waits for records
#[test]
fn loom_a_sleeping_consumer_is_woken() {
    model(|| {
        let (mut p, mut c, [in_a, _], _outs) = rings();
        let producer = thread::spawn(move || {
            for i in 0..2 {
                assert!(p.try_push(5, 0, i, &[]).unwrap());
                assert_eq!(p.notify().unwrap(), Wake::Done);
            }
        });
        for i in 0..2 {
            while c.peek().unwrap().is_none() {
                let seen = in_a.load_u32(layout::BELL_AT, Ordering::Acquire);
                if c.prepare_sleep(SleepMode::Futex) {
                    in_a.futex_wait(layout::BELL_AT, seen, None);
                }
                c.awake();
            }
            assert_eq!(c.peek().unwrap().unwrap().stream, i);
            c.release();
        }
        producer.join().unwrap();
    });
}

/// covers SYNC(ring.sleep) for a producer that waits for room
#[test]
fn loom_a_sleeping_producer_is_woken() {
    model(|| {
        let (mut p, mut c, [_, in_b], _outs) = rings();
        for i in 0..2 {
            assert!(p.try_push(5, 0, i, &[]).unwrap());
        }
        let consumer = thread::spawn(move || {
            assert_eq!(c.peek().unwrap().unwrap().stream, 0);
            c.release();
            assert_eq!(c.notify().unwrap(), Wake::Done);
        });
        while !p.try_push(5, 0, 2, &[]).unwrap() {
            let seen = in_b.load_u32(layout::BELL_AT, Ordering::Acquire);
            if p.prepare_sleep(0, SleepMode::Futex).unwrap() {
                in_b.futex_wait(layout::BELL_AT, seen, None);
            }
            p.awake();
        }
        consumer.join().unwrap();
    });
}

/// covers SYNC(ring.sleep) for the doorbell: one announcement, at least one bell, and no sleep
/// beside a record that nobody rings for
#[test]
fn loom_a_doorbell_is_rung_for_each_sleep() {
    model(|| {
        let (mut p, mut c, _ins, _outs) = rings();
        let bells = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let rung = bells.clone();
        let producer = thread::spawn(move || {
            assert!(p.try_push(5, 0, 0, &[]).unwrap());
            if p.notify().unwrap() == Wake::Doorbell {
                rung.fetch_add(1, Ordering::SeqCst);
            }
        });
        let asleep = c.prepare_sleep(SleepMode::Doorbell);
        producer.join().unwrap();
        assert!(!asleep || bells.load(Ordering::SeqCst) == 1);
        assert!(c.ready());
    });
}

/// covers SYNC(link.dead)
#[test]
fn loom_a_sleeper_hears_of_the_death() {
    model(|| {
        let (_p, _c, [in_a, _], _outs) = rings();
        let death = Arc::new(Death::default());
        let (their_death, their_in) = (death.clone(), in_a.clone());
        let reactor = thread::spawn(move || {
            while their_death.announce() {
                their_in.futex_wake(layout::BELL_AT);
                thread::yield_now();
            }
        });
        while !death.announced() {
            if death.enter() {
                in_a.futex_wait(layout::BELL_AT, 0, None);
            }
            death.leave();
        }
        reactor.join().unwrap();
    });
}
