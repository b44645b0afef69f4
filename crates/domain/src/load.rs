#![allow(unsafe_code, reason = "maps a program and writes its first stack")]
//! Putting a checked program into a slot: its segments, its first stack, and on it what a program
//! finds when it starts (System V ABI, x86-64 supplement, 3.4.1 "Initial Stack and Register State").
//!
//! Segments come from a sealed memfd, privately: what runs is what was measured, and nobody can
//! write it afterwards, because the file is sealed and the pages are copied when the program writes
//! its own data. The pages around a program and below a stack are never mapped.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use partywall_abi::domain::AUXILIARY;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect};

use crate::address_space::{self, Slot};
use crate::elf::{Image, Load, PAGE, Rights};
use crate::keys;

/// The stack a program starts on, in bytes, as the usual limit has it (getrlimit(2)).
pub(crate) const STACK: u64 = 8 << 20;
/// Programs begin somewhere in the first of so many bytes of a slot, at random, below
/// [`crate::table::MAPPINGS`].
const JITTER: u64 = 64 << 30;

/// A program that is loaded and has not run.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Where it is entered.
    pub(crate) entry: u64,
    /// Its first stack pointer.
    pub(crate) stack: u64,
}

/// Maps `image`, which was read from `file`, into `slot`, makes its first stack, and gives all of it a
/// protection key.
///
/// # Errors
/// What mmap(2) says, or that arguments and environment are too long.
pub(crate) fn load(
    slot: &Slot,
    image: &Image,
    file: BorrowedFd<'_>,
    args: &[CString],
    environment: &[CString],
    key: u32,
) -> io::Result<Loaded> {
    let range = slot.range();
    let random = random()?;
    let jitter = u64::from_le_bytes(random[..8].try_into().expect("8 bytes")) % JITTER;
    // Nothing below the program: a pointer into the slot before this one stays there.
    let base = (range.start + image.align + jitter).next_multiple_of(image.align);
    for load in &image.loads {
        map_segment(base, load, file)?;
    }
    let bottom = base + image.span.next_multiple_of(image.align) + (1 << 30);
    map(bottom + PAGE, STACK, ProtFlags::READ | ProtFlags::WRITE)?;
    let top = bottom + PAGE + STACK;
    let stack = first_stack(top, base, image, args, environment, &random)?;
    for load in &image.loads {
        let pages = load.pages();
        let rights = u64::from(protection(load.rights).bits());
        keys::tag(base + pages.start, pages.end - pages.start, rights, key)?;
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    keys::tag(bottom + PAGE, STACK, u64::from(rights.bits()), key)?;
    Ok(Loaded { entry: base + image.entry, stack })
}

fn random() -> io::Result<[u8; 32]> {
    let mut random = [0; 32];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random)
}

fn protection(rights: Rights) -> ProtFlags {
    let mut flags = ProtFlags::empty();
    flags.set(ProtFlags::READ, rights.read);
    flags.set(ProtFlags::WRITE, rights.write);
    flags.set(ProtFlags::EXEC, rights.execute);
    flags
}

/// As the kernel does: the pages of the file, zeros after its end, fresh pages after that.
fn map_segment(base: u64, load: &Load, file: BorrowedFd<'_>) -> io::Result<()> {
    let pages = load.pages();
    let start = base + pages.start;
    let rights = protection(load.rights);
    let from_file = (load.address % PAGE + load.file_bytes).next_multiple_of(PAGE);
    if load.file_bytes == 0 {
        return map(start, pages.end - pages.start, rights);
    }
    let offset = load.offset / PAGE * PAGE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: FIXED_NOREPLACE: nothing is replaced; the file is sealed, so no page of it goes.
    unsafe { mmap(start as *mut _, from_file as usize, rights, flags, file, offset)? };
    if base + pages.end > start + from_file {
        map(start + from_file, base + pages.end - (start + from_file), rights)?;
    }
    let end_of_file = base + load.address + load.file_bytes;
    let rest = start + from_file - end_of_file;
    if rest > 0 && load.bytes > load.file_bytes {
        zero(end_of_file, rest, load.rights)?;
    }
    Ok(())
}

fn map(start: u64, bytes: u64, rights: ProtFlags) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: FIXED_NOREPLACE: nothing is replaced.
    unsafe { mmap_anonymous(start as *mut _, bytes as usize, rights, flags)? };
    Ok(())
}

/// The rest of a segment's last page, which the file has filled with whatever follows there.
fn zero(start: u64, bytes: u64, rights: Rights) -> io::Result<()> {
    let page = (start / PAGE * PAGE) as *mut std::ffi::c_void;
    if !rights.write {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the page has just been mapped, and nothing runs there.
        unsafe { mprotect(page, PAGE as usize, flags)? };
    }
    // SAFETY: less than a page, to the end of one that has just been mapped, writable.
    unsafe { std::ptr::write_bytes(start as *mut u8, 0, bytes as usize) };
    if !rights.write {
        let flags = MprotectFlags::from_bits_retain(protection(rights).bits());
        // SAFETY: as above.
        unsafe { mprotect(page, PAGE as usize, flags)? };
    }
    Ok(())
}

/// Builds the first stack, from its top down, and copies it into place.
fn first_stack(
    top: u64,
    base: u64,
    image: &Image,
    args: &[CString],
    environment: &[CString],
    random: &[u8; 32],
) -> io::Result<u64> {
    let mut strings = Vec::new();
    let mut place = |bytes: &[u8]| {
        let at = strings.len() as u64;
        strings.extend_from_slice(bytes);
        at
    };
    let args: Vec<u64> = args.iter().map(|a| place(a.as_bytes_with_nul())).collect();
    let environment: Vec<u64> = environment.iter().map(|e| place(e.as_bytes_with_nul())).collect();
    let entropy = place(&random[16..]);
    let strings_at = (top - strings.len() as u64) / 16 * 16;
    let mut words = vec![args.len() as u64];
    words.extend(args.iter().map(|at| strings_at + at));
    words.push(0);
    words.extend(environment.iter().map(|at| strings_at + at));
    words.push(0);
    let name = args.first().map_or(strings_at, |at| strings_at + at);
    let launcher = (AUXILIARY, address_space::info_address());
    for (kind, value) in [launcher].into_iter().chain(own_vector()?) {
        let value = match kind {
            libc::AT_PHDR => base + image.headers,
            libc::AT_PHNUM => image.header_count,
            libc::AT_BASE => 0,
            libc::AT_ENTRY => base + image.entry,
            libc::AT_RANDOM => strings_at + entropy,
            libc::AT_EXECFN => name,
            // What says nothing about another program: sizes, rights, the processor, the vDSO.
            _ => value,
        };
        words.extend([kind, value]);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let needed = top - strings_at + bytes.len() as u64;
    if needed > STACK / 4 {
        return Err(io::Error::new(
            io::ErrorKind::ArgumentListTooLong,
            "arguments and environment take more than a quarter of the stack",
        ));
    }
    let stack = (strings_at - bytes.len() as u64) / 16 * 16;
    write(stack, &bytes);
    write(strings_at, &strings);
    Ok(stack)
}

/// Copies into a stack that is mapped and has not been used.
fn write(at: u64, bytes: &[u8]) {
    // SAFETY: the caller has made sure that the bytes lie in the stack that it mapped.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// The auxiliary vector of this process, up to and with its end mark (getauxval(3)).
fn own_vector() -> io::Result<Vec<(u64, u64)>> {
    let bytes = std::fs::read("/proc/self/auxv")?;
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes"));
    let mut vector: Vec<_> =
        bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..]))).collect();
    let pointers = [libc::AT_PLATFORM, libc::AT_BASE_PLATFORM];
    // Strings of this program's own stack, which others need not read.
    vector
        .retain(|(kind, _)| ![libc::AT_NULL, AUXILIARY].contains(kind) && !pointers.contains(kind));
    vector.push((libc::AT_NULL, 0));
    Ok(vector)
}

/// Arguments or environment as the kernel takes them.
///
/// # Errors
/// Names the one that holds a NUL.
pub(crate) fn c_strings<'a>(list: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Vec<CString>> {
    list.into_iter()
        .map(|text| {
            CString::new(text.as_bytes()).map_err(|_| {
                let what = format!("{text:?} contains a NUL byte");
                io::Error::new(io::ErrorKind::InvalidInput, what)
            })
        })
        .collect()
}
