//! The tables in the terminal.

use std::fmt::Write;

use super::summary::{self, Group, Line};
use super::{estimate, tag};
use crate::case::{Bench, Case, Wait};
use crate::driver::Run;
use crate::functions::cell::More;
use crate::row::Figures;
use crate::target::Finding;
use crate::units::{cycles, rate, small, time};

/// The whole report.
pub fn render(run: &Run) -> String {
    let mut out = String::new();
    run.warnings().iter().for_each(|warning| section(&mut out, warning));
    for group in summary::groups(&run.rows) {
        section(&mut out, &group.case.to_string());
        out.push_str(&align(&rows(&group)));
    }
    if !run.floors.is_empty() {
        section(&mut out, &format!("Floors. {FLOORS}"));
        out.push_str(&align(&findings(&run.floors)));
    }
    section(&mut out, &format!("Targets. {TARGETS}"));
    out.push_str(&align(&findings(&run.targets)));
    section(&mut out, "Run");
    out.push_str(&tally(run));
    out
}

/// What floors are.
pub const FLOORS: &str = "A floor is what nobody can stay below. Each row is a condition that shows \
     it of this run; what is compared with a floor that fails is VOID.";

/// How targets are judged.
pub const TARGETS: &str = "Median over the rounds and its 95 % interval, which needs five rounds; \
     undecided where the bound lies within the interval.";

fn section(out: &mut String, title: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n{title}");
}

/// A figure in a table: its title, where it is, and how it is printed.
type Column = (&'static str, fn(&Case, &Figures) -> Option<f64>, fn(f64) -> String);

const P50: Column = ("p50", |_, figures| figures.p50_ns, time);
const P99: Column = ("p99", |_, figures| figures.p99_ns, time);
const P999: Column = ("p99.9", |_, figures| figures.p999_ns, time);
const ADMISSION: Column = ("admission", |_, figures| figures.admission_ns, time);
const ONE_WAY: Column = ("one way", |_, figures| figures.one_way_cycles, cycles);
const CALLS: Column = ("calls", |_, figures| figures.per_s, rate);
const CPU: Column = ("CPU/call", |_, figures| figures.cpu_ns, time);
/// Of the payload of requests and replies; of short ones it says nothing that the time of a call does not.
const CPU_BYTES: Column = (
    "CPU/GB",
    |case, figures| {
        let bytes = case.size.filter(|size| *size >= 4096)? as f64 * 2.0;
        Some(figures.cpu_ns? / bytes * 1e9)
    },
    time,
);
const MEMORY: Column = ("memory", |_, figures| figures.pss_ratio, small);
const SHMEM: Column = ("Shmem", |_, figures| figures.shmem_ratio, small);
const SOCKETS: Column = ("sockets", |_, figures| figures.socket_ratio, small);

const RTT_P50: Column = ("rtt p50", |_, figures| more(figures)?.rtt_p50_ns, time);
const RTT_P99: Column = ("rtt p99", |_, figures| more(figures)?.rtt_p99_ns, time);
const RTT_P999: Column = ("rtt p99.9", |_, figures| more(figures)?.rtt_p999_ns, time);
const COUNT: Column = ("of", |_, figures| more(figures)?.calls, count);
const ASKED: Column = ("asked", |_, figures| more(figures)?.asked_per_s, rate);
const SLEEPS: Column = ("sleeps/call", |_, figures| more(figures)?.sleeps_per_call, small);
const TAKEN: Column = ("MemAvailable", |_, figures| more(figures)?.memory_bytes, mebibytes);
const PSS: Column = ("Pss", |_, figures| more(figures)?.pss_bytes, mebibytes);
const NOT_COLD: Column = ("not cold", |_, figures| more(figures)?.not_cold, count);
const DEVIATION: Column = ("std. deviation", |_, figures| more(figures)?.deviation_ns, time);
const STOPPED: Column = ("stopped", |_, figures| more(figures)?.stopped, count);
const LOST: Column = ("lost", |_, figures| more(figures)?.lost, count);
const LEAKED: Column = ("leaked bytes", |_, figures| more(figures)?.leaked_bytes, count);
const WRONG: Column = ("next wrong", |_, figures| more(figures)?.wrong_next, count);
const REFUSED: Column = ("refused", |_, figures| more(figures)?.refused, count);
const KEPT: Column = ("kept", |_, figures| more(figures)?.kept, small);

fn more(figures: &Figures) -> Option<&More> {
    figures.functions.as_ref()
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

/// The figures of functions.
const OF_FUNCTIONS: &[Column] = &[
    P50, P99, P999, RTT_P50, RTT_P99, RTT_P999, CALLS, ASKED, SLEEPS, TAKEN, PSS, NOT_COLD,
    DEVIATION, STOPPED, LOST, LEAKED, WRONG, REFUSED, KEPT, COUNT,
];

/// The figures of a bench.
fn columns(bench: Bench) -> &'static [Column] {
    match bench {
        Bench::Calls | Bench::Domain => &[P50, P99, P999, ONE_WAY, CALLS, CPU],
        Bench::Words => &[P50, P99, ADMISSION, CALLS, CPU],
        Bench::Transfer => &[P50, P99, CALLS, CPU, MEMORY, SHMEM, SOCKETS],
        Bench::Functions => OF_FUNCTIONS,
        Bench::Sealed => &[P50, P99, P999, CALLS, CPU, CPU_BYTES],
    }
}

/// Column titles of a group.
pub fn head(group: &Case) -> Vec<String> {
    let against = format!("over {} [95 %]", summary::reference(group).contender);
    let names = columns(group.bench).iter().map(|(title, ..)| *title);
    let fixed = ["contender", "place", "wait", "cores"].into_iter().chain(names);
    let mut head: Vec<String> = fixed.map(ToString::to_string).collect();
    head.extend([against, "n".into(), "errors".into()]);
    head
}

/// One line of a group, as text.
pub fn cells(group: &Case, line: &Line) -> Vec<String> {
    let figures = &line.medians;
    let ratio = match line.ratio {
        _ if line.reference => "1".into(),
        Some(found) => estimate(&found, small),
        None => String::new(),
    };
    let shown = columns(group.bench).iter().map(|(_, value, show)| value(group, figures).map(show));
    let mut cells = vec![
        line.contender.into(),
        line.place.text().into(),
        Wait::text(line.wait).into(),
        tag(line.near).into(),
    ];
    cells.extend(shown.map(Option::unwrap_or_default));
    let errors = if figures.errors == 0 { String::new() } else { figures.errors.to_string() };
    cells.extend([ratio, line.n.to_string(), errors]);
    cells
}

fn rows(group: &Group) -> Vec<Vec<String>> {
    let lines = group.lines.iter().map(|line| cells(&group.case, line));
    without_empty(std::iter::once(head(&group.case)).chain(lines).collect())
}

/// Column titles of the findings.
const FINDINGS: [&str; 6] = ["verdict", "measured [95 %]", "bound", "cores", "n", "what"];

/// One finding, as text.
fn finding_cells(finding: &Finding) -> Vec<String> {
    let measured = finding.measured.as_ref();
    let what = match finding.why.as_str() {
        "" => finding.text.clone(),
        why => format!("{}. {}: {why}", finding.text, finding.verdict.text()),
    };
    vec![
        finding.verdict.text().into(),
        measured.map(|found| estimate(found, |v| finding.quantity.show(v))).unwrap_or_default(),
        finding.bound.clone(),
        tag(finding.near).into(),
        measured.map(|found| found.n.to_string()).unwrap_or_default(),
        what,
    ]
}

/// Findings as rows of text, the titles first; without columns that hold nothing.
pub fn findings(findings: &[Finding]) -> Vec<Vec<String>> {
    let head = FINDINGS.map(str::to_owned).to_vec();
    without_empty(std::iter::once(head).chain(findings.iter().map(finding_cells)).collect())
}

/// The rows without columns that are empty below their title.
fn without_empty(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let columns = rows.first().map_or(0, Vec::len);
    let used = |column: usize| rows[1..].iter().any(|row| !row[column].is_empty());
    let used: Vec<bool> = (0..columns).map(used).collect();
    for row in &mut rows {
        let mut used = used.iter();
        row.retain(|_| used.next().is_some_and(|used| *used));
    }
    rows
}

/// What happened, in words; a line each.
pub fn tally(run: &Run) -> String {
    let tally = &run.tally;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} rounds, {} samples of {} ms in {:.0} s; {} dropped because the cores moved, {} hangs, \
         {} cut off by the end of the run, {} wrong answers, {:.2} s of CPU time stolen, {:.2} CPUs \
         used by others; seed {}",
        tally.rounds,
        tally.samples,
        tally.sample_ms,
        tally.seconds,
        tally.dropped,
        tally.hangs,
        tally.cut,
        tally.wrong,
        tally.steal_seconds,
        tally.others_cpus,
        tally.seed
    );
    for (message, times) in &tally.failures {
        let _ = writeln!(out, "failed {times} times: {message}");
    }
    out
}

/// Pads columns to the same width: text to the left, everything that starts with a digit right.
fn align(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let numeric = |column: usize| {
        let filled = rows[1..].iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
        filled.clone().count() > 0 && filled.clone().all(|cell| cell.as_bytes()[0].is_ascii_digit())
    };
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            let _ = if numeric(column) {
                write!(line, "  {cell:>width$}")
            } else {
                write!(line, "  {cell:<width$}")
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_go() {
        let text = |row: [&str; 3]| row.map(str::to_owned).to_vec();
        let rows = [text(["name", "gone", "ns"]), text(["a", "", "5"]), text(["long", "", "10"])];
        let rows = without_empty(rows.to_vec());
        assert_eq!(align(&rows), "  name  ns\n  a      5\n  long  10\n");
    }
}
