//! Counting words: the work of the service, the same for every contender.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::case::Op;
use crate::error::Result;
use crate::text::Answer;
use partywall_testkit::mix;

/// The operation as sent on a byte stream.
pub fn op_code(op: Op) -> u8 {
    op as u8
}

/// The inverse of [`op_code`].
pub fn op_from(code: u8) -> Result<Op> {
    let op = [Op::Total, Op::Counts].into_iter().find(|op| op_code(*op) == code);
    Ok(op.ok_or_else(|| format!("no operation has the code {code}"))?)
}

/// Answers a request.
pub fn answer(op: Op, text: &[u8]) -> Answer {
    match op {
        Op::Total => Answer { total: total(text), ..Answer::default() },
        Op::Counts => counts(text),
    }
}

/// Bytes of a piece, which fits into a processor's own cache.
const PIECE: usize = 32 * 1024;

/// Answers a request whose text is as long and lies elsewhere: `read` copies what is at an offset.
pub fn answer_by_piece(
    op: Op,
    len: usize,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<Answer> {
    if op == Op::Counts {
        let mut text = vec![0; len];
        read(0, &mut text)?;
        return Ok(counts(&text));
    }
    // Before the piece is the last byte of the one before.
    let mut piece = vec![b' '; 1 + PIECE];
    let mut found = 0;
    for at in (0..len).step_by(PIECE) {
        let piece = &mut piece[..1 + PIECE.min(len - at)];
        read(at, &mut piece[1..])?;
        found += total(piece) - u64::from(!piece[0].is_ascii_whitespace());
        piece[0] = piece[piece.len() - 1];
    }
    Ok(Answer { total: found, ..Answer::default() })
}

/// How many [`words`] there are: one for each that starts after white space, and one that starts
/// the text. Written so that the compiler makes vector code of it; a service that spent several
/// nanoseconds on each word would hide what the transport costs.
fn total(text: &[u8]) -> u64 {
    const CHUNK: usize = 192;
    let space = |byte: u8| u8::from(byte.is_ascii_whitespace());
    let Some((first, rest)) = text.split_first() else { return 0 };
    let mut starts = u64::from(1 - space(*first));
    for (before, after) in text.chunks(CHUNK).zip(rest.chunks(CHUNK)) {
        let pairs = before.iter().zip(after);
        // At most one per byte, so a chunk's sum fits.
        let sum: u8 = pairs.map(|(before, after)| space(*before) & (1 - space(*after))).sum();
        starts += u64::from(sum);
    }
    starts
}

/// Runs of bytes that are not ASCII white space.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn counts(text: &[u8]) -> Answer {
    let mut found: HashMap<&[u8], u32, BuildHasherDefault<WordHasher>> = HashMap::default();
    let mut total = 0;
    for word in words(text) {
        *found.entry(word).or_default() += 1;
        total += 1;
    }
    let checksum = found
        .iter()
        .fold(0, |sum: u64, (word, count)| sum.wrapping_add(share(word, u64::from(*count))));
    Answer { total, distinct: found.len() as u64, checksum }
}

/// What a word that occurs `count` times adds to the checksum.
pub fn share(word: &[u8], count: u64) -> u64 {
    let mut hasher = WordHasher::default();
    hasher.write(word);
    mix(hasher.finish() ^ count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A fast hash for short words; not safe against chosen input.
#[derive(Default)]
pub struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(padded));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_words_between_any_white_space() {
        assert_eq!(answer(Op::Total, b"  one two\nthree\t\r\n").total, 3);
        assert_eq!(answer(Op::Total, b"").total, 0);
        let mut rng = partywall_testkit::Random::new(4);
        for len in (0..2000).step_by(7) {
            let text: Vec<u8> = (0..len).map(|_| b" \t\n\x0c\rabc\x0b"[rng.below(9)]).collect();
            assert_eq!(total(&text), words(&text).count() as u64, "{len} bytes");
        }
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let text: Vec<u8> = (0..len).map(|_| b" \t\n\x0c\rabc\x0b"[rng.below(9)]).collect();
            for op in [Op::Total, Op::Counts] {
                let by_piece = answer_by_piece(op, len, |at, to| {
                    to.copy_from_slice(&text[at..at + to.len()]);
                    Ok(())
                });
                assert_eq!(by_piece.expect("it is read"), answer(op, &text), "{len} bytes");
            }
        }
        assert_eq!(total(&[b'x'; 1000]), 1);
        assert_eq!(total(&b"x ".repeat(1000)), 1000);
    }

    #[test]
    fn the_checksum_ignores_order_and_nothing_else() {
        let of = |text: &[u8]| answer(Op::Counts, text);
        assert_eq!(of(b"a b a c"), of(b"c a a b"));
        assert_ne!(of(b"a b a c").checksum, of(b"a b b c").checksum);
        assert_ne!(of(b"12 3").checksum, of(b"1 23").checksum);
        assert_eq!((of(b"a b a c").total, of(b"a b a c").distinct), (4, 3));
    }

    #[test]
    fn answers_survive_the_wire() {
        let given = Answer { total: 1, distinct: u64::MAX, checksum: 0x0123_4567_89ab_cdef };
        assert_eq!(Answer::decode(&given.encode()).expect("whole"), given);
        assert!(Answer::decode(&[0; 23]).is_err());
        assert_eq!(op_from(op_code(Op::Counts)).expect("known"), Op::Counts);
        assert!(op_from(9).is_err());
    }
}
