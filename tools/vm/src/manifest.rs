//! What the machine runs, as text.
//!
//! Each line is a word, a blank and a value that reaches to the end of the line. `program` opens a
//! program with its name; the lines after it say more about it.
//!
//! | word | value | times |
//! | --- | --- | --- |
//! | `program` | the name that the transcript calls it by, without blanks | once, first |
//! | `path` | its file in the machine | once |
//! | `limit` | seconds after which it is killed | once |
//! | `argument` | one argument | any |
//! | `variable` | `NAME=value` in its environment, which is empty otherwise | any |
//! | `leaves` | a file below [`crate::LEFT`] that it must leave for the host, without blanks | any |

use std::fmt::Write as _;
use std::time::Duration;

/// One program of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What the transcript calls it.
    pub name: String,
    /// Its file in the machine.
    pub path: String,
    /// When it is killed; whole seconds.
    pub limit: Duration,
    /// Its arguments, without the program's own name.
    pub arguments: Vec<String>,
    /// Its environment.
    pub variables: Vec<(String, String)>,
    /// Files that it must leave for the host.
    pub leaves: Vec<String>,
}

/// Why a text is no manifest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// A line breaks the format.
    #[error("line {number} of the manifest, {line:?}: {why}")]
    Line {
        /// From 1 on.
        number: usize,
        /// The line itself.
        line: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A program lacks its path or its limit.
    #[error("{0} has no path or no limit in the manifest")]
    Incomplete(String),
    /// A value holds a line break, or a name a blank.
    #[error("{0:?} cannot stand in a manifest")]
    Value(String),
}

/// Writes programs as a manifest.
///
/// # Errors
/// [`ManifestError::Value`] for what a line cannot hold.
pub fn to_text(programs: &[Program]) -> Result<String, ManifestError> {
    let mut text = String::new();
    for program in programs {
        let names = std::iter::once(&program.name).chain(&program.leaves);
        if let Some(bad) = names.clone().find(|name| !is_name(name)) {
            return Err(ManifestError::Value(bad.clone()));
        }
        let variables: Vec<_> =
            program.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let limit = program.limit.as_secs().to_string();
        let once = [("program", &program.name), ("path", &program.path), ("limit", &limit)];
        let many = [
            ("argument", &program.arguments),
            ("variable", &variables),
            ("leaves", &program.leaves),
        ];
        let many = many.iter().flat_map(|(word, all)| all.iter().map(move |value| (*word, value)));
        for (word, value) in once.into_iter().chain(many) {
            if value.contains(['\n', '\r']) {
                return Err(ManifestError::Value(value.clone()));
            }
            let _ = writeln!(text, "{word} {value}");
        }
    }
    Ok(text)
}

/// Reads a manifest.
///
/// # Errors
/// The first line that breaks the format, or a program that lacks something.
pub fn parse(text: &str) -> Result<Vec<Program>, ManifestError> {
    let mut programs: Vec<Program> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fault = |why| ManifestError::Line { number: index + 1, line: line.to_owned(), why };
        let (word, value) = line.split_once(' ').ok_or_else(|| fault("a word and a value"))?;
        if word == "program" {
            if !is_name(value) {
                return Err(fault("a name has no blanks and is no path"));
            }
            programs.push(Program::named(value));
            continue;
        }
        let program = programs.last_mut().ok_or_else(|| fault("`program` comes first"))?;
        let value = value.to_owned();
        match word {
            "path" => program.path = value,
            "limit" => {
                let seconds = value.parse().map_err(|_| fault("a limit is a number of seconds"))?;
                program.limit = Duration::from_secs(seconds);
            }
            "argument" => program.arguments.push(value),
            "variable" => {
                let (name, value) = value.split_once('=').ok_or_else(|| fault("NAME=value"))?;
                program.variables.push((name.to_owned(), value.to_owned()));
            }
            "leaves" if is_name(&value) => program.leaves.push(value),
            "leaves" => return Err(fault("a name has no blanks and is no path")),
            _ => return Err(fault("no word of a manifest")),
        }
    }
    let incomplete = programs.iter().find(|p| p.path.is_empty() || p.limit.is_zero());
    match incomplete {
        Some(program) => Err(ManifestError::Incomplete(program.name.clone())),
        None => Ok(programs),
    }
}

impl Program {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: String::new(),
            limit: Duration::ZERO,
            arguments: Vec::new(),
            variables: Vec::new(),
            leaves: Vec::new(),
        }
    }
}

/// Whether a text can be one word of a frame and the name of a file in one directory.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program {
            path: "/bin/domain".into(),
            limit: Duration::from_secs(90),
            arguments: vec!["--skip".into(), "a test".into(), String::new()],
            variables: vec![("A".into(), "b=c d".into()), ("EMPTY".into(), String::new())],
            leaves: vec!["machine.txt".into()],
            ..Program::named("domain::gate")
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let other =
            Program { path: "/x".into(), limit: Duration::from_secs(1), ..Program::named("x") };
        let programs = [program(), other];
        assert_eq!(parse(&to_text(&programs).unwrap()).unwrap(), programs);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn manifest_line_of_wrong_form_is_not_written() {
        for bad in ["a b", "", "..", "a/b"] {
            assert!(to_text(&[Program { name: bad.into(), ..program() }]).is_err(), "{bad}");
            assert!(to_text(&[Program { leaves: vec![bad.into()], ..program() }]).is_err());
        }
        assert!(to_text(&[Program { path: "/x\nlimit 9".into(), ..program() }]).is_err());
    }

    #[test]
    fn a_line_that_breaks_the_format_is_named() {
        let cases = [
            ("path /x", "comes first"),
            ("program a b", "no blanks"),
            ("program a\nlimit soon", "number of seconds"),
            ("program a\nvariable A", "NAME=value"),
            ("program a\nleaves ../b", "no path"),
            ("program a\ncolour red", "no word"),
            ("program a\n\n", "a word and a value"),
            ("program a\npath /x\nlimit 0", "no path or no limit"),
            ("program a\nlimit 3", "no path or no limit"),
        ];
        for (text, why) in cases {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
