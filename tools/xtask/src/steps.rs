//! `cargo xtask test`: the steps of CI in order, stopping at the first that fails.
//!
//! To add a step, write a function `fn(&mut Session) -> Result<()>` and put it into [`STEPS`].
//! Tests that a step runs are counted in the session; the last line sums them up. Steps that run on
//! their own (`cargo xtask test STEP`) add to the list of tests of the run before.
//!
//! All steps but `root` and `engines` pass without root; these then name the tests that they did not run. No
//! step installs anything outside of the target directory: `cargo xtask setup` does.

mod fuzz;
mod packages;
mod suite;
mod tool;

pub(crate) use packages::install;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, iter};

use anyhow::{Context, Result, bail, ensure};

use crate::command::Cmd;
use crate::ran::{Outcome, RanList};
use crate::workspace::Workspace;
use crate::{deps, rows, tidy, vm};

struct Step {
    name: &'static str,
    /// Shell line that runs the step alone, or as little more as possible.
    repeat: &'static str,
    run: fn(&mut Session) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "packages", repeat: "cargo xtask test packages", run: packages::run },
    Step { name: "toolchain", repeat: "cargo xtask test toolchain", run: toolchain },
    Step { name: "fmt", repeat: "cargo fmt --all --check", run: fmt },
    Step {
        name: "clippy",
        repeat: "cargo clippy --workspace --all-targets -- -D warnings",
        run: clippy,
    },
    Step { name: "features", repeat: "cargo xtask test features", run: features },
    Step { name: "doc", repeat: "cargo xtask test doc", run: doc },
    Step { name: "tests", repeat: suite::REPEAT, run: suite::run },
    Step { name: "root", repeat: suite::REPEAT_ROOT, run: suite::root },
    Step { name: "engines", repeat: suite::REPEAT_ROOT, run: suite::engines },
    Step { name: "doc tests", repeat: "cargo test --workspace --doc", run: suite::docs },
    Step { name: "benches", repeat: "cargo test --workspace --bench micro", run: benches },
    Step { name: "loom", repeat: suite::REPEAT_LOOM, run: suite::loom },
    Step { name: "asan", repeat: "cargo xtask test asan", run: suite::asan },
    Step { name: "vm", repeat: "cargo xtask vm-test", run: machine },
    Step { name: "fuzz bodies", repeat: "cargo test --workspace fuzz_", run: fuzz::bodies },
    Step { name: "fuzz coverage", repeat: "cargo +nightly fuzz run TARGET", run: fuzz::coverage },
    Step { name: "tidy", repeat: "cargo xtask tidy", run: |session| tidy::run(session.workspace) },
    Step { name: "deps", repeat: "cargo xtask deps", run: |session| deps::run(session.workspace) },
    Step { name: "deny", repeat: "cargo xtask test deny", run: deny },
    Step { name: "rows", repeat: "cargo xtask rows", run: all_rows },
];

/// What the steps share.
struct Session<'a> {
    workspace: &'a Workspace,
    full: bool,
    /// Every test that ran so far.
    ran: RanList,
    /// Runs of coverage-guided fuzz targets: succeeded, failed.
    fuzzed: [usize; 2],
    /// What the current step wants to say in the summary.
    note: String,
    /// Whether the current step could not run as this user.
    not_run: bool,
}

struct Done {
    name: &'static str,
    word: &'static str,
    time: Duration,
    note: String,
}

/// Names of all steps.
pub(crate) fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Runs the steps that are named, or all; `full` with the promised number of random trials.
///
/// # Errors
/// When a step fails.
pub(crate) fn run(workspace: &Workspace, full: bool, named: &[String]) -> Result<()> {
    let chosen = |step: &&Step| named.is_empty() || named.iter().any(|name| name == step.name);
    let steps: Vec<&Step> = STEPS.iter().filter(chosen).collect();
    let list = workspace.ran_list();
    let ran = match !named.is_empty() && list.exists() {
        true => RanList::load(&list)?,
        false => RanList::default(),
    };
    let mut session =
        Session { workspace, full, ran, fuzzed: [0; 2], note: String::new(), not_run: false };
    let mut done = Vec::new();
    let mut failure = None;
    for (index, step) in steps.iter().enumerate() {
        println!("\n== {}/{} {}", index + 1, steps.len(), step.name);
        let start = Instant::now();
        let result = (step.run)(&mut session);
        let time = start.elapsed();
        let word = match (&result, std::mem::take(&mut session.not_run)) {
            (Err(_), _) => "FAILED",
            (Ok(()), true) => "not run",
            (Ok(()), false) => "ok",
        };
        println!("== {} {word} in {}", step.name, seconds(time));
        done.push(Done { name: step.name, word, time, note: std::mem::take(&mut session.note) });
        if let Err(error) = result {
            println!("\n{error:#}\n\nrepeat with: {}", step.repeat);
            failure = Some(step.name);
            break;
        }
    }
    print!("\n{}", summary(&done, &steps));
    let [passed, failed] = session.totals(failure.is_some());
    println!("\n{passed} passed, {failed} failed");
    let unshown = session.ran.count(Outcome::NeedsRoot);
    if unshown > 0 {
        println!("{unshown} not run, for they need root: sudo {}", suite::REPEAT_ROOT);
    }
    match failure {
        Some(step) => bail!("step {step} failed"),
        None => Ok(()),
    }
}

impl Session<'_> {
    /// A cargo command in the workspace that knows how many random trials are wanted.
    fn cargo(&self, subcommand: &str) -> Cmd {
        self.trials(self.workspace.cargo(subcommand)).env("CARGO_TERM_COLOR", "never")
    }

    /// Says that the step could not run here, and why.
    fn cannot_run(&mut self, why: String) {
        println!("not run: {why}");
        self.note = why;
        self.not_run = true;
    }

    fn trials(&self, command: Cmd) -> Cmd {
        command.env("PARTYWALL_TRIALS", if self.full { "full" } else { "quick" })
    }

    /// Passed and failed tests. A step that failed without a failed test counts as one, so that
    /// the last line never reads like a success when the exit code says otherwise.
    fn totals(&self, step_failed: bool) -> [usize; 2] {
        let passed = self.ran.count(Outcome::Ok) + self.fuzzed[0];
        let failed = self.ran.count(Outcome::Failed) + self.fuzzed[1];
        [passed, failed.max(usize::from(step_failed))]
    }
}

fn fmt(session: &mut Session) -> Result<()> {
    session.workspace.command("cargo").args(["fmt", "--all", "--check"]).run()
}

fn clippy(session: &mut Session) -> Result<()> {
    let line = ["--workspace", "--all-targets", "--", "-D", "warnings"];
    session.workspace.cargo("clippy").args(line).run()
}

/// Each micro-benchmark runs once; what they measure is for quiet machines.
fn benches(session: &mut Session) -> Result<()> {
    session.cargo("test").args(["--workspace", "--bench", "micro"]).run()
}

/// The toolchain that builds is the oldest one that the crates promise to build with, and the one that
/// rust-toolchain.toml names: a newer one would hide what the oldest does not have.
fn toolchain(session: &mut Session) -> Result<()> {
    let pinned = fs::read_to_string(session.workspace.root.join("rust-toolchain.toml"))?;
    let pinned: toml::Table = pinned.parse().context("rust-toolchain.toml")?;
    let pinned = pinned["toolchain"]["channel"].as_str().context("rust-toolchain.toml: channel")?;
    let running = session.workspace.command("rustc").args(["--version"]).read()?;
    for package in session.workspace.packages()? {
        let (name, promised) = (&package["name"], package["rust_version"].as_str());
        let promised = promised.with_context(|| format!("{name} promises no rust-version"))?;
        check_toolchain(promised, pinned, &running).with_context(|| name.to_string())?;
    }
    session.note = running.trim().to_owned();
    Ok(())
}

fn check_toolchain(promised: &str, pinned: &str, running: &str) -> Result<()> {
    ensure!(
        pinned == promised || pinned.strip_prefix(promised).is_some_and(|r| r.starts_with('.')),
        "rust-version is {promised}, but rust-toolchain.toml pins {pinned}"
    );
    let found = running.split_whitespace().nth(1).unwrap_or_default();
    ensure!(
        found.starts_with(pinned),
        "rust-toolchain.toml pins {pinned}, but this is {running:?}; unset RUSTUP_TOOLCHAIN, or run \
         `rustup toolchain install {pinned}`"
    );
    Ok(())
}

/// Crates of HTTP/2, which a program that has names alone does not link.
const OF_HTTP2: [&str; 3] = ["h2 ", "hyper ", "hyper-util "];

/// Each product crate builds without features and with each of them alone; the library has no HTTP/2
/// without its feature.
fn features(session: &mut Session) -> Result<()> {
    let products = session.workspace.root.join("crates");
    let mut builds = 0;
    for package in session.workspace.packages()? {
        let manifest = package["manifest_path"].as_str().context("package without manifest")?;
        if !Path::new(manifest).starts_with(&products) {
            continue;
        }
        let name = package["name"].as_str().context("package without name")?;
        let features = package["features"].as_object().context("package without features")?;
        for feature in iter::once("").chain(features.keys().map(String::as_str)) {
            let line = ["-p", name, "--no-default-features", "--features", feature];
            let line = line.into_iter().chain(["--", "-D", "warnings"]);
            session.workspace.cargo("clippy").args(line).run()?;
            builds += 1;
        }
    }
    ensure!(builds > 0, "there is no product crate in {}", products.display());
    let line = ["-p", "partywall", "--no-default-features", "--features", "blocking,domain"];
    let line = line.into_iter().chain(["-e", "normal", "--prefix", "none"]);
    let tree = session.workspace.cargo("tree").args(line).read()?;
    let of_http2 = |package: &&str| OF_HTTP2.iter().any(|name| package.starts_with(name));
    if let Some(package) = tree.lines().find(of_http2) {
        bail!("partywall without the feature `http2` depends on {package}; see `cargo tree`");
    }
    session.note = format!("{builds} builds");
    Ok(())
}

/// Licences, forbidden crates, versions and sources of what is linked, by the rules of deny.toml.
/// Advisories are not checked: their data base is a git repository on github.com, which the machines
/// that run this do not reach (docs/roadmap.md).
fn deny(session: &mut Session) -> Result<()> {
    let bin = tool::installed(session.workspace, "cargo-deny", "0.20.2")?;
    let line = ["deny", "--locked", "check", "bans", "licenses", "sources"];
    let mut verdict = None;
    let command = session.workspace.command("cargo").path_prefix(&bin).args(line);
    let succeeded = command.stream(|line| {
        if line.contains("bans ") && line.contains("licenses ") && line.contains("sources ") {
            verdict = Some(line.to_owned());
        }
    })?;
    ensure!(succeeded, "deny.toml forbids what is marked as an error");
    session.note = verdict.context("cargo-deny gave no verdict")?;
    Ok(())
}

/// Links between items are right, in private modules too: protocols are told there, with links to what
/// only the crate sees. The command is documented apart, for it has the name of the library.
fn doc(session: &mut Session) -> Result<()> {
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    let common = ["--no-deps", "--document-private-items"];
    for packages in [&["-p", "partywall-cli"][..], &["--workspace", "--exclude", "partywall-cli"]] {
        let cargo = session.workspace.cargo("doc").env("RUSTDOCFLAGS", flags);
        cargo.args(common).args(packages.iter().copied()).run()?;
    }
    Ok(())
}

fn machine(session: &mut Session) -> Result<()> {
    let outcome = vm::run(session.workspace, session.full)?;
    session.ran.replace(outcome.ran.entries());
    session.ran.save(&session.workspace.ran_list())?;
    session.note.clone_from(&outcome.note);
    outcome.check()
}

fn all_rows(session: &mut Session) -> Result<()> {
    rows::run(session.workspace, &session.workspace.ran_list())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn summary(done: &[Done], steps: &[&Step]) -> String {
    let mut text = String::new();
    for step in done {
        let (word, time) = (step.word, seconds(step.time));
        let line = format!("{:<14} {word:<7} {time:>9}  {}", step.name, step.note);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for step in &steps[done.len()..] {
        let _ = writeln!(text, "{:<14} not run", step.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_every_step() {
        let time = Duration::from_millis(1500);
        let one = |name, word| Done { name, word, time, note: "3 files".into() };
        let steps: Vec<&Step> = STEPS.iter().collect();
        let text = summary(&[one("packages", "ok"), one("fmt", "FAILED")], &steps);
        assert_eq!(text.lines().count(), STEPS.len());
        assert!(
            text.starts_with("packages       ok          1.5 s  3 files\nfmt            FAILED ")
        );
        assert!(text.contains("rows           not run\n"));
    }

    #[test]
    fn a_toolchain_newer_or_older_than_promised_fails() {
        let is = "rustc 1.95.0 (59807616e 2026-04-14)\n";
        check_toolchain("1.95", "1.95.0", is).unwrap();
        check_toolchain("1.95", "1.95", is).unwrap();
        let why = |promised, pinned, running| {
            check_toolchain(promised, pinned, running).unwrap_err().to_string()
        };
        assert!(why("1.94", "1.95.0", is).contains("rust-version is 1.94"));
        assert!(why("1.9", "1.95.0", is).contains("rust-version is 1.9,"));
        assert!(why("1.95", "stable", is).contains("pins stable"));
        assert!(why("1.95", "1.95.0", "rustc 1.96.0 (x)").contains("this is \"rustc 1.96.0"));
    }

    #[test]
    fn a_failed_step_never_reads_like_a_success() {
        let workspace =
            Workspace { root: "r".into(), target: "t".into(), metadata: serde_json::Value::Null };
        let mut session = Session {
            workspace: &workspace,
            full: false,
            ran: RanList::default(),
            fuzzed: [2, 0],
            note: String::new(),
            not_run: false,
        };
        assert_eq!(session.totals(false), [2, 0]);
        assert_eq!(session.totals(true), [2, 1]);
        session.ran.extend([("a".into(), Outcome::Failed), ("b".into(), Outcome::Failed)]);
        assert_eq!(session.totals(true), [2, 2]);
    }
}
