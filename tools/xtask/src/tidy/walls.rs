//! Paths that no file of some folders may name.

use super::Tree;

struct Wall {
    folders: &'static [&'static str],
    /// Files and folders among them that may.
    except: &'static [&'static str],
    paths: &'static [&'static str],
    fault: &'static str,
}

const WALLS: &[Wall] = &[
    // Where processes share memory: so loom sees them.
    Wall {
        folders: &["crates/abi/", "crates/shm/"],
        except: &["crates/abi/src/sync.rs", "crates/abi/src/sync/"],
        paths: &["core::sync::atomic", "std::sync::atomic"],
        fault: "atomics come from abi::sync here, not from core or std",
    },
    // A call of a link is a method, metadata, message bytes and a status.
    Wall {
        folders: &["crates/partywall/src/link/", "crates/partywall/src/link.rs"],
        except: &[],
        paths: &[
            "http",
            "http_body",
            "http_body_util",
            "tonic::body",
            "crate::dispatch",
            "crate::http_calls",
        ],
        fault: "types of HTTP are for crate::http_calls, not for a link",
    },
];

/// No file names what is behind a wall.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        let path = file.path.as_str();
        let inside = |list: &[&str]| list.iter().any(|prefix| path.starts_with(prefix));
        for wall in WALLS.iter().filter(|wall| inside(wall.folders) && !inside(wall.except)) {
            let uses = source.uses().into_iter();
            let imported = uses.filter(|(_, path)| wall.paths.iter().any(|p| reaches(path, p)));
            let mut lines: Vec<_> = imported.map(|(offset, _)| source.line(offset)).collect();
            let spelled = source.code.lines().enumerate();
            let spelled =
                spelled.filter(|(_, line)| wall.paths.iter().any(|path| spells(line, path)));
            lines.extend(spelled.map(|(index, _)| index + 1));
            lines.sort_unstable();
            lines.dedup();
            let fault = wall.fault;
            faults.extend(lines.into_iter().map(|line| format!("{path}:{line}: {fault}")));
        }
    }
    faults
}

/// Whether an import is a path, is inside it, or makes it reachable by another name.
fn reaches(import: &str, path: &str) -> bool {
    let import = import.trim_start_matches("::");
    let import = import.strip_suffix("::*").or(import.strip_suffix("::self")).unwrap_or(import);
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    inside(import, path) || inside(path, import)
}

/// Whether a line of code has something of a path in it.
fn spells(line: &str, path: &str) -> bool {
    let is_word = |text: &str| text.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(path).any(|(at, _)| {
        let before = &line[..at];
        let is_end_of_another = is_word(before.strip_suffix("::").unwrap_or(before));
        line[at + path.len()..].starts_with("::") && !is_end_of_another
    })
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
        let good = "use tonic::{Code, Status};\nuse crate::wire;\nfn f() { http_calls::f() }\n";
        assert_eq!(faults("crates/partywall/src/link/sender.rs", good), [""; 0]);
        assert_eq!(faults("crates/partywall/src/channel.rs", "use http::Uri;"), [""; 0]);
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

    #[test]
    fn types_of_http_in_a_link_fail() {
        for text in [
            "use http::HeaderMap;",
            "use tonic::{Code, body::Body};",
            "use http_body::Body as _;",
            "fn f(request: http::Request<()>) {}",
            "fn f(uri: &::http::Uri) {}",
            "type B = tonic::body::Body;",
            "use crate::http_calls::frame;",
        ] {
            for path in ["crates/partywall/src/link.rs", "crates/partywall/src/link/wake/gate.rs"] {
                assert_eq!(faults(path, text).len(), 1, "{text}");
            }
        }
    }
}
