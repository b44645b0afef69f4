//! SPECIFICATION.md against the tests that ran: the other half of `cargo xtask rows`.
//!
//! Each promise is a row of a table whose columns are `promise`, maybe others, and `enforced by`. The
//! last cell names, between backquotes,
//!
//! - tests, each of which must have passed in the last run;
//! - after the word `bench`, a bench: one that has targets, or one that `cargo bench` runs;
//! - after the words `fuzz target` or `fuzz targets`, fuzz targets, which must be there;
//! - options such as `--full`, which say under which condition a test shows the whole promise.
//!
//! A cell that names nothing has to say *pending*.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::ran::RanList;
use crate::table;
use crate::workspace::Workspace;

pub(crate) const FILE: &str = "SPECIFICATION.md";

const FIRST: &str = "promise";
const LAST: &str = "enforced by";
const PENDING: &str = "*pending*";

/// What can enforce a promise besides tests.
struct Known {
    benches: Vec<String>,
    fuzz_targets: Vec<String>,
}

/// What a cell names.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Named<'a> {
    Test(&'a str),
    Bench(&'a str),
    FuzzTarget(&'a str),
}

/// Number of promises, and one sentence per fault.
///
/// # Errors
/// When the file or a directory that it is checked against cannot be read, or holds nothing.
pub(crate) fn check(workspace: &Workspace, ran: &RanList) -> Result<(usize, Vec<String>)> {
    let text = fs::read_to_string(workspace.root.join(FILE)).context(FILE)?;
    let known = Known { benches: benches(workspace)?, fuzz_targets: workspace.fuzz_targets()? };
    let found = faults(&text, &known, ran);
    ensure!(found.0 > 0, "{FILE} holds no promise");
    Ok(found)
}

/// The benches: those of `partywall-bench` that have targets, and those that `cargo bench` runs.
fn benches(workspace: &Workspace) -> Result<Vec<String>> {
    let mut found =
        [workspace.stems("tools/bench/src/target")?, workspace.stems("tools/bench/benches")?]
            .concat();
    found.retain(|stem| stem != "tests");
    Ok(found)
}

fn faults(text: &str, known: &Known, ran: &RanList) -> (usize, Vec<String>) {
    let (mut promises, mut faults, mut columns) = (0, Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let Some(cells) = table::cells(line) else {
            columns = None;
            continue;
        };
        if cells.first() == Some(&FIRST) && cells.last() == Some(&LAST) {
            columns = Some(cells.len());
            continue;
        }
        let ruled = cells.iter().all(|cell| cell.chars().all(|c| c == '-'));
        let Some(columns) = columns.filter(|_| !ruled) else { continue };
        promises += 1;
        let of_row = match cells[..] {
            [promise, .., enforced] if !promise.is_empty() && cells.len() == columns => {
                row(enforced, known, ran)
            }
            _ => vec![format!("{} cells where a promise has {columns}", cells.len())],
        };
        faults.extend(of_row.into_iter().map(|fault| format!("{FILE}:{}: {fault}", index + 1)));
    }
    (promises, faults)
}

fn row(enforced: &str, known: &Known, ran: &RanList) -> Vec<String> {
    let named = names(enforced);
    if named.is_empty() && !enforced.contains(PENDING) {
        return vec![format!("nothing enforces the promise, and it is not {PENDING}")];
    }
    let fault = |named: &Named| match *named {
        Named::Test(name) => ran.fault_of(name),
        Named::Bench(name) if !known.benches.iter().any(|bench| bench == name) => {
            Some(format!("there is no bench {name}; there are {}", known.benches.join(", ")))
        }
        Named::FuzzTarget(name) if !known.fuzz_targets.iter().any(|target| target == name) => Some(
            format!("there is no fuzz target {name}; there are {}", known.fuzz_targets.join(", ")),
        ),
        Named::Bench(_) | Named::FuzzTarget(_) => None,
    };
    named.iter().filter_map(fault).collect()
}

/// What stands between backquotes. The words before say what it is, also for those that follow after
/// nothing but commas.
fn names<'a>(cell: &'a str) -> Vec<Named<'a>> {
    let mut kind: fn(&'a str) -> Named<'a> = Named::Test;
    let mut found = Vec::new();
    for (index, part) in cell.split('`').enumerate() {
        let before = part.trim();
        match index % 2 == 0 {
            true if before.ends_with("bench") => kind = Named::Bench,
            true if before.ends_with("fuzz target") || before.ends_with("fuzz targets") => {
                kind = Named::FuzzTarget;
            }
            true if !matches!(before, "" | "," | "and" | ", and") => kind = Named::Test,
            true => {}
            false if part.starts_with("--") => {}
            false => found.push(kind(part)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ran::Outcome;

    fn check(row: &str) -> Vec<String> {
        let mut ran = RanList::default();
        ran.extend([
            ("partywall_shm::ring::tests::wraps".to_owned(), Outcome::Ok),
            ("partywall::it::dies".to_owned(), Outcome::Failed),
        ]);
        let known = Known { benches: vec!["calls".into()], fuzz_targets: vec!["elf".into()] };
        let text =
            format!("# S\n\n| promise | enforced by |\n| --- | --- |\n{row}\n\n| a | `b` |\n");
        let (promises, faults) = faults(&text, &known, &ran);
        assert_eq!(promises, row.lines().count());
        faults
    }

    #[test]
    fn promises_need_existing_tests_that_passed() {
        let good = [
            "| It wraps | `wraps`, `ring::tests::wraps` |",
            "| It wraps | `wraps` (a twentieth without `--full`), bench `calls`; loom: `wraps` |",
            "| No bytes | fuzz targets `elf`, `elf`; `wraps` |",
            "| Later | *pending* |",
        ];
        assert_eq!(check(&good.join("\n")), [""; 0]);
        let bad = "| It wraps | `wraps`, `warps`, `dies` |\n| Fast | bench `cals` |\n\
                   | Safe | fuzz target `elves` |\n| Sure | we hope so |\n| Three | `wraps` | cells |";
        let expected = [
            "SPECIFICATION.md:5: the test warps did not run",
            "SPECIFICATION.md:5: the test dies did not pass",
            "SPECIFICATION.md:6: there is no bench cals; there are calls",
            "SPECIFICATION.md:7: there is no fuzz target elves; there are elf",
            "SPECIFICATION.md:8: nothing enforces the promise, and it is not *pending*",
            "SPECIFICATION.md:9: 3 cells where a promise has 2",
        ];
        assert_eq!(check(bad), expected);
    }

    #[test]
    fn the_word_before_says_what_is_named() {
        let found =
            names("`a`, bench `b`, `c`; fuzz targets `d`, `e` and `f`; loom: `g` (`--full`)");
        let expected = [
            Named::Test("a"),
            Named::Bench("b"),
            Named::Bench("c"),
            Named::FuzzTarget("d"),
            Named::FuzzTarget("e"),
            Named::FuzzTarget("f"),
            Named::Test("g"),
        ];
        assert_eq!(found, expected);
    }
}
