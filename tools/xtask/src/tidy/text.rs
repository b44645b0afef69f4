//! What no text file may contain: directories of one machine, and notes about unfinished work.

use super::Tree;

// Spelled in two parts, because this file is checked as well.
const DIRECTORIES: [&str; 3] =
    [concat!("/", "root/"), concat!("/", "work/"), concat!("/", "home/")];
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// No absolute path into somebody's home or working directory.
pub(super) fn paths(tree: &Tree) -> Vec<String> {
    each_line(tree, |line| {
        let starts_path = |at: usize| {
            !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_.-~})*".contains(c))
        };
        let hit = |dir: &&&str| line.match_indices(**dir).any(|(at, _)| starts_path(at));
        DIRECTORIES.iter().find(hit).map(|dir| format!("absolute path below {dir}"))
    })
}

/// No marker for work that is left over.
pub(super) fn markers(tree: &Tree) -> Vec<String> {
    each_line(tree, |line| {
        let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
        let word = words.find(|word| MARKERS.contains(word))?;
        Some(format!("{word} left behind"))
    })
}

fn each_line(tree: &Tree, fault: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            faults.extend(fault(line).map(|what| format!("{}:{}: {what}", file.path, index + 1)));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_and_system_paths_pass() {
        let tree = Tree::of(&[("a.md", "docs/home/x /run/user src/work/y ~/work/z $HOME/work/q")]);
        assert_eq!(paths(&tree), [""; 0]);
    }

    #[test]
    fn paths_of_one_machine_fail() {
        for dir in DIRECTORIES {
            let found = paths(&Tree::of(&[("a.md", &format!("x\nsee {dir}me/x"))]));
            assert_eq!(found, [format!("a.md:2: absolute path below {dir}")]);
            assert_eq!(paths(&Tree::of(&[("a.rs", &format!("\"{dir}x\""))])).len(), 1);
        }
    }

    #[test]
    fn words_that_contain_a_marker_pass() {
        let tree = Tree::of(&[("a.sh", "mktemp -d x.XXXXXX\ntodo!()\nMASTODON")]);
        assert_eq!(markers(&tree), [""; 0]);
    }

    #[test]
    fn markers_fail() {
        for marker in MARKERS {
            let found = markers(&Tree::of(&[("a.toml", &format!("# {marker}: later"))]));
            assert_eq!(found, [format!("a.toml:1: {marker} left behind")]);
        }
    }
}
