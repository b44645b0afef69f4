//! Taking records off a link: who looks, who sleeps, who is woken.
//!
//! # Who reads
//!
//! ```text
//! driver      a task per link; reads unless a call does
//! lone call   on the caller's side, a call that is the only one under way: its own task waits for
//!             the doorbell and takes its answer ([`super::lone`])
//! ```
//!
//! The runtime knows one waker per link, the [`Doorbell`]'s, which wakes the lone call if that
//! waits, else the driver. A call is alone from its first wait until it has its answer, is dropped,
//! or a second call is opened ([`Core::revoke`]): a future may be kept without being polled, so
//! nobody else may depend on it. Whoever stops reading while others wait wakes the driver.
//!
//! `rx` guards the ring's end. Where calls read, it is held from taking a record to having handed it
//! over, so that the records of one call stay in order, and nobody waits for it: who finds it taken
//! leaves the looking to the one who has it (a driver comes back). A lone call holds it for the
//! learned spin budget, at most 50 us; nobody holds it while sched_yield(2) gives the CPU to the
//! peer ([`partywall_shm::spin`]). `tx` may be taken after it. On the service's side, where the
//! driver alone reads and runs handlers, it is held for the time of one record. Each reader takes
//! at most [`TURN`] records, then lets others run, whatever the peer sends.
//!
//! # Not sleeping beside a record
//!
//! ```text
//! announced   the sleep word says doorbell: the peer rings for the next record
//! staying     the driver has been woken, waits awake once others have run, and then announces
//! awake       somebody is going to look, and announces before it stops looking
//! ```
//!
//! A task that is about to wait for the peer looks once more and announces, or has the driver stay
//! if waiting awake pays ([`Core::settle`], [`Core::read_alone`]), unless somebody else has `rx`; who
//! gives that up without having announced wakes the driver if any call is left. While no call is
//! under way a caller may stay awake: then there is nothing to be woken for, and the next call looks
//! first ([`Core::glance`]).
//!
//! Bells stay unread in the socket: reading one costs a system call, and an edge-triggered watch
//! needs none. Each announcement can leave one, so they are drained before the next announcement
//! when [`partywall_abi::limits::UNREAD_BELLS`] may be there, long before the socket is full and would lose the
//! edge. What is drained may have been meant for a task that waits for room, which is looked after.

use std::future::Future as _;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use partywall_abi::frame::Kind;
use partywall_abi::layout::SleepMode;
use partywall_abi::sync::{AtomicBool, Ordering, spin_hint};
use partywall_shm::link::LinkError;
use partywall_shm::ring::Consumer;
use partywall_shm::spin::{Plan, Spin};
use tokio::io::Ready;

use super::broken::Broken;
use super::core::{Core, guard};
use super::stream;

/// Records a reader takes before it lets other tasks run.
pub(super) const TURN: u32 = 128;
/// How long a driver leaves the CPU to the peer in one poll, and how often.
const HAND_OVER_TIME: Duration = Duration::from_micros(100);
const HAND_OVERS: u32 = 16;
/// The longest a driver spins in one poll; between portions other tasks run.
const SPIN_PORTION: Duration = Duration::from_micros(4);

/// A record taken off the ring: copied, not yet understood.
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Bytes,
}

/// The reading half.
pub(super) struct Rx {
    pub(super) consumer: Consumer,
    pub(super) spin: Spin,
    /// Something was released since the producer was last looked after.
    released: bool,
    /// What the driver is to do before it sleeps.
    asked: Option<Plan>,
}

impl Rx {
    pub(super) fn new(consumer: Consumer) -> Self {
        Self { consumer, spin: Spin::default(), released: false, asked: None }
    }
}

/// Who is woken when the link's socket becomes readable.
#[derive(Default)]
pub(super) struct Doorbell {
    pub(super) ears: Mutex<Ears>,
    /// The runtime will wake this when the socket becomes readable.
    pub(super) armed: AtomicBool,
}

#[derive(Default)]
pub(super) struct Ears {
    /// The lone call, and its task while it waits.
    pub(super) lone: Option<(u32, Option<Waker>)>,
    driver: Option<Waker>,
    /// The driver was to be woken while it did not wait: it looks once more before it does.
    look: bool,
}

impl Ears {
    fn take_driver(&mut self) -> Option<Waker> {
        let driver = self.driver.take();
        self.look |= driver.is_none();
        driver
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        let mut ears = guard(&self.ears);
        // A lone call that was woken already may have found `rx` taken and wait for the driver.
        let call = ears.lone.as_mut().and_then(|(_, call)| call.take());
        let waker = call.or_else(|| ears.take_driver());
        drop(ears);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// What a side says after a record.
pub(crate) enum Flow {
    Continue,
    /// The reader's role has gone to another task.
    HandedOn,
}

/// What one driver remembers between polls.
pub(crate) struct Drive {
    /// Calls read as well.
    calls_read: bool,
    /// It has been polled.
    started: bool,
    /// Since when nothing has come, while spinning.
    idle_since: Option<Instant>,
    plan: Plan,
    /// How often and how long it gave the CPU to the peer in this poll.
    hand_overs: u32,
    away: Duration,
}

impl Default for Drive {
    fn default() -> Self {
        let (calls_read, started) = (false, false);
        let (hand_overs, away) = (0, Duration::ZERO);
        Self { calls_read, started, idle_since: None, plan: Plan::Sleep, hand_overs, away }
    }
}

impl Drive {
    /// For a link that calls read as well.
    pub(crate) fn with_calls() -> Self {
        Self { calls_read: true, ..Self::default() }
    }
}

impl Core {
    pub(super) fn try_rx(&self) -> Option<MutexGuard<'_, Rx>> {
        match self.rx.try_lock() {
            Ok(rx) => Some(rx),
            Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes one record off the ring.
    pub(super) fn take(&self, rx: &mut Rx) -> Result<Option<Record>, Broken> {
        let Some(d) = rx.consumer.peek()? else { return Ok(None) };
        // As long as the record: what is kept of it keeps no more than it alive.
        let mut payload = Vec::with_capacity(d.len as usize);
        rx.consumer.read(&mut payload);
        rx.consumer.release();
        rx.released = true;
        let received = self.received.load(Ordering::Relaxed) + u64::from(d.len);
        self.received.store(received, Ordering::Relaxed);
        let Some(kind) = Kind::from_number(d.kind) else {
            return Err(Broken::Rule("a record of unknown kind"));
        };
        Ok(Some(Record { kind, flags: d.flags, stream: d.stream, payload: payload.into() }))
    }

    /// Looks after a peer that waits for room.
    pub(super) fn after_release(&self, rx: &mut Rx) -> Result<(), Broken> {
        if std::mem::take(&mut rx.released) {
            let wake = rx.consumer.notify()?;
            self.ring(wake)?;
        }
        Ok(())
    }

    pub(super) fn awake(&self, rx: &mut Rx) {
        rx.consumer.awake();
        self.announced.store(false, Ordering::Relaxed);
    }

    /// The driver is going to look, and sleeps only then.
    fn stay(&self, rx: &mut Rx) {
        self.awake(rx);
        self.staying.store(true, Ordering::Relaxed);
    }

    /// Announces sleep; false when a record is there.
    pub(super) fn announce(&self, rx: &mut Rx) -> Result<bool, Broken> {
        self.after_release(rx)?;
        if self.bell().must_drain() {
            if let Err(why) = self.bell().drain() {
                return self.unless_records(rx, why).map(|()| false);
            }
            self.serve_stalled()?;
        }
        self.bell().slept();
        let asleep = rx.consumer.prepare_sleep(SleepMode::Doorbell);
        self.announced.store(asleep, Ordering::Relaxed);
        self.staying.store(false, Ordering::Relaxed);
        Ok(asleep)
    }

    /// Looks once, on a link without calls: what came meanwhile may concern the next one.
    pub(crate) fn glance(&self, on_record: impl FnMut(Record) -> Result<bool, Broken>) {
        let Some(mut rx) = self.try_rx() else { return };
        let ready = rx.consumer.ready();
        let taken = if ready {
            self.take_turn(&mut rx, &mut { TURN }, on_record).map(drop)
        } else {
            Ok(())
        };
        drop(rx);
        match taken {
            // A call that came meanwhile may have found `rx` taken.
            Ok(()) if ready || !guard(&self.streams).is_empty() => self.wake_driver(),
            Ok(()) => {}
            Err(why) => self.close(&why),
        }
    }

    /// Takes what is there for a caller that has come in by itself; false when somebody else takes
    /// it, or when `on_record` says that it is enough. The driver sleeps on.
    ///
    /// The end of the ring is held all the while, handlers included, so that records are handed over
    /// in order; a driver that is woken meanwhile comes back later.
    pub(crate) fn visit(
        &self,
        mut on_record: impl FnMut(Record) -> Result<bool, Broken>,
    ) -> Result<bool, Broken> {
        let Some(mut rx) = self.try_rx() else { return Ok(false) };
        let taken = self.take_turn(&mut rx, &mut { TURN }, &mut on_record)?;
        self.after_release(&mut rx)?;
        drop(rx);
        self.serve_stalled()?;
        Ok(matches!(taken, Taken::All))
    }

    /// Takes records until there is none, `on_record` says that it is enough, or `left` are taken.
    pub(super) fn take_turn(
        &self,
        rx: &mut Rx,
        left: &mut u32,
        mut on_record: impl FnMut(Record) -> Result<bool, Broken>,
    ) -> Result<Taken, Broken> {
        while *left > 0 {
            *left -= 1;
            let Some(record) = self.take(rx)? else { return Ok(Taken::All) };
            if on_record(record)? {
                return Ok(Taken::Enough);
            }
        }
        self.after_release(rx)?;
        Ok(Taken::Turn)
    }

    /// Before a task waits for the peer: see the module's rule.
    pub(crate) fn settle(&self, mut on_record: impl FnMut(Record) -> Result<bool, Broken>) {
        let mut left = TURN;
        loop {
            let cared_for =
                self.announced.load(Ordering::Relaxed) || self.staying.load(Ordering::Relaxed);
            if cared_for || self.closed().is_some() {
                return;
            }
            let Some(mut rx) = self.try_rx() else { return };
            let settled = match self.take_turn(&mut rx, &mut left, &mut on_record) {
                Ok(Taken::All) => match self.plan_for_company(&mut rx) {
                    Plan::Sleep => self.announce(&mut rx),
                    plan => {
                        // The driver's turn comes after those of other callers.
                        rx.asked = Some(plan);
                        self.stay(&mut rx);
                        self.wake_driver();
                        Ok(true)
                    }
                },
                Ok(Taken::Enough | Taken::Turn) => {
                    self.wake_driver();
                    Ok(true)
                }
                Err(why) => Err(why),
            };
            drop(rx);
            match settled {
                Ok(true) => return,
                Ok(false) => {}
                Err(why) => return self.close(&why),
            }
        }
    }

    /// What the driver is to do for a call that does not read.
    ///
    /// On several threads it is woken by bell alone: a task that wakes it may go on computing, and
    /// the runtime lets no other thread run what a task has woken last.
    fn plan_for_company(&self, rx: &mut Rx) -> Plan {
        if self.many_threads { Plan::Sleep } else { rx.spin.plan(self.bell().same_cpu()) }
    }

    /// Gives the CPU to the peer, with nothing locked; how long, and whether a record is there
    /// afterwards.
    pub(super) fn hand_over(&self) -> (Duration, bool) {
        let turn = self.bell().hand_over();
        let mut rx = guard(&self.rx);
        let there = rx.consumer.ready();
        rx.spin.handed_over(turn, there);
        (turn.1, there)
    }

    /// The driver: waits for the peer and hands each record to `on_record`.
    pub(crate) fn poll_drive(
        &self,
        cx: &mut Context<'_>,
        drive: &mut Drive,
        mut on_record: impl FnMut(Record) -> Result<Flow, Broken>,
    ) -> Poll<Result<Flow, Broken>> {
        if !std::mem::replace(&mut drive.started, true) {
            // The one before it, if any, is woken no more.
            guard(&self.doorbell.ears).driver = None;
        }
        let mut turn = 0;
        (drive.hand_overs, drive.away) = (0, Duration::ZERO);
        loop {
            if self.closed().is_some() {
                return Poll::Ready(Err(Broken::Closed));
            }
            // Take what is there, one record per locking.
            let mut any = false;
            loop {
                let Some(mut rx) = self.try_rx() else {
                    // A lone call reads, or a driver that has handed its role on looks last.
                    return yield_now(cx);
                };
                // Nobody visits while it hands records over: they would overtake each other.
                if self.announced.load(Ordering::Relaxed) {
                    self.awake(&mut rx);
                }
                let record = self.take(&mut rx)?;
                if record.is_none() || turn % 16 == 15 {
                    self.after_release(&mut rx)?;
                }
                let Some(record) = record else { break };
                let held = drive.calls_read.then_some(rx);
                any = true;
                turn += 1;
                if matches!(on_record(record)?, Flow::HandedOn) {
                    return Poll::Ready(Ok(Flow::HandedOn));
                }
                drop(held);
                if turn >= TURN {
                    return yield_now(cx);
                }
            }
            self.serve_stalled()?;
            match self.stay_awake(drive, any) {
                Awake::Record => continue,
                Awake::NotYet if self.many_threads => {
                    // To the end of a queue that idle threads take from.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Awake::NotYet => return yield_now(cx),
                Awake::No => {}
            }
            if !self.announce(&mut guard(&self.rx))? {
                continue;
            }
            {
                let mut ears = guard(&self.doorbell.ears);
                if std::mem::take(&mut ears.look) {
                    // Whoever read meanwhile may have taken the announcement back.
                    continue;
                }
                stream::register(&mut ears.driver, cx);
            }
            if self.closed().is_some() {
                continue;
            }
            if !self.listen()? {
                return Poll::Pending;
            }
        }
    }

    /// Lets the driver look: whoever gives up reading half-way calls this.
    pub(crate) fn wake_driver(&self) {
        let driver = guard(&self.doorbell.ears).take_driver();
        driver.into_iter().for_each(Waker::wake);
    }

    /// Wakes everybody who waits for the doorbell: the link has ended.
    pub(super) fn wake_ears(&self) {
        let ears = std::mem::take(&mut *guard(&self.doorbell.ears));
        let lone = ears.lone.and_then(|(_, waker)| waker);
        [lone, ears.driver].into_iter().flatten().for_each(Waker::wake);
    }

    /// Waits awake for a little while, as was learned.
    fn stay_awake(&self, drive: &mut Drive, any: bool) -> Awake {
        let mut rx = guard(&self.rx);
        let asked = rx.asked.take();
        let own = usize::from(drive.calls_read);
        if any || asked.is_some() || drive.idle_since.is_none() {
            drive.idle_since = None;
            if !any && asked.is_none() {
                return Awake::No;
            }
            drive.plan = asked.unwrap_or_else(|| rx.spin.plan(self.bell().same_cpu()));
            // Others run first: callers whose answers have come are why more will come, and with
            // handlers at work there is no CPU to give away.
            let others = any && self.open_calls() > own;
            let later = match drive.plan {
                Plan::Sleep => others && drive.calls_read,
                Plan::Spin(_) => others,
                Plan::HandOver => {
                    others || drive.hand_overs >= HAND_OVERS || drive.away >= HAND_OVER_TIME
                }
            };
            if later {
                self.stay(&mut rx);
                drive.idle_since = Some(Instant::now());
                return Awake::NotYet;
            }
            // A lone call reads for itself.
            if drive.calls_read && asked.is_none() {
                self.awake(&mut rx);
                return Awake::No;
            }
        }
        let start = Instant::now();
        let since = *drive.idle_since.get_or_insert(start);
        self.awake(&mut rx);
        let budget = match drive.plan {
            Plan::Spin(budget) => budget,
            Plan::Sleep => {
                drive.idle_since = None;
                return Awake::No;
            }
            Plan::HandOver => {
                drive.idle_since = None;
                drop(rx);
                let (took, there) = self.hand_over();
                drive.hand_overs += 1;
                drive.away += took;
                return if there { Awake::Record } else { Awake::No };
            }
        };
        let mut rounds = 0_u32;
        loop {
            if rx.consumer.ready() {
                rx.spin.hit(since.elapsed());
                return Awake::Record;
            }
            rounds += 1;
            if rounds > 32 {
                spin_hint();
            }
            if rounds.is_multiple_of(32) {
                let now = Instant::now();
                if now - since >= budget {
                    rx.spin.miss();
                    drive.idle_since = None;
                    return Awake::No;
                }
                if now - start >= SPIN_PORTION {
                    self.stay(&mut rx);
                    return Awake::NotYet;
                }
            }
        }
    }

    /// Whether the doorbell has rung since it was last looked at; if not, the runtime will wake
    /// the [`Doorbell`].
    pub(super) fn listen(&self) -> Result<bool, Broken> {
        let mut cx = Context::from_waker(&self.waker);
        // Before the runtime can wake it.
        self.doorbell.armed.store(true, Ordering::Relaxed);
        let Poll::Ready(ready) = self.io.poll_read_ready(&mut cx) else { return Ok(false) };
        self.doorbell.armed.store(false, Ordering::Relaxed);
        let mut ready = ready.map_err(|_| Broken::Runtime)?;
        let state = ready.ready();
        ready.clear_ready();
        self.after_bell(state)?;
        Ok(true)
    }

    /// The doorbell has rung, or the peer has hung up.
    fn after_bell(&self, state: Ready) -> Result<(), Broken> {
        let mut rx = guard(&self.rx);
        self.awake(&mut rx);
        if state.is_read_closed() || state.is_error() {
            let why = self.bell().drain().err().unwrap_or(LinkError::Dead);
            return self.unless_records(&rx, why);
        }
        Ok(())
    }

    /// After a hang-up: the end, unless records are left to take.
    fn unless_records(&self, rx: &Rx, why: LinkError) -> Result<(), Broken> {
        if matches!(why, LinkError::Dead) && rx.consumer.ready() {
            // The hang-up stays readable: it is seen again when they are taken.
            return Ok(());
        }
        Err(why.into())
    }
}

/// Lets every other task run, the runtime's main one too, which `wake_by_ref` would not.
fn yield_now<T>(cx: &mut Context<'_>) -> Poll<T> {
    let yielding = std::pin::pin!(tokio::task::yield_now());
    let _pending = yielding.poll(cx);
    Poll::Pending
}

/// How a driver's waiting awake ended.
enum Awake {
    /// A record is there.
    Record,
    /// Others are to run, and then it looks again.
    NotYet,
    /// It is time to sleep.
    No,
}

/// How a turn of taking records ended.
#[derive(PartialEq, Eq)]
pub(super) enum Taken {
    /// None is left.
    All,
    /// The one that was waited for was among them.
    Enough,
    /// There may be more.
    Turn,
}
