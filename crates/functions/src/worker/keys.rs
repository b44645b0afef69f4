#![allow(unsafe_code, reason = "gives memory protection keys, and overwrites code")]
//! What a function can read and write by the processor's word: protection keys (pkeys(7)).
//!
//! | key | memory | a function has it |
//! | --- | --- | --- |
//! | 0 | the worker's: program, stack, ring, payloads, signal stack | not at all |
//! | common | code and constants of images, the clock, the runtime's calls, [`WINDOW`] | to read |
//! | data | data of images | if it has data itself |
//! | light | cell 0 | in cell 0 |
//! | [`COLOURS`] others | the other cells, in turn | in a cell of this colour |
//!
//! So what a function in cell `n` can reach is one number, and going from one function to another takes no
//! system call. Cells of one colour are open to one another: the dispatcher gives them to one owner at a
//! time. Open to all are the code and the constants of all images, and their data to those functions that
//! have some.
//!
//! The worker itself has all rights, 0. Its gates are in [`super::enter`]; there, the rights of the function
//! that is on the CPU are the first word of [`WINDOW`], or 0 without keys. System calls that a function could
//! make have its rights too, as far as they copy by its addresses (`copy_to_user`).
//!
//! | what could undo it | what is done |
//! | --- | --- |
//! | WRPKRU, XRSTOR, WRFSBASE, WRGSBASE in a function | the verifier refuses it |
//! | the same in the worker's program and its libraries | all code is looked through; what C libraries have there is overwritten by UD2, anything else and there are no keys |
//! | the gates' own | checks behind them |
//! | rt_sigreturn(2), pkey_mprotect(2) and others | the worker's filter |
//! | a signal's frame on a stack that the function can write | the stack is the worker's; before Linux 6.12 the kernel does not write there, and there are no keys |
//! | a processor or a kernel that only says so | a copy of the worker tries it, before there is any function |
//!
//! A worker is a small program of its own: one of many megabytes has such bytes by chance, in constants and
//! in distances, which cannot be overwritten, and one with the call gate of domains has its WRPKRU.
//!
//! What is read transiently (Meltdown-PK, Spectre) is out of this.
//!
//! # Cost
//!
//! Two WRPKRU for a call, and one store: 36 ns from before the entry until behind the way out, of an empty
//! function (76 ticks of a counter of 2.1 GHz; medians of 160,000 calls with keys and as many without, in
//! turns of 100 by two workers, on an Intel Xeon with 2 CPUs that others loaded; at the tenth percentile it
//! is 74). A signal that gives nothing up has two more. A worker begins later by what it takes to look
//! through its code.

use std::fmt::Write as _;
use std::io;
use std::ptr;

use partywall_keys::{CLOSED, Shown, denied, unwritable};

use super::window::{IN_FORCE, WINDOW};
use super::{enter, handlers};
use crate::image::{Forbidden, forbidden};
use crate::layout::{CELLS, COLOURS, PAGE};

/// Memory that is given a key: where, how many bytes, what protection it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) protection: i32,
    pub(super) whose: Whose,
}

/// Which key it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Common,
    Data,
    Cell(u16),
}

/// The keys of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    common: u32,
    data: u32,
    light: u32,
    colours: [u32; COLOURS],
}

/// All that is needed.
const WANTED: usize = 3 + COLOURS;

fn call(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> io::Result<u64> {
    // SAFETY: those of this module take keys, and give them to memory that is the worker's, with the
    // protection that it has.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as u64) }
}

impl Keys {
    /// Gives all memory its key, once it has been tried whether that is of use; `stack` is the top of the
    /// stack of cell 0, and `images` where code is that the verifier has seen.
    ///
    /// # Errors
    /// Why there are no keys. Nothing has changed then.
    pub(super) fn put_in_force(
        parts: &[Part],
        stack: u64,
        images: std::ops::Range<u64>,
    ) -> Result<Self, String> {
        let keys = Self::allocate()?;
        let patches = look_through(&images);
        let done = patches.and_then(|patches| {
            keys.try_out(parts, stack, &patches)?;
            let done = keys.force(parts, &patches);
            // Half of it is worse than nothing.
            done.map_err(|why| -> String { unreachable_end(&why) })
        });
        match done {
            Ok(()) => Ok(keys),
            Err(why) => {
                keys.all().for_each(|key| {
                    let _kept = partywall_keys::free(call, key);
                });
                Err(why)
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        [self.common, self.data, self.light].into_iter().chain(self.colours)
    }

    fn allocate() -> Result<Self, String> {
        let mut taken = Vec::new();
        while taken.len() < WANTED {
            match partywall_keys::allocate(call, true) {
                Ok(Some(key)) if !taken.contains(&key) => taken.push(key),
                other => {
                    for key in &taken {
                        let _kept = partywall_keys::free(call, *key);
                    }
                    return Err(match (Shown::look().why_not(), other) {
                        (Some(why), _) => why.to_owned(),
                        (None, Err(why)) if taken.is_empty() => why.to_string(),
                        (None, _) => format!("the kernel gives {} of {WANTED}", taken.len()),
                    });
                }
            }
        }
        let mut taken = taken.into_iter();
        let mut next = || taken.next().unwrap_or_default();
        let [common, data, light] = std::array::from_fn(|_| next());
        Ok(Self { common, data, light, colours: std::array::from_fn(|_| next()) })
    }

    fn of(&self, whose: Whose) -> u32 {
        match whose {
            Whose::Common => self.common,
            Whose::Data => self.data,
            Whose::Cell(0) => self.light,
            Whose::Cell(cell) => self.colours[crate::layout::colour(cell)],
        }
    }

    /// The rights of a function in this cell, with or without data.
    pub(super) fn rights(&self, cell: u16, has_data: bool) -> u32 {
        let data = if has_data { denied(self.data) } else { 0 };
        let open = denied(self.common) | denied(self.of(Whose::Cell(cell))) | data;
        CLOSED & !open | unwritable(self.common)
    }

    /// The next function has these rights.
    #[inline]
    pub(super) fn set(rights: u32) {
        WINDOW.set(rights);
    }

    fn force(&self, parts: &[Part], patches: &[u64]) -> io::Result<()> {
        if partywall_keys::rights() != 0 {
            return Err(io::Error::other("the kernel has not given all rights"));
        }
        patches.iter().try_for_each(|at| overwrite(*at))?;
        let tag = |part: &Part| {
            let (range, protection) = ((part.at, part.bytes), part.protection as u64);
            partywall_keys::tag(call, range, protection, self.of(part.whose))
        };
        parts.iter().try_for_each(tag)?;
        let at = ptr::from_ref(&WINDOW) as u64;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        tag(&Part { at, bytes: PAGE, protection, whose: Whose::Common })?;
        Self::set(self.rights(0, false));
        IN_FORCE.store(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Has a copy of this process do what a function would, whatever comes of that.
    fn try_out(&self, parts: &[Part], stack: u64, patches: &[u64]) -> Result<(), String> {
        // SAFETY: there is one thread, and the copy goes on in it.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(io::Error::last_os_error().to_string());
        }
        if child == 0 {
            // SAFETY: no core of what is a copy of the worker.
            let _no_core = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
            let code = self.tried(parts, stack, patches);
            // SAFETY: ends the copy.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the copy.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
            let why = io::Error::last_os_error();
            if why.kind() != io::ErrorKind::Interrupted {
                return Err(why.to_string());
            }
        }
        let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        match (code, signal) {
            (Some(0), _) => Ok(()),
            (Some(FORCE), _) => Err("memory cannot be given a key".to_owned()),
            (Some(READ), _) => Err("what is closed can be read all the same".to_owned()),
            (Some(RIGHTS), _) => Err("a signal costs a function its rights".to_owned()),
            (_, Some(libc::SIGSEGV)) => {
                Err("the kernel, before Linux 6.12, writes no signal's frame to a \
                stack that is closed to the function"
                    .to_owned())
            }
            _ => Err(format!("trying them out ends with status {status:#x}")),
        }
    }

    /// What the copy does: its exit code.
    fn tried(&self, parts: &[Part], stack: u64, patches: &[u64]) -> i32 {
        if self.force(parts, patches).is_err() {
            return FORCE;
        }
        let enter = |probe: unsafe extern "C" fn()| {
            // SAFETY: the probes need nothing but a stack, and there is no function in cell 0.
            unsafe { enter::enter(probe as *const () as u64, stack, 1) }
        };
        let read = enter(reads);
        let closed = (libc::SIGSEGV, ptr::from_ref(&enter::RUNNING) as u64);
        if read != enter::ABANDONED || handlers::reason() != closed {
            return READ;
        }
        if enter(is_told) != enter::RETURNED {
            return RIGHTS;
        }
        0
    }
}

/// Exit codes of a copy that tries keys out.
const FORCE: i32 = 1;
const READ: i32 = 2;
const RIGHTS: i32 = 3;

/// What cannot be taken back has begun.
fn unreachable_end(why: &io::Error) -> ! {
    eprintln!("a worker of functions ends: what was tried out does not work again: {why}");
    std::process::exit(1)
}

/// Reads the worker's memory.
#[unsafe(naked)]
unsafe extern "C" fn reads() {
    std::arch::naked_asm!("mov eax, [rip + {running}]", "ret", running = sym enter::RUNNING)
}

/// Sends itself a signal that is for no function, and looks at its rights afterwards.
#[unsafe(naked)]
unsafe extern "C" fn is_told() {
    std::arch::naked_asm!(
        "mov eax, {getpid}",
        "syscall",
        "mov edi, eax",
        "mov eax, {gettid}",
        "syscall",
        "mov esi, eax",
        "mov edx, {stop}",
        "mov eax, {tgkill}",
        "syscall",
        "xor ecx, ecx",
        "rdpkru",
        "cmp eax, [rip + {window}]",
        "jne {bad}",
        "ret",
        getpid = const libc::SYS_getpid,
        gettid = const libc::SYS_gettid,
        tgkill = const libc::SYS_tgkill,
        stop = const handlers::STOP,
        window = sym WINDOW,
        bad = sym enter::bad,
    )
}

unsafe extern "C" {
    static partywall_functions_gate_enter: u8;
    static partywall_functions_gate_resume: u8;
    static partywall_functions_gate_out: u8;
    static partywall_functions_gate_begin: u8;
    static partywall_functions_gate_end: u8;
    static partywall_functions_gate_state: u8;
}

/// The instructions of our own that write the rights, or may: where each is.
pub(super) fn gates() -> [u64; 6] {
    // A program that does not call them would not have them.
    let (enter, resume) = (enter::enter as *const (), enter::resume as *const ());
    std::hint::black_box([enter, resume, handlers::handler as *const ()]);
    [
        &raw const partywall_functions_gate_enter,
        &raw const partywall_functions_gate_resume,
        &raw const partywall_functions_gate_out,
        &raw const partywall_functions_gate_begin,
        &raw const partywall_functions_gate_end,
        // With its prefix REX.
        (&raw const partywall_functions_gate_state).wrapping_add(1),
    ]
    .map(|at| at as u64)
}

/// Code that is mapped.
#[derive(Debug)]
struct Mapped {
    begin: u64,
    end: u64,
    is_readable: bool,
    name: String,
}

/// All code of this process but that of images, neighbours as one.
fn mapped(images: &std::ops::Range<u64>) -> Result<Vec<Mapped>, String> {
    let text = std::fs::read_to_string("/proc/self/maps")
        .map_err(|why| format!("/proc/self/maps cannot be read: {why}"))?;
    let mut all: Vec<Mapped> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let name = words.nth(3).unwrap_or("").to_owned();
        let bounds = range.split_once('-').and_then(|(begin, end)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(begin)?, number(end)?))
        });
        let (begin, end) = bounds.ok_or("/proc/self/maps cannot be understood")?;
        // The kernel's own page emulates three calls.
        if rights.as_bytes().get(2) != Some(&b'x')
            || images.contains(&begin)
            || name == "[vsyscall]"
        {
            continue;
        }
        let is_readable = rights.starts_with('r');
        match all.last_mut() {
            Some(last) if last.end == begin && last.is_readable == is_readable => last.end = end,
            _ => all.push(Mapped { begin, end, is_readable, name }),
        }
    }
    Ok(all)
}

/// Looks through all code for instructions that write the rights, or the registers by which the worker finds
/// its thread; those that are to be overwritten.
fn look_through(images: &std::ops::Range<u64>) -> Result<Vec<u64>, String> {
    let (ours, mut patches) = (gates(), Vec::new());
    for Mapped { begin, end, is_readable, name } in mapped(images)? {
        if !is_readable {
            return Err(format!("the code of {name} at {begin:#x} cannot be looked through"));
        }
        // SAFETY: mapped to be read, and nobody unmaps it: there is one thread.
        let code =
            unsafe { std::slice::from_raw_parts(begin as *const u8, (end - begin) as usize) };
        let mut from = 0;
        while let Some((at, found)) = next(code, from) {
            from = at + 1;
            let address = begin + at as u64;
            if ours.contains(&address) {
                continue;
            }
            if !is_of_a_library(code, at, found) {
                let mut why = format!("{name} has the bytes of {found} at {address:#x}");
                let _written = write!(why, " ({at:#x} from the begin of its code)");
                return Err(why);
            }
            patches.push(address);
        }
    }
    Ok(patches)
}

/// The next one of these instructions, whatever they belong to.
fn next(code: &[u8], mut from: usize) -> Option<(usize, Forbidden)> {
    loop {
        let at = from + code.get(from..)?.iter().position(|byte| *byte == 0x0f)?;
        let window = code.get(at..)?;
        if matches!(window.get(1), Some(0x01 | 0xae))
            && let Some((0, found)) = forbidden(&window[..window.len().min(3)])
        {
            return Some((at, found));
        }
        from = at + 1;
    }
}

/// Whether it is an instruction of a function of a C library by its surroundings, which no worker calls:
/// pkey_set(3) ends behind it, and lazy binding makes zero of edx before it.
fn is_of_a_library(code: &[u8], at: usize, found: Forbidden) -> bool {
    let (before, behind) = (&code[..at], &code[at + 3..]);
    match found {
        Forbidden::Wrpkru => {
            [&[0x31, 0xc0, 0xc3][..], &[0xc3]].iter().any(|b| behind.starts_with(b))
        }
        Forbidden::Xrstor => before.ends_with(&[0x31, 0xd2]),
        _ => false,
    }
}

/// Overwrites an instruction by UD2.
fn overwrite(at: u64) -> io::Result<()> {
    const UD2: [u8; 2] = [0x0f, 0x0b];
    let page = at & !(PAGE - 1);
    let bytes = (at + 2 - page).next_multiple_of(PAGE);
    // What does this may be on the page.
    let (all, code) =
        (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC);
    call(libc::SYS_mprotect, [page, bytes, all as u64, 0, 0, 0])?;
    // SAFETY: code that is not called, in pages that are the worker's own copies.
    unsafe { (at as *mut [u8; 2]).write_volatile(UD2) };
    call(libc::SYS_mprotect, [page, bytes, code as u64, 0, 0, 0])?;
    Ok(())
}

const _: () = assert!(CELLS as usize > COLOURS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_are_the_instructions_that_write_rights() {
        let found = gates().map(|at| {
            // SAFETY: code of this program.
            forbidden(&unsafe { (at as *const [u8; 3]).read() }).map(|(_, found)| found)
        });
        let wrpkru = Some(Forbidden::Wrpkru);
        assert_eq!(found, [wrpkru, wrpkru, wrpkru, wrpkru, wrpkru, Some(Forbidden::Xrstor)]);
    }

    #[test]
    fn instructions_are_found_at_every_offset_and_known_by_their_surroundings() {
        let bytes =
            [0x0f, 0x0f, 0x01, 0xef, 0x31, 0xc0, 0xc3, 0x31, 0xd2, 0x0f, 0xae, 0x6c, 0x24, 0x40];
        assert_eq!(next(&bytes, 0), Some((1, Forbidden::Wrpkru)));
        assert_eq!(next(&bytes, 2), Some((9, Forbidden::Xrstor)));
        assert_eq!(next(&bytes, 10), None);
        assert!(is_of_a_library(&bytes, 1, Forbidden::Wrpkru));
        assert!(is_of_a_library(&bytes, 9, Forbidden::Xrstor));
        // STUI has the bytes of WRPKRU; what is behind a constant is none of a library.
        let other =
            [0xb8, 0x0f, 0x01, 0xef, 0x00, 0x0f, 0xae, 0x6c, 0x24, 0xf3, 0x0f, 0xae, 0xd0, 0];
        assert!(!is_of_a_library(&other, 1, Forbidden::Wrpkru));
        assert!(!is_of_a_library(&other, 5, Forbidden::Xrstor));
        assert_eq!(next(&other, 6), Some((10, Forbidden::WriteBase)));
        assert!(!is_of_a_library(&other, 10, Forbidden::WriteBase));
    }
}
