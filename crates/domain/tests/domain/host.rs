//! A launcher for tests: each in a process of its own, as address spaces are.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use partywall_abi::security::Isolation;
use partywall_domain::address_space::AddressSpace;
use partywall_domain::machine::Feature;
use partywall_domain::task::{Domain, Program};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs `body` in processes of its own, as a launcher has to be: without restartable sequences. Once
/// without and, where the machine has them, once with protection keys; in the emulated machine, which
/// is there for their sake, with them alone; but callees that give up their rights, which the processor
/// lets them do in either case, run in both. `path` is that of the test, with the crate.
pub(crate) fn alone(path: &str, body: fn(&AddressSpace)) {
    let test = path.split_once("::").unwrap().1;
    if is_body_of(test) {
        let fault = std::env::var_os("DOMAIN_ISOLATION").is_some_and(|i| i == "protection-keys");
        let isolation = if fault { Isolation::ProtectionKeys } else { Isolation::None };
        return body(&AddressSpace::new(isolation).unwrap());
    }
    if !is_emulated() || test.starts_with("stray::rights_") {
        run(test, Isolation::None);
    }
    if is_emulated() || Feature::ProtectionKeys.look().there {
        run(test, Isolation::ProtectionKeys);
    }
}

/// Whether this process is the one that is to run the body of a test.
pub(crate) fn is_body_of(test: &str) -> bool {
    std::env::var_os("DOMAIN_TEST").is_some_and(|t| t == test)
}

/// This program, to run the body of a test; after `before`, if that is not empty.
pub(crate) fn body_of(test: &str, before: &[String]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(before.first().map_or(own.clone(), PathBuf::from));
    if let Some((_, arguments)) = before.split_first() {
        command.args(arguments).arg(own);
    }
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("DOMAIN_TEST", test)
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    command
}

fn run(test: &str, isolation: Isolation) {
    let mut command = body_of(test, &[]);
    let output = command.env("DOMAIN_ISOLATION", isolation.to_string()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    assert!(
        output.status.success(),
        "isolation {isolation}: {}:\n{}\n{}",
        output.status,
        said[0],
        said[1]
    );
    println!("{}", said[0]);
    assert!(said[0].contains("1 passed"), "{}", said[0]);
}

/// Whether this is the machine of `cargo xtask vm-test`.
pub(crate) fn is_emulated() -> bool {
    std::env::var("PARTYWALL_VM").as_deref() == Ok("1")
}

/// How many times longer than on a processor things may take here: an emulated machine is slow.
pub(crate) fn slowness() -> u32 {
    if is_emulated() { 10 } else { 1 }
}

/// Whether nothing else is to run on this machine, and bounds on time are those that are promised.
pub(crate) fn is_quiet() -> bool {
    std::env::var("PARTYWALL_TRIALS").is_ok_and(|trials| trials == "full")
}

/// A test whose body runs in a launcher of its own.
macro_rules! in_a_launcher {
    ($(#[$about:meta])* fn $name:ident($space:ident) $body:block) => {
        $(#[$about])*
        #[test]
        fn $name() {
            $crate::host::alone(concat!(module_path!(), "::", stringify!($name)), |$space| $body);
        }
    };
}
pub(crate) use in_a_launcher;

/// Names a directory with the programs, built beforehand: for machines without a compiler.
const BUILT: &str = "PARTYWALL_PROGRAMS";

/// Every program of `tests/programs`, by the name of its source.
pub(crate) fn programs() -> Vec<String> {
    let sources = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let dir = std::env::var_os(BUILT).map_or_else(sources, PathBuf::from);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The bytes of a program of `tests/programs`: compiled now, or beforehand.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let Some(built) = std::env::var_os(BUILT) else { return compiled(name) };
    let path = Path::new(&built).join(name);
    std::fs::read(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; {BUILT} must hold every program of tests/programs", path.display())
    })
}

/// What makes a C program one that can be a domain, and more warnings than usual.
const C_FLAGS: &[&str] = &[
    "-static-pie",
    "-O2",
    "-mno-red-zone",
    "-pthread",
    "-Wall",
    "-Wno-infinite-recursion",
    "-Wno-array-bounds",
    "-Werror",
    concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../guest/include"),
];

/// What makes a Rust program one that can be a domain.
const RUST_FLAGS: &[&str] =
    &["--edition=2024", "-O", "--target=x86_64-unknown-linux-gnu", "-Ctarget-feature=+crt-static"];

fn compiled(name: &str) -> Vec<u8> {
    let (compiler, flags) =
        if name.ends_with(".rs") { ("rustc", RUST_FLAGS) } else { ("cc", C_FLAGS) };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = dir.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(&out).arg(source).current_dir(dir.path());
    let output = command.output().unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(out).unwrap()
}

/// A C program of `tests/programs`, ready to be loaded.
pub(crate) fn c(name: &str) -> OwnedFd {
    sealed(&bytes(name))
}

/// A Rust program of `tests/programs`, ready to be loaded.
pub(crate) fn rust(name: &str) -> OwnedFd {
    sealed(&bytes(name))
}

pub(crate) fn sealed(bytes: &[u8]) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    std::io::Write::write_all(&mut File::from(fd.try_clone().unwrap()), bytes).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// A started program and what it says.
pub(crate) struct Running {
    pub(crate) domain: Domain,
    output: BufReader<File>,
}

pub(crate) fn program(image: &OwnedFd, args: &[&str]) -> (Program, File) {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let null = File::open("/dev/null").unwrap();
    let program = Program {
        image: image.try_clone().unwrap(),
        args: [&["test"], args].concat().into_iter().map(Into::into).collect(),
        environment: vec![("PARTY".into(), "wall".into())],
        directory: "/".into(),
        descriptors: vec![null.into(), theirs.try_clone().unwrap(), theirs],
    };
    (program, ours.into())
}

pub(crate) fn start(space: &AddressSpace, image: &OwnedFd, args: &[&str]) -> Running {
    start_in(Path::new("/"), space, image, args)
}

/// The same, in this directory.
pub(crate) fn start_in(
    dir: &Path,
    space: &AddressSpace,
    image: &OwnedFd,
    args: &[&str],
) -> Running {
    let (mut program, output) = program(image, args);
    program.directory = dir.into();
    let domain = Domain::start(space, program).unwrap();
    Running { domain, output: BufReader::new(output) }
}

/// How much of a core is written: enough to see that one is.
const CORE: u64 = 1 << 20;

/// A directory where whatever this process starts from now on writes a core when it dies, unless somebody
/// keeps it from that. The limit that tests are run with is mostly 0, and then it is nobody's merit that
/// there is none.
pub(crate) fn where_cores_are_written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let limit = getrlimit(Resource::Core);
    let current = Some(limit.maximum.map_or(CORE, |most| most.min(CORE)));
    setrlimit(Resource::Core, Rlimit { current, ..limit }).unwrap();
    let mut process = Command::new("/bin/sh");
    let ended = process.args(["-c", "kill -ABRT $$"]).current_dir(&dir).status().unwrap();
    if !ended.core_dumped() {
        println!(
            "no process writes a core here (limit {:?}, {}): that domains write none is not shown",
            limit.maximum,
            std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default().trim()
        );
    }
    dir
}

impl Running {
    pub(crate) fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (self.domain.wait().unwrap(), said)
    }

    pub(crate) fn ready(&mut self) {
        self.says("ready\n");
    }

    pub(crate) fn says(&mut self, words: &str) {
        assert_eq!(self.line(), words);
    }

    /// What it says next, with the end of the line; nothing when it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

/// Where another program finds the file of one that is ready to be loaded.
pub(crate) fn path(image: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd())
}

/// Does something that must not take longer: then this process is ended, and says what it was.
pub(crate) fn in_time<T>(limit: Duration, what: &str, body: impl FnOnce() -> T) -> T {
    let (done, waiting) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(limit * slowness()) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: not after {:?}", limit * slowness());
                std::process::abort();
            }
        });
        let value = body();
        done.send(()).unwrap();
        value
    })
}

/// The mappings of this process that lie within `range`.
pub(crate) fn mapped(range: std::ops::Range<u64>) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    maps.lines().filter(|line| range.contains(&start(line))).count()
}

/// How many descriptors this process has open.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
