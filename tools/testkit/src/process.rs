//! Child processes of tests: started with the path of a coordinator's socket, spoken to by lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::held::Moment;

/// A child that is killed with the value.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a program with these arguments after `--socket`, with more in its environment, and as
    /// another user if one is named.
    pub fn start(
        program: &str,
        socket: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        uid: Option<u32>,
    ) -> Self {
        Self::begin(&[program], socket, arguments, environment, uid)
    }

    /// A program by way of another one, whose first argument it is.
    pub fn begin(
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

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads one line of the child's output.
    pub fn line(&mut self) -> String {
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

    /// Waits until it says `ready`.
    pub fn ready(&mut self) {
        let line = self.line();
        if line != "ready" {
            panic!("it says `{line}`: {}", self.complained());
        }
    }

    /// Writes a line to its input.
    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for its end, which is to be a success.
    pub fn succeed(mut self) {
        self.stdin = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// It reads the end of its input.
    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Kills it and returns the moment of the kill, as this process sees it.
    pub fn kill(mut self) -> Moment {
        let at = Moment::here();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        at
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its standard error, once.
    pub fn stderr(&mut self) -> BufReader<std::process::ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    /// Voluntary context switches of all its threads.
    pub fn voluntary_switches(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks
            .map(|task| {
                let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
                let line =
                    status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
                line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
            })
            .sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
