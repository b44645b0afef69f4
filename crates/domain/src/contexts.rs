#![allow(unsafe_code, reason = "lends a thread's stack and storage")]
//! Threads of a callee that have parked: what is lent is their thread-local storage and a stack, and
//! what stays behind is their kernel task, the *agent*, which makes the system calls of whoever runs
//! in the context ([`crate::handlers`]), so that these have the callee's pid, descriptors and rights.
//!
//! ```text
//! caller's thread (in the SIGSYS handler)         agent
//!   arguments, mail := ASKED, wake ---------------> mail := WORKING, makes the call
//!   waits until mail = ANSWERED <------------------ result, mail := ANSWERED, wake
//!   mail := IDLE
//! ```
//!
//! The agent shares thread-local storage with the context it lends, so between the calls it runs
//! code of the launcher that uses none, and has all signals blocked but the C library's own, for which
//! all threads of a process are waited for ([`LIBRARY`]); only while it makes a call that
//! sends a signal are they open, so that a thread can signal itself, as abort(3) does.
//!
//! A parked thread to which such a signal comes may be cancelled, and never comes back from the signal's
//! handler. So its context is nobody's from before the handler on, if nobody is inside. A thread that
//! comes back is taken out of its context as soon as nobody is inside, goes back into its program, and
//! is parked again. The context of one that does not is freed when the next thread parks.
//!
//! The mailbox is memory of the callee's own, and the agent works with the rights of whoever runs in
//! the context, which it takes from the tables: it can do nothing that they cannot.
//!
//! A call that is ended takes back what it has asked for, by counting on the turn in the tables that
//! the mailbox has to name. What is being made already is made to its end, into the void, in the
//! callee's memory and whatever the callee has named;
//! so the context and what it was lent are never used again. If the caller's thread dies, the agent
//! answers into the void and waits; if the agent's process dies, the caller is cancelled by the
//! launcher's signal.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use partywall_abi::domain::{Entry, NO_SYSTEM_CALLS};

use crate::callers;
use crate::elf::PAGE;
use crate::keys;
use crate::page::{self, Frame};
use crate::sigaction::{Action, KEPT_OPEN, LIBRARY};
use crate::sys::{self, Errno};
use crate::table::{
    ANSWERED, ASKED, CONTEXT_STACK, Caller, Context, FREE, IDLE, MAILBOXES, Mailbox, NONE, PARKING,
    SIGNALLED, SLOT, SLOTS, STACKS, TABLES, WORKING,
};

/// What an agent blocks: all but what a new thread, which inherits it, needs before it sets its own, and
/// but for [`LIBRARY`].
pub(crate) const CLOSED: u64 = !(KEPT_OPEN | LIBRARY);

/// How long an agent that has been signalled, or whose answer nobody has taken yet, waits until it looks
/// again, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// Calls that send signals, maybe to the thread itself.
const SIGNALLING: [i64; 5] = [
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// Lends the calling thread; returns minus an error number, or not at all. `EINTR` when the C library
/// has sent it a signal of its own: the thread is not lent any more.
pub(crate) extern "C" fn park(entry: Option<Entry>) -> i64 {
    sys::encode(try_park(entry.map_or(0, |entry| entry as usize as u64)))
}

fn try_park(entry: u64) -> Result<u64, Errno> {
    let fs = sys::fs();
    let slot = TABLES.slot_of(fs);
    if slot == SLOTS || TABLES.slot_of(entry) != slot {
        return Err(Errno(libc::EINVAL));
    }
    if callers::is_registered(fs) {
        return Err(Errno(libc::EBUSY));
    }
    // A child that has not called exec(3) is nobody here.
    // SYNC(domain.pid)
    if TABLES.domains[slot].pid.load(Ordering::Acquire) != sys::pid() {
        return Err(Errno(libc::EPERM));
    }
    let claim = |context: &&Context| {
        let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(context.park)
        context.state.compare_exchange(NONE, PARKING, order.0, order.1).is_ok()
    };
    let contexts = &TABLES.contexts[slot];
    contexts.iter().for_each(take_back);
    let at = contexts.iter().position(|context| claim(&context)).ok_or(Errno(libc::ENOSPC))?;
    let context = &contexts[at];
    let base = TABLES.base.load(Ordering::Relaxed) + slot as u64 * SLOT;
    let bottom = base + STACKS + at as u64 * CONTEXT_STACK;
    let mailbox = base + MAILBOXES + at as u64 * PAGE;
    let domain = &TABLES.domains[slot];
    let key = domain.key.load(Ordering::Relaxed);
    // The stack's lowest page is a guard: nothing is ever mapped there.
    let stack = (bottom + PAGE, CONTEXT_STACK - PAGE);
    let mapped = map(stack.0, stack.1, key).and_then(|()| {
        map(mailbox, PAGE, key).inspect_err(|_| {
            // SAFETY: mapped just now, for nobody.
            let _freed = unsafe { sys::call(libc::SYS_munmap, [stack.0, stack.1, 0, 0, 0, 0]) };
        })
    });
    if let Err(why) = mapped {
        context.state.store(NONE, Ordering::Release); // SYNC(context.park)
        return Err(why);
    }
    let rights = domain.rights.load(Ordering::Relaxed);
    context.entry.store(entry, Ordering::Relaxed);
    context.stack.store(bottom + CONTEXT_STACK, Ordering::Relaxed);
    context.fs.store(fs, Ordering::Relaxed);
    context.rights.store(rights, Ordering::Relaxed);
    context.mailbox.store(mailbox, Ordering::Relaxed);
    context.signalled.store(0, Ordering::Relaxed);
    // Signals find it from here on.
    context.agent.store(sys::tid(), Ordering::Relaxed);
    let mask = sys::set_mask(CLOSED);
    context.mask.store(mask, Ordering::Relaxed);
    domain.contexts.fetch_max(at as u32 + 1, Ordering::AcqRel); // SYNC(context.park)
    context.state.store(FREE, Ordering::Release); // SYNC(context.park)
    keys::set(rights);
    agent(context);
    sys::set_mask(mask);
    Err(Errno(libc::EINTR))
}

/// The context in which the calling thread has parked.
fn own() -> Option<&'static Context> {
    let tid = sys::tid();
    let contexts = TABLES.contexts.get(TABLES.slot_of(sys::fs()))?;
    contexts.iter().find(|context| context.agent.load(Ordering::Relaxed) == tid)
}

/// A signal of the C library's has come to the calling thread, whose handler may end it: if that is an
/// agent, nobody is to go into its context any more, and it is to take itself out of it when the handler
/// comes back.
pub(crate) fn signalled() {
    let Some(context) = own() else { return };
    if retire(context) {
        disown(context);
    }
    context.signalled.store(1, Ordering::Release); // SYNC(context.signalled)
    let mail = &mailbox(context).mail;
    // What it waits for changes, in case the kernel begins to wait again after the handler.
    // SYNC(context.mail)
    let _busy = mail.compare_exchange(IDLE, SIGNALLED, Ordering::AcqRel, Ordering::Relaxed);
}

/// Takes the calling agent out of its context; `EBUSY` when somebody is inside.
pub(crate) extern "C" fn unpark() -> i64 {
    sys::encode(own().ok_or(Errno(libc::EINVAL)).and_then(try_unpark))
}

/// Takes the calling agent out of its context, if nobody is inside; for agents, which have the rights
/// of their domain's code.
fn unpark_from_within() -> bool {
    let unparked = match TABLES.keys.load(Ordering::Relaxed) {
        0 => unpark(),
        _ => page::partywall_enter_unpark(),
    };
    unparked == 0
}

/// Lets nobody go into a context of the calling thread's; false when somebody is inside.
fn retire(context: &Context) -> bool {
    let order = (Ordering::SeqCst, Ordering::SeqCst); // SYNC(context.retire)
    if context.state.compare_exchange(FREE, PARKING, order.0, order.1).is_err() {
        return context.state.load(Ordering::SeqCst) == PARKING; // SYNC(context.retire)
    }
    // Its owner may have seen it free before this: then it says that it is on its way in, or is inside.
    sys::barrier();
    let slot = TABLES.slot_of(context.fs.load(Ordering::Relaxed));
    // SYNC(context.retire)
    let on_the_way = |owner: &Caller| owner.entering.load(Ordering::SeqCst) == slot as u32 + 1;
    // SYNC(context.bind)
    while let Some(owner) = TABLES.caller_at(context.owner.load(Ordering::SeqCst))
        && on_the_way(owner)
        && !callers::is_dead(owner)
    {
        sys::give_way();
    }
    // SYNC(context.retire)
    context.state.load(Ordering::SeqCst) == PARKING
}

fn try_unpark(context: &Context) -> Result<u64, Errno> {
    if !retire(context) {
        return Err(Errno(libc::EBUSY));
    }
    // Signals find nobody here from here on.
    context.agent.store(0, Ordering::Relaxed);
    disown(context);
    free(context);
    Ok(0)
}

/// Makes a context that nobody goes into any more nobody's: its owner is to bind another. Who binds this
/// one meanwhile looks at the state afterwards.
fn disown(context: &Context) {
    context.owner.store(0, Ordering::SeqCst); // SYNC(context.bind)
}

/// Frees the memory of a context that has neither owner nor agent, and the context.
fn free(context: &Context) {
    let bottom = context.stack.load(Ordering::Relaxed) - CONTEXT_STACK;
    for (at, bytes) in
        [(bottom + PAGE, CONTEXT_STACK - PAGE), (context.mailbox.load(Ordering::Relaxed), PAGE)]
    {
        // SAFETY: mapped by `try_park`, and nobody's now.
        let _freed = unsafe { sys::call(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]) };
    }
    context.state.store(NONE, Ordering::SeqCst); // SYNC(context.park)
}

/// Frees a context whose agent has ended in the handler of a signal of the C library's. The calling
/// thread may have its number again.
fn take_back(context: &Context) {
    let agent = context.agent.load(Ordering::Relaxed);
    // SYNC(context.retire)
    if agent == 0 || context.state.load(Ordering::SeqCst) != PARKING {
        return;
    }
    let has_ended =
        || agent == sys::tid() || sys::tgkill(sys::pid(), agent, 0) == Err(Errno(libc::ESRCH));
    let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(context.park)
    if has_ended() && context.agent.compare_exchange(agent, 0, order.0, order.1).is_ok() {
        free(context);
    }
}

/// What the calling domain says of its functions; 0, or minus an error number.
pub(crate) extern "C" fn declare(declarations: u64) -> i64 {
    sys::encode(callers::own_domain().and_then(|own| {
        if own == SLOTS || declarations & !NO_SYSTEM_CALLS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let no_syscalls = (declarations & NO_SYSTEM_CALLS) as u32;
        TABLES.domains[own].no_syscalls.store(no_syscalls, Ordering::Relaxed);
        Ok(0)
    }))
}

fn map(at: u64, bytes: u64, key: u32) -> Result<(), Errno> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    // SAFETY: nothing is replaced.
    unsafe { sys::call(libc::SYS_mmap, [at, bytes, rights, flags, u64::MAX, 0])? };
    keys::tag(at, bytes, rights, key)
}

/// The mailbox of a context that a thread has parked in. The domain may have unmapped it: that is a
/// fault of the code that runs in the context.
fn mailbox(context: &Context) -> &Mailbox {
    let at = context.mailbox.load(Ordering::Relaxed) as *const Mailbox;
    // SAFETY: mapped by `try_park`, zero at first, and made of atomics, for which all values are good.
    unsafe { &*at }
}

/// Makes calls until the C library has signalled the thread, and nobody is inside.
fn agent(context: &Context) {
    let mailbox = mailbox(context);
    loop {
        let order = (Ordering::AcqRel, Ordering::Acquire); // SYNC(context.mail)
        let Err(seen) = mailbox.mail.compare_exchange(ASKED, WORKING, order.0, order.1) else {
            // Whoever has asked may have been cancelled.
            let turn = mailbox.turn.load(Ordering::Relaxed);
            // SYNC(context.turn)
            if turn != context.turn.load(Ordering::Acquire) {
                mailbox.mail.store(IDLE, Ordering::Relaxed);
                continue;
            }
            let made = sys::encode(make(context, mailbox));
            mailbox.result.store(made, Ordering::Relaxed);
            mailbox.mail.store(ANSWERED, Ordering::Release); // SYNC(context.mail)
            sys::wake(mailbox.mail.as_ptr() as u64);
            continue;
        };
        let signalled = context.signalled.load(Ordering::Acquire) != 0; // SYNC(context.signalled)
        if signalled && unpark_from_within() {
            return;
        }
        // A signal that comes from here on changes the mail only if that is idle.
        if seen == IDLE && !signalled {
            sys::wait(&mailbox.mail, seen);
        } else {
            sys::wait_for(&mailbox.mail, seen, LOOK);
        }
    }
}

/// Makes what the mail asks for.
fn make(context: &Context, mailbox: &Mailbox) -> Result<u64, Errno> {
    if mailbox.task.load(Ordering::Relaxed) != 0 {
        // SAFETY: the frame is that of code in this context.
        return unsafe { make_task(&mailbox.frame) };
    }
    let number = mailbox.number.load(Ordering::Relaxed);
    let arguments = std::array::from_fn(|at| mailbox.arguments[at].load(Ordering::Relaxed));
    let signals = SIGNALLING.contains(&number);
    if signals {
        sys::set_mask(context.mask.load(Ordering::Relaxed));
    }
    // Those of the domain itself, and of the arena of the call that is under way.
    let rights = context.rights.load(Ordering::Relaxed);
    keys::set(rights);
    // SAFETY: the domain's own call, made by its own task.
    let made = unsafe { sys::call(number, arguments) };
    let slot = TABLES.slot_of(context.fs.load(Ordering::Relaxed));
    // The agent has no other rights when it makes a task, which inherits them.
    keys::set(TABLES.domains[slot].rights.load(Ordering::Relaxed));
    if signals {
        sys::set_mask(CLOSED);
    }
    made
}

/// Makes a task as the code in the frame asks for it.
///
/// # Safety
/// The frame's registers must be those of code that runs in the agent's context.
unsafe fn make_task(frame: &Frame) -> Result<u64, Errno> {
    let [number, rsi, rdi, rip] =
        [&frame.number, &frame.rsi, &frame.rdi, &frame.rip].map(|r| r.load(Ordering::Relaxed));
    let stack = match number as i64 {
        libc::SYS_clone => rsi,
        libc::SYS_clone3 => {
            // SAFETY: the domain's own pointer; its words 5 and 6 are the stack (clone(2)).
            let arguments = unsafe { &*(rdi as *const [u64; 8]) };
            if arguments[5] == 0 { 0 } else { arguments[5].wrapping_add(arguments[6]) }
        }
        _ => 0,
    };
    let result = if stack == 0 {
        // SAFETY: the child takes the stack of the code that forks.
        unsafe { page::partywall_fork(frame) }
    } else {
        // SAFETY: below the stack that the domain has made for the child.
        unsafe { ((stack - 8) as *mut u64).write_unaligned(rip) };
        // SAFETY: the child finds where to go on there.
        unsafe { page::partywall_clone(frame) }
    };
    sys::decode(result)
}

/// Has the agent make a task for the code in its context whose registers are in its frame.
pub(crate) fn ask_for_task(context: &Context) -> Result<u64, Errno> {
    let mailbox = mailbox(context);
    mailbox.frame.opened.store(!context.mask.load(Ordering::Relaxed), Ordering::Relaxed);
    mailbox.task.store(1, Ordering::Relaxed);
    let made = answered(context);
    mailbox.task.store(0, Ordering::Relaxed);
    made
}

/// Has the agent make a call of the code that runs in its context.
pub(crate) fn ask(context: &Context, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let mailbox = mailbox(context);
    for (to, from) in mailbox.arguments.iter().zip(arguments) {
        to.store(from, Ordering::Relaxed);
    }
    mailbox.number.store(number, Ordering::Relaxed);
    answered(context)
}

/// The same for rt_sigaction(2), whose structure is to stay when this thread is cancelled.
pub(crate) fn ask_for_action(
    context: &Context,
    signal: u64,
    action: &Action,
) -> Result<u64, Errno> {
    let words = [action.handler, action.flags, action.restorer, action.mask];
    let mailbox = mailbox(context);
    for (to, from) in mailbox.action.iter().zip(words) {
        to.store(from, Ordering::Relaxed);
    }
    let at = mailbox.action.as_ptr() as u64;
    ask(context, libc::SYS_rt_sigaction, [signal, at, 0, 8, 0, 0])
}

/// Whether the agent makes what was asked for, as far as it says: it can write what it likes there.
pub(crate) fn is_made(context: &Context) -> bool {
    let mailbox = context.mailbox.load(Ordering::Relaxed);
    // The domain may have unmapped it.
    sys::holds(mailbox + offset_of!(Mailbox, mail) as u64, WORKING)
}

fn answered(context: &Context) -> Result<u64, Errno> {
    let mailbox = mailbox(context);
    context.forwards.fetch_add(1, Ordering::Relaxed);
    let turn = context.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    mailbox.turn.store(turn, Ordering::Relaxed);
    mailbox.mail.store(ASKED, Ordering::Release); // SYNC(context.mail)
    sys::wake(mailbox.mail.as_ptr() as u64);
    loop {
        // SYNC(context.mail)
        match mailbox.mail.load(Ordering::Acquire) {
            ANSWERED => break,
            seen => sys::wait(&mailbox.mail, seen),
        }
    }
    mailbox.mail.store(IDLE, Ordering::Relaxed);
    sys::decode(mailbox.result.load(Ordering::Relaxed))
}

/// Where the registers of code in this context go that makes a task.
pub(crate) fn frame(context: &Context) -> &Frame {
    &mailbox(context).frame
}
