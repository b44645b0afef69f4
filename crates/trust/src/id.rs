//! Names of identities: SPIFFE IDs.

use std::fmt;
use std::str::FromStr;

/// The most bytes of an ID.
const ID_BYTES: usize = 2048;
/// The most bytes of a trust domain.
const DOMAIN_BYTES: usize = 255;
/// Before the name of a service in a path.
const SERVICE: &str = "/service/";
/// Before the number of a user in a path.
const USER: &str = "/user/";

/// What is no SPIFFE ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no SPIFFE ID: {why}")]
pub struct IdError {
    text: String,
    why: &'static str,
}

/// A trust domain: the name of an authority and of all that it certifies.
///
/// # References
/// The SPIFFE Identity and Verifiable Identity Document, section 2.1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(String);

impl TrustDomain {
    /// A domain of this name: up to 255 bytes of `a-z 0-9 . - _`.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn new(name: &str) -> Result<Self, IdError> {
        let refuse = |why| Err(IdError { text: shown(name), why });
        let is_known = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
        if name.is_empty() || name.len() > DOMAIN_BYTES {
            return refuse("a trust domain has 1 to 255 bytes");
        }
        if !name.bytes().all(is_known) {
            return refuse("a trust domain has the letters a-z, digits, `.`, `-` and `_`");
        }
        Ok(Self(name.into()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The ID of the domain itself, which the certificate of its authority has.
    pub fn id(&self) -> String {
        format!("spiffe://{self}")
    }

    /// The ID of a service in it.
    ///
    /// # Errors
    /// [`IdError`] where the name has other characters than `a-z A-Z 0-9 . - _`.
    pub fn service(&self, name: &str) -> Result<Id, IdError> {
        let id = Id::new(format!("spiffe://{self}{SERVICE}{name}"))?;
        if id.service().is_none() {
            return Err(IdError { text: id.text, why: "the name of a service has no `/`" });
        }
        Ok(id)
    }

    /// The ID of what a user runs that is no service.
    pub fn user(&self, uid: u32) -> Id {
        Id::new(format!("spiffe://{self}{USER}{uid}")).expect("digits are allowed")
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A SPIFFE ID: `spiffe://TRUST-DOMAIN/PATH`.
///
/// # References
/// The SPIFFE Identity and Verifiable Identity Document, section 2.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    text: String,
    domain: usize,
}

impl Id {
    fn new(text: String) -> Result<Self, IdError> {
        let checked = Self::checked(&text);
        checked.map_err(|why| IdError { text: shown(&text), why }).map(|domain| {
            // `text` is moved here, whole.
            Self { text, domain }
        })
    }

    /// Where its path begins.
    fn checked(text: &str) -> Result<usize, &'static str> {
        let Some(rest) = text.strip_prefix("spiffe://") else {
            return Err("it does not begin with `spiffe://`");
        };
        if text.len() > ID_BYTES {
            return Err("it has over 2048 bytes");
        }
        let Some(at) = rest.find('/') else { return Err("it has no path") };
        let (domain, path) = rest.split_at(at);
        TrustDomain::new(domain).map_err(|refused| refused.why)?;
        let is_known = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        for segment in path[1..].split('/') {
            if segment.is_empty() || segment == "." || segment == ".." {
                return Err("its path has an empty segment, or `.` or `..`");
            }
            if !segment.bytes().all(is_known) {
                return Err("its path has other characters than letters, digits, `.`, `-` and `_`");
            }
        }
        Ok(text.len() - path.len())
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its trust domain.
    pub fn domain(&self) -> TrustDomain {
        TrustDomain(self.text["spiffe://".len()..self.domain].into())
    }

    /// Its path, with the first `/`.
    pub fn path(&self) -> &str {
        &self.text[self.domain..]
    }

    /// The name of the service, if it is one's.
    pub fn service(&self) -> Option<&str> {
        self.path().strip_prefix(SERVICE).filter(|name| !name.contains('/'))
    }

    /// The number of the user, if it is one's: as it is written there, so without zeros before it.
    pub fn user(&self) -> Option<u32> {
        let text = self.path().strip_prefix(USER)?;
        let number: u32 = text.parse().ok()?;
        (number.to_string() == text).then_some(number)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::new(text.into())
    }
}

/// A text that somebody else has written, without what a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(256).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_specification() {
        let domain = TrustDomain::new("shop.example").unwrap();
        let id = domain.service("billing").unwrap();
        assert_eq!(id.as_str(), "spiffe://shop.example/service/billing");
        assert_eq!((id.domain(), id.path()), (domain.clone(), "/service/billing"));
        assert_eq!((id.service(), id.user()), (Some("billing"), None));
        assert_eq!(domain.user(7).user(), Some(7));
        assert_eq!(domain.user(7).service(), None);
        let deep: Id = "spiffe://a/service/b/c".parse().unwrap();
        assert_eq!((deep.service(), deep.user()), (None, None));
        for (text, why) in [
            ("https://a/b", "begin with"),
            ("spiffe://a", "no path"),
            ("spiffe:///a", "1 to 255"),
            ("spiffe://A/b", "the letters a-z"),
            ("spiffe://a:80/b", "the letters a-z"),
            ("spiffe://u@a/b", "the letters a-z"),
            ("spiffe://a/", "empty segment"),
            ("spiffe://a/b/", "empty segment"),
            ("spiffe://a/b//c", "empty segment"),
            ("spiffe://a/../c", "empty segment"),
            ("spiffe://a/b?c", "other characters"),
            ("spiffe://a/b#c", "other characters"),
            ("spiffe://a/%62", "other characters"),
            ("spiffe://a/\u{e9}", "other characters"),
        ] {
            let refused = text.parse::<Id>().unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains(text), "{text}: {refused}");
        }
        assert!(domain.service("../x").is_err() && domain.service("a/b").is_err());
        assert!(format!("spiffe://a/{}", "b".repeat(2048)).parse::<Id>().is_err());
    }

    #[test]
    fn ids_and_domains_have_their_longest() {
        let of = |len: usize| format!("spiffe://a/{}", "b".repeat(len - "spiffe://a/".len()));
        assert_eq!(of(ID_BYTES).parse::<Id>().unwrap().as_str(), of(ID_BYTES));
        let refused = of(ID_BYTES + 1).parse::<Id>().unwrap_err().to_string();
        assert!(refused.ends_with("it has over 2048 bytes") && refused.len() < 400, "{refused}");
        let long = TrustDomain::new(&"d".repeat(DOMAIN_BYTES)).unwrap();
        assert_eq!(long.user(u32::MAX).domain(), long);
        assert!(TrustDomain::new(&"d".repeat(DOMAIN_BYTES + 1)).is_err());
        assert!(long.service(&"s".repeat(ID_BYTES)).is_err());
        for name in ["", "A", "a b", "a/b", "a:1", "\u{e9}", "a\n"] {
            assert!(TrustDomain::new(name).is_err(), "{name}");
        }
        assert_eq!(TrustDomain::new("a-b_c.0").unwrap().id(), "spiffe://a-b_c.0");
    }

    /// Two IDs that differ are not of one service or user.
    #[test]
    fn a_number_of_a_user_is_written_in_one_way() {
        let user = |path: &str| format!("spiffe://a{path}").parse::<Id>().unwrap().user();
        assert_eq!([user("/user/0"), user("/user/4294967295")], [Some(0), Some(u32::MAX)]);
        for path in ["/user/00", "/user/07", "/user/4294967296", "/user/-1", "/user/7/8", "/user/x"]
        {
            assert_eq!(user(path), None, "{path}");
        }
        let service = |path: &str| format!("spiffe://a{path}").parse::<Id>().unwrap();
        assert_eq!(service("/service/7").service(), Some("7"));
        assert_eq!(service("/services/7").service(), None);
        assert_eq!(service("/service").service(), None);
        assert_eq!(service("/Service/7").service(), None);
        // A `+` is not in an ID at all.
        assert!("spiffe://a/user/+7".parse::<Id>().is_err());
    }

    #[test]
    fn what_is_no_id_is_shown_without_control() {
        let refused = "spiffe://a/\u{1b}[31m\n".parse::<Id>().unwrap_err().to_string();
        assert!(refused.starts_with("`spiffe://a/[31m` is no SPIFFE ID"), "{refused}");
        assert_eq!(shown(&"\u{e9}".repeat(300)), "\u{e9}".repeat(256));
    }
}
