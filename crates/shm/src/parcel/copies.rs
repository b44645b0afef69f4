#![allow(unsafe_code, reason = "the kernel may take the pages of memory that nobody has")]
//! Private memory that long messages are copied into, used again.
//!
//! Fresh memory costs more than a copy into it: the kernel clears each page when it is touched first. So
//! memory of a copy that nobody has any more is kept for the next one: [`KEPT`] bytes in all, for the whole
//! process. Its pages are the kernel's to take where it has too few (madvise(2), `MADV_FREE`). Long memory
//! asks for huge pages.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use memmap2::{Advice, MmapMut, UncheckedAdvice};

use super::HUGE;
use crate::slot::{self, SlotBuf};

/// So many bytes are kept at most, by all copies of this process that are over.
pub const KEPT: usize = 128 << 20;

/// Shorter copies are in memory of the allocator, which keeps some as well.
const LEAST: usize = 128 * 1024;

const PAGE: usize = 4096;

/// What is kept, last used last.
static FREE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

/// Memory with a copy in it.
struct Copy {
    /// Until the drop.
    memory: Option<MmapMut>,
    at: usize,
    len: usize,
}

/// So many bytes, as `write` writes them all, of something that begins at this offset in other memory: they
/// begin at the same place of a page, as copies from page to page are the fastest.
///
/// # Panics
/// `write` writes fewer.
pub fn copied(offset: u64, len: usize, write: impl FnOnce(&mut SlotBuf<'_>)) -> Bytes {
    let at = offset as usize % PAGE;
    let write_to = |room: &mut [u8]| {
        let written = slot::append(&mut &mut room[..], len, write);
        assert_eq!(written, Ok(()), "all bytes are written");
    };
    let Some(mut memory) = (len >= LEAST).then(|| taken(at + len)).flatten() else {
        let mut bytes = vec![0; len];
        write_to(&mut bytes);
        return bytes.into();
    };
    write_to(&mut memory[at..at + len]);
    Bytes::from_owner(Copy { memory: Some(memory), at, len })
}

/// The longest memory that is taken for so many bytes.
fn longest(len: usize) -> usize {
    len.next_multiple_of(HUGE).max(2 * len)
}

/// Memory for so many bytes: the shortest that is kept and fits, or else some that is made; none where the
/// system has none.
fn taken(len: usize) -> Option<MmapMut> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    // None is held by a copy that is far shorter.
    let fits = |memory: &MmapMut| (len..=longest(len)).contains(&memory.len());
    let fitting = free.iter().enumerate().filter(|(_, memory)| fits(memory));
    let shortest = fitting.min_by_key(|(_, memory)| memory.len()).map(|(at, _)| at);
    if let Some(at) = shortest {
        return Some(free.remove(at));
    }
    drop(free);
    let step = if len < HUGE { LEAST } else { HUGE };
    let memory = MmapMut::map_anon(len.checked_next_multiple_of(step)?).ok()?;
    if len >= HUGE {
        // Where the system offers none there are small ones.
        let _asked = memory.advise(Advice::HugePage);
    }
    Some(memory)
}

impl Deref for Copy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.as_ref().expect("until the drop")[self.at..self.at + self.len]
    }
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take().filter(|memory| memory.len() <= KEPT) else { return };
        // SAFETY: nobody reads it any more, and whoever has it next writes it first.
        let _given = unsafe { memory.unchecked_advise(UncheckedAdvice::Free) };
        let mut over = Vec::new();
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(memory);
        let mut bytes: usize = free.iter().map(|memory| memory.len()).sum();
        while bytes > KEPT {
            let oldest = free.remove(0);
            bytes -= oldest.len();
            over.push(oldest);
        }
        drop(free);
        // Unmapped without the lock.
        drop(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    fn filled(len: usize, with: u8) -> Bytes {
        copied(8187, len, |out| out.put_bytes(with, len))
    }

    fn kept() -> usize {
        FREE.lock().unwrap().iter().map(|memory| memory.len()).sum()
    }

    #[test]
    fn memory_of_a_copy_is_used_again_and_bounded() {
        let first = filled(3 << 20, 1);
        assert!(first.iter().all(|byte| *byte == 1) && first.len() == 3 << 20);
        let at = first.as_ptr();
        assert_eq!(at.addr() % PAGE, 4091);
        let part = first.slice(5..9);
        drop(first);
        let second = filled(3 << 20, 2);
        assert_ne!(second.as_ptr(), at, "a part of the first is held");
        assert_eq!(part, [1; 4][..]);
        drop(part);
        let short = filled(LEAST, 3);
        assert_ne!(short.as_ptr(), at, "that memory is far longer");
        let third = filled(2 << 20, 3);
        assert_eq!((third.as_ptr(), third.len()), (at, 2 << 20));
        assert!(third.iter().all(|byte| *byte == 3) && second.iter().all(|byte| *byte == 2));
        drop((second, third, short));
        assert!((8 << 20..=KEPT).contains(&kept()));
        let many: Vec<_> = (0..20).map(|n| filled(16 << 20, n)).collect();
        assert!(many.iter().zip(0..).all(|(bytes, n)| bytes[(16 << 20) - 1] == n));
        drop(many);
        assert!(kept() <= KEPT);
        let shorter = filled(LEAST - 1, 7);
        assert!(shorter.iter().all(|byte| *byte == 7));
    }

    #[test]
    #[should_panic(expected = "all bytes are written")]
    fn a_copy_that_is_not_whole_is_none() {
        let _bytes = copied(0, LEAST - 1, |out| out.put_u8(1));
    }
}
