//! Targets of `transfer`, for each size of a block; one client.

use super::{Bound, Target};
use crate::case::{BLOCK_SIZES, Case, Wait};
use crate::ratio::{Key, Metric, Quantity};

const MIB: u64 = 1 << 20;

fn key(contender: &'static str, bytes: u64) -> Key {
    let wait = (contender != "fill-floor").then_some(Wait::Block);
    Key { contender, case: Case::transfer(bytes, 1, wait) }
}

fn time(over: &'static str, under: &'static str, bytes: u64, bound: Bound) -> Target {
    let (over, under) = (key(over, bytes), key(under, bytes));
    let text = format!("p50: {} over {} ({})", over.contender, under.contender, over.case);
    Target::new(text, Quantity::Ratio { over, under }, Metric::P50, bound)
}

fn memory(contender: &'static str, bytes: u64, most: f64) -> Target {
    let of = key(contender, bytes);
    let text = format!("memory by the data: {contender} ({})", of.case);
    Target::new(text, Quantity::Value { of }, Metric::Pss, Bound::AtMost(most))
}

/// Everyone who is no floor and not Partywall's.
const OTHERS: &[(&str, Option<Wait>)] = &[
    ("tcp", Some(Wait::Block)),
    ("udp-reliable", Some(Wait::Block)),
    ("uds-default", Some(Wait::Block)),
    ("uds", Some(Wait::Block)),
    ("tonic-tcp", Some(Wait::Block)),
    ("tonic-uds", Some(Wait::Block)),
    ("iceoryx2", Some(Wait::Block)),
];

/// The same without iceoryx2, which has no larger blocks than [`LOAN_MAX`].
const OTHERS_BEYOND: &[(&str, Option<Wait>)] = OTHERS.split_at(OTHERS.len() - 1).0;

/// The largest block that iceoryx2 passes.
pub const LOAN_MAX: u64 = 64 * MIB;

fn cpu(contender: &'static str, bytes: u64) -> Target {
    let over = key(contender, bytes);
    let others = if bytes <= LOAN_MAX { OTHERS } else { OTHERS_BEYOND };
    let text = format!("CPU: {contender} over the least of the others' ({})", over.case);
    Target::new(text, Quantity::Least { over, others }, Metric::Cpu, Bound::Below(1.0))
}

/// Who lets the other side have its block: how many times what filling alone takes from 64 MiB, and how many
/// times the data both sides hold from 128 MiB.
const OURS: [(&str, f64, f64); 2] =
    [("partywall-lease", 1.05, 1.02), ("partywall-owned", 1.10, 2.02)];

/// Who seals its block.
const SEALED: &str = "partywall-sealed";

/// The size from which an iteration is so long that two hand-overs and two caches are little of it.
const LONG: u64 = 64 * MIB;

/// Where these hold, bare memory costs what filling it costs, and the floors of long blocks are floors.
pub fn floors() -> Vec<Target> {
    let long = BLOCK_SIZES.into_iter().filter(|bytes| *bytes >= LONG);
    long.map(|bytes| time("memfd-floor", "fill-floor", bytes, Bound::AtMost(1.3))).collect()
}

/// What the project promises at each of `sizes`.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let mut found = Vec::new();
    for &bytes in sizes {
        for (ours, fill, pss) in OURS {
            if bytes <= 64 * MIB {
                let most = if bytes < MIB { 1.3 } else { 1.10 };
                found.push(time(ours, "memfd-floor", bytes, Bound::AtMost(most)));
            }
            if bytes >= 64 * MIB {
                found.push(time(ours, "fill-floor", bytes, Bound::AtMost(fill)));
                found.push(time(ours, "tcp", bytes, Bound::AtMost(0.15)));
            }
            if bytes >= 128 * MIB {
                found.push(memory(ours, bytes, pss));
            }
            found.push(cpu(ours, bytes));
        }
        found.push(time(SEALED, "seal-floor", bytes, Bound::AtMost(1.3)));
        found.push(cpu(SEALED, bytes));
    }
    for &bytes in sizes {
        if bytes < LONG {
            found.push(time("memfd-floor", "fill-floor", bytes, Bound::Stated));
        }
        found.push(time("memfd-floor", "tcp", bytes, Bound::Stated));
    }
    found
}
