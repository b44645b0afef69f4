#![allow(unsafe_code, reason = "system calls without a C library")]
//! System calls as the kernel has them, for code that runs where no C library may be touched: in a
//! task that has no thread-local storage yet, in a signal handler that finds another program's, in
//! the kernel task that is lent to a caller.
//!
//! Nothing here allocates, locks, or knows errno. The `syscall` instruction is in the call gate's
//! page, which system-call filters and Syscall User Dispatch let pass.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::page;

/// Where signal handlers return to.
pub(crate) fn restorer() -> usize {
    page::partywall_restorer as *const () as usize
}

/// Begins a program: every register as after exec(3), the stack, the first instruction and the rights
/// to protection keys given.
///
/// # Safety
/// Both must be those of a loaded program, and nothing of the calling code's stack be needed again.
pub(crate) unsafe fn enter(entry: u64, stack: u64, rights: u32) -> ! {
    // SAFETY: passed on.
    unsafe { page::partywall_enter(entry, stack, rights) }
}

/// Makes a system call.
///
/// # Errors
/// The positive error number.
///
/// # Safety
/// That of the call: what its arguments point to, and what it does to this process.
pub(crate) unsafe fn call(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the function reads six words and makes the call, which the caller answers for.
    let result = unsafe { page::partywall_syscall(number, &raw const arguments) };
    decode(result)
}

/// What a word of the kernel's says; errors are -4095 to -1 (syscalls(2)).
pub(crate) fn decode(word: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&word) { Err(Errno((-word) as i32)) } else { Ok(word as u64) }
}

/// A result as the kernel says it, in one word.
pub(crate) fn encode(result: Result<u64, Errno>) -> i64 {
    match result {
        Ok(value) => value as i64,
        Err(Errno(number)) => -i64::from(number),
    }
}

/// Waits until somebody wakes `word`, if it is `seen`; may return for no reason.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    let (at, wait) = (word.as_ptr() as u64, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: the word is there as long as the reference.
    let _woken = unsafe { call(libc::SYS_futex, [at, wait as u64, u64::from(seen), 0, 0, 0]) };
}

/// The same for so many nanoseconds at most, less than a second.
pub(crate) fn wait_for(word: &AtomicU32, seen: u32, nanoseconds: u64) {
    let (at, wait) = (word.as_ptr() as u64, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
    let limit = [0, nanoseconds];
    let arguments = [at, wait as u64, u64::from(seen), limit.as_ptr() as u64, 0, 0];
    // SAFETY: the word is there as long as the reference.
    let _woken = unsafe { call(libc::SYS_futex, arguments) };
}

/// Lets others run.
pub(crate) fn give_way() {
    // SAFETY: touches nothing.
    let _others = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Whether there is a word at an address, and it is this one, without a fault where there is none:
/// the kernel compares it before it moves as many waiters as it is told, none (futex(2),
/// FUTEX_CMP_REQUEUE).
pub(crate) fn holds(at: u64, word: u32) -> bool {
    let move_none = (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG) as u64;
    // SAFETY: the kernel looks whether the address can be read, and writes nothing.
    unsafe { call(libc::SYS_futex, [at, move_none, 0, 0, at, u64::from(word)]) }.is_ok()
}

/// Wakes whoever waits at an address, which need not be there any more.
pub(crate) fn wake(at: u64) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: reads nothing at the address.
    let _woken = unsafe { call(libc::SYS_futex, [at, wake as u64, 1, 0, 0, 0]) };
}

/// Sends a signal to a thread of a process; 0 asks whether there is one.
pub(crate) fn tgkill(pid: i32, tid: i32, signal: u64) -> Result<u64, Errno> {
    // SAFETY: only signals that have a handler in every task that registers callers are sent.
    unsafe { call(libc::SYS_tgkill, [pid as u64, tid as u64, signal, 0, 0, 0]) }
}

/// The calling thread's number.
pub(crate) fn tid() -> i32 {
    // SAFETY: cannot fail and touches nothing.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.map_or(0, |tid| tid as i32)
}

/// The calling thread's process.
pub(crate) fn pid() -> i32 {
    // SAFETY: cannot fail and touches nothing.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.map_or(0, |pid| pid as i32)
}

/// Whether a thread runs in this address space, or may: not one that is dead and not waited for, nor
/// one whose process is another program by now (exec(3)): there `known`, a word of this address space's
/// own, is not what it is here. As it is told where somebody answers for the kernel, it may.
pub(crate) fn is_here(tid: i32, known: &AtomicU64) -> bool {
    let at = known.as_ptr() as u64;
    let mut found = 0_u64;
    let [to, from] = [&raw mut found as u64, at].map(|at| [at, size_of::<u64>() as u64]);
    let lists = [tid as u64, to.as_ptr() as u64, 1, from.as_ptr() as u64, 1, 0];
    // SAFETY: the kernel writes one word, `found`.
    match unsafe { call(libc::SYS_process_vm_readv, lists) } {
        Ok(_) => found == known.load(Ordering::Relaxed),
        Err(why) => ![libc::ESRCH, libc::EFAULT].contains(&why.0),
    }
}

/// Whether a child of this process has ended, all its threads with it, and was not waited for.
pub(crate) fn has_ended(pid: i32) -> bool {
    let options = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as u64;
    // siginfo_t: 128 bytes, its first word 0 if there is nothing to tell.
    let mut info = [0_u32; 32];
    let at = info.as_mut_ptr() as u64;
    // SAFETY: the kernel writes what it says into the buffer.
    let asked =
        unsafe { call(libc::SYS_waitid, [u64::from(libc::P_PID), pid as u64, at, options, 0, 0]) };
    // Its third word says what has happened (waitid(2)): to a tracer also that the child stands still.
    asked.is_ok()
        && [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&(info[2] as i32))
}

/// Sets the calling thread's signal mask, and returns the one before.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as u64, &raw mut before as u64);
    let set = [libc::SIG_SETMASK as u64, new, old, 8, 0, 0];
    // SAFETY: two words of this frame.
    let _set = unsafe { call(libc::SYS_rt_sigprocmask, set) };
    before
}

/// The base of the calling thread's thread-local storage.
pub(crate) fn fs() -> u64 {
    let base: u64;
    // SAFETY: reads a register; `AddressSpace::new` has made sure that the instruction is allowed.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) base, options(nomem, nostack)) };
    base
}

/// Sets it.
pub(crate) fn set_fs(base: u64) {
    // SAFETY: the callers set what belongs to the code that runs next; nothing in this crate's own
    // code that runs meanwhile uses thread-local storage.
    unsafe { core::arch::asm!("wrfsbase {}", in(reg) base, options(nostack)) };
}

/// The calling thread's code and stack segments, as a signal's frame holds them (`REG_CSGSFS`).
pub(crate) fn segments() -> u64 {
    let (code, stack): (u64, u64);
    // SAFETY: reads two registers.
    unsafe {
        core::arch::asm!("mov {}, cs", "mov {}, ss", out(reg) code, out(reg) stack, options(nomem, nostack));
    }
    code & 0xffff | (stack & 0xffff) << 48
}

/// CPU time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = [0_u64; 2];
    let at = time.as_mut_ptr() as u64;
    // SAFETY: the kernel writes a timespec, two words.
    let _told = unsafe {
        call(libc::SYS_clock_gettime, [libc::CLOCK_THREAD_CPUTIME_ID as u64, at, 0, 0, 0, 0])
    };
    time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1])
}

const MEMBARRIER_PRIVATE_EXPEDITED: u64 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: u64 = 1 << 4;

/// Lets [`barrier`] work in this address space.
pub(crate) fn register_barrier() -> Result<(), Errno> {
    // SAFETY: touches nothing of the program's.
    unsafe {
        call(libc::SYS_membarrier, [MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// A full memory barrier in every thread that runs in this address space.
pub(crate) fn barrier() {
    // SAFETY: as above.
    let done = unsafe { call(libc::SYS_membarrier, [MEMBARRIER_PRIVATE_EXPEDITED, 0, 0, 0, 0, 0]) };
    debug_assert!(done.is_ok(), "registered by `AddressSpace::new`");
}

/// Ends the calling thread's program, or the call that it is in, where nothing can be believed.
pub(crate) fn lost() -> ! {
    // SAFETY: an instruction that there is none of.
    unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
}

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}
