#![allow(unsafe_code, reason = "functions in assembly, whose bytes are copied")]
//! Functions in assembly, which no language and no verifier has seen: code to be copied into images.
//!
//! Each finds its header by its stack pointer and words in its request; what it answers is in its header.

use std::arch::naked_asm;
use std::mem::offset_of;

use partywall_fn::cell::{CELL_BYTES, Header, status};
use partywall_functions::image::Image;

macro_rules! function {
    ($(#[$about:meta])* $name:ident, $($line:expr),+) => {
        $(#[$about])*
        pub(crate) fn $name() -> Image {
            #[unsafe(naked)]
            unsafe extern "C" fn code() {
                naked_asm!(
                    "mov rbx, rsp",
                    "and rbx, {mask}",
                    "mov r15, [rbx + {body}]",
                    $($line,)+
                    // The answer is in rax, if it comes to that.
                    "90:",
                    "lea rcx, [rbx + {message}]",
                    "mov [rcx], rax",
                    "mov [rbx + {reply}], rcx",
                    "mov qword ptr [rbx + {reply} + 8], 8",
                    "mov dword ptr [rbx + {status}], {answered}",
                    "ret",
                    // By this its end is found.
                    ".ascii \"the end of it\"",
                    mask = const -(CELL_BYTES as i64),
                    body = const offset_of!(Header, body),
                    message = const offset_of!(Header, message),
                    reply = const offset_of!(Header, reply),
                    status = const offset_of!(Header, status),
                    answered = const status::REPLY,
                )
            }
            image(code as *const u8)
        }
    };
}

fn image(code: *const u8) -> Image {
    const MOST: usize = 4096;
    // SAFETY: the code of this program goes on for longer than that, or ends where it is found to.
    let all = (0..MOST).map(|at| unsafe { code.wrapping_add(at).read() });
    let mut bytes = Vec::new();
    for byte in all {
        bytes.push(byte);
        if bytes.ends_with(b"the end of it") {
            break;
        }
    }
    Image { code: bytes, constants: vec![7; 16], ..Image::default() }
}

function! {
    /// Reads the word at an address.
    reads,
    "mov rax, [r15]",
    "mov rax, [rax]"
}

function! {
    /// Writes a word at an address.
    writes,
    "mov rcx, [r15]",
    "mov rax, [r15 + 8]",
    "mov [rcx], rax"
}

function! {
    /// Jumps to an address with these rax, rcx, rdx, r8, r12, rdi and rsi. Whatever goes on at r11, returns,
    /// or makes iretq, reads the word at the address behind these, and answers with it.
    jumps,
    "mov r14, [r15 + 64]",
    "lea r11, [rip + 91f]",
    "mov r13, rsp",
    "mov r10, r15",
    "sub rsp, 1024",
    // Frames of iretq, of resume and of the end of a handler: three words, then the frame; six, then a
    // return.
    "mov rax, ss", "push rax", "push r13", "push 2", "mov rax, cs", "push rax", "push r11",
    "push r11", "push r11", "push r11",
    "mov rax, [r10 + 8]", "mov rcx, [r10 + 16]", "mov rdx, [r10 + 24]", "mov r8, [r10 + 32]",
    "mov r12, [r10 + 40]", "mov rdi, [r10 + 48]", "mov rsi, [r10 + 56]",
    "jmp qword ptr [r10]",
    "91:",
    "mov rsp, r13",
    "mov rax, [r14]"
}

function! {
    /// Has the runtime's call at an address fill memory with 8 random bytes: at an address, or, if that is 0,
    /// in its header.
    fills,
    "mov rdi, [r15 + 8]",
    "test rdi, rdi",
    "jnz 91f",
    "lea rdi, [rbx + {message}]",
    "91:",
    "mov esi, 8",
    "call qword ptr [r15]",
    "mov rax, [rbx + {message}]"
}

function! {
    /// Calls a service of no name by the runtime's call at an address, with its second word above its stack
    /// pointer, and answers with that word.
    waits,
    "mov rax, [r15]",
    "push qword ptr [r15 + 8]",
    "sub rsp, 64",
    "lea rcx, [rbx + {message}]",
    "mov [rsp], rcx",
    "mov rdi, rsp",
    "call rax",
    "add rsp, 64",
    "pop rax",
    "mov rcx, rsp",
    "and rcx, {mask}",
    "mov rbx, rcx"
}

function! {
    /// Goes round for ever with its stack pointer where it is told.
    spins,
    "mov rsp, [r15]",
    "92:",
    "jmp 92b"
}

function! {
    /// Jumps to an address over and over, with a word for rax, as long as it comes back by r11.
    knocks,
    "93:",
    "mov rbx, rsp",
    "and rbx, {mask}",
    "mov r15, [rbx + {body}]",
    // Below the stack's top, where the entry's return address is.
    "lea rsp, [rbx + (31 << 20) - 64]",
    "mov rax, [r15 + 8]",
    "xor ecx, ecx",
    "xor edx, edx",
    "lea r11, [rip + 93b]",
    "jmp qword ptr [r15]"
}
