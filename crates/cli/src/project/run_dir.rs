//! The directory of a run: its state, and its coordinator.
//!
//! | file | content |
//! | --- | --- |
//! | `socket/` | the coordinator's socket and nothing else; mounted into containers, read-only |
//! | `operators.sock` | where operators' calls are taken, which no container gets |
//! | `policy.toml` | the coordinator's policy |
//! | `override.json` | the last of Compose's files |
//! | `run.json` | the other files and the engine, for `down`, `ps` and `logs` |
//! | `coordinator.log` | what a coordinator in the background has said |
//!
//! All of it belongs to the user who runs the command, and nobody else can write it, or a directory on the
//! way to it: each is looked at before anything is read or made in it ([`partywall_coordinator::place`]), and
//! stays as it was found, since only root and this user can change it.

use std::error::Error;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use partywall_coordinator::place::{Kind, Why};
use partywall_shm::socket;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use super::engine::{Engine, MOUNTED_AT, Mapping};
use crate::compose::Containers;

/// How long a coordinator may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// What `down`, `ps` and `logs` need to know of a run.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) files: Vec<PathBuf>,
    pub(super) engine: Engine,
    /// The engine's socket; that of a run that an older release has started is not known.
    #[serde(default)]
    pub(super) api: Option<PathBuf>,
}

const OVERRIDE: &str = "override.json";
const OPERATORS: &str = "operators.sock";
const POLICY: &str = "policy.toml";
const RECORD: &str = "run.json";

/// The directory of a project's run.
pub(super) struct RunDir {
    project: String,
    path: PathBuf,
}

impl RunDir {
    /// The one that is there.
    pub(super) fn of(project: &str) -> Result<Self, Box<dyn Error>> {
        let dir = Self::place(project)?;
        match look(&dir.path) {
            Ok(()) => Ok(dir),
            Err(Why::Io(e)) if e.kind() == io::ErrorKind::NotFound => {
                let shown = dir.path.display();
                Err(format!("project `{project}` is not up: there is no {shown}").into())
            }
            Err(why) => Err(dir.refused(why).into()),
        }
    }

    /// Where it is or would be.
    fn place(project: &str) -> Result<Self, Box<dyn Error>> {
        let usual = match (geteuid().is_root(), socket::variable("XDG_RUNTIME_DIR")) {
            (true, _) => PathBuf::from("/run"),
            (false, Some(dir)) if Path::new(&dir).is_absolute() => dir.into(),
            _ => return Err("XDG_RUNTIME_DIR is not set; set it to a directory of your own".into()),
        };
        let path = usual.join("partywall/compose").join(project);
        let dir = Self { project: project.into(), path };
        crate::socket::check(&dir.socket(), "the coordinator's socket")?;
        Ok(dir)
    }

    /// Makes it, if there is none.
    pub(super) fn create(project: &str) -> Result<Self, Box<dyn Error>> {
        let dir = Self::place(project)?;
        let shown = dir.path.display();
        let mut again = 0..100;
        loop {
            match dir.make() {
                // Another project has just removed the directory of all.
                Err(Why::Io(e))
                    if e.kind() == io::ErrorKind::NotFound && again.next().is_some() => {}
                Err(Why::Io(e)) if e.kind() == io::ErrorKind::AlreadyExists => {
                    look(&dir.path).map_err(|why| dir.refused(why))?;
                    let state = match dir.has_coordinator() {
                        true => "is up",
                        false => "was up, and its coordinator has ended without `down`",
                    };
                    let remedy = format!("end it first by `partywall compose down -p {project}`");
                    return Err(format!("project `{project}` {state} ({shown}); {remedy}").into());
                }
                made => break made.map_err(|why| dir.refused(why))?,
            }
        }
        // The umask may have left less, and users of containers have to enter.
        let failed = |e: io::Error| format!("{shown}: {e}");
        make(&dir.mounted()).map_err(failed)?;
        for dir in [&dir.path, &dir.mounted()] {
            fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(failed)?;
        }
        Ok(dir)
    }

    /// Makes each directory on the way that is not there, and this one, which must not be there.
    fn make(&self) -> Result<(), Why> {
        let mut way: Vec<&Path> = self.path.ancestors().skip(1).collect();
        way.reverse();
        for step in way {
            match look(step) {
                Err(Why::Io(e)) if e.kind() == io::ErrorKind::NotFound => {
                    // Somebody else may have been there first.
                    match make(step) {
                        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(Why::Io(e));
                        }
                        _ => look(step)?,
                    }
                }
                looked => looked?,
            }
        }
        make(&self.path).map_err(Why::Io)
    }

    fn refused(&self, why: Why) -> String {
        match why {
            Why::Io(e) => format!("{}: {e}", self.path.display()),
            Why::Text(text) => format!("{}: {text}", self.path.display()),
        }
    }

    pub(super) fn project(&self) -> &str {
        &self.project
    }

    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The directory that containers have.
    pub(super) fn mounted(&self) -> PathBuf {
        self.path.join("socket")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.mounted().join("coordinator.sock")
    }

    /// The last of Compose's files.
    pub(super) fn last_file(&self) -> PathBuf {
        self.path.join(OVERRIDE)
    }

    pub(super) fn has_override(&self) -> bool {
        self.last_file().exists()
    }

    /// Its Compose has made nothing by the files, and has nothing to take down.
    pub(super) fn remove_override(&self) -> std::io::Result<()> {
        fs::remove_file(self.last_file())
    }

    /// Writes a file whole, or leaves that which is there.
    fn write(&self, name: &str, text: &str) -> Result<(), Box<dyn Error>> {
        let (path, fresh) = (self.path.join(name), self.path.join(format!(".{name}")));
        let written = (|| {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            io::Write::write_all(&mut &file, text.as_bytes())?;
            fs::rename(&fresh, &path)
        })();
        written.map_err(|e: io::Error| format!("{}: {e}", path.display()).into())
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<(), Box<dyn Error>> {
        self.write(RECORD, &serde_json::to_string(record)?)
    }

    pub(super) fn record(&self) -> Result<Record, Box<dyn Error>> {
        let path = self.path.join(RECORD);
        let text = fs::read_to_string(&path).map_err(|e| {
            let remedy = "remove the directory, if none of the project's containers is left";
            format!("{}: {e}; {remedy}", path.display())
        })?;
        Ok(serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?)
    }

    pub(super) fn write_policy(&self, text: &str) -> Result<(), Box<dyn Error>> {
        self.write(POLICY, text)
    }

    /// Writes the last of Compose's files. JSON is YAML.
    pub(super) fn write_override(
        &self,
        read: &Containers,
        mapping: Mapping,
    ) -> Result<(), Box<dyn Error>> {
        let source = self.mounted();
        let source = source.to_str().ok_or("XDG_RUNTIME_DIR is not UTF-8")?;
        let file = override_of(read, source, trusted(mapping, geteuid().as_raw()));
        self.write(OVERRIDE, &serde_json::to_string_pretty(&file)?)
    }

    /// Starts the coordinator, which outlives this process, and waits until it listens. `running` ends with
    /// the coordinator.
    pub(super) async fn start_coordinator(
        &self,
        in_background: bool,
        running: oneshot::Sender<()>,
    ) -> Result<(), Box<dyn Error>> {
        let log = self.path.join("coordinator.log");
        let says = match in_background {
            true => fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?.into(),
            false => Stdio::inherit(),
        };
        let own = std::env::current_exe()?;
        let mut command = tokio::process::Command::new(own);
        command.arg("coordinator").arg("--socket").arg(self.socket());
        command.arg("--policy").arg(self.path.join(POLICY));
        command.arg("--operators").arg(self.path.join(OPERATORS));
        // A signal of the terminal is for this process, which ends the coordinator last.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(says).process_group(0);
        for of_others in ["LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET", "PARTYWALL_FD"] {
            command.env_remove(of_others);
        }
        let mut child = command.spawn().map_err(|e| format!("starting the coordinator: {e}"))?;
        let out = child.stdout.take().ok_or("a pipe was asked for")?;
        let line = BufReader::new(out).lines().next_line().await?;
        tokio::spawn(async move {
            let _ended = child.wait().await;
            drop(running);
        });
        if line.is_some() {
            return Ok(());
        }
        let said = match in_background {
            true => fs::read_to_string(&log).unwrap_or_default().trim().to_owned(),
            false => "it has said why".into(),
        };
        Err(format!("the coordinator did not start: {said}").into())
    }

    /// Whether somebody listens at the operators' socket, which others cannot keep busy.
    pub(super) fn has_coordinator(&self) -> bool {
        !matches!(self.connect(), Ok(None))
    }

    /// A connection to who listens there, if somebody does.
    fn connect(&self) -> rustix::io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let address = SocketAddrUnix::new(self.path.join(OPERATORS))?;
        let deadline = Instant::now() + END_WITHIN;
        loop {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Ok(Some(socket)),
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
                // Its backlog is full.
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends who listens at the socket, and waits for that.
    pub(super) async fn stop_coordinator(&self) -> Result<(), Box<dyn Error>> {
        let shown = self.path.join(OPERATORS);
        let connected = self.connect().map_err(|e| format!("{}: {e}", shown.display()))?;
        let Some(socket) = connected else { return Ok(()) };
        let who = socket::peer_credentials(socket.as_fd())?;
        if who.uid != geteuid().as_raw() {
            let text = "user {} listens there, who is another than this one; nothing was ended";
            return Err(format!(
                "{}: {}",
                shown.display(),
                text.replace("{}", &who.uid.to_string())
            )
            .into());
        }
        // Before Linux 6.5 by its number, which is its own while it listens.
        let by_number =
            || Pid::from_raw(who.pid as i32).and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok());
        let Some(process) = socket::peer_pidfd(socket.as_fd()).or_else(by_number) else {
            return Ok(());
        };
        drop(socket);
        let _ended = pidfd_send_signal(&process, Signal::TERM);
        let over = move || {
            let deadline = Instant::now() + END_WITHIN;
            let over = socket::wait_readable(process.as_fd(), deadline).unwrap_or(false);
            if !over {
                let _ended = pidfd_send_signal(&process, Signal::KILL);
                let _soon = socket::wait_readable(process.as_fd(), Instant::now() + END_WITHIN);
            }
        };
        Ok(tokio::task::spawn_blocking(over).await?)
    }

    /// Removes it, and the directory of all projects with the last one.
    pub(super) fn remove(&self) -> Result<(), Box<dyn Error>> {
        match fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {e}; remove it", self.path.display()).into());
            }
            _ => {}
        }
        if let Some(all) = self.path.parent() {
            let _others_are_there = fs::remove_dir(all);
        }
        Ok(())
    }
}

/// Whether nobody but root and this user can change a directory, or a step of the way to it.
fn look(dir: &Path) -> Result<(), Why> {
    Kind::Run.find(dir, geteuid().as_raw()).map(drop)
}

/// Makes a directory that nobody else can write.
fn make(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(dir)
}

/// The user whose coordinator containers are to trust, where they would not trust it by themselves: what that
/// user is called there. One without a number there is the kernel's overflow user, as all such users are; the
/// mount, which nobody in the container can write, is what leads to this one.
fn trusted(mapping: Mapping, own: u32) -> Option<u32> {
    let overflow = || {
        let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        text.trim().parse().unwrap_or(65534)
    };
    match (mapping, own) {
        (Mapping::Remapped, _) => Some(overflow()),
        (Mapping::None, 0) => None,
        (Mapping::None, own) => Some(own),
    }
}

fn override_of(read: &Containers, source: &str, trusted: Option<u32>) -> Value {
    // Compose replaces variables in this file as well.
    let mount = json!({
        "type": "bind",
        "source": source.replace('$', "$$"),
        "target": MOUNTED_AT,
        "read_only": true,
    });
    let mut environment = json!({ "PARTYWALL_SOCKET": format!("{MOUNTED_AT}/coordinator.sock") });
    if let Some(uid) = trusted {
        environment["PARTYWALL_COORDINATOR_UID"] = uid.to_string().into();
    }
    let service = json!({ "volumes": [mount], "environment": environment });
    let services: serde_json::Map<String, Value> =
        read.services.keys().map(|name| (name.clone(), service.clone())).collect();
    let mut file = json!({ "services": services });
    if let Some(version) = &read.version {
        file["version"] = version.as_str().into();
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_could_change_gets_no_run_in_it() {
        let within = tempfile::tempdir().unwrap();
        let dir = |above: &str| {
            let path = within.path().join(above).join("partywall/compose/shop");
            RunDir { project: "shop".into(), path }
        };
        let chmod = |mode| fs::set_permissions(within.path(), Permissions::from_mode(mode));
        chmod(0o777).unwrap();
        let Err(Why::Text(why)) = dir("").make() else { panic!("it is made") };
        assert!(why.contains("others can write") && why.contains("chmod go-w"), "{why}");
        assert!(!within.path().join("partywall").exists());
        // As /tmp is.
        chmod(0o1777).unwrap();
        let made = |dir: RunDir| dir.make().map_err(|why| dir.refused(why));
        assert_eq!(made(dir("new")), Ok(()));
        let mode = fs::metadata(dir("new").path).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0);
        assert!(made(dir("new")).unwrap_err().contains("File exists"));
        // Nothing is made where a link leads.
        fs::create_dir(within.path().join("link")).unwrap();
        std::os::unix::fs::symlink(within.path().join("no"), within.path().join("link/partywall"))
            .unwrap();
        assert!(made(dir("link")).unwrap_err().contains("No such file"));
        assert!(!within.path().join("no").exists());
    }

    #[test]
    fn override_has_the_mount_and_the_variables_and_nothing_else() {
        let services = ["web", "store"].map(|name| (name.to_owned(), Default::default()));
        let version = Some("3.8".to_owned());
        let read = Containers { name: None, version, services: services.into(), notes: vec![] };
        let file = override_of(&read, "/run/a$b/socket", Some(65534));
        let service = json!({
            "volumes": [{
                "type": "bind",
                "source": "/run/a$$b/socket",
                "target": "/run/partywall",
                "read_only": true,
            }],
            "environment": {
                "PARTYWALL_SOCKET": "/run/partywall/coordinator.sock",
                "PARTYWALL_COORDINATOR_UID": "65534",
            },
        });
        let services = json!({ "web": service.clone(), "store": service });
        assert_eq!(file, json!({ "version": "3.8", "services": services }));
    }

    #[test]
    fn containers_are_told_whom_to_trust_only_where_they_would_not() {
        assert_eq!(trusted(Mapping::None, 0), None);
        assert_eq!(trusted(Mapping::None, 1000), Some(1000));
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap();
        assert_eq!(trusted(Mapping::Remapped, 0), overflow.trim().parse().ok());
    }
}
