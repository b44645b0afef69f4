//! What the machine runs, as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One program of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// What the transcript calls it: a word without blanks.
    pub name: String,
    /// Its file in the machine.
    pub path: String,
    /// When it is killed.
    pub limit: Duration,
    /// Its arguments, without the program's own name.
    pub arguments: Vec<String>,
    /// Its environment, which is empty otherwise.
    pub variables: Vec<(String, String)>,
    /// Files below [`crate::LEFT`] that it must leave for the host, words without blanks.
    pub leaves: Vec<String>,
}

/// Writes programs as a manifest.
///
/// # Errors
/// A name that no frame of the transcript can have.
pub fn to_text(programs: &[Program]) -> Result<String, serde_json::Error> {
    let mut names =
        programs.iter().flat_map(|program| program.leaves.iter().chain([&program.name]));
    match names.find(|name| !is_name(name)) {
        Some(bad) => Err(serde::ser::Error::custom(format!("{bad:?} is no name for a frame"))),
        None => serde_json::to_string_pretty(programs),
    }
}

/// Reads a manifest.
///
/// # Errors
/// What breaks the format, with its line.
pub fn parse(text: &str) -> Result<Vec<Program>, serde_json::Error> {
    serde_json::from_str(text)
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
            name: "domain::gate".into(),
            path: "/bin/domain".into(),
            limit: Duration::from_secs(90),
            arguments: vec!["--skip".into(), "a test\n".into(), String::new()],
            variables: vec![("A".into(), "b=c d".into()), ("EMPTY".into(), String::new())],
            leaves: vec!["machine.txt".into()],
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let programs = [program(), Program { name: "x".into(), ..program() }];
        assert_eq!(parse(&to_text(&programs).unwrap()).unwrap(), programs);
        assert!(parse("[{}]").unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn names_that_no_frame_can_have_are_not_written() {
        for bad in ["a b", "", "..", "a/b"] {
            assert!(to_text(&[Program { name: bad.into(), ..program() }]).is_err(), "{bad}");
            assert!(to_text(&[Program { leaves: vec![bad.into()], ..program() }]).is_err());
        }
    }
}
