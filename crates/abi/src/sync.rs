//! The atomics of the rings: `core`'s, or loom's when a model is being checked.
//!
//! This is the only place that names an atomic type; everything else imports from here, so that
//! the code that loom explores is the code that runs. Each Release store carries a label
//! `SYNC(name)` that its Acquire load repeats.

#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Tells the processor that this thread is waiting in a loop (`PAUSE` on x86-64).
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
