//! Row 26: a peer that dies at each labelled step of the protocol, with a record half written, a slot
//! taken, or asleep.
//!
//! Each call has a number, which a service writes down before it answers. Another instance serves as well,
//! so that a call that the dead one had not taken goes to that one. Whatever happens, no number is written
//! down twice, and each call that has an answer was written down once. How soon the survivor hears of the
//! death is what
//! `callers_get_an_answer_from_a_server_killed_at_each_step` and its like show.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use partywall_attacks::{Town, Victim};
use partywall_shm::failpoint::LABELS;
use partywall_testkit::{Held, PATIENCE};

use super::{OPEN, PROGRAMS};

/// The survivor hears of a death, and calls again, within this time.
const RECOVERY: Duration = Duration::from_secs(1);

/// Calls before a death at most, and after it.
const MOST: u32 = 100;
const CALLS: u32 = 10;

/// What has become of the calls, by their numbers.
type Ended = BTreeMap<u32, String>;

/// A service, its ledger, and the numbers of calls.
struct Counted {
    town: Town,
    ledger: String,
    ended: Ended,
    next: u32,
}

impl Counted {
    fn new() -> Self {
        let town = Town::new(PROGRAMS, OPEN);
        let ledger = town.file("ledger").to_str().unwrap().to_owned();
        Self { town, ledger, ended: Ended::new(), next: 0 }
    }

    fn service(&self, environment: &[(&str, &str)]) -> Victim {
        self.town.service_that(&["--ledger", &self.ledger], environment)
    }

    /// Asks a caller, while a victim may stop at a step and be killed there; what the caller says, and when
    /// the victim was killed.
    fn ask(
        caller: &mut Victim,
        line: &str,
        victim: &mut Victim,
        label: &str,
    ) -> (String, Option<Instant>) {
        caller.say(line);
        let stopped = format!("stopped at {label}");
        loop {
            if let Some(said) = caller.line_within(Duration::from_millis(5)) {
                return (said, None);
            }
            if victim.logs_within(&[&stopped], Duration::ZERO).is_some() {
                victim.kill();
                let killed = Instant::now();
                return (caller.line(), Some(killed));
            }
        }
    }

    /// No number twice, and each that was answered once.
    fn is_right(&self, label: &str) {
        let text = std::fs::read_to_string(&self.ledger).unwrap_or_default();
        let mut written = BTreeMap::<u32, u32>::new();
        for line in text.lines() {
            *written.entry(line.parse().unwrap()).or_default() += 1;
        }
        let twice: Vec<_> = written.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{label}: these were made more than once: {twice:?}");
        for (number, said) in &self.ended {
            match said.as_str() {
                "ok" => assert!(written.contains_key(number), "{label}: call {number} is lost"),
                said => assert!(said.starts_with("Unavailable: "), "{label}: {said}"),
            }
        }
    }
}

fn stops_at<'a>(label: &'a str, after: &'a str) -> [(&'a str, &'a str); 2] {
    [("PARTYWALL_FAILPOINT", label), ("PARTYWALL_FAILPOINT_AFTER", after)]
}

#[test]
fn row_26_no_call_is_lost_or_doubled_when_a_service_dies() {
    let mut never = Vec::new();
    for label in LABELS {
        let mut reached = false;
        for (after, kind) in
            [("1", &[][..]), ("9", &[]), ("1", &["--blocking"]), ("9", &["--blocking"])]
        {
            let mut counted = Counted::new();
            let mut victim = counted.service(&stops_at(label, after));
            let _other = counted.service(&[]);
            let mut caller = counted.town.caller(kind);
            let mut open = false;
            for _ in 0..MOST {
                let line = if open { format!("seed {}", counted.next) } else { "open".into() };
                let (said, killed) = Counted::ask(&mut caller, &line, &mut victim, label);
                if let Some(killed) = killed {
                    reached = true;
                    let took = killed.elapsed();
                    assert!(took < RECOVERY, "{label}: the caller heard of it after {took:?}");
                }
                if open {
                    counted.ended.insert(counted.next, said);
                    counted.next += 1;
                } else {
                    open = said == "open";
                }
                if killed.is_some() {
                    break;
                }
            }
            let begin = Instant::now();
            while caller.asked("open") != "open" {
                assert!(begin.elapsed() < RECOVERY, "{label}: nobody serves again");
            }
            for _ in 0..CALLS {
                let said = caller.asked(&format!("seed {}", counted.next));
                counted.ended.insert(counted.next, said);
                counted.next += 1;
            }
            counted.is_right(label);
            let answered = counted.ended.values().filter(|said| *said == "ok").count();
            assert!(answered >= CALLS as usize, "{label}: {:?}", counted.ended);
        }
        if !reached {
            never.push(*label);
        }
    }
    // A caller fills a link's memory.
    assert_eq!(never, ["setup.filled"], "steps that no service came by");
}

#[test]
fn row_26_no_call_is_doubled_when_a_caller_dies() {
    let mut counted = Counted::new();
    let service = counted.service(&[]);
    let mut witness = counted.town.witness();
    let held = Held::by(service.pid());
    let mut never = Vec::new();
    for label in LABELS {
        let mut reached = false;
        for (after, kind) in
            [("1", &[][..]), ("9", &[]), ("1", &["--blocking"]), ("9", &["--blocking"])]
        {
            let mut victim = counted.town.caller_that(kind, &stops_at(label, after));
            let stopped = format!("stopped at {label}");
            let begin = Instant::now();
            victim.say("open");
            let (mut lines, mut open) = (0, false);
            while victim.logs_within(&[&stopped], Duration::ZERO).is_none() {
                let Some(said) = victim.line_within(Duration::from_millis(5)) else {
                    let late = begin.elapsed() > 3 * PATIENCE;
                    assert!(!late, "{label}: it hangs after {lines} lines; {:?}", victim.logged());
                    continue;
                };
                lines += 1;
                if lines > MOST {
                    break;
                }
                open |= said == "open";
                if !open {
                    victim.say("open");
                    continue;
                }
                victim.say(&format!("seed {}", counted.next));
                counted.next += 1;
            }
            reached |= lines <= MOST;
            victim.kill();
            let killed = Instant::now();
            assert_eq!(witness.asked("call 100"), "ok", "{label}");
            held.wait_for(service.pid());
            assert!(killed.elapsed() < RECOVERY, "{label}: {:?}", killed.elapsed());
            counted.is_right(label);
        }
        if !reached {
            never.push(*label);
        }
    }
    // A server says that a link is open; services sleep in epoll, so no caller wakes one by futex.
    assert_eq!(never, ["setup.sent", "notify.belled"], "steps that no caller came by");
}
