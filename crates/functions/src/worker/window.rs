#![allow(unsafe_code, reason = "a static variable that assembly and handlers write")]
//! What a function can read of its worker's, and what says whether protection keys are in force at all.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::layout::PAGE;

/// Memory that functions can read and not write, for what is needed while their rights are in force.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(super) struct Window {
    /// The rights of the function that is on the CPU or comes next; 0 without keys.
    rights: AtomicU32,
    /// Where a handler leaves what it takes back last: see [`super::handlers`].
    last: UnsafeCell<[u64; 511]>,
}

// SAFETY: one thread and its handlers have it, which know of each other.
unsafe impl Sync for Window {}

const _: () = assert!(size_of::<Window>() as u64 == PAGE);

/// See [`Window`]; its first word is known to assembly.
pub(super) static WINDOW: Window =
    Window { rights: AtomicU32::new(0), last: UnsafeCell::new([0; 511]) };

impl Window {
    /// The rights of the function that is on the CPU.
    pub(super) fn rights(&self) -> u32 {
        self.rights.load(Relaxed)
    }

    /// The next function has these rights.
    pub(super) fn set(&self, rights: u32) {
        self.rights.store(rights, Relaxed);
    }

    /// The addresses of the words for handlers.
    pub(super) fn last(&self) -> std::ops::Range<u64> {
        let range = self.last.get().cast::<u64>();
        range as u64..range.wrapping_add(511) as u64
    }
}

/// Whether keys are in force: what handlers ask, who begin without rights to [`WINDOW`].
pub(super) static IN_FORCE: AtomicU32 = AtomicU32::new(0);
