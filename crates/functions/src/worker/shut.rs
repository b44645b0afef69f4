#![allow(unsafe_code, reason = "maps memory at fixed addresses, and writes the page of calls")]
//! How a worker begins: it maps what it needs, and gives up all else.
//!
//! | what it gives up | by |
//! | --- | --- |
//! | all descriptors | close_range(2) |
//! | files, for the case that a call of the kernel opens one | Landlock without a rule |
//! | new rights by exec | no_new_privs |
//! | all system calls but futex(2), getrandom(2), exit_group(2), clock_gettime(2) and getrusage(2) of its one thread, and timer_settime(2) of its one timer where it has one | seccomp(2); others are SIGSYS |
//! | the time stamp counter, where functions see the time coarsely | PR_SET_TSC |
//! | being traced and dumped by its own user | PR_SET_DUMPABLE, RLIMIT_CORE |
//!
//! Before, it puts protection keys in force ([`super::keys`]), and says to its dispatcher what it has.
//!
//! It ends with the thread of the dispatcher that has started it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use landlock::{ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _};
use partywall_abi::function::{Ring, begun};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};

use super::keys::{Keys, Part, Whose};
use super::timer::Timer;
use super::{Worker, account, enter, handlers, keys, map, window};
use crate::image::{CONSTANTS, Call, DATA, DATA_BYTES};
use crate::isolation::Wanted;
use crate::layout::{
    BLOCK, BLOCK_BYTES, BLOCK_SPAN, CELLS, Cell, LIGHT_STACK, Layout, PAGE, PAYLOAD_BYTES, PLOT,
    RING_BYTES, SAYS,
};

/// The variable of a worker's environment that has its [`Start`]. Other users can read no process's
/// environment, as they can its arguments.
const START: &str = "PARTYWALL_FUNCTIONS_WORKER";

/// What a worker is told when it is started, as hexadecimal digits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    /// Where things are.
    pub layout: Layout,
    /// How many blocks of images there are.
    pub blocks: u64,
    /// The descriptors of its own memory, of its group's images, and of the clock's page.
    pub descriptors: [i32; 3],
    /// The CPU that it runs on.
    pub cpu: Option<usize>,
    /// Whether functions have the time stamp counter.
    pub has_counter: bool,
    /// How long a tick of its own timer is, in nanoseconds, where it gives up functions by that.
    pub quantum_ns: Option<u64>,
    /// What is to keep functions from its memory.
    pub isolation: Wanted,
}

impl Start {
    /// As a variable of the worker's environment: its name and its value.
    pub fn to_variable(&self) -> (&'static str, String) {
        let bytes = postcard::to_stdvec(self).expect("it can be written down");
        (START, bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// What is in this process's environment; none if no dispatcher has started it.
    pub fn of_this_process() -> Option<Self> {
        let text = std::env::var(START).ok()?;
        let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
        postcard::from_bytes(&bytes?).ok()
    }
}

/// A worker's whole life; it comes back only to say why it did not begin.
pub fn main() -> String {
    main_telling(true, |_| ())
}

/// Where a worker has what functions cannot reach, for tests.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// The ring, with the payloads behind it.
    pub ring: u64,
    /// A static variable.
    pub running: u64,
    /// A variable of a function that has not returned.
    pub stack: u64,
    /// What functions can read: the rights.
    pub window: u64,
    /// The handler of signals.
    pub handler: u64,
    /// The instructions that write the rights, or may.
    pub gates: [u64; 6],
}

/// The same as [`main`], for tests: it tells where things are before it gives up its descriptors, and leaves
/// its filter of system calls out for tests of what is behind that.
#[doc(hidden)]
pub fn main_telling(has_filter: bool, tell: impl FnOnce(&Places)) -> String {
    let Some(start) = Start::of_this_process() else {
        return "this is what a dispatcher of functions starts; it is of no other use".into();
    };
    match begin(&start, has_filter, tell) {
        Ok(worker) => worker.run(),
        Err(why) => format!("a worker of functions cannot begin: {why}"),
    }
}

fn begin(start: &Start, has_filter: bool, tell: impl FnOnce(&Places)) -> io::Result<Worker> {
    let [memory, images, clock] = start.descriptors.map(|number| {
        // SAFETY: the dispatcher has left it open for this.
        unsafe { OwnedFd::from_raw_fd(number) }
    });
    if let Some(cpu) = start.cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    let layout = start.layout;
    let (read, write) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
    let code = ProtFlags::READ | ProtFlags::EXEC;
    map(layout.images, PAGE, read, Some((clock.as_fd(), 0)))?;
    for block in 0..start.blocks {
        let (at, file) = (layout.images + block * BLOCK_SPAN, block * BLOCK_BYTES);
        let bytes = BLOCK * PLOT;
        // The clock is instead of the first plot.
        let before = if block == 0 { PLOT } else { 0 };
        map(at + before, bytes - before, code, Some((images.as_fd(), file + before)))?;
        map(
            at + u64::from(CONSTANTS),
            bytes,
            read,
            Some((images.as_fd(), file + u64::from(CONSTANTS))),
        )?;
        map(at + u64::from(DATA), bytes, write, None)?;
    }
    for number in 0..CELLS {
        let cell = layout.cell(number as u16);
        let Cell { begin, stack, file, .. } = cell;
        let heap = cell.heap_end() - begin;
        map(begin, heap, write, Some((memory.as_fd(), file)))?;
        map(cell.stack_top() - stack, stack, write, Some((memory.as_fd(), cell.stack_file())))?;
    }
    calls(layout.calls)?;
    enter::look();
    let at = anywhere(memory.as_fd(), RING_BYTES + PAYLOAD_BYTES)?;
    // SAFETY: the ring is at the memory's begin, for ever, and all of it is atomic.
    let ring = unsafe { &*at.cast::<Ring>() };
    handlers::install(ring)?;
    let kept = own(CELLS * u64::from(DATA_BYTES))?;
    let forced = force(start, layout);
    let (keys, what, why) = match (start.isolation, forced) {
        (_, Ok(Some(keys))) => (Some(keys), begun::PROTECTION_KEYS, String::new()),
        (_, Ok(None)) => (None, begun::NONE, "they are not asked for".to_owned()),
        (Wanted::ProtectionKeys, Err(why)) => {
            let why = format!("isolation `protection-keys` needs protection keys: {why}");
            say(at, &why);
            ring.begin(begun::REFUSED);
            return Err(io::Error::other(why));
        }
        (_, Err(why)) => (None, begun::NONE, why),
    };
    say(at, &why);
    let variable = 0_u64;
    tell(&Places {
        ring: at as u64,
        running: std::ptr::from_ref(&enter::RUNNING) as u64,
        stack: (&raw const variable) as u64,
        window: std::ptr::from_ref(&window::WINDOW) as u64,
        handler: handlers::handler as *const () as u64,
        gates: keys::gates(),
    });
    drop([memory, images, clock]);
    if !start.has_counter {
        // SAFETY: a system call on numbers (PR_SET_TSC(2const)).
        let closed = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0) };
        if closed != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let timer = start.quantum_ns.map(Timer::new).transpose()?;
    account::begin()?;
    shut()?;
    if has_filter {
        let filter = filter(timer.as_ref()).map_err(io::Error::other)?;
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    // No function has run, and none does before the dispatcher has read this.
    ring.begin(what);
    crate::sleep::wake(&ring.bell);
    crate::sleep::until_open(&ring.sleep);
    Ok(Worker {
        layout,
        ring,
        payloads: at.wrapping_add(RING_BYTES as usize),
        waiting: [None; CELLS as usize],
        kept,
        has_counter: start.has_counter,
        timer,
        keys,
    })
}

/// Writes a text behind the ring.
fn say(ring: *mut u8, text: &str) {
    let to = ring.wrapping_add(SAYS as usize);
    let bytes = &text.as_bytes()[..text.len().min(begun::TEXT)];
    // SAFETY: between ring and payloads, where nobody else writes.
    unsafe { to.cast::<u32>().write(bytes.len() as u32) };
    // SAFETY: as above.
    unsafe { to.wrapping_add(4).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Puts keys in force where they are wanted.
fn force(start: &Start, layout: Layout) -> Result<Option<Keys>, String> {
    if start.isolation == Wanted::None {
        return Ok(None);
    }
    let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let code = libc::PROT_READ | libc::PROT_EXEC;
    let mut parts = Vec::new();
    let mut part = |at, bytes, protection, whose| parts.push(Part { at, bytes, protection, whose });
    part(layout.images, PAGE, read, Whose::Common);
    for block in 0..start.blocks {
        let (at, bytes) = (layout.images + block * BLOCK_SPAN, BLOCK * PLOT);
        let before = if block == 0 { PLOT } else { 0 };
        part(at + before, bytes - before, code, Whose::Common);
        part(at + u64::from(CONSTANTS), bytes, read, Whose::Common);
        part(at + u64::from(DATA), bytes, write, Whose::Data);
    }
    for number in 0..CELLS as u16 {
        let cell = layout.cell(number);
        part(cell.begin, cell.heap_end() - cell.begin, write, Whose::Cell(number));
        part(cell.stack_top() - cell.stack, cell.stack, write, Whose::Cell(number));
    }
    part(layout.calls, PAGE, code, Whose::Common);
    let images = layout.images..layout.images + start.blocks * BLOCK_SPAN;
    let top = layout.cell(0).stack_top();
    let keys = Keys::put_in_force(&parts, top, images);
    let stack = (top - LIGHT_STACK) as *mut u8;
    // SAFETY: cell 0's own, where keys were tried out.
    unsafe { std::ptr::write_bytes(stack, 0, LIGHT_STACK as usize) };
    keys.map(Some)
}

fn anywhere(file: BorrowedFd<'_>, bytes: u64) -> io::Result<*mut u8> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: where nothing is.
    let at = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes as usize, rights, MapFlags::SHARED, file, 0)?
    };
    Ok(at.cast())
}

/// Memory of this process alone.
fn own(bytes: u64) -> io::Result<*mut u8> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: where nothing is.
    let at = unsafe { rustix::mm::mmap_anonymous(anywhere, bytes as usize, rights, flags)? };
    Ok(at.cast())
}

/// The page by which functions reach the runtime's calls, at the same address in all workers.
///
/// Each entry has 16 bytes: `jmp [rip + 2]`, and behind it, at 8, the address.
fn calls(at: u64) -> io::Result<()> {
    map(at, PAGE, ProtFlags::READ | ProtFlags::WRITE, None)?;
    for call in Call::ALL {
        let target = match call {
            Call::Leave => enter::leave as *const () as u64,
            Call::Service => enter::call as *const () as u64,
            Call::Random => enter::random as *const () as u64,
        };
        let entry = (at + 16 * call as u64) as *mut [u8; 16];
        let mut bytes = [0xcc; 16];
        bytes[..6].copy_from_slice(&[0xff, 0x25, 2, 0, 0, 0]);
        bytes[8..].copy_from_slice(&target.to_le_bytes());
        // SAFETY: within the page that was just mapped.
        unsafe { entry.write(bytes) };
    }
    let page = std::ptr::without_provenance_mut(at as usize);
    // SAFETY: the page is complete.
    unsafe {
        rustix::mm::mprotect(page, PAGE as usize, MprotectFlags::READ | MprotectFlags::EXEC)?
    };
    Ok(())
}

/// Gives up all but the system calls.
fn shut() -> io::Result<()> {
    // SAFETY: what was open is mapped, or of no use.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    if closed != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V3));
    let ruleset = ruleset.and_then(|ruleset| ruleset.create());
    let status = ruleset.and_then(|ruleset| ruleset.restrict_self()).map_err(io::Error::other)?;
    if status.ruleset == landlock::RulesetStatus::NotEnforced {
        return Err(io::Error::other(
            "the kernel has no Landlock; start it with `lsm=landlock,..`",
        ));
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    for resource in [Resource::Core, Resource::Nofile, Resource::Memlock] {
        rustix::process::setrlimit(resource, none)?;
    }
    Ok(())
}

/// Waiting and waking, random bytes, what this thread has had of the CPU, its timer, and the end.
fn filter(timer: Option<&Timer>) -> Result<BpfProgram, seccompiler::BackendError> {
    let only = |argument: u8, value: i32| {
        let (length, same) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        SeccompRule::new(vec![SeccompCondition::new(argument, length, same, value as u64)?])
    };
    let mut rules = BTreeMap::from([
        (libc::SYS_futex, vec![only(1, libc::FUTEX_WAIT)?, only(1, libc::FUTEX_WAKE)?]),
        (libc::SYS_getrandom, Vec::new()),
        (libc::SYS_exit_group, Vec::new()),
        (libc::SYS_clock_gettime, vec![only(0, libc::CLOCK_THREAD_CPUTIME_ID)?]),
        (libc::SYS_getrusage, vec![only(0, libc::RUSAGE_THREAD)?]),
    ]);
    if let Some(timer) = timer {
        rules.insert(libc::SYS_timer_settime, vec![only(0, timer.number())?]);
    }
    let filter =
        SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, TargetArch::x86_64)?;
    filter.try_into()
}
