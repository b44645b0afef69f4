//! Ordering pairs are labelled on both sides and proved by a loom test.
//!
//! A plain comment `SYNC(label)` stands at each side of a pair: one at the Release, one at the
//! Acquire. A loom test covers the label when its name contains it, other characters than letters
//! and digits as `_`, or when a comment in or above it says `covers SYNC(label)`. Only the tests
//! that the loom step runs count.

use std::collections::BTreeMap;

use super::{Tree, lex};
use crate::steps::LOOM;

/// Crates whose pairs need no loom test: nothing is built on what they share.
const WITHOUT_LOOM: &[&str] = &["tools/bench/"];

/// Lines after a comment in which its statement may end.
const STATEMENT: usize = 8;

#[derive(Default)]
struct Label {
    places: Vec<String>,
    needs_loom: bool,
    releases: bool,
    acquires: bool,
}

struct LoomTest {
    name: String,
    covers: Vec<String>,
}

/// Every label has both sides and a loom test; no loom test covers a label that is gone.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut labels = BTreeMap::<String, Label>::new();
    let mut tests = Vec::new();
    for (file, source) in tree.rust() {
        if !["crates/", "tools/"].iter().any(|dir| file.path.starts_with(dir)) {
            continue;
        }
        if LOOM.iter().any(|package| file.path.starts_with(&sources(package))) {
            tests.extend(loom_tests(source));
        }
        for comment in &source.comments {
            if comment.is_doc() || comment.text.contains("covers SYNC(") {
                continue;
            }
            for name in names(&comment.text) {
                let label = labels.entry(name.to_owned()).or_default();
                let line = source.line(comment.start);
                label.needs_loom |= !WITHOUT_LOOM.iter().any(|dir| file.path.starts_with(dir));
                label.places.push(format!("{}:{line}", file.path));
                let said = format!("{} {}", comment.text, statement(source, line)).to_lowercase();
                let says = |words: [&str; 3]| words.iter().any(|word| said.contains(word));
                label.releases |= says(["release", "acqrel", "seqcst"]);
                label.acquires |= says(["acquire", "acqrel", "seqcst"]);
            }
        }
    }
    let mut faults = Vec::new();
    for (name, label) in &labels {
        let fault = |what: &str| format!("SYNC({name}) {what} ({})", label.places.join(", "));
        if label.places.len() < 2 {
            faults.push(fault("stands at one place only; the other side is missing"));
        } else if !label.releases {
            faults.push(fault("has no Release side: no comment or its statement says so"));
        } else if !label.acquires {
            faults.push(fault("has no Acquire side: no comment or its statement says so"));
        }
        if label.needs_loom && !tests.iter().any(|test| test.covers(name)) {
            faults.push(fault("is covered by no loom test"));
        }
    }
    for test in &tests {
        let stale = test.covers.iter().filter(|name| !labels.contains_key(*name));
        faults
            .extend(stale.map(|name| format!("{} covers SYNC({name}), which is gone", test.name)));
    }
    faults
}

/// Directory of a package's library.
fn sources(package: &str) -> String {
    format!("crates/{}/src/", package.trim_start_matches("partywall-"))
}

impl LoomTest {
    fn covers(&self, label: &str) -> bool {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let in_name: String = label.chars().map(plain).collect();
        let edge = |rest: &str| rest.is_empty() || rest.starts_with('_');
        self.covers.iter().any(|name| name == label)
            || self.name.match_indices(&in_name).any(|(at, _)| {
                self.name[..at].ends_with('_') && edge(&self.name[at + in_name.len()..])
            })
    }
}

/// Labels in a comment.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split("SYNC(").skip(1).filter_map(|rest| rest.split_once(')')).map(|(name, _)| name.trim())
}

/// The code on a line and the statement that starts after it, up to its end.
fn statement(source: &lex::Source, line: usize) -> String {
    let mut text = String::new();
    for code in source.code.lines().skip(line - 1).take(STATEMENT).map(str::trim) {
        text.push_str(code);
        text.push(' ');
        if code.ends_with([';', '{', '}']) {
            break;
        }
    }
    text
}

/// Functions marked `#[test]` whose names start with `loom_`, with what their comments cover.
fn loom_tests(source: &lex::Source) -> Vec<LoomTest> {
    let words: Vec<_> = source.words().collect();
    let mut tests = Vec::new();
    for pair in words.windows(2) {
        let [(at, "fn"), (_, name)] = *pair else { continue };
        if !name.starts_with("loom_") {
            continue;
        }
        let start = source.code[..at].rfind(['}', ';', '{']).map_or(0, |end| end + 1);
        if !source.code[start..at].contains("#[test]") {
            continue;
        }
        let end = body_end(&source.code, at);
        let inside = |c: &&lex::Comment| c.start >= start && c.start < end;
        let covers = source
            .comments
            .iter()
            .filter(inside)
            .filter_map(|comment| comment.text.split_once("covers SYNC("))
            .flat_map(|(_, rest)| names_after(rest))
            .collect();
        tests.push(LoomTest { name: name.to_owned(), covers });
    }
    tests
}

/// The label that `rest` starts with, and those after it.
fn names_after(rest: &str) -> Vec<String> {
    let first = rest.split_once(')').map(|(name, _)| name.trim());
    first.into_iter().chain(names(rest)).map(str::to_owned).collect()
}

/// Offset behind the block that starts after `at`.
fn body_end(code: &str, at: usize) -> usize {
    let mut depth = 0;
    for (offset, c) in code[at..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + offset + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISH: &str = "//! Protocol: SYNC(ring.head) in docs is no side.
fn publish() {
    // SYNC(ring.publish)
    head.store(1, Ordering::Release);
}
";
    const CONSUME: &str = "fn consume() {
    // SYNC(ring.publish): pairs with publish
    let head = unsafe { (*p).load(Ordering::Acquire) };
}
";

    fn faults(parts: &[&str]) -> Vec<String> {
        check(&Tree::of(&[("crates/shm/src/ring.rs", &parts.concat())]))
    }

    #[test]
    fn a_pair_with_a_loom_test_passes() {
        let by_name = "#[test]\nfn loom_ring_publish_twice() { go(); }\n";
        let by_comment = "// covers SYNC(ring.publish)\n#[test]\nfn loom_all() { go(); }\n";
        let inside = "#[test]\nfn loom_all() {\n    // covers SYNC(ring.publish)\n    go();\n}\n";
        for test in [by_name, by_comment, inside] {
            assert_eq!(faults(&[PUBLISH, CONSUME, test]), [""; 0]);
        }
    }

    #[test]
    fn a_missing_side_or_order_fails() {
        let test = "#[test]\nfn loom_ring_publish() {}\n";
        assert!(faults(&[PUBLISH, test])[0].contains("one place only"));
        assert!(faults(&[PUBLISH, PUBLISH, test])[0].contains("no Acquire side"));
        assert!(faults(&[CONSUME, CONSUME, test])[0].contains("no Release side"));
    }

    #[test]
    fn an_uncovered_label_fails() {
        let not_a_test = "fn loom_ring_publish() {}\n";
        let longer = "#[test]\nfn loom_ring_published() {}\n";
        let elsewhere =
            "#[test]\nfn loom_all() {}\nfn f() {\n    // covers SYNC(ring.publish)\n}\n";
        for test in ["", not_a_test, longer, elsewhere] {
            let found = faults(&[PUBLISH, CONSUME, test]);
            assert_eq!(found.len(), 1, "{test}: {found:?}");
            assert!(found[0].contains("covered by no loom test"));
        }
        let pair = PUBLISH.to_owned() + CONSUME;
        let test = "#[test]\nfn loom_ring_publish() {}\n";
        let no_step_runs_it = [("crates/shm/src/ring.rs", &*pair), ("crates/cli/src/x.rs", test)];
        assert_eq!(check(&Tree::of(&no_step_runs_it)).len(), 1);
        assert_eq!(check(&Tree::of(&[("tools/bench/src/x.rs", &pair)])), [""; 0]);
    }

    #[test]
    fn covering_a_label_that_is_gone_fails() {
        let test = "#[test]\nfn loom_a() {\n    // covers SYNC(ring.publish), SYNC(x.y)\n}\n";
        let found = faults(&[PUBLISH, CONSUME, test]);
        assert_eq!(found, ["loom_a covers SYNC(x.y), which is gone"]);
    }
}
