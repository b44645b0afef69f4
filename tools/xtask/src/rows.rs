//! `cargo xtask rows`: docs/systems.md and SPECIFICATION.md against the tests that ran.
//!
//! Names of tests in SPECIFICATION.md are checked by [`crate::promises`], those of docs/systems.md here.
//!
//! Each claim of the five systems is one table row `| id | claim | state | where | test |`. A row
//! that says `done` or `part` names tests, and each of them must have passed in the last run. An
//! `open` or `not here` row says why in its fourth column.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::promises;
use crate::ran::{Outcome, RanList};
use crate::table;
use crate::workspace::Workspace;

const FILE: &str = "docs/systems.md";

/// Letter of each system and the number of its rows.
const EXPECTED: [(char, u32); 5] = [('M', 40), ('S', 30), ('R', 29), ('B', 32), ('U', 37)];

struct Row {
    id: String,
    claim: String,
    state: String,
    place: String,
    tests: Vec<String>,
}

/// Checks the rows and prints how many are in which state.
///
/// # Errors
/// When the file or the list is missing, or a row breaks a rule.
pub(crate) fn run(workspace: &Workspace, ran: &Path) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join(FILE)).context(FILE)?;
    let ran = RanList::load(ran)?;
    let rows = parse(&text)?;
    let mut faults: Vec<_> =
        check(&rows, &ran).into_iter().map(|fault| format!("{FILE}: {fault}")).collect();
    let (kept, broken) = promises::check(workspace, &ran)?;
    faults.extend(broken);
    if !faults.is_empty() {
        let files = format!("{FILE} and {}", promises::FILE);
        bail!("faults in {files}: {}\n  {}", faults.len(), faults.join("\n  "));
    }
    let mut states = BTreeMap::<&str, usize>::new();
    rows.iter().for_each(|row| *states.entry(&row.state).or_default() += 1);
    let counts: Vec<_> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    println!("rows: {} claims, {}; {kept} promises", rows.len(), counts.join(", "));
    let unshown = ran.count(Outcome::NeedsRoot);
    if unshown > 0 {
        println!("rows: {unshown} tests need root and did not run; step `root` runs them");
    }
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(cells) = table::cells(line) else { continue };
        if !is_id(cells[0]) {
            continue;
        }
        let [id, claim, state, place, tests] = cells[..] else {
            bail!("line {}: {} cells where a row has 5", index + 1, cells.len());
        };
        rows.push(Row {
            id: id.to_owned(),
            claim: claim.to_owned(),
            state: state.to_owned(),
            place: place.to_owned(),
            tests: test_names(tests),
        });
    }
    Ok(rows)
}

fn is_id(cell: &str) -> bool {
    let mut chars = cell.chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase())
        && !chars.as_str().is_empty()
        && chars.all(|c| c.is_ascii_digit())
}

fn test_names(cell: &str) -> Vec<String> {
    let names = cell.split([',', ' ']).map(|name| name.trim_matches('`'));
    names.filter(|name| !is_blank(name)).map(str::to_owned).collect()
}

fn is_blank(cell: &str) -> bool {
    matches!(cell, "" | "-")
}

fn check(rows: &[Row], ran: &RanList) -> Vec<String> {
    let mut faults = ids(rows);
    for row in rows {
        faults.extend(row.check(ran).into_iter().map(|fault| format!("{}: {fault}", row.id)));
    }
    faults
}

fn ids(rows: &[Row]) -> Vec<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    for (letter, last) in EXPECTED {
        seen.extend((1..=last).map(|n| (format!("{letter}{n:02}"), 0)));
    }
    let mut faults = Vec::new();
    for row in rows {
        match seen.get_mut(&row.id) {
            Some(count) => *count += 1,
            None => faults.push(format!("{}: no such claim", row.id)),
        }
    }
    for (id, count) in seen {
        match count {
            0 => faults.push(format!("{id}: the row is missing")),
            1 => {}
            n => faults.push(format!("{id}: {n} rows")),
        }
    }
    faults
}

impl Row {
    fn check(&self, ran: &RanList) -> Vec<String> {
        let mut faults = Vec::new();
        if is_blank(&self.claim) {
            faults.push("the claim is empty".to_owned());
        }
        match self.state.as_str() {
            "done" | "part" => {
                if self.tests.is_empty() {
                    faults.push(format!("{} without a test", self.state));
                }
                if is_blank(&self.place) {
                    faults.push(format!("{} but not where", self.state));
                }
            }
            "open" | "not here" if is_blank(&self.place) => {
                faults.push(format!("{} without a reason", self.state));
            }
            "open" | "not here" => {}
            other => faults.push(format!("{other:?} is not a state: done, part, open, not here")),
        }
        faults.extend(self.tests.iter().filter_map(|test| ran.fault_of(test)));
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rows, each `open`, with `edits` in place of the rows of the same id.
    fn table(edits: &[&str]) -> Vec<Row> {
        let mut text =
            "| id | claim | state | where | test |\n| --- | --- | --- | --- | --- |\n".to_owned();
        for (letter, last) in EXPECTED {
            for n in 1..=last {
                let id = format!("{letter}{n:02}");
                let edit = edits.iter().find(|e| e.starts_with(&format!("| {id} ")));
                let open = format!("| {id} | claim | open | later step: bus | - |");
                text += edit.unwrap_or(&open.as_str());
                text.push('\n');
            }
        }
        parse(&text).unwrap()
    }

    fn ran() -> RanList {
        let mut list = RanList::default();
        list.extend([
            ("partywall_shm::ring::tests::wraps".to_owned(), Outcome::Ok),
            ("partywall::it::dies".to_owned(), Outcome::Failed),
            ("partywall::root::many_users".to_owned(), Outcome::NeedsRoot),
        ]);
        list
    }

    fn faults(edits: &[&str]) -> Vec<String> {
        check(&table(edits), &ran())
    }

    #[test]
    fn a_complete_table_passes() {
        assert_eq!(faults(&[]), [""; 0]);
        let row = "| M01 | c | done | crates/shm | `wraps`, `partywall-shm::ring::tests::wraps` |";
        assert_eq!(faults(&[row]), [""; 0]);
        assert_eq!(faults(&["| M01 | c | done | x | many_users |"]), [""; 0]);
        assert_eq!(faults(&["| U37 | c | not here | no such hardware | |"]), [""; 0]);
    }

    #[test]
    fn a_test_that_did_not_run_or_pass_fails() {
        let found =
            faults(&["| M01 | c | done | x | `wraps` `nope` |", "| S30 | c | part | x | dies |"]);
        assert_eq!(found, ["M01: the test nope did not run", "S30: the test dies did not pass"]);
    }

    #[test]
    fn done_needs_a_test_and_open_needs_a_reason() {
        let found = faults(&[
            "| M01 | c | done | x | - |",
            "| M02 | c | part | | wraps |",
            "| M03 | c | open | - | - |",
            "| M04 | c | not here | | |",
            "| M05 | c | nearly | x | |",
            "| M06 | | open | x | |",
        ]);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found[0].contains("done without a test"));
        assert!(found[1].contains("not where"));
        assert!(found[2].contains("open without a reason"));
        assert!(found[3].contains("not here without a reason"));
        assert!(found[4].contains("\"nearly\" is not a state"));
        assert!(found[5].contains("claim is empty"));
    }

    #[test]
    fn missing_doubled_and_unknown_ids_fail() {
        let mut rows = table(&[]);
        rows.remove(0);
        rows.extend(parse("| S01 | c | open | x | |\n| M99 | c | open | x | |").unwrap());
        let found = check(&rows, &ran());
        assert_eq!(found, ["M99: no such claim", "M01: the row is missing", "S01: 2 rows"]);
    }

    #[test]
    fn a_row_with_a_lost_cell_is_refused() {
        assert!(parse("| M01 | a | open | why |").is_err());
    }
}
