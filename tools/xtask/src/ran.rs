//! The list of tests that ran, kept as one `result<TAB>name` line per test.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Result of a test, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// It passed.
    Ok,
    /// It needs root, and this user is another one.
    NeedsRoot,
    /// It was marked to be left out.
    Ignored,
    /// It failed.
    Failed,
}

const WORDS: [(Outcome, &str); 4] = [
    (Outcome::Ok, "ok"),
    (Outcome::NeedsRoot, "needs-root"),
    (Outcome::Ignored, "ignored"),
    (Outcome::Failed, "failed"),
];

/// Tests in the order they ran. Names are `package::path::to::test` for tests beside the code,
/// `package::file::path::to::test` for those under `tests/`, `package::doc::..` for doc tests;
/// a package's dashes are underscores.
#[derive(Debug, Default)]
pub(crate) struct RanList(Vec<(String, Outcome)>);

impl RanList {
    /// Appends tests.
    pub(crate) fn extend(&mut self, tests: impl IntoIterator<Item = (String, Outcome)>) {
        self.0.extend(tests);
    }

    /// Appends tests in place of those of the same names.
    pub(crate) fn replace(&mut self, tests: &[(String, Outcome)]) {
        self.0.retain(|(name, _)| !tests.iter().any(|(new, _)| new == name));
        self.0.extend(tests.iter().cloned());
    }

    /// Puts a word before all names.
    pub(crate) fn prefix(&mut self, word: &str) {
        self.0.iter_mut().for_each(|(name, _)| *name = format!("{word}::{name}"));
    }

    /// All tests.
    pub(crate) fn entries(&self) -> &[(String, Outcome)] {
        &self.0
    }

    /// Number of tests with this result.
    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.0.iter().filter(|(_, o)| *o == outcome).count()
    }

    /// Number of doc tests with this result.
    pub(crate) fn doc_count(&self, outcome: Outcome) -> usize {
        self.0.iter().filter(|(name, o)| *o == outcome && name.contains("::doc::")).count()
    }

    /// A sentence for each test that should not have ended as it did.
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(name, outcome)| match outcome {
            Outcome::Ok | Outcome::NeedsRoot => None,
            Outcome::Failed => Some(format!("{name} failed")),
            Outcome::Ignored => Some(format!("{name} is ignored; tests are never skipped")),
        })
    }

    /// What is wrong with a test that a row names; one that needs root may not have run.
    pub(crate) fn fault_of(&self, test: &str) -> Option<String> {
        let results = self.find(test);
        let passed = |result: &Outcome| matches!(result, Outcome::Ok | Outcome::NeedsRoot);
        match results.is_empty() {
            true => Some(format!("the test {test} did not run")),
            false if results.iter().all(passed) => None,
            false => Some(format!("the test {test} did not pass")),
        }
    }

    /// Results of the tests that `name` means: a full name or the end of one, from a `::` on.
    pub(crate) fn find(&self, name: &str) -> Vec<Outcome> {
        let wanted = name.replace('-', "_");
        let hit = |full: &str| {
            full.strip_suffix(wanted.as_str()).is_some_and(|r| r.is_empty() || r.ends_with("::"))
        };
        self.0.iter().filter(|(full, _)| hit(full)).map(|(_, o)| *o).collect()
    }

    /// Writes the list, with the directories above it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let word = |o: Outcome| WORDS.iter().find(|(w, _)| *w == o).map_or("", |(_, word)| word);
        let text: String =
            self.0.iter().map(|(name, o)| format!("{}\t{name}\n", word(*o))).collect();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Reads a list written by [`RanList::save`].
    ///
    /// # Errors
    /// When the file is missing, empty or holds another kind of line.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("read {} (written by `cargo xtask test`)", path.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let entry = |line: &str| {
            let (word, name) = line.split_once('\t')?;
            let outcome = WORDS.iter().find(|(_, w)| *w == word)?.0;
            Some((name.to_owned(), outcome))
        };
        let lines = text.lines().map(|l| entry(l).with_context(|| format!("bad line {l:?}")));
        let list = Self(lines.collect::<Result<_>>()?);
        if list.0.is_empty() {
            bail!("no test in the list");
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_whole_or_from_a_path_separator_on() {
        let text = "ok\tpartywall_shm::ring::tests::wraps\nfailed\tpartywall::it::wraps\n";
        let list = RanList::parse(text).unwrap();
        assert_eq!(list.find("wraps"), [Outcome::Ok, Outcome::Failed]);
        assert_eq!(list.find("ring::tests::wraps"), [Outcome::Ok]);
        assert_eq!(list.find("partywall-shm::ring::tests::wraps"), [Outcome::Ok]);
        assert!(list.find("raps").is_empty());
        assert!(list.find("ring::tests").is_empty());
    }

    #[test]
    fn a_test_that_ran_again_counts_once() {
        let mut list = RanList::parse("needs-root\tx::many\nok\tx::y\n").unwrap();
        list.replace(&[("x::many".to_owned(), Outcome::Ok)]);
        assert_eq!(list.find("many"), [Outcome::Ok]);
        assert_eq!(list.entries().len(), 2);
    }

    #[test]
    fn empty_and_damaged_lists_are_refused() {
        assert!(RanList::parse("").is_err());
        assert!(RanList::parse("maybe\tx::y\n").is_err());
        assert!(RanList::parse("x::y\n").is_err());
        assert!(RanList::load(Path::new("no/such/list")).is_err());
    }
}
