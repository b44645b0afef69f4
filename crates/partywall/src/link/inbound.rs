//! The incoming ring of a link: taking records off it, and the flag by which its reader says that it
//! is to be woken.
//!
//! `rx` guards the ring's end. It is taken before `tx` and the lock of the calls where several
//! are held.
//!
//! ```text
//! need-wakeup   the sleep word says doorbell: the peer rings for the next record
//! staying       the driver has been woken, waits awake once others have run, and then sets the flag
//! neither       somebody is going to look, and sets the flag before it stops looking
//! ```
//!
//! A service's driver lets `rx` go before it hands a record over, so that a handler that stays does not keep
//! the next driver from it. It marks the record as being handed over meanwhile, and a caller's thread that
//! comes in takes none then: records reach their calls in order.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use bytes::Bytes;
use partywall_abi::frame::Kind;
use partywall_abi::layout::SleepMode;
use partywall_abi::sync::{AtomicBool, AtomicU64, Ordering};
use partywall_shm::ring::{Consumer, Violation, Wake};
use partywall_shm::spin::{Plan, Spin};

use super::broken::Broken;
use super::record;
use crate::lock::lock;

/// A record that was taken off a ring: copied, not yet understood.
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    /// What is kept of a long one keeps no more than the record alive.
    pub(super) payload: Bytes,
}

impl Record {
    /// Itself if it is a frame with these flags, which those of a plain one are. Then its kind and flags are
    /// known to what is inlined, and little of that is left.
    #[inline(always)]
    pub(super) fn if_plain(self, plain: u8) -> Result<Self, Self> {
        const FRAME: u8 = Kind::Frame as u8;
        match self.kind == FRAME && self.flags == plain {
            true => Ok(Self { kind: FRAME, flags: plain, ..self }),
            false => Err(self),
        }
    }
}

/// The reading half.
pub(super) struct Rx {
    ring: Consumer,
    /// How what comes on it is opened.
    opening: record::Incoming,
    /// What was learned of waiting for records.
    pub(super) spin: Spin,
    /// Something was released since the producer was last looked after.
    released: bool,
    /// What the driver is to do before it sleeps.
    asked: Option<Plan>,
}

impl Rx {
    /// Whether a record is there.
    pub(super) fn ready(&self) -> bool {
        self.ring.ready()
    }

    /// Asks the driver to wait like this before it sleeps.
    pub(super) fn ask(&mut self, plan: Plan) {
        self.asked = Some(plan);
    }

    /// What the driver was asked to do.
    pub(super) fn take_asked(&mut self) -> Option<Plan> {
        self.asked.take()
    }

    /// What a peer that waits for room needs, after records have been taken.
    #[inline]
    pub(super) fn notify(&mut self) -> Result<Wake, Violation> {
        if std::mem::take(&mut self.released) { self.ring.notify() } else { Ok(Wake::Done) }
    }
}

/// The incoming ring.
pub(super) struct Inbound {
    rx: Mutex<Rx>,
    need_wakeup: AtomicBool,
    staying: AtomicBool,
    /// The driver has taken a record that has not reached its call. Written with `rx` locked, or by the
    /// driver.
    handing_over: AtomicBool,
    /// Bytes that came. Not in `rx`: who finds that taken believes that somebody reads.
    received: AtomicU64,
}

impl Inbound {
    pub(super) fn new(ring: Consumer, opening: record::Incoming) -> Self {
        let rx = Rx { ring, opening, spin: Spin::default(), released: false, asked: None };
        Self {
            rx: Mutex::new(rx),
            need_wakeup: AtomicBool::new(false),
            staying: AtomicBool::new(false),
            handing_over: AtomicBool::new(false),
            received: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Rx> {
        lock(&self.rx)
    }

    /// The reading half, unless somebody has it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Rx>> {
        match self.rx.try_lock() {
            Ok(rx) => Some(rx),
            Err(TryLockError::Poisoned(p)) => Some(PoisonError::into_inner(p)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes one record off the ring.
    #[inline]
    pub(super) fn take(&self, rx: &mut Rx) -> Result<Option<Record>, Broken> {
        let Some((d, payload)) = rx.opening.take_bytes(&mut rx.ring)? else { return Ok(None) };
        rx.released = true;
        self.count(payload.len());
        Ok(Some(Record { kind: d.kind, flags: d.flags, stream: d.stream, payload }))
    }

    /// So many bytes came. Who calls this reads the ring.
    #[inline]
    pub(super) fn count(&self, bytes: usize) {
        let received = self.received.load(Ordering::Relaxed) + bytes as u64;
        self.received.store(received, Ordering::Relaxed);
    }

    /// A record that was taken is handed over after `rx` is let go.
    pub(super) fn hands_over(&self) {
        self.handing_over.store(true, Ordering::Relaxed);
    }

    /// It has reached its call.
    pub(super) fn handed_over(&self) {
        self.handing_over.store(false, Ordering::Release);
    }

    /// Whether a record that was taken before has not reached its call; to be asked with `rx` locked.
    pub(super) fn is_handing_over(&self) -> bool {
        self.handing_over.load(Ordering::Acquire)
    }

    /// Bytes that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether the peer rings for the next record.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.need_wakeup.load(Ordering::Relaxed)
    }

    /// Whether a task that waits need not look: the peer rings, or the driver stays.
    pub(super) fn is_cared_for(&self) -> bool {
        self.needs_wakeup() || self.staying.load(Ordering::Relaxed)
    }

    /// Takes the flag back: somebody looks.
    pub(super) fn awake(&self, rx: &mut Rx) {
        rx.ring.awake();
        self.need_wakeup.store(false, Ordering::Relaxed);
    }

    /// The driver is going to look, and sleeps only then.
    pub(super) fn stay(&self, rx: &mut Rx) {
        self.awake(rx);
        self.staying.store(true, Ordering::Relaxed);
    }

    /// Sets the flag; false when a record is there.
    pub(super) fn sleep(&self, rx: &mut Rx) -> bool {
        let asleep = rx.ring.prepare_sleep(SleepMode::Doorbell);
        self.need_wakeup.store(asleep, Ordering::Relaxed);
        self.staying.store(false, Ordering::Relaxed);
        asleep
    }
}

#[cfg(test)]
impl Record {
    /// A frame with a head, if its flags say so, and data.
    pub(super) fn frame(
        flags: u8,
        stream: u32,
        head: impl FnOnce(&mut Vec<u8>),
        data: usize,
    ) -> Self {
        use partywall_abi::frame;
        let mut payload = Vec::new();
        if flags & frame::HEAD != 0 {
            frame::write_block(&mut payload, head).unwrap();
        }
        payload.resize(payload.len() + data, 7);
        Self { kind: frame::Kind::Frame as u8, flags, stream, payload: payload.into() }
    }
}
