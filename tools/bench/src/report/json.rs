//! The JSON file: the machine, every row, and what was made of them.

use serde::Serialize;

use crate::driver::{Run, Tally};
use crate::machine::Machine;
use crate::row::Row;
use crate::target::Finding;

#[derive(Serialize)]
struct File<'a> {
    machine: &'a Machine,
    rows: &'a [Row],
    floors: &'a [Finding],
    targets: &'a [Finding],
    warnings: Vec<String>,
    run: &'a Tally,
}

/// The whole file.
///
/// # Errors
/// Never in practice: all of it is plain data.
pub fn render(run: &Run) -> serde_json::Result<String> {
    let file = File {
        machine: &run.machine,
        rows: &run.rows,
        floors: &run.floors,
        targets: &run.targets,
        warnings: run.warnings(),
        run: &run.tally,
    };
    let mut text = serde_json::to_string_pretty(&file)?;
    text.push('\n');
    Ok(text)
}
