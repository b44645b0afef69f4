//! `partywall domain`: opening and closing the gates of domains while they run.

use std::error::Error;
use std::process::ExitCode;

use clap::Subcommand;

use crate::socket::Socket;

/// What is to be done.
#[derive(Subcommand)]
pub(crate) enum Order {
    /// Have callers go by the ring, as to a process of its own; no call is lost.
    Disable(Which),
    /// Have callers go through the gate again.
    Enable(Which),
}

/// Which domain.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The name that it serves.
    service: String,
    #[command(flatten)]
    socket: Socket,
}

/// Does it, and says what was done.
pub(crate) fn run(order: &Order) -> Result<ExitCode, Box<dyn Error>> {
    let (which, open) = match order {
        Order::Disable(which) => (which, false),
        Order::Enable(which) => (which, true),
    };
    let said = switch(&which.socket, &which.service, open)?;
    crate::say(&said)?;
    Ok(ExitCode::SUCCESS)
}

fn switch(socket: &Socket, service: &str, open: bool) -> Result<String, Box<dyn Error>> {
    let domains = socket.ask(|at| partywall::operator::switch_gate(at, service, open))?;
    let how = match open {
        true => "through the gate",
        false => "by the ring",
    };
    let each = match domains {
        1 => String::new(),
        many => format!(" ({many} domains)"),
    };
    Ok(format!("`{service}`{each}: callers go {how} from now on\n"))
}
