//! The client's own count, which is not the service's: it walks the bytes and sorts the words.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;

use crate::proto::Frequency;

/// What the answers about a text must be.
pub struct Expected {
    text: Bytes,
    /// The words in all.
    pub total: u64,
    /// The distinct words.
    pub distinct: usize,
    counts: Counts,
}

type Counts = Vec<(Range<usize>, u64)>;

impl Expected {
    /// Counts the words of `text`.
    pub fn of(text: Bytes) -> Self {
        let mut total = 0;
        let mut start = None;
        let mut counts: BTreeMap<&[u8], (Range<usize>, u64)> = BTreeMap::new();
        for (at, byte) in text.iter().chain(b" ").enumerate() {
            let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
            match start {
                None if !space => start = Some(at),
                Some(from) if space => {
                    total += 1;
                    counts.entry(&text[from..at]).or_insert((from..at, 0)).1 += 1;
                    start = None;
                }
                _ => {}
            }
        }
        let mut counts: Counts = counts.into_values().collect();
        // The words are in byte order, which a stable sort keeps among equal counts.
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        Self { total, distinct: counts.len(), counts, text }
    }

    /// The most frequent words, as text.
    pub fn top(&self, n: usize) -> impl Iterator<Item = (String, u64)> {
        self.counts.iter().take(n).map(|(range, count)| (shown(&self.text[range.clone()]), *count))
    }

    /// Checks an answer of `Total`.
    pub fn check_total(&self, words: u64) -> Result<(), String> {
        if words == self.total {
            return Ok(());
        }
        Err(format!("wrong answer: Total says {words} words, but the text has {}", self.total))
    }

    /// Checks an answer of `Counts`.
    pub fn check_counts(&self, frequencies: &[Frequency]) -> Result<(), String> {
        if frequencies.len() != self.counts.len() {
            return Err(format!(
                "wrong answer: Counts has {} distinct words, but the text has {}",
                frequencies.len(),
                self.counts.len()
            ));
        }
        for (place, (given, (range, count))) in frequencies.iter().zip(&self.counts).enumerate() {
            let word = &self.text[range.clone()];
            if given.word != word || given.count != *count {
                return Err(format!(
                    "wrong answer: Counts has `{}` {} times in place {}, where `{}` with {count} \
                     belongs",
                    shown(&given.word),
                    given.count,
                    place + 1,
                    shown(word),
                ));
            }
        }
        Ok(())
    }
}

/// A word as text, shortened to what is worth printing.
fn shown(word: &[u8]) -> String {
    const LONGEST: usize = 40;
    let text = String::from_utf8_lossy(&word[..word.len().min(LONGEST)]);
    let text: String = text.escape_debug().collect();
    if word.len() > LONGEST { text + "..." } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_short() {
        assert_eq!(shown("Wändé".as_bytes()), "Wändé");
        assert_eq!(shown(b"a\x1b[1m"), "a\\u{1b}[1m");
        assert_eq!(shown(&[b'x'; 40]), "x".repeat(40));
        assert_eq!(shown(&[b'x'; 41]), "x".repeat(40) + "...");
    }

    fn answer(words: &[(&'static str, u64)]) -> Vec<Frequency> {
        words
            .iter()
            .map(|&(word, count)| Frequency { word: Bytes::from_static(word.as_bytes()), count })
            .collect()
    }

    #[test]
    fn only_right_answers_pass() {
        let expected = Expected::of(Bytes::from_static(b"\nb a\tb  c\x0bd\r\n"));
        assert_eq!((expected.total, expected.distinct), (4, 3));
        assert_eq!(expected.check_total(4), Ok(()));
        assert_eq!(
            expected.check_total(5).unwrap_err(),
            "wrong answer: Total says 5 words, but the text has 4"
        );
        let right = answer(&[("b", 2), ("a", 1), ("c\x0bd", 1)]);
        assert_eq!(expected.check_counts(&right), Ok(()));
        assert_eq!(
            expected.check_counts(&right[..2]).unwrap_err(),
            "wrong answer: Counts has 2 distinct words, but the text has 3"
        );
        assert_eq!(
            expected.check_counts(&answer(&[("b", 2), ("c\x0bd", 1), ("a", 1)])).unwrap_err(),
            "wrong answer: Counts has `c\\u{b}d` 1 times in place 2, where `a` with 1 belongs"
        );
        assert!(expected.check_counts(&answer(&[("b", 3), ("a", 1), ("c\x0bd", 1)])).is_err());
    }

    #[test]
    fn texts_without_words() {
        for text in ["", "  \n"] {
            let expected = Expected::of(Bytes::from_static(text.as_bytes()));
            assert_eq!((expected.total, expected.distinct), (0, 0));
            assert_eq!(expected.check_counts(&[]), Ok(()));
        }
    }
}
