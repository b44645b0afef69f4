//! Development tasks. `cargo xtask test` is what CI runs; the other commands are its steps, to be
//! repeated on their own.
#![forbid(unsafe_code)]

mod apt;
mod built;
mod command;
mod deps;
mod libtest;
mod promises;
mod ran;
mod rows;
mod steps;
mod table;
mod tidy;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests call, as Debian packages; needs root where something is missing
    Setup,
    /// Run every check of the project, or the steps that are named
    Test {
        /// Run only these steps
        #[arg(value_name = "STEP", value_parser = PossibleValuesParser::new(steps::names()))]
        steps: Vec<String>,
        /// Run the promised number of random trials, not a twentieth of it
        #[arg(long)]
        full: bool,
        /// The same as STEP; may be given several times
        #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(steps::names()))]
        step: Vec<String>,
    },
    /// Check the rules about files, names, unsafe code and links
    Tidy,
    /// Check which crate may depend on which
    Deps,
    /// Run the tests of the domain crate in an emulated machine that has protection keys
    VmTest {
        /// With the promised number of random trials, which takes hours
        #[arg(long)]
        full: bool,
    },
    /// Check docs/systems.md and SPECIFICATION.md against the tests that ran
    Rows {
        /// List of tests that ran, as written by `cargo xtask test`
        #[arg(long, value_name = "FILE")]
        ran: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Cli {
    fn run(self) -> anyhow::Result<()> {
        let workspace = Workspace::locate()?;
        match self.task {
            Task::Setup => steps::install(),
            Task::Test { full, steps, step } => {
                steps::run(&workspace, full, &[steps, step].concat())
            }
            Task::Tidy => tidy::run(&workspace),
            Task::VmTest { full } => vm::run(&workspace, full)?.check(),
            Task::Deps => deps::run(&workspace),
            Task::Rows { ran } => {
                rows::run(&workspace, &ran.unwrap_or_else(|| workspace.ran_list()))
            }
        }
    }
}
