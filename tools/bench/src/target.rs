//! What the project promises, and whether a run shows it.

pub mod calls;
pub mod domain;
pub mod functions;
pub mod sealed;
pub mod transfer;
pub mod words;

use std::collections::HashSet;

use serde::Serialize;

use crate::case::Bench;
use crate::ratio::{self, Key, Metric, Quantity, Tag};
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

    /// As printed; `show` prints the limit.
    pub fn text(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {}", show(limit)),
            Self::Below(limit) => format!("below {}", show(limit)),
            Self::AtLeast(limit) => format!("at least {}", show(limit)),
            Self::Stated => String::new(),
        }
    }

    /// What the whole interval says: only one that lies on one side of the bound decides.
    fn judge(self, found: &Estimate) -> Verdict {
        let Some((low, high)) = found.interval else { return Verdict::TooFew };
        match (self, self.holds(low), self.holds(high)) {
            (Self::Stated, ..) => Verdict::Stated,
            (_, true, true) => Verdict::Pass,
            (_, false, false) => Verdict::Fail,
            _ => Verdict::Undecided,
        }
    }
}

/// One promise, or one condition under which others can be judged.
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
    /// Holds only where the cores are near (true) or far; wherever they are if none.
    pub only_near: Option<bool>,
}

impl Target {
    /// A target wherever the cores are.
    pub fn new(text: String, quantity: Quantity, metric: Metric, bound: Bound) -> Self {
        Self { text, quantity, metric, bound, only_near: None }
    }

    /// The same, only where the cores are near (true) or far.
    pub fn only(self, near: bool) -> Self {
        Self { only_near: Some(near), ..self }
    }
}

/// How a target came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is within the bound.
    Pass,
    /// The whole interval is beyond it; or it is of containers, and there were none.
    Fail,
    /// The bound lies within the interval.
    Undecided,
    /// It cannot be judged, because a floor that it depends on does not hold.
    Void,
    /// There is no bound.
    Stated,
    /// Measured in too few rounds for an interval.
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
            Self::Undecided => "undecided",
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
    /// What was measured, unless it was not run.
    pub measured: Option<Estimate>,
    /// How it came out.
    pub verdict: Verdict,
    /// Why it cannot be judged; empty where it can.
    pub why: String,
    /// What was computed.
    #[serde(skip)]
    pub quantity: Quantity,
}

/// Every promise of a bench; those of all but `calls` for the sizes that were run.
pub fn targets(bench: Bench, sizes: &[u64]) -> Vec<Target> {
    match bench {
        Bench::Calls => calls::targets(),
        Bench::Words => words::targets(sizes),
        Bench::Domain => domain::targets(sizes),
        Bench::Transfer => transfer::targets(sizes),
        Bench::Functions => functions::targets(sizes),
        Bench::Sealed => sealed::targets(sizes),
    }
}

/// The conditions under which the targets of `bench` that depend on them can be judged.
pub fn floors(bench: Bench) -> Vec<Target> {
    match bench {
        Bench::Calls => calls::floors(),
        Bench::Transfer => transfer::floors(),
        Bench::Words | Bench::Domain | Bench::Functions | Bench::Sealed => Vec::new(),
    }
}

/// Judges each target under each tag that occurred.
pub fn judge(rows: &[Row], targets: &[Target]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in targets {
        let quantity = target.quantity;
        let finding = |near, measured, verdict| Finding {
            text: target.text.clone(),
            bound: target.bound.text(|limit| quantity.show(limit)),
            near,
            measured,
            verdict,
            why: String::new(),
            quantity,
        };
        let found = ratio::estimates(rows, &quantity, target.metric);
        if found.is_empty() {
            findings.push(finding(None, None, Verdict::NotRun));
        }
        for (tag, measured) in found {
            if target.only_near.is_none_or(|near| tag == Some(near)) {
                findings.push(finding(tag, Some(measured), target.bound.judge(&measured)));
            }
        }
    }
    findings
}

impl Finding {
    /// Whether what it says rests on `floor`: they have a cell in common, under the same tag if the
    /// floor has been measured.
    pub fn rests_on(&self, floor: &Self) -> bool {
        let keys = self.quantity.keys();
        let shared = floor.quantity.keys().iter().any(|key| keys.contains(key));
        shared && (floor.measured.is_none() || floor.near == self.near)
    }
}

/// Marks what rests on a floor that does not hold, and says why.
pub fn apply_floors(findings: &mut [Finding], floors: &[Finding]) {
    for finding in findings {
        let judged = [Verdict::Pass, Verdict::Fail, Verdict::Undecided, Verdict::Stated];
        let mut broken = floors.iter().filter(|floor| floor.verdict == Verdict::Fail);
        let broken = broken.find(|floor| finding.rests_on(floor));
        if let (Some(floor), true) = (broken, judged.contains(&finding.verdict)) {
            finding.verdict = Verdict::Void;
            let measured = floor.measured.map_or(String::new(), |m| floor.quantity.show(m.median));
            finding.why = format!(
                "its floor does not hold: {} is {measured}, not {}. Disregard this row, end what else \
                 runs on the machine, and measure again",
                floor.text, floor.bound
            );
        }
    }
}

/// Marks as missed what was not run because the cells in `missing` could not be measured, and says why.
pub fn miss(findings: &mut [Finding], missing: &HashSet<Key>, why: &str) {
    for finding in findings.iter_mut().filter(|finding| finding.verdict == Verdict::NotRun) {
        let has_bound = !finding.bound.is_empty();
        if has_bound && finding.quantity.keys().iter().any(|key| missing.contains(key)) {
            finding.verdict = Verdict::Fail;
            finding.why = format!("nothing was measured in containers: {why}");
        }
    }
}

#[cfg(test)]
mod tests;
