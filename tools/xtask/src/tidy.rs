//! `cargo xtask tidy`: rules about files that neither rustc nor clippy knows.
//!
//! Each rule is a function from the tree of files to its faults, one line of text per fault. The
//! tree holds what git would commit: tracked files and new ones that are not ignored.

mod circles;
mod glossary;
mod length;
mod lex;
mod links;
mod names;
mod sync_labels;
mod text;
mod unsafe_files;
mod walls;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Finds the faults of a tree.
type Rule = fn(&Tree) -> Vec<String>;

/// Each rule with the name it is printed under.
const RULES: &[(&str, Rule)] = &[
    ("length", length::check),
    ("architecture", length::page),
    ("unsafe", unsafe_files::check),
    ("names", names::check),
    ("walls", walls::check),
    ("circles", circles::check),
    ("comments", length::comments),
    ("glossary", glossary::check),
    ("sync labels", sync_labels::check),
    ("paths", text::paths),
    ("markers", text::markers),
    ("links", links::check),
];

/// The project's files.
#[derive(Default)]
struct Tree {
    /// Every path, `/` between its parts.
    paths: BTreeSet<String>,
    /// The files that are text.
    files: Vec<File>,
}

struct File {
    path: String,
    text: String,
    /// Present for Rust files.
    rust: Option<lex::Source>,
}

/// Applies every rule.
///
/// # Errors
/// When a rule finds a fault.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut tree = Tree::default();
    for path in workspace.files()? {
        let full = workspace.root.join(&path);
        if full.is_file() {
            let bytes = fs::read(&full).with_context(|| format!("read {path}"))?;
            tree.add(path, bytes);
        }
    }
    let mut faults = Vec::new();
    for (name, rule) in RULES {
        faults.extend(rule(&tree).into_iter().map(|fault| format!("[{name}] {fault}")));
    }
    if !faults.is_empty() {
        bail!("faults found: {}\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("tidy: {} files, {} rules", tree.paths.len(), RULES.len());
    Ok(())
}

impl Tree {
    fn add(&mut self, path: String, bytes: Vec<u8>) {
        if let Ok(text) = String::from_utf8(bytes) {
            let rust = path.ends_with(".rs").then(|| lex::Source::new(&text));
            self.files.push(File { path: path.clone(), text, rust });
        }
        self.paths.insert(path);
    }

    /// The text file at `path`.
    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every Rust file with its code and comments told apart.
    fn rust(&self) -> impl Iterator<Item = (&File, &lex::Source)> {
        self.files.iter().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// Whether `path` is a file or a directory of the tree.
    fn contains(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty()
            || self.paths.contains(path)
            || self.paths.range(below.clone()..).next().is_some_and(|p| p.starts_with(&below))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        files.iter().for_each(|(path, text)| tree.add((*path).to_owned(), text.as_bytes().into()));
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_tree_are_known() {
        let tree = Tree::of(&[("docs/abi.md", ""), ("docs2", "")]);
        assert!(tree.contains("docs") && tree.contains("docs/abi.md") && tree.contains(""));
        assert!(!tree.contains("doc") && !tree.contains("docs/abi"));
    }

    #[test]
    fn files_that_are_not_text_are_listed_but_not_read() {
        let mut tree = Tree::default();
        tree.add("a.rs".into(), vec![0xff, 0xfe]);
        assert!(tree.contains("a.rs") && tree.file("a.rs").is_none());
    }
}
