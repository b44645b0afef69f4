//! Functions that are stopped, at every instruction that there is, and what signals find elsewhere: calls of
//! the runtime, the kernel's random bytes, a worker that sleeps.

use std::time::{Duration, Instant};

use partywall_abi::function::{Completion, End};
use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::Preemption;
use partywall_testkit::{Random, trials};

use super::host::{Host, OUT, UPPER, workers};
use super::limits::stat;

/// Burns as many rounds as the request says, and answers with a sum of them.
const BURNS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let rounds: u64 = r.text()?.parse().map_err(|_| Error::invalid(\"no number\"))?;\n\
     let mut sum = 7_u64;\n\
     for n in 0..rounds { sum = core::hint::black_box(sum.rotate_left(5) ^ n); }\n\
     Ok(sum.to_le_bytes().to_vec()) }";

fn burnt(rounds: u64) -> [u8; 8] {
    (0..rounds).fold(7_u64, |sum, n| sum.rotate_left(5) ^ n).to_le_bytes()
}

/// Waits for so many loads of a clock.
fn pause(loops: usize) {
    for _ in 0..loops {
        std::hint::spin_loop();
    }
}

/// Signals that come before the entry, at the return, twice or for another: only what is named is stopped,
/// and whatever was interrupted goes on as it was.
#[test]
fn row_54_signals_at_every_edge_are_neither_lost_nor_harmful() {
    let mut host = Host::new();
    let burns = host.put(BURNS);
    let mut random = Random::of_this_run();
    let (mut stopped, mut answered) = (0, 0);
    for trial in 0..trials(100_000) {
        // Some are shorter than a signal takes, some longer. One in a hundred still runs when a thread that
        // others keep from its CPU has it again.
        let is_long = trial % 100 == 0;
        let rounds = if is_long { 2_000_000 } else { random.below(40_000) as u64 };
        let text = rounds.to_string();
        let named = host.submit(&burns, text.as_bytes());
        let other = host.submit(&burns, text.as_bytes());
        if is_long {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..if is_long { 1 } else { random.below(3) } {
            pause(random.below(600));
            host.link.stop(named, Duration::ZERO);
        }
        let is_right = |done: &Completion| {
            done.end == End::Reply && done.short.unwrap().bytes()[..8] == burnt(rounds)
        };
        let first = host.wait();
        match first.end {
            End::Stopped => stopped += 1,
            _ => answered += u32::from(is_right(&first)),
        }
        assert!(first.end == End::Stopped || is_right(&first), "{named}: {first:?}");
        let second = host.wait();
        assert!(is_right(&second), "{other}: {second:?}");
    }
    println!("{stopped} stopped, {answered} answered");
    assert!(stopped > 0 && answered > 0);
}

/// Signals that stop functions while a tick is handled take no tick from those that come after.
#[test]
fn row_54_signals_at_ticks_leave_the_timer_as_it_was() {
    let mut workers = workers(1, Exactness::Exact);
    workers.preemption = Preemption::Timer(Duration::from_micros(10));
    let mut host = Host::of(&workers);
    let endless =
        host.put("pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }");
    host.quanta = 1;
    let mut random = Random::of_this_run();
    for _ in 0..trials(50_000) {
        let number = host.submit(&endless, b"");
        pause(random.below(2000));
        host.link.stop(number, Duration::ZERO);
        assert_eq!(host.wait().end, End::Stopped);
        // This one is stopped by nobody else.
        host.submit(&endless, b"");
        assert_eq!(host.wait().end, End::Stopped);
    }
}

/// A function that never ends is stopped wherever it is, and leaves nothing.
#[test]
fn row_47_functions_that_do_not_end_are_stopped_and_leave_nothing() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let endless = host.put(
        "use alloc::collections::BTreeMap;\n\
         pub fn handle(r: Request<'_>) -> Reply {\n\
         match r.text()? {\n\
         \"loop\" => loop { core::hint::black_box(0); },\n\
         \"allocate\" => loop { core::hint::black_box(vec![1_u8; 1000]); },\n\
         \"format\" => loop { core::hint::black_box(format!(\"{:?} {}\", (1.5, \"a\"), 7)); },\n\
         \"sort\" => loop { let mut all: Vec<u64> = (0..200).rev().collect(); all.sort(); },\n\
         \"map\" => loop { let _m: BTreeMap<u64, String> = (0..50).map(|n| (n, n.to_string())).collect(); },\n\
         \"random\" => loop { core::hint::black_box(partywall_fn::random::number()); },\n\
         \"log\" => loop { log!(\"again\"); },\n\
         \"time\" => loop { core::hint::black_box(partywall_fn::clock::monotonic()); },\n\
         \"body\" => loop { for byte in r.body() { core::hint::black_box(byte); } },\n\
         \"iterator\" => Ok(vec![(0_u64..).filter(|n| core::hint::black_box(*n) == u64::MAX).count() as u8]),\n\
         \"compare\" => { let mut all = vec![2, 1]; all.sort_by(|_, _| loop { core::hint::black_box(0); }); Ok(all) }\n\
         \"shown\" => Ok(format!(\"{}\", Shown).into_bytes()),\n\
         \"logged\" => { log!(\"{}\", Shown); Ok(vec![]) }\n\
         \"panicked\" => panic!(\"{}\", Shown),\n\
         _ => { struct Loops; impl Drop for Loops { fn drop(&mut self) { loop { core::hint::black_box(0); } } }\n\
         let _l = Loops; Ok(vec![]) } } }\n\
         struct Shown; impl core::fmt::Display for Shown {\n\
         fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {\n\
         f.write_str(\"a\")?; loop { core::hint::black_box(0); } } }",
    );
    let mut random = Random::of_this_run();
    let ways = [
        "loop", "allocate", "format", "sort", "map", "random", "log", "time", "body", "iterator",
        "compare", "shown", "logged", "panicked", "drop",
    ];
    for trial in 0..trials(100_000) {
        let way = ways[trial % ways.len()];
        let number = host.submit(&endless, way.as_bytes());
        while host.link.peek(number).is_none() {
            pause(random.below(2000));
            host.link.stop(number, Duration::ZERO);
            if trial % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(host.wait().end, End::Stopped, "{way}");
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"), "after {way}");
    }
    assert_eq!(host.cell_bytes_in_use(), 0);
}

/// Calls the runtime as often as the request says, in one of five ways, and looks at what comes of it: log
/// lines, the time, random bytes, a service, and a service whose answer it holds for ever.
const CALLS: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
     let (way, rounds) = (r.body()[0], r.body()[1]);\n\
     let mut before = partywall_fn::clock::monotonic();\n\
     for n in 0..rounds { match way {\n\
     0 => log!(\"line {n}\"),\n\
     1 => { let now = partywall_fn::clock::monotonic();\n\
     if now < before { return Err(Error::invalid(\"the time goes back\")) } before = now; }\n\
     2 => { let mut bytes = [0_u8; 64]; partywall_fn::random::fill(&mut bytes);\n\
     if bytes.chunks(16).any(|some| some == [0; 16]) { return Err(Error::invalid(\"too few bytes\")) } }\n\
     _ => { let answer = partywall_fn::service::call(\"a\", \"/b/c\", &[n])?;\n\
     if answer != [!n] { return Err(Error::invalid(\"another answer\")) }\n\
     while way == 4 && n + 1 == rounds { core::hint::black_box(&answer); } }\n\
     } } Ok(vec![way, rounds]) }";

/// Signals at calls of the runtime, at what a function does before it waits, while it waits, and as it goes
/// on: only what is named is stopped, and all else is as if there were none.
#[test]
fn row_54_signals_at_calls_of_the_runtime_are_not_harmful() {
    let mut host = Host::new();
    let (calls, upper) = (host.put(CALLS), host.put(UPPER));
    let mut random = Random::of_this_run();
    let (mut answered, mut stopped) = ([0; 5], [0; 5]);
    for trial in 0..trials(100_000) {
        let way = trial % 5;
        let rounds = 1 + random.below(if way < 3 { 100 } else { 4 }) as u8;
        host.cell = 1;
        let mut number = host.submit(&calls, &[way as u8, rounds]);
        let (mut asked, mut is_named) = (0_u8, false);
        let done = loop {
            for _ in 0..random.below(4) {
                pause(random.below(300));
                let names = random.below(6) == 0;
                is_named |= names;
                host.link.stop(if names { number } else { number.wrapping_sub(1) }, Duration::ZERO);
            }
            while way == 4 && asked == rounds && host.link.peek(number).is_none() {
                is_named = true;
                host.link.stop(number, Duration::ZERO);
                pause(2000);
            }
            let done = host.wait();
            if done.end != End::Calls {
                break done;
            }
            let said = host.link.read(OUT, (done.bytes + done.log + done.lost) as usize);
            assert_eq!(said, [&b"a/b/c"[..], &[asked]].concat());
            // Nobody runs whom it could stop.
            host.link.stop(number, Duration::ZERO);
            number = host.resume(1, 0, &[!asked]);
            (asked, is_named) = (asked + 1, false);
        };
        if done.end == End::Stopped {
            assert!(is_named, "{way} {rounds}: {number} was not named");
            stopped[way] += 1;
        } else {
            let (said, log) = host.said(&done);
            assert_eq!(
                (done.end, said.as_bytes()),
                (End::Reply, &[way as u8, rounds][..]),
                "{said}"
            );
            assert_eq!(asked, if way < 3 { 0 } else { rounds });
            let line = |n| format!("{}\0\0\0line {n}", char::from(if n < 10 { 6 } else { 7 }));
            let lines: String = (0..rounds).map(line).collect();
            assert_eq!(log, if way == 0 { lines } else { String::new() });
            answered[way] += 1;
        }
        host.link.clean(1).unwrap();
        host.cell = 0;
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"));
    }
    println!("{stopped:?} stopped, {answered:?} answered");
    assert!(
        stopped.iter().chain(&answered[..4]).all(|count| *count > 0),
        "{stopped:?} {answered:?}"
    );
    assert!(host.link.cell(1).into_iter().all(|byte| byte == 0), "something is left");
}

/// A signal that interrupts getrandom(2) cuts its bytes short; the function has all of them, or is given up.
#[test]
fn row_54_random_bytes_that_are_interrupted_are_all_there() {
    const BYTES: usize = 256 << 10;
    let mut host = Host::new();
    let fills = host.put(&format!(
        "pub fn handle(_: Request<'_>) -> Reply {{\n\
         let mut bytes = vec![0_u8; {BYTES}];\n\
         partywall_fn::random::fill(&mut bytes);\n\
         let short = bytes.chunks(16).filter(|some| **some == [0; 16]).count();\n\
         Ok((short as u64).to_le_bytes().to_vec()) }}"
    ));
    host.cell = 1;
    let mut random = Random::of_this_run();
    let (mut answered, mut stopped) = (0, 0);
    for _ in 0..trials(10_000) {
        let number = host.submit(&fills, b"");
        let (is_to_end, mut is_named) = (random.below(2) == 0, false);
        // As long as it runs: most of that time is the system call's.
        while host.link.peek(number).is_none() {
            pause(random.below(3000));
            let names = is_to_end && random.below(40) == 0;
            is_named |= names;
            host.link.stop(if names { number } else { number.wrapping_sub(1) }, Duration::ZERO);
        }
        let done = host.wait();
        match done.end {
            End::Stopped if is_named => stopped += 1,
            End::Reply => {
                assert_eq!(done.short.unwrap().words[0], 0, "blocks without random bytes");
                answered += 1;
            }
            other => panic!("{other:?}: {done:?}"),
        }
        host.link.clean(1).unwrap();
    }
    println!("{stopped} stopped, {answered} answered");
    assert!(stopped > 0 && answered > 0);
}

/// A signal that interrupts the sleep of a worker without work ends it for no longer than it takes to look,
/// and the next call is right.
#[test]
fn row_54_a_worker_whose_sleep_is_interrupted_sleeps_again() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let until_asleep = |host: &Host| {
        let begun = Instant::now();
        while stat(host.link.pid())[0] != "S" {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not sleep");
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    let mut random = Random::of_this_run();
    for _ in 0..trials(10_000) {
        until_asleep(&host);
        for _ in 0..1 + random.below(3) {
            host.link.stop(random.draw() as u32, Duration::ZERO);
            pause(random.below(1000));
        }
        if random.below(2) == 0 {
            until_asleep(&host);
        }
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"));
    }
}
