#![allow(unsafe_code, reason = "arms a thread by system calls, wherever it runs")]
//! Kernel threads that call: each registers itself once, at its first call.
//!
//! Registering ("arming") gives the thread a signal stack, on which faults of callees are handled,
//! and turns Syscall User Dispatch on for it (the kernel's
//! Documentation/admin-guide/syscall-user-dispatch.rst): while its selector says so, every system
//! call outside the gate's page becomes a SIGSYS. A thread of the launcher gets no other signals
//! from then on: its program's handlers are not behind ours.
//!
//! The first call to each domain binds a context of it to the thread ([`crate::binding`]). A thread that
//! ends gives its contexts back; one that has died inside of one has poisoned it.
//!
//! # Entries
//!
//! ```text
//!        arm                        fields written
//!  0, GONE, dead --> CLAIMED ------------------------> thread number ---> GONE
//!                                                          disarm, forget
//! ```
//!
//! An entry is found by its thread number, from which its place in the table begins. A thread that
//! ends without disarming leaves an entry that is taken over when its number comes again, or when
//! the table or a callee's contexts are full and the number is nobody's. Signal stacks belong to
//! entries, not to threads.
//!
//! Whoever looks at a callee's contexts says so first (`entering`), as the gate does; what is written
//! for a thread that is dead is written under the lock of [`lock_entries`], as is a slot's new beginning.

use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::keys;
use crate::page;
use crate::sigaction::{self, KEPT_OPEN};
use crate::sys::{self, Errno};
use crate::table::{CALLERS_MOST, Caller, Context, DomainEntry, SLOT, SLOTS, TABLES, UNBOUND};

/// Where faults of callees are handled, in bytes: the largest signal frame (AVX-512, AMX) and room
/// for a handler of the program's own. Below each is as much that is never mapped.
const SIGNAL_STACK: u64 = 64 << 10;
/// An entry that was used.
const GONE: i32 = -1;
/// An entry that is being filled in.
const CLAIMED: i32 = -2;
const NO_STACK: libc::stack_t =
    libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// Held by the launcher while it writes for callers that are dead, and while a slot begins anew.
pub(crate) fn lock_entries() -> MutexGuard<'static, ()> {
    static ENTRIES: Mutex<()> = Mutex::new(());
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of a thread.
pub(crate) fn find(tid: i32) -> Option<&'static Caller> {
    let mut at = tid as usize;
    for _ in 0..CALLERS_MOST {
        let entry = TABLES.callers.get(at % CALLERS_MOST)?;
        // SYNC(caller.entry)
        match entry.tid.load(Ordering::Acquire) {
            0 => return None,
            t if t == tid => return Some(entry),
            _ => at += 1,
        }
    }
    None
}

/// The entry of the calling thread, whose storage is at `fs`, if it is somebody else's who runs in a
/// callee. An entry may also be that of a dead thread with the same number.
pub(crate) fn inside(fs: u64) -> Option<&'static Caller> {
    find(sys::tid()).filter(|entry| {
        entry.inside.load(Ordering::Relaxed) != 0 && entry.fs.load(Ordering::Relaxed) == fs
    })
}

/// Whether the calling thread, whose storage is at `fs`, is registered, or somebody else's who is.
pub(crate) fn is_registered(fs: u64) -> bool {
    let own = |entry: &Caller| entry.home_fs.load(Ordering::Relaxed) == fs;
    inside(fs).is_some() || find(sys::tid()).is_some_and(own)
}

/// Whether nobody will leave what this caller has entered. A main thread that is dead stays until its
/// process is waited for.
pub(crate) fn is_dead(entry: &Caller) -> bool {
    // SYNC(caller.entry)
    let (tid, pid) = (entry.tid.load(Ordering::Acquire), entry.pid.load(Ordering::Relaxed));
    match tid {
        CLAIMED => false,
        ..=0 => true,
        _ => {
            let gone = sys::tgkill(pid, tid, 0) == Err(Errno(libc::ESRCH));
            gone || (tid == pid && sys::has_ended(pid)) || !sys::is_here(tid, &TABLES.base)
        }
    }
}

/// The domain whose code calls, by the kernel's word for its task and the tables' for one that is being
/// called; its thread-local storage, which the code can set, has to agree.
pub(crate) fn own_domain() -> Result<usize, Errno> {
    let fs = sys::fs();
    let domain = TABLES.slot_of(fs);
    let pid = sys::pid();
    let inside_of = |entry: &&Caller| {
        entry.inside.load(Ordering::Relaxed) != 0 && entry.pid.load(Ordering::Relaxed) == pid
    };
    let is_own = match find(sys::tid()).filter(inside_of) {
        Some(entry) => entry.fs.load(Ordering::Relaxed) == fs,
        // A child that has not called exec(3) is nobody here.
        None => TABLES.domains[domain].pid.load(Ordering::Acquire) == pid, // SYNC(domain.pid)
    };
    if is_own { Ok(domain) } else { Err(Errno(libc::EPERM)) }
}

/// An entry for the calling thread, [`CLAIMED`].
fn claim(tid: i32) -> Option<usize> {
    let start = tid as usize;
    let places = || (start..start + CALLERS_MOST).map(|at| at % CALLERS_MOST);
    let mine = |slot: &AtomicI32, from| {
        // SYNC(caller.entry)
        slot.compare_exchange(from, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // Its own place first, wherever that is: an earlier one would hide it.
    // SYNC(caller.entry)
    let own = places().find(|at| TABLES.callers[*at].tid.load(Ordering::Acquire) == tid);
    own.filter(|at| mine(&TABLES.callers[*at].tid, tid))
        .or_else(|| {
            places().find(|at| {
                let slot = &TABLES.callers[*at].tid;
                mine(slot, 0) || mine(slot, GONE)
            })
        })
        .or_else(|| {
            places().find(|at| {
                let entry = &TABLES.callers[*at];
                let other = entry.tid.load(Ordering::Acquire); // SYNC(caller.entry)
                other > 0 && is_dead(entry) && mine(&entry.tid, other)
            })
        })
}

/// Registers the calling thread; its number in the table, or minus an error number.
///
/// The thread has the rights of its domain's code afterwards and no others: signals are to reach its
/// signal stack, and it may have begun while an arena was open to the one that made it.
pub(crate) extern "C" fn arm() -> i64 {
    // Of whom the kernel says that it is: the gate ends a thread whose storage is another domain's.
    // SYNC(domain.pid)
    let own = |domain: &&DomainEntry| domain.pid.load(Ordering::Acquire) == sys::pid();
    let rights = match inside(sys::fs()) {
        Some(entry) => entry.rights.load(Ordering::Relaxed),
        None => TABLES
            .domains
            .iter()
            .find(own)
            .map_or(keys::FIRST, |domain| domain.rights.load(Ordering::Relaxed)),
    };
    let armed = sys::encode(try_arm());
    keys::set(rights);
    armed
}

fn try_arm() -> Result<u64, Errno> {
    let fs = sys::fs();
    if inside(fs).is_some() {
        return Err(Errno(libc::EBUSY));
    }
    let home = TABLES.slot_of(fs);
    let (tid, pid) = (sys::tid(), sys::pid());
    let domain = TABLES.domains.get(home).ok_or(Errno(libc::EINVAL))?;
    // A child that has not called exec(3) is nobody here.
    // SYNC(domain.pid)
    if domain.pid.load(Ordering::Acquire) != pid {
        return Err(Errno(libc::EPERM));
    }
    if home == SLOTS {
        sigaction::install()?;
    }
    let at = claim(tid).ok_or(Errno(libc::EUSERS))?;
    let entry = &TABLES.callers[at];
    entry.pid.store(pid, Ordering::Release); // SYNC(caller.entry)
    for word in [&entry.entering, &entry.depth, &entry.forwarding, &entry.cancelling] {
        word.store(0, Ordering::Relaxed);
    }
    entry.rights.store(domain.rights.load(Ordering::Relaxed), Ordering::Relaxed);
    entry.handler_frame.store(0, Ordering::Relaxed);
    entry.selector.store(0, Ordering::Relaxed);
    for (word, value) in [(&entry.fs, fs), (&entry.home_fs, fs), (&entry.inside, 0)] {
        word.store(value, Ordering::Relaxed);
    }
    // Those of a thread that had this entry before and did not disarm.
    give_back(entry);
    entry.domain.store(home as u32, Ordering::Relaxed);
    entry.home.store(home as u32, Ordering::Relaxed);
    let armed = signal_stack(at, domain).and_then(|()| {
        let (start, end) = page::range();
        let selector = entry.selector.as_ptr() as u64;
        let on = [PR_SET_SYSCALL_USER_DISPATCH, 1, start, end - start, selector, 0];
        // SAFETY: the selector is a static byte, and what it says at first is "allow".
        unsafe { sys::call(libc::SYS_prctl, on) }
    });
    if let Err(why) = armed {
        let _none = set_signal_stack(NO_STACK);
        leave(entry);
        return Err(why);
    }
    if home == SLOTS {
        entry.mask.store(sys::set_mask(!KEPT_OPEN), Ordering::Relaxed);
    }
    entry.tid.store(tid, Ordering::Release); // SYNC(caller.entry)
    Ok(at as u64)
}

/// The calling thread's entry, by the number that it says.
pub(crate) fn own(at: u64) -> Option<&'static Caller> {
    let entry = TABLES.callers.get(usize::try_from(at).ok()?)?;
    // SYNC(caller.entry)
    (entry.tid.load(Ordering::Acquire) == sys::tid()).then_some(entry)
}

/// Gives back what a thread held that is dead; false when somebody else does.
pub(crate) fn forget_dead(entry: &Caller) -> bool {
    let tid = entry.tid.load(Ordering::Acquire); // SYNC(caller.entry)
    let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(caller.entry)
    let taken = tid > 0 && entry.tid.compare_exchange(tid, CLAIMED, order.0, order.1).is_ok();
    if taken {
        // Nobody else finds it by its process from here on.
        entry.pid.store(0, Ordering::Release); // SYNC(caller.entry)
        give_back(entry);
        leave(entry);
    }
    taken
}

/// Gives back what a process that has ended held.
pub(crate) fn forget(pid: i32) {
    let _locked = lock_entries();
    for entry in &TABLES.callers {
        let tid = entry.tid.load(Ordering::Acquire); // SYNC(caller.entry)
        let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(caller.entry)
        // SYNC(caller.entry)
        let dead = (tid > 0 || tid == CLAIMED) && entry.pid.load(Ordering::Acquire) == pid;
        if dead && entry.tid.compare_exchange(tid, CLAIMED, order.0, order.1).is_ok() {
            give_back(entry);
            leave(entry);
        }
    }
}

/// Makes an entry nobody's.
fn leave(entry: &Caller) {
    entry.pid.store(0, Ordering::Release); // SYNC(caller.entry)
    entry.tid.store(GONE, Ordering::Release); // SYNC(caller.entry)
}

/// Poisons a context whose caller has died inside. Whether somebody is inside who lives.
pub(crate) fn is_entered(context: &Context) -> bool {
    if !context.is_entered() {
        return false;
    }
    let _locked = lock_entries();
    let owner = TABLES.caller_at(context.owner.load(Ordering::Acquire)); // SYNC(context.bind)
    if context.is_entered() && owner.is_some_and(is_dead) {
        context.abandon();
        return false;
    }
    true
}

/// Whether nobody is inside a slot's domain, or on the way in; the domain takes no more calls.
pub(crate) fn is_empty(slot: usize) -> bool {
    let on_the_way = |caller: &Caller| {
        // SYNC(gate.enter)
        caller.entering.load(Ordering::SeqCst) == slot as u32 + 1 && !is_dead(caller)
    };
    // In this order: who is on the way says so until its context is busy.
    !TABLES.callers.iter().any(on_the_way) && !TABLES.contexts[slot].iter().any(is_entered)
}

/// Nobody's again, and its time its domain's; those that the thread is inside of are poisoned, for it is
/// dead.
fn give_back(entry: &Caller) {
    let home = TABLES.domains.get(entry.home.load(Ordering::Relaxed) as usize);
    let ticks = entry.ticks.swap(0, Ordering::Relaxed);
    if let Some(domain) = home {
        domain.callee_time.fetch_add(ticks, Ordering::Relaxed);
    }
    let owner = std::ptr::from_ref(entry) as u64;
    for (slot, (bound, contexts)) in entry.bound.iter().zip(&TABLES.contexts).enumerate() {
        let number = bound.swap(UNBOUND, Ordering::Relaxed);
        let Some(context) = contexts.get(usize::from(number)) else { continue };
        entry.entering.store(slot as u32 + 1, Ordering::SeqCst); // SYNC(gate.enter)
        // SYNC(context.bind)
        if context.owner.load(Ordering::SeqCst) == owner {
            context.abandon();
            let order = (Ordering::Release, Ordering::Relaxed); // SYNC(context.bind)
            let _now_free = context.owner.compare_exchange(owner, 0, order.0, order.1);
        }
        entry.entering.store(0, Ordering::Release); // SYNC(gate.enter)
    }
}

/// Time that the threads of a domain have spent in callees, in ticks.
pub(crate) fn callee_time(slot: usize) -> u64 {
    let own = |entry: &&Caller| entry.home.load(Ordering::Relaxed) as usize == slot;
    let ticks = |entry: &Caller| entry.ticks.load(Ordering::Relaxed);
    let calling: u64 = TABLES.callers.iter().filter(own).map(ticks).sum();
    TABLES.domains[slot].callee_time.load(Ordering::Relaxed) + calling
}

/// The signal stack of an entry; they lie beyond all slots.
fn signal_stack_at(at: u64) -> Range<u64> {
    let first = TABLES.base.load(Ordering::Relaxed) + SLOTS as u64 * SLOT;
    let start = first + (2 * at + 1) * SIGNAL_STACK;
    start..start + SIGNAL_STACK
}

/// The signal stack that holds an address.
pub(crate) fn signal_stack_of(address: u64) -> Option<Range<u64>> {
    let first = signal_stack_at(0).start - SIGNAL_STACK;
    let at = address.checked_sub(first)? / (2 * SIGNAL_STACK);
    let stack = signal_stack_at(at);
    (at < CALLERS_MOST as u64 && stack.contains(&address)).then_some(stack)
}

/// Maps the entry's signal stack for the calling thread, and makes it the thread's. It has the key of the
/// thread's own domain, if the kernel can write there whoever is interrupted.
fn signal_stack(at: usize, domain: &DomainEntry) -> Result<(), Errno> {
    let stack = signal_stack_at(at as u64).start;
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    // SAFETY: replaces what a thread has left that had the entry before, and had it as its own.
    unsafe { sys::call(libc::SYS_mmap, [stack, SIGNAL_STACK, rights, flags, u64::MAX, 0])? };
    let key = match TABLES.scratch.load(Ordering::Relaxed) {
        0 => domain.key.load(Ordering::Relaxed),
        scratch => scratch,
    };
    keys::tag(stack, SIGNAL_STACK, rights, key)?;
    set_signal_stack(libc::stack_t {
        ss_sp: stack as *mut libc::c_void,
        ss_flags: 0,
        ss_size: SIGNAL_STACK as usize,
    })
}

fn set_signal_stack(stack: libc::stack_t) -> Result<(), Errno> {
    let at = &raw const stack as u64;
    // SAFETY: the kernel copies the structure; the stack is this thread's.
    unsafe { sys::call(libc::SYS_sigaltstack, [at, 0, 0, 0, 0, 0])? };
    Ok(())
}

/// Takes a registration back, in the thread that made it.
pub(crate) extern "C" fn disarm(at: u64) {
    let Some(entry) = own(at).filter(|entry| entry.inside.load(Ordering::Relaxed) == 0) else {
        return;
    };
    // SAFETY: turns it off for this thread.
    let _off = unsafe { sys::call(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) };
    let _disabled = set_signal_stack(NO_STACK);
    give_back(entry);
    if entry.home.load(Ordering::Relaxed) as usize == SLOTS {
        sys::set_mask(entry.mask.load(Ordering::Relaxed));
    }
    leave(entry);
}
