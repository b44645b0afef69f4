//! Blocks as messages of a stream: chunks of [`CHUNK`] bytes, which share the block's memory and are not
//! copied to be sent, and are read where they arrive. The first message of a call says how long a block is
//! and which client calls.

use bytes::{Bytes, BytesMut};

use super::turn::{Reader, Turn};
use crate::error::Result;

/// Bytes of a message; a shorter block is one message.
pub const CHUNK: usize = 1 << 20;

/// A block whose chunks are sent.
#[derive(Debug)]
pub struct Chunks {
    block: Bytes,
}

impl Chunks {
    /// A block of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { block: BytesMut::zeroed(bytes).freeze() }
    }

    /// Sets all bytes for `turn`, and returns the chunks. The memory is used again unless a chunk of it is
    /// still held.
    pub fn set(&mut self, turn: Turn) -> Vec<Bytes> {
        let len = self.block.len();
        let block = std::mem::take(&mut self.block).try_into_mut();
        let mut block = block.unwrap_or_else(|_| BytesMut::zeroed(len));
        turn.fill(&mut block);
        self.block = block.freeze();
        let chunk = |at: usize| self.block.slice(at..len.min(at + CHUNK));
        (0..len).step_by(CHUNK).map(chunk).collect()
    }
}

/// The first message of a call.
pub fn greeting(bytes: usize, client: usize) -> Bytes {
    [bytes, client].map(|number| (number as u64).to_le_bytes()).concat().into()
}

/// What is in it.
///
/// # Errors
/// If it is none that begins a call.
pub fn greeted(greeting: &[u8]) -> Result<(usize, usize)> {
    let ([bytes, client], []) = greeting.as_chunks() else {
        return Err("no first message".into());
    };
    let [bytes, client] = [bytes, client].map(|number| u64::from_le_bytes(*number) as usize);
    Ok((bytes, client))
}

/// The server's half of a call: reads chunks, and answers a whole block with its own.
#[derive(Debug)]
pub struct Answerer {
    chunks: Chunks,
    bytes: usize,
    reader: Reader,
}

impl Answerer {
    /// For the call that begins with this message.
    ///
    /// # Errors
    /// If it is none that begins a call.
    pub fn new(greeting: &[u8]) -> Result<Self> {
        let (bytes, client) = greeted(greeting)?;
        let reader = Reader::new(Turn::first(client), bytes);
        Ok(Self { chunks: Chunks::new(bytes), bytes, reader })
    }

    /// Reads a chunk. The chunks of the answer follow the last one of a block.
    pub fn take(&mut self, chunk: &[u8]) -> Vec<Bytes> {
        self.reader.read(chunk);
        if !self.reader.is_over() {
            return Vec::new();
        }
        let turn = self.reader.turn().next();
        let is_right = self.reader.is_right();
        self.reader = Reader::new(turn.next(), self.bytes);
        self.chunks.set(if is_right { turn } else { turn.spoilt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = CHUNK * 2;

    fn is_right(chunks: &[Bytes], turn: Turn) -> bool {
        let mut reader = Reader::new(turn, BYTES);
        chunks.iter().for_each(|chunk| reader.read(chunk));
        reader.is_right()
    }

    #[test]
    fn a_wrong_block_is_answered_with_a_wrong_one() {
        let mut chunks = Chunks::new(BYTES);
        for is_spoilt in [false, true] {
            let mut answerer = Answerer::new(&greeting(BYTES, 5)).expect("a greeting");
            let turn = Turn::first(5);
            let sent = chunks.set(if is_spoilt { turn.spoilt() } else { turn });
            assert!(sent.len() == 2 && answerer.take(&sent[0]).is_empty());
            let answer = answerer.take(&sent[1]);
            assert_eq!(is_right(&answer, turn.next()), !is_spoilt);
        }
        assert!(Answerer::new(b"none").is_err());
    }

    #[test]
    fn a_chunk_that_is_held_keeps_its_bytes() {
        let mut chunks = Chunks::new(BYTES);
        let turn = Turn::first(0);
        let held = chunks.set(turn);
        assert!(is_right(&chunks.set(turn.next()), turn.next()));
        assert!(is_right(&held, turn));
        drop(held);
        let place = chunks.set(turn)[0].as_ptr();
        assert_eq!(chunks.set(turn)[0].as_ptr(), place, "memory that nobody holds is used again");
    }
}
