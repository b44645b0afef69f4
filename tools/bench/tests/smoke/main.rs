//! The whole path once: processes, samples, JSON, HTML.

mod functions;

use std::collections::HashSet;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partywall-bench"))
        .args(args)
        .env("TMPDIR", dir)
        .output()
        .expect("the bench starts")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("the bench has written it")
}

/// What the bench says of a run in `dir` that was told to write JSON.
fn json(dir: &Path) -> Value {
    serde_json::from_str(&read(&dir.join("run.json"))).expect("valid JSON")
}

/// The rows of a run, and the run's own figures.
fn measure(args: &[&str]) -> (Vec<Value>, Value) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("run.json");
    let output = bench(&[args, &["--json", file.to_str().expect("text")]].concat(), dir.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = json(dir.path());
    (file["rows"].as_array().expect("rows").clone(), file["run"].clone())
}

#[test]
fn a_short_run_measures_reports_and_cleans_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let [file, html] = ["run.json", "run.html"].map(|name| dir.path().join(name));
    let mut args = vec!["calls", "--quick", "--repeats", "1", "--sample-ms", "5", "--max", "1024"];
    args.extend(["--only", "pipe,ring-floor"]);
    args.extend(["--json", file.to_str().expect("text"), "--html", html.to_str().expect("text")]);
    let output = bench(&args, dir.path());
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("not run") && out.contains("ring-floor"), "{out}");

    let file = json(dir.path());
    assert!(file["machine"]["kernel"].is_string());
    let rows = file["rows"].as_array().expect("rows");
    for name in ["pipe", "ring-floor"] {
        for mode in ["latency", "pipelined"] {
            let of = |row: &&Value| {
                row["contender"] == name && row["mode"] == mode && row["placement"] == "same-core"
            };
            let row = rows.iter().find(of).unwrap_or_else(|| panic!("{name} {mode}: {err}"));
            assert_eq!(row["errors"], 0, "{row}");
            assert!(row["per_s"].as_f64().expect("a rate") > 0.0);
            assert_eq!(row["p50_ns"].is_number(), mode == "latency");
            assert!(row["near"].is_null() && row["op"].is_null() && row["clock"].is_null());
        }
    }
    let page = read(&html);
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"));
    assert!(!page.contains("<script"));
    for explained in ["lower is better", "higher is better", "two pipes, one each way", "near, far"]
    {
        assert!(page.contains(explained), "{explained}");
    }

    let left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("readable")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("partywall-bench-"))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn generated_stubs_and_opponents_echo_right() {
    let mut names = vec!["partywall-native", "partywall-tonic", "native-inline", "tonic-inline"];
    if cfg!(feature = "opponents") {
        names.extend(["iceoryx2", "rapace", "xrpc"]);
    }
    let only = names.join(",");
    let mut args = vec!["calls", "--quick", "--repeats", "1", "--sample-ms", "5", "--max", "32"];
    args.extend(["--no-containers", "--only", &only]);
    let (rows, run) = measure(&args);
    for name in names {
        let modes: HashSet<_> = rows
            .iter()
            .filter(|row| row["contender"] == name)
            .map(|row| {
                assert_eq!(row["errors"], 0, "{row} {run}");
                assert!(row["per_s"].as_f64().expect("a rate") > 0.0, "{row} {run}");
                row["mode"].as_str().expect("a mode")
            })
            .collect();
        let pipelined = !name.ends_with("-inline");
        assert!(modes.contains("latency"), "{name}: {run}");
        assert_eq!(modes.contains("pipelined"), pipelined, "{name}: {run}");
    }
}

#[test]
fn words_are_counted_right_by_everyone() {
    let mut names = vec!["pipe", "uds", "shm", "tonic-uds", "floor", "floor-reuse"];
    names.extend(["partywall-raw", "partywall-tonic"]);
    if has_domains() {
        names.push("domain");
    }
    let only = names.join(",");
    let args = ["words", "--no-containers", "--repeats", "1", "--sample-ms", "5", "--max", "1000"];
    let (rows, _) = measure(&[&args[..], &["--only", &only]].concat());
    let measured: HashSet<&str> = rows.iter().filter_map(|row| row["contender"].as_str()).collect();
    assert_eq!(measured, names.iter().copied().collect());
    // Two sizes; both operations under clock B, the total under clock A.
    assert_eq!(rows.len(), names.len() * 2 * 3);
    for row in &rows {
        assert_eq!(row["errors"], 0, "{row}");
        assert!(row["p50_ns"].as_f64().expect("a time") > 0.0, "{row}");
    }
    // Who connects does so while clock A runs.
    for name in ["uds", "tonic-uds", "partywall-raw", "partywall-tonic"] {
        let clocked = |row: &&Value| row["contender"] == name && row["clock"] == "A";
        for row in rows.iter().filter(clocked) {
            let (admission, whole) = (row["admission_ns"].as_f64(), row["p50_ns"].as_f64());
            assert!(admission.is_some_and(|ns| ns > 0.0) && admission < whole, "{row}");
        }
    }
}

#[test]
fn quick_run_end_is_no_hang() {
    let args = ["words", "--quick", "--seconds", "1", "--sample-ms", "3000", "--max", "100"];
    let begun = Instant::now();
    let (rows, run) = measure(&[&args[..], &["--only", "floor"]].concat());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!((&run["hangs"], &run["cut"]), (&Value::from(0), &Value::from(1)), "{run}");
    assert!(rows.iter().all(|row| row["errors"] == 0), "{rows:?}");
}

#[test]
fn a_strict_run_that_judges_nothing_is_no_success() {
    let dir = tempfile::tempdir().expect("a directory");
    // A pipe is in no target.
    let args = ["calls", "--only", "pipe", "--max", "32", "--repeats", "1", "--sample-ms", "1"];
    assert_eq!(bench(&args, dir.path()).status.code(), Some(0));
    let strict = [&args[..], &["--strict"]].concat();
    assert_eq!(bench(&strict, dir.path()).status.code(), Some(3));
}

#[test]
fn without_an_engine_targets_of_containers_are_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |more: &[&str]| {
        let args = ["calls", "--strict", "--repeats", "1", "--sample-ms", "1", "--max", "32"];
        let output = Command::new(env!("CARGO_BIN_EXE_partywall-bench"))
            .args(args)
            .args(["--only", "partywall-raw", "--json", "run.json"])
            .args(more)
            .env("TMPDIR", dir.path())
            .env("DOCKER_HOST", "unix:///no/such/engine.sock")
            .current_dir(dir.path())
            .output()
            .expect("the bench starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said, json(dir.path()))
    };
    let contained = |file: &Value| -> Vec<Value> {
        let targets = file["targets"].as_array().expect("targets").iter();
        let of = |target: &&Value| {
            let text = target["text"].as_str().expect("a text");
            text.contains("two containers") && target["bound"] != ""
        };
        let raw = |target: &&Value| target["text"].as_str().expect("a text").contains("raw (");
        targets.filter(of).filter(raw).map(|target| target["verdict"].clone()).collect()
    };
    let (code, said, file) = run(&[]);
    assert_eq!(contained(&file), ["fail", "fail"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("Nothing was measured in containers") && said.contains("docker"),
        "{said}"
    );
    assert!(file["rows"].as_array().expect("rows").iter().all(|row| row["place"] == "host"));
    // Who leaves them out misses none.
    let (code, said, file) = run(&["--no-containers"]);
    assert_eq!(contained(&file), ["not-run", "not-run"]);
    assert_eq!(code, Some(3));
    assert!(!said.contains("Nothing was measured in containers"), "{said}");
}

/// Whether this program is built once more, to run as domains: with the promised number of trials.
fn has_domains() -> bool {
    partywall_testkit::is_full()
}

#[test]
fn calls_between_domains_stand_beside_those_between_processes() {
    let mut names = vec!["call", "clock", "memcpy", "uds-epoll", "handoff-floor", "ring-raw"];
    names.extend(["ring-tonic", "native-inline"]);
    if has_domains() {
        names.extend(["gate", "domain-native", "domain-tonic"]);
    }
    let only = names.join(",");
    let mut args = vec!["domain", "--quick", "--repeats", "1", "--sample-ms", "5", "--only", &only];
    args.extend(["--max", "1048576"]);
    let (rows, run) = measure(&args);
    for name in names {
        let of_name: Vec<_> = rows.iter().filter(|row| row["contender"] == name).collect();
        assert!(!of_name.is_empty(), "{name} is missing: {run}");
        for row in of_name {
            let mode = row["mode"].as_str().expect("a mode");
            assert_eq!(row["errors"], 0, "{row} {run}");
            assert!(row["per_s"].as_f64().expect("a rate") > 0.0);
            // None where the time stamp counter does not tick evenly.
            assert!(row["one_way_cycles"].is_null() || mode == "loop", "{row}");
            assert_eq!(row["p50_ns"].is_number(), mode != "loop", "{row}");
            assert_eq!(row["rate"].is_number(), mode == "paced", "{row}");
        }
    }
    for (name, mode) in
        [("call", "loop"), ("call", "paced"), ("memcpy", "bulk"), ("clock", "latency")]
    {
        let there = rows.iter().any(|row| row["contender"] == name && row["mode"] == mode);
        assert!(there, "{name} {mode} is missing");
    }
}

#[test]
fn blocks_are_passed_right_by_everyone_and_memory_is_counted() {
    let mut names = vec!["tcp", "udp-reliable", "uds-default", "uds", "tonic-tcp", "tonic-uds"];
    names.extend(["memfd-floor", "seal-floor", "fill-floor"]);
    if cfg!(feature = "opponents") {
        names.push("iceoryx2");
    }
    let args = ["transfer", "--quick", "--repeats", "1", "--seconds", "300", "--sample-ms", "1"];
    let only = names.join(",");
    let more = ["--no-containers", "--max", "16777216", "--only", &only];
    let (rows, run) = measure(&[&args[..], &more].concat());
    for name in names {
        let of = |size: u64, clients: u64| {
            let of = |row: &&Value| {
                row["contender"] == name && row["size"] == size && row["clients"] == clients
            };
            rows.iter().find(of).unwrap_or_else(|| panic!("{name}, {size}, {clients}: {run}"))
        };
        for row in [of(4096, 1), of(1 << 20, 8), of(16 << 20, 1)] {
            assert_eq!(row["errors"], 0, "{row} {run}");
            assert!(row["p50_ns"].as_f64().expect("a time") > 0.0, "{row}");
            assert!(row["cpu_ns"].as_f64().expect("a time") > 0.0, "{row}");
            let small = row["size"] == 4096;
            assert_eq!(row["pss_ratio"].is_null(), small, "{row}");
            assert_eq!(row["socket_ratio"].is_null(), small, "{row}");
        }
        // A block for each side where it is copied; one where it is not.
        let memory = of(16 << 20, 1)["pss_ratio"].as_f64().expect("a ratio");
        let (least, most) = match name {
            "fill-floor" | "memfd-floor" => (0.99, 1.2),
            "tcp" | "udp-reliable" | "uds" | "uds-default" => (1.99, 2.2),
            "seal-floor" => (0.0, 2.2),
            // gRPC buffers what is on its way, and a pool of loans has room for more than one.
            _ => (1.0, 20.0),
        };
        assert!((least..most).contains(&memory), "{name}: {memory}");
    }
    assert!(!rows.iter().any(|row| row["clients"] == 64), "64 clients are for a full run");
}

#[test]
fn sealed_calls_and_connects_stand_beside_plain_ones() {
    let mut calls = vec!["ring-plain-tonic", "ring-sealed-tonic", "native-plain", "native-sealed"];
    calls.extend(["ring-signed-tonic", "ring-plain-raw", "ring-sealed-raw"]);
    calls.extend(["aead-floor", "sign-floor"]);
    calls.extend(["tonic-uds", "tonic-uds-tls", "tonic-tcp-mtls"]);
    if has_domains() {
        calls.extend(["gate-plain", "gate-sealed"]);
    }
    let mut connects = vec!["connect-plain", "connect-plain-second", "connect-sealed-first"];
    connects.extend(["connect-sealed-known", "connect-sealed-resumed"]);
    connects.extend(["handshake-first", "handshake-known", "handshake-resumed"]);
    let only = [&calls[..], &connects].concat().join(",");
    let args = ["sealed", "--quick", "--seconds", "60", "--repeats", "1", "--sample-ms", "2"];
    let (rows, run) = measure(&[&args[..], &["--only", &only]].concat());
    let of = |name: &str| -> Vec<&Value> {
        rows.iter().filter(|row| row["contender"] == name).collect()
    };
    for name in calls {
        let sizes: HashSet<u64> = of(name).iter().filter_map(|row| row["size"].as_u64()).collect();
        assert_eq!(sizes, HashSet::from([1, 4 << 10, 64 << 10]), "{name}: {run}");
        assert!(of(name).iter().all(|row| row["mode"] == "latency"), "{name}");
    }
    for &name in &connects {
        assert_eq!(of(name).len(), 1, "{name}: {run}");
        assert!(of(name)[0]["mode"] == "connect" && of(name)[0]["size"].is_null(), "{name}");
    }
    // One link that had to wait for its CPU may have taken as long as two at once.
    let is_difference =
        |row: &Value| row["contender"] == connects[1] || row["contender"] == connects[3];
    for row in &rows {
        assert_eq!(row["errors"], 0, "{row} {run}");
        let time = row["p50_ns"].as_f64().expect("a time");
        assert!(time > 0.0 || time == 0.0 && is_difference(row), "{row} {run}");
    }
}

/// In a shorter sample than this nothing need be rotated, and such a one has failed.
#[test]
fn certificates_are_replaced_while_calls_go_on() {
    let args = ["sealed", "--quick", "--seconds", "60", "--repeats", "1", "--sample-ms", "400"];
    let only = ["--only", "ring-sealed-rotating,ring-sealed-tonic", "--max", "4096"];
    let (rows, run) = measure(&[&args[..], &only].concat());
    for name in ["ring-sealed-rotating", "ring-sealed-tonic"] {
        let is_it = |row: &&Value| row["contender"] == name && row["size"] == 4096;
        let row = rows.iter().find(is_it).expect(name);
        assert_eq!(row["errors"], 0, "{row} {run}");
        assert!(row["p999_ns"].as_f64().expect("a time") > 0.0, "{row} {run}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let cases = [
        (vec!["calls", "--only", "nobody"], "nobody"),
        (vec!["words", "--max", "5"], "smallest"),
        (vec!["domain", "--only", "pipe"], "gate"),
        (vec!["sealed", "--only", "pipe"], "aead-floor"),
        (vec!["calls", "--repeats", "0"], "--repeats"),
        (vec!["frobnicate"], "frobnicate"),
    ];
    for (args, named) in cases {
        let output = bench(&args, dir.path());
        assert!(!output.status.success());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(err.contains(named), "{args:?}: {err}");
    }
}

/// Process ids whose command line mentions `text`.
fn running(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("readable").flatten();
    let ids = processes.map(|process| process.file_name().to_string_lossy().into_owned());
    ids.filter(|id| id.bytes().all(|digit| digit.is_ascii_digit()))
        .filter(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(text)
        })
        .collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(args: &[&str], dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_partywall-bench"))
        .args(args)
        .env("TMPDIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bench starts")
}

fn signal(id: &str, signal: Signal) {
    let id = Pid::from_raw(id.parse().expect("a number")).expect("not zero");
    kill_process(id, signal).expect("the process is there");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().to_str().expect("text").to_owned();
    let name = if cfg!(feature = "opponents") { "iceoryx2" } else { "pipe" };
    let mut bench = start(&["calls", "--only", name, "--sample-ms", "2000"], dir.path());
    until("samples start", || running(&here).len() == 2);
    signal(&bench.id().to_string(), Signal::INT);
    let status = bench.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert!(running(&here).is_empty(), "processes are left");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "files are left");
    let label = format!("pwb{}x", bench.id());
    let shared = std::fs::read_dir("/dev/shm").expect("readable").flatten();
    let left = shared.filter(|file| file.file_name().to_string_lossy().starts_with(&label));
    assert_eq!(left.count(), 0, "shared memory is left");
}

#[test]
fn children_do_not_outlive_a_killed_driver() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().to_str().expect("text").to_owned();
    let mut bench = start(&["calls", "--only", "ring-floor", "--sample-ms", "5000"], dir.path());
    until("samples start", || running(&here).len() == 2);
    bench.kill().expect("it runs");
    bench.wait().expect("it ends");
    until("the children end", || running(&here).is_empty());
}

#[test]
fn a_stuck_server_is_a_counted_hang() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().to_str().expect("text").to_owned();
    let file = dir.path().join("run.json");
    let mut args = vec!["words", "--only", "uds", "--max", "100", "--repeats", "1"];
    args.extend(["--no-containers", "--sample-ms", "1000", "--json", file.to_str().expect("text")]);
    let bench = start(&args, dir.path());
    let mut stopped = String::new();
    until("a server starts", || {
        let server = running("\"Server\"").into_iter().find(|id| running(&here).contains(id));
        server.inspect(|id| stopped.clone_from(id)).is_some()
    });
    signal(&stopped, Signal::STOP);
    let output = bench.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "a hang is a failure");
    let file = json(dir.path());
    assert_eq!(file["run"]["hangs"], 1, "{}", file["run"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("uds, 100 words") && said.contains("server"), "{said}");
    let rows = file["rows"].as_array().expect("rows");
    let broken: Vec<_> = rows.iter().filter(|row| row["errors"] == 1).collect();
    assert_eq!((rows.len(), broken.len()), (3, 1));
    assert!(broken[0]["p50_ns"].is_null());
    assert!(running(&here).is_empty(), "the stopped server is left");
}

#[test]
fn a_table_that_cannot_be_written_costs_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let html = dir.path().join("run.html");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full disk");
    let only = ["calls", "--quick", "--repeats", "1", "--sample-ms", "5", "--only", "pipe"];
    let output = Command::new(env!("CARGO_BIN_EXE_partywall-bench"))
        .args(only)
        .args(["--json", "/dev/full", "--html", html.to_str().expect("text")])
        .env("TMPDIR", dir.path())
        .stdout(full())
        .output()
        .expect("the bench starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("/dev/full: No space left on device"), "{err}");
    assert!(read(&html).contains("</html>"));
}
