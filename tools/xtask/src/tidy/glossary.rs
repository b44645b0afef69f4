//! The glossary says each word once.

use std::collections::BTreeMap;

use super::Tree;
use crate::table;

const FILE: &str = "docs/glossary.md";

/// What stands over the column of words.
const HEADS: [&str; 2] = ["term", "word"];

/// Every row has a word and its meaning, and no word has two rows. Words of one row are parted by commas;
/// what a word belongs to, in brackets, is part of it.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.file(FILE) else { return vec![format!("{FILE} is missing")] };
    let (mut lines, mut faults) = (BTreeMap::new(), Vec::new());
    let mut in_table = false;
    for (index, text) in file.text.lines().enumerate() {
        let line = index + 1;
        let Some(cells) = table::cells(text) else {
            in_table = false;
            continue;
        };
        if HEADS.contains(&cells[0]) {
            in_table = true;
        } else if in_table && !cells[0].starts_with('-') {
            if cells.len() < 2 || cells[..2].contains(&"") {
                faults.push(format!("{FILE}:{line}: a word without a meaning, or none"));
            }
            for word in cells[0].split(", ").map(str::to_lowercase) {
                if let Some(before) = lines.insert(word.clone(), line) {
                    faults.push(format!("{FILE}:{line}: {word} is in line {before} already"));
                }
            }
        }
    }
    if lines.is_empty() {
        faults.push(format!("{FILE} has no word"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rows: &str) -> Vec<String> {
        let text = format!("# Glossary\n\n| term | meaning |\n| --- | --- |\n{rows}\n");
        check(&Tree::of(&[(FILE, &text)]))
    }

    #[test]
    fn words_that_differ_pass() {
        assert_eq!(faults("| ring | x |\n| window, credit | x |\n| ring (of keys) | x |"), [""; 0]);
    }

    #[test]
    fn a_word_twice_and_no_word_fail() {
        let found =
            faults("| ring | x |\n| credit, Ring | y |\n\n| word | meaning |\n| credit | z |");
        assert_eq!(
            found,
            [
                "docs/glossary.md:6: ring is in line 5 already",
                "docs/glossary.md:9: credit is in line 6 already"
            ]
        );
        assert_eq!(faults("| ring | |").len(), 1);
        assert_eq!(faults("").len(), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
