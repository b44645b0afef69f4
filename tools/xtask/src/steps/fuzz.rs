//! Fuzzing twice: every body by its driver among the tests, then guided by coverage where a
//! nightly toolchain is installed.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::{Session, tool};
use crate::command::Cmd;
use crate::ran::RanList;

/// Seconds for each target.
const QUICK_SECONDS: u32 = 5;
const FULL_SECONDS: u32 = 60;

const MEMORY_LIMIT_MB: u32 = 4096;

/// Every fuzz target has a driver among the tests that ran: a test with `fuzz_<target>` in its
/// name.
pub(super) fn bodies(session: &mut Session) -> Result<()> {
    let targets = session.workspace.fuzz_targets()?;
    let missing = without_driver(&targets, &session.ran);
    ensure!(missing.is_empty(), "no test ran the fuzz body of {}", missing.join(", "));
    session.note = format!("{} targets, within the tests", targets.len());
    println!("every body of {} ran on stable", targets.join(", "));
    Ok(())
}

/// A test counts for the longest target it names, so `fuzz_frame_head` is no driver of `frame`
/// when there is a target `frame_head`.
fn without_driver(targets: &[String], ran: &RanList) -> Vec<String> {
    let named = |target: &String, test: &str| test.contains(&format!("fuzz_{target}"));
    let longest = |test: &str| {
        targets.iter().filter(|target| named(target, test)).max_by_key(|target| target.len())
    };
    let driven: Vec<_> = ran.entries().iter().filter_map(|(test, _)| longest(test)).collect();
    targets.iter().filter(|target| !driven.contains(target)).cloned().collect()
}

/// Whether rustup has a nightly toolchain.
pub(super) fn has_nightly() -> bool {
    let list = Cmd::new("rustup").args(["toolchain", "list"]).read();
    list.is_ok_and(|list| list.lines().any(|line| line.starts_with("nightly")))
}

/// Runs each target for a few seconds under cargo-fuzz.
pub(super) fn coverage(session: &mut Session) -> Result<()> {
    let targets = session.workspace.fuzz_targets()?;
    if !has_nightly() {
        session.cannot_run("no nightly toolchain here; the bodies ran among the tests".to_owned());
        return Ok(());
    }
    let fuzz = cargo_fuzz(session)?;
    let listed = fuzz.clone().args(["list"]).read()?;
    let mut listed: Vec<_> = listed.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    listed.sort_unstable();
    ensure!(
        listed == targets,
        "fuzz/Cargo.toml names the targets {listed:?}, fuzz/fuzz_targets holds {targets:?}"
    );
    // All at once, for one target alone takes one CPU.
    fuzz.clone().args(["build"]).run()?;
    let mut executed = 0;
    for target in &targets {
        let result = run_target(session, &fuzz, target);
        session.fuzzed[usize::from(result.is_err())] += 1;
        executed += result?;
    }
    session.note = format!("{} targets, {executed} inputs", targets.len());
    Ok(())
}

/// `cargo fuzz` on nightly. It has no `--locked` of its own, so that is looked at before.
fn cargo_fuzz(session: &Session) -> Result<Cmd> {
    let manifest = ["--manifest-path", "fuzz/Cargo.toml"];
    session.workspace.cargo("metadata").args(manifest).args(["--format-version=1"]).read()?;
    let bin = tool::installed(session.workspace, "cargo-fuzz", "0.13.2")?;
    let line = ["run", "nightly", "cargo", "fuzz"];
    Ok(session.trials(session.workspace.command("rustup")).path_prefix(&bin).args(line))
}

/// Number of inputs executed. New inputs go to the scratch directory, not into the project.
fn run_target(session: &Session, fuzz: &Cmd, target: &str) -> Result<u64> {
    let found = session.workspace.scratch().join("corpus").join(target);
    fs::create_dir_all(&found)?;
    let seeds = session.workspace.root.join("fuzz/corpus").join(target);
    let corpora = [found, seeds].into_iter().filter(|dir| dir.is_dir());
    let seconds = if session.full { FULL_SECONDS } else { QUICK_SECONDS };
    let command = fuzz
        .clone()
        .args(["run", target])
        .args(corpora.map(|dir| dir.to_string_lossy().into_owned()))
        .args(["--".to_owned(), format!("-max_total_time={seconds}")])
        .args([format!("-rss_limit_mb={MEMORY_LIMIT_MB}"), "-print_final_stats=1".to_owned()]);
    let mut executed = None;
    let succeeded = command.stream(|line| executed = executions(line).or(executed))?;
    ensure!(succeeded, "the fuzz target {target} failed; repeat with:\n{command}");
    let executed =
        executed.with_context(|| format!("{target}: libFuzzer printed no statistics"))?;
    ensure!(executed > 0, "{target}: libFuzzer executed no input");
    Ok(executed)
}

fn executions(line: &str) -> Option<u64> {
    line.trim().strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ran::Outcome;

    fn ran(names: &[&str]) -> RanList {
        let mut list = RanList::default();
        list.extend(names.iter().map(|name| ((*name).to_owned(), Outcome::Ok)));
        list
    }

    #[test]
    fn each_target_needs_a_driver_of_its_own() {
        let targets = ["frame".to_owned(), "frame_head".to_owned()];
        let both =
            ran(&["partywall_abi::tests::fuzz_frame", "partywall_abi::fuzz_frame_head_quick"]);
        assert_eq!(without_driver(&targets, &both), [""; 0]);
        let one = ran(&["partywall_abi::tests::fuzz_frame_head", "partywall_abi::tests::frame"]);
        assert_eq!(without_driver(&targets, &one), ["frame"]);
    }

    #[test]
    fn statistics_are_read() {
        assert_eq!(executions("stat::number_of_executed_units: 1234"), Some(1234));
        assert_eq!(executions("stat::average_exec_per_sec: 5"), None);
    }
}
