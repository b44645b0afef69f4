#![allow(unsafe_code, reason = "a task that shares this process's memory")]
//! A domain's first task: made by clone(2) with `CLONE_VM` and nothing else shared, so that it has
//! a pid, descriptors, signal handlers and credentials of its own, and this process's memory.
//!
//! ```text
//! launcher: loads the program, clone() ----> waits for `entered` or the task's end
//! task:                                 guards, descriptors, filter, `entered`, the program
//! ```
//!
//! Between clone and the program's first instruction the task runs code of this process on a stack of
//! this process, with the thread-local storage of the thread that made it: it makes raw system
//! calls, writes the [`Start`] it was given, and nothing else. What fails there is written down as a
//! step and an error number, and the task ends with status 127.
//!
//! Guards: SIGKILL when the launcher's thread ends (`PR_SET_PDEATHSIG`), no core dump (it would hold
//! every domain's memory), no new privileges, the filter of [`crate::syscalls`].
//!
//! When the task dies, its memory stays until [`Domain`] is dropped, which kills what is left of it
//! and frees the slot when nothing of it runs and nobody is inside any more. That takes a second at
//! most: a debugger can keep a task that is dead from being waited for, and a caller that is stopped
//! stays inside. What is left then goes when the next domain is to begin. Whoever is supervising
//! domains drops one that has ended at once: until then, those who are inside of it find out by
//! themselves, and what it was inside of stays busy.
//!
//! | label | what pairs | shown by |
//! | --- | --- | --- |
//! | SYNC(task.progress) | The failed step is written before the task ends, and `entered` before the program begins; the launcher asks whether the task has ended, then reads the state, then the step. | `a_program_that_ends_at_once_has_been_entered`, `a_task_that_ends_before_its_program_says_how_far_it_came` |

use std::cell::UnsafeCell;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Signal, WaitIdOptions};

use crate::address_space::{AddressSpace, Slot};
use crate::callers;
use crate::elf::{ElfError, Image};
use crate::links;
use crate::load;
use crate::process::{Process, exit_status};
use crate::sigaction::{self, Action};
use crate::sys::{self, Errno};
use crate::syscalls;
use crate::table::{DomainEntry, SLOTS, TABLES};

/// What to run as a domain.
#[derive(Debug)]
pub struct Program {
    /// A sealed memfd with the program file: nobody can change it while it runs.
    pub image: OwnedFd,
    /// `argv`, from `argv[0]` on.
    pub args: Vec<OsString>,
    /// The whole environment; [`Domain::start`] adds what a C library must know.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory.
    pub directory: PathBuf,
    /// What becomes descriptors 0, 1, 2 and so on; all others are closed.
    pub descriptors: Vec<OwnedFd>,
}

/// Why a domain did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The file cannot be a domain.
    #[error("{0}")]
    Elf(#[from] ElfError),
    /// All slots are taken.
    #[error("all {} places for domains in this launcher are taken", crate::table::SLOTS)]
    Full,
    /// Each domain needs a protection key of its own, and so do their arenas.
    #[error(
        "no protection key is left for another domain: {domains} domains of this launcher and the \
         arenas between them have taken those that there are; start it with isolation `none`, as a \
         process, or in another launcher"
    )]
    NoKeys {
        /// How many there are.
        domains: usize,
    },
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// What was being done.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Kernel { what, source }
}

/// What calls into a domain, and its own to others, have come to since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Called {
    /// Calls that came back or were ended.
    pub calls: u64,
    /// System calls made from inside them, forwarded to the domain's own task.
    pub forwards: u64,
    /// Time spent inside, calls to others included, in ticks of the time stamp counter; see the crate's gate
    /// for how it is measured.
    pub ticks: u64,
    /// Time that its own threads have spent in calls to others, in the same ticks. As far as they ran
    /// there, the kernel counts it as CPU time of theirs.
    pub callee_time: u64,
}

/// A program that runs in this process's address space. Dropping it kills it.
#[derive(Debug)]
pub struct Domain {
    task: Arc<Process>,
    status: Option<ExitStatus>,
    /// Freed after the task is gone.
    slot: Option<Slot>,
}

impl Domain {
    /// Loads and starts `program` in `space`. The thread that calls this must live as long as the
    /// domain: the kernel kills the domain when that thread ends.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(space: &AddressSpace, program: Program) -> Result<Self, StartError> {
        let file = Mapped::new(program.image.as_fd()).map_err(failed("reading the program"))?;
        let image = Image::parse(&file)?;
        drop(file);
        let slot = space.slot().ok_or(StartError::Full)?;
        let args = load::c_strings(program.args.iter().map(|a| a.as_os_str()));
        let args = args.map_err(failed("taking the arguments"))?;
        // Restartable sequences: the kernel writes a thread's area with whatever memory rights the
        // thread has at that moment, and kills it when they do not do.
        let tunables = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        let environment = program.environment.into_iter().filter(|(key, _)| key != tunables.0);
        let environment: Vec<OsString> = environment
            .chain([tunables].map(|(key, value)| (key.into(), value.into())))
            .map(|(mut entry, value)| {
                entry.push("=");
                entry.push(value);
                entry
            })
            .collect();
        let environment = load::c_strings(environment.iter().map(|e| e.as_os_str()));
        let environment = environment.map_err(failed("taking the environment"))?;
        let directory = CString::new(program.directory.as_os_str().as_bytes())
            .map_err(|e| failed("taking the working directory")(e.into()))?;
        let (key, rights) = slot.key().map_err(|why| match why.0 {
            libc::ENOSPC => StartError::NoKeys { domains: space.count() - 1 },
            _ => failed("allocating a protection key")(why.into()),
        })?;
        let loaded = load::load(&slot, &image, program.image.as_fd(), &args, &environment, key)
            .map_err(failed("mapping the program"))?;
        syscalls::prepare(slot.index(), loaded.entry % (64 << 30));
        sigaction::prepare(slot.index());
        // Numbers above those they are to get, so that none is overwritten before it is placed.
        let lowest = program.descriptors.len() as RawFd;
        let descriptors = program
            .descriptors
            .iter()
            .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, lowest).map_err(io::Error::from))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed("placing descriptors"))?;
        let range = slot.range();
        {
            let _locked = callers::lock_entries();
            TABLES.begin(slot.index());
            let domain = table(slot.index());
            domain.rights.store(rights, Ordering::Relaxed);
            domain.key.store(key, Ordering::Relaxed);
        }
        let start = Start {
            slot: slot.index(),
            parent: rustix::process::getpid().as_raw_pid(),
            entry: loaded.entry,
            stack: loaded.stack,
            rights,
            directory: directory.as_ptr() as u64,
            descriptors: descriptors.as_ptr_range(),
            filter: syscalls::filter(range.start, range.end),
            progress: Progress::default(),
        };
        let (pid, pidfd) = clone(&start).map_err(failed("making the task"))?;
        let mut domain =
            Self { task: Arc::new(Process { pid, pidfd }), status: None, slot: Some(slot) };
        start.progress.entered(|| Ok(domain.try_wait()?.is_some()))?;
        Ok(domain)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.task.pid
    }

    /// Its pidfd, readable when the task has ended with all its threads; as long as a debugger holds one
    /// of those that have, it is not.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.task.pidfd.as_fd()
    }

    /// How it ended, if it has, and no debugger keeps that to itself.
    ///
    /// # Errors
    /// What waitid(2) says.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What waitid(2) says.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        Ok(self.wait_with(WaitIdOptions::EXITED)?.expect("waited for the end"))
    }

    fn wait_with(&mut self, options: WaitIdOptions) -> io::Result<Option<ExitStatus>> {
        while self.status.is_none() {
            let id = rustix::process::WaitId::PidFd(self.task.pidfd.as_fd());
            let told = rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), options))?;
            let Some(told) = told else { break };
            // Whoever traces a task is told of its stops as well, whatever it waits for (ptrace(2)).
            self.status = exit_status(&told);
        }
        Ok(self.status)
    }

    /// Whether a call in it has ended in the middle, so that nobody knows what its locks and its
    /// heap are like: start it again.
    pub fn is_poisoned(&self) -> bool {
        self.slot
            // SYNC(domain.poisoned)
            .as_ref()
            .is_some_and(|slot| table(slot.index()).poisoned.load(Ordering::Acquire) != 0)
    }

    /// What calls into it, and its own to others, have come to.
    pub fn called(&self) -> Called {
        let mut sum = Called::default();
        for context in self.slot.iter().flat_map(|slot| &TABLES.contexts[slot.index()]) {
            sum.calls += context.calls.load(Ordering::Relaxed);
            sum.forwards += context.forwards.load(Ordering::Relaxed);
            sum.ticks += context.ticks.load(Ordering::Relaxed);
        }
        if let Some(slot) = &self.slot {
            sum.callee_time = callers::callee_time(slot.index());
        }
        sum
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// What pidfd_send_signal(2) says; a task that has ended is none.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.task.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// The addresses that are its own.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.slot.as_ref().map_or(0..0, Slot::range)
    }
}

impl Drop for Domain {
    /// Takes no more calls, ends those under way, and waits for a while until nothing of it runs and
    /// nobody is inside any more; what is left then, whoever looks for a slot frees.
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        table(slot.index()).end();
        links::close_all(slot.index());
        // From here on the gate sees that, or this sees who is on the way in.
        sys::barrier();
        if let Err(why) = self.signal(Signal::KILL) {
            // Memory under a task that may run is not given away.
            tracing::error!(pid = self.pid(), %why, "a domain may not have ended; its slot is kept");
            let _kept = std::mem::ManuallyDrop::new(slot);
            return;
        }
        let begin = Instant::now();
        // The watchdog looks every few milliseconds.
        while !self.task.has_left_slot(slot.index(), begin.elapsed()) {
            if begin.elapsed() > PATIENCE {
                // A caller that is stopped (SIGSTOP) is still inside.
                return slot.leave(&self.task);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        slot.free(&self.task);
    }
}

/// A program's file, mapped; it is sealed, so its bytes stay.
struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    fn new(image: BorrowedFd<'_>) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(image)?;
        let needed = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::WRITE;
        if !seals.contains(needed) {
            return Err(io::Error::other(
                "the file is not sealed: it must be a memfd that cannot change",
            ));
        }
        let bytes = rustix::fs::fstat(image)?.st_size as usize;
        let (at, read) = (std::ptr::null_mut(), ProtFlags::READ);
        // SAFETY: where the kernel likes. No mapping is empty; nothing is read beyond the file.
        let at = unsafe { mmap(at, bytes.max(1), read, MapFlags::PRIVATE, image, 0)? };
        Ok(Self { at: NonNull::new(at.cast()).expect("mmap never returns null"), bytes })
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, and neither written nor shortened, as its seals say.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference any more.
        let _unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.bytes.max(1)) };
    }
}

/// How long a domain's end waits for those inside.
const PATIENCE: Duration = Duration::from_secs(1);
const STARTING: u32 = 0;
const ENTERED: u32 = 1;

fn table(slot: usize) -> &'static DomainEntry {
    &TABLES.domains[slot]
}

/// What the new task reads, and writes how far it came.
struct Start {
    slot: usize,
    parent: i32,
    entry: u64,
    stack: u64,
    rights: u32,
    directory: u64,
    descriptors: std::ops::Range<*const OwnedFd>,
    filter: syscalls::Filter,
    progress: Progress,
}

/// How far a new task has come.
#[derive(Default)]
struct Progress {
    /// [`STARTING`], then [`ENTERED`] for good.
    state: AtomicU32,
    /// The step that failed, and its error number in the upper word.
    step: AtomicU64,
}

impl Progress {
    /// Waits until the task has left this process's code for its own. `has_ended` says whether the
    /// task has ended: it may have been killed, and then nobody says anything.
    fn entered(&self, mut has_ended: impl FnMut() -> io::Result<bool>) -> Result<(), StartError> {
        loop {
            // In this order: a program may have ended as soon as it was entered, and what has ended
            // says nothing more.
            let has_ended = has_ended().map_err(failed("waiting for the task"))?;
            // SYNC(task.progress)
            if self.state.load(Ordering::Acquire) == ENTERED {
                return Ok(());
            }
            if has_ended {
                let step = self.step.load(Ordering::Acquire); // SYNC(task.progress)
                let source = match (step >> 32) as i32 {
                    0 => io::Error::other("it was killed"),
                    number => io::Error::from_raw_os_error(number),
                };
                return Err(StartError::Kernel { what: Step::name(step as u32), source });
            }
            let timeout = rustix::thread::futex::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let flags = rustix::thread::futex::Flags::PRIVATE;
            let _woken = rustix::thread::futex::wait(&self.state, flags, STARTING, Some(&timeout));
        }
    }
}

/// Where a slot's new task runs until its program begins.
#[repr(C, align(4096))]
struct FirstStack(UnsafeCell<[u8; FIRST_STACK]>);

const FIRST_STACK: usize = 32 << 10;

// SAFETY: only the new task of a slot uses it, and a slot has one at a time.
unsafe impl Sync for FirstStack {}

static FIRST_STACKS: [FirstStack; SLOTS] =
    [const { FirstStack(UnsafeCell::new([0; FIRST_STACK])) }; SLOTS];

/// What a new task does, for an error that names it.
#[derive(Clone, Copy)]
enum Step {
    Killed,
    Guards,
    Descriptors,
    Directory,
    Signals,
    Filter,
    Enter,
}

impl Step {
    fn name(number: u32) -> &'static str {
        const NAMES: [(Step, &str); 7] = [
            (Step::Killed, "starting the task"),
            (Step::Guards, "setting the task's limits"),
            (Step::Descriptors, "placing the task's descriptors"),
            (Step::Directory, "changing to the working directory"),
            (Step::Signals, "setting the task's signal handlers"),
            (Step::Filter, "installing the system-call filter"),
            (Step::Enter, "entering the program"),
        ];
        NAMES.iter().find(|(step, _)| *step as u32 == number).map_or(NAMES[0].1, |(_, name)| name)
    }
}

/// Makes the task; it is a child of this process and says so by SIGCHLD.
fn clone(start: &Start) -> io::Result<(u32, OwnedFd)> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
    let argument = (&raw const *start).cast_mut().cast();
    // Not in the slot, to which this process has no rights.
    let stack = FIRST_STACKS[start.slot].0.get().cast::<u8>().wrapping_add(FIRST_STACK);
    // No handler of this process runs in the task; the task opens them all again.
    let mask = sys::set_mask(u64::MAX);
    // SAFETY: the task runs `child` on a stack of its own, and that does what the module allows;
    // `start` outlives it: the caller waits until the program is entered or the task has ended.
    let pid = unsafe { libc::clone(child, stack.cast(), flags, argument, &raw mut pidfd) };
    let failed = io::Error::last_os_error();
    sys::set_mask(mask);
    if pid < 0 {
        return Err(failed);
    }
    // SAFETY: the kernel has just made it for this process alone.
    Ok((pid as u32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

extern "C" fn child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone` passes a `Start` that lives until this says that it is done.
    let start = unsafe { &*argument.cast::<Start>() };
    // SAFETY: this is the new task, before its program.
    let (step, Errno(number)) = unsafe { prepare(start) };
    // SYNC(task.progress)
    start.progress.step.store(step as u64 | (number as u64) << 32, Ordering::Release);
    // SAFETY: ends this task alone.
    let _never = unsafe { sys::call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    127
}

/// Returns only if something failed.
///
/// # Safety
/// Only in a new task, before its program.
unsafe fn prepare(start: &Start) -> (Step, Errno) {
    let step = |step: Step, result: Result<u64, Errno>| result.map_err(|e| (step, e));
    let done = (|| {
        // SAFETY: each concerns this task alone, and its pointers outlive it.
        let call = |number, arguments| unsafe { sys::call(number, arguments) };
        let kill = libc::SIGKILL as u64;
        step(
            Step::Guards,
            call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, kill, 0, 0, 0, 0]),
        )?;
        if call(libc::SYS_getppid, [0; 6]) != Ok(start.parent as u64) {
            return Err((Step::Killed, Errno(libc::ECHILD)));
        }
        let none = [0_u64; 2];
        let core = libc::RLIMIT_CORE as u64;
        let limit = call(libc::SYS_prlimit64, [0, core, none.as_ptr() as u64, 0, 0, 0]);
        step(Step::Guards, limit)?;
        let no_new = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0];
        step(Step::Guards, call(libc::SYS_prctl, no_new))?;
        step(Step::Guards, call(libc::SYS_setpgid, [0; 6]))?;
        let (mut at, mut number) = (start.descriptors.start, 0);
        while at < start.descriptors.end {
            // SAFETY: within the range that the parent keeps alive.
            let descriptor = unsafe { (*at).as_raw_fd() } as u64;
            step(Step::Descriptors, call(libc::SYS_dup2, [descriptor, number, 0, 0, 0, 0]))?;
            number += 1;
            // SAFETY: at most one past the end.
            at = unsafe { at.add(1) };
        }
        let rest = [number, u64::from(u32::MAX), 0, 0, 0, 0];
        step(Step::Descriptors, call(libc::SYS_close_range, rest))?;
        step(Step::Directory, call(libc::SYS_chdir, [start.directory, 0, 0, 0, 0, 0]))?;
        step(Step::Signals, default_signals(&call))?;
        step(Step::Signals, sigaction::install_in_domain().map(|()| 0))?;
        let program = libc::sock_fprog {
            len: start.filter.len() as u16,
            filter: start.filter.as_ptr().cast_mut(),
        };
        let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        let at = &raw const program as u64;
        step(Step::Filter, call(libc::SYS_seccomp, [mode, 0, at, 0, 0, 0]))?;
        let pid = call(libc::SYS_getpid, [0; 6]).unwrap_or_default();
        table(start.slot).pid.store(pid as i32, Ordering::Release); // SYNC(domain.pid)
        // ARCH_SET_FS: as after exec(3), no thread-local storage yet.
        step(Step::Enter, call(libc::SYS_arch_prctl, [0x1002, 0, 0, 0, 0, 0]))?;
        Ok(())
    })();
    if let Err(failed) = done {
        return failed;
    }
    let (entry, stack, rights) = (start.entry, start.stack, start.rights);
    let state = &raw const start.progress.state as u64;
    start.progress.state.store(ENTERED, Ordering::Release); // SYNC(task.progress)
    // The parent may free `start` from here on; a wake-up for an address needs nothing there.
    sys::wake(state);
    // SAFETY: a program was loaded there, with its stack.
    unsafe { sys::enter(entry, stack, rights) }
}

/// As after exec(3), but also what the launcher ignores: handlers of the launcher are not for the
/// program, and all signals are open.
fn default_signals(call: &impl Fn(i64, [u64; 6]) -> Result<u64, Errno>) -> Result<u64, Errno> {
    for signal in 1..=64 {
        if signal != libc::SIGKILL as u64 && signal != libc::SIGSTOP as u64 {
            Action::DEFAULT.install(signal)?;
        }
    }
    let none = 0_u64;
    let set = [libc::SIG_SETMASK as u64, &raw const none as u64, 0, 8, 0, 0];
    call(libc::SYS_rt_sigprocmask, set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_at_once_has_been_entered() {
        let progress = Progress::default();
        progress
            .entered(|| {
                progress.state.store(ENTERED, Ordering::Release);
                Ok(true)
            })
            .unwrap();
    }

    #[test]
    fn a_task_that_ends_before_its_program_says_how_far_it_came() {
        let said = |step: u64| {
            let progress = Progress::default();
            progress.step.store(step, Ordering::Release);
            progress.entered(|| Ok(true)).unwrap_err().to_string()
        };
        assert_eq!(said(0), "starting the task: it was killed");
        let directory = Step::Directory as u64 | (libc::ENOENT as u64) << 32;
        assert_eq!(
            said(directory),
            "changing to the working directory: No such file or directory (os error 2)"
        );
    }
}
