//! A coordinator that lets anyone do anything at the name `test` and hardens nobody, or does what its policy
//! says, until its input ends.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Child;

use clap::Parser;
use partywall_coordinator::launch::{self, Prepared};
use partywall_coordinator::{Coordinator, Policy};
use partywall_shm::spawn::{self, Program};

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
    /// A service that is started, `st-attacker` as a rule, with `--mode linger-started`.
    #[arg(long)]
    start: Option<PathBuf>,
}

const OPEN: &str =
    "harden = false\n[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    partywall_system_tests::limit_descriptors(arguments.nofile)?;
    let policy = match arguments.policy {
        Some(file) => Policy::load(&file)?,
        None => Policy::parse("st-coordinator", OPEN)?,
    };
    let coordinator = Coordinator::start(Some(&arguments.socket), policy)?;
    println!("ready");
    std::io::stdout().flush()?;
    let _dies_with_this_thread =
        arguments.start.map(|program| start(&coordinator, program)).transpose()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn start(coordinator: &Coordinator, program: PathBuf) -> Result<Child, Box<dyn std::error::Error>> {
    let service = launch::Service {
        name: "started".into(),
        program,
        args: ["--socket", "/nowhere", "--mode", "linger-started"].map(Into::into).into(),
        environment: Vec::new(),
        directory: "/".into(),
        signatures: None,
    };
    let Prepared { image, name, args, environment, directory, socket, known } =
        launch::prepare(&service)?;
    let socket = Some(socket);
    let descriptors = None;
    let child =
        Program { image, name, args, environment, directory, socket, descriptors }.start()?;
    known.started(coordinator, child.id(), spawn::pidfd(&child)?, None);
    Ok(child)
}
