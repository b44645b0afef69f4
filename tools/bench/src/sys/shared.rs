#![allow(unsafe_code, reason = "maps memory that two processes share")]
//! Memory files, mapped: for reading and writing by both sides at any time ([`Shared`]), by one side at a
//! time ([`Turns`]), or by one side and then for reading by the other ([`Fresh`], [`Sealed`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::handoff::{self, STEP};

/// A whole memory file, mapped.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the base never changes, and what it points to is reached through atomics, or through raw
// pointers by code that answers for its own order.
unsafe impl Send for Shared {}

// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Creates a memory file of `len` zero bytes.
pub fn create(len: usize) -> io::Result<OwnedFd> {
    create_with(len, MemfdFlags::CLOEXEC)
}

fn create_with(len: usize, flags: MemfdFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create("bench", flags)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

impl Shared {
    /// Maps all of `fd`. The mapping outlives the descriptor.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        Self::map_with(fd, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    fn map_with(fd: impl AsFd, access: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        let len = usize::try_from(fstat(&fd)?.st_size).map_err(io::Error::other)?;
        // SAFETY: the kernel picks a free range, so no existing memory is touched.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of byte `offset`; `span` bytes from there lie within the mapping.
    ///
    /// # Panics
    /// If they do not.
    #[inline]
    pub fn at(&self, offset: usize, span: usize) -> *mut u8 {
        let end = offset.checked_add(span);
        assert!(end.is_some_and(|end| end <= self.len), "outside of the mapping");
        // SAFETY: `offset` is within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The 32-bit word at byte `offset`.
    ///
    /// # Panics
    /// If it is misaligned or outside of the mapping.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "misaligned word");
        let place = self.at(offset, 4).cast();
        // SAFETY: mapped, aligned (the base is a page), and reached only through atomics.
        unsafe { AtomicU32::from_ptr(place) }
    }

    /// The 64-bit word at byte `offset`.
    ///
    /// # Panics
    /// If it is misaligned or outside of the mapping.
    #[inline]
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "misaligned word");
        let place = self.at(offset, 8).cast();
        // SAFETY: mapped, aligned (the base is a page), and reached only through atomics.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and every borrow of it has ended.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A block that two sides have by turns. Nothing but their care keeps one off it while the other has it.
///
/// | byte | word | written by |
/// |---|---|---|
/// | 0 | number of the first side's last hand-over, a multiple of [`TURN`], and [`GONE`] | first side |
/// | 64 | the same of the second side | second side |
/// | 4096.. | the block | who has the turn: the first side at the start |
#[derive(Debug)]
pub struct Turns {
    memory: Shared,
    is_first: bool,
    has_turn: bool,
    number: u32,
    seen: u32,
}

const WORDS: [usize; 2] = [0, 64];
const BLOCK: usize = 4096;

/// The distance between two numbers; below it are the bits of a hand-over and [`GONE`].
const TURN: u32 = 2 * STEP;

/// Set once a side has gone, perhaps after a last hand-over.
const GONE: u32 = STEP;

impl Turns {
    /// Creates the memory of a block of `len` bytes.
    pub fn create(len: usize) -> io::Result<OwnedFd> {
        create(BLOCK + len)
    }

    /// Maps one side of it.
    pub fn map(fd: impl AsFd, is_first: bool) -> io::Result<Self> {
        Ok(Self { memory: Shared::map(fd)?, is_first, has_turn: is_first, number: 0, seen: 0 })
    }

    /// The block; none while the other side has the turn.
    pub fn block(&mut self) -> Option<&mut [u8]> {
        let len = self.memory.len() - BLOCK;
        let place = self.memory.at(BLOCK, len);
        // SAFETY: `at` checked the range; this side has the turn, so the other side, which is of this
        // program, does not touch the block; `self` is borrowed as long as the slice.
        self.has_turn.then(|| unsafe { slice::from_raw_parts_mut(place, len) })
    }

    /// Gives the turn to the other side.
    pub fn hand_over(&mut self) {
        self.has_turn = false;
        self.number = self.number.wrapping_add(TURN);
        self.publish(self.number);
    }

    fn publish(&self, word: u32) {
        handoff::hand_over(self.memory.word(WORDS[usize::from(!self.is_first)]), word);
    }

    /// Sleeps until this side has the turn. False if the other side has gone.
    pub fn wait(&mut self) -> bool {
        if self.seen & GONE == 0 {
            let before = self.seen;
            let word = self.memory.word(WORDS[usize::from(self.is_first)]);
            self.seen = handoff::change(word, before);
            self.has_turn = self.seen & !GONE != before;
        }
        self.has_turn
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.publish(self.number | GONE);
    }
}

/// What keeps a file as it is.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// A new memory file that nobody else has yet.
#[derive(Debug)]
pub struct Fresh {
    memory: Shared,
    file: OwnedFd,
}

impl Fresh {
    /// Of `len` bytes, which are zero.
    pub fn create(len: usize) -> io::Result<Self> {
        let file = create_with(len, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let memory = Shared::map_with(&file, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        Ok(Self { memory, file })
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let place = self.memory.at(0, self.memory.len);
        // SAFETY: the whole mapping, borrowed with `self`; nobody else has the file.
        unsafe { slice::from_raw_parts_mut(place, self.memory.len) }
    }

    /// Keeps it as it is from now on.
    pub fn seal(self) -> io::Result<OwnedFd> {
        drop(self.memory);
        fcntl_add_seals(&self.file, SEALS)?;
        Ok(self.file)
    }
}

/// A memory file that nobody can change, mapped for reading.
#[derive(Debug)]
pub struct Sealed(Shared);

impl Sealed {
    /// Maps it.
    ///
    /// # Errors
    /// If someone could still change it.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        if !fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("the file is not sealed"));
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Ok(Self(Shared::map_with(fd, ProtFlags::READ, flags)?))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let place = self.0.at(0, self.0.len);
        // SAFETY: the whole mapping, borrowed with `self`; the seals keep everyone from changing it.
        unsafe { slice::from_raw_parts(place, self.0.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_see_one_memory() {
        let fd = create(4096).expect("memfd");
        let (a, b) = (Shared::map(&fd).expect("map"), Shared::map(&fd).expect("map"));
        a.word(64).store(7, Relaxed);
        assert_eq!(b.word(64).load(Relaxed), 7);
        assert_eq!(b.len(), 4096);
    }

    #[test]
    fn one_side_at_a_time_has_the_block() {
        let fd = Turns::create(8192).expect("memfd");
        let mut first = Turns::map(&fd, true).expect("map");
        let mut second = Turns::map(&fd, false).expect("map");
        assert!(second.block().is_none(), "the first side has the turn");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for byte in 1..=100 {
                    assert!(second.wait());
                    let block = second.block().expect("the turn");
                    assert!(block.len() == 8192 && block.iter().all(|seen| *seen == byte));
                    block.fill(byte + 100);
                    second.hand_over();
                }
            });
            for byte in 1..=100 {
                first.block().expect("the turn").fill(byte);
                first.hand_over();
                assert!(first.block().is_none());
                assert!(first.wait());
                assert!(first.block().expect("the turn").iter().all(|seen| *seen == byte + 100));
            }
        });
    }

    #[test]
    fn a_side_that_goes_is_seen_after_its_last_hand_over() {
        for hands_over in [true, false] {
            let fd = Turns::create(4096).expect("memfd");
            let mut first = Turns::map(&fd, true).expect("map");
            let mut second = Turns::map(&fd, false).expect("map");
            first.hand_over();
            assert!(second.wait());
            if hands_over {
                second.hand_over();
            }
            drop(second);
            assert_eq!(first.wait(), hands_over);
            assert_eq!(first.block().is_some(), hands_over);
            first.hand_over();
            assert!(!first.wait() && first.block().is_none(), "the second side has gone");
        }
    }

    #[test]
    fn a_file_is_read_only_once_sealed() {
        let mut fresh = Fresh::create(8192).expect("memfd");
        fresh.bytes().fill(7);
        let open = fresh.file.try_clone().expect("a descriptor");
        assert!(Sealed::map(&open).is_err(), "not sealed yet");
        let file = fresh.seal().expect("no other mapping");
        let sealed = Sealed::map(&file).expect("sealed");
        assert_eq!(sealed.bytes(), [7; 8192]);
        assert!(Shared::map(&open).is_err(), "a mapping for writing");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn refuses_what_is_not_mapped() {
        let fd = create(4096).expect("memfd");
        Shared::map(&fd).expect("map").long(4096);
    }
}
