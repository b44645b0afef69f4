//! The outgoing ring of a link: who may write, and who waits for room.
//!
//! `tx` guards the writing end, for the time of one record, or, when the ring is full, of the learned
//! spin budget. It is taken after `rx` and before the lock of the calls where several are held.
//! What is decided under it goes onto the ring in the order in which it was decided.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use partywall_abi::sync::{AtomicBool, Ordering};
use partywall_shm::ring::{Producer, Violation, Wake};
use partywall_shm::slot::SlotBuf;
use partywall_shm::spin::{Plan, Spin};

use super::broken::Broken;
use super::calls::Calls;
use super::record;
use crate::lock::lock;
use crate::stubs::method::Numbers;
use crate::waker::Waiters;

/// The writing half.
pub(super) struct Tx {
    ring: Producer,
    /// How what is written on it is sealed.
    sealing: record::Outgoing,
    /// Where heads, trailers and control records are put together.
    block: Vec<u8>,
    /// Calls that wait for room.
    pub(super) waiters: Waiters,
    /// What was learned of waiting for room.
    spin: Spin,
    /// Bytes that went out in calls.
    sent: u64,
    /// Those of the caller's methods.
    pub(super) numbers: Numbers,
}

/// Room on the ring for a frame, whose block is written. Nothing has changed before the frame is sent.
pub(super) struct Reserved<'a> {
    frame: record::Frame<'a>,
    len: usize,
    sent: &'a mut u64,
}

impl Reserved<'_> {
    /// Its data, to be encoded into.
    #[inline]
    pub(super) fn buffer(&mut self) -> SlotBuf<'_> {
        self.frame.buffer()
    }

    /// So many bytes go beside the record.
    pub(super) fn count(&mut self, bytes: usize) {
        self.len += bytes;
    }

    /// Sends it with what was encoded.
    #[inline]
    pub(super) fn send(self, flags: u8, stream: u32) -> Result<(), Broken> {
        self.frame.send(flags, stream)?;
        *self.sent += self.len as u64;
        Ok(())
    }

    /// Sends it with these data.
    #[inline]
    pub(super) fn send_data(self, flags: u8, stream: u32, data: &[u8]) -> Result<(), Broken> {
        self.frame.send_data(flags, stream, data)?;
        *self.sent += self.len as u64;
        Ok(())
    }
}

impl Tx {
    // ---- a frame -----------------------------------------------------------------------

    /// The longest payload of one record.
    #[inline]
    pub(super) fn most(&self) -> usize {
        self.sealing.most(&self.ring)
    }

    /// Where the next frame's head and trailers are put together.
    #[inline]
    pub(super) fn new_block(&mut self) -> &mut Vec<u8> {
        self.block.clear();
        &mut self.block
    }

    /// What is put together there.
    pub(super) fn block(&mut self) -> &mut [u8] {
        &mut self.block
    }

    /// Reserves room for the block and so many bytes of data; none when there is none.
    #[inline(always)]
    pub(super) fn reserve(&mut self, data: usize) -> Result<Option<Reserved<'_>>, Violation> {
        let Self { ring, sealing, block, sent, .. } = self;
        let len = block.len() + data;
        let frame = sealing.reserve(ring, block, data)?;
        Ok(frame.map(|frame| Reserved { frame, len, sent }))
    }

    /// Reserves room for these bytes and so many of data, as a plain frame has them; none when there is none.
    #[inline(always)]
    pub(super) fn reserve_plain(
        &mut self,
        before: &[u8],
        data: usize,
    ) -> Result<Option<Reserved<'_>>, Violation> {
        let len = before.len() + data;
        if len > self.most() {
            return Ok(None);
        }
        let frame = self.sealing.reserve(&mut self.ring, before, data)?;
        Ok(frame.map(|frame| Reserved { frame, len, sent: &mut self.sent }))
    }

    /// Bytes that went out in calls.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    // ---- the peer ----------------------------------------------------------------------

    /// What the peer needs, after records have been written.
    #[inline]
    pub(super) fn notify(&mut self) -> Result<Wake, Violation> {
        self.ring.notify()
    }

    /// How many records the peer has taken, if it sleeps and there are others.
    pub(super) fn untaken(&mut self) -> Result<Option<u64>, Violation> {
        self.ring.untaken()
    }

    // ---- waiting for room --------------------------------------------------------------

    /// Whether a payload of so many bytes has room.
    #[inline]
    pub(super) fn has_room(&mut self, len: usize) -> Result<bool, Violation> {
        self.sealing.has_room(&mut self.ring, len)
    }

    /// How to wait for room, as was learned.
    pub(super) fn plan(&mut self, same_cpu: bool) -> Plan {
        self.spin.plan(same_cpu)
    }

    /// Spins for room; whether there is some.
    pub(super) fn spin(&mut self, budget: Duration, len: usize) -> Result<bool, Violation> {
        let Self { ring, sealing, spin, .. } = self;
        spin.spin(budget, || sealing.has_room(ring, len))
    }

    /// The CPU was given away for that turn; whether there is room now.
    pub(super) fn yielded(
        &mut self,
        turn: (Instant, Duration),
        len: usize,
    ) -> Result<bool, Violation> {
        let there = self.has_room(len)?;
        self.spin.yielded(turn, there);
        Ok(there)
    }

    /// Nobody waits for room.
    pub(super) fn awake(&mut self) {
        self.ring.awake();
    }

    /// Sends the control records that are due; the length of the first that has no room.
    pub(super) fn push_control(&mut self, calls: &Calls) -> Result<Option<usize>, Broken> {
        while let Some(control) = calls.control(&mut self.block)? {
            if !self.sealing.push_control(&mut self.ring, &control, &self.block)? {
                return Ok(Some(self.block.len()));
            }
            calls.control_sent();
        }
        Ok(None)
    }

    /// Asks to be woken for room for `len` bytes; false when there is some.
    pub(super) fn prepare_sleep(&mut self, len: usize) -> Result<bool, Violation> {
        self.sealing.prepare_sleep(&mut self.ring, len)
    }
}

/// The outgoing ring.
pub(super) struct Outbound {
    tx: Mutex<Tx>,
    /// Some task waits for room, or control records do.
    stalled: AtomicBool,
}

impl Outbound {
    pub(super) fn new(ring: Producer, sealing: record::Outgoing) -> Self {
        let (block, waiters, spin) = (Vec::with_capacity(256), Waiters::default(), Spin::default());
        let tx = Tx { ring, sealing, block, waiters, spin, sent: 0, numbers: Numbers::default() };
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
