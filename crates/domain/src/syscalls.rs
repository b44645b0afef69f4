#![allow(unsafe_code, reason = "stands in for system calls, with the caller's pointers")]
//! The system calls of a domain that must not do what they do in a process of one program.
//!
//! A seccomp(2) filter, installed before the program's first instruction and inherited by its
//! threads and forks, sends a few calls to the SIGSYS handler ([`crate::handlers`]). It looks at where
//! the call comes from: only code in the domain's own slot is meant, so a program that is started by
//! exec(3) has nothing to do with it.
//!
//! | call | what becomes of it |
//! | --- | --- |
//! | mmap | placed in the slot, with the domain's protection key; `MAP_FIXED` outside of it is EPERM |
//! | mremap | the same, where it moves |
//! | rt_sigaction | the handler is called by ours, which finds the right thread-local storage; SIGSYS and the launcher's own signal, SIGSTKFLT, cannot be caught (EINVAL) |
//! | rt_sigprocmask | signals that the gate depends on stay unblocked |
//! | shmat, io_setup | ENOSYS: they would map outside the slot |
//! | mseal | ENOSYS: a slot with sealed memory could not be given to another |
//! | mlockall, munlockall | EPERM: the whole address space is meant, and others are in it; mlock(2) is this domain's own, but for the limit, which all of them share |
//! | prctl | EPERM where it is about the address space: `PR_SET_DUMPABLE`, `PR_SET_MM`, `PR_SET_THP_DISABLE`, `PR_SET_MDWE`, `PR_SET_MEMORY_MERGE`, `PR_FUTEX_HASH`; and `PR_SET_PDEATHSIG`, but for SIGKILL, which is what comes when the launcher ends |
//! | ptrace | `PTRACE_TRACEME` is EPERM: the launcher would be the tracer, and does not wait for that; a child may have its domain trace it |
//! | execve, execveat | the program goes on as a process of its own, and takes no more calls |
//! | rseq | ENOSYS, from wherever: the kernel would go to an address of the program's choice out of the middle of the gate |
//!
//! The same table serves calls that code of this domain makes in somebody else's thread; those are
//! made by the context's agent ([`crate::contexts`]).
//!
//! This code runs at any point of the program, before it has thread-local storage and in the
//! middle of its allocator: it uses no C library, allocates nothing, locks nothing, and finds what
//! it needs by the address that was trapped. It has all rights, so a pointer that does not lead into
//! the domain's slot, or to the thread's signal stack, is EFAULT; one that leads to nothing is a fault of the
//! domain here.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::callers;
use crate::contexts;
use crate::elf::PAGE;
use crate::keys;
use crate::self_query;
use crate::sigaction::{self, Action, KEPT_OPEN};
use crate::sys::{self, Errno};
use crate::table::{Context, MAPPINGS, SLOT, SLOTS, TABLES};

/// Where the next mapping of each slot is tried, relative to the slot.
static CURSORS: [AtomicU64; SLOTS] = [const { AtomicU64::new(MAPPINGS) }; SLOTS];

/// Mappings from this size on are aligned to it, so that the kernel can use huge pages.
const HUGE: u64 = 2 << 20;

/// Begins a new domain in a slot.
pub(crate) fn prepare(index: usize, jitter: u64) {
    CURSORS[index].store(MAPPINGS + jitter / PAGE * PAGE, Ordering::Relaxed);
}

/// What is trapped in a domain's slot.
const TRAPPED: [i64; 11] = [
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_shmat,
    libc::SYS_io_setup,
    libc::SYS_mseal,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// What prctl(2) would set for the address space, in which others are, or take from the launcher;
/// only these are trapped, for the handler's rights are not those that another's pointer is to be
/// followed with.
const NOT_ITS_OWN: [libc::c_int; 7] = [
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_DUMPABLE,
    libc::PR_SET_MM,
    libc::PR_SET_THP_DISABLE,
    libc::PR_SET_MDWE,
    67, // PR_SET_MEMORY_MERGE of <linux/prctl.h>
    78, // PR_FUTEX_HASH
];

/// A filter's program.
pub(crate) type Filter = [libc::sock_filter; ABSENT + 1];

// Where in it: the first of `TRAPPED`, prctl's and ptrace's parts, and what comes of a call.
const FIRST: usize = 8;
const PRCTL: usize = FIRST + TRAPPED.len();
const OPTION: usize = PRCTL + 1;
const FIRST_OPTION: usize = OPTION + 1;
const PTRACE: usize = FIRST_OPTION + NOT_ITS_OWN.len();
const REQUEST: usize = PTRACE + 1;
const TRACEME: usize = REQUEST + 1;
const ALLOW: usize = TRACEME + 1;
const TRAP: usize = ALLOW + 1;
const ABSENT: usize = ALLOW + 2;

/// The filter for a domain whose slot is `start..end`, both multiples of 4 GiB.
pub(crate) fn filter(start: u64, end: u64) -> Filter {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Offsets in struct seccomp_data: nr 0, arch 4, instruction_pointer 8 (its upper word 12), args 16.
    const X86_64: u32 = 0xc000_003e;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let load = |offset| step(LOAD, offset, 0, 0);
    // A jump counts the steps between.
    let far = |from: usize, to: usize| (to - from - 1) as u8;
    std::array::from_fn(|at| match at {
        0 => load(4),
        1 => step(EQUAL, X86_64, 0, far(at, ALLOW)),
        3 => step(EQUAL, libc::SYS_rseq as u32, far(at, ABSENT), 0),
        4 => load(12),
        5 => step(ABOVE, (start >> 32) as u32, 0, far(at, ALLOW)),
        6 => step(ABOVE, (end >> 32) as u32, far(at, ALLOW), 0),
        2 | 7 => load(0),
        FIRST..PRCTL => step(EQUAL, TRAPPED[at - FIRST] as u32, far(at, TRAP), 0),
        PRCTL => step(EQUAL, libc::SYS_prctl as u32, 0, far(at, PTRACE)),
        OPTION | REQUEST => load(16),
        FIRST_OPTION..PTRACE => {
            let option = NOT_ITS_OWN[at - FIRST_OPTION];
            let other = if at + 1 < PTRACE { 0 } else { far(at, ALLOW) };
            step(EQUAL, option as u32, far(at, TRAP), other)
        }
        PTRACE => step(EQUAL, libc::SYS_ptrace as u32, 0, far(at, ALLOW)),
        TRACEME => step(EQUAL, libc::PTRACE_TRACEME, far(at, TRAP), far(at, ALLOW)),
        ALLOW => step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        TRAP => step(RETURN, libc::SECCOMP_RET_TRAP, 0, 0),
        _ => step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
    })
}

/// A call that was trapped.
pub(crate) struct Call<'a> {
    /// The mask of the code that made it, which is in force again when the handler returns.
    pub(crate) mask: &'a mut u64,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
    /// The domain whose code made it.
    pub(crate) domain: usize,
    /// The context, if that code runs in another domain's thread.
    pub(crate) lent: Option<&'a Context>,
}

impl Call<'_> {
    /// Does what is to be done instead.
    pub(crate) fn answer(&mut self) -> Result<u64, Errno> {
        if self.domain >= SLOTS {
            return self.make(self.number, self.arguments);
        }
        match self.number {
            libc::SYS_mmap => self.mmap(),
            libc::SYS_mremap => self.mremap(),
            libc::SYS_rt_sigaction => self.sigaction(),
            libc::SYS_rt_sigprocmask => self.sigprocmask(),
            libc::SYS_shmat | libc::SYS_io_setup | libc::SYS_mseal => Err(Errno(libc::ENOSYS)),
            libc::SYS_mlockall | libc::SYS_munlockall => Err(Errno(libc::EPERM)),
            libc::SYS_prctl => self.prctl(),
            libc::SYS_ptrace if self.is_of_a_child() => self.make(self.number, self.arguments),
            libc::SYS_ptrace => Err(Errno(libc::EPERM)),
            libc::SYS_execve | libc::SYS_execveat => self.exec(),
            number => self.make(number, self.arguments),
        }
    }

    /// Makes a call in the kernel task of the domain.
    fn make(&self, number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
        match self.lent {
            Some(context) => contexts::ask(context, number, arguments),
            // SAFETY: the domain made this call; what has changed is where in its slot it maps.
            None => unsafe { sys::call(number, arguments) },
        }
    }

    fn slot(&self) -> u64 {
        TABLES.base.load(Ordering::Relaxed) + self.domain as u64 * SLOT
    }

    /// Whether the domain may have the kernel read or write there: in its slot, or, for a handler of
    /// its own, on its thread's signal stack.
    fn may_name(&self, start: u64, bytes: u64) -> Result<(), Errno> {
        let end = start.checked_add(bytes).ok_or(Errno(libc::EFAULT))?;
        // The one that this handler runs on, if it does.
        let stack = callers::signal_stack_of(&raw const end as u64);
        let on_it = stack.is_some_and(|stack| stack.start <= start && end <= stack.end);
        let may = start == 0 || on_it || self.is_ours(start, bytes);
        may.then_some(()).ok_or(Errno(libc::EFAULT))
    }

    fn is_ours(&self, start: u64, bytes: u64) -> bool {
        let end = start.checked_add(bytes);
        self.slot() <= start && end.is_some_and(|end| end <= self.slot() + SLOT)
    }

    fn mmap(&self) -> Result<u64, Errno> {
        let [hint, bytes, rights, flags, file, offset] = self.arguments;
        let fixed = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
        if flags & fixed != 0 {
            if !self.is_ours(hint, bytes) {
                return Err(Errno(libc::EPERM));
            }
            let placed = self.make(libc::SYS_mmap, self.arguments)?;
            return self.tag(placed, bytes, rights);
        }
        let flags = (flags & !(libc::MAP_32BIT as u64)) | libc::MAP_FIXED_NOREPLACE as u64;
        let at = |address| {
            let arguments = [address, bytes, rights, flags, file, offset];
            let placed = self.make(libc::SYS_mmap, arguments)?;
            self.tag(placed, bytes, rights)
        };
        if hint.is_multiple_of(PAGE) && self.is_ours(hint, bytes) {
            match at(hint) {
                Err(Errno(libc::EEXIST)) => {}
                result => return result,
            }
        }
        self.place(bytes, at)
    }

    /// Gives a new mapping the domain's key; where that fails there is no mapping.
    fn tag(&self, start: u64, bytes: u64, rights: u64) -> Result<u64, Errno> {
        let key = TABLES.domains[self.domain].key.load(Ordering::Relaxed);
        if let Err(why) = keys::tag(start, bytes, rights, key) {
            // SAFETY: mapped by the domain just now; it has not been told where.
            let _freed = unsafe { sys::call(libc::SYS_munmap, [start, bytes, 0, 0, 0, 0]) };
            return Err(why);
        }
        Ok(start)
    }

    /// Tries one place of the slot after the other, in steps that double where places are taken, once
    /// around: room between mappings is found as long as a good part of the slot is free.
    fn place(&self, bytes: u64, at: impl Fn(u64) -> Result<u64, Errno>) -> Result<u64, Errno> {
        let room = SLOT - MAPPINGS;
        let Some(pages) = bytes.checked_next_multiple_of(PAGE).filter(|b| *b < room / 2) else {
            return Err(Errno(libc::ENOMEM));
        };
        let Some(cursor) = CURSORS.get(self.domain) else { return Err(Errno(libc::EPERM)) };
        let align = if pages >= HUGE { HUGE } else { PAGE };
        // A page between mappings, so that running over one is a fault.
        let mut step = pages + PAGE + align - PAGE;
        let mut passed = 0;
        while passed < 2 * room {
            let from = cursor.fetch_add(step, Ordering::Relaxed);
            passed += step;
            let start = from.next_multiple_of(align);
            if start + pages + PAGE > SLOT {
                // From the beginning again, where mappings have been given back meanwhile.
                let order = (Ordering::Relaxed, Ordering::Relaxed);
                let _other = cursor.compare_exchange(from + step, MAPPINGS, order.0, order.1);
                continue;
            }
            match at(self.slot() + start) {
                Err(Errno(libc::EEXIST)) => step = (2 * step).min(room / 64).max(step),
                result => return result,
            }
        }
        Err(Errno(libc::ENOMEM))
    }

    fn prctl(&self) -> Result<u64, Errno> {
        let [option, value, ..] = self.arguments;
        let (option, value) = (option as libc::c_int, value as libc::c_int);
        // SIGKILL is what it is already, or is again after setuid(2). A child's is its own affair; the
        // other options are about memory that it may share.
        let may =
            option == libc::PR_SET_PDEATHSIG && (value == libc::SIGKILL || self.is_of_a_child());
        if NOT_ITS_OWN.contains(&option) && !may {
            return Err(Errno(libc::EPERM));
        }
        self.make(self.number, self.arguments)
    }

    /// Only returns if there is no other program.
    fn exec(&self) -> Result<u64, Errno> {
        if self.is_of_a_child() {
            keys::set(TABLES.domains[self.domain].rights.load(Ordering::Relaxed));
            return self.make(self.number, self.arguments);
        }
        // Nobody is to be called in what its code leaves behind.
        // SYNC(gate.enter)
        let was_open = TABLES.domains[self.domain].open.swap(0, Ordering::SeqCst);
        if self.lent.is_none() {
            keys::set(TABLES.domains[self.domain].rights.load(Ordering::Relaxed));
        }
        let failed = self.make(self.number, self.arguments);
        self_query::accept_from_within(was_open != 0);
        failed
    }

    fn mremap(&self) -> Result<u64, Errno> {
        let [old, old_bytes, bytes, flags, to, _] = self.arguments;
        let may_move = libc::MREMAP_MAYMOVE as u64;
        let fixed = libc::MREMAP_FIXED as u64;
        if !self.is_ours(old, old_bytes) || (flags & fixed != 0 && !self.is_ours(to, bytes)) {
            return Err(Errno(libc::EPERM));
        }
        let in_place = self.is_ours(old, bytes);
        if flags & fixed == 0 && flags & may_move == 0 && !in_place {
            return Err(Errno(libc::ENOMEM));
        }
        if flags & fixed != 0 || flags & may_move == 0 {
            return self.make(libc::SYS_mremap, self.arguments);
        }
        if flags == may_move && in_place {
            match self.make(libc::SYS_mremap, [old, old_bytes, bytes, 0, 0, 0]) {
                Err(Errno(libc::ENOMEM)) => {}
                result => return result,
            }
        }
        let reserve = (libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE) as u64;
        let place = self.place(bytes, |address| {
            self.make(libc::SYS_mmap, [address, bytes, 0, reserve, u64::MAX, 0])
        })?;
        let flags = flags | may_move | fixed;
        let moved = self.make(libc::SYS_mremap, [old, old_bytes, bytes, flags, place, 0]);
        if moved.is_err() {
            let _free = self.make(libc::SYS_munmap, [place, bytes, 0, 0, 0, 0]);
        }
        moved
    }

    /// Whether a child of the domain makes it: one that shares its memory until exec(3), or a copy of it
    /// after fork(2), has handlers of its own and calls nobody.
    fn is_of_a_child(&self) -> bool {
        let own = TABLES.domains[self.domain].pid.load(Ordering::Relaxed);
        self.lent.is_none() && sys::pid() != own
    }

    /// Of this domain's own tasks.
    fn sigaction(&self) -> Result<u64, Errno> {
        let [signal, new, old, size, ..] = self.arguments;
        if size != 8 {
            return Err(Errno(libc::EINVAL));
        }
        for structure in [new, old] {
            self.may_name(structure, size_of::<Action>() as u64)?;
        }
        if new != 0 && (signal == libc::SIGSYS as u64 || signal == sigaction::CANCEL_SIGNAL) {
            return Err(Errno(libc::EINVAL));
        }
        if self.is_of_a_child() {
            return self.make(self.number, self.arguments);
        }
        let Some(row) = sigaction::row(self.domain, signal) else {
            return self.make(self.number, self.arguments);
        };
        let before = row.load();
        if new != 0 {
            // SAFETY: the domain's own pointer, to the kernel's structure; see the module's text.
            let action = unsafe { (new as *const Action).read_unaligned() };
            // A handler is known before it is called, and as long as it is.
            if action.is_handler() {
                row.store(&action);
            }
            if let Some(ours) = sigaction::instead_of(signal, action)
                && let Err(why) = self.install(signal, &ours)
            {
                row.store(&before);
                return Err(why);
            }
            row.store(&action);
        }
        if old != 0 {
            // SAFETY: as above.
            unsafe { (old as *mut Action).write_unaligned(before) };
        }
        Ok(0)
    }

    fn install(&self, signal: u64, action: &Action) -> Result<(), Errno> {
        match self.lent {
            Some(context) => contexts::ask_for_action(context, signal, action).map(drop),
            None => action.install(signal),
        }
    }

    /// In somebody else's thread it is the mask of the domain's own, which is parked.
    fn sigprocmask(&mut self) -> Result<u64, Errno> {
        let [how, new, old, size, ..] = self.arguments;
        if size != 8 {
            return Err(Errno(libc::EINVAL));
        }
        for set in [new, old] {
            self.may_name(set, size)?;
        }
        let parked = self.lent.map(|context| &context.mask);
        let before = parked.map_or(*self.mask, |mask| mask.load(Ordering::Relaxed));
        if new != 0 {
            // SAFETY: the domain's own pointer; see the module's text.
            let set = unsafe { (new as *const u64).read_unaligned() };
            let after = match how as libc::c_int {
                libc::SIG_BLOCK => before | set,
                libc::SIG_UNBLOCK => before & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(Errno(libc::EINVAL)),
            };
            match parked {
                Some(mask) => mask.store(after & !KEPT_OPEN, Ordering::Relaxed),
                None => *self.mask = after & !KEPT_OPEN,
            }
        }
        if old != 0 {
            // SAFETY: the domain's own pointer; see the module's text.
            unsafe { (old as *mut u64).write_unaligned(before) };
        }
        Ok(0)
    }
}
