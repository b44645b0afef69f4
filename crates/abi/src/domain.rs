//! What a launcher and the programs in its address space share besides memory: the table of entry
//! points that a program finds, and how calls through the gate end.
//!
//! A program that runs as a domain has the address of an [`Info`] in its auxiliary vector
//! (getauxval(3)), under [`AUXILIARY`]. The programs that it starts get a vector of the kernel's, in which
//! there is none. The structure belongs to the launcher and does not change.
//!
//! ```text
//! byte  size  field
//!    0     8  magic       MAGIC
//!    8     4  version     VERSION
//!   12     4  bytes       size of the structure
//!   16     8  base        where the first slot begins
//!   24     8  slot        size of a slot in bytes
//!   32     8  call        fn(caller, link, a, b, c, limit in ns) -> (status: rax, word: rdx)
//!   40     8  arm         fn() -> caller, or minus an error number
//!   48     8  disarm      fn(caller)
//!   56     8  park        fn(entry) -> minus an error number (EINTR: park again), or never
//!   64     8  offer       fn(pid, number, cookie) -> link, or minus an error number
//!   72     8  take        fn(number) -> link, or minus an error number
//!   80     8  release     fn(link)
//!   88     8  bind        fn(caller, link) -> 0, or minus an error number
//!   96     8  declare     fn(declarations) -> 0, or minus an error number
//!  104     8  arena       fn(link) -> address of its arena, or minus an error number
//!  112     8  open        fn(link, 0 or 1) -> 0, or minus an error number
//!  120     8  keys        1 when protection keys keep domains apart, 2 when they do but for signal stacks,
//!                         else 0
//!  128     8  forwards    fn(caller) -> system calls that the context it is in has forwarded
//!  136     8  accept      fn(0 or 1) -> 0, or minus an error number
//! ```
//!
//! All entry points have the C calling convention and may be called from any thread of any domain.

use core::time::Duration;

/// The type of the entry in the auxiliary vector that holds the address of the [`Info`]: far from the
/// kernel's own (its include/uapi/linux/auxvec.h), which are small numbers.
pub const AUXILIARY: u64 = u32::from_le_bytes(*b"PWdo") as u64;
/// First eight bytes of an [`Info`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"PWdomain");
/// Version of this page; a program and a launcher of different versions refuse each other.
pub const VERSION: u32 = 4;

/// A call that is over its limit may stay in a system call that is being made for so long, before it is
/// ended.
pub const BLOCKED: Duration = Duration::from_millis(250);

/// Where the gate enters a program: `(caller, cookie, a, b, c, arena)`. `arena` is where the link's
/// arena is, null when it has none.
pub type Entry = extern "C" fn(u64, u64, u64, u64, u64, *mut u8) -> u64;

/// What the gate gives back: a [`GateStatus`] by its number, and the callee's word.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Number of the status.
    pub status: u64,
    /// What the callee has returned; 0 when it has not.
    pub word: u64,
}

/// What a program finds.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Size of this structure.
    pub bytes: u32,
    /// Where the first slot begins.
    pub base: u64,
    /// Size of a slot.
    pub slot: u64,
    /// The gate: `(caller, link, a, b, c, limit in ns)`.
    pub call: extern "C" fn(u64, u64, u64, u64, u64, u64) -> Outcome,
    /// Registers the calling thread as one that calls.
    pub arm: extern "C" fn() -> i64,
    /// Takes that back, at the thread's end.
    pub disarm: extern "C" fn(u64),
    /// Lends the calling thread's stack and thread-local storage to callers; `EINVAL` without an entry.
    pub park: extern "C" fn(Option<Entry>) -> i64,
    /// Lets a process of the same launcher call: `(pid, number, cookie)`.
    pub offer: extern "C" fn(u64, u64, u64) -> i64,
    /// Takes up an offer.
    pub take: extern "C" fn(u64) -> i64,
    /// Ends a link.
    pub release: extern "C" fn(u64),
    /// Gets the calling thread a context of a link's callee: `(caller, link)`.
    pub bind: extern "C" fn(u64, u64) -> i64,
    /// Declares what holds for the calling domain's functions.
    pub declare: extern "C" fn(u64) -> i64,
    /// Makes the arena of a link, for its caller: [`HALF`] bytes for what it passes, and as many for
    /// what comes back.
    pub arena: extern "C" fn(u64) -> i64,
    /// Opens the arena of a link to the calling thread (1), or closes it again (0).
    pub open: extern "C" fn(u64, u64) -> i64,
    /// Whether protection keys keep domains apart: [`NO_KEYS`], [`KEYS`] or [`KEYS_SHARED_STACKS`].
    pub keys: u64,
    /// Counts what the context that the caller is inside of has forwarded so far.
    pub forwards: extern "C" fn(u64) -> u64,
    /// Says whether the calling domain takes calls.
    pub accept: extern "C" fn(u64) -> i64,
}

/// Nothing keeps domains apart.
pub const NO_KEYS: u64 = 0;
/// Protection keys do.
pub const KEYS: u64 = 1;
/// They do, but for signal stacks, which are open to all.
pub const KEYS_SHARED_STACKS: u64 = 2;

/// Bytes of each half of an arena: addresses, which take memory only as far as they are written.
pub const HALF: u64 = 1 << 30;

/// A declaration: functions of the domain make no system calls; one that does is ended with
/// [`GateStatus::SystemCall`].
pub const NO_SYSTEM_CALLS: u64 = 1;

const _: () = {
    assert!(size_of::<Info>() == 144);
    assert!(core::mem::offset_of!(Info, call) == 32);
    assert!(core::mem::offset_of!(Info, release) == 80);
};

/// How a call through the gate ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum GateStatus {
    /// The callee has returned.
    Done = 0,
    /// No context of the callee can be had now.
    Busy = 1,
    /// The link is closed, or the callee takes no calls.
    Closed = 2,
    /// The numbers are not those of this thread and of a link of its domain, or it is a signal
    /// handler that calls.
    Denied = 3,
    /// Calls are nested too deep.
    DepthExceeded = 4,
    /// The callee has failed: a fault, an illegal instruction, an overflow of its stack.
    Fault = 5,
    /// The call has taken longer than it was given.
    Deadline = 6,
    /// The callee's process has ended.
    Died = 7,
    /// The callee has made a system call, and has declared that it makes none.
    SystemCall = 8,
    /// The thread has no context of the callee; `bind` gets it one.
    Unbound = 9,
}

impl GateStatus {
    /// The status with this number.
    pub const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::Busy,
            2 => Self::Closed,
            3 => Self::Denied,
            4 => Self::DepthExceeded,
            5 => Self::Fault,
            6 => Self::Deadline,
            7 => Self::Died,
            8 => Self::SystemCall,
            9 => Self::Unbound,
            _ => return None,
        })
    }
}
