//! `partywall ps` beside a service that is called now and then: an instance is listed, called or not, and
//! who holds a link to it is the kernel's word.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::service::{Reflection, Running};
use crate::{LONG, begin, lines, text};

fn ps(running: &Running, form: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(["ps", form, "--socket"]).arg(&running.host.socket).stdin(Stdio::null());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

/// The process that serves, which is this one.
fn server(running: &Running) -> Value {
    let all = lines(&ps(running, "--json"));
    let here = |row: &&Value| row["pid"] == std::process::id();
    let mut found = all.iter().filter(here);
    let row = found.next().unwrap_or_else(|| panic!("{all:?}"));
    assert!(found.next().is_none(), "{all:?}");
    row.clone()
}

#[test]
fn an_instance_is_listed_before_the_first_call_and_after_the_last() {
    let running = Running::start(Reflection::V1);
    let row = server(&running);
    assert_eq!((&row["state"], &row["serves"][0]), (&"serving".into(), &"test".into()), "{row}");
    assert_eq!([&row["links"], &row["callers"], &row["memory"]], [0, 0, 0], "{row}");
    assert_eq!(row["security"]["isolation"], "process", "{row}");
    let wide = ps(&running, "--wide");
    assert!(wide.lines().any(|line| line.contains("  serving ")), "{wide}");

    let call = || begin(&running, "test", &["test.Kinds/Wait", "--data", "{}"]);
    let mut callers = [call(), call()];
    for _ in &callers {
        assert_eq!(running.calls.recv_timeout(LONG), Ok("begun"));
    }
    let row = server(&running);
    assert_eq!([&row["links"], &row["callers"]], [2, 2], "{row}");
    assert_eq!((&row["state"], row["memory"].as_u64()), (&"linked".into(), Some(4 * (256 << 10))));
    let all = lines(&ps(&running, "--json"));
    for caller in &callers {
        let row = all.iter().find(|row| row["pid"] == caller.id()).unwrap();
        assert_eq!((&row["calls"][0], &row["security"]), (&"test".into(), &Value::Null), "{row}");
    }

    callers[0].kill().unwrap();
    callers[0].wait().unwrap();
    until(&running, 1);
    callers[1].kill().unwrap();
    callers[1].wait().unwrap();
    until(&running, 0);
    assert_eq!(server(&running)["serves"][0], "test");
}

/// Waits until so many links refer to the instance; each is another process's.
fn until(running: &Running, links: u32) {
    let begin = Instant::now();
    loop {
        let row = server(running);
        assert_eq!(row["links"], row["callers"], "{row}");
        if row["links"] == links {
            return;
        }
        assert!(begin.elapsed() < LONG, "{row}");
    }
}
