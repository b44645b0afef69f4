//! Threads of the library take no signal that the program waits for: all of those that there are in
//! processes of each kind, as the kernel sees them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use partywall_system_tests::domain_programs;
use rustix::net::SocketType;
use rustix::process::Signal;

use partywall_testkit::{Process, alone};

use crate::{CLIENT, SERVER};

const LONG: Duration = Duration::from_secs(60);

/// What processes are sent; real-time signals are left to C libraries and launchers.
const SENT: [Signal; 18] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::PIPE,
    Signal::ALARM,
    Signal::TERM,
    Signal::CHILD,
    Signal::CONT,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::URG,
    Signal::XCPU,
    Signal::WINCH,
    Signal::IO,
    Signal::POWER,
];

/// The threads of a process by their names, but for the program's own: its first one, and those of its
/// runtime. Each has to block what processes are sent; one that is lent to callers does as soon as it is.
fn of_the_library(pid: u32) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        // One that has just ended says nothing.
        let Ok(task) = task else { continue };
        let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
        let (Some(name), Some(status)) = (read("comm"), read("status")) else { continue };
        if task.file_name().to_str() == Some(&pid.to_string()) || name.starts_with("tokio-") {
            continue;
        }
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        let name = name.trim();
        let taken = SENT.iter().find(|signal| mask & 1 << (signal.as_raw() - 1) == 0);
        if taken.is_some() && name == LENT {
            names.insert("on its way to be lent".to_owned());
            continue;
        }
        assert!(taken.is_none(), "`{name}` takes {taken:?}");
        names.insert(name.to_owned());
    }
    names
}

/// The threads that are lent to callers, as far as the kernel keeps their names.
const LENT: &str = "partywall-lent-";

/// Waits until a process has threads of these names.
fn until_there(pid: u32, names: &[&str]) {
    let begin = Instant::now();
    loop {
        let there = of_the_library(pid);
        if names.iter().all(|name| there.contains(*name)) {
            return;
        }
        assert!(begin.elapsed() < LONG, "{there:?}, and not all of {names:?}");
        std::thread::yield_now();
    }
}

/// Only the function that starts such threads had a test, and not who uses it: the thread that watches
/// the time of a launcher's calls did not.
#[test]
fn threads_of_the_library_block_what_processes_are_sent() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c.sock");
    let start =
        |program, arguments: &[&str]| Process::start(program, &socket, arguments, &[], None);
    let mut coordinator = start(env!("CARGO_BIN_EXE_st-coordinator"), &[]);
    coordinator.ready();
    until_there(coordinator.pid(), &["coordinator"]);
    let server = start(SERVER, &[]);
    let mut client = start(CLIENT, &["--mode", "idle"]);
    client.ready();
    for pid in [server.pid(), client.pid()] {
        until_there(pid, &["partywall"]);
    }
    drop((server, client));
    domains(&socket);
    // Who looks for the coordinator, and who asks one that says nothing.
    let server = start(SERVER, &[]);
    let mut client = start(CLIENT, &["--mode", "idle"]);
    client.ready();
    drop(coordinator);
    for pid in [server.pid(), client.pid()] {
        until_there(pid, &["partywall-again"]);
    }
    let _silent =
        partywall_shm::listen::listen(&socket, SocketType::SEQPACKET, 64, |_| ()).unwrap();
    let asks = start(CLIENT, &["--mode", "idle"]);
    until_there(asks.pid(), &["partywall-conne"]);
}

/// A launcher, whose threads are its own but for the one that watches the time, and domains.
fn domains(socket: &std::path::Path) {
    let [server, client] = domain_programs().each_ref().map(|path| path.to_str().unwrap());
    let arguments = ["--server", server, "--client", client, "--mode", "measure"];
    let arguments = [&arguments[..], &["--isolation", "none", "--threads", "2"]].concat();
    let environment = [("GLIBC_TUNABLES", "glibc.pthread.rseq=0")];
    let program = env!("CARGO_BIN_EXE_st-launcher");
    let mut launcher = Process::start(program, socket, &arguments, &environment, None);
    assert_eq!(launcher.line(), "isolation none");
    assert!(launcher.line().starts_with("server "));
    launcher.ready();
    launcher.say("32");
    launcher.line();
    let pid = launcher.pid();
    until_there(pid, &["domain-watchdog"]);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let domains: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(domains.len(), 2, "{children}");
    for domain in &domains {
        until_there(*domain, &["partywall"]);
    }
    // Those of the server wait for callers by now.
    until_there(domains[0], &[LENT]);
    let begin = Instant::now();
    while of_the_library(domains[0]).contains("on its way to be lent") {
        assert!(begin.elapsed() < LONG, "a lent thread takes signals");
        std::thread::yield_now();
    }
}
