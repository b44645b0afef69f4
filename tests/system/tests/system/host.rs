//! A coordinator in this process, children, and what this process holds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partywall::Channel;
use partywall_abi::name::ServiceName;
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
    coordinator: Coordinator,
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
        Self { socket, coordinator, _dir: dir }
    }

    /// Waits until `test` is served.
    pub(crate) fn until_served(&self) {
        let name = ServiceName::new("test").unwrap();
        self.coordinator.serving(&name).recv_timeout(Duration::from_secs(10)).unwrap();
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
        socket: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        uid: Option<u32>,
    ) -> Self {
        Self::begin(&[program], socket, arguments, environment, uid)
    }

    /// A program by way of another one, whose first argument it is.
    pub(crate) fn begin(
        program: &[&str],
        socket: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        uid: Option<u32>,
    ) -> Self {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg("--socket").arg(socket).args(arguments);
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
            panic!("the child has ended: {}", self.complained());
        }
        line.trim().to_string()
    }

    /// What it has said on its standard error until its end, which is near.
    fn complained(&mut self) -> String {
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut text);
        text
    }

    pub(crate) fn ready(&mut self) {
        let line = self.line();
        if line != "ready" {
            panic!("it says `{line}`: {}", self.complained());
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for its end, which is to be a success.
    pub(crate) fn succeed(mut self) {
        self.stdin = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// It reads the end of its input.
    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Kills it and returns the moment of the kill, as this process sees it.
    pub(crate) fn kill(mut self) -> Moment {
        let at = Moment::here();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        at
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
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

/// User and system time of a process so far.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let field = |n: usize| after_name.split(' ').nth(n - 3).unwrap().parse::<u64>().unwrap();
    let ticks = field(14) + field(15);
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
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

/// A moment, and how long each thread of a process had waited for a CPU until then: what others of a
/// busy machine take from them is no part of how long the process takes.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    at: Instant,
    waited: BTreeMap<PathBuf, Duration>,
}

impl Moment {
    pub(crate) fn of(pid: u32) -> Self {
        let at = Instant::now();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread that has just ended says nothing.
        let waited = |task: std::io::Result<std::fs::DirEntry>| {
            let task = task.ok()?.path();
            let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
            Some((task, Duration::from_nanos(times.split(' ').nth(1)?.parse().ok()?)))
        };
        Self { at, waited: tasks.filter_map(waited).collect() }
    }

    pub(crate) fn here() -> Self {
        Self::of(std::process::id())
    }

    /// The time from `earlier`, less what the thread that waited longest for a CPU has waited since
    /// then: threads that wait at the same time hold the process up once.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let since = |(task, waited): (&PathBuf, &Duration)| {
            waited.saturating_sub(earlier.waited.get(task).copied().unwrap_or_default())
        };
        let waited = self.waited.iter().map(since).max().unwrap_or_default();
        self.at.saturating_duration_since(earlier.at).saturating_sub(waited)
    }
}

/// What a process holds: its descriptors by kind (`socket`, `memfd:partywall-outbox (deleted)`, the
/// path of a file), and mapped outboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: BTreeMap<String, usize>,
    outboxes: usize,
}

impl Held {
    pub(crate) fn by(pid: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut descriptors = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
            // The directory that is being read is closed again.
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            // Numbers of sockets and pipes differ each time.
            let kind = target.split_once(":[").map_or(target.as_str(), |(kind, _)| kind);
            *descriptors.entry(kind.to_owned()).or_default() += 1;
        }
        let outboxes = maps.lines().filter(|l| l.contains("partywall-outbox")).count();
        Self { descriptors, outboxes }
    }

    /// How many descriptors are of files with `name` in their path.
    pub(crate) fn descriptors_of(&self, name: &str) -> usize {
        let of_name = self.descriptors.iter().filter(|(kind, _)| kind.contains(name));
        of_name.map(|(_, count)| count).sum()
    }

    /// What it holds that `before` did not.
    pub(crate) fn beyond(&self, before: &Self) -> Vec<String> {
        let more = |(kind, count): (&String, &usize)| {
            let known = before.descriptors.get(kind).copied().unwrap_or(0);
            (*count > known).then(|| format!("{} of {kind}", count - known))
        };
        let mut found: Vec<String> = self.descriptors.iter().filter_map(more).collect();
        if self.outboxes > before.outboxes {
            found.push(format!("{} mapped outboxes", self.outboxes - before.outboxes));
        }
        found
    }

    /// Waits until the process holds no more than this again; how long that took, less what the
    /// process waited for a CPU.
    pub(crate) fn wait_for(&self, pid: u32) -> Duration {
        let start = Moment::of(pid);
        loop {
            let left = Self::by(pid).beyond(self);
            let took = Moment::of(pid).since(&start);
            if left.is_empty() {
                return took;
            }
            assert!(took < Duration::from_secs(5), "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What is left outside of processes: files in the directory of the coordinator's socket and
/// directories that Partywall makes for a run, and names in `/dev/shm`.
pub(crate) fn left_in_files(host: &Host) -> BTreeSet<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    };
    let temporary = list(&std::env::temp_dir()).into_iter();
    let ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("partywall"))
    };
    let shared = list(Path::new("/dev/shm")).into_iter();
    let own = list(host.socket.parent().unwrap());
    temporary.filter(ours).chain(shared.filter(ours)).chain(own).collect()
}
