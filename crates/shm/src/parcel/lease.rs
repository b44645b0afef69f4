//! Leases: memory that both ends write, and that one of them has at a time.
//!
//! ```text
//! maker      memfd_create, its size; map, every page; seal SHRINK|GROW|SEAL          [`Lease::new`]
//! holder     reads and writes, by copying
//!     | the descriptor, the number of bytes, the generation: one more than the last   [`Lease::hand_over`]
//! receiver   a memfd? those seals? its pages? map, if it is not mapped                [`Memory::of`]
//!            that size? a later generation? holder now                                [`Lease::accept`]
//! ```
//!
//! A lease is a value that is not copied: who hands it over has none. The generation is each side's own
//! count, not in the memory. A lease that is here is refused, and so is one that is not later than the last
//! that came: it was handed over twice, or an old message comes late.
//!
//! # What a holder may assume
//!
//! Nothing but that an honest peer does not write. Any process that has had the memory can write to it at any
//! moment, or make a hole in it, and nobody can take it back. So there is no `&[u8]` of it, whoever holds it:
//! words are read and written atomically, and bytes are copied. What was copied is to be checked, as anything
//! that a peer sends. Only services that may harm each other anyway should share one.
//!
//! # Who pays, and when a side dies
//!
//! A page is charged to the process that touches it first: the maker, who touches all. The blocks of the
//! file are looked at when it is mapped (stat(2)), which an honest maker passes. A lease whose holder dies
//! is over; the memory goes with the last mapping. A child that is forked has no mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::BufMut;
use partywall_abi::sync::{AtomicU64, Ordering};
use rustix::fs::SealFlags;

use super::budget::{PATIENT, Share};
use super::known::Known;
use super::{ParcelError, create, failed, size, taken};
use crate::region::Common;

/// The seals of a lease.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that is handed over, mapped for writing.
struct Region {
    file: OwnedFd,
    map: Common,
    len: usize,
    /// Four times the generation with which it was handed over last, and what became of it here.
    last: AtomicU64,
    /// Of what this process has made itself.
    _share: Option<Share>,
}

/// What has become of a lease here: it was handed over to somebody, who may be in this process as well; it is
/// here; its value was dropped.
const GONE: u64 = 0;
const HERE: u64 = 1;
const DROPPED: u64 = 2;

/// A generation and what has become of it.
fn with(generation: u64, state: u64) -> Option<u64> {
    Some(generation.checked_mul(4)? + state)
}

static REGIONS: Known<Region> = Known::new();

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.last.load(Ordering::Relaxed);
        f.debug_struct("Region")
            .field("len", &self.len)
            .field("last", &last)
            .finish_non_exhaustive()
    }
}

impl Region {
    fn map(file: OwnedFd) -> Result<Self, ParcelError> {
        let (file, (map, len)) = taken(file, |file| {
            let len = size(file, SEALS)?.has(0, 1)? as usize;
            Ok((Common::map(file, len).map_err(failed("mmap"))?, len))
        })?;
        Ok(Self { file, map, len, last: AtomicU64::new(0), _share: None })
    }
}

/// The memory of leases, mapped; who keeps it does not hold the lease.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Region>);

impl Memory {
    /// Checks a memfd that a peer has handed over, and maps it if it is not mapped. One that is refused is
    /// closed where nobody waits for that.
    ///
    /// # Errors
    /// Each variant of [`ParcelError`] is one check that failed.
    pub fn of(file: OwnedFd) -> Result<Self, ParcelError> {
        Ok(Self(REGIONS.find(file, Region::map)?))
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Memory that both ends of a link may write, and that this process holds. There is one value of it.
#[derive(Debug)]
pub struct Lease {
    region: Arc<Region>,
    /// What its region says while it is here.
    held: u64,
}

impl Lease {
    /// Memory for so many bytes, which are zeros. Blocks as [`super::Draft::new`] does.
    ///
    /// # Errors
    /// [`ParcelError::Empty`]; [`ParcelError::Io`]: ENOMEM, EMFILE, EFBIG; [`ParcelError::Quota`].
    pub fn new(bytes: usize) -> Result<Self, ParcelError> {
        let (file, share) = create("partywall-lease", bytes, PATIENT)?;
        let map = Common::map(file.as_fd(), bytes).map_err(failed("mmap"))?;
        map.populate().map_err(failed("madvise(MADV_POPULATE_WRITE)"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        // What was mapped stays, so that no page is mapped twice.
        let own = file.try_clone().map_err(failed("fcntl"))?;
        let (last, share) = (AtomicU64::new(HERE), Some(share));
        let region = Region { file: own, map, len: bytes, last, _share: share };
        Ok(Self { region: REGIONS.find(file, |_| Ok(region))?, held: HERE })
    }

    /// Takes what a peer has handed over, of memory that is mapped.
    ///
    /// # Errors
    /// [`ParcelError::Short`], [`ParcelError::Stale`].
    pub fn accept(memory: Memory, bytes: u64, generation: u64) -> Result<Self, ParcelError> {
        let region = memory.0;
        if region.len as u64 != bytes {
            return Err(ParcelError::Short { found: region.len as u64, wanted: bytes });
        }
        let stale = |last: u64| ParcelError::Stale { found: generation, last: last / 4 };
        let last = region.last.load(Ordering::Acquire);
        let held = with(generation, HERE).ok_or_else(|| stale(last))?;
        // While it is here nobody else can hand it over.
        let later = |last: u64| match last % 4 {
            HERE => None,
            GONE if generation == last / 4 => Some(held),
            _ => (generation > last / 4).then_some(held),
        };
        let taken = region.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        taken.map_err(stale)?;
        Ok(Self { region, held })
    }

    /// It goes to somebody else, by a message with this generation.
    ///
    /// # Errors
    /// [`ParcelError::Stale`], when there is no later generation.
    pub fn hand_over(&self) -> Result<u64, ParcelError> {
        let last = self.held / 4;
        let stale = ParcelError::Stale { found: last, last };
        let Some(next) = last.checked_add(1).and_then(|next| with(next, GONE)) else {
            return Err(stale);
        };
        // Again where it could not be sent the first time.
        let at = self.region.last.load(Ordering::Acquire);
        let may = at == self.held || at == next;
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match may && self.region.last.compare_exchange(at, next, order.0, order.1).is_ok() {
            true => Ok(last + 1),
            false => Err(stale),
        }
    }

    /// Its memory, which stays mapped for when it comes back.
    pub fn memory(&self) -> Memory {
        Memory(Arc::clone(&self.region))
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.region.len
    }

    /// Whether it has none, which is never.
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// Copies the bytes from an offset on, as many as there is room for in `to`.
    ///
    /// # Panics
    /// When they are not in it.
    pub fn read_at(&self, offset: usize, mut to: &mut [u8]) {
        let len = to.remaining_mut();
        self.has(offset, len);
        self.region.map.read(offset, len, &mut to);
    }

    /// Copies bytes to an offset.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        self.has(offset, bytes.len());
        self.region.map.write(offset, bytes);
    }

    /// Sets so many bytes from an offset on to the bytes of a word, again and again. Stores to
    /// [`Lease::words`] take twice as long, for no compiler joins them.
    ///
    /// # Panics
    /// When they are not in it.
    pub fn fill_at(&mut self, offset: usize, bytes: usize, word: u64) {
        self.has(offset, bytes);
        self.region.map.fill(offset, bytes, word);
    }

    /// All whole words of it, in the processor's order of bytes.
    pub fn words(&self) -> &[AtomicU64] {
        self.region.map.words()
    }

    fn has(&self, offset: usize, len: usize) {
        let end = offset.saturating_add(len);
        assert!(
            end <= self.region.len,
            "bytes {offset} to {end} of a lease of {}",
            self.region.len
        );
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (order, dropped) = ((Ordering::AcqRel, Ordering::Relaxed), self.held - HERE + DROPPED);
        // Unless it was handed over.
        let _gone = self.region.last.compare_exchange(self.held, dropped, order.0, order.1);
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, passed, write_all};
    use super::*;
    use crate::socket::Passed;

    const PAGE: usize = 4096;

    fn accept(file: Passed, bytes: u64, generation: u64) -> Result<Lease, ParcelError> {
        Lease::accept(
            Memory::of(file.memory().map_err(|_| ParcelError::NoMemfd)?)?,
            bytes,
            generation,
        )
    }

    fn arrive(lease: &Lease, generation: u64) -> Result<Lease, ParcelError> {
        accept(passed(lease.as_fd()), lease.len() as u64, generation)
    }

    #[test]
    fn it_is_handed_back_and_forth_and_never_twice() {
        let mut lease = Lease::new(2 * PAGE + 24).unwrap();
        for round in 1..50_u64 {
            lease.words()[PAGE / 8].store(round, Ordering::Relaxed);
            lease.write_at(2 * PAGE + 20, &[round as u8; 4]);
            let generation = lease.hand_over().unwrap();
            assert_eq!(generation, round);
            let came = arrive(&lease, generation).unwrap();
            let again = arrive(&lease, generation).unwrap_err();
            assert!(
                matches!(again, ParcelError::Stale { found, last } if found == round && last == round)
            );
            assert_eq!(came.words().len(), 2 * PAGE / 8 + 3);
            assert_eq!(came.words()[PAGE / 8].load(Ordering::Relaxed), round);
            let mut last = [0; 6];
            came.read_at(2 * PAGE + 18, &mut last);
            assert_eq!(last, [0, 0, round as u8, round as u8, round as u8, round as u8]);
            assert!(Arc::ptr_eq(&came.region, &lease.region), "it is mapped once");
            lease = came;
        }
        assert!(matches!(arrive(&lease, 0), Err(ParcelError::Stale { found: 0, .. })));
        // A value that is dropped is over, and another one may come.
        let (dropped, kept) = (passed(lease.as_fd()), lease.memory());
        drop(lease);
        assert!(accept(dropped, 2 * PAGE as u64 + 24, 49).is_err(), "that was the last");
        let again = passed(kept.0.file.as_fd());
        let lease = accept(again, 2 * PAGE as u64 + 24, 50).unwrap();
        assert!(
            matches!(arrive(&lease, 1000), Err(ParcelError::Stale { found: 1000, .. })),
            "it is here"
        );
        lease.hand_over().unwrap();
        assert!(matches!(arrive(&lease, u64::MAX), Err(ParcelError::Stale { .. })));
        let most = u64::MAX / 4;
        assert!(arrive(&lease, most).unwrap().hand_over().is_err(), "there is none after it");
    }

    #[test]
    fn as_many_bytes_are_set_as_is_said() {
        let mut lease = Lease::new(2 * PAGE).unwrap();
        let word = 0x0807_0605_0403_0201_u64;
        for (offset, len) in [(0, 8), (3, 61), (64, 64), (130, 200), (PAGE - 5, 70), (2 * PAGE, 0)]
        {
            let mut is = vec![0; 2 * PAGE];
            lease.write_at(0, &is);
            lease.fill_at(offset, len, word);
            let mut expected = is.clone();
            let bytes = word.to_ne_bytes().into_iter().cycle();
            expected[offset..][..len].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            lease.read_at(0, &mut is);
            assert!(is == expected, "{len} from {offset} on");
        }
        let beyond = std::panic::AssertUnwindSafe(|| lease.fill_at(2 * PAGE - 7, 8, word));
        assert!(std::panic::catch_unwind(beyond).is_err());
    }

    #[test]
    fn it_is_forgotten_with_its_last_holder_and_kept_by_who_waits_for_it() {
        let lease = Lease::new(PAGE).unwrap();
        let generation = lease.hand_over().unwrap();
        let (descriptor, kept) = (passed(lease.as_fd()), lease.memory());
        let mapped = Arc::downgrade(&lease.region);
        drop(lease);
        assert!(mapped.upgrade().is_some(), "it may come back");
        let back = accept(descriptor, PAGE as u64, generation + 1).unwrap();
        assert!(Arc::ptr_eq(&back.region, &mapped.upgrade().unwrap()));
        drop((back, kept));
        assert!(mapped.upgrade().is_none());
    }

    #[test]
    fn what_is_no_lease_is_refused_with_the_reason() {
        let (len, all) = (2 * PAGE as u64, |file: &OwnedFd| write_all(file, 2 * PAGE));
        let of = |file: &dyn AsFd| accept(passed(file.as_fd()), len, 1);
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(of(&program), Err(ParcelError::NoMemfd)));
        for missing in SEALS.iter().filter(|seal| *seal != SealFlags::SEAL) {
            let why = of(&file(len, &all, SEALS.difference(missing))).unwrap_err();
            assert!(matches!(why, ParcelError::Seals { .. }), "{missing:?}: {why}");
        }
        // It cannot be written: mmap(2) says EPERM.
        let future = SEALS.union(SealFlags::FUTURE_WRITE);
        for read_only in [SEALS.union(SealFlags::WRITE), future] {
            let why = of(&file(len, &all, read_only)).unwrap_err();
            assert!(matches!(why, ParcelError::Io { call: "mmap", .. }), "{why}");
        }
        let first = |file: &OwnedFd| write_all(file, PAGE);
        let why = of(&file(len, &first, SEALS)).unwrap_err();
        assert!(matches!(why, ParcelError::Hole { at: 4096 }), "{why}");
        let empty = accept(passed(file(0, &|_| {}, SEALS).as_fd()), 0, 1);
        assert!(matches!(empty, Err(ParcelError::Short { .. })));
        let whole = file(len, &all, SEALS);
        for other in [len - 1, len + 1, 0] {
            let why = accept(passed(whole.as_fd()), other, 1).unwrap_err();
            assert!(matches!(why, ParcelError::Short { .. }), "{why}");
        }
        of(&whole).unwrap();
        assert!(Lease::new(0).is_err());
    }

    #[test]
    #[should_panic(expected = "bytes 4090 to 4098 of a lease of 4096")]
    fn nothing_beyond_its_end_is_written() {
        Lease::new(PAGE).unwrap().write_at(PAGE - 6, &[1; 8]);
    }
}
