#![allow(unsafe_code, reason = "what is beneath safe functions: the header, the heap, the way out")]
//! What the builder's shim calls: a function's way in and out, and its heap.
//!
//! The heap never gives memory back before the call ends. A block of up to [`SMALL`] bytes has one of
//! [`CLASSES`](crate::cell::CLASSES) sizes, two for each power of two from 32 on, and a free one waits in
//! the list of its size. A longer one is a number of pages, and a free one is taken by the first request that
//! fits. The last block grows and shrinks where it is. The heap's state is in the [`Header`], where zeros are
//! an empty heap.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write as _;
use core::mem::ManuallyDrop;
use core::panic::PanicInfo;

#[cfg(partywall_function)]
use crate::cell::CELL_BYTES;
use crate::cell::{Header, MESSAGE_BYTES, Outward, Span, status};
use crate::{Error, Reply, Request};

/// The longest small block, in bytes.
pub const SMALL: usize = 64 << 10;
/// What long blocks are a multiple of, in bytes.
const PAGE: usize = 4096;
/// What every block's address is a multiple of.
const GRAIN: usize = 16;

// The worker has them at fixed places; the store binds an image to them.
#[cfg(partywall_function)]
unsafe extern "C" {
    /// Ends the function here, as its header says.
    safe fn partywall_leave() -> !;
    /// Calls a service, and comes back with the answer.
    fn partywall_call(outward: *mut Outward);
    /// Fills memory with random bytes.
    fn partywall_random(to: *mut u8, bytes: usize);
}

#[cfg(not(partywall_function))]
use elsewhere::{header, partywall_call, partywall_leave, partywall_random};

/// In any other program there is no worker.
#[cfg(not(partywall_function))]
mod elsewhere {
    use super::{Header, Outward};

    pub(super) fn header() -> *mut Header {
        panic!("this is for functions alone: `partywall fn test` runs one")
    }

    pub(super) fn partywall_leave() -> ! {
        header();
        unreachable!()
    }

    pub(super) unsafe fn partywall_call(_: *mut Outward) {
        header();
    }

    pub(super) unsafe fn partywall_random(_: *mut u8, _: usize) {
        header();
    }
}

/// The header of the running call.
#[cfg(partywall_function)]
#[inline(always)]
fn header() -> *mut Header {
    let stack: usize;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags));
    }
    (stack & !(CELL_BYTES - 1)) as *mut Header
}

/// Runs a function: its shim's entry.
///
/// # Safety
/// The caller has entered on the stack of a cell whose header its worker has written.
#[inline(always)]
pub unsafe fn run(handle: impl FnOnce(Request<'_>) -> Reply) {
    let header = header();
    // SAFETY: by the contract, the header is there, and nobody else uses it meanwhile.
    let Header { id, body, parameters, .. } = unsafe { &*header };
    // SAFETY: the worker has written these bytes, which nobody changes.
    let body = unsafe { bytes(*body) };
    // SAFETY: as above.
    let parameters = unsafe { bytes(*parameters) };
    // Its bytes are the worker's when it has returned, and gone with the cell.
    let ended = ManuallyDrop::new(handle(Request::new(*id, body, parameters)));
    let (status, code, reply) = match &*ended {
        Ok(reply) => (status::REPLY, 0, span(reply)),
        Err(Error { code, message }) => {
            let text = message.as_bytes();
            (status::ERROR, *code as u32, span(&text[..text.len().min(MESSAGE_BYTES)]))
        }
    };
    // SAFETY: as above; no reference to the header lives.
    let header = unsafe { &mut *header };
    (header.code, header.reply) = (code, reply);
    header.status = status;
}

/// The end of a function that has panicked: its shim's panic handler.
#[cold]
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    // SAFETY: a function panics on its own stack, and nothing of the header is borrowed across a panic.
    let header = unsafe { &mut *header() };
    header.status = status::PANIC;
    if header.wanted != 0 {
        header.status = status::MEMORY;
    }
    let mut text = Text { to: &mut header.message, length: 0 };
    // Without Display of texts and numbers, which would be 3 KiB of code in every function.
    let message = info.message();
    let _full = match message.as_str() {
        Some(plain) => text.write_str(plain),
        None => write!(text, "{message}"),
    };
    if let Some(at) = info.location() {
        for part in [" at ", at.file(), ":"] {
            text.put(part.as_bytes());
        }
        text.put_number(at.line());
    }
    let length = text.length;
    header.reply = span(header.message.get(..length).unwrap_or_default());
    partywall_leave()
}

/// A text that is cut off at its end.
struct Text<'a> {
    to: &'a mut [u8],
    length: usize,
}

impl Text<'_> {
    /// Puts bytes behind those that are there, and says whether all had room; without bounds that could
    /// fail, whose texts take room.
    #[inline(never)]
    fn put(&mut self, bytes: &[u8]) -> bool {
        let room = self.to.get_mut(self.length..).unwrap_or_default();
        let count = bytes.len().min(room.len());
        if let Some((to, from)) = room.get_mut(..count).zip(bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        self.length += count;
        count == bytes.len()
    }

    /// The same with a number's decimal digits.
    fn put_number(&mut self, number: u32) {
        let mut unit = 1;
        while number / unit >= 10 {
            unit *= 10;
        }
        while unit > 0 {
            self.put(&[b'0' + (number / unit % 10) as u8]);
            unit /= 10;
        }
    }
}

impl core::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        if self.put(text.as_bytes()) { Ok(()) } else { Err(core::fmt::Error) }
    }
}

/// Calls a service; the header's heap has the answer.
pub(crate) fn call(service: &str, method: &str, body: &[u8]) -> (u32, &'static [u8]) {
    // The worker reads nothing that is outside the cell, as constants are.
    let message = [service.as_bytes(), method.as_bytes(), body].concat();
    let mut outward = Outward {
        message: span(&message),
        service: service.len() as u32,
        method: method.len() as u32,
        reply: Span::default(),
        code: 0,
        reserved: 0,
    };
    // SAFETY: the message is borrowed until it comes back.
    unsafe { partywall_call(&raw mut outward) };
    // The worker has written it behind the compiler's back.
    let outward = core::hint::black_box(&mut outward);
    // SAFETY: the worker has put it on the heap, where it stays until the call ends.
    (outward.code, unsafe { bytes(outward.reply) })
}

/// Fills memory with random bytes.
pub(crate) fn random(to: &mut [u8]) {
    // SAFETY: the memory is the caller's.
    unsafe { partywall_random(to.as_mut_ptr(), to.len()) };
}

/// A field of the clock's page.
pub(crate) fn clock(word: usize) -> u64 {
    // SAFETY: as in `run`.
    let page = unsafe { (*header()).clock } as *const u64;
    // SAFETY: the page has as many words, which another process writes, each at once.
    unsafe { page.wrapping_add(word).read_volatile() }
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a register; where that is not let, the call ends.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Writes a line of the log, and counts it where there is no room for all of it.
pub(crate) fn log(line: core::fmt::Arguments<'_>) {
    use crate::cell::{LOG, LOG_BYTES};
    let header = header();
    let log = header.cast::<u8>().wrapping_add(LOG);
    // SAFETY: as in `run`; it is beside the header.
    let log = unsafe { core::slice::from_raw_parts_mut(log, LOG_BYTES) };
    // SAFETY: as in `run`.
    let header = unsafe { &mut *header };
    let begin = header.log_bytes as usize;
    let Some(room) = log.get_mut(begin..).filter(|room| room.len() > 4) else {
        header.log_lost += 1;
        return;
    };
    let (length, to) = room.split_at_mut(4);
    let mut text = Text { to, length: 0 };
    header.log_lost += u64::from(text.write_fmt(line).is_err());
    length.copy_from_slice(&(text.length as u32).to_le_bytes());
    header.log_bytes = (begin + 4 + text.length) as u64;
}

fn span(bytes: &[u8]) -> Span {
    Span { address: bytes.as_ptr() as u64, bytes: bytes.len() as u64 }
}

/// # Safety
/// The worker has written the span, and nobody changes its bytes.
unsafe fn bytes<'a>(span: Span) -> &'a [u8] {
    if span.bytes == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { core::slice::from_raw_parts(span.address as *const u8, span.bytes as usize) }
}

/// The heap of the running call.
#[derive(Debug)]
pub struct Heap;

/// A free block of more than [`SMALL`] bytes.
#[repr(C)]
struct Large {
    next: u64,
    bytes: u64,
}

/// The size that a block of so many bytes has, and the list in which a free one waits; none if it is long.
fn class(bytes: usize) -> (usize, Option<usize>) {
    if bytes > SMALL {
        return (bytes.next_multiple_of(PAGE), None);
    }
    if bytes <= 2 * GRAIN {
        let size = bytes.next_multiple_of(GRAIN).max(GRAIN);
        return (size, Some(size / GRAIN - 1));
    }
    let last = bytes - 1;
    let power = last.ilog2() as usize;
    let upper = (last >> (power - 1)) & 1;
    ((2 + upper + 1) << (power - 1), Some(2 * (power - 5) + upper + 2))
}

impl Heap {
    fn take(header: &mut Header, bytes: usize, align: usize) -> *mut u8 {
        let (bytes, list) = class(bytes);
        if align <= GRAIN {
            let free = match list {
                Some(list) => Self::take_small(header, list),
                None => Self::take_large(header, bytes),
            };
            if let Some(free) = free {
                return free;
            }
        }
        let align = align.max(GRAIN) as u64;
        let at = header.heap_next.next_multiple_of(align);
        match at.checked_add(bytes as u64) {
            Some(end) if end <= header.heap_end => {
                Self::go_to(header, end);
                at as *mut u8
            }
            _ => {
                header.wanted = bytes as u64;
                core::ptr::null_mut()
            }
        }
    }

    fn take_small(header: &mut Header, list: usize) -> Option<*mut u8> {
        let free = *header.free.get(list)? as *mut u64;
        if free.is_null() {
            return None;
        }
        // SAFETY: a free block begins with the address of the next one.
        header.free[list] = unsafe { free.read() };
        Some(free.cast())
    }

    fn take_large(header: &mut Header, bytes: usize) -> Option<*mut u8> {
        let mut from = &raw mut header.free_large;
        loop {
            // SAFETY: it is the header's field or that of a free block.
            let block = unsafe { from.read() } as *mut Large;
            if block.is_null() {
                return None;
            }
            // SAFETY: a free block begins with these words.
            let Large { next, bytes: has } = unsafe { block.read() };
            if has >= bytes as u64 {
                // SAFETY: as above.
                unsafe { from.write(next) };
                return Some(block.cast());
            }
            // SAFETY: as above.
            from = unsafe { &raw mut (*block).next };
        }
    }

    fn give(header: &mut Header, block: *mut u8, bytes: usize, align: usize) {
        let (bytes, list) = class(bytes);
        if block as u64 + bytes as u64 == header.heap_next {
            header.heap_next = block as u64;
            return;
        }
        if align > GRAIN {
            return;
        }
        match list {
            Some(list) => {
                // SAFETY: the block is free, and has room for a word.
                unsafe { block.cast::<u64>().write(header.free[list]) };
                header.free[list] = block as u64;
            }
            None => {
                let free = Large { next: header.free_large, bytes: bytes as u64 };
                // SAFETY: the block is free, and has room for two words.
                unsafe { block.cast::<Large>().write(free) };
                header.free_large = block as u64;
            }
        }
    }

    /// Whether a block can have another length where it is.
    fn resize(header: &mut Header, block: *mut u8, old: usize, new: usize) -> bool {
        let (old, new) = (class(old).0, class(new).0);
        if old == new {
            return true;
        }
        let end = block as u64 + new as u64;
        let last = block as u64 + old as u64 == header.heap_next && end <= header.heap_end;
        if last {
            Self::go_to(header, end);
        }
        last
    }

    fn go_to(header: &mut Header, end: u64) {
        header.heap_next = end;
        header.heap_used = header.heap_used.max(end);
    }
}

// SAFETY: blocks come from the cell's heap and overlap no other that is in use.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a function runs on its own stack; no other reference to the header lives in here.
        let header = unsafe { &mut *header() };
        Self::take(header, layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        let header = unsafe { &mut *header() };
        Self::give(header, block, layout.size(), layout.align());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        let header = unsafe { &mut *header() };
        if Self::resize(header, block, layout.size(), bytes) {
            return block;
        }
        let new = Self::take(header, bytes, layout.align());
        if !new.is_null() {
            let kept = layout.size().min(bytes);
            // SAFETY: both have as many bytes, and are different blocks.
            unsafe { core::ptr::copy_nonoverlapping(block, new, kept) };
            Self::give(header, block, layout.size(), layout.align());
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::CLASSES;

    extern crate std;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn classes_are_the_smallest_that_hold_their_bytes() {
        let mut before = 0;
        for bytes in 0..=SMALL {
            let (size, list) = class(bytes);
            let list = list.expect("a small block");
            assert!(size >= bytes && size % GRAIN == 0 && list < CLASSES, "{bytes} {size} {list}");
            assert_eq!(class(size), (size, Some(list)), "{bytes}");
            assert!(list == before || list == before + 1, "{bytes}");
            assert!(size <= 32 || size * 2 <= bytes * 3, "{bytes} {size}");
            before = list;
        }
        assert_eq!(before, CLASSES - 1);
        assert_eq!(class(SMALL + 1), (SMALL + PAGE, None));
    }

    /// A heap of so many bytes.
    fn heap(bytes: usize) -> (Vec<u128>, Header) {
        let memory = vec![0_u128; bytes / 16];
        let begin = memory.as_ptr() as u64;
        // SAFETY: all fields are numbers.
        let mut header: Header = unsafe { core::mem::zeroed() };
        (header.heap_next, header.heap_used) = (begin, begin);
        header.heap_end = begin + bytes as u64;
        (memory, header)
    }

    #[test]
    fn blocks_never_overlap_and_free_ones_are_used_again() {
        let (memory, mut header) = heap(4 << 20);
        let begin = memory.as_ptr() as u64;
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut live: Vec<(*mut u8, usize, usize)> = Vec::new();
        for step in 0..200_000_u64 {
            if live.len() < 60 && random(2) == 0 {
                let bytes = 1 + random(if step % 50 == 0 { 200_000 } else { 2000 }) as usize;
                let align = 1 << random(8);
                let block = Heap::take(&mut header, bytes, align);
                if block.is_null() {
                    continue;
                }
                assert_eq!(block as usize % align, 0);
                // SAFETY: the block has as many bytes.
                unsafe { block.write_bytes(live.len() as u8, bytes) };
                let end = block as usize + bytes;
                for (other, length, _) in &live {
                    let apart =
                        end <= *other as usize || *other as usize + length <= block as usize;
                    assert!(apart, "{block:?} {bytes} {other:?} {length}");
                }
                live.push((block, bytes, align));
            } else if !live.is_empty() {
                let (block, bytes, align) = live.swap_remove(random(live.len() as u64) as usize);
                Heap::give(&mut header, block, bytes, align);
            }
            assert!(begin <= header.heap_next && header.heap_next <= header.heap_used);
            assert!(header.heap_used <= header.heap_end);
        }
    }

    #[test]
    fn what_is_allocated_and_freed_in_a_loop_takes_no_more_memory() {
        let (_memory, mut header) = heap(1 << 20);
        for bytes in [1, 100, 5000, SMALL, SMALL + 1] {
            let first = Heap::take(&mut header, bytes, 8);
            let _last = Heap::take(&mut header, 1, 8);
            Heap::give(&mut header, first, bytes, 8);
            let next = header.heap_next;
            for _ in 0..1000 {
                let block = Heap::take(&mut header, bytes, 8);
                assert_eq!(block, first);
                Heap::give(&mut header, block, bytes, 8);
            }
            assert_eq!(header.heap_next, next);
        }
    }

    #[test]
    fn the_last_block_grows_in_place_up_to_the_heaps_end() {
        let (_memory, mut header) = heap(1 << 20);
        let block = Heap::take(&mut header, 10, 1);
        assert!(Heap::resize(&mut header, block, 10, 500_000));
        assert!(Heap::resize(&mut header, block, 500_000, 100));
        assert!(!Heap::resize(&mut header, block, 100, 2 << 20));
        let _other = Heap::take(&mut header, 1, 1);
        assert!(!Heap::resize(&mut header, block, 100, 200));
        assert!(Heap::take(&mut header, 1 << 20, 1).is_null());
        assert_eq!(header.wanted, 1 << 20);
    }
}
