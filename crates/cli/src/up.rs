//! `partywall up`: build, start, watch, tell, stop.
//!
//! ```text
//! load -> plan -> build -> coordinator, launcher -> services, each when those it depends on serve
//!      -> the end
//! ```
//!
//! A service *serves* when another one's `calls` name it. The end is when all services that do
//! not serve have ended: the exit status is that of the first of them, in start order, that did
//! not end well. A service that serves and ends earlier, or Ctrl-C, ends everything as well; but a
//! domain that serves is started again ([`services`]). The services die with this process, however
//! it ends, and its directory is removed.

mod backoff;
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
use partywall_coordinator::{Coordinator, Policy, launch};
use tokio::signal::unix::{SignalKind, signal};

use crate::compose::{self, Compose, Condition, Service};
use crate::isolation::{self, Machine, Placement, Plan};
use crate::launcher::Launcher;
use crate::{build, coordinator, links};
use services::{Running, Services};

/// How long a service may take until it serves its name.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked whether a service serves.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the services of `file`.
pub(crate) fn run(file: &Path, release: bool) -> Result<ExitCode, Box<dyn Error>> {
    // The services die with the thread that starts them: this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(up(file, release))
}

async fn up(file: &Path, release: bool) -> Result<ExitCode, Box<dyn Error>> {
    coordinator::raise_descriptor_limit();
    let mut stop = Stop::new()?;
    let run_dir = private_directory()?;
    let run_path = run_dir.path().to_str().ok_or("the directory for sockets is not UTF-8")?;
    let compose = load(file, run_path)?;
    let plan = isolation::plan(&compose.services, &Machine::look())?;
    for note in compose.notes.iter().chain(&plan.notes) {
        crate::remark(&format!("note: {note}"));
    }
    let policy = policy(&compose)?;
    let domains: Vec<bool> = plan.placements.iter().map(|p| *p == Placement::Domain).collect();
    let programs = build::build(&compose.services, &domains, release, compose.dir())?;
    let socket = run_dir.path().join("coordinator.sock");
    let coordinator = Coordinator::start(Some(&socket), policy)?;
    let launcher = match domains.contains(&true) {
        true => tokio::select! {
            launcher = Launcher::start(plan.isolation) => Some(launcher?),
            code = stop.wait() => return Ok(code),
        },
        false => None,
    };
    let mut services =
        Services::new(&coordinator, launcher, Domain { launcher: 1, isolation: plan.isolation });
    let starts = starts(&compose, &plan, programs, run_path)?;
    let ended = match start_all(&compose, starts, &mut services, &mut stop).await {
        Ok(None) => watch(&mut services, &mut stop).await,
        Ok(Some(code)) => Ok(code),
        Err(e) => Err(e),
    };
    let told = match &ended {
        Ok(_) => who_called_whom(socket).await,
        Err(_) => Ok(()),
    };
    services.stop().await;
    let _freed = coordinator;
    told.and(ended)
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

async fn who_called_whom(socket: PathBuf) -> Result<(), Box<dyn Error>> {
    let links = tokio::task::spawn_blocking(move || partywall::links(Some(&socket))).await??;
    let table = match links.is_empty() {
        true => "nobody called anybody\n".into(),
        false => links::table(&links),
    };
    crate::say(&format!("\nWho called whom:\n{table}\n"))
}

/// Ctrl-C and SIGTERM.
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The exit status that the signal asks for, as a shell would have it.
    async fn wait(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::from(130),
            _ = self.terminate.recv() => ExitCode::from(143),
        }
    }
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
    for service in &compose.services {
        policy.add_started(&service.name).map_err(|e| format!("{}: {e}", service.place))?;
        policy.allow_register(&service.name, &name(&service.name));
    }
    for service in &compose.services {
        for call in &service.calls {
            policy.allow_call(&service.name, &name(&call.service), call.method.clone());
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
        for kept in ["PARTYWALL_LOG", "RUST_BACKTRACE", "HOME"] {
            if let Ok(value) = std::env::var(kept) {
                environment.push((kept.into(), value));
            }
        }
        let start = launch::Service {
            name: service.name.clone(),
            program,
            args: service.args.clone(),
            environment,
            directory: directory.clone(),
        };
        Running::new(start, *placement, serving.contains(service.name.as_str()))
    };
    let starts: Vec<Running> = compose.services.iter().zip(placed).map(start).collect();
    let again = |name: &str| starts.iter().any(|s| s.name() == name && s.starts_again());
    for service in &compose.services {
        let ends = |d: &&compose::Dependency| d.condition == Condition::CompletedSuccessfully;
        let mut awaited = service.depends_on.iter().filter(ends).map(|d| &d.service);
        if let Some(on) = awaited.find(|on| again(on)) {
            let (place, name) = (&service.place, &service.name);
            return Err(format!(
                "{place}: `{name}` waits for the end of `{on}`, a domain that others call, which is \
                 started again when it ends; depend on it with service_started, or give it `link: ring`"
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
        let mut others = services.all.iter().filter(|r| !r.serves);
        if !only_servers && others.clone().all(|r| r.status().is_some()) {
            let failed = others.find(|r| !r.status().is_some_and(|s| s.success()));
            return Ok(failed.map_or(ExitCode::SUCCESS, exit_code));
        }
        tokio::select! {
            happened = services.step() => happened?,
            code = stop.wait() => return Ok(code),
        }
    }
}

fn exit_code(r: &Running) -> ExitCode {
    let code = r.status().and_then(|s| s.code().or_else(|| Some(128 + s.signal()?)));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
