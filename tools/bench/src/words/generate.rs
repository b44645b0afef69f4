//! Texts: the integers from 1 to N in random order, one pass, constant memory.
//!
//! The order comes from a keyed bijection on the numbers below N, so nothing has to be shuffled in
//! memory: a Feistel network on the smallest power of two that holds N, applied again to results
//! that fall outside.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::Text;
use super::count::share;
use crate::text::Answer;
use partywall_testkit::{Random, mix};

const ROUNDS: usize = 6;

/// A bijection on the numbers below `len`.
#[derive(Clone, Debug)]
struct Shuffle {
    len: u64,
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    fn new(len: u64, seed: u64) -> Self {
        let bits = (64 - len.saturating_sub(1).leading_zeros()).max(2);
        let mut rng = Random::new(seed ^ mix(len));
        Self {
            len,
            low_bits: bits / 2,
            high_bits: bits - bits / 2,
            keys: std::array::from_fn(|_| rng.draw()),
        }
    }

    fn at(&self, index: u64) -> u64 {
        let mut x = index;
        loop {
            x = self.permute(x);
            if x < self.len {
                return x;
            }
        }
    }

    fn permute(&self, x: u64) -> u64 {
        let (low_mask, high_mask) = ((1 << self.low_bits) - 1, (1 << self.high_bits) - 1);
        let (mut low, mut high) = (x & low_mask, x >> self.low_bits);
        for pair in self.keys.chunks_exact(2) {
            low ^= mix(high ^ pair[0]) & low_mask;
            high ^= mix(low ^ pair[1]) & high_mask;
        }
        high << self.low_bits | low
    }
}

/// Writes the integers 1 to `words` to `path`: a space after each, a newline after the last.
///
/// `go_on` is asked now and then with the number of words written.
pub fn generate(
    path: &Path,
    words: u64,
    seed: u64,
    mut go_on: impl FnMut(u64) -> bool,
) -> io::Result<Text> {
    let shuffle = Shuffle::new(words, seed);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut checksum = 0u64;
    let mut bytes = 0;
    let mut digits = itoa::Buffer::new();
    for index in 0..words {
        let word = digits.format(shuffle.at(index) + 1).as_bytes();
        checksum = checksum.wrapping_add(share(word, 1));
        bytes += word.len() as u64 + 1;
        file.write_all(word)?;
        file.write_all(if index + 1 == words { b"\n" } else { b" " })?;
        if index.is_multiple_of(1 << 20) && !go_on(index) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    // Written back now, so that the disk is quiet while anything is measured.
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    let counts = Answer { total: words, distinct: words, checksum };
    Ok(Text { path: path.to_owned(), bytes, words, counts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Op;
    use crate::words::count::{answer, words};

    fn text_of(count: u64, seed: u64) -> (Text, Vec<u8>) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("text");
        let text = generate(&path, count, seed, |_| true).expect("written");
        (text, std::fs::read(path).expect("read"))
    }

    #[test]
    fn every_integer_occurs_once() {
        for count in [1, 2, 3, 100, 1000, 4096, 4097] {
            let (text, bytes) = text_of(count, 1);
            let mut found: Vec<u64> = words(&bytes)
                .map(|word| std::str::from_utf8(word).expect("ascii").parse().expect("a number"))
                .collect();
            assert!(count < 100 || found.iter().zip(1..).any(|(a, b)| *a != b), "in order");
            found.sort_unstable();
            assert!(found.iter().copied().eq(1..=count), "{count} words");
            assert_eq!(text.bytes, bytes.len() as u64);
        }
    }

    #[test]
    fn lengths_are_those_of_the_published_workload() {
        assert_eq!(text_of(100, 7).0.bytes, 292);
        assert_eq!(text_of(1_000, 7).0.bytes, 3_893);
        assert_eq!(text_of(10_000, 7).0.bytes, 48_894);
    }

    #[test]
    fn the_expected_answers_are_right() {
        let (text, bytes) = text_of(5_000, 3);
        assert_eq!(answer(Op::Total, &bytes), text.expected(Op::Total));
        assert_eq!(answer(Op::Counts, &bytes), text.expected(Op::Counts));
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(text_of(1000, 1).1, text_of(1000, 1).1);
        assert_ne!(text_of(1000, 1).1, text_of(1000, 2).1);
    }

    #[test]
    fn generation_can_be_stopped() {
        let dir = tempfile::tempdir().expect("a directory");
        let stopped = generate(&dir.path().join("text"), 10, 1, |_| false);
        assert_eq!(stopped.map_err(|error| error.kind()), Err(io::ErrorKind::Interrupted));
    }
}
