//! `functions`, with few and short loops.

use std::collections::HashSet;

use serde_json::Value;

use super::measure;

/// The worker's pages are root's to look at.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn functions_are_called_and_stopped_by_everyone() {
    let mut names = vec!["partywall-worker", "partywall-worker-open", "ring-floor"];
    names.extend(["process-udp", "process-fair"]);
    names.extend(["process-zygote", "process-fork-exec-once", "sigalrm", "timer", "bare-signal"]);
    if is_root() {
        names.extend(["partywall-fn", "partywall-fn-timer"]);
    }
    if cfg!(feature = "opponents") {
        names.extend(["wasmtime", "wasmtime-memory"]);
    }
    let only = names.join(",");
    let args = ["functions", "--quick", "--repeats", "1", "--sample-ms", "5", "--only", &only];
    let (rows, run) = measure(&args);
    let measured: HashSet<&str> = rows.iter().filter_map(|row| row["contender"].as_str()).collect();
    // A part during which the cores move is dropped; a whole sample is so twice.
    let missing = names.iter().filter(|name| !measured.contains(**name)).count() as u64;
    assert!(run["dropped"].as_u64() >= Some(2 * missing), "{run}");
    for row in &rows {
        assert_eq!((&row["errors"], &row["size"]), (&0.into(), &500.into()), "{row}");
        let of_calls = row["measure"] == "calls";
        assert_eq!(row["load"].is_null(), !of_calls && row["measure"] != "neighbour", "{row}");
        if of_calls && row["calls"] != 0.0 {
            assert!(row["rtt_p50_ns"].as_f64() > row["p50_ns"].as_f64(), "{row}");
        }
    }
    let has = |contender: &str, key: &str, value: Value| {
        let is_it = |row: &Value| row["contender"] == contender && row[key] == value;
        rows.iter().any(is_it) || run["dropped"] != 0
    };
    assert!(has("process-fair", "mode", "cold".into()) && has("ring-floor", "load", 90.into()));
    assert!(
        has("sigalrm", "quantum_us", 20.into()) && has("process-udp", "measure", "memory".into())
    );
    if is_root() {
        for row in rows.iter().filter(|row| !row["within"].is_null()) {
            assert_eq!(
                (row["lost"].as_f64(), row["wrong_next"].as_f64()),
                (Some(0.0), Some(0.0)),
                "{row}"
            );
        }
        assert!(
            has("partywall-fn", "not_cold", 0.0.into())
                && has("partywall-fn", "within", "drop".into())
        );
    }
}
