#![allow(unsafe_code, reason = "memory that other processes have mapped as well is mapped here")]
//! Parcels: payloads in memory that travels as a descriptor, and is mapped where it arrives.
//!
//! ```text
//! maker      memfd_create, its size; map for writing, every page     [`Draft::new`]
//!            write; unmap; seal WRITE|SHRINK|GROW|SEAL               [`Draft::seal`]
//!     | the descriptor
//! receiver   a memfd? all four seals? so long? no hole?              [`Sealed::accept`]
//!            map for reading
//! ```
//!
//! # What a receiver may assume
//!
//! The kernel adds `F_SEAL_WRITE` only where nobody has a writable mapping (fcntl(2), "File Sealing"), and
//! there is none from then on. So the bytes of a [`Sealed`] never change, and it is a `&[u8]`. Nobody can
//! shorten it or punch a hole, so that no access faults.
//!
//! # Who pays
//!
//! A page is charged to the process that touches it first. A maker touches all of them; a receiver compares
//! the blocks that stat(2) counts with the length before it maps, and refuses a parcel with fewer. Blocks
//! can lie behind the end. Whoever hides holes by them has paid for as many pages as the receiver may have
//! to. An exact look (lseek(2), `SEEK_HOLE`) and a ftruncate(2), which drops such blocks, wait for locks of
//! the file that its sender can hold for as long as it likes; so a receiver makes neither. Pages are freed
//! with the last descriptor and the last mapping, whoever has it. What a process makes counts against its
//! quota ([`budget`]).
//!
//! # When a side dies
//!
//! A maker that dies before it seals leaves nothing. A parcel outlives its maker in whoever has it. A child
//! that the maker forks has no mapping of a draft (madvise(2), `MADV_DONTFORK`), and is in no seal's way.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::socket::{self, Passed};
use budget::Share;

pub mod budget;
pub mod copies;
pub mod field;
mod known;
pub mod lease;
pub mod owned;
pub mod view;

/// The seals of a parcel that never changes.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// The file system of memfds, but for those of huge pages (statfs(2)).
const TMPFS: u64 = 0x0102_1994;

/// Bytes of a block, as stat(2) counts them.
const BLOCK: u64 = 512;

/// From so many bytes on huge pages are asked for.
pub const HUGE: usize = 2 << 20;

/// Why a descriptor is no parcel.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ParcelError {
    /// A system call failed, or was not made as it would fail.
    #[error("parcel: {call}: {source}{}", remedy(source))]
    Io {
        /// Which.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// None can be made of no bytes.
    #[error("parcel: no bytes were asked for; a parcel has at least one byte")]
    Empty,
    /// It is no memfd, or one of huge pages.
    #[error("parcel: not a memfd with seals on tmpfs")]
    NoMemfd,
    /// A seal is missing.
    #[error("parcel: seals {found:#x} where {wanted:#x} are needed")]
    Seals {
        /// What it has.
        found: u32,
        /// What it must have.
        wanted: u32,
    },
    /// It ends before what is said to lie in it.
    #[error("parcel: {found} bytes, and something in it is said to end at {wanted}")]
    Short {
        /// Its size.
        found: u64,
        /// Where what is in it would end.
        wanted: u64,
    },
    /// It is longer than there may be.
    #[error("parcel: {found} bytes, and {most} is the most")]
    Long {
        /// Its size.
        found: u64,
        /// The most.
        most: u64,
    },
    /// Some of it is not there.
    #[error("parcel: holes; it has pages for {at} bytes only")]
    Hole {
        /// For how many bytes there are pages.
        at: u64,
    },
    /// Its owner has written it since it was sent.
    #[error(
        "parcel: its owner has written it again since it was sent; remedy: have the owner wait for the answer, \
         or take another parcel"
    )]
    Changed,
    /// A lease comes that has been here since, or is still here.
    #[error("parcel: a lease of generation {found}, and {last} was the last")]
    Stale {
        /// Its generation.
        found: u64,
        /// That of the last time.
        last: u64,
    },
    /// It comes by its place, and was refused when it came first.
    #[error(
        "parcel: memory that was refused when it came first; remedy: see that call's error, and attach other memory"
    )]
    Refused,
    /// This process has as much memory for parcels as it may have.
    #[error("parcel: {0}")]
    Quota(String),
    /// Nobody has said in time that this process may have more memory for parcels.
    #[error("parcel: {0}; remedy: try again")]
    Unanswered(&'static str),
}

/// As a `main` that returns it prints it.
impl std::fmt::Debug for ParcelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ParcelError {
    /// Whether the machine is to blame, and not who made it.
    pub fn is_resource(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(
            source.raw_os_error(),
            Some(libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE)
        )
    }
}

/// What to do about a call that failed, where this process's limits may be to blame.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; remedy: allow more descriptors (`ulimit -n`)",
        Some(libc::ENOMEM) => {
            "; remedy: drop parcels, ask for less, or allow more memory (`ulimit -v`)"
        }
        Some(libc::EFBIG) => {
            "; remedy: ask for less, or raise this process's limit of file sizes, RLIMIT_FSIZE (`ulimit -f`)"
        }
        _ => "",
    }
}

fn failed<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> ParcelError {
    move |source| ParcelError::Io { call, source: source.into() }
}

/// A file for so many bytes, without a page, and what it counts: its pages. The keeper of the quota may take
/// so long to answer.
fn create(name: &str, len: usize, within: Duration) -> Result<(OwnedFd, Share), ParcelError> {
    let refused = |why: Errno| Err(failed("memfd_create")(why));
    if len == 0 {
        return Err(ParcelError::Empty);
    }
    // Whoever makes a longer file than its limit is killed (getrlimit(2), `SIGXFSZ`).
    let longest = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if longest.is_some_and(|longest| longest < len as u64) {
        return refused(Errno::FBIG);
    }
    let Some(pages) = len.checked_next_multiple_of(rustix::param::page_size()) else {
        return refused(Errno::NOMEM);
    };
    let share = Share::take(pages, within)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&file, len as u64).map_err(failed("ftruncate"))?;
    Ok((file, share))
}

/// The same with all of its pages, mapped for writing in this process alone: a child that is forked has no
/// mapping.
fn create_mapped(
    name: &str,
    len: usize,
    within: Duration,
) -> Result<(OwnedFd, MmapMut, Share), ParcelError> {
    let (file, share) = create(name, len, within)?;
    // SAFETY: nobody else has the file, which is as long. Its maker seals it before somebody has it, so that
    // nobody else can write it.
    let mapped = unsafe { MmapOptions::new().map_mut(&file) };
    let map = mapped.map_err(failed("mmap"))?;
    map.advise(Advice::DontFork).map_err(failed("madvise(MADV_DONTFORK)"))?;
    if len >= HUGE {
        // Where the system offers none there are small ones.
        let _asked = map.advise(Advice::HugePage);
    }
    map.advise(Advice::PopulateWrite).map_err(failed("madvise(MADV_POPULATE_WRITE)"))?;
    Ok((file, map, share))
}

/// A parcel that is being written. Every page of it is there; it begins with zeros.
#[derive(Debug)]
pub struct Draft {
    file: OwnedFd,
    map: MmapMut,
    share: Share,
}

impl Draft {
    /// Memory for so many bytes. Blocks for as long as the kernel takes to clear it, and the coordinator,
    /// where there is one, to say that this process may have more.
    ///
    /// # Errors
    /// [`ParcelError::Empty`]; [`ParcelError::Io`]: ENOMEM, EMFILE, EFBIG; [`ParcelError::Quota`];
    /// [`ParcelError::Unanswered`].
    pub fn new(len: usize) -> Result<Self, ParcelError> {
        Self::with(len, budget::PATIENT)
    }

    /// The same, but that nobody is asked and waited for.
    ///
    /// # Errors
    /// As [`Draft::new`]; [`ParcelError::Unanswered`] where the coordinator has not said so yet. Its answer
    /// stays for a second, for who tries again.
    pub fn at_once(len: usize) -> Result<Self, ParcelError> {
        Self::with(len, budget::AT_ONCE)
    }

    /// The same for a message that goes without it where the coordinator has not answered soon.
    ///
    /// # Errors
    /// As [`Draft::new`].
    pub fn soon(len: usize) -> Result<Self, ParcelError> {
        Self::with(len, budget::SOON)
    }

    fn with(len: usize, within: Duration) -> Result<Self, ParcelError> {
        let (file, map, share) = create_mapped("partywall-parcel", len, within)?;
        Ok(Self { file, map, share })
    }

    /// What was written never changes from here on.
    ///
    /// # Errors
    /// [`ParcelError::Io`]: EBUSY while the kernel itself still writes to it, for io_uring or another device,
    /// and while a child lives that another thread has forked just as the draft was mapped.
    pub fn seal(self) -> Result<Sealed, ParcelError> {
        let Self { file, map, share } = self;
        let len = map.len() as u64;
        drop(map);
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Sealed::map(file, 0, len, Some(share))
    }
}

impl Deref for Draft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Bytes that never change, in memory that may be another process's. Clones share it.
#[derive(Clone, Debug)]
pub struct Sealed(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    file: OwnedFd,
    map: Mmap,
    /// Where the bytes begin in the file, and in the mapping.
    offset: u64,
    skip: usize,
    /// Of what this process has made itself.
    _share: Option<Share>,
}

/// What is mapped, by its first byte's address.
static MAPPED: Mutex<BTreeMap<usize, Weak<Mapped>>> = Mutex::new(BTreeMap::new());

fn mapped() -> std::sync::MutexGuard<'static, BTreeMap<usize, Weak<Mapped>>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sealed {
    /// Checks what a peer has sent, and maps `len` bytes of it from `offset` on. A descriptor that is refused
    /// is closed where nobody waits for that.
    ///
    /// Five system calls.
    ///
    /// # Errors
    /// Each variant of [`ParcelError`] is one check that failed.
    pub fn accept(descriptor: Passed, offset: u64, len: u64) -> Result<Self, ParcelError> {
        let file = descriptor.memory().map_err(|_| ParcelError::NoMemfd)?;
        let (file, _size) = taken(file, |file| size(file, SEALS)?.has(offset, len))?;
        Self::map(file, offset, len, None)
    }

    /// Maps a part of a file that is as it must be.
    fn map(
        file: OwnedFd,
        offset: u64,
        len: u64,
        share: Option<Share>,
    ) -> Result<Self, ParcelError> {
        let page = rustix::param::page_size() as u64;
        let (skip, len) = ((offset % page) as usize, len as usize);
        let mut options = MmapOptions::new();
        options.offset(offset - skip as u64).len(len + skip);
        // SAFETY: the file is sealed against writing and shrinking, and is as long: its bytes are there, and
        // never change.
        let map = unsafe { options.map(&file) }.map_err(failed("mmap"))?;
        let whole = Arc::new(Mapped { file, map, offset, skip, _share: share });
        mapped().insert(whole.bytes().as_ptr().addr(), Arc::downgrade(&whole));
        Ok(Self(whole))
    }

    /// The parcel in which these bytes lie, and where they begin in its file; none where they lie in none.
    pub fn of(bytes: &[u8]) -> Option<(Self, u64)> {
        let at = bytes.as_ptr().addr();
        let (begin, found) = {
            let mapped = mapped();
            let (begin, found) = mapped.range(..=at).next_back()?;
            (*begin, Weak::clone(found))
        };
        // The lock is free: this may be the last reference.
        let found = found.upgrade()?;
        let skip = at - begin;
        let fits = found.bytes().len().checked_sub(skip).is_some_and(|left| left >= bytes.len());
        fits.then(|| {
            let offset = found.offset + skip as u64;
            (Self(found), offset)
        })
    }

    /// As a value that keeps it, and can be cut.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Mapped {
    fn bytes(&self) -> &[u8] {
        &self.map[self.skip..]
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Before the memory is unmapped, that nobody else's has this address meanwhile.
        mapped().remove(&self.bytes().as_ptr().addr());
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for Sealed {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A file with what `take` makes of it. One that is refused is closed where nobody waits for that: whoever
/// closes a large one last frees its pages.
fn taken<T>(
    file: OwnedFd,
    take: impl FnOnce(BorrowedFd<'_>) -> Result<T, ParcelError>,
) -> Result<(OwnedFd, T), ParcelError> {
    match take(file.as_fd()) {
        Ok(taken) => Ok((file, taken)),
        Err(why) => {
            socket::close_elsewhere(file);
            Err(why)
        }
    }
}

/// What a memfd is said to have: bytes, and blocks.
struct Size {
    found: u64,
    there: u64,
}

/// How large a file is, if it is a memfd that has these seals. No call waits for a lock of the file's.
fn size(file: BorrowedFd<'_>, seals: SealFlags) -> Result<Size, ParcelError> {
    let found = rustix::fs::fcntl_get_seals(file).map_err(failed("fcntl(F_GET_SEALS)"))?;
    let kind = rustix::fs::fstatfs(file).map_err(failed("fstatfs"))?.f_type;
    if kind as u64 != TMPFS {
        return Err(ParcelError::NoMemfd);
    }
    if !found.contains(seals) {
        return Err(ParcelError::Seals { found: found.bits(), wanted: seals.bits() });
    }
    let stat = rustix::fs::fstat(file).map_err(failed("fstat"))?;
    Ok(Size { found: stat.st_size as u64, there: stat.st_blocks as u64 * BLOCK })
}

impl Size {
    /// Whether it reaches as far, and has as many blocks as bytes; how many bytes.
    fn has(self, offset: u64, len: u64) -> Result<u64, ParcelError> {
        let (Self { found, there }, wanted) = (self, offset.saturating_add(len));
        if len == 0 || found < wanted {
            return Err(ParcelError::Short { found, wanted });
        }
        if there < found { Err(ParcelError::Hole { at: there }) } else { Ok(found) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::{self, Incoming, Outgoing};
    use rustix::fs::FallocateFlags;
    use std::os::fd::AsRawFd;

    const PAGE: usize = 4096;

    fn ends() -> (Outgoing, Incoming) {
        let (a, b) = socket::descriptor_pair().unwrap();
        let ((out, _), (_, incoming)) = (descriptors::halves(a), descriptors::halves(b));
        (out, incoming)
    }

    /// As it arrives at a receiver.
    pub(super) fn passed(file: BorrowedFd<'_>) -> Passed {
        let (mut out, mut incoming) = ends();
        out.send(&[file]).unwrap();
        incoming.receive(0).unwrap().pop().unwrap()
    }

    fn accept(file: impl AsFd, offset: u64, len: u64) -> Result<Sealed, ParcelError> {
        Sealed::accept(passed(file.as_fd()), offset, len)
    }

    fn sealed(bytes: &[u8]) -> Sealed {
        let mut draft = Draft::new(bytes.len()).unwrap();
        draft.copy_from_slice(bytes);
        draft.seal().unwrap()
    }

    pub(super) fn file(len: u64, fill: &dyn Fn(&OwnedFd), seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("x", flags).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        fill(&file);
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    pub(super) fn write_all(file: &OwnedFd, len: usize) {
        assert_eq!(rustix::io::pwrite(file, &vec![7; len], 0), Ok(len));
    }

    #[test]
    fn what_was_sealed_arrives_whole_and_in_parts() {
        let bytes: Vec<u8> = (0..5 * PAGE + 17).map(|i| (i % 251) as u8).collect();
        let made = sealed(&bytes);
        assert_eq!(&*made, bytes);
        let came = accept(&made, 0, bytes.len() as u64).unwrap();
        assert_eq!(&*came, bytes);
        assert_ne!(came.as_ptr(), made.as_ptr(), "it is mapped anew");
        for (offset, len) in [(1, 1), (PAGE - 1, 2), (PAGE, PAGE), (5 * PAGE + 16, 1)] {
            let part = accept(&made, offset as u64, len as u64).unwrap();
            assert_eq!(&*part, &bytes[offset..offset + len]);
            let (again, at) = Sealed::of(&part).unwrap();
            assert_eq!((at, again.as_ptr()), (offset as u64, part.as_ptr()));
        }
    }

    #[test]
    fn sealed_memory_cannot_be_changed_in_any_way() {
        let made = sealed(&[7; 2 * PAGE]);
        let path = format!("/proc/self/fd/{}", made.as_fd().as_raw_fd());
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(rustix::io::pwrite(&again, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(&again, 1).is_err());
        assert!(rustix::fs::ftruncate(&again, 1 << 20).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&again, punch, 0, PAGE as u64).is_err());
        // SAFETY: it is not mapped.
        assert!(unsafe { MmapOptions::new().map_mut(&again) }.is_err());
        assert!(rustix::fs::fcntl_add_seals(&again, SealFlags::FUTURE_WRITE).is_err());
        assert_eq!(&*made, [7; 2 * PAGE]);
    }

    #[test]
    fn what_is_no_parcel_is_refused_with_the_reason() {
        let (len, all) = (2 * PAGE as u64, |file: &OwnedFd| write_all(file, 2 * PAGE));
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(accept(program, 0, 1), Err(ParcelError::NoMemfd)));
        let (socket, _other) = socket::pair().unwrap();
        assert!(matches!(accept(socket, 0, 1), Err(ParcelError::NoMemfd)));
        for missing in SEALS.iter().filter(|seal| *seal != SealFlags::SEAL) {
            let refused = accept(file(len, &all, SEALS.difference(missing)), 0, len);
            assert!(matches!(refused, Err(ParcelError::Seals { .. })), "{missing:?}");
        }
        let whole = file(len, &all, SEALS);
        for (offset, wanted) in [(0, len + 1), (1, len), (len, 1), (len + 1, 1), (0, 0)] {
            let refused = accept(&whole, offset, wanted);
            assert!(matches!(refused, Err(ParcelError::Short { .. })), "{offset} {wanted}");
        }
        accept(&whole, 0, len).unwrap();
    }

    #[test]
    fn nobody_pays_for_pages_of_a_sender() {
        let len = 4 * PAGE as u64;
        let first = |file: &OwnedFd| write_all(file, PAGE);
        let hollow = file(len, &first, SEALS);
        for part in [len, PAGE as u64] {
            assert!(matches!(accept(&hollow, 0, part), Err(ParcelError::Hole { at: 4096 })));
        }
        // Blocks behind the end, as many as are missing before it: its sender has paid for them.
        let behind = |file: &OwnedFd| {
            first(file);
            let keep = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, keep, len, 3 * PAGE as u64).unwrap();
        };
        let paid = file(len, &behind, SEALS);
        assert_eq!(accept(&paid, 0, len).unwrap()[PAGE..], [0; 3 * PAGE]);
        let fewer = |file: &OwnedFd| {
            first(file);
            let keep = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, keep, len, 2 * PAGE as u64).unwrap();
        };
        let fewer = file(len, &fewer, SEALS);
        assert!(matches!(accept(&fewer, 0, len), Err(ParcelError::Hole { .. })));
        // Blocks that nobody has touched.
        let reserved = |file: &OwnedFd| {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len).unwrap();
        };
        let untouched = file(len, &reserved, SEALS);
        assert_eq!(&*accept(&untouched, 0, len).unwrap(), [0; 4 * PAGE], "they are its maker's");
        assert_eq!(rustix::fs::fstat(&untouched).unwrap().st_blocks as u64 * BLOCK, len);
        // One that was begun and not written to its end is whole.
        let made = Draft::new(len as usize).unwrap().seal().unwrap();
        assert_eq!(&*accept(&made, 0, len).unwrap(), [0; 4 * PAGE]);
    }

    #[test]
    fn parcels_are_found_by_their_bytes_and_forgotten_with_them() {
        let made = sealed(&[1; 3 * PAGE]);
        let bytes = made.clone().into_bytes();
        let (found, at) = Sealed::of(&bytes.slice(PAGE + 5..PAGE + 9)).unwrap();
        assert_eq!((at, found.as_ptr()), (PAGE as u64 + 5, made.as_ptr()));
        assert!(Sealed::of(&[1; 10]).is_none());
        let begin = made.as_ptr().addr();
        drop((made, found));
        assert!(mapped().contains_key(&begin), "the bytes keep it");
        drop(bytes);
        assert!(!mapped().contains_key(&begin));
    }

    #[test]
    fn a_parcel_of_no_bytes_cannot_be_begun() {
        let refused = [
            Draft::new(0).map(|_| ()).unwrap_err(),
            lease::Lease::new(0).map(|_| ()).unwrap_err(),
            owned::Memory::new(0).map(|_| ()).unwrap_err(),
            view::Owned::new(0).map(|_| ()).unwrap_err(),
        ];
        for why in refused {
            assert!(why.to_string().contains("at least one byte") && !why.is_resource(), "{why}");
        }
    }

    #[test]
    fn more_bytes_than_there_can_be_are_refused_alike() {
        let refused = [
            Draft::new(usize::MAX).map(|_| ()).unwrap_err(),
            lease::Lease::new(usize::MAX).map(|_| ()).unwrap_err(),
            owned::Memory::new(usize::MAX).map(|_| ()).unwrap_err(),
            view::Owned::new(usize::MAX).map(|_| ()).unwrap_err(),
        ];
        for why in refused {
            let said = why.to_string();
            assert!(
                said.contains("Cannot allocate memory") && said.contains("`ulimit -v`"),
                "{said}"
            );
            assert!(why.is_resource());
        }
    }

    #[test]
    fn a_call_that_fails_by_a_limit_names_the_remedy() {
        for (why, remedy) in [
            (Errno::MFILE, "`ulimit -n`"),
            (Errno::NFILE, "`ulimit -n`"),
            (Errno::NOMEM, "`ulimit -v`"),
            (Errno::FBIG, "RLIMIT_FSIZE (`ulimit -f`)"),
        ] {
            let said = failed("a call")(why).to_string();
            assert!(said.contains("parcel: a call: ") && said.contains(remedy), "{said}");
        }
        assert!(!failed("a call")(Errno::BUSY).to_string().contains("remedy"));
    }
}
