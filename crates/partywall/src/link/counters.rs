//! What an end of a link counts for the coordinator.

use std::time::Duration;

use partywall_abi::control::{LinkStats, ParcelStats};
use partywall_abi::sync::{AtomicU64, Ordering};

#[derive(Default)]
pub(super) struct Counters {
    calls: AtomicU64,
    failed: AtomicU64,
    denied: AtomicU64,
    /// Written by whoever comes in through the gate, under the lock of `rx`; so are the next two.
    visits: AtomicU64,
    forwards: AtomicU64,
    inside_ns: AtomicU64,
}

/// Parcels that an end has sent. Who sends one holds the lock of its socket.
#[derive(Default)]
pub(crate) struct SentParcels {
    parcels: AtomicU64,
    bytes: AtomicU64,
}

impl SentParcels {
    pub(crate) fn count(&self, bytes: usize) {
        self.parcels.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub(crate) fn stats(&self) -> ParcelStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ParcelStats::new(get(&self.parcels), get(&self.bytes))
    }
}

impl Counters {
    /// Whoever calls this holds the lock of the link's rights.
    pub(super) fn called(&self) {
        // One thread writes at a time: without a locked instruction.
        self.calls.store(self.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn denied(&self, calls: usize) {
        self.denied.fetch_add(calls as u64, Ordering::Relaxed);
    }

    /// What a caller's thread has done with one record, with `rx` locked.
    pub(super) fn visited(&self, first: bool, forwards: u64, took: Duration) {
        // One thread writes at a time: without a locked instruction.
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.visits, first.into());
        add(&self.forwards, forwards);
        add(&self.inside_ns, took.as_nanos() as u64);
    }

    /// What was counted so far, but for bytes and parcels.
    pub(super) fn stats(&self) -> LinkStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = LinkStats::default();
        stats.calls = get(&self.calls);
        stats.failed = get(&self.failed);
        stats.denied = get(&self.denied);
        stats.visits = get(&self.visits);
        stats.forwards = get(&self.forwards);
        stats.inside_ns = get(&self.inside_ns);
        stats
    }
}
