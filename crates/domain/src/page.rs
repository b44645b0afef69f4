#![allow(unsafe_code, reason = "functions in assembly")]
//! What the call gate's page (`gate.s`) holds, as Rust sees it: the ground on which system calls, rights
//! and handlers stand. The page itself is put together in [`crate::gate`], which knows all that it goes
//! on in.

use std::sync::atomic::AtomicU64;

use partywall_abi::domain::{Entry, Outcome};

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
        caller: u64,
    ) -> !;
    pub(crate) fn partywall_handle_sigsys();
    pub(crate) fn partywall_handle_fault();
    pub(crate) fn partywall_handle_cancel();
    pub(crate) fn partywall_handle_signal();
    pub(crate) fn partywall_restorer();
    pub(crate) fn partywall_abort() -> !;
    pub(crate) fn partywall_abort_open() -> !;
    pub(crate) fn partywall_abort_first() -> !;
    static partywall_gate_start: u8;
    static partywall_gate_end: u8;

    // Entry points of programs: each checks what it is passed, and leaves the calling thread with the rights
    // that the tables say.
    pub(crate) safe fn partywall_enter_arm() -> i64;
    pub(crate) safe fn partywall_enter_disarm(caller: u64);
    pub(crate) safe fn partywall_enter_park(entry: Option<Entry>) -> i64;
    pub(crate) safe fn partywall_enter_offer(pid: u64, number: u64, cookie: u64) -> i64;
    pub(crate) safe fn partywall_enter_take(number: u64) -> i64;
    pub(crate) safe fn partywall_enter_release(link: u64);
    pub(crate) safe fn partywall_enter_bind(caller: u64, link: u64) -> i64;
    pub(crate) safe fn partywall_enter_declare(declarations: u64) -> i64;
    pub(crate) safe fn partywall_enter_arena(link: u64) -> i64;
    pub(crate) safe fn partywall_enter_accept(open: u64) -> i64;
    pub(crate) safe fn partywall_enter_unpark() -> i64;
    pub(crate) safe fn partywall_call(
        caller: u64,
        link: u64,
        a: u64,
        b: u64,
        c: u64,
        limit: u64,
    ) -> Outcome;
}

/// The addresses of the gate's page: first byte, and the one after the last.
pub(crate) fn range() -> (u64, u64) {
    (&raw const partywall_gate_start as u64, &raw const partywall_gate_end as u64)
}

/// Whether code at this address goes into a callee or out of it, or into or out of a handler meanwhile.
/// There are no loops in it.
pub(crate) fn is_on_the_way(at: u64) -> bool {
    let (start, (_, end)) = (partywall_call as *const () as u64, range());
    (start..end).contains(&at) || runs_a_handler(at)
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
