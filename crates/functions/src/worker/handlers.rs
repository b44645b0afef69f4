#![allow(unsafe_code, reason = "signal handlers")]
//! What the worker does on a signal: give up the function, or go on where it was.
//!
//! | signal | while a function runs | else |
//! | --- | --- | --- |
//! | [`STOP`], and the ring's `stop` names its submission | give up the function | go on |
//! | [`STOP`] otherwise | go on | go on |
//! | [`TICK`], and the timer says so | give up the function | go on |
//! | [`TICK`] otherwise | go on | go on |
//! | SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS | give up the function, and say why | the worker ends |
//!
//! To give up the function is to take [`enter::abandon`]: its stack and its cell are left as they are, and
//! nothing of it is run again. To go on is to take all registers back from the kernel's frame and to jump
//! (`iretq`): the handler never makes rt_sigreturn(2), which the worker's filter refuses. The signal mask
//! never changes (`SA_NODEFER`), and the kernel sees by the stack pointer alone that the handler's stack is
//! free again.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partywall_abi::function::Ring;

use super::enter::{self, RUNNING};
use super::timer::{self, TICK};

/// The dispatcher's signal.
pub(crate) const STOP: i32 = libc::SIGURG;
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// The ring whose `stop` is looked at.
static RING: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());
/// The signal for which the last function was given up, and its address.
static SIGNAL: AtomicU32 = AtomicU32::new(0);
static ADDRESS: AtomicU64 = AtomicU64::new(0);
/// The parts of the state that are taken back: all that the processor has but protection keys' rights.
static PARTS: AtomicU64 = AtomicU64::new(0);

/// The handlers' stack: its bytes, of which a signal takes 3.5 KB where the processor has AVX-512, and where
/// it ends. A signal that comes while a handler runs is handled on top of that.
const STACK: u64 = 256 << 10;
static STACK_END: AtomicU64 = AtomicU64::new(0);
/// Beyond this, the next signal might begin where the first one did.
const FULL: u64 = STACK - (32 << 10);

/// The signal for which the last function was given up, and the address with it.
pub(super) fn reason() -> (i32, u64) {
    (SIGNAL.load(Ordering::Relaxed) as i32, ADDRESS.load(Ordering::Relaxed))
}

/// Installs the handlers, on a stack of their own.
pub(super) fn install(ring: &'static Ring) -> std::io::Result<()> {
    // Written once, so that no handler waits for its pages.
    let stack = Box::leak(vec![0xff_u8; STACK as usize].into_boxed_slice());
    STACK_END.store(stack.as_ptr_range().end as u64, Ordering::Relaxed);
    RING.store(std::ptr::from_ref(ring).cast_mut(), Ordering::Relaxed);
    PARTS.store(parts(), Ordering::Relaxed);
    let stack =
        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the stack lives for ever.
    check(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) })?;
    for signal in FAULTS.into_iter().chain([STOP, TICK]) {
        // SAFETY: zeros are a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        // SAFETY: the handler follows the rules of one.
        check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

fn check(result: i32) -> std::io::Result<()> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// XCR0 without the rights of protection keys (Intel SDM, volume 1, 13.1).
fn parts() -> u64 {
    const KEYS: u64 = 1 << 9;
    let (low, high): (u32, u32);
    // SAFETY: reads a register that every processor with XSAVE has.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    (u64::from(low) | u64::from(high) << 32) & !KEYS
}

/// The kernel enters here. It decides, and takes the way out or goes on.
#[unsafe(naked)]
unsafe extern "C" fn handler() {
    naked_asm!(
        // The kernel leaves the flags for alignment checks and nested tasks as the function had them.
        "push 2",
        "popfq",
        "mov rbx, rdx",
        "sub rsp, 8",
        "call {decide}",
        "test al, al",
        "jnz {abandon}",
        // What the kernel has saved of vectors and the x87.
        "mov r12, [rbx + {state}]",
        "mov eax, [rip + {parts}]",
        "mov edx, [rip + {parts} + 4]",
        "xrstor64 [r12]",
        // iretq takes the instruction and code segment, the flags, and the stack and its segment.
        "mov eax, ss",
        "push rax",
        "push qword ptr [rbx + {rsp}]",
        "push qword ptr [rbx + {flags}]",
        "mov eax, cs",
        "push rax",
        "push qword ptr [rbx + {rip}]",
        "mov r8, [rbx + {r8}]", "mov r9, [rbx + {r9}]", "mov r10, [rbx + {r10}]",
        "mov r11, [rbx + {r11}]", "mov r12, [rbx + {r12}]", "mov r13, [rbx + {r13}]",
        "mov r14, [rbx + {r14}]", "mov r15, [rbx + {r15}]", "mov rdi, [rbx + {rdi}]",
        "mov rsi, [rbx + {rsi}]", "mov rbp, [rbx + {rbp}]", "mov rdx, [rbx + {rdx}]",
        "mov rax, [rbx + {rax}]", "mov rcx, [rbx + {rcx}]",
        "mov rbx, [rbx + {rbx}]",
        "iretq",
        decide = sym decide,
        abandon = sym enter::abandon,
        parts = sym PARTS,
        state = const STATE,
        r8 = const register(libc::REG_R8), r9 = const register(libc::REG_R9),
        r10 = const register(libc::REG_R10), r11 = const register(libc::REG_R11),
        r12 = const register(libc::REG_R12), r13 = const register(libc::REG_R13),
        r14 = const register(libc::REG_R14), r15 = const register(libc::REG_R15),
        rdi = const register(libc::REG_RDI), rsi = const register(libc::REG_RSI),
        rbp = const register(libc::REG_RBP), rbx = const register(libc::REG_RBX),
        rdx = const register(libc::REG_RDX), rax = const register(libc::REG_RAX),
        rcx = const register(libc::REG_RCX), rsp = const register(libc::REG_RSP),
        rip = const register(libc::REG_RIP), flags = const register(libc::REG_EFL),
    )
}

/// Where a register is in the kernel's frame.
const fn register(register: libc::c_int) -> usize {
    std::mem::offset_of!(libc::ucontext_t, uc_mcontext) + 8 * register as usize
}

/// Where the pointer to the state of vectors is in the kernel's frame.
const STATE: usize = std::mem::offset_of!(libc::ucontext_t, uc_mcontext)
    + std::mem::offset_of!(libc::mcontext_t, fpregs);

/// Whether the function is given up.
unsafe extern "C" fn decide(signal: i32, info: *const libc::siginfo_t) -> bool {
    let running = RUNNING.load(Ordering::Relaxed);
    let used = STACK_END.load(Ordering::Relaxed) - info as u64;
    if used > FULL {
        // SAFETY: ends the process.
        unsafe { libc::_exit(98) }
    }
    if signal == STOP {
        let ring = RING.load(Ordering::Relaxed);
        // SAFETY: it lives for ever.
        let stop = unsafe { &*ring }.stop.0.load(Ordering::Relaxed);
        let is_it = running != 0 && stop == running;
        if is_it {
            SIGNAL.store(STOP as u32, Ordering::Relaxed);
        }
        return is_it;
    }
    if signal == TICK {
        let is_it = timer::tick(running);
        if is_it {
            SIGNAL.store(STOP as u32, Ordering::Relaxed);
        }
        return is_it;
    }
    if running == 0 {
        // The worker's own fault: nothing of it can be believed any more.
        // SAFETY: ends the process.
        unsafe { libc::_exit(100 + signal) }
    }
    // SAFETY: the kernel passes it.
    let info = unsafe { &*info };
    // SAFETY: these signals have an address, or what lies in its place.
    let address = unsafe { info.si_addr() } as u64;
    SIGNAL.store(signal as u32, Ordering::Relaxed);
    ADDRESS.store(address, Ordering::Relaxed);
    true
}
