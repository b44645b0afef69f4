//! A coordinator in this process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use partywall_abi::name::ServiceName;
use partywall_coordinator::{Coordinator, Policy};

use crate::control::Conversation;
use crate::process::Process;

/// Lets anyone serve and call the name `test`.
pub const OPEN: &str =
    "[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n";

/// For tests that count what the process holds: one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A coordinator whose socket is in a directory of its own; both are gone with the value.
pub struct Host {
    /// Where its socket is.
    pub socket: PathBuf,
    /// The coordinator.
    pub coordinator: Coordinator,
    _dir: Option<tempfile::TempDir>,
}

impl Host {
    /// One with [`OPEN`] as its policy.
    pub fn open() -> Self {
        Self::with(OPEN)
    }

    /// One with this policy; other users may connect as well.
    pub fn with(policy: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("its mode");
        let host = Self::at(&dir.path().join("coordinator.sock"), policy);
        Self { _dir: Some(dir), ..host }
    }

    /// One with its socket here. Processes stay open to tests that look at them in /proc, unless the policy
    /// speaks of `harden`.
    pub fn at(socket: &Path, policy: &str) -> Self {
        let speaks = policy.contains("harden");
        let mut policy = Policy::parse("test", policy).expect("a policy");
        if !speaks {
            policy.harden(false);
        }
        let coordinator = Coordinator::start(Some(socket), policy).expect("a coordinator");
        Self { socket: socket.into(), coordinator, _dir: None }
    }

    /// Waits until `test` is served.
    pub fn until_served(&self) {
        let name = ServiceName::new("test").expect("a name");
        self.coordinator.serving(&name).recv_timeout(Duration::from_secs(10)).expect("served");
    }

    /// A conversation that has proven to be this process's.
    pub fn process(&self) -> Conversation {
        Conversation::open(&self.socket).expect("a welcome")
    }

    /// Starts a program that is told where the socket is.
    pub fn start(&self, program: &str, arguments: &[&str]) -> Process {
        Process::start(program, &self.socket, arguments, &[], None)
    }

    /// What is left outside of processes: files in the directory of the socket, directories that
    /// Partywall makes for a run, and names in `/dev/shm`.
    pub fn left_in_files(&self) -> BTreeSet<PathBuf> {
        let list = |dir: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(dir);
            entries.map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default()
        };
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("partywall"))
        };
        let shared = [std::env::temp_dir(), "/dev/shm".into()].into_iter().flat_map(|d| list(&d));
        let own = self.socket.parent().map(list).unwrap_or_default();
        shared.filter(ours).chain(own).collect()
    }
}
