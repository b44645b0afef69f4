#![allow(unsafe_code, reason = "memory that another process has mapped as well is mapped here")]
//! Owned parcels: memory that one process alone can write, that another one reads by copying, and that
//! is used again.
//!
//! ```text
//! owner      memfd_create, its size; map for writing, every page; seal FUTURE_WRITE|SHRINK|GROW|SEAL
//!            write, say so; write again when the reader has said that it is done     [`Memory`]
//!     | the descriptor, once
//! reader     a memfd? not too long? all four seals? no hole? map for reading         [`Reader::accept`]
//!            copy, then check the copy                                               [`Reader::copy`]
//! ```
//!
//! Whose turn it is, the two say elsewhere ([`partywall_abi::frame::Kind::Release`]). That binds an honest
//! owner only: one that writes out of turn changes what its reader copies, and nothing else. So a reader has
//! no `&[u8]` of it, and checks what it has copied.
//!
//! Who pays, and what is left when a side dies, is as for sealed parcels. A child that the owner forks has
//! no mapping (madvise(2), `MADV_DONTFORK`).

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use memmap2::MmapMut;
use partywall_abi::limits;
use partywall_abi::sync::AtomicU64;
use rustix::fs::SealFlags;

use super::budget::{PATIENT, SOON, Share};
use super::{ParcelError, create_mapped, failed, size, taken};
use crate::failpoint::failpoint;
use crate::region::Inbox;
use crate::socket::Passed;

/// The seals of an owned parcel.
pub(super) const SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// An owned parcel, as its owner has it.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    map: MmapMut,
    share: Arc<Share>,
}

impl Memory {
    /// Memory for so many bytes, every page of it. Blocks as [`super::Draft::new`] does.
    ///
    /// # Errors
    /// [`ParcelError::Empty`]; [`ParcelError::Io`]: ENOMEM, EMFILE, EFBIG; [`ParcelError::Quota`].
    pub fn new(len: usize) -> Result<Self, ParcelError> {
        Self::with(len, PATIENT)
    }

    /// The same for a message that goes without it where the coordinator has not answered soon.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn soon(len: usize) -> Result<Self, ParcelError> {
        Self::with(len, SOON)
    }

    fn with(len: usize, within: Duration) -> Result<Self, ParcelError> {
        let (file, map, share) = create_mapped("partywall-owned", len, within)?;
        failpoint("parcel.made");
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Ok(Self { file, map, share: Arc::new(share) })
    }
}

impl Memory {
    /// What counts it, for who has it mapped once more.
    pub(super) fn share(&self) -> Arc<Share> {
        Arc::clone(&self.share)
    }

    /// Where it lies in this process.
    pub(super) fn base(&self) -> *mut u8 {
        self.map.as_ptr().cast_mut()
    }

    /// The 64-bit word at byte `at`, for which readers look while this process writes the rest.
    pub(super) fn word(&mut self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.map.len(), "a word of the memory");
        // SAFETY: the word is in the mapping.
        let word = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: aligned, as the mapping begins at a page. This process has no other reference to it now,
        // and readers are in mappings of their own.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// An owned parcel, as its reader has it.
pub struct Reader {
    map: Inbox,
    len: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Reader {
    /// Checks what a peer has sent, and maps it. A descriptor that is refused is closed where nobody waits
    /// for that. One that is taken is closed: the mapping keeps the memory.
    ///
    /// Six system calls.
    ///
    /// # Errors
    /// Each variant of [`ParcelError`] is one check that failed.
    pub fn accept(descriptor: Passed) -> Result<Self, ParcelError> {
        let file = descriptor.memory().map_err(|_| ParcelError::NoMemfd)?;
        let (_closed, reader) = taken(file, |file| {
            let (size, most) = (size(file, SEALS)?, limits::OWNED_PARCEL_BYTES as u64);
            let len = size.found;
            if len > most {
                return Err(ParcelError::Long { found: len, most });
            }
            size.has(0, len)?;
            let map = Inbox::map(file, len as usize).map_err(failed("mmap"))?;
            failpoint("parcel.mapped");
            Ok(Self { map, len })
        })?;
        Ok(reader)
    }

    /// Whether so many bytes from an offset on are in it.
    ///
    /// # Errors
    /// [`ParcelError::Short`].
    pub fn has(&self, offset: u64, bytes: u64) -> Result<(), ParcelError> {
        let (found, wanted) = (self.len, offset.saturating_add(bytes));
        if wanted > found { Err(ParcelError::Short { found, wanted }) } else { Ok(()) }
    }

    /// Copies some bytes to the end of `to`. What they are while the owner writes is not said.
    ///
    /// # Panics
    /// They are not in it ([`Reader::has`]), or `to` has no room.
    pub fn copy(&self, offset: u64, bytes: usize, to: &mut impl BufMut) {
        self.map.read(offset as usize, bytes, to);
        failpoint("parcel.copied");
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;

    use super::super::tests::{file, passed, write_all};
    use super::*;

    const PAGE: usize = 4096;

    fn copied(reader: &Reader, offset: u64, len: usize) -> Vec<u8> {
        let mut to = Vec::with_capacity(len);
        reader.copy(offset, len, &mut to);
        to
    }

    #[test]
    fn what_its_owner_writes_is_read_again_and_again() {
        let mut memory = Memory::new(3 * PAGE + 5).unwrap();
        let reader = Reader::accept(passed(memory.as_fd())).unwrap();
        for round in 0..3_u8 {
            memory[PAGE - 1..][..2].fill(round + 1);
            assert_eq!(copied(&reader, PAGE as u64 - 2, 4), [0, round + 1, round + 1, 0]);
        }
        let len = memory.len() as u64;
        assert!(reader.has(len - 1, 1).is_ok());
        for (offset, bytes) in [(len, 1), (len - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(matches!(reader.has(offset, bytes), Err(ParcelError::Short { .. })));
        }
    }

    #[test]
    fn nobody_but_its_owner_can_write_it() {
        let memory = Memory::new(2 * PAGE).unwrap();
        assert!(rustix::io::pwrite(&memory, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&memory, 1).is_err());
        // SAFETY: it is not mapped.
        assert!(unsafe { MmapOptions::new().map_mut(&memory.file) }.is_err());
        assert!(rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE).is_err());
    }

    #[test]
    fn what_is_no_owned_parcel_is_refused_with_the_reason() {
        let (len, all) = (2 * PAGE as u64, |file: &OwnedFd| write_all(file, 2 * PAGE));
        let refused = |file: &dyn AsFd| Reader::accept(passed(file.as_fd())).unwrap_err();
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(refused(&program), ParcelError::NoMemfd));
        for missing in SEALS.iter().filter(|seal| *seal != SealFlags::SEAL) {
            let why = refused(&file(len, &all, SEALS.difference(missing)));
            assert!(matches!(why, ParcelError::Seals { .. }), "{missing:?}: {why}");
        }
        let sealed = super::super::Draft::new(PAGE).unwrap().seal().unwrap();
        assert!(matches!(refused(&sealed), ParcelError::Seals { .. }), "it never changes");
        let first = |file: &OwnedFd| write_all(file, PAGE);
        assert!(matches!(refused(&file(len, &first, SEALS)), ParcelError::Hole { at: 4096 }));
        assert!(matches!(refused(&file(0, &|_| {}, SEALS)), ParcelError::Short { .. }));
        let most = limits::OWNED_PARCEL_BYTES as u64;
        assert!(matches!(refused(&file(most, &|_| {}, SEALS)), ParcelError::Hole { at: 0 }));
        assert!(matches!(refused(&file(most + 1, &|_| {}, SEALS)), ParcelError::Long { .. }));
        Reader::accept(passed(file(len, &all, SEALS).as_fd())).unwrap();
    }
}
