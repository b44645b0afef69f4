//! What is to keep a function from its worker's memory, and what does: see `worker::keys` for how.

use std::fmt;
use std::str::FromStr;

use partywall_abi::security::Isolation;
use serde::{Deserialize, Serialize};

/// What is to keep functions from their worker's memory, beside the language and the verifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Wanted {
    /// Protection keys; without them there is no worker.
    #[default]
    ProtectionKeys,
    /// Protection keys where there are some, and else nothing.
    Prefer,
    /// Nothing.
    None,
}

impl Wanted {
    const WORDS: [(Self, &str); 3] =
        [(Self::ProtectionKeys, "protection-keys"), (Self::Prefer, "prefer"), (Self::None, "none")];
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(wanted, _)| wanted == self);
        f.pad(word.map_or("", |(_, word)| word))
    }
}

/// A word that names nothing of [`Wanted`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no isolation `{0}`; there are `protection-keys`, `prefer` and `none`")]
pub struct Unknown(String);

impl FromStr for Wanted {
    type Err = Unknown;

    fn from_str(word: &str) -> Result<Self, Unknown> {
        let known = Self::WORDS.into_iter().find(|(_, known)| *known == word);
        known.map(|(wanted, _)| wanted).ok_or_else(|| Unknown(word.to_owned()))
    }
}

/// What keeps functions from their worker's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// [`Isolation::ProtectionKeys`] or [`Isolation::None`].
    pub isolation: Isolation,
    /// Why there are no keys.
    pub why_not: Option<String>,
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.isolation.fmt(f)?;
        self.why_not.iter().try_for_each(|why| write!(f, " ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_has_the_words_of_compose_files() {
        for (wanted, word) in Wanted::WORDS {
            assert_eq!((word.parse(), wanted.to_string().as_str()), (Ok(wanted), word));
        }
        let why = "keys".parse::<Wanted>().unwrap_err().to_string();
        assert_eq!(why, "no isolation `keys`; there are `protection-keys`, `prefer` and `none`");
        let none = InForce { isolation: Isolation::None, why_not: Some("no reason".into()) };
        assert_eq!(none.to_string(), "none (no reason)");
    }
}
