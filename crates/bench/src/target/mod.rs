//! What the project promises, and whether a run shows it.

pub mod calls;
pub mod domain;
pub mod words;

use serde::Serialize;

use crate::case::Bench;
use crate::ratio::{self, Metric, Quantity, Tag};
use crate::row::Row;
use crate::stats::Estimate;

/// What the median must satisfy.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    /// No less than this.
    AtLeast(f64),
    /// Anything: the figure is stated, nothing is promised.
    Stated,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Stated => true,
        }
    }

    /// As printed.
    pub fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit:.3}"),
            Self::Below(limit) => format!("below {limit:.3}"),
            Self::AtLeast(limit) => format!("at least {limit:.3}"),
            Self::Stated => String::new(),
        }
    }
}

/// One promise, or one condition under which a run is worth anything.
#[derive(Clone, Debug)]
pub struct Target {
    /// What is compared with what, where.
    pub text: String,
    /// How it is computed.
    pub quantity: Quantity,
    /// From which figure.
    pub metric: Metric,
    /// The limit.
    pub bound: Bound,
}

/// How a target came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The median is within the bound.
    Pass,
    /// It is not.
    Fail,
    /// The run does not count, because its floors do not hold.
    Void,
    /// There is no bound.
    Stated,
    /// Measured in too few rounds to say.
    TooFew,
    /// A party was not measured, or never under the same tag in the same round.
    NotRun,
}

impl Verdict {
    /// As printed.
    pub fn text(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Void => "VOID",
            Self::Stated => "stated",
            Self::TooFew => "too few",
            Self::NotRun => "not run",
        }
    }
}

/// A target under one tag.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The target's text.
    pub text: String,
    /// The limit as printed.
    pub bound: String,
    /// Under which tag.
    pub near: Tag,
    /// The ratio, unless it was not run.
    pub ratio: Option<Estimate>,
    /// How it came out.
    pub verdict: Verdict,
}

/// Every promise of a bench; those of `words` for the sizes that were run.
pub fn targets(bench: Bench, sizes: &[u64]) -> Vec<Target> {
    match bench {
        Bench::Calls => calls::targets(),
        Bench::Words => words::targets(sizes),
        Bench::Domain => domain::targets(sizes),
    }
}

/// The conditions that make a run of `bench` valid.
pub fn floors(bench: Bench) -> Vec<Target> {
    match bench {
        Bench::Calls => calls::floors(),
        Bench::Words | Bench::Domain => Vec::new(),
    }
}

/// A median of fewer ratios than this is shown, but not judged.
const ROUNDS_MIN: usize = 3;

/// Judges each target under each tag that occurred.
pub fn judge(rows: &[Row], targets: &[Target]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in targets {
        let finding = |near, ratio, verdict| Finding {
            text: target.text.clone(),
            bound: target.bound.text(),
            near,
            ratio,
            verdict,
        };
        let found = ratio::estimates(rows, &target.quantity, target.metric);
        if found.is_empty() {
            findings.push(finding(None, None, Verdict::NotRun));
        }
        for (tag, ratio) in found {
            let holds = target.bound.holds(ratio.median);
            let verdict = match holds {
                _ if ratio.n < ROUNDS_MIN => Verdict::TooFew,
                _ if matches!(target.bound, Bound::Stated) => Verdict::Stated,
                true => Verdict::Pass,
                false => Verdict::Fail,
            };
            findings.push(finding(tag, Some(ratio), verdict));
        }
    }
    findings
}

/// Marks every judged finding void.
pub fn void(findings: &mut [Finding]) {
    for finding in findings {
        if matches!(finding.verdict, Verdict::Pass | Verdict::Fail | Verdict::Stated) {
            finding.verdict = Verdict::Void;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Case, Mode, Placement, Wait};
    use crate::ratio::Key;
    use crate::row::Figures;

    const CASE: Case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block));

    fn target() -> Target {
        let key = |contender| Key { contender, case: CASE };
        Target {
            text: "a over b".into(),
            quantity: Quantity::Ratio { over: key("a"), under: key("b") },
            metric: Metric::P50,
            bound: Bound::AtMost(0.5),
        }
    }

    fn rows(name: &str, p50: f64, rounds: u32) -> Vec<Row> {
        let figures = Figures { p50_ns: Some(p50), ..Figures::default() };
        (0..rounds).map(|rep| Row::new(name, CASE, None, rep, figures)).collect()
    }

    #[test]
    fn judges_by_the_bound() {
        let verdict = |a, rounds| {
            let rows = [rows("a", a, rounds), rows("b", 10.0, 30)].concat();
            judge(&rows, &[target()])[0].verdict
        };
        assert_eq!(verdict(5.0, 30), Verdict::Pass);
        assert_eq!(verdict(5.1, 30), Verdict::Fail);
        assert_eq!(verdict(5.1, 2), Verdict::TooFew);
    }

    #[test]
    fn an_absent_party_is_not_a_failure() {
        let mut findings = judge(&rows("b", 10.0, 3), &[target()]);
        assert_eq!(findings[0].verdict, Verdict::NotRun);
        void(&mut findings);
        assert_eq!(findings[0].verdict, Verdict::NotRun);
    }

    #[test]
    fn what_is_only_stated_is_not_judged() {
        let target = Target { bound: Bound::Stated, ..target() };
        let rows = [rows("a", 50.0, 3), rows("b", 10.0, 3)].concat();
        assert_eq!(judge(&rows, &[target])[0].verdict, Verdict::Stated);
    }

    #[test]
    fn every_bench_declares_targets() {
        assert!(targets(Bench::Calls, &[]).len() >= 10);
        assert!(targets(Bench::Words, &crate::case::WORD_SIZES).len() >= 14);
        assert!(targets(Bench::Domain, &crate::case::DOMAIN_SIZES).len() >= 7);
        assert_eq!(floors(Bench::Calls).len(), 2);
    }
}
