#![allow(unsafe_code, reason = "maps memory at addresses of its own choice")]
//! The address space that domains share, and each domain's part of it.
//!
//! ```text
//! | launcher's program, its heap | slot 0 | slot 1 | ... | launcher's mappings, stack |
//! ```
//!
//! A domain has a *slot*: [`SLOT`] bytes of addresses in which all of its memory lies, its program,
//! its stacks and what it maps later ([`crate::traps`] sees to that). So whose an address is can be
//! told from the address, and one munmap(2) frees all of a dead domain, whatever it did to its
//! mappings. Slots begin at random multiples of 4 GiB, which system-call filters compare by the upper
//! word alone, and what is in them at random pages, so that addresses are not known in advance.
//!
//! Each program brings a C library, and all of them would grow the one heap of brk(2) without
//! knowing of each other. [`Space::new`] puts a guard page where that heap ends: the kernel refuses
//! to grow it, and C libraries map memory instead. This process's own heap must not shrink away from
//! the guard, so its C library is told to give nothing back.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use partywall_abi::domain::{Info, MAGIC, VERSION};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::elf::PAGE;
use crate::guest::Guest;
use crate::sys::Errno;
use crate::table::TABLES;
use crate::watch::Watch;
use crate::{callers, contexts, gate, links, sys};

/// A domain's share of addresses, in bytes.
pub const SLOT: u64 = 512 << 30;
/// How many domains one space can hold.
pub const SLOTS: usize = 64;
/// Where slots may begin: far above programs at fixed addresses and far below what the kernel
/// hands out from the top.
const LOWEST: u64 = 0x1000_0000_0000;
/// The first slot is moved up by less than this, at random.
const JITTER: u64 = 8 << 40;
/// What slots begin at multiples of.
const GRAIN: u64 = 4 << 30;

/// Why this process cannot hold domains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// It does already.
    #[error("this process holds domains already, and can have one space only")]
    Second,
    /// The C library has registered restartable sequences.
    #[error(
        "the C library uses restartable sequences, which the kernel resolves by a thread's own \
         memory rights; start the launcher with GLIBC_TUNABLES=glibc.pthread.rseq=0"
    )]
    Rseq,
    /// The processor, or the kernel, has no instructions for the base of thread-local storage.
    #[error(
        "the instructions to set the base of thread-local storage (FSGSBASE) are not available; \
         they need a processor from 2012 on and Linux 5.9"
    )]
    NoFsgsbase,
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// What was being done.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// The address space of this process, as a home of domains.
#[derive(Debug, Clone)]
pub struct Space {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: u64,
    taken: Mutex<[bool; SLOTS]>,
    _watch: Watch,
}

static MADE: AtomicBool = AtomicBool::new(false);

impl Space {
    /// Prepares this process. Call it before it has other threads that allocate.
    ///
    /// # Errors
    /// [`SpaceError`].
    pub fn new() -> Result<Self, SpaceError> {
        if rseq_registered() {
            return Err(SpaceError::Rseq);
        }
        // SAFETY: looks a number up.
        let features = unsafe { libc::getauxval(libc::AT_HWCAP2) };
        if features & HWCAP2_FSGSBASE == 0 {
            return Err(SpaceError::NoFsgsbase);
        }
        if MADE.swap(true, Ordering::SeqCst) {
            return Err(SpaceError::Second);
        }
        guard_heap().map_err(|source| SpaceError::Kernel {
            what: "guarding the end of the heap",
            source,
        })?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(
            |e| SpaceError::Kernel { what: "drawing a random number", source: e.into() },
        )?;
        let jitter = u64::from_le_bytes(random) % (JITTER / GRAIN) * GRAIN;
        sys::register_barrier().map_err(|source| SpaceError::Kernel {
            what: "registering for barriers (membarrier(2))",
            source: source.into(),
        })?;
        let base = LOWEST + jitter;
        TABLES.base.store(base, Ordering::SeqCst);
        links::this_is_the_launcher();
        INFO.get_or_init(|| info(base));
        let watch = Watch::start().map_err(|source| SpaceError::Kernel {
            what: "starting the thread that watches the time",
            source,
        })?;
        let shared = Shared { base, taken: Mutex::new([false; SLOTS]), _watch: watch };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A slot that nobody has; `None` when all are taken.
    pub(crate) fn slot(&self) -> Option<Slot> {
        let mut taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|t| !t)?;
        taken[index] = true;
        Some(Slot { space: self.clone(), index })
    }

    /// The launcher as a caller of its domains.
    pub fn launcher(&self) -> Guest {
        Guest::of(INFO.get().expect("filled in by `new`"))
    }

    /// The addresses of all slots.
    pub fn range(&self) -> Range<u64> {
        self.shared.base..self.shared.base + SLOTS as u64 * SLOT
    }
}

/// One domain's addresses. Dropping it frees all memory in them: whoever drops it has made sure
/// that no task runs there any more.
#[derive(Debug)]
pub(crate) struct Slot {
    space: Space,
    index: usize,
}

impl Slot {
    pub(crate) fn range(&self) -> Range<u64> {
        let base = self.space.shared.base + self.index as u64 * SLOT;
        base..base + SLOT
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let range = self.range();
        // SAFETY: the addresses are this slot's alone, and no task of its domain is left.
        let freed = unsafe { munmap(range.start as *mut _, (range.end - range.start) as usize) };
        match freed {
            Ok(()) => {
                let mut taken =
                    self.space.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken[self.index] = false;
            }
            // It stays taken: nobody is given memory that is not free.
            Err(why) => tracing::error!(slot = self.index, %why, "a slot is not freed"),
        }
    }
}

/// Bit 1 of `AT_HWCAP2` (the kernel's Documentation/arch/x86/x86_64/fsgs.rst).
const HWCAP2_FSGSBASE: u64 = 2;

/// What domains find.
static INFO: OnceLock<Info> = OnceLock::new();

/// Its address, for a domain's environment.
pub(crate) fn info_address() -> u64 {
    std::ptr::from_ref(INFO.get().expect("a slot exists")) as u64
}

fn info(base: u64) -> Info {
    Info {
        magic: MAGIC,
        version: VERSION,
        bytes: size_of::<Info>() as u32,
        base,
        slot: SLOT,
        call: gate::partywall_call as *const () as u64,
        arm: callers::arm as *const () as u64,
        disarm: callers::disarm as *const () as u64,
        park: contexts::park as *const () as u64,
        offer: links::offer as *const () as u64,
        take: links::take as *const () as u64,
        release: links::release as *const () as u64,
        bind: callers::bind as *const () as u64,
    }
}

/// brk(2) grows the heap as long as the next page is free.
fn guard_heap() -> io::Result<()> {
    // SAFETY: mallopt(3) with a documented parameter; -1 is "never".
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, -1) };
    // SAFETY: 0 changes nothing and returns the end of the heap.
    let end = unsafe { crate::sys::call(libc::SYS_brk, [0; 6])? };
    let guard = end.next_multiple_of(PAGE) as *mut _;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the page holds nothing: FIXED_NOREPLACE refuses otherwise.
    unsafe { mmap_anonymous(guard, PAGE as usize, ProtFlags::empty(), flags)? };
    Ok(())
}

/// Whether the calling thread has an area for restartable sequences (rseq(2)), whoever registered
/// it: the kernel takes one area for each thread and refuses a second one. The C library is not
/// asked, as its symbols are not to be found in a program that is linked statically.
fn rseq_registered() -> bool {
    const UNREGISTER: u64 = 1;
    const SIGNATURE: u64 = 0x5305_3053;
    let area = Box::into_raw(Box::new(RseqArea([0, u32::MAX, 0, 0, 0, 0, 0, 0])));
    let arguments = |flags| [area as u64, size_of::<RseqArea>() as u64, flags, SIGNATURE, 0, 0];
    // SAFETY: the kernel writes to the area, which stays until it is given back below.
    let taken = unsafe { sys::call(libc::SYS_rseq, arguments(0)) };
    let kept = match taken {
        // SAFETY: gives back what was just taken.
        Ok(_) => unsafe { sys::call(libc::SYS_rseq, arguments(UNREGISTER)) }.is_err(),
        Err(_) => false,
    };
    if !kept {
        // SAFETY: the box from above, which the kernel does not know, or no longer.
        drop(unsafe { Box::from_raw(area) });
    }
    let refused = |number| taken.is_err_and(|why| why == Errno(number));
    kept || refused(libc::EINVAL) || refused(libc::EBUSY)
}

/// `struct rseq` of the kernel's include/uapi/linux/rseq.h: the second word is the CPU, unknown yet.
#[repr(C, align(32))]
struct RseqArea([u32; 8]);

const _: () = assert!(size_of::<RseqArea>() == 32 && align_of::<RseqArea>() == 32);
