//! A coordinator that lets anyone do anything at the name `test`, or what its policy says, until its
//! input ends.

use std::io::{Read, Write};
use std::path::PathBuf;

use clap::Parser;
use partywall_coordinator::{Coordinator, Policy};

#[derive(Parser)]
struct Arguments {
    /// Where processes connect.
    #[arg(long)]
    socket: PathBuf,
    /// Limit of open descriptors.
    #[arg(long)]
    nofile: Option<u64>,
    /// Another policy.
    #[arg(long)]
    policy: Option<PathBuf>,
}

const OPEN: &str = "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    partywall_system_tests::limit_descriptors(arguments.nofile)?;
    let policy = match arguments.policy {
        Some(file) => Policy::load(&file)?,
        None => Policy::parse("st-coordinator", OPEN)?,
    };
    let _coordinator = Coordinator::start(Some(&arguments.socket), policy)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
