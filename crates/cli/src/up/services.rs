//! The services that run: processes of their own, and domains of one launcher.
//!
//! ```text
//! process   started --its end---------------------------------------> Ended
//! domain    Asked --Started--> Domain --its end, a call cut off-----> Ended
//!             ^  \                |
//!             |   Failed          | it is started again
//!             |      \            v
//!             `------ Waiting <---'    100 ms, doubling to 5 s; anew after 10 s without an end
//! ```
//!
//! `restart` of the Compose file says what is started again; unless it does, a domain that others call.
//!
//! [`Services::step`] waits for the next event and carries it out; whoever drops it before its end
//! misses none.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::time::{Duration, Instant};

use partywall_coordinator::Coordinator;
use partywall_coordinator::identity::Domain;
use partywall_coordinator::launch::{self, Known, Prepared};
use partywall_shm::spawn::{self, Program};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use super::backoff::Backoff;
use super::orphans::Orphans;
use super::output::Output;
use super::record::{self, Record};
use super::{Stop, name};
use crate::compose::{Manners, Restart};
use crate::isolation::Placement;
use crate::launcher::{Event, Launcher, LauncherError, NotSent};

/// How long a service may take to end after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Why a service is killed when `up` is told to stop a second time.
const NO_TIME: &str = "has no more time to stop";
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
    manners: Manners,
    /// Which one it is, for the colour of its name.
    number: usize,
    /// How often it has ended.
    ends: u32,
    killed: bool,
    pid: Option<u32>,
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
    pub(super) fn new(
        start: launch::Service,
        manners: Manners,
        placement: Placement,
        serves: bool,
    ) -> Self {
        Self {
            serves,
            has_served: false,
            serving: None,
            start,
            manners,
            number: 0,
            ends: 0,
            killed: false,
            pid: None,
            placement,
            state: State::New,
            backoff: Backoff::default(),
            last_end: None,
        }
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

    /// Whether it may be started again when it ends.
    pub(super) fn starts_again(&self) -> bool {
        match self.manners.restart {
            Restart::Unsaid => self.serves && self.placement == Placement::Domain,
            Restart::No => false,
            Restart::Always => true,
            Restart::OnFailure(most) => most.is_none_or(|most| self.ends < most),
        }
    }

    /// Whether it is started again after this end.
    fn again_after(&self, status: Option<ExitStatus>) -> bool {
        let well = status.is_some_and(|s| s.success());
        self.starts_again() && !(well && matches!(self.manners.restart, Restart::OnFailure(_)))
    }

    fn grace(&self) -> Duration {
        self.manners.grace.unwrap_or(STOP_WITHIN)
    }

    fn record(&self) -> Record {
        let (state, pid) = match self.state {
            State::Process { .. } | State::Domain(_) => ("running", self.pid),
            State::New | State::Asked(_) => ("starting", None),
            State::Waiting(_) => ("waiting", None),
            State::Ended(_) => ("ended", None),
        };
        let runs_as = match self.placement {
            Placement::Process => "process",
            Placement::Domain => "domain",
        };
        let last_end = self.last_end.clone();
        Record {
            service: self.name().to_owned(),
            pid,
            runs_as: runs_as.into(),
            state: state.into(),
            serves: self.serves || self.has_served,
            ends: self.ends,
            last_end,
        }
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
    output: &'c Output,
    /// What `partywall ps` reads, and what it says by now.
    record: (PathBuf, Vec<Record>),
    /// What the coordinator is told of domains.
    domain: Domain,
    orphans: Orphans,
    stopping: bool,
}

impl<'c> Services<'c> {
    pub(super) fn new(
        coordinator: &'c Coordinator,
        launcher: Option<Launcher>,
        output: &'c Output,
        record: PathBuf,
        domain: Domain,
        orphans: Orphans,
    ) -> Self {
        let (record, all) = ((record, Vec::new()), Vec::new());
        Self { coordinator, all, launcher, output, record, domain, orphans, stopping: false }
    }

    /// Starts a service and waits until it runs.
    pub(super) async fn start(&mut self, mut service: Running) -> Result<(), ServiceError> {
        let at = self.all.len();
        service.serving = Some(self.coordinator.serving(&name(service.name())));
        service.number = self.output.number();
        let placement = service.placement;
        self.all.push(service);
        if placement == Placement::Process {
            self.start_process(at)?;
            self.write_down();
            return Ok(());
        }
        let prepared = launch::prepare(&self.all[at].start)?;
        self.ask(at, prepared).map_err(|text| self.all[at].failed(text))?;
        while matches!(self.all[at].state, State::Asked(_) | State::Waiting(_)) {
            self.step().await?;
        }
        Ok(())
    }

    fn start_process(&mut self, at: usize) -> Result<(), ServiceError> {
        let r = &self.all[at];
        let says = self.output.of(r.name(), r.number)?;
        let prepared = launch::prepare(&r.start)?;
        let Prepared { image, name, args, environment, directory, socket, known } = prepared;
        let socket = Some(socket);
        // As programs have it from a shell, however much this one may have itself: those that use
        // select(2) take no more than 1,024.
        let descriptors = crate::coordinator::descriptor_limit_before();
        let program = Program { image, name, args, environment, directory, socket, descriptors };
        let child = program.start_saying(says).map_err(|source| launch::LaunchError {
            name: r.start.name.clone(),
            program: r.start.program.clone(),
            step: "running",
            source,
        })?;
        let pid = child.id();
        known.started(self.coordinator, pid, spawn::pidfd(&child)?, None);
        #[expect(deprecated, reason = "the safe form; an OwnedFd keeps its descriptor")]
        let ended = AsyncFd::new(spawn::pidfd(&child)?)?;
        self.all[at].pid = Some(pid);
        self.all[at].state = State::Process { child, ended };
        Ok(())
    }

    /// Asks the launcher for a domain, now or in a moment.
    fn ask(&mut self, at: usize, prepared: Prepared) -> Result<(), String> {
        let launcher = self.launcher.as_ref().ok_or("there is no launcher any more")?;
        let r = &mut self.all[at];
        let says = self.output.of(r.name(), r.number);
        let says = says.map_err(|e| format!("pipes for its output: {e}"))?;
        r.state = match launcher.ask(at as u32, prepared, &says) {
            Ok(known) => State::Asked(known),
            Err(NotSent::Full) => State::Waiting(Instant::now() + ASK_AGAIN),
            Err(NotSent::Never(text)) => return Err(text),
        };
        Ok(())
    }

    /// Keeps what `partywall ps` tells up to date.
    fn write_down(&mut self) {
        let now: Vec<Record> = self.all.iter().map(Running::record).collect();
        let (path, said) = &mut self.record;
        if *said != now {
            if let Err(error) = record::write(path, &now) {
                tracing::warn!(%error, path = %path.display(), "`partywall ps` will not be right");
            }
            *said = now;
        }
    }

    /// Waits for the next event and carries it out.
    pub(super) async fn step(&mut self) -> Result<(), ServiceError> {
        let waits = self.all.iter().filter_map(|r| match r.state {
            State::Waiting(until) => Some(until),
            _ => None,
        });
        let next = waits.min();
        let launcher = &mut self.launcher;
        let next_event = async {
            match launcher {
                Some(launcher) => launcher.next_event().await,
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
                let at = at?;
                let running = &mut self.all[at];
                if let State::Process { child, .. } = &mut running.state {
                    let status = child.wait()?;
                    self.over(at, Some(status), format!("ended with {status}"));
                }
            }
            event = next_event => self.carry_out(event?)?,
            () = again => self.start_again(),
            () = self.orphans.ended() => {
                let launcher = self.launcher.iter().map(Launcher::pid);
                let ours: Vec<u32> = self.all.iter().filter_map(|r| r.pid).chain(launcher).collect();
                Orphans::collect(&ours);
            }
        }
        self.write_down();
        Ok(())
    }

    fn carry_out(&mut self, event: Event) -> Result<(), ServiceError> {
        match event {
            Event::Started { service, pid, pidfd } => {
                let Some(r) = self.all.get_mut(service as usize) else { return Ok(()) };
                let copy = pidfd.try_clone()?;
                r.pid = Some(pid);
                match std::mem::replace(&mut r.state, State::Domain(pidfd)) {
                    State::Asked(known) => {
                        known.started(self.coordinator, pid, copy, Some(self.domain));
                    }
                    other => r.state = other,
                }
                if self.stopping {
                    r.signal(r.manners.stop_signal);
                }
            }
            Event::Failed { service, text } => {
                let Some(r) = self.all.get_mut(service as usize) else { return Ok(()) };
                if r.last_end.is_none() && !self.stopping {
                    r.state = State::Ended(None);
                    return Err(r.failed(text));
                }
                self.over(service as usize, None, format!("did not start: {text}"));
            }
            Event::Ended { service, status } => {
                let why = match status {
                    Some(status) => format!("ended with {status}"),
                    None => "is ended: a call in it ended in the middle".into(),
                };
                self.over(service as usize, status, why);
            }
        }
        Ok(())
    }

    /// A service is gone: for good, or until its delay is over.
    fn over(&mut self, at: usize, status: Option<ExitStatus>, why: String) {
        let Some(r) = self.all.get_mut(at) else { return };
        r.state = State::Ended(status);
        let again = r.again_after(status);
        r.ends = r.ends.saturating_add(1);
        if again && !self.stopping {
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
            let started = match self.all[at].placement {
                Placement::Process => self.start_process(at).map_err(|e| e.to_string()),
                Placement::Domain => {
                    let prepared = launch::prepare(&self.all[at].start).map_err(|e| e.to_string());
                    prepared.and_then(|prepared| self.ask(at, prepared))
                }
            };
            if let Err(text) = started {
                self.over(at, None, format!("did not start: {text}"));
            }
        }
    }

    /// The signal to stop, a while, SIGKILL; and the end of the launcher. Whoever is told to stop
    /// once more waits no longer.
    pub(super) async fn stop(mut self, stop: &mut Stop) {
        self.stopping = true;
        for r in &mut self.all {
            r.signal(r.manners.stop_signal);
            if matches!(r.state, State::Waiting(_)) {
                r.state = State::Ended(None);
            }
        }
        let begin = Instant::now();
        let mut hurried = stop.hurries();
        if hurried {
            self.kill_all();
        }
        while let Some(end) = self.patience(begin) {
            tokio::select! {
                () = self.an_end() => {}
                () = tokio::time::sleep_until(end.into()) => {
                    if !self.kill(|r| begin + r.grace() <= Instant::now(), "does not stop") {
                        break;
                    }
                }
                _ = stop.wait(), if !hurried => {
                    hurried = true;
                    self.kill_all();
                }
            }
        }
        if let Some(launcher) = self.launcher {
            launcher.stop().await;
        }
    }

    /// Until when services may take to end; none when all have.
    fn patience(&self, begin: Instant) -> Option<Instant> {
        let left = self.all.iter().filter(|r| !r.is_over());
        let late = |r: &Running| if r.killed { STOP_WITHIN } else { Duration::ZERO };
        left.map(|r| begin + r.grace() + late(r)).min()
    }

    /// Kills what has not ended and is to be killed; false when there is nothing left to do.
    fn kill(&mut self, which: impl Fn(&Running) -> bool, why: &str) -> bool {
        let mut any = false;
        for r in self.all.iter_mut().filter(|r| !r.is_over() && !r.killed && which(r)) {
            crate::remark(&format!("partywall: `{}` {why}; it is killed", r.name()));
            r.signal(Signal::KILL);
            (r.killed, any) = (true, true);
        }
        any
    }

    /// Kills all services, and the launcher, which may not run and could not tell of their ends.
    fn kill_all(&mut self) {
        self.kill(|_| true, NO_TIME);
        self.launcher.iter_mut().for_each(Launcher::kill);
    }

    async fn an_end(&mut self) {
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
