//! What processes of the same user can take from the ends of a link, and that the link says so.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use partywall_abi::control::{ListMessage, Message};
use partywall_abi::name::ServiceName;
use partywall_coordinator::identity::digest;
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_testkit::{Conversation, Host, OPEN, PATIENCE, Process, alone};

use crate::{CLIENT, SERVER};

/// The user `nobody`, for tests that root runs.
const NOBODY: u32 = 65534;

/// Whose processes these tests start: nobody's with rights over others.
fn user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

fn uid() -> u32 {
    user().unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

fn start(socket: &Path, program: &str, arguments: &[&str]) -> Process {
    let own = rustix::process::geteuid().as_raw().to_string();
    let environment = [("PARTYWALL_COORDINATOR_UID", own.as_str())];
    Process::start(program, socket, arguments, &environment, user())
}

/// Another process of the user, which takes from this one.
fn taker(pid: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_st-taker"));
    command.arg(pid.to_string());
    if let Some(uid) = user() {
        command.uid(uid).gid(uid);
    }
    command
}

/// What that takes.
fn taken(pid: u32) -> String {
    let out = taker(pid).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

const IDLE: [&str; 4] = ["--mode", "idle", "--links", "1"];
const NOTHING: &str =
    "sockets: Operation not permitted (os error 1)\nmemory: Operation not permitted (os error 1)\n";

/// Whether it was a link's socket, and bytes of an outbox.
fn is_all(taken: &str) -> bool {
    let magic = partywall_abi::layout::MAGIC.to_le_bytes();
    let (sockets, memory) = taken.trim().split_once('\n').unwrap();
    let sockets: Option<usize> = sockets.strip_prefix("sockets: ").and_then(|n| n.parse().ok());
    sockets.is_some_and(|n| n >= 1) && memory == format!("memory: {magic:?}")
}

/// What the coordinator's list says of who can read each open link.
fn listed(socket: &Path) -> Vec<&'static str> {
    let operator = Conversation::open(socket).unwrap();
    operator.say(&ListMessage::List { request: 1 }.into()).unwrap();
    let mut listed = Vec::new();
    loop {
        match operator.next().unwrap().0 {
            Message::List(ListMessage::Row { row, .. }) if row.open => {
                listed.push(row.security.confidentiality.word());
            }
            Message::List(ListMessage::Row { .. }) => {}
            Message::List(ListMessage::Listed { .. }) => return listed,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_link_is_taken_by_its_own_user_unless_its_ends_are_hardened() {
    let _alone = alone();
    let default = "# of harden it says nothing\n";
    for (harden, level) in
        [("harden = false\n", "user"), ("harden = true\n", "host"), (default, "host")]
    {
        let host = Host::with(&format!("{harden}{OPEN}"));
        let server = start(&host.socket, SERVER, &[]);
        host.until_served();
        let mut client = start(&host.socket, CLIENT, &["--mode", "security"]);
        let said = super::security::said_by_all(&host, &mut client);
        assert_eq!(said, format!("process, {level}, observed"), "{harden}");
        let mut idle = start(&host.socket, CLIENT, &IDLE);
        idle.ready();
        for pid in [server.pid(), idle.pid()] {
            let taken = taken(pid);
            match level {
                "user" => assert!(is_all(&taken), "{harden}: {taken}"),
                _ => assert_eq!(taken, NOTHING, "{harden}"),
            }
        }
        client.succeed();
    }
}

fn open_to_all(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// A coordinator of the user's own, which can be started again; its policy, and where it is.
struct Town {
    dirs: [tempfile::TempDir; 2],
    coordinator: Option<Process>,
}

impl Town {
    fn new(policy: &str) -> Self {
        let dirs = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let others_read = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dirs[0].path(), others_read).unwrap();
        open_to_all(dirs[1].path());
        std::fs::write(dirs[0].path().join("policy.toml"), policy).unwrap();
        let mut town = Self { dirs, coordinator: None };
        town.start();
        town
    }

    fn socket(&self) -> PathBuf {
        self.dirs[1].path().join("c.sock")
    }

    fn start(&mut self) {
        self.coordinator = None;
        let policy = self.dirs[0].path().join("policy.toml");
        let arguments = ["--policy", policy.to_str().unwrap()];
        let program = env!("CARGO_BIN_EXE_st-coordinator");
        let mut coordinator = Process::start(program, &self.socket(), &arguments, &[], user());
        coordinator.ready();
        self.coordinator = Some(coordinator);
    }

    fn process(&self, program: &str, arguments: &[&str]) -> Process {
        let uid = uid().to_string();
        let environment = [("PARTYWALL_COORDINATOR_UID", uid.as_str())];
        Process::start(program, &self.socket(), arguments, &environment, user())
    }
}

/// What a coordinator without rights knows of processes of its own user, it knows as well after a restart:
/// one that goes by its program is not hardened, for /proc would not tell of that any more.
#[test]
fn processes_are_known_to_the_next_coordinator() {
    let _alone = alone();
    let program = digest(&std::fs::read(SERVER).unwrap()).map(|b| format!("{b:02x}")).concat();
    let by_user = format!("uid = {}\n", uid());
    let by_program = format!("program = 'sha256:{program}'\nevidence = 'observed'\n");
    for (fact, level) in [(&by_user, "host"), (&by_program, "user")] {
        let mut town = Town::new(&format!(
            "[principal.server]\n{fact}[service.test]\nregister = ['server']\n\
             [service.test.call]\nanyone = ['*']\n"
        ));
        let server = town.process(SERVER, &[]);
        let mut first = town.process(CLIENT, &IDLE);
        first.ready();
        assert_eq!(listed(&town.socket()), [level], "{fact}");
        town.start();
        // Served again, by whom the policy says, and the link that was there goes on.
        let mut second = town.process(CLIENT, &IDLE);
        second.ready();
        // The first one has its own time to look for this coordinator.
        until(|| listed(&town.socket()).len() == 2);
        assert_eq!(listed(&town.socket()), [level; 2], "{fact}");
        let taken = taken(server.pid());
        match level {
            "user" => assert!(is_all(&taken), "{fact}: {taken}"),
            _ => assert_eq!(taken, NOTHING, "{fact}"),
        }
    }
}

/// Waits until something is so.
fn until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_process_that_opens_itself_again_says_so_at_its_next_link() {
    let _alone = alone();
    let host = Host::with(&format!("harden = true\n{OPEN}"));
    let server = start(&host.socket, SERVER, &[]);
    host.until_served();
    let mut before = start(&host.socket, CLIENT, &IDLE);
    before.ready();
    start(&host.socket, CLIENT, &["--mode", "open"]).succeed();
    assert!(is_all(&taken(server.pid())));
    let mut after = start(&host.socket, CLIENT, &IDLE);
    after.ready();
    until(|| listed(&host.socket) == ["host", "user"]);
}

/// Who is traced when it is told does not count as hardened: whoever traces it goes on.
#[test]
fn a_reload_hardens_running_processes_unless_they_are_traced() {
    let _alone = alone();
    let dirs = [(), ()].map(|()| tempfile::tempdir().unwrap());
    open_to_all(dirs[1].path());
    let (file, socket) = (dirs[0].path().join("policy.toml"), dirs[1].path().join("c.sock"));
    let write = |harden: bool| std::fs::write(&file, format!("harden = {harden}\n{OPEN}")).unwrap();
    write(false);
    let (listen, policy_file) = (Listen::At(socket.clone()), Some(file.clone()));
    let options = Options { listen, policy_file, ..Options::default() };
    let coordinator = Coordinator::start_with(Policy::load(&file).unwrap(), options).unwrap();
    let reload = || {
        let (done, read) = std::sync::mpsc::channel();
        coordinator.reload(move |result| done.send(result).unwrap());
        read.recv_timeout(PATIENCE).unwrap().unwrap();
    };
    let server = start(&socket, SERVER, &[]);
    let idle = || {
        let mut idle = start(&socket, CLIENT, &IDLE);
        idle.ready();
        idle
    };
    coordinator.serving(&ServiceName::new("test").unwrap()).recv_timeout(PATIENCE).unwrap();
    let _first = idle();
    let mut tracer = taker(server.pid());
    tracer.arg("trace").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tracer = tracer.spawn().unwrap();
    let mut ready = [0; 6];
    tracer.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(ready, *b"ready\n");
    write(true);
    reload();
    until(|| taken(server.pid()) == NOTHING);
    let second = idle();
    assert_eq!(listed(&socket), ["user"; 2]);
    // What is not hardened yet is told again.
    drop(tracer.stdin.take());
    assert!(tracer.wait().unwrap().success());
    drop(second);
    reload();
    until(|| {
        let _next = idle();
        listed(&socket).contains(&"host")
    });
    assert_eq!(listed(&socket)[0], "user", "a link is what it was when it was made");
}
