#![allow(unsafe_code, reason = "the entry of a function, and what compilers call by name")]
//! The crate around a function: its entry, its heap, its panics, and what compilers take for granted.
#![no_std]

use core::arch::naked_asm;
use core::panic::PanicInfo;

#[global_allocator]
static HEAP: partywall_fn::rt::Heap = partywall_fn::rt::Heap;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    partywall_fn::rt::panicked(info)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn partywall_entry() {
    // SAFETY: the worker enters here, on a cell's stack.
    unsafe { partywall_fn::rt::run(function::partywall_handle) }
}

// The compiler calls these by name. They are assembly for their size: every image has them. Up to 64 bytes
// they are loops over words, beyond that the processor's own.

/// `memcpy(3)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "cmp rdx, 64",
        "ja 5f",
        "2:",
        "sub rcx, 8",
        "jb 3f",
        "mov r8, [rsi]",
        "mov [rdi], r8",
        "add rsi, 8",
        "add rdi, 8",
        "jmp 2b",
        "3:",
        "add rcx, 8",
        "jz 6f",
        "4:",
        "mov r8b, [rsi]",
        "mov [rdi], r8b",
        "inc rsi",
        "inc rdi",
        "dec rcx",
        "jnz 4b",
        "ret",
        "5:",
        "rep movsb",
        "6:",
        "ret",
    )
}

/// `memmove(3)`: upwards, what is read is not written before, unless the target begins in the source.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx",
        "jae {memcpy}",
        "mov rax, rdi",
        "mov rcx, rdx",
        "2:",
        "sub rcx, 8",
        "jb 3f",
        "mov r8, [rsi + rcx]",
        "mov [rdi + rcx], r8",
        "jmp 2b",
        "3:",
        "add rcx, 8",
        "jz 5f",
        "4:",
        "mov r8b, [rsi + rcx - 1]",
        "mov [rdi + rcx - 1], r8b",
        "dec rcx",
        "jnz 4b",
        "5:",
        "ret",
        memcpy = sym memcpy,
    )
}

/// `memset(3)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov r8, rdi",
        "mov rcx, rdx",
        "movzx eax, sil",
        "cmp rdx, 64",
        "ja 5f",
        "mov rdx, 0x0101010101010101",
        "imul rax, rdx",
        "2:",
        "sub rcx, 8",
        "jb 3f",
        "mov [rdi + rcx], rax",
        "jmp 2b",
        "3:",
        "add rcx, 8",
        "jz 6f",
        "4:",
        "mov [rdi + rcx - 1], al",
        "dec rcx",
        "jnz 4b",
        "jmp 6f",
        "5:",
        "rep stosb",
        "6:",
        "mov rax, r8",
        "ret",
    )
}

/// `memcmp(3)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    naked_asm!(
        "xor ecx, ecx",
        "2:",
        "lea r8, [rcx + 8]",
        "cmp r8, rdx",
        "ja 4f",
        "mov rax, [rdi + rcx]",
        "mov r9, [rsi + rcx]",
        "cmp rax, r9",
        "jne 3f",
        "mov rcx, r8",
        "jmp 2b",
        // The first byte that differs is the one that counts.
        "3:",
        "bswap rax",
        "bswap r9",
        "cmp rax, r9",
        "sbb eax, eax",
        "or eax, 1",
        "ret",
        "4:",
        "cmp rcx, rdx",
        "jae 5f",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx r9d, byte ptr [rsi + rcx]",
        "inc rcx",
        "sub eax, r9d",
        "jz 4b",
        "ret",
        "5:",
        "xor eax, eax",
        "ret",
    )
}

/// `bcmp(3)`: the same.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    naked_asm!("jmp {memcmp}", memcmp = sym memcmp)
}

/// `strlen(3)`
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    naked_asm!(
        "mov rax, -1",
        "2:",
        "inc rax",
        "cmp byte ptr [rdi + rax], 0",
        "jne 2b",
        "ret",
    )
}

// Nothing unwinds: a panic leaves. The compiled core names these all the same.

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    // SAFETY: ends the function, as any undefined instruction does.
    unsafe { core::arch::asm!("ud2", options(noreturn)) }
}
