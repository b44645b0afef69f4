//! Why binaries cannot be built.

use std::{io, os::unix::process::ExitStatusExt, path::PathBuf, process::ExitStatus};

use partywall_coordinator::policy::did_you_mean;
use rustix::process::Signal;

use crate::compose::Place;

/// Why the binaries cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Cargo cannot be started.
    #[error("cannot run `{}`: {source}; install Cargo or put it on PATH", program.display())]
    Start {
        /// The program that was tried.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The Compose file is in no Cargo workspace.
    #[error(
        "{place}: no Cargo workspace in {} or above; put the Compose file into the one that has the \
         package, or name a `program` file instead",
        dir.display()
    )]
    NoWorkspace {
        /// The first package that is wanted.
        place: Place,
        /// The directory of the Compose file.
        dir: PathBuf,
    },
    /// Cargo ended with an error, which it has printed.
    #[error("`cargo {command}` in {} failed ({status}); its message is above{hint}", dir.display())]
    Failed {
        /// What Cargo was to do.
        command: &'static str,
        /// Where.
        dir: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What may be missing, as the end of a sentence.
        hint: &'static str,
    },
    /// The program file cannot be run.
    #[error("{place}: {}: {why}", path.display())]
    NoProgram {
        /// Where it is named.
        place: Place,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Cargo's output is not what its documentation says.
    #[error("cannot understand the output of `cargo {command}`: {source}; update Cargo")]
    Output {
        /// What Cargo was to do.
        command: &'static str,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// The workspace has no such package.
    #[error("{place}: no package `{name}` in the workspace{hint}")]
    UnknownPackage {
        /// Where the package is named.
        place: Place,
        /// The package.
        name: String,
        /// The packages with binaries, and the one that looks most like it.
        hint: String,
    },
    /// The package has no such binary.
    #[error("{place}: no binary `{name}` in package `{package}`{hint}")]
    UnknownBin {
        /// Where the binary is named, or the package it takes its name from.
        place: Place,
        /// The binary.
        name: String,
        /// The package.
        package: String,
        /// The package's binaries, and the one that looks most like it.
        hint: String,
    },
    /// Cargo would write two binaries to one file.
    #[error(
        "{place}: binary `{name}` is in package `{one}` and in package `{other}`, and Cargo \
         writes both to the same file; rename one of them"
    )]
    SameFile {
        /// Where the second of the two packages is named.
        place: Place,
        /// The binary.
        name: String,
        /// The first package.
        one: String,
        /// The second package.
        other: String,
    },
    /// Cargo built but named no executable.
    #[error("{place}: Cargo named no executable for binary `{name}`; update Cargo")]
    NoExecutable {
        /// Where the binary is named.
        place: Place,
        /// The binary.
        name: String,
    },
}

impl BuildError {
    /// Whether Cargo was interrupted (SIGINT).
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Failed { status, .. } if status.signal() == Some(Signal::INT.as_raw()))
    }
}

/// What there is instead of `name`, as the end of a sentence.
pub fn hint(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return ", which has none".into();
    }
    let near = did_you_mean(name, known.iter().copied());
    format!(", which has {}{near}", known.join(", "))
}
