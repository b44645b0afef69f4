//! With whose functions a function may meet in a worker process; see the groups.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// With whose functions a function may meet in a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// With none.
    Function,
    /// With its owner's.
    Owner,
    /// With those of all owners that say so.
    #[default]
    All,
}

impl Share {
    /// All of them, the strictest first.
    pub const EACH: [Self; 3] = [Self::Function, Self::Owner, Self::All];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Owner => "owner",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(self.name())
    }
}

/// A text that is no [`Share`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share: functions share a worker process by `function`, `owner` or `all`")]
pub struct UnknownShare(String);

impl FromStr for Share {
    type Err = UnknownShare;

    fn from_str(text: &str) -> Result<Self, UnknownShare> {
        let found = Self::EACH.into_iter().find(|share| share.name() == text);
        found.ok_or_else(|| UnknownShare(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_names() {
        for share in Share::EACH {
            assert_eq!(share.to_string().parse(), Ok(share));
            let bytes = postcard::to_stdvec(&share).unwrap();
            assert_eq!(postcard::from_bytes::<Share>(&bytes).unwrap(), share);
        }
        let refused = "everybody".parse::<Share>().unwrap_err().to_string();
        assert!(refused.contains("`everybody`") && refused.contains("`owner`"), "{refused}");
        assert_eq!(Share::default(), Share::All);
    }
}
