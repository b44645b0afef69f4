//! Keys: ECDSA over P-256.

use std::fmt;

use aws_lc_rs::digest;
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _,
    ParsedPublicKey,
};
use pem::{EncodeConfig, LineEnding, Pem};
use zeroize::Zeroizing;

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

/// What a SubjectPublicKeyInfo of a point of P-256 begins with (RFC 5480, section 2): its lengths, the
/// algorithm and the curve, and that the point is not compressed.
const INFO: &[u8] =
    b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\
                      \x03\x42\x00\x04";
/// Bytes of a point that is not compressed.
const POINT: usize = 65;

/// A private key. Its memory is overwritten when it is dropped.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    public: PublicKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public.id()).finish()
    }
}

impl SigningKey {
    /// A new key of random numbers (getrandom(2)).
    pub fn generate() -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING);
        Self::of(pair.expect("there are random numbers, and memory"))
    }

    fn of(pair: EcdsaKeyPair) -> Self {
        let point = pair.public_key().as_ref();
        let public = PublicKey::of_point(point).expect("a pair has a public key");
        Self { pair, public }
    }

    /// The key that [`Self::to_pem`] has written.
    ///
    /// # Errors
    /// [`KeyError::Private`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pem = pem::parse(pem).ok().filter(|pem| pem.tag() == "PRIVATE KEY");
        let der = Zeroizing::new(pem.ok_or(KeyError::Private)?.into_contents());
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der);
        pair.map(Self::of).map_err(|_| KeyError::Private)
    }

    /// The key, to be kept where nobody else reads it.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let der = self.pair.to_pkcs8v1().expect("a key can be written down");
        Zeroizing::new(written("PRIVATE KEY", der.as_ref()))
    }

    /// The same as PKCS #8 in DER, for another library.
    pub fn to_der(&self) -> Zeroizing<Vec<u8>> {
        let der = self.pair.to_pkcs8v1().expect("a key can be written down");
        Zeroizing::new(der.as_ref().to_vec())
    }

    /// The key that others check its signatures with.
    pub fn public(&self) -> PublicKey {
        self.public.clone()
    }

    pub(crate) fn public_ref(&self) -> &PublicKey {
        &self.public
    }

    /// A signature of SHA-256 of these bytes, in ASN.1.
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        let signature = self.pair.sign(&SystemRandom::new(), bytes);
        signature.expect("there are random numbers, and memory").as_ref().to_vec()
    }
}

/// A public key.
#[derive(Clone)]
pub struct PublicKey(ParsedPublicKey);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublicKey").field(&self.id()).finish()
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl Eq for PublicKey {}

impl PublicKey {
    fn of_point(point: &[u8]) -> Option<Self> {
        ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).ok().map(Self)
    }

    /// The key of a SubjectPublicKeyInfo in DER.
    ///
    /// # Errors
    /// [`KeyError::Public`].
    pub fn from_der(info: &[u8]) -> Result<Self, KeyError> {
        let is_one = info.starts_with(INFO) && info.len() == INFO.len() - 1 + POINT;
        let point = is_one.then(|| &info[INFO.len() - 1..]);
        point.and_then(Self::of_point).ok_or(KeyError::Public)
    }

    /// The key that [`Self::to_pem`] has written.
    ///
    /// # Errors
    /// [`KeyError::Public`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pem = pem::parse(pem).ok().filter(|pem| pem.tag() == "PUBLIC KEY");
        Self::from_der(pem.ok_or(KeyError::Public)?.contents())
    }

    /// The key, for whom it may concern.
    pub fn to_pem(&self) -> String {
        written("PUBLIC KEY", &self.to_der())
    }

    /// The same as a SubjectPublicKeyInfo in DER.
    pub fn to_der(&self) -> Vec<u8> {
        let der: PublicKeyX509Der<'_> = self.0.as_der().expect("a key can be written down");
        der.as_ref().to_vec()
    }

    /// Its point, not compressed.
    pub(crate) fn point(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Its name: SHA-256 of its SubjectPublicKeyInfo in DER, as hexadecimal digits.
    pub fn id(&self) -> String {
        hex(digest::digest(&digest::SHA256, &self.to_der()).as_ref())
    }

    /// Whether a signature in ASN.1 is that of these bytes.
    pub fn fits(&self, bytes: &[u8], signature: &[u8]) -> bool {
        self.0.verify_sig(bytes, signature).is_ok()
    }
}

/// Bytes in PEM (RFC 7468).
pub(crate) fn written(label: &str, der: &[u8]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(label, der), config)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of 64 hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("two digits");
    Some(std::array::from_fn(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6979, appendix A.2.5: the public key, and the signature of "sample" with SHA-256.
    #[test]
    fn a_signature_is_that_of_rfc_6979() {
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
                .collect()
        };
        let x = bytes("60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6");
        let y = bytes("7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299");
        let key = PublicKey::of_point(&[&[4][..], &x, &y].concat()).unwrap();
        let r = bytes("EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716");
        let s = bytes("F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8");
        let der = [&[0x30, 0x46, 0x02, 0x21, 0x00][..], &r, &[0x02, 0x21, 0x00], &s].concat();
        assert!(key.fits(b"sample", &der));
        assert!(!key.fits(b"Sample", &der));
        for cut in 0..der.len() {
            assert!(!key.fits(b"sample", &der[..cut]), "{cut}");
        }
        let own = SigningKey::generate();
        let signature = own.sign(b"sample");
        assert!(own.public().fits(b"sample", &signature) && !key.fits(b"sample", &signature));
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

    #[test]
    fn what_is_no_point_is_no_key() {
        let der = SigningKey::generate().public().to_der();
        assert!(PublicKey::from_der(&der).is_ok());
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 1;
            // Another x or y is on the curve with a chance of one in 2^256.
            assert!(PublicKey::from_der(&changed).is_err(), "{at}");
            assert!(PublicKey::from_der(&der[..at]).is_err(), "{at}");
        }
    }
}
