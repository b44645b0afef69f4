//! `partywall coordinator`.
//!
//! Run by a service manager of systemd's kind, it tells that when it is ready, reloads and stops
//! (sd_notify(3)), and takes the listening socket that it is handed (sd_listen_fds(3)).

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use partywall_coordinator::policy::PolicyError;
use partywall_coordinator::{Coordinator, Listen, Options, Policy, audit};
use partywall_shm::socket;
use partywall_workload::{Limits, Serving};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;

/// How a coordinator is run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where processes connect; unless given, where they look: PARTYWALL_SOCKET, else
    /// /run/partywall/coordinator.sock for root, $XDG_RUNTIME_DIR/partywall/coordinator.sock for others. Not
    /// used with a socket that a service manager hands over.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where alone operators' calls are taken (lists, `policy reload`, `domain`): a socket for root and this
    /// user. Unless given, beside the socket of --socket, as coordinator.operators.sock beside
    /// coordinator.sock; beside a socket that a service manager hands over there is none. Commands find it by
    /// the other one. Keep it out of what containers have mounted.
    #[arg(long, value_name = "PATH")]
    operators: Option<PathBuf>,
    /// Who may serve and call what; read again on SIGHUP and by `partywall policy reload`.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Where admissions, registrations, links, denials and such are written down, a JSON object a
    /// line; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Where processes get X.509-SVIDs by the SPIFFE Workload API, and proxies by SDS: a Unix socket to which
    /// anybody can connect. Unless given, nowhere.
    #[arg(long, value_name = "PATH")]
    workload_api: Option<PathBuf>,
    #[command(flatten)]
    metrics: crate::metrics::Exporter,
}

/// Runs a coordinator until SIGINT, SIGTERM or SIGQUIT.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    close_to_its_user()?;
    raise_descriptor_limit();
    let policy = Policy::load(&arguments.policy)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        survive_limits_of_files()?;
        let (listen, shown) = listen(arguments.socket.as_deref())?;
        let operators = operators(arguments.operators.as_deref(), &listen)?;
        let (running, mut ended) = tokio::sync::oneshot::channel::<()>();
        let metrics = crate::metrics::serve(&arguments.metrics)?;
        let options = Options {
            listen,
            operators,
            policy_file: Some(arguments.policy.clone()),
            audit: arguments.audit.as_deref().map(audit_log).transpose()?,
            metrics: metrics.is_some(),
            while_running: Some(Box::new(running)),
            ..Options::default()
        };
        let coordinator = Coordinator::start_with(policy, options)?;
        let workloads = workload_api(arguments.workload_api.as_deref(), &coordinator)?;
        tell(&[NotifyState::Ready]);
        crate::say(&format!("coordinator at {shown}\n"))?;
        let (read, mut reloaded) = tokio::sync::mpsc::unbounded_channel();
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = quit.recv() => break,
                _ = hang_up.recv() => reload(&coordinator, read.clone()),
                Some(read) = reloaded.recv() => say_reloaded(&read),
                _ = &mut ended => return Err("the coordinator has failed; see its log".into()),
            }
        }
        tell(&[NotifyState::Stopping]);
        drop(workloads);
        drop(coordinator);
        crate::say("stopped; links that are open go on without it\n")?;
        Ok(ExitCode::SUCCESS)
    })
}

/// From here on other processes of this user cannot take the coordinator's descriptors, among them those of
/// links that are being made, nor trace it (PR_SET_DUMPABLE(2const)). It leaves no core dump.
pub(crate) fn close_to_its_user() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// From here on a file or memory that would grow over RLIMIT_FSIZE is an error with EFBIG, and does not
/// end the process (setrlimit(2)). A handler, and not `SIG_IGN`, since execve(2) would pass that on.
pub(crate) fn survive_limits_of_files() -> std::io::Result<()> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

/// The socket that a service manager has handed over, else the path.
fn listen(path: Option<&Path>) -> Result<(Listen, String), Box<dyn Error>> {
    let mut handed = sd_notify::listen_fds()?;
    match (handed.next(), handed.next()) {
        (Some(number), None) => {
            let socket = socket::inherited(number)
                .map_err(|e| format!("the socket that was handed over (LISTEN_FDS): {e}"))?;
            Ok((Listen::Handed(socket), "the socket that was handed over".into()))
        }
        (Some(_), Some(_)) => {
            Err("several sockets were handed over (LISTEN_FDS), and a coordinator has one".into())
        }
        (None, _) => {
            let path = match named(path, socket::variable(SOCKET))? {
                Some(path) => path,
                None => {
                    let root = rustix::process::geteuid().is_root();
                    usual_place(root, socket::variable("XDG_RUNTIME_DIR"))?
                }
            };
            let shown = path.display().to_string();
            Ok((Listen::At(path), shown))
        }
    }
}

/// Where processes find the coordinator.
const SOCKET: &str = "PARTYWALL_SOCKET";

/// The path that is given by the flag, or else by the variable.
fn named(flag: Option<&Path>, variable: Option<OsString>) -> Result<Option<PathBuf>, String> {
    let given = flag.map(|path| (path.to_path_buf(), "--socket"));
    let Some((path, by)) = given.or(variable.map(|path| (path.into(), SOCKET))) else {
        return Ok(None);
    };
    crate::socket::check(&path, by)?;
    check_directory(&path, by)?;
    Ok(Some(path))
}

/// Serves the Workload API, if that is wanted.
fn workload_api(
    path: Option<&Path>,
    coordinator: &Coordinator,
) -> Result<Option<Serving>, Box<dyn Error>> {
    let Some(path) = path else { return Ok(None) };
    crate::socket::check(path, WORKLOAD_API)?;
    check_directory(path, WORKLOAD_API)?;
    let serving = partywall_workload::serve(path, coordinator.workloads(), Limits::default());
    serving.map(Some).map_err(|error| format!("{WORKLOAD_API}: {error}").into())
}

/// The option for the Workload API.
const WORKLOAD_API: &str = "--workload-api";

/// Where operators' calls are taken, if not where processes connect.
fn operators(given: Option<&Path>, listen: &Listen) -> Result<Option<PathBuf>, String> {
    let path = match (given, listen) {
        (Some(given), _) => {
            check_directory(given, "--operators")?;
            given.to_path_buf()
        }
        (None, Listen::At(common)) => common.with_extension("operators.sock"),
        (None, _) => return Ok(None),
    };
    crate::socket::check(&path, "--operators")?;
    Ok(Some(path))
}

/// Only the usual place is made: a path that is mistyped is no new directory.
fn check_directory(path: &Path, flag: &str) -> Result<(), String> {
    let directory = path.parent().filter(|dir| *dir != Path::new(""));
    match directory.filter(|dir| !dir.is_dir()) {
        None => Ok(()),
        Some(missing) => Err(format!(
            "{flag} {}: there is no directory {}; make it, or correct the path",
            path.display(),
            missing.display()
        )),
    }
}

/// Where the processes of this user look for a coordinator.
fn usual_place(root: bool, run: Option<OsString>) -> Result<PathBuf, &'static str> {
    if root {
        return Ok("/run/partywall/coordinator.sock".into());
    }
    let run = run.filter(|dir| !dir.is_empty());
    let run = run.ok_or(
        "XDG_RUNTIME_DIR is not set; say by --socket or PARTYWALL_SOCKET where processes connect",
    )?;
    Ok(Path::new(&run).join("partywall/coordinator.sock"))
}

fn audit_log(path: &Path) -> Result<std::fs::File, Box<dyn Error>> {
    if path == Path::new("-") {
        let out = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3)?;
        return Ok(out.into());
    }
    audit::open(path).map_err(|e| {
        let remedy = "name a file in a directory that is there and may be written, or `-`";
        format!("--audit {}: {e}; {remedy}", path.display()).into()
    })
}

type Reloaded = Result<(), PolicyError>;

/// Has the policy read again. What comes of it is not said by the coordinator's thread, for standard
/// error may be a pipe that nobody reads.
fn reload(coordinator: &Coordinator, read: UnboundedSender<Reloaded>) {
    tell(&[
        NotifyState::Reloading,
        NotifyState::monotonic_usec_now().unwrap_or(NotifyState::Ready),
    ]);
    coordinator.reload(move |result| {
        // Nobody hears it only at the end.
        let _ended = read.send(result);
    });
}

fn say_reloaded(read: &Reloaded) {
    match read {
        Ok(()) => crate::remark("the policy was read again and is in force"),
        Err(error) => crate::remark(&format!("partywall: the policy stays as it was: {error}")),
    }
    tell(&[NotifyState::Ready]);
}

/// Tells the service manager, if there is one.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager was not told");
    }
}

/// Each connection needs two descriptors, each link two, and the kernel counts those under way to
/// processes that do not read against the same limit; the soft one is often 1024.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let _first = BEFORE.set(limit.current);
    limit.current = limit.maximum;
    // Refused or not, what there is will do.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The soft limit from before it was raised.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// The soft limit of descriptors that this process was started with, if there is one.
pub(crate) fn descriptor_limit_before() -> Option<u64> {
    BEFORE.get().copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_path_makes_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check_directory(&dir.path().join("c.sock"), "--socket"), Ok(()));
        assert_eq!(check_directory(Path::new("c.sock"), "--socket"), Ok(()));
        let refused = check_directory(&dir.path().join("rnu/c.sock"), "--socket").unwrap_err();
        assert!(refused.contains("/rnu; make it, or correct the path"), "{refused}");
    }

    #[test]
    fn operators_have_a_socket_beside_the_common_one_or_where_it_is_said() {
        let at = |path: &str| Listen::At(path.into());
        let beside = operators(None, &at("/r/coordinator.sock")).unwrap().unwrap();
        assert_eq!(beside, Path::new("/r/coordinator.operators.sock"));
        let given = operators(Some(Path::new("o.sock")), &at("/r/c.sock")).unwrap().unwrap();
        assert_eq!(given, Path::new("o.sock"));
        assert_eq!(operators(None, &Listen::Nowhere), Ok(None));
        let long = at(&format!("/{}", "x".repeat(100)));
        let refused = operators(None, &long).unwrap_err();
        assert!(refused.starts_with("--operators /xxx") && refused.contains("at most 107"));
        let missing = operators(Some(Path::new("/no/such/o.sock")), &at("/r/c.sock")).unwrap_err();
        assert!(missing.starts_with("--operators /no/such/o.sock: there is no directory"));
    }

    #[test]
    fn a_socket_is_named_by_the_flag_or_else_by_the_variable() {
        let dir = tempfile::tempdir().unwrap();
        let (flag, variable) = (dir.path().join("flag"), dir.path().join("variable"));
        let by_variable = || Some(variable.clone().into_os_string());
        assert_eq!(named(Some(&flag), by_variable()), Ok(Some(flag.clone())));
        assert_eq!(named(None, by_variable()), Ok(Some(variable.clone())));
        assert_eq!(named(None, None), Ok(None));
        for (bad, said) in [
            (
                "/no/such/c.sock".to_owned(),
                "PARTYWALL_SOCKET /no/such/c.sock: there is no directory",
            ),
            ("x".repeat(108), "PARTYWALL_SOCKET x"),
        ] {
            let refused = named(None, Some(bad.into())).unwrap_err();
            assert!(refused.starts_with(said), "{refused}");
        }
    }

    #[test]
    fn the_usual_place_is_where_processes_look() {
        let user = usual_place(false, Some("/run/user/7".into())).unwrap();
        assert_eq!(user, Path::new("/run/user/7/partywall/coordinator.sock"));
        let root = usual_place(true, Some("/run/user/0".into())).unwrap();
        assert_eq!(root, Path::new("/run/partywall/coordinator.sock"));
        for unset in [None, Some("".into())] {
            assert!(usual_place(false, unset).unwrap_err().contains("--socket"));
        }
    }
}
