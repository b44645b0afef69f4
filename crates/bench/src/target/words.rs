//! Targets of `words`, one per size.

use super::{Bound, Target};
use crate::case::{Case, Clock, Op, Wait};
use crate::ratio::{Key, Metric, Quantity};

fn key(contender: &'static str, clock: Clock, words: u64) -> Key {
    let wait = match contender {
        floor if floor.starts_with("floor") => None,
        ours if ours.starts_with("partywall") => Some(Wait::Spin),
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
    Target { text, quantity: Quantity::Ratio { over, under }, metric: Metric::P50, bound }
}

/// What the project promises at each of `sizes`.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let mut found = Vec::new();
    for &words in sizes {
        found.push(ratio("partywall-raw", "uds", Clock::B, words, Bound::AtMost(0.7)));
    }
    for &words in sizes.iter().filter(|words| **words >= 1_000_000) {
        found.push(ratio("partywall-raw", "floor", Clock::B, words, Bound::AtMost(1.15)));
        found.push(ratio("partywall-tonic", "floor", Clock::B, words, Bound::AtMost(2.0)));
    }
    for &words in sizes {
        let bound = if words >= 100_000 { Bound::Below(1.0) } else { Bound::AtMost(1.25) };
        found.push(ratio("partywall-raw", "uds", Clock::A, words, bound));
    }
    found
}
