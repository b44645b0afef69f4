//! Compose as a command, with all files of a run.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::engine::Engine;
use super::run_dir::{Record, RunDir};

/// Compose, with all files of a run.
pub(super) struct Compose {
    program: &'static str,
    arguments: Vec<OsString>,
    /// The engine that `up` has used, whatever the environment says now.
    host: Option<OsString>,
}

impl Compose {
    pub(super) fn new(record: &Record, dir: &RunDir) -> Self {
        let (program, first) = match record.engine {
            Engine::Plugin => ("docker", Some("compose")),
            Engine::Command => ("docker-compose", None),
        };
        let mut arguments: Vec<OsString> = first.map(Into::into).into_iter().collect();
        arguments.extend(["-p".into(), dir.project().into()]);
        for file in record.files.iter().chain([&dir.last_file()]) {
            arguments.extend(["-f".into(), file.into()]);
        }
        let host = record.api.as_ref().map(|api| {
            let mut host = OsString::from("unix://");
            host.push(api);
            host
        });
        Self { program, arguments, host }
    }

    /// Runs it to its end, and interrupts it each time that `stop` has an exit status, which is that of the
    /// first time then. The exit status, if that was no success.
    ///
    /// It has a session of its own (setsid(1)), so that a signal of the terminal comes to this process alone,
    /// and is passed on once. A terminal that stops background processes which write to it
    /// (`stty tostop`) does not stop it.
    pub(super) async fn run(
        &self,
        order: &[&str],
        mut stop: impl AsyncFnMut() -> ExitCode,
    ) -> Result<Option<ExitCode>, Box<dyn Error>> {
        let mut command = tokio::process::Command::new("setsid");
        command.arg(self.program).args(&self.arguments).args(order).stdin(Stdio::null());
        // Its menu would want the terminal.
        command.env("COMPOSE_MENU", "false");
        command.envs(self.host.iter().map(|host| ("DOCKER_HOST", host)));
        let failed = |e| format!("{} {}: {e}", self.program, order.join(" "));
        let mut child = command.spawn().map_err(failed)?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32));
        let mut told = None;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(failed)?,
                code = stop() => {
                    told.get_or_insert(code);
                    if let Some(group) = group {
                        // It may have ended just now, or its session has not begun.
                        let alone = |_| kill_process(group, Signal::INT);
                        let _ended = kill_process_group(group, Signal::INT).or_else(alone);
                    }
                }
            }
        };
        Ok(told.or_else(|| (!status.success()).then(|| code(status))))
    }
}

/// As a shell has it.
fn code(status: ExitStatus) -> ExitCode {
    let number = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}
