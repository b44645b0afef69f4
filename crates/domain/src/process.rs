//! The process of a domain, as the launcher sees it: whether it runs, and has left its slot.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::WaitIdOptions;

use crate::callers;

/// How long a task that was killed and is not traced can take until it is waited for.
const TRACED: Duration = Duration::from_millis(200);

/// The process of a domain.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
}

impl Process {
    /// Whether it was waited for, by this call or an earlier one.
    pub(crate) fn is_reaped(&self) -> bool {
        let id = rustix::process::WaitId::PidFd(self.pidfd.as_fd());
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match rustix::process::waitid(id, options) {
            Ok(told) => told.is_some_and(|told| exit_status(&told).is_some()),
            Err(why) => why == rustix::io::Errno::CHILD,
        }
    }

    /// Whether all its threads are dead: it was killed. One that somebody traces can be waited for only
    /// when the tracer has, who may take for ever.
    fn is_dead(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return false;
        };
        // proc(5): after the name in brackets, the state, Z for what is dead and not waited for.
        let is_dead = |path: PathBuf| {
            let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"))
        };
        let mut threads = threads.map(|thread| thread.is_ok_and(|thread| is_dead(thread.path())));
        threads.all(|dead| dead)
    }

    /// Whether nothing of it runs, nobody is inside of its slot, and what it had of others is theirs.
    /// It was killed so long ago, and the slot takes no calls.
    pub(crate) fn has_left_slot(&self, slot: usize, killed: Duration) -> bool {
        let has_left = self.is_reaped() || (killed > TRACED && self.is_dead());
        if !has_left {
            return false;
        }
        // Contexts of others that it owned or was inside of.
        callers::forget(self.pid as i32);
        callers::is_empty(slot)
    }
}

/// How a task ended; none of what has not, such as one that stands still for a tracer.
pub(crate) fn exit_status(told: &rustix::process::WaitIdStatus) -> Option<ExitStatus> {
    use std::os::unix::process::ExitStatusExt;
    const DUMPED: i32 = 0x80;
    let code = told.exit_status().map(|code| code << 8);
    let signal = told.terminating_signal().map(|s| if told.dumped() { s | DUMPED } else { s });
    code.or(signal).map(ExitStatus::from_raw)
}
