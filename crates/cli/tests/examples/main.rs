//! The examples, run by the commands that examples/README.md has, with what they are to print.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a newcomer types before the arguments of `partywall`.
const CARGO: &str = "cargo run -- ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn partywall(line: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(line.split(' ')).current_dir(root()).stdin(Stdio::null());
    command.env_remove("ISOLATION").envs(environment.iter().copied());
    command.output().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Runs an example, which ends by itself and well; its output, with a blank where lines are aligned.
fn run(example: &str, environment: &[(&str, &str)]) -> String {
    let file = format!("examples/{example}/compose.yaml");
    let line = format!("up --debug {file}");
    for page in ["examples/README.md", &file] {
        let text = read(page);
        assert!(text.contains(&format!("{CARGO}{line}\n")), "{page} has not the command {line}");
    }
    let out = partywall(&line, environment);
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{said}");
    said.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// Checks that each of these is a part of a line.
fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in\n{said}");
    }
}

#[test]
fn hello_greets() {
    has(&run("hello", &[]), &["client | Hello, neighbour!\n", "1 client greeter ring process"]);
}

#[test]
fn streaming_calls_each_kind_of_method() {
    let said = run("streaming", &[]);
    has(&said, &["client | twice 21 is 42\n", "client | 1 + 2 + 3 is 6\n"]);
    let down = "client | count down: 3\nclient | count down: 2\nclient | count down: 1\n";
    has(&said, &[down, "client | after 30 the sum is 60\n"]);
}

#[test]
fn identity_lets_each_caller_do_what_the_policy_says() {
    let said = run("identity", &[]);
    has(&said, &["notes | written by writer (pid ", "reader | `mind the gap`, by writer\n"]);
    has(
        &said,
        &["reader | denied: the policy does not let this caller call /examples.Notes/Write"],
    );
    has(&said, &["stranger | no link: the policy lets process "]);
    let policy = "examples/identity/policy.toml";
    let explained = |who: &str, method: &str| {
        let line = format!("policy explain --policy {policy} {who} notes examples.Notes/{method}");
        let out = partywall(&line, &[]);
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    assert!(read(policy).contains(&format!("{CARGO}policy explain --policy {policy} reader")));
    for (who, method, allowed) in
        [("writer", "Write", true), ("reader", "Read", true), ("reader", "Write", false)]
    {
        let (code, said) = explained(who, method);
        assert_eq!(code == Some(0), allowed, "{who} {method}: {said}");
    }
}

#[test]
fn deadlines_pass_calls_are_given_up_and_a_stop_loses_none() {
    let said = run("deadlines", &[]);
    has(&said, &["clock | a call with a deadline\n", "client | the deadline passed\n"]);
    has(&said, &["client | given up\n"]);
    assert_eq!(said.matches("clock | a call ended early, after tick ").count(), 2, "{said}");
    has(
        &said,
        &["clock | no new calls; those under way are finished\n", "client | it told 9 more\n"],
    );
    has(&said, &["clock | a call ended after all 10 ticks\n"]);
    has(&said, &["client | the next process has answered\n"]);
}

#[test]
fn blocking_calls_without_a_runtime() {
    let said = run("blocking", &[]);
    has(
        &said,
        &["client | Hello, Ada!\nclient | Hello, Grace!\n", "2 client greeter ring process"],
    );
}

#[test]
fn domain_calls_through_the_gate_and_falls_back_aloud() {
    let said = run("domain", &[("ISOLATION", "none")]);
    has(&said, &["client | 1000 calls, each answered\n", "client | isolation: none\n"]);
    has(&said, &["1 client greeter gate none closed 1000 0 -\n"]);
    let said = run("domain", &[]);
    has(&said, &["client | 1000 calls, each answered\n"]);
    if !said.contains("1 client greeter gate ") {
        has(
            &said,
            &[
                "started as a process of its own, linked by rings: ",
                "client | isolation: process\n",
            ],
        );
        has(&said, &["1 client greeter ring process closed 1000 0 -\n"]);
    }
}

#[test]
fn http2_answers_beside_the_ring() {
    let said = run("http2", &[]);
    has(&said, &["ring | Hello, neighbour!\n", "http2 | Hello, stranger!\n"]);
    has(&said, &["1 ring greeter ring process"]);
}

#[test]
fn telemetry_goes_over_a_ring_by_tonics_own_channel() {
    let said = run("telemetry", &[]);
    has(&said, &["collector | `work`, sent by app (pid ", "app | sent over the ring to collector"]);
}

#[test]
fn every_directory_of_the_examples_has_its_line_in_the_readme() {
    let readme = read("examples/README.md");
    let entries = std::fs::read_dir(root().join("examples")).unwrap();
    let names = entries.flatten().filter(|entry| entry.path().is_dir());
    let names: Vec<_> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let examples = names.iter().filter(|name| !["src", "proto", "target"].contains(&name.as_str()));
    for name in examples {
        assert!(readme.contains(&format!("]({name})")), "{name} is not in examples/README.md");
    }
    assert!(readme.contains("cargo test -p examples --test in_process\n"));
}
