//! The coordinator of the attacks: reads its policy from a file and writes an audit log, as `partywall
//! coordinator` does, until its input ends.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::PathBuf;

use clap::Parser;
use partywall_attacks::clock;
use partywall_coordinator::{Coordinator, Listen, Options, Policy};

#[derive(Parser)]
struct Arguments {
    /// Where processes connect.
    #[arg(long)]
    socket: PathBuf,
    /// The policy.
    #[arg(long)]
    policy: PathBuf,
    /// The audit log; none unless it is named.
    #[arg(long)]
    audit: Option<PathBuf>,
    /// It ends when it asks for the time of day.
    #[arg(long)]
    without_clock: bool,
}

fn main() {
    if let Err(why) = run() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    partywall_attacks::log_to_stderr();
    let policy = Policy::load(&arguments.policy)?;
    let open = |path| OpenOptions::new().create(true).append(true).open(path);
    let options = Options {
        listen: Listen::At(arguments.socket),
        policy_file: Some(arguments.policy),
        audit: arguments.audit.map(open).transpose()?,
        ..Options::default()
    };
    if arguments.without_clock {
        clock::forbid()?;
    }
    let _coordinator = Coordinator::start_with(policy, options)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
