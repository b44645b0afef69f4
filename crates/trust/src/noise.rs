//! What the Noise framework (revision 34) takes of cryptography: X25519, AES-256-GCM and SHA-256, by AWS-LC.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::encoding::{AsBigEndian as _, Curve25519SeedBin};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of a key of X25519, private or public (RFC 7748).
pub(crate) const KEY: usize = 32;
/// Bytes of a tag of AES-GCM.
const TAG: usize = 16;

/// A pair of keys for X25519. The private one is overwritten when it is dropped.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) private: Zeroizing<[u8; KEY]>,
    pub(crate) public: [u8; KEY],
}

impl Pair {
    pub(crate) fn generate() -> Self {
        let key = PrivateKey::generate(&X25519).expect("there are random numbers, and memory");
        let seed: Curve25519SeedBin<'_> = key.as_be_bytes().expect("it is such a key");
        let mut private = Zeroizing::new([0; KEY]);
        private.copy_from_slice(seed.as_ref());
        let public = key.compute_public_key().expect("it has one");
        Self { private, public: public.as_ref().try_into().expect("so many bytes") }
    }
}

/// All of it.
pub(crate) struct AwsLc;

impl CryptoResolver for AwsLc {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(System))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let pair = Pair { private: Zeroizing::new([0; KEY]), public: [0; KEY] };
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(pair) as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha256(Context::new(&SHA256))) as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm(None)) as _)
    }
}

struct System;

impl Random for System {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Error> {
        aws_lc_rs::rand::fill(to).map_err(|_| Error::Rng)
    }
}

impl Dh for Pair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY
    }

    fn priv_len(&self) -> usize {
        KEY
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        let key = PrivateKey::from_private_key(&X25519, private).expect("so many bytes");
        let public = key.compute_public_key().expect("it has one");
        self.public.copy_from_slice(public.as_ref());
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        *self = Self::generate();
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private[..]
    }

    /// A point of low order, by which the result is zero, is refused (RFC 7748, section 6.1).
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let own = PrivateKey::from_private_key(&X25519, &self.private[..]);
        let own = own.map_err(|_| Error::Dh)?;
        let peer = UnparsedPublicKey::new(&X25519, &public[..KEY]);
        agreement::agree(&own, peer, Error::Dh, |secret| {
            out[..KEY].copy_from_slice(secret);
            Ok(())
        })
    }
}

struct Sha256(Context);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        SHA256.block_len()
    }

    fn hash_len(&self) -> usize {
        SHA256.output_len()
    }

    fn reset(&mut self) {
        self.0 = Context::new(&SHA256);
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let digest = std::mem::replace(&mut self.0, Context::new(&SHA256)).finish();
        out[..SHA256.output_len()].copy_from_slice(digest.as_ref());
    }
}

struct AesGcm(Option<LessSafeKey>);

impl AesGcm {
    fn key(&self) -> &LessSafeKey {
        self.0.as_ref().expect("a key is set first")
    }

    /// The number of a message as a nonce (Noise, section 12.4).
    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY]) {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("so many bytes");
        self.0 = Some(LessSafeKey::new(key));
    }

    fn encrypt(&self, number: u64, beside: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (text, tag) = out[..plain.len() + TAG].split_at_mut(plain.len());
        let (nonce, beside) = (Self::nonce(number), Aad::from(beside));
        self.key()
            .seal_out_of_place_scatter(nonce, beside, plain, text, &[], tag)
            .expect("the lengths are right");
        plain.len() + TAG
    }

    fn decrypt(
        &self,
        number: u64,
        beside: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let len = sealed.len().checked_sub(TAG).ok_or(Error::Decrypt)?;
        let (text, tag) = sealed.split_at(len);
        let out = out.get_mut(..len).ok_or(Error::Input)?;
        let (nonce, beside) = (Self::nonce(number), Aad::from(beside));
        self.key().open_separate_gather(nonce, beside, text, tag, out).map_err(|_| {
            out.zeroize();
            Error::Decrypt
        })?;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748, section 6.1.
    #[test]
    fn agreement_is_that_of_rfc_7748() {
        let bytes = |text: &str| -> [u8; KEY] {
            let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
            std::array::from_fn(byte)
        };
        let mut alice = Pair::generate();
        let private = bytes("77076d0a7318a57d3c16c17251b26645df4c6c92ebc099c2af3ebb0ed1fa2a2a");
        alice.set(&private);
        let mut bob = Pair::generate();
        bob.set(&bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
        let (mut one, mut other) = ([0; KEY], [0; KEY]);
        alice.dh(&bob.public, &mut one).unwrap();
        bob.dh(&alice.public, &mut other).unwrap();
        assert_eq!(one, other);
        let known = bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        assert_eq!(bob.public, known);
    }

    #[test]
    fn points_of_low_order_are_refused() {
        let pair = Pair::generate();
        let mut one = [0; KEY];
        one[0] = 1;
        // cr.yp.to/ecdh.html, "May the receiver ...": a point of order 8.
        let order_8 = [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f,
            0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
            0x5f, 0x49, 0xb8, 0x00,
        ];
        for point in [[0; KEY], one, order_8] {
            assert!(matches!(pair.dh(&point, &mut [0; KEY]), Err(Error::Dh)), "{point:?}");
        }
    }
}
