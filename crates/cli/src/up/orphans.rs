//! Processes whose parents have ended.
//!
//! Every process that descends from `up` is a service of its, and not an operator, for it has the
//! coordinator's user: so `up` is the reaper of its descendants (`PR_SET_CHILD_SUBREAPER`), and none gets
//! away from it by its parent's end. Their ends are collected here.

use std::io;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The ends of others' children.
pub(super) struct Orphans(Signal);

impl Orphans {
    /// From here on they come to this process.
    pub(super) fn adopt() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self(signal(SignalKind::child())?))
    }

    /// Waits until some may have ended.
    pub(super) async fn ended(&mut self) {
        let _one_or_more = self.0.recv().await;
    }

    /// Collects those that have; `ours` are children that somebody waits for.
    pub(super) fn collect(ours: &[u32]) {
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
        for task in tasks.flatten() {
            let Ok(text) = std::fs::read_to_string(task.path().join("children")) else { continue };
            let others = text.split_whitespace().filter_map(|n| n.parse::<u32>().ok());
            for pid in
                others.filter(|pid| !ours.contains(pid)).filter_map(|n| Pid::from_raw(n as i32))
            {
                // Those that still run are left alone.
                let _ended = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }
}
