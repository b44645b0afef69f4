//! Measures Partywall beside the alternatives: `partywall-bench calls`, `words`, `domain`, `transfer`,
//! `functions` and `sealed`.
//!
//! Every sample is a fresh pair of processes: this program again, with an order from the driver; or
//! a launcher that loads this program, built static-pie, twice into its address space.
//! The driver interleaves all contenders in random order, so that whatever disturbs the machine
//! disturbs all of them alike, and compares only what was measured in the same round.
//!
//! | module | what it does |
//! |---|---|
//! | `case`, `row` | what a sample measures, and how it is published |
//! | `contender`, `seat` | the seam: what one who is measured does, and what they are given to do it |
//! | `registry` | who is measured |
//! | `stopwatch`, `pattern`, `meter` | timing calls and checking replies inside a client |
//! | `calls`, `words`, `domains`, `transfer`, `sealed` | the contenders, one file each |
//! | `functions` | a bench with rounds and processes of its own |
//! | `plan`, `driver`, `pair`, `process`, `child` | order, rounds, processes |
//! | `image`, `launch` | both sides as domains of one process |
//! | `engine`, `porter` | sides in containers |
//! | `text` | what is counted, and the answer |
//! | `control`, `probe` | how the two processes meet, and how near their cores are |
//! | `memory`, `others` | what processes and the host hold and use |
//! | `stats`, `units`, `ratio`, `target` | medians, ratios with intervals, promises |
//! | `report`, `machine` | terminal, JSON, HTML |

mod calls;
mod case;
mod child;
mod cli;
mod contender;
mod control;
mod domains;
mod driver;
mod engine;
mod error;
mod functions;
mod image;
mod launch;
mod machine;
mod memory;
mod meter;
mod others;
mod pair;
mod pattern;
mod plan;
mod porter;
mod probe;
mod process;
mod ratio;
mod registry;
mod report;
mod row;
mod sealed;
mod seat;
mod stats;
mod stopwatch;
mod stuck;
mod sys;
mod target;
mod text;
mod transfer;
mod units;
mod words;

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use case::Bench;
use cli::{Cli, Command, Options};
use driver::Tally;
use error::Result;
use target::Verdict;

/// No target could be judged, and that was asked for.
const UNJUDGED: u8 = 3;

/// The user stopped the run.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let (bench, options) = match Cli::parse().command {
        Command::Child { order } => return child::run(&order),
        Command::Calls(options) => (Bench::Calls, options),
        Command::Launch { order } => return launch::run(&order),
        Command::Porter { socket } => return porter::run(&socket),
        Command::Words(options) => (Bench::Words, options),
        Command::Domain(options) => (Bench::Domain, options),
        Command::Transfer(options) => (Bench::Transfer, options),
        Command::Functions(options) => (Bench::Functions, options),
        Command::Sealed(options) => (Bench::Sealed, options),
        Command::FunctionSample { task } => return functions::sample::run(&task),
        Command::FunctionRole { role, arguments } => return functions::behind(&role, &arguments),
    };
    match bench_and_report(bench, &options) {
        Ok(code) => code,
        Err(error) => {
            // Where that cannot be written either, the exit status says it.
            let _unsaid = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench_and_report(bench: Bench, options: &Options) -> Result<ExitCode> {
    let run = match bench {
        Bench::Functions => functions::run::run(options)?,
        _ => driver::run(bench, options)?,
    };
    let Some(run) = run else {
        eprintln!("Stopped; nothing was written.");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    // What one of them cannot take is no reason to lose the others.
    let json = options.json.as_ref().map(|file| write(file, &report::json(&run)));
    let html = options.html.as_ref().map(|file| write(file, &report::html::render(&run)?));
    let table = std::io::stdout().write_all(report::table::render(&run).as_bytes());
    json.transpose()?;
    html.transpose()?;
    table.map_err(|error| format!("standard output: {error}"))?;
    let verdicts: Vec<_> = run.targets.iter().map(|target| target.verdict).collect();
    Ok(status(&run.tally, &verdicts, options.strict))
}

/// A run with a wrong answer, a hang or a failed sample is a failure; with `strict` so is one that
/// misses a target, or judges none.
fn status(tally: &Tally, verdicts: &[Verdict], strict: bool) -> ExitCode {
    let came_out = |verdict| verdicts.contains(&verdict);
    if !tally.is_clean() || (strict && came_out(Verdict::Fail)) {
        return ExitCode::FAILURE;
    }
    match strict && !came_out(Verdict::Pass) && !came_out(Verdict::Undecided) {
        true => ExitCode::from(UNJUDGED),
        false => ExitCode::SUCCESS,
    }
}

fn write(file: &std::path::Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_wrong_answer_a_hang_and_a_failed_sample_are_failures() {
        let failed = [("it broke".to_owned(), 1)].into();
        let tallies = [
            Tally { wrong: 1, ..Tally::default() },
            Tally { hangs: 1, ..Tally::default() },
            Tally { failures: failed, ..Tally::default() },
        ];
        let passed = [Verdict::Pass];
        for tally in tallies {
            assert_eq!(status(&tally, &passed, false), ExitCode::FAILURE);
        }
        let cut = Tally { cut: 1, ..Tally::default() };
        assert_eq!(status(&cut, &passed, true), ExitCode::SUCCESS);
    }

    #[test]
    fn a_missed_target_counts_only_where_that_is_asked_for() {
        let clean = Tally::default();
        let of = |verdicts: &[Verdict], strict| status(&clean, verdicts, strict);
        let missed = [Verdict::Pass, Verdict::Fail];
        assert_eq!(of(&missed, false), ExitCode::SUCCESS);
        assert_eq!(of(&missed, true), ExitCode::FAILURE);
        assert_eq!(of(&[Verdict::Pass, Verdict::Void], true), ExitCode::SUCCESS);
        let unjudged = [Verdict::Void, Verdict::TooFew, Verdict::NotRun, Verdict::Stated];
        assert_eq!(of(&unjudged, false), ExitCode::SUCCESS);
        assert_eq!(of(&unjudged, true), ExitCode::from(UNJUDGED));
    }
}
