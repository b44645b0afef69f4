#![allow(unsafe_code, reason = "arms a thread by system calls, wherever it runs")]
//! Kernel threads that call: each registers itself once, at its first call.
//!
//! Registering ("arming") gives the thread a signal stack, on which faults of callees are handled,
//! and turns Syscall User Dispatch on for it (the kernel's
//! Documentation/admin-guide/syscall-user-dispatch.rst): while its selector says so, every system
//! call outside the gate's page becomes a SIGSYS.
//!
//! The first call to each domain binds a context of it to the thread, for as long as both live: the
//! gate then finds it without asking anybody. A thread that ends gives its contexts back; one that
//! has died inside of one has poisoned it.
//!
//! An entry is found by its thread number, from which its place in the table begins. A thread that
//! ends without disarming leaves an entry that is taken over when its number comes again, or when
//! the table is full and the number is nobody's.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::space::SLOTS;
use crate::sys::{self, Errno};
use crate::table::{BUSY, CALLERS_MOST, Caller, FREE, POISONED, TABLES, UNBOUND};
use crate::{gate, signals};

/// Where faults of callees are handled, in bytes: the largest signal frame (AVX-512, AMX) and room
/// for a handler of the program's own.
const SIGNAL_STACK: u64 = 64 << 10;
/// An entry that was used.
const GONE: i32 = -1;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// The calling thread's number.
pub(crate) fn tid() -> i32 {
    // SAFETY: cannot fail and touches nothing.
    unsafe { sys::call(libc::SYS_gettid, [0; 6]) }.map_or(0, |tid| tid as i32)
}

/// The calling thread's process.
pub(crate) fn pid() -> i32 {
    // SAFETY: cannot fail and touches nothing.
    unsafe { sys::call(libc::SYS_getpid, [0; 6]) }.map_or(0, |pid| pid as i32)
}

/// The entry of a thread.
pub(crate) fn find(tid: i32) -> Option<&'static Caller> {
    let mut at = tid as usize;
    for _ in 0..CALLERS_MOST {
        let entry = TABLES.callers.get(at % CALLERS_MOST)?;
        match entry.tid.load(Ordering::Acquire) {
            0 => return None,
            t if t == tid => return Some(entry),
            _ => at += 1,
        }
    }
    None
}

fn claim(tid: i32) -> Option<usize> {
    let start = tid as usize;
    let mine = |slot: &AtomicI32, from| {
        slot.compare_exchange(from, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    for at in start..start + CALLERS_MOST {
        let at = at % CALLERS_MOST;
        let slot = &TABLES.callers.get(at)?.tid;
        if slot.load(Ordering::Relaxed) == tid || mine(slot, 0) || mine(slot, GONE) {
            return Some(at);
        }
    }
    for at in start..start + CALLERS_MOST {
        let at = at % CALLERS_MOST;
        let entry = TABLES.callers.get(at)?;
        let other = entry.tid.load(Ordering::Relaxed);
        let pid = entry.pid.load(Ordering::Relaxed) as u64;
        // SAFETY: signal 0 is sent to nobody; ESRCH says that there is no such thread.
        let there = unsafe { sys::call(libc::SYS_tgkill, [pid, other as u64, 0, 0, 0, 0]) };
        if there == Err(Errno(libc::ESRCH)) && mine(&entry.tid, other) {
            return Some(at);
        }
    }
    None
}

/// Registers the calling thread; its number in the table, or minus an error number.
pub(crate) extern "C" fn arm() -> i64 {
    match try_arm() {
        Ok(at) => at as i64,
        Err(Errno(number)) => -i64::from(number),
    }
}

fn try_arm() -> Result<usize, Errno> {
    let fs = sys::fs();
    let home = TABLES.slot_of(fs);
    if home == SLOTS {
        signals::install()?;
    }
    let at = claim(tid()).ok_or(Errno(libc::EUSERS))?;
    let entry = &TABLES.callers[at];
    entry.selector.store(0, Ordering::Relaxed);
    for (word, value) in [(&entry.fs, fs), (&entry.home_fs, fs), (&entry.inside, 0)] {
        word.store(value, Ordering::Relaxed);
    }
    // Those of a thread that had this entry before and did not disarm.
    give_back(entry);
    entry.depth.store(0, Ordering::Relaxed);
    entry.forwarding.store(0, Ordering::Relaxed);
    entry.domain.store(home as u32, Ordering::Relaxed);
    entry.home.store(home as u32, Ordering::Relaxed);
    entry.pid.store(pid(), Ordering::Relaxed);
    let armed = signal_stack().and_then(|stack| {
        entry.signal_stack.store(stack, Ordering::Relaxed);
        let (start, end) = gate::page();
        let selector = entry.selector.as_ptr() as u64;
        let on = [PR_SET_SYSCALL_USER_DISPATCH, 1, start, end - start, selector, 0];
        // SAFETY: the selector is a static byte, and what it says at first is "allow".
        unsafe { sys::call(libc::SYS_prctl, on) }
    });
    match armed {
        Ok(_) => Ok(at),
        Err(why) => {
            entry.tid.store(GONE, Ordering::Release);
            Err(why)
        }
    }
}

/// Gets the calling thread a context of a link's callee; 0, or minus an error number.
pub(crate) extern "C" fn bind(at: u64, link: u64) -> i64 {
    let (Some(entry), Some(link)) =
        (TABLES.callers.get(at as usize), TABLES.links.get(link as usize))
    else {
        return -i64::from(libc::EINVAL);
    };
    let callee = link.callee.load(Ordering::Relaxed) as usize;
    let Some(contexts) =
        TABLES.contexts.get(callee).filter(|_| entry.tid.load(Ordering::Acquire) == tid())
    else {
        return -i64::from(libc::EINVAL);
    };
    let owner = std::ptr::from_ref(entry) as u64;
    for (number, context) in contexts.iter().enumerate() {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if context.state.load(Ordering::Acquire) == FREE
            && context.owner.compare_exchange(0, owner, order.0, order.1).is_ok()
        {
            entry.bound[callee].store(number as u8, Ordering::Relaxed);
            return 0;
        }
    }
    -i64::from(libc::EAGAIN)
}

/// Gives back what a process that has ended held.
pub(crate) fn forget(pid: i32) {
    for entry in &TABLES.callers {
        let tid = entry.tid.load(Ordering::Acquire);
        if tid > 0 && entry.pid.load(Ordering::Relaxed) == pid {
            give_back(entry);
            entry.tid.store(GONE, Ordering::Release);
        }
    }
}

/// Nobody's again, but for those that the thread is inside of.
fn give_back(entry: &Caller) {
    let owner = std::ptr::from_ref(entry) as u64;
    for (bound, contexts) in entry.bound.iter().zip(&TABLES.contexts) {
        let number = bound.swap(UNBOUND, Ordering::Relaxed);
        let Some(context) = contexts.get(usize::from(number)) else { continue };
        if context.owner.load(Ordering::Relaxed) != owner {
            continue;
        }
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        // Its owner is no more: nobody else makes it free.
        if context.state.compare_exchange(BUSY, POISONED, order.0, order.1).is_ok() {
            TABLES.poisoned(context);
        }
        context.owner.store(0, Ordering::Release);
    }
}

/// Maps a signal stack and makes it the thread's.
fn signal_stack() -> Result<u64, Errno> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    // SAFETY: new memory, at an address of the kernel's choice.
    let stack =
        unsafe { sys::call(libc::SYS_mmap, [0, SIGNAL_STACK, rights, flags, u64::MAX, 0])? };
    let new = libc::stack_t {
        ss_sp: stack as *mut libc::c_void,
        ss_flags: 0,
        ss_size: SIGNAL_STACK as usize,
    };
    let at = &raw const new as u64;
    // SAFETY: the stack has just been mapped, for this thread alone.
    let set = unsafe { sys::call(libc::SYS_sigaltstack, [at, 0, 0, 0, 0, 0]) };
    if let Err(why) = set {
        unmap(stack);
        return Err(why);
    }
    Ok(stack)
}

fn unmap(stack: u64) {
    // SAFETY: mapped by `signal_stack`, and the thread's no more.
    let _freed = unsafe { sys::call(libc::SYS_munmap, [stack, SIGNAL_STACK, 0, 0, 0, 0]) };
}

/// Takes a registration back, in the thread that made it.
pub(crate) extern "C" fn disarm(at: u64) {
    let Some(entry) = TABLES.callers.get(at as usize) else { return };
    let at_home = entry.inside.load(Ordering::Relaxed) == 0;
    if entry.tid.load(Ordering::Acquire) != tid() || !at_home {
        return;
    }
    // SAFETY: turns it off for this thread.
    let _off = unsafe { sys::call(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) };
    let none =
        libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let at = &raw const none as u64;
    // SAFETY: the kernel copies the structure.
    let disabled = unsafe { sys::call(libc::SYS_sigaltstack, [at, 0, 0, 0, 0, 0]) };
    give_back(entry);
    if disabled.is_ok() {
        unmap(entry.signal_stack.swap(0, Ordering::Relaxed));
    }
    entry.tid.store(GONE, Ordering::Release);
}
