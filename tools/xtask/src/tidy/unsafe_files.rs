//! Unsafe code stands in few files, each of which says so and is listed.

use std::collections::BTreeSet;

use super::architecture::FILE as ARCHITECTURE;
use super::{File, Tree, lex};

const HEADING: &str = "## Unsafe files";

/// Directories whose files hold no unsafe code at all.
const FORBIDDEN: &[&str] = &[
    "crates/abi/",
    "crates/trust/",
    "crates/partywall/",
    "crates/build/",
    "crates/coordinator/",
    "crates/cli/",
    "tools/testkit/",
    "tools/xtask/",
];

/// The one exception: backends of trust talk to hardware.
const EXEMPT: &str = "crates/trust/src/backend";

/// The `unsafe` in code, the head of each file and the list in ARCHITECTURE.md agree.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let listed = listed(tree);
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        let path = file.path.as_str();
        let first = source.words().find(|(_, word)| *word == "unsafe");
        let head = head(file, source);
        let Some((offset, _)) = first else {
            if head != Head::Silent {
                faults.push(format!("{path} allows unsafe_code but has none"));
            }
            if listed.contains(path) {
                faults.push(format!("{path} is listed in {ARCHITECTURE} but has no unsafe code"));
            }
            continue;
        };
        let place = format!("{path}:{}", source.line(offset));
        let forbidden = FORBIDDEN.iter().any(|dir| path.starts_with(dir));
        if forbidden && !path.starts_with(EXEMPT) {
            faults.push(format!("{place}: unsafe code is forbidden in this crate"));
            continue;
        }
        if head != Head::Reason {
            faults.push(format!(
                "{place}: the file must open with #![allow(unsafe_code, reason = \"..\")]"
            ));
        }
        if !listed.contains(path) {
            faults.push(format!("{place}: not listed in {ARCHITECTURE} under `{HEADING}`"));
        }
    }
    let missing = listed.iter().filter(|path| !tree.paths.contains(**path));
    faults.extend(missing.map(|path| format!("{path} is listed in {ARCHITECTURE} but missing")));
    faults
}

/// Paths in backticks that end in `.rs`, in the section about unsafe files.
fn listed(tree: &Tree) -> BTreeSet<&str> {
    let Some(file) = tree.file(ARCHITECTURE) else { return BTreeSet::new() };
    file.text
        .lines()
        .skip_while(|line| line.trim_end() != HEADING)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|word| word.ends_with(".rs"))
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Silent,
    NoReason,
    Reason,
}

/// What the inner attributes at the start of the file say about unsafe code.
fn head(file: &File, source: &lex::Source) -> Head {
    let mut at = 0;
    loop {
        at += source.code[at..].len() - source.code[at..].trim_start().len();
        let rest = &source.code[at..];
        let Some(end) = rest.strip_prefix("#![").and_then(|_| rest.find(']')) else {
            return Head::Silent;
        };
        let bare: String = rest[..end].split_whitespace().collect();
        if bare.starts_with("#![allow(unsafe_code") {
            let quoted = file.text[at..at + end].split('"').nth(1);
            let reason = bare.contains("unsafe_code,reason=")
                && quoted.is_some_and(|reason| !reason.trim().is_empty());
            return if reason { Head::Reason } else { Head::NoReason };
        }
        at += end + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "//! Maps memory.\n#![allow(unsafe_code, reason = \"mmap\")]\nunsafe fn f() {}";
    const PAGE: &str = "# A\n`crates/shm/src/x.rs`\n## Unsafe files\n\n- `crates/shm/src/map.rs`: \
                        `mmap`\n\n## Next\n`crates/shm/src/y.rs`\n";

    #[test]
    fn a_listed_file_with_its_reason_passes() {
        let tree = Tree::of(&[
            (ARCHITECTURE, PAGE),
            ("crates/shm/src/map.rs", GOOD),
            ("crates/shm/src/lib.rs", "//! unsafe\n#![deny(unsafe_code)]\nfn f() { \"unsafe\"; }"),
        ]);
        assert_eq!(check(&tree), [""; 0]);
    }

    #[test]
    fn an_unlisted_file_and_a_missing_reason_fail() {
        let map = "#![allow(unsafe_code)]\nunsafe fn f() {}";
        let late = "fn g() {}\n#[allow(unsafe_code, reason = \"x\")]\nunsafe fn f() {}";
        let empty = "#![allow(unsafe_code, reason = \" \")]\nunsafe fn f() {}";
        for text in [map, late, empty] {
            let found = check(&Tree::of(&[(ARCHITECTURE, PAGE), ("crates/shm/src/map.rs", text)]));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("must open with"));
        }
        let found = check(&Tree::of(&[
            (ARCHITECTURE, PAGE),
            ("crates/shm/src/map.rs", GOOD),
            ("crates/shm/src/y.rs", GOOD),
        ]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("crates/shm/src/y.rs:3: not listed"));
    }

    #[test]
    fn a_stale_list_fails() {
        assert_eq!(check(&Tree::of(&[(ARCHITECTURE, PAGE)])).len(), 1);
        let found = check(&Tree::of(&[
            (ARCHITECTURE, PAGE),
            ("crates/shm/src/map.rs", "#![allow(unsafe_code, reason = \"mmap\")]\nfn f() {}"),
        ]));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn some_crates_may_not_even_with_a_reason() {
        let page =
            "## Unsafe files\n- `crates/abi/src/a.rs`\n- `crates/trust/src/backend/tpm.rs`\n";
        let found = check(&Tree::of(&[
            (ARCHITECTURE, page),
            ("crates/abi/src/a.rs", GOOD),
            ("crates/trust/src/backend/tpm.rs", GOOD),
        ]));
        assert_eq!(found, ["crates/abi/src/a.rs:3: unsafe code is forbidden in this crate"]);
    }
}
