//! Pins: keys that are known beforehand, whoever vouches for others.
//!
//! A pin is the SHA-256 of a SubjectPublicKeyInfo in DER (RFC 7469, section 2.4), written `sha256/` and
//! base64 (RFC 4648, section 4). It is of a key and not of a certificate, so that a certificate can be
//! renewed for the same key.
//!
//! What a pin is compared with are the keys of the path by which a certificate was verified: its own, those
//! of who has signed it, and that of the root. What else the other end has sent is nothing that it has the
//! key of: anybody can send a root's certificate.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const PREFIX: &str = "sha256/";

/// The SHA-256 of a public key, in the form in which certificates have it (SubjectPublicKeyInfo).
///
/// ```
/// use partywall_trust::Pin;
///
/// let text = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
/// assert_eq!(text.parse::<Pin>().unwrap().to_string(), text);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// Why a text is no pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no pin: {why}; remedy: write sha256/ and base64, as `partywall ca show` prints it"
)]
pub struct PinError {
    text: String,
    why: &'static str,
}

impl Pin {
    /// Of a public key in DER.
    pub fn of_key(der: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, der);
        Self(digest.as_ref().try_into().expect("SHA-256 has so many bytes"))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let wrong = |why| {
            let text = crate::id::shown(&text.chars().take(80).collect::<String>());
            PinError { text, why }
        };
        let encoded = text.strip_prefix(PREFIX).ok_or_else(|| wrong("it does not begin so"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| wrong("what follows is no base64"))?;
        let digest = bytes.try_into().map_err(|_| wrong("what follows is no SHA-256"))?;
        Ok(Self(digest))
    }
}

/// Pins as a list.
pub(crate) fn listed(pins: &[Pin]) -> String {
    pins.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_what_openssl_makes_of_a_key() {
        let key = crate::SigningKey::generate().public();
        let (dir, der) = (tempfile(), key.to_der());
        let file = dir.join("key.der");
        std::fs::write(&file, &der).unwrap();
        let out = std::process::Command::new("openssl")
            .args(["dgst", "-sha256", "-binary"])
            .arg(&file)
            .output()
            .expect("openssl, of Debian's package of that name");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(out.status.success());
        let expected = format!("sha256/{}", STANDARD.encode(out.stdout));
        assert_eq!(Pin::of_key(&der).to_string(), expected);
        assert_eq!(expected.parse(), Ok(Pin::of_key(&der)));
    }

    fn tempfile() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("pin-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn what_is_no_pin_is_refused_with_the_form() {
        let long = "x".repeat(100_000);
        for (text, why) in [
            ("", "does not begin so"),
            ("sha512/47DEQpj8HBSa", "does not begin so"),
            ("sha256/", "no SHA-256"),
            ("sha256/47DEQpj8HBSa", "no SHA-256"),
            ("sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU", "no base64"),
            ("sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuF\n=", "no base64"),
            (&long, "does not begin so"),
        ] {
            let refused = text.parse::<Pin>().unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("`partywall ca show`"), "{refused}");
            assert!(refused.len() < 300 && !refused.contains('\n'), "{refused}");
        }
    }
}
