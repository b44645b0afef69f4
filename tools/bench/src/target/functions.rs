//! Targets of `functions`, for the number of functions that was run.

use super::{Bound, Target};
use crate::case::{Case, Mode};
use crate::functions::cell::{Cell, Measure, Order, Whose, Within};
use crate::functions::{BUDGET_US, LOADS, SPARSE, WINDOW, killed, neighbour};
use crate::ratio::{Key, Metric, Quantity};

const OURS: &str = "partywall-fn";
const ORDERS: [Order; 2] = [Order::RoundRobin, Order::Random];

/// What is compared, for people.
fn name(metric: Metric) -> &'static str {
    match metric {
        Metric::P99 => "p99",
        Metric::PerSecond => "calls per second",
        Metric::Memory => "memory",
        Metric::Kept => "honest work kept",
        _ => "p50",
    }
}

/// The number of functions, and what is promised of them.
struct Of(u64);

impl Of {
    fn key(&self, contender: &'static str, mode: Mode, cell: Cell) -> Key {
        Key { contender, case: Case::functions(mode, self.0, cell) }
    }

    /// `over` by `under` in the same cell.
    fn ratio(
        &self,
        (over, under): (&'static str, &'static str),
        (mode, cell): (Mode, Cell),
        metric: Metric,
        bound: Bound,
    ) -> Target {
        let [over, under] = [over, under].map(|contender| self.key(contender, mode, cell));
        let text = format!(
            "{}: {} over {} ({})",
            name(metric),
            over.contender,
            under.contender,
            over.case
        );
        Target::new(text, Quantity::Ratio { over, under }, metric, bound)
    }

    fn value(&self, cell: Cell, metric: Metric, bound: Bound) -> Target {
        let of = self.key(OURS, Mode::Warm, cell);
        Target::new(
            format!("{}: {OURS} ({})", name(metric), of.case),
            Quantity::Value { of },
            metric,
            bound,
        )
    }

    fn warm(&self) -> Vec<Target> {
        let mut found = Vec::new();
        for order in ORDERS {
            let one = (Mode::Warm, Cell::closed(order, 1));
            let many = (Mode::Warm, Cell::closed(order, WINDOW));
            let over = |under| (OURS, under);
            found.push(self.ratio(over("ring-floor"), one, Metric::P50, Bound::AtMost(3.0)));
            let worker = ("partywall-worker", "ring-floor");
            found.push(self.ratio(worker, one, Metric::P50, Bound::Stated));
            for (other, metric, least) in [
                ("process-fair", Metric::P50, 20.0),
                ("process-udp", Metric::P50, 30.0),
                ("process-udp", Metric::P99, 14.0),
            ] {
                found.push(self.ratio((other, OURS), one, metric, Bound::AtLeast(least)));
            }
            let rate = Metric::PerSecond;
            found.push(self.ratio(over("process-udp"), many, rate, Bound::AtLeast(18.6)));
            for wasm in ["wasmtime", "wasmtime-memory"] {
                found.push(self.ratio(over(wasm), one, Metric::P50, Bound::Below(1.0)));
            }
        }
        let many = Cell::closed(Order::RoundRobin, WINDOW);
        found.push(self.value(many, Metric::PerSecond, Bound::AtLeast(2e6)));
        for percent in [LOADS[0], SPARSE] {
            let cell = (Mode::Warm, Cell::poisson(percent, Whose::ProcessFair));
            let against = (OURS, "process-fair");
            found.push(self.ratio(against, cell, Metric::P50, Bound::AtMost(1.0)));
        }
        found
    }

    fn cold(&self) -> Vec<Target> {
        let mut found = Vec::new();
        for order in ORDERS {
            let once = (Mode::Cold, Cell::closed(order, 1));
            let over = |other| (other, OURS);
            found.push(self.ratio(over("process-fair"), once, Metric::P50, Bound::AtLeast(25.0)));
            let published = over("process-fork-exec");
            found.push(self.ratio(published, once, Metric::P50, Bound::AtLeast(75.0)));
            // The paper has 379.
            found.push(self.ratio(published, once, Metric::P99, Bound::Stated));
            found.push(self.ratio(over("process-zygote"), once, Metric::P50, Bound::Stated));
            for wasm in ["wasmtime", "wasmtime-memory"] {
                found.push(self.ratio((OURS, wasm), once, Metric::P50, Bound::Below(1.0)));
            }
        }
        found
    }

    fn held(&self) -> Vec<Target> {
        let loaded = (Mode::Warm, Cell::of(Measure::Memory));
        let against =
            |other| self.ratio((OURS, other), loaded, Metric::Memory, Bound::AtMost(0.05));
        ["process-udp", "process-fair"].map(against).into()
    }

    fn preempted(&self) -> Vec<Target> {
        let hashes = Cell::of(Measure::Hashes);
        let mut found = Vec::new();
        for (contender, bound) in [
            (OURS, Bound::AtLeast(0.99)),
            ("partywall-fn-timer", Bound::Stated),
            ("sigalrm", Bound::Stated),
        ] {
            let over = self.key(contender, Mode::Warm, hashes.every(Some(20)));
            let under = self.key(contender, Mode::Warm, hashes.every(None));
            let text = format!("blocks per second: {contender} over no quantum ({})", over.case);
            let quantity = Quantity::Ratio { over, under };
            found.push(Target::new(text, quantity, Metric::PerSecond, bound));
        }
        let overruns = Cell::of(Measure::Overruns).every(Some(BUDGET_US));
        found.push(self.value(overruns, Metric::Kept, Bound::AtLeast(0.95)));
        let signal = Cell::of(Measure::Kills).every(Some(BUDGET_US));
        for within in Within::ALL {
            let of = Key { contender: OURS, case: killed(self.0, within) };
            let text = format!("lost calls, leaked bytes, wrong next calls: {OURS} ({})", of.case);
            found.push(Target::new(text, Quantity::Value { of }, Metric::Harm, Bound::AtMost(0.0)));
            let under = self.key("bare-signal", Mode::Warm, signal);
            for (metric, most) in [(Metric::P50, 1.3), (Metric::P99, 3.0)] {
                let text = format!("{}: {OURS} over bare-signal ({})", name(metric), of.case);
                let quantity = Quantity::Ratio { over: of, under };
                found.push(Target::new(text, quantity, metric, Bound::AtMost(most)));
            }
        }
        let [alone, beside] = [false, true].map(|is| self.key(OURS, Mode::Warm, neighbour(is)));
        for (metric, of) in
            [(Metric::P99, "p99, one way"), (Metric::RoundTripP99, "p99, there and back")]
        {
            let text = format!(
                "{of}: an owner beside one at its limits over the same alone ({})",
                beside.case
            );
            let quantity = Quantity::Ratio { over: beside, under: alone };
            found.push(Target::new(text, quantity, metric, Bound::AtMost(1.5)));
        }
        found
    }
}

/// What the project promises, as far as these numbers of functions were run.
pub fn targets(sizes: &[u64]) -> Vec<Target> {
    let of = |count: &u64| {
        let of = Of(*count);
        [of.warm(), of.cold(), of.held(), of.preempted()].concat()
    };
    sizes.iter().flat_map(of).collect()
}
