#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]
//! The system's allocator, which counts for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::{Add, Sub};

/// How often a thread has asked for memory, and given some back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allocations: u64,
    pub(crate) deallocations: u64,
    /// Memory that was made longer or shorter.
    pub(crate) reallocations: u64,
}

impl Counts {
    const ZERO: Self = Self { allocations: 0, deallocations: 0, reallocations: 0 };

    /// Of this thread so far.
    pub(crate) fn here() -> Self {
        COUNTS.get()
    }

    /// So many times as much.
    pub(crate) fn times(self, calls: u64) -> Self {
        Self {
            allocations: self.allocations * calls,
            deallocations: self.deallocations * calls,
            reallocations: self.reallocations * calls,
        }
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            allocations: self.allocations + other.allocations,
            deallocations: self.deallocations + other.deallocations,
            reallocations: self.reallocations + other.reallocations,
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            deallocations: self.deallocations - before.deallocations,
            reallocations: self.reallocations - before.reallocations,
        }
    }
}

thread_local! {
    // It is never dropped, so that it is there as long as its thread allocates.
    static COUNTS: Cell<Counts> = const { Cell::new(Counts::ZERO) };
}

fn count(change: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    change(&mut counts);
    COUNTS.set(counts);
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each function is the system allocator's. What is counted beside it is no memory of theirs, and
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|counts| counts.allocations += 1);
        // SAFETY: what the caller promises is what is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(|counts| counts.allocations += 1);
        // SAFETY: what the caller promises is what is asked for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(|counts| counts.deallocations += 1);
        // SAFETY: it is memory of `System`, as all that is given out here, and of this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(|counts| counts.reallocations += 1);
        // SAFETY: it is memory of `System`, as all that is given out here, and of this layout.
        unsafe { System.realloc(memory, layout, len) }
    }
}
