//! Judges what came from the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use partywall_vm::frame::End;
use partywall_vm::transcript;

use super::machine::Run;
use super::{Job, Judge, Outcome};
use crate::libtest::Parser;
use crate::ran::{self, RanList};

/// The file in which a test tells what it found in the machine.
pub(super) const MACHINE: &str = "machine.txt";

/// The test that fails where the machine lacks protection keys; without it nothing is proved.
const PROOF: &str = "machine::tests::all_protection_keys_are_there_where_they_are_promised";

/// What the kernel says only when something broke.
const KERNEL_FAULTS: &[&str] = &["Kernel panic", "BUG:", "Oops:", "WARNING:", "rcu: INFO"];

/// Lines of the console that are shown when the machine failed.
const CONSOLE_LINES: usize = 40;

/// Writes the files that programs left, and nothing else, into `dir`.
///
/// # Errors
/// Those of the file system.
pub(super) fn save_files(dir: &Path, files: &BTreeMap<String, String>) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// What the machine came to; the note counts tests and programs.
pub(super) fn judge(jobs: &[Job], run: &Run) -> Outcome {
    let mut ran = RanList::default();
    let mut faults = Vec::new();
    for job in jobs {
        let name = &job.program.name;
        let Some(one) = run.transcript.runs().iter().find(|one| one.name == *name) else {
            faults.push(format!("{name}: the machine did not run it"));
            continue;
        };
        let (what, mut wrong) = match &job.judge {
            Judge::Tests(prefix) => {
                let (tests, wrong) = judge_tests(prefix, one);
                ran.extend(tests.entries().iter().cloned());
                (format!("{} tests", tests.entries().len()), wrong)
            }
            Judge::Says(words) => (format!("said {words:?}"), judge_words(words, one)),
        };
        match one.end {
            Some((End::Exit(0), time)) if wrong.is_empty() => {
                println!("vm: {name}: {what}, {:.1} s", time.as_secs_f64());
            }
            Some((End::Exit(_), _)) if !wrong.is_empty() => {}
            Some((end, _)) => wrong.push(end.to_string()),
            None => wrong.push("it had not ended when the machine stopped".to_owned()),
        }
        if !wrong.is_empty() {
            faults.extend(wrong.iter().map(|fault| format!("{name}: {fault}")));
            faults.push(format!("output of {name}:\n{}", one.lines.join("\n")));
        }
    }
    if ran.find(PROOF) != [ran::Outcome::Ok] {
        faults.push(format!("nothing shows that there are protection keys: {PROOF} did not pass"));
    }
    faults.extend(machine(run));
    let passed = ran.count(ran::Outcome::Ok);
    let failed = ran.count(ran::Outcome::Failed);
    let note = format!("{passed} passed, {failed} failed");
    Outcome { ran, note, faults }
}

/// The tests of one binary, and what is wrong with them or their output.
fn judge_tests(prefix: &str, run: &transcript::Run) -> (RanList, Vec<String>) {
    let mut parser = Parser::new([(run.name.clone(), prefix.to_owned())].into());
    parser.binary(&run.name);
    run.lines.iter().for_each(|line| parser.line(line));
    let (tests, mut faults) = parser.finish();
    faults.extend(tests.faults());
    if tests.entries().is_empty() {
        faults.push("it ran no test".to_owned());
    }
    (tests, faults)
}

/// What a program should have said one of, and has said none of.
fn judge_words(words: &[&str], run: &transcript::Run) -> Vec<String> {
    let said = |words: &&str| run.lines.iter().any(|line| line.contains(*words));
    match words.iter().any(said) {
        true => Vec::new(),
        false => vec![format!("it did not say `{}`", words.join("` or `"))],
    }
}

/// What is wrong with the machine itself.
fn machine(run: &Run) -> Vec<String> {
    let mut faults = run.transcript.faults();
    let lines: Vec<_> = run.console.lines().map(str::trim_end).collect();
    let broke = |line: &&&str| KERNEL_FAULTS.iter().any(|word| line.contains(word));
    faults.extend(lines.iter().find(broke).map(|line| format!("the kernel said: {line}")));
    if !run.succeeded {
        faults.push("the emulator failed, or was killed at its limit of time".to_owned());
    }
    if !faults.is_empty() {
        let last = &lines[lines.len().saturating_sub(CONSOLE_LINES)..];
        faults.push(format!("end of the kernel's console:\n{}", last.join("\n")));
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use partywall_vm::frame::Frame;
    use partywall_vm::manifest::Program;
    use partywall_vm::transcript::Transcript;

    use super::*;

    const GOOD: &str = r#"{"begin":"unit"}
{"text":"running 1 test"}
{"text":"test machine::tests::all_protection_keys_are_there_where_they_are_promised ... ok"}
{"text":"test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"}
{"end":{"name":"unit","end":{"exit":0},"time":{"secs":1,"nanos":0}}}
{"done":1}"#;

    fn outcome(lines: &str, console: &str, succeeded: bool) -> Outcome {
        let mut transcript = Transcript::default();
        lines.lines().for_each(|line| transcript.line(line));
        let program = Program {
            name: "unit".into(),
            path: "/bin/unit".into(),
            limit: Duration::from_secs(1),
            arguments: Vec::new(),
            variables: Vec::new(),
            leaves: Vec::new(),
        };
        let job = Job { program, judge: Judge::Tests("vm::unit".into()) };
        judge(&[job], &Run { transcript, console: console.into(), succeeded })
    }

    #[test]
    fn a_good_run_has_no_faults() {
        let good = outcome(GOOD, "[    1.0] random: crng init done\n", true);
        assert_eq!(good.faults, [""; 0]);
        assert_eq!(good.note, "1 passed, 0 failed");
        assert!(good.check().is_ok());
        assert_eq!(good.ran.entries()[0].0, format!("vm::unit::{PROOF}"));
    }

    #[test]
    fn tests_that_fail_are_named_and_their_output_is_shown() {
        let edits = [
            ("promised ... ok", "promised ... FAILED", "promised failed"),
            ("promised ... ok", "promised ... ignored", "never skipped"),
            (r#""exit":0"#, r#""signal":11"#, "unit: signal 11"),
            (r#""exit":0"#, r#""exit":101"#, "unit: exit code 101"),
            (r#""exit":0"#, r#""limit":120"#, "killed after 120 s"),
            (r#""exit":0"#, r#""open":0"#, "holds its output open"),
            ("all_protection", "no_protection", "nothing shows"),
            ("unit", "other", "did not run it"),
            ("test result", "Segmentation fault", "no `test result:` line"),
        ];
        for (from, to, why) in edits {
            let bad = outcome(&GOOD.replace(from, to), "", true);
            assert!(bad.faults.iter().any(|f| f.contains(why)), "{why}: {:?}", bad.faults);
            assert!(bad.check().is_err());
        }
        let none = GOOD.lines().filter(|line| !line.contains(PROOF)).collect::<Vec<_>>();
        let none = none.join("\n").replace("1 passed", "0 passed");
        assert!(outcome(&none, "", true).faults.contains(&"unit: it ran no test".to_owned()));
    }

    #[test]
    fn a_program_that_does_not_say_what_it_should_is_a_fault() {
        let run = |text: &str| {
            let mut transcript = Transcript::default();
            let frames = [Frame::Begin("up".into()), Frame::Text(text.into())];
            frames.iter().for_each(|frame| transcript.line(&frame.to_string()));
            judge_words(&["gate  protection-keys", "gate  x"], &transcript.runs()[0])
        };
        assert_eq!(run("web  test  gate  protection-keys"), [""; 0]);
        assert_eq!(run("web  test  gate  x"), [""; 0]);
        let missing = "it did not say `gate  protection-keys` or `gate  x`";
        assert_eq!(run("web  test  ring  protection-keys"), [missing]);
    }

    #[test]
    fn a_machine_that_breaks_is_a_fault_whatever_the_tests_said() {
        assert_eq!(outcome(GOOD, "", false).faults.len(), 2);
        let panic = outcome(GOOD, "[ 3.1] Kernel panic - not syncing\r\n", true).faults;
        assert!(panic[0].contains("Kernel panic") && panic[1].contains("console"), "{panic:?}");
        let early = outcome(GOOD.rsplit_once('\n').unwrap().0, "", true).faults;
        assert!(early[0].contains("ends after unit"), "{early:?}");
        let within = outcome(&GOOD[..GOOD.find("\n{\"end").unwrap()], "", true).faults;
        assert!(within.iter().any(|f| f.contains("had not ended")), "{within:?}");
    }
}
