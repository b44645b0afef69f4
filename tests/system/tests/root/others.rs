//! What processes of another user can reach.

use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{CLIENT, SERVER, client_of};
use partywall_abi::control::{LinkRow, ListMessage, Message};
use partywall_coordinator::place::{Kind, Why};
use partywall_testkit::{Conversation, Host, OPEN, Process, alone};

const USER: u32 = 2001;
const STRANGER: u32 = 2002;

/// Whether a process of this user may open a file of /proc.
fn opens(uid: u32, path: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<\"$0\"", path]).uid(uid).gid(uid);
    shell.stderr(Stdio::null()).status().unwrap().success()
}

/// In a directory such as /tmp, another user can be first to make what a command looks for.
#[test]
fn a_run_directory_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, owner) in [("own", USER), ("partywall", STRANGER)] {
        std::fs::create_dir(at(name)).unwrap();
        chown(at(name), Some(owner), None).unwrap();
    }
    symlink(at("own"), at("link")).unwrap();
    let found = |name: &str| {
        Kind::Run.find(&at(name), USER).map_err(|why| match why {
            Why::Io(e) => e.to_string(),
            Why::Text(text) => text,
        })
    };
    assert_eq!((found("own"), found("link")), (Ok(at("own")), Ok(at("own"))));
    lchown(at("link"), Some(STRANGER), None).unwrap();
    for name in ["partywall", "link"] {
        let why = found(name).unwrap_err();
        let owner = format!("user {STRANGER} owns {}", at(name).display());
        assert!(why.contains(&owner) && why.contains("remedy: chown it"), "{why}");
    }
}

#[test]
fn coordinator_of_a_third_user_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // Where anybody may listen, as in /tmp.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = dir.path().join("coordinator.sock");
    let program = env!("CARGO_BIN_EXE_st-coordinator");
    let mut impostor = Process::start(program, &socket, &[], &[], Some(STRANGER));
    impostor.ready();
    let said = |expected: Option<u32>| {
        let mut command = Command::new(CLIENT);
        command.arg("--socket").arg(&socket).args(["--mode", "idle"]).uid(USER).gid(USER);
        command.env_remove("PARTYWALL_COORDINATOR_UID");
        command.envs(expected.map(|uid| ("PARTYWALL_COORDINATOR_UID", uid.to_string())));
        let out = command.stdin(Stdio::null()).output().unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    for (expected, whose) in [(None, format!("{USER} or 0")), (Some(USER), USER.to_string())] {
        let said = said(expected);
        let refused = format!("runs as user {STRANGER}; expected user {whose}");
        assert!(said.contains(&refused), "{said}");
    }
    // Who names it has it.
    let named = [("PARTYWALL_COORDINATOR_UID", &*STRANGER.to_string())];
    let start = |program, arguments: &[&str], uid| {
        Process::start(program, &socket, arguments, &named, Some(uid))
    };
    let _server = start(SERVER, &[], STRANGER);
    start(CLIENT, &["--mode", "idle"], USER).ready();
}

/// What a coordinator without rights may not look at are the namespaces of other users' processes. It goes
/// by how many numbers a process has: one in a namespace that its own user has made has two, and that user
/// could claim any number there.
#[test]
fn a_process_of_a_namespace_of_another_users_own_has_no_number() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = dir.path().join("coordinator.sock");
    let program = env!("CARGO_BIN_EXE_st-coordinator");
    let mut coordinator = Process::start(program, &socket, &[], &[], Some(STRANGER));
    coordinator.ready();
    let taken = |by: &[&str]| {
        let program = env!("CARGO_BIN_EXE_st-impostor");
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).arg(program).arg(&socket).arg(program).uid(USER).gid(USER);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    // Whose namespaces it may not look at, and whom it takes for what they are all the same.
    let theirs = taken(&["env"]);
    assert!(theirs.contains(&format!("uid: {USER}")) && theirs.contains("pid: Some"), "{theirs}");
    let namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let own = taken(&namespace);
    assert!(own.contains(&format!("uid: {USER}")) && own.contains("pid: None"), "{own}");
}

/// A coordinator without rights looks at the PID namespace of a process of its own user, to believe its
/// number. It cannot once the process is hardened, so that one is not, unless the policy says so.
#[test]
fn a_process_of_a_pid_namespace_is_known_to_the_next_one() {
    let _alone = alone();
    let default = "# of harden it says nothing\n";
    for (harden, level, is_known) in [
        (default, "user", true),
        ("harden = false\n", "user", true),
        ("harden = true\n", "host", false),
    ] {
        let dirs = [0o755, 0o777].map(|mode| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            dir
        });
        let (file, socket) = (dirs[0].path().join("policy.toml"), dirs[1].path().join("c.sock"));
        std::fs::write(&file, format!("{harden}{OPEN}")).unwrap();
        let policy = ["--policy", file.to_str().unwrap()];
        let uid = STRANGER.to_string();
        let environment = [("PARTYWALL_COORDINATOR_UID", uid.as_str())];
        let start = |by: &[&str], arguments: &[&str], uid| {
            Process::begin(by, &socket, arguments, &environment, uid)
        };
        let coordinate = || {
            let program = env!("CARGO_BIN_EXE_st-coordinator");
            let mut coordinator = start(&[program], &policy, Some(STRANGER));
            coordinator.ready();
            coordinator
        };
        let first = coordinate();
        let namespace = ["unshare", "--pid", "--fork", "--kill-child"];
        let user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", SERVER];
        let _server = start(&[&namespace[..], &user].concat(), &[], None);
        let idle = || {
            let mut idle = start(&[CLIENT], &["--mode", "idle", "--links", "1"], Some(STRANGER));
            idle.ready();
            idle
        };
        let servers = || -> Vec<_> {
            let rows = open_links(&socket).into_iter();
            let of = |row: LinkRow| (row.security.confidentiality.word(), row.server.unwrap().pid);
            rows.map(of).map(|(level, pid)| (level, pid.is_some())).collect()
        };
        let _before = idle();
        assert_eq!(servers(), [(level, true)], "{harden}");
        drop(first);
        let _second = coordinate();
        let _after = idle();
        assert_eq!(servers(), [(level, is_known); 2], "{harden}");
    }
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
            other => panic!("{other:?}"),
        }
    }
}

/// The memory of a link of two processes of one user is closed to processes of others: they open
/// neither the memory of its ends nor the list of it.
#[test]
fn the_memory_of_a_link_is_closed_to_other_users() {
    let _alone = alone();
    assert!(rustix::process::geteuid().is_root(), "needs root, for processes of two users");
    let host = Host::open();
    let program = SERVER;
    let server = Process::start(program, &host.socket, &[], &[], Some(USER));
    let mut client = client_of(&host, USER, &["--mode", "idle"]);
    client.ready();
    for pid in [server.pid(), client.pid()] {
        for file in ["mem", "maps"] {
            let path = format!("/proc/{pid}/{file}");
            assert!(!opens(STRANGER, &path), "another user opens {path}");
            // That its own user's processes can where they are not hardened shows that the path is right.
            assert!(opens(USER, &path), "{path} is closed to its own user");
        }
    }
}
