//! A coordinator in this process, children, and what this process holds.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partywall::Channel;
use partywall_coordinator::{Coordinator, Policy};

/// These tests count what the process holds, so they run one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random trials: what is promised with `PARTYWALL_TRIALS=full`, else a twentieth.
pub(crate) fn trials(promised: usize) -> usize {
    match std::env::var("PARTYWALL_TRIALS").as_deref() {
        Ok("full") => promised,
        _ => promised.div_ceil(20),
    }
}

pub(crate) struct Host {
    pub(crate) socket: PathBuf,
    _coordinator: Coordinator,
    _dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with("[service.test]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n")
    }

    pub(crate) fn with(policy: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        // Children of other users connect here as well.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = dir.path().join("coordinator.sock");
        let policy = Policy::parse("test", policy).unwrap();
        let coordinator = Coordinator::start(Some(&socket), policy).unwrap();
        Self { socket, _coordinator: coordinator, _dir: dir }
    }

    pub(crate) async fn connect(&self) -> Channel {
        let builder = Channel::builder("partywall:///test").unwrap().coordinator(&self.socket);
        builder.wait_for_ready(true).connect().await.unwrap()
    }

    pub(crate) fn server(&self, arguments: &[&str]) -> Process {
        Process::start(env!("CARGO_BIN_EXE_st-server"), &self.socket, arguments, &[], None)
    }

    pub(crate) fn client(&self, arguments: &[&str]) -> Process {
        Process::start(env!("CARGO_BIN_EXE_st-client"), &self.socket, arguments, &[], None)
    }

    pub(crate) fn client_of(&self, uid: u32, arguments: &[&str]) -> Process {
        Process::start(env!("CARGO_BIN_EXE_st-client"), &self.socket, arguments, &[], Some(uid))
    }
}

/// A child that is killed with the value.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(
        program: &str,
        socket: &std::path::Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        uid: Option<u32>,
    ) -> Self {
        let mut command = Command::new(program);
        command.arg("--socket").arg(socket).args(arguments);
        command.env("PARTYWALL_COORDINATOR_UID", rustix::process::geteuid().as_raw().to_string());
        command.envs(environment.iter().copied());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads one line of the child's output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut text);
            panic!("the child has ended: {text}");
        }
        line.trim().to_string()
    }

    pub(crate) fn ready(&mut self) {
        assert_eq!(self.line(), "ready");
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// It reads the end of its input.
    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Kills it and returns the time of the kill.
    pub(crate) fn kill(mut self) -> Instant {
        let at = Instant::now();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        at
    }

    pub(crate) fn stderr(&mut self) -> BufReader<std::process::ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    /// Voluntary context switches of all its threads.
    pub(crate) fn voluntary_switches(&self) -> u64 {
        switches(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

/// What a process holds of links: descriptors, and mapped outboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    outboxes: usize,
}

impl Held {
    pub(crate) fn by(pid: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        Self {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            outboxes: maps.lines().filter(|l| l.contains("partywall-outbox")).count(),
        }
    }

    /// Waits until the process holds no more than this again.
    pub(crate) fn wait_for(self, pid: u32) {
        let start = Instant::now();
        loop {
            let now = Self::by(pid);
            if now.descriptors <= self.descriptors && now.outboxes <= self.outboxes {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "left behind: {now:?}, before {self:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Files that Partywall could have left behind.
pub(crate) fn files() -> Vec<PathBuf> {
    let shm = std::fs::read_dir("/dev/shm").map(|d| d.flatten().map(|e| e.path()).collect());
    shm.unwrap_or_default()
}
