//! The rows of a run, put together by group for people to read.

use std::collections::BTreeMap;

use crate::case::{Bench, Case, Mode, Place, Wait};
use crate::contender::{Contender, Kind};
use crate::functions::cell::{Cell, Measure, More};
use crate::ratio::{self, Key, Metric, Quantity, Tag};
use crate::registry;
use crate::row::{Figures, Row};
use crate::stats::{self, Estimate};

/// Cells that are shown together.
#[derive(Debug)]
pub struct Group {
    /// What they have in common.
    pub case: Case,
    /// In the order of the registry, which all groups share.
    pub lines: Vec<Line>,
}

/// All samples of one contender in one cell under one tag.
#[derive(Debug)]
pub struct Line {
    /// Who.
    pub contender: &'static str,
    /// Whose work it is.
    pub kind: Kind,
    /// Where its sides were at home.
    pub place: Place,
    /// How it waited.
    pub wait: Option<Wait>,
    /// Whether the cores were near.
    pub near: Tag,
    /// How many samples.
    pub n: usize,
    /// The median of each figure; the sum of the errors.
    pub medians: Figures,
    /// The figure that matters here, of every sample.
    pub values: Vec<f64>,
    /// That figure over the reference's.
    pub ratio: Option<Estimate>,
    /// Whether this is the reference.
    pub reference: bool,
}

/// Who the others of a group are compared with.
pub fn reference(group: &Case) -> Key {
    let (contender, wait) = match (group.bench, group.mode) {
        (Bench::Calls, _) => ("tonic-uds", Some(Wait::Block)),
        (Bench::Words, _) => ("uds", Some(Wait::Block)),
        (Bench::Domain, Some(Mode::Bulk)) => ("memcpy", None),
        (Bench::Domain, _) => ("uds-epoll", Some(Wait::Block)),
        (Bench::Transfer, _) => ("tcp", Some(Wait::Block)),
        (Bench::Functions, _) => (among_functions(group.functions), None),
        (Bench::Sealed, Some(Mode::Connect)) => ("connect-plain", Some(Wait::Block)),
        (Bench::Sealed, _) => ("tonic-uds-tls", Some(Wait::Block)),
    };
    Key { contender, case: Case { wait, ..*group } }
}

/// The same of functions.
fn among_functions(cell: Option<Cell>) -> &'static str {
    match cell.map(|cell| cell.measure) {
        Some(Measure::Hashes) => "sigalrm",
        Some(Measure::Kills | Measure::Deviation) => "bare-signal",
        _ => "process-fair",
    }
}

/// The figure that matters in a cell.
pub fn metric(case: &Case) -> Metric {
    match case.functions {
        Some(cell) if cell.is_rate() => return Metric::PerSecond,
        Some(cell) if cell.measure == Measure::Memory => return Metric::Memory,
        Some(_) => return Metric::P50,
        None => {}
    }
    match (case.mode, case.clients) {
        (Some(Mode::Pipelined), _) => Metric::PerSecond,
        (Some(Mode::Loop), _) => Metric::OneWay,
        (Some(Mode::Paced), _) => Metric::Cpu,
        // The time of one iteration would be that in which its thread has the CPU.
        (_, Some(2..)) => Metric::PerSecond,
        _ => Metric::P50,
    }
}

/// The samples of each line of a group, by place in the registry.
type Cells<'a> = BTreeMap<(usize, Case, Tag), Vec<&'a Row>>;

/// Puts rows together.
pub fn groups(rows: &[Row]) -> Vec<Group> {
    let mut found: BTreeMap<Case, Cells<'_>> = BTreeMap::new();
    for row in rows {
        if let Some(place) = registry::place(row.case.bench, row.contender) {
            let cells = found.entry(row.case.group()).or_default();
            cells.entry((place, row.case, row.near)).or_default().push(row);
        }
    }
    let group = |(case, cells): (Case, Cells<'_>)| {
        let line = |((place, cell, near), samples): (_, Vec<_>)| {
            line(rows, &case, &registry::of(case.bench)[place], cell, near, &samples)
        };
        Group { case, lines: cells.into_iter().map(line).collect() }
    };
    found.into_iter().map(group).collect()
}

fn line(
    rows: &[Row],
    group: &Case,
    contender: &Contender,
    cell: Case,
    near: Tag,
    samples: &[&Row],
) -> Line {
    let metric = metric(group);
    let median = |figure: fn(&Figures) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(|row| figure(&row.figures)).collect();
        stats::median(&values)
    };
    let medians = Figures {
        p50_ns: median(|figures| figures.p50_ns),
        p99_ns: median(|figures| figures.p99_ns),
        p999_ns: median(|figures| figures.p999_ns),
        one_way_cycles: median(|figures| figures.one_way_cycles),
        per_s: median(|figures| figures.per_s),
        cpu_ns: median(|figures| figures.cpu_ns),
        admission_ns: median(|figures| figures.admission_ns),
        pss_ratio: median(|figures| figures.pss_ratio),
        shmem_ratio: median(|figures| figures.shmem_ratio),
        socket_ratio: median(|figures| figures.socket_ratio),
        errors: samples.iter().map(|row| row.figures.errors).sum(),
        functions: {
            let all: Vec<More> = samples.iter().filter_map(|row| row.figures.functions).collect();
            (!all.is_empty()).then(|| More::medians(&all))
        },
    };
    let under = reference(group);
    let over = Key { contender: contender.name, case: cell };
    let ratios = ratio::estimates(rows, &Quantity::Ratio { over, under }, metric);
    let ratio = ratios.into_iter().find(|(tag, _)| *tag == near).map(|(_, estimate)| estimate);
    Line {
        contender: contender.name,
        kind: contender.kind,
        place: cell.place,
        wait: cell.wait,
        near,
        n: samples.len(),
        medians,
        values: samples.iter().filter_map(|row| ratio::figure(row, metric)).collect(),
        ratio: ratio.filter(|_| over != under),
        reference: over == under,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Placement;

    fn row(contender: &'static str, rep: u32, p50: f64, errors: u64) -> Row {
        let case = Case::call(Mode::Latency, Some(32), Placement::SameCore, Some(Wait::Block));
        let figures = Figures { p50_ns: Some(p50), errors, ..Figures::default() };
        Row { contender, case, near: None, rep, figures }
    }

    #[test]
    fn lines_are_in_the_registry_s_order_and_compared_with_the_reference() {
        let mut rows = vec![row("pipe", 0, 5.0, 0), row("pipe", 1, 7.0, 0)];
        rows.extend([row("tonic-uds", 0, 50.0, 0), row("tonic-uds", 1, 70.0, 0)]);
        rows.push(row("uds-epoll", 0, 1.0, 4));
        let groups = groups(&rows);
        assert_eq!(groups.len(), 1);
        let names: Vec<_> = groups[0].lines.iter().map(|line| line.contender).collect();
        assert_eq!(names, ["tonic-uds", "uds-epoll", "pipe"]);
        let [tonic, broken, pipe] = &groups[0].lines[..] else { panic!("three lines") };
        assert_eq!((pipe.n, pipe.medians.p50_ns), (2, Some(6.0)));
        assert_eq!(pipe.ratio.map(|ratio| ratio.median), Some(0.1));
        assert!(tonic.reference && tonic.ratio.is_none());
        assert!(broken.ratio.is_none() && broken.medians.errors == 4);
    }
}
