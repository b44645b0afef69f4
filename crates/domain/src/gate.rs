#![allow(unsafe_code, reason = "the call gate is assembly")]
//! The call gate: `gate.s` and what Rust knows of it.
//!
//! A call costs, beside the callee's own work: two `wrfsbase`, every 16th time two `rdtsc`, with
//! protection keys four `wrpkru` and a `rdpkru`; no locked instruction, no system call, no allocation,
//! no copy. Its thread runs the callee's code
//! on a stack and with the thread-local storage of a thread of the callee that has parked; the
//! kernel goes on seeing the caller's thread, so system calls made meanwhile are trapped
//! (`crate::forward`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use partywall_abi::domain::Status;

use crate::arenas;
use crate::callers;
use crate::contexts;
use crate::keys;
use crate::links;
use crate::own;
use crate::signals;
use crate::space::{SLOT, SLOTS};
use crate::table::{
    BUSY, CALLERS_MOST, CONTEXT_STACK, CONTEXTS_EACH, Caller, Context, DEPTH, DomainEntry, FREE,
    LINKS_MOST, Link, POISONED, STACKS, TABLES, Tables,
};

core::arch::global_asm!(
    include_str!("gate.s"),
    TABLES = sym TABLES,
    ON_SIGSYS = sym signals::on_sigsys,
    ON_FAULT = sym signals::on_fault,
    ON_CALL_OFF = sym signals::on_call_off,
    ON_SIGNAL = sym signals::on_signal,
    ARM = sym callers::arm,
    DISARM = sym callers::disarm,
    PARK = sym contexts::park,
    OFFER = sym links::offer,
    TAKE = sym links::take,
    RELEASE = sym links::release,
    BIND = sym callers::bind,
    DECLARE = sym contexts::declare,
    ARENA = sym arenas::make,
    ACCEPT = sym own::accept,
    UNPARK = sym contexts::unpark,
    KEYS = const offset_of!(Tables, keys),
    HANDLER_RIGHTS = const offset_of!(Tables, handler_rights),
    ARENAS = const offset_of!(Tables, arenas),
    DOMAIN_RIGHTS = const offset_of!(DomainEntry, rights),
    LINK_RIGHTS = const offset_of!(Link, rights),
    LINK_ARENA = const offset_of!(Link, arena),
    CALLER_RIGHTS = const offset_of!(Caller, rights),
    CALLER_HANDLER_FRAME = const offset_of!(Caller, handler_frame),
    CALLER_HANDLER_FS = const offset_of!(Caller, handler_fs),
    CALLER_HANDLER_SELECTOR = const offset_of!(Caller, handler_selector),
    CONTEXT_CALLER_RIGHTS = const offset_of!(Context, caller_rights),
    CONTEXT_RIGHTS = const offset_of!(Context, rights),
    BASE = const offset_of!(Tables, base),
    DOMAINS = const offset_of!(Tables, domains),
    DOMAIN_SHIFT = const size_of::<DomainEntry>().ilog2(),
    DOMAIN_OPEN = const offset_of!(DomainEntry, open),
    LINKS = const offset_of!(Tables, links),
    LINKS_MOST = const LINKS_MOST,
    LINK_SHIFT = const size_of::<Link>().ilog2(),
    LINK_PLACE_SHIFT = const links::PLACE_SHIFT,
    LINK_OPEN = const links::OPEN,
    LINK_WORD = const offset_of!(Link, word),
    LINK_CALLER = const offset_of!(Link, caller),
    LINK_CALLEE = const offset_of!(Link, callee),
    LINK_COOKIE = const offset_of!(Link, cookie),
    CALLERS = const offset_of!(Tables, callers),
    CALLERS_MOST = const CALLERS_MOST,
    CALLER_SHIFT = const size_of::<Caller>().ilog2(),
    CALLER_SELECTOR = const offset_of!(Caller, selector),
    CALLER_ENTERING = const offset_of!(Caller, entering),
    CALLER_DOMAIN = const offset_of!(Caller, domain),
    CALLER_FS = const offset_of!(Caller, fs),
    CALLER_INSIDE = const offset_of!(Caller, inside),
    CALLER_DEPTH = const offset_of!(Caller, depth),
    CALLER_BOUND = const offset_of!(Caller, bound),
    CALLER_TICKS = const offset_of!(Caller, ticks),
    CONTEXTS = const offset_of!(Tables, contexts),
    CONTEXTS_EACH = const CONTEXTS_EACH,
    CONTEXTS_SHIFT = const (CONTEXTS_EACH * size_of::<Context>()).ilog2(),
    CONTEXT_SHIFT = const size_of::<Context>().ilog2(),
    CONTEXT_OWNER = const offset_of!(Context, owner),
    CONTEXT_STATE = const offset_of!(Context, state),
    CONTEXT_ENTRY = const offset_of!(Context, entry),
    CONTEXT_STACK = const offset_of!(Context, stack),
    CONTEXT_FS = const offset_of!(Context, fs),
    CONTEXT_CALLER_STACK = const offset_of!(Context, caller_stack),
    CONTEXT_CALLER_FS = const offset_of!(Context, caller_fs),
    CONTEXT_CALLER_DOMAIN = const offset_of!(Context, caller_domain),
    CONTEXT_CALLER_FLOAT = const offset_of!(Context, caller_float),
    CONTEXT_CALLER_CONTROL = const offset_of!(Context, caller_control),
    CONTEXT_FLOAT = const offset_of!(Context, float),
    CONTEXT_CONTROL = const offset_of!(Context, control),
    CONTEXT_BELOW = const offset_of!(Context, below),
    CONTEXT_BEGAN = const offset_of!(Context, began),
    CONTEXT_LIMIT = const offset_of!(Context, limit),
    CONTEXT_SKIP = const offset_of!(Context, skip),
    CONTEXT_WEIGHT = const offset_of!(Context, weight),
    SHORT_TICKS = const SHORT_TICKS,
    SAMPLED = const SAMPLED,
    ODD_TICKS = const ODD_TICKS,
    CONTEXT_TICKS = const offset_of!(Context, ticks),
    CONTEXT_CALLS = const offset_of!(Context, calls),
    FRAME_NUMBER = const offset_of!(Frame, number),
    FRAME_RDI = const offset_of!(Frame, rdi),
    FRAME_RSI = const offset_of!(Frame, rsi),
    FRAME_RDX = const offset_of!(Frame, rdx),
    FRAME_R10 = const offset_of!(Frame, r10),
    FRAME_R8 = const offset_of!(Frame, r8),
    FRAME_R9 = const offset_of!(Frame, r9),
    FRAME_RBX = const offset_of!(Frame, rbx),
    FRAME_RBP = const offset_of!(Frame, rbp),
    FRAME_R12 = const offset_of!(Frame, r12),
    FRAME_R13 = const offset_of!(Frame, r13),
    FRAME_R14 = const offset_of!(Frame, r14),
    FRAME_R15 = const offset_of!(Frame, r15),
    FRAME_RSP = const offset_of!(Frame, rsp),
    FRAME_RIP = const offset_of!(Frame, rip),
    FRAME_OPENED = const offset_of!(Frame, opened),
    SIG_UNBLOCK = const libc::SIG_UNBLOCK,
    SYS_SIGPROCMASK = const libc::SYS_rt_sigprocmask,
    SYS_SIGRETURN = const libc::SYS_rt_sigreturn,
    WATCH = const offset_of!(Tables, watch),
    FUTEX_WAKE = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
    SYS_FUTEX = const libc::SYS_futex,
    FREE = const FREE,
    BUSY = const BUSY,
    POISONED = const POISONED,
    DEPTH = const DEPTH,
    SLOTS = const SLOTS,
    SLOT_SHIFT = const SLOT.ilog2(),
    STACKS = const STACKS,
    STACK_SHIFT = const CONTEXT_STACK.ilog2(),
    STATUS_UNBOUND = const Status::Unbound as u64,
    STATUS_BUSY = const Status::Busy as u64,
    STATUS_CLOSED = const Status::Closed as u64,
    STATUS_DENIED = const Status::Denied as u64,
    STATUS_DEEP = const Status::Deep as u64,
);

// The assembly shifts.
const _: () = {
    assert!(size_of::<DomainEntry>().is_power_of_two());
    assert!(size_of::<Link>().is_power_of_two());
    assert!(size_of::<Caller>().is_power_of_two());
    assert!(size_of::<Context>().is_power_of_two());
    assert!(CONTEXTS_EACH.is_power_of_two() && LINKS_MOST.is_power_of_two());
    assert!(SLOT.is_power_of_two() && CONTEXT_STACK.is_power_of_two());
};

/// After a call that takes no longer not every one is timed: about two microseconds.
const SHORT_TICKS: u32 = 4096;
/// One that takes longer stands for itself alone: about a millisecond.
const ODD_TICKS: u32 = 1 << 21;
/// How many the next that is timed stands for then.
const SAMPLED: u32 = 16;

/// The registers of code whose call makes a task (`partywall_clone`, `partywall_fork`).
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) number: AtomicU64,
    pub(crate) rdi: AtomicU64,
    pub(crate) rsi: AtomicU64,
    pub(crate) rdx: AtomicU64,
    pub(crate) r10: AtomicU64,
    pub(crate) r8: AtomicU64,
    pub(crate) r9: AtomicU64,
    pub(crate) rbx: AtomicU64,
    pub(crate) rbp: AtomicU64,
    pub(crate) r12: AtomicU64,
    pub(crate) r13: AtomicU64,
    pub(crate) r14: AtomicU64,
    pub(crate) r15: AtomicU64,
    pub(crate) rsp: AtomicU64,
    pub(crate) rip: AtomicU64,
    /// The signals that are not blocked in the child.
    pub(crate) opened: AtomicU64,
}

/// What the gate gives back.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) status: u64,
    pub(crate) word: u64,
}

unsafe extern "C" {
    pub(crate) fn partywall_syscall(number: i64, arguments: *const [u64; 6]) -> i64;
    pub(crate) fn partywall_clone(frame: *const Frame) -> i64;
    pub(crate) fn partywall_fork(frame: *const Frame) -> i64;
    pub(crate) fn partywall_enter(entry: u64, stack: u64, rights: u32) -> !;
    pub(crate) fn partywall_set_rights(rights: u32);
    pub(crate) fn partywall_last_handler(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        handler: u64,
        rights: u32,
        frame: u64,
    ) -> !;
    pub(crate) fn partywall_run_handler(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        handler: u64,
        rights: u32,
        caller: *const Caller,
    ) -> !;
    pub(crate) fn partywall_handle_sigsys();
    pub(crate) fn partywall_handle_fault();
    pub(crate) fn partywall_handle_call_off();
    pub(crate) fn partywall_handle_signal();
    pub(crate) fn partywall_enter_arm();
    pub(crate) fn partywall_enter_disarm();
    pub(crate) fn partywall_enter_park();
    pub(crate) fn partywall_enter_offer();
    pub(crate) fn partywall_enter_take();
    pub(crate) fn partywall_enter_release();
    pub(crate) fn partywall_enter_bind();
    pub(crate) fn partywall_enter_declare();
    pub(crate) fn partywall_enter_arena();
    pub(crate) fn partywall_enter_accept(open: u64) -> i64;
    pub(crate) fn partywall_enter_unpark() -> i64;
    pub(crate) fn partywall_restorer();
    pub(crate) fn partywall_call(
        caller: u64,
        link: u64,
        a: u64,
        b: u64,
        c: u64,
        limit: u64,
    ) -> Outcome;
    pub(crate) fn partywall_abort() -> !;
    pub(crate) fn partywall_abort_open() -> !;
    static partywall_gate_start: u8;
    static partywall_gate_end: u8;
}

/// The addresses of the gate's page: first byte, and the one after the last.
pub(crate) fn page() -> (u64, u64) {
    (&raw const partywall_gate_start as u64, &raw const partywall_gate_end as u64)
}

/// Whether code at this address goes into a callee or out of it, or into or out of a handler meanwhile.
/// There are no loops in it.
pub(crate) fn is_on_the_way(at: u64) -> bool {
    let (start, (_, end)) = (partywall_call as *const () as u64, page());
    (start..end).contains(&at) || runs_a_handler(at)
}

/// Whether the calling domain takes calls from now on; for code of ours that has its rights, or all.
pub(crate) fn accept(open: bool) {
    let keys = TABLES.keys.load(Ordering::Relaxed) != 0;
    if keys && keys::rights() != 0 {
        // SAFETY: takes all rights and gives them back.
        let _accepted = unsafe { partywall_enter_accept(open.into()) };
    } else {
        let _accepted = own::accept(open.into());
    }
}

/// Takes the calling agent out of its context, if nobody is inside; for agents, which have the rights
/// of their domain's code.
pub(crate) fn unpark() -> bool {
    let unparked = match TABLES.keys.load(Ordering::Relaxed) {
        0 => contexts::unpark(),
        // SAFETY: takes all rights and gives them back.
        _ => unsafe { partywall_enter_unpark() },
    };
    unparked == 0
}

/// Whether it is about to run a handler of a program that is inside a call, or on its way back from one.
pub(crate) fn runs_a_handler(at: u64) -> bool {
    let [start, end, back, back_end] = [
        partywall_run_handler as *const (),
        partywall_enter_arm as *const (),
        partywall_restorer as *const (),
        partywall_set_rights as *const (),
    ]
    .map(|at| at as u64);
    (start..end).contains(&at) || (back..back_end).contains(&at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's bytes without what the linker puts in: how far the tables are, and the functions that
    /// it goes on in.
    fn bytes() -> Vec<u8> {
        let (start, end) = page();
        // SAFETY: the page is code of this program, which does not change.
        let page =
            unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        let functions = [
            signals::on_sigsys as *const () as u64,
            signals::on_fault as *const () as u64,
            signals::on_call_off as *const () as u64,
            signals::on_signal as *const () as u64,
            callers::arm as *const () as u64,
            callers::disarm as *const () as u64,
            contexts::park as *const () as u64,
            links::offer as *const () as u64,
            links::take as *const () as u64,
            links::release as *const () as u64,
            callers::bind as *const () as u64,
            contexts::declare as *const () as u64,
            arenas::make as *const () as u64,
            own::accept as *const () as u64,
            contexts::unpark as *const () as u64,
        ];
        let tables = std::ptr::from_ref(&TABLES) as u64;
        let tables = tables..tables + size_of::<Tables>() as u64;
        // lea r11, [rip + ..]; cmp dword ptr [rip + ..], imm; cmp eax, [rip + ..]; call; jmp; je.
        let opcodes: [&[u8]; 6] =
            [&[0x4c, 0x8d, 0x1d], &[0x83, 0x3d], &[0x3b, 0x05], &[0xe8], &[0xe9], &[0x0f, 0x84]];
        let mut bytes = page.to_vec();
        for at in 0..page.len() - 4 {
            if !opcodes.iter().any(|opcode| page[..at].ends_with(opcode)) {
                continue;
            }
            let distance = i32::from_le_bytes(page[at..at + 4].try_into().unwrap());
            let target = (start + at as u64 + 4).wrapping_add_signed(i64::from(distance));
            if tables.contains(&target) || functions.contains(&target) {
                bytes[at..at + 4].fill(0);
            }
        }
        bytes
    }

    /// FNV-1a, 64 bits (draft-eastlake-fnv-21).
    fn digest(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    #[test]
    fn the_gate_is_the_one_that_was_reviewed() {
        let bytes = bytes();
        assert_eq!(bytes.len(), 4096, "one page");
        let reviewed = 0xda2b_2198_1485_2869;
        let found = digest(&bytes);
        assert_eq!(found, reviewed, "the gate's bytes are others; review them, then: {found:#x}");
    }

    #[test]
    fn the_page_holds_the_system_call_instructions_and_no_others() {
        let bytes = bytes();
        let count = |pattern: &[u8]| bytes.windows(pattern.len()).filter(|w| *w == pattern).count();
        // syscall: the call, the return from signals, clone, fork and its mask, the watch's wake-up.
        assert_eq!(count(&[0x0f, 0x05]), 6);
        // wrfsbase rax: there and back, and back into a callee after a handler.
        assert_eq!(count(&[0xf3, 0x48, 0x0f, 0xae, 0xd0]), 3);
        // wrpkru: into the program, the setting, four handlers, the last and the one in the middle
        // there and back, eleven entrances, but for one there and back, the call's four, and a call's end.
        assert_eq!(count(&[0x0f, 0x01, 0xef]), 1 + 1 + 4 + 1 + 2 + 21 + 4 + 1);
        // sysenter, int 0x80: none.
        for none in [&[0x0f, 0x34][..], &[0xcd, 0x80]] {
            assert_eq!(count(none), 0, "{none:x?}");
        }
    }
}
