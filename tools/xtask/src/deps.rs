//! `cargo xtask deps`: which crate of the workspace may depend on which.
//!
//! The table is the one of ARCHITECTURE.md. Normal and build dependencies must be in it; dev-dependencies
//! are free, but nothing at all may depend on `bench` or `xtask`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace::Workspace;

/// Each package and the packages it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("partywall-abi", &[]),
    ("partywall-build", &[]),
    ("partywall-call", &["partywall-abi"]),
    ("partywall-shm", &["partywall-abi"]),
    ("partywall-guest", &["partywall-abi"]),
    ("partywall-keys", &[]),
    ("partywall-domain", &["partywall-keys", "partywall-abi"]),
    ("partywall-fn", &[]),
    ("partywall-trust", &[]),
    (
        "partywall-functions",
        &["partywall-fn", "partywall-trust", "partywall-shm", "partywall-keys", "partywall-abi"],
    ),
    ("partywall-coordinator", &["partywall-shm", "partywall-trust", "partywall-abi"]),
    (
        "partywall",
        &["partywall-shm", "partywall-trust", "partywall-call", "partywall-guest", "partywall-abi"],
    ),
    (
        "partywall-fn-host",
        &["partywall", "partywall-functions", "partywall-trust", "partywall-build"],
    ),
    (
        "partywall-cli",
        &[
            "partywall",
            "partywall-coordinator",
            "partywall-domain",
            "partywall-fn-host",
            "partywall-functions",
            "partywall-trust",
            "partywall-build",
            "partywall-workload",
            "partywall-shm",
            "partywall-abi",
        ],
    ),
    (
        "partywall-workload",
        &["partywall-coordinator", "partywall-shm", "partywall-trust", "partywall-abi"],
    ),
];

/// Packages that may depend on anything, because no library depends on them.
const LEAVES: &[&str] = &[
    "partywall-attacks",
    "partywall-bench",
    "partywall-testkit",
    "xtask",
    "partywall-interop",
    "partywall-stubs-tests",
    "partywall-system-tests",
    "partywall-engine-tests",
    "partywall-vm",
    "examples",
    "camera",
    "telemetry",
    "wordcount",
];

/// Packages that nothing depends on, not even for its tests.
const UNTOUCHABLE: &[&str] = &["partywall-bench", "xtask"];

/// Crates from outside that a package must not link, and why.
const FORBIDDEN_OUTSIDE: &[(&str, &[&str], &str)] = &[
    ("partywall-abi", ASYNC, "abi is bytes and rules, without I/O"),
    ("partywall-shm", ASYNC, "async belongs in partywall, where the rings meet a runtime"),
    ("partywall-call", ASYNC, "the protocol of calls is without I/O"),
    ("partywall-call", &["http", "tonic"], "the protocol of calls knows no HTTP"),
    ("partywall-guest", ASYNC, "a call gate has no runtime behind it"),
    ("partywall-guest", &["object", "rustix"], "loading programs is the launcher's work"),
    ("partywall-functions", ASYNC, "dispatcher and workers have no runtime behind them"),
    ("partywall-domain", ASYNC, "a call gate has no runtime behind it"),
    ("partywall-domain", &["tonic", "prost"], "domain knows no RPC"),
];

const ASYNC: &[&str] = &["tokio", "async-std", "smol", "async-io"];

/// Sentences for the edges somebody is most likely to add.
const REASONS: &[(&str, &str, &str)] = &[
    ("partywall-domain", "partywall", "domain knows no RPC"),
    (
        "partywall",
        "partywall-domain",
        "a user's program links guest; the loader, the filter and the gate are the launcher's",
    ),
    (
        "partywall-coordinator",
        "partywall-domain",
        "the coordinator decides and others enforce, so it links no domain code",
    ),
    (
        "partywall",
        "partywall-coordinator",
        "the coordinator is another process; partywall reaches it by messages (tests may start one)",
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Build,
    Dev,
}

/// Runs the check and prints what it looked at.
///
/// # Errors
/// When an edge is not allowed.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let (edges, faults) = check(&workspace.metadata)?;
    if !faults.is_empty() {
        bail!("forbidden dependencies: {}\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("deps: {edges} dependencies between crates, all allowed");
    Ok(())
}

/// Number of edges inside the workspace, and one sentence per fault.
fn check(metadata: &Value) -> Result<(usize, Vec<String>)> {
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let name = |value: &Value| value["name"].as_str().map(str::to_owned).context("no name");
    let names: BTreeSet<String> = packages.iter().map(name).collect::<Result<_>>()?;
    ensure!(!names.is_empty(), "the workspace has no packages");
    let mut faults = Vec::new();
    let mut edges = 0;
    for package in packages {
        let from = name(package)?;
        if !LEAVES.contains(&from.as_str()) && allowed(&from).is_none() {
            faults.push(format!(
                "{from} is in no table: say in ARCHITECTURE.md and in xtask what it may depend on"
            ));
            continue;
        }
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let to = name(dependency)?;
            let kind = match dependency["kind"].as_str() {
                None => Kind::Normal,
                Some("build") => Kind::Build,
                Some("dev") => Kind::Dev,
                Some(other) => bail!("unknown dependency kind {other}"),
            };
            let fault = if names.contains(&to) {
                edges += 1;
                inside(&from, &to, kind)
            } else {
                outside(&from, &to, kind)
            };
            faults.extend(fault);
        }
    }
    Ok((edges, faults))
}

fn allowed(package: &str) -> Option<&'static [&'static str]> {
    ALLOWED.iter().find(|(name, _)| *name == package).map(|(_, to)| *to)
}

fn inside(from: &str, to: &str, kind: Kind) -> Option<String> {
    if UNTOUCHABLE.contains(&to) {
        return Some(format!("{from} -> {to}: nothing may depend on {to}"));
    }
    if kind == Kind::Dev {
        return None;
    }
    let allowed = allowed(from)?;
    if allowed.contains(&to) {
        return None;
    }
    let reason = REASONS.iter().find(|(f, t, _)| *f == from && *t == to).map_or_else(
        || {
            let list = if allowed.is_empty() { "nothing here".into() } else { allowed.join(", ") };
            format!("{from} may depend on {list}")
        },
        |(_, _, reason)| (*reason).to_owned(),
    );
    Some(format!("{from} -> {to}: {reason}"))
}

fn outside(from: &str, to: &str, kind: Kind) -> Option<String> {
    if kind != Kind::Normal {
        return None;
    }
    let rule = FORBIDDEN_OUTSIDE.iter().find(|(f, list, _)| *f == from && list.contains(&to))?;
    Some(format!("{from} -> {to}: {}", rule.2))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A package with its dependencies and their kinds.
    type Package<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)]);

    fn faults(packages: &[Package]) -> Vec<String> {
        let packages: Vec<_> = packages
            .iter()
            .map(|(name, dependencies)| {
                let list: Vec<_> = dependencies
                    .iter()
                    .map(|(name, kind)| json!({ "name": name, "kind": kind }))
                    .collect();
                json!({ "name": name, "dependencies": list })
            })
            .collect();
        check(&json!({ "packages": packages })).unwrap().1
    }

    #[test]
    fn edges_of_the_table_pass() {
        let found = faults(&[
            ("partywall-abi", &[("serde", None)]),
            ("partywall-shm", &[("partywall-abi", None), ("libc", None)]),
            ("partywall-coordinator", &[("partywall-shm", None), ("tokio", None)]),
            ("partywall", &[("partywall-shm", None), ("partywall-coordinator", Some("dev"))]),
            ("partywall-cli", &[("partywall-coordinator", None), ("partywall-shm", None)]),
            ("wordcount", &[("partywall", None)]),
            ("partywall-bench", &[("partywall-shm", None), ("wordcount", None)]),
            ("xtask", &[]),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn an_edge_outside_the_table_fails_with_its_reason() {
        let found = faults(&[
            ("partywall-abi", &[("partywall-shm", None)]),
            ("partywall-shm", &[]),
            ("partywall", &[("partywall-coordinator", None), ("partywall-domain", None)]),
            ("partywall-coordinator", &[("partywall", Some("build"))]),
            ("partywall-domain", &[]),
        ]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("may depend on nothing here"));
        assert!(found[1].contains("another process"));
        assert!(found[2].contains("a user's program links guest"));
        assert!(found[3].contains("partywall-coordinator may depend on partywall-shm"));
    }

    #[test]
    fn leaves_are_guarded() {
        let found = faults(&[
            ("partywall-bench", &[]),
            ("xtask", &[]),
            ("wordcount", &[]),
            ("partywall", &[("xtask", Some("dev"))]),
            ("partywall-interop", &[("partywall-bench", Some("dev"))]),
            ("partywall-cli", &[("wordcount", None)]),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("nothing may depend on xtask"));
        assert!(found[1].contains("nothing may depend on partywall-bench"));
        assert!(found[2].contains("partywall-cli -> wordcount"));
    }

    #[test]
    fn runtimes_stay_out_of_the_lower_crates_except_in_tests() {
        let good = faults(&[("partywall-shm", &[("tokio", Some("dev"))])]);
        assert_eq!(good, [""; 0]);
        let bad = faults(&[
            ("partywall-shm", &[("tokio", None)]),
            ("partywall-domain", &[("tonic", None)]),
        ]);
        assert_eq!(bad.len(), 2, "{bad:?}");
        assert!(bad[1].contains("knows no RPC"));
    }

    #[test]
    fn a_package_without_a_rule_fails() {
        assert!(faults(&[("partywall-new", &[])])[0].contains("in no table"));
        assert!(check(&json!({ "packages": [] })).is_err());
    }
}
