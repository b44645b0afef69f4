//! What other processes of the same user reach of a coordinator and of the services of `up`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall_abi::control::{
    LinkMessage, LinkRow, ListMessage, Message, RegistryMessage, SessionMessage,
};
use partywall_abi::name::ServiceName;
use partywall_testkit::{Conversation, OPEN, PATIENCE};

use super::command;
use super::domains::Run;

/// The user `nobody`, for tests that root runs: root may look at everybody.
const NOBODY: u32 = 65534;

fn of_a_user(command: &mut Command) -> &mut Command {
    match rustix::process::geteuid().is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}

/// Whether another process of the user may open a file of /proc.
fn opens(pid: u32, file: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<\"$0\"", &format!("/proc/{pid}/{file}")]).stderr(Stdio::null());
    of_a_user(&mut shell).status().unwrap().success()
}

/// What pidfd_getfd(2), process_vm_readv(2) and ptrace(2) ask the kernel is what it asks itself here.
fn is_closed(pid: u32) -> bool {
    !opens(pid, "mem")
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn anybody_may_enter(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
}

fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// It makes links all the same: it opens its own descriptors by /proc, whose files are root's then.
#[test]
fn a_coordinator_is_closed_to_its_user_and_makes_links() {
    let other = Killed(of_a_user(Command::new("sleep").arg("60")).spawn().unwrap());
    assert!(!is_closed(other.0.id()), "any process is open to its user");
    let dirs = [(), ()].map(|()| tempfile::tempdir().unwrap());
    std::fs::set_permissions(dirs[0].path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    anybody_may_enter(dirs[1].path());
    let (policy, socket) = (dirs[0].path().join("policy.toml"), dirs[1].path().join("c.sock"));
    std::fs::write(&policy, OPEN).unwrap();
    let mut command = command(&["coordinator", "--socket"]);
    command.arg(&socket).arg("--policy").arg(&policy).stdout(Stdio::null());
    let coordinator = Killed(of_a_user(&mut command).spawn().unwrap());
    let caller = until(|| Conversation::open(&socket).ok());
    let server = Conversation::open(&socket).unwrap();
    assert!(is_closed(coordinator.0.id()));
    let name = ServiceName::new("test").unwrap();
    let register = RegistryMessage::Register { request: 1, name: name.clone(), places: 9 };
    server.say(&register.into()).unwrap();
    let registered = server.next().unwrap().0;
    let is_registered = matches!(registered, Message::Registry(RegistryMessage::Registered { .. }));
    assert!(is_registered, "{registered:?}");
    let connect = LinkMessage::Connect { request: 2, name }.into();
    partywall_testkit::open(&caller, &server, &connect).unwrap();
}

/// The rows of links that are open.
fn open_links(socket: &Path) -> Vec<LinkRow> {
    let operator = Conversation::open(socket).unwrap();
    operator.say(&ListMessage::List { request: 1 }.into()).unwrap();
    let mut rows = Vec::new();
    loop {
        match operator.next().unwrap().0 {
            Message::List(ListMessage::Row { row, .. }) if row.open => rows.push(*row),
            Message::List(ListMessage::Row { .. }) => {}
            Message::List(ListMessage::Listed { .. }) => return rows,
            Message::Session(SessionMessage::Refused { text, .. }) => panic!("{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn services_of_up_are_closed_to_its_user_unless_told_otherwise() {
    for (option, level) in [(None, "host"), (Some("--no-harden"), "user")] {
        let run = Run::new("link: ring", "link: ring", "flood");
        anybody_may_enter(run.dir.path());
        let mut command = run.command();
        command.args(option).stdout(Stdio::null()).stderr(Stdio::null());
        let up = Killed(of_a_user(&mut command).spawn().unwrap());
        let socket = until(|| {
            let entries = std::fs::read_dir(run.dir.path()).unwrap().flatten();
            entries.map(|e| e.path().join("coordinator.sock")).find(|socket| socket.exists())
        });
        let row = until(|| open_links(&socket).pop());
        assert_eq!(row.security.confidentiality.word(), level);
        let ends = [row.caller.pid, row.server.unwrap().pid];
        for pid in ends.map(|pid| pid.expect("it is seen")) {
            assert_eq!(is_closed(pid), level == "host", "{level}");
        }
        assert!(is_closed(up.0.id()), "{level}");
    }
}
