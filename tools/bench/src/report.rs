//! What a run says, in the terminal and in files.

pub mod html;
pub mod plot;
pub mod summary;
pub mod table;
pub mod terms;

use serde_json::json;

use crate::driver::Run;
use crate::ratio::Tag;
use crate::stats::Estimate;

/// The JSON file: the machine, every row, and what was made of them.
pub fn json(run: &Run) -> String {
    let file = json!({
        "machine": run.machine,
        "rows": run.rows,
        "floors": run.floors,
        "targets": run.targets,
        "warnings": run.warnings(),
        "run": run.tally,
    });
    format!("{file:#}\n")
}

/// A median and its interval, if there were enough samples for one.
pub fn estimate(found: &Estimate, show: impl Fn(f64) -> String) -> String {
    match found.interval {
        Some((low, high)) => format!("{} [{}, {}]", show(found.median), show(low), show(high)),
        None => show(found.median),
    }
}

/// The tag of a row.
pub fn tag(near: Tag) -> &'static str {
    match near {
        Some(true) => "near",
        Some(false) => "far",
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::small;

    #[test]
    fn an_interval_is_shown_where_there_is_one() {
        let found = Estimate { n: 5, median: 0.0665, interval: Some((0.06, 1.2)) };
        assert_eq!(estimate(&found, small), "0.0665 [0.0600, 1.200]");
        let few = Estimate { n: 2, interval: None, ..found };
        assert_eq!(estimate(&few, small), "0.0665");
    }
}
