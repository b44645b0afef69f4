#![allow(unsafe_code, reason = "maps memory that two processes share")]
//! A memory file mapped for reading and writing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

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
    let fd = memfd_create("bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

impl Shared {
    /// Maps all of `fd`. The mapping outlives the descriptor.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(&fd)?.st_size).map_err(io::Error::other)?;
        // SAFETY: the kernel picks a free range, so no existing memory is touched.
        let base = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
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
    #[should_panic(expected = "outside")]
    fn refuses_what_is_not_mapped() {
        let fd = create(4096).expect("memfd");
        Shared::map(&fd).expect("map").long(4096);
    }
}
