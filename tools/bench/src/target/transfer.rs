//! Targets of `transfer`, for each size of a block; one client.

use super::{Bound, Target};
use crate::case::{BLOCK_SIZES, Case, Place, Wait};
use crate::ratio::{Key, Metric, Quantity};

const MIB: u64 = 1 << 20;

fn key(contender: &'static str, bytes: u64) -> Key {
    let wait = (contender != "fill-floor").then_some(Wait::Block);
    Key { contender, case: Case::transfer(bytes, 1, wait) }
}

/// The same with the client in a container. What has no client is the same everywhere.
fn contained(contender: &'static str, bytes: u64) -> Key {
    let key = key(contender, bytes);
    let place = if key.case.wait.is_some() { Place::ClientInContainer } else { Place::Host };
    Key { case: key.case.at(place), ..key }
}

fn time(over: &'static str, under: &'static str, bytes: u64, bound: Bound) -> Target {
    time_of(key(over, bytes), key(under, bytes), bound)
}

fn time_of(over: Key, under: Key, bound: Bound) -> Target {
    let text = format!("p50: {} over {} ({})", over.contender, under.contender, over.case);
    Target::new(text, Quantity::Ratio { over, under }, Metric::P50, bound)
}

fn memory(of: Key, most: f64) -> Target {
    let contender = of.contender;
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

/// Who carries bytes into a container, and what ours may take of its time from [`LONG`] on.
const CARRIERS: [(&str, Bound); 4] = [
    ("tcp", Bound::AtMost(0.15)),
    ("uds", Bound::Below(1.0)),
    ("tonic-tcp", Bound::Below(1.0)),
    ("tonic-uds", Bound::Below(1.0)),
];

/// What is promised of one of ours whose client is in a container: what is promised on the host, and to be
/// faster than who carries bytes there.
fn in_container(ours: &'static str, bytes: u64, fill: f64, pss: f64) -> Vec<Target> {
    let over = contained(ours, bytes);
    let by = |under, bound| time_of(over, contained(under, bytes), bound);
    let mut found = Vec::new();
    if bytes <= LONG {
        let most = if bytes < MIB { 1.3 } else { 1.10 };
        found.push(by("memfd-floor", Bound::AtMost(most)));
    }
    if bytes >= LONG {
        found.push(by("fill-floor", Bound::AtMost(fill)));
        found.extend(CARRIERS.map(|(carrier, bound)| by(carrier, bound)));
    }
    if bytes >= 2 * LONG {
        found.push(memory(over, pss));
    }
    found
}

/// Where these hold, bare memory costs what filling it costs, and the floors of long blocks are floors.
pub fn floors() -> Vec<Target> {
    let long = BLOCK_SIZES.into_iter().filter(|bytes| *bytes >= LONG);
    let floor = |bytes| {
        let fill = key("fill-floor", bytes);
        let memfd = [key("memfd-floor", bytes), contained("memfd-floor", bytes)];
        memfd.map(|memfd| time_of(memfd, fill, Bound::AtMost(1.3)))
    };
    long.flat_map(floor).collect()
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
                found.push(memory(key(ours, bytes), pss));
            }
            found.push(cpu(ours, bytes));
        }
        found.push(time(SEALED, "seal-floor", bytes, Bound::AtMost(1.3)));
        found.push(cpu(SEALED, bytes));
    }
    for &bytes in sizes {
        for (ours, fill, pss) in OURS {
            found.extend(in_container(ours, bytes, fill, pss));
        }
    }
    for &bytes in sizes {
        if bytes < LONG {
            found.push(time("memfd-floor", "fill-floor", bytes, Bound::Stated));
        }
        found.push(time("memfd-floor", "tcp", bytes, Bound::Stated));
    }
    found
}
