//! What a dispatcher of functions and one of its workers share: a ring of slots, in memory that both map.
//!
//! ```text
//! byte   size        what                              who writes
//!    0     64        stop: which one ends, what it has   dispatcher
//!   64     64        sleep: whether the worker sleeps   both
//!  128     64        rest: what it need not look for    dispatcher
//!  192     64        bell: whether the other sleeps     both
//!  256  64 + 64      slot 0: submission, completion     dispatcher, worker
//!  ...               SLOTS slots
//! 8448     64        begun: what the worker has        worker
//! ```
//!
//! Submissions have numbers 1, 2, ... in wrapping 32 bits, and submission `n` is in slot `n % SLOTS`. The
//! worker takes them in order, one at a time, and each has one completion, with its number, in the same slot:
//! its function has ended, or waits for a service. A function that waits goes on by a submission of its own.
//!
//! ```text
//! dispatcher: words 1.. of a submission, then word 0 with its number
//! worker:     words 1.. of a completion, then word 0 with its number
//! dispatcher: uses a slot again only when its completion has come, so that no slot is written that is read
//! ```
//!
//! | who dies | what is left |
//! | --- | --- |
//! | worker | Submissions without a completion: the first of them may have been entered, the others have not. |
//! | dispatcher | Nothing: its workers die with it. |
//!
//! The dispatcher believes of what a worker writes what can be true: a number that is not the next one is no
//! completion, and one with an end that there is not, or lengths beyond its room, ends the worker.
//!
//! # Sleep
//!
//! A worker that finds nothing spins for a while, stores 1 in `sleep`, looks once more, and waits for the
//! word to change (futex(2)). Who submits looks at the word behind a fence, once for all that it submits
//! together, and where it is 1 changes it to [`WOKEN`] and wakes; who was woken stores 0 when it runs. Until
//! the dispatcher has read what the worker has begun with, `sleep` is [`CLOSED`].
//!
//! A worker whose CPU is another one's for now does not spin: the dispatcher stores the number of the next
//! submission in `rest` while there is none, and a worker that looks for that one sleeps at once.
//!
//! The dispatcher sleeps in the same way by `bell`, by those of all workers that run something. No worker has
//! another one's, so that none can keep another one's from ringing.
//!
//! # Words
//!
//! | word | submission | completion |
//! | --- | --- | --- |
//! | 0 | number, task (8 bits), short (8), cell (16) | number, end (8 bits), short (8), code (16) |
//! | 1 | where the function is entered (48 bits), quanta (16) | bytes of the reply, bytes of log lines |
//! | 2 | number of the call | log lines that found no room |
//! | 3 | bytes of the request, bytes of the parameters behind it | a fault's address, or bytes of memory |
//! | 4 | where the reply goes, and how long it may be | ticks that the function has taken |
//! | 5 to 7 | a short request; else where it is, and whether data are to be restored | a short reply |
//!
//! Two numbers in a word have 32 bits each, the first one the lower. Of a function that calls a service, the
//! completion has the bytes of its name and path in word 1, and those of the request in word 2. Short are
//! payloads of at most [`SHORT`] bytes; long ones are in the payloads' memory, a reply's log lines behind it.
//!
//! # Begin
//!
//! A worker stores one of [`begun`], wakes by `bell`, and waits until `sleep` is not [`CLOSED`] any more. One
//! that lacks what it must have stores [`begun::REFUSED`] and ends; one that fails before it has come so far
//! ends with its reason on standard error.
//! Where it has no protection keys, a text behind the ring says why: its length in 32 bits, and so many
//! bytes, [`begun::TEXT`] at most. The dispatcher reads both, and then stores [`WOKEN`] in `sleep` and wakes:
//! until then no function has run that could have written them. There may be submissions before.
//!
//! # Ending a function
//!
//! The dispatcher stores in `stop` a submission's number, and how much of its budget is left to the function
//! should it have lost its CPU meanwhile, which the worker knows; and sends a signal. The worker's handler
//! gives up the function if that submission is the one it runs and it is beyond its budget, and else goes on
//! where it was. Both are in one word, written before the signal is sent. A signal that comes too early or
//! too late changes nothing; the dispatcher repeats it as long as the completion does not come.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of the submission behind this one. 0 is none's.
pub fn following(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

/// What a worker says when it begins.
pub mod begun {
    /// It has not begun.
    pub const NOT_YET: u32 = 0;
    /// Functions can read and write what the worker can; the text says why.
    pub const NONE: u32 = 1;
    /// Protection keys keep functions from the worker's memory.
    pub const PROTECTION_KEYS: u32 = 2;
    /// It ends, as the text says.
    pub const REFUSED: u32 = 3;
    /// The most bytes of the text.
    pub const TEXT: usize = 512;
}

/// How many slots there are: a power of two.
pub const SLOTS: u32 = 64;
/// The words of a submission, and of a completion.
pub const WORDS: usize = 8;
/// The most bytes of a payload that lies in its slot.
pub const SHORT: usize = 24;
/// What offsets of payloads are a multiple of, in bytes.
pub const GRAIN: usize = 64;
/// What `sleep` is until the worker may look for submissions.
pub const CLOSED: u32 = 2;
/// What a word of sleep is from when its sleeper is woken until that runs.
pub const WOKEN: u32 = 3;
/// Where a short payload is.
const SHORT_AT: usize = 5;

/// A line of words that one side writes and the other reads.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line([AtomicU64; WORDS]);

/// One slot.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Slot {
    /// Of the dispatcher.
    pub submission: Line,
    /// Of the worker.
    pub completion: Line,
}

/// A word with a line to itself.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Word(pub AtomicU32);

/// Which submission is to end, and the CPU time that it may have before, if it has lost its CPU.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Stop(AtomicU64);

impl Stop {
    /// Submission `number` is to end, with so many microseconds left; 0 is at once.
    pub fn set(&self, number: u32, left_us: u32) {
        self.0.store(pair(number, left_us), Ordering::Relaxed);
    }

    /// What was said last.
    pub fn get(&self) -> (u32, u32) {
        let word = self.0.load(Ordering::Relaxed);
        (low(word), high(word))
    }
}

/// The memory of one worker's ring.
#[repr(C)]
#[derive(Debug)]
pub struct Ring {
    /// The submission that is to end.
    pub stop: Stop,
    /// 1 while the worker sleeps, [`WOKEN`] until it runs.
    pub sleep: Word,
    /// The submission for which the worker does not spin.
    pub rest: Word,
    /// The same of the dispatcher, for all that it knows of this worker.
    pub bell: Word,
    slots: [Slot; SLOTS as usize],
    begun: Word,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 128 && core::mem::offset_of!(Ring, slots) == 256);
#[cfg(not(loom))]
const _: () = assert!(core::mem::offset_of!(Ring, begun) == 8448);

impl Default for Ring {
    fn default() -> Self {
        let slots = core::array::from_fn(|_| Slot::default());
        let [sleep, rest, bell, begun] = core::array::from_fn(|_| Word::default());
        Self { stop: Stop::default(), sleep, rest, bell, slots, begun }
    }
}

impl Ring {
    /// The slot of a submission.
    #[inline(always)]
    pub fn slot(&self, number: u32) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }

    /// The worker says what it has: one of [`begun`]. The text is written.
    pub fn begin(&self, what: u32) {
        self.begun.0.store(what, Ordering::Release); // SYNC(function.begun)
    }

    /// What the worker has said.
    pub fn has_begun(&self) -> u32 {
        self.begun.0.load(Ordering::Acquire) // SYNC(function.begun)
    }
}

/// A payload that lies in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// The bytes, with zeros behind them.
    pub words: [u64; 3],
}

impl Short {
    /// One of these bytes; none if they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; SHORT];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| all[8 * at + byte]));
        Some(Self { words: [word(0), word(1), word(2)] })
    }

    /// Its bytes, with zeros behind them.
    pub fn bytes(self) -> [u8; SHORT] {
        let mut all = [0; SHORT];
        for (to, word) in all.chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        all
    }
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// In the slot. Its function has no parameters, and no data to restore.
    Short(Short),
    /// Among the payloads.
    Long {
        /// Where, in [`GRAIN`]s.
        at: u32,
        /// The bytes of the parameters behind it; of a service's answer its status code.
        parameters: u32,
        /// Whether what says where the function's data are is before it, which is not counted.
        has_data: bool,
    },
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Task {
    /// Enter a function.
    Invoke = 1,
    /// Let one go on that has waited for a service.
    Resume = 2,
}

/// A submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// What is to be done.
    pub task: Task,
    /// In which cell.
    pub cell: u16,
    /// Where the function is entered.
    pub entry: u64,
    /// The quanta after which the worker gives the function up by its own timer; 0 is never.
    pub quanta: u16,
    /// The number of the call.
    pub call: u64,
    /// The bytes of the request, or of the service's answer.
    pub bytes: u32,
    /// Where they are.
    pub input: Input,
    /// Where a long reply goes, in [`GRAIN`]s.
    pub output: u32,
    /// The most bytes of it, with its log lines.
    pub room: u32,
}

/// How a submission has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// The function has answered.
    Reply = 1,
    /// The function has answered with an error.
    Error = 2,
    /// The function has panicked.
    Panic = 3,
    /// The function has used up its memory.
    Memory = 4,
    /// The function has used up its stack.
    Stack = 5,
    /// A signal for what the function has done; its number is the code.
    Fault = 6,
    /// The dispatcher has stopped the function, or the worker's own timer.
    Stopped = 7,
    /// The function calls a service, and waits.
    Calls = 8,
    /// The reply has no room.
    Room = 9,
    /// What was submitted cannot be done.
    Refused = 10,
}

impl End {
    const ALL: [Self; 10] = [
        Self::Reply,
        Self::Error,
        Self::Panic,
        Self::Memory,
        Self::Stack,
        Self::Fault,
        Self::Stopped,
        Self::Calls,
        Self::Room,
        Self::Refused,
    ];
}

/// A completion. All of it is the worker's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// How it has ended.
    pub end: End,
    /// The code of an error, or a signal's number.
    pub code: u16,
    /// The bytes of the reply or of a text.
    pub bytes: u32,
    /// The bytes of log lines behind it.
    pub log: u32,
    /// Log lines that found no room.
    pub lost: u32,
    /// A fault's address, or the bytes of memory that were not there.
    pub detail: u64,
    /// What the function has taken, in ticks of the time stamp counter; 0 where that is closed.
    pub ticks: u64,
    /// The reply, if it is short.
    pub short: Option<Short>,
}

/// The bits of an address in user space, with four levels of page tables.
const ENTRY: u64 = (1 << 48) - 1;

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Line {
    #[inline(always)]
    fn get(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, at: usize, word: u64) {
        self.0[at].store(word, Ordering::Relaxed);
    }

    #[inline(always)]
    fn short(&self) -> Short {
        Short { words: core::array::from_fn(|at| self.get(SHORT_AT + at)) }
    }

    #[inline(always)]
    fn set_short(&self, short: Short) {
        for (at, word) in short.words.into_iter().enumerate() {
            self.set(SHORT_AT + at, word);
        }
    }

    #[inline(always)]
    fn publish(&self, number: u32, kind: u8, is_short: bool, rest: u16) {
        let kind = u32::from(kind) | u32::from(is_short) << 8 | u32::from(rest) << 16;
        // SYNC(function.line)
        self.0[0].store(pair(number, kind), Ordering::Release);
    }

    /// The kind, whether it is short, and the rest, once this number is here.
    #[inline(always)]
    fn published(&self, number: u32) -> Option<(u8, bool, u16)> {
        // SYNC(function.line)
        let word = self.0[0].load(Ordering::Acquire);
        let kind = high(word);
        (low(word) == number).then_some((kind as u8, kind >> 8 & 0xff != 0, (kind >> 16) as u16))
    }

    /// Writes a submission.
    #[inline]
    pub fn submit(&self, number: u32, submission: &Submission) {
        let Submission { task, cell, entry, quanta, call, bytes, input, output, room } =
            *submission;
        self.set(1, entry & ENTRY | u64::from(quanta) << 48);
        self.set(2, call);
        self.set(4, pair(output, room));
        let is_short = match input {
            Input::Short(short) => {
                self.set(3, pair(bytes, 0));
                self.set_short(short);
                true
            }
            Input::Long { at, parameters, has_data } => {
                self.set(3, pair(bytes, parameters));
                self.set(SHORT_AT, pair(at, u32::from(has_data)));
                false
            }
        };
        self.publish(number, task as u8, is_short, cell);
    }

    /// The submission with this number, once it is here.
    #[inline]
    pub fn submission(&self, number: u32) -> Option<Submission> {
        let (task, is_short, cell) = self.published(number)?;
        let (bytes, parameters) = (low(self.get(3)), high(self.get(3)));
        let place = self.get(SHORT_AT);
        let input = match is_short {
            true => Input::Short(self.short()),
            false => Input::Long { at: low(place), parameters, has_data: high(place) != 0 },
        };
        Some(Submission {
            task: if task == Task::Resume as u8 { Task::Resume } else { Task::Invoke },
            cell,
            entry: self.get(1) & ENTRY,
            quanta: (self.get(1) >> 48) as u16,
            call: self.get(2),
            bytes,
            input,
            output: low(self.get(4)),
            room: high(self.get(4)),
        })
    }

    /// Writes a completion.
    #[inline]
    pub fn complete(&self, number: u32, completion: &Completion) {
        let Completion { end, code, bytes, log, lost, detail, ticks, short } = *completion;
        self.set(1, pair(bytes, log));
        self.set(2, pair(lost, 0));
        self.set(3, detail);
        self.set(4, ticks);
        if let Some(short) = short {
            self.set_short(short);
        }
        self.publish(number, end as u8, short.is_some(), code);
    }

    /// The completion with this number, once it is here. An end that there is not is [`End::Refused`].
    #[inline]
    pub fn completion(&self, number: u32) -> Option<Completion> {
        let (end, is_short, code) = self.published(number)?;
        Some(Completion {
            end: End::ALL.into_iter().find(|known| *known as u8 == end).unwrap_or(End::Refused),
            code,
            bytes: low(self.get(1)),
            log: high(self.get(1)),
            lost: low(self.get(2)),
            detail: self.get(3),
            ticks: self.get(4),
            short: is_short.then(|| self.short()),
        })
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use std::sync::Arc;

    /// Whoever sees a number sees the words before it, both ways.
    #[test]
    fn loom_function_line() {
        loom::model(|| {
            let slot = Arc::new(Slot::default());
            let submission = Submission {
                task: Task::Invoke,
                cell: 1,
                entry: 2,
                quanta: 1,
                call: 3,
                bytes: 4,
                input: Input::Short(Short { words: [5, 6, 7] }),
                output: 8,
                room: 9,
            };
            let theirs = Arc::clone(&slot);
            let worker = loom::thread::spawn(move || {
                let seen = theirs.submission.submission(1);
                let Some(seen) = seen else { return };
                assert_eq!(seen, submission);
                theirs.completion.complete(1, &Completion { detail: seen.call, ..DONE });
            });
            slot.submission.submit(1, &submission);
            if let Some(done) = slot.completion.completion(1) {
                assert_eq!(done, Completion { detail: 3, ..DONE });
            }
            worker.join().unwrap();
        });
    }

    /// Whoever sees that the worker has begun sees what it has written before.
    #[test]
    fn loom_function_begun() {
        loom::model(|| {
            let ring = Arc::new((Ring::default(), AtomicU64::new(0)));
            let theirs = Arc::clone(&ring);
            let worker = loom::thread::spawn(move || {
                theirs.1.store(7, Ordering::Relaxed);
                theirs.0.begin(begun::NONE);
            });
            if ring.0.has_begun() == begun::NONE {
                assert_eq!(ring.1.load(Ordering::Relaxed), 7);
            }
            worker.join().unwrap();
        });
    }

    const DONE: Completion = Completion {
        end: End::Reply,
        code: 1,
        bytes: 2,
        log: 3,
        lost: 4,
        detail: 5,
        ticks: 6,
        short: Some(Short { words: [7, 8, 9] }),
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_submitted_and_completed_comes_as_it_was() {
        let ring = Ring::default();
        let mut submission = Submission {
            task: Task::Invoke,
            cell: 513,
            entry: 0x7f00_1234_5678,
            quanta: u16::MAX,
            call: u64::MAX - 1,
            bytes: 23,
            input: Input::Short(Short::new(&[7; 23]).unwrap()),
            output: 9,
            room: 1 << 30,
        };
        let line = &ring.slot(5).submission;
        line.submit(5, &submission);
        assert_eq!(line.submission(5), Some(submission));
        assert_eq!(line.submission(5 + SLOTS), None);
        submission.input = Input::Long { at: u32::MAX, parameters: 3, has_data: true };
        submission.task = Task::Resume;
        line.submit(5 + SLOTS, &submission);
        assert_eq!(line.submission(5 + SLOTS), Some(submission));
        let mut completion = Completion {
            end: End::Fault,
            code: 11,
            bytes: 1,
            log: 2,
            lost: 3,
            detail: 4,
            ticks: 5,
            short: None,
        };
        let line = &ring.slot(u32::MAX).completion;
        for end in End::ALL {
            completion.end = end;
            line.complete(u32::MAX, &completion);
            assert_eq!(line.completion(u32::MAX), Some(completion));
            completion.short = Short::new(b"abc");
        }
        assert_eq!(completion.short.unwrap().bytes()[..4], *b"abc\0");
        assert_eq!(Short::new(&[0; SHORT + 1]), None);
    }
}
