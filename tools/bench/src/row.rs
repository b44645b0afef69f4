//! One sample as it is published.

use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::functions::cell::More;

/// Figures of one sample; none where a figure does not apply. The times of `functions` are one way.
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
    /// Proportional memory of both sides above that of the idle processes, by the data.
    pub pss_ratio: Option<f64>,
    /// The rise of the host's shared memory, by the data.
    pub shmem_ratio: Option<f64>,
    /// The rise of the memory of the host's sockets, by the data.
    pub socket_ratio: Option<f64>,
    /// Wrong answers.
    pub errors: u64,
    /// Of `functions` only.
    #[serde(flatten)]
    pub functions: Option<More>,
}

/// A row of the JSON file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Who was measured.
    pub contender: &'static str,
    /// The cell.
    #[serde(flatten)]
    pub case: Case,
    /// Whether the two cores were near each other; none where it does not matter.
    pub near: Option<bool>,
    /// The round.
    pub rep: u32,
    /// What was measured.
    #[serde(flatten)]
    pub figures: Figures,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Place, Placement, Wait};

    #[test]
    fn a_row_has_every_promised_key() {
        let case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block))
            .at(Place::TwoContainers);
        let figures = Figures { p50_ns: Some(1.5), ..Figures::default() };
        let row = Row { contender: "pipe", case, near: None, rep: 3, figures };
        let json = serde_json::to_value(&row).expect("a row is plain data");
        let expected = serde_json::json!({
            "bench": "calls", "contender": "pipe", "mode": "latency", "op": null, "clock": null,
            "size": 32, "clients": null, "rate": null, "place": "two-containers",
            "placement": "same-core", "near": null, "wait": "block",
            "rep": 3, "p50_ns": 1.5, "p99_ns": null, "p999_ns": null, "one_way_cycles": null,
            "per_s": null, "cpu_ns": null, "admission_ns": null, "pss_ratio": null,
            "shmem_ratio": null, "socket_ratio": null, "errors": 0,
        });
        assert_eq!(json, expected);
    }
}
