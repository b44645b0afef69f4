//! Signed function images: what a dispatcher takes, and what is stored and sent to other hosts.
//!
//! ```text
//! byte    size    what
//!    0       8    MAGIC
//!    8       4    bytes of the envelope, in little-endian order
//!   12       4    bytes of the image
//!   16            envelope: a DSSE envelope in JSON (crate partywall-trust)
//!                 image: as it is packed (module image)
//! ```
//!
//! The envelope's statement has the function's name, SHA-256 of the packed image, and in its predicate what
//! the image was made of ([`Made`]). [`Signed::from_bytes`] checks the signature first, then the digest, then
//! the image as the verifier does: a signature says who has built an image, and not that it is harmless.

use partywall_trust::{PublicKey, SigningKey, Statement, StatementError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::builder::Built;
use crate::image::{Image, ImageError};

const MAGIC: [u8; 8] = *b"PWFUNC1\n";
const HEAD: usize = 16;
/// The predicate's type.
const PREDICATE: &str = "urn:x-partywall:function:1";

/// What an image was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The name of sources, compiler and crates together: SHA-256, as hexadecimal digits.
    pub sources: String,
    /// What the compiler says of itself.
    pub compiler: String,
}

impl Made {
    /// That of a build by this compiler.
    pub fn of(built: &Built, compiler: &str) -> Self {
        let sources = built.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { sources, compiler: compiler.trim().into() }
    }
}

/// Why bytes are no signed image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignedError {
    /// They are something else.
    #[error("this is no signed function image: {0}")]
    Malformed(&'static str),
    /// The signature.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// The image, which somebody who is trusted has signed all the same.
    #[error("the image is signed by a key that is trusted, and is none: {0}")]
    Image(#[from] ImageError),
}

/// An image that a key has signed which was trusted when it was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    name: String,
    made: Made,
    key: String,
    image: Image,
    envelope: Vec<u8>,
}

impl Signed {
    /// Signs an image, as the function of this name.
    pub fn new(name: &str, image: Image, made: Made, key: &SigningKey) -> Self {
        let (name, digest) = (name.to_owned(), Sha256::digest(image.pack()).into());
        let predicate_type = PREDICATE.into();
        let statement = Statement { name, digest, predicate_type, predicate: made.clone() };
        let envelope = statement.sign(key);
        Self { name: statement.name, made, key: key.public().id(), image, envelope }
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (image, envelope) = (self.image.pack(), &self.envelope);
        let lengths = [envelope.len() as u32, image.len() as u32].map(u32::to_le_bytes);
        [&MAGIC[..], &lengths.concat(), envelope, &image].concat()
    }

    /// From bytes, if one of these keys has signed them.
    ///
    /// # Errors
    /// [`SignedError`]
    pub fn from_bytes(bytes: &[u8], keys: &[PublicKey]) -> Result<Self, SignedError> {
        let (envelope, packed) = parts(bytes).map_err(SignedError::Malformed)?;
        let digest = Sha256::digest(packed).into();
        let (statement, key) = Statement::verify(envelope, keys, PREDICATE, digest)?;
        let image = Image::unpack(packed)?;
        let (envelope, Statement { name, predicate: made, .. }) = (envelope.to_vec(), statement);
        Ok(Self { name, made, key: key.id(), image, envelope })
    }

    /// The function's name, as it was signed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was made of.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// The id of the key that has signed it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

fn parts(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (head, rest) = bytes.split_at_checked(HEAD).ok_or("it is too short")?;
    if head[..8] != MAGIC {
        return Err("it does not begin with `PWFUNC1`");
    }
    let length =
        |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte])) as usize;
    let (envelope, image) = (length(8), length(12));
    if envelope.checked_add(image) != Some(rest.len()) {
        return Err("its lengths are not those of its parts");
    }
    Ok(rest.split_at(envelope))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    fn built() -> Built {
        let code = vec![0xc3; 64];
        let image = Image { code, ..Image::default() };
        Built { image, digest: [9; 32], tries: 1, refused: Vec::new() }
    }

    fn signed(built: Built, key: &SigningKey) -> Signed {
        let made = Made::of(&built, "rustc 1\n");
        Signed::new("words", built.image, made, key)
    }

    #[test]
    fn an_image_is_taken_from_a_key_that_is_trusted() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let words = signed(built(), &key);
        let bytes = words.to_bytes();
        let read = Signed::from_bytes(&bytes, &[other.public(), key.public()]).unwrap();
        assert_eq!(read, words);
        assert_eq!((read.name(), read.made().compiler.as_str()), ("words", "rustc 1"));
        assert_eq!(read.made().sources, "09".repeat(32));
        assert!(matches!(
            Signed::from_bytes(&bytes, &[other.public()]),
            Err(SignedError::Statement(StatementError::Envelope(_)))
        ));
    }

    /// Whatever is changed, the bytes are no signed image, or the same one.
    #[test]
    fn no_change_of_a_signed_image_passes() {
        let (key, mut random) = (SigningKey::generate(), Random::of_this_run());
        let keys = [key.public()];
        let words = signed(built(), &key);
        let bytes = words.to_bytes();
        for cut in 0..bytes.len() {
            assert!(Signed::from_bytes(&bytes[..cut], &keys).is_err(), "{cut}");
        }
        for _ in 0..1000 {
            let mut changed = bytes.clone();
            let at = random.below(changed.len());
            changed[at] ^= 1 << random.below(8);
            match Signed::from_bytes(&changed, &keys) {
                Ok(read) => assert_eq!((read.image(), read.name()), (words.image(), "words")),
                Err(why) => assert!(!why.to_string().is_empty()),
            }
        }
    }

    /// A signature does not make an image of what is none.
    #[test]
    fn signed_bytes_that_are_no_image_are_refused() {
        let key = SigningKey::generate();
        let mut bad = built();
        // A system call.
        bad.image.code[7..9].copy_from_slice(&[0x0f, 0x05]);
        let bytes = signed(bad, &key).to_bytes();
        let refused = Signed::from_bytes(&bytes, &[key.public()]).unwrap_err();
        assert!(matches!(refused, SignedError::Image(_)), "{refused}");
    }
}
