//! What can be wrong with a Compose file, and where.

use std::{fmt, io, path::Path, sync::Arc};

/// The keys `x-partywall` may have.
pub const KEYS: [&str; 7] = ["package", "bin", "program", "args", "link", "isolation", "calls"];

/// A place in a Compose file: the file, the line and the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The Compose file, as the user named it.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
    /// The key with those above it, such as `services.client.x-partywall.args[0]`; empty for the
    /// document itself.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)?;
        if self.key.is_empty() { Ok(()) } else { write!(f, ": {}", self.key) }
    }
}

/// A value and the place it was written at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub place: Place,
}

/// Why a Compose file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    /// The file cannot be read.
    #[error("{}: cannot read it: {source}; check the path and its permissions", file.display())]
    Read {
        /// The file.
        file: Arc<Path>,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not YAML.
    #[error("{}:{line}:{column}: not valid YAML: {detail}", file.display())]
    Syntax {
        /// The file.
        file: Arc<Path>,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What the parser said.
        detail: String,
    },
    /// The file is YAML of a form that no Compose file needs.
    #[error("{}:{line}: {detail}", file.display())]
    Form {
        /// The file.
        file: Arc<Path>,
        /// The line, from 1.
        line: usize,
        /// What is not accepted, and what to do instead.
        detail: &'static str,
    },
    /// A value is of the wrong type.
    #[error("{place}: expected {expected}, found {found}")]
    Type {
        /// The value's place.
        place: Place,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A mapping has the same key twice.
    #[error("{place}: duplicate key; it is already on line {first}, keep one of the two")]
    Duplicate {
        /// The second of the two.
        place: Place,
        /// The line of the first.
        first: usize,
    },
    /// `x-partywall` has a key it does not know.
    #[error("{place}: unknown key; known keys are {}{}", KEYS.join(", "), did_you_mean(near))]
    UnknownKey {
        /// The key's place.
        place: Place,
        /// The known key that looks most like it.
        near: Option<String>,
    },
    /// A value is one that its key does not take.
    #[error("{place}: {detail}")]
    Value {
        /// The value's place.
        place: Place,
        /// What is wrong with it and what to write instead.
        detail: String,
    },
    /// A variable reference cannot be replaced.
    #[error("{place}: {detail}")]
    Variable {
        /// The place of the text with the reference.
        place: Place,
        /// What is wrong with it and what to write instead.
        detail: String,
    },
    /// A service is named that the file does not have.
    #[error("{place}: no service `{name}` in this file{}{}", listed(known), did_you_mean(near))]
    UnknownService {
        /// The place of the name.
        place: Place,
        /// The name.
        name: String,
        /// The services the file has.
        known: Vec<String>,
        /// The one that looks most like it.
        near: Option<String>,
    },
    /// Services wait for each other.
    #[error("{place}: cycle {}; remove one of these dependencies", cycle.join(" -> "))]
    Cycle {
        /// The place of the first dependency of the cycle.
        place: Place,
        /// The services in the order of waiting; the last is the first.
        cycle: Vec<String>,
    },
}

fn did_you_mean(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

fn listed(known: &[String]) -> String {
    if known.is_empty() {
        return String::new();
    }
    format!("; it has {}", known.join(", "))
}

/// The candidate that a typing error most likely meant, if one is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let limit = match word.chars().count() {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    };
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// How many letters differ: one that is another, missing, too much or exchanged with its neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Of the beginnings of both: two rows before the one that is made.
    let mut rows: [Vec<usize>; 2] = [Vec::new(), (0..=b.len()).collect()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = rows[1][j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(row[j] + 1).min(rows[1][j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(rows[0][j - 1] + 1);
            }
            row.push(best);
        }
        rows = [std::mem::take(&mut rows[1]), row];
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("lnk", "link"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
        assert_eq!(distance("wbe", "web"), 1);
        assert_eq!(distance("cap_dorp", "cap_drop"), 1);
    }

    #[test]
    fn nearest_is_only_given_when_close() {
        assert_eq!(nearest("lnk", KEYS).as_deref(), Some("link"));
        assert_eq!(nearest("packge", KEYS).as_deref(), Some("package"));
        assert_eq!(nearest("colour", KEYS), None);
        assert_eq!(nearest("x", KEYS), None);
    }
}
