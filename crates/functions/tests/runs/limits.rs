//! Where the limits of a call are, to the byte: just within them it is answered, just beyond each has its
//! own end.

use std::time::Duration;

use partywall_functions::builder::Layer;
use partywall_functions::dispatcher::{Id, MESSAGE, Outcome, Preemption};
use partywall_functions::runtime::Finished;
use partywall_testkit::{Random, trials};

use super::host::{Host, UPPER, builder, signed_by};
use super::rig::{Rig, reply};

const NUMBER: &str =
    "let n: usize = r.text()?.parse().map_err(|_| Error::invalid(\"no number\"))?;";

/// A function whose request is the number `n`.
fn of_number(rig: &mut Rig, body: &str) -> Id {
    rig.register(&format!("pub fn handle(r: Request<'_>) -> Reply {{ {NUMBER} {body} }}"), |_| ())
}

fn outcome(rig: &mut Rig, id: Id, number: usize) -> Outcome {
    rig.outcome(id, number.to_string().as_bytes())
}

/// A heap has 16 MiB, with the request: its last byte is there, and one byte more is not, in one block and
/// in a million.
#[test]
fn row_48_a_heap_has_its_last_byte_and_none_behind_it() {
    const HEAP: usize = 16 << 20;
    let mut rig = Rig::new(1);
    for (bytes, expected) in [(HEAP, reply("")), (HEAP + 1, Outcome::Memory)] {
        let text = format!(
            "pub fn handle(_: Request<'_>) -> Reply {{\n\
             core::hint::black_box(vec![7_u8; {bytes}]); Ok(vec![]) }}"
        );
        let id = rig.register(&text, |_| ());
        assert_eq!(rig.outcome(id, b""), expected, "{bytes} bytes");
        // What was run with more memory has it from then on, and no more.
        assert_eq!(rig.outcome(id, b""), expected, "{bytes} bytes again");
    }
    let tiny =
        "for _ in 0..n { core::mem::forget(core::hint::black_box(Box::new(1_u8))); } Ok(vec![])";
    let tiny = of_number(&mut rig, tiny);
    // Each takes 16 bytes, and so does the request.
    let fits = HEAP / 16 - 1;
    assert_eq!(outcome(&mut rig, tiny, fits), reply(""));
    assert_eq!(outcome(&mut rig, tiny, fits + 1), Outcome::Memory);
    assert_eq!(outcome(&mut rig, tiny, fits), reply(""));
}

/// A stack has 256 KiB: the lowest byte is there, and the one below is not.
#[test]
fn row_48_a_stack_has_its_last_byte_and_none_below_it() {
    const STACK: usize = 256 << 10;
    let mut rig = Rig::new(1);
    let reads = format!(
        "pub fn handle(r: Request<'_>) -> Reply {{ {NUMBER}\n\
         use partywall_fn::cell::{{CELL_BYTES, STACK_TOP}};\n\
         let cell = core::ptr::from_ref(&n) as usize & !(CELL_BYTES - 1);\n\
         Ok(vec![unsafe {{ ((cell + STACK_TOP - n) as *const u8).read_volatile() }}]) }}"
    );
    let without = builder(&[Layer::Lexer, Layer::Lint]);
    let reads = rig.register(UPPER, |it| it.image = signed_by(&without, &reads).into());
    assert_eq!(outcome(&mut rig, reads, STACK), Outcome::Reply(vec![0]));
    assert_eq!(outcome(&mut rig, reads, STACK + 1), Outcome::Stack);
    assert_eq!(outcome(&mut rig, reads, STACK), Outcome::Reply(vec![0]));
    // As safe code has it: of the last 8 KiB the function needs some itself.
    for (bytes, expected) in [(STACK - (8 << 10), Outcome::Reply(vec![7])), (STACK, Outcome::Stack)]
    {
        let text = format!(
            "#[inline(never)] fn frame() -> u8 {{ let mut all = [7_u8; {bytes}];\n\
             core::hint::black_box(&mut all)[{bytes} / 2] }}\n\
             pub fn handle(_: Request<'_>) -> Reply {{ Ok(vec![frame()]) }}"
        );
        let id = rig.register(&text, |_| ());
        assert_eq!(rig.outcome(id, b""), expected, "{bytes} bytes");
    }
}

#[test]
fn requests_and_replies_have_8_mib_and_not_a_byte_more() {
    let mut rig = Rig::new(1);
    let replies = of_number(&mut rig, "Ok(vec![b'a'; n])");
    let whole = reply(&"a".repeat(MESSAGE));
    // Before the function has had room for that, and after.
    for _ in 0..2 {
        assert_eq!(outcome(&mut rig, replies, MESSAGE + 1), Outcome::Long(MESSAGE as u64 + 1));
        assert!(outcome(&mut rig, replies, MESSAGE) == whole);
    }
    let log = of_number(&mut rig, "log!(\"{n}\"); Ok(vec![b'a'; n])");
    assert!(outcome(&mut rig, log, MESSAGE) == whole, "beside a log");
    assert_eq!(outcome(&mut rig, log, MESSAGE + 1), Outcome::Long(MESSAGE as u64 + 1));

    let echoes = "pub fn handle(r: Request<'_>) -> Reply { Ok(r.body().to_vec()) }";
    for parameters in [0, 1, 1000] {
        let echoes = rig.register(echoes, |it| it.parameters = vec![0; parameters]);
        let most = vec![b'x'; MESSAGE - parameters];
        // Request and reply take all of the heap.
        let outcome = rig.outcome(echoes, &most);
        assert!(outcome == Outcome::Reply(most.clone()), "{parameters} bytes of parameters");
        let beyond = [&most[..], b"x"].concat();
        let refused = rig.dispatcher.call(echoes, beyond, 0, (0, None)).unwrap_err();
        assert_eq!(refused.outcome, Outcome::LongRequest(MESSAGE as u64 + 1));
    }
}

/// The lines of a call, as its caller has them.
fn lines(rig: &mut Rig, id: Id, request: &str) -> Vec<String> {
    rig.call(id, request.as_bytes());
    let done = rig.done();
    assert_eq!(done.outcome, reply(""));
    let (call, outcome, log, cpu) = (done.call, done.outcome, done.log, Duration::ZERO);
    let finished = Finished { call, outcome, log, cpu };
    finished.lines().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

/// A log that is full is cut at its last byte, and its last line says so.
#[test]
fn a_log_beyond_its_room_is_cut_and_says_so() {
    let mut rig = Rig::new(1);
    let writes = of_number(&mut rig, "for line in 0..n { log!(\"{line:0100}\"); } Ok(vec![])");
    let line = |n: usize| format!("{n:0100}");
    let full = |lines: &str| format!("(the log is full: {lines} had no room, or not all of it)");
    // A line takes 4 bytes more: there is room for 39, and for 36 bytes of the next one.
    let whole: Vec<_> = (0..39).map(line).collect();
    assert_eq!(lines(&mut rig, writes, "0"), Vec::<String>::new());
    assert_eq!(lines(&mut rig, writes, "39"), whole);
    for (count, lost) in [(40, "1 line"), (41, "2 lines"), (10_000, "9961 lines")] {
        let expected: Vec<_> = whole.iter().cloned().chain(["0".repeat(36), full(lost)]).collect();
        assert_eq!(lines(&mut rig, writes, &count.to_string()), expected, "{count}");
    }
    let one = of_number(&mut rig, "log!(\"{}\", \"x\".repeat(n)); Ok(vec![])");
    let most = "x".repeat(4092);
    assert_eq!(lines(&mut rig, one, "4092"), std::slice::from_ref(&most));
    assert_eq!(lines(&mut rig, one, "4093"), [most, full("1 line")]);
    assert_eq!(lines(&mut rig, one, "4091"), ["x".repeat(4091)], "and nothing is left of it");
}

/// The hundredth strike bans, whichever kinds they are, and a thousand good replies take exactly one back.
#[test]
fn a_hundred_strikes_ban_and_a_thousand_replies_forgive_one() {
    let mut rig = Rig::new(1);
    let picks = "pub fn handle(r: Request<'_>) -> Reply { match r.text()? {\n\
         \"loop\" => loop { core::hint::black_box(0); },\n\
         \"memory\" => Ok(Vec::with_capacity(1 << 40)),\n\
         \"stack\" => Ok(vec![deep(1) as u8]), \"panic\" => panic!(), _ => Ok(vec![]) } }\n\
         #[inline(never)] fn deep(n: u64) -> u64 { let x = core::hint::black_box([n; 50]); deep(n + 1) + x[3] }";
    let budget = Duration::from_millis(50);
    let picks = rig.register(picks, |it| (it.strikes, it.budget) = (100, budget));
    let strike = |rig: &mut Rig, number: usize| {
        let (what, expected) = match number % 20 {
            0 => ("loop", Outcome::Budget(budget)),
            1..10 => ("memory", Outcome::Memory),
            _ => ("stack", Outcome::Stack),
        };
        assert_eq!(rig.outcome(picks, what.as_bytes()), expected);
    };
    (0..99).for_each(|number| strike(&mut rig, number));
    assert_eq!(rig.dispatcher.strikes(picks), Some((false, 99)));
    for good in 1..=1000 {
        assert_eq!(rig.outcome(picks, b""), reply(""));
        // What is no good reply and no strike changes nothing.
        assert!(good > 3 || matches!(rig.outcome(picks, b"panic"), Outcome::Panic(_)));
        let left = if good < 1000 { 99 } else { 98 };
        assert_eq!(rig.dispatcher.strikes(picks), Some((false, left)), "after {good}");
    }
    strike(&mut rig, 0);
    assert_eq!(rig.dispatcher.strikes(picks), Some((false, 99)));
    strike(&mut rig, 1);
    assert_eq!(rig.dispatcher.strikes(picks), Some((true, 100)));
    let refused = rig.dispatcher.call(picks, Vec::new(), 0, (0, None)).unwrap_err();
    assert_eq!(refused.outcome, Outcome::Banned);
}

/// The fields of a process behind its name, from the third on (proc_pid_stat(5)).
pub(crate) fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect()
}

/// The CPU time that a process has had, in steps of 10 ms.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let stat = stat(pid);
    let ticks: u64 = stat[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// A function that does not end has at most twice its budget of the CPU, by the kernel's account of its
/// worker, whoever stops it.
#[test]
fn row_47_a_loop_has_at_most_twice_its_budget() {
    const ENDLESS: &str =
        "pub fn handle(_: Request<'_>) -> Reply { loop { core::hint::black_box(0); } }";
    const CALLS: u32 = 5;
    let budget = Duration::from_millis(200);
    for preemption in [Preemption::Dispatcher, Preemption::Timer(Duration::from_micros(100))] {
        let mut rig = Rig::with(1, |workers| workers.preemption = preemption);
        let endless = rig.register(ENDLESS, |it| it.budget = budget);
        let pid = rig.dispatcher.workers()[0].pid;
        let before = cpu_of(pid);
        for _ in 0..CALLS {
            assert_eq!(rig.outcome(endless, b""), Outcome::Budget(budget));
        }
        let had = cpu_of(pid) - before;
        println!("{preemption:?}: {had:?} of the CPU, {:?} of budgets", CALLS * budget);
        assert_eq!(rig.dispatcher.workers()[0].pid, pid);
        // And what the signals and one tick of the kernel's account take.
        let most = CALLS * (2 * budget + budget / 16) + Duration::from_millis(10);
        assert!(had <= most, "{preemption:?}: {had:?}");
    }
}

/// A call that takes about its budget is answered or stopped, whoever stops it, and the next one is right.
#[test]
fn row_47_at_the_end_of_a_budget_a_call_is_answered_or_stopped() {
    const ROUNDS: u64 = 100_000;
    let burns = "let mut sum = 7_u64;\n\
         for n in 0..n as u64 { sum = core::hint::black_box(sum.rotate_left(5) ^ n); }\n\
         Ok(sum.to_le_bytes().to_vec())";
    let burnt = |rounds: u64| {
        let sum = (0..rounds).fold(7_u64, |sum, n| sum.rotate_left(5) ^ n);
        Outcome::Reply(sum.to_le_bytes().to_vec())
    };
    let budget = Duration::from_micros(500);
    let mut random = Random::of_this_run();
    for preemption in [Preemption::Dispatcher, Preemption::Timer(Duration::from_micros(20))] {
        let mut rig = Rig::with(1, |workers| workers.preemption = preemption);
        let slow = of_number(&mut rig, burns);
        let burns = format!("pub fn handle(r: Request<'_>) -> Reply {{ {NUMBER} {burns} }}");
        let burns = rig.register(&burns, |it| (it.budget, it.strikes) = (budget, u32::MAX));
        let upper = rig.register(UPPER, |_| ());
        // The rounds of a budget, by the quickest of some calls.
        let took = (0..20).map(|_| {
            rig.call(slow, ROUNDS.to_string().as_bytes());
            let done = rig.done();
            assert_eq!(done.outcome, burnt(ROUNDS));
            done.cpu_ns
        });
        let rounds = (ROUNDS * budget.as_nanos() as u64 / took.min().unwrap()) as usize;
        let (mut answered, mut stopped) = (0, 0);
        for trial in 0..trials(5000) {
            // Two in ten are far from it.
            let rounds = match trial % 10 {
                0 => 0,
                1 => usize::MAX,
                _ => rounds / 2 + random.below(rounds),
            };
            match outcome(&mut rig, burns, rounds) {
                Outcome::Budget(of) if of == budget => stopped += 1,
                other if rounds != usize::MAX && other == burnt(rounds as u64) => answered += 1,
                other => panic!("{rounds} rounds: {other:?}"),
            }
            assert_eq!(rig.outcome(upper, b"next"), reply("NEXT"));
        }
        println!("{preemption:?}: {stopped} stopped, {answered} answered");
        assert!(stopped > 0 && answered > 0);
    }
}

/// Ticks that come as fast as calls find the worker before its function runs, and behind it, and change
/// nothing; nor do those that come faster than one is handled.
#[test]
fn row_54_ticks_as_fast_as_calls_give_up_functions_alone() {
    for [quantum, budget] in [[10, 10], [1, 100]].map(|it| it.map(Duration::from_micros)) {
        let mut rig = Rig::with(1, |workers| workers.preemption = Preemption::Timer(quantum));
        let upper = rig.register(UPPER, |it| (it.budget, it.strikes) = (budget, u32::MAX));
        let pid = rig.dispatcher.workers()[0].pid;
        let mut answered = 0;
        for _ in 0..trials(20_000) {
            match rig.outcome(upper, b"next") {
                Outcome::Budget(of) if of == budget => {}
                other => {
                    assert_eq!(other, reply("NEXT"));
                    answered += 1;
                }
            }
        }
        println!("{quantum:?}: {answered} answered");
        assert!(answered > 0);
        assert_eq!(rig.dispatcher.workers()[0].pid, pid, "the worker is another one");
    }
}

/// What each of many calls leaks is gone with it: the worker's memory does not grow.
#[test]
fn row_48_what_a_million_calls_leak_is_gone_with_them() {
    let mut host = Host::new();
    let leaks = host.put(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         let bytes = 1000 * usize::from(r.body()[0]);\n\
         core::mem::forget(core::hint::black_box(vec![1_u8; bytes]));\n\
         core::mem::forget(core::hint::black_box(Box::new(7_u64)));\n\
         Ok(vec![]) }",
    );
    let pages = |host: &Host| -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", host.link.pid())).unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    };
    let call = |host: &mut Host, kilobytes| {
        let done = host.call(&leaks, &[kilobytes]);
        assert_eq!((done.end, done.bytes), (partywall_abi::function::End::Reply, 0), "{done:?}");
    };
    // As much as there is in a light cell, once.
    call(&mut host, 250);
    let before = pages(&host);
    for number in 0..trials(1_000_000) {
        call(&mut host, (number % 251) as u8);
    }
    let after = pages(&host);
    assert!(after <= before + 64, "{before} pages before, {after} after");
    assert_eq!(host.cell_bytes_in_use(), 0);
}
