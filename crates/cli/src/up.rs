//! `partywall up`: build, start, watch, tell, stop.
//!
//! ```text
//! load -> plan -> build -> signatures -> coordinator, launcher
//!      -> services, each when those it depends on serve -> the end
//! ```
//!
//! A service *serves* when another one's `calls` name it, or it has served its name. The end is when
//! all services that do not serve have ended: the exit status is that of the first of them, in start
//! order, that did not end well. One that others may call and that ends earlier ends everything as
//! well, unless it is started again ([`services`]); so do Ctrl-C, SIGTERM, SIGQUIT and SIGHUP (unless
//! that is ignored, as under nohup(1)), at any time from the build on, and the second time nothing is
//! waited for. At the end services are stopped first, whether or not anybody reads what they have said;
//! then what they said last is written, and who called whom. The services die with this process,
//! however it ends; its directory is removed unless SIGKILL ends it.

mod backoff;
mod orphans;
mod output;
pub(crate) mod record;
mod services;
mod signed;
mod stop;

use std::collections::BTreeSet;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::name::ServiceName;
use partywall_coordinator::identity::Domain;
use partywall_coordinator::signatures::Signatures;
use partywall_coordinator::{Coordinator, Listen, Options, Policy, launch};
use partywall_shm::socket::variable;
use tokio::sync::oneshot;

use crate::compose::{self, Compose, Condition, Service};
use crate::isolation::{self, Machine, Placement, Plan};
use crate::launcher::Launcher;
use crate::{build, coordinator, demands, links};
use orphans::Orphans;
use output::Output;
use services::{Running, Services};
pub(crate) use stop::{Signals, Stop};

/// How long a service may take until it serves its name.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked whether a service serves.
const LOOK: Duration = Duration::from_millis(10);
/// After how long it is said that a service is waited for.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// How long the coordinator may take to see that links are closed whose ends have ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
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
    /// Leave services open to debuggers and core dumps, and so to other processes of this user: their
    /// links have confidentiality `user`.
    #[arg(long)]
    no_harden: bool,
    #[command(flatten)]
    metrics: crate::metrics::Exporter,
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
    coordinator::close_to_its_user()?;
    coordinator::raise_descriptor_limit();
    coordinator::survive_limits_of_files()?;
    let (run_dir, socket) = private_directory()?;
    let run_path = run_dir.path().to_str().ok_or("the directory for sockets is not UTF-8")?;
    let compose = load(&arguments.file, run_path)?;
    let plan = isolation::plan(&compose.services, &Machine::look())?;
    for note in compose.notes.iter().chain(&plan.notes) {
        crate::remark(&format!("note: {note}"));
    }
    let mut policy = policy(&compose)?;
    let signatures = signed::signatures(&compose)?;
    if let Some(signatures) = &signatures {
        policy.require_signed(Signatures::clone(signatures));
    }
    if arguments.no_harden {
        policy.harden(false);
    }
    let domains: Vec<bool> = plan.placements.iter().map(|p| *p == Placement::Domain).collect();
    let (output, unsaid) = Output::start(compose.services.iter().map(|s| s.name.as_str()))?;
    let (running, coordinated) = oneshot::channel();
    let mut stop = Stop::new(unsaid, coordinated)?;
    let building = build::build(&compose.services, &domains, !arguments.debug, compose.dir());
    let programs = tokio::select! {
        biased;
        code = stop.wait() => return Ok(code),
        built = building => match built {
            // At a terminal Cargo hears it as well, and may be the first one.
            Err(e) if e.is_interrupt() => return Ok(ExitCode::from(130)),
            other => other?,
        },
    };
    if let Some(signatures) = &signatures {
        signed::check(&compose, &programs, signatures)?;
    }
    let orphans = Orphans::adopt()?;
    let metrics = crate::metrics::serve(&arguments.metrics)?;
    let options = Options {
        listen: Listen::At(socket.clone()),
        metrics: metrics.is_some(),
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
    crate::remark(
        "`partywall links`, `ps`, `watch` and `domain` find this run, in another shell, by",
    );
    crate::remark(&format!("export PARTYWALL_SOCKET={}", quoted(&socket)));
    let domain = Domain { launcher: 1, isolation: plan.isolation };
    let record = record::beside(&socket);
    let mut services = Services::new(&coordinator, launcher, &output, record, domain, orphans);
    let starts = starts(&compose, &plan, programs, run_path, signatures.as_ref())?;
    let ended = match start_all(&compose, starts, &mut services, &mut stop).await {
        Ok(None) => watch(&mut services, &mut stop).await,
        Ok(Some(code)) => Ok(code),
        Err(e) => Err(e),
    };
    // A server that ends at once does not say any more what it has counted.
    let counted = socket.clone();
    let counting = tokio::task::spawn_blocking(move || partywall::operator::links(Some(&counted)));
    let _else_less_is_told = stop.last(counting).await;
    services.stop(&mut stop).await;
    let told = async {
        output.catch_up().await;
        who_called_whom(socket, arguments.wide).await
    };
    let told = match (&ended, stop.is_heard()) {
        (Ok(_), true) => stop.last(told).await.unwrap_or_else(|| {
            crate::remark("partywall: standard output: nobody reads it; the rest is not written");
            Ok(())
        }),
        _ => {
            let _written = stop.last(output.catch_up()).await;
            Ok(())
        }
    };
    let _freed = coordinator;
    match told.and(ended) {
        // The last lines of services that have ended by themselves could not be written.
        Ok(code) if code == ExitCode::SUCCESS && !stop.is_heard() => Ok(ExitCode::FAILURE),
        ended => ended,
    }
}

/// As a shell takes it.
pub(crate) fn quoted(path: &Path) -> String {
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
    Ok(compose)
}

async fn who_called_whom(socket: PathBuf, wide: bool) -> Result<(), Box<dyn Error>> {
    let tell = move || -> Result<(), String> {
        let begin = Instant::now();
        let links = loop {
            let links = match partywall::operator::links(Some(&socket)) {
                Ok(links) => links,
                Err(why) => {
                    crate::remark(&format!("partywall: who called whom is not known: {why}"));
                    return Ok(());
                }
            };
            // The services have ended, and the coordinator may not have heard of all that yet.
            if begin.elapsed() > CLOSED_WITHIN || links.iter().all(|link| !link.open) {
                break links;
            }
            std::thread::sleep(LOOK);
        };
        let table = match links.is_empty() {
            true => "nobody called anybody\n".into(),
            false => links::table(&links, wide),
        };
        crate::say(&format!("\nWho called whom:\n{table}\n")).map_err(|e| e.to_string())
    };
    Ok(tokio::task::spawn_blocking(tell).await??)
}

/// A directory that only this user can enter, removed at the end, and the coordinator's socket in it.
fn private_directory() -> Result<(tempfile::TempDir, PathBuf), String> {
    let own = variable("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_dir());
    let (variable, within) = match own {
        Some(dir) => ("XDG_RUNTIME_DIR", PathBuf::from(dir)),
        None => ("TMPDIR", std::env::temp_dir()),
    };
    let place = format!("the directory for sockets, in {} ({variable})", within.display());
    let remedy = format!("remedy: set {variable} to a directory of your own");
    let permissions = std::fs::Permissions::from_mode(0o700);
    let mut builder = tempfile::Builder::new();
    builder.prefix("partywall-").permissions(permissions);
    let dir = match builder.tempdir_in(&within) {
        Ok(dir) => dir,
        Err(why) => return Err(format!("{place}: {why}; {remedy}")),
    };
    let socket = dir.path().join("coordinator.sock");
    crate::socket::check(&socket, &place)?;
    Ok((dir, socket))
}

/// What `calls` allows, and nothing else, over links that are as the .proto files of services demand.
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
            policy.allow_descriptors(&service.name, &name(&call.service), service.grant);
        }
    }
    for service in &compose.services {
        let Some(found) = demands::of(&service.protos)? else { continue };
        policy.demand(&name(&service.name), found.least()).map_err(|caller| {
            format!(
                "{}: `{}` demands sealed links, and what crosses as a descriptor is not sealed; remedy: remove \
                 `descriptors` from service `{caller}`, or the demand",
                found.place, service.name
            )
        })?;
        crate::remark(&format!("note: {}", found.said(&service.name)));
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
    signatures: Option<&Arc<Signatures>>,
) -> Result<Vec<Running>, Box<dyn Error>> {
    let serving: BTreeSet<&str> =
        compose.services.iter().flat_map(|s| &s.calls).map(|c| c.service.as_str()).collect();
    let directory = std::fs::canonicalize(compose.dir())
        .map_err(|e| format!("{}: {e}; services run there", compose.dir().display()))?;
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
            signatures: signatures.map(Arc::clone),
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

/// Starts all of them; the exit status when it is told to stop, or when one that another waits for has
/// ended.
async fn start_all(
    compose: &Compose,
    starts: Vec<Running>,
    services: &mut Services<'_>,
    stop: &mut Stop,
) -> Result<Option<ExitCode>, Box<dyn Error>> {
    for (service, start) in compose.services.iter().zip(starts) {
        for dependency in &service.depends_on {
            let failed = tokio::select! {
                failed = await_dependency(service, dependency, services) => failed?,
                code = stop.wait() => Some(code),
            };
            if failed.is_some() {
                return Ok(failed);
            }
        }
        tokio::select! {
            started = services.start(start) => started?,
            code = stop.wait() => return Ok(Some(code)),
        }
    }
    Ok(None)
}

/// Waits until a service may start; the exit status when it never may.
async fn await_dependency(
    service: &Service,
    dependency: &compose::Dependency,
    services: &mut Services<'_>,
) -> Result<Option<ExitCode>, Box<dyn Error>> {
    let Some(at) = services.all.iter().position(|r| r.name() == dependency.service) else {
        // A service without x-partywall: a note has said that it is not awaited.
        return Ok(None);
    };
    let (name_of, waits) = (&dependency.service, &service.name);
    if dependency.condition == Condition::CompletedSuccessfully {
        loop {
            if let Some(status) = services.all[at].status() {
                if status.success() {
                    return Ok(None);
                }
                let why = format!("`{waits}` depends on `{name_of}`, which ended with {status}");
                return Ok(Some(ended_too_soon(&services.all[at], &why)));
            }
            services.step().await?;
        }
    }
    if !services.all[at].serves {
        return Ok(None);
    }
    let begin = Instant::now();
    let mut said = false;
    let serving = services.coordinator.serving(&name(name_of));
    while serving.try_recv().is_err() {
        let on = &mut services.all[at];
        let (has_served, again) = (on.has_served(), on.starts_again());
        if let Some(why) = on.last_end().filter(|_| !has_served) {
            let why = format!("`{name_of}` {why} before it served its name");
            return Ok(Some(ended_too_soon(&services.all[at], &why)));
        }
        if let Some(why) = on.last_end().filter(|_| !again) {
            let why = format!("`{waits}` depends on `{name_of}`, which {why}");
            return Ok(Some(ended_too_soon(&services.all[at], &why)));
        }
        tokio::select! {
            happened = services.step() => happened?,
            () = tokio::time::sleep(LOOK) => {}
        }
        if begin.elapsed() > SAY_AFTER && !said {
            crate::remark(&format!(
                "`{waits}` waits until `{name_of}` serves its name, at most {SERVE_WITHIN:?}"
            ));
            said = true;
        }
        if begin.elapsed() > SERVE_WITHIN {
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
    Ok(None)
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
                let others = if services.all.len() > 1 { "; the others are stopped" } else { "" };
                let why = format!(
                    "`{}`, which others may call, has ended with {status}{others}",
                    r.name()
                );
                return Ok(ended_too_soon(r, &why));
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

/// The exit status of a run that a service which should have gone on has ended.
fn ended_too_soon(r: &Running, why: &str) -> ExitCode {
    crate::remark(&format!("partywall: {why}"));
    match r.status() {
        Some(status) if !status.success() => exit_code(r),
        _ => ExitCode::FAILURE,
    }
}

fn exit_code(r: &Running) -> ExitCode {
    let code = r.status().and_then(|s| s.code().or_else(|| Some(128 + s.signal()?)));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_abi::control::Grant;

    #[test]
    fn what_a_service_may_have_cross_is_its_own_links() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("compose.yaml");
        let text = "services:\n  web:\n    x-partywall:\n      package: web\n      calls: [store/*]\n      \
                    descriptors: 2\n      leases: true\n  store:\n    x-partywall:\n      package: store\n      \
                    calls: [web/*]\n";
        std::fs::write(&file, text).unwrap();
        let policy = policy(&compose::load(&file, &|_| None).unwrap()).unwrap();
        let granted = |caller: &str, at: &str| policy.grant(&[caller.to_owned()], &name(at));
        assert_eq!(granted("web", "store"), Grant { descriptors: 2, leases: true });
        assert_eq!(granted("store", "web"), Grant::NONE);
    }
}
