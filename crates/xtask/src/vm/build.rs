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

/// The command-line program, and what it starts: a service and its caller, through stubs.
const SERVICES: [(&str, &str); 3] = [
    ("partywall-cli", "partywall"),
    ("partywall-system-tests", "st-server"),
    ("partywall-system-tests", "st-client"),
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
    /// This project's own program and the services that it is to run, by their names.
    pub(super) services: Vec<(&'static str, PathBuf)>,
}

/// Builds everything below `dir`.
///
/// # Errors
/// When cargo or a compiler fails, or builds too little.
pub(super) fn all(workspace: &Workspace, dir: &Path) -> Result<Built> {
    let target = dir.to_string_lossy();
    let cargo = workspace
        .command("cargo")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
        .env("CARGO_TERM_COLOR", "never");
    let place = ["--target", TARGET, "--target-dir", &target];
    let line = ["build", "--quiet", "--package", "partywall-vm", "--bin", "vm-init"];
    cargo.clone().args(line).args(place).run()?;
    let init = dir.join(TARGET).join("debug/vm-init");

    let packages =
        SERVICES.iter().flat_map(|(package, name)| ["--package", package, "--bin", name]);
    cargo.clone().args(["build", "--quiet"]).args(packages).args(place).run()?;
    let services =
        SERVICES.map(|(_, name)| (name, dir.join(TARGET).join("debug").join(name))).to_vec();

    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let line = ["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    let messages = cargo.args(line).args(packages).args(place).read()?;
    let mut tests = built::tests(&workspace.metadata, &messages)?;
    tests.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    for package in PACKAGES {
        let name = package.replace('-', "_");
        ensure!(tests.iter().any(|t| t.prefix == name), "cargo built no tests of {package}");
    }
    let programs = programs(&tests, dir)?;
    Ok(Built { init, tests, programs, services })
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
