//! A child process that can also be printed as the shell line that repeats it.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long the output of a command may stay open after its end.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);
/// How long a command that is followed may write nothing: a test that hangs is named, and does not take
/// the time of all that comes after it.
const SILENCE_LIMIT: Duration = Duration::from_secs(15 * 60);

/// A command line with its environment and directory.
#[derive(Clone, Debug)]
pub(crate) struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    path_prefix: Option<PathBuf>,
    dir: Option<PathBuf>,
}

impl Cmd {
    /// A command without arguments.
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            path_prefix: None,
            dir: None,
        }
    }

    /// Appends arguments.
    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets one environment variable.
    pub(crate) fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Looks for programs in `dir` before PATH, here and in what the child starts.
    pub(crate) fn path_prefix(mut self, dir: &Path) -> Self {
        self.path_prefix = Some(dir.to_owned());
        self
    }

    /// Starts the child in `dir`.
    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Runs the command on this terminal.
    ///
    /// # Errors
    /// When it cannot start or does not succeed.
    pub(crate) fn run(&self) -> Result<()> {
        let status = self.build()?.status().with_context(|| format!("start {self}"))?;
        if !status.success() {
            bail!("`{self}` ended with {status}");
        }
        Ok(())
    }

    /// Runs the command and returns its standard output.
    ///
    /// # Errors
    /// When it cannot start, does not succeed or does not write UTF-8.
    pub(crate) fn read(&self) -> Result<String> {
        let mut command = self.build()?;
        command.stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("start {self}"))?;
        if !output.status.success() {
            bail!("`{self}` ended with {}", output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("output of `{self}`"))
    }

    /// Runs the command, hands each line of its output to `line` and passes it on to this
    /// program's output. Returns whether the command succeeded.
    ///
    /// # Errors
    /// Those of [`Cmd::follow`].
    pub(crate) fn stream(&self, mut line: impl FnMut(&str)) -> Result<bool> {
        let succeeded = self.follow(None, |text| {
            println!("{text}");
            line(text);
        })?;
        std::io::stdout().flush()?;
        Ok(succeeded)
    }

    /// Runs the command with both outputs in one pipe and hands each line to `line`. Returns
    /// whether the command succeeded; one that is killed at its limit did not.
    ///
    /// # Errors
    /// When it cannot start, when it writes nothing for 15 minutes, or when a process it started
    /// outlives it and keeps the pipe open.
    pub(crate) fn follow(&self, limit: Option<Duration>, line: impl FnMut(&str)) -> Result<bool> {
        self.follow_within(limit, SILENCE_LIMIT, line)
    }

    fn follow_within(
        &self,
        limit: Option<Duration>,
        silence: Duration,
        mut line: impl FnMut(&str),
    ) -> Result<bool> {
        let (reader, writer) = std::io::pipe()?;
        let mut child = {
            let mut command = self.build()?;
            command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
            command.spawn().with_context(|| format!("start {self}"))?
        };
        let begin = Instant::now();
        let lines = read_lines(reader);
        let mut ended: Option<Instant> = None;
        let mut last = (begin, String::new());
        loop {
            if limit.is_some_and(|limit| begin.elapsed() > limit) {
                child.kill()?;
            }
            if last.0.elapsed() > silence {
                child.kill()?;
                child.wait()?;
                bail!("`{self}` wrote nothing for {silence:?} after: {}", last.1);
            }
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    let text = text.trim_end_matches(['\r', '\n']);
                    line(text);
                    last = (Instant::now(), text.to_owned());
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if ended.is_none() && child.try_wait()?.is_some() {
                        ended = Some(Instant::now());
                    }
                    if ended.is_some_and(|since| since.elapsed() > LEFTOVER_LIMIT) {
                        bail!("`{self}` ended, but a process it started still holds its output");
                    }
                }
            }
        }
        Ok(child.wait()?.success())
    }

    /// Whether the command starts and succeeds; its output is dropped.
    pub(crate) fn succeeds(&self) -> bool {
        self.build().is_ok_and(|mut command| {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
    }

    fn build(&self) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        // `cargo run` describes this package in the environment; that must not reach children.
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&key);
            }
        }
        command.env_remove("CARGO");
        if let Some(first) = &self.path_prefix {
            let rest = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(first.clone()).chain(std::env::split_paths(&rest));
            let joined: OsString = std::env::join_paths(all).context("PATH")?;
            command.env("PATH", joined);
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        Ok(command)
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(dir) = &self.path_prefix {
            write!(f, "PATH={}:$PATH ", quoted(&dir.to_string_lossy()))?;
        }
        for (key, value) in &self.env {
            write!(f, "{key}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// Reads the pipe to its end, one message per line, line break included.
fn read_lines(pipe: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            if sender.send(std::mem::take(&mut bytes)).is_err() {
                break;
            }
        }
    });
    receiver
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_line_the_shell_can_repeat() {
        let cmd = Cmd::new("cargo").args(["test", "it's"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(cmd.to_string(), r"RUSTFLAGS='--cfg loom' cargo test 'it'\''s'");
        assert_eq!(Cmd::new("true").args([""]).to_string(), "true ''");
    }

    #[test]
    fn stream_sees_both_outputs_in_order_and_the_exit_code() {
        let script = "echo one; echo two >&2; echo three; exit 3";
        let mut lines = Vec::new();
        let ok = Cmd::new("sh").args(["-c", script]).stream(|l| lines.push(l.to_owned())).unwrap();
        assert!(!ok);
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let limit = Some(Duration::from_millis(100));
        let mut lines = Vec::new();
        let sleep = Cmd::new("sh").args(["-c", "echo one; exec sleep 20"]);
        assert!(!sleep.follow(limit, |l| lines.push(l.to_owned())).unwrap());
        assert_eq!(lines, ["one"]);
    }

    #[test]
    fn a_silent_command_is_killed_and_its_last_line_named() {
        let silence = Duration::from_millis(300);
        let sleep = Cmd::new("sh").args(["-c", "echo one; exec sleep 20"]);
        let error = sleep.follow_within(None, silence, |_| ()).unwrap_err().to_string();
        assert!(error.ends_with("wrote nothing for 300ms after: one"), "{error}");
    }

    #[test]
    fn a_process_left_behind_is_an_error() {
        let error = Cmd::new("sh").args(["-c", "sleep 20 & echo hi"]).stream(|_| ()).unwrap_err();
        assert!(error.to_string().contains("still holds"), "{error}");
    }

    #[test]
    fn failure_and_success_are_distinguished() {
        assert!(Cmd::new("true").run().is_ok());
        assert!(Cmd::new("false").run().is_err());
        assert!(Cmd::new("false").read().is_err());
        assert!(Cmd::new("no-such-program-here").run().is_err());
        assert!(!Cmd::new("no-such-program-here").succeeds());
    }
}
