//! Builds what the machine runs: everything static, as its file system holds no libraries of ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::built::{self, TestBinary};
use crate::command::Cmd;
use crate::workspace::Workspace;

/// Packages whose tests run in the machine.
const PACKAGES: &[&str] = &["partywall-domain"];

/// Tells the tests the directory of programs that were built beforehand.
pub(super) const PROGRAMS_VARIABLE: &str = "PARTYWALL_PROGRAMS";

/// The tests beside the code of the domain crate.
pub(super) const UNIT_TESTS: &str = "partywall_domain";

/// The binary that builds the programs, and its test that keeps them.
const KEEPER: [&str; 2] =
    ["partywall_domain::domain", "programs::every_program_of_the_tests_is_there"];

/// Where that test keeps them.
const KEEP_VARIABLE: &str = "PARTYWALL_KEEP_PROGRAMS";

/// What `partywall up` and the tests of whole systems start as domains: a service and its caller,
/// through stubs.
const SERVICES: [&str; 2] = ["st-server", "st-client"];

/// Tests that the machine runs as they are for the host, with the libraries of that: what they were
/// built with and what they start is at the same paths.
const OF_HOST: [(&str, &str); 6] = [
    ("partywall-system-tests", "processes"),
    ("partywall-system-tests", "root"),
    ("partywall-cli", "up"),
    ("partywall-stubs-tests", "stubs"),
    ("partywall-attacks", "shared_memory"),
    ("partywall-functions", "keys"),
];

/// Without it cargo leaves the tests that need root out. The machine runs all as root.
const WITH_ROOT: [&str; 2] = ["--features", "partywall-system-tests/root"];

/// Emulated, the tests take twice as long without.
const OPTIMISED: [&str; 6] = [
    "--config",
    "profile.dev.package.\"*\".opt-level=1",
    "--config",
    "profile.dev.package.partywall-domain.opt-level=1",
    "--config",
    "profile.dev.package.partywall-guest.opt-level=1",
];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What was built.
pub(super) struct Built {
    /// The first process.
    pub(super) init: PathBuf,
    /// The tests, those beside the code first.
    pub(super) tests: Vec<TestBinary>,
    /// A directory with the programs that the tests load.
    pub(super) programs: PathBuf,
    /// What is started as a domain.
    pub(super) services: Vec<PathBuf>,
    /// Tests that are not static.
    pub(super) tests_of_host: Vec<TestBinary>,
    /// The same and the programs that they start.
    pub(super) of_host: Vec<OfHost>,
}

/// A program that the machine has as the host does.
pub(super) struct OfHost {
    /// Its path, there as well.
    pub(super) path: PathBuf,
    /// A copy of it, to be put there.
    pub(super) copy: PathBuf,
}

/// Builds everything below `dir`.
///
/// # Errors
/// When cargo or a compiler fails, or builds too little.
pub(super) fn all(workspace: &Workspace, dir: &Path) -> Result<Built> {
    let built = workspace.target.join(TARGET).join("debug");
    let cargo = |subcommand| {
        let cargo = workspace.cargo(subcommand).env("CARGO_TERM_COLOR", "never");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
    };
    let target = ["--target", TARGET];
    let line = ["--quiet", "--package", "partywall-vm", "--bin", "vm-init"];
    cargo("build").args(line).args(target).run()?;
    let init = built.join("vm-init");

    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let line = ["--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    let tests = cargo("test").args(line).args(packages).args(target);
    let messages = tests.args(OPTIMISED).read()?;
    let mut tests = built::tests(&workspace.metadata, &messages)?;
    tests.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    for package in PACKAGES {
        let name = package.replace('-', "_");
        ensure!(tests.iter().any(|t| t.prefix == name), "cargo built no tests of {package}");
    }
    let programs = programs(&tests, dir)?;
    let line = ["--quiet", "--package", "partywall-system-tests"];
    let binaries = SERVICES.iter().flat_map(|name| ["--bin", name]);
    cargo("build").args(line).args(binaries).args(target).run()?;
    let services = SERVICES.iter().map(|name| stripped(&built.join(name), dir));
    let services = services.collect::<Result<_>>()?;
    let (tests_of_host, of_host) = of_host(workspace, dir)?;
    Ok(Built { init, tests, programs, services, tests_of_host, of_host })
}

/// Tests and programs as the host has them: with the features that the whole workspace asks for, so that
/// what was built for those is not built again.
fn of_host(workspace: &Workspace, dir: &Path) -> Result<(Vec<TestBinary>, Vec<OfHost>)> {
    let line = ["--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    let binaries = OF_HOST.iter().flat_map(|(_, test)| ["--test", test]);
    let cargo =
        workspace.cargo("test").args(line).args(["--workspace"]).args(WITH_ROOT).args(binaries);
    let messages = cargo.read()?;
    let tests = built::tests(&workspace.metadata, &messages)?;
    for (package, test) in OF_HOST {
        let prefix = format!("{}::{test}", package.replace('-', "_"));
        ensure!(tests.iter().any(|t| t.prefix == prefix), "cargo built no {prefix}");
    }
    let programs = built::programs(&messages)?;
    let all = tests.iter().map(|test| &test.path).chain(&programs);
    let copied = |path: &PathBuf| {
        Ok(OfHost { path: path.clone(), copy: stripped(path, &dir.join("host"))? })
    };
    let all = all.map(copied).collect::<Result<_>>()?;
    Ok((tests, all))
}

/// A copy without what debuggers need, which would fill the machine's memory.
fn stripped(program: &Path, dir: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    fs::create_dir_all(dir)?;
    let copy = dir.join(name);
    let [from, to] = [program, &copy].map(|path| path.to_string_lossy());
    Cmd::new("strip").args(["--strip-debug", "-o", &to, &from]).run()?;
    Ok(copy)
}

/// Has the tests compile the programs that they load, as only they know how.
fn programs(tests: &[TestBinary], dir: &Path) -> Result<PathBuf> {
    let [prefix, test] = KEEPER;
    let keeper = tests.iter().find(|binary| binary.prefix == prefix);
    let keeper = keeper.with_context(|| format!("cargo built no {prefix}"))?;
    let programs = dir.join("programs");
    if programs.exists() {
        fs::remove_dir_all(&programs)?;
    }
    fs::create_dir_all(&programs)?;
    let command = Cmd::new(&keeper.path.to_string_lossy())
        .args([test, "--exact"])
        .env(KEEP_VARIABLE, programs.to_string_lossy());
    let mut said = Vec::new();
    let succeeded = command.follow(None, |line| said.push(line.to_owned()))?;
    ensure!(succeeded, "`{command}` failed:\n{}", said.join("\n"));
    let count = fs::read_dir(&programs)?.count();
    ensure!(count > 0, "`{command}` kept no program; is the test {test} still there?");
    Ok(programs)
}
