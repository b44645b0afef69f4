#![allow(unsafe_code, reason = "installs signal handlers")]
//! Signal actions: what each program has asked for (rt_sigaction(2)), and which handlers of the gate's
//! page are installed in its place. What the handlers do is in [`crate::handlers`].
//!
//! | label | what pairs | shown by |
//! | --- | --- | --- |
//! | SYNC(sigaction.row) | Flags, restorer and mask come before the handler, which is read first. A program that changes an action while its signal comes may see flags of the one and the handler of the other, as a handler that interrupts the change does. | `a_call_comes_back_with_its_answer`, `a_handler_of_the_caller_is_not_cut_off_with_the_callee` |

use std::sync::atomic::{AtomicU64, Ordering};

use crate::page;
use crate::sys::{self, Errno};
use crate::table::SLOTS;

/// The launcher's own signal. The kernel refuses real-time signals when the user's queue is full
/// (`RLIMIT_SIGPENDING`), and ones below 32 never; this is the one of them that no kernel sends
/// (signal(7)).
pub(crate) const CANCEL_SIGNAL: u64 = libc::SIGSTKFLT as u64;
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

pub(crate) const fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

/// Signals that no program blocks: blocked, they would kill where they are to be handled.
pub(crate) const KEPT_OPEN: u64 = bit(libc::SIGSYS as u64)
    | bit(CANCEL_SIGNAL)
    | bit(libc::SIGSEGV as u64)
    | bit(libc::SIGBUS as u64)
    | bit(libc::SIGILL as u64)
    | bit(libc::SIGFPE as u64)
    | bit(libc::SIGTRAP as u64);

/// Signals by which a C library has all threads of a process do something, such as change their user, or
/// cancels one: it blocks them nowhere for long, and waits for those who have to answer (glibc: 32 and
/// 33, musl: 33 and 34; their internal signal numbers).
pub(crate) const LIBRARY: u64 = bit(32) | bit(33) | bit(34);

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
pub(crate) const SIG_IGN: u64 = 1;

impl Action {
    pub(crate) const DEFAULT: Self = Self { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// One of our handlers.
    fn ours(entry: unsafe extern "C" fn()) -> Self {
        Self {
            handler: entry as *const () as u64,
            flags: SA_RESTORER
                | (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART)
                    as u64,
            restorer: sys::restorer() as u64,
            // None comes before the handler has the rights to its stack: before Linux 6.12 the kernel
            // writes the next frame with the rights of the code it interrupts.
            mask: u64::MAX,
        }
    }

    /// Installs it in the calling task.
    pub(crate) fn install(&self, signal: u64) -> Result<(), Errno> {
        let at = &raw const *self as u64;
        // SAFETY: the kernel's structure; the handlers in it are ours or the program's own.
        unsafe { sys::call(libc::SYS_rt_sigaction, [signal, at, 0, 8, 0, 0])? };
        Ok(())
    }

    /// Whether it is code that is to be called.
    pub(crate) fn is_handler(&self) -> bool {
        self.handler != SIG_DFL && self.handler != SIG_IGN
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
            handler: self.handler.load(Ordering::Acquire), // SYNC(sigaction.row)
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn store(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release); // SYNC(sigaction.row)
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
    if !wanted.is_handler() {
        return Some(wanted);
    }
    let ours = Action::ours(page::partywall_handle_signal);
    let flags = wanted.flags | SA_RESTORER | (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64;
    Some(Action { flags, ..ours })
}

/// Installs ours in the calling task, for all its threads.
pub(crate) fn install_in_domain() -> Result<(), Errno> {
    Action::ours(page::partywall_handle_sigsys).install(libc::SIGSYS as u64)?;
    Action::ours(page::partywall_handle_cancel).install(CANCEL_SIGNAL)?;
    FAULTS
        .iter()
        .try_for_each(|fault| Action::ours(page::partywall_handle_fault).install(*fault as u64))
}

/// Sends the calling thread a signal of ours, to be handled on this stack.
pub(crate) fn try_out(stack: u64, bytes: u64) -> Result<(), Errno> {
    let stack =
        libc::stack_t { ss_sp: stack as *mut libc::c_void, ss_flags: 0, ss_size: bytes as usize };
    // SAFETY: the kernel copies the structure; the stack is the caller's.
    unsafe { sys::call(libc::SYS_sigaltstack, [&raw const stack as u64, 0, 0, 0, 0, 0])? };
    Action::ours(page::partywall_handle_cancel).install(CANCEL_SIGNAL)?;
    sys::set_mask(0);
    sys::tgkill(sys::pid(), sys::tid(), CANCEL_SIGNAL).map(drop)
}

/// The same in the launcher, whose program may have handlers already: they are what it has asked for.
pub(crate) fn install() -> Result<(), Errno> {
    for fault in FAULTS {
        let mut before = Action::DEFAULT;
        // SAFETY: the kernel writes its structure.
        let _read = unsafe {
            let at = &raw mut before as u64;
            sys::call(libc::SYS_rt_sigaction, [fault as u64, 0, at, 8, 0, 0])?
        };
        if before.handler != page::partywall_handle_fault as *const () as u64 {
            ROWS[SLOTS][fault as usize].store(&before);
        }
    }
    install_in_domain()
}
