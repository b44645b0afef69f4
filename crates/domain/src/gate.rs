#![allow(unsafe_code, reason = "the call gate is assembly")]
//! The call gate: `gate.s`, put together with the tables and the functions that it goes on in, and the
//! table of entry points that programs find.
//!
//! A call costs, beside the callee's own work: two `wrfsbase`, every 16th time two `rdtsc`, with
//! protection keys four `wrpkru` and a `rdpkru`; no locked instruction, no system call, no allocation,
//! no copy. Its thread runs the callee's code
//! on a stack and with the thread-local storage of a thread of the callee that has parked; the
//! kernel goes on seeing the caller's thread, so system calls made meanwhile are trapped
//! ([`crate::handlers`]).

use std::mem::offset_of;

use partywall_abi::domain::{GateStatus, Info, KEYS, KEYS_SHARED_STACKS, MAGIC, NO_KEYS, VERSION};
use partywall_abi::security::Isolation;

use crate::page::{self, Frame};
use crate::table::{
    BUSY, CALLERS_MOST, CONTEXT_STACK, CONTEXTS_EACH, Caller, Context, DEPTH, DomainEntry, FREE,
    LINKS_MOST, Link, POISONED, SLOT, SLOTS, STACKS, TABLES, Tables,
};
use crate::{binding, callers, contexts, handlers, links, self_query};

core::arch::global_asm!(
    include_str!("gate.s"),
    TABLES = sym TABLES,
    ON_SIGSYS = sym handlers::on_sigsys,
    ON_FAULT = sym handlers::on_fault,
    ON_CANCEL = sym handlers::on_cancel,
    ON_SIGNAL = sym handlers::on_signal,
    ARM = sym callers::arm,
    DISARM = sym callers::disarm,
    PARK = sym contexts::park,
    OFFER = sym links::offer,
    TAKE = sym links::take,
    RELEASE = sym links::release,
    BIND = sym binding::bind,
    DECLARE = sym contexts::declare,
    ARENA = sym links::arena,
    ACCEPT = sym self_query::accept,
    UNPARK = sym contexts::unpark,
    KEYS = const offset_of!(Tables, keys),
    FIRST_RIGHTS = const crate::keys::FIRST,
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
    WATCHDOG = const offset_of!(Tables, watchdog),
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
    STATUS_UNBOUND = const GateStatus::Unbound as u64,
    STATUS_BUSY = const GateStatus::Busy as u64,
    STATUS_CLOSED = const GateStatus::Closed as u64,
    STATUS_DENIED = const GateStatus::Denied as u64,
    STATUS_DEPTH_EXCEEDED = const GateStatus::DepthExceeded as u64,
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

/// What programs find: the entry points. With `entrances` they are those that take the rights which they
/// need; the launcher's own program has them.
pub(crate) fn info(base: u64, isolation: Isolation, entrances: bool) -> Info {
    let plain = Info {
        magic: MAGIC,
        version: VERSION,
        bytes: size_of::<Info>() as u32,
        base,
        slot: SLOT,
        call: page::partywall_call,
        arm: callers::arm,
        disarm: callers::disarm,
        park: contexts::park,
        offer: links::offer,
        take: links::take,
        release: links::release,
        bind: binding::bind,
        declare: contexts::declare,
        arena: links::arena,
        open: links::open,
        keys: match isolation {
            Isolation::ProtectionKeys => KEYS,
            Isolation::SharedSignalStacks => KEYS_SHARED_STACKS,
            _ => NO_KEYS,
        },
        forwards: self_query::forwards,
        accept: self_query::accept,
    };
    if !entrances {
        return plain;
    }
    Info {
        arm: page::partywall_enter_arm,
        disarm: page::partywall_enter_disarm,
        park: page::partywall_enter_park,
        offer: page::partywall_enter_offer,
        take: page::partywall_enter_take,
        release: page::partywall_enter_release,
        bind: page::partywall_enter_bind,
        declare: page::partywall_enter_declare,
        arena: page::partywall_enter_arena,
        accept: page::partywall_enter_accept,
        ..plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's bytes without what the linker puts in: how far the tables are, and the functions that
    /// it goes on in.
    fn bytes() -> Vec<u8> {
        let (start, end) = page::range();
        // SAFETY: the page is code of this program, which does not change.
        let page =
            unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        let functions = [
            handlers::on_sigsys as *const () as u64,
            handlers::on_fault as *const () as u64,
            handlers::on_cancel as *const () as u64,
            handlers::on_signal as *const () as u64,
            callers::arm as *const () as u64,
            callers::disarm as *const () as u64,
            contexts::park as *const () as u64,
            links::offer as *const () as u64,
            links::take as *const () as u64,
            links::release as *const () as u64,
            binding::bind as *const () as u64,
            contexts::declare as *const () as u64,
            links::arena as *const () as u64,
            self_query::accept as *const () as u64,
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
        let reviewed = 0x8115_4204_2f94_3047;
        let found = digest(&bytes);
        assert_eq!(found, reviewed, "the gate's bytes are others; review them, then: {found:#x}");
    }

    #[test]
    fn the_page_holds_the_system_call_instructions_and_no_others() {
        let bytes = bytes();
        let count = |pattern: &[u8]| bytes.windows(pattern.len()).filter(|w| *w == pattern).count();
        // syscall: the call, the return from signals, clone, fork and its mask, the watchdog's wake-up.
        assert_eq!(count(&[0x0f, 0x05]), 6);
        // wrfsbase rax: there and back, and back into a callee after a handler.
        assert_eq!(count(&[0xf3, 0x48, 0x0f, 0xae, 0xd0]), 3);
        // wrpkru: into the program, the setting, four handlers, the last and the one in the middle
        // there and back, eleven entrances, but for one there and back, the call's four, a call's two ends.
        assert_eq!(count(&[0x0f, 0x01, 0xef]), 1 + 1 + 4 + 1 + 2 + 21 + 4 + 2);
        // sysenter, int 0x80: none.
        for none in [&[0x0f, 0x34][..], &[0xcd, 0x80]] {
            assert_eq!(count(none), 0, "{none:x?}");
        }
    }
}
