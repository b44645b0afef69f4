//! A function host, and callers of several users: each may do what the policy says, and no more.
//!
//! | user | what the policy says |
//! | --- | --- |
//! | [`ANN`] | an owner; whoever is [`BOB`] calls its functions |
//! | [`BOB`] | an owner; whoever is [`ANN`] reads the logs of its functions, and bans them |
//! | [`EVE`] | an owner, who may do nothing with others' functions |
//! | [`TOM`] | nothing |

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use partywall_testkit::{Host, alone};

use crate::CLIENT;

const ANN: u32 = 2001;
const BOB: u32 = 2002;
const EVE: u32 = 2003;
const TOM: u32 = 2004;

const COORDINATOR: &str = "[service.functions]\nregister = ['anyone']\n[service.functions.call]\n\
                           anyone = ['*']\n";

/// Says its request in capitals, and so does its log.
const SHOUT: &str = "pub fn handle(r: Request<'_>) -> Reply {\n\
                     log!(\"{}\", r.text()?);\n\
                     Ok(r.text()?.to_uppercase().into_bytes())\n}\n";

/// Exit statuses: 64 and the code of the status.
const INVALID: i32 = 64 + 3;
const NOT_FOUND: i32 = 64 + 5;
const DENIED: i32 = 64 + 7;
const EXHAUSTED: i32 = 64 + 8;

/// The command, built beside this test, with the program of its workers.
fn partywall() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").expect("run by cargo");
        let build = ["build", "--quiet", "--locked", "--package", "partywall-cli", "--bins"];
        let built = Command::new(cargo).args(build).status().unwrap();
        assert!(built.success(), "the command is not built");
        PathBuf::from(CLIENT).with_file_name("partywall")
    })
}

/// A coordinator, and a host beside it as root.
struct Rig {
    host: Host,
    dir: tempfile::TempDir,
    served: Child,
}

/// How a command has ended, and what it has said.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Rig {
    /// One with this policy of functions.
    fn new(policy: &str) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        assert!(rustix::process::geteuid().is_root(), "needs root, for callers of several users");
        let (host, dir) = (Host::with(COORDINATOR), tempfile::tempdir().unwrap());
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = dir.path().join("policy.toml");
        std::fs::write(&file, policy).unwrap();
        let mut serve = Command::new(partywall());
        serve.args(["fn", "serve", "--directory"]).arg(dir.path().join("state"));
        serve.arg("--policy").arg(file).env("PARTYWALL_SOCKET", &host.socket);
        let mut served = serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(served.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the host has not started");
        Self { host, dir, served }
    }

    fn command(&self, uid: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new(partywall());
        command.arg("fn").args(arguments).current_dir(self.dir.path()).uid(uid).gid(uid);
        command.env("PARTYWALL_SOCKET", &self.host.socket);
        command.env("PARTYWALL_COORDINATOR_UID", "0").env_remove("PARTYWALL_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What a user is answered.
    fn ask(&self, uid: u32, arguments: &[&str]) -> Said {
        let mut child = self.command(uid, arguments).spawn().unwrap();
        // One that fails early reads nothing.
        let _unread = child.stdin.take().unwrap().write_all(b"hello");
        let out = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = out.status.code().unwrap();
        Said { code, out: text(out.stdout), err: text(out.stderr) }
    }

    fn good(&self, uid: u32, arguments: &[&str]) -> String {
        let said = self.ask(uid, arguments);
        assert_eq!(said.code, 0, "{uid} {arguments:?}: {said:?}");
        said.out
    }

    fn bad(&self, uid: u32, arguments: &[&str], code: i32, text: &str) {
        let said = self.ask(uid, arguments);
        let is_so = said.code == code && said.out.is_empty() && said.err.contains(text);
        assert!(is_so, "{uid} {arguments:?} is not {code} {text}: {said:?}");
    }

    /// A file with the sources of a function.
    fn file(&self, name: &str, source: &str) -> String {
        let path = self.dir.path().join(format!("{name}.rs"));
        std::fs::write(&path, source).unwrap();
        path.display().to_string()
    }

    /// The functions that a user is shown.
    fn listed(&self, uid: u32) -> Vec<String> {
        let listed = self.good(uid, &["ls"]);
        let names = listed.lines().skip(1).map(|row| row.split_whitespace().next().unwrap());
        names.map(str::to_owned).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ended = self.served.kill();
        let _ended = self.served.wait();
    }
}

fn policy(ann: &str) -> String {
    format!(
        "[owner.\"uid:{ANN}\"]\ncall = [\"uid:{BOB}\"]\n{ann}\n\
         [owner.\"uid:{BOB}\"]\nlogs = [\"uid:{ANN}\"]\nban = [\"uid:{ANN}\"]\n\
         [owner.\"uid:{EVE}\"]\n"
    )
}

/// All that can be asked of a function, and what is said to who may not see it.
const QUESTIONS: [&[&str]; 8] =
    [&["invoke"], &["logs"], &["ban"], &["unban"], &["rm"], &["rollback"], &["preload"], &["pull"]];

#[test]
fn users_do_with_functions_what_the_policy_says() {
    let _alone = alone();
    let rig = Rig::new(&policy(""));
    let (ann, bob, eve) = (rig.file("ann", SHOUT), rig.file("bob", SHOUT), rig.file("eve", SHOUT));
    for (uid, file, name) in [(ANN, &ann, "ann"), (BOB, &bob, "bob"), (EVE, &eve, "eve")] {
        let said = rig.good(uid, &["deploy", file]);
        assert!(said.starts_with(&format!("{name} version 1 of uid:{uid}: ")), "{said}");
        assert_eq!(rig.good(uid, &["invoke", name]), "HELLO");
    }
    rig.bad(TOM, &["deploy", &ann, "--name", "tom"], DENIED, "uid:2004 may not deploy");
    rig.bad(EVE, &["deploy", &eve, "--owner", "uid:2001"], DENIED, "is not the owner `uid:2001`");
    // Root is a user like others to this policy.
    rig.bad(0, &["deploy", &ann, "--name", "root"], DENIED, "uid:0 may not deploy");
    assert_eq!(rig.listed(ANN), ["ann", "bob"]);
    assert_eq!(rig.listed(BOB), ["ann", "bob"]);
    assert_eq!(rig.listed(EVE), ["eve"]);
    assert_eq!((rig.listed(TOM), rig.listed(0)), (vec![], vec![]));

    // Bob calls Ann's function, and does nothing else with it.
    assert_eq!(rig.good(BOB, &["invoke", "ann", "--request", "by bob"]), "BY BOB");
    rig.good(BOB, &["preload", "ann"]);
    rig.bad(BOB, &["logs", "ann"], NOT_FOUND, "whose log uid:2002 may read");
    rig.bad(BOB, &["ban", "ann"], NOT_FOUND, "that uid:2002 may ban");
    for order in ["rm", "rollback", "pull"] {
        rig.bad(BOB, &[order, "ann"], DENIED, "`ann` is not a function of uid:2002");
    }
    rig.bad(BOB, &["deploy", &bob, "--name", "ann"], DENIED, "another owner has a function `ann`");
    // Ann reads Bob's log and bans, and does not call.
    assert!(rig.good(ANN, &["logs", "bob"]).trim_end().ends_with(" hello"));
    rig.bad(ANN, &["invoke", "bob"], NOT_FOUND, "that uid:2001 may call");
    rig.bad(ANN, &["preload", "bob"], NOT_FOUND, "that uid:2001 may call");
    rig.good(ANN, &["ban", "bob"]);
    rig.bad(BOB, &["invoke", "bob"], DENIED, "is banned");
    rig.good(ANN, &["unban", "bob"]);
    assert_eq!(rig.good(BOB, &["invoke", "bob"]), "HELLO");
    for order in ["rm", "rollback", "pull"] {
        rig.bad(ANN, &[order, "bob"], DENIED, "`bob` is not a function of uid:2001");
    }
    // Owners do all with their own.
    assert!(rig.good(ANN, &["logs", "ann"]).contains(" by bob\n"));
    rig.good(ANN, &["deploy", &ann]);
    assert!(rig.good(ANN, &["rollback", "ann"]).starts_with("ann version 1 of uid:2001"));
    rig.good(ANN, &["pull", "ann", "--output", "/dev/null"]);
    rig.good(ANN, &["rm", "ann"]);
    assert_eq!((rig.listed(ANN), rig.listed(BOB)), (vec!["bob".into()], vec!["bob".into()]));
    rig.bad(BOB, &["invoke", "ann"], NOT_FOUND, "that uid:2002 may call");
    // A name that is free again is anybody's.
    rig.good(BOB, &["deploy", &bob, "--name", "ann"]);
}

/// What is said of a function that a caller may not see is what is said of one that is not there.
#[test]
fn functions_that_a_user_may_not_see_are_not_there_for_it() {
    let _alone = alone();
    let rig = Rig::new(&policy(""));
    let file = rig.file("unseen", SHOUT);
    rig.good(ANN, &["deploy", &file]);
    rig.good(BOB, &["deploy", &rig.file("bob", SHOUT)]);
    for uid in [EVE, TOM, 0] {
        for question in QUESTIONS {
            let of = |name: &str| rig.ask(uid, &[question, &[name]].concat());
            let (unseen, absent) = (of("unseen"), of("absent"));
            let same = Said { err: unseen.err.replace("unseen", "absent"), ..unseen };
            assert_eq!(same, absent, "{uid} {question:?}");
            assert_eq!(absent.code, NOT_FOUND, "{uid} {question:?}: {absent:?}");
        }
    }
    // So it is for who may do something else with it, where it asks for what it may not do.
    for question in [&["logs"], &["ban"], &["unban"]] {
        let of = |name: &str| rig.ask(BOB, &[&question[..], &[name]].concat());
        let (seen, absent) = (of("unseen"), of("absent"));
        let same = Said { err: seen.err.replace("unseen", "absent"), ..seen };
        assert_eq!(same, absent, "{question:?}");
    }
    // A name that is taken cannot be had, and nothing is said of whose it is.
    let taken = rig.ask(EVE, &["deploy", &file]);
    assert!(taken.code == DENIED && !taken.err.contains("2001"), "{taken:?}");
    assert_eq!(rig.good(ANN, &["invoke", "unseen"]), "HELLO");
}

/// A user that has all that its limits let it have keeps no other from its own.
#[test]
fn a_user_at_its_limits_does_not_keep_the_other_out() {
    let _alone = alone();
    let limits = "functions = 2\nconcurrency = 1\nqueue = 2\nbudget_us = 100000";
    let rig = Rig::new(&policy(limits));
    let spin = rig.file("spin", "pub fn handle(_: Request<'_>) -> Reply { loop {} }\n");
    let bob = rig.file("bob", SHOUT);
    rig.good(ANN, &["deploy", &spin]);
    rig.good(ANN, &["deploy", &rig.file("ann", SHOUT)]);
    rig.bad(ANN, &["deploy", &spin, "--name", "third"], EXHAUSTED, "its limit is 2");
    rig.bad(ANN, &["deploy", &spin, "--budget", "2s"], INVALID, "at most 1000000 us");
    rig.good(BOB, &["deploy", &bob]);
    let is_over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        let flood = || {
            let mut refused = 0;
            while !is_over.load(Ordering::Relaxed) {
                let said = rig.ask(ANN, &["invoke", "spin"]);
                match said.code {
                    EXHAUSTED => refused += 1,
                    // Its overruns are strikes.
                    DENIED => drop(rig.good(ANN, &["unban", "spin"])),
                    code => assert_eq!(code, 64 + 4, "its budget: {said:?}"),
                }
            }
            refused
        };
        let floods: Vec<_> = (0..6).map(|_| scope.spawn(flood)).collect();
        for _ in 0..10 {
            // Bob's own time for a call is enough, whatever Ann does.
            assert_eq!(rig.good(BOB, &["invoke", "bob", "--timeout", "5s"]), "HELLO");
        }
        rig.good(BOB, &["deploy", &bob, "--name", "bob2"]);
        assert_eq!(rig.good(BOB, &["invoke", "bob2", "--timeout", "5s"]), "HELLO");
        is_over.store(true, Ordering::Relaxed);
        floods.into_iter().map(|flood| flood.join().unwrap()).sum::<u32>()
    });
    assert!(refused > 0, "Ann was not at its limits");
}
