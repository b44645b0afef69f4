//! The services that run: processes of their own, and domains of one launcher.
//!
//! ```text
//! process   started ------------------------------------------------> Ended
//! domain    Asked --Started--> Domain --its end, a call cut off-----> Ended, if it does not serve
//!             ^  \                |
//!             |   Failed          | it serves
//!             |      \            v
//!             `------ Waiting <---'    100 ms, doubling to 5 s; anew after 10 s without an end
//! ```
//!
//! [`Services::step`] waits for the next event and carries it out; whoever drops it before its end
//! misses none.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::time::{Duration, Instant};

use partywall_coordinator::Coordinator;
use partywall_coordinator::identity::Domain;
use partywall_coordinator::launch::{self, Known, Prepared};
use partywall_shm::spawn;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use super::backoff::Backoff;
use super::name;
use crate::isolation::Placement;
use crate::launcher::{Launcher, LauncherError, NotSent, Told};

/// How long a service may take to end after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// After this the launcher is asked again, when it has not read what it was asked before.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Why services cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    /// A service could not be started.
    #[error(transparent)]
    Launch(#[from] launch::LaunchError),
    /// A domain could not be started.
    #[error("service `{name}`: {}: {text}", program.display())]
    Domain {
        /// Its name.
        name: String,
        /// Its program.
        program: std::path::PathBuf,
        /// Why.
        text: String,
    },
    /// There is no launcher any more.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// A system call failed.
    #[error("watching services: {0}")]
    Io(#[from] std::io::Error),
}

/// One service.
pub(super) struct Running {
    /// Another one's `calls` name it.
    pub(super) serves: bool,
    has_served: bool,
    /// Tells when it serves its name for the first time.
    serving: Option<Receiver<()>>,
    start: launch::Service,
    placement: Placement,
    state: State,
    backoff: Backoff,
    /// How it ended last, if it has.
    last_end: Option<String>,
}

enum State {
    New,
    Process {
        child: Child,
        ended: AsyncFd<OwnedFd>,
    },
    /// The launcher has been asked for it.
    Asked(Known),
    Domain(OwnedFd),
    /// It is to be started again then.
    Waiting(Instant),
    /// For good; a domain that was ended because of a call has no status.
    Ended(Option<ExitStatus>),
}

impl Running {
    pub(super) fn new(start: launch::Service, placement: Placement, serves: bool) -> Self {
        let (has_served, serving) = (false, None);
        let (state, backoff, last_end) = (State::New, Backoff::default(), None);
        Self { serves, has_served, serving, start, placement, state, backoff, last_end }
    }

    pub(super) fn name(&self) -> &str {
        &self.start.name
    }

    /// How it has ended, if it has for good.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        match self.state {
            // A call in it was cut off; as if it had been aborted.
            State::Ended(status) => Some(status.unwrap_or_else(aborted)),
            _ => None,
        }
    }

    /// Whether it has ever served its name.
    pub(super) fn has_served(&mut self) -> bool {
        self.has_served |= self.serving.as_ref().is_some_and(|told| told.try_recv().is_ok());
        self.has_served
    }

    /// How it ended last, though it may be started again.
    pub(super) fn last_end(&self) -> Option<&str> {
        self.last_end.as_deref()
    }

    /// Whether it is started again when it ends: a domain that others call.
    pub(super) fn starts_again(&self) -> bool {
        self.serves && self.placement == Placement::Domain
    }

    fn is_over(&self) -> bool {
        !matches!(self.state, State::Process { .. } | State::Asked(_) | State::Domain(_))
    }

    fn signal(&self, signal: Signal) {
        let pidfd = match &self.state {
            State::Process { ended, .. } => ended.get_ref(),
            State::Domain(pidfd) => pidfd,
            _ => return,
        };
        // It may just have ended.
        let _ = rustix::process::pidfd_send_signal(pidfd.as_fd(), signal);
    }

    fn failed(&self, text: String) -> ServiceError {
        let (name, program) = (self.start.name.clone(), self.start.program.clone());
        ServiceError::Domain { name, program, text }
    }
}

fn aborted() -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    ExitStatus::from_raw(Signal::ABORT.as_raw())
}

/// All services of one `up`.
pub(super) struct Services<'c> {
    pub(super) coordinator: &'c Coordinator,
    pub(super) all: Vec<Running>,
    launcher: Option<Launcher>,
    /// What the coordinator is told of domains.
    domain: Domain,
    stopping: bool,
}

impl<'c> Services<'c> {
    pub(super) fn new(
        coordinator: &'c Coordinator,
        launcher: Option<Launcher>,
        domain: Domain,
    ) -> Self {
        Self { coordinator, all: Vec::new(), launcher, domain, stopping: false }
    }

    /// Starts a service and waits until it runs.
    pub(super) async fn start(&mut self, mut service: Running) -> Result<(), ServiceError> {
        let at = self.all.len();
        service.serving = service.serves.then(|| self.coordinator.serving(&name(service.name())));
        let placement = service.placement;
        self.all.push(service);
        if placement == Placement::Process {
            let child = launch::start(self.coordinator, &self.all[at].start)?;
            #[expect(deprecated, reason = "the safe form; an OwnedFd keeps its descriptor")]
            let ended = AsyncFd::new(spawn::pidfd(&child)?)?;
            self.all[at].state = State::Process { child, ended };
            return Ok(());
        }
        let prepared = launch::prepare(&self.all[at].start)?;
        self.ask(at, prepared).map_err(|text| self.all[at].failed(text))?;
        while matches!(self.all[at].state, State::Asked(_) | State::Waiting(_)) {
            self.step().await?;
        }
        Ok(())
    }

    /// Asks the launcher for a domain, now or in a moment.
    fn ask(&mut self, at: usize, prepared: Prepared) -> Result<(), String> {
        let launcher = self.launcher.as_ref().ok_or("there is no launcher any more")?;
        self.all[at].state = match launcher.ask(at as u32, prepared) {
            Ok(known) => State::Asked(known),
            Err(NotSent::Full) => State::Waiting(Instant::now() + ASK_AGAIN),
            Err(NotSent::Never(text)) => return Err(text),
        };
        Ok(())
    }

    /// Waits for the next event and carries it out.
    pub(super) async fn step(&mut self) -> Result<(), ServiceError> {
        let waits = self.all.iter().filter_map(|r| match r.state {
            State::Waiting(until) => Some(until),
            _ => None,
        });
        let next = waits.min();
        let launcher = &mut self.launcher;
        let told = async {
            match launcher {
                Some(launcher) => launcher.told().await,
                None => std::future::pending().await,
            }
        };
        let again = async {
            match next {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            at = first_end(&self.all) => {
                let running = &mut self.all[at?];
                if let State::Process { child, .. } = &mut running.state {
                    let status = child.wait()?;
                    running.last_end = Some(format!("ended with {status}"));
                    running.state = State::Ended(Some(status));
                }
            }
            told = told => self.carry_out(told?)?,
            () = again => self.start_again(),
        }
        Ok(())
    }

    fn carry_out(&mut self, told: Told) -> Result<(), ServiceError> {
        match told {
            Told::Started { service, pid, pidfd } => {
                let Some(r) = self.all.get_mut(service as usize) else { return Ok(()) };
                let copy = pidfd.try_clone()?;
                match std::mem::replace(&mut r.state, State::Domain(pidfd)) {
                    State::Asked(known) => {
                        known.started(self.coordinator, pid, copy, Some(self.domain));
                    }
                    other => r.state = other,
                }
                if self.stopping {
                    r.signal(Signal::TERM);
                }
            }
            Told::Failed { service, text } => {
                let Some(r) = self.all.get_mut(service as usize) else { return Ok(()) };
                if r.last_end.is_none() && !self.stopping {
                    r.state = State::Ended(None);
                    return Err(r.failed(text));
                }
                self.over(service as usize, None, format!("did not start: {text}"));
            }
            Told::Ended { service, status } => {
                let why = match status {
                    Some(status) => format!("ended with {status}"),
                    None => "is ended: a call in it ended in the middle".into(),
                };
                self.over(service as usize, status, why);
            }
        }
        Ok(())
    }

    /// A domain is gone: for good, or until its delay is over.
    fn over(&mut self, at: usize, status: Option<ExitStatus>, why: String) {
        let Some(r) = self.all.get_mut(at) else { return };
        r.state = State::Ended(status);
        if r.starts_again() && !self.stopping {
            let delay = r.backoff.next(Instant::now());
            crate::remark(&format!("partywall: `{}` {why}; started again in {delay:?}", r.name()));
            r.state = State::Waiting(Instant::now() + delay);
        }
        r.last_end = Some(why);
    }

    /// Starts what has waited for long enough.
    fn start_again(&mut self) {
        let now = Instant::now();
        for at in 0..self.all.len() {
            if !matches!(self.all[at].state, State::Waiting(until) if until <= now) {
                continue;
            }
            let prepared = launch::prepare(&self.all[at].start).map_err(|e| e.to_string());
            let asked = prepared.and_then(|prepared| self.ask(at, prepared));
            if let Err(text) = asked {
                self.over(at, None, format!("did not start: {text}"));
            }
        }
    }

    /// SIGTERM, a while, SIGKILL; and the end of the launcher.
    pub(super) async fn stop(mut self) {
        self.stopping = true;
        for r in &mut self.all {
            r.signal(Signal::TERM);
            if matches!(r.state, State::Waiting(_)) {
                r.state = State::Ended(None);
            }
        }
        let deadline = tokio::time::Instant::now() + STOP_WITHIN;
        if tokio::time::timeout_at(deadline, self.end_of_all()).await.is_err() {
            for r in self.all.iter().filter(|r| !r.is_over()) {
                crate::remark(&format!("partywall: `{}` does not stop; it is killed", r.name()));
                r.signal(Signal::KILL);
            }
            let _late = tokio::time::timeout(STOP_WITHIN, self.end_of_all()).await;
        }
        if let Some(launcher) = self.launcher {
            launcher.stop().await;
        }
    }

    async fn end_of_all(&mut self) {
        while self.all.iter().any(|r| !r.is_over()) {
            if self.step().await.is_err() {
                // The launcher is gone, and its domains with it: but for one that has changed its
                // user, for which the kernel forgets that (prctl(2), PR_SET_PDEATHSIG).
                self.launcher = None;
                for r in self.all.iter_mut().filter(|r| r.placement == Placement::Domain) {
                    r.signal(Signal::KILL);
                    r.state = State::Ended(None);
                }
            }
        }
    }
}

/// Which process has ended.
async fn first_end(all: &[Running]) -> std::io::Result<usize> {
    poll_fn(|cx| {
        for (at, running) in all.iter().enumerate() {
            if let State::Process { ended, .. } = &running.state
                && let Poll::Ready(ready) = ended.poll_read_ready(cx)
            {
                return Poll::Ready(ready.map(|_| at));
            }
        }
        Poll::Pending
    })
    .await
}
