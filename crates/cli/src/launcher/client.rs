//! `up`'s side of the conversation with its launcher.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use partywall_abi::security::Isolation;
use partywall_coordinator::launch::{Known, Prepared};
use partywall_shm::spawn::Program;
use partywall_shm::{memory, socket};
use tokio::io::unix::AsyncFd;

use super::protocol::{Ended, LONGEST, Report, Start, encode, receive};

/// How long a launcher may take until it says that it can hold domains.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long one may take to end when it is to.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Why there is no launcher any more, or none yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherError {
    /// A system call failed.
    #[error("the launcher of domains: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot hold domains.
    #[error(
        "the launcher cannot hold domains: {text}; write `link: ring` (see `partywall doctor`)"
    )]
    Unfit {
        /// Why.
        text: String,
    },
    /// It has ended.
    #[error("the launcher has ended ({status}), and with it all domains; everything is stopped")]
    Gone {
        /// How.
        status: ExitStatus,
    },
    /// It said what it should not.
    #[error("the launcher of domains {0}; everything is stopped")]
    Odd(&'static str),
}

/// What a launcher reports of a service.
pub(crate) enum Event {
    /// It runs.
    Started {
        /// The service.
        service: u32,
        /// Its process number.
        pid: u32,
        /// Its pidfd.
        pidfd: OwnedFd,
    },
    /// It did not start.
    Failed {
        /// The service.
        service: u32,
        /// Why.
        text: String,
    },
    /// It is gone.
    Ended {
        /// The service.
        service: u32,
        /// How it ended; none when it was ended because a call in it was cut off.
        status: Option<ExitStatus>,
    },
}

/// A launcher that runs.
pub(crate) struct Launcher {
    child: Child,
    socket: AsyncFd<OwnedFd>,
}

/// Why a start was not asked for.
pub(crate) enum NotSent {
    /// The launcher has not read the requests before; again in a moment.
    Full,
    /// It cannot be asked for, or the launcher is gone.
    Never(String),
}

impl Launcher {
    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts one and waits until it can hold domains that are kept apart so, as [`crate::isolation::plan`]
    /// has found out. It ends with the calling thread.
    pub(crate) async fn start(isolation: Isolation) -> Result<Self, LauncherError> {
        let io = |what: &'static str| move |source| LauncherError::Io { what, source };
        let asked = match isolation {
            Isolation::None => Isolation::None,
            _ => Isolation::ProtectionKeys,
        };
        let own = std::fs::read("/proc/self/exe").map_err(io("reading this program"))?;
        let image = memory::sealed_copy("partywall", &own).map_err(io("sealing this program"))?;
        drop(own);
        let (ours, theirs) = socket::pair().map_err(io("making a socket"))?;
        let kept = ["PARTYWALL_LOG", "RUST_LOG", "RUST_BACKTRACE"];
        let kept = kept.iter().filter_map(|k| Some((OsString::from(k), std::env::var_os(k)?)));
        let tunables = ("GLIBC_TUNABLES".into(), "glibc.pthread.rseq=0".into());
        let program = Program {
            image,
            name: "partywall".into(),
            args: vec!["launcher".into(), asked.to_string().into()],
            environment: kept.chain([tunables]).collect(),
            directory: "/".into(),
            socket: Some(theirs),
            descriptors: None,
        };
        let child = program.start().map_err(io("running this program again"))?;
        #[expect(deprecated, reason = "the safe form; an OwnedFd keeps its descriptor")]
        let socket = AsyncFd::new(ours).map_err(io("watching its socket"))?;
        let mut launcher = Self { child, socket };
        match tokio::time::timeout(READY_WITHIN, launcher.report()).await {
            Ok(Ok((Report::Ready { isolation: found }, _))) if found == isolation.to_string() => {
                Ok(launcher)
            }
            Ok(Ok((Report::Ready { .. }, _))) => {
                Err(LauncherError::Odd("has found another isolation than this program has"))
            }
            Ok(Ok((Report::Unfit { text }, _))) => Err(LauncherError::Unfit { text }),
            Ok(Ok(_)) => Err(LauncherError::Odd("does not begin with a word on itself")),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(LauncherError::Odd("does not begin in time")),
        }
    }

    /// Asks for a domain with this standard output and standard error; what becomes of that,
    /// [`Launcher::next_event`] says.
    pub(crate) fn ask(
        &self,
        service: u32,
        prepared: Prepared,
        [out, errors]: &[OwnedFd; 2],
    ) -> Result<Known, NotSent> {
        let text = |text: &OsString| {
            text.clone().into_string().map_err(|text| {
                let remedy = "domains take UTF-8 in arguments and environment; change it";
                NotSent::Never(format!("`{}` is no UTF-8: {remedy}", text.display()))
            })
        };
        let args = [&prepared.name].into_iter().chain(&prepared.args).map(text);
        let environment = prepared.environment.iter().map(|(k, v)| Ok((text(k)?, text(v)?)));
        let start = Start {
            service,
            args: args.collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            directory: prepared.directory.clone(),
        };
        let packet = encode(&start).map_err(|bytes| {
            NotSent::Never(format!(
                "its arguments and environment are {bytes} bytes long, and a domain takes \
                 {LONGEST}; put them into a file"
            ))
        })?;
        let descriptors =
            [prepared.image.as_fd(), prepared.socket.as_fd(), out.as_fd(), errors.as_fd()];
        match socket::send(self.socket.get_ref().as_fd(), &packet, &descriptors) {
            Ok(()) => Ok(prepared.known),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(NotSent::Full),
            Err(e) => Err(NotSent::Never(format!("asking the launcher: {e}"))),
        }
    }

    /// Waits for the next event of a service. What is dropped before its end has taken nothing.
    pub(crate) async fn next_event(&mut self) -> Result<Event, LauncherError> {
        match self.report().await? {
            (Report::Started { service, pid }, mut fds) => match (fds.pop(), fds.len()) {
                (Some(pidfd), 0) => Ok(Event::Started { service, pid, pidfd }),
                _ => Err(LauncherError::Odd("tells of a domain without its pidfd")),
            },
            (Report::Failed { service, text }, _) => Ok(Event::Failed { service, text }),
            (Report::Ended(ended), _) => {
                let Ended { service, status, poisoned, calls, forwards, ticks, away } = ended;
                tracing::debug!(
                    service,
                    poisoned,
                    calls,
                    forwards,
                    ticks,
                    away,
                    "a domain is gone"
                );
                let status = status.map(ExitStatus::from_raw);
                Ok(Event::Ended { service, status })
            }
            (Report::Ready { .. } | Report::Unfit { .. }, _) => {
                Err(LauncherError::Odd("speaks of itself in the middle"))
            }
        }
    }

    async fn report(&mut self) -> Result<(Report, Vec<OwnedFd>), LauncherError> {
        let io = |what: &'static str| move |source| LauncherError::Io { what, source };
        loop {
            let mut ready = self.socket.readable().await.map_err(io("waiting for its report"))?;
            match receive(ready.get_inner().as_fd()) {
                Ok(Some(report)) => return Ok(report),
                Ok(None) => break,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(e) => return Err(io("reading its report")(e)),
            }
        }
        let status = self.child.wait().map_err(io("waiting for its end"))?;
        Err(LauncherError::Gone { status })
    }

    /// Kills it and all that runs in it; its end is told as any other.
    pub(crate) fn kill(&mut self) {
        let _ended = self.child.kill();
    }

    /// Ends it; what still runs in it is killed.
    pub(crate) async fn stop(self) {
        let Self { mut child, socket } = self;
        drop(socket);
        let deadline = tokio::time::Instant::now() + STOP_WITHIN;
        while matches!(child.try_wait(), Ok(None)) {
            if tokio::time::Instant::now() > deadline {
                let _ended = child.kill();
                let _status = child.wait();
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
