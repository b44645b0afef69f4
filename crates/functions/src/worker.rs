#![allow(unsafe_code, reason = "maps memory at fixed addresses, and enters functions in it")]
//! A worker: a process that runs functions, one at a time, as its dispatcher submits them.
//!
//! ```text
//! main: maps all there is -> handlers -> keys -> filter -> loop { take one, enter, complete, clean }
//! ```
//!
//! A function is entered on the stack of its cell ([`enter`]) and comes out by returning, by leaving, by a
//! signal, or waiting for a service. The worker then reads the cell's header once, with no trust in it,
//! writes the completion, and cleans: the header, the log and the heap as far as they were used, the stack of
//! cell 0. Cleaning comes after the completion, so that nobody waits for it but the next function.
//!
//! An image's data are what the function finds before each call. Those of a function that waits are kept
//! beside, where only the worker has rights, and put back when it goes on: meanwhile others are called that
//! have the same image.
//!
//! Nothing of a function's is in the worker's hands while it runs: no lock, no reference, no memory. Nor is
//! anything of the worker's in the function's where there are protection keys ([`keys`]).

mod account;
mod enter;
mod handlers;
mod keys;
mod shut;
mod timer;
mod window;

use std::io;
use std::ptr;

use partywall_abi::function::{
    Completion, End, GRAIN, Input, Line, Ring, SHORT, Short, Submission, Task, following,
};
use partywall_abi::sync::Ordering;
use partywall_fn::cell::{HEAP, Header, LOG, LOG_BYTES, MESSAGE_BYTES, Outward, Span, status};

use crate::image::DATA_BYTES;
use crate::layout::{CELLS, Cell, LIGHT_STACK, Layout};
use crate::sleep::{sleep, wake};
use crate::store::Data;

pub(crate) use handlers::STOP;
pub use shut::{Places, Start, main, main_telling};

/// Looks at the ring before the worker sleeps, at most.
const LOOKS: u32 = 20_000;

/// What a worker works with.
struct Worker {
    layout: Layout,
    ring: &'static Ring,
    /// The payloads' first byte.
    payloads: *mut u8,
    /// The functions that wait, by their cells.
    waiting: [Option<Waiting>; CELLS as usize],
    /// Where their data are kept, each at its cell's place.
    kept: *mut u8,
    /// Whether the time stamp counter is open.
    has_counter: bool,
    timer: Option<timer::Timer>,
    keys: Option<keys::Keys>,
}

/// A function that waits for a service.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Its stack pointer.
    stack: u64,
    /// Where it has said what it asks for, and finds the answer; within its cell.
    outward: *mut Outward,
    /// Its data, if it has any.
    data: Option<Data>,
}

impl Worker {
    /// Runs for ever.
    fn run(mut self) -> ! {
        let mut number = 1;
        loop {
            let ring = self.ring;
            let slot = ring.slot(number);
            let submission = self.wait(&slot.submission, number);
            let next = following(number);
            if let Some(ahead) = ring.slot(next).submission.submission(next) {
                fetch(ahead.entry);
            }
            self.carry_out(number, &submission, &slot.completion);
            number = next;
        }
    }

    /// The next submission.
    fn wait(&self, line: &Line, number: u32) -> Submission {
        loop {
            for _ in 0..LOOKS {
                if let Some(submission) = line.submission(number) {
                    return submission;
                }
                if self.ring.rest.0.load(Ordering::Relaxed) == number {
                    break;
                }
                std::hint::spin_loop();
            }
            sleep(&self.ring.sleep, None, || line.submission(number).is_some());
        }
    }

    fn carry_out(&mut self, number: u32, submission: &Submission, line: &Line) {
        let cell = self.layout.cell(submission.cell);
        if let Some(timer) = &self.timer {
            timer.begin(submission.quanta);
        }
        let data;
        let begun = self.ticks();
        let how = match submission.task {
            Task::Invoke => {
                data = self.prepare(submission, cell);
                self.allow(submission.cell, data.is_some());
                // SAFETY: the dispatcher names verified entries, and the cell is clean.
                unsafe { enter::enter(submission.entry, cell.stack_top(), number) }
            }
            Task::Resume => {
                let waiting = self.waiting[usize::from(submission.cell)].take();
                let Some(waiting) = waiting else {
                    return self.complete(line, number, &completion(End::Refused, 0));
                };
                let Waiting { stack, outward, .. } = waiting;
                data = waiting.data;
                data.iter().for_each(|data| self.put_back(submission.cell, data));
                self.answer(submission, cell, outward);
                self.allow(submission.cell, data.is_some());
                // SAFETY: the function has waited with this stack, and only now goes on.
                unsafe { enter::resume(stack, number) }
            }
        };
        let taken = self.ticks() - begun;
        timer::end();
        let mut done = match how {
            enter::CALLS => self.calls(submission, cell, data),
            enter::ABANDONED => self.abandoned(cell),
            _ => self.ended(how, submission, cell),
        };
        done.ticks = taken;
        self.complete(line, number, &done);
        // The dispatcher cleans all others.
        if submission.cell == 0 {
            self.clean(cell, how);
        }
    }

    /// The next function is in this cell.
    #[inline]
    fn allow(&self, cell: u16, has_data: bool) {
        if let Some(keys) = &self.keys {
            keys::Keys::set(keys.rights(cell, has_data));
        }
    }

    fn complete(&self, line: &Line, number: u32, done: &Completion) {
        line.complete(number, done);
        self.wake_dispatcher();
    }

    /// Wakes the dispatcher. One that watches budgets does not sleep while a function runs.
    fn wake_dispatcher(&self) {
        if self.timer.is_some() {
            wake(&self.ring.bell);
        }
    }

    /// The time stamp counter, or 0.
    fn ticks(&self) -> u64 {
        // SAFETY: reads a register, which is open.
        if self.has_counter { unsafe { std::arch::x86_64::_rdtsc() } } else { 0 }
    }

    /// Payload bytes at an offset that the dispatcher has named.
    fn payload(&self, at: u32) -> *mut u8 {
        self.payloads.wrapping_add(at as usize * GRAIN)
    }

    /// Where data of the function in a cell are kept while it waits.
    fn kept(&self, cell: u16) -> *mut u8 {
        self.kept.wrapping_add(usize::from(cell) * DATA_BYTES as usize)
    }

    /// Keeps the data of a function that waits.
    fn keep(&self, cell: u16, data: &Data) {
        // SAFETY: both are mapped for ever, and as long as that: images have no more data.
        unsafe { ptr::copy_nonoverlapping(data.at as *const u8, self.kept(cell), data.length()) };
    }

    /// Gives a function that goes on its data, of which nothing stays here.
    fn put_back(&self, cell: u16, data: &Data) {
        let kept = self.kept(cell);
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(kept, data.at as *mut u8, data.length()) };
        // SAFETY: as above.
        unsafe { ptr::write_bytes(kept, 0, data.length()) };
    }

    /// Writes the header, and the request behind it; the function's data, which are as it finds them.
    #[inline]
    fn prepare(&self, submission: &Submission, cell: Cell) -> Option<Data> {
        let mut data = None;
        let bytes = submission.bytes as usize;
        let heap = cell.begin + HEAP as u64;
        let to = heap as *mut u8;
        let parameters = match submission.input {
            Input::Short(short) => {
                let short = short.bytes();
                // SAFETY: the heap has more bytes than that.
                unsafe { ptr::copy_nonoverlapping(short.as_ptr(), to, SHORT) };
                0
            }
            Input::Long { at, parameters, has_data } => {
                let mut from = self.payload(at).cast_const();
                if has_data {
                    data = Some(restore(from));
                    from = from.wrapping_add(Data::BYTES);
                }
                let all = bytes + parameters as usize;
                // SAFETY: the dispatcher keeps requests shorter than the heap, and payloads in their memory.
                unsafe { ptr::copy_nonoverlapping(from, to, all) };
                parameters as usize
            }
        };
        let end = heap + (bytes + parameters) as u64;
        // SAFETY: the cell is clean, and no function runs.
        let header = unsafe { header(cell) };
        header.id = submission.call;
        header.body = Span { address: heap, bytes: bytes as u64 };
        header.parameters = Span { address: heap + bytes as u64, bytes: parameters as u64 };
        header.clock = self.layout.images;
        header.heap_end = cell.heap_end();
        header.heap_next = end.next_multiple_of(16);
        header.heap_used = header.heap_next;
        data
    }

    /// Puts a service's answer on the heap of the function that waits for it.
    fn answer(&self, submission: &Submission, cell: Cell, outward: *mut Outward) {
        // SAFETY: no function runs.
        let header = unsafe { header(cell) };
        let at = header.heap_next.checked_next_multiple_of(16).unwrap_or(u64::MAX);
        let end = at.checked_add(submission.bytes.into());
        let heap = cell.begin + HEAP as u64..=cell.heap_end();
        let fits = heap.contains(&at) && end.is_some_and(|end| heap.contains(&end));
        let (code, bytes) = match (submission.input, fits) {
            (Input::Long { parameters: code, .. }, true) => (code, submission.bytes),
            (Input::Short(_), true) => (0, submission.bytes),
            (_, false) => (NO_MEMORY, 0),
        };
        if bytes != 0 {
            let short;
            let from = match submission.input {
                Input::Long { at, .. } => self.payload(at).cast_const(),
                Input::Short(words) => {
                    short = words.bytes();
                    short.as_ptr()
                }
            };
            // SAFETY: within the heap, and what the dispatcher has written.
            unsafe { ptr::copy_nonoverlapping(from, at as *mut u8, bytes as usize) };
            header.heap_next = at + u64::from(bytes);
            header.heap_used = header.heap_used.max(header.heap_next);
        }
        let reply = Span { address: at, bytes: bytes.into() };
        // SAFETY: within the cell, as was checked when the function began to wait.
        let asked = unsafe { &mut *outward };
        (asked.reply, asked.code) = (reply, code);
    }

    /// A function calls a service: what it asks for goes to where its reply would.
    #[cold]
    fn calls(&mut self, submission: &Submission, cell: Cell, data: Option<Data>) -> Completion {
        let (stack, outward) = enter::waits();
        let span = Span { address: outward, bytes: size_of::<Outward>() as u64 };
        let is_whole = within(span, cell).is_some() && outward.is_multiple_of(8);
        // What no function asks for that has kept to the language is as a wrong address is.
        let fault = Completion { detail: outward, ..completion(End::Fault, libc::SIGSEGV as u16) };
        if submission.cell == 0 || !is_whole {
            return fault;
        }
        let outward = outward as *mut Outward;
        // SAFETY: within the cell, whose function is not running.
        let Outward { message, service, method, .. } = unsafe { outward.read_volatile() };
        let names = u64::from(service) + u64::from(method);
        let Some((from, bytes)) = within(message, cell).filter(|_| names <= message.bytes) else {
            return fault;
        };
        if bytes > submission.room as usize {
            return Completion { detail: bytes as u64, ..completion(End::Room, 0) };
        }
        // SAFETY: within the cell, and in the room that the dispatcher has kept for it.
        unsafe { ptr::copy_nonoverlapping(from, self.payload(submission.output), bytes) };
        data.iter().for_each(|data| self.keep(submission.cell, data));
        self.waiting[usize::from(submission.cell)] = Some(Waiting { stack, outward, data });
        let lost = (message.bytes - names) as u32;
        Completion { bytes: service, log: method, lost, ..completion(End::Calls, 0) }
    }

    /// What has come of a function.
    #[inline]
    fn ended(&self, how: u64, submission: &Submission, cell: Cell) -> Completion {
        // SAFETY: no function runs.
        let Header { status, code, reply, log_bytes, log_lost, wanted, .. } =
            unsafe { *header(cell) };
        let end = match (how, status) {
            // It has been refused what it may have in a cell of its own, whatever it has made of that.
            (enter::RETURNED, _) if submission.cell == 0 && wanted != 0 => End::Memory,
            (enter::RETURNED, status::REPLY) => End::Reply,
            (enter::RETURNED, status::ERROR) => End::Error,
            (enter::LEFT, status::MEMORY) => End::Memory,
            _ => End::Panic,
        };
        let most = if end == End::Reply { usize::MAX } else { MESSAGE_BYTES };
        // What is not wholly in the cell is nothing.
        let (from, bytes) = within(reply, cell).unwrap_or((ptr::null(), 0));
        let bytes = bytes.min(most);
        let log = log_bytes.min(LOG_BYTES as u64) as usize;
        let mut done = completion(end, code as u16);
        (done.lost, done.log) = (log_lost as u32, log as u32);
        if end == End::Memory {
            done.detail = wanted;
        }
        if bytes <= SHORT && log == 0 {
            let mut short = [0; SHORT];
            // SAFETY: within the cell, whose function is not running.
            unsafe { ptr::copy_nonoverlapping(from, short.as_mut_ptr(), bytes) };
            done.short = Short::new(&short);
            done.bytes = bytes as u32;
            return done;
        }
        let room = submission.room as usize;
        let to = self.payload(submission.output);
        let kept = if bytes + log <= room { bytes } else { 0 };
        if kept != bytes {
            done.end = End::Room;
            done.detail = bytes as u64;
        }
        let log = log.min(room - kept);
        // SAFETY: within the cell, and in the room that the dispatcher has kept for it.
        unsafe { ptr::copy_nonoverlapping(from, to, kept) };
        let lines = (cell.begin as *const u8).wrapping_add(LOG);
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(lines, to.wrapping_add(kept), log) };
        (done.bytes, done.log) = (kept as u32, log as u32);
        done
    }

    #[cold]
    fn abandoned(&self, cell: Cell) -> Completion {
        let (signal, address) = handlers::reason();
        if signal == STOP {
            return completion(End::Stopped, 0);
        }
        let bottom = cell.stack_top() - cell.stack;
        let is_stack = signal == libc::SIGSEGV && (bottom - (1 << 20)..bottom).contains(&address);
        let end = if is_stack { End::Stack } else { End::Fault };
        Completion { detail: address, ..completion(end, signal as u16) }
    }

    /// Makes cell 0 as it was.
    #[inline]
    fn clean(&self, cell: Cell, how: u64) {
        // SAFETY: no function runs.
        let header = unsafe { header(cell) };
        let heap = cell.begin + HEAP as u64;
        // A function that says something else than it has used leaves what only it has written.
        let used = match header.heap_used.checked_sub(heap) {
            Some(used) if used <= cell.heap => used as usize,
            _ => cell.heap as usize,
        };
        // SAFETY: the cell's own memory.
        unsafe { ptr::write_bytes(heap as *mut u8, 0, used) };
        // One that did not return may have been within its first line.
        if header.log_bytes != 0 || how != enter::RETURNED {
            let log = (cell.begin as *mut u8).wrapping_add(LOG);
            // SAFETY: as above.
            unsafe { ptr::write_bytes(log, 0, LOG_BYTES) };
        }
        // SAFETY: as above; zeros are a header.
        unsafe { ptr::write_bytes(ptr::from_mut(header), 0, 1) };
        let stack = (cell.stack_top() - LIGHT_STACK) as *mut u8;
        // SAFETY: as above.
        unsafe { ptr::write_bytes(stack, 0, LIGHT_STACK as usize) };
    }
}

/// Has the processor fetch the code of the function that comes next, while another one runs: of thousands of
/// functions, most have left its caches since their last call.
#[inline]
fn fetch(entry: u64) {
    const LINES: u64 = 8;
    for line in 0..LINES {
        let at = (entry + 64 * line) as *const i8;
        // SAFETY: a hint, which faults nowhere.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) };
    }
}

/// A cell's header. Whatever bytes a function has left there, they are one.
///
/// # Safety
/// No function runs, and nobody else has the header.
unsafe fn header<'a>(cell: Cell) -> &'a mut Header {
    // SAFETY: the cell is mapped for ever; the rest is the caller's word.
    unsafe { &mut *(cell.begin as *mut Header) }
}

/// Makes a function's data what it finds, as the payload says: where they are.
fn restore(payload: *const u8) -> Data {
    // SAFETY: the dispatcher has written as many bytes.
    let data = Data::from_bytes(unsafe { payload.cast::<[u8; Data::BYTES]>().read() });
    let (from, to, bytes) = (data.from as *const u8, data.at as *mut u8, data.bytes as usize);
    // SAFETY: both are of the image, which has its plots while it is called.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    // SAFETY: as above.
    unsafe { ptr::write_bytes(to.wrapping_add(bytes), 0, data.zeros as usize) };
    data
}

/// The status of a call whose answer has no room on the heap: RESOURCE_EXHAUSTED.
const NO_MEMORY: u32 = 8;

/// The bytes of a span, and how many, if all of it is in the cell's heap or stack.
fn within(span: Span, cell: Cell) -> Option<(*const u8, usize)> {
    let end = span.address.checked_add(span.bytes)?;
    let stack = cell.stack_top() - cell.stack..=cell.stack_top();
    let heap = cell.begin..=cell.heap_end();
    let is_in =
        [stack, heap].iter().any(|part| part.contains(&span.address) && part.contains(&end));
    is_in.then_some((span.address as *const u8, span.bytes as usize))
}

fn completion(end: End, code: u16) -> Completion {
    Completion { end, code, bytes: 0, log: 0, lost: 0, detail: 0, ticks: 0, short: None }
}

/// Maps a part of a file at a fixed address where nothing is.
fn map(
    at: u64,
    bytes: u64,
    rights: rustix::mm::ProtFlags,
    file: Option<(std::os::fd::BorrowedFd<'_>, u64)>,
) -> io::Result<()> {
    use rustix::mm::MapFlags;
    let at = ptr::without_provenance_mut(at as usize);
    let bytes = bytes as usize;
    let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    match file {
        Some((file, offset)) => {
            // SAFETY: nothing is there, or this fails.
            unsafe { rustix::mm::mmap(at, bytes, rights, flags | MapFlags::SHARED, file, offset)? };
        }
        None => {
            // SAFETY: as above.
            unsafe { rustix::mm::mmap_anonymous(at, bytes, rights, flags | MapFlags::PRIVATE)? };
        }
    }
    Ok(())
}
