//! Signatures of programs: which service a program is, which names it may serve, and until when.
//!
//! A signature is an envelope with a statement about SHA-256 of the program, or about the id of a container
//! image. Each reason why there is none that counts is its own: altered, unsigned, untrusted, expired,
//! revoked, or for another name.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::envelope::EnvelopeError;
use crate::id::shown;
use crate::key::{PublicKey, SigningKey, hex};
use crate::statement::{Statement, StatementError};

/// The type of the predicate.
const PREDICATE: &str = "tag:partywall,2026:service";
/// How far the clocks of the host that signs and of the one that checks may be apart, in seconds.
const SKEW: u64 = 60;
/// The last second of the year 9999, after which dates have another form.
const LAST: u64 = 253_402_300_799;
/// The most names of a signature.
const NAMES: usize = 256;

/// What is said of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The service that it is: the name under which it is started.
    pub service: String,
    /// The names that it may serve.
    pub register: Vec<String>,
    /// When that was said, in seconds since 1970.
    pub issued: u64,
    /// Until when it counts, in seconds since 1970.
    pub expires: u64,
}

/// Why no signature of a program counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// There is none.
    #[error("unsigned: {0}")]
    Unsigned(String),
    /// It is something else.
    #[error("no signature: {0}")]
    Malformed(String),
    /// It is for other bytes, or was itself changed.
    #[error("altered: {0}")]
    Altered(String),
    /// Nobody has signed who is trusted.
    #[error("untrusted key: {0}")]
    Untrusted(String),
    /// The program or the key is revoked.
    #[error("revoked: {0}")]
    Revoked(String),
    /// It is for a service of another name.
    #[error("wrong name: the signature is for service `{found}`, not for `{expected}`")]
    Name {
        /// The name of the service that is started.
        expected: String,
        /// That of the signature.
        found: String,
    },
    /// It is over.
    #[error("expired: the signature is over since {0} s")]
    Expired(u64),
    /// It was made later than now.
    #[error("too early: the signature was made in {0} s only, so a clock is wrong")]
    Early(u64),
}

impl SignatureError {
    /// What to do about it, as the end of a sentence; `sign` is the command that signs it.
    pub fn remedy(&self, sign: &str) -> String {
        let sign = |what: &str| format!("`{sign}`{what}");
        match self {
            Self::Unsigned(_) => sign(""),
            Self::Malformed(_) => sign(", which writes the file anew"),
            Self::Altered(_) => format!("restore what was signed, or {}", sign("")),
            Self::Untrusted(_) => sign(" with a key that is trusted, or trust this one's"),
            Self::Revoked(_) => sign(" for another build, with a key that is not revoked"),
            Self::Name { .. } => {
                format!("give it the name that it is signed for, or {}", sign(""))
            }
            Self::Expired(_) => sign(" again"),
            Self::Early(_) => "set the clocks of this host and of the one that has signed".into(),
        }
    }
}

impl From<StatementError> for SignatureError {
    fn from(error: StatementError) -> Self {
        use StatementError::{Digest, Envelope};
        let text = shown(&error.to_string());
        match error {
            Envelope(EnvelopeError::Untrusted(_)) => Self::Untrusted(text),
            Envelope(EnvelopeError::Altered(_)) | Digest { .. } => Self::Altered(text),
            _ => Self::Malformed(text),
        }
    }
}

/// Programs and keys whose signatures count no more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked(BTreeSet<String>);

impl Revoked {
    /// Those of a text: on each line SHA-256 of a program, or the id of a key, as 64 hexadecimal digits;
    /// `sha256:` may be before it, and a comment begins with `#`.
    ///
    /// # Errors
    /// The line that has something else, and what that is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeSet::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.split_once('#').map_or(line, |(before, _)| before).trim();
            if line.is_empty() {
                continue;
            }
            let digits = line.strip_prefix("sha256:").unwrap_or(line);
            if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(format!(
                    "line {}: `{}` is no SHA-256; write 64 hexadecimal digits: the digest of a program, or \
                     the id of a key",
                    at + 1,
                    shown(line)
                ));
            }
            all.insert(digits.to_ascii_lowercase());
        }
        Ok(Self(all))
    }

    fn has(&self, digits: &str) -> bool {
        self.0.contains(digits)
    }
}

impl Program {
    /// What is said from `now` on for so long; the service's own name is among those that it may serve where
    /// none is given.
    pub fn new(service: &str, register: Vec<String>, now: SystemTime, life: Duration) -> Self {
        let issued = seconds(now);
        let expires = issued.saturating_add(life.as_secs()).min(LAST);
        let register = if register.is_empty() { vec![service.to_owned()] } else { register };
        Self { service: service.into(), register, issued, expires }
    }

    /// Signs it for a program with this digest: an envelope in JSON. `name` is that of the file, or the
    /// image's id.
    pub fn sign(&self, name: &str, digest: [u8; 32], key: &SigningKey) -> Vec<u8> {
        let predicate_type = PREDICATE.into();
        Statement { name: name.into(), digest, predicate_type, predicate: self }.sign(key)
    }

    /// What is said of a program with this digest, if one of these keys has signed it and it counts `now`,
    /// and that key's id. Where `service` is given it has to be for that.
    ///
    /// # Errors
    /// [`SignatureError`]
    pub fn verify(
        envelope: &[u8],
        (keys, revoked): (&[PublicKey], &Revoked),
        digest: [u8; 32],
        service: Option<&str>,
        now: SystemTime,
    ) -> Result<(Self, String), SignatureError> {
        let (statement, key) = Statement::<Self>::verify(envelope, keys, PREDICATE, digest)?;
        let (said, key) = (statement.predicate, key.id());
        let digits = hex(&digest);
        if revoked.has(&digits) {
            return Err(SignatureError::Revoked(format!("the program with the SHA-256 {digits}")));
        }
        if revoked.has(&key) {
            return Err(SignatureError::Revoked(format!("the key {key}, which has signed it")));
        }
        if said.register.len() > NAMES {
            let text = format!("it has {} names, and {NAMES} are the most", said.register.len());
            return Err(SignatureError::Malformed(text));
        }
        if said.expires > LAST || said.issued > said.expires {
            return Err(SignatureError::Malformed("it ends before it begins, or never".into()));
        }
        if let Some(expected) = service.filter(|service| *service != said.service) {
            let (expected, found) = (expected.into(), shown(&said.service));
            return Err(SignatureError::Name { expected, found });
        }
        let now = seconds(now);
        if now > said.expires {
            return Err(SignatureError::Expired(now - said.expires));
        }
        if now.saturating_add(SKEW) < said.issued {
            return Err(SignatureError::Early(said.issued - now));
        }
        Ok((said, key))
    }
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    const DIGEST: [u8; 32] = [7; 32];
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn program() -> Program {
        Program::new("web", vec![], at(1_000_000), DAY)
    }

    #[test]
    fn each_reason_why_a_signature_does_not_count_is_its_own() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let keys = [key.public()];
        let signed = program().sign("web", DIGEST, &key);
        let none = Revoked::default();
        let verify = |envelope: &[u8], keys: &[PublicKey], revoked: &Revoked, digest, name, now| {
            Program::verify(envelope, (keys, revoked), digest, name, at(now))
        };
        let (said, by) = verify(&signed, &keys, &none, DIGEST, Some("web"), 1_000_000).unwrap();
        assert_eq!((said, by), (program(), key.public().id()));
        assert_eq!(program().register, ["web"], "its own name");
        assert!(verify(&signed, &keys, &none, DIGEST, None, 1_086_400).is_ok(), "its last second");
        let word = |result: Result<_, SignatureError>| {
            let error = result.map(|(program, _): (Program, String)| program).unwrap_err();
            assert!(
                error.remedy("partywall sign").contains("`partywall sign`")
                    || error.remedy("").contains("clock")
            );
            error.to_string().split_once(':').unwrap().0.to_owned()
        };
        let good = |now| verify(&signed, &keys, &none, DIGEST, Some("web"), now);
        assert_eq!(word(good(1_086_401)), "expired");
        assert_eq!(word(good(999_939)), "too early");
        assert!(good(999_940).is_ok());
        assert_eq!(word(verify(&signed, &keys, &none, [8; 32], Some("web"), 1_000_000)), "altered");
        assert_eq!(
            word(verify(&signed, &keys, &none, DIGEST, Some("db"), 1_000_000)),
            "wrong name"
        );
        let untrusted = verify(&signed, &[other.public()], &none, DIGEST, Some("web"), 1_000_000);
        assert_eq!(word(untrusted), "untrusted key");
        for revoked in [hex(&DIGEST), key.public().id()] {
            let revoked = Revoked::parse(&revoked).unwrap();
            let result = verify(&signed, &keys, &revoked, DIGEST, Some("web"), 1_000_000);
            assert_eq!(word(result), "revoked");
        }
        assert_eq!(word(verify(b"{}", &keys, &none, DIGEST, None, 0)), "no signature");
        // What a key that is trusted has signed of something else.
        let other = Statement {
            name: "web".into(),
            digest: DIGEST,
            predicate_type: "x".into(),
            predicate: 1,
        };
        assert_eq!(word(verify(&other.sign(&key), &keys, &none, DIGEST, None, 0)), "no signature");
    }

    #[test]
    fn times_and_names_beyond_the_limits_are_refused() {
        let key = SigningKey::generate();
        let keys = [key.public()];
        let none = Revoked::default();
        for (program, ok) in [
            (Program { expires: LAST, ..program() }, true),
            (Program { expires: u64::MAX, ..program() }, false),
            (Program { issued: 2_000_000, expires: 1_999_999, ..program() }, false),
            (Program { register: vec!["a".into(); NAMES], ..program() }, true),
            (Program { register: vec!["a".into(); NAMES + 1], ..program() }, false),
        ] {
            let signed = program.sign("web", DIGEST, &key);
            let verified = Program::verify(&signed, (&keys, &none), DIGEST, None, at(1_000_000));
            assert_eq!(verified.is_ok(), ok, "{verified:?}");
        }
        let forever = Program::new("web", vec!["a".into()], at(1), Duration::MAX);
        assert_eq!((forever.expires, forever.register), (LAST, vec!["a".to_owned()]));
    }

    /// Whatever is changed in it, a signature says the same or does not count.
    #[test]
    fn no_change_of_a_signature_says_anything_else() {
        let (key, mut random) = (SigningKey::generate(), Random::of_this_run());
        let (keys, none) = ([key.public()], Revoked::default());
        let signed = program().sign("web", DIGEST, &key);
        for _ in 0..1000 {
            let mut changed = signed.clone();
            let place = random.below(changed.len());
            changed[place] ^= 1 << random.below(8);
            let read = Program::verify(&changed, (&keys, &none), DIGEST, None, at(1_000_000));
            assert!(read.is_err() || read == Ok((program(), key.public().id())));
        }
    }

    #[test]
    fn what_is_revoked_is_one_digest_on_a_line() {
        let (a, b) = ("aB".repeat(32), "cd".repeat(32));
        let text = format!("# keys\n{a}   # the old one\r\n\n  sha256:{b}\n");
        let revoked = Revoked::parse(&text).unwrap();
        assert!(revoked.has(&a.to_lowercase()) && revoked.has(&b) && !revoked.has(""));
        for bad in ["abc".to_owned(), a[1..].to_owned(), format!("{a} {b}"), "g".repeat(64)] {
            let refused = Revoked::parse(&format!("{b}\n{bad}\n")).unwrap_err();
            assert!(refused.starts_with("line 2: `") && refused.contains("64 hexa"), "{refused}");
        }
    }
}
