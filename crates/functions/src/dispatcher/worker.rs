#![allow(unsafe_code, reason = "maps its workers' memory, and starts them with descriptors")]
//! The dispatcher's side of one worker.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partywall_abi::function::{
    CLOSED, Completion, GRAIN, Ring, SLOTS, Submission, WOKEN, Word, begun, following,
};
use partywall_abi::security::Isolation;
use partywall_abi::sync::Ordering;
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Preemption, Workers};
use crate::clock::Exactness;
use crate::isolation::InForce;
use crate::layout::{CELL_FILE, Layout, PAYLOAD_BYTES, RING_BYTES, SAYS, WORKER_BYTES};
use crate::sleep::{open, wake};
use crate::store::{Store, memory};
use crate::worker::{STOP, Start};

/// A worker as its dispatcher has it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pidfd: OwnedFd,
    /// That of its CPU time.
    clock: Option<libc::clockid_t>,
    /// The ring, and the payloads behind it.
    shared: Mapping,
    /// The next submission's number, and that of the first without a completion.
    next: u32,
    oldest: u32,
    /// The worker is awake, or has been told of all submissions.
    is_announced: bool,
    memory: OwnedFd,
    layout: Layout,
    begun: OnceCell<Result<InForce, String>>,
}

/// How long a worker may take to begin.
pub(super) const BEGIN: Duration = Duration::from_secs(10);

impl Worker {
    /// Starts a worker for CPU `number` of these, which maps these images.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(workers: &Workers, number: usize, store: &Store) -> io::Result<Self> {
        let layout = store.layout();
        let memory = memory("partywall-worker", WORKER_BYTES)?;
        let shared = Mapping::new(memory.as_fd(), RING_BYTES + PAYLOAD_BYTES)?;
        // SAFETY: just mapped, and all of a ring is atomic.
        let ring = unsafe { &*shared.at.cast::<Ring>() };
        ring.sleep.0.store(CLOSED, Ordering::Relaxed);
        let files = [memory.as_fd(), store.file(), store.clock()];
        let descriptors = files.map(|file| file.as_raw_fd());
        let start = Start {
            layout,
            blocks: store.blocks(),
            descriptors,
            cpu: workers.cpus[number],
            has_counter: workers.exactness == Exactness::Exact,
            quantum_ns: match workers.preemption {
                Preemption::Dispatcher => None,
                Preemption::Timer(quantum) => Some(quantum.as_nanos() as u64),
            },
            isolation: workers.isolation,
        };
        let program = &workers.program;
        let [file, arguments @ ..] = &program[..] else {
            return Err(io::Error::other("no program is named for workers"));
        };
        let mut command = Command::new(file);
        command.args(arguments).stdin(Stdio::null()).env_clear();
        let (variable, value) = start.to_variable();
        command.env(variable, value).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").current_dir("/");
        let parent = rustix::process::getpid();
        let before = move || {
            for number in descriptors {
                // SAFETY: they are open in the parent, and so here.
                let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
                rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
            }
            let kill = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(kill)?;
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: system calls and nothing else.
        unsafe { command.pre_exec(before) };
        let mut child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                clock: clock(pid),
                child,
                pidfd,
                shared,
                next: 1,
                oldest: 1,
                is_announced: true,
                memory,
                layout,
                begun: OnceCell::new(),
            }),
            Err(why) => {
                end(&mut child);
                Err(why.into())
            }
        }
    }

    #[inline(always)]
    fn ring(&self) -> &Ring {
        // SAFETY: mapped for as long as this lives, and all of it is atomic.
        unsafe { &*self.shared.at.cast::<Ring>() }
    }

    #[inline(always)]
    fn payload(&self, at: u32) -> *mut u8 {
        self.shared.at.wrapping_add(RING_BYTES as usize + at as usize * GRAIN)
    }

    /// Whether there is a slot for another submission.
    pub fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.oldest) < SLOTS
    }

    /// The number that the next submission has.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// What the worker has begun with, or why it does not begin; none as long as it has said nothing. It
    /// takes submissions once this was read, so that no function can have written it.
    #[inline]
    pub fn begun(&self) -> Option<&Result<InForce, String>> {
        if self.begun.get().is_none() {
            let begun = match self.ring().has_begun() {
                begun::NOT_YET => return None,
                begun::PROTECTION_KEYS => {
                    Ok(InForce { isolation: Isolation::ProtectionKeys, why_not: None })
                }
                begun::NONE => {
                    Ok(InForce { isolation: Isolation::None, why_not: Some(self.text()) })
                }
                _ => Err(self.text()),
            };
            let may_look = begun.is_ok();
            let _first = self.begun.set(begun);
            if may_look {
                open(&self.ring().sleep);
            }
        }
        self.begun.get()
    }

    /// What the worker has said with that.
    fn text(&self) -> String {
        let mut bytes = [0; 4 + begun::TEXT];
        let from = self.shared.at.wrapping_add(SAYS as usize);
        // SAFETY: within what is mapped, and read once.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        let [a, b, c, d, text @ ..] = &bytes;
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        String::from_utf8_lossy(&text[..length.min(begun::TEXT)]).into_owned()
    }

    /// Waits until it has begun.
    ///
    /// # Errors
    /// Why it does not begin.
    pub fn wait(&mut self) -> io::Result<()> {
        let since = Instant::now();
        loop {
            // Who has ended has said why before.
            let ended = self.child.try_wait()?;
            match self.begun() {
                Some(Ok(_)) => return Ok(()),
                Some(Err(why)) => {
                    let why = format!("a worker of functions does not begin: {why}");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
                None => {}
            }
            if let Some(status) = ended {
                let why = format!("a worker of functions has ended before it began: {status}");
                return Err(io::Error::other(why));
            }
            if since.elapsed() > BEGIN {
                return Err(io::Error::other("a worker of functions does not begin"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Submits; its number. There must be room.
    #[inline]
    pub fn submit(&mut self, submission: &Submission) -> u32 {
        let number = self.put(submission);
        self.announce();
        number
    }

    /// The same of one of several; a worker that sleeps hears of them by [`Self::announce`].
    #[inline]
    pub(crate) fn put(&mut self, submission: &Submission) -> u32 {
        let number = self.next;
        self.ring().slot(number).submission.submit(number, submission);
        (self.next, self.is_announced) = (following(number), false);
        number
    }

    /// Wakes the worker if it sleeps and there is something new: behind a fence, which waits until all that
    /// was written can be seen, and so comes once for many.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if !std::mem::replace(&mut self.is_announced, true) {
            wake(&self.ring().sleep);
        }
    }

    /// Whether it was woken, and has not run since.
    pub(super) fn is_waking(&self) -> bool {
        self.ring().sleep.0.load(Ordering::Relaxed) == WOKEN
    }

    /// The CPU time that it has had by the kernel's account (clock_getcpuclockid(3)), which is up to a tick
    /// old while it runs; none where the kernel does not say.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes `time`, which lives here, and nothing else.
        let got = unsafe { libc::clock_gettime(self.clock?, &raw mut time) };
        let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        (got == 0).then_some(ns)
    }

    /// Whether it has begun, and looks for submissions from now on.
    pub fn has_begun(&self) -> bool {
        matches!(self.begun(), Some(Ok(_)))
    }

    /// Has the worker sleep until there is another submission; there is none now.
    pub fn rest(&self) {
        self.ring().rest.0.store(self.next, Ordering::Relaxed);
    }

    /// The word by which the worker wakes who waits for a completion, if it does so.
    pub(crate) fn bell(&self) -> &Word {
        &self.ring().bell
    }

    /// The next completion, if it has come.
    #[inline]
    pub fn completion(&mut self) -> Option<(u32, Completion)> {
        let number = self.oldest;
        if number == self.next {
            return None;
        }
        let completion = self.ring().slot(number).completion.completion(number)?;
        self.oldest = following(number);
        Some((number, completion))
    }

    /// Whether the next completion has come.
    pub fn has_completion(&self) -> bool {
        self.oldest != self.next && self.peek(self.oldest).is_some()
    }

    /// Makes a cell as it was before all functions; none is in it any more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clean(&self, cell: u16) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = self.layout.cell(cell).file;
        Ok(rustix::fs::fallocate(&self.memory, flags, file, CELL_FILE)?)
    }

    /// The bytes of a cell's memory, for tests.
    #[doc(hidden)]
    pub fn cell(&self, cell: u16) -> Vec<u8> {
        use std::os::unix::fs::FileExt as _;
        let mut bytes = vec![0; CELL_FILE as usize];
        let file = std::fs::File::from(self.memory.try_clone().expect("another descriptor"));
        file.read_exact_at(&mut bytes, self.layout.cell(cell).file).expect("its memory");
        bytes
    }

    /// A submission's completion, if it has come.
    pub fn peek(&self, number: u32) -> Option<Completion> {
        self.ring().slot(number).completion.completion(number)
    }

    /// Copies bytes into the payloads.
    pub fn write(&self, at: u32, bytes: &[u8]) {
        let to = self.payload(at);
        assert!(
            at as usize * GRAIN + bytes.len() <= PAYLOAD_BYTES as usize,
            "outside the payloads"
        );
        // SAFETY: within what is mapped; the worker does not read it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of the payloads, which the worker may be changing.
    pub fn read(&self, at: u32, bytes: usize) -> Vec<u8> {
        let from = self.payload(at);
        assert!(at as usize * GRAIN + bytes <= PAYLOAD_BYTES as usize, "outside the payloads");
        let mut to = vec![0; bytes];
        // SAFETY: within what is mapped, and read once.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        to
    }

    /// Stops the function that runs as this submission, if it still does: at once, or, should it have been
    /// off its CPU, when it has had what is left to it.
    pub fn stop(&self, number: u32, left: Duration) {
        let left_us = left.as_nanos().div_ceil(1000);
        self.ring().stop.set(number, u32::try_from(left_us).unwrap_or(u32::MAX));
        let signal = rustix::process::Signal::from_named_raw(STOP).expect("a signal's number");
        // One that has ended is noticed elsewhere.
        let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Its process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The inode of its memory, which nobody else maps; for tests.
    #[doc(hidden)]
    pub fn inode(&self) -> u64 {
        rustix::fs::fstat(&self.memory).expect("it is open").st_ino
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The clock of a process's CPU time, if the kernel has it.
fn clock(pid: rustix::process::Pid) -> Option<libc::clockid_t> {
    let mut clock = 0;
    // SAFETY: writes `clock`, which lives here, and nothing else.
    let got = unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) };
    (got == 0).then_some(clock)
}

/// Kills a process; one that has ended is only waited for.
fn end(child: &mut Child) {
    let _ended = child.kill();
    let _ended = child.wait();
}

/// The begin of a file, to be read and written; it is unmapped when this is dropped.
#[derive(Debug)]
struct Mapping {
    at: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let (rights, bytes) = (ProtFlags::READ | ProtFlags::WRITE, bytes as usize);
        let (anywhere, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: where nothing is.
        let at = unsafe { rustix::mm::mmap(anywhere, bytes, rights, shared, file, 0)? };
        Ok(Self { at: at.cast(), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped, of which all references borrow from this.
        let unmapped = unsafe { rustix::mm::munmap(self.at.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
