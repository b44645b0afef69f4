//! The command as a user has it.

mod containers;
mod demands;
mod domains;
mod hardening;
mod kubernetes;
mod links;
mod newcomer;
mod quick_start;
mod reload;
mod systemd;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use partywall_abi::control::{ListMessage, Message, SessionMessage};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn partywall(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// The first two objects of `partywall watch --json`.
fn two_looks(arguments: &[&str]) -> [serde_json::Value; 2] {
    let mut watch = command(&["watch", "--json", "--every", "0.1"]);
    let mut watch = watch.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let looks = [(); 2].map(|()| serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
    watch.kill().unwrap();
    watch.wait().unwrap();
    looks
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn up_runs_the_word_count_and_prints_the_links() {
    let out = partywall(&["up", "--debug", "--wide", "examples/wordcount/compose.yaml"]);
    let (said, complained) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{complained}");
    for part in [
        "total 332 words",
        "partywall:///wordcount",
        "unix://",
        "Who called whom",
        "ring",
        "process",
        "started",
    ] {
        assert!(said.contains(part), "{part:?} is missing:\n{said}{complained}");
    }
    let row = said.lines().find(|l| l.contains("  ring  ")).unwrap();
    assert!(row.contains("client (pid") && row.contains("wordcount (pid"), "{row}");
    // None is missing though the client is gone: one for the text, 20 to warm up, 200 that are timed.
    let columns: Vec<&str> = row.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(columns[5..9], ["process", "host", "started", "off"], "{row}");
    assert_eq!(columns[9..12], ["closed", "221", "0"], "{row}");
    let total = "  /partywall.wordcount.v1.WordCount/Total   native 0  ordinary 220\n";
    assert!(said.contains(total), "{said}");
}

/// A full disk is an error like any other, on the way out too.
#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, policy) = (dir.path().join("c.sock"), dir.path().join("policy.toml"));
    std::fs::write(&policy, "[service.a]\nregister = ['anyone']\n").unwrap();
    let [socket, policy] = [&socket, &policy].map(|p| p.to_str().unwrap());
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let refused = |out: Output| {
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("standard output: No space left on device"), "{said}");
    };
    let serve = ["coordinator", "--socket", socket, "--policy", policy];
    refused(command(&serve).stdout(full()).output().unwrap());
    let up = ["up", "--debug", "examples/wordcount/compose.yaml"];
    refused(command(&up).stdout(full()).output().unwrap());
    let mute = command(&up).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(mute.code(), Some(1));
    let mut coordinator = command(&serve).stdout(Stdio::null()).spawn().unwrap();
    let links = ["links", "--socket", socket];
    let end = Instant::now() + Duration::from_secs(10);
    let listed = loop {
        let listed = command(&links).output().unwrap();
        if listed.status.success() || Instant::now() > end {
            break listed;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let unlisted = command(&links).stdout(full()).output().unwrap();
    let unsaid = command(&links).stdout(full()).stderr(full()).status().unwrap();
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    assert_eq!(text(&listed.stdout), "no links\n", "{}", text(&listed.stderr));
    refused(unlisted);
    assert_eq!(unsaid.code(), Some(1));
}

#[test]
fn up_counts_a_large_text_that_is_read_into_a_parcel() {
    let out = partywall(&["up", "--debug", "examples/wordcount/compose-large.yaml"]);
    let (said, complained) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{complained}");
    assert!(said.contains("664000 words in 3.3 MB"), "{said}{complained}");
    let rest = said.split_once("in a parcel: the text of ").unwrap().1;
    let in_parcel: u32 = rest.split_once(' ').unwrap().0.parse().unwrap();
    // Descriptors cross as soon as the link has the socket for them.
    assert!((1..=50).contains(&in_parcel), "{said}");
}

#[test]
fn docker_compose_accepts_the_examples() {
    let plugin = Command::new("docker").args(["compose", "version"]).output();
    let plugin = plugin.is_ok_and(|o| o.status.success());
    let words = ["compose.yaml", "compose-domain.yaml", "compose-large.yaml"];
    let files = words.map(|file| format!("wordcount/{file}"));
    for file in files.into_iter().chain(["camera/containers.yaml".into()]) {
        let mut command = Command::new(if plugin { "docker" } else { "docker-compose" });
        command.args(plugin.then_some("compose"));
        let file = root().join("examples").join(file);
        let out = command.arg("-f").arg(file).args(["config", "-q"]).output();
        let out =
            out.expect("`docker compose` or `docker-compose` (apt-get install docker-compose)");
        assert!(out.status.success(), "{}", text(&out.stderr));
    }
}

#[test]
fn mistakes_name_the_file_the_line_and_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("compose.yaml");
    std::fs::write(&file, "services:\n  a:\n    x-partywall:\n      pakage: x\n").unwrap();
    let out = partywall(&["up", file.to_str().unwrap()]);
    assert!(!out.status.success());
    let said = text(&out.stderr);
    assert!(said.contains("compose.yaml:4") && said.contains("pakage"), "{said}");
    let out = partywall(&["up", "no-such-file.yaml"]);
    assert!(text(&out.stderr).contains("no-such-file.yaml"));
    std::fs::write(&file, "services:\n  anyone:\n    x-partywall: {package: x}\n").unwrap();
    let said = text(&partywall(&["up", file.to_str().unwrap()]).stderr);
    assert!(said.contains("compose.yaml:2") && said.contains("every process"), "{said}");
    let policy = dir.path().join("policy.toml");
    std::fs::write(&policy, "[principal.a]\nuidd = 1\n").unwrap();
    let socket = dir.path().join("c.sock");
    let out = partywall(&[
        "coordinator",
        "--socket",
        socket.to_str().unwrap(),
        "--policy",
        policy.to_str().unwrap(),
    ]);
    assert!(text(&out.stderr).contains("uidd"));
    let out = partywall(&["links", "--socket", socket.to_str().unwrap()]);
    assert!(text(&out.stderr).contains("partywall coordinator"));
}

#[test]
fn a_coordinator_stops_on_sigterm_and_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, policy) = (dir.path().join("c.sock"), dir.path().join("policy.toml"));
    std::fs::write(&policy, "").unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -Sn 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_partywall")])
        .args(["coordinator", "--socket"])
        .arg(&socket)
        .arg("--policy")
        .arg(&policy)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = partywall(&["links", "--socket", socket.to_str().unwrap()]);
    assert_eq!(text(&out.stdout), "no links\n");
    // Operators' calls go to a socket of their own, and the common one leads there.
    let operators = dir.path().join("c.operators.sock");
    let out = partywall(&["links", "--socket", operators.to_str().unwrap()]);
    assert_eq!(text(&out.stdout), "no links\n", "{}", text(&out.stderr));
    let common = partywall_testkit::Conversation::open(&socket).unwrap();
    common.say(&Message::List(ListMessage::List { request: 1 })).unwrap();
    let Message::Session(SessionMessage::Refused { text: refused, .. }) = common.next().unwrap().0
    else {
        panic!("the common socket takes operators' calls");
    };
    assert!(refused.contains(&format!("--socket {}", operators.display())), "{refused}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let files = limits.lines().find_map(|l| l.strip_prefix("Max open files")).unwrap();
    let files: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(files[0], files[1], "the soft limit of descriptors and the hard one");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists() && !operators.exists());
}
