//! Owned parcels of a program: memory that it writes again and again, and that others read.
//!
//! ```text
//! owner      memfd_create, its size; map for writing, every page; seal            [`Owned::new`]
//!            generation odd; write; generation even                               [`Owned::write`]
//!     | the descriptor, the number of bytes, the generation                       [`Owned::view`]
//! reader     a memfd? all four seals? its pages? map, if it is not mapped         [`Memory::of`]
//!            so long?                                                             [`View::accept`]
//!            the generation? copy; the generation still?                          [`View::read_at`]
//! ```
//!
//! The generation is a word on a page of its own behind the bytes. It begins with 0, is odd while the owner
//! writes, and one more after that. A reader whose bytes were written meanwhile is told so
//! ([`ParcelError::Changed`]); that binds an honest owner only. What a reader has copied it checks, and it
//! has no `&[u8]` of what it has not.
//!
//! Who pays, and what is left when a side dies, is as for other owned parcels ([`super::owned`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use bytes::BufMut;
use partywall_abi::sync::{Ordering, fence};

use super::budget::Share;
use super::known::Known;
use super::owned;
use super::{ParcelError, failed, size, taken};
use crate::region::{Inbox, Words};

/// What the generation has behind the bytes.
const PAGE: usize = 4096;

/// Where the generation lies, behind so many bytes.
fn generation_at(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE).filter(|at| at.checked_add(PAGE).is_some())
}

/// Memory that this process alone can write.
#[derive(Debug)]
pub struct Owned {
    memory: owned::Memory,
    bytes: usize,
    generation: u64,
    seen: Arc<Seen>,
}

impl Owned {
    /// Memory for so many bytes, which are zeros. Blocks as [`super::Draft::new`] does.
    ///
    /// # Errors
    /// [`ParcelError::Empty`]; [`ParcelError::Io`]: ENOMEM, EMFILE, EFBIG; [`ParcelError::Quota`].
    pub fn new(bytes: usize) -> Result<Self, ParcelError> {
        let len = match bytes {
            0 => 0,
            // More than there can be, which is refused.
            _ => generation_at(bytes).map_or(usize::MAX, |at| at + PAGE),
        };
        let memory = owned::Memory::new(len)?;
        let file = memory.as_fd().try_clone_to_owned().map_err(failed("fcntl"))?;
        let share = Some(memory.share());
        let seen = SEEN.find(file, |file| Ok(Seen { _share: share, ..Seen::map(file)? }))?;
        Ok(Self { memory, bytes, generation: 0, seen })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none, which is never.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes to it. Views that were made before have changed from here on, though nothing is written.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut [u8]) -> T) -> T {
        let at = self.memory.len() - PAGE;
        // Also after a write that has panicked.
        let odd = self.generation | 1;
        self.memory.word(at).store(odd, Ordering::Relaxed);
        self.generation = odd;
        fence(Ordering::Release);
        let written = write(&mut self.memory[..self.bytes]);
        self.generation = odd + 1;
        self.memory.word(at).store(odd + 1, Ordering::Release);
        written
    }

    /// What it has now, to be sent or read.
    pub fn view(&self) -> View {
        View { seen: Arc::clone(&self.seen), bytes: self.bytes, generation: self.generation }
    }
}

/// Memory that somebody writes, mapped for reading.
struct Seen {
    file: OwnedFd,
    map: Inbox,
    len: usize,
    /// Of what this process has made itself: who keeps a view keeps its pages.
    _share: Option<Arc<Share>>,
}

static SEEN: Known<Seen> = Known::new();

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Seen {
    fn map(file: OwnedFd) -> Result<Self, ParcelError> {
        let (file, (map, len)) = taken(file, |file| {
            let len = Self::check(file)?;
            Ok((Inbox::map(file, len).map_err(failed("mmap"))?, len))
        })?;
        Ok(Self { file, map, len, _share: None })
    }

    /// Whether it is as it must be; its length.
    fn check(file: BorrowedFd<'_>) -> Result<usize, ParcelError> {
        let least = 2 * PAGE as u64;
        match size(file, owned::SEALS)?.has(0, least)? {
            found if found.is_multiple_of(PAGE as u64) => Ok(found as usize),
            found => Err(ParcelError::Short { found, wanted: found.next_multiple_of(PAGE as u64) }),
        }
    }

    fn generation(&self, order: Ordering) -> u64 {
        self.map.load_u64(self.len - PAGE, order)
    }
}

/// The memory of owned parcels of a program, mapped for reading.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Seen>);

impl Memory {
    /// Checks a memfd that a peer has sent, and maps it if it is not mapped. One that is refused is closed
    /// where nobody waits for that.
    ///
    /// # Errors
    /// Each variant of [`ParcelError`] is one check that failed.
    pub fn of(file: OwnedFd) -> Result<Self, ParcelError> {
        Ok(Self(SEEN.find(file, Seen::map)?))
    }
}

impl Memory {
    /// What it can be told by, without being kept.
    pub fn trace(&self) -> Trace {
        Trace(Arc::downgrade(&self.0))
    }
}

/// What memory can be told by.
#[derive(Clone, Debug)]
pub struct Trace(Weak<Seen>);

impl Trace {
    /// Whether it is this memory's.
    pub fn is_of(&self, memory: &Memory) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&memory.0))
    }

    /// Whether nobody here has the memory any more.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What is in an owned parcel, as it was sent. It can be sent on; clones share the memory.
#[derive(Clone, Debug)]
pub struct View {
    seen: Arc<Seen>,
    bytes: usize,
    generation: u64,
}

impl View {
    /// Takes what a peer has sent, of memory that is mapped.
    ///
    /// # Errors
    /// [`ParcelError::Short`].
    pub fn accept(memory: Memory, bytes: u64, generation: u64) -> Result<Self, ParcelError> {
        let seen = memory.0;
        let (bytes, found) = (usize::try_from(bytes).unwrap_or(usize::MAX), seen.len as u64);
        if bytes == 0 || generation_at(bytes) != Some(seen.len - PAGE) {
            return Err(ParcelError::Short { found, wanted: bytes as u64 });
        }
        Ok(Self { seen, bytes, generation })
    }

    /// Its memory, which stays mapped for when it comes again.
    pub fn memory(&self) -> Memory {
        Memory(Arc::clone(&self.seen))
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none, which is never.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The generation that it was sent with.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether its owner has not written it since.
    pub fn is_current(&self) -> bool {
        self.generation.is_multiple_of(2)
            && self.seen.generation(Ordering::Acquire) == self.generation
    }

    /// Copies the bytes from an offset on, as many as there is room for in `to`.
    ///
    /// # Errors
    /// [`ParcelError::Changed`], when the owner writes or has written; [`ParcelError::Short`] when they are
    /// not in it. Then `to` has any bytes.
    pub fn read_at(&self, offset: usize, mut to: &mut [u8]) -> Result<(), ParcelError> {
        let len = to.remaining_mut();
        self.has(offset, len)?;
        self.current()?;
        self.seen.map.read(offset, len, &mut to);
        fence(Ordering::Acquire);
        self.current()
    }

    /// Reads words of it, where they lie. What was read of words that the owner changes meanwhile is to
    /// have no effect but what is returned.
    ///
    /// # Errors
    /// [`ParcelError::Changed`], after a read that was too late as well.
    pub fn read<T>(&self, read: impl FnOnce(Words<'_>) -> T) -> Result<T, ParcelError> {
        self.current()?;
        let read = read(self.seen.map.words().first(self.bytes / 8));
        fence(Ordering::Acquire);
        self.current()?;
        Ok(read)
    }

    fn has(&self, offset: usize, len: usize) -> Result<(), ParcelError> {
        let end = offset.saturating_add(len);
        if end > self.bytes {
            let (found, wanted) = (self.bytes as u64, end as u64);
            return Err(ParcelError::Short { found, wanted });
        }
        Ok(())
    }

    fn current(&self) -> Result<(), ParcelError> {
        if self.is_current() { Ok(()) } else { Err(ParcelError::Changed) }
    }
}

impl AsFd for View {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.seen.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, passed, write_all};
    use super::*;
    use crate::socket::Passed;

    fn arrive(view: &View) -> View {
        accept(passed(view.as_fd()), view.bytes as u64, view.generation).unwrap()
    }

    fn accept(file: Passed, bytes: u64, generation: u64) -> Result<View, ParcelError> {
        View::accept(
            Memory::of(file.memory().map_err(|_| ParcelError::NoMemfd)?)?,
            bytes,
            generation,
        )
    }

    #[test]
    fn what_its_owner_writes_is_read_as_it_was_sent_or_not_at_all() {
        let mut owned = Owned::new(3 * PAGE + 5).unwrap();
        assert_eq!((owned.len(), owned.view().generation()), (3 * PAGE + 5, 0));
        let mut before: Option<View> = None;
        for round in 1..20_u8 {
            owned.write(|bytes| bytes[2 * PAGE - 8..][..16].fill(round));
            let came = arrive(&owned.view());
            let mut read = [0; 10];
            came.read_at(2 * PAGE - 9, &mut read).unwrap();
            assert_eq!(read, [0, round, round, round, round, round, round, round, round, round]);
            let word = came.read(|words| words.get(2 * PAGE / 8)).unwrap();
            assert_eq!(word, u64::from_ne_bytes([round; 8]));
            assert!(came.is_current() && Arc::ptr_eq(&came.seen, &owned.seen), "mapped once");
            if let Some(before) = before.replace(came) {
                assert!(!before.is_current());
                assert!(matches!(before.read_at(0, &mut read), Err(ParcelError::Changed)));
                assert!(matches!(before.read(|_| ()), Err(ParcelError::Changed)));
            }
        }
        let view = owned.view();
        owned.write(|_bytes| {
            assert!(!view.is_current());
            let now = View { generation: view.generation + 1, ..view.clone() };
            assert!(matches!(now.read(|_| ()), Err(ParcelError::Changed)), "it is being written");
        });
    }

    #[test]
    fn a_write_that_panics_has_changed_it() {
        let mut owned = Owned::new(PAGE).unwrap();
        let view = owned.view();
        let write = std::panic::AssertUnwindSafe(|| owned.write(|_| panic!("as it was asked")));
        assert!(std::panic::catch_unwind(write).is_err());
        assert!(matches!(view.read(|_| ()), Err(ParcelError::Changed)));
        assert!(owned.view().read(|_| ()).is_err(), "half of it may be written");
        owned.write(|bytes| bytes.fill(1));
        let view = owned.view();
        assert!(view.read(|words| words.iter().all(|word| word == 0x0101_0101_0101_0101)).unwrap());
        let late = view.read(|_| owned.write(|_| ()));
        assert!(matches!(late, Err(ParcelError::Changed)), "it changes meanwhile");
    }

    #[test]
    fn nothing_beyond_its_end_is_read() {
        let view = Owned::new(PAGE + 8).unwrap().view();
        for (offset, len) in [(PAGE + 1, 8), (PAGE + 8, 1), (usize::MAX, 1), (0, PAGE + 9)] {
            let read = view.read_at(offset, &mut vec![0; len]);
            assert!(matches!(read, Err(ParcelError::Short { .. })), "{offset} {len}");
        }
        assert!(view.read_at(PAGE, &mut [0; 8]).is_ok());
        assert_eq!(view.read(|words| words.len()).unwrap(), PAGE / 8 + 1);
        for none in [0, usize::MAX, usize::MAX - PAGE] {
            assert!(Owned::new(none).is_err());
        }
    }

    #[test]
    fn what_is_no_view_is_refused_with_the_reason() {
        let (len, seals) = (3 * PAGE as u64, owned::SEALS);
        let all = |file: &OwnedFd| write_all(file, 3 * PAGE);
        let of = |file: &dyn AsFd, bytes| accept(passed(file.as_fd()), bytes, 0);
        let two = 2 * PAGE as u64;
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(of(&program, two), Err(ParcelError::NoMemfd)));
        for missing in seals.iter().filter(|seal| *seal != rustix::fs::SealFlags::SEAL) {
            let why = of(&file(len, &all, seals.difference(missing)), two).unwrap_err();
            assert!(matches!(why, ParcelError::Seals { .. }), "{missing:?}: {why}");
        }
        let whole = file(len, &all, seals);
        for other in [0, 1, two - PAGE as u64, two + 1, len, u64::MAX] {
            let why = of(&whole, other).unwrap_err();
            assert!(matches!(why, ParcelError::Short { .. }), "{other}: {why}");
        }
        for short in [0, PAGE as u64, len - 1] {
            let why =
                of(&file(short, &|file| write_all(file, short as usize), seals), two).unwrap_err();
            assert!(matches!(why, ParcelError::Short { .. }), "{short}: {why}");
        }
        of(&whole, two - 5).unwrap();
        let without_generation = |file: &OwnedFd| write_all(file, 2 * PAGE);
        let why = of(&file(len, &without_generation, seals), two).unwrap_err();
        assert!(matches!(why, ParcelError::Hole { at: 8192 }), "{why}");
    }

    #[test]
    fn nobody_pays_for_an_owners_pages() {
        let pages = |pages: &'static [usize]| {
            move |file: &OwnedFd| {
                for at in pages {
                    assert_eq!(rustix::io::pwrite(file, &[0; PAGE], (at * PAGE) as u64), Ok(PAGE));
                }
            }
        };
        let len = 4 * PAGE as u64;
        let few = file(len, &pages(&[0, 3]), owned::SEALS);
        let why = accept(passed(few.as_fd()), 3 * PAGE as u64, 0).unwrap_err();
        assert!(matches!(why, ParcelError::Hole { at: 8192 }), "{why}");
        accept(passed(file(len, &pages(&[0, 1, 2, 3]), owned::SEALS).as_fd()), len - 4096, 0)
            .unwrap();
    }
}
