#![allow(unsafe_code, reason = "a buffer whose bytes lie in an outbox leads there by pointer")]
//! The payload of a reserved record as a buffer that messages are encoded into.
//!
//! The bytes belong to a record that is not published, in memory that this process alone may write.
//! [`crate::ring::Slot::commit`] publishes no record of which less was written than was reserved, or more was
//! to be. A message may be of a program's own making and have another length than it has said: what has no
//! room is thrown away, and [`SlotBuf::is_filled`] tells.
//!
//! [`append`] encodes into other memory by the same buffer, so that a type of message is compiled for one
//! buffer alone. [`Hole`] is for a message of which a field is in its place already.

use std::marker::PhantomData;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};

use crate::region::copy_long;
use crate::ring::Slot;

/// From so many bytes on the C library's copy can be many times slower than [`copy_long`].
const LONG: usize = 4096;

/// What is written of a record that more was to be written of than was reserved.
const TOO_MUCH: usize = usize::MAX;

/// What is left of a reserved record. It has room for as many bytes as were reserved and not written; more
/// are thrown away, and the record with them.
pub struct SlotBuf<'a> {
    /// Where the next bytes go, and how many lie there; then those at the arena's start.
    at: *mut u8,
    here: usize,
    start: *mut u8,
    there: usize,
    written: &'a mut usize,
    /// Bytes that were to be written in all, once they are too many.
    wanted: usize,
    /// What is not written, for it is there.
    hole: Option<&'a mut Hole>,
    _record: PhantomData<&'a mut u8>,
}

/// A field of a message that is not written, since it lies where it would be written to.
pub(crate) struct Hole {
    at: *const u8,
    len: usize,
    /// How many bytes are before it, once that is known.
    before: Option<usize>,
    passed: bool,
}

impl Hole {
    fn new(field: &[u8], before: Option<usize>) -> Self {
        Self { at: field.as_ptr(), len: field.len(), before, passed: false }
    }

    /// Whether this is the field, at its place.
    fn is(&mut self, part: &[u8], before: usize) -> bool {
        let is_it = part.as_ptr() == self.at && part.len() == self.len && !self.passed;
        self.passed |= is_it && *self.before.get_or_insert(before) == before;
        is_it && self.passed
    }
}

impl<'a> SlotBuf<'a> {
    /// # Safety
    /// Both pieces are writable, and nobody else accesses them for this lifetime.
    pub(crate) unsafe fn new(
        [(at, here), (start, there)]: [(*mut u8, usize); 2],
        written: &'a mut usize,
    ) -> Self {
        Self { at, here, start, there, written, wanted: 0, hole: None, _record: PhantomData }
    }

    /// These bytes, to be encoded into; how many are, or that they are too many, is in `written`.
    #[inline]
    pub fn over(bytes: &'a mut [u8], written: &'a mut usize) -> Self {
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        *written = 0;
        // SAFETY: they are borrowed for this lifetime.
        unsafe { Self::new([(at, len), (at, 0)], written) }
    }

    /// Whether as much has been written as was reserved, and not more.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.remaining_mut() == 0 && *self.written != TOO_MUCH
    }

    /// Whether this is what is not written.
    fn passes(&mut self, part: &[u8]) -> bool {
        let before = if *self.written == TOO_MUCH { self.wanted } else { *self.written };
        self.hole.as_mut().is_some_and(|hole| hole.is(part, before))
    }

    /// So many more bytes are too many.
    #[cold]
    fn overrun(&mut self, more: usize) {
        (self.here, self.there) = (0, 0);
        if *self.written != TOO_MUCH {
            self.wanted = std::mem::replace(self.written, TOO_MUCH);
        }
        self.wanted = self.wanted.saturating_add(more);
    }
}

// SAFETY: `chunk_mut` is the memory at which the next bytes of the payload lie, and `remaining_mut` how much
// of that there is.
unsafe impl BufMut for SlotBuf<'_> {
    #[inline]
    fn remaining_mut(&self) -> usize {
        self.here + self.there
    }

    #[inline]
    unsafe fn advance_mut(&mut self, n: usize) {
        assert!(n <= self.here, "more than the chunk has");
        // SAFETY: the assertion keeps it within the piece.
        self.at = unsafe { self.at.add(n) };
        self.here -= n;
        *self.written += n;
        if self.here == 0 {
            (self.at, self.here, self.there) = (self.start, self.there, 0);
        }
    }

    #[inline]
    fn chunk_mut(&mut self) -> &mut UninitSlice {
        // SAFETY: `Slot::buffer` has checked that so many bytes lie there in this process's own outbox,
        // which lives as long as the slot; the borrow of the slot keeps every other access of this process
        // away, and no other process may write there. Those of `append` are a chunk that it has borrowed.
        unsafe { UninitSlice::from_raw_parts_mut(self.at, self.here) }
    }

    // Most fields are a few bytes, whose number is known where this is inlined.
    #[inline]
    fn put_slice(&mut self, mut src: &[u8]) {
        if src.len() > self.remaining_mut() {
            return self.overrun(src.len());
        }
        while !src.is_empty() {
            let (part, rest) = src.split_at(src.len().min(self.here));
            if part.len() < LONG || cfg!(not(target_arch = "x86_64")) {
                // SAFETY: `at` leads to `here` bytes, as in `chunk_mut`; the message's own bytes lie
                // elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.at, part.len()) };
            } else {
                // SAFETY: as above.
                unsafe { copy_long(part.as_ptr(), self.at, part.len()) };
            }
            // SAFETY: so many bytes have been written.
            unsafe { self.advance_mut(part.len()) };
            src = rest;
        }
    }

    #[inline]
    fn put_u8(&mut self, n: u8) {
        if self.here == 0 {
            return self.overrun(1);
        }
        // SAFETY: there is a byte at `at`, as in `chunk_mut`.
        unsafe { self.at.write(n) };
        // SAFETY: it has been written.
        unsafe { self.advance_mut(1) };
    }

    fn put<B: Buf>(&mut self, mut src: B) {
        while src.has_remaining() {
            let part = src.chunk();
            let len = part.len();
            if !self.passes(part) {
                self.put_slice(part);
            }
            src.advance(len);
        }
    }

    fn put_bytes(&mut self, byte: u8, count: usize) {
        (0..count).for_each(|_| self.put_u8(byte));
    }
}

/// Appends to `out` the `len` bytes that `encode` writes.
///
/// # Errors
/// It writes more bytes than that, or fewer; how many. Nothing is appended.
///
/// # Panics
/// `out` has no room for so many bytes in one piece.
pub fn append(
    out: &mut impl BufMut,
    len: usize,
    encode: impl FnOnce(&mut SlotBuf<'_>),
) -> Result<(), usize> {
    let chunk = out.chunk_mut();
    assert!(len <= chunk.len(), "{len} bytes where {} have room", chunk.len());
    let (at, mut written) = (chunk.as_mut_ptr(), 0);
    // SAFETY: so many bytes of the chunk, which is borrowed meanwhile.
    let mut buffer = unsafe { SlotBuf::new([(at, len), (at, 0)], &mut written) };
    encode(&mut buffer);
    if !buffer.is_filled() {
        let wanted = buffer.wanted;
        return Err(if written == TOO_MUCH { wanted } else { written });
    }
    // SAFETY: so many bytes of the chunk have been written.
    unsafe { out.advance_mut(len) };
    Ok(())
}

/// How many bytes of what `encode` writes come before this field and behind it, if it writes the field; what
/// it writes goes nowhere.
pub(crate) fn around(
    field: &[u8],
    encode: impl FnOnce(&mut SlotBuf<'_>),
) -> Option<(usize, usize)> {
    let (mut hole, mut written) = (Hole::new(field, None), 0);
    let nowhere = (std::ptr::dangling_mut(), 0);
    // SAFETY: there are no bytes.
    let mut buffer = unsafe { SlotBuf::new([nowhere; 2], &mut written) };
    buffer.hole = Some(&mut hole);
    encode(&mut buffer);
    let all = buffer.wanted;
    let before = hole.before.filter(|_| hole.passed)?;
    Some((before, all - before))
}

/// Encodes a message around a field that lies between the two pieces; whether all of both was written, and
/// the field between them.
///
/// # Safety
/// As for [`SlotBuf::new`].
pub(crate) unsafe fn encode_around(
    field: &[u8],
    [before, behind]: [(*mut u8, usize); 2],
    encode: impl FnOnce(&mut SlotBuf<'_>),
) -> bool {
    let (mut hole, mut written) = (Hole::new(field, Some(before.1)), 0);
    // SAFETY: forwarded.
    let mut buffer = unsafe { SlotBuf::new([before, behind], &mut written) };
    buffer.hole = Some(&mut hole);
    encode(&mut buffer);
    buffer.is_filled() && hole.passed
}

impl Slot<'_> {
    /// The rest of the payload, if it lies in one piece, which counts as written.
    #[inline]
    pub fn whole(&mut self) -> Option<&mut [u8]> {
        let [(at, len), (_, 0)] = self.pieces() else { return None };
        *self.written_mut() += len;
        // SAFETY: so many bytes of this process's outbox, which has been mapped and so has values; the slot
        // is borrowed, and no other process may write there.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }

    /// The rest of the payload, to be encoded into.
    #[inline]
    pub fn buffer(&mut self) -> SlotBuf<'_> {
        let pieces = self.pieces();
        // SAFETY: the slot's own bytes of this process's outbox, while the slot is borrowed.
        unsafe { SlotBuf::new(pieces, self.written_mut()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::local_pair;
    use partywall_abi::layout::{Geometry, INLINE_BYTES};

    #[test]
    fn what_is_encoded_arrives_wherever_the_record_lies() {
        let (mut ours, mut theirs) = local_pair(Geometry::new(64, 1 << 14).unwrap()).unwrap();
        let most = ours.producer.record_bytes();
        // Short ones, long ones, and all that lie across the arena's end.
        let lens = [0, 1, INLINE_BYTES, INLINE_BYTES + 1, most / 3, most - 7, most];
        for round in 0..200_usize {
            let len = lens[round % lens.len()];
            let bytes: Vec<_> = (0..len).map(|i| (i * 7 + round) as u8).collect();
            let head = len.min(3);
            let mut slot = ours.producer.reserve(len).unwrap().expect("room");
            slot.write(&bytes[..head]);
            let mut buffer = slot.buffer();
            assert_eq!(buffer.remaining_mut(), len - head);
            for piece in bytes[head..].chunks(11) {
                match piece {
                    [byte] => buffer.put_u8(*byte),
                    piece => buffer.put_slice(piece),
                }
            }
            assert!(!buffer.has_remaining_mut());
            slot.commit(5, 0, 1);
            let record = theirs.consumer.peek().unwrap().expect("a record");
            let mut came = Vec::new();
            theirs.consumer.read(&mut came);
            theirs.consumer.release();
            assert_eq!((record.len as usize, &came), (len, &bytes));
        }
    }

    #[test]
    fn a_record_in_one_piece_is_written_as_a_slice() {
        let (mut ours, mut theirs) = local_pair(Geometry::new(64, 1 << 14).unwrap()).unwrap();
        let most = ours.producer.record_bytes();
        let mut wrapped = 0;
        for round in 0..50_usize {
            let len = [1, 40, 65, most - 100, most][round % 5];
            let bytes: Vec<_> = (0..len).map(|i| (i * 7 + round) as u8).collect();
            let mut slot = ours.producer.reserve(len).unwrap().expect("room");
            match slot.whole() {
                Some(whole) => whole.copy_from_slice(&bytes),
                None => {
                    slot.write(&bytes);
                    wrapped += 1;
                }
            }
            slot.commit(5, 0, 1);
            assert_eq!(theirs.consumer.peek().unwrap().map(|d| d.len as usize), Some(len));
            let mut came = Vec::new();
            theirs.consumer.read(&mut came);
            theirs.consumer.release();
            assert_eq!(came, bytes);
        }
        assert!(wrapped > 0, "none lies across the end of the arena");
    }

    #[test]
    fn records_of_every_short_length_arrive() {
        let (mut ours, mut theirs) = local_pair(Geometry::DEFAULT).unwrap();
        for len in 0..=INLINE_BYTES + 32 {
            let bytes: Vec<_> = (1..=len).map(|i| i as u8).collect();
            assert_eq!(ours.producer.try_push(5, 0, 1, &[&bytes]), Ok(true));
            assert_eq!(theirs.consumer.peek().unwrap().map(|d| d.len as usize), Some(len));
            let mut came = Vec::new();
            theirs.consumer.read(&mut came);
            theirs.consumer.release();
            assert_eq!(came, bytes);
        }
    }

    #[test]
    fn what_is_appended_is_as_long_as_was_said() {
        let encode = |out: &mut SlotBuf<'_>| {
            out.put_u8(1);
            out.put_slice(&[2, 3, 4]);
            out.put_bytes(5, 2);
        };
        for len in 0..10 {
            let mut out = Vec::with_capacity(20);
            out.push(0);
            let appended = append(&mut out, len, encode);
            match len {
                6 => assert_eq!((appended, &out[..]), (Ok(()), &[0, 1, 2, 3, 4, 5, 5][..])),
                _ => assert_eq!((appended, &out[..]), (Err(6), &[0][..])),
            }
        }
    }

    #[test]
    #[should_panic(expected = "8 bytes where 7 have room")]
    fn what_is_appended_has_room() {
        let mut room = [0; 7];
        let _ = append(&mut &mut room[..], 8, |_| {});
    }

    #[test]
    #[should_panic(expected = "less than was reserved")]
    fn a_record_that_is_not_filled_is_not_published() {
        let (mut ours, _theirs) = local_pair(Geometry::DEFAULT).unwrap();
        let mut slot = ours.producer.reserve(100).unwrap().expect("room");
        slot.buffer().put_slice(&[7; 99]);
        slot.commit(5, 0, 1);
    }

    #[test]
    fn a_buffer_takes_no_more_than_was_reserved() {
        let (mut ours, mut theirs) = local_pair(Geometry::DEFAULT).unwrap();
        let more: [fn(&mut SlotBuf<'_>); 4] = [
            |buffer| buffer.put_slice(&[8; 2]),
            |buffer| buffer.put(&[8; 2][..]),
            |buffer| buffer.put_u16(8),
            |buffer| buffer.put_bytes(8, 2),
        ];
        for more in more {
            for len in [4, 400] {
                let mut slot = ours.producer.reserve(len).unwrap().expect("room");
                let mut buffer = slot.buffer();
                buffer.put_bytes(7, len - 1);
                assert!(!buffer.is_filled());
                more(&mut buffer);
                assert!(!buffer.is_filled() && !buffer.has_remaining_mut());
                buffer.put_u8(8);
                assert!(!buffer.is_filled());
                let sent = std::panic::AssertUnwindSafe(|| slot.commit(5, 0, 1));
                assert!(std::panic::catch_unwind(sent).is_err());
            }
        }
        // What lies there of it is nobody's.
        let mut slot = ours.producer.reserve(4).unwrap().expect("room");
        let mut buffer = slot.buffer();
        buffer.put(&[1, 2, 3, 4][..]);
        assert!(buffer.is_filled());
        slot.commit(5, 0, 1);
        assert_eq!(theirs.consumer.peek().unwrap().map(|record| record.len), Some(4));
        let mut came = Vec::new();
        theirs.consumer.read(&mut came);
        assert_eq!(came, [1, 2, 3, 4]);
    }
}
