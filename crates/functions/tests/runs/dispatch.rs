//! Calls by a dispatcher with its workers.

use std::time::Duration;

use partywall_functions::dispatcher::{Event, Outcome};
use partywall_functions::schedule::{Limits, Refused};

use super::host::UPPER;
use super::rig::{Rig, reply};

#[test]
fn calls_of_every_size_are_answered() {
    let mut rig = Rig::new(1);
    let upper = rig.register(UPPER, |_| ());
    for bytes in [0, 1, 24, 25, 4095, 4096, 4097, 100_000, 1_000_000] {
        let outcome = rig.outcome(upper, &vec![b'a'; bytes]);
        assert_eq!(outcome, reply(&"A".repeat(bytes)), "{bytes}");
    }
    let long = vec![b'a'; (8 << 20) + 1];
    let refused = rig.dispatcher.call(upper, long, 0, (0, None)).unwrap_err();
    assert_eq!(refused.outcome, Outcome::LongRequest((8 << 20) + 1));
}

/// Calls that are submitted together find out together that their replies have no room.
#[test]
fn replies_that_are_longer_all_at_once_have_room() {
    let mut rig = Rig::new(1);
    let upper = rig.register(UPPER, |_| ());
    let lengths = [10_000, 10_000, 9_000, 110_000, 100, 10_000, 120_000, 10_000];
    let calls = lengths.map(|bytes| (rig.call(upper, &vec![b'a'; bytes]), bytes));
    for _ in calls {
        let done = rig.done();
        let (_, bytes) = calls.iter().find(|(token, _)| *token == done.token).unwrap();
        let is_it = done.outcome == reply(&"A".repeat(*bytes));
        assert!(is_it, "{bytes}: {:.100?}", format!("{:?}", done.outcome));
    }
}

/// What has called a service cannot run again for its reply's room, unless it is idempotent; its next call
/// has the room.
#[test]
fn long_replies_of_functions_that_call_services_have_room() {
    let mut rig = Rig::new(1);
    let asks = "pub fn handle(_: Request<'_>) -> Reply {\n\
                partywall_fn::service::call(\"a\", \"/b/c\", &[])?; Ok(vec![b'x'; 300_000]) }";
    let once = rig.register(asks, |_| ());
    let again = rig.register(asks, |registration| registration.idempotent = true);
    let long = reply(&"x".repeat(300_000));
    for (id, asked, outcome) in [
        (once, 1, Outcome::Long(300_000)),
        (once, 1, long.clone()),
        (again, 2, long.clone()),
        (again, 1, long.clone()),
    ] {
        let token = rig.call(id, b"");
        for _ in 0..asked {
            let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
            rig.dispatcher.answer(outward.call, 0, Vec::new());
        }
        let done = rig.done();
        let is_it = (done.token, &done.outcome) == (token, &outcome);
        assert!(is_it, "{:.100?}", format!("{:?}", done.outcome));
    }
}

/// What needs more than a light function has is run again with more, and is an error beyond that.
#[test]
fn functions_that_need_more_memory_have_it() {
    let mut rig = Rig::new(1);
    let deep = rig.register(
        "pub fn handle(r: Request<'_>) -> Reply { log!(\"deep\");\n\
         let n = r.text()?.parse().map_err(|_| Error::invalid(\"no number\"))?;\n\
         Ok(deep(n).to_string().into_bytes()) }\n\
         #[inline(never)] fn deep(n: u64) -> u64 { let x = core::hint::black_box([n; 50]);\n\
         if n == 0 { 0 } else { deep(n - 1) + x[3] - n + 1 } }",
        |_| (),
    );
    assert_eq!(rig.outcome(deep, b"1"), reply("1"));
    assert_eq!(rig.outcome(deep, b"300"), reply("300"));
    assert_eq!(rig.outcome(deep, b"1000000"), Outcome::Stack);
    assert_eq!(rig.outcome(deep, b"2"), reply("2"));
    let large = rig.register(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         let n: usize = r.text()?.parse().map_err(|_| Error::invalid(\"no number\"))?;\n\
         Ok(vec![7_u8; n].iter().map(|n| *n as u64).sum::<u64>().to_string().into_bytes()) }",
        |_| (),
    );
    assert_eq!(rig.outcome(large, b"1000"), reply("7000"));
    assert_eq!(rig.outcome(large, b"3000000"), reply("21000000"));
    assert_eq!(rig.outcome(large, b"30000000"), Outcome::Memory);
    let asks = rig.register(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         let n: usize = r.text()?.parse().map_err(|_| Error::invalid(\"no number\"))?;\n\
         let mut bytes = Vec::<u8>::new();\n\
         Ok(bytes.try_reserve_exact(n).is_ok().to_string().into_bytes()) }",
        |_| (),
    );
    assert_eq!(rig.outcome(asks, b"1000"), reply("true"));
    assert_eq!(rig.outcome(asks, b"3000000"), reply("true"), "as much as any function may have");
    assert_eq!(rig.outcome(asks, b"30000000"), reply("false"));
}

#[test]
fn row_47_what_is_beyond_its_budget_is_stopped_by_the_dispatcher() {
    let mut rig = Rig::new(1);
    let upper = rig.register(UPPER, |_| ());
    let budget = Duration::from_millis(3);
    let endless = "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";
    let endless = rig.register(endless, |registration| registration.budget = budget);
    for _ in 0..50 {
        let (first, second) = (rig.call(endless, b""), rig.call(upper, b"next"));
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (first, Outcome::Budget(budget)));
        assert!(done.cpu_ns >= 3_000_000);
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (second, reply("NEXT")));
    }
}

/// Calls to services wait, whatever else runs, and each has the answer that is its own.
#[test]
fn functions_that_wait_have_their_own_answers() {
    let mut rig = Rig::new(2);
    let asks = rig.register(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         partywall_fn::service::call(\"greeter\", \"/g.Greeter/Hello\", r.body()) }",
        |_| (),
    );
    let tokens: Vec<_> = (0..40_u32).map(|n| rig.call(asks, &n.to_le_bytes())).collect();
    let mut waiting = Vec::new();
    while waiting.len() < tokens.len() {
        match rig.event() {
            Event::Outward(outward) => waiting.push(outward),
            other => panic!("{other:?}"),
        }
    }
    for outward in waiting.into_iter().rev() {
        let (names, body) = outward.message.split_at(outward.service + outward.method);
        assert_eq!(names, b"greeter/g.Greeter/Hello");
        let answer = [b"hello ", body].concat();
        rig.dispatcher.answer(outward.call, 0, answer);
    }
    let mut left = tokens.clone();
    for _ in &tokens {
        let done = rig.done();
        let number = tokens.iter().position(|token| *token == done.token).unwrap() as u32;
        let expected = [&b"hello "[..], &number.to_le_bytes()].concat();
        assert_eq!(done.outcome, Outcome::Reply(expected));
        left.retain(|token| *token != done.token);
    }
    assert!(left.is_empty());
}

/// A function that would wait beside too many of its own is over; those that wait go on, and so does another.
#[test]
fn calls_that_wait_are_bounded_for_each_function() {
    let asks = "pub fn handle(r: Request<'_>) -> Reply {\n\
                partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
    let mut rig = Rig::new(1);
    let limits = Limits { waiting: 2, ..Limits::default() };
    let owner = rig.dispatcher.add_owner(limits);
    let [one, other] = [(), ()].map(|()| rig.register(asks, |r| r.owner = owner));
    let wait = |rig: &mut Rig, id| {
        let now = rig.now();
        let number = rig.dispatcher.call(id, Vec::new(), 0, (now, None)).unwrap();
        match rig.event() {
            Event::Outward(outward) => (number, outward.call),
            other => panic!("{other:?}"),
        }
    };
    let beyond = |rig: &mut Rig, waiting| {
        rig.call(one, b"");
        let done = rig.done();
        assert_eq!(done.outcome, Outcome::Refused(Refused::Waiting { waiting }));
        assert_eq!(done.log, b"", "what it has asked for is no log");
    };
    let (_, first) = wait(&mut rig, one);
    // One that is ended by its caller waits no more, and neither does one that goes on.
    for way in 0..3 {
        let (second, asked) = wait(&mut rig, one);
        (0..5).for_each(|_| beyond(&mut rig, 2));
        let now = rig.now();
        match way {
            0 => {
                rig.dispatcher.answer(asked, 0, b"yes".to_vec());
                assert_eq!(rig.done().outcome, reply("yes"));
            }
            1 => {
                rig.dispatcher.cancel(second, now, &mut rig.events).unwrap();
                assert_eq!(rig.done().outcome, Outcome::Cancelled);
            }
            _ => {
                // Both have called, and must not run again.
                rig.dispatcher.kill_worker(0);
                assert!(matches!(rig.done().outcome, Outcome::Lost(_)));
                assert!(matches!(rig.done().outcome, Outcome::Lost(_)));
            }
        }
    }
    rig.dispatcher.answer(first, 0, b"late".to_vec());
    let waiting = [one, one, other, other].map(|id| wait(&mut rig, id));
    beyond(&mut rig, 2);
    // Another limit counts at once, and those that wait are left alone.
    rig.dispatcher.limit(owner, Limits { waiting: 1, ..limits });
    beyond(&mut rig, 1);
    for (_, asked) in waiting {
        rig.dispatcher.answer(asked, 0, b"done".to_vec());
        assert_eq!(rig.done().outcome, reply("done"));
    }
    wait(&mut rig, one);
    assert_eq!(rig.dispatcher.strikes(one), Some((false, 0)));
}

#[test]
fn an_owner_beyond_its_limits_is_refused() {
    let mut rig = Rig::new(1);
    let few = Limits { queue: 2, concurrency: 1, ..Limits::default() };
    let owner = rig.dispatcher.add_owner(few);
    let upper = rig.register(UPPER, |registration| registration.owner = owner);
    for _ in 0..3 {
        rig.call(upper, b"a");
    }
    let refused = rig.dispatcher.call(upper, b"a".to_vec(), 9, (0, None)).unwrap_err();
    assert_eq!(
        (refused.token, refused.outcome),
        (9, Outcome::Refused(Refused::Queue { queue: 2 }))
    );
    for _ in 0..3 {
        assert_eq!(rig.done().outcome, reply("A"));
    }
    assert_eq!(rig.outcome(upper, b"b"), reply("B"));
}

/// A worker that is killed loses no call that may run again, and none is answered twice.
#[test]
fn row_53_calls_of_a_worker_that_is_killed_run_again_or_are_lost_once() {
    let mut rig = Rig::new(1);
    let upper = rig.register(UPPER, |_| ());
    let asks = "pub fn handle(r: Request<'_>) -> Reply {\n\
                partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
    let asks_once = rig.register(asks, |_| ());
    let asks_again = rig.register(asks, |registration| registration.idempotent = true);
    for round in 0..10 {
        let (once, again) = (rig.call(asks_once, b""), rig.call(asks_again, b""));
        let mut calls: Vec<_> = (0..2)
            .map(|_| match rig.event() {
                Event::Outward(outward) => outward.call,
                other => panic!("{other:?}"),
            })
            .collect();
        let plain: Vec<_> = (0..5).map(|_| rig.call(upper, b"plain")).collect();
        if round % 2 == 0 {
            let now = rig.now();
            rig.dispatcher.poll(now, &mut rig.events).unwrap();
        }
        rig.dispatcher.kill_worker(0);
        let (mut seen, mut asked) = (Vec::new(), 0);
        while seen.len() < 7 {
            match rig.event() {
                Event::Done(done) => seen.push((done.token, done.outcome)),
                Event::Outward(outward) => {
                    asked += 1;
                    // What comes for the first run's call is no answer to the second one's.
                    for call in &calls {
                        rig.dispatcher.answer(*call, 0, b"of before".to_vec());
                    }
                    rig.dispatcher.answer(outward.call, 0, b"late".to_vec());
                }
                Event::Unwanted(call) => panic!("{call:?}"),
            }
        }
        seen.sort_by_key(|(token, _)| *token);
        rig.unwanted.sort_unstable();
        calls.sort_unstable();
        assert_eq!(std::mem::take(&mut rig.unwanted), calls);
        let plain = plain.into_iter().map(|token| (token, reply("PLAIN")));
        let lost = Outcome::Lost("signal: 9 (SIGKILL)".into());
        let expected = [(once, lost), (again, reply("late"))].into_iter().chain(plain);
        assert_eq!(seen, expected.collect::<Vec<_>>(), "round {round}");
        assert_eq!(asked, 1);
        // An answer that comes too late is nobody's, also where another call waits in the same place.
        let last = rig.call(asks_once, b"");
        let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
        for call in calls {
            rig.dispatcher.answer(call, 0, b"too late".to_vec());
        }
        rig.dispatcher.answer(outward.call, 0, b"in time".to_vec());
        let done = rig.done();
        assert_eq!((done.token, done.outcome), (last, reply("in time")));
    }
}

/// A call is over when its caller says so or its time is, wherever it is: in its queue, running, waiting.
#[test]
fn calls_end_with_their_callers_and_their_deadlines() {
    let mut rig = Rig::new(1);
    let upper = rig.register(UPPER, |_| ());
    let endless = "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";
    let endless = rig.register(endless, |r| r.budget = Duration::from_secs(60));
    let asks = "pub fn handle(r: Request<'_>) -> Reply {\n\
                partywall_fn::service::call(\"a\", \"/b/c\", r.body()) }";
    let asks = rig.register(asks, |_| ());
    for round in 0..6 {
        let by_deadline = round % 2 == 0;
        let expected = if by_deadline { Outcome::Deadline } else { Outcome::Cancelled };
        let begin = |rig: &mut Rig, id, token| {
            let now = rig.now();
            let deadline = by_deadline.then_some(now + 20_000_000);
            rig.dispatcher.call(id, Vec::new(), token, (now, deadline)).unwrap()
        };
        let mut numbers = vec![begin(&mut rig, asks, 0)];
        let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
        // More than are given to a worker at once: some stay in the queue.
        numbers.extend((1..40).map(|token| begin(&mut rig, endless, token)));
        let now = rig.now();
        rig.dispatcher.poll(now, &mut rig.events).unwrap();
        if !by_deadline {
            for number in numbers {
                rig.dispatcher.cancel(number, now, &mut rig.events).unwrap();
            }
        }
        let mut over: Vec<_> = (0..40).map(|_| rig.done()).map(|d| (d.token, d.outcome)).collect();
        over.sort_by_key(|(token, _)| *token);
        let all: Vec<_> = (0..40).map(|token| (token, expected.clone())).collect();
        assert_eq!(over, all, "round {round}");
        assert_eq!(std::mem::take(&mut rig.unwanted), [outward.call]);
        rig.dispatcher.answer(outward.call, 0, Vec::new());
        assert_eq!(rig.outcome(upper, b"next"), reply("NEXT"));
    }
    assert_eq!(rig.dispatcher.strikes(asks), Some((false, 0)));
}

#[test]
fn a_function_is_banned_by_its_strikes_and_by_hand() {
    let mut rig = Rig::new(1);
    let picks = "pub fn handle(r: Request<'_>) -> Reply { match r.text()? {\n\
         \"loop\" => loop { core::hint::black_box(0); }, \"panic\" => panic!(), _ => Ok(vec![]) } }";
    let picks = rig.register(picks, |registration| {
        (registration.strikes, registration.budget) = (3, Duration::from_millis(1));
    });
    let budget = Outcome::Budget(Duration::from_millis(1));
    for strikes in 1..=2 {
        assert_eq!(rig.outcome(picks, b"loop"), budget);
        assert!(matches!(rig.outcome(picks, b"panic"), Outcome::Panic(_)));
        assert_eq!(rig.dispatcher.strikes(picks), Some((false, strikes)));
    }
    for _ in 0..1000 {
        assert_eq!(rig.outcome(picks, b""), reply(""));
    }
    assert_eq!(rig.dispatcher.strikes(picks), Some((false, 1)));
    assert_eq!(rig.outcome(picks, b"loop"), budget);
    assert_eq!(rig.outcome(picks, b"loop"), budget);
    let refused = rig.dispatcher.call(picks, Vec::new(), 0, (0, None)).unwrap_err();
    assert_eq!(refused.outcome, Outcome::Banned);
    rig.dispatcher.ban(picks, false);
    assert_eq!(
        (rig.outcome(picks, b""), rig.dispatcher.strikes(picks)),
        (reply(""), Some((false, 0)))
    );
    rig.dispatcher.ban(picks, true);
    assert!(rig.dispatcher.call(picks, Vec::new(), 0, (0, None)).is_err());
}

/// A function that calls services has no more CPU time in all than its budget.
#[test]
fn a_budget_is_for_all_parts_of_a_call() {
    let mut rig = Rig::new(1);
    let budget = Duration::from_millis(100);
    let burns = "pub fn handle(r: Request<'_>) -> Reply {\n\
         loop { let begun = partywall_fn::clock::monotonic();\n\
         while partywall_fn::clock::monotonic() - begun < core::time::Duration::from_millis(30) {}\n\
         partywall_fn::service::call(\"a\", \"/b/c\", r.body())?; } }";
    let burns = rig.register(burns, |registration| registration.budget = budget);
    rig.call(burns, b"");
    let mut parts = 0;
    let done = loop {
        match rig.event() {
            Event::Outward(outward) => {
                parts += 1;
                rig.dispatcher.answer(outward.call, 0, Vec::new());
            }
            Event::Done(done) => break done,
            Event::Unwanted(call) => panic!("{call:?}"),
        }
    };
    assert_eq!((done.outcome, parts <= 3), (Outcome::Budget(budget), true), "{parts}");
    assert!(done.cpu_ns >= 100_000_000);
}

/// Statics are those of a call, also while it waits and others of the same function run and wait.
#[test]
fn row_52_statics_of_a_call_that_waits_are_its_own() {
    let mut rig = Rig::new(1);
    let counts = "use core::sync::atomic::{AtomicU64, Ordering::Relaxed};\n\
                  static FROM: AtomicU64 = AtomicU64::new(7); static ZERO: AtomicU64 = AtomicU64::new(0);\n\
                  pub fn handle(r: Request<'_>) -> Reply {\n\
                  let n = r.body()[0] as u64;\n\
                  FROM.fetch_add(n, Relaxed); ZERO.fetch_add(n, Relaxed);\n\
                  partywall_fn::service::call(\"a\", \"/b/c\", &[])?;\n\
                  Ok(vec![FROM.fetch_add(n, Relaxed) as u8, ZERO.fetch_add(n, Relaxed) as u8]) }";
    let counts = rig.register(counts, |_| ());
    let mut waiting = Vec::new();
    for number in 1..=5_u8 {
        let token = rig.call(counts, &[number]);
        let Event::Outward(outward) = rig.event() else { panic!("it does not ask") };
        waiting.push((number, token, outward.call));
    }
    for (number, token, call) in [3, 0, 4, 1, 2].map(|at: usize| waiting[at]) {
        rig.dispatcher.answer(call, 0, Vec::new());
        let done = rig.done();
        let wanted = Outcome::Reply(vec![7 + number, number]);
        assert_eq!((done.token, done.outcome), (token, wanted));
    }
}
