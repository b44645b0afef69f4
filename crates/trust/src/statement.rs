//! Statements: what something is called, its digest, and how it was made.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, EnvelopeError};
use crate::key::{PublicKey, SigningKey, hex};

/// The type of an envelope's bytes.
const TYPE: &str = "application/vnd.in-toto+json";
/// What a statement says that it is.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";

/// What is wrong with a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// Its envelope.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// It is signed, and is none.
    #[error("this is signed and is no in-toto statement: {0}")]
    Malformed(String),
    /// It says something else.
    #[error("the signed statement is a `{found}`, not a `{expected}`")]
    Predicate {
        /// What was wanted.
        expected: String,
        /// What it is.
        found: String,
    },
    /// It is about something of another name.
    #[error("the signature is for `{found}`, not for `{expected}`")]
    Name {
        /// What was wanted.
        expected: String,
        /// Its name.
        found: String,
    },
    /// It is about other bytes.
    #[error("the signature is for bytes with the SHA-256 {found}; these have {expected}")]
    Digest {
        /// That of the bytes at hand.
        expected: String,
        /// That of the statement.
        found: String,
    },
}

/// A statement about one thing. `P` is how it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement<P> {
    /// What the thing is called.
    pub name: String,
    /// SHA-256 of its bytes.
    pub digest: [u8; 32],
    /// The type of `predicate`: a URI that tells it from all others.
    pub predicate_type: String,
    /// What is said of it.
    pub predicate: P,
}

#[derive(Serialize, Deserialize)]
struct Json<P> {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: P,
}

#[derive(Serialize, Deserialize)]
struct Subject {
    name: String,
    digest: Digest,
}

#[derive(Serialize, Deserialize)]
struct Digest {
    sha256: String,
}

impl<P: Serialize> Statement<P> {
    /// Signs it: an envelope in JSON.
    pub fn sign(&self, key: &SigningKey) -> Vec<u8> {
        let digest = Digest { sha256: hex(&self.digest) };
        let json = Json {
            kind: STATEMENT.into(),
            subject: vec![Subject { name: self.name.clone(), digest }],
            predicate_type: self.predicate_type.clone(),
            predicate: &self.predicate,
        };
        let bytes = serde_json::to_vec(&json).expect("a statement can be written down");
        Envelope::sign(TYPE, bytes, key).to_json()
    }
}

impl<P: DeserializeOwned> Statement<P> {
    /// The statement of this type that is in an envelope, if one of these keys has signed it and it is about
    /// bytes with this digest, and that key.
    ///
    /// # Errors
    /// [`StatementError`]
    pub fn verify<'k>(
        envelope: &[u8],
        keys: &'k [PublicKey],
        predicate_type: &str,
        digest: [u8; 32],
    ) -> Result<(Self, &'k PublicKey), StatementError> {
        let envelope = Envelope::from_json(envelope)?;
        let (bytes, key) = envelope.verify(TYPE, keys)?;
        let bad = StatementError::Malformed;
        // Its type first: what another type says of its predicate is of no interest.
        let any: Json<serde_json::Value> =
            serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if any.kind != STATEMENT {
            return Err(bad(format!("its type is `{}`", any.kind)));
        }
        if any.predicate_type != predicate_type {
            let (expected, found) = (predicate_type.into(), any.predicate_type);
            return Err(StatementError::Predicate { expected, found });
        }
        let [subject] = &any.subject[..] else {
            return Err(bad(format!("it is about {} things", any.subject.len())));
        };
        let expected = hex(&digest);
        if subject.digest.sha256 != expected {
            let found = subject.digest.sha256.clone();
            return Err(StatementError::Digest { expected, found });
        }
        let predicate = serde_json::from_value(any.predicate);
        let predicate = predicate.map_err(|e| bad(format!("its predicate: {e}")))?;
        let name = subject.name.clone();
        Ok((Self { name, digest, predicate_type: any.predicate_type, predicate }, key))
    }

    /// That it is about something of this name.
    ///
    /// # Errors
    /// [`StatementError::Name`]
    pub fn is_named(&self, expected: &str) -> Result<(), StatementError> {
        if self.name == expected {
            return Ok(());
        }
        Err(StatementError::Name { expected: expected.into(), found: self.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "tag:partywall,2026:test";

    fn statement() -> Statement<Vec<u32>> {
        let (name, digest) = ("words".to_owned(), [7; 32]);
        Statement { name, digest, predicate_type: KIND.into(), predicate: vec![1, 2] }
    }

    #[test]
    fn a_statement_is_read_as_it_was_signed() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let (signed, keys) = (statement().sign(&key), [key.public()]);
        let (read, by) = Statement::<Vec<u32>>::verify(&signed, &keys, KIND, [7; 32]).unwrap();
        assert_eq!((&read, by), (&statement(), &keys[0]));
        assert_eq!(read.is_named("words"), Ok(()));
        let refused = read.is_named("word").unwrap_err().to_string();
        assert_eq!(refused, "the signature is for `words`, not for `word`");
        let verify = |keys: &[PublicKey], kind: &str, digest| {
            Statement::<Vec<u32>>::verify(&signed, keys, kind, digest).unwrap_err()
        };
        assert!(matches!(verify(&keys, KIND, [8; 32]), StatementError::Digest { .. }));
        assert!(matches!(verify(&keys, "other", [7; 32]), StatementError::Predicate { .. }));
        let untrusted = verify(&[other.public()], KIND, [7; 32]);
        assert!(matches!(untrusted, StatementError::Envelope(EnvelopeError::Untrusted(_))));
        let other = Statement::<String>::verify(&signed, &keys, KIND, [7; 32]).unwrap_err();
        assert!(matches!(other, StatementError::Malformed(_)), "{other}");
    }

    #[test]
    fn signed_bytes_that_are_no_statement_are_refused() {
        let key = SigningKey::generate();
        let refused = |json: &str| {
            let envelope = Envelope::sign(TYPE, json.into(), &key).to_json();
            Statement::<u8>::verify(&envelope, &[key.public()], "p", [0; 32])
                .unwrap_err()
                .to_string()
        };
        let zeros = "0".repeat(64);
        let subject = format!(r#"{{"name":"a","digest":{{"sha256":"{zeros}"}}}}"#);
        let rest = r#""predicateType":"p","predicate":1"#;
        for (json, said) in [
            ("[]".into(), "no in-toto statement"),
            (format!(r#"{{"_type":"x","subject":[{subject}],{rest}}}"#), "its type is `x`"),
            (format!(r#"{{"_type":"{STATEMENT}","subject":[],{rest}}}"#), "about 0 things"),
            (
                format!(r#"{{"_type":"{STATEMENT}","subject":[{subject},{subject}],{rest}}}"#),
                "about 2 things",
            ),
        ] {
            assert!(refused(&json).contains(said), "{json}: {}", refused(&json));
        }
    }
}
