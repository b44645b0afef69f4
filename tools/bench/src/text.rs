//! A text whose words are counted, and what is the answer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::case::Op;
use crate::error::Result;

/// A text and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// How many words it has.
    pub words: u64,
    /// The right answer to `counts`.
    pub counts: Answer,
}

impl Text {
    /// The right answer.
    pub fn expected(&self, op: Op) -> Answer {
        match op {
            Op::Total => Answer { total: self.words, ..Answer::default() },
            Op::Counts => self.counts,
        }
    }
}

/// What the service answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Words.
    pub total: u64,
    /// Different words; `counts` only.
    pub distinct: u64,
    /// The sum over all different words of `words::count::share`; `counts` only.
    pub checksum: u64,
}

/// Bytes of an answer on a byte stream.
pub const ANSWER_BYTES: usize = 24;

impl Answer {
    /// As sent on a byte stream, little-endian.
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        let fields = [self.total, self.distinct, self.checksum];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`Answer::encode`].
    ///
    /// # Errors
    /// If there are more or fewer bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (fields, rest) = bytes.as_chunks();
        match fields.iter().copied().map(u64::from_le_bytes).collect::<Vec<_>>()[..] {
            [total, distinct, checksum] if rest.is_empty() => {
                Ok(Self { total, distinct, checksum })
            }
            _ => Err("an answer of another length".into()),
        }
    }
}
