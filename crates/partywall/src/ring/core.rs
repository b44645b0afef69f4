//! One link, as far as both sides do the same: taking records off one ring and putting them on the
//! other, credit, waking and sleeping, and the end.
//!
//! # Who does what
//!
//! A *driver* task per link ([`Core::poll_drive`]) waits for the doorbell, takes records and hands
//! them to its side. On the caller's side a call that has just been sent, and is the only one
//! under way, may do the driver's work itself while it spins for its answer ([`Core::spin_for`]).
//!
//! Two mutexes, `tx` and `rx`, guard the ring ends. They are held for the time of one record, or
//! (rx, by a spinner) for the learned spin budget, at most 50 us; nobody waits for a spinner: who
//! finds `rx` taken leaves the work to the one who has it.
//!
//! # Not sleeping beside a record
//!
//! ```text
//! announced   the sleep word says doorbell: the peer rings for the next record
//! awake       somebody is going to look, and announces before it stops looking
//! ```
//!
//! The rule: a task that is about to wait for the peer calls [`Core::settle`], which looks once
//! more and announces, unless somebody else holds `rx`; and who gives up `rx` without announcing
//! looks whether others have come to wait meanwhile, and settles for them. While no call is under
//! way a caller may stay awake: then there is nothing to be woken for.
//!
//! # The end
//!
//! A hang-up, a broken rule or the end of the driver's runtime closes the link: every call on it
//! ends with UNAVAILABLE (after what had come before), every waiting task is woken, the
//! coordinator is told what was counted. Nothing is left but the memory, which goes with the last
//! reference.

// tidy: long because the rules of who looks and who sleeps span taking, spinning and driving.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use partywall_abi::control::LinkStats;
use partywall_abi::layout::SleepMode;
use partywall_abi::limits;
use partywall_abi::segment::{self, Kind};
use partywall_abi::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, spin_hint};
use partywall_shm::link::{Bell, Ends, LinkError};
use partywall_shm::ring::{Consumer, Producer, Wake};
use partywall_shm::spin::Spin;
use tokio::io::Ready;
use tokio::io::unix::AsyncFd;
use tonic::Status;

pub(crate) use super::broken::Broken;
use super::stream::{OverWindow, Stream};
use super::table::Table;
use crate::agent::{Agent, Counted};

/// Records a driver takes before it lets other tasks run.
const TURN: u32 = 128;
/// The longest a driver spins in one poll; between portions other tasks run.
const SPIN_PORTION: Duration = Duration::from_micros(4);
/// Control records that may wait for room; a peer that lets more pile up takes nothing.
const PENDING: usize = 2 * limits::STREAMS + 64;
/// Size of the buffer that small payloads are cut from.
const POOL: usize = 16 * 1024;

/// A record taken off the ring: copied, not yet understood.
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Bytes,
}

/// The writing half.
pub(crate) struct Tx {
    pub(crate) producer: Producer,
    /// Where heads and trailers are put together.
    pub(crate) block: Vec<u8>,
    /// What may still be sent on the link, all streams together.
    pub(crate) credit: u64,
    /// Tasks that wait for room or for the link's credit.
    waiters: Vec<Waker>,
    /// Control records that wait for room: kind, stream, payload.
    pending: VecDeque<(Kind, u32, Vec<u8>)>,
}

/// The reading half.
struct Rx {
    consumer: Consumer,
    pool: BytesMut,
    spin: Spin,
    /// Something was released since the producer was last looked after.
    released: bool,
}

/// What was counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) denied: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// One link.
pub(crate) struct Core {
    pub(crate) link: u64,
    io: AsyncFd<Arc<Bell>>,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    /// Held from taking a record to having handed it to its call, where several tasks may read:
    /// records of one call stay in order. Taken before `rx`.
    turn: Mutex<()>,
    announced: AtomicBool,
    /// Bells that have not been read from the socket; drivers come and go, these stay.
    unread: AtomicU32,
    /// Some task waits for room or control records are pending.
    stalled: AtomicBool,
    streams: Mutex<Table>,
    next_id: AtomicU32,
    /// What the peer may still send on the link.
    window: AtomicI64,
    /// Taken by tasks and not granted again yet.
    owed: AtomicU32,
    closed: OnceLock<Status>,
    /// The driver, while it waits for the doorbell: closing wakes it.
    driver: Mutex<Option<Waker>>,
    pub(crate) counters: Counters,
    agent: Option<Arc<Agent>>,
}

/// What a side says after a record.
pub(crate) enum Flow {
    Continue,
    /// The reader's role has gone to another task.
    HandedOn,
}

/// What one driver remembers between polls.
#[derive(Default)]
pub(crate) struct Drive {
    /// Other tasks may read as well ([`Core::settle`]).
    shared: bool,
    /// Since when nothing has come, while spinning.
    idle_since: Option<Instant>,
    budget: Duration,
}

impl Drive {
    /// For a link that calls read as well.
    pub(crate) fn shared() -> Self {
        Self { shared: true, ..Self::default() }
    }
}

fn guard<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
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
    /// Takes over an open link; runs inside the runtime that will drive it.
    pub(crate) fn new(ends: Ends, agent: Option<Arc<Agent>>) -> std::io::Result<Self> {
        ends.bell.publish_cpu();
        Ok(Self {
            link: ends.link,
            io: watch(ends.bell)?,
            tx: Mutex::new(Tx {
                producer: ends.producer,
                block: Vec::with_capacity(256),
                credit: limits::LINK_WINDOW.into(),
                waiters: Vec::new(),
                pending: VecDeque::new(),
            }),
            rx: Mutex::new(Rx {
                consumer: ends.consumer,
                pool: BytesMut::new(),
                spin: Spin::default(),
                released: false,
            }),
            turn: Mutex::new(()),
            announced: AtomicBool::new(false),
            unread: AtomicU32::new(0),
            stalled: AtomicBool::new(false),
            streams: Mutex::default(),
            next_id: AtomicU32::new(1),
            window: AtomicI64::new(limits::LINK_WINDOW.into()),
            owed: AtomicU32::new(0),
            closed: OnceLock::new(),
            driver: Mutex::new(None),
            counters: Counters::default(),
            agent,
        })
    }

    // ---- calls ---------------------------------------------------------------------------

    /// Opens a call of this side's own; `None` when too many are open.
    pub(crate) fn open(&self) -> Option<Arc<Stream>> {
        let mut streams = guard(&self.streams);
        if streams.len() >= limits::STREAMS {
            return None;
        }
        loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            if id != 0 && !streams.contains_key(&id) {
                let stream = Arc::new(Stream::new(id));
                streams.insert(id, Arc::clone(&stream));
                return Some(stream);
            }
        }
    }

    /// Takes in a call that the peer has opened.
    pub(crate) fn admit(&self, stream: Arc<Stream>) {
        guard(&self.streams).insert(stream.id, stream);
    }

    pub(crate) fn find(&self, id: u32) -> Option<Arc<Stream>> {
        guard(&self.streams).get(&id).cloned()
    }

    pub(crate) fn forget(&self, id: u32) -> Option<Arc<Stream>> {
        guard(&self.streams).remove(&id)
    }

    /// Takes this very call out: its number may have been given to another one by now.
    pub(crate) fn forget_exactly(&self, stream: &Arc<Stream>) {
        let mut streams = guard(&self.streams);
        if streams.get(&stream.id).is_some_and(|s| Arc::ptr_eq(s, stream)) {
            streams.remove(&stream.id);
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        guard(&self.streams).len()
    }

    /// Why the link is closed, if it is.
    pub(crate) fn closed(&self) -> Option<&Status> {
        self.closed.get()
    }

    /// Ends the link; the first reason stays.
    pub(crate) fn close(&self, why: &Broken) {
        let status = Status::unavailable(format!("link {}: {why}", self.link));
        if self.closed.set(status.clone()).is_err() {
            return;
        }
        match why {
            Broken::Link(LinkError::Dead) | Broken::Closed | Broken::Runtime => {
                tracing::debug!(link = self.link, %why, "link closed");
            }
            _ => tracing::warn!(link = self.link, %why, "link closed"),
        }
        let streams = std::mem::take(&mut *guard(&self.streams));
        for stream in streams.into_values() {
            stream.fail(status.clone());
        }
        let waiters = std::mem::take(&mut guard(&self.tx).waiters);
        waiters.into_iter().for_each(Waker::wake);
        self.wake_driver();
        if let Some(agent) = &self.agent {
            agent.closed(self.link, self.stats());
        }
    }

    // ---- sending -------------------------------------------------------------------------

    /// Runs `push` with the writing half and rings if the peer sleeps.
    ///
    /// `push` returns false when there was no room; then the task of `cx` is woken when there is.
    pub(crate) fn poll_push(
        &self,
        cx: &mut Context<'_>,
        mut push: impl FnMut(&mut Tx) -> Result<Push, Broken>,
    ) -> Poll<Result<(), Broken>> {
        if self.closed().is_some() {
            return Poll::Ready(Err(Broken::Closed));
        }
        let mut tx = guard(&self.tx);
        loop {
            match push(&mut tx)? {
                Push::Done(bytes) => {
                    let wake = tx.producer.notify()?;
                    drop(tx);
                    self.counters.sent.fetch_add(bytes as u64, Ordering::Relaxed);
                    self.ring(wake)?;
                    if self.stalled.load(Ordering::SeqCst) {
                        // Finding room may have taken back the announcement of those who wait
                        // for more of it.
                        self.serve_stalled()?;
                    }
                    return Poll::Ready(Ok(()));
                }
                Push::NoCredit => {
                    // `push` has registered with the stream if that was short; the link's credit
                    // comes through `grant_link`.
                    tx.waiters.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Push::NoRoom(len) => {
                    self.stalled.store(true, Ordering::SeqCst);
                    if tx.producer.prepare_sleep(len, SleepMode::Doorbell)? {
                        tx.waiters.push(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
            }
        }
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
            if tx.pending.len() >= PENDING {
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
    fn serve_stalled(&self) -> Result<(), Broken> {
        let mut tx = guard(&self.tx);
        loop {
            while let Some((kind, stream, payload)) = tx.pending.pop_front() {
                if !tx.producer.try_push(kind as u8, 0, stream, &[&payload])? {
                    tx.pending.push_front((kind, stream, payload));
                    break;
                }
            }
            let most = tx.producer.record_bytes();
            if tx.pending.is_empty() && tx.producer.has_room(most)? {
                tx.producer.awake();
                self.stalled.store(false, Ordering::SeqCst);
                let waiters = std::mem::take(&mut tx.waiters);
                let wake = tx.producer.notify()?;
                drop(tx);
                waiters.into_iter().for_each(Waker::wake);
                return self.ring(wake);
            }
            if tx.producer.prepare_sleep(most, SleepMode::Doorbell)? {
                let wake = tx.producer.notify()?;
                drop(tx);
                return self.ring(wake);
            }
        }
    }

    fn ring(&self, wake: Wake) -> Result<(), Broken> {
        Ok(self.io.get_ref().carry_out(wake)?)
    }

    // ---- credit --------------------------------------------------------------------------

    /// The peer granted so much on the link.
    pub(crate) fn grant_link(&self, credit: u32) -> Result<(), Broken> {
        let mut tx = guard(&self.tx);
        tx.credit += u64::from(credit);
        if tx.credit > u64::from(limits::LINK_WINDOW) {
            return Err(Broken::Rule("more credit than there is window"));
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
        let owed = self.owed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if owed >= limits::LINK_WINDOW / 2 {
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
        let left = self.window.fetch_sub(bytes as i64, Ordering::Relaxed) - bytes as i64;
        if left < 0 { Err(OverWindow.into()) } else { Ok(()) }
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Takes one record off the ring.
    fn take(&self, rx: &mut Rx) -> Result<Option<Record>, Broken> {
        let Some(d) = rx.consumer.peek()? else { return Ok(None) };
        let len = d.len as usize;
        if rx.pool.capacity() < len {
            rx.pool.reserve(len.max(POOL));
        }
        rx.consumer.read(&mut rx.pool);
        rx.consumer.release();
        rx.released = true;
        let payload = rx.pool.split().freeze();
        self.counters.received.fetch_add(d.len.into(), Ordering::Relaxed);
        let Some(kind) = Kind::from_number(d.kind) else {
            return Err(Broken::Rule("a record of unknown kind"));
        };
        Ok(Some(Record { kind, flags: d.flags, stream: d.stream, payload }))
    }

    /// Looks after a peer that waits for room.
    fn after_release(&self, rx: &mut Rx) -> Result<(), Broken> {
        if std::mem::take(&mut rx.released) {
            let wake = rx.consumer.notify()?;
            self.ring(wake)?;
        }
        Ok(())
    }

    fn awake(&self, rx: &mut Rx) {
        rx.consumer.awake();
        self.announced.store(false, Ordering::Relaxed);
    }

    /// Announces sleep; false when a record is there.
    fn announce(&self, rx: &mut Rx) -> Result<bool, Broken> {
        self.after_release(rx)?;
        if rx.consumer.prepare_sleep(SleepMode::Doorbell) {
            self.io.get_ref().slept();
            self.announced.store(true, Ordering::Relaxed);
            return Ok(true);
        }
        self.announced.store(false, Ordering::Relaxed);
        Ok(false)
    }

    /// Before a task waits for the peer: see the module's rule.
    pub(crate) fn settle(&self, mut on_record: impl FnMut(Record) -> Result<(), Broken>) {
        let result: Result<(), Broken> = loop {
            if self.announced.load(Ordering::Relaxed) || self.closed().is_some() {
                return;
            }
            let Ok(_turn) = self.turn.try_lock() else { return };
            let mut rx = guard(&self.rx);
            match self.take(&mut rx) {
                Ok(Some(record)) => {
                    drop(rx);
                    if let Err(why) = on_record(record) {
                        break Err(why);
                    }
                }
                Ok(None) => match self.announce(&mut rx) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(why) => break Err(why),
                },
                Err(why) => break Err(why),
            }
        };
        if let Err(why) = result {
            self.close(&why);
        }
    }

    /// Spins for the answer of the only call under way; true when it has come.
    pub(crate) fn spin_for(
        &self,
        stream: &Stream,
        mut on_record: impl FnMut(Record) -> Result<(), Broken>,
    ) -> bool {
        if self.open_calls() != 1 {
            return false;
        }
        let Ok(turn) = self.turn.try_lock() else { return false };
        let mut rx = guard(&self.rx);
        let bell = self.io.get_ref();
        let budget = rx.spin.budget(bell.same_cpu());
        if budget.is_zero() {
            drop(rx);
            drop(turn);
            // As below: others may have left the looking to this one just now.
            if guard(&self.streams).keys().any(|id| *id != stream.id) {
                self.settle(on_record);
            }
            return false;
        }
        self.awake(&mut rx);
        let start = Instant::now();
        let mut rounds = 0_u32;
        let result = loop {
            match self.take(&mut rx) {
                Err(why) => break Err(why),
                Ok(Some(record)) => {
                    if let Err(why) = on_record(record) {
                        break Err(why);
                    }
                    if stream.answered() {
                        rx.spin.hit(start.elapsed());
                        break Ok(true);
                    }
                }
                Ok(None) => {
                    rounds += 1;
                    if rounds > 32 {
                        spin_hint();
                    }
                    if rounds.is_multiple_of(64) && start.elapsed() >= budget {
                        rx.spin.miss();
                        break Ok(false);
                    }
                }
            }
        };
        drop(rx);
        drop(turn);
        match result {
            Ok(answered) => {
                // Others that came meanwhile found the turn taken and left the looking to this one.
                if guard(&self.streams).keys().any(|id| *id != stream.id) {
                    self.settle(on_record);
                }
                answered
            }
            Err(why) => {
                self.close(&why);
                true
            }
        }
    }

    /// The driver: waits for the peer and hands each record to `on_record`.
    ///
    /// `waiting` says whether spinning makes sense: whether something is expected soon;
    /// `has_role` whether this task is still the link's reader.
    pub(crate) fn poll_drive(
        &self,
        cx: &mut Context<'_>,
        drive: &mut Drive,
        waiting: impl Fn() -> bool,
        has_role: impl Fn() -> bool,
        mut on_record: impl FnMut(Record) -> Result<Flow, Broken>,
    ) -> Poll<Result<Flow, Broken>> {
        let mut turn = 0;
        loop {
            if self.closed().is_some() {
                return Poll::Ready(Err(Broken::Closed));
            }
            // Take what is there, one record per locking.
            let mut any = false;
            loop {
                let _turn = drive.shared.then(|| guard(&self.turn));
                let record = {
                    let mut rx = guard(&self.rx);
                    let record = self.take(&mut rx)?;
                    if record.is_none() || turn % 16 == 15 {
                        self.after_release(&mut rx)?;
                    }
                    record
                };
                let Some(record) = record else { break };
                any = true;
                turn += 1;
                if matches!(on_record(record)?, Flow::HandedOn) {
                    return Poll::Ready(Ok(Flow::HandedOn));
                }
                if turn >= TURN {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            if self.stalled.load(Ordering::SeqCst) {
                self.serve_stalled()?;
            }
            if self.spin_portion(drive, any, &waiting) {
                continue;
            }
            if drive.idle_since.is_some() {
                // The budget is not used up: let others run, then look again.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.closed().is_some() || !self.announce(&mut guard(&self.rx))? {
                continue;
            }
            // Under one lock, so that the doorbell and `close` wake the newest driver: one that
            // has lost the role never registers after its successor.
            let mut driver = guard(&self.driver);
            if !has_role() {
                return Poll::Ready(Ok(Flow::HandedOn));
            }
            super::stream::register(&mut driver, cx);
            if self.closed().is_some() {
                continue;
            }
            let rung = self.poll_bell(cx);
            // `rx` is not taken under it: a reader that closes the link wakes the driver.
            drop(driver);
            self.after_bell(ready!(rung)?)?;
        }
    }

    /// Lets the driver look: whoever gives up the reader's role half-way calls this.
    pub(crate) fn wake_driver(&self) {
        let driver = guard(&self.driver).take();
        driver.into_iter().for_each(Waker::wake);
    }

    /// Spins for a little while; true when a record has come. Clears `idle_since` when it is time
    /// to sleep.
    fn spin_portion(&self, drive: &mut Drive, any: bool, waiting: &impl Fn() -> bool) -> bool {
        let mut rx = guard(&self.rx);
        let start = Instant::now();
        if any || drive.idle_since.is_none() {
            drive.budget = Duration::ZERO;
            if any && waiting() {
                drive.budget = rx.spin.budget(self.io.get_ref().same_cpu());
            }
            drive.idle_since = (!drive.budget.is_zero()).then_some(start);
        }
        let Some(since) = drive.idle_since else { return false };
        self.awake(&mut rx);
        let mut rounds = 0_u32;
        loop {
            if rx.consumer.ready() {
                let waited = since.elapsed();
                rx.spin.hit(waited);
                return true;
            }
            rounds += 1;
            if rounds > 32 {
                spin_hint();
            }
            if rounds.is_multiple_of(32) {
                let now = Instant::now();
                if now - since >= drive.budget {
                    rx.spin.miss();
                    drive.idle_since = None;
                    return false;
                }
                if now - start >= SPIN_PORTION {
                    return false;
                }
            }
        }
    }

    /// Waits for the doorbell.
    fn poll_bell(&self, cx: &mut Context<'_>) -> Poll<Result<Ready, Broken>> {
        let mut ready = ready!(self.io.poll_read_ready(cx)).map_err(|_| Broken::Runtime)?;
        let state = ready.ready();
        ready.clear_ready();
        Poll::Ready(Ok(state))
    }

    /// The doorbell has rung, or the peer has hung up.
    fn after_bell(&self, state: Ready) -> Result<(), Broken> {
        let bell = self.io.get_ref();
        self.awake(&mut guard(&self.rx));
        bell.publish_cpu();
        let unread = self.unread.fetch_add(1, Ordering::Relaxed) + 1;
        let hung_up = state.is_read_closed() || state.is_error();
        if unread >= limits::UNREAD_BELLS || hung_up {
            self.unread.store(0, Ordering::Relaxed);
            let drained = bell.drain(4 * limits::UNREAD_BELLS);
            if hung_up || drained.is_err() {
                return self.last_records(drained.err());
            }
        }
        Ok(())
    }

    /// After a hang-up: the end, unless records are left to take.
    fn last_records(&self, why: Option<LinkError>) -> Result<(), Broken> {
        let why = why.unwrap_or(LinkError::Dead);
        if matches!(why, LinkError::Dead) && guard(&self.rx).consumer.ready() {
            // The hang-up stays readable: it is seen again when they are taken.
            return Ok(());
        }
        Err(why.into())
    }
}

/// What became of an attempt to push.
pub(crate) enum Push {
    /// A record of so many bytes is on the ring.
    Done(usize),
    /// Credit is missing.
    NoCredit,
    /// So many bytes have no room.
    NoRoom(usize),
}

impl Counted for Core {
    fn stats(&self) -> LinkStats {
        let c = &self.counters;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        LinkStats {
            calls: get(&c.calls),
            failed: get(&c.failed),
            denied: get(&c.denied),
            sent_bytes: get(&c.sent),
            received_bytes: get(&c.received),
        }
    }
}
