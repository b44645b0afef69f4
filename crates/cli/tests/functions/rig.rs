//! A coordinator, a function host as a process, and commands that ask it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use partywall_testkit::Host;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process};

/// Lets this user serve functions, and call all of them; a service `echo` as well.
const POLICY: &str = "[service.functions]\nregister = ['anyone']\n[service.functions.call]\n\
                      anyone = ['*']\n[service.echo]\nregister = ['anyone']\n[service.echo.call]\n\
                      anyone = ['*']\n";

/// This user, as a policy names it.
pub fn me() -> String {
    format!("uid:{}", rustix::process::geteuid().as_raw())
}

/// A coordinator and a directory; both are gone with the value.
pub struct Rig {
    pub host: Host,
    pub dir: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Self {
        Self { host: Host::with(POLICY), dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and says where it is.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// A command `partywall fn`, asking the host.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.arg("fn").args(arguments).current_dir(self.dir.path());
        command.env("PARTYWALL_SOCKET", &self.host.socket);
        command.env_remove("PARTYWALL_LOG").env_remove("RUST_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Its standard output, when it is given this as standard input and succeeds.
    pub fn good(&self, arguments: &[&str], input: &str) -> String {
        let out = self.run(arguments, input);
        assert_eq!(out.status.code(), Some(0), "{arguments:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    /// Its exit status and standard error, when it fails.
    pub fn bad(&self, arguments: &[&str], input: &str) -> (i32, String) {
        let out = self.run(arguments, input);
        assert_eq!(text(&out.stdout), "", "{arguments:?}");
        (out.status.code().unwrap(), text(&out.stderr))
    }

    pub fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        // One that fails early reads nothing.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Starts a host with a registry of this name.
    pub fn serve(&self, state: &str, arguments: &[&str]) -> Served {
        Served::start(self.command(&["serve", "--directory", state]).args(arguments))
    }

    /// One that a shell starts which has done this before.
    pub fn serve_after(&self, before: &str, state: &str) -> Served {
        let own = self.command(&["serve", "--directory", state]);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
        command.arg(own.get_program()).args(own.get_args()).current_dir(self.dir.path());
        command.env("PARTYWALL_SOCKET", &self.host.socket);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Served::start(&mut command)
    }

    /// One with this policy, and HTTP.
    pub fn serve_http(&self, policy: &str) -> (Served, SocketAddr) {
        let file = self.file("policy.toml", policy);
        let served = self.serve("state", &["--policy", &file, "--http", "127.0.0.1:0"]);
        let address = served.address("calls at http://");
        (served, address)
    }

    /// Deploys a function of one file.
    pub fn deploy(&self, name: &str, source: &str, more: &[&str]) -> String {
        let file = self.file(&format!("{name}.rs"), source);
        self.good(&[&["deploy", &file][..], more].concat(), "")
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A host; it is killed with the value.
pub struct Served {
    child: Child,
    pub said: Vec<String>,
}

impl Served {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = Vec::new();
        loop {
            let Some(Ok(line)) = lines.next() else {
                let mut why = String::new();
                child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
                panic!("the host has not started: {said:?} {why}");
            };
            let is_last = line == "ready";
            said.push(line);
            if is_last {
                break;
            }
        }
        Self { child, said }
    }

    pub fn address(&self, before: &str) -> SocketAddr {
        let found = self.said.iter().find_map(|line| line.strip_prefix(before)?.strip_suffix('/'));
        found.unwrap_or_else(|| panic!("{:?}", self.said)).parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// What the kernel says of it: a file in its directory of /proc.
    pub fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Kills its workers; how many there were.
    pub fn kill_workers(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let children = tasks.flat_map(|task| {
            let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
            children.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
        });
        let is_worker = |pid: &i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains("partywall-worker"))
        };
        let workers: Vec<_> = children.filter(is_worker).collect();
        for pid in &workers {
            kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
        }
        workers.len()
    }

    /// Limits the length of its files.
    pub fn limit_files(&self, current: Option<u64>) {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Fsize).maximum };
        let pid = Pid::from_raw(self.child.id() as i32);
        rustix::process::prlimit(pid, Resource::Fsize, limit).unwrap();
    }

    /// Its processes: workers, and compilers.
    pub fn children(&self) -> Vec<Pid> {
        let pid = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
        };
        let is_child = |pid: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            parent.is_some_and(|parent| parent.trim() == self.child.id().to_string())
        };
        let all = std::fs::read_dir("/proc").unwrap().filter_map(pid);
        all.filter(is_child).filter_map(Pid::from_raw).collect()
    }

    /// Its exit status and standard error, when it ends by itself within 20 s.
    pub fn ended(mut self) -> (i32, String) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it has not ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code().unwrap(), said)
    }

    /// Ends it as Ctrl-C does; its exit status.
    pub fn stop(mut self) -> i32 {
        self.signal(Signal::INT);
        self.child.wait().unwrap().code().unwrap()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// An answer of HTTP.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

/// One request, and its answer.
pub fn http(address: SocketAddr, head: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n").unwrap();
    write!(stream, "content-length: {}\r\n\r\n", body.len()).unwrap();
    // A host that refuses early does not read it.
    let _unread = stream.write_all(body);
    read(&mut stream)
}

pub fn read(stream: &mut TcpStream) -> Answer {
    let mut all = Vec::new();
    let _reset = stream.read_to_end(&mut all);
    let all = text(&all);
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_owned(), body: body.to_owned() }
}

/// Whether a path is there.
pub fn exists(path: &Path) -> bool {
    path.try_exists().unwrap()
}
