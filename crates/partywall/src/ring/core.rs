//! One link, as far as both sides do the same: its calls, putting records on the ring, credit, and
//! the end. Taking records off the other ring is in [`super::reader`].
//!
//! # Locks
//!
//! `tx` guards the writing end, for the time of one record, or, when the ring is full, of the learned
//! spin budget. It is taken after `rx` where both are held. `streams` guards the table of calls and
//! is held for one operation on it; a stream's own lock and that of the caller's account may be
//! taken under it.
//!
//! # Places and windows
//!
//! How many calls may be open, and how much request data be under way, is the service's to say: its
//! first record ([`Kind::Limits`]) says it, and until the caller has read that, it has one place and
//! a small window. A call that finds no place waits in the caller ([`super::table`]); a service
//! answers RESOURCE_EXHAUSTED to a head beyond its limit. A place is free for the caller when it has
//! read the answer's end, or sent a reset; the service counts a call from its head until its answer's
//! end is on the ring, so that a caller which keeps to the limit is never over it. Heads do not
//! overtake resets that wait for room in the ring.
//!
//! A sender leaves a part of the link's window to messages that one record holds whole: readers that
//! take nothing, or wait for room ([`super::account`]), stop no short call.
//!
//! # The end
//!
//! A hang-up, a broken rule or the end of the driver's runtime closes the link: the socket is shut
//! down, every call ends with UNAVAILABLE (after what had come before), every waiting task is
//! woken, the coordinator is told what was counted. A call that is opened at that moment is either
//! in the table when it is emptied, or sees that the link is closed. Nothing is left but the memory,
//! which goes with the last reference.
//!
//! A peer that is found dead when it is rung for is no reason to end anything: what it sent
//! before may answer a call. The reader ends the link when it has taken that.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use partywall_abi::control::LinkStats;
use partywall_abi::layout::SleepMode;
use partywall_abi::limits;
use partywall_abi::segment::{self, Kind};
use partywall_abi::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use partywall_shm::link::{Bell, LinkError};
use partywall_shm::ring::{Producer, Wake};
use partywall_shm::setup::Ends;
use partywall_shm::spin::{Plan, Spin};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::Status;

use super::account::Account;
pub(crate) use super::broken::Broken;
use super::habits::{Habits, Method};
use super::lone;
use super::reader::{Doorbell, Rx};
use super::stream::{OverCredit, OverWindow};
use super::table::{FREE_PLACES, Table};
use crate::agent::{Booked, End};
use crate::domain::{Gate, Visited};

/// Control records that may wait for room, beside three for each call that may be open (a reset, a
/// grant, room); a peer that lets more pile up takes nothing.
const PENDING: usize = 64;

/// The writing half.
pub(crate) struct Tx {
    pub(crate) producer: Producer,
    /// Where heads and trailers are put together.
    pub(crate) block: Vec<u8>,
    /// What may still be sent on the link, all streams together, and what that was at the start.
    pub(crate) credit: u64,
    window: u64,
    /// Tasks that wait for room or for the link's credit.
    waiters: Vec<Waker>,
    /// What was learned of waiting for room.
    spin: Spin,
    /// Bytes that went out in calls.
    sent: u64,
    /// Which methods of a peer of the same launcher are worth going in for.
    pub(super) habits: Option<Habits>,
    /// Control records that wait for room: kind, stream, payload.
    pending: VecDeque<(Kind, u32, Vec<u8>)>,
    most_pending: usize,
}

/// What was counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Written by whoever visits the link, under the lock of `rx`; so are the next two.
    pub(crate) visits: AtomicU64,
    pub(crate) forwards: AtomicU64,
    pub(crate) inside_ns: AtomicU64,
}

impl Counters {
    /// Adds to a counter that only one thread writes at a time: without a locked instruction.
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

/// One link.
pub(crate) struct Core {
    pub(crate) link: u64,
    pub(super) io: AsyncFd<Arc<Bell>>,
    pub(super) doorbell: Arc<Doorbell>,
    /// The doorbell, as the runtime knows it.
    pub(super) waker: Waker,
    tx: Mutex<Tx>,
    pub(super) rx: Mutex<Rx>,
    pub(super) announced: AtomicBool,
    /// The driver is going to look before anybody sleeps.
    pub(super) staying: AtomicBool,
    /// Calls since the last that had company.
    pub(super) calls_alone: AtomicU32,
    /// Bytes that came. Not in `rx`: who finds that taken believes that somebody reads.
    pub(super) received: AtomicU64,
    /// Some task waits for room or control records are pending.
    pub(super) stalled: AtomicBool,
    pub(super) streams: Mutex<Table>,
    /// How many calls are in the table, for those who need not know exactly.
    pub(super) open: AtomicUsize,
    pub(super) next_id: AtomicU32,
    /// What the peer may still send on the link, and what that was at the start.
    window: AtomicI64,
    whole_window: u32,
    /// Taken by tasks and not granted again yet.
    owed: AtomicU32,
    closed: OnceLock<Status>,
    pub(crate) counters: Counters,
    /// This end in the coordinator's books, until the link is closed.
    booked: Mutex<Option<Booked>>,
    /// The runtime has several threads.
    pub(super) many_threads: bool,
    /// What this link's calls hold, of what its caller may.
    pub(super) account: Arc<Account>,
    /// Streams that wait for room in the account.
    pub(super) waiting: AtomicUsize,
    /// The way into a peer of the same launcher.
    gate: OnceLock<Gate>,
}

pub(super) fn guard<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a socket with the runtime.
///
/// tokio's successors of this constructor are unsafe, because a type could close its descriptor
/// while it is registered. [`Bell`] and `Pending` own theirs until they are dropped.
#[expect(deprecated, reason = "the safe form; see above")]
pub(crate) fn watch<T: AsRawFd>(socket: T) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, tokio::io::Interest::READABLE)
}

impl Core {
    /// Takes over the caller's end of an open link, inside the runtime that will drive it.
    pub(crate) fn calling(ends: Ends, booked: Option<Booked>) -> std::io::Result<Self> {
        let mut core = Self::new(ends, Account::own(), booked)?;
        let tx = core.tx.get_mut().unwrap_or_else(PoisonError::into_inner);
        (tx.credit, tx.window) = (limits::FIRST_WINDOW.into(), limits::FIRST_WINDOW.into());
        core.streams = Mutex::new(Table::with_places(limits::FIRST_STREAMS));
        Ok(core)
    }

    /// Takes over a service's end of an open link, as [`Core::calling`], and says what it may have.
    pub(crate) fn serving(
        ends: Ends,
        account: Arc<Account>,
        booked: Option<Booked>,
    ) -> std::io::Result<Self> {
        let bounds = *account.bounds();
        let calls = bounds.calls.saturating_add(FREE_PLACES);
        let streams = bounds.calls_per_link.min(calls).min(limits::STREAMS_MAX) as u32;
        let limits = segment::Limits { streams, window: account.window };
        let core = Self::new(ends, account, booked)?;
        guard(&core.tx).expect_calls(streams as usize);
        core.push_control(Kind::Limits, 0, &limits.encode());
        Ok(core)
    }

    fn new(ends: Ends, account: Arc<Account>, booked: Option<Booked>) -> std::io::Result<Self> {
        ends.bell.publish_cpu();
        let doorbell = Arc::<Doorbell>::default();
        Ok(Self {
            link: ends.link,
            io: watch(ends.bell)?,
            waker: Arc::clone(&doorbell).into(),
            doorbell,
            tx: Mutex::new(Tx {
                producer: ends.producer,
                block: Vec::with_capacity(256),
                credit: limits::LINK_WINDOW.into(),
                window: limits::LINK_WINDOW.into(),
                waiters: Vec::new(),
                spin: Spin::default(),
                sent: 0,
                habits: None,
                pending: VecDeque::new(),
                most_pending: PENDING,
            }),
            rx: Mutex::new(Rx::new(ends.consumer)),
            announced: AtomicBool::new(false),
            staying: AtomicBool::new(false),
            calls_alone: AtomicU32::new(lone::ALONE + 1),
            received: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            streams: Mutex::default(),
            open: AtomicUsize::new(0),
            next_id: AtomicU32::new(1),
            window: AtomicI64::new(account.window.into()),
            whole_window: account.window,
            owed: AtomicU32::new(0),
            closed: OnceLock::new(),
            counters: Counters::default(),
            booked: Mutex::new(booked),
            many_threads: Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread,
            account,
            waiting: AtomicUsize::new(0),
            gate: OnceLock::new(),
        })
    }

    /// From here on a sleeping peer is visited, not woken.
    pub(crate) fn visit_by(&self, gate: Gate) {
        let _first = self.gate.set(gate);
        guard(&self.tx).habits = Some(Habits::new());
    }

    /// Why the link is closed, if it is.
    pub(crate) fn closed(&self) -> Option<&Status> {
        self.closed.get()
    }

    /// Ends the link; the first reason stays.
    pub(crate) fn close(&self, why: &Broken) {
        let status = why.status(self.link);
        if self.closed.set(status.clone()).is_err() {
            return;
        }
        match why {
            Broken::Link(LinkError::Dead) | Broken::Closed | Broken::Runtime => {
                tracing::debug!(link = self.link, %why, "link closed");
            }
            _ => tracing::warn!(link = self.link, blame = ?why.blame(), %why, "link closed"),
        }
        let mut streams = guard(&self.streams);
        let (calls, waiting) = (std::mem::take(&mut streams.calls), streams.shut());
        if streams.leases {
            self.account.give_back(streams.places - FREE_PLACES);
            streams.places = FREE_PLACES;
        }
        drop(streams);
        drop(waiting);
        self.open.store(0, Ordering::Relaxed);
        for stream in calls.into_values() {
            stream.fail(status.clone());
        }
        let waiters = std::mem::take(&mut guard(&self.tx).waiters);
        waiters.into_iter().for_each(Waker::wake);
        // The peer is not to wait for the last reference to this value.
        self.bell().hang_up();
        self.wake_ears();
        let booked = guard(&self.booked).take();
        if let Some(booked) = booked {
            booked.close(why.reported(), self.stats());
        }
    }

    // ---- sending -------------------------------------------------------------------------

    /// Runs `push` with the writing half and rings if the peer sleeps.
    ///
    /// `push` returns false when there was no room; then the task of `cx` is woken when there is.
    pub(crate) fn poll_push(
        &self,
        cx: &Context<'_>,
        mut push: impl FnMut(&mut Tx) -> Result<Push, Broken>,
    ) -> Poll<Result<(), Broken>> {
        if self.closed().is_some() {
            return Poll::Ready(Err(Broken::Closed));
        }
        let mut tx = guard(&self.tx);
        let mut spun = false;
        loop {
            match push(&mut tx)? {
                Push::Done { bytes, visit } => {
                    tx.sent += bytes as u64;
                    let wake = tx.producer.notify()?;
                    drop(tx);
                    match visit {
                        Some(request) => self.visit_or_ring(wake, request)?,
                        None => self.ring(wake)?,
                    }
                    // Finding room may have taken back the announcement of those who wait for
                    // more of it.
                    self.serve_stalled()?;
                    return Poll::Ready(Ok(()));
                }
                Push::NoCredit => {
                    // `push` has registered with the stream if that was short; the link's credit
                    // comes through `grant_link`.
                    if tx.credit <= tx.reserve() {
                        tx.wait(cx);
                    }
                    return Poll::Pending;
                }
                Push::NoRoom(len) => {
                    // Others who would send wait for this: the ring is full for them as well.
                    if !std::mem::replace(&mut spun, true) {
                        let there;
                        (tx, there) = self.wait_awake(tx, len)?;
                        if there {
                            continue;
                        }
                    }
                    self.stalled.store(true, Ordering::SeqCst);
                    if self.announce_room(&mut tx, len)? {
                        tx.wait(cx);
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Waits for room as was learned, before it is slept for; whether there is some.
    fn wait_awake<'a>(
        &'a self,
        mut tx: MutexGuard<'a, Tx>,
        len: usize,
    ) -> Result<(MutexGuard<'a, Tx>, bool), Broken> {
        let Tx { producer, spin, .. } = &mut *tx;
        let there = match spin.plan(self.bell().same_cpu()) {
            Plan::Sleep => false,
            Plan::Spin(budget) => spin.spin(budget, || producer.has_room(len))?,
            Plan::HandOver => {
                // What is on the ring is for the peer to see now, and nothing is locked meanwhile.
                let wake = producer.notify()?;
                drop(tx);
                self.ring(wake)?;
                let turn = self.bell().hand_over();
                tx = guard(&self.tx);
                let there = tx.producer.has_room(len)?;
                tx.spin.handed_over(turn, there);
                there
            }
        };
        Ok((tx, there))
    }

    /// Sends a control record now, or as soon as there is room.
    pub(crate) fn push_control(&self, kind: Kind, stream: u32, payload: &[u8]) {
        let sent = || -> Result<(), Broken> {
            let mut tx = guard(&self.tx);
            if tx.pending.is_empty() && tx.producer.try_push(kind as u8, 0, stream, &[payload])? {
                let wake = tx.producer.notify()?;
                drop(tx);
                return self.ring(wake);
            }
            if tx.pending.len() >= tx.most_pending {
                return Err(Broken::Rule("it takes nothing off its ring"));
            }
            tx.pending.push_back((kind, stream, payload.to_vec()));
            self.stalled.store(true, Ordering::SeqCst);
            drop(tx);
            self.serve_stalled()
        };
        if self.closed().is_none()
            && let Err(why) = sent()
        {
            self.close(&why);
        }
    }

    /// Resets a call.
    pub(crate) fn push_reset(&self, stream: u32, code: tonic::Code, text: &str) {
        let mut payload = Vec::new();
        segment::write_reset(&mut payload, code as i32 as u8, text);
        self.push_control(Kind::Reset, stream, &payload);
    }

    /// Sends what waits for room, and wakes those who wait, if there is some now.
    pub(super) fn serve_stalled(&self) -> Result<(), Broken> {
        if !self.stalled.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut tx = guard(&self.tx);
        loop {
            let sent = tx.push_pending()?;
            let most = tx.producer.record_bytes();
            if sent && tx.producer.has_room(most)? {
                tx.producer.awake();
                self.stalled.store(false, Ordering::SeqCst);
                let waiters = std::mem::take(&mut tx.waiters);
                let wake = tx.producer.notify()?;
                drop(tx);
                waiters.into_iter().for_each(Waker::wake);
                return self.ring(wake);
            }
            if self.announce_room(&mut tx, most)? {
                let wake = tx.producer.notify()?;
                drop(tx);
                return self.ring(wake);
            }
        }
    }

    /// Announces that this side waits for room for `len` bytes; false when there is some.
    fn announce_room(&self, tx: &mut Tx, len: usize) -> Result<bool, Broken> {
        if self.bell().must_drain() {
            // The reader is told, whose bell this may take. A hang-up is for it to see.
            let _bells = self.bell().drain();
            self.waker.wake_by_ref();
        }
        self.bell().slept();
        Ok(tx.producer.prepare_sleep(len, SleepMode::Doorbell)?)
    }

    /// Has a sleeping peer of the same launcher take a request in this thread; rings for any other.
    fn visit_or_ring(&self, wake: Wake, (method, stream): (Method, u32)) -> Result<(), Broken> {
        let (Wake::Doorbell, Some(gate)) = (&wake, self.gate.get()) else {
            return self.ring(wake);
        };
        // An answer that is there when this thread comes back needs no bell.
        if self.announced.load(Ordering::Relaxed) {
            self.try_rx().into_iter().for_each(|mut rx| self.awake(&mut rx));
        }
        let mut seen = None;
        loop {
            let Visited { taken, waits } = gate.visit(stream).map_err(Broken::Callee)?;
            let mut tx = guard(&self.tx);
            if let (Some(waits), Some(habits)) = (waits, &mut tx.habits) {
                habits.learn(method, waits);
            }
            if !taken {
                drop(tx);
                return self.ring(wake);
            }
            // What others have put there while this thread was inside, and found no other way in.
            tx.producer.not_woken();
            if tx.producer.all_taken()? || !matches!(tx.producer.notify()?, Wake::Doorbell) {
                return Ok(());
            }
            let taken = Some(tx.producer.taken());
            drop(tx);
            // The service says that it takes records, and takes none.
            if std::mem::replace(&mut seen, taken) == taken || self.closed().is_some() {
                return self.ring(wake);
            }
        }
    }

    pub(super) fn ring(&self, wake: Wake) -> Result<(), Broken> {
        Ok(self.bell().carry_out(wake)?)
    }

    pub(super) fn bell(&self) -> &Bell {
        self.io.get_ref()
    }

    // ---- credit --------------------------------------------------------------------------

    /// The service has said what this link may have.
    pub(crate) fn limited(&self, limits: segment::Limits) -> Result<(), Broken> {
        let mut tx = guard(&self.tx);
        if tx.most_pending != PENDING {
            return Err(Broken::Rule("limits that were said before"));
        }
        tx.expect_calls(limits.streams as usize);
        tx.window = limits.window.into();
        tx.credit += u64::from(limits.window - limits::FIRST_WINDOW);
        let waiters = std::mem::take(&mut tx.waiters);
        drop(tx);
        waiters.into_iter().for_each(Waker::wake);
        self.set_places(limits.streams as usize);
        Ok(())
    }

    /// The peer granted so much on the link.
    pub(crate) fn grant_link(&self, credit: u32) -> Result<(), Broken> {
        let mut tx = guard(&self.tx);
        tx.credit += u64::from(credit);
        if tx.credit > tx.window {
            return Err(OverCredit.into());
        }
        let waiters = std::mem::take(&mut tx.waiters);
        drop(tx);
        waiters.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// A task has taken `bytes` of the link's window; grants them again in portions.
    pub(crate) fn give_back(&self, bytes: u32) {
        if bytes == 0 {
            return;
        }
        // SeqCst here and in `charge`: one of two that meet sees the other's change.
        let owed = self.owed.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.grant(owed, self.window.load(Ordering::SeqCst));
    }

    /// Grants what is owed if that is worth a record, or if no more than that is `left` beside the
    /// reserve: what slow readers hold back must not keep the others' share below the portion.
    fn grant(&self, owed: u32, left: i64) {
        let beside = left - i64::from(self.whole_window / limits::RESERVE);
        if owed >= self.whole_window / 2 || (owed > 0 && i64::from(owed) >= beside) {
            let owed = self.owed.swap(0, Ordering::Relaxed);
            if owed > 0 {
                self.window.fetch_add(owed.into(), Ordering::Relaxed);
                self.push_control(Kind::Window, 0, &owed.to_le_bytes());
            }
        }
    }

    /// `bytes` of data have come: they must fit the link's window.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Broken> {
        if bytes == 0 {
            return Ok(());
        }
        let left = self.window.fetch_sub(bytes as i64, Ordering::SeqCst) - bytes as i64;
        if left < 0 {
            return Err(OverWindow.into());
        }
        self.grant(self.owed.load(Ordering::SeqCst), left);
        Ok(())
    }
}

/// What became of an attempt to push.
pub(crate) enum Push {
    /// A record of so many bytes is on the ring. `visit`: whose answer it pays to go in for.
    Done { bytes: usize, visit: Option<(Method, u32)> },
    /// Credit is missing.
    NoCredit,
    /// So many bytes have no room.
    NoRoom(usize),
}

impl Tx {
    fn expect_calls(&mut self, calls: usize) {
        self.most_pending = PENDING + 3 * calls;
    }

    /// What is left of the link's credit to messages that one record holds whole.
    pub(crate) fn reserve(&self) -> u64 {
        self.window / u64::from(limits::RESERVE)
    }

    /// Sends control records that wait for room; whether all are sent.
    pub(crate) fn push_pending(&mut self) -> Result<bool, Broken> {
        while let Some((kind, stream, payload)) = self.pending.front() {
            if !self.producer.try_push(*kind as u8, 0, *stream, &[payload])? {
                return Ok(false);
            }
            self.pending.pop_front();
        }
        Ok(true)
    }

    /// The longest that the next control record can be.
    pub(crate) fn next_pending(&self) -> usize {
        self.pending.front().map_or(0, |(_, _, payload)| payload.len())
    }

    /// Has the task woken when there is room or credit.
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiters.iter().any(|w| w.will_wake(cx.waker())) {
            self.waiters.push(cx.waker().clone());
        }
    }
}

impl Core {
    /// Has the coordinator reach this end from here on.
    pub(crate) fn attach(&self, end: Weak<dyn End>) {
        if let Some(booked) = &*guard(&self.booked) {
            booked.attach(end);
        }
    }

    /// What was counted so far.
    pub(crate) fn stats(&self) -> LinkStats {
        let c = &self.counters;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let mut stats = LinkStats::default();
        stats.calls = get(&c.calls);
        stats.failed = get(&c.failed);
        stats.denied = get(&c.denied);
        stats.sent_bytes = guard(&self.tx).sent;
        stats.received_bytes = self.received.load(Ordering::Relaxed);
        stats.visits = get(&c.visits);
        stats.forwards = get(&c.forwards);
        stats.inside_ns = get(&c.inside_ns);
        stats
    }
}
