//! The containers of a run: one for clients and one for servers, as other users, on one bridge.
//!
//! The engine is the one that answers where DOCKER_HOST says or at Docker's own socket. Where there is none
//! and this is root, dockerd is started for the run, in a mount namespace of its own and with all that it
//! keeps in one directory. The containers have what the engine gives by default: its seccomp filter and its
//! namespaces, no more capabilities. Their root is read-only and holds this program and the libraries that it
//! loads. Of the host they have the directory of the run, which they can read, and one in it that they can
//! write.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::case::{Place, USERS};
use crate::child::{Role, START};
use crate::error::Result;
use crate::porter::{Door, Porter};
use crate::sys::stop::Stop;

/// Docker's own socket.
const SOCKET: &str = "/run/docker.sock";

/// Where this program is in the image.
const PROGRAM: &str = "bin/partywall-bench";

/// How long an engine may take to answer, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it is let alone between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Two containers and what they need, gone with the value.
#[derive(Debug)]
pub struct Containers {
    server: Porter,
    client: Porter,
    addresses: Addresses,
    _engine: Engine,
}

#[derive(Clone, Copy, Debug)]
struct Addresses {
    host: Ipv4Addr,
    server: Ipv4Addr,
}

impl Containers {
    /// Has them run, with `dir` for reading. None if the user asked for an end.
    ///
    /// # Errors
    /// If there is no engine, or it cannot run them.
    pub fn start(dir: &Path, stop: &Stop) -> Result<Option<Self>> {
        let Some(engine) = Engine::find(stop)? else { return Ok(None) };
        let shared = Self::shared(dir);
        fs::create_dir(&shared)?;
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755))?;
        engine.import()?;
        engine.docker(&["network", "create", "--driver", "bridge", &engine.label])?;
        let server = engine.run("server", USERS[0], dir)?;
        let client = engine.run("client", USERS[1], dir)?;
        let addresses = engine.addresses()?;
        let containers = Self { server, client, addresses, _engine: engine };
        Ok((!stop.requested()).then_some(containers))
    }

    /// Of the directory of a run, the one that both containers can write.
    pub fn shared(dir: &Path) -> PathBuf {
        dir.join("shared")
    }

    /// In which container a process of this role is, if it is in one.
    pub fn of(&self, place: Place, role: Role) -> Option<&Porter> {
        match (place, role) {
            (Place::TwoContainers, Role::Server) => Some(&self.server),
            (Place::TwoContainers | Place::ClientInContainer, Role::Client) => Some(&self.client),
            _ => None,
        }
    }

    /// Where a server is that listens for the client.
    pub fn address(&self, place: Place) -> Ipv4Addr {
        match place {
            Place::Host => Ipv4Addr::LOCALHOST,
            Place::ClientInContainer => self.addresses.host,
            Place::TwoContainers => self.addresses.server,
        }
    }
}

/// An engine, and what this run has made there under one label.
#[derive(Debug)]
struct Engine {
    label: String,
    daemon: Option<Daemon>,
}

impl Engine {
    /// The running one, or one of this run's own. None if the user asked for an end.
    fn find(stop: &Stop) -> Result<Option<Self>> {
        let label = format!("partywall-bench-{}", std::process::id());
        let running = Self { label: label.clone(), daemon: None };
        let named = std::env::var_os("DOCKER_HOST").is_some();
        if named || Path::new(SOCKET).exists() {
            running.docker(&["version"])?;
            return Ok(Some(running));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(format!(
                "nothing is at {SOCKET}, DOCKER_HOST is not set, and only root can start dockerd. Start \
                 an engine, or run this as root"
            )
            .into());
        }
        eprintln!("Starting a container engine for this run.");
        let own = Self { label, daemon: Some(Daemon::start()?) };
        let begin = Instant::now();
        while let Err(error) = own.docker(&["version"]) {
            if stop.requested() {
                return Ok(None);
            }
            let daemon = own.daemon.as_ref().ok_or("no daemon")?;
            if begin.elapsed() > PATIENCE || !daemon.is_running() {
                return Err(
                    format!("dockerd does not answer: {error}; {}", daemon.last_words()).into()
                );
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Some(own))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.args(arguments).stdin(Stdio::null()).process_group(0);
        if let Some(daemon) = &self.daemon {
            docker.env("DOCKER_HOST", daemon.host());
        }
        docker
    }

    /// What `docker` says to this.
    fn docker(&self, arguments: &[&str]) -> Result<String> {
        said(&mut self.command(arguments))
    }

    /// Makes the image.
    fn import(&self) -> Result<()> {
        let context = tempfile::tempdir()?;
        let put = |from: &Path, to: &str| -> Result<()> {
            let to = context.path().join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().ok_or("no directory")?)?;
            fs::copy(from, to)?;
            Ok(())
        };
        let program = std::env::current_exe()?;
        put(&program, PROGRAM)?;
        // The loader names itself and each library by a path, but for the kernel's own. A static program
        // has none.
        let libraries = Command::new("ldd").arg(&program).output()?.stdout;
        let libraries = String::from_utf8(libraries)?;
        for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            put(&fs::canonicalize(path)?, path)?;
        }
        let packed = tempfile::tempfile()?;
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(context.path()).args(["--create", "."]).stdout(packed.try_clone()?);
        if !tar.status()?.success() {
            return Err("tar cannot pack the image".into());
        }
        use std::io::Seek;
        (&packed).rewind()?;
        said(self.command(&["import", "-", &self.label]).stdin(packed))?;
        Ok(())
    }

    /// Runs the container for this role, and waits for its porter.
    fn run(&self, role: &str, user: u32, dir: &Path) -> Result<Porter> {
        let path = dir.join(format!("{role}.porter"));
        let door = Door::open(&path)?;
        let [dir, path] = [dir, &path].map(|path| path.to_str().ok_or("no text"));
        let (dir, path) = (dir?, path?);
        let (name, user) = (self.name(role), format!("{user}:{user}"));
        let volume = format!("{dir}:{dir}:ro");
        let shared = Containers::shared(Path::new(dir)).display().to_string();
        let shared = format!("{shared}:{shared}");
        let owner = format!("PARTYWALL_COORDINATOR_UID={}", rustix::process::geteuid().as_raw());
        let program = format!("/{PROGRAM}");
        self.docker(&[
            "run",
            "--detach",
            "--rm",
            "--read-only",
            "--name",
            &name,
            "--network",
            &self.label,
            "--user",
            &user,
            "--volume",
            &volume,
            "--volume",
            &shared,
            "--env",
            &owner,
            &self.label,
            &program,
            "porter",
            path,
        ])?;
        let pid = self.docker(&["inspect", "--format", "{{.State.Pid}}", &name])?;
        door.take(pid.trim().parse()?, START)
    }

    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.label)
    }

    /// Of the host and of the server's container on their bridge.
    fn addresses(&self) -> Result<Addresses> {
        let format = "{{range .NetworkSettings.Networks}}{{.Gateway}} {{.IPAddress}}{{end}}";
        let said = self.docker(&["inspect", "--format", format, &self.name("server")])?;
        let mut words = said.split_whitespace().map(str::parse);
        let mut next =
            || words.next().ok_or_else(|| format!("a container's addresses are {said:?}"));
        Ok(Addresses { host: next()??, server: next()?? })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What was not made cannot be removed, and says so. A daemon of this run's ends with the value.
        let names = ["server", "client"].map(|role| self.name(role));
        let _ = self.docker(&["rm", "--force", &names[0], &names[1]]);
        let _ = self.docker(&["network", "rm", &self.label]);
        let _ = self.docker(&["rmi", "--force", &self.label]);
    }
}

/// What a command prints, which has to succeed.
fn said(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !out.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// A dockerd of this run's own. It ends with this process as well, if that is killed.
#[derive(Debug)]
struct Daemon {
    child: Child,
    dir: TempDir,
    groups: BTreeSet<PathBuf>,
}

impl Daemon {
    fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("partywall-bench-engine-").tempdir()?;
        let at = |name: &str| dir.path().join(name);
        let log = File::create(at("log"))?;
        // A namespace of its own, so that its mounts go with it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "unshare", "--mount", "dockerd"]);
        for (option, name) in
            [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")]
        {
            command.arg(option).arg(at(name));
        }
        command.arg("--host").arg(format!("unix://{}", at("docker.sock").display()));
        command.args(["--bridge=none", "--iptables=false", "--ip6tables=false"]);
        command.args(["--ip-forward=false", "--ip-masq=false", "--userland-proxy=false"]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let groups = groups();
        let child = command.spawn().map_err(|error| format!("setpriv: {error}"))?;
        Ok(Self { child, dir, groups })
    }

    fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("docker.sock").display())
    }

    fn is_running(&self) -> bool {
        // Not yet waited for, so that its number is its own.
        let state =
            fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().last().unwrap_or("it has said nothing").to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself. Its containerd ends with it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
        // What looks after a container ends after it.
        let begin = Instant::now();
        let own = self.dir.path().display().to_string();
        let mut left = processes_with(&own);
        while !left.is_empty() && begin.elapsed() < PATIENCE / 6 {
            std::thread::sleep(PAUSE);
            left = processes_with(&own);
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        for group in groups().difference(&self.groups) {
            // One that another engine uses by now cannot be removed.
            let _ = fs::remove_dir(group);
        }
    }
}

/// Processes with this text in their command lines, but for this one.
fn processes_with(text: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let is_other = pid != rustix::process::getpid();
        (is_other && String::from_utf8_lossy(&line).contains(text)).then_some(pid)
    });
    found.collect()
}

/// The parent groups of an engine's containers, in each hierarchy.
fn groups() -> BTreeSet<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let entries = fs::read_dir(&root).into_iter().flatten().flatten();
    let hierarchies = entries.map(|entry| entry.path()).chain([root]);
    hierarchies.map(|at| at.join("docker")).filter(|group| group.is_dir()).collect()
}
