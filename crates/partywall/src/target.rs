//! Where to call and where to serve, as text.

use partywall_abi::name::{NameError, ServiceName};
use partywall_shm::address::{Address, AddressError};

/// What a channel connects to, and where a server is bound.
///
/// ```
/// use partywall::Target;
///
/// let name = Target::parse("partywall:///greeter")?;
/// assert_eq!(name, Target::parse_listen("greeter")?);
/// assert_eq!(name.to_string(), "partywall:///greeter");
/// assert_eq!(Target::parse("unix:///run/a.sock")?, Target::Unix("/run/a.sock".into()));
/// # Ok::<(), partywall::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// `partywall:///name`: whatever the coordinator knows under the name.
    Name(ServiceName),
    /// `http://host:port`: HTTP/2 over TCP, to anybody.
    Http(String),
    /// `https://host:port`: the same by mutual TLS, with the certificates of the coordinator.
    Https(String),
    /// `unix:/path` or `unix:///path`: HTTP/2 over a Unix socket, to anybody.
    Unix(std::path::PathBuf),
}

/// Why a text is no target. The text of the error says what to write:
///
/// ```
/// let error = partywall::Target::parse("partywall://greeter").unwrap_err();
/// assert!(error.to_string().ends_with("write partywall:///NAME with three slashes"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The scheme is unknown.
    #[error("`{text}`: write partywall:///NAME, http://HOST:PORT or unix:/PATH")]
    Scheme {
        /// The text.
        text: String,
    },
    /// An address, in a build without HTTP/2.
    #[error(
        "`{text}`: this program is built without HTTP/2, and has names alone; remedy: build it with the \
         feature `http2` of crate `partywall`"
    )]
    NoHttp2 {
        /// The text.
        text: String,
    },
    /// Nothing can be served there.
    #[error("`{text}`: write NAME (such as `greeter`), http://HOST:PORT or unix:/PATH")]
    Listen {
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
    /// It begins as an address, and is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nothing to serve at.
    #[error("`{text}`: an empty address")]
    Empty {
        /// The text.
        text: String,
    },
}

/// As [`Target::parse`] reads it.
impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "partywall:///{name}"),
            Self::Http(url) | Self::Https(url) => f.write_str(url),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Target {
    /// Reads a target: `partywall:///NAME`, `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`.
    ///
    /// # Errors
    /// [`TargetError`], each variant for its reason.
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
        Self::network(text)?.ok_or_else(|| TargetError::Scheme { text: text.into() })
    }

    /// Reads one address to serve at: a bare name, or where to listen for HTTP/2, which is
    /// `http://HOST:PORT` or `https://HOST:PORT` (port 0 for one that the kernel chooses), or `unix:/PATH`.
    ///
    /// # Errors
    /// [`TargetError`], each variant for its reason.
    pub fn parse_listen(text: &str) -> Result<Self, TargetError> {
        let text = text.trim();
        match Self::network(text)? {
            Some(Self::Http(text) | Self::Https(text)) if !has_port(&text) => {
                Err(AddressError::Http { text, why: "no port to listen at".into() }.into())
            }
            Some(target) => Ok(target),
            None if text.is_empty() => Err(TargetError::Empty { text: text.into() }),
            None if text.contains(':') => Self::parse(text).map_err(|error| match error {
                TargetError::Scheme { text } => TargetError::Listen { text },
                other => other,
            }),
            None => Ok(Self::Name(ServiceName::new(text)?)),
        }
    }

    /// The name, if it is one.
    pub(crate) fn name(&self) -> Option<&ServiceName> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    fn network(text: &str) -> Result<Option<Self>, TargetError> {
        match Address::parse(text) {
            Ok(_) if !cfg!(feature = "http2") => Err(TargetError::NoHttp2 { text: text.into() }),
            Ok(Address::Http(_)) => Ok(Some(Self::Http(text.into()))),
            Ok(Address::Https(_)) => Ok(Some(Self::Https(text.into()))),
            Ok(Address::Unix(path)) => Ok(Some(Self::Unix(path))),
            Err(AddressError::Scheme { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn has_port(url: &str) -> bool {
    let uri = match Address::parse(url) {
        Ok(Address::Http(uri) | Address::Https(uri)) => uri,
        _ => return false,
    };
    uri.port().is_some()
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
        for url in ["http://h:1", "http://h", "http://[::1]:1/", "http://127.0.0.1:65535"] {
            assert_eq!(Target::parse(url).unwrap(), Target::Http(url.into()));
        }
        for text in ["partywall:///greeter", "unix:/a/b", "http://[::1]:1/"] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Target::parse_listen(" greeter").unwrap(), name);
        assert_eq!(Target::parse_listen("unix:/a").unwrap(), Target::Unix("/a".into()));
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, part) in [
            ("partywall://greeter", "three slashes"),
            ("partywall:///Greeter", "a-z"),
            ("ftp://h", "http://HOST:PORT"),
            ("https://", "http://HOST:PORT"),
            ("greeter", "partywall:///NAME"),
            ("unix:", "unix:/PATH"),
            ("http://", "http://HOST:PORT"),
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let message = Target::parse_listen("http://1.2.3.4").unwrap_err().to_string();
        assert!(message.contains("no port"), "{message}");
        assert!(Target::parse_listen("").is_err());
        let message = Target::parse_listen("ftp://x").unwrap_err().to_string();
        assert!(
            message.contains("write NAME (such as `greeter`)"),
            "a server has a bare name: {message}"
        );
    }
}
