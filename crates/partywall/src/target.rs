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
    /// `http://` is not followed by a host and, perhaps, a port.
    #[error("`{text}`: {why}; write http://HOST:PORT")]
    Http {
        /// The text.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// `unix:` is not followed by a path that a socket can have.
    #[error("`{text}`: {why}; write unix:/PATH")]
    Unix {
        /// The text.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
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
        Self::network(text)?.ok_or_else(|| TargetError::Scheme { text: text.into() })
    }

    /// Reads one address to serve at: a bare name, or where to listen for HTTP/2.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse_listen(text: &str) -> Result<Self, TargetError> {
        let text = text.trim();
        match Self::network(text)? {
            Some(Self::Http(url)) if http(&url).is_ok_and(|uri| uri.port().is_none()) => {
                Err(TargetError::Http { text: url, why: "no port to listen at".into() })
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

    fn network(text: &str) -> Result<Option<Self>, TargetError> {
        if text.starts_with("http://") {
            return match http(text) {
                Ok(_) => Ok(Some(Self::Http(text.into()))),
                Err(why) => Err(TargetError::Http { text: text.into(), why }),
            };
        }
        let Some(path) = text.strip_prefix("unix:") else { return Ok(None) };
        let path = path.strip_prefix("//").unwrap_or(path);
        let wrong = |why| Err(TargetError::Unix { text: text.into(), why });
        if path.is_empty() {
            return wrong("no path");
        }
        if path.contains('\0') {
            return wrong("a path has no zero byte");
        }
        if path.len() > UNIX_PATH_BYTES {
            return wrong("a socket's path has at most 107 bytes");
        }
        Ok(Some(Self::Unix(path.into())))
    }
}

/// Longest path of a Unix socket, in bytes: `sun_path` of unix(7) less its zero.
const UNIX_PATH_BYTES: usize = 107;

/// The address in `http://host:port`, or what is wrong with it.
pub(crate) fn http(text: &str) -> Result<http::Uri, String> {
    let uri: http::Uri = text.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
    let Some(authority) = uri.authority() else { return Err("no host".into()) };
    if authority.host().is_empty() {
        return Err("no host".into());
    }
    if authority.as_str().contains('@') {
        return Err("a user name says nothing here".into());
    }
    let host_and_port = authority.as_str().len() > authority.host().len();
    if host_and_port && authority.port_u16().is_none() {
        return Err("the port is no number from 0 to 65535".into());
    }
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err("an address has no path of its own".into());
    }
    Ok(uri)
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
            ("http://", "http://HOST:PORT"),
            ("http://a b", "invalid uri character; write http://HOST:PORT"),
            ("http://:1", "no host"),
            ("http://h:x", "the port is no number"),
            ("http://h:65536", "the port is no number"),
            ("http://h:", "the port is no number"),
            ("http://me@h:1", "a user name"),
            ("http://h:1/v1", "no path of its own"),
            ("http://h:1?x", "no path of its own"),
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        let message = Target::parse(&long).unwrap_err().to_string();
        assert!(message.contains("at most 107 bytes"), "{message}");
        assert!(Target::parse(&long[..long.len() - 1]).is_ok());
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
