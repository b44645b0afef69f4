//! Where processes share memory, atomics come from `abi::sync` only, so that loom sees them.

use super::Tree;

const CRATES: &[&str] = &["crates/abi/", "crates/shm/"];

const FACADE: &[&str] = &["crates/abi/src/sync.rs", "crates/abi/src/sync/"];

/// No file of the two crates takes atomics from core or std, the facade aside.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        let path = file.path.as_str();
        let inside = |list: &[&str]| list.iter().any(|prefix| path.starts_with(prefix));
        if !inside(CRATES) || inside(FACADE) {
            continue;
        }
        let mut lines: Vec<_> = source
            .uses()
            .into_iter()
            .filter(|(_, path)| is_raw(path))
            .map(|(offset, _)| source.line(offset))
            .collect();
        let inline = |line: &str| {
            ["core::sync::atomic", "std::sync::atomic"].iter().any(|path| line.contains(path))
        };
        let spelled = source.code.lines().enumerate().filter(|(_, line)| inline(line));
        lines.extend(spelled.map(|(index, _)| index + 1));
        lines.sort_unstable();
        lines.dedup();
        faults.extend(lines.into_iter().map(|line| {
            format!("{path}:{line}: atomics come from abi::sync here, not from core or std")
        }));
    }
    faults
}

/// Whether an imported path is, or makes reachable, the atomics of core or std.
fn is_raw(path: &str) -> bool {
    let mut parts = path.trim_start_matches("::").split("::");
    matches!(parts.next(), Some("core" | "std"))
        && parts.next() == Some("sync")
        && matches!(parts.next(), None | Some("self" | "*" | "atomic"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn the_facade_and_other_crates_pass() {
        let raw = "use core::sync::atomic::AtomicU32;";
        assert_eq!(faults("crates/abi/src/sync.rs", raw), [""; 0]);
        assert_eq!(faults("crates/partywall/src/lib.rs", raw), [""; 0]);
        let good = "use std::sync::{Arc, Mutex as M};\nuse partywall_abi::sync::atomic::AtomicU32;\n\
                    // core::sync::atomic\nfn f() -> impl Fn() + use<> {}\n";
        assert_eq!(faults("crates/shm/src/ring.rs", good), [""; 0]);
    }

    #[test]
    fn every_way_to_the_raw_atomics_fails() {
        for text in [
            "use core::sync::atomic::AtomicU32;",
            "use ::std::sync::{Arc, atomic::{AtomicU32, Ordering}};",
            "use std::{fs, sync::atomic as a};",
            "use core::{sync::{self, Arc}};",
            "use std::sync as s;",
            "use std::sync::*;",
            "static X: std::sync::atomic::AtomicBool = f();",
        ] {
            let found = faults("crates/shm/src/ring.rs", &format!("\n{text}\n"));
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].starts_with("crates/shm/src/ring.rs:2: "));
        }
    }
}
