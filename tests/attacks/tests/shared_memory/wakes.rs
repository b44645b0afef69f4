//! Row 28: peers that wake without an end, never, or for nothing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use partywall_abi::frame::{END, HEAD, Kind};
use partywall_abi::layout;
use partywall_abi::sync::Ordering;
use partywall_attacks::{Hand, Town, Victim};
use partywall_testkit::{Conversation, PATIENCE, cpu_time};

use super::{Attacked, CALLERS, NOBODYS, OPEN, PROGRAMS, logged, nobodys, opens};

const FRAME: u8 = Kind::Frame as u8;

/// Whether a reason is that of a flood, of more bells than twice the sleeps and 64.
fn is_flood(why: &str) -> bool {
    let numbers = why.strip_prefix("the peer floods the link: ");
    let numbers = numbers.and_then(|rest| rest.strip_suffix(" sleeps")?.split_once(" bells for "));
    let number = |text: &str| text.parse::<u64>().unwrap();
    numbers.is_some_and(|(bells, sleeps)| number(bells) > 2 * number(sleeps) + 64)
}

/// Rings so many times for each time that the victim looks, which it does once for all of them, and empties
/// its socket after 64 sleeps. With more the socket is full before that, and wakes nobody any more.
fn storm(victim: &Victim, hand: &Hand, bells: u32) {
    let sleep = || hand.inbox.load_u32(layout::CONSUMER_SLEEP_AT, Ordering::Acquire);
    let begin = Instant::now();
    for _ in 0..200 {
        let before = sleep();
        victim.while_stopped(|| (0..bells).for_each(|_| _ = hand.ring()));
        // It sleeps anew.
        while sleep() == before || sleep() == 0 {
            if hand.is_ended().unwrap() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "the victim does not look");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    panic!("the victim bears a storm of bells");
}

/// The same of a victim that sleeps by the futex. Nobody waits for these bells, and all count.
fn storm_beside(hand: &Hand) {
    let begin = Instant::now();
    while !hand.is_ended().unwrap() {
        assert!(begin.elapsed() < PATIENCE, "the victim bears a storm of bells");
        hand.ring();
    }
}

#[test]
fn row_28_a_storm_of_bells_ends_the_link_of_a_service() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let hand = attacked.link();
    let before = cpu_time(attacked.service.pid());
    storm(&attacked.service, &hand, 8);
    let why = attacked.ends_somehow(hand);
    assert!(is_flood(&why), "{why}");
    let took = cpu_time(attacked.service.pid()) - before;
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// A peer that rings as fast as it can has its victim look at their link as often, at most until that is a
/// flood. Others are served meanwhile, and nothing is left of it afterwards.
#[test]
fn row_28_others_are_served_in_a_storm() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let hand = attacked.link();
    let (over, mut slowest) = (AtomicBool::new(false), Duration::ZERO);
    let rings = std::thread::scope(|s| {
        let storm = s.spawn(|| {
            let mut rings = 0;
            while !over.load(Relaxed) {
                rings += u32::from(hand.ring());
            }
            rings
        });
        for _ in 0..100 {
            let begin = Instant::now();
            assert_eq!(attacked.witness.asked("call 100"), "ok");
            slowest = slowest.max(begin.elapsed());
        }
        over.store(true, Relaxed);
        storm.join().unwrap()
    });
    assert!(rings > 100, "{rings} rings are no storm");
    assert!(slowest < Duration::from_millis(500), "others waited {slowest:?}");
    let before = cpu_time(attacked.service.pid());
    std::thread::sleep(Duration::from_millis(300));
    let spent = cpu_time(attacked.service.pid()) - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of a CPU when the storm is over");
    drop(hand);
    attacked.serves();
}

/// A caller of `bad` whose call the hand has heard.
fn calling(town: &Town, arguments: &[&str]) -> (Conversation, Victim, Hand) {
    calls(town, arguments, "call 500")
}

fn calls(town: &Town, arguments: &[&str], call: &str) -> (Conversation, Victim, Hand) {
    let hostile = town.hostile();
    let (mut caller, mut hand) = opens(town, &hostile, arguments);
    caller.say(call);
    hand.asked().unwrap();
    (hostile, caller, hand)
}

#[test]
fn row_28_a_storm_of_bells_ends_the_link_of_a_caller() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let (_hostile, mut caller, hand) = calling(&town, arguments);
        match arguments.contains(&"--blocking") {
            true => storm_beside(&hand),
            false => storm(&caller, &hand, 4),
        }
        let why = logged(&caller, hand.link);
        assert!(is_flood(&why), "{arguments:?}: {why}");
        let said = caller.line();
        assert_eq!(said, format!("Unavailable: link {}: {why}", hand.link), "{arguments:?}");
        town.blamed(hand.link, None);
    }
    town.witness();
}

/// A thread that blocks sleeps on a word of its peer's memory, where no kernel counts the wakes. It was kept
/// awake for as long as its call might take.
#[test]
fn row_28_a_storm_of_futex_wakes_ends_the_link_of_a_caller() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    for arguments in &CALLERS[2..] {
        let (_hostile, mut caller, hand) = calling(&town, arguments);
        let before = cpu_time(caller.pid());
        let begin = Instant::now();
        while !hand.is_ended().unwrap() {
            let late = begin.elapsed() > Duration::from_secs(3);
            assert!(!late, "{arguments:?}: the victim bears a storm of wakes");
            for _ in 0..200 {
                hand.outbox.u32(layout::BELL_AT).fetch_add(1, Ordering::Release);
                hand.outbox.futex_wake(layout::BELL_AT);
            }
        }
        let why = logged(&caller, hand.link);
        assert!(why.starts_with("the peer floods the link: "), "{arguments:?}: {why}");
        let said = caller.line();
        assert_eq!(said, format!("Unavailable: link {}: {why}", hand.link), "{arguments:?}");
        town.blamed(hand.link, None);
        let spent = cpu_time(caller.pid()) - before;
        assert!(spent < Duration::from_millis(300), "{arguments:?}: {spent:?} of a CPU");
    }
    town.witness();
}

/// What is never told is waited for until the deadline, asleep.
#[test]
fn row_28_a_peer_that_never_wakes_delays_no_deadline() {
    let town = Town::new(PROGRAMS, OPEN);
    let _service = town.service(&[]);
    for arguments in CALLERS {
        let begin = Instant::now();
        let (_hostile, mut caller, hand) = calls(&town, arguments, "call 500 500");
        let before = cpu_time(caller.pid());
        let said = caller.line();
        assert_eq!(said, "DeadlineExceeded: the deadline passed before the answer came");
        assert!(begin.elapsed() >= Duration::from_millis(500), "{arguments:?}");
        let spent = cpu_time(caller.pid()) - before;
        assert!(spent < Duration::from_millis(200), "{arguments:?}: {spent:?} of a CPU");
        assert!(!hand.is_ended().unwrap());
    }
    town.witness();
}

#[test]
fn row_28_wakes_for_nothing_change_nothing() {
    let mut attacked = Attacked::new(OPEN, &[]);
    let mut hand = attacked.link();
    for stream in 1..=30 {
        assert!(hand.ring());
        assert_eq!(hand.hear_within(Duration::from_millis(2)).unwrap().filter(|a| a.2 != 0), None);
        hand.say(FRAME, HEAD | END, stream, &nobodys()).unwrap();
        assert_eq!(hand.status(stream).unwrap().0, NOBODYS);
    }
    attacked.stays(hand);
    let town = Town::new(PROGRAMS, OPEN);
    for arguments in CALLERS {
        let (_hostile, mut caller, mut hand) = calling(&town, arguments);
        for _ in 0..30 {
            hand.outbox.u32(layout::BELL_AT).fetch_add(1, Ordering::Release);
            hand.outbox.futex_wake(layout::BELL_AT);
            assert!(hand.ring());
            assert_eq!(caller.line_within(Duration::from_millis(2)), None);
        }
        caller_is_answered(&mut caller, &mut hand);
    }
}

/// The call under way is answered late, and the next one at once.
fn caller_is_answered(caller: &mut Victim, hand: &mut Hand) {
    let stream = hand.stream;
    hand.say(Kind::Reset as u8, 0, stream, &[1, 0, 0]).unwrap();
    assert_eq!(caller.line(), "Cancelled: ");
    caller.say("call 100");
    hand.answer().unwrap();
    assert_eq!(caller.line(), "ok");
}
