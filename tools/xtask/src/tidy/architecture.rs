//! ARCHITECTURE.md stays a page one can read.

use super::Tree;

pub(super) const FILE: &str = "ARCHITECTURE.md";

const LIMIT: usize = 250;

/// The file exists and keeps to its limit.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    match tree.file(FILE).map(|file| file.text.lines().count()) {
        None => vec![format!("{FILE} is missing")],
        Some(lines) if lines > LIMIT => vec![format!("{FILE}: {lines} lines, {LIMIT} allowed")],
        Some(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_and_short() {
        assert_eq!(check(&Tree::of(&[(FILE, &"x\n".repeat(LIMIT))])), [""; 0]);
        assert_eq!(check(&Tree::of(&[(FILE, &"x\n".repeat(LIMIT + 1))])).len(), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
