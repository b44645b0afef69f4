//! `partywall up`: build, start, watch, tell, stop.
//!
//! ```text
//! load -> build -> coordinator -> services, each when those it depends on serve -> the end
//! ```
//!
//! A service *serves* when another one's `calls` name it. The end is when all services that do
//! not serve have ended: the exit status is that of the first of them, in start order, that did
//! not end well. A service that serves and ends earlier, or Ctrl-C, ends everything as well. The
//! services die with this process, however it ends, and its directory is removed.

use std::collections::BTreeSet;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use partywall_abi::name::ServiceName;
use partywall_coordinator::{Coordinator, Policy, launch};
use partywall_shm::spawn;
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use crate::compose::{self, Compose, Condition, Service};
use crate::{build, coordinator, links};

/// How long a service may take until it serves its name.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How long a service may take to end after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(5);

struct Running {
    name: String,
    serves: bool,
    child: Child,
    ended: AsyncFd<OwnedFd>,
    status: Option<ExitStatus>,
}

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
    let compose = compose::load(file, &|name| match name {
        "PARTYWALL_RUN_DIR" => Some(run_path.to_string()),
        other => std::env::var(other).ok(),
    })?;
    for note in &compose.notes {
        crate::remark(&format!("note: {note}"));
    }
    if compose.services.is_empty() {
        let remedy = "add `x-partywall: {package: NAME}` to the services to run";
        return Err(format!("{}: no service has x-partywall; {remedy}", file.display()).into());
    }
    if let Some(s) = compose.services.iter().find(|s| s.link != compose::Link::Ring) {
        let remedy = "`up` links services on this host by rings; for HTTP/2 list the name under [names] of a policy";
        return Err(format!("{}: link http2: {remedy}", s.place).into());
    }
    let policy = policy(&compose)?;
    let workspace = build::workspace(compose.dir())?;
    let programs = build::build(&compose.services, release, &workspace)?;
    let socket = run_dir.path().join("coordinator.sock");
    let coordinator = Coordinator::start(Some(&socket), policy)?;
    let mut running = Vec::new();
    let started =
        start_all(&compose, &programs, run_path, &coordinator, &mut running, &mut stop).await;
    let ended = match started {
        Ok(()) => watch(&mut running, &mut stop).await,
        Err(e) => Err(e),
    };
    let told = match &ended {
        Ok(_) => who_called_whom(socket).await,
        Err(_) => Ok(()),
    };
    stop_all(&mut running).await;
    let _freed = coordinator;
    told.and(ended)
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

async fn start_all(
    compose: &Compose,
    programs: &[std::path::PathBuf],
    run_path: &str,
    coordinator: &Coordinator,
    running: &mut Vec<Running>,
    stop: &mut Stop,
) -> Result<(), Box<dyn Error>> {
    let serving: BTreeSet<&str> =
        compose.services.iter().flat_map(|s| &s.calls).map(|c| c.service.as_str()).collect();
    for (service, program) in compose.services.iter().zip(programs) {
        for dependency in &service.depends_on {
            let serves = serving.contains(dependency.service.as_str());
            await_dependency(service, dependency, serves, coordinator, running, stop).await?;
        }
        let mut environment = service.environment.clone();
        environment.push(("PARTYWALL_RUN_DIR".into(), run_path.into()));
        for kept in ["PARTYWALL_LOG", "RUST_BACKTRACE", "HOME"] {
            if let Ok(value) = std::env::var(kept) {
                environment.push((kept.into(), value));
            }
        }
        let start = launch::Service {
            name: service.name.clone(),
            program: program.clone(),
            args: service.args.clone(),
            environment,
            directory: std::fs::canonicalize(compose.dir())?,
        };
        let child = launch::start(coordinator, &start)?;
        #[expect(deprecated, reason = "the safe form; an OwnedFd keeps its descriptor")]
        let ended = AsyncFd::new(spawn::pidfd(&child)?)?;
        let serves = serving.contains(service.name.as_str());
        running.push(Running { name: service.name.clone(), serves, child, ended, status: None });
    }
    Ok(())
}

async fn await_dependency(
    service: &Service,
    dependency: &compose::Dependency,
    serves: bool,
    coordinator: &Coordinator,
    running: &mut [Running],
    stop: &mut Stop,
) -> Result<(), Box<dyn Error>> {
    let Some(other) = running.iter_mut().find(|r| r.name == dependency.service) else {
        // A service without x-partywall: a note has said that it is not awaited.
        return Ok(());
    };
    let (name_of, waits) = (&dependency.service, &service.name);
    if dependency.condition == Condition::CompletedSuccessfully {
        tokio::select! {
            status = other.end() => {
                let status = status?;
                if !status.success() {
                    return Err(format!("`{waits}` depends on `{name_of}`, which ended with {status}").into());
                }
            }
            _ = stop.wait() => return Err("stopped".into()),
        }
        return Ok(());
    }
    if !serves {
        return Ok(());
    }
    let deadline = Instant::now() + SERVE_WITHIN;
    while !coordinator.served(&name(name_of), Duration::from_millis(10)) {
        tokio::select! {
            status = other.end() => {
                return Err(format!("`{name_of}` ended with {} before it served its name", status?).into());
            }
            _ = stop.wait() => return Err("stopped".into()),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        if Instant::now() > deadline {
            let remedy = format!("does it call serve(\"{name_of}\")?");
            return Err(format!(
                "`{name_of}` does not serve its name within {SERVE_WITHIN:?}; {remedy}"
            )
            .into());
        }
    }
    Ok(())
}

impl Running {
    /// Waits for the end; callable again and again.
    async fn end(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let _readable = self.ended.readable().await?;
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            // It may just have ended.
            let _ = rustix::process::pidfd_send_signal(self.ended.get_ref(), signal);
        }
    }
}

/// Waits for the end of the run.
async fn watch(running: &mut [Running], stop: &mut Stop) -> Result<ExitCode, Box<dyn Error>> {
    let only_servers = running.iter().all(|r| r.serves);
    if only_servers {
        crate::remark("serving; Ctrl-C stops");
    } else {
        let ends = running.iter().filter(|r| !r.serves).map(|r| format!("`{}`", r.name));
        let ends = ends.collect::<Vec<_>>().join(", ");
        crate::remark(&format!("running until the end of {ends}; Ctrl-C stops"));
    }
    loop {
        let left = running.iter().filter(|r| !r.serves && r.status.is_none()).count();
        if left == 0 && !only_servers {
            let failed =
                running.iter().find(|r| !r.serves && !r.status.is_some_and(|s| s.success()));
            return Ok(failed.map_or(ExitCode::SUCCESS, exit_code));
        }
        let waiting = running.iter_mut().filter(|r| r.status.is_none());
        let mut ends: Vec<_> = waiting
            .map(|r| Box::pin(async { (r.end().await, r.serves, r.name.clone()) }))
            .collect();
        let first = std::future::poll_fn(|cx| {
            for end in &mut ends {
                if let std::task::Poll::Ready(done) = end.as_mut().poll(cx) {
                    return std::task::Poll::Ready(done);
                }
            }
            std::task::Poll::Pending
        });
        tokio::select! {
            (status, serves, name) = first => {
                let status = status?;
                if serves {
                    return Err(format!("`{name}` serves and has ended with {status}").into());
                }
                if !status.success() {
                    crate::remark(&format!("partywall: `{name}` ended with {status}"));
                }
            }
            code = stop.wait() => return Ok(code),
        }
    }
}

fn exit_code(r: &Running) -> ExitCode {
    let code = r.status.and_then(|s| s.code().or_else(|| Some(128 + s.signal()?)));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}

/// SIGTERM, a while, SIGKILL.
async fn stop_all(running: &mut [Running]) {
    running.iter().for_each(|r| r.signal(Signal::TERM));
    let deadline = tokio::time::Instant::now() + STOP_WITHIN;
    for r in running {
        if tokio::time::timeout_at(deadline, r.end()).await.is_err() {
            crate::remark(&format!("partywall: `{}` does not stop; it is killed", r.name));
            r.signal(Signal::KILL);
            let _ended = r.end().await;
        }
    }
}
