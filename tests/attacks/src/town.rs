//! Victims: processes that use the library as it is, what they say, and what they write into their logs.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use partywall_testkit::{Conversation, PATIENCE};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

/// Where the programs of the victims are.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// `at-coordinator`.
    pub coordinator: &'static str,
    /// `at-service`.
    pub service: &'static str,
    /// `at-caller`.
    pub caller: &'static str,
}

/// A process that is attacked. It is killed with the value.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<String>,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Victim {
    /// Starts a program.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let (stdin, log) = (child.stdin.take(), Arc::new(Log::default()));
        let (sender, said) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ended = sender.send(line);
            }
        });
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let writes = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writes.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                writes.more.notify_all();
            }
        });
        Self { child, stdin, said, log }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its input.
    ///
    /// # Panics
    /// When it has ended.
    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("it listens");
    }

    /// The next line of its output.
    ///
    /// # Panics
    /// When none comes.
    pub fn line(&mut self) -> String {
        self.line_within(PATIENCE).unwrap_or_else(|| panic!("it says nothing; {:?}", self.logged()))
    }

    /// The next line of its output, if one comes within this time.
    pub fn line_within(&mut self, within: Duration) -> Option<String> {
        self.said.recv_timeout(within).ok()
    }

    /// What it answers to a line.
    pub fn asked(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// It reads the end of its input.
    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// What is in its log by now.
    pub fn logged(&self) -> Vec<String> {
        self.log.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first line of its log that has all of these in it.
    ///
    /// # Panics
    /// When none comes.
    pub fn logs(&self, words: &[&str]) -> String {
        self.logs_within(words, PATIENCE)
            .unwrap_or_else(|| panic!("no {words:?} in {:#?}", self.logged()))
    }

    /// The first line of its log that has all of these in it, if one comes within this time.
    pub fn logs_within(&self, words: &[&str], within: Duration) -> Option<String> {
        let until = Instant::now() + within;
        let mut lines = self.log.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = lines.iter().find(|l| words.iter().all(|word| l.contains(word))) {
                return Some(found.clone());
            }
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.log.more.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How it has ended, within the time that all have.
    ///
    /// # Panics
    /// When it goes on.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Has it stand still while this is done.
    ///
    /// # Panics
    /// When it has ended.
    pub fn while_stopped(&self, done: impl FnOnce()) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("a child");
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), stopped).expect("a child");
        done();
        kill_process(pid, Signal::CONT).expect("a child");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A coordinator, and whom it serves.
#[derive(Debug)]
pub struct Town {
    programs: Programs,
    dir: tempfile::TempDir,
    more: Vec<String>,
    /// The coordinator.
    pub coordinator: Victim,
}

impl Town {
    /// A coordinator with this policy. Its processes stay open to tests that look at what they hold.
    ///
    /// # Panics
    /// When it does not start.
    pub fn new(programs: Programs, policy: &str) -> Self {
        Self::with(programs, policy, &[])
    }

    /// One with more arguments; without an audit log unless they name one.
    ///
    /// # Panics
    /// When it does not start.
    pub fn with(programs: Programs, policy: &str, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let policy = format!("harden = false\n{policy}");
        std::fs::write(dir.path().join("policy.toml"), policy).expect("a file");
        let audit = dir.path().join("audit").to_str().expect("UTF-8").to_owned();
        let more = match more {
            [] => vec!["--audit".into(), audit],
            more => more.iter().map(|word| (*word).to_owned()).collect(),
        };
        let coordinator = coordinator(programs, dir.path(), &more);
        Self { programs, dir, more, coordinator }
    }

    /// Where the coordinator is.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    /// A file of this name beside the coordinator's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The coordinator is killed, and another one starts.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.coordinator.kill();
        self.coordinator = coordinator(self.programs, self.dir.path(), &self.more);
    }

    /// A service, which serves when this returns.
    pub fn service(&self, arguments: &[&str]) -> Victim {
        self.service_that(arguments, &[])
    }

    /// One with more in its environment.
    pub fn service_that(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Victim {
        let before = self.events("registered").len();
        let service = self.start(self.programs.service, arguments, environment);
        self.until("the service is registered", || self.events("registered").len() > before);
        service
    }

    /// A caller that has no channel yet.
    pub fn caller(&self, arguments: &[&str]) -> Victim {
        self.start(self.programs.caller, arguments, &[])
    }

    /// One with more in its environment.
    pub fn caller_that(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Victim {
        self.start(self.programs.caller, arguments, environment)
    }

    /// A caller of `test`, which has made a call.
    ///
    /// # Panics
    /// When that fails.
    pub fn witness(&self) -> Victim {
        let mut witness = self.caller(&[]);
        assert_eq!(witness.asked("open"), "open");
        assert_eq!(witness.asked("call 100"), "ok");
        witness
    }

    /// A program that is told where the coordinator is.
    pub fn start(&self, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Victim {
        let socket = self.socket();
        let arguments = [&["--socket", socket.to_str().expect("UTF-8")], arguments].concat();
        Victim::start(program, &arguments, environment)
    }

    /// A hostile process: the one that calls this.
    ///
    /// # Panics
    /// When the coordinator does not take it in.
    pub fn hostile(&self) -> Conversation {
        Conversation::open(&self.socket()).expect("a welcome")
    }

    /// Lines of the audit log with this event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file("audit")).unwrap_or_default();
        // The last one may be under way.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["event"] == event).collect()
    }

    /// The audit log's word that this process broke a rule on a link: by the other end, or with these words
    /// by the coordinator itself.
    ///
    /// # Panics
    /// When there is none, or somebody else is blamed.
    pub fn blamed(&self, link: u64, finding: Option<&str>) {
        let of_link = || self.events("blamed").into_iter().find(|line| line["link"] == link);
        self.until("a line of the audit log", || of_link().is_some());
        let line = of_link().expect("just found");
        assert_eq!(line["pid"], std::process::id(), "{line}");
        let text = line["text"].as_str().expect("a text");
        match finding {
            None => {
                assert_eq!(text, "the other end says that it broke a rule");
                assert!(line["said_by"].is_string(), "{line}");
            }
            Some(finding) => {
                assert!(text.contains(finding), "{text}");
                assert!(line["said_by"].is_null(), "{line}");
            }
        }
    }

    /// Waits for something.
    ///
    /// # Panics
    /// When it does not come.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            let late = begin.elapsed() > PATIENCE;
            assert!(!late, "no {what}; the coordinator says {:?}", self.coordinator.logged());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn coordinator(programs: Programs, dir: &Path, more: &[String]) -> Victim {
    let at = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let (socket, policy) = (at("c.sock"), at("policy.toml"));
    let mut arguments = vec!["--socket", &socket, "--policy", &policy];
    arguments.extend(more.iter().map(String::as_str));
    let mut coordinator = Victim::start(programs.coordinator, &arguments, &[]);
    let said = coordinator.line();
    assert_eq!(said, "ready", "{:?}", coordinator.logged());
    coordinator
}
