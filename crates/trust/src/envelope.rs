//! Envelopes: bytes of a type, and who has signed them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::key::{PublicKey, SigningKey};

/// The most bytes of an envelope.
const MOST: usize = 64 << 10;
/// The most signatures that are looked at.
const SIGNATURES: usize = 8;

/// What is wrong with an envelope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// It is too long.
    #[error("a signature has {0} bytes, and {MOST} are the most")]
    Size(usize),
    /// It is none.
    #[error("this is no DSSE envelope: {0}")]
    Malformed(String),
    /// It has other contents.
    #[error("the signed bytes are `{found}`, not `{expected}`")]
    Type {
        /// What was wanted.
        expected: &'static str,
        /// What it says that it has.
        found: String,
    },
    /// Nobody has signed it whom the caller trusts.
    #[error("no key that is trusted has signed this; it names {}", names(.0))]
    Untrusted(Vec<String>),
    /// A key that is trusted has not signed these bytes.
    #[error("the signature by the trusted key {0} does not fit: something was altered")]
    Altered(String),
}

fn names(keys: &[String]) -> String {
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}

/// Bytes and their signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    kind: String,
    payload: Vec<u8>,
    /// Names of keys, and signatures.
    signatures: Vec<(String, Vec<u8>)>,
}

/// As it is in JSON. Fields that are not known are passed by, as the specification wants it.
#[derive(Serialize, Deserialize)]
struct Json {
    #[serde(rename = "payloadType")]
    kind: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

/// What is signed: the pre-authentication encoding (protocol.md).
fn encoded(kind: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

impl Envelope {
    /// Signs bytes of a type.
    pub fn sign(kind: &str, payload: Vec<u8>, key: &SigningKey) -> Self {
        let signature = key.sign(&encoded(kind, &payload));
        Self { kind: kind.into(), payload, signatures: vec![(key.public().id(), signature)] }
    }

    /// The bytes, if they are of this type and one of these keys has signed them, and that key.
    ///
    /// # Errors
    /// [`EnvelopeError`]
    pub fn verify<'k>(
        &self,
        expected: &'static str,
        keys: &'k [PublicKey],
    ) -> Result<(&[u8], &'k PublicKey), EnvelopeError> {
        let bytes = encoded(&self.kind, &self.payload);
        // The names say which key to try, and no more than that.
        let key = |name: &str| keys.iter().find(|key| key.id() == name);
        let mut altered = None;
        for (name, signature) in &self.signatures {
            match key(name) {
                Some(key) if key.fits(&bytes, signature) => {
                    return if self.kind == expected {
                        Ok((&self.payload, key))
                    } else {
                        Err(EnvelopeError::Type { expected, found: self.kind.clone() })
                    };
                }
                Some(_) => altered = altered.or(Some(name)),
                None => {}
            }
        }
        let names = || self.signatures.iter().map(|(name, _)| name.clone()).collect();
        Err(match altered {
            Some(name) => EnvelopeError::Altered(name.clone()),
            None => EnvelopeError::Untrusted(names()),
        })
    }

    /// As JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let signature = |(name, signature): &(String, Vec<u8>)| Signature {
            keyid: name.clone(),
            sig: STANDARD.encode(signature),
        };
        let json = Json {
            kind: self.kind.clone(),
            payload: STANDARD.encode(&self.payload),
            signatures: self.signatures.iter().map(signature).collect(),
        };
        serde_json::to_vec(&json).expect("texts can be written down")
    }

    /// From JSON.
    ///
    /// # Errors
    /// [`EnvelopeError::Size`] and [`EnvelopeError::Malformed`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        if bytes.len() > MOST {
            return Err(EnvelopeError::Size(bytes.len()));
        }
        let bad = EnvelopeError::Malformed;
        let json: Json = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if json.signatures.len() > SIGNATURES {
            let many = json.signatures.len();
            return Err(bad(format!("it has {many} signatures, and {SIGNATURES} are the most")));
        }
        let decode = |what: &str, text: &str| {
            STANDARD.decode(text).map_err(|e| bad(format!("`{what}` is no base64: {e}")))
        };
        let payload = decode("payload", &json.payload)?;
        let signature =
            |Signature { keyid, sig }: Signature| Ok((shown(&keyid), decode("sig", &sig)?));
        let signatures = json.signatures.into_iter().map(signature).collect::<Result<_, _>>()?;
        Ok(Self { kind: shown(&json.kind), payload, signatures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    const KIND: &str = "text/plain";

    #[test]
    fn what_is_signed_is_that_of_the_specification() {
        let bytes = encoded("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn signed_bytes_are_those_that_were_signed() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let json = Envelope::sign(KIND, b"hello".to_vec(), &key).to_json();
        let envelope = Envelope::from_json(&json).unwrap();
        let trusted = [other.public(), key.public()];
        assert_eq!(envelope.verify(KIND, &trusted).unwrap(), (&b"hello"[..], &trusted[1]));
        let untrusted = EnvelopeError::Untrusted(vec![key.public().id()]);
        assert_eq!(envelope.verify(KIND, &trusted[..1]).unwrap_err(), untrusted);
        assert_eq!(envelope.verify(KIND, &[]).unwrap_err(), untrusted);
        let kind = EnvelopeError::Type { expected: "a/b", found: KIND.into() };
        assert_eq!(envelope.verify("a/b", &trusted).unwrap_err(), kind);
        let claims = |change: fn(&mut Envelope)| {
            let mut altered = envelope.clone();
            change(&mut altered);
            altered.verify(KIND, &trusted).unwrap_err()
        };
        let altered = EnvelopeError::Altered(key.public().id());
        assert_eq!(claims(|envelope| envelope.payload.push(b'!')), altered);
        assert_eq!(claims(|envelope| envelope.kind.push('!')), altered);
        assert_eq!(claims(|envelope| envelope.signatures[0].1[9] ^= 1), altered);
        assert_eq!(
            claims(|envelope| envelope.signatures.clear()),
            EnvelopeError::Untrusted(vec![])
        );
        // The other's name on this one's signature is the other's that does not fit.
        let mut renamed = envelope.clone();
        renamed.signatures[0].0 = other.public().id();
        let other = EnvelopeError::Altered(other.public().id());
        assert_eq!(renamed.verify(KIND, &trusted).unwrap_err(), other);
    }

    /// Whatever is changed in its JSON, an envelope is none, is not trusted, or says the same.
    #[test]
    fn no_change_of_an_envelope_changes_what_was_signed() {
        let (key, mut random) = (SigningKey::generate(), Random::of_this_run());
        let keys = [key.public()];
        let json = Envelope::sign(KIND, b"hello".to_vec(), &key).to_json();
        for _ in 0..2000 {
            let mut changed = json.clone();
            let at = random.below(changed.len());
            match random.below(3) {
                0 => changed[at] = random.below(256) as u8,
                1 => changed.truncate(at),
                _ => changed.insert(at, b" \"\\{}[]0aZ="[random.below(11)]),
            }
            let read = Envelope::from_json(&changed);
            if let Ok((payload, _)) =
                read.as_ref().map_err(Clone::clone).and_then(|e| e.verify(KIND, &keys))
            {
                assert_eq!(payload, b"hello");
            }
        }
    }

    #[test]
    fn envelopes_beyond_the_limits_are_refused() {
        let many = [r#"{"sig":"AA=="}"#; SIGNATURES + 1].join(",");
        let json = format!(r#"{{"payloadType":"a","payload":"","signatures":[{many}]}}"#);
        let refused = Envelope::from_json(json.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused, "this is no DSSE envelope: it has 9 signatures, and 8 are the most");
        let long = vec![b' '; MOST + 1];
        assert_eq!(Envelope::from_json(&long).unwrap_err(), EnvelopeError::Size(MOST + 1));
        let json = br#"{"payloadType":"a","payload":"?","signatures":[]}"#;
        let refused = Envelope::from_json(json).unwrap_err().to_string();
        assert!(
            refused.starts_with("this is no DSSE envelope: `payload` is no base64"),
            "{refused}"
        );
        let json = b"{\"payloadType\":\"a\\u001b[31m\",\"payload\":\"\",\"signatures\":[]}";
        assert_eq!(Envelope::from_json(json).unwrap().kind, "a[31m");
    }
}
