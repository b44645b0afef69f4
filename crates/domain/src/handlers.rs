#![allow(unsafe_code, reason = "signal handlers")]
//! The signal handlers of every task that holds domains' code: its own program's, behind ours.
//!
//! | signal | what ours does |
//! | --- | --- |
//! | SIGSYS | makes a trapped call as [`crate::syscalls`] says, in the domain's own kernel task |
//! | SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP | inside a callee: ends the call; else the program's own |
//! | `CANCEL_SIGNAL` | ends a call whose time is over or whose callee has died, if it is still there |
//! | all others | the program's own handler, with the thread's own thread-local storage |
//!
//! The kernel enters them through the gate's page, which takes all rights to protection keys. A
//! handler may find any thread-local storage and any stack, and the program in any state: it uses
//! no C library, allocates nothing and locks nothing. One of the program's own follows it and does not
//! come back to it: the kernel's frame leads from there to what was interrupted. Whose
//! code it has interrupted it learns from the tables, by thread number.
//!
//! # Ending a call
//!
//! The context is marked first, so that nobody is lent it again, and the launcher is told, which
//! restarts the domain. Then the handler returns to `partywall_abort` with the stack pointer at the
//! context's top, and the gate's way back does the rest. The kernel restores floating-point state and
//! signal mask from the frame; protection-key rights as well, so the gate takes its own first. What
//! the callee held stays held: locks, memory, half a change; that is
//! why its domain is restarted.

use std::sync::atomic::Ordering;

use partywall_abi::domain::{BLOCKED, GateStatus};

use crate::elf::PAGE;
use crate::page;
use crate::sigaction::{Action, KEPT_OPEN, LIBRARY, SIG_IGN, bit, row};
use crate::sys::{self, Errno};
use crate::syscalls::Call;
use crate::table::{BUSY, Caller, Context, ENDING, TABLES};
use crate::{callers, contexts, watchdog};

/// What the kernel has entered a handler with; `at` is the stack pointer.
struct Kernels {
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    at: u64,
}

impl Kernels {
    /// Ends the thread's program, or the call that it is in, if this is not what the kernel passes: code
    /// that has gone astray may come here.
    fn new(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        at: u64,
    ) -> Self {
        // `struct rt_sigframe` of the kernel's arch/x86/include/asm/sigframe.h: where the handler returns
        // to, the context, of 304 bytes, and the signal's information.
        let is_whole = at > PAGE
            && at.is_multiple_of(8)
            && context as u64 == at.wrapping_add(8)
            && info as u64 == at.wrapping_add(8 + 304);
        // SAFETY: on the stack of the thread, or nowhere, which ends it as well.
        if !is_whole || unsafe { (at as *const u64).read() } != sys::restorer() as u64 {
            sys::lost();
        }
        Self { signal, info, context, at }
    }

    /// All of it.
    ///
    /// # Safety
    /// Once per handler.
    unsafe fn frame<'a>(&self) -> Frame<'a> {
        // SAFETY: the kernel passes it, valid while the handler runs.
        let info = unsafe { &*self.info };
        // SAFETY: as above, and nobody else has it.
        let context = unsafe { &mut *self.context.cast::<libc::ucontext_t>() };
        Frame { info, context }
    }
}

/// What a handler works with.
struct Frame<'a> {
    info: &'a libc::siginfo_t,
    context: &'a mut libc::ucontext_t,
}

impl Frame<'_> {
    fn register(&self, register: libc::c_int) -> u64 {
        self.context.uc_mcontext.gregs[register as usize] as u64
    }

    fn set(&mut self, register: libc::c_int, value: u64) {
        self.context.uc_mcontext.gregs[register as usize] = value as i64;
    }

    /// What the interrupted code sees as the result of its system call.
    fn answer(&mut self, result: Result<u64, Errno>) {
        self.set(libc::REG_RAX, sys::encode(result) as u64);
    }

    /// Writes down the registers of code that makes a task.
    fn registers(&self, frame: &page::Frame) {
        let registers = [
            (&frame.number, libc::REG_RAX),
            (&frame.rdi, libc::REG_RDI),
            (&frame.rsi, libc::REG_RSI),
            (&frame.rdx, libc::REG_RDX),
            (&frame.r10, libc::REG_R10),
            (&frame.r8, libc::REG_R8),
            (&frame.r9, libc::REG_R9),
            (&frame.rbx, libc::REG_RBX),
            (&frame.rbp, libc::REG_RBP),
            (&frame.r12, libc::REG_R12),
            (&frame.r13, libc::REG_R13),
            (&frame.r14, libc::REG_R14),
            (&frame.r15, libc::REG_R15),
            (&frame.rsp, libc::REG_RSP),
            (&frame.rip, libc::REG_RIP),
        ];
        for (to, register) in registers {
            to.store(self.register(register), Ordering::Relaxed);
        }
    }

    /// The signals that the interrupted code has blocked: the kernel's part of the mask is its first
    /// eight bytes.
    fn mask(&mut self) -> *mut u64 {
        (&raw mut self.context.uc_sigmask).cast()
    }

    /// Ends the innermost call of this thread.
    fn abort(&mut self, caller: &Caller, context: &Context, status: GateStatus) {
        context.state.store(ENDING, Ordering::Release); // SYNC(context.end)
        context.turn.fetch_add(1, Ordering::Release); // SYNC(context.turn)
        // What was being done for it when it was cancelled, such as binding, is not done.
        caller.entering.store(0, Ordering::Release); // SYNC(gate.enter)
        caller.forwarding.store(0, Ordering::Relaxed);
        TABLES.poisoned(context);
        // What the callee has left of rights, segments and mask is nothing to go on with.
        let keys = TABLES.keys.load(Ordering::Relaxed) != 0;
        let rights = TABLES.handler_rights.load(Ordering::Relaxed) != 0;
        let out = match (keys, rights) {
            (true, _) => page::partywall_abort_open,
            (false, true) => page::partywall_abort_first,
            (false, false) => page::partywall_abort,
        };
        self.set(libc::REG_RIP, out as *const () as u64);
        self.set(libc::REG_RSP, context.stack.load(Ordering::Relaxed));
        self.set(libc::REG_RAX, status as u64);
        self.set(libc::REG_CSGSFS, sys::segments());
        let mask = self.mask();
        // SAFETY: the structure is larger, and aligned.
        let blocked = unsafe { mask.read() };
        // SAFETY: as for reading it.
        unsafe { mask.write(blocked & !KEPT_OPEN) };
        // Direction, trap and alignment.
        let flags = self.register(libc::REG_EFL) & !0x4_0500;
        self.set(libc::REG_EFL, flags);
    }
}

/// The calling thread and the innermost context whose code it runs; `None` while it runs a handler of
/// its own program meanwhile.
fn inside() -> Option<(&'static Caller, &'static Context)> {
    let caller = callers::find(sys::tid())?;
    let context = TABLES.context_at(caller.inside.load(Ordering::Relaxed))?;
    let trapped = caller.selector.load(Ordering::Relaxed) != 0;
    (trapped && context.state.load(Ordering::Relaxed) == BUSY).then_some((caller, context))
}

pub(crate) extern "C" fn on_sigsys(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    at: u64,
) {
    // SAFETY: this is a handler.
    let mut frame = unsafe { Kernels::new(signal, info, context, at).frame() };
    // seccomp(2) and the kernel's <asm-generic/siginfo.h>.
    const SYS_SECCOMP: i32 = 1;
    const SYS_USER_DISPATCH: i32 = 2;
    let lent = match frame.info.si_code {
        SYS_SECCOMP => None,
        SYS_USER_DISPATCH => inside(),
        // Sent by somebody: it means nothing.
        _ => return,
    };
    let number = frame.register(libc::REG_RAX) as i64;
    let arguments =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(|register| frame.register(register));
    let domain = TABLES.slot_of(frame.register(libc::REG_RIP));
    let at = frame.mask();
    // SAFETY: the structure is larger, and aligned.
    let mut mask = unsafe { at.read() };
    // The call may take long, and what it touches may be gone.
    sys::set_mask(mask & !KEPT_OPEN);
    if let Some((caller, context)) = lent {
        let callee = TABLES.domains.get(caller.domain.load(Ordering::Relaxed) as usize);
        if callee.is_some_and(|d| d.no_syscalls.load(Ordering::Relaxed) != 0) {
            return frame.abort(caller, context, GateStatus::SystemCall);
        }
        caller.forwarding.store(1, Ordering::Relaxed);
        match number {
            // The context's thread cannot end here.
            libc::SYS_exit | libc::SYS_rt_sigreturn => {
                return frame.abort(caller, context, GateStatus::Fault);
            }
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
                frame.registers(contexts::frame(context));
                let made = contexts::ask_for_task(context);
                caller.forwarding.store(0, Ordering::Relaxed);
                return frame.answer(made);
            }
            _ => {}
        }
    }
    let lent_context = lent.map(|(_, context)| context);
    let mut call = Call { mask: &mut mask, number, arguments, domain, lent: lent_context };
    let result = call.answer();
    // SAFETY: as for reading it.
    unsafe { at.write(mask) };
    if let Some((caller, _)) = lent {
        caller.forwarding.store(0, Ordering::Relaxed);
    }
    frame.answer(result);
}

pub(crate) extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    at: u64,
) {
    let kernels = Kernels::new(signal, info, context, at);
    // SAFETY: this is a handler.
    let mut frame = unsafe { kernels.frame() };
    // What is not positive was sent by a process, and is not the callee's doing (sigaction(2)). Neither
    // is what comes of the trap flag that a handler has left: it is not back yet.
    let steps =
        frame.info.si_signo == libc::SIGTRAP && page::runs_a_handler(frame.register(libc::REG_RIP));
    let faulted = frame.info.si_code > 0 && !steps;
    if let Some((caller, context)) = inside().filter(|_| faulted) {
        return frame.abort(caller, context, GateStatus::Fault);
    }
    own_handler(&kernels);
}

pub(crate) extern "C" fn on_cancel(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    at: u64,
) {
    // SAFETY: this is a handler.
    let mut frame = unsafe { Kernels::new(signal, info, context, at).frame() };
    if let Some(caller) = callers::find(sys::tid()) {
        caller.cancelling.store(0, Ordering::Release); // SYNC(caller.cancelling)
    }
    let Some((caller, context)) = inside() else { return };
    // On its way; the watchdog sends another signal.
    if page::is_on_the_way(frame.register(libc::REG_RIP)) {
        return;
    }
    let domain = caller.domain.load(Ordering::Relaxed) as usize;
    // SYNC(domain.dead)
    let died = TABLES.domains.get(domain).is_some_and(|d| d.dead.load(Ordering::Acquire) != 0);
    if died {
        frame.abort(caller, context, GateStatus::Died);
    } else if is_over(caller, context) {
        frame.abort(caller, context, GateStatus::Deadline);
    }
}

/// How often a call that is over its limit is found in a system call that is being made before it is
/// ended, once a tick.
const BLOCKS: u32 = (BLOCKED.as_micros() / watchdog::TICK.as_micros()) as u32;
/// The same with those that are not made yet, or any more: others may keep the agent or the caller from
/// running.
const WAITS: u32 = 1000;

/// Whether a call that was seen for longer than its limit has used that much CPU time since, or stays
/// in system calls: a thread that others have kept from running is not the callee's fault.
fn is_over(caller: &Caller, context: &Context) -> bool {
    let call = context.calls.load(Ordering::Relaxed);
    // SYNC(context.expired)
    if context.expired.load(Ordering::Acquire) != call {
        return false;
    }
    let now = sys::thread_cpu_ns();
    if context.marked.swap(call, Ordering::Relaxed) != call {
        context.mark.store(now, Ordering::Relaxed);
        context.waits.store(0, Ordering::Relaxed);
        context.blocks.store(0, Ordering::Relaxed);
        return false;
    }
    if caller.forwarding.load(Ordering::Relaxed) != 0 {
        let blocked =
            contexts::is_made(context) && context.blocks.fetch_add(1, Ordering::Relaxed) >= BLOCKS;
        return blocked || context.waits.fetch_add(1, Ordering::Relaxed) >= WAITS;
    }
    now - context.mark.load(Ordering::Relaxed) >= context.limit.load(Ordering::Relaxed)
}

pub(crate) extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    at: u64,
) {
    own_handler(&Kernels::new(signal, info, context, at));
}

/// What the kernel would do with a signal that the program has no handler for: a fault happens again
/// on return, and the kernel ends the task for it even if it is ignored; what was sent is sent again,
/// and so is a trap, for the code is past it.
fn unhandled(signal: libc::c_int, sent: bool, action: &Action) {
    if sent && action.handler == SIG_IGN {
        return;
    }
    let _default = Action::DEFAULT.install(signal as u64);
    if sent || signal == libc::SIGTRAP {
        let _again = sys::tgkill(sys::pid(), sys::tid(), signal as u64);
    }
}

/// Goes on in the program's own handler, with its thread's own thread-local storage and rights.
fn own_handler(kernels: &Kernels) {
    let Kernels { signal, info, context, at } = *kernels;
    let fs = sys::fs();
    if bit(signal as u64) & LIBRARY != 0 {
        contexts::signalled();
    }
    let caller = callers::find(sys::tid());
    let home_fs = caller.map_or(fs, |caller| caller.home_fs.load(Ordering::Relaxed));
    let home = TABLES.slot_of(home_fs);
    let Some(row) = row(home, signal as u64) else { return };
    let action = row.load();
    if !action.is_handler() {
        // SAFETY: the kernel passes it, valid while the handler runs.
        let sent = unsafe { (*info).si_code } <= 0;
        return unhandled(signal, sent, &action);
    }
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        row.store(&Action::DEFAULT);
    }
    let rights = TABLES.domains[home].rights.load(Ordering::Relaxed);
    // SAFETY: the kernel passes it, valid while the handler runs, and nobody else has it.
    let interrupted = unsafe { &*context.cast::<libc::ucontext_t>() };
    // SAFETY: the structure is larger, and aligned.
    let blocked = unsafe { (&raw const interrupted.uc_sigmask).cast::<u64>().read() };
    let defers = action.flags & libc::SA_NODEFER as u64 == 0;
    let own = if defers { bit(signal as u64) } else { 0 };
    let mask = (blocked | action.mask | own) & !KEPT_OPEN;
    // Inside, system calls may be trapped already though the storage is still this thread's own.
    let inside_of = |caller: &&Caller| {
        let inside = caller.inside.load(Ordering::Relaxed) != 0 || home_fs != fs;
        inside && caller.handler_frame.load(Ordering::Relaxed) == 0
    };
    // Until the mask is set no other signal comes: each finds all of what the one before has done.
    let Some(caller) = caller.filter(inside_of) else {
        sys::set_mask(mask);
        // SAFETY: the program gave this address for a handler with these arguments, or the first;
        // nothing of this function's is needed again.
        unsafe { page::partywall_last_handler(signal, info, context, action.handler, rights, at) }
    };
    caller.handler_fs.store(fs, Ordering::Relaxed);
    let selector = caller.selector.swap(0, Ordering::Relaxed);
    caller.handler_selector.store(selector, Ordering::Relaxed);
    caller.handler_frame.store(at, Ordering::Relaxed);
    sys::set_fs(home_fs);
    sys::set_mask(mask);
    // SAFETY: as above; the caller's entry says what to come back to.
    unsafe {
        page::partywall_run_handler(
            signal,
            info,
            context,
            action.handler,
            rights,
            std::ptr::from_ref(caller) as u64,
        )
    }
}
