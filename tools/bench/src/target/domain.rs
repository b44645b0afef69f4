//! Targets of `domain`. All are about one core.

use super::{Bound, Target};
use crate::case::Placement::SameCore;
use crate::case::{BULK_SIZES, Case, ECHO_SIZES, Mode, RATES, RECORD_SIZES, Wait};
use crate::ratio::{Key, Metric, Quantity};

const SIZE: Option<u64> = Some(ECHO_SIZES[0]);

/// Nobody waits where the call runs on the caller's own thread.
fn wait(contender: &str) -> Option<Wait> {
    let inline = ["native-inline", "tonic-inline"].contains(&contender);
    let returns = inline || matches!(contender, "call" | "gate" | "gate-keys" | "memcpy");
    (!returns).then_some(Wait::Block)
}

fn key(contender: &'static str, mode: Mode) -> Key {
    Key { contender, case: Case::domain(mode, SIZE, SameCore, wait(contender)) }
}

fn paced(contender: &'static str, rate: u64) -> Key {
    Key { contender, case: Case::paced(rate, SIZE, SameCore, wait(contender)) }
}

/// How many times the baseline's mean one way a gate goes into.
fn one_way(under: &'static str, bound: Bound) -> Target {
    let over = key("uds-epoll", Mode::Loop);
    let text = format!("one way, mean: uds-epoll over {under} (32 B, same core); RPAL has 11.5");
    let quantity = Quantity::Ratio { over, under: key(under, Mode::Loop) };
    Target::new(text, quantity, Metric::OneWay, bound)
}

/// What stubs cost without the ring between them.
fn stubs(what: &str, over: &'static str, bound: Bound) -> Target {
    let text = format!("p50: {what} over ring-tonic (32 B, same core)");
    let (over, under) = (key(over, Mode::Latency), key("ring-tonic", Mode::Latency));
    Target::new(text, Quantity::Ratio { over, under }, Metric::P50, bound)
}

/// A call by what it is made of: the gate, and what a call needs without a link.
fn parts(contender: &'static str, gate: &'static str, bound: Bound) -> Target {
    let text = format!("p50: {contender} over {gate} plus native-inline (32 B, same core)");
    let of = |contender| key(contender, Mode::Latency);
    let quantity = Quantity::Parts { over: of(contender), parts: [of(gate), of("native-inline")] };
    Target::new(text, quantity, Metric::P50, bound)
}

/// CPU time of a call at `rate`, of both sides together: as it is, and less that of the pacing, which a
/// program that sleeps between calls pays whatever it calls.
fn cpu(contender: &'static str, rate: u64, bound: Bound) -> [Target; 2] {
    let (over, under) = (paced(contender, rate), paced("uds-epoll", rate));
    let target = |what: &str, quantity| {
        let text = format!("CPU: {contender} over uds-epoll{what} ({})", under.case);
        Target::new(text, quantity, Metric::Cpu, bound)
    };
    [
        target("", Quantity::Ratio { over, under }),
        target(", both less call", Quantity::Net { over, under, less: paced("call", rate) }),
    ]
}

/// How many copies a byte of a request of these sizes costs, both sides together.
fn copies(contender: &'static str, sizes: &'static [u64], bound: Bound) -> Target {
    let of = if *sizes == RECORD_SIZES { "16 to 56 KiB" } else { "64 KiB to 64 MiB" };
    let text = format!("copies of a request's bytes: {contender} ({of})");
    let (over, under) = (key(contender, Mode::Bulk), key("memcpy", Mode::Bulk));
    Target::new(text, Quantity::Slope { over, under, sizes }, Metric::P50, bound)
}

/// What the project promises for calls between domains, as far as `sizes` were run.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let mut found = vec![
        one_way("gate", Bound::AtLeast(150.0)),
        one_way("gate-keys", Bound::Stated),
        stubs("domain-tonic", "domain-tonic", Bound::AtMost(1.0 / 3.0)),
        stubs("domain-tonic-keys", "domain-tonic-keys", Bound::Stated),
        stubs("domain-native", "domain-native", Bound::AtMost(1.0 / 8.0)),
        parts("domain-native", "gate", Bound::AtMost(1.6)),
        parts("domain-native-keys", "gate-keys", Bound::AtMost(1.6)),
        stubs("tonic-inline, the least that stubs cost,", "tonic-inline", Bound::Stated),
    ];
    for rate in RATES {
        found.extend(cpu("gate", rate, Bound::AtMost(0.2)));
        found.extend(cpu("domain-tonic", rate, Bound::Stated));
    }
    let stubs = ["domain-native", "ring-native", "domain-tonic", "ring-tonic"];
    for of in [&RECORD_SIZES[..], &BULK_SIZES].into_iter().filter(|of| has_all(sizes, of)) {
        found.extend(stubs.map(|name| copies(name, of, Bound::Stated)));
    }
    if has_all(sizes, &BULK_SIZES) {
        found.push(copies("gate", &BULK_SIZES, Bound::AtMost(1.15)));
        found.push(copies("gate-keys", &BULK_SIZES, Bound::Stated));
    }
    found
}

fn has_all(sizes: &[u64], of: &[u64]) -> bool {
    of.iter().all(|size| sizes.contains(size))
}
