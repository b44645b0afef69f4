//! Targets of `words`, one per size.

use super::{Bound, Target};
use crate::case::{Case, Clock, Op, Place, Wait};
use crate::ratio::{Key, Metric, Quantity};

fn key(contender: &'static str, clock: Clock, words: u64) -> Key {
    let wait = match contender {
        "domain" | "domain-keys" => None,
        floor if floor.starts_with("floor") => None,
        ours if ours.starts_with("partywall") => Some(Wait::Spin),
        "domain-tonic" | "domain-tonic-keys" => Some(Wait::Spin),
        _ => Some(Wait::Block),
    };
    Key { contender, case: Case::words(clock, Op::Total, words, wait) }
}

fn ratio(
    over: &'static str,
    under: &'static str,
    clock: Clock,
    words: u64,
    bound: Bound,
) -> Target {
    let (over, under) = (key(over, clock, words), key(under, clock, words));
    let text = format!("{} over {} ({})", over.contender, under.contender, under.case);
    Target::new(text, Quantity::Ratio { over, under }, Metric::P50, bound)
}

/// The same between two containers.
fn contained(target: Target) -> Target {
    let Quantity::Ratio { over, under } = target.quantity else { return target };
    let [over, under] =
        [over, under].map(|key| Key { case: key.case.at(Place::TwoContainers), ..key });
    let text = format!("{} over {} ({})", over.contender, under.contender, under.case);
    Target { text, quantity: Quantity::Ratio { over, under }, ..target }
}

/// Everyone who has a service in another process.
const OTHERS: &[(&str, Option<Wait>)] = &[
    ("pipe", Some(Wait::Block)),
    ("uds", Some(Wait::Block)),
    ("shm", Some(Wait::Block)),
    ("tonic-uds", Some(Wait::Block)),
    ("partywall-raw", Some(Wait::Spin)),
    ("partywall-tonic", Some(Wait::Spin)),
];

/// The bare link, and the stubs, which are what programs use.
const OURS: [&str; 2] = ["partywall-raw", "partywall-tonic"];

/// What the project promises at each of `sizes`.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let long = || sizes.iter().copied().filter(|words| *words >= 1_000_000);
    let mut found = Vec::new();
    for &words in sizes {
        found.extend(OURS.map(|ours| ratio(ours, "uds", Clock::B, words, Bound::AtMost(0.7))));
    }
    for words in long() {
        found.push(ratio("partywall-raw", "floor", Clock::B, words, Bound::AtMost(1.15)));
        found.push(ratio("partywall-tonic", "floor", Clock::B, words, Bound::AtMost(2.0)));
    }
    // With parcels, by one thread that reads as the floor does.
    for (words, raw, native) in [(1_000_000, 1.08, 1.25), (10_000_000, 0.9, 1.1)] {
        if sizes.contains(&words) {
            found.push(ratio("partywall-raw", "floor", Clock::B, words, Bound::AtMost(raw)));
            found.push(ratio("partywall-native", "floor", Clock::B, words, Bound::AtMost(native)));
            found.push(ratio("partywall-attached", "floor", Clock::B, words, Bound::Stated));
        }
    }
    for &words in sizes.iter().filter(|words| **words >= 100_000) {
        found.push(ratio("partywall-native", "uds", Clock::B, words, Bound::Below(1.0)));
    }
    for &words in sizes {
        let bound = if words >= 100_000 { Bound::Below(1.0) } else { Bound::AtMost(1.25) };
        found.extend(OURS.map(|ours| ratio(ours, "uds", Clock::A, words, bound)));
    }
    // What is promised beside a Unix socket is promised there as well.
    let beside = |target: &&Target| matches!(target.quantity, Quantity::Ratio { under, .. } if under.contender == "uds");
    found.extend(found.clone().iter().filter(beside).cloned().map(contained));
    for &words in sizes {
        let clocks = [Clock::A, Clock::B];
        let stated = |clock| ratio("partywall-tonic", "tonic-uds", clock, words, Bound::Stated);
        found.extend(clocks.map(stated));
    }
    for &words in sizes {
        let over = key("domain", Clock::B, words);
        let text = format!("domain over the fastest service in a process ({})", over.case);
        let quantity = Quantity::Least { over, others: OTHERS };
        found.push(Target::new(text, quantity, Metric::P50, Bound::Below(1.0)));
    }
    for words in long() {
        found.push(ratio("domain", "floor-reuse", Clock::B, words, Bound::AtMost(1.05)));
        found.push(ratio("domain-keys", "floor-reuse", Clock::B, words, Bound::Stated));
    }
    found
}
