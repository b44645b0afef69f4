//! Ordering pairs are labelled on both sides, and shown to hold.
//!
//! A plain comment `SYNC(label)` stands at each side of a pair: one at the Release, one at the
//! Acquire, in assembly too. A loom test covers the label when its name contains it, other characters
//! than letters and digits as `_`, or when a comment in or above it says `covers SYNC(label)`. Only
//! the tests that the loom step runs count.
//!
//! In the crates of [`DESCRIBED`], whose pairs have a side in assembly or in the kernel, a label needs
//! no loom test but a row of a table in a module's `//!`: `| SYNC(label) | what pairs | shown by |`.
//! What the last cell has between backquotes are functions, tests as a rule. Every atomic operation
//! with an order there, other than relaxed, has a label.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tree, lex};
use crate::workspace::LOOM;

/// Crates whose pairs need no loom test: nothing is built on what they share.
const WITHOUT_LOOM: &[&str] = &["tools/bench/"];

/// Crates whose labels are described, and where no ordered operation is without one.
const DESCRIBED: &[&str] = &["crates/domain/src/", "crates/guest/src/"];

/// Orders that need a label.
const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Lines after a comment in which its statement may end, or before an order in which its label stands.
const STATEMENT: usize = 8;

#[derive(Default)]
struct Label {
    places: Vec<String>,
    needs_loom: bool,
    needs_row: bool,
    releases: bool,
    acquires: bool,
}

struct LoomTest {
    name: String,
    covers: Vec<String>,
}

/// A row that describes a label.
struct Row<'a> {
    place: String,
    label: &'a str,
    shown_by: &'a str,
}

/// Every label has both sides and is shown to hold; nothing is said of a label that is gone.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut labels = BTreeMap::<String, Label>::new();
    let mut tests = Vec::new();
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        if !["crates/", "tools/"].iter().any(|dir| file.path.starts_with(dir)) {
            continue;
        }
        if LOOM.iter().any(|package| file.path.starts_with(&sources(package))) {
            tests.extend(loom_tests(source));
        }
        if starts_with_any(&file.path, DESCRIBED) {
            rows.extend(described(&file.path, source));
            faults.extend(unlabelled(&file.path, source));
        }
        for comment in &source.comments {
            if comment.is_doc() || comment.text.contains("covers SYNC(") {
                continue;
            }
            let line = source.line(comment.start);
            let said = || format!("{} {}", comment.text, statement(source, line));
            note(&mut labels, &file.path, line, &comment.text, said);
        }
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with(".s")) {
        let comments = file.text.lines().enumerate().filter_map(|(index, line)| {
            line.split_once('#').map(|(_, comment)| (index + 1, comment))
        });
        for (line, comment) in comments {
            note(&mut labels, &file.path, line, comment, || comment.to_owned());
        }
    }
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
        if label.needs_row && !rows.iter().any(|row| row.label == name) {
            faults.push(fault("is described in no module: add a row to a table in its `//!`"));
        }
    }
    for test in &tests {
        let stale = test.covers.iter().filter(|name| !labels.contains_key(*name));
        faults
            .extend(stale.map(|name| format!("{} covers SYNC({name}), which is gone", test.name)));
    }
    let functions: BTreeSet<&str> = tree.rust().flat_map(|(_, source)| functions(source)).collect();
    for Row { place, label, shown_by } in &rows {
        let fault = |what: &str| format!("{place}: the row of SYNC({label}) {what}");
        if !labels.contains_key(*label) {
            faults.push(fault("describes a label that is gone"));
        }
        if shown_by.is_empty() {
            faults.push(fault("does not say by what it is shown"));
        }
        let gone = backquoted(shown_by).filter(|name| !functions.contains(name));
        faults.extend(gone.map(|name| fault(&format!("names `{name}`, which is no function"))));
    }
    faults
}

/// Writes down the labels of a comment; `said` is the comment with its statement.
fn note(
    labels: &mut BTreeMap<String, Label>,
    path: &str,
    line: usize,
    comment: &str,
    said: impl Fn() -> String,
) {
    for name in names(comment) {
        let said = said().to_lowercase();
        let says = |words: [&str; 3]| words.iter().any(|word| said.contains(word));
        let label = labels.entry(name.to_owned()).or_default();
        let described = starts_with_any(path, DESCRIBED);
        label.needs_row |= described;
        label.needs_loom |= !described && !starts_with_any(path, WITHOUT_LOOM);
        label.places.push(format!("{path}:{line}"));
        label.releases |= says(["release", "acqrel", "seqcst"]);
        label.acquires |= says(["acquire", "acqrel", "seqcst"]);
    }
}

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

/// The rows of a module's text that begin with a label.
fn described<'a>(path: &str, source: &'a lex::Source) -> Vec<Row<'a>> {
    let row = |comment: &'a lex::Comment| {
        let cells = comment.text.strip_prefix('!')?.trim().strip_prefix("| SYNC(")?;
        let (label, cells) = cells.split_once(") |")?;
        let (_, shown_by) = cells.trim().trim_end_matches('|').rsplit_once('|')?;
        let place = format!("{path}:{}", source.line(comment.start));
        Some(Row { place, label, shown_by: shown_by.trim() })
    };
    source.comments.iter().filter_map(row).collect()
}

/// Orders in a file's code, its tests and models aside, that no label stands at.
fn unlabelled(path: &str, source: &lex::Source) -> Vec<String> {
    let code: Vec<&str> = source.code.lines().collect();
    let tests = code.windows(2).position(|pair| {
        pair[0].starts_with("#[cfg(test)]") && pair[1].trim().starts_with("mod tests")
    });
    let models = code.iter().any(|line| line.starts_with("use loom::"));
    let code = &code[..if models { 0 } else { tests.unwrap_or(code.len()) }];
    let labelled: BTreeSet<usize> = source
        .comments
        .iter()
        .filter(|comment| !comment.is_doc() && names(&comment.text).next().is_some())
        .map(|comment| source.line(comment.start) - 1)
        .collect();
    let ordered = |line: &str| ORDERS.iter().any(|order| line.contains(&format!("::{order}")));
    let ends = |line: &str| line.trim_end().ends_with([';', '{', '}']);
    let has_label = |at: usize| {
        let above = (at.saturating_sub(STATEMENT)..at).rev().take_while(|line| !ends(code[*line]));
        labelled.contains(&at) || above.into_iter().any(|line| labelled.contains(&line))
    };
    (0..code.len())
        .filter(|at| ordered(code[*at]) && !has_label(*at))
        .map(|at| {
            format!("{path}:{}: an atomic operation with an order and no SYNC(label)", at + 1)
        })
        .collect()
}

/// The names of all functions of a file.
fn functions(source: &lex::Source) -> Vec<&str> {
    let words: Vec<_> = source.words().map(|(_, word)| word).collect();
    words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1]).collect()
}

/// What stands between backquotes.
fn backquoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
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

    const GATE: &str = "    # SYNC(gate.in): acquire\n    cmp eax, [rdi]\n";
    const OPEN: &str = "fn open() {
    // SYNC(gate.in)
    word
        .store(1, Ordering::Release);
}
";

    fn domain_faults(doc: &str, code: &str, assembly: &str) -> Vec<String> {
        check(&Tree::of(&[
            ("crates/domain/src/table.rs", &format!("{doc}\n{code}")),
            ("crates/domain/src/gate.s", assembly),
            ("crates/domain/tests/domain/gate.rs", "#[test]\nfn it_opens() {}\n"),
        ]))
    }

    #[test]
    fn a_pair_with_assembly_and_a_row_passes() {
        for shown in ["`it_opens`", "one writer; `it_opens`", "the exchange"] {
            let row = format!("//! | SYNC(gate.in) | two sides | {shown} |");
            assert_eq!(domain_faults(&row, OPEN, GATE), [""; 0]);
        }
    }

    #[test]
    fn a_row_that_is_missing_stale_or_empty_fails() {
        let row = |label, shown| format!("//! | SYNC({label}) | two sides | {shown} |");
        let cases = [
            ("//! Text.".to_owned(), "is described in no module"),
            (row("gate.in", ""), "does not say by what"),
            (row("gate.in", "`it_closes`"), "names `it_closes`, which is no function"),
            (format!("{}\n{}", row("gate.in", "x"), row("gate.out", "x")), "label that is gone"),
        ];
        for (doc, why) in cases {
            let found = domain_faults(&doc, OPEN, GATE);
            assert!(found.len() == 1 && found[0].contains(why), "{found:?}");
        }
        let row = row("gate.in", "x");
        let found = domain_faults(&row, OPEN, "    # SYNC(gate.in)\n");
        assert!(found.len() == 1 && found[0].contains("no Acquire side"), "{found:?}");
    }

    #[test]
    fn an_order_without_a_label_fails_outside_of_tests() {
        let row = "//! | SYNC(gate.in) | two sides | x |";
        let bare =
            "fn f() {\n    a.store(1, Ordering::Relaxed);\n    b.load(Ordering::SeqCst);\n}\n";
        let found = domain_faults(row, &format!("{OPEN}{bare}"), GATE);
        assert_eq!(
            found,
            ["crates/domain/src/table.rs:9: an atomic operation with an order and no \
             SYNC(label)"]
        );
        let after = "fn f() {\n    a(); // SYNC(gate.in)\n    b.load(Ordering::SeqCst);\n}\n";
        assert_eq!(domain_faults(row, &format!("{OPEN}{after}"), GATE).len(), 1);
        let tests = format!("{OPEN}#[cfg(test)]\nmod tests {{\n{bare}}}\n");
        assert_eq!(domain_faults(row, &tests, GATE), [""; 0]);
        let elsewhere = Tree::of(&[("crates/partywall/src/x.rs", bare)]);
        assert_eq!(check(&elsewhere), [""; 0]);
    }
}
