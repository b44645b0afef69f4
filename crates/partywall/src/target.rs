//! Where to call and where to serve, as text.

use partywall_abi::name::{NameError, ServiceName};

/// What a channel connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// `partywall:///name`: whatever the coordinator knows under the name.
    Name(ServiceName),
    /// `http://host:port`: HTTP/2 over TCP, to anybody.
    Http(String),
    /// `unix:/path` or `unix:///path`: HTTP/2 over a Unix socket, to anybody.
    Unix(std::path::PathBuf),
}

/// Why a text is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The scheme is unknown.
    #[error("`{text}`: write partywall:///NAME, http://HOST:PORT or unix:/PATH")]
    Scheme {
        /// The text.
        text: String,
    },
    /// `partywall://x/...` names a host.
    #[error(
        "`{text}`: a Partywall name is on this host; write partywall:///NAME with three slashes"
    )]
    Authority {
        /// The text.
        text: String,
    },
    /// The name is no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nothing to serve at.
    #[error("`{text}`: an empty address")]
    Empty {
        /// The text.
        text: String,
    },
}

impl Target {
    /// Reads a target.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix("partywall:") {
            let name = match rest.strip_prefix("//") {
                None => rest,
                Some(rest) => rest
                    .strip_prefix('/')
                    .ok_or_else(|| TargetError::Authority { text: text.into() })?,
            };
            return Ok(Self::Name(ServiceName::new(name)?));
        }
        Self::network(text).ok_or_else(|| TargetError::Scheme { text: text.into() })
    }

    /// Reads one address to serve at: a bare name, or where to listen for HTTP/2.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse_listen(text: &str) -> Result<Self, TargetError> {
        let text = text.trim();
        match Self::network(text) {
            Some(target) => Ok(target),
            None if text.is_empty() => Err(TargetError::Empty { text: text.into() }),
            None if text.contains(':') => Self::parse(text),
            None => Ok(Self::Name(ServiceName::new(text)?)),
        }
    }

    fn network(text: &str) -> Option<Self> {
        if let Some(host) = text.strip_prefix("http://") {
            return (!host.is_empty()).then(|| Self::Http(text.into()));
        }
        let path = text.strip_prefix("unix:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        (!path.is_empty()).then(|| Self::Unix(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_schemes() {
        let name = Target::Name(ServiceName::new("greeter").unwrap());
        assert_eq!(Target::parse("partywall:///greeter").unwrap(), name);
        assert_eq!(Target::parse("partywall:greeter").unwrap(), name);
        assert_eq!(Target::parse("unix:///a/b").unwrap(), Target::Unix("/a/b".into()));
        assert_eq!(Target::parse("unix:a").unwrap(), Target::Unix("a".into()));
        assert_eq!(Target::parse("http://h:1").unwrap(), Target::Http("http://h:1".into()));
        assert_eq!(Target::parse_listen(" greeter").unwrap(), name);
        assert_eq!(Target::parse_listen("unix:/a").unwrap(), Target::Unix("/a".into()));
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, part) in [
            ("partywall://greeter", "three slashes"),
            ("partywall:///Greeter", "a-z"),
            ("https://h", "http://HOST:PORT"),
            ("greeter", "partywall:///NAME"),
            ("unix:", "unix:/PATH"),
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(Target::parse_listen("").is_err());
        assert!(Target::parse_listen("ftp://x").is_err());
    }
}
