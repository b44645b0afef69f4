#![allow(unsafe_code, reason = "a ring that is shared, and descriptors by number")]
//! A worker's end of the runtime's ring, with something else behind it than the runtime's worker.
//!
//! It waits as the runtime's worker does: it looks [`LOOKS`] times, then says that it sleeps, looks once
//! more, and sleeps. A completion has the number that a function says it has, and its stamp, in its slot.

use std::os::fd::OwnedFd;

use partywall_abi::function::{Completion, End, Line, Ring, Short, Submission, begun, following};
use partywall_abi::sync::{Ordering, fence};
use partywall_functions::worker::Start;

use crate::error::Result;
use crate::sys::cpu;
use crate::sys::shared::Shared;

/// Looks at the ring before the worker sleeps.
const LOOKS: u32 = 20_000;

/// What a worker is started with, opened.
#[derive(Debug)]
pub struct Place {
    /// Where things are.
    pub start: Start,
    /// The images' memory, and the clock's page.
    pub images: OwnedFd,
    /// See [`Self::images`].
    pub clock: OwnedFd,
    memory: Shared,
}

impl Place {
    /// From the environment of a worker. It binds this process to its CPU.
    pub fn open() -> Result<Self> {
        let start = Start::of_this_process().ok_or("no dispatcher has started this")?;
        let [memory, images, clock] = start.descriptors.map(|number| {
            // SAFETY: the dispatcher has left it open for this, and names each once.
            unsafe { crate::sys::fd::take(number) }
        });
        if let Some(cpu) = start.cpu {
            cpu::pin(cpu)?;
        }
        let memory = Shared::map(memory?)?;
        Ok(Self { start, images: images?, clock: clock?, memory })
    }

    /// Answers for ever, with a function's number and its stamp; `after` is what comes behind an answer.
    pub fn serve<T>(
        &self,
        with: &mut T,
        run: impl Fn(&mut T, &Submission) -> Result<[u64; 2]>,
        after: impl Fn(&mut T),
    ) -> Result<()> {
        let at = self.memory.at(0, size_of::<Ring>()).cast::<Ring>();
        // SAFETY: mapped as long as `self`, at a page's begin; all of a ring is atomic.
        let ring = unsafe { &*at };
        ring.begin(begun::NONE);
        let mut number = 1;
        loop {
            let slot = ring.slot(number);
            let submission = wait(ring, &slot.submission, number);
            let [which, stamp] = run(with, &submission)?;
            slot.completion.complete(number, &completion(which, stamp));
            after(with);
            number = following(number);
        }
    }
}

#[inline]
fn wait(ring: &Ring, line: &Line, number: u32) -> Submission {
    let sleep = &ring.sleep.0;
    loop {
        for _ in 0..LOOKS {
            if let Some(submission) = line.submission(number) {
                return submission;
            }
            std::hint::spin_loop();
        }
        sleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(submission) = line.submission(number) {
            sleep.store(0, Ordering::Relaxed);
            return submission;
        }
        // A wake that comes first has changed the word.
        let flags = rustix::thread::futex::Flags::empty();
        let _woken = rustix::thread::futex::wait(sleep, flags, 1, None);
    }
}

fn completion(which: u64, stamp: u64) -> Completion {
    Completion {
        end: End::Reply,
        code: 0,
        bytes: 16,
        log: 0,
        lost: 0,
        detail: 0,
        ticks: 0,
        short: Some(Short { words: [which, stamp, 0] }),
    }
}
