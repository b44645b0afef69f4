#![allow(unsafe_code, reason = "the way into a function and out of it is assembly")]
//! The way into a function, and all ways out of it.
//!
//! ```text
//! worker's stack                              function's stack
//!   enter(entry, stack, number) ------------->  the function
//!   <- RETURNED ------------------------------  returns
//!   <- LEFT ----------------------------------  partywall_leave (a panic)
//!   <- ABANDONED -----------------------------  the handler, for a signal
//!   <- CALLS ---------------------------------  partywall_call: the stack is kept
//!   resume(stack, number) ------------------->  goes on behind partywall_call
//! ```
//!
//! Where protection keys are in force ([`super::keys`]), a function has its own rights and the worker all of
//! them. The gates change them by WRPKRU, and a function may jump to each, with any registers. So behind each
//! is a check that does not depend on what was before it, and if that fails, a fault by which the function is
//! given up:
//!
//! | gate | changes to | goes on if `eax` is |
//! | --- | --- | --- |
//! | `enter`, `resume` | the function's rights | what `WINDOW` says, which no function can write |
//! | `out` | all rights | 0: the function has left, whoever it was that jumped |
//! | the handler's begin | all rights | what `OPENING` says, which needs rights to be written |
//! | the handler's end | the function's rights | as for `enter` |
//!
//! What is before a gate and would be of use needs rights that the function does not have. The handler takes
//! vectors back by XRSTOR without part 9, the rights, and looks behind it that this part was not asked for.
//!
//! [`RUNNING`] has the number of the submission while a function is on the CPU, else 0. It is set on the way
//! in when the way out is ready, and before the function's rights; on the way out it is cleared once the
//! worker has its rights again: between the two, and only there, the handler may take the way out. It is the
//! one word on which worker, ways and handler agree, and all three are one thread.
//!
//! A function finds zeros in all registers but the stack pointer: those of vectors and of the x87 too, and
//! those that it has not named. So does one that goes on, but for what it has kept itself. The flags, MXCSR
//! and the x87's control word are the system's own on both ways, and no exception of the x87 waits: one
//! function could else have the next one fail, or the worker.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::window::WINDOW;

/// The submission whose function is on the CPU; 0 is none.
pub(super) static RUNNING: AtomicU32 = AtomicU32::new(0);
/// The worker's stack while a function is on the CPU.
static STACK: AtomicU64 = AtomicU64::new(0);
/// Where a function that calls a service has its stack, and what it asks for.
static WAITS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The rights that a handler is about to take, or those that nobody takes. Who writes it has rights to the
/// worker's memory.
pub(super) static OPENING: AtomicU32 = AtomicU32::new(NOBODY);
/// Rights without the worker's memory.
pub(super) const NOBODY: u32 = partywall_keys::denied(0);
/// The processor has AVX, and AVX-512; set once.
static VECTORS: AtomicU32 = AtomicU32::new(0);

/// The flags that a function may have left set, and that are not results: direction, nested task, alignment
/// check, and the one that says whether there is CPUID (Intel SDM, volume 1, 3.4.3).
const FLAGS: u32 = 1 << 10 | 1 << 14 | 1 << 18 | 1 << 21;

/// How a function has come out.
pub(super) const RETURNED: u64 = 0;
pub(super) const LEFT: u64 = 1;
pub(super) const ABANDONED: u64 = 2;
pub(super) const CALLS: u64 = 3;

/// What a function that waits has left: its stack, and the address of what it asks for.
pub(super) fn waits() -> (u64, u64) {
    (WAITS[0].load(Ordering::Relaxed), WAITS[1].load(Ordering::Relaxed))
}

/// Looks at the processor.
pub(super) fn look() {
    let avx = u32::from(std::arch::is_x86_feature_detected!("avx"));
    let avx512 = u32::from(std::arch::is_x86_feature_detected!("avx512f"));
    VECTORS.store(avx | avx512 << 1, Ordering::Relaxed);
}

/// Makes zeros of all vectors and masks, and of the x87's registers, which are MMX's too; changes `eax`.
macro_rules! clear {
    () => {
        concat!(
            "mov eax, [rip + {vectors}]\n",
            "test eax, eax\n",
            "jz 2f\n",
            "vzeroall\n",
            "test eax, 2\n",
            "jz 3f\n",
            ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n",
            "vpxord zmm\\n, zmm\\n, zmm\\n\n",
            ".endr\n",
            ".irp n,0,1,2,3,4,5,6,7\n",
            "kxorw k\\n, k\\n, k\\n\n",
            ".endr\n",
            "jmp 3f\n",
            "2:\n",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n",
            "xorps xmm\\n, xmm\\n\n",
            ".endr\n",
            "3:\n",
            // Empty, eight zeros, empty: together about 14 cycles.
            "emms\n",
            ".rept 8\n",
            "fldz\n",
            ".endr\n",
            "emms",
        )
    };
}

/// The function's rights, behind which code goes on that it may have jumped to; changes `eax`, `ecx` and
/// `edx`. Nothing where there are no keys.
macro_rules! close {
    ($name:literal) => {
        concat!(
            "mov eax, [rip + {window}]\n",
            "test eax, eax\n",
            "jz 8f\n",
            "xor ecx, ecx\n",
            "xor edx, edx\n",
            crate::worker::enter::gate!($name),
            "wrpkru\n",
            "cmp eax, [rip + {window}]\n",
            "jne {bad}\n",
            "8:",
        )
    };
}

/// A name for the instruction behind it, by which [`super::keys`] knows it among all bytes of the program.
macro_rules! gate {
    ($name:literal) => {
        concat!(
            ".globl partywall_functions_gate_",
            $name,
            "\n",
            ".hidden partywall_functions_gate_",
            $name,
            "\n",
            "partywall_functions_gate_",
            $name,
            ":\n",
        )
    };
}
pub(super) use gate;

/// The fault of who has jumped to a gate.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn bad() -> ! {
    naked_asm!("ud2")
}

/// Enters a function on a stack, as submission `number`; how it has come out.
///
/// # Safety
/// `entry` is the verified entry of an image, and `stack` the top of its cell's.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter(entry: u64, stack: u64, number: u32) -> u64 {
    naked_asm!(
        "push rbp", "push rbx", "push r12", "push r13", "push r14", "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rip + {stack}], rsp",
        "mov rsp, rsi",
        // Where it is called, and with what, is below the function's stack's top no more.
        clear!(),
        "mov r11, rdi",
        "mov [rip + {running}], edx",
        close!("enter"),
        "xor eax, eax", "xor ebx, ebx", "xor ecx, ecx", "xor edx, edx", "xor esi, esi",
        "xor edi, edi", "xor ebp, ebp", "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d",
        "xor r12d, r12d", "xor r13d, r13d", "xor r14d, r14d", "xor r15d, r15d",
        "call r11",
        "xor r8d, r8d",
        "jmp {out}",
        stack = sym STACK,
        running = sym RUNNING,
        vectors = sym VECTORS,
        window = sym WINDOW,
        bad = sym bad,
        out = sym out,
    )
}

/// Back on the worker's stack, with how in `r8d`. Of a function that waits, `r9` is its stack and `rdi` what
/// it asks for.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn out() {
    naked_asm!(
        "mov eax, [rip + {window}]",
        "test eax, eax",
        "jz 4f",
        "xor eax, eax",
        "xor ecx, ecx",
        "xor edx, edx",
        gate!("out"),
        "wrpkru",
        "test eax, eax",
        "jnz {bad}",
        "4:",
        "mov dword ptr [rip + {running}], 0",
        "mov rsp, [rip + {stack}]",
        "mov [rip + {waits}], r9",
        "mov [rip + {waits} + 8], rdi",
        // Reading the flags is cheap, writing them is not.
        "pushfq",
        "pop rcx",
        "test ecx, {flags}",
        "jz 2f",
        "push 2",
        "popfq",
        "2:",
        // An exception of the x87 that waits would be the worker's.
        "fnstsw ax",
        "test al, al",
        "jz 3f",
        "fnclex",
        "3:",
        "mov eax, r8d",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp",
        "ret",
        window = sym WINDOW,
        bad = sym bad,
        running = sym RUNNING,
        stack = sym STACK,
        waits = sym WAITS,
        flags = const FLAGS,
    )
}

/// The way out for a handler, which has all rights.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn abandon() -> ! {
    naked_asm!(
        // One that was interrupted by another may have left it.
        "mov dword ptr [rip + {opening}], {nobody}",
        "mov r8d, {how}",
        "jmp {out}",
        opening = sym OPENING,
        nobody = const NOBODY,
        how = const ABANDONED,
        out = sym out,
    )
}

/// `partywall_leave`: the function is over.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn leave() -> ! {
    naked_asm!(
        "mov r8d, {how}",
        "jmp {out}",
        how = const LEFT,
        out = sym out,
    )
}

/// `partywall_call`: the function waits, with what it asks for in `rdi`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call() {
    naked_asm!(
        "push rbp", "push rbx", "push r12", "push r13", "push r14", "push r15",
        "mov r9, rsp",
        "mov r8d, {how}",
        "jmp {out}",
        how = const CALLS,
        out = sym out,
    )
}

/// Lets a function go on that has waited, as submission `number`.
///
/// # Safety
/// `stack` is what [`waits`] has said of it, once.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resume(stack: u64, number: u32) -> u64 {
    naked_asm!(
        "push rbp", "push rbx", "push r12", "push r13", "push r14", "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rip + {stack}], rsp",
        "mov rsp, rdi",
        clear!(),
        "mov [rip + {running}], esi",
        close!("resume"),
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp",
        "xor eax, eax", "xor ecx, ecx", "xor edx, edx", "xor esi, esi", "xor edi, edi",
        "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d", "xor r11d, r11d",
        "ret",
        stack = sym STACK,
        running = sym RUNNING,
        vectors = sym VECTORS,
        window = sym WINDOW,
        bad = sym bad,
    )
}

/// `partywall_random`: fills memory at `rdi` with `rsi` random bytes (getrandom(2)). The kernel writes them
/// by the function's rights.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn random() {
    naked_asm!(
        "2:",
        "test rsi, rsi",
        "jz 3f",
        "mov eax, {getrandom}",
        "xor edx, edx",
        "push rsi", "push rdi",
        "syscall",
        "pop rdi", "pop rsi",
        "cmp rax, -4", // EINTR
        "je 2b",
        "test rax, rax",
        "js 4f",
        "add rdi, rax",
        "sub rsi, rax",
        "jmp 2b",
        "4:",
        "ud2",
        "3:",
        "ret",
        getrandom = const libc::SYS_getrandom,
    )
}
