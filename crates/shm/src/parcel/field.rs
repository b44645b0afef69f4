#![allow(unsafe_code, reason = "a message is written around what others of this process read")]
//! A long field of a message in owned memory: the message is put together around it, and the field is not
//! copied.
//!
//! ```text
//! memory     | room | field | room |
//!
//! writing    whoever has it alone writes the field                     [`Field::bytes_mut`]
//! shared     all of this process read the field, and nobody writes it  [`Field::bytes`]
//!   claimed  by one message at a time                                  [`Field::claim`]
//!            what the message has before the field and behind it is written to the room next to it,
//!            unless the message has no such field, or there is more   [`Field::encode`]
//!            all of the message is read                                [`Field::message`]
//!   released nobody reads the message any more in this process         [`Field::release`]
//! ```
//!
//! That a peer reads the message still, whoever claims the field next has to know.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use partywall_abi::sync::{AtomicBool, AtomicU64, Ordering};

use super::owned::Memory;
use crate::slot::{self, SlotBuf};

/// Room before a field and behind it: a page, so that the field begins with one.
const ROOM: usize = 4096;

/// Fields so far.
static FIELDS: AtomicU64 = AtomicU64::new(0);

/// A field in owned memory, or a message that fills it from its begin.
#[derive(Debug)]
pub struct Field {
    memory: Memory,
    /// Where the field is.
    at: usize,
    len: usize,
    number: u64,
    is_claimed: AtomicBool,
}

/// The right to the room around one field, until it is given back.
#[derive(Debug)]
pub struct Claim {
    /// The number of the field.
    field: u64,
    /// What the message is of the memory.
    message: Range<usize>,
}

impl Field {
    /// How much memory a field of so many bytes takes.
    pub fn takes(len: usize) -> usize {
        len.saturating_add(2 * ROOM)
    }

    /// A field of so many bytes in memory that has [room](Self::takes) for it.
    ///
    /// # Panics
    /// It has not.
    pub fn new(memory: Memory, len: usize) -> Self {
        assert!(Self::takes(len) <= memory.len(), "room for the field");
        Self::with(memory, ROOM, len, false)
    }

    /// A message of so many bytes, with which the memory begins.
    ///
    /// # Panics
    /// It has not as many.
    pub fn message_of(memory: Memory, len: usize) -> Self {
        assert!(len <= memory.len(), "the message is in the memory");
        // It has no room around it that anybody could claim.
        Self::with(memory, 0, len, true)
    }

    fn with(memory: Memory, at: usize, len: usize, is_claimed: bool) -> Self {
        let number = FIELDS.fetch_add(1, Ordering::Relaxed);
        Self { memory, at, len, number, is_claimed: AtomicBool::new(is_claimed) }
    }

    /// The memory, for something else.
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// Where the field begins in the memory.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.part(&(self.at..self.at + self.len))
    }

    /// Its bytes, while nobody else has it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.at..self.at + self.len]
    }

    /// Claims the room around it; none where a message has it.
    pub fn claim(&self) -> Option<Claim> {
        let claimed =
            self.is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        claimed.ok().map(|_| Claim { field: self.number, message: 0..0 })
    }

    /// Encodes a message of so many bytes around it. False, and there is no message, where `encode` does not
    /// write this field as a whole and in one piece, writes other bytes the second time, or writes more
    /// around it than has room.
    ///
    /// # Panics
    /// The claim is one to another field.
    pub fn encode(
        &self,
        claim: &mut Claim,
        len: usize,
        mut encode: impl FnMut(&mut SlotBuf<'_>),
    ) -> bool {
        assert_eq!(claim.field, self.number, "a claim to this field");
        claim.message = 0..0;
        let field = self.bytes();
        let Some((before, behind)) = slot::around(field, &mut encode) else { return false };
        let fits = (1..=ROOM).contains(&before) && behind <= ROOM;
        if !fits || before + self.len + behind != len {
            return false;
        }
        let end = self.at + self.len;
        let begin = self.base().wrapping_add(self.at - before);
        let rest = self.base().wrapping_add(end);
        let room = [(begin, before), (rest, behind)];
        // SAFETY: both lie in the memory, outside of the field. The claim keeps others of this process away.
        if !unsafe { slot::encode_around(field, room, encode) } {
            return false;
        }
        claim.message = self.at - before..end + behind;
        true
    }

    /// The message that was encoded around it, and where it begins in the memory.
    ///
    /// # Panics
    /// The claim is one to another field.
    pub fn message<'a>(&'a self, claim: &'a Claim) -> (usize, &'a [u8]) {
        assert_eq!(claim.field, self.number, "a claim to this field");
        (claim.message.start, self.part(&claim.message))
    }

    /// Gives a claim back.
    ///
    /// # Panics
    /// It is one to another field.
    pub fn release(&self, claim: Claim) {
        assert_eq!(claim.field, self.number, "a claim to this field");
        self.is_claimed.store(false, Ordering::Release);
    }

    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn part(&self, part: &Range<usize>) -> &[u8] {
        let begin = self.base().wrapping_add(part.start);
        // SAFETY: the part is in the memory. It is the field, which nobody writes while this is borrowed, or
        // a message, which nobody writes while its claim is.
        unsafe { std::slice::from_raw_parts(begin, part.len()) }
    }
}

impl AsFd for Field {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, Bytes};

    const LEN: usize = 10_000;

    fn field() -> Field {
        let mut field = Field::new(Memory::new(Field::takes(LEN)).unwrap(), LEN);
        field.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        field
    }

    /// Encodes `before`, the field, and `behind`.
    fn encode(field: &Field, claim: &mut Claim, before: &[u8], behind: &[u8]) -> bool {
        let len = before.len() + LEN + behind.len();
        field.encode(claim, len, |out| {
            out.put_slice(before);
            out.put(field.bytes());
            out.put(behind);
        })
    }

    #[test]
    fn a_message_is_put_together_around_a_field() {
        let field = field();
        let mut claim = field.claim().unwrap();
        for (before, behind) in [(1, 0), (7, 3), (ROOM, ROOM)] {
            let (before, behind) = (vec![0xaa; before], vec![0xbb; behind]);
            assert!(encode(&field, &mut claim, &before, &behind));
            let (at, message) = field.message(&claim);
            assert_eq!(at, field.at() - before.len());
            assert_eq!(message, [&before, field.bytes(), &behind].concat());
        }
        assert!(field.claim().is_none(), "one message at a time");
        field.release(claim);
        assert!(field.claim().is_some());
        assert!(field.bytes().iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn what_does_not_fit_around_a_field_is_not_put_there() {
        let field = field();
        let mut claim = field.claim().unwrap();
        for (before, behind) in [(0, 1), (ROOM + 1, 0), (1, ROOM + 1)] {
            assert!(!encode(&field, &mut claim, &vec![1; before], &vec![2; behind]));
            assert!(field.message(&claim).1.is_empty());
        }
        let mut fails = |encode: &mut dyn FnMut(&mut SlotBuf<'_>)| {
            assert!(!field.encode(&mut claim, LEN + 2, encode));
        };
        let copy = Bytes::copy_from_slice(field.bytes());
        fails(&mut |out| out.put_bytes(1, LEN + 2));
        fails(&mut |out| {
            out.put_u8(1);
            out.put(copy.clone());
            out.put_u8(1);
        });
        // A part, another length, and twice.
        for (before, from, times) in [(2, 1, 1), (3, 0, 1), (1, 0, 2)] {
            fails(&mut |out| {
                out.put_bytes(1, before);
                (0..times).for_each(|_| out.put(&field.bytes()[from..]));
            });
        }
        // It writes the field at another place the second time.
        let mut time = 0;
        fails(&mut |out| {
            time += 1;
            out.put_bytes(1, time);
            out.put(field.bytes());
            out.put_bytes(1, 2 - time);
        });
        assert_eq!(time, 2);
        let other = self::field();
        let (mut of_other, len) = (other.claim().unwrap(), LEN + 2);
        let mut encode = |out: &mut SlotBuf<'_>| {
            out.put_u16(1);
            out.put(field.bytes());
        };
        assert!(!other.encode(&mut of_other, len, &mut encode), "that is another field");
        assert!(field.encode(&mut claim, len, encode));
        assert!(field.bytes().iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn a_message_that_fills_the_memory_has_no_room_around_it() {
        let mut memory = Memory::new(LEN).unwrap();
        memory.fill(3);
        let whole = Field::message_of(memory, LEN);
        assert!(whole.claim().is_none() && whole.bytes() == [3; LEN] && whole.at() == 0);
    }
}
