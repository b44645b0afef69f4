//! Row 35: a clock that is set.
//!
//! The clock of the machine is not set here: it is every other process's too. What is shown instead is
//! more: with [`partywall_attacks::clock`] the kernel ends a process that asks for a time that can be set,
//! or waits by it. Coordinator, service and callers go through their lives like that: admission, links,
//! calls, deadlines, deaths, a restart of the coordinator, a drain. So no decision of theirs depends on it.
//! Certificates begin at the time of day at which the policy was read, and age by another clock.
//! The audit log writes the time of day into each of its lines, and reads it for nothing else; so the
//! coordinator has none here.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use partywall_attacks::Town;

use super::{OPEN, PROGRAMS, until_open};

/// SIGSYS (signal(7)).
const KILLED_BY_THE_FILTER: i32 = 31;

#[test]
fn row_35_no_decision_asks_for_the_time_of_day() {
    let mut town = Town::with(*PROGRAMS, OPEN, &["--without-clock"]);
    let kinds: [&[&str]; 4] = [&[], &["--native"], &["--blocking"], &["--blocking", "--native"]];
    for native in [false, true] {
        let mut arguments = vec!["--without-clock"];
        arguments.extend(native.then_some("--native"));
        let mut service = town.start(PROGRAMS.service, &arguments, &[]);
        let mut callers = Vec::new();
        for kind in kinds {
            let arguments = [kind, &["--without-clock"]].concat();
            let mut caller = town.caller(&arguments);
            until_open(&town, &mut caller);
            for bytes in ["0", "100", "200000"] {
                assert_eq!(caller.asked(&format!("call {bytes}")), "ok", "{kind:?}");
            }
            callers.push(caller);
        }
        // Deadlines pass, and none before its time.
        for (caller, kind) in callers.iter_mut().zip(kinds) {
            let begin = Instant::now();
            service.while_stopped(|| {
                let said = caller.asked("call 100 300");
                assert!(said.starts_with("DeadlineExceeded"), "{kind:?}: {said}");
            });
            let took = begin.elapsed();
            let range = Duration::from_millis(300)..Duration::from_secs(3);
            assert!(range.contains(&took), "{kind:?}: {took:?}");
            assert_eq!(caller.asked("call 100"), "ok", "{kind:?}");
        }
        // Links go on while the coordinator is gone; names are served, and links made, by the next one.
        town.restart();
        for caller in &mut callers {
            assert_eq!(caller.asked("call 100"), "ok");
            until_open(&town, caller);
            assert_eq!(caller.asked("call 100"), "ok");
        }
        service.end_input();
        assert_eq!(service.line(), "ended");
        assert!(service.ended().success());
        for caller in &mut callers {
            let said = caller.asked("call 100");
            assert!(said.starts_with("Unavailable") || said.starts_with("NotFound"), "{said}");
            caller.end_input();
            assert!(caller.ended().success());
        }
    }
    assert!(town.coordinator.is_running());
}

/// The filter finds who asks.
#[test]
fn row_35_who_asks_for_the_time_of_day_is_ended() {
    let town = Town::new(*PROGRAMS, OPEN);
    let mut service = town.service(&["--without-clock", "--asks-the-time"]);
    let mut caller = town.caller(&[]);
    assert_eq!(caller.asked("open"), "open");
    let said = caller.asked("call 100");
    assert!(said.starts_with("Unavailable: "), "{said}");
    assert_eq!(service.ended().signal(), Some(KILLED_BY_THE_FILTER));
    // The audit log does, too.
    let dir = tempfile::tempdir().unwrap();
    let audit = dir.path().join("audit");
    let more = ["--without-clock", "--audit", audit.to_str().unwrap()];
    let mut town = Town::with(*PROGRAMS, OPEN, &more);
    let _admitted_or_not = partywall_testkit::Conversation::open(&town.socket());
    assert_eq!(town.coordinator.ended().signal(), Some(KILLED_BY_THE_FILTER));
}
