#![allow(unsafe_code, reason = "a program with nothing beneath it but the kernel")]
//! A process that is a function, without any library. It is compiled when a run begins; the protocol is in
//! `processes.rs`, and so are the numbers that are its arguments.
//!
//! | role | what it does |
//! |---|---|
//! | 0 | sleeps on its cell's word, and answers, for ever |
//! | 1 | answers once, and ends |
//! | 2 | sleeps as role 0 does, and has a fork of itself answer |
#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MMAP: usize = 9;
const RT_SIGACTION: usize = 13;
const FORK: usize = 57;
const EXIT: usize = 60;
const GETPPID: usize = 110;
const PRCTL: usize = 157;
const FUTEX: usize = 202;
const SCHED_SETAFFINITY: usize = 203;

const SLOTS: u32 = 6;

#[repr(C, align(64))]
struct Cell {
    asked: AtomicU32,
    _gap: [u32; 15],
    served: AtomicU32,
    index: AtomicU32,
    stamps: [AtomicU64; SLOTS as usize],
}

fn call(number: usize, arguments: [usize; 6]) -> usize {
    let result;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: a system call; what it is given is its caller's.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _);
    }
    result
}

fn exit(code: usize) -> ! {
    loop {
        call(EXIT, [code, 0, 0, 0, 0, 0]);
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(101)
}

/// The time, by the parameters of `sys::clock::Stamps`.
fn now(boot: usize, ticks: usize, rate: usize) -> u64 {
    // SAFETY: reads a register.
    let counter = unsafe { core::arch::x86_64::_rdtsc() };
    let passed = counter.saturating_sub(ticks as u64);
    boot as u64 + ((passed as u128 * rate as u128) >> 32) as u64
}

/// The program's arguments behind its name, as numbers.
fn numbers(stack: *const usize) -> [usize; 8] {
    let mut all = [0_usize; 8];
    for (at, number) in all.iter_mut().enumerate() {
        // SAFETY: the kernel has written the count, and so many pointers behind it, and a null.
        let mut text = unsafe { stack.wrapping_add(2 + at).read() } as *const u8;
        if text.is_null() {
            break;
        }
        loop {
            // SAFETY: a text that ends with a zero.
            let byte = unsafe { text.read() };
            if byte == 0 {
                break;
            }
            *number = (*number).wrapping_mul(10).wrapping_add((byte - b'0') as usize);
            text = text.wrapping_add(1);
        }
    }
    all
}

fn answer(cell: &Cell, number: u32, stamp: u64) {
    cell.stamps[(number % SLOTS) as usize].store(stamp, Ordering::Relaxed);
    // SYNC(functions.served)
    cell.served.store(number.wrapping_add(1), Ordering::Release);
}

extern "C" fn run(stack: *const usize) -> ! {
    let [role, index, parent, cpu, boot, ticks, rate, file] = numbers(stack);
    let stamp = if role == 1 { now(boot, ticks, rate) } else { 0 };
    call(PRCTL, [1, 9, 0, 0, 0, 0]);
    if call(GETPPID, [0; 6]) != parent {
        exit(1);
    }
    let mut mask = [0_usize; 16];
    mask[cpu / 64 % 16] = 1 << (cpu % 64);
    call(SCHED_SETAFFINITY, [0, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0]);
    let at = index * size_of::<Cell>();
    let page = call(MMAP, [0, 4096, 3, 1, file, at & !4095]);
    if page > usize::MAX - 4096 {
        exit(2);
    }
    // SAFETY: mapped, and all of it is atomic.
    let cell = unsafe { &*((page + at % 4096) as *const Cell) };
    cell.index.store(index as u32, Ordering::Relaxed);
    if role == 1 {
        answer(cell, 0, stamp);
        exit(0);
    }
    if role == 2 {
        // Ignored: children that have ended leave nothing.
        let ignore = [1_usize, 0, 0, 0];
        call(RT_SIGACTION, [17, ignore.as_ptr() as usize, 0, 8, 0, 0]);
    }
    let mut number = 0_u32;
    loop {
        // SYNC(functions.asked)
        while cell.asked.load(Ordering::Acquire) != number {
            if role == 0 {
                answer(cell, number, now(boot, ticks, rate));
            } else if call(FORK, [0; 6]) == 0 {
                answer(cell, number, now(boot, ticks, rate));
                exit(0);
            }
            number = number.wrapping_add(1);
        }
        call(FUTEX, [&raw const cell.asked as usize, 0, number as usize, 0, 0, 0]);
    }
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("mov rdi, rsp", "and rsp, -16", "call {run}", "ud2", run = sym run)
}
