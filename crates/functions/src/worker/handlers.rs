#![allow(unsafe_code, reason = "signal handlers")]
//! What the worker does on a signal: give up the function, or go on where it was.
//!
//! | signal | while a function runs | else |
//! | --- | --- | --- |
//! | [`STOP`], and the ring's `stop` names its submission, which is beyond its budget ([`account`]) | give up the function | go on |
//! | [`STOP`] otherwise | go on | go on |
//! | [`TICK`], and the timer says so | give up the function | go on |
//! | [`TICK`] otherwise | go on | go on |
//! | SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS | give up the function, and say why | the worker ends |
//!
//! With protection keys ([`super::keys`]) the kernel enters a handler with rights to the worker's memory
//! alone, whatever those were of whom it interrupts, and writes the frame to a stack that no function can
//! write. The handler takes all rights (`begin`) and goes on with those that the frame has: all of them, or
//! the function's. For the function's it leaves its stack before, and takes the last registers from
//! [`WINDOW`], which a function can read; a signal there finds its place by the stack pointer.
//!
//! | interrupted | rights in the frame | goes on with |
//! | --- | --- | --- |
//! | the worker, a gate, another handler | those to the worker's memory, and maybe others | all |
//! | the function, a gate, the end of another handler | the function's | the function's |
//! | who has jumped to a gate | any others | is given up |
//!
//! To give up the function is to take [`enter::abandon`]: its stack and its cell are left as they are, and
//! nothing of it is run again. To go on is to take all registers back from the kernel's frame and to jump
//! (`iretq`): the handler never makes rt_sigreturn(2), which the worker's filter refuses. The signal mask
//! never changes (`SA_NODEFER`), and the kernel sees by the stack pointer alone that the handler's stack is
//! free again.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partywall_abi::function::Ring;

use super::account;
use super::enter::{self, OPENING, RUNNING};
use super::timer::{self, TICK};
use super::window::{IN_FORCE, WINDOW};

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
    RIGHTS_AT.store(std::arch::x86_64::__cpuid_count(0xd, 9).ebx, Ordering::Relaxed);
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
    let (low, high): (u32, u32);
    // SAFETY: reads a register that every processor with XSAVE has.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    (u64::from(low) | u64::from(high) << 32) & !u64::from(RIGHTS_PART)
}

/// The part of the state that is the rights of protection keys.
const RIGHTS_PART: u32 = 1 << 9;

/// The kernel enters here. It decides, and takes the way out or goes on.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn handler() {
    naked_asm!(
        // The kernel leaves the flags for alignment checks and nested tasks as the function had them.
        "push 2",
        "popfq",
        "mov rbx, rdx",
        "sub rsp, 8",
        "cmp dword ptr [rip + {in_force}], 0",
        "je 2f",
        // One that is interrupted by another here finds what it has left.
        "mov r13d, [rip + {opening}]",
        "mov dword ptr [rip + {opening}], 0",
        "xor eax, eax",
        "xor ecx, ecx",
        "xor edx, edx",
        enter::gate!("begin"),
        "wrpkru",
        "cmp eax, [rip + {opening}]",
        "jne {bad}",
        "mov [rip + {opening}], r13d",
        "2:",
        "mov rdx, rbx",
        "call {decide}",
        "cmp rax, {gives_up}",
        "je {abandon}",
        "mov r13, rax",
        // What the kernel has saved of vectors and the x87.
        "mov r12, [rbx + {state}]",
        "mov eax, [rip + {parts}]",
        "mov edx, [rip + {parts} + 4]",
        enter::gate!("state"),
        "xrstor64 [r12]",
        "test eax, {rights_part}",
        "jnz {bad}",
        "test r13, r13",
        "jnz 3f",
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
        // With the function's rights.
        "3:",
        "mov rcx, cs",
        "mov [r13 + 32], rcx",
        "mov rcx, ss",
        "mov [r13 + 56], rcx",
        "mov rdx, r13",
        "mov r8, [rbx + {r8}]", "mov r9, [rbx + {r9}]", "mov r10, [rbx + {r10}]",
        "mov r11, [rbx + {r11}]", "mov r12, [rbx + {r12}]", "mov r13, [rbx + {r13}]",
        "mov r14, [rbx + {r14}]", "mov r15, [rbx + {r15}]", "mov rdi, [rbx + {rdi}]",
        "mov rsi, [rbx + {rsi}]", "mov rbp, [rbx + {rbp}]",
        "mov rbx, [rbx + {rbx}]",
        // The frame is not needed any more.
        "mov rsp, rdx",
        "mov eax, [rip + {window}]",
        "xor ecx, ecx",
        "xor edx, edx",
        enter::gate!("end"),
        "wrpkru",
        "cmp eax, [rip + {window}]",
        "jne {bad}",
        "pop rax", "pop rcx", "pop rdx",
        "iretq",
        in_force = sym IN_FORCE,
        opening = sym OPENING,
        window = sym WINDOW,
        bad = sym enter::bad,
        gives_up = const GIVES_UP,
        rights_part = const RIGHTS_PART,
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

/// The function is given up.
const GIVES_UP: u64 = 1;

/// [`GIVES_UP`], or how it goes on: see [`onward`].
unsafe extern "C" fn decide(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) -> u64 {
    // SAFETY: the kernel passes them.
    let how = match unsafe { is_given_up(signal, info, context) } {
        true => GIVES_UP,
        // SAFETY: as above.
        false => unsafe { onward(context) },
    };
    if how == GIVES_UP {
        timer::given_up();
    }
    how
}

/// Where the rights are in what the kernel has saved of the state, which is in the standard format: by
/// CPUID.(EAX=0DH,ECX=9):EBX. It is there whether the mask of parts says so or not.
static RIGHTS_AT: AtomicU32 = AtomicU32::new(0);

/// How what was interrupted goes on: 0 with all rights; else with the function's, and where its last
/// registers are, of which the segments are missing.
unsafe fn onward(context: *const libc::ucontext_t) -> u64 {
    if IN_FORCE.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // SAFETY: the kernel has written it, to memory that is the worker's.
    let saved = unsafe { &(*context).uc_mcontext };
    let at = saved.fpregs.cast::<u8>().wrapping_add(RIGHTS_AT.load(Ordering::Relaxed) as usize);
    // SAFETY: as above.
    let rights = unsafe { at.cast::<u32>().read() };
    const OWN: u32 = 3;
    if rights & OWN == 0 {
        return 0;
    }
    if RUNNING.load(Ordering::Relaxed) == 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(97) }
    }
    if rights != WINDOW.rights() {
        SIGNAL.store(libc::SIGSEGV as u32, Ordering::Relaxed);
        ADDRESS.store(0, Ordering::Relaxed);
        return GIVES_UP;
    }
    let register = |at: libc::c_int| saved.gregs[at as usize] as u64;
    let (room, stack) = (WINDOW.last(), register(libc::REG_RSP));
    // Another handler's end may have been interrupted, whose last registers are above its stack.
    let end = if room.contains(&stack) { stack & !7 } else { room.end };
    let begin = end - 64;
    if begin < room.start {
        // No handlers are that deep.
        SIGNAL.store(libc::SIGSEGV as u32, Ordering::Relaxed);
        ADDRESS.store(stack, Ordering::Relaxed);
        return GIVES_UP;
    }
    use libc::{REG_EFL, REG_RAX, REG_RCX, REG_RDX, REG_RIP};
    let [rax, rcx, rdx, rip, flags] = [REG_RAX, REG_RCX, REG_RDX, REG_RIP, REG_EFL].map(register);
    // SAFETY: within the window, whose words nobody has while the worker has all rights.
    unsafe { (begin as *mut [u64; 8]).write([rax, rcx, rdx, rip, 0, flags, stack, 0]) };
    begin
}

/// Whether the function is given up.
unsafe fn is_given_up(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) -> bool {
    let running = RUNNING.load(Ordering::Relaxed);
    let end = STACK_END.load(Ordering::Relaxed);
    let used = end - info as u64;
    if used > FULL {
        // SAFETY: ends the process.
        unsafe { libc::_exit(98) }
    }
    if signal == STOP {
        let ring = RING.load(Ordering::Relaxed);
        // SAFETY: it lives for ever.
        let (number, left_us) = unsafe { &*ring }.stop.get();
        let is_it = running != 0 && number == running && account::is_over(running, left_us);
        if is_it {
            SIGNAL.store(STOP as u32, Ordering::Relaxed);
        }
        return is_it;
    }
    if signal == TICK {
        // SAFETY: the kernel passes it.
        let stack = unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] } as u64;
        let is_within = (end - STACK..end).contains(&stack) || WINDOW.last().contains(&stack);
        let is_it = timer::tick(running, is_within);
        if is_it {
            SIGNAL.store(STOP as u32, Ordering::Relaxed);
        }
        return is_it;
    }
    // SAFETY: the kernel passes it.
    let info = unsafe { &*info };
    // Somebody has sent it (sigaction(2), SI_USER and the like): nobody has done what it is for.
    if info.si_code <= 0 {
        return false;
    }
    if running == 0 {
        // The worker's own fault: nothing of it can be believed any more.
        // SAFETY: ends the process.
        unsafe { libc::_exit(100 + signal) }
    }
    // SAFETY: these signals have an address, or what lies in its place.
    let address = unsafe { info.si_addr() } as u64;
    SIGNAL.store(signal as u32, Ordering::Relaxed);
    ADDRESS.store(address, Ordering::Relaxed);
    true
}
