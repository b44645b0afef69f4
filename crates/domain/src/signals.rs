#![allow(unsafe_code, reason = "signal handlers")]
//! The signal handlers of every task that holds domains' code: its own program's, behind ours.
//!
//! | signal | what ours does |
//! | --- | --- |
//! | SIGSYS | makes a trapped call as [`crate::traps`] says, in the domain's own kernel task |
//! | SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP | inside a callee: ends the call; else the program's own |
//! | [`CALL_OFF`] | ends a call whose time is over or whose callee has died, if it is still there |
//! | all others | the program's own handler, with the thread's own thread-local storage |
//!
//! A handler may find any thread-local storage and any stack, and the program in any state: it uses
//! no C library, allocates nothing and locks nothing until it calls a handler of the program. Whose
//! code it has interrupted it learns from the tables, by thread number.
//!
//! # Ending a call
//!
//! The context is poisoned first, so that nobody is lent it again, and the launcher is told, which
//! restarts the domain. Then the handler returns to `partywall_abort` with the stack pointer at the
//! context's top, and the gate's way back does the rest. The kernel restores floating-point state and
//! signal mask from the frame. What the callee held stays held: locks, memory, half a change; that is
//! why its domain is restarted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::space::SLOTS;
use crate::sys::{self, Errno};
use crate::table::{BUSY, Caller, Context, POISONED, TABLES};
use crate::traps::Call;
use crate::{callers, contexts, gate};
use partywall_abi::domain::Status;

/// The launcher's own signal: the last of the real-time ones.
pub(crate) const CALL_OFF: u64 = 64;
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

const fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

/// Signals that no program blocks: blocked, they would kill where they are to be handled.
pub(crate) const KEPT_OPEN: u64 = bit(libc::SIGSYS as u64)
    | bit(CALL_OFF)
    | bit(libc::SIGSEGV as u64)
    | bit(libc::SIGBUS as u64)
    | bit(libc::SIGILL as u64)
    | bit(libc::SIGFPE as u64)
    | bit(libc::SIGTRAP as u64);

/// `struct sigaction` as the kernel has it (rt_sigaction(2)).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Action {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

/// The kernel's `SA_RESTORER`, which C libraries set and do not show.
const SA_RESTORER: u64 = 0x0400_0000;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;

impl Action {
    pub(crate) const DEFAULT: Self = Self { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// One of our handlers.
    fn ours(handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)) -> Self {
        Self {
            handler: handler as *const () as u64,
            flags: SA_RESTORER
                | (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART)
                    as u64,
            restorer: sys::restorer() as u64,
            mask: 0,
        }
    }

    /// That for [`CALL_OFF`]. It comes every tick and is queued while a thread cannot run: one at a
    /// time has room on the signal stack, all at once have not.
    fn call_off() -> Self {
        Self { mask: bit(CALL_OFF), ..Self::ours(on_call_off) }
    }

    /// Installs it in the calling task.
    pub(crate) fn install(&self, signal: u64) -> Result<(), Errno> {
        self.swap(signal, 0)
    }

    fn swap(&self, signal: u64, old: u64) -> Result<(), Errno> {
        let at = &raw const *self as u64;
        // SAFETY: the kernel's structure; the handlers in it are ours or the program's own.
        unsafe { sys::call(libc::SYS_rt_sigaction, [signal, at, old, 8, 0, 0])? };
        Ok(())
    }
}

/// What a program has asked for, as it sees it.
pub(crate) struct Row {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

impl Row {
    const fn new() -> Self {
        Self {
            handler: AtomicU64::new(SIG_DFL),
            flags: AtomicU64::new(0),
            restorer: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }

    pub(crate) fn load(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn store(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// By domain, the launcher last, and signal.
static ROWS: [[Row; 65]; SLOTS + 1] = [const { [const { Row::new() }; 65] }; SLOTS + 1];

/// What domain `domain` has asked for `signal`.
pub(crate) fn row(domain: usize, signal: u64) -> Option<&'static Row> {
    ROWS.get(domain)?.get(usize::try_from(signal).ok()?).filter(|_| signal > 0)
}

/// Forgets what the slot's domain before has asked for.
pub(crate) fn prepare(domain: usize) {
    ROWS[domain].iter().for_each(|row| row.store(&Action::DEFAULT));
}

/// What is installed for what a program asks for; `None` when ours stays.
pub(crate) fn instead_of(signal: u64, wanted: Action) -> Option<Action> {
    if FAULTS.iter().any(|fault| *fault as u64 == signal) {
        return None;
    }
    if wanted.handler == SIG_DFL || wanted.handler == SIG_IGN {
        return Some(wanted);
    }
    let ours = Action::ours(on_signal);
    let flags = wanted.flags | SA_RESTORER | (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64;
    Some(Action { flags, mask: wanted.mask & !KEPT_OPEN, ..ours })
}

/// Installs ours in the calling task, for all its threads. What was there before is what the
/// launcher's program has asked for; a new domain has asked for nothing.
pub(crate) fn install() -> Result<(), Errno> {
    Action::ours(on_sigsys).install(libc::SIGSYS as u64)?;
    Action::call_off().install(CALL_OFF)?;
    let ours = Action::ours(on_fault);
    let launcher = &ROWS[SLOTS];
    for fault in FAULTS {
        let mut before = Action::DEFAULT;
        ours.swap(fault as u64, &raw mut before as u64)?;
        if before.handler != ours.handler {
            launcher[fault as usize].store(&before);
        }
    }
    Ok(())
}

/// Installs ours in a new domain's task.
pub(crate) fn install_in_domain() -> Result<(), Errno> {
    Action::ours(on_sigsys).install(libc::SIGSYS as u64)?;
    Action::call_off().install(CALL_OFF)?;
    FAULTS.iter().try_for_each(|fault| Action::ours(on_fault).install(*fault as u64))
}

/// What a handler gets, checked for what the kernel promises: all of it is there.
struct Frame<'a> {
    info: &'a libc::siginfo_t,
    context: &'a mut libc::ucontext_t,
}

impl Frame<'_> {
    /// # Safety
    /// Only with the arguments of a handler, once per handler.
    unsafe fn new<'a>(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> Frame<'a> {
        // SAFETY: the kernel passes it, valid while the handler runs.
        let info = unsafe { &*info };
        // SAFETY: as above, and nobody else has it.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        Frame { info, context }
    }

    fn register(&self, register: libc::c_int) -> u64 {
        self.context.uc_mcontext.gregs[register as usize] as u64
    }

    fn set(&mut self, register: libc::c_int, value: u64) {
        self.context.uc_mcontext.gregs[register as usize] = value as i64;
    }

    /// What the interrupted code sees as the result of its system call.
    fn answer(&mut self, result: Result<u64, Errno>) {
        let value = result.unwrap_or_else(|Errno(number)| -i64::from(number) as u64);
        self.set(libc::REG_RAX, value);
    }

    fn registers(&self) -> gate::Frame {
        gate::Frame {
            number: self.register(libc::REG_RAX),
            rdi: self.register(libc::REG_RDI),
            rsi: self.register(libc::REG_RSI),
            rdx: self.register(libc::REG_RDX),
            r10: self.register(libc::REG_R10),
            r8: self.register(libc::REG_R8),
            r9: self.register(libc::REG_R9),
            rbx: self.register(libc::REG_RBX),
            rbp: self.register(libc::REG_RBP),
            r12: self.register(libc::REG_R12),
            r13: self.register(libc::REG_R13),
            r14: self.register(libc::REG_R14),
            r15: self.register(libc::REG_R15),
            rsp: self.register(libc::REG_RSP),
            rip: self.register(libc::REG_RIP),
            mask: 0,
        }
    }

    fn in_gate(&self) -> bool {
        let (start, end) = gate::page();
        (start..end).contains(&self.register(libc::REG_RIP))
    }

    /// Ends the innermost call of this thread.
    fn abort(&mut self, caller: &Caller, context: &Context, status: Status) {
        context.state.store(POISONED, Ordering::Release);
        caller.forwarding.store(0, Ordering::Relaxed);
        TABLES.poisoned(context);
        self.set(libc::REG_RIP, gate::partywall_abort as *const () as u64);
        self.set(libc::REG_RSP, context.stack.load(Ordering::Relaxed));
        self.set(libc::REG_RAX, status as u64);
        self.set(libc::REG_RDX, 0);
        // Direction, trap and alignment.
        let flags = self.register(libc::REG_EFL) & !0x4_0500;
        self.set(libc::REG_EFL, flags);
    }
}

/// The calling thread and the innermost context it is inside of.
fn inside() -> Option<(&'static Caller, &'static Context)> {
    let caller = callers::find(callers::tid())?;
    let context = TABLES.context_at(caller.inside.load(Ordering::Relaxed))?;
    (context.state.load(Ordering::Relaxed) == BUSY).then_some((caller, context))
}

extern "C" fn on_sigsys(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: this is a handler, and these are its arguments.
    let mut frame = unsafe { Frame::new(info, context) };
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
    if let Some((caller, context)) = lent {
        let silent =
            TABLES.domains.get(domain).is_some_and(|d| d.silent.load(Ordering::Relaxed) != 0);
        if silent {
            return frame.abort(caller, context, Status::SystemCall);
        }
        caller.forwarding.store(1, Ordering::Relaxed);
        match number {
            // The context's thread cannot end here.
            libc::SYS_exit | libc::SYS_rt_sigreturn => {
                return frame.abort(caller, context, Status::Fault);
            }
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
                let made = contexts::ask_for_task(context, &frame.registers());
                caller.forwarding.store(0, Ordering::Relaxed);
                return frame.answer(made);
            }
            _ => {}
        }
    }
    // The kernel's part of the mask is its first eight bytes.
    let at = (&raw mut frame.context.uc_sigmask).cast::<u64>();
    // SAFETY: the structure is larger, and aligned.
    let mut mask = unsafe { at.read() };
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

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: this is a handler, and these are its arguments.
    let mut frame = unsafe { Frame::new(info, context) };
    // What is not positive was sent by a process, and is not the callee's doing (sigaction(2)).
    let faulted = frame.info.si_code > 0;
    if let Some((caller, context)) = inside().filter(|_| faulted) {
        return frame.abort(caller, context, Status::Fault);
    }
    own_handler(signal, info, context);
}

extern "C" fn on_call_off(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: this is a handler, and these are its arguments.
    let mut frame = unsafe { Frame::new(info, context) };
    let Some((caller, context)) = inside() else { return };
    // On its way in or out; whoever watches sends another signal.
    if frame.in_gate() && caller.forwarding.load(Ordering::Relaxed) == 0 {
        return;
    }
    let domain = caller.domain.load(Ordering::Relaxed) as usize;
    let died = TABLES.domains.get(domain).is_some_and(|d| d.dead.load(Ordering::Acquire) != 0);
    if died {
        frame.abort(caller, context, Status::Died);
    } else if is_over(caller, context) {
        frame.abort(caller, context, Status::Deadline);
    }
}

/// How often a call that is over its limit is found in a system call before it is ended, once a tick:
/// the task that makes it may be kept from running as well.
const WAITS: u32 = 100;

/// Whether a call that was seen for longer than its limit has used that much CPU time since, or stays
/// in system calls: a thread that others have kept from running is not the callee's fault.
fn is_over(caller: &Caller, context: &Context) -> bool {
    let call = context.calls.load(Ordering::Relaxed);
    if context.expired.load(Ordering::Acquire) != call {
        return false;
    }
    let now = sys::thread_cpu_ns();
    if context.marked.swap(call, Ordering::Relaxed) != call {
        context.mark.store(now, Ordering::Relaxed);
        context.waits.store(0, Ordering::Relaxed);
        return false;
    }
    if caller.forwarding.load(Ordering::Relaxed) != 0 {
        return context.waits.fetch_add(1, Ordering::Relaxed) >= WAITS;
    }
    now - context.mark.load(Ordering::Relaxed) >= context.limit.load(Ordering::Relaxed)
}

extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    own_handler(signal, info, context);
}

/// Calls the program's own handler, with its thread's own thread-local storage.
fn own_handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let fs = sys::fs();
    let caller = callers::find(callers::tid());
    let home = caller.map_or(fs, |caller| caller.home_fs.load(Ordering::Relaxed));
    let Some(row) = row(TABLES.slot_of(home), signal as u64) else { return };
    let action = row.load();
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        row.store(&Action::DEFAULT);
    }
    if action.handler == SIG_DFL || action.handler == SIG_IGN {
        // A fault that nobody handles happens again on return, and the kernel ends the task.
        let _default = Action::DEFAULT.install(signal as u64);
        return;
    }
    // SAFETY: the program gave this address for a handler with these arguments, or the first.
    let handler = unsafe {
        std::mem::transmute::<
            u64,
            extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
        >(action.handler)
    };
    // Inside, system calls may be trapped already though the storage is still this thread's own.
    let away = |caller: &&Caller| caller.inside.load(Ordering::Relaxed) != 0 || home != fs;
    match caller.filter(away) {
        None => handler(signal, info, context),
        Some(caller) => {
            let selector = caller.selector.swap(0, Ordering::Relaxed);
            sys::set_fs(home);
            handler(signal, info, context);
            sys::set_fs(fs);
            caller.selector.store(selector, Ordering::Relaxed);
        }
    }
}
