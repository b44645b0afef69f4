//! A container engine of a test's own, and projects in it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use partywall_testkit::Held;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const END: &str = env!("CARGO_BIN_EXE_et-end");

/// What containers are made of: the program, and the libraries that it loads.
pub const IMAGE: &str = "partywall-test:1";

/// How an image gets the program.
pub const OWN: &str = "FROM scratch\nCOPY et-end /bin/et-end\n";

/// Where the directories of runs are.
const PROJECTS: &str = "/run/partywall/compose";

/// How long an engine may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command, built beside this test.
pub fn partywall() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("partywall-cli", "partywall"))
}

/// A program of a package, built beside this test.
pub fn built(package: &str, program: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("run by cargo");
    let build = ["build", "--quiet", "-p", package, "--bin", program];
    let built = Command::new(cargo).args(build).status().unwrap();
    assert!(built.success(), "{program} is not built");
    Path::new(END).with_file_name(program)
}

/// One engine at a time: they share the host's control groups and bridges.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon in mount and network namespaces of its own, with all that it keeps in one directory. The host's
/// rules for packets, which on some hosts let no bridge pass any, do not hold there.
pub struct Engine {
    daemon: RefCell<Child>,
    command: Box<dyn Fn(&Path) -> Command>,
    dir: tempfile::TempDir,
    groups: BTreeSet<PathBuf>,
    _alone: MutexGuard<'static, ()>,
}

/// The user of a rootless engine.
pub const USER: u32 = 1000;

/// Podman's settings: everything in the directory, and limits that a machine may have that gives no more.
const PODMAN: &str = "
[containers]
default_ulimits = ['nofile=1024:4096', 'nproc=4096:4096']
[engine]
cgroup_manager = 'cgroupfs'
events_logger = 'file'
exit_command_delay = 0
lock_type = 'file'
static_dir = 'DIR/static'
tmp_dir = 'DIR/tmp'
volume_path = 'DIR/volumes'
";

const STORAGE: &str = "[storage]\ndriver = 'vfs'\nrunroot = 'DIR/run'\ngraphroot = 'DIR/data'\n";

impl Engine {
    /// Docker as Debian's is, but without bridges of its own and rules for packets.
    pub fn start() -> Self {
        Self::start_docker("", &[])
    }

    /// One that maps the users of containers to others.
    pub fn start_remapped() -> Self {
        // In its mount namespace only.
        let lent = "printf 'nobody:300000:65536\\n' > $DIR/lent && mount --bind $DIR/lent /etc/subuid && \
                    mount --bind $DIR/lent /etc/subgid && ";
        Self::start_docker(lent, &["--userns-remap=nobody:nogroup"])
    }

    fn start_docker(before: &'static str, more: &'static [&'static str]) -> Self {
        Self::start_with(move |dir| {
            let at = |name: &str| dir.join(name);
            let mut command = Command::new("unshare");
            command.args([
                "--mount",
                "--net",
                "sh",
                "-c",
                &format!("{before}exec dockerd \"$@\""),
                "dockerd",
            ]);
            for (option, name) in
                [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")]
            {
                command.arg(option).arg(at(name));
            }
            command.arg("--host").arg(format!("unix://{}", at("docker.sock").display()));
            command.args([
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
            ]);
            command.args(["--ip-masq=false", "--userland-proxy=false"]).args(more).env("DIR", dir);
            command
        })
    }

    /// Podman, which answers as Docker does.
    pub fn start_podman() -> Self {
        Self::start_with(|dir| {
            let put = |name: &str, text: &str| {
                let path = dir.join(name);
                fs::write(&path, text.replace("DIR", dir.to_str().unwrap())).unwrap();
                path
            };
            let mut command = Command::new("unshare");
            command.args(["--mount", "--net", "podman", "system", "service", "--time", "0"]);
            command.arg(format!("unix://{}", dir.join("docker.sock").display()));
            command.env("CONTAINERS_CONF", put("containers.conf", PODMAN));
            command.env("CONTAINERS_STORAGE_CONF", put("storage.conf", STORAGE));
            command
        })
    }

    /// Podman of a user without rights, whose containers have no user but that one.
    pub fn start_rootless() -> Self {
        Self::start_with(|dir| {
            let put = |name: &str, text: String| {
                let path = dir.join(name);
                fs::write(&path, text).unwrap();
                path.display().to_string()
            };
            let of = |text: &str| text.replace("DIR", dir.to_str().unwrap());
            let passwd = format!("root:x:0:0::/:/bin/sh\nuser:x:{USER}:{USER}::/:/bin/sh\n");
            // In its mount namespace only.
            let names = [
                ("passwd", put("passwd", passwd)),
                ("group", put("group", format!("root:x:0:\nuser:x:{USER}:\n"))),
                ("subuid", put("subuid", String::new())),
                ("subgid", put("subgid", String::new())),
            ];
            let binds: String = names
                .iter()
                .map(|(name, path)| format!("mount --bind {path} /etc/{name} && "))
                .collect();
            let own = Some(USER);
            std::os::unix::fs::chown(dir, own, own).unwrap();
            let uid = USER.to_string();
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &format!("{binds}exec \"$@\""), "sh"]);
            command.args(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"]);
            command.args(["podman", "system", "service", "--time", "0"]);
            command.arg(format!("unix://{}", dir.join("docker.sock").display()));
            command.env("CONTAINERS_CONF", put("containers.conf", of(PODMAN)));
            command.env("CONTAINERS_STORAGE_CONF", put("storage.conf", of(STORAGE)));
            command.env("HOME", dir).env("XDG_RUNTIME_DIR", dir);
            command
        })
    }

    fn start_with(command: impl Fn(&Path) -> Command + 'static) -> Self {
        let _alone = alone();
        assert!(rustix::process::geteuid().is_root(), "needs root, whose the engine is");
        let dir = tempfile::Builder::new().prefix("pw-engine-").tempdir().unwrap();
        let groups = groups();
        let daemon = RefCell::new(spawn(command(dir.path()), dir.path()));
        let engine = Self { daemon, command: Box::new(command), dir, groups, _alone };
        engine.answers();
        engine.build(IMAGE, OWN, Path::new(END), &libraries(Path::new(END)));
        engine
    }

    /// Waits until it answers.
    fn answers(&self) {
        let begin = Instant::now();
        while !self.docker(&["version"]).output().unwrap().status.success() {
            let ended = self.daemon.borrow_mut().try_wait().unwrap();
            let log = || fs::read_to_string(self.dir.path().join("log")).unwrap();
            assert!(ended.is_none(), "the engine has ended:\n{}", log());
            assert!(begin.elapsed() < PATIENCE, "the engine does not answer:\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it, and its containers with it.
    pub fn stop(&self) {
        let mut daemon = self.daemon.borrow_mut();
        kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        daemon.wait().unwrap();
    }

    /// Starts it again, with the containers that it had.
    pub fn start_again(&self) {
        *self.daemon.borrow_mut() = spawn((self.command)(self.dir.path()), self.dir.path());
        self.answers();
    }

    /// Builds an image by a Dockerfile that copies the program, of which only the name counts, and with these
    /// files beside it: where each is, and where it goes.
    pub fn build(
        &self,
        image: &str,
        dockerfile: &str,
        program: &Path,
        files: &[(PathBuf, PathBuf)],
    ) {
        let context = tempfile::tempdir_in(self.dir.path()).unwrap();
        let put = |from: &Path, to: &Path| {
            let to = context.path().join(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, &to).unwrap();
            to
        };
        let program = put(program, Path::new(program.file_name().unwrap()));
        assert!(Command::new("strip").arg(program).status().unwrap().success());
        fs::create_dir(context.path().join("root")).unwrap();
        for (from, to) in files {
            put(from, &Path::new("root").join(to.strip_prefix("/").unwrap()));
        }
        let dockerfile = format!("{dockerfile}COPY root /\n");
        fs::write(context.path().join("Dockerfile"), dockerfile).unwrap();
        let mut build = self.docker(&["build", "--quiet", "--tag", image]);
        said(build.arg(context.path()).env("DOCKER_BUILDKIT", "0"));
    }

    /// Its address.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("docker.sock").display())
    }

    /// A command that finds this engine.
    pub fn with(&self, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).env("DOCKER_HOST", self.host());
        // No configuration of who runs the test.
        command.env("DOCKER_CONFIG", self.dir.path().join("config"));
        command.env_remove("COMPOSE_PROJECT_NAME").env_remove("PARTYWALL_SOCKET");
        command
    }

    /// Docker's command.
    pub fn docker(&self, arguments: &[&str]) -> Command {
        self.with("docker", arguments)
    }

    /// What it has: containers, and networks but for those of each engine.
    pub fn left(&self) -> Vec<String> {
        let containers =
            said(&mut self.docker(&["ps", "--all", "--format", "container {{.Names}}"]));
        let networks = said(&mut self.docker(&["network", "ls", "--format", "network {{.Name}}"]));
        let of_engine = ["bridge", "host", "none", "podman"].map(|name| format!("network {name}"));
        let networks = networks.lines().filter(|line| !of_engine.iter().any(|known| known == line));
        containers.lines().chain(networks).map(str::to_owned).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let ids = self.docker(&["ps", "--all", "--quiet"]).output().unwrap().stdout;
        let ids = String::from_utf8(ids).unwrap();
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            let _removed = self.docker(&["rm", "--force"]).args(ids).output();
        }
        // Its containerd ends with it. Their mounts are in a namespace that ends with both.
        let daemon = self.daemon.get_mut();
        let _ended = kill_process(Pid::from_child(daemon), Signal::TERM);
        let _status = daemon.wait();
        // A rootless one goes on in namespaces of its user, which a process of its own keeps.
        if let Ok(text) = fs::read_to_string(self.dir.path().join("tmp/pause.pid")) {
            let keeps = text.trim().parse().ok().and_then(Pid::from_raw);
            let goes_on = processes_with(&self.host()).into_iter().map(|(pid, _)| pid);
            for pid in goes_on.chain(keeps) {
                let _ended = kill_process(pid, Signal::KILL);
            }
        }
        // What looks after a container, or a command in one, ends after it.
        let begin = Instant::now();
        let left = loop {
            let left = processes_with(&self.dir.path().display().to_string());
            if left.is_empty() || begin.elapsed() > Duration::from_secs(10) {
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        for group in groups().difference(&self.groups) {
            let _removed = fs::remove_dir(group);
        }
        for (pid, _) in &left {
            let _ended = kill_process(*pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left of the engine: {left:?}");
        }
    }
}

/// The libraries of a program, which the loader names by their paths, as it does itself, but for the
/// kernel's own.
pub fn libraries(program: &Path) -> Vec<(PathBuf, PathBuf)> {
    let listed = said(Command::new("ldd").arg(program));
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(|path| (fs::canonicalize(path).unwrap(), path.into())).collect()
}

fn spawn(mut command: Command, dir: &Path) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let copy = log.try_clone().unwrap();
    command.stdin(Stdio::null()).stdout(log).stderr(copy).spawn().unwrap()
}

/// Processes with this text in their command lines, but for this one.
pub fn processes_with(text: &str) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (pid != rustix::process::getpid() && line.contains(text)).then_some((pid, line))
    });
    lines.collect()
}

/// The engines' parent groups, in each hierarchy.
fn groups() -> BTreeSet<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let hierarchies =
        fs::read_dir(&root).unwrap().flatten().map(|entry| entry.path()).chain([root]);
    let all = hierarchies.flat_map(|at| ["docker", "libpod_parent"].map(|name| at.join(name)));
    all.filter(|group| group.is_dir()).collect()
}

/// Runs a command to its end: its status, and what it has printed. What it leaves running may have its
/// output still.
pub fn finished(command: &mut Command) -> (Option<i32>, String) {
    let mut said = tempfile::tempfile().unwrap();
    command.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
    let status = command.status().unwrap();
    said.rewind().unwrap();
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    (status.code(), text)
}

/// What a command prints, which has to succeed.
pub fn said(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", complained(&out));
    String::from_utf8(out.stdout).unwrap()
}

pub fn complained(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A project whose Compose file is in a directory of its own; ended with the value.
pub struct Project<'e> {
    pub engine: &'e Engine,
    pub name: String,
    dir: tempfile::TempDir,
    /// Whether there were others.
    others: bool,
}

/// A service that does this, as another user than others.
pub fn service(name: &str, uid: u32, command: &str, more: &str) -> String {
    format!(
        "  {name}:\n    image: {IMAGE}\n    user: '{uid}'\n    read_only: true\n    \
         stop_grace_period: 1s\n    command: [/bin/et-end, {command}]\n    {more}\n"
    )
}

impl<'e> Project<'e> {
    /// With these services; not up yet.
    pub fn new(engine: &'e Engine, name: &str, services: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let others = Path::new(PROJECTS).exists();
        let name = format!("{name}-{}", std::process::id());
        let project = Self { engine, name, dir, others };
        fs::write(project.file(), format!("services:\n{}", services.concat())).unwrap();
        project
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("compose.yaml")
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// `partywall compose ORDER -p NAME`.
    pub fn order(&self, order: &[&str]) -> Command {
        let mut command = self.engine.with(partywall(), &["compose"]);
        command.args(order).args(["-p", &self.name]);
        command
    }

    /// Has it up in the background.
    pub fn up(&self, more: &[&str]) {
        let (code, text) = finished(self.order(&["up", "-d"]).arg(self.file()).args(more));
        assert_eq!(code, Some(0), "{text}");
    }

    pub fn run_dir(&self) -> PathBuf {
        Path::new(PROJECTS).join(&self.name)
    }

    /// Nothing is left of a run.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.engine.left(), [""; 0]);
        assert!(!self.run_dir().exists(), "{:?}", self.run_dir());
        assert!(self.others || !Path::new(PROJECTS).exists(), "{PROJECTS}");
        let left = processes_with(&self.run_dir().display().to_string());
        assert!(left.is_empty(), "{left:?}");
    }

    pub fn socket(&self) -> PathBuf {
        self.run_dir().join("socket/coordinator.sock")
    }

    /// The coordinator's process.
    pub fn coordinator(&self) -> u32 {
        use std::os::fd::AsFd;
        let conversation = partywall_testkit::Conversation::connect(&self.socket()).unwrap();
        partywall_shm::socket::peer_credentials(conversation.as_fd()).unwrap().pid
    }

    /// What the coordinator holds with its connections and links as they are: the same for a tenth of a
    /// second, for it takes back what it has lent to a link in the making a moment later.
    pub fn held(&self) -> Held {
        let pid = self.coordinator();
        let (mut held, mut since) = (Held::by(pid), Instant::now());
        let begin = Instant::now();
        while since.elapsed() < Duration::from_millis(100) {
            assert!(begin.elapsed() < PATIENCE, "it holds something else each time: {held:?}");
            std::thread::sleep(Duration::from_millis(5));
            let now = Held::by(pid);
            if now != held {
                (held, since) = (now, Instant::now());
            }
        }
        held
    }

    /// What `docker inspect` says of a service's container.
    pub fn inspect(&self, service: &str) -> Value {
        let project = format!("label=com.docker.compose.project={}", self.name);
        let service = format!("label=com.docker.compose.service={service}");
        let list =
            ["ps", "--all", "--quiet", "--no-trunc", "--filter", &project, "--filter", &service];
        let id = said(&mut self.engine.docker(&list));
        let mut all: Value =
            serde_json::from_str(&said(&mut self.engine.docker(&["inspect", id.trim()]))).unwrap();
        all[0].take()
    }

    pub fn id(&self, service: &str) -> String {
        self.inspect(service)["Id"].as_str().unwrap().to_owned()
    }

    pub fn pid(&self, service: &str) -> u64 {
        self.inspect(service)["State"]["Pid"].as_u64().unwrap()
    }

    /// `docker ORDER` on a service's container.
    pub fn docker(&self, order: &[&str], service: &str) {
        said(self.engine.docker(order).arg(self.id(service)));
    }

    /// A caller in a service's container.
    pub fn caller(&self, service: &str, name: &str) -> Caller {
        let id = self.id(service);
        let exec = ["exec", "--interactive", &id, "/bin/et-end", "ask", name];
        Caller::start(&mut self.engine.docker(&exec))
    }

    /// The rows of `partywall links`, one object each.
    pub fn links(&self) -> Vec<Value> {
        let text = said(
            Command::new(partywall()).args(["links", "--json", "--socket"]).arg(self.socket()),
        );
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Project<'_> {
    fn drop(&mut self) {
        if self.run_dir().exists() {
            let (code, text) = finished(&mut self.order(&["down"]));
            if !std::thread::panicking() {
                assert_eq!(code, Some(0), "{text}");
            }
        }
    }
}

/// A process that calls once for each line.
pub struct Caller {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Caller {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// What a call with so many bytes comes to.
    pub fn call(&mut self, bytes: usize) -> String {
        self.say(&bytes.to_string())
    }

    /// What comes of this line.
    pub fn say(&mut self, line: &str) -> String {
        self.put(line);
        self.line()
    }

    /// Has it read this line.
    pub fn put(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line of its output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Calls until this is what comes of it; fails when it takes too long, and tells what came last.
    pub fn call_until(&mut self, bytes: usize, what: &str) {
        let begin = Instant::now();
        loop {
            let said = self.call(bytes);
            if said.starts_with(what) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "not {what:?} but {said:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It ends with its input, in its container as well.
        self.input = None;
        let _status = self.child.wait();
    }
}

/// Facts of a process in a container, as the host sees them.
pub fn facts(pid: u64) -> BTreeMap<String, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let fields = status.lines().filter_map(|line| line.split_once(":\t"));
    let mut facts: BTreeMap<String, String> =
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        facts.insert(format!("ns {kind}"), link.display().to_string());
    }
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    for line in mounts.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        facts.insert(format!("mount {}", parts[4]), parts[5].to_owned());
    }
    facts
}
