//! The `partywall` command.
#![forbid(unsafe_code)]

mod build;
mod compose;
mod coordinator;
mod doctor;
mod domain;
mod isolation;
mod launcher;
mod links;
mod up;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Calls between services on one host, through shared memory.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build and run the services of a Compose file, with a coordinator of their own.
    Up {
        /// The Compose file; services with `x-partywall` are run.
        file: PathBuf,
        /// Build and run debug builds.
        #[arg(long)]
        debug: bool,
    },
    /// Run a coordinator until it is stopped.
    Coordinator {
        /// Where processes connect.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// Who may serve and call what.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
    },
    /// Show what this machine offers to keep services apart, and what links would be like on it.
    Doctor,
    /// Show who calls whom, over which link and with which isolation.
    Links {
        /// Where the coordinator listens; looked for in the usual places unless given.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Open and close the gates of services that run as domains.
    Domain {
        #[command(subcommand)]
        order: domain::Order,
    },
    /// Hold the domains of one `up`, which starts this.
    #[command(hide = true)]
    Launcher {
        /// What keeps them apart.
        #[arg(value_parser = isolation::of_domains)]
        isolation: partywall::Isolation,
    },
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PARTYWALL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let done = match Arguments::parse().command {
        Command::Up { file, debug } => up::run(&file, !debug),
        Command::Coordinator { socket, policy } => coordinator::run(&socket, &policy),
        Command::Doctor => doctor::run(),
        Command::Links { socket } => links::run(socket.as_deref()),
        Command::Domain { order } => domain::run(&order),
        Command::Launcher { isolation } => launcher::run(isolation),
    };
    done.unwrap_or_else(|error| {
        remark(&format!("partywall: {error}"));
        ExitCode::FAILURE
    })
}

/// Writes to standard output, which may be a full disk or a pipe that nobody reads.
fn say(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| format!("standard output: {error}").into())
}

/// Writes a line to standard error. Where that cannot be written, the exit status has to do.
fn remark(line: &str) {
    let _unsaid = writeln!(std::io::stderr(), "{line}");
}
