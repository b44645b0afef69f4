//! `partywall coordinator`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use partywall_coordinator::{Coordinator, Policy};
use tokio::signal::unix::{SignalKind, signal};

/// Runs a coordinator until SIGINT or SIGTERM.
pub(crate) fn run(socket: &Path, policy: &Path) -> Result<ExitCode, Box<dyn Error>> {
    raise_descriptor_limit();
    let policy = Policy::load(policy)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let coordinator = Coordinator::start(Some(socket), policy)?;
        crate::say(&format!("coordinator at {}\n", socket.display()))?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        drop(coordinator);
        crate::say("stopped; links that are open go on without it\n")?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Each connection needs two descriptors, and the kernel counts those under way to processes that
/// do not read against the same limit; the soft one is often 1024.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused or not, what there is will do.
    let _ = setrlimit(Resource::Nofile, limit);
}
