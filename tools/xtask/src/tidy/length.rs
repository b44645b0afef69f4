//! Files, comment lines and the page about the architecture stay short enough to be read in one go.

use super::Tree;

const LIMIT: usize = 700;

/// Columns of a comment line. Code is rustfmt's, which leaves comments alone.
const COLUMNS: usize = 110;

const CODE: &[&str] = &["rs", "proto", "sh", "py", "go", "c", "h", "js", "ts"];

/// The page that one can read at once.
pub(super) const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Lines of that page.
const PAGE: usize = 250;

/// The page is there and keeps to its limit.
pub(super) fn page(tree: &Tree) -> Vec<String> {
    match tree.file(ARCHITECTURE).map(|file| file.text.lines().count()) {
        None => vec![format!("{ARCHITECTURE} is missing")],
        Some(lines) if lines > PAGE => {
            vec![format!("{ARCHITECTURE}: {lines} lines, {PAGE} allowed")]
        }
        Some(_) => Vec::new(),
    }
}

/// A code file over the limit, its tests not counted, says why in a comment.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let excuse = "// tidy: long because ";
    let mut faults = Vec::new();
    for file in &tree.files {
        let extension = file.path.rsplit_once('.').map_or("", |(_, extension)| extension);
        if !CODE.contains(&extension) {
            continue;
        }
        let code = file.rust.as_ref().map_or(file.text.as_str(), |source| &source.code);
        let lines = lines_before_tests(code);
        let excused = file.text.lines().any(|line| {
            line.trim().strip_prefix(excuse).is_some_and(|reason| !reason.trim().is_empty())
        });
        if lines > LIMIT && !excused {
            faults.push(format!(
                "{}: {lines} lines without tests, {LIMIT} allowed unless `{excuse}..` says why",
                file.path
            ));
        }
    }
    faults
}

/// No comment line is too long; a row of a table cannot be broken.
pub(super) fn comments(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, _) in tree.rust() {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            let text = line.trim_start();
            let is_row = text.trim_start_matches(['/', '!']).trim_start().starts_with('|');
            if columns > COLUMNS && text.starts_with("//") && !is_row {
                let place = format!("{}:{}", file.path, index + 1);
                faults.push(format!("{place}: {columns} columns of comment, {COLUMNS} allowed"));
            }
        }
    }
    faults
}

/// Offset at which a file's tests begin, its length if it has none.
pub(super) fn tests_begin(code: &str) -> usize {
    code.split_inclusive('\n').take(lines_before_tests(code)).map(str::len).sum()
}

fn lines_before_tests(code: &str) -> usize {
    let mut attributes = None;
    for (index, line) in code.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[") {
            let (_, is_test) = attributes.get_or_insert((index, false));
            *is_test |= line.starts_with("#[cfg(") && line.contains("test");
        } else if line.starts_with("mod tests") {
            if let Some((start, true)) = attributes {
                return start;
            }
        } else {
            attributes = None;
        }
    }
    code.lines().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn the_page_is_there_and_short() {
        let lines = |count| page(&Tree::of(&[(ARCHITECTURE, &"x\n".repeat(count))])).len();
        assert_eq!((lines(PAGE), lines(PAGE + 1), page(&Tree::of(&[])).len()), (0, 1, 1));
    }

    #[test]
    fn the_limit_counts_lines_before_the_tests() {
        let code = "fn f() {}\n".repeat(LIMIT);
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"// x\n".repeat(500) + "}\n";
        assert_eq!(faults("a.rs", &(code.clone() + &tests)), [""; 0]);
        assert_eq!(faults("a.rs", &(code + "fn g() {}\n" + &tests)).len(), 1);
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        let code = "x\n".repeat(LIMIT + 1);
        assert_eq!(faults("a.proto", &code).len(), 1);
        assert_eq!(faults("a.rs", &format!("// tidy: long because \n{code}")).len(), 1);
        assert_eq!(faults("a.rs", &format!("// tidy: long because of a table\n{code}")), [""; 0]);
        assert_eq!(faults("results.json", &code), [""; 0]);
    }

    #[test]
    fn a_comment_line_has_a_limit_and_a_table_none() {
        let long = "x".repeat(COLUMNS);
        let tree = |text: String| Tree::of(&[("a.rs", &text)]);
        assert_eq!(comments(&tree(format!("{long}y\n//! | {long} |\n///{}", &long[3..]))), [""; 0]);
        for comment in [format!("// {long}"), format!("    /// {long}"), format!("//! {long}")] {
            assert_eq!(comments(&tree(format!("\n{comment}"))).len(), 1);
        }
    }

    #[test]
    fn a_module_that_is_only_called_tests_is_counted() {
        let text = "#[allow(dead_code)]\nmod tests {\n".to_owned() + &"x\n".repeat(LIMIT);
        assert_eq!(faults("a.rs", &text).len(), 1);
    }
}
