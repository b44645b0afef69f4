#![allow(unsafe_code, reason = "maps its workers' memory, and starts them with descriptors")]
//! The dispatcher's side of one worker.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use partywall_abi::function::{Completion, GRAIN, Ring, SLOTS, Submission, following};
use partywall_abi::sync::Ordering;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::clock::Exactness;
use crate::layout::{CELL_FILE, Layout, PAYLOAD_BYTES, RING_BYTES, WORKER_BYTES};
use crate::sleep::wake;
use crate::store::Store;
use crate::worker::{STOP, Start};

/// A worker as its dispatcher has it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pidfd: OwnedFd,
    ring: *const Ring,
    /// The next submission's number, and that of the first without a completion.
    next: u32,
    oldest: u32,
    payloads: *mut u8,
    memory: OwnedFd,
    layout: Layout,
}

impl Worker {
    /// Starts a worker. `program` is one that calls [`crate::worker::main`] with its last argument.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(
        program: &[String],
        layout: Layout,
        store: &Store,
        bell: &OwnedFd,
        (cpu, exactness): (Option<usize>, Exactness),
    ) -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("partywall-worker", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, WORKER_BYTES)?;
        let descriptors = [memory.as_raw_fd(), store.file().as_raw_fd(), bell.as_raw_fd()];
        let has_counter = exactness == Exactness::Exact;
        let start = Start { layout, blocks: store.blocks(), descriptors, cpu, has_counter };
        let [file, arguments @ ..] = program else {
            return Err(io::Error::other("no program is named for workers"));
        };
        let mut command = Command::new(file);
        command.args(arguments).arg(start.to_argument()).stdin(Stdio::null());
        command.env_clear().env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").current_dir("/");
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
        let child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let (rights, bytes) = (ProtFlags::READ | ProtFlags::WRITE, RING_BYTES + PAYLOAD_BYTES);
        // SAFETY: where nothing is.
        let at = unsafe {
            let file = memory.as_fd();
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                rights,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let ring = at.cast::<Ring>().cast_const();
        let payloads = at.cast::<u8>().wrapping_add(RING_BYTES as usize);
        Ok(Self { child, pidfd, ring, next: 1, oldest: 1, payloads, memory, layout })
    }

    #[inline(always)]
    fn ring(&self) -> &Ring {
        // SAFETY: mapped for as long as this lives, and all of it is atomic.
        unsafe { &*self.ring }
    }

    /// Whether there is a slot for another submission.
    pub fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.oldest) < SLOTS
    }

    /// The number that the next submission has.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Submits; its number. There must be room.
    #[inline]
    pub fn submit(&mut self, submission: &Submission) -> u32 {
        let number = self.next;
        self.ring().slot(number).submission.submit(number, submission);
        self.next = following(number);
        wake(&self.ring().sleep);
        number
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
        let to = self.payloads.wrapping_add(at as usize * GRAIN);
        assert!(
            at as usize * GRAIN + bytes.len() <= PAYLOAD_BYTES as usize,
            "outside the payloads"
        );
        // SAFETY: within what is mapped; the worker does not read it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of the payloads, which the worker may be changing.
    pub fn read(&self, at: u32, bytes: usize) -> Vec<u8> {
        let from = self.payloads.wrapping_add(at as usize * GRAIN);
        assert!(at as usize * GRAIN + bytes <= PAYLOAD_BYTES as usize, "outside the payloads");
        let mut to = vec![0; bytes];
        // SAFETY: within what is mapped, and read once.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        to
    }

    /// Stops the function that runs as this submission, if it still does.
    pub fn stop(&self, number: u32) {
        self.ring().stop.0.store(number, Ordering::Relaxed);
        let signal = rustix::process::Signal::from_named_raw(STOP).expect("a signal's number");
        // One that has ended is noticed elsewhere.
        let _gone = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Its process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended is only waited for.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
        let bytes = (RING_BYTES + PAYLOAD_BYTES) as usize;
        // SAFETY: what was mapped at the start; nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.ring.cast_mut().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// The memory of a dispatcher's own word of sleep.
///
/// # Errors
/// The kernel's.
pub fn bell() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("partywall-bell", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, crate::layout::PAGE)?;
    Ok(file)
}
