#![allow(unsafe_code, reason = "a static whose bytes are zero")]
//! The fixed places: who may call whom, where contexts are, who is inside. The call gate finds
//! everything here, by numbers it checks, and takes no address from a register of its caller.
//!
//! | table of [`Tables`] | an entry is | written by |
//! | --- | --- | --- |
//! | `domains` | a slot's domain | the launcher |
//! | `links` | the right of one domain to call another | [`crate::links`] |
//! | `callers` | a kernel thread that calls | its own thread: registering, the gate, handlers |
//! | `contexts` | a parked thread of a callee, to be lent | its owner, and its agent |
//!
//! # A context
//!
//! ```text
//!        park            gate              gate
//!  NONE -------> FREE -----------> BUSY -----------> FREE
//!                                   |  fault, deadline, death of the callee
//!                                   v           gate
//!                                 ENDING ----------------> POISONED, for ever
//!                                   |     (from BUSY too: death of the caller)
//! ```
//!
//! A parked thread that its C library has signalled is taken out again when nobody is inside (unpark):
//! FREE -> PARKING -> NONE. It is no longer FREE first, then a barrier is put into all threads, and what
//! its owner was doing at that moment is waited for. One that ends in the signal's handler leaves its
//! context PARKING, which the next thread that parks frees.
//!
//! A calling thread owns a context from its first call to that domain on ([`crate::binding`]),
//! and its owner alone makes it busy and free, so the gate needs no locked instruction. Before it
//! looks at anything of a callee, the thread says so in its `entering`, and takes that back when the
//! context is busy, or the call refused. Who has to know that nobody is on the way in (the launcher
//! before it frees a domain's memory) or inside (also the watchdog before it sleeps) first writes down
//! what the gate will see then (the domain is closed, the watchdog sleeps), has the kernel put a barrier
//! into every running thread (membarrier(2), private expedited), and looks after that.
//!
//! What belongs to the call (where to return) is written by the owner; others read whose it is only
//! to decide whom to signal, and the signalled thread looks again. If the caller's thread dies
//! inside, its context is poisoned and the domain restarted; if the callee dies, its memory stays
//! until nobody is inside.
//!
//! # Orderings
//!
//! The gate's loads are acquire and its stores release, as all are on this processor (x86: total store
//! order). A load after a store may overtake it there; where that matters, the other side pays for the
//! barrier, or the store is an exchange, as sequentially consistent ones are. Words with other pairs
//! are described where they are: [`crate::keys`], [`crate::sigaction`], [`crate::task`],
//! [`crate::watchdog`].
//!
//! | label | what pairs | shown by |
//! | --- | --- | --- |
//! | SYNC(gate.enter) | A thread writes `entering`, then reads that domain, link and context are open and free, writes BUSY, then clears `entering`. The launcher closes, has the barrier put into all threads, then looks at `entering` and at the states, in this order. One of the two sees the other. | model `loom_gate_enter`; `a_thousand_deaths_leave_nothing_and_nobody_waits` |
//! | SYNC(context.retire) | The same between the owner of a context and its agent, which writes PARKING instead of FREE, and takes the context out only if that still stands when the owner is not on its way in. | model `loom_context_retire`; `a_domain_with_lent_threads_changes_its_user_and_cancels_them` |
//! | SYNC(context.bind) | Whoever binds writes `owner`, then reads that the state is FREE; the agent writes PARKING, then looks at `owner`. All four are sequentially consistent, so one sees the other. `owner` is given up by the one exchange that finds it. | by the order of the four; `as_many_callers_as_contexts_are_inside_at_once` |
//! | SYNC(context.park) | What `park` writes of a context comes before FREE, and what `unpark` frees before NONE. | the state is the only word by which others reach the rest; `a_call_comes_back_with_its_answer` |
//! | SYNC(context.end) | ENDING and POISONED are written after what has ended the call; a state is left by one exchange, or by its owner alone. | `a_callee_that_fails_ends_its_call_and_nothing_else`, `a_caller_that_dies_inside_poisons_what_it_was_lent` |
//! | SYNC(context.calls) | The count grows before the context is free again: whoever sees the next call BUSY sees another count. | one writer, the owner; `a_call_that_takes_too_long_is_ended` |
//! | SYNC(context.mail) | Arguments come before ASKED, the result before ANSWERED; the mail changes hands by its own value. | a word that two threads pass to and fro; `system_calls_of_a_callee_are_its_own` |
//! | SYNC(context.turn) | A call that is ended counts the turn up before its thread goes on; the agent compares it after it has taken the mail. | an agent that still sees the old turn makes the call into the void; `a_system_call_that_nobody_has_begun_is_waited_for_but_not_for_ever` |
//! | SYNC(context.signalled) | The state leaves FREE before the flag is set; the agent reads the flag before it tries to take itself out. | `a_domain_with_lent_threads_changes_its_user_and_cancels_them` |
//! | SYNC(context.expired) | The watchdog names the call before it sends the signal, whose handler reads it. | the kernel orders both, by tgkill(2); `a_call_that_takes_too_long_is_ended` |
//! | SYNC(caller.entry) | All fields come before the thread number; an entry changes hands by an exchange of that number, and its process is cleared before it is given up. | one word decides whose it is; `threads_that_end_without_disarming_keep_no_contexts` |
//! | SYNC(caller.cancelling) | One signal at a time: the exchange of 0 for 1 sends it, its handler writes 0. | the exchange; `a_full_queue_of_signals_switches_no_limit_off` |
//! | SYNC(link.word) | Ends, rights, number and cookie come before OFFERED; each change is one exchange of the whole word. Ends are read before the word, which says whether they are still that link's; the gate reads it last. | a word with a count of uses; `a_link_that_was_given_up_is_closed`, `a_thousand_deaths_leave_nothing_and_nobody_waits` |
//! | SYNC(link.arena) | The arena is mapped, and its key in `arenas` and in the link's rights, before its address is written. The gate reads the address first. | `an_arena_goes_with_its_link`, `the_first_call_of_a_thread_can_be_one_over_bytes` |
//! | SYNC(domain.accept) | A domain writes `open`, then reads `dead`; the launcher writes `dead`, then `open`. All are sequentially consistent: a domain that opens after its death sees it, and closes again. | by the order of the four; `a_domain_that_takes_no_calls_is_closed_until_it_does_again` |
//! | SYNC(domain.dead) | Written before the calls are cancelled; read by the signal's handler and by the watchdog. | the kernel orders it, by tgkill(2); `a_callee_that_fails_ends_its_call_and_nothing_else` |
//! | SYNC(domain.pid) | What the slot's tables hold comes before the process number by which others find the domain; cleared at its end, before links are closed. | an offer looks at it once more after it is made, and what one leaves goes with the slot; `a_thousand_deaths_leave_nothing_and_nobody_waits` |
//! | SYNC(domain.poisoned) | Raised after the context is marked, before whoever waits is woken by futex(2), which compares. | `whoever_waits_for_a_poisoning_is_told_of_each`, `a_callee_in_which_a_call_was_cut_off_offers_no_links` |

use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::page::Frame;
use crate::sys;

/// A domain's share of addresses, in bytes.
pub const SLOT: u64 = 512 << 30;
/// How many domains one address space can hold.
pub const SLOTS: usize = 64;
/// Where in a slot the mappings of its domain begin: above its program, which begins somewhere below.
pub(crate) const MAPPINGS: u64 = 128 << 30;
/// Where in a slot the contexts' mailboxes begin, a page each.
pub(crate) const MAILBOXES: u64 = STACKS + CONTEXTS_EACH as u64 * CONTEXT_STACK;
/// Contexts a domain can have.
pub(crate) const CONTEXTS_EACH: usize = 64;
/// Kernel threads of all domains that can call at one time.
pub(crate) const CALLERS_MOST: usize = 1024;
/// Links between domains.
pub(crate) const LINKS_MOST: usize = 4096;
/// A context's stack in bytes, its lowest page a guard; a power of two, and aligned to it.
pub(crate) const CONTEXT_STACK: u64 = 1 << 20;
/// Where in a slot the contexts' stacks begin.
pub(crate) const STACKS: u64 = 96 << 30;
/// How deep calls can nest: a callee calls another domain, and so on.
pub(crate) const DEPTH: u32 = 8;

/// No context.
pub(crate) const UNBOUND: u8 = u8::MAX;

/// No thread has parked here.
pub(crate) const NONE: u8 = 0;
/// Parked, to be lent.
pub(crate) const FREE: u8 = 1;
/// A caller is inside.
pub(crate) const BUSY: u8 = 2;
/// Its call is ended in the middle, and the caller on its way out.
pub(crate) const ENDING: u8 = 3;
/// A call ended in the middle: nobody knows what its locks and heap are like.
pub(crate) const POISONED: u8 = 4;
/// A thread is about to park here.
pub(crate) const PARKING: u8 = 5;

/// A slot's domain, as the gate sees it.
#[repr(C, align(64))]
pub(crate) struct DomainEntry {
    /// Whether it takes calls: 1.
    pub(crate) open: AtomicU8,
    /// How many of its contexts have been parked.
    pub(crate) contexts: AtomicU32,
    /// Raised by whoever poisons a context.
    pub(crate) poisoned: AtomicU32,
    /// The process number of its task.
    pub(crate) pid: AtomicI32,
    /// 1 when its task has ended and callers are to be cancelled.
    pub(crate) dead: AtomicU32,
    /// 1 when it has declared that its functions make no system calls.
    pub(crate) no_syscalls: AtomicU32,
    /// The protection-key rights of its code; 0 without keys.
    pub(crate) rights: AtomicU32,
    /// Its protection key; 0 without keys.
    pub(crate) key: AtomicU32,
    /// Time that those of its threads that call no more have spent in callees, in ticks.
    pub(crate) callee_time: AtomicU64,
}

/// The right to call.
#[repr(C, align(64))]
pub(crate) struct Link {
    /// Its id and its state in one word ([`crate::links`]).
    pub(crate) word: AtomicU32,
    /// The calling domain.
    pub(crate) caller: AtomicU32,
    /// The domain that is called.
    pub(crate) callee: AtomicU32,
    /// The rights of the callee's code while it is called over this link: its own, and the arena's.
    pub(crate) rights: AtomicU32,
    /// The arena's protection key; 0 without keys.
    pub(crate) key: AtomicU32,
    /// Where its arena is; 0 when it has none.
    pub(crate) arena: AtomicU64,
    /// What the callee knows it by; handed to its entry.
    pub(crate) cookie: AtomicU64,
    /// What both ends know it by before it is open.
    pub(crate) number: AtomicU64,
}

/// A kernel thread that makes calls. Its own thread alone uses it, but for `tid`.
#[repr(C, align(256))]
pub(crate) struct Caller {
    /// Syscall User Dispatch reads this: 1 sends system calls to the handler.
    pub(crate) selector: AtomicU8,
    /// The domain that it is about to enter, plus 1; 0 when it is not.
    pub(crate) entering: AtomicU32,
    /// The domain whose code runs now.
    pub(crate) domain: AtomicU32,
    /// The base of thread-local storage that goes with it.
    pub(crate) fs: AtomicU64,
    /// The protection-key rights that go with it.
    pub(crate) rights: AtomicU32,
    /// While a handler of its program runs in the middle of a call: the kernel's frame for it, and the
    /// storage and selector that are to come back.
    pub(crate) handler_frame: AtomicU64,
    pub(crate) handler_fs: AtomicU64,
    pub(crate) handler_selector: AtomicU8,
    /// The context it is inside of, innermost; 0 when it is at home.
    pub(crate) inside: AtomicU64,
    /// How many contexts it is inside of.
    pub(crate) depth: AtomicU32,
    /// The thread's number; 0 when the entry was never used, negative when it is nobody's.
    pub(crate) tid: AtomicI32,
    /// The thread group it belongs to.
    pub(crate) pid: AtomicI32,
    /// Its home: domain and thread-local storage outside of any call.
    pub(crate) home: AtomicU32,
    pub(crate) home_fs: AtomicU64,
    /// The signals it had blocked before it registered; of the launcher's threads only.
    pub(crate) mask: AtomicU64,
    /// 1 from when it is sent the signal that cancels its call until it has come.
    pub(crate) cancelling: AtomicU32,
    /// 1 while a system call of its callee is made elsewhere: it may be cancelled then.
    pub(crate) forwarding: AtomicU32,
    /// The context of each domain that it owns, by number; [`UNBOUND`] when it has none.
    pub(crate) bound: [AtomicU8; SLOTS],
    /// Time spent in callees and in those that they have called, in ticks of the time stamp counter.
    pub(crate) ticks: AtomicU64,
}

/// A thread of a callee that has parked, and whose stack and thread-local storage are lent.
#[repr(C, align(256))]
pub(crate) struct Context {
    /// [`NONE`], [`FREE`], [`BUSY`] or [`POISONED`].
    pub(crate) state: AtomicU8,
    /// The address of the [`Caller`] that it belongs to, the only one that is ever inside; 0 when it
    /// is nobody's.
    pub(crate) owner: AtomicU64,
    /// Where calls enter it.
    pub(crate) entry: AtomicU64,
    /// The top of its stack.
    pub(crate) stack: AtomicU64,
    /// Its thread-local storage.
    pub(crate) fs: AtomicU64,
    /// The caller's stack pointer and what else it gets back.
    pub(crate) caller_stack: AtomicU64,
    pub(crate) caller_fs: AtomicU64,
    pub(crate) caller_domain: AtomicU32,
    pub(crate) caller_rights: AtomicU32,
    /// Those of the code that runs in it.
    pub(crate) rights: AtomicU32,
    pub(crate) caller_float: AtomicU32,
    pub(crate) caller_control: AtomicU32,
    /// Where the gate looks at what the callee has left.
    pub(crate) float: AtomicU32,
    pub(crate) control: AtomicU32,
    /// The context the caller was inside of before.
    pub(crate) below: AtomicU64,
    /// How long the call may last, in nanoseconds.
    pub(crate) limit: AtomicU64,
    /// When the call began, in ticks of the time stamp counter; 0 when it is not timed.
    pub(crate) began: AtomicU64,
    /// How many calls from now one is timed.
    pub(crate) skip: AtomicU32,
    /// How many calls the next one that is timed stands for.
    pub(crate) weight: AtomicU32,
    /// The call, by the count of those before it, that the watchdog has ended.
    pub(crate) expired: AtomicU64,
    /// The call that has been found late by its own thread, and that thread's CPU time then.
    pub(crate) marked: AtomicU64,
    pub(crate) mark: AtomicU64,
    /// How often it was found in a system call since, and how often in one that was being made.
    pub(crate) waits: AtomicU32,
    pub(crate) blocks: AtomicU32,
    /// Time spent here, in ticks, and calls.
    pub(crate) ticks: AtomicU64,
    pub(crate) calls: AtomicU64,
    /// System calls forwarded to its agent.
    pub(crate) forwards: AtomicU64,
    /// The signals it had blocked before it parked.
    pub(crate) mask: AtomicU64,
    /// The thread that has parked here; 0 while nobody has.
    pub(crate) agent: AtomicI32,
    /// 1 from when the C library has sent its agent a signal of its own, which the agent is to come to.
    pub(crate) signalled: AtomicU32,
    /// Counts what its caller has asked for: the mailbox says which of them it holds, and one that is
    /// not the last is not made.
    pub(crate) turn: AtomicU32,
    /// Where its caller asks for system calls, in memory of the callee's own: the address of a
    /// [`Mailbox`].
    pub(crate) mailbox: AtomicU64,
}

/// Where a caller's thread asks the parked thread for system calls, and that answers.
#[repr(C, align(4096))]
pub(crate) struct Mailbox {
    /// [`IDLE`], [`ASKED`], [`WORKING`], [`ANSWERED`] or [`SIGNALLED`].
    pub(crate) mail: AtomicU32,
    /// Which of the context's it is.
    pub(crate) turn: AtomicU32,
    /// 1 when what is asked for is a task for the code whose registers are in `frame`.
    pub(crate) task: AtomicU32,
    /// The system call that is asked for, its arguments and its result.
    pub(crate) number: AtomicI64,
    pub(crate) arguments: [AtomicU64; 6],
    pub(crate) result: AtomicI64,
    /// What the agent reads in memory for a call of ours: it may come to that when the caller is gone.
    pub(crate) frame: Frame,
    pub(crate) action: [AtomicU64; 4],
}

/// Nothing to do.
pub(crate) const IDLE: u32 = 0;
/// A call is to be made.
pub(crate) const ASKED: u32 = 1;
/// It is being made.
pub(crate) const WORKING: u32 = 2;
/// It has been made.
pub(crate) const ANSWERED: u32 = 3;
/// Nothing to do but to look at a signal.
pub(crate) const SIGNALLED: u32 = 4;

/// Links, which begin on a page of their own: from here on a copy of this process (fork(2)) finds zeros.
#[repr(C, align(4096))]
pub(crate) struct Links(pub(crate) [Link; LINKS_MOST]);

/// The tables, page-aligned and apart from everything else, so that rights can be set for them.
#[repr(C, align(4096))]
pub(crate) struct Tables {
    /// Where slots begin.
    pub(crate) base: AtomicU64,
    /// 1 while the watchdog sleeps, because nobody is inside anywhere.
    pub(crate) watchdog: AtomicU32,
    /// The protection key of signal stacks, where every domain has to be able to write them; else 0.
    pub(crate) scratch: AtomicU32,
    /// 1 with keys.
    pub(crate) keys: AtomicU32,
    /// The rights that the kernel gives to signal handlers; 0 where the processor has none to give.
    pub(crate) handler_rights: AtomicU32,
    /// The keys of arenas, as rights that deny access to all of them.
    pub(crate) arenas: AtomicU32,
    /// How often a context has been poisoned; the launcher waits for the next time.
    pub(crate) poisonings: AtomicU32,
    /// The last is the launcher's own, which takes no calls.
    pub(crate) domains: [DomainEntry; SLOTS + 1],
    pub(crate) links: Links,
    pub(crate) callers: [Caller; CALLERS_MOST],
    pub(crate) contexts: [[Context; CONTEXTS_EACH]; SLOTS],
}

// What copies of this process are not to have are whole pages.
const _: () = {
    assert!(offset_of!(Tables, links).is_multiple_of(4096));
    assert!(size_of::<Tables>().is_multiple_of(4096));
};

/// All of it, zero at first: no entry is in use.
pub(crate) static TABLES: Tables = {
    // SAFETY: the tables are atomics of integers, for which zero bytes are zeros.
    unsafe { MaybeUninit::zeroed().assume_init() }
};

impl DomainEntry {
    /// Its task has ended: no new calls, and those under way are cancelled.
    pub(crate) fn end(&self) {
        // In this order: who opens it looks at `dead` afterwards.
        self.dead.store(1, Ordering::SeqCst); // SYNC(domain.dead), SYNC(domain.accept)
        self.open.store(0, Ordering::SeqCst); // SYNC(domain.accept), SYNC(gate.enter)
        self.pid.store(0, Ordering::SeqCst); // SYNC(domain.pid)
    }
}

impl Tables {
    /// A new domain is about to run in a slot in which nobody is.
    pub(crate) fn begin(&self, slot: usize) {
        for context in &self.contexts[slot] {
            context.state.store(NONE, Ordering::Relaxed);
            context.owner.store(0, Ordering::Relaxed);
            context.agent.store(0, Ordering::Relaxed);
            context.skip.store(1, Ordering::Relaxed);
            context.weight.store(1, Ordering::Relaxed);
            context.expired.store(u64::MAX, Ordering::Relaxed);
            context.marked.store(u64::MAX, Ordering::Relaxed);
            for count in [&context.ticks, &context.calls, &context.forwards] {
                count.store(0, Ordering::Relaxed);
            }
        }
        let domain = &self.domains[slot];
        for word in [&domain.contexts, &domain.poisoned, &domain.dead, &domain.no_syscalls] {
            word.store(0, Ordering::Relaxed);
        }
        domain.callee_time.store(0, Ordering::Relaxed);
        domain.open.store(1, Ordering::SeqCst); // SYNC(gate.enter)
    }

    /// The slot that holds an address; [`SLOTS`], the launcher, for all others.
    pub(crate) fn slot_of(&self, address: u64) -> usize {
        let at = address.wrapping_sub(self.base.load(Ordering::Relaxed)) / SLOT;
        (at as usize).min(SLOTS)
    }

    /// Tells the launcher that a context is poisoned.
    pub(crate) fn poisoned(&self, context: &Context) {
        let at = std::ptr::from_ref(context) as u64 - self.contexts.as_ptr() as u64;
        let slot = at as usize / size_of::<[Context; CONTEXTS_EACH]>();
        let Some(domain) = self.domains.get(slot) else { return };
        domain.poisoned.store(1, Ordering::Release); // SYNC(domain.poisoned)
        sys::wake(domain.poisoned.as_ptr() as u64);
        self.poisonings.fetch_add(1, Ordering::Release); // SYNC(domain.poisoned)
        sys::wake(self.poisonings.as_ptr() as u64);
    }

    /// The caller at an address of this table; `None` for all others, 0 among them.
    pub(crate) fn caller_at(&self, address: u64) -> Option<&Caller> {
        let at = address.checked_sub(self.callers.as_ptr() as u64)? as usize / size_of::<Caller>();
        self.callers.get(at)
    }

    /// The context at an address of this table; `None` for all others, 0 among them.
    pub(crate) fn context_at(&self, address: u64) -> Option<&Context> {
        let at =
            address.checked_sub(self.contexts.as_ptr() as u64)? as usize / size_of::<Context>();
        self.contexts.get(at / CONTEXTS_EACH)?.get(at % CONTEXTS_EACH)
    }
}

impl Context {
    /// Whether a thread runs in it, or is on its way out.
    pub(crate) fn is_entered(&self) -> bool {
        // SYNC(gate.enter), SYNC(gate.watchdog)
        matches!(self.state.load(Ordering::SeqCst), BUSY | ENDING)
    }

    /// Its caller has died inside: nobody else will leave it.
    pub(crate) fn abandon(&self) {
        let order = (Ordering::AcqRel, Ordering::Relaxed); // SYNC(context.end)
        let left = |from| self.state.compare_exchange(from, POISONED, order.0, order.1).is_ok();
        if left(BUSY) || left(ENDING) {
            TABLES.poisoned(self);
        }
    }
}
