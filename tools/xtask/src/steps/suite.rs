//! Everything that libtest runs: unit, integration and doc tests, then the loom models.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Session;
use super::fuzz::has_nightly;
use crate::command::Cmd;
use crate::libtest::Parser;
use crate::ran::{Outcome, RanList};
use crate::workspace::LOOM;
use crate::{apt, built};

pub(super) const REPEAT: &str = "PARTYWALL_TRIALS=quick cargo test --workspace --no-fail-fast";

pub(super) const REPEAT_LOOM: &str = "RUSTFLAGS='--cfg loom' cargo test --release \
     --target-dir target/loom -p partywall-abi -p partywall-shm -p partywall-domain --lib loom_";

/// Arguments of the run of all tests, the only one with doc tests.
const ALL: &[&str] = &["--workspace"];

/// Arguments of each `cargo test` of the tests step. Packages are selected by `--workspace` wherever that
/// will do: another selection gives dependencies other features, and has them built again.
const RUNS: &[&[&str]] = &[
    ALL,
    &["-p", "partywall", "--no-default-features", "--test", "names_alone"],
    // What only exists with a feature, by the names of its tests.
    &[
        "--workspace",
        "--features",
        "partywall-cli/prometheus,partywall-system-tests/failpoints,partywall-attacks/failpoints",
        "--bin",
        "partywall",
        "--test",
        "metrics",
        "--test",
        "processes",
        "--test",
        "shared_memory",
        "--",
        "metrics",
        "stops",
        "deaths",
    ],
];

/// Tests that need root, in a binary of their own, which is built only for them.
struct AsRoot {
    args: &'static [&'static str],
    prefix: &'static str,
    what: &'static str,
}

const ROOT: AsRoot = AsRoot {
    args: &["--workspace", "--features", "partywall-system-tests/root", "--test", "root"],
    prefix: "partywall_system_tests::root",
    what: "needs root",
};

const ENGINES: AsRoot = AsRoot {
    args: &["--workspace", "--features", "partywall-engine-tests/engines", "--test", "engines"],
    prefix: "partywall_engine_tests::engines",
    what: "needs root, whose container engines are",
};

pub(super) const REPEAT_ROOT: &str = "cargo xtask test root engines rows";

/// Packages whose unit tests run with AddressSanitizer: those with unsafe code, but for domains, whose
/// programs are not built with it; and those whose tests hold no bounds on time, which it makes too narrow.
const ASAN: &[&str] = &["partywall-shm", "partywall-call", "partywall"];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs all tests and keeps their names for the steps that follow.
pub(super) fn run(session: &mut Session) -> Result<()> {
    let list = session.workspace.ran_list();
    if list.exists() {
        fs::remove_file(&list)?;
    }
    let mut faults = Vec::new();
    for args in RUNS {
        let run = cargo_test(session, |cargo| cargo, args)?;
        if *args == ALL {
            let missing = without_doc_tests(&session.workspace.metadata, &run.doc_crates);
            faults.extend(missing.into_iter().map(|name| format!("{name}: doc tests did not run")));
        }
        faults.extend(session.take(run));
    }
    session.note = counts(&session.ran);
    session.finish(&faults)
}

/// The doc tests were part of the tests; there must have been some.
pub(super) fn docs(session: &mut Session) -> Result<()> {
    let passed = session.ran.doc_count(Outcome::Ok);
    ensure!(passed > 0, "no doc test ran");
    session.note = format!("{passed} passed, within the tests");
    println!("{passed} doc tests passed");
    Ok(())
}

/// Runs the loom models, in a target directory of their own because of the other flags.
pub(super) fn loom(session: &mut Session) -> Result<()> {
    let before = session.ran.entries().len();
    let target = session.workspace.target.join("loom");
    let flags = |cargo: Cmd| {
        cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target.to_string_lossy())
    };
    let packages = LOOM.iter().flat_map(|package| ["-p", package]);
    let args: Vec<_> =
        ["--release"].into_iter().chain(packages).chain(["--lib", "loom_"]).collect();
    let run = cargo_test(session, flags, &args)?;
    let faults = session.take(run);
    session.note = format!("{} models", session.ran.entries().len() - before);
    session.finish(&faults)
}

/// Runs unit tests with AddressSanitizer, which needs a nightly toolchain: reads and writes beyond what
/// is allocated, use after free, leaks. What two processes share is no allocation, and its bounds are
/// checked by `shm::region`.
pub(super) fn asan(session: &mut Session) -> Result<()> {
    if !has_nightly() {
        session.cannot_run("no nightly toolchain here".to_owned());
        return Ok(());
    }
    let target = session.workspace.target.join("asan");
    let nightly = |cargo: Cmd| {
        cargo
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            // AddressSanitizer needs addresses of its own: no test takes those away (RLIMIT_AS).
            .env("PARTYWALL_ASAN", "1")
            .env("CARGO_TARGET_DIR", target.to_string_lossy())
    };
    let packages = ASAN.iter().flat_map(|package| ["-p", package]);
    // With a target of their own, build scripts and macros go without.
    let args: Vec<_> = ["--lib", "--target", TARGET].into_iter().chain(packages).collect();
    let mut run = cargo_test(session, nightly, &args)?;
    run.ran.prefix("asan");
    session.note = counts(&run.ran);
    let faults = session.take(run);
    session.finish(&faults)
}

/// Runs the tests that need root.
pub(super) fn root(session: &mut Session) -> Result<()> {
    as_root(session, &ROOT)
}

/// Runs the tests with container engines, each of which they start, and end.
pub(super) fn engines(session: &mut Session) -> Result<()> {
    as_root(session, &ENGINES)
}

/// Runs tests that need root, or lists them where this user is another one: then the last lines
/// of the run say that they did not run, and how they do.
fn as_root(session: &mut Session, tests: &AsRoot) -> Result<()> {
    if !apt::is_root()? {
        let args = ["--quiet"].into_iter().chain(tests.args.iter().copied());
        let list = session.cargo("test").args(args).args(["--", "--list"]).read()?;
        let listed = listed(&list, tests.prefix);
        ensure!(!listed.is_empty(), "there is no test in {}", tests.prefix);
        session.cannot_run(format!("{}; {} tests did not run", tests.what, listed.len()));
        println!("run them with\n\n  sudo {REPEAT_ROOT}\n");
        session.ran.replace(&listed);
        return session.finish(&[]);
    }
    let run = cargo_test(session, |cargo| cargo, tests.args)?;
    session.note = counts(&run.ran);
    let faults = session.take(run);
    session.finish(&faults)
}

/// The tests in the output of `--list`, with `prefix` before their names.
fn listed(list: &str, prefix: &str) -> Vec<(String, Outcome)> {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(|name| (format!("{prefix}::{name}"), Outcome::NeedsRoot)).collect()
}

/// One finished `cargo test`.
struct Run {
    line: String,
    succeeded: bool,
    ran: RanList,
    /// What is wrong with its output.
    faults: Vec<String>,
    doc_crates: BTreeSet<String>,
}

impl Session<'_> {
    /// Writes the list of tests that ran; fails where something is wrong with them.
    fn finish(&self, faults: &[String]) -> Result<()> {
        self.ran.save(&self.workspace.ran_list())?;
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(())
    }

    /// Adds the tests of a run to the session; returns what is wrong with it.
    fn take(&mut self, run: Run) -> Vec<String> {
        let mut faults = run.faults;
        faults.extend(run.ran.faults());
        if run.ran.entries().is_empty() {
            faults.push(format!("`{}` ran no test", run.line));
        }
        if !run.succeeded && faults.is_empty() {
            faults.push(format!("`{}` failed although no test did", run.line));
        }
        self.ran.replace(run.ran.entries());
        faults
    }
}

/// Builds and runs tests by a command that `with` completes. The build says which binaries have to run.
/// Behind `--` are parts of the names of those tests that run, if not all do.
fn cargo_test(session: &Session, with: impl Fn(Cmd) -> Cmd, args: &[&str]) -> Result<Run> {
    let at = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
    let (args, names) = args.split_at(at);
    let cargo = with(session.cargo("test")).args(args.iter().copied());
    let messages =
        cargo.clone().args(["--no-run", "--message-format", "json-render-diagnostics"]).read()?;
    let binaries = built::tests(&session.workspace.metadata, &messages)?;
    ensure!(!binaries.is_empty(), "cargo built no test binary");
    let command = cargo.args(["--no-fail-fast"]).args(names.iter().copied());
    let mut parser = Parser::new(built::prefixes(&binaries));
    let succeeded = command.stream(|line| parser.line(line))?;
    let (ran, faults) = parser.finish();
    let doc_crates = parser.doc_crates().map(str::to_owned).collect();
    Ok(Run { line: command.to_string(), succeeded, ran, faults, doc_crates })
}

/// Libraries whose doc tests cargo should have run but did not.
fn without_doc_tests(metadata: &Value, ran: &BTreeSet<String>) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .flat_map(|package| package["targets"].as_array().into_iter().flatten())
        .filter(|target| target["doctest"] == true)
        .filter_map(|target| target["name"].as_str())
        .map(|name| name.replace('-', "_"))
        .filter(|name| !ran.contains(name))
        .collect()
}

fn counts(ran: &RanList) -> String {
    let count = |outcome| ran.count(outcome);
    format!("{} passed, {} failed", count(Outcome::Ok), count(Outcome::Failed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata() -> Value {
        let library = json!({ "name": "partywall_shm", "doctest": true });
        let test = json!({ "name": "it", "doctest": false });
        json!({ "packages": [{ "id": "p1", "name": "partywall-shm", "targets": [library, test] }] })
    }

    #[test]
    fn tests_that_need_root_are_listed_and_not_passed() {
        let list = "many_users: test\nsub::few: test\n\n2 tests, 0 benchmarks\n";
        let names = ["p::root::many_users", "p::root::sub::few"];
        let expected = names.map(|name| (name.to_owned(), Outcome::NeedsRoot));
        assert_eq!(listed(list, "p::root"), expected);
    }

    #[test]
    fn libraries_without_doc_test_run_are_named() {
        assert_eq!(without_doc_tests(&metadata(), &BTreeSet::new()), ["partywall_shm"]);
        let ran = ["partywall_shm".to_owned()].into();
        assert_eq!(without_doc_tests(&metadata(), &ran), [""; 0]);
    }
}
