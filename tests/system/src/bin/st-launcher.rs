//! A launcher with two domains: `st-server`, and `st-client`, which has this process's standard
//! input and output. When the client has ended, prints what calls into the server have come to.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::task::{Called, Domain, Program};

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The server's program file, static-pie.
    #[arg(long)]
    server: PathBuf,
    /// Worker threads of the server.
    #[arg(long)]
    threads: String,
    /// Whether the server's handlers wait.
    #[arg(long)]
    waits: bool,
    /// Whether the server answers to what the interoperability cases ask.
    #[arg(long)]
    probed: bool,
    /// Whether both have native stubs, the server with nothing around them.
    #[arg(long)]
    native: bool,
    /// The client's program file, static-pie.
    #[arg(long)]
    client: PathBuf,
    /// What the client does.
    #[arg(long)]
    mode: String,
    /// What keeps the domains apart: none, or fault (protection keys).
    #[arg(long, value_parser = isolation)]
    isolation: Isolation,
}

fn isolation(text: &str) -> Result<Isolation, String> {
    match text {
        "none" => Ok(Isolation::None),
        "protection-keys" => Ok(Isolation::ProtectionKeys),
        _ => Err("write none or protection-keys".into()),
    }
}

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let space = AddressSpace::new(arguments.isolation)?;
    // What came of it: before Linux 6.12 signal stacks are shared.
    println!("isolation {}", space.isolation());
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let null = || std::fs::File::open("/dev/null").map(OwnedFd::from);
    let start = |file: &Path, input: OwnedFd, extra: &[&str]| -> Result<Domain, Error> {
        let mut args = vec!["domain".into(), "--socket".into(), arguments.socket.clone().into()];
        args.extend(extra.iter().map(Into::into));
        let program = Program {
            image: partywall_shm::memory::sealed_copy("domain", &std::fs::read(file)?)?,
            args,
            environment: std::env::vars_os().collect(),
            directory: "/".into(),
            descriptors: vec![
                input,
                output.as_fd().try_clone_to_owned()?,
                std::io::stderr().as_fd().try_clone_to_owned()?,
            ],
        };
        Ok(Domain::start(&space, program)?)
    };
    let mut extra = vec!["--threads", &arguments.threads];
    extra.extend(arguments.waits.then_some("--waits"));
    extra.extend(arguments.probed.then_some("--probed"));
    extra.extend(arguments.native.then_some("--native"));
    let mut server = Some(start(&arguments.server, null()?, &extra)?);
    println!("server {}", server.as_ref().map_or(0, Domain::pid));
    let input = input.as_fd().try_clone_to_owned()?;
    let mut extra = vec!["--mode", &arguments.mode];
    extra.extend(arguments.native.then_some("--native"));
    let mut client = start(&arguments.client, input, &extra)?;
    let mut called = Called::default();
    let status = loop {
        if let Some(domain) = &mut server {
            called = domain.called();
            if domain.try_wait()?.is_some() {
                // Ends the calls that are inside.
                server = None;
            }
        }
        if let Some(status) = client.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    println!("called {} forwarded {} client {:?}", called.calls, called.forwards, status.code());
    Ok(())
}
