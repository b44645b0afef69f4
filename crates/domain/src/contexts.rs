#![allow(unsafe_code, reason = "lends a thread's stack and storage")]
//! Threads of a callee that have parked: what is lent is their thread-local storage and a stack, and
//! what stays behind is their kernel task, the *agent*, which makes the system calls of whoever runs
//! in the context ([`crate::signals`]), so that these have the callee's pid, descriptors and rights.
//!
//! ```text
//! caller's thread (in the SIGSYS handler)         agent
//!   arguments, mail := ASKED, wake ---------------> makes the call
//!   waits until mail != ASKED <-------------------- result, mail := ANSWERED, wake
//!   mail := IDLE
//! ```
//!
//! The agent shares thread-local storage with the context it lends, so between the calls it runs
//! code of the launcher that uses none, and has all signals blocked; only while it makes a call that
//! sends a signal are they open, so that a thread can signal itself, as abort(3) does. If the caller's thread dies, the
//! agent answers into the void and waits; if the agent's process dies, the caller is called off by
//! the launcher's signal.

use std::sync::atomic::Ordering;

use crate::elf::PAGE;
use crate::gate::{self, Frame};
use crate::signals::KEPT_OPEN;
use crate::space::{SLOT, SLOTS};
use crate::sys::{self, Errno};
use crate::table::{
    ANSWERED, ASKED, CONTEXT_STACK, CONTEXTS_EACH, Context, FREE, IDLE, NONE, STACKS, STOP, TABLES,
};

const WAIT: u64 = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
const WAKE: u64 = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64;

/// What an agent blocks: all but what a new thread, which inherits it, needs before it sets its own.
const CLOSED: u64 = !KEPT_OPEN;

/// Calls that send signals, maybe to the thread itself.
const SIGNALLING: [i64; 5] = [
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// Waits while a word of mail is `seen`, or a little.
fn wait(context: &Context, seen: u32) {
    let word = context.mail.as_ptr() as u64;
    // SAFETY: the word is static.
    let _woken = unsafe { sys::call(libc::SYS_futex, [word, WAIT, u64::from(seen), 0, 0, 0]) };
}

fn wake(context: &Context) {
    let word = context.mail.as_ptr() as u64;
    // SAFETY: the word is static.
    let _woken = unsafe { sys::call(libc::SYS_futex, [word, WAKE, 1, 0, 0, 0]) };
}

/// Lends the calling thread; returns when told to stop, or minus an error number.
pub(crate) extern "C" fn park(entry: u64) -> i64 {
    match try_park(entry) {
        Ok(()) => 0,
        Err(Errno(number)) => -i64::from(number),
    }
}

fn try_park(entry: u64) -> Result<(), Errno> {
    let fs = sys::fs();
    let slot = TABLES.slot_of(fs);
    if slot == SLOTS || TABLES.slot_of(entry) != slot {
        return Err(Errno(libc::EINVAL));
    }
    let domain = &TABLES.domains[slot];
    let at = domain.contexts.fetch_add(1, Ordering::AcqRel) as usize;
    if at >= CONTEXTS_EACH {
        domain.contexts.fetch_sub(1, Ordering::AcqRel);
        return Err(Errno(libc::ENOSPC));
    }
    let context = &TABLES.contexts[slot][at];
    let base = TABLES.base.load(Ordering::Relaxed) + slot as u64 * SLOT + STACKS;
    let top = base + (at as u64 + 1) * CONTEXT_STACK;
    map_stack(top)?;
    context.entry.store(entry, Ordering::Relaxed);
    context.stack.store(top, Ordering::Relaxed);
    context.fs.store(fs, Ordering::Relaxed);
    context.tid.store(crate::callers::tid(), Ordering::Relaxed);
    context.mail.store(IDLE, Ordering::Relaxed);
    context.mask.store(set_mask(CLOSED), Ordering::Relaxed);
    context.state.store(FREE, Ordering::Release);
    agent(context);
    set_mask(context.mask.load(Ordering::Relaxed));
    Ok(())
}

/// Sets the calling thread's signal mask, and returns the one before.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as u64, &raw mut before as u64);
    // SAFETY: two words of this frame.
    let _set = unsafe {
        sys::call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, new, old, 8, 0, 0])
    };
    before
}

/// All pages of a context's stack but the lowest, which nothing is ever mapped at.
fn map_stack(top: u64) -> Result<(), Errno> {
    let bytes = CONTEXT_STACK - PAGE;
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    // SAFETY: nothing is replaced.
    unsafe { sys::call(libc::SYS_mmap, [top - bytes, bytes, rights, flags, u64::MAX, 0])? };
    Ok(())
}

fn agent(context: &Context) {
    loop {
        match context.mail.load(Ordering::Acquire) {
            ASKED => {
                let mut arguments = [0; 6];
                for (to, from) in arguments.iter_mut().zip(&context.arguments) {
                    *to = from.load(Ordering::Relaxed);
                }
                let number = context.number.load(Ordering::Relaxed);
                let signals = SIGNALLING.contains(&number);
                if signals {
                    set_mask(context.mask.load(Ordering::Relaxed));
                }
                let made = match context.frame.load(Ordering::Relaxed) {
                    // SAFETY: the domain's own call, made by its own task.
                    0 => unsafe { sys::call(number, arguments) },
                    // SAFETY: the frame is that of whoever waits for the answer.
                    frame => unsafe { make_task(frame as *const Frame) },
                };
                let result = match made {
                    Ok(value) => value as i64,
                    Err(Errno(number)) => -i64::from(number),
                };
                if signals {
                    set_mask(CLOSED);
                }
                context.result.store(result, Ordering::Relaxed);
                context.mail.store(ANSWERED, Ordering::Release);
                wake(context);
            }
            STOP => {
                context.state.store(NONE, Ordering::Release);
                return;
            }
            seen => wait(context, seen),
        }
    }
}

/// Makes a task as the code in the frame asks for it.
///
/// # Safety
/// The frame's registers must be those of code that runs in the agent's context.
unsafe fn make_task(frame: *const Frame) -> Result<u64, Errno> {
    // SAFETY: valid, as the caller says.
    let registers = unsafe { &*frame };
    let stack = match registers.number as i64 {
        libc::SYS_clone => registers.rsi,
        libc::SYS_clone3 => {
            // SAFETY: the domain's own pointer; its words 5 and 6 are the stack (clone(2)).
            let arguments = unsafe { &*(registers.rdi as *const [u64; 8]) };
            if arguments[5] == 0 { 0 } else { arguments[5].wrapping_add(arguments[6]) }
        }
        _ => 0,
    };
    let result = if stack == 0 {
        // SAFETY: the child takes the stack of the code that forks.
        unsafe { gate::partywall_fork(frame) }
    } else {
        // SAFETY: below the stack that the domain has made for the child.
        unsafe { ((stack - 8) as *mut u64).write_unaligned(registers.rip) };
        // SAFETY: the child finds where to go on there.
        unsafe { gate::partywall_clone(frame) }
    };
    answer(result)
}

fn answer(result: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&result) { Err(Errno((-result) as i32)) } else { Ok(result as u64) }
}

/// Has the agent make a task for the code that runs in its context.
pub(crate) fn ask_for_task(context: &Context, frame: &Frame) -> Result<u64, Errno> {
    let mut frame = *frame;
    frame.mask = context.mask.load(Ordering::Relaxed);
    context.frame.store(&raw const frame as u64, Ordering::Relaxed);
    let made = ask(context, frame.number as i64, [0; 6]);
    context.frame.store(0, Ordering::Relaxed);
    made
}

/// Has the agent make a call of the code that runs in its context.
pub(crate) fn ask(context: &Context, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    for (to, from) in context.arguments.iter().zip(arguments) {
        to.store(from, Ordering::Relaxed);
    }
    context.number.store(number, Ordering::Relaxed);
    context.forwards.fetch_add(1, Ordering::Relaxed);
    context.mail.store(ASKED, Ordering::Release);
    wake(context);
    while context.mail.load(Ordering::Acquire) == ASKED {
        wait(context, ASKED);
    }
    context.mail.store(IDLE, Ordering::Relaxed);
    answer(context.result.load(Ordering::Relaxed))
}
