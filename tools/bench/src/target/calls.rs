//! Targets and validity floors of `calls`. Every one is about 32 B.

use super::{Bound, Target};
use crate::case::Placement::{SameCore, TwoCores};
use crate::case::Wait::{Block, Spin};
use crate::case::{Case, Mode, Placement, Wait};
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
    let less =
        Key { contender: "tonic-inline", case: Case::call(Mode::Latency, SIZE, SameCore, None) };
    let under = bare("asyncfd-floor", SameCore, Block);
    let excess = Target::new(
        "p50: partywall-tonic minus tonic-inline, over asyncfd-floor (32 B, same core)".into(),
        Quantity::Excess { over, less, under },
        Metric::P50,
        Bound::AtMost(1.4),
    );
    vec![
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
    ]
}
