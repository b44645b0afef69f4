#![allow(unsafe_code, reason = "maps a page that workers read")]
//! The page by which functions tell the time, which all workers map at the same address.
//!
//! | clock | what functions see | who writes |
//! | --- | --- | --- |
//! | coarse | the time of the last [`Clock::tick`], at most the resolution ago | the dispatcher, each tick |
//! | exact | the time stamp counter, by a rate that was measured at the start | the dispatcher, once; the difference to CLOCK_REALTIME each tick |
//!
//! Each word is written at once, and no two have to agree: a coarse time of a word that is new and one that
//! is old is as right as either. Workers with a coarse clock have no time stamp counter (PR_SET_TSC).

use std::io;
use std::time::Duration;

use partywall_abi::sync::{AtomicU64, Ordering};
use partywall_fn::clock::page;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::layout::PAGE;
use crate::store::Store;

/// How exactly functions see the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exactness {
    /// So far behind at most.
    Coarse(Duration),
    /// By the time stamp counter.
    Exact,
}

/// The page's writer.
#[derive(Debug)]
pub struct Clock {
    words: &'static [AtomicU64; page::WORDS],
    exactness: Exactness,
}

/// How long the rate of the time stamp counter is measured.
const MEASURED: Duration = Duration::from_millis(20);

impl Clock {
    /// Writes the page for the first time; it takes 20 ms where the clock is exact.
    ///
    /// # Errors
    /// The kernel's, when it does not map the page.
    pub fn new(store: &Store, exactness: Exactness) -> io::Result<Self> {
        let (rights, bytes) = (ProtFlags::READ | ProtFlags::WRITE, PAGE as usize);
        // SAFETY: where nothing is.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                rights,
                MapFlags::SHARED,
                store.clock(),
                0,
            )?
        };
        // SAFETY: mapped for as long as this process lives; words of a page.
        let words = unsafe { &*at.cast::<[AtomicU64; page::WORDS]>() };
        let clock = Self { words, exactness };
        if exactness == Exactness::Exact {
            let (ticks, boot) = (ticks(), now(ClockId::Boottime));
            std::thread::sleep(MEASURED);
            let passed = u128::from(self::ticks() - ticks);
            let rate = (u128::from(now(ClockId::Boottime) - boot) << 32) / passed.max(1);
            clock.set(page::RATE, rate as u64);
            clock.set(page::BOOT, boot);
            clock.set(page::TICKS, ticks);
        }
        clock.tick();
        Ok(clock)
    }

    /// Writes the time.
    pub fn tick(&self) {
        let boot = now(ClockId::Boottime);
        let known = match self.exactness {
            Exactness::Coarse(resolution) => {
                self.set(page::RESOLUTION, resolution.as_nanos() as u64);
                self.set(page::BOOT, boot);
                boot
            }
            // What functions make of the counter now.
            Exactness::Exact => {
                let passed = u128::from(ticks() - self.get(page::TICKS));
                self.get(page::BOOT) + ((passed * u128::from(self.get(page::RATE))) >> 32) as u64
            }
        };
        let difference = boot.wrapping_sub(known);
        let real = now(ClockId::Realtime).wrapping_sub(boot).wrapping_add(difference);
        self.set(page::REAL, real);
    }

    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ticks() -> u64 {
    // SAFETY: reads a register.
    unsafe { std::arch::x86_64::_rdtsc() }
}
