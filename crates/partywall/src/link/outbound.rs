//! The outgoing ring of a link: who may write, and who waits for room.
//!
//! `tx` guards the writing end, for the time of one record, or, when the ring is full, of the learned
//! spin budget. It is taken after `rx` and before the lock of the calls where several are held.
//! What is decided under it goes onto the ring in the order in which it was decided.

use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Waker};

use partywall_abi::sync::{AtomicBool, Ordering};
use partywall_shm::ring::{Producer, Violation};
use partywall_shm::spin::Spin;

use super::broken::Broken;
use super::calls::{self, Calls};
use super::record;
use crate::lock::lock;

/// The writing half.
pub(super) struct Tx {
    pub(super) ring: Producer,
    /// Where heads, trailers and control records are put together.
    pub(super) block: Vec<u8>,
    /// Tasks that wait for room.
    waiters: Vec<Waker>,
    /// What was learned of waiting for room.
    pub(super) spin: Spin,
    /// Bytes that went out in calls.
    pub(super) sent: u64,
}

impl Tx {
    /// Has the task woken when there is room.
    pub(super) fn wait(&mut self, cx: &Context<'_>) {
        calls::wait(&mut self.waiters, cx);
    }

    pub(super) fn take_waiters(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiters)
    }

    /// Sends the control records that are due; the length of the first that has no room.
    pub(super) fn push_control(&mut self, calls: &Calls) -> Result<Option<usize>, Broken> {
        while let Some(control) = calls.control(&mut self.block)? {
            if !record::push_control(&mut self.ring, &control, &self.block)? {
                return Ok(Some(self.block.len()));
            }
            calls.control_sent();
        }
        Ok(None)
    }

    /// Asks to be woken for room for `len` bytes; false when there is some.
    pub(super) fn prepare_sleep(&mut self, len: usize) -> Result<bool, Violation> {
        record::prepare_sleep(&mut self.ring, len)
    }
}

/// The outgoing ring.
pub(super) struct Outbound {
    tx: Mutex<Tx>,
    /// Some task waits for room, or control records do.
    stalled: AtomicBool,
}

impl Outbound {
    pub(super) fn new(ring: Producer) -> Self {
        let (block, waiters, spin) = (Vec::with_capacity(256), Vec::new(), Spin::default());
        let tx = Tx { ring, block, waiters, spin, sent: 0 };
        Self { tx: Mutex::new(tx), stalled: AtomicBool::new(false) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tx> {
        lock(&self.tx)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    pub(super) fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::SeqCst);
    }
}
