//! Service names and method patterns.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use crate::limits;

/// A service name that has been checked: 1 to 63 bytes of `a-z 0-9 . _ -`, the first one a
/// letter or a digit.
///
/// ```
/// # use partywall_abi::name::ServiceName;
/// assert_eq!(ServiceName::new("greeter").unwrap().as_str(), "greeter");
/// assert!(ServiceName::new("Greeter").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName(String);

/// Why a text is no service name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no service name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a \
     letter or digit"
)]
pub struct NameError {
    /// The text, shortened to what is worth printing.
    pub text: String,
}

impl ServiceName {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`NameError`] when it is empty, too long, or has a character outside the set.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let ok = (1..=limits::NAME_BYTES).contains(&text.len())
            && text.as_bytes()[0].is_ascii_alphanumeric()
            && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'));
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError { text: text.chars().take(limits::NAME_BYTES + 1).collect() })
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl core::fmt::Display for ServiceName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One entry of a method set.
///
/// The text forms are `*` (every method), `Method` (that method of every gRPC service at the
/// name), `package.Service/*` and `package.Service/Method`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodPattern {
    service: Option<String>,
    method: Option<String>,
}

/// Why a text is no method pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no method pattern: write `package.Service/Method`, `package.Service/*`, \
     `Method` or `*`"
)]
pub struct PatternError {
    /// The text, shortened to what is worth printing.
    pub text: String,
}

impl MethodPattern {
    /// The pattern that covers every method.
    pub fn any() -> Self {
        Self { service: None, method: None }
    }

    /// Checks `text`.
    ///
    /// # Errors
    /// [`PatternError`] when it is empty, too long, or not one of the four forms.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let bad = || PatternError { text: text.chars().take(80).collect() };
        let word = |w: &str| {
            !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
        };
        if text.len() > limits::PATTERN_BYTES {
            return Err(bad());
        }
        let (service, method) = match text.split_once('/') {
            None => (None, text),
            Some((service, method)) if word(service) => (Some(service.to_owned()), method),
            Some(_) => return Err(bad()),
        };
        let method = match method {
            "*" => None,
            m if word(m) && !m.contains('.') => Some(m.to_owned()),
            _ => return Err(bad()),
        };
        Ok(Self { service, method })
    }

    /// Whether the pattern covers a path: that of a gRPC method, `/package.Service/Method`; `*` covers
    /// all others as well, which layers and routes of plain HTTP may have.
    pub fn covers(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix('/').filter(|rest| !rest.contains(['?', '#'])) else {
            return false;
        };
        if self.service.is_none() && self.method.is_none() {
            return true;
        }
        let Some((service, method)) = rest.rsplit_once('/') else { return false };
        !service.contains('/')
            && self.service.as_deref().is_none_or(|s| s == service)
            && self.method.as_deref().is_none_or(|m| m == method)
    }
}

impl core::fmt::Display for MethodPattern {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let method = self.method.as_deref().unwrap_or("*");
        match &self.service {
            Some(service) => write!(f, "{service}/{method}"),
            None => f.write_str(method),
        }
    }
}

/// Stands for a method in texts that say what to write.
pub const EXAMPLE: &str = "package.Service/Method";

/// The methods that one caller may call at one name; empty means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodSet {
    /// In order, each once, so that equal sets are equal values.
    patterns: Vec<MethodPattern>,
    /// [`MethodSet::remedy`].
    remedy: String,
}

impl MethodSet {
    /// The set that covers every method.
    pub fn all() -> Self {
        Self { patterns: alloc::vec![MethodPattern::any()], remedy: String::new() }
    }

    /// The same set, with what to write into the policy so that it covers more.
    #[must_use]
    pub fn with_remedy(self, remedy: String) -> Self {
        Self { remedy, ..self }
    }

    /// What to write into the policy so that the set covers more, as the end of a sentence, with
    /// [`EXAMPLE`] for a method; empty where no policy has made it.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Adds a pattern; one that is there already is not added again.
    pub fn add(&mut self, pattern: MethodPattern) {
        if let Err(at) = self.patterns.binary_search(&pattern) {
            self.patterns.insert(at, pattern);
        }
    }

    /// Whether no method is covered.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether some pattern covers the gRPC path `/package.Service/Method`.
    pub fn covers(&self, path: &str) -> bool {
        self.patterns.iter().any(|p| p.covers(path))
    }

    /// The patterns.
    pub fn patterns(&self) -> &[MethodPattern] {
        &self.patterns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_are_checked() {
        for good in ["a", "greeter", "0x", "a.b-c_d", &"x".repeat(63)] {
            assert_eq!(ServiceName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "A", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(ServiceName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn patterns_cover_what_they_say() {
        let path = "/pkg.v1.Greeter/SayHello";
        for yes in ["*", "SayHello", "pkg.v1.Greeter/*", "pkg.v1.Greeter/SayHello"] {
            let p = MethodPattern::new(yes).unwrap();
            assert!(p.covers(path), "{yes}");
            assert_eq!(p.to_string(), yes);
        }
        for no in ["SayBye", "pkg.v1.Other/*", "pkg.v1.Greeter/SayBye", "v1.Greeter/SayHello"] {
            assert!(!MethodPattern::new(no).unwrap().covers(path), "{no}");
        }
        for bad in ["", "/", "a/b/c", "/x", "x/", "a b", "x/y.z", "pkg.Service"] {
            assert!(MethodPattern::new(bad).is_err(), "{bad:?}");
        }
        for path in ["nopath", "", "/a.B/Secret?/Open", "/a.B/C#d"] {
            assert!(!MethodPattern::any().covers(path), "{path}");
        }
        for path in ["/", "/plain", "/a.B/x/Open", "/a.B/C/"] {
            assert!(MethodPattern::any().covers(path), "{path}");
            assert!(!MethodPattern::new("Open").unwrap().covers(path), "{path}");
            assert!(
                !MethodPattern::new("a.B/*").unwrap().covers(path) || path == "/a.B/",
                "{path}"
            );
        }
    }

    #[test]
    fn an_empty_set_covers_nothing() {
        assert!(!MethodSet::default().covers("/a.B/C"));
        assert!(MethodSet::all().covers("/a.B/C"));
    }
}
