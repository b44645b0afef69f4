//! Addresses of HTTP/2: `http://HOST:PORT`, `https://HOST:PORT` and `unix:/PATH`, as programs and policies
//! write them.

use std::path::PathBuf;

use partywall_abi::security::Security;

/// Longest path of a Unix socket, in bytes: `sun_path` of unix(7) less its zero.
const UNIX_PATH_BYTES: usize = 107;

/// Where HTTP/2 is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `http://HOST:PORT`; the port may be missing.
    Http(http::Uri),
    /// `https://HOST:PORT`: the same, by mutual TLS with the coordinator's certificates.
    Https(http::Uri),
    /// `unix:/PATH` or `unix:///PATH`.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The scheme is another one, or there is none.
    #[error("`{text}`: write http://HOST:PORT, https://HOST:PORT or unix:/PATH")]
    Scheme {
        /// The text.
        text: String,
    },
    /// `http://` or `https://` is not followed by a host and, perhaps, a port.
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
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = |why| AddressError::Http { text: text.into(), why };
        if text.starts_with("http://") {
            return http(text).map(Self::Http).map_err(wrong);
        }
        if text.starts_with("https://") {
            return http(text).map(Self::Https).map_err(wrong);
        }
        let Some(path) = text.strip_prefix("unix:") else {
            return Err(AddressError::Scheme { text: text.into() });
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        let wrong = |why| Err(AddressError::Unix { text: text.into(), why });
        if path.is_empty() {
            return wrong("no path");
        }
        if path.contains('\0') {
            return wrong("a path has no zero byte");
        }
        if path.len() > UNIX_PATH_BYTES {
            return wrong("a socket's path has at most 107 bytes");
        }
        Ok(Self::Unix(path.into()))
    }

    /// What protects a connection to it. Without TLS the identity of who answers is not verified, and others
    /// may be on the network's path, even where the host is this one.
    pub fn security(&self) -> Security {
        match self {
            Self::Http(_) => Security::NETWORK,
            Self::Https(_) => Security::MUTUAL_TLS,
            Self::Unix(_) => Security::UNIX_SOCKET,
        }
    }
}

fn http(text: &str) -> Result<http::Uri, String> {
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
    fn the_three_schemes_of_addresses() {
        assert_eq!(Address::parse("unix:///a/b").unwrap(), Address::Unix("/a/b".into()));
        assert_eq!(Address::parse("unix:a").unwrap(), Address::Unix("a".into()));
        for url in ["http://h:1", "http://h", "http://[::1]:1/", "http://127.0.0.1:65535"] {
            assert_eq!(Address::parse(url).unwrap(), Address::Http(url.parse().unwrap()));
        }
        let https = Address::Https("https://h:1".parse().unwrap());
        assert_eq!(Address::parse("https://h:1"), Ok(https.clone()));
        assert_eq!(https.security(), Security::MUTUAL_TLS);
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, part) in [
            ("ftp://h", "http://HOST:PORT"),
            ("https://", "http://HOST:PORT"),
            ("https://h:x", "the port is no number"),
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
            let message = Address::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        let message = Address::parse(&long).unwrap_err().to_string();
        assert!(message.contains("at most 107 bytes"), "{message}");
        assert!(Address::parse(&long[..long.len() - 1]).is_ok());
    }
}
