//! Keys: ECDSA over P-256.

use std::fmt;

use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, VerifyingKey};
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
    LineEnding,
};
use sha2::{Digest as _, Sha256};

/// What is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No private key.
    #[error("this is no private key for P-256 in PEM (`-----BEGIN PRIVATE KEY-----`)")]
    Private,
    /// No public key.
    #[error("this is no public key for P-256 in PEM (`-----BEGIN PUBLIC KEY-----`)")]
    Public,
}

/// A private key. Its memory is overwritten when it is dropped.
pub struct SigningKey(p256::ecdsa::SigningKey);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public().id()).finish()
    }
}

impl SigningKey {
    /// A new key of random numbers (getrandom(2)).
    pub fn generate() -> Self {
        Self(p256::ecdsa::SigningKey::generate())
    }

    /// The key that [`Self::to_pem`] has written.
    ///
    /// # Errors
    /// [`KeyError::Private`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        p256::ecdsa::SigningKey::from_pkcs8_pem(pem).map(Self).map_err(|_| KeyError::Private)
    }

    /// The key, to be kept where nobody else reads it.
    pub fn to_pem(&self) -> String {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF);
        pem.expect("a key can be written down").as_str().to_owned()
    }

    /// The key that others check its signatures with.
    pub fn public(&self) -> PublicKey {
        PublicKey(*self.0.verifying_key())
    }

    pub(crate) fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        let signature: DerSignature = self.0.sign(bytes);
        signature.as_bytes().to_vec()
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// The key that [`Self::to_pem`] has written.
    ///
    /// # Errors
    /// [`KeyError::Public`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        VerifyingKey::from_public_key_pem(pem).map(Self).map_err(|_| KeyError::Public)
    }

    /// The key, for whom it may concern.
    pub fn to_pem(&self) -> String {
        self.0.to_public_key_pem(LineEnding::LF).expect("a key can be written down")
    }

    /// Its name: SHA-256 of its SubjectPublicKeyInfo in DER, as hexadecimal digits.
    pub fn id(&self) -> String {
        let der = self.0.to_public_key_der().expect("a key can be written down");
        hex(&Sha256::digest(der.as_bytes()))
    }

    pub(crate) fn fits(&self, bytes: &[u8], signature: &[u8]) -> bool {
        DerSignature::try_from(signature)
            .is_ok_and(|signature| self.0.verify(bytes, &signature).is_ok())
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6979, appendix A.2.5: the key, and the signature of "sample" with SHA-256.
    #[test]
    fn a_signature_is_that_of_rfc_6979() {
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
                .collect()
        };
        let key = bytes("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
        let key = SigningKey(p256::ecdsa::SigningKey::from_slice(&key).unwrap());
        let r = bytes("EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716");
        let s = bytes("F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8");
        let der = [&[0x30, 0x46, 0x02, 0x21, 0x00][..], &r, &[0x02, 0x21, 0x00], &s].concat();
        assert!(key.public().fits(b"sample", &der));
        assert!(!key.public().fits(b"Sample", &der));
        assert!(key.public().fits(b"sample", &key.sign(b"sample")));
        for cut in 0..der.len() {
            assert!(!key.public().fits(b"sample", &der[..cut]), "{cut}");
        }
    }

    #[test]
    fn keys_survive_being_written_down() {
        let key = SigningKey::generate();
        let again = SigningKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(PublicKey::from_pem(&key.public().to_pem()).unwrap(), key.public());
        assert_ne!(SigningKey::generate().public().id(), key.public().id());
        assert_eq!(key.public().id().len(), 64);
        let debug = format!("{key:?}");
        assert_eq!(debug, format!("SigningKey({:?})", key.public().id()));
        for text in ["", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", "MIG"] {
            assert_eq!(SigningKey::from_pem(text).unwrap_err(), KeyError::Private);
            assert_eq!(PublicKey::from_pem(text).unwrap_err(), KeyError::Public);
        }
        assert!(PublicKey::from_pem(&key.to_pem()).is_err());
        assert!(SigningKey::from_pem(&key.public().to_pem()).is_err());
    }
}
