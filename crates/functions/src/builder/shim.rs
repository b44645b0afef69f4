#![allow(unsafe_code, reason = "the entry of a function, and what compilers call by name")]
//! The crate around a function: its entry, its heap, its panics, and what compilers take for granted.
#![no_std]

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

// The compiler calls these by name. Short ones are loops over words, long ones the processor's own.

const SHORT: usize = 64;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if bytes > SHORT {
        // SAFETY: by the contract of memcpy(3).
        unsafe {
            core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _,
                inout("rsi") from => _, options(nostack, preserves_flags));
        }
        return to;
    }
    let mut at = 0;
    while at + 8 <= bytes {
        // SAFETY: within both, by the contract.
        unsafe {
            to.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_unaligned());
        }
        at += 8;
    }
    while at < bytes {
        // SAFETY: as above; volatile, so that this does not become a call of itself.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
        at += 1;
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: copied upwards, what is read is not written before.
        return unsafe { memcpy(to, from, bytes) };
    }
    let mut at = bytes;
    while at >= 8 {
        at -= 8;
        // SAFETY: within both, by the contract.
        unsafe {
            to.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_unaligned());
        }
    }
    while at > 0 {
        at -= 1;
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    let byte = byte as u8;
    if bytes > SHORT {
        // SAFETY: by the contract of memset(3).
        unsafe {
            core::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _,
                in("al") byte, options(nostack, preserves_flags));
        }
        return to;
    }
    let mut at = 0;
    while at < bytes {
        // SAFETY: within it, by the contract.
        unsafe { to.add(at).write_volatile(byte) };
        at += 1;
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    let mut at = 0;
    while at + 8 <= bytes {
        // SAFETY: within both, by the contract.
        let (x, y) = unsafe {
            (a.add(at).cast::<u64>().read_unaligned(), b.add(at).cast::<u64>().read_unaligned())
        };
        if x != y {
            return if x.swap_bytes() < y.swap_bytes() { -1 } else { 1 };
        }
        at += 8;
    }
    while at < bytes {
        // SAFETY: as above.
        let (x, y) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
        at += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut at = 0;
    // SAFETY: up to its zero, by the contract.
    while unsafe { text.add(at).read_volatile() } != 0 {
        at += 1;
    }
    at
}

// Nothing unwinds: a panic leaves. The compiled core names these all the same.

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    // SAFETY: ends the function, as any undefined instruction does.
    unsafe { core::arch::asm!("ud2", options(noreturn)) }
}
