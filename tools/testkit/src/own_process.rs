//! Tests that change what is a whole process's: its limits, or how its allocator works.

use std::process::Command;

/// Names the test that has the process to itself.
const ALONE: &str = "PARTYWALL_TEST_ALONE";

/// Runs a test of this program again, alone in a process with these variables: what it said there. None in
/// that process. `module` is the test's `module_path!()`.
///
/// # Panics
/// When it fails there.
pub fn in_own_process(module: &str, test: &str, variables: &[(&str, &str)]) -> Option<String> {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return None;
    }
    let path = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut own = Command::new(std::env::current_exe().expect("this program"));
    own.args([&path, "--exact", "--nocapture"]).envs(variables.iter().copied()).env(ALONE, test);
    let said = own.output().expect("this program runs");
    let text = [&said.stdout[..], &said.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(said.status.success() && text.contains("1 passed"), "{text}");
    Some(text.into_owned())
}
