//! What can be wrong with a Compose file, and where.

use std::{fmt, io, path::Path, sync::Arc};

/// The keys `x-partywall` may have.
pub const KEYS: [&str; 11] = [
    "package",
    "bin",
    "program",
    "args",
    "link",
    "isolation",
    "calls",
    "descriptors",
    "leases",
    "proto",
    "proto_path",
];

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
    #[error("{}: cannot read it: {source}; {}", file.display(), remedy(source))]
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

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidData => "save it as UTF-8",
        io::ErrorKind::IsADirectory => "name the file in it",
        _ => "check the path and its permissions",
    }
}

fn did_you_mean(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

fn listed(known: &[String]) -> String {
    if known.is_empty() {
        return String::new();
    }
    let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    format!("; it has {}", known.join(", "))
}
