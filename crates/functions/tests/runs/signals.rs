//! Functions that are stopped, at every instruction that there is.

use std::time::Duration;

use partywall_abi::function::{Completion, End};
use partywall_testkit::{Random, trials};

use super::host::{Host, UPPER};

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
    for _ in 0..trials(100_000) {
        // Some are shorter than a signal takes, some longer.
        let rounds = random.below(40_000) as u64;
        let text = rounds.to_string();
        let named = host.submit(&burns, text.as_bytes());
        let other = host.submit(&burns, text.as_bytes());
        for _ in 0..random.below(3) {
            pause(random.below(600));
            host.link.stop(named);
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
         _ => { struct Loops; impl Drop for Loops { fn drop(&mut self) { loop { core::hint::black_box(0); } } }\n\
         let _l = Loops; Ok(vec![]) } } }",
    );
    let mut random = Random::of_this_run();
    let ways = ["loop", "allocate", "format", "sort", "map", "random", "log", "drop"];
    for trial in 0..trials(100_000) {
        let way = ways[trial % ways.len()];
        let number = host.submit(&endless, way.as_bytes());
        while host.link.peek(number).is_none() {
            pause(random.below(2000));
            host.link.stop(number);
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
