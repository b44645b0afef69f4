//! Unsafe code stands in few files, each of which says why, and which ARCHITECTURE.md lists. Crates that
//! have none say `#![forbid(unsafe_code)]`, so that rustc looks after them.

use std::collections::BTreeSet;

use super::Tree;
use super::length::ARCHITECTURE;

/// What a file with unsafe code begins with, and what stands after it.
const HEAD: &str = "#![allow(unsafe_code, reason = \"";

const HEADING: &str = "## Unsafe files";

/// The files with `unsafe` in their code have its reason and are those of the list.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let listed = listed(tree);
    let mut faults = Vec::new();
    let mut found = BTreeSet::new();
    for (file, source) in tree.rust() {
        let path = file.path.as_str();
        let Some((offset, _)) = source.words().find(|(_, word)| *word == "unsafe") else {
            continue;
        };
        found.insert(path);
        let place = format!("{path}:{}", source.line(offset));
        if !file.text.lines().any(|line| line.starts_with(HEAD)) {
            faults.push(format!("{place}: the file must open with {HEAD}..\")]"));
        }
        if !listed.contains(path) {
            faults.push(format!("{place}: not listed in {ARCHITECTURE} under `{HEADING}`"));
        }
    }
    let stale = listed.difference(&found);
    faults.extend(stale.map(|path| {
        format!("{path} is listed in {ARCHITECTURE}, but there is no unsafe code in such a file")
    }));
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n`crates/shm/src/x.rs`\n## Unsafe files\n\n- `crates/shm/src/map.rs`: \
                        `mmap`\n\n## Next\n`crates/shm/src/y.rs`\n";

    const GOOD: &str = "#![allow(unsafe_code, reason = \"mmap\")]\n//! Maps.\nunsafe fn f() {}";

    fn faults(path: &str, code: &str) -> Vec<String> {
        check(&Tree::of(&[(ARCHITECTURE, PAGE), ("crates/shm/src/map.rs", GOOD), (path, code)]))
    }

    #[test]
    fn listed_files_and_files_without_unsafe_code_pass() {
        let words_alone = "//! unsafe\n#![deny(unsafe_code)]\nfn f() { \"unsafe\"; }";
        assert_eq!(faults("crates/shm/src/lib.rs", words_alone), [""; 0]);
    }

    #[test]
    fn an_unlisted_file_and_a_stale_list_fail() {
        let found = faults("crates/shm/src/y.rs", GOOD);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/shm/src/y.rs:3: not listed"), "{found:?}");
        for head in ["#![allow(unsafe_code)]", "fn f() {}"] {
            let tree =
                [(ARCHITECTURE, PAGE), ("crates/shm/src/map.rs", &format!("{head} unsafe {{}}"))];
            assert!(check(&Tree::of(&tree))[0].contains("must open with"), "{head}");
        }
        assert_eq!(check(&Tree::of(&[(ARCHITECTURE, PAGE)])).len(), 1);
        let safe = [(ARCHITECTURE, PAGE), ("crates/shm/src/map.rs", "fn f() {}")];
        assert_eq!(check(&Tree::of(&safe)).len(), 1);
    }
}
