//! This process closed to other processes of its user, where its coordinator's policy wants that.
//!
//! A process that is not dumpable (PR_SET_DUMPABLE(2const)) is open to root and CAP_SYS_PTRACE alone: nobody
//! else takes its descriptors (pidfd_getfd(2)), reads its memory (process_vm_readv(2)) or traces it. Who
//! traces it already goes on, so it does not count as closed then.
//!
//! ```text
//! open     told before the first link, or when the policy has changed --> closed, and said so
//! closed   prctl(2), a change of its user --> open: found at the next link
//!          execve(2)                      --> open, without links and connection
//! ```

use std::io;
use std::sync::OnceLock;

use partywall_abi::security::{Confidentiality, Security};
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};

/// This process has said that it is closed.
static SAID: OnceLock<()> = OnceLock::new();

/// Closes this process; whether it is, and may say so. It stays so until it executes another program.
pub(crate) fn close() -> bool {
    match closed() {
        Ok(()) => {
            let _before = SAID.set(());
            true
        }
        Err(why) => {
            tracing::warn!(%why, "this process stays open to others of its user");
            false
        }
    }
}

fn closed() -> io::Result<()> {
    // EPERM of a domain, which shares its memory with others anyway.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // From here on nobody begins to trace it.
    match traced()? {
        true => Err(io::Error::other("it is traced already (TracerPid in /proc/self/status)")),
        false => Ok(()),
    }
}

/// Whether a debugger or the like is at one of the threads.
fn traced() -> io::Result<bool> {
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread that has just ended says nothing.
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        if tracer.is_some_and(|tracer| tracer.trim() != "0") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What protects a link of which this was told, if this process has opened itself again.
pub(crate) fn lowered(security: Security) -> Security {
    let opened = || matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable));
    if SAID.get().is_some() && opened() {
        let confidentiality = security.confidentiality.min(Confidentiality::User);
        return Security::new(security.isolation, confidentiality, security.evidence);
    }
    security
}
