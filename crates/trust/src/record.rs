//! Records that only the two ends of a channel can make and read.
//!
//! ```text
//! sealer   seal(what, parts)   ->  ciphertext and tag           sequence += 1
//! opener   open(what, bytes)   ->  the parts in place, or an error, after which nothing is opened any more
//! ```
//!
//! Each direction has a secret of its own, by which both ends derive the key and the base of the nonces (HKDF
//! with SHA-256, RFC 5869). The nonce of a record is that base with its number added by XOR, as in TLS 1.3
//! (RFC 8446, section 5.3). After [`EPOCH`] records the next secret takes its place, derived from this one,
//! which is overwritten: what is stolen later opens nothing of before.
//!
//! | what is authenticated with a record | bytes |
//! | --- | --- |
//! | channel | 16 |
//! | epoch, direction | 4, 1 |
//! | kind, flags and stream of the record | 1, 1, 4 |
//! | its number in its direction | 8 |
//! | length of what is sealed | 4 |
//!
//! So a record is opened where it belongs and nowhere else: in its channel, in its direction, in its turn.
//! One that is altered, left out, sent twice or in another order is an error, and the channel is over. Behind
//! the last record of the last epoch, the 2^56th, nothing is sealed or opened.
//!
//! Cost of a record: one pass of the cipher over its bytes, from where they are to where they go; no
//! allocation, no system call. With classes of sizes one copy more, into a buffer of the sealer's.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes that sealing adds, without classes of sizes.
pub const TAG: usize = 16;
/// Records of one key.
pub const EPOCH: u64 = 1 << 24;
/// Records of one direction: behind them the number of the epoch would be one that was there before.
const RECORDS: u64 = EPOCH << u32::BITS;
/// Bytes of a secret.
pub(crate) const SECRET: usize = 32;
/// Bytes of the length that a record of a class of sizes ends with.
const LENGTH: usize = 4;
/// The least class of sizes.
const CLASS: usize = 64;

/// How records are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-128-GCM (NIST SP 800-38D).
    Aes128Gcm = 1,
    /// AES-256-GCM.
    Aes256Gcm = 2,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305 = 3,
}

impl Suite {
    /// Each of them, the default one first.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Its word in policies and outputs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// The suite of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| *suite as u8 == number)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// What of a record is not secret: it is authenticated alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct What {
    /// Its kind.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// The call it belongs to.
    pub stream: u32,
}

/// Why a record is not sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is not the next one of this channel and direction, or not as it was sealed.
    #[error("record {0} of the channel is not as it was sealed, or not the next one")]
    Altered(u64),
    /// One before it was.
    #[error("the channel is over since a record was not as it was sealed")]
    Over,
    /// There is no number left.
    #[error("the channel has no number left for a record")]
    Exhausted,
}

/// Lengths of what is derived.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// Bytes derived of a secret for one purpose.
pub(crate) fn derive<const N: usize>(secret: &Prk, purpose: &[u8]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    let info = [b"partywall/1 ", purpose];
    let okm = secret.expand(&info, Len(N)).expect("so few bytes can be derived");
    okm.fill(&mut out[..]).expect("so many bytes were asked for");
    out
}

/// One direction of a channel, at either end.
struct Direction {
    suite: Suite,
    channel: [u8; 16],
    is_callers: bool,
    epoch: u32,
    /// Of the next record.
    number: u64,
    secret: Zeroizing<[u8; SECRET]>,
    key: LessSafeKey,
    base: [u8; 12],
}

impl Direction {
    fn new(suite: Suite, channel: [u8; 16], is_callers: bool, secret: &[u8; SECRET]) -> Self {
        let (key, base) = Self::keys(suite, secret);
        let secret = Zeroizing::new(*secret);
        Self { suite, channel, is_callers, epoch: 0, number: 0, secret, key, base }
    }

    fn keys(suite: Suite, secret: &[u8; SECRET]) -> (LessSafeKey, [u8; 12]) {
        let secret = Prk::new_less_safe(HKDF_SHA256, secret);
        let long = derive::<32>(&secret, format!("key {}", suite.word()).as_bytes());
        let algorithm = suite.algorithm();
        let key = UnboundKey::new(algorithm, &long[..algorithm.key_len()]);
        let base = derive::<12>(&secret, b"nonce");
        (LessSafeKey::new(key.expect("so many bytes")), *base)
    }

    /// The next secret takes the place of this one.
    #[cold]
    fn renew(&mut self) {
        // Behind the last one nothing is sealed or opened.
        self.epoch = self.epoch.wrapping_add(1);
        let next = derive::<SECRET>(&Prk::new_less_safe(HKDF_SHA256, &self.secret[..]), b"next");
        self.secret = next;
        (self.key, self.base) = Self::keys(self.suite, &self.secret);
    }

    /// Whether there is a number for a record.
    #[inline]
    fn has_number(&self) -> Result<(), RecordError> {
        if self.number < RECORDS { Ok(()) } else { Err(RecordError::Exhausted) }
    }

    #[inline]
    fn nonce(&self) -> Nonce {
        let mut nonce = self.base;
        let number = self.number.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(byte, of)| *byte ^= of);
        Nonce::assume_unique_for_key(nonce)
    }

    #[inline]
    fn beside(&self, what: What, len: usize) -> [u8; 40] {
        let mut beside = [0; 40];
        beside[..16].copy_from_slice(&self.channel);
        beside[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        beside[20] = self.is_callers.into();
        (beside[21], beside[22]) = (what.kind, what.flags);
        beside[24..28].copy_from_slice(&what.stream.to_le_bytes());
        beside[28..36].copy_from_slice(&self.number.to_le_bytes());
        beside[36..].copy_from_slice(&(len as u32).to_le_bytes());
        beside
    }

    /// This record is done.
    #[inline]
    fn next(&mut self) {
        self.number += 1;
        if self.number.is_multiple_of(EPOCH) {
            self.renew();
        }
    }
}

/// How a channel's records are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// How they are sealed.
    pub suite: Suite,
    /// Whether their lengths are those of classes, each twice as long as the one before.
    pub classes: bool,
}

impl Form {
    /// Bytes of what is sealed, of a payload of so many.
    #[inline]
    fn padded(self, len: usize) -> usize {
        match self.classes {
            true => (len + LENGTH).next_power_of_two().max(CLASS),
            false => len,
        }
    }

    /// Bytes of a record with a payload of so many.
    #[inline]
    pub fn sealed(self, len: usize) -> usize {
        self.padded(len) + TAG
    }

    /// The longest payload of a record of so many bytes; 0 where there is room for none.
    pub fn most(self, sealed: usize) -> usize {
        let len = sealed.saturating_sub(TAG);
        match self.classes {
            true if len < CLASS => 0,
            true => (1 << len.ilog2()) - LENGTH,
            false => len,
        }
    }
}

/// Seals what one end sends.
pub struct Sealer {
    direction: Direction,
    form: Form,
    /// Of classes of sizes.
    padded: Zeroizing<Vec<u8>>,
}

/// Opens what the other end has sent.
pub struct Opener {
    direction: Direction,
    form: Form,
    is_over: bool,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("number", &self.direction.number).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("number", &self.direction.number).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(
        form: Form,
        channel: [u8; 16],
        is_callers: bool,
        secret: &[u8; SECRET],
    ) -> Self {
        let direction = Direction::new(form.suite, channel, is_callers, secret);
        Self { direction, form, padded: Zeroizing::default() }
    }

    /// How its records are made.
    #[inline]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Seals a payload of two parts, one behind the other, into `out`, which has the bytes for it
    /// ([`Form::sealed`]).
    ///
    /// # Errors
    /// [`RecordError::Exhausted`].
    ///
    /// # Panics
    /// `out` has another length.
    #[inline]
    pub fn seal(
        &mut self,
        what: What,
        [first, then]: [&[u8]; 2],
        out: &mut [u8],
    ) -> Result<(), RecordError> {
        let len = first.len() + then.len();
        assert_eq!(out.len(), self.form.sealed(len), "{len} bytes are sealed");
        self.direction.has_number()?;
        match self.form.classes {
            true => self.seal_padded(what, [first, then], out),
            false => self.seal_as_it_is(what, [first, then], out),
        }
        Ok(())
    }

    #[inline]
    fn seal_as_it_is(&mut self, what: What, [first, then]: [&[u8]; 2], out: &mut [u8]) {
        let direction = &mut self.direction;
        let (nonce, beside) = (direction.nonce(), direction.beside(what, first.len() + then.len()));
        let (text, rest) = out.split_at_mut(first.len());
        direction
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(beside), first, text, then, rest)
            .expect("the lengths are right");
        direction.next();
    }

    #[cold]
    fn seal_padded(&mut self, what: What, parts: [&[u8]; 2], out: &mut [u8]) {
        let mut padded = std::mem::take(&mut self.padded);
        padded.clear();
        if padded.capacity() < out.len() {
            // A buffer that grows would leave what is in it behind.
            padded = Zeroizing::new(Vec::with_capacity(out.len()));
        }
        parts.iter().for_each(|part| padded.extend_from_slice(part));
        let len = padded.len() as u32;
        padded.resize(out.len() - TAG - LENGTH, 0);
        padded.extend_from_slice(&len.to_le_bytes());
        self.seal_as_it_is(what, [&padded, &[]], out);
        self.padded = padded;
    }
}

#[cfg(test)]
impl Sealer {
    /// What opens the records of this one: who has its secret has it too.
    pub(crate) fn opened_by(&self) -> Opener {
        let Direction { channel, is_callers, secret, .. } = &self.direction;
        Opener::new(self.form, *channel, *is_callers, secret)
    }
}

impl Opener {
    pub(crate) fn new(
        form: Form,
        channel: [u8; 16],
        is_callers: bool,
        secret: &[u8; SECRET],
    ) -> Self {
        let direction = Direction::new(form.suite, channel, is_callers, secret);
        Self { direction, form, is_over: false }
    }

    /// How its records are made.
    #[inline]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Opens a record where it lies, in memory that nobody else writes: so many bytes of it are its payload.
    ///
    /// # Errors
    /// [`RecordError`]. Nothing of its bytes is left then, and every later record is refused.
    #[inline]
    pub fn open(&mut self, what: What, record: &mut [u8]) -> Result<usize, RecordError> {
        let opened = match self.is_over {
            true => Err(RecordError::Over),
            false => self.opened(what, record),
        };
        if opened.is_err() {
            self.is_over = true;
            record.zeroize();
        }
        opened
    }

    #[inline]
    fn opened(&mut self, what: What, record: &mut [u8]) -> Result<usize, RecordError> {
        let (direction, all) = (&mut self.direction, record.len());
        direction.has_number()?;
        let altered = RecordError::Altered(direction.number);
        let len = all.checked_sub(TAG).ok_or(altered)?;
        let (nonce, beside) = (direction.nonce(), direction.beside(what, len));
        direction.key.open_in_place(nonce, Aad::from(beside), record).map_err(|_| altered)?;
        direction.next();
        if !self.form.classes {
            return Ok(len);
        }
        let at = len.checked_sub(LENGTH).ok_or(altered)?;
        let said = u32::from_le_bytes(record[at..len].try_into().expect("so many bytes"));
        let said = said as usize;
        // An honest end makes no other.
        if said > at || self.form.sealed(said) != all { Err(altered) } else { Ok(said) }
    }
}

#[cfg(test)]
mod tests;
