#![allow(unsafe_code, reason = "memory that fork(2) empties is mapped and read by pointer")]
//! Whether this process is the one that something belongs to, or a copy that fork(2) has made of it.
//!
//! A word lies in a page that the kernel empties in a child (MADV_WIPEONFORK, madvise(2)), however that is
//! made, unless it shares its memory with its parent. To look costs a load. A child that looks finds a
//! zero, and takes another number than any of its parents.

use std::ptr::NonNull;
use std::sync::OnceLock;

use partywall_abi::sync::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The word in the page that is emptied.
struct Word(NonNull<AtomicU64>);

// SAFETY: an atomic that is there until the process ends.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

static WORD: OnceLock<Option<Word>> = OnceLock::new();
/// Counts the processes of which each has forked the next one: copied by fork(2), and not emptied.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Bytes of the page.
const PAGE: usize = 4096;

impl Word {
    fn new() -> Option<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: memory of its own, at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, flags) }.ok()?;
        // SAFETY: all of that memory, which nobody else knows.
        unsafe { madvise(at, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
        NonNull::new(at.cast()).map(Self)
    }

    fn get(&self) -> &AtomicU64 {
        // SAFETY: a page that is never unmapped begins there, of zeros or of what this module has stored.
        unsafe { self.0.as_ref() }
    }
}

/// The number of this process among those that have come of it; never zero.
#[inline]
fn number() -> u64 {
    match WORD.get_or_init(Word::new) {
        Some(word) => match word.get().load(Ordering::Relaxed) {
            0 => take(word),
            number => number,
        },
        // A kernel before 4.14, or no memory: the process number will do, at the cost of a call.
        None => std::process::id().into(),
    }
}

/// This process has no number yet.
#[cold]
fn take(word: &Word) -> u64 {
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have been first.
    match word.get().compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(number) => number,
    }
}

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// This one.
    pub fn this() -> Self {
        Self(number())
    }

    /// Whether this is still that process, and no copy of it.
    #[inline]
    pub fn is_this(self) -> bool {
        self.0 == number()
    }
}
