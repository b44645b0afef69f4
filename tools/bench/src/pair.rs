//! Runs one sample: two fresh processes, here or in containers, watched, ended by id if they do not end
//! themselves.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::case::{Case, Clock, Place, Placement};
use crate::child::{Order, Report, Role};
use crate::contender::{Contender, Ends, Side};
use crate::control::{Control, GRACE};
use crate::engine::Containers;
use crate::error::Result;
use crate::launch::Launch;
use crate::others::Teller;
use crate::probe;
use crate::process::{Process, SLICE, await_exit, with_cause};
use crate::row::Figures;
use crate::seat::Sample;
use crate::stopwatch::Spans;
use crate::stuck::{self, Watch};
use crate::sys::clock::Ticker;
use crate::sys::cpu::Cpus;
use crate::sys::fd::inherit;
use crate::sys::stop::Stop;
use crate::text::Text;

/// How a sample ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was measured.
    Measured {
        /// Whether the cores were near; none where it does not matter.
        near: Option<bool>,
        /// What was measured.
        figures: Box<Figures>,
    },
    /// The probes were unclear or disagreed.
    Dropped,
    /// It did not end in time; what its processes were doing.
    Hung(String),
    /// The time of the whole run ended before its own.
    Cut,
    /// A side reported an error or died.
    Failed(String),
    /// The user asked for an end.
    Interrupted,
}

/// What every sample of a run shares.
#[derive(Debug)]
pub struct Runner {
    /// Where sides can be besides the host, if any contender's are. They go before the directory.
    pub containers: Option<Containers>,
    /// Holds a directory per sample.
    pub dir: TempDir,
    /// The clock.
    pub ticker: Ticker,
    /// Where samples run.
    pub cpus: Cpus,
    /// Asked for an end?
    pub stop: Stop,
    /// How long samples are.
    pub spans: Spans,
    /// How many samples were started.
    pub count: u64,
    /// When even a hanging sample must be over.
    pub hard_end: Option<Instant>,
    /// This program as one that can be a domain, if any contender needs it.
    pub image: Option<OwnedFd>,
}

/// What a watched client has reported and when it ended, or how the sample ended otherwise.
type Watched = std::result::Result<(Report, Instant), Outcome>;

impl Runner {
    /// Measures `case` once. Nothing of the sample is left afterwards.
    pub fn sample(
        &mut self,
        contender: &Contender,
        case: Case,
        text: Option<&Text>,
    ) -> Result<Outcome> {
        self.count += 1;
        let label = format!("pwb{}x{}", std::process::id(), self.count);
        let dir = self.dir.path().join(self.count.to_string());
        std::fs::create_dir(&dir)?;
        if case.place != Place::Host {
            readable(&dir)?;
        }
        let sockets = match case.place {
            Place::TwoContainers => {
                Containers::shared(self.dir.path()).join(self.count.to_string())
            }
            Place::Host | Place::ClientInContainer => dir.clone(),
        };
        if sockets != dir {
            std::fs::create_dir(&sockets)?;
            // The server is another user.
            std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777))?;
        }
        let outcome = self.run(contender, case, text, &label, [&dir, &sockets]);
        (contender.sweep)(&label);
        std::fs::remove_dir_all(&dir)?;
        if sockets != dir {
            std::fs::remove_dir_all(&sockets)?;
        }
        outcome
    }

    fn run(
        &self,
        contender: &Contender,
        case: Case,
        text: Option<&Text>,
        label: &str,
        [dir, sockets]: [&PathBuf; 2],
    ) -> Result<Outcome> {
        let sample = Sample {
            contender: contender.name.to_owned(),
            case,
            spans: self.spans,
            ticker: self.ticker,
            dir: dir.clone(),
            sockets: sockets.clone(),
            address: match &self.containers {
                Some(containers) => containers.address(case.place),
                None => Ipv4Addr::LOCALHOST,
            },
            label: label.to_owned(),
            text: text.cloned(),
        };
        let ends = match (contender.open)(&case) {
            Ok(ends) => ends,
            Err(error) => return Ok(Outcome::Failed(error.to_string())),
        };
        let inherited = Inherited::new(ends)?;
        let page = Control::map(&inherited.control)?;
        let limit = limit(&sample);
        let patience = match self.hard_end {
            Some(end) => limit.min(end.saturating_duration_since(Instant::now())),
            None => limit,
        };
        let paired = contender.serve.is_some();
        let order = |role| self.order(&inherited, &sample, role, paired);

        // Ended by its handle, when everything else is over.
        let mut attendant = None;
        if contender.attend.is_some() {
            let process = attendant.insert(Process::start("child", &order(Role::Attendant), &[])?);
            if Control::map(&inherited.attendant)?.await_ready(patience).is_err() {
                return Ok(match patience < limit {
                    true => Outcome::Cut,
                    false => Outcome::Failed(last_words(process)?),
                });
            }
        }
        let launched = contender.domains;
        let mut server = None;
        if paired && launched.is_none() {
            server = match self.start(&inherited, &order(Role::Server)) {
                Ok(process) => Some(process),
                Err(error) => return Ok(Outcome::Failed(error.to_string())),
            };
            if case.clock == Some(Clock::A) {
                // A server that fails here shows up in the watch below.
                let _ = page.await_ready(patience);
            }
        }
        let contained = server.as_ref().filter(|_| case.place != Place::Host);
        let _teller = match contained {
            Some(server) => Some(Teller::start(Control::map(&inherited.control)?, server.id())?),
            None => None,
        };
        let begun = Instant::now();
        let mut client = match launched {
            Some(isolation) => {
                let image = self.image.as_ref().ok_or("there is no program for domains")?;
                let image = image.try_clone()?;
                inherit(image.as_fd())?;
                let (server, client) = (order(Role::Server), order(Role::Client));
                Launch::new(image.as_raw_fd(), isolation, server, client).start()?
            }
            None => match self.start(&inherited, &order(Role::Client)) {
                Ok(process) => process,
                Err(error) => return Ok(Outcome::Failed(error.to_string())),
            },
        };
        drop(inherited);
        let watched = self.watch(&mut client, server.as_mut(), begun, limit)?;
        Ok(watched
            .map_or_else(|other| other, |(report, ended)| judge(case, &report, ended - begun)))
    }

    /// Starts the process of `order`, where the case has it.
    fn start(&self, fds: &Inherited, order: &Order) -> Result<Process> {
        let place = order.sample.case.place;
        let containers = self.containers.as_ref();
        match containers.and_then(|containers| containers.of(place, order.role)) {
            Some(porter) => Process::in_container(porter, order, &fds.of(order)?),
            None => Process::start("child", order, &[]),
        }
    }

    fn order(&self, fds: &Inherited, sample: &Sample, role: Role, paired: bool) -> Order {
        let mine = |side: Side| match role {
            Role::Client => side != Side::Server,
            Role::Server => side != Side::Client,
            Role::Attendant => false,
        };
        let number = |end: &(Side, OwnedFd)| end.1.as_raw_fd();
        let (reads, writes) = (fds.lifeline.0.as_raw_fd(), fds.lifeline.1.as_raw_fd());
        let (page, other_page) = (fds.control.as_raw_fd(), fds.attendant.as_raw_fd());
        let (control, lifeline, others) = match role {
            Role::Client => (page, Some(writes), vec![reads, other_page]),
            Role::Server => (page, Some(reads), vec![writes, other_page]),
            Role::Attendant => (other_page, None, vec![reads, writes, page]),
        };
        let not_mine = fds.ends.0.iter().filter(|end| !mine(end.0)).map(number);
        let cpu = match (sample.case.placement, role) {
            (Placement::Unpinned, _) | (_, Role::Attendant) => None,
            (Placement::TwoCores, Role::Server) if paired => self.cpus.second,
            _ => Some(self.cpus.first),
        };
        Order {
            sample: sample.clone(),
            role,
            driver: std::process::id(),
            cpu,
            control,
            lifeline,
            ends: fds.ends.0.iter().map(|end| mine(end.0).then(|| number(end))).collect(),
            close: not_mine.chain(others).collect(),
        }
    }

    /// Waits until both processes have ended, whatever that takes.
    fn watch(
        &self,
        client: &mut Process,
        mut server: Option<&mut Process>,
        begun: Instant,
        limit: Duration,
    ) -> Result<Watched> {
        let pids: Vec<u32> =
            [Some(&*client), server.as_deref()].into_iter().flatten().map(Process::id).collect();
        let mut time = Watch::new(begun, limit, &pids);
        let mut done: Option<(Report, Instant)> = None;
        while !client.is_over() || server.as_ref().is_some_and(|server| !server.is_over()) {
            if self.stop.requested() {
                return Ok(Err(Outcome::Interrupted));
            }
            let now = Instant::now();
            if self.hard_end.is_some_and(|end| now >= end) {
                return Ok(Err(Outcome::Cut));
            }
            if time.is_over(&pids) {
                let roles = ["client", "server"].iter().zip(&pids);
                let doing = roles.map(|(role, pid)| stuck::describe(role, *pid)).collect();
                return Ok(Err(Outcome::Hung(doing)));
            }
            let both: Vec<&Process> =
                [Some(&*client), server.as_deref()].into_iter().flatten().collect();
            let ends = [self.hard_end, Some(time.end())].into_iter().flatten();
            let next = ends.map(|end| end.saturating_duration_since(now)).filter(|d| !d.is_zero());
            await_exit(&both, next.fold(SLICE, Duration::min))?;
            let woke = Instant::now();
            if done.is_none()
                && let Some(status) = client.ended()?
            {
                match (self.failure(status, client, "client")?, server.as_deref_mut()) {
                    (Some(Outcome::Failed(error)), Some(server)) => {
                        return Ok(Err(Outcome::Failed(with_cause(server, &error)?)));
                    }
                    (Some(failed), _) => return Ok(Err(failed)),
                    (None, _) => done = Some((client.report()?, woke)),
                }
                time = Watch::new(woke, GRACE, &pids);
            }
            if let Some(server) = server.as_deref_mut()
                && !server.is_over()
                && let Some(status) = server.ended()?
                && let Some(failed) = self.failure(status, server, "server")?
            {
                return Ok(Err(failed));
            }
        }
        Ok(done.ok_or_else(|| Outcome::Failed("the client ended without a result".into())))
    }

    /// How a process that ended has failed, if it has.
    fn failure(
        &self,
        status: ExitStatus,
        process: &mut Process,
        who: &str,
    ) -> Result<Option<Outcome>> {
        if status.success() {
            return Ok(None);
        }
        if matches!(status.signal(), Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP)) {
            // Most likely the terminal sent the signal to everyone; this flag may lag behind.
            std::thread::sleep(SLICE);
            if self.stop.requested() {
                return Ok(Some(Outcome::Interrupted));
            }
        }
        let error = process.report()?.error.unwrap_or_else(|| status.to_string());
        Ok(Some(Outcome::Failed(format!("{who}: {error}"))))
    }
}

/// Lets containers read a directory, whatever the user's file mode creation mask.
pub fn readable(dir: &Path) -> Result<()> {
    Ok(std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?)
}

/// Why an attendant did not start.
fn last_words(attendant: &mut Process) -> Result<String> {
    await_exit(&[attendant], SLICE)?;
    let error = match attendant.ended()? {
        Some(_) => attendant.report()?.error.unwrap_or_default(),
        None => "not ready in time".into(),
    };
    Ok(format!("attendant: {error}"))
}

/// Descriptors that the two processes inherit; the driver closes them once both run.
struct Inherited {
    control: OwnedFd,
    attendant: OwnedFd,
    lifeline: (OwnedFd, OwnedFd),
    ends: Ends,
}

impl Inherited {
    fn new(ends: Ends) -> Result<Self> {
        let lifeline = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (control, attendant) = (Control::create()?, Control::create()?);
        let new = Self { control, attendant, lifeline, ends };
        let fixed =
            [&new.control, &new.attendant, &new.lifeline.0, &new.lifeline.1].map(AsFd::as_fd);
        for fd in fixed.into_iter().chain(new.ends.0.iter().map(|end| end.1.as_fd())) {
            inherit(fd)?;
        }
        Ok(new)
    }

    /// The descriptors of an order.
    fn of(&self, order: &Order) -> Result<Vec<BorrowedFd<'_>>> {
        let fixed = [&self.control, &self.attendant, &self.lifeline.0, &self.lifeline.1];
        let all = || fixed.into_iter().chain(self.ends.0.iter().map(|(_, end)| end));
        let find = |number| all().find(|fd| fd.as_raw_fd() == number).map(AsFd::as_fd);
        order.numbers().map(|number| Ok(find(number).ok_or("no such descriptor")?)).collect()
    }
}

/// When a sample counts as hung. Slow machines get five seconds more than the spans ask for, texts
/// another microsecond per word and call, and blocks 20 ns per byte and way.
fn limit(sample: &Sample) -> Duration {
    let spans = sample.spans.warm + sample.spans.sample;
    let words = sample.text.as_ref().map_or(0, |text| text.words);
    let passed = sample.case.clients.map_or(0, u64::from) * sample.case.size.unwrap_or(0);
    // Besides those of the sample: a warm-up, and some for the memory.
    let ways = 2 * (sample.spans.least + 5);
    spans * 2 + GRACE + Duration::from_micros(4 * words) + Duration::from_nanos(20 * passed * ways)
}

fn judge(case: Case, report: &Report, wall: Duration) -> Outcome {
    let Some(mut figures) = report.figures else {
        return Outcome::Failed("the client left no result".into());
    };
    if case.clock == Some(Clock::A) {
        figures.p50_ns = Some(report.wall_ns.map_or(wall.as_nanos() as f64, |ns| ns as f64));
        figures.p99_ns = None;
        figures.p999_ns = None;
        figures.per_s = None;
    }
    if !case.probed() {
        return Outcome::Measured { near: None, figures: Box::new(figures) };
    }
    match report.probes.and_then(|(before, after)| probe::tag(before, after)) {
        Some(near) => Outcome::Measured { near: Some(near), figures: Box::new(figures) },
        None => Outcome::Dropped,
    }
}
