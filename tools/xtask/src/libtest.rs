//! Reads what `cargo test` prints: which binaries ran, and the result of each test.
//!
//! Every section opens with cargo's `Running .. (binary)` or `Doc-tests crate` line. The results
//! read line by line must add up to the `test result:` lines of the section; otherwise something
//! was missed and the section is reported as unreadable.

use std::collections::BTreeMap;

use crate::ran::{Outcome, RanList};

/// Sections seen so far.
#[derive(Debug)]
pub(crate) struct Parser {
    /// File name of each test binary, and what its tests' names start with.
    prefixes: BTreeMap<String, String>,
    sections: Vec<Section>,
}

#[derive(Debug)]
struct Section {
    source: Source,
    tests: Vec<(String, Outcome)>,
    /// A test whose name is printed and whose result is not yet, because it wrote a line itself.
    unfinished: Option<String>,
    /// Passed, failed and ignored tests by the section's own count; absent until it is printed.
    total: Option<[usize; 3]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Binary(String),
    Docs(String),
}

impl Parser {
    /// `prefixes` maps each test binary that must run to what its tests' names start with.
    pub(crate) fn new(prefixes: BTreeMap<String, String>) -> Self {
        Self { prefixes, sections: Vec::new() }
    }

    /// Says that the lines that follow are of this test binary, where cargo does not.
    pub(crate) fn binary(&mut self, file: &str) {
        self.section(Source::Binary(file.to_owned()));
    }

    fn section(&mut self, source: Source) {
        self.sections.push(Section { source, tests: Vec::new(), unfinished: None, total: None });
    }

    /// Takes one line of output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(source) = header(line) {
            self.section(source);
        } else if let Some(section) = self.sections.last_mut() {
            if let Some(total) = summary(line) {
                let sum = section.total.get_or_insert([0; 3]);
                sum.iter_mut().zip(total).for_each(|(sum, n)| *sum += n);
            } else if let Some((name, end)) = result(line) {
                match outcome(end) {
                    Some(outcome) => section.tests.push((name, outcome)),
                    None => section.unfinished = Some(name),
                }
            } else if let Some(outcome) = outcome(line)
                && let Some(name) = section.unfinished.take()
            {
                section.tests.push((name, outcome));
            }
        }
    }

    /// Crates whose doc tests ran.
    pub(crate) fn doc_crates(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().filter_map(|s| match &s.source {
            Source::Docs(name) => Some(name.as_str()),
            Source::Binary(_) => None,
        })
    }

    /// The tests that ran, and what is wrong with the output: a binary did not run or printed no
    /// result, or results are missing. A name seen twice in one section counts once, with its
    /// worse result.
    pub(crate) fn finish(&self) -> (RanList, Vec<String>) {
        let mut list = RanList::default();
        let mut faults = Vec::new();
        for section in &self.sections {
            let prefix = match &section.source {
                Source::Docs(name) => format!("{name}::doc"),
                Source::Binary(file) => match self.prefixes.get(file) {
                    Some(prefix) => prefix.clone(),
                    None => {
                        faults.push(format!("{file} ran but cargo did not announce it"));
                        continue;
                    }
                },
            };
            faults.extend(section.fault().map(|fault| format!("{prefix}: {fault}")));
            let mut distinct = BTreeMap::new();
            for (name, outcome) in &section.tests {
                let worst = distinct.entry(name).or_insert(*outcome);
                *worst = (*worst).max(*outcome);
            }
            list.extend(distinct.into_iter().map(|(name, o)| (format!("{prefix}::{name}"), o)));
        }
        for (file, prefix) in &self.prefixes {
            let ran = |s: &Section| s.source == Source::Binary(file.clone());
            if !self.sections.iter().any(ran) {
                faults.push(format!("{prefix}: {file} was built but did not run"));
            }
        }
        (list, faults)
    }
}

impl Section {
    fn fault(&self) -> Option<String> {
        let Some(total) = self.total else {
            return Some("no `test result:` line; it crashed or has its own main function".into());
        };
        let count = |o| self.tests.iter().filter(|(_, outcome)| *outcome == o).count();
        let read = [Outcome::Ok, Outcome::Failed, Outcome::Ignored].map(count);
        (read != total).then(|| {
            format!(
                "read {read:?} passed, failed and ignored tests where it counts {total:?}; does a \
                 test write to standard output itself?"
            )
        })
    }
}

fn header(line: &str) -> Option<Source> {
    let line = line.strip_prefix(' ')?.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(Source::Docs(name.trim().to_owned()));
    }
    let path = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?.1;
    Some(Source::Binary(path.rsplit('/').next()?.to_owned()))
}

fn summary(line: &str) -> Option<[usize; 3]> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut total = [0; 3];
    let names = ["passed", "failed", "ignored"];
    for (slot, name) in total.iter_mut().zip(names) {
        let part = counts.split(';').find_map(|part| part.trim().strip_suffix(name))?;
        *slot = part.trim().parse().ok()?;
    }
    Some(total)
}

/// Name of the test on a line, and what stands where its result belongs.
fn result(line: &str) -> Option<(String, &str)> {
    let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.trim_end_matches(" - should panic").to_owned(), end))
}

fn outcome(end: &str) -> Option<Outcome> {
    match end {
        "ok" => Some(Outcome::Ok),
        "FAILED" => Some(Outcome::Failed),
        _ if end == "ignored" || end.starts_with("ignored, ") => Some(Outcome::Ignored),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "   Compiling a v0.1.0
     Running unittests src/lib.rs (target/debug/deps/partywall_shm-0123abcd)

running 3 tests
test ring::tests::wraps ... ok
test ring::tests::full - should panic ... ok
test map::tests::seals ... FAILED

failures:
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s

     Running tests/it.rs (target/debug/deps/it-ffff)

running 1 test
test slow ... ignored, needs a lot of time
test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s

   Doc-tests partywall_shm

running 1 test
test crates/shm/src/lib.rs - open (line 3) - compile ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn parse(text: &str) -> Parser {
        let prefixes =
            [("partywall_shm-0123abcd", "partywall_shm"), ("it-ffff", "partywall_shm::it")];
        let mut parser = Parser::new(prefixes.map(|(f, p)| (f.to_owned(), p.to_owned())).into());
        text.lines().for_each(|line| parser.line(line));
        parser
    }

    #[test]
    fn names_and_results_are_read() {
        let parser = parse(OUTPUT);
        let (list, faults) = parser.finish();
        assert_eq!(faults, [""; 0]);
        let expected = [
            ("partywall_shm::map::tests::seals", Outcome::Failed),
            ("partywall_shm::ring::tests::full", Outcome::Ok),
            ("partywall_shm::ring::tests::wraps", Outcome::Ok),
            ("partywall_shm::it::slow", Outcome::Ignored),
            ("partywall_shm::doc::crates/shm/src/lib.rs - open (line 3) - compile", Outcome::Ok),
        ];
        assert_eq!(list.entries(), expected.map(|(n, o)| (n.to_owned(), o)));
        assert_eq!(parser.doc_crates().collect::<Vec<_>>(), ["partywall_shm"]);
    }

    #[test]
    fn a_result_after_other_output_is_found_or_missed() {
        let (list, faults) = parse(&OUTPUT.replace("wraps ... ok", "wraps ... noise\nok")).finish();
        assert_eq!((list.entries().len(), faults.len()), (5, 0), "{faults:?}");
        let (list, faults) = parse(&OUTPUT.replace("wraps ... ok", "wraps ... noiseok")).finish();
        assert_eq!((list.entries().len(), faults.len()), (4, 1));
        assert!(faults[0].contains("standard output"), "{faults:?}");
    }

    #[test]
    fn a_crash_and_a_binary_that_never_ran_are_faults() {
        let text = OUTPUT.replace("test result: ok. 0 passed", "Segmentation fault");
        let (list, faults) = parse(&text).finish();
        assert_eq!((list.entries().len(), faults.len()), (5, 1));
        assert!(faults[0].contains("partywall_shm::it: no `test result:` line"), "{faults:?}");
        let start = OUTPUT.find("     Running tests/it.rs").unwrap();
        let (_, faults) = parse(&OUTPUT[..start]).finish();
        assert_eq!(faults, ["partywall_shm::it: it-ffff was built but did not run"]);
        let (_, faults) = parse(&OUTPUT.replace("it-ffff", "it-eeee")).finish();
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn a_test_seen_twice_counts_once_with_the_worse_result() {
        let twice = "test ring::tests::wraps ... FAILED\ntest map::tests::seals";
        let text = OUTPUT.replace("test map::tests::seals", twice).replace("1 failed", "2 failed");
        let (list, faults) = parse(&text).finish();
        assert_eq!((list.entries().len(), faults), (5, Vec::new()));
        let wraps = ("partywall_shm::ring::tests::wraps".to_owned(), Outcome::Failed);
        assert_eq!(list.entries()[2], wraps);
    }
}
