//! Functions that run in a worker.

mod bound;
mod busy;
mod corpus;
mod dispatch;
mod host;
mod layers;
mod lies;
mod limits;
mod many;
mod residue;
mod rig;
mod share;
mod signals;
mod threaded;
mod upkeep;

use std::time::Duration;

use host::{Host, OUT, UPPER};
use partywall_abi::function::End;
use partywall_functions::clock::Exactness;

#[test]
fn a_function_answers() {
    let mut host = Host::new();
    let loaded = host.put(UPPER);
    for request in ["hello", "a somewhat longer request, which does not fit", ""] {
        let done = host.call(&loaded, request.as_bytes());
        assert_eq!(done.end, End::Reply, "{done:?}");
        assert_eq!(host.said(&done).0, request.to_uppercase());
    }
    let done = host.call(&loaded, b"\xff");
    assert_eq!((done.end, done.code), (End::Error, 3), "{done:?}");
    assert_eq!(host.said(&done).0, "the request is no UTF-8 from byte 0 on");
}

/// What a function does wrong is an error, and the worker goes on.
#[test]
fn row_49_functions_that_fail_are_contained() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let bad = host.put(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         match r.text()? {\n\
         \"panic\" => panic!(\"on purpose, {}\", 7),\n\
         \"index\" => Ok(vec![r.body()[r.body().len()]]),\n\
         \"loop\" => loop { core::hint::black_box(0); },\n\
         \"drop\" => { let _l = Loops; Ok(vec![]) }\n\
         \"deep\" => Ok(deep(1).to_string().into_bytes()),\n\
         \"header\" => Ok(vec![big()]),\n\
         \"many\" => { let mut all = Vec::new(); loop { all.push(Box::new([1_u64; 100])); } }\n\
         \"huge\" => Ok(Vec::with_capacity(1 << 40)),\n\
         \"leak\" => { core::mem::forget(vec![1_u8; 100_000]); Ok(vec![]) }\n\
         \"divide\" => Ok(vec![(hidden(7) / hidden(0)) as u8]),\n\
         \"least\" => Ok(vec![(hidden(i32::MIN) / hidden(-1)) as u8]),\n\
         \"never\" => unreachable!(\"it was {}\", hidden(3)),\n\
         \"bomb\" => { let _b = Bomb; Ok(vec![]) }\n\
         \"bombs\" => { let (_a, _b) = (Bomb, Bomb); panic!(\"before\") }\n\
         \"borrow\" => { let c = core::cell::RefCell::new(1); let _a = c.borrow_mut(); Ok(vec![*c.borrow()]) }\n\
         _ => Ok(vec![]) } }\n\
         fn hidden(n: i32) -> i32 { core::hint::black_box(n) }\n\
         struct Bomb; impl Drop for Bomb { fn drop(&mut self) { panic!(\"dropped\") } }\n\
         #[inline(never)] fn big() -> u8 { core::hint::black_box([1_u8; 1 << 20])[77] }\n\
         struct Loops; impl Drop for Loops { fn drop(&mut self) { loop { core::hint::black_box(0); } } }\n\
         #[inline(never)] fn deep(n: u64) -> u64 { let x = core::hint::black_box([n; 50]); deep(n + 1) + x[3] }",
    );
    let mut check = |what: &str, end: End, text: &str| {
        let number = host.submit(&bad, what.as_bytes());
        if end == End::Stopped {
            // Too early, it is not heard.
            while host.link.peek(number).is_none() {
                host.link.stop(number, Duration::ZERO);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let done = host.wait();
        let said = host.said(&done).0;
        assert_eq!(done.end, end, "{what}: {done:?} {said}");
        assert!(said.contains(text), "{what}: {said}");
        let done = host.call(&upper, b"next");
        assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "NEXT"), "after {what}");
    };
    for _ in 0..100 {
        check("panic", End::Panic, "on purpose, 7 at main.rs:3");
        check(
            "index",
            End::Panic,
            "index out of bounds: the len is 5 but the index is 5 at main.rs:4",
        );
        check("deep", End::Stack, "");
        check("header", End::Stack, "");
        check("many", End::Memory, "memory allocation of");
        check("huge", End::Memory, "memory allocation of");
        check("leak", End::Reply, "");
        check("divide", End::Panic, "attempt to divide by zero at main.rs:12");
        check("least", End::Panic, "attempt to divide with overflow at main.rs:13");
        check(
            "never",
            End::Panic,
            "internal error: entered unreachable code: it was 3 at main.rs:14",
        );
        check("bomb", End::Panic, "dropped at main.rs:20");
        // Nothing is unwound: what would have panicked then is not dropped.
        check("bombs", End::Panic, "before at main.rs:16");
        check("borrow", End::Panic, "already mutably borrowed");
    }
    for _ in 0..20 {
        check("loop", End::Stopped, "");
        check("drop", End::Stopped, "");
    }
}

/// No state crosses from one call to the next.
#[test]
fn row_52_statics_are_as_the_function_finds_them() {
    let mut host = Host::new();
    let counter = host.put(
        "use core::sync::atomic::{AtomicU32, Ordering};\n\
         static COUNT: AtomicU32 = AtomicU32::new(5);\n\
         static ZERO: AtomicU32 = AtomicU32::new(0);\n\
         static NAMES: [(AtomicU32, &str); 2] = [(AtomicU32::new(1), \"a\"), (AtomicU32::new(2), \"b\")];\n\
         pub fn handle(_: Request<'_>) -> Reply {\n\
         let count = COUNT.fetch_add(1, Ordering::Relaxed) + ZERO.fetch_add(1, Ordering::Relaxed);\n\
         let name = NAMES[NAMES[0].0.fetch_add(1, Ordering::Relaxed) as usize % 2].1;\n\
         Ok(format!(\"{count} {name}\").into_bytes()) }",
    );
    assert!(counter.data.is_some());
    for _ in 0..3 {
        let done = host.call(&counter, b"");
        assert_eq!(host.said(&done).0, "5 b", "{done:?}");
    }
}

#[test]
fn log_lines_random_bytes_and_the_time_reach_a_function() {
    let mut host = Host::new();
    let loaded = host.put(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         log!(\"call {}\", r.id()); log!(\"second\");\n\
         let time = partywall_fn::clock::unix();\n\
         Ok(format!(\"{:016x} {time:?}\", partywall_fn::random::number()).into_bytes()) }",
    );
    let mut seen = Vec::new();
    for call in 1..=2 {
        let done = host.call(&loaded, b"");
        let (text, log) = host.said(&done);
        assert_eq!(log, format!("\u{6}\0\0\0call {call}\u{6}\0\0\0second"), "{done:?}");
        seen.push(text.split(' ').next().unwrap().to_owned());
    }
    assert_ne!(seen[0], seen[1]);
}

/// Functions see the time as exactly as they may, and have no other way to it.
#[test]
fn functions_see_the_time_as_exactly_as_they_may() {
    const TIMES: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
         let first = partywall_fn::clock::monotonic();\n\
         let mut spins = 0_u64;\n\
         while spins < 20_000_000 && partywall_fn::clock::monotonic() == first { spins += 1; }\n\
         let times = [first.as_nanos() as u64, partywall_fn::clock::unix().as_nanos() as u64, spins];\n\
         Ok(times.iter().flat_map(|t| t.to_le_bytes()).collect()) }";
    let unix = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for exactness in [Exactness::Exact, Exactness::Coarse(Duration::from_millis(1))] {
        let mut host = Host::with(exactness);
        let times = host.put(TIMES);
        let mut before = 0;
        for _ in 0..5 {
            host.clock.tick();
            let (early, done) = (unix(), host.call(&times, b""));
            let [boot, real, spins] = done.short.unwrap().words;
            let late = unix();
            let real = Duration::from_nanos(real);
            let slack = Duration::from_millis(2);
            assert!(early <= real + slack && real <= late + slack, "{early:?} {real:?} {late:?}");
            assert!(boot > before, "{boot} after {before}");
            before = boot;
            // The coarse one stands still while a function runs.
            assert_eq!(spins == 20_000_000, exactness != Exactness::Exact, "{spins}");
        }
    }
}

/// A function that calls a service waits with its stack, and others run meanwhile.
#[test]
fn a_function_waits_for_a_service_while_others_run() {
    let mut host = Host::new();
    let upper = host.put(UPPER);
    let asks = host.put(
        "pub fn handle(r: Request<'_>) -> Reply {\n\
         let mut all = Vec::new();\n\
         for n in 0..3 {\n\
         match partywall_fn::service::call(\"greeter\", \"/g.Greeter/Hello\", &[r.body(), &[b'0' + n]].concat()) {\n\
         Ok(answer) => all.extend(answer),\n\
         Err(why) => return Err(why) } }\n\
         Ok(all) }",
    );
    for cell in [1, 2] {
        host.cell = cell;
        host.submit(&asks, b"a");
        let done = host.wait();
        assert_eq!(done.end, End::Calls, "{done:?}");
        let said = host.link.read(OUT, (done.bytes + done.log + done.lost) as usize);
        assert_eq!(said, b"greeter/g.Greeter/Helloa0");
    }
    let answer = |host: &mut Host, cell: u16, text: &str, code: u32| {
        host.cell = 0;
        let done = host.call(&upper, b"others");
        assert_eq!(done.end, End::Reply);
        host.resume(cell, code, text.as_bytes());
        host.wait()
    };
    for n in 0..2 {
        for cell in [1, 2] {
            let done = answer(&mut host, cell, &format!("<{cell}{n}>"), 0);
            assert_eq!(done.end, End::Calls, "{done:?}");
        }
    }
    let done = answer(&mut host, 1, "<12>", 0);
    assert_eq!((done.end, host.said(&done).0.as_str()), (End::Reply, "<10><11><12>"));
    let done = answer(&mut host, 2, "no such greeter", 5);
    assert_eq!((done.end, done.code), (End::Error, 5));
    assert_eq!(host.said(&done).0, "no such greeter");
    // Nobody waits there any more.
    assert_eq!(answer(&mut host, 1, "", 0).end, End::Refused);
    host.link.clean(1).unwrap();
    host.cell = 1;
    host.submit(&asks, b"a");
    assert_eq!(host.wait().end, End::Calls);
    // Only what has a cell of its own may wait.
    host.cell = 0;
    host.submit(&asks, b"a");
    let done = host.wait();
    assert_eq!((done.end, done.code), (End::Fault, 11));
    assert_eq!(host.call(&upper, b"others").end, End::Reply);
}
