//! Targets and validity floors of `calls`. All are about 32 B, and who is ahead about 1 KiB as well.

use super::{Bound, Target};
use crate::case::Placement::{SameCore, TwoCores};
use crate::case::Wait::{Block, Spin};
use crate::case::{Case, Mode, Place, Placement, Wait};
use crate::ratio::{Key, Metric, Quantity};

const SIZE: Option<u64> = Some(32);

fn latency(contender: &'static str, placement: Placement, wait: Wait) -> Key {
    Key { contender, case: Case::call(Mode::Latency, SIZE, placement, Some(wait)) }
}

fn pipelined(contender: &'static str, placement: Placement, wait: Wait) -> Key {
    Key { contender, case: Case::call(Mode::Pipelined, SIZE, placement, Some(wait)) }
}

/// A floor that carries no payload.
fn bare(contender: &'static str, placement: Placement, wait: Wait) -> Key {
    Key { contender, case: Case::call(Mode::Latency, None, placement, Some(wait)) }
}

/// Code in one thread, without a link.
fn inline(contender: &'static str) -> Key {
    Key { contender, case: Case::call(Mode::Latency, SIZE, SameCore, None) }
}

fn ratio(over: Key, under: Key, bound: Bound) -> Target {
    let (metric, what) = match over.case.mode {
        Some(Mode::Pipelined) => (Metric::PerSecond, "calls per second"),
        _ => (Metric::P50, "p50"),
    };
    let text = format!(
        "{what}: {} ({}) over {} ({})",
        over.contender, over.case, under.contender, under.case
    );
    Target::new(text, Quantity::Ratio { over, under }, metric, bound)
}

/// A call by what it is made of: the bare link, and what a call needs without one.
fn parts(contender: &'static str, placement: Placement, wait: Wait, bound: Bound) -> Target {
    let over = latency(contender, placement, wait);
    let parts = [latency("partywall-raw", placement, wait), inline("native-inline")];
    let text = format!("p50: {contender} over partywall-raw plus native-inline ({})", over.case);
    Target::new(text, Quantity::Parts { over, parts }, Metric::P50, bound)
}

/// Who calls the native way, and how many times its parts' time that may take on two near cores.
const NATIVE: [(&str, f64); 2] = [("partywall-native", 1.7), ("partywall-native-blocking", 1.4)];

/// Who has to be behind.
const OPPONENTS: [&str; 4] = ["tonic-uds", "iceoryx2", "rapace", "xrpc"];

/// Calls of two lengths, one at a time and pipelined, where both wait alike.
fn ahead(opponent: &'static str, placement: Placement, wait: Wait) -> Vec<Target> {
    let of_size = |size| {
        let in_mode = |mode, bound| {
            let case = Case::call(mode, Some(size), placement, Some(wait));
            let key = |contender| Key { contender, case };
            ratio(key("partywall-native"), key(opponent), bound)
        };
        [in_mode(Mode::Latency, Bound::Below(1.0)), in_mode(Mode::Pipelined, Bound::AtLeast(1.0))]
    };
    [32, 1024].map(of_size).concat()
}

/// A call between two containers by the same between two processes of the host.
fn contained(contender: &'static str, placement: Placement, wait: Wait) -> Target {
    let under = latency(contender, placement, wait);
    let over = Key { case: under.case.at(Place::TwoContainers), ..under };
    ratio(over, under, Bound::AtMost(1.05))
}

/// The same by a call over the engine's bridge.
fn over_bridge(contender: &'static str, placement: Placement, wait: Wait) -> Target {
    let between = |contender, wait| {
        let key = latency(contender, placement, wait);
        Key { case: key.case.at(Place::TwoContainers), ..key }
    };
    ratio(between(contender, wait), between("tonic-tcp", Block), Bound::Stated)
}

/// What the ring floor may take beyond the bare line where the cores are near, in nanoseconds: as much
/// as its ratio allows where they are far and a line takes 0.4 us there and back. Its own code takes
/// the same time in both places.
const NEAR_EXCESS_NS: f64 = 60.0;

/// Where these hold, the floors are floors, and what is compared with them can be judged.
pub fn floors() -> Vec<Target> {
    let (over, under) = (latency("ring-floor", TwoCores, Spin), bare("line-probe", TwoCores, Spin));
    let difference = Target::new(
        format!(
            "p50: {} ({}) less {} ({})",
            over.contender, over.case, under.contender, under.case
        ),
        Quantity::Difference { over, under },
        Metric::P50,
        Bound::AtMost(NEAR_EXCESS_NS),
    );
    vec![
        ratio(over, under, Bound::AtMost(1.15)).only(false),
        difference.only(true),
        ratio(
            latency("ring-floor", SameCore, Block),
            bare("handoff-floor", SameCore, Block),
            Bound::AtMost(1.1),
        ),
    ]
}

/// What the project promises.
pub fn targets() -> Vec<Target> {
    let sleeping = |name| latency(name, SameCore, Block);
    let spinning = |name| latency(name, TwoCores, Spin);
    let over = sleeping("partywall-tonic");
    let less = inline("tonic-inline");
    let under = bare("asyncfd-floor", SameCore, Block);
    let excess = Target::new(
        "p50: partywall-tonic minus tonic-inline, over asyncfd-floor (32 B, same core)".into(),
        Quantity::Excess { over, less, under },
        Metric::P50,
        Bound::AtMost(1.4),
    );
    let mut found = vec![
        ratio(sleeping("partywall-tonic"), sleeping("tonic-uds"), Bound::AtMost(1.0 / 4.0)),
        ratio(sleeping("partywall-blocking"), sleeping("tonic-uds"), Bound::AtMost(1.0 / 6.0)),
        ratio(
            spinning("partywall-tonic"),
            latency("tonic-uds", TwoCores, Block),
            Bound::AtMost(1.0 / 15.0),
        ),
        ratio(
            spinning("partywall-blocking"),
            latency("tonic-uds", TwoCores, Block),
            Bound::AtMost(1.0 / 15.0),
        ),
        ratio(
            pipelined("partywall-tonic", SameCore, Block),
            pipelined("tonic-uds", SameCore, Block),
            Bound::AtLeast(5.0),
        ),
        ratio(
            pipelined("partywall-tonic", TwoCores, Spin),
            pipelined("tonic-uds", TwoCores, Block),
            Bound::AtLeast(10.0),
        ),
        excess,
        ratio(spinning("partywall-raw"), spinning("ring-floor"), Bound::AtMost(1.3)),
        ratio(sleeping("partywall-raw"), sleeping("ring-floor"), Bound::AtMost(1.3)),
        ratio(spinning("partywall-raw"), spinning("iceoryx2"), Bound::AtMost(0.15)),
        ratio(sleeping("partywall-raw"), sleeping("iceoryx2"), Bound::AtMost(0.40)),
        ratio(inline("native-inline"), inline("tonic-inline"), Bound::AtMost(1.0 / 3.0)),
    ];
    for (contender, most) in NATIVE {
        found.push(parts(contender, TwoCores, Spin, Bound::AtMost(most)).only(true));
        let under = latency("tonic-uds", TwoCores, Block);
        found.push(ratio(spinning(contender), under, Bound::Stated));
    }
    found.extend([
        parts("partywall-native", SameCore, Block, Bound::AtMost(1.3)),
        ratio(
            pipelined("partywall-native", SameCore, Block),
            pipelined("tonic-uds", SameCore, Block),
            Bound::AtLeast(12.0),
        ),
        ratio(
            pipelined("partywall-native", TwoCores, Spin),
            pipelined("tonic-uds", TwoCores, Block),
            Bound::AtLeast(20.0),
        ),
    ]);
    found.extend(OPPONENTS.into_iter().flat_map(|opponent| ahead(opponent, SameCore, Block)));
    for contender in ["partywall-native", "partywall-tonic", "partywall-raw"] {
        for (placement, wait) in [(SameCore, Block), (TwoCores, Spin)] {
            found.push(contained(contender, placement, wait));
            found.push(over_bridge(contender, placement, wait));
        }
    }
    // The others have no sides that spin.
    found.extend(ahead("iceoryx2", TwoCores, Spin));
    found
}
