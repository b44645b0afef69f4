#![allow(unsafe_code, reason = "maps memory at addresses of its own choice")]
//! The address space that domains share, and each domain's part of it.
//!
//! ```text
//! | launcher's program, its heap | slot 0 | slot 1 | ... | launcher's mappings, stack |
//! ```
//!
//! A domain has a *slot*: [`SLOT`] bytes of addresses in which all of its memory lies, its program,
//! its stacks and what it maps later ([`crate::syscalls`] sees to that). So whose an address is can be
//! told from the address, and one munmap(2) frees all of a dead domain, whatever it did to its
//! mappings. Slots begin at random multiples of 4 GiB, which system-call filters compare by the upper
//! word alone, and what is in them at random pages, so that addresses are not known in advance.
//!
//! Each program brings a C library, and all of them would grow the one heap of brk(2) without
//! knowing of each other. [`AddressSpace::new`] puts a guard page where that heap ends: the kernel refuses
//! to grow it, and C libraries map memory instead. This process's own heap must not shrink away from
//! the guard, so its C library is told to give nothing back.

use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use partywall_abi::domain::Info;
use partywall_abi::security::Isolation;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::elf::PAGE;
use crate::machine::Frames;
use crate::process::Process;
use crate::sys::{self, Errno};
pub use crate::table::{SLOT, SLOTS};
use crate::table::{TABLES, Tables};
use crate::watchdog::Watchdog;
use crate::{gate, keys, links, machine};

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
pub enum AddressSpaceError {
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
    /// There is no such isolation between domains.
    #[error("isolation `{0}` is not one of domains: they have `none` or `protection-keys`")]
    Isolation(Isolation),
    /// The processor or the kernel has no protection keys, or others have taken them.
    #[error(
        "isolation `protection-keys` needs protection keys, and this machine gives none: {0}; use one that \
         does (processors have them from 2017 on, of Intel, and 2020, of AMD), or ask for isolation \
         `prefer` or `none`"
    )]
    NoKeys(String),
    /// Keys can be had and protect nothing.
    #[error(
        "isolation `protection-keys` needs protection keys, and a page with a closed key could be read: \
         something answers for the kernel, such as a system-call filter; remove it"
    )]
    KeysDoNothing,
    /// A signal costs a thread its rights.
    #[error("{}", machine::RIGHTS_LOST)]
    RightsLost,
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
pub struct AddressSpace {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: u64,
    isolation: Isolation,
    slots: Mutex<Slots>,
    _watchdog: Watchdog,
}

#[derive(Debug)]
struct Slots {
    states: [State; SLOTS],
    /// Tasks that have left their slots, and that a debugger keeps from being waited for.
    unreaped: Vec<Arc<Process>>,
}

/// Of a slot.
#[derive(Debug)]
enum State {
    Free,
    Taken,
    /// Its domain was ended; when it was last looked at, its task ran, or somebody was inside.
    Leaving(Arc<Process>),
}

static MADE: AtomicBool = AtomicBool::new(false);

impl AddressSpace {
    /// Prepares this process for domains that are kept apart as `isolation` says: not at all
    /// ([`Isolation::None`]) or by protection keys ([`Isolation::ProtectionKeys`]), which are tried
    /// out before
    /// anything relies on them; on a kernel before 6.12 they come to [`Isolation::SharedSignalStacks`],
    /// as [`AddressSpace::isolation`] says then. Call it before the process has other threads.
    ///
    /// # Errors
    /// [`AddressSpaceError`].
    pub fn new(isolation: Isolation) -> Result<Self, AddressSpaceError> {
        if rseq_registered() {
            return Err(AddressSpaceError::Rseq);
        }
        // SAFETY: looks a number up.
        let features = unsafe { libc::getauxval(libc::AT_HWCAP2) };
        if features & HWCAP2_FSGSBASE == 0 {
            return Err(AddressSpaceError::NoFsgsbase);
        }
        let keys = match isolation {
            Isolation::None => false,
            Isolation::ProtectionKeys => true,
            other => return Err(AddressSpaceError::Isolation(other)),
        };
        if MADE.swap(true, Ordering::Relaxed) {
            return Err(AddressSpaceError::Second);
        }
        if machine::has_rights() {
            TABLES.handler_rights.store(keys::FIRST, Ordering::Relaxed);
        }
        let isolation = if keys { take_keys()? } else { isolation };
        guard_heap().map_err(|source| AddressSpaceError::Kernel {
            what: "guarding the end of the heap",
            source,
        })?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(
            |e| AddressSpaceError::Kernel { what: "drawing a random number", source: e.into() },
        )?;
        let jitter = u64::from_le_bytes(random) % (JITTER / GRAIN) * GRAIN;
        sys::register_barrier().map_err(|source| AddressSpaceError::Kernel {
            what: "registering for barriers (membarrier(2))",
            source: source.into(),
        })?;
        keep_from_copies().map_err(|source| AddressSpaceError::Kernel {
            what: "keeping calls from copies",
            source,
        })?;
        let base = LOWEST + jitter;
        TABLES.base.store(base, Ordering::Relaxed);
        links::prepare();
        TABLES.domains[SLOTS].pid.store(sys::pid(), Ordering::Release); // SYNC(domain.pid)
        INFO.get_or_init(|| gate::info(base, isolation, keys));
        OWN_INFO.get_or_init(|| gate::info(base, isolation, false));
        let watchdog = Watchdog::start().map_err(|source| AddressSpaceError::Kernel {
            what: "starting the watchdog",
            source,
        })?;
        let states = [const { State::Free }; SLOTS];
        let slots = Slots { states, unreaped: Vec::new() };
        let shared = Shared { base, isolation, slots: Mutex::new(slots), _watchdog: watchdog };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A slot that nobody has; `None` when all are taken.
    pub(crate) fn slot(&self) -> Option<Slot> {
        let mut slots = self.slots();
        let Slots { states, unreaped } = &mut *slots;
        unreaped.retain(|task| !task.is_reaped());
        for (index, state) in states.iter_mut().enumerate() {
            if let State::Leaving(task) = state
                && task.has_left_slot(index, Duration::MAX)
            {
                unreaped.extend((!task.is_reaped()).then(|| Arc::clone(task)));
                *state = self.free(index);
            }
        }
        let index = states.iter().position(|state| matches!(state, State::Free))?;
        states[index] = State::Taken;
        Some(Slot { space: self.clone(), index, leaving: None })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a slot's memory, and what its domain had of links; what the slot is now.
    fn free(&self, index: usize) -> State {
        links::end_all(index);
        let range = self.range_of(index);
        // SAFETY: the addresses are this slot's alone, and no task of its domain is left.
        let freed = unsafe { munmap(range.start as *mut _, (range.end - range.start) as usize) };
        match freed {
            Ok(()) => {
                TABLES.domains[index].key.store(0, Ordering::Relaxed);
                keys::of(owner(index)).for_each(|key| keys::give_back(key, owner(index)));
                State::Free
            }
            // It stays taken: nobody is given memory that is not free.
            Err(why) => {
                tracing::error!(slot = index, %why, "a slot is not freed");
                State::Taken
            }
        }
    }

    fn range_of(&self, index: usize) -> Range<u64> {
        let base = self.shared.base + index as u64 * SLOT;
        base..base + SLOT
    }

    /// How many slots are taken.
    pub(crate) fn count(&self) -> usize {
        self.slots().states.iter().filter(|state| !matches!(state, State::Free)).count()
    }

    /// What keeps its domains apart.
    pub fn isolation(&self) -> Isolation {
        self.shared.isolation
    }

    /// The entry points for the launcher's own program, by which it can call its domains.
    pub fn launcher(&self) -> &'static Info {
        OWN_INFO.get().expect("filled in by `new`")
    }

    /// Blocks until a context has been poisoned more often than `seen` times, in any domain; how
    /// often that is now. [`crate::task::Domain::is_poisoned`] says which one it was.
    pub fn await_poisoning(&self, seen: u32) -> u32 {
        loop {
            let now = TABLES.poisonings.load(Ordering::Acquire); // SYNC(domain.poisoned)
            if now != seen {
                return now;
            }
            sys::wait(&TABLES.poisonings, seen);
        }
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
    space: AddressSpace,
    index: usize,
    /// What may still run there.
    leaving: Option<Arc<Process>>,
}

impl Slot {
    pub(crate) fn range(&self) -> Range<u64> {
        self.space.range_of(self.index)
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Takes a protection key for it, which goes with its memory; the key, and the rights of code that
    /// has it. Both 0 without keys.
    pub(crate) fn key(&self) -> Result<(u32, u32), Errno> {
        if self.space.shared.isolation == Isolation::None {
            return Ok((0, 0));
        }
        let key = keys::take(owner(self.index))?;
        TABLES.domains[self.index].key.store(key, Ordering::Relaxed);
        Ok((key, keys::domain_rights(key, TABLES.scratch.load(Ordering::Relaxed))))
    }

    /// Its task was killed, and runs, or somebody is inside: whoever looks for a slot later frees it.
    pub(crate) fn leave(mut self, task: &Arc<Process>) {
        self.leaving = Some(Arc::clone(task));
    }

    /// Frees it, whose task was killed and runs no more.
    pub(crate) fn free(self, task: &Arc<Process>) {
        let unreaped = (!task.is_reaped()).then(|| Arc::clone(task));
        self.space.slots().unreaped.extend(unreaped);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let state = match self.leaving.take() {
            Some(task) => State::Leaving(task),
            None => self.space.free(self.index),
        };
        self.space.slots().states[self.index] = state;
    }
}

/// Bit 1 of `AT_HWCAP2` (the kernel's Documentation/arch/x86/x86_64/fsgs.rst).
const HWCAP2_FSGSBASE: u64 = 2;

/// What domains find.
static INFO: OnceLock<Info> = OnceLock::new();
/// The same for the launcher's own program, which has the rights that it needs.
static OWN_INFO: OnceLock<Info> = OnceLock::new();

/// Its address, for a domain's auxiliary vector.
pub(crate) fn info_address() -> u64 {
    std::ptr::from_ref(INFO.get().expect("a slot exists")) as u64
}

/// Owns the key of signal stacks, where all domains have to be able to write those; slots follow,
/// as owners of theirs, and links after them
/// ([`crate::links`]).
const SCRATCH: u64 = 1;

/// The owner of a slot's key.
fn owner(index: usize) -> u64 {
    SCRATCH + 1 + index as u64
}

/// Tries protection keys out, and takes all of them; what they come to.
fn take_keys() -> Result<Isolation, AddressSpaceError> {
    let no_keys = |why| AddressSpaceError::NoKeys(machine::no_keys(why));
    let tried = |source| AddressSpaceError::Kernel { what: "trying a protection key out", source };
    let key = keys::allocate().map_err(no_keys)?;
    let (read, frames) = (machine::read_closed(key), machine::frames_of(key));
    keys::free(key);
    if read.map_err(tried)? {
        return Err(AddressSpaceError::KeysDoNothing);
    }
    let frames = frames.map_err(tried)?;
    keys::take_all();
    TABLES.keys.store(1, Ordering::Relaxed);
    let (isolation, scratch) = match frames {
        Frames::Written => (Isolation::ProtectionKeys, 0),
        Frames::NotWritten => {
            (Isolation::SharedSignalStacks, keys::take(SCRATCH).map_err(no_keys)?)
        }
        Frames::RightsLost => return Err(AddressSpaceError::RightsLost),
    };
    TABLES.scratch.store(scratch, Ordering::Relaxed);
    let rights = keys::FIRST & !keys::denied(scratch);
    TABLES.domains[SLOTS].rights.store(rights, Ordering::Relaxed);
    Ok(isolation)
}

/// A copy of this process (fork(2)) has no links, no callers and no contexts: it calls nobody, and one
/// that was made in the middle of a call does not come back from it as its caller.
fn keep_from_copies() -> io::Result<()> {
    let first = &raw const TABLES.links;
    let bytes = size_of::<Tables>() - offset_of!(Tables, links);
    let advice = rustix::mm::Advice::LinuxWipeOnFork;
    // SAFETY: whole pages of this process's own zeroed memory, to the end of the tables.
    unsafe { rustix::mm::madvise(first.cast_mut().cast(), bytes, advice)? };
    Ok(())
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
