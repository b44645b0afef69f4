//! `partywall up`: build, start, watch, tell, stop.
//!
//! ```text
//! load -> plan -> build -> coordinator, launcher -> services, each when those it depends on serve
//!      -> the end
//! ```
//!
//! A service *serves* when another one's `calls` name it, or it has served its name. The end is when
//! all services that do not serve have ended: the exit status is that of the first of them, in start
//! order, that did not end well. One that others may call and that ends earlier ends everything as
//! well, unless it is started again ([`services`]); so do Ctrl-C, SIGTERM and SIGHUP (unless that is
//! ignored, as under nohup(1)), and the second time nothing is waited for. The services die with this
//! process, however it ends, and its directory is removed.

mod backoff;
mod orphans;
mod output;
pub(crate) mod record;
mod services;

use std::collections::BTreeSet;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use partywall_abi::name::ServiceName;
use partywall_coordinator::identity::Domain;
use partywall_coordinator::{Coordinator, Listen, Options, Policy, launch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::compose::{self, Compose, Condition, Service};
use crate::isolation::{self, Machine, Placement, Plan};
use crate::launcher::Launcher;
use crate::{build, coordinator, links};
use orphans::Orphans;
use output::Output;
use services::{Running, Services};

/// How long a service may take until it serves its name.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked whether a service serves.
const LOOK: Duration = Duration::from_millis(10);
/// How long the last lines of services may take to be written, for one who does not want to wait.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What services get of the variables of `up`, unless the file says otherwise.
const KEPT: [&str; 4] = ["PARTYWALL_LOG", "RUST_LOG", "RUST_BACKTRACE", "HOME"];

/// What is to be run, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The Compose file; services with `x-partywall` are run.
    file: PathBuf,
    /// Build and run debug builds.
    #[arg(long)]
    debug: bool,
    /// Tell at the end all that is known of each link, in wide lines.
    #[arg(long)]
    wide: bool,
}

/// Runs the services of a file.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    // The services die with the thread that starts them: this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(up(arguments));
    // A table that nobody takes does not keep it.
    runtime.shutdown_background();
    done
}

async fn up(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    coordinator::raise_descriptor_limit();
    coordinator::survive_limits_of_files()?;
    let run_dir = private_directory()?;
    let run_path = run_dir.path().to_str().ok_or("the directory for sockets is not UTF-8")?;
    let compose = load(&arguments.file, run_path)?;
    let plan = isolation::plan(&compose.services, &Machine::look())?;
    for note in compose.notes.iter().chain(&plan.notes) {
        crate::remark(&format!("note: {note}"));
    }
    let policy = policy(&compose)?;
    let domains: Vec<bool> = plan.placements.iter().map(|p| *p == Placement::Domain).collect();
    let (output, unsaid) = Output::start(compose.services.iter().map(|s| s.name.as_str()))?;
    let (running, coordinated) = oneshot::channel();
    let mut stop = Stop::new(unsaid, coordinated)?;
    let programs = build::build(&compose.services, &domains, !arguments.debug, compose.dir())?;
    let socket = run_dir.path().join("coordinator.sock");
    let orphans = Orphans::adopt()?;
    let options = Options {
        listen: Listen::At(socket.clone()),
        children_are_services: true,
        while_running: Some(Box::new(running)),
        ..Options::default()
    };
    let coordinator = Coordinator::start_with(policy, options)?;
    let launcher = match domains.contains(&true) {
        true => tokio::select! {
            launcher = Launcher::start(plan.isolation) => Some(launcher?),
            code = stop.wait() => return Ok(code),
        },
        false => None,
    };
    crate::remark("`partywall links`, `ps` and `domain` find this run, in another shell, by");
    crate::remark(&format!("export PARTYWALL_SOCKET={}", quoted(&socket)));
    let domain = Domain { launcher: 1, isolation: plan.isolation };
    let record = record::beside(&socket);
    let mut services = Services::new(&coordinator, launcher, &output, record, domain, orphans);
    let starts = starts(&compose, &plan, programs, run_path)?;
    let ended = match start_all(&compose, starts, &mut services, &mut stop).await {
        Ok(None) => watch(&mut services, &mut stop).await,
        Ok(Some(code)) => Ok(code),
        Err(e) => Err(e),
    };
    stop.or(output.catch_up(false)).await;
    let told = match &ended {
        Ok(_) if stop.said => {
            let told = who_called_whom(socket, arguments.wide);
            stop.or(told).await.unwrap_or(Ok(()))
        }
        _ => Ok(()),
    };
    services.stop(&mut stop).await;
    if stop.or(output.catch_up(true)).await.is_none() {
        // Whoever is in a hurry still has what was said, if it can be written.
        let _unwritten = tokio::time::timeout(LAST_WORDS, output.catch_up(true)).await;
    }
    let _freed = coordinator;
    told.and(ended)
}

/// As a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The Compose file, if `up` can run what it asks for.
fn load(file: &Path, run_path: &str) -> Result<Compose, Box<dyn Error>> {
    let compose = compose::load(file, &|name| match name {
        "PARTYWALL_RUN_DIR" => Some(run_path.to_string()),
        other => std::env::var(other).ok(),
    })?;
    if compose.services.is_empty() {
        let remedy = "add `x-partywall: {package: NAME}` to the services to run";
        return Err(format!("{}: no service has x-partywall; {remedy}", file.display()).into());
    }
    if let Some(s) = compose.services.iter().find(|s| s.link == compose::Link::Http2) {
        let remedy = "`up` links services on this host by rings; for HTTP/2 list the name under [names] of a policy";
        return Err(format!("{}: link http2: {remedy}", s.place).into());
    }
    Ok(compose)
}

async fn who_called_whom(socket: PathBuf, wide: bool) -> Result<(), Box<dyn Error>> {
    let tell = move || -> Result<(), String> {
        let links = partywall::links(Some(&socket)).map_err(|e| e.to_string())?;
        let table = match links.is_empty() {
            true => "nobody called anybody\n".into(),
            false => links::table(&links, wide),
        };
        crate::say(&format!("\nWho called whom:\n{table}\n")).map_err(|e| e.to_string())
    };
    Ok(tokio::task::spawn_blocking(tell).await??)
}

/// Ctrl-C, SIGTERM and SIGHUP, and a standard output that cannot be written.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    /// None when it was ignored at the start.
    hang_up: Option<Signal>,
    unsaid: oneshot::Receiver<std::io::Error>,
    /// Whether standard output could be written until now.
    said: bool,
    /// Closed at the end of the coordinator's thread.
    coordinated: oneshot::Receiver<()>,
    /// Whether it has run until now.
    coordinates: bool,
    /// How often a signal has come. From the second one on nothing is waited for.
    signals: u32,
}

impl Stop {
    fn new(
        unsaid: oneshot::Receiver<std::io::Error>,
        coordinated: oneshot::Receiver<()>,
    ) -> std::io::Result<Self> {
        let hang_up = match hang_up_is_ignored() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up,
            unsaid,
            said: true,
            coordinated,
            coordinates: true,
            signals: 0,
        })
    }

    /// The exit status that the signal asks for, as a shell would have it.
    async fn wait(&mut self) -> ExitCode {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        let code = tokio::select! {
            _ = self.interrupt.recv() => ExitCode::from(130),
            _ = self.terminate.recv() => ExitCode::from(143),
            _ = hang_up => ExitCode::from(129),
            Ok(error) = &mut self.unsaid, if self.said => {
                self.said = false;
                crate::remark(&format!("partywall: standard output: {error}; everything is stopped"));
                return ExitCode::FAILURE;
            }
            _ = &mut self.coordinated, if self.coordinates => {
                self.coordinates = false;
                crate::remark("partywall: the coordinator has failed; everything is stopped");
                return ExitCode::FAILURE;
            }
        };
        self.signals += 1;
        if self.signals == 1 {
            crate::remark("stopping; a second time kills what has not stopped");
        }
        code
    }

    /// Whether the signal has come a second time.
    fn hurries(&self) -> bool {
        self.signals > 1
    }

    /// What this comes to, unless everything is to stop before.
    async fn or<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        if self.hurries() {
            return None;
        }
        tokio::select! {
            biased;
            done = what => Some(done),
            _ = self.wait() => None,
        }
    }
}

/// As nohup(1) does: proc(5) has what this process ignores.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|hex| u64::from_str_radix(hex.trim(), 16).is_ok_and(|set| set & 1 != 0))
}

/// A directory that only this user can enter, removed at the end.
fn private_directory() -> std::io::Result<tempfile::TempDir> {
    let permissions = std::fs::Permissions::from_mode(0o700);
    let mut builder = tempfile::Builder::new();
    builder.prefix("partywall-").permissions(permissions);
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_dir()) {
        Some(dir) => builder.tempdir_in(dir),
        None => builder.tempdir(),
    }
}

/// What `calls` allows, and nothing else.
fn policy(compose: &Compose) -> Result<Policy, String> {
    let mut policy = Policy::default();
    policy.comes_from_compose(&compose.path.display().to_string());
    for service in &compose.services {
        policy.add_started(&service.name).map_err(|e| format!("{}: {e}", service.place))?;
        policy.allow_register(&service.name, &name(&service.name));
    }
    for service in &compose.services {
        for call in &service.calls {
            policy
                .allow_call(&service.name, &name(&call.service), call.method.clone())
                .map_err(|e| format!("{}: calls: `{}`: {e}", service.place, call.service))?;
        }
    }
    Ok(policy)
}

fn name(text: &str) -> ServiceName {
    ServiceName::new(text).expect("compose::load has checked it")
}

/// What is to be started, in order.
fn starts(
    compose: &Compose,
    plan: &Plan,
    programs: Vec<PathBuf>,
    run_path: &str,
) -> Result<Vec<Running>, Box<dyn Error>> {
    let serving: BTreeSet<&str> =
        compose.services.iter().flat_map(|s| &s.calls).map(|c| c.service.as_str()).collect();
    let directory = std::fs::canonicalize(compose.dir())?;
    let placed = plan.placements.iter().zip(programs);
    let start = |(service, (placement, program)): (&Service, (&Placement, PathBuf))| {
        let mut environment = service.environment.clone();
        environment.push(("PARTYWALL_RUN_DIR".into(), run_path.into()));
        for kept in KEPT {
            let said = environment.iter().any(|(name, _)| name == kept);
            if let (false, Ok(value)) = (said, std::env::var(kept)) {
                environment.push((kept.into(), value));
            }
        }
        let manners = service.manners.clone();
        let directory = match &manners.working_dir {
            Some(own) => {
                std::fs::canonicalize(&own.value).map_err(|e| format!("{}: {e}", own.place))?
            }
            None => directory.clone(),
        };
        let start = launch::Service {
            name: service.name.clone(),
            program,
            args: service.args.clone(),
            environment,
            directory,
        };
        Ok(Running::new(start, manners, *placement, serving.contains(service.name.as_str())))
    };
    let starts: Result<Vec<Running>, String> =
        compose.services.iter().zip(placed).map(start).collect();
    let starts = starts?;
    let again = |name: &str| starts.iter().any(|s| s.name() == name && s.starts_again());
    for service in &compose.services {
        let ends = |d: &&compose::Dependency| d.condition == Condition::CompletedSuccessfully;
        let mut awaited = service.depends_on.iter().filter(ends).map(|d| &d.service);
        if let Some(on) = awaited.find(|on| again(on)) {
            let (place, name) = (&service.place, &service.name);
            return Err(format!(
                "{place}: `{name}` waits for the end of `{on}`, which is started again when it ends; \
                 depend on it with service_started, or give `{on}` `restart: no`"
            )
            .into());
        }
    }
    Ok(starts)
}

/// Starts all of them; the exit status when it is told to stop.
async fn start_all(
    compose: &Compose,
    starts: Vec<Running>,
    services: &mut Services<'_>,
    stop: &mut Stop,
) -> Result<Option<ExitCode>, Box<dyn Error>> {
    for (service, start) in compose.services.iter().zip(starts) {
        for dependency in &service.depends_on {
            tokio::select! {
                may_start = await_dependency(service, dependency, services) => may_start?,
                code = stop.wait() => return Ok(Some(code)),
            }
        }
        tokio::select! {
            started = services.start(start) => started?,
            code = stop.wait() => return Ok(Some(code)),
        }
    }
    Ok(None)
}

async fn await_dependency(
    service: &Service,
    dependency: &compose::Dependency,
    services: &mut Services<'_>,
) -> Result<(), Box<dyn Error>> {
    let Some(at) = services.all.iter().position(|r| r.name() == dependency.service) else {
        // A service without x-partywall: a note has said that it is not awaited.
        return Ok(());
    };
    let (name_of, waits) = (&dependency.service, &service.name);
    if dependency.condition == Condition::CompletedSuccessfully {
        loop {
            if let Some(status) = services.all[at].status() {
                return match status.success() {
                    true => Ok(()),
                    false => {
                        Err(format!("`{waits}` depends on `{name_of}`, which ended with {status}")
                            .into())
                    }
                };
            }
            services.step().await?;
        }
    }
    if !services.all[at].serves {
        return Ok(());
    }
    let deadline = Instant::now() + SERVE_WITHIN;
    let serving = services.coordinator.serving(&name(name_of));
    while serving.try_recv().is_err() {
        let on = &mut services.all[at];
        let (has_served, again) = (on.has_served(), on.starts_again());
        if let Some(why) = on.last_end().filter(|_| !has_served) {
            return Err(format!("`{name_of}` {why} before it served its name").into());
        }
        if let Some(why) = on.last_end().filter(|_| !again) {
            return Err(format!("`{waits}` depends on `{name_of}`, which {why}").into());
        }
        tokio::select! {
            happened = services.step() => happened?,
            () = tokio::time::sleep(LOOK) => {}
        }
        if Instant::now() > deadline {
            let remedy = match services.all[at].last_end() {
                Some(why) => format!("it {why}"),
                None => format!("does it call serve(\"{name_of}\")?"),
            };
            return Err(format!(
                "`{name_of}` does not serve its name within {SERVE_WITHIN:?}; {remedy}"
            )
            .into());
        }
    }
    Ok(())
}

/// Waits for the end of the run.
async fn watch(services: &mut Services<'_>, stop: &mut Stop) -> Result<ExitCode, Box<dyn Error>> {
    let only_servers = services.all.iter().all(|r| r.serves);
    if only_servers {
        crate::remark("serving; Ctrl-C stops");
    } else {
        let ends = services.all.iter().filter(|r| !r.serves).map(|r| format!("`{}`", r.name()));
        let ends = ends.collect::<Vec<_>>().join(", ");
        crate::remark(&format!("running until the end of {ends}; Ctrl-C stops"));
    }
    let mut told = BTreeSet::new();
    loop {
        for (at, r) in services.all.iter().enumerate() {
            let Some(status) = r.status().filter(|_| told.insert(at)) else { continue };
            if r.serves {
                return Err(format!("`{}` serves and has ended with {status}", r.name()).into());
            }
            if !status.success() {
                crate::remark(&format!("partywall: `{}` ended with {status}", r.name()));
            }
        }
        let mut others: Vec<&mut Running> = services.all.iter_mut().filter(|r| !r.serves).collect();
        let over = others.iter().any(|r| r.status().is_some());
        if over && others.iter_mut().all(|r| r.status().is_some() || r.has_served()) {
            let failed = others.iter().find(|r| r.status().is_some_and(|s| !s.success()));
            return Ok(failed.map_or(ExitCode::SUCCESS, |r| exit_code(r)));
        }
        tokio::select! {
            happened = services.step() => happened?,
            // One of those that are left may serve by now.
            () = tokio::time::sleep(LOOK), if over => {}
            code = stop.wait() => return Ok(code),
        }
    }
}

fn exit_code(r: &Running) -> ExitCode {
    let code = r.status().and_then(|s| s.code().or_else(|| Some(128 + s.signal()?)));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
