//! Addresses of HTTP/2: `http://HOST:PORT`, `https://HOST:PORT` and `unix:/PATH`, as programs and policies
//! write them; and several of them for one name, as policies do.

use std::path::PathBuf;

use partywall_abi::limits;
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
    /// Several addresses for one name that do not go together.
    #[error("{why}; write one address, or a list of https://HOST:PORT, each once")]
    List {
        /// What is wrong.
        why: String,
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

/// What is between two addresses of a name; no URI has a space.
const BETWEEN: &str = ", ";

/// The addresses of one name: one, or several of `http://` or of `https://`. Its text is the address, or all
/// with a comma and a space between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    text: String,
    /// At least one.
    all: Vec<Address>,
}

impl Addresses {
    /// Most addresses of one name.
    pub const MOST: usize = 16;

    /// The addresses in a list.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn of<T: AsRef<str>>(list: &[T]) -> Result<Self, AddressError> {
        let wrong = |why| Err(AddressError::List { why });
        if list.is_empty() {
            return wrong("no address".into());
        }
        if list.len() > Self::MOST {
            return wrong(format!("a name has at most {} addresses", Self::MOST));
        }
        let parsed = list.iter().map(|text| Address::parse(text.as_ref()));
        let all = parsed.collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<&str> = list.iter().map(AsRef::as_ref).collect();
        let text = texts.join(BETWEEN);
        if text.len() > limits::URL_BYTES {
            let most = limits::URL_BYTES;
            return wrong(format!("the addresses of a name have at most {most} bytes together"));
        }
        if let [one, others @ ..] = &all[..]
            && !others.is_empty()
        {
            if let Some(unix) = all.iter().position(|a| matches!(a, Address::Unix(_))) {
                return wrong(format!("`{}` is a socket of this host, and in a list", texts[unix]));
            }
            if let Some(other) = others.iter().position(|a| a.security() != one.security()) {
                let (one, other) = (texts[0], texts[other + 1]);
                return wrong(format!("`{one}` and `{other}` are not protected alike"));
            }
            if let Some(again) = (1..all.len()).find(|n| all[..*n].contains(&all[*n])) {
                return wrong(format!("`{}` is there twice", texts[again]));
            }
        }
        Ok(Self { text, all })
    }

    /// Reads the text of addresses.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("unix:") {
            return Self::of(&[text]);
        }
        Self::of(&text.split(BETWEEN).collect::<Vec<_>>())
    }

    /// Each address, as it was written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let one = matches!(self.all[..], [Address::Unix(_)]).then_some(&*self.text);
        let several = one.is_none().then(|| self.text.split(BETWEEN));
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The text of all.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What protects a connection to any of them.
    pub fn security(&self) -> Security {
        self.all[0].security()
    }
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
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
    fn a_name_has_one_address_or_several() {
        for text in ["unix:/a, b", "http://h", "https://a:1, https://b:1, https://[::1]:1"] {
            let addresses = Addresses::parse(text).unwrap();
            assert_eq!(addresses.to_string(), text);
            let again = Addresses::of(&addresses.texts().collect::<Vec<_>>()).unwrap();
            assert_eq!(again, addresses);
        }
        let three = Addresses::parse("https://a:1, https://b:1, https://c:1").unwrap();
        assert_eq!(
            three.texts().collect::<Vec<_>>(),
            ["https://a:1", "https://b:1", "https://c:1"]
        );
        assert_eq!(three.security(), Security::MUTUAL_TLS);
        assert_eq!(Addresses::parse("unix:/a, b").unwrap().texts().count(), 1);
    }

    #[test]
    fn lists_of_addresses_that_do_not_go_together_say_why() {
        let many: Vec<String> = (0..17).map(|n| format!("https://h{n}:1")).collect();
        Addresses::of(&many[..16]).unwrap();
        let long: Vec<String> =
            (0..9).map(|n| format!("https://{}{n}:1", "h".repeat(240))).collect();
        let many: Vec<&str> = many.iter().map(|text| &**text).collect();
        let long: Vec<&str> = long.iter().map(|text| &**text).collect();
        for (list, part) in [
            (&[][..], "no address"),
            (&many, "at most 16 addresses"),
            (&long, "at most 2048 bytes"),
            (&["https://a:1", "http://b:1"], "`https://a:1` and `http://b:1` are not protected"),
            (&["https://a:1", "unix:/b"], "`unix:/b` is a socket of this host"),
            (&["https://a:1", "https://b:1", "https://A:1"], "`https://A:1` is there twice"),
            (&["https://a:1, https://b:1"], "invalid uri character"),
        ] {
            let message = Addresses::of(list).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(Addresses::parse("https://a:1,https://b:1").is_err());
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
