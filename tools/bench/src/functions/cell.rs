//! What a row of `functions` measures besides its contender, its mode and its number of functions, and the
//! figures that only such rows have.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Calls of the time stamp function.
    Calls,
    /// Memory of all functions, loaded.
    Memory,
    /// Blocks of 64 bytes that are hashed per second under a quantum.
    Hashes,
    /// How far from its time a handler begins.
    Deviation,
    /// Functions beyond their budget are stopped.
    Kills,
    /// Honest work while one call in a hundred is beyond its budget.
    Overruns,
    /// An owner's calls, beside another owner's who is at its limits.
    Neighbour,
}

/// Which function is called next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One after the other.
    RoundRobin,
    /// A random one.
    Random,
}

/// When the next call comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Load {
    /// When one of the window has been answered.
    Closed(Closed),
    /// At random times (a Poisson process), in per cent of what [`Whose`] takes.
    Percent(u32),
}

/// The word for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Closed {
    /// See [`Load::Closed`].
    Closed,
}

/// Whose calls per second a load is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The contender's own.
    Own,
    /// Those of `process-fair` in this run.
    ProcessFair,
}

/// Where a function is when it is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Within {
    /// In a loop without calls.
    Loop,
    /// Allocating and freeing.
    Allocation,
    /// Making texts.
    Formatting,
    /// In the destructor of a value.
    Drop,
}

impl Within {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Loop, Self::Allocation, Self::Formatting, Self::Drop];
}

/// What sets a row of `functions` apart from the others of its contender and mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What is measured.
    pub measure: Measure,
    /// Which function is called next.
    pub order: Option<Order>,
    /// When the next call comes.
    pub load: Option<Load>,
    /// Calls under way at once, of a closed loop.
    pub window: Option<u32>,
    /// Of whose calls per second the load is a part.
    pub load_of: Option<Whose>,
    /// The quantum or the budget in microseconds; none is no preemption.
    pub quantum_us: Option<u32>,
    /// Where functions are stopped.
    pub within: Option<Within>,
    /// How many owners of functions call, where that is what differs.
    pub owners: Option<u32>,
}

impl Cell {
    /// One of which nothing else is said.
    pub const fn of(measure: Measure) -> Self {
        Self {
            measure,
            order: None,
            load: None,
            window: None,
            load_of: None,
            quantum_us: None,
            within: None,
            owners: None,
        }
    }

    /// Calls in a closed loop, so many at once.
    pub const fn closed(order: Order, window: u32) -> Self {
        let load = Some(Load::Closed(Closed::Closed));
        Self { order: Some(order), load, window: Some(window), ..Self::of(Measure::Calls) }
    }

    /// Calls at random times.
    pub const fn poisson(percent: u32, of: Whose) -> Self {
        let load = Some(Load::Percent(percent));
        Self { order: Some(Order::Random), load, load_of: Some(of), ..Self::of(Measure::Calls) }
    }

    /// The same with a quantum.
    pub const fn every(self, quantum_us: Option<u32>) -> Self {
        Self { quantum_us, ..self }
    }

    /// Whether the figure that matters is a rate.
    pub fn is_rate(&self) -> bool {
        let many = self.window.is_some_and(|window| window > 1);
        many || matches!(self.measure, Measure::Hashes | Measure::Overruns)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![match self.measure {
            Measure::Calls => "calls".to_owned(),
            Measure::Memory => "memory".to_owned(),
            Measure::Hashes => "hashes".to_owned(),
            Measure::Deviation => "deviation".to_owned(),
            Measure::Kills => "kills".to_owned(),
            Measure::Overruns => "1 in 100 overruns".to_owned(),
            Measure::Neighbour => "an owner's calls".to_owned(),
        }];
        parts.extend(self.order.map(|order| match order {
            Order::RoundRobin => "round-robin".to_owned(),
            Order::Random => "random".to_owned(),
        }));
        parts.extend(self.window.map(|window| format!("closed loop, window {window}")));
        if let Some(Load::Percent(percent)) = self.load {
            let of = if self.load_of == Some(Whose::ProcessFair) { " of process-fair" } else { "" };
            parts.push(format!("{percent} % load{of}"));
        }
        match (self.measure, self.quantum_us) {
            (_, Some(quantum)) => parts.push(format!("quantum {quantum} µs")),
            (Measure::Hashes, None) => parts.push("no quantum".to_owned()),
            _ => {}
        }
        parts.extend(self.within.map(|within| format!("in {within:?}").to_lowercase()));
        parts.extend(self.owners.map(|owners| format!("owners {owners}")));
        f.write_str(&parts.join(", "))
    }
}

/// Figures of a row of `functions`; none where a figure does not apply.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct More {
    /// Median time of a call, there and back, in nanoseconds.
    pub rtt_p50_ns: Option<f64>,
    /// 99th percentile of it.
    pub rtt_p99_ns: Option<f64>,
    /// 99.9th percentile of it.
    pub rtt_p999_ns: Option<f64>,
    /// How many calls were measured, or how often something was done.
    pub calls: Option<f64>,
    /// Calls per second that were asked for, of an open loop.
    pub asked_per_s: Option<f64>,
    /// Sleeps of the worker (voluntary context switches) per call.
    pub sleeps_per_call: Option<f64>,
    /// What the host's available memory (MemAvailable) fell by, in bytes.
    pub memory_bytes: Option<f64>,
    /// The proportional shares of all processes (Pss) rose by, in bytes.
    pub pss_bytes: Option<f64>,
    /// Calls before which a page of the image was mapped in the worker.
    pub not_cold: Option<f64>,
    /// Standard deviation of a handler's begin, in nanoseconds.
    pub deviation_ns: Option<f64>,
    /// Calls that were stopped.
    pub stopped: Option<f64>,
    /// Calls beyond their budget that did not end as such.
    pub lost: Option<f64>,
    /// Bytes that were not given back.
    pub leaked_bytes: Option<f64>,
    /// Calls behind a stopped one that were wrong.
    pub wrong_next: Option<f64>,
    /// Calls that were refused by their owner's limits.
    pub refused: Option<f64>,
    /// What honest calls did, by what the time left to them would give.
    pub kept: Option<f64>,
}

impl More {
    /// The figures as an array, in the order of the fields.
    fn values(self) -> [Option<f64>; 16] {
        let Self {
            rtt_p50_ns,
            rtt_p99_ns,
            rtt_p999_ns,
            calls,
            asked_per_s,
            sleeps_per_call,
            memory_bytes,
            pss_bytes,
            not_cold,
            deviation_ns,
            stopped,
            lost,
            leaked_bytes,
            wrong_next,
            refused,
            kept,
        } = self;
        [
            rtt_p50_ns,
            rtt_p99_ns,
            rtt_p999_ns,
            calls,
            asked_per_s,
            sleeps_per_call,
            memory_bytes,
            pss_bytes,
            not_cold,
            deviation_ns,
            stopped,
            lost,
            leaked_bytes,
            wrong_next,
            refused,
            kept,
        ]
    }

    /// The median of each figure.
    pub fn medians(all: &[Self]) -> Self {
        let values: Vec<_> = all.iter().map(|more| more.values()).collect();
        let of = |at: usize| {
            let of: Vec<f64> = values.iter().filter_map(|values| values[at]).collect();
            stats::median(&of)
        };
        Self {
            rtt_p50_ns: of(0),
            rtt_p99_ns: of(1),
            rtt_p999_ns: of(2),
            calls: of(3),
            asked_per_s: of(4),
            sleeps_per_call: of(5),
            memory_bytes: of(6),
            pss_bytes: of(7),
            not_cold: of(8),
            deviation_ns: of(9),
            stopped: of(10),
            lost: of(11),
            leaked_bytes: of(12),
            wrong_next: of(13),
            refused: of(14),
            kept: of(15),
        }
    }

    /// What must be nothing after functions were stopped: calls lost, bytes leaked, wrong calls behind.
    pub fn harm(&self) -> Option<f64> {
        Some(self.lost? + self.leaked_bytes? + self.wrong_next?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_word_or_a_number() {
        let closed = serde_json::to_value(Cell::closed(Order::Random, 1)).expect("plain data");
        assert_eq!((&closed["load"], &closed["order"]), (&"closed".into(), &"random".into()));
        let open = Cell::poisson(30, Whose::Own);
        let json = serde_json::to_value(open).expect("plain data");
        assert_eq!(json["load"], 30);
        assert_eq!(serde_json::from_value::<Cell>(json).expect("a cell"), open);
    }

    #[test]
    fn medians_are_of_each_figure() {
        let of = |lost, kept| More { lost: Some(lost), kept, ..More::default() };
        let medians = More::medians(&[of(0.0, Some(0.5)), of(4.0, None), of(2.0, Some(0.7))]);
        assert_eq!((medians.lost, medians.kept.map(|kept| kept > 0.59)), (Some(2.0), Some(true)));
        assert_eq!((medians.calls, medians.harm()), (None, None));
    }
}
