//! What ends an `up`: a signal, a standard output that cannot be written, a coordinator that failed.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How long the last lines may take to be written once a signal has come.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Ctrl-C, SIGTERM, SIGQUIT and SIGHUP. From its making on none of them ends this process by itself.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    /// None when it was ignored at the start.
    hang_up: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let hang_up = match hang_up_is_ignored() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up,
        })
    }

    /// The exit status that the next one asks for, as a shell would have it.
    pub(crate) async fn next(&mut self) -> ExitCode {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::from(130),
            _ = self.terminate.recv() => ExitCode::from(143),
            _ = self.quit.recv() => ExitCode::from(131),
            _ = hang_up => ExitCode::from(129),
        }
    }
}

/// A signal, and the two failures that end everything.
pub(crate) struct Stop {
    signals: Signals,
    unsaid: oneshot::Receiver<io::Error>,
    /// Whether standard output could be written until now.
    said: bool,
    /// Closed at the end of the coordinator's thread.
    coordinated: oneshot::Receiver<()>,
    /// Whether it has run until now.
    coordinates: bool,
    /// How often a signal has come. From the second one on nothing is waited for.
    count: u32,
}

impl Stop {
    pub(crate) fn new(
        unsaid: oneshot::Receiver<io::Error>,
        coordinated: oneshot::Receiver<()>,
    ) -> io::Result<Self> {
        let signals = Signals::new()?;
        Ok(Self { signals, unsaid, said: true, coordinated, coordinates: true, count: 0 })
    }

    /// The exit status that the signal asks for, as a shell would have it.
    pub(crate) async fn wait(&mut self) -> ExitCode {
        let code = tokio::select! {
            code = self.signals.next() => code,
            Ok(error) = &mut self.unsaid, if self.said => {
                self.is_unheard(&error);
                return ExitCode::FAILURE;
            }
            _ = &mut self.coordinated, if self.coordinates => {
                self.coordinates = false;
                crate::remark("partywall: the coordinator has failed; everything is stopped");
                return ExitCode::FAILURE;
            }
        };
        self.count += 1;
        if self.count == 1 {
            crate::remark("stopping; a second time kills what has not stopped");
        }
        code
    }

    /// Whether the signal has come a second time.
    pub(crate) fn hurries(&self) -> bool {
        self.count > 1
    }

    /// Whether all of standard output that was to be written until now could be.
    pub(super) fn is_heard(&mut self) -> bool {
        if self.said
            && let Ok(error) = self.unsaid.try_recv()
        {
            self.is_unheard(&error);
        }
        self.said
    }

    fn is_unheard(&mut self, error: &io::Error) {
        self.said = false;
        crate::remark(&format!("partywall: standard output: {error}; everything is stopped"));
    }

    /// What this comes to. Once a signal has come it may take [`LAST_WORDS`], and none after that.
    pub(super) async fn last<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(what);
        while self.count == 0 {
            tokio::select! {
                biased;
                done = &mut what => return Some(done),
                _ = self.wait() => {}
            }
        }
        tokio::time::timeout(LAST_WORDS, what).await.ok()
    }
}

/// As nohup(1) does: proc(5) has what this process ignores.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|hex| u64::from_str_radix(hex.trim(), 16).is_ok_and(|set| set & 1 != 0))
}
