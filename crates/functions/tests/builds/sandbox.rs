//! The builder's sandbox, from inside.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use partywall_functions::sandbox::{self, Job, Limits, Outcome, SandboxError};

const SANDBOX: &str = env!("CARGO_BIN_EXE_functions-sandbox");
const ATTACKER: &str = env!("CARGO_BIN_EXE_functions-attacker");
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A job that has the attacker in the compiler's place.
fn job(attack: &str) -> Job {
    let list = Command::new(ATTACKER).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let path = |line: &str| line.split_whitespace().find(|w| w.starts_with('/')).map(PathBuf::from);
    let toolchain = tempfile::tempdir().unwrap().keep();
    Job {
        toolchain,
        libraries: list.lines().filter_map(path).collect(),
        files: BTreeMap::from([("attacker".to_owned(), std::fs::read(ATTACKER).unwrap().into())]),
        environment: BTreeMap::new(),
        has_messages: false,
        commands: vec![[LOADER, "/build/attacker", attack].map(String::from).to_vec()],
        output: "nothing".into(),
        limits: Limits { time: Duration::from_secs(20), ..Limits::default() },
    }
}

fn run(job: &Job) -> Outcome {
    let outcome = sandbox::run(&[SANDBOX.to_owned()], job).unwrap();
    std::fs::remove_dir_all(&job.toolchain).unwrap();
    outcome
}

/// What the attacker has said.
fn said(attack: &str) -> String {
    match run(&job(attack)) {
        Outcome::Failed(0, said) => said,
        other => panic!("{attack}: {other:?}"),
    }
}

fn limit(job: &Job) -> String {
    match run(job) {
        Outcome::Limit(what) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn row_56_there_are_no_files_but_the_toolchain_and_the_build() {
    let said = said("files");
    assert!(!said.contains("\n/") && !said.starts_with('/'), "the root is listed: {said}");
    for line in said.lines().filter(|line| line.starts_with("read")) {
        assert!(line.ends_with("No such file or directory (os error 2)"), "{line}");
    }
    let refused = |what: &str| {
        let line = said.lines().find(|line| line.starts_with(&format!("{what}:"))).expect(what);
        assert!(!line.ends_with("done"), "{line}");
    };
    ["write /new", "write /toolchain/new", "write /lib/new", "up"].iter().for_each(|w| refused(w));
    assert!(said.contains("write /build/new: done"), "{said}");
}

#[test]
fn row_56_calls_that_no_compiler_makes_are_not_there() {
    let said = said("calls");
    for call in ["unshare", "mount", "tcp", "udp", "unix", "memfd_create"] {
        assert!(said.contains(&format!("{call}: Function not implemented")), "{call}: {said}");
    }
    assert!(said.contains("setrlimit: Operation not permitted"), "{said}");
}

#[test]
fn row_56_nothing_of_the_host_is_seen() {
    assert_eq!(said("environment").trim(), "[(\"LD_LIBRARY_PATH\", \"/toolchain/lib\")]");
    let said = said("processes");
    // The attacker, and threads of process 1, which no signal from inside ends.
    let count = said.lines().find_map(|line| line.strip_prefix("processes: ")).unwrap();
    assert!(
        (1..4).contains(&count.parse::<u32>().unwrap()) && said.contains("kill 1: done"),
        "{said}"
    );
    assert!(said.contains("start: No such file"), "{said}");
}

#[test]
fn row_56_what_a_build_uses_up_is_bounded_and_named() {
    let mut small = job("write");
    small.limits.files = 16 << 20;
    let Outcome::Limit(what) = run(&small) else { panic!("it went through") };
    assert_eq!(what, "more than 16777216 bytes of files");
    let mut small = job("memory");
    small.limits.memory = 1 << 30;
    assert_eq!(limit(&small), "more than 1073741824 bytes of memory");
    let mut short = job("burn");
    short.limits.time = Duration::from_secs(1);
    let begun = Instant::now();
    assert_eq!(limit(&short), "more than 1s");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let Outcome::Failed(0, said) = run(&job("talk")) else { panic!("it went through") };
    assert_eq!(said.len(), Limits::default().text);
}

#[test]
fn row_56_children_of_a_build_are_few_and_end_with_it() {
    let mut many = job("fork");
    many.limits.processes = 40;
    many.limits.time = Duration::from_secs(5);
    let outcome = run(&many);
    if is_counted() {
        let Outcome::Failed(0, said) = outcome else { panic!("{outcome:?}") };
        let children = said.split(' ').next().unwrap().parse::<u32>().unwrap();
        assert!((1..=40).contains(&children) && said.contains("temporarily unavailable"), "{said}");
    } else {
        let ended = ["5000 children\n", "more than 5s"];
        let (Outcome::Failed(_, said) | Outcome::Limit(said)) = outcome else { panic!("built") };
        assert!(ended.contains(&said.as_str()), "{said}");
    }
    // Those of this attack alone: other tests have attackers too.
    let children = b"/build/attacker\0sleep\0";
    let attackers = || {
        let list = std::fs::read_dir("/proc").unwrap().flatten();
        let names = list.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
        names.filter(|name| name.ends_with(children)).count()
    };
    assert_eq!(attackers(), 0);
}

/// Whether the kernel counts this user's processes: not where it is the host's root by another name.
fn is_counted() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    let number = |word: &str| word.parse::<u32>().unwrap();
    let lines = map.lines().map(|line| line.split_whitespace().map(number).collect::<Vec<_>>());
    let mut outside = lines.filter(|line| line[1] == 0).map(|line| (line[0], line[2]));
    let own = rustix::process::getuid().as_raw();
    outside.all(|(first, count)| own != first || count > 65534)
}

#[test]
fn a_sandbox_that_is_not_there_says_why() {
    let mut bad = job("files");
    let real = std::mem::replace(&mut bad.toolchain, "/nowhere/at/all".into());
    std::fs::remove_dir_all(real).unwrap();
    let why = sandbox::run(&[SANDBOX.to_owned()], &bad).unwrap_err();
    assert_eq!(
        why.to_string(),
        "the builder's sandbox: /nowhere/at/all: No such file or directory (os error 2)"
    );
    let why = sandbox::run(&["/bin/false".to_owned()], &bad).unwrap_err();
    assert!(matches!(why, SandboxError::Refused(_)) && why.to_string().contains("exit status: 1"));
    let why = sandbox::run(&["/nowhere".to_owned()], &bad).unwrap_err();
    assert!(why.to_string().contains("starting its program: No such file"), "{why}");
}
