//! One sample as it is published.

use serde::{Deserialize, Serialize};

use crate::case::{Bench, Case, Clock, Mode, Op, Placement, Wait};

/// Figures of one sample; none where a figure does not apply.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Median time of a call in nanoseconds.
    pub p50_ns: Option<f64>,
    /// 99th percentile.
    pub p99_ns: Option<f64>,
    /// 99.9th percentile.
    pub p999_ns: Option<f64>,
    /// Half of a call's mean time, in cycles of the time stamp counter.
    pub one_way_cycles: Option<f64>,
    /// Calls per second.
    pub per_s: Option<f64>,
    /// CPU time of both sides per call in nanoseconds.
    pub cpu_ns: Option<f64>,
    /// Time to set up the connection in nanoseconds.
    pub admission_ns: Option<f64>,
    /// Wrong answers.
    pub errors: u64,
}

/// A row of the JSON file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `calls`, `words` or `domain`.
    pub bench: Bench,
    /// Who was measured.
    pub contender: String,
    /// How calls follow each other.
    pub mode: Option<Mode>,
    /// What the word count service was asked for.
    pub op: Option<Op>,
    /// What was timed.
    pub clock: Option<Clock>,
    /// Bytes or words.
    pub size: Option<u64>,
    /// Calls per second that were asked for.
    pub rate: Option<u64>,
    /// Where the processes ran.
    pub placement: Placement,
    /// Whether the two cores were near each other; none where it does not matter.
    pub near: Option<bool>,
    /// How the sides waited.
    pub wait: Option<Wait>,
    /// The round.
    pub rep: u32,
    /// What was measured.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Row {
    /// Joins what was measured with where.
    pub fn new(
        contender: &str,
        case: Case,
        near: Option<bool>,
        rep: u32,
        figures: Figures,
    ) -> Self {
        Self {
            bench: case.bench,
            contender: contender.to_owned(),
            mode: case.mode,
            op: case.op,
            clock: case.clock,
            size: case.size,
            rate: case.rate,
            placement: case.placement,
            near,
            wait: case.wait,
            rep,
            figures,
        }
    }

    /// The cell this row belongs to.
    pub fn case(&self) -> Case {
        Case {
            bench: self.bench,
            mode: self.mode,
            op: self.op,
            clock: self.clock,
            size: self.size,
            rate: self.rate,
            placement: self.placement,
            wait: self.wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_every_promised_key() {
        let case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block));
        let figures = Figures { p50_ns: Some(1.5), ..Figures::default() };
        let row = Row::new("pipe", case, None, 3, figures);
        let json = serde_json::to_value(&row).expect("a row is plain data");
        let keys = [
            "bench",
            "contender",
            "mode",
            "op",
            "clock",
            "size",
            "rate",
            "placement",
            "near",
            "wait",
            "rep",
            "p50_ns",
            "p99_ns",
            "p999_ns",
            "one_way_cycles",
            "per_s",
            "cpu_ns",
            "errors",
        ];
        for key in keys {
            assert!(json.get(key).is_some(), "{key} is missing");
        }
        assert_eq!(json["bench"], "calls");
        assert_eq!(json["placement"], "same-core");
        assert_eq!(json["wait"], "block");
        assert!(json["near"].is_null());
        assert!(json["p99_ns"].is_null());
        assert_eq!(serde_json::from_value::<Row>(json).expect("reads back"), row);
    }
}
