//! No circle of files: a file and what it uses can be read in an order.
//!
//! One file uses another when a path of its leads there: one that begins with `crate`, `self`, `super` or
//! a module of its own. What another file re-exports is followed to the file it comes from. Two things do
//! not count: what a module uses of those that contain it (a parent and its own children are one subject),
//! and tests. Modules within a file are part of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Tree, length, lex};

/// Directories of source files, each a crate of its own.
const CRATES: &[&str] = &["crates/", "tools/"];

/// How often a name may be re-exported on its way.
const EXPORTS: usize = 8;

/// A module's path below its crate's root.
type Path = Vec<String>;

/// One crate's files.
#[derive(Default)]
struct Crate<'a> {
    files: BTreeMap<Path, File<'a>>,
}

struct File<'a> {
    path: &'a str,
    source: &'a lex::Source,
    /// Where its tests begin.
    end: usize,
}

/// The files that each file uses, with a line that does.
type Arrows = BTreeMap<Path, BTreeMap<Path, usize>>;

/// Every crate's files use each other in no circle.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut crates = BTreeMap::<&str, Crate>::new();
    for (file, source) in tree.rust() {
        let Some((root, inside)) = file.path.split_once("src/") else { continue };
        let listed =
            CRATES.iter().any(|dir| root.starts_with(dir)) && root.matches('/').count() == 2;
        let module = module(inside);
        if listed && !module.iter().any(|part| part.ends_with("tests") || part == "bin") {
            let end = length::tests_begin(&source.code);
            crates
                .entry(root)
                .or_default()
                .files
                .insert(module, File { path: &file.path, source, end });
        }
    }
    crates.values().flat_map(|of| circles(of, &of.arrows())).collect()
}

fn module(inside: &str) -> Path {
    let stem = inside.trim_end_matches(".rs");
    let parts = stem.split('/').filter(|part| !matches!(*part, "lib" | "main" | "mod"));
    parts.map(str::to_owned).collect()
}

impl Crate<'_> {
    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (module, file) in &self.files {
            for (line, path) in file.paths() {
                let Some(to) = self.resolve(module, &path, EXPORTS) else { continue };
                if !module.starts_with(&to) {
                    arrows.entry(module.clone()).or_default().entry(to).or_insert(line);
                }
            }
        }
        arrows
    }

    /// The file that declares what `path`, in the file of `from`, means; none outside of the crate.
    fn resolve(&self, from: &Path, path: &[String], exports: usize) -> Option<Path> {
        let mut at = from.clone();
        let mut parts = path.iter().peekable();
        match parts.peek()?.as_str() {
            "crate" => {
                parts.next();
                at.clear();
            }
            "self" => drop(parts.next()),
            "super" => {
                while parts.next_if(|part| *part == "super").is_some() {
                    at.pop()?;
                }
            }
            first => drop(self.files.get(&[&at[..], &[first.to_owned()]].concat())?),
        }
        while let Some(part) = parts.peek() {
            let deeper = [&at[..], &[(*part).clone()]].concat();
            if !self.files.contains_key(&deeper) {
                break;
            }
            at = deeper;
            parts.next();
        }
        let file = self.files.get(&at)?;
        let exported = parts.next().filter(|_| exports > 0 && at != *from).and_then(|name| {
            let of_name = |(_, path): &(usize, Path)| path.last() == Some(name);
            let (_, path) = file.imports().into_iter().find(of_name)?;
            self.resolve(&at, &path, exports - 1)
        });
        Some(exported.unwrap_or(at))
    }
}

impl File<'_> {
    /// What it imports, with the lines.
    fn imports(&self) -> Vec<(usize, Path)> {
        let before_tests = self.source.uses().into_iter().filter(|(offset, _)| *offset < self.end);
        let path =
            |text: &str| text.trim_end_matches("::self").split("::").map(str::to_owned).collect();
        before_tests.map(|(offset, text)| (self.source.line(offset), path(&text))).collect()
    }

    /// What it imports, and every other path in its code.
    fn paths(&self) -> Vec<(usize, Path)> {
        let mut all = self.imports();
        let code = &self.source.code[..self.end];
        let mut path = Path::new();
        let (mut last, mut import_ends) = (0, 0);
        for (offset, word) in self.source.words().take_while(|(offset, _)| *offset < self.end) {
            if word == "use" {
                import_ends = code[offset..].find(';').map_or(self.end, |at| offset + at);
            }
            if offset < import_ends {
                continue;
            }
            if code[last..offset].trim() != "::" {
                all.push((self.source.line(last), std::mem::take(&mut path)));
            }
            if !path.is_empty() || !code[..offset].trim_end().ends_with("::") {
                path.push(word.to_owned());
                last = offset + word.len();
            }
        }
        all.push((self.source.line(last), path));
        all.retain(|(_, path)| path.len() > 1);
        all
    }
}

/// One sentence for each set of files that can reach each other: the shortest way round from its first.
fn circles(of: &Crate, arrows: &Arrows) -> Vec<String> {
    let mut told = BTreeSet::new();
    let mut faults = Vec::new();
    for start in arrows.keys() {
        let Some(way) = way_round(arrows, start) else { continue };
        let is_new = way.iter().all(|(module, _)| !told.contains(module));
        told.extend(way.iter().map(|(module, _)| module.clone()));
        if is_new {
            let steps: Vec<_> = way
                .iter()
                .map(|(module, line)| format!("{}:{line}", of.files[module].path))
                .collect();
            faults.push(format!("files use each other in a circle: {}", steps.join(" -> ")));
        }
    }
    faults
}

/// The shortest way from a file back to itself: each file on it, and the line that uses the next.
fn way_round(arrows: &Arrows, start: &Path) -> Option<Vec<(Path, usize)>> {
    let mut came_from = BTreeMap::<&Path, (&Path, usize)>::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for (to, line) in arrows.get(at).into_iter().flatten() {
            if to == start {
                let mut way = vec![(at.clone(), *line)];
                let mut back = at;
                while back != start {
                    let (before, line) = came_from[back];
                    way.push((before.clone(), line));
                    back = before;
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(to) {
                came_from.insert(to, (at, *line));
                queue.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<_> = paths.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        check(&Tree::of(&files))
    }

    #[test]
    fn an_order_of_files_passes() {
        let files = [
            ("lib.rs", "mod low;\nmod high;\npub use high::run;\npub struct Top;"),
            ("low.rs", "use std::fs;\nuse crate::Top;\nfn f() { other::g() }\n// crate::high"),
            ("high.rs", "use crate::low::{self, Low};\nmod part;\nfn g() { part::h() }"),
            ("high/part.rs", "use super::Thing;\nuse crate::low;"),
            ("low/tests.rs", "use crate::high;"),
        ];
        assert_eq!(faults(&files), [""; 0]);
        let with_tests = "use crate::b;\n#[cfg(test)]\nmod tests {\nuse crate::b;\n}";
        assert_eq!(faults(&[("a.rs", with_tests), ("b.rs", &with_tests[14..])]), [""; 0]);
    }

    #[test]
    fn each_way_to_write_a_path_counts() {
        for back in [
            "use crate::a::A;",
            "\nfn f(_: crate::a::A) {}",
            "use super::{c, a::{A, B}};",
            "fn f() { super::a::f() }",
            "use crate::a as other;",
            "use crate::a::*;",
        ] {
            let found = faults(&[("a.rs", "use crate::b::B;"), ("b.rs", back), ("c.rs", "")]);
            assert_eq!(found.len(), 1, "{back}: {found:?}");
            let expected =
                "files use each other in a circle: crates/a/src/a.rs:1 -> crates/a/src/b.rs:";
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn reexport_counts_as_its_source_file() {
        let root = "mod a;\nmod b;\npub use a::A;\npub use b::{B as C, B};";
        let found = faults(&[
            ("lib.rs", root),
            ("a.rs", "use crate::B;"),
            ("b.rs", "fn f(_: crate::A) {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_circle_through_a_parent_counts_and_one_with_it_does_not() {
        let parent = ("p.rs", "mod part;\nfn f() { part::g(); }");
        assert_eq!(faults(&[parent, ("p/part.rs", "use super::f;")]), [""; 0]);
        let others = [("p/part.rs", "use crate::q;"), ("q.rs", "use crate::p;")];
        let found = faults(&[parent, others[0], others[1]]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("p.rs:2 -> crates/a/src/p/part.rs:1 -> crates/a/src/q.rs:1"));
    }
}
