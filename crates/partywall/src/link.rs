//! One end of a link, as far as both sides do the same.
//!
//! ```text
//! Link
//!   calls      what the protocol says, what calls have received, places   ([`calls`], [`partywall_call`])
//!   outbound   the ring that this side writes, and who waits for room     ([`outbound`])
//!   inbound    the ring that this side reads, and its need-wakeup flag    ([`inbound`])
//!   parcels    the descriptor socket, if the policy grants one            ([`parcels`])
//!   listener   the socket, and who is woken when the peer rings           ([`doorbell`])
//!   tell       how a sleeping peer is told of a record                    ([`wake`]: bell or gate)
//! ```
//!
//! A record passes [`record`] on its way, in both directions. What the messages of a link with signatures
//! pass is [`signed`]. [`sender`] writes a request or an answer,
//! [`receiver`] reads one, [`driver`] is the task that reads the ring; [`caller`] and [`service`] are the
//! two sides. A call is a method, metadata, message bytes and a status here; what they are to a user is
//! the business of who sends ([`sender::Source`]) and who answers ([`service::Dispatch`]). Locks are taken
//! in this order: `rx`, `tx`, the calls, the account.
//!
//! # The end
//!
//! A hang-up, a broken rule or the end of the driver's runtime closes the link: the socket is shut
//! down, every call ends with UNAVAILABLE (after what had come before), every waiting task is
//! woken, the coordinator is told what was counted. A call that is opened at that moment is either
//! ended with the others, or sees that the link has ended. Nothing is left but the memory, which
//! goes with the last reference.
//!
//! A peer that is found dead when it is rung for is no reason to end anything: what it sent
//! before may answer a call. The reader ends the link when it has taken that.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use partywall_abi::control::{Grant, LinkStats};
use partywall_abi::frame::{ATTACHED, Kind, PARCEL, PLAIN_RESPONSE};
use partywall_call::Key;
use partywall_shm::link::{Bell, LinkError};
use partywall_shm::ring::Wake;
use partywall_shm::socket::Passed;
use partywall_shm::spin::Plan;
use tokio::io::Ready;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::Status;

pub(crate) mod account;
pub(crate) mod attached;
pub(crate) mod broken;
pub(crate) mod caller;
mod calls;
pub(crate) mod counters;
mod doorbell;
mod driver;
mod inbound;
pub(crate) mod known;
pub(crate) mod mailbox;
mod outbound;
pub(crate) mod pace;
pub(crate) mod parcels;
mod places;
pub(crate) mod pool;
pub(crate) mod receiver;
pub(crate) mod record;
pub(crate) mod sealed;
pub(crate) mod sender;
pub(crate) mod service;
pub(crate) mod signed;
pub(crate) mod wake;
pub(crate) mod ways;
pub(crate) mod whole;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod parcel_tests;
#[cfg(test)]
mod scripted;

use crate::coordinator::{End, Tracked};
use crate::lock::lock;
use crate::on_a_thread::on_a_thread;
use crate::telemetry;
use account::Account;
use attached::Unread;
use broken::Broken;
use calls::{Accepted, Beside, Calls, Due};
use counters::Counters;
use doorbell::Listener;
use inbound::{Inbound, Record, Rx};
use mailbox::Answer;
use outbound::{Outbound, Tx};
use parcels::Parcels;
use pool::Blank;
use sealed::LinkEnd;
use signed::Signing;
use wake::{Sent, Tell};
use ways::Methods;

/// Records a reader takes before it lets other tasks run.
const TURN: u32 = 128;

/// One end of a link.
struct Link {
    number: u64,
    calls: Calls,
    outbound: Outbound,
    inbound: Inbound,
    parcels: Parcels,
    listener: Listener,
    tell: Box<dyn Tell>,
    closed: OnceLock<Status>,
    counters: Counters,
    /// Of a service's end.
    methods: Arc<Methods>,
    /// This end as the coordinator knows it, until the link is closed.
    tracked: Mutex<Option<Tracked>>,
    /// The same in the metrics.
    metrics: Mutex<Option<telemetry::Link>>,
    /// The runtime has several threads.
    many_threads: bool,
    /// Itself, once it is shared.
    own: OnceLock<Weak<Self>>,
    /// How its messages are signed, if they are.
    signing: Option<Arc<Signing>>,
}

/// What a record brought to the call that reads for itself.
enum Own {
    Nothing,
    /// A part of its answer, which is in its mailbox.
    Part,
    /// All of its answer: it is over and released.
    Whole(Answer),
}

/// Registers a socket with the runtime.
///
/// tokio's successors of this constructor are unsafe, because a type could close its descriptor
/// while it is registered. [`Bell`] and `Pending` own theirs until they are dropped.
#[expect(deprecated, reason = "the safe form; see above")]
fn watch<T: AsRawFd>(socket: T) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, tokio::io::Interest::READABLE)
}

impl Link {
    /// Takes over the caller's end of an open link, inside the runtime that will drive it.
    fn calling(
        ends: impl Into<LinkEnd>,
        tracked: Option<Tracked>,
        tell: Box<dyn Tell>,
    ) -> std::io::Result<Self> {
        Self::new(ends.into(), Calls::calling(), tracked, tell)
    }

    /// Takes over a service's end of an open link, as [`Link::calling`], and says what it may have.
    fn serving(
        ends: impl Into<LinkEnd>,
        account: Arc<Account>,
        tracked: Option<Tracked>,
    ) -> std::io::Result<Self> {
        let link = Self::new(ends.into(), Calls::serving(account), tracked, Box::new(wake::Ring))?;
        link.send_control(Due(true));
        Ok(link)
    }

    fn new(
        opened: LinkEnd,
        calls: Calls,
        tracked: Option<Tracked>,
        tell: Box<dyn Tell>,
    ) -> std::io::Result<Self> {
        let LinkEnd { ends, outgoing, incoming, signing, .. } = opened;
        ends.bell.publish_cpu();
        Ok(Self {
            number: ends.link,
            parcels: Parcels::new(Arc::clone(&calls.account), Arc::clone(&calls.read)),
            calls,
            outbound: Outbound::new(ends.producer, outgoing),
            inbound: Inbound::new(ends.consumer, incoming),
            listener: Listener::new(ends.bell)?,
            tell,
            closed: OnceLock::new(),
            counters: Counters::default(),
            methods: Arc::default(),
            tracked: Mutex::new(tracked),
            metrics: Mutex::new(None),
            many_threads: Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread,
            own: OnceLock::new(),
            signing,
        })
    }

    /// Itself, shared from here on.
    fn shared(self) -> Arc<Self> {
        let link = Arc::new(self);
        link.own.get_or_init(|| Arc::downgrade(&link));
        if let Some(signing) = &link.signing {
            signing.of(Arc::downgrade(&link));
        }
        link
    }

    fn bell(&self) -> &Bell {
        self.listener.bell()
    }

    /// Why the link is closed, if it is.
    fn closed(&self) -> Option<&Status> {
        self.closed.get()
    }

    /// Ends the link; the first reason stays.
    fn close(&self, why: &Broken) {
        let status = why.status(self.number);
        if self.closed.set(status.clone()).is_err() {
            return;
        }
        match why {
            Broken::Link(LinkError::Dead) | Broken::Closed | Broken::Runtime => {
                tracing::debug!(link = self.number, %why, "link closed");
            }
            _ => tracing::warn!(link = self.number, blame = ?why.blame(), %why, "link closed"),
        }
        self.calls.end(&status);
        let waiters = self.outbound.lock().waiters.take();
        waiters.wake();
        // The peer is not to wait for the last reference to this value.
        self.bell().hang_up();
        self.listener.wake_all();
        drop(lock(&self.metrics).take());
        let tracked = lock(&self.tracked).take();
        if let Some(tracked) = tracked {
            let stats = self.stats();
            tracked.count(stats, self.methods.counted());
            tracked.close(why.reported(), stats);
        }
    }

    /// Has the coordinator reach this end from here on.
    fn attach(&self, end: Weak<dyn End>) {
        if let Some(tracked) = &*lock(&self.tracked) {
            tracked.attach(end);
        }
    }

    /// Has the metrics tell of this end until it is closed.
    fn tell_of(&self, end: telemetry::Link) {
        let mut metrics = lock(&self.metrics);
        if self.closed().is_none() {
            *metrics = Some(end);
        }
    }

    /// What was counted so far.
    fn stats(&self) -> LinkStats {
        let mut stats = self.counters.stats();
        stats.sent_bytes = self.outbound.lock().sent();
        stats.received_bytes = self.inbound.received();
        stats.parcels = self.parcels.sent().stats();
        stats
    }

    // ---- telling the peer --------------------------------------------------------------

    /// Wakes the peer if it sleeps.
    fn wake_peer(&self, wake: Wake) -> Result<(), Broken> {
        Ok(self.bell().carry_out(wake)?)
    }

    /// Tells the peer of what was written, and lets `tx` go.
    #[inline]
    fn tell(&self, mut tx: MutexGuard<'_, Tx>, sent: Option<Sent<'_>>) -> Result<(), Broken> {
        let wake = tx.notify()?;
        drop(tx);
        match wake {
            Wake::Done => Ok(()),
            Wake::Doorbell => self.tell.tell(self, sent),
        }
    }

    /// Sends the control records that are due, now or as soon as there is room: where others wait for
    /// that, whoever serves them looks after it has said that nobody waits any more.
    #[inline]
    fn send_control(&self, due: Due) {
        if due.0 && !self.outbound.is_stalled() {
            self.send_control_now();
        }
    }

    #[cold]
    fn send_control_now(&self) {
        if self.closed().is_none()
            && let Err(why) = self.try_send_control()
        {
            self.close(&why);
        }
    }

    fn try_send_control(&self) -> Result<(), Broken> {
        let mut tx = self.outbound.lock();
        if tx.push_control(&self.calls)?.is_none() {
            return self.tell(tx, None);
        }
        self.outbound.stall(true);
        drop(tx);
        self.serve_stalled()
    }

    /// One reference less to a call.
    fn release(&self, key: Key) {
        self.forget_waiter(key);
        self.send_control(self.calls.release(key));
    }

    // ---- room on the ring --------------------------------------------------------------

    /// A call that is over waits for no room.
    fn forget_waiter(&self, key: Key) {
        if self.outbound.is_stalled() {
            let waker = self.outbound.lock().waiters.forget(key);
            // The lock is free.
            drop(waker);
        }
    }

    /// Sends what waits for room, and wakes those who wait, if there is some now.
    #[inline]
    fn serve_stalled(&self) -> Result<(), Broken> {
        if self.outbound.is_stalled() { self.serve_stalled_now() } else { Ok(()) }
    }

    #[cold]
    fn serve_stalled_now(&self) -> Result<(), Broken> {
        let mut tx = self.outbound.lock();
        loop {
            let waits = tx.push_control(&self.calls)?;
            let most = tx.most();
            if waits.is_none() && tx.has_room(most)? {
                tx.awake();
                self.outbound.stall(false);
                if self.calls.has_control() {
                    self.outbound.stall(true);
                    continue;
                }
                let waiters = tx.waiters.take();
                self.tell(tx, None)?;
                waiters.wake();
                return Ok(());
            }
            if self.sleep_for_room(&mut tx, most)? {
                return self.tell(tx, None);
            }
        }
    }

    /// Waits for room for `len` bytes: awake, as was learned, and then asleep. The lock comes back
    /// when it is worth another try.
    fn poll_room<'a>(
        &'a self,
        cx: &Context<'_>,
        key: Key,
        mut tx: MutexGuard<'a, Tx>,
        len: usize,
        has_waited: &mut bool,
    ) -> Poll<Result<MutexGuard<'a, Tx>, Broken>> {
        // Others who would send wait for this: the ring is full for them as well.
        if !std::mem::replace(has_waited, true) {
            let there;
            (tx, there) = self.wait_for_room(tx, len)?;
            if there {
                return Poll::Ready(Ok(tx));
            }
        }
        self.outbound.stall(true);
        if self.sleep_for_room(&mut tx, len)? {
            let replaced = tx.waiters.wait(key, cx);
            drop(tx);
            drop(replaced);
            return Poll::Pending;
        }
        Poll::Ready(Ok(tx))
    }

    /// Asks to be woken for room for `len` bytes; false when there is some.
    fn sleep_for_room(&self, tx: &mut Tx, len: usize) -> Result<bool, Broken> {
        if self.bell().must_drain() {
            // The reader is told, whose bell this may take. A hang-up is for it to see.
            let _bells = self.bell().drain();
            self.listener.wake();
        }
        self.bell().slept();
        Ok(tx.prepare_sleep(len)?)
    }

    /// Waits awake for room, as was learned, before it is slept for; whether there is some.
    fn wait_for_room<'a>(
        &'a self,
        mut tx: MutexGuard<'a, Tx>,
        len: usize,
    ) -> Result<(MutexGuard<'a, Tx>, bool), Broken> {
        let there = match tx.plan(self.bell().same_cpu()) {
            Plan::Sleep => false,
            Plan::Spin(budget) => tx.spin(budget, len)?,
            Plan::Yield => {
                // What is on the ring is for the peer to see now, and nothing is locked meanwhile.
                let wake = tx.notify()?;
                drop(tx);
                self.wake_peer(wake)?;
                let turn = self.bell().yield_cpu();
                tx = self.outbound.lock();
                tx.yielded(turn, len)?
            }
        };
        Ok((tx, there))
    }

    // ---- reading -----------------------------------------------------------------------

    /// Descriptors may cross from here on: this end takes parcels, as many as its account lets it.
    fn grant(&self, socket: Passed, grant: Grant) {
        self.parcels.grant(socket, grant);
        self.send_control(self.calls.take_parcels(grant));
    }

    /// Memory for a long field of so many bytes of a message on this link, if there is some or it can be
    /// made; none where no descriptor crosses.
    pub(crate) async fn blank(&self, len: usize) -> Option<Blank> {
        if !self.parcels.are_granted() {
            return None;
        }
        let pool = Arc::clone(&self.parcels.pool);
        if let Some(blank) = pool.blank(len) {
            return Some(blank);
        }
        // To have the kernel clear it takes its time.
        let make = pool.making_blank(len)?;
        let made = on_a_thread(pool::MAKER, move || {
            make();
            Ok(pool.blank(len))
        });
        made.await.ok()?
    }

    /// What a record means, with what has come beside it.
    #[inline(always)]
    fn accept(&self, record: Record, own: Option<Key>) -> Result<Accepted, Broken> {
        let has_beside = record.flags & (PARCEL | ATTACHED) != 0;
        let beside = if has_beside && record.kind == Kind::Frame as u8 {
            self.receive_beside(&record)?
        } else {
            Beside::default()
        };
        let (accepted, due) = self.calls.accept(record, beside, own)?;
        self.send_control(due);
        if let Accepted::Released(place) = accepted {
            self.parcels.pool.released(place);
        }
        Ok(accepted)
    }

    /// What has come on the descriptor socket with a frame.
    #[cold]
    fn receive_beside(&self, record: &Record) -> Result<Beside, Broken> {
        if record.flags & ATTACHED != 0 {
            let unread = || Unread::on(self.own.get().cloned().unwrap_or_default());
            let ([_, places], Record { flags, payload, .. }) =
                (self.calls.attached_places(), record);
            let attached = self.parcels.receive_attached(*flags, payload, places, unread)?;
            return Ok(Beside { parcel: None, attached: attached.map(Box::new) });
        }
        let parcel = self.parcels.receive(&record.payload)?.map(Box::new);
        if let Some(parcel) = &parcel {
            self.inbound.count(parcel.len());
        }
        Ok(Beside { parcel, attached: None })
    }

    /// Hands one record to the call it belongs to. The call `own`, which does this itself, is not
    /// woken.
    fn deliver(&self, record: Record, own: Option<Key>) -> Result<Own, Broken> {
        match record.if_plain(PLAIN_RESPONSE) {
            Ok(plain) => self.deliver_any(plain, own),
            Err(record) => self.deliver_other(record, own),
        }
    }

    #[inline(never)]
    fn deliver_other(&self, other: Record, own: Option<Key>) -> Result<Own, Broken> {
        self.deliver_any(other, own)
    }

    #[inline(always)]
    fn deliver_any(&self, record: Record, own: Option<Key>) -> Result<Own, Broken> {
        let accepted = self.accept(record, own)?;
        Ok(match accepted {
            Accepted::Whole(answer) => Own::Whole(answer),
            Accepted::Answered => Own::Part,
            _ => Own::Nothing,
        })
    }

    /// Gives the CPU to the peer, with nothing locked; how long, and whether a record is there
    /// afterwards.
    #[inline]
    fn yield_cpu(&self) -> (Duration, bool) {
        let turn = self.bell().yield_cpu();
        let mut rx = self.inbound.lock();
        let there = rx.ready();
        rx.spin.yielded(turn, there);
        (turn.1, there)
    }

    /// Looks after a peer that waits for room.
    fn after_release(&self, rx: &mut Rx) -> Result<(), Broken> {
        let wake = rx.notify()?;
        self.wake_peer(wake)
    }

    /// Sets the need-wakeup flag; false when a record is there.
    ///
    /// Bells stay unread in the socket: reading one costs a system call, and an edge-triggered watch
    /// needs none. Each time the flag is set can leave one, so they are drained before that when
    /// [`partywall_abi::limits::UNREAD_BELLS`] may be there, long before the socket is full and would lose
    /// the edge. What is drained may have been meant for a task that waits for room, which is looked
    /// after.
    fn sleep(&self, rx: &mut Rx) -> Result<bool, Broken> {
        self.after_release(rx)?;
        if self.bell().must_drain() {
            if let Err(why) = self.bell().drain() {
                return unless_records(rx, why).map(|()| false);
            }
            self.serve_stalled()?;
        }
        self.bell().slept();
        Ok(self.inbound.sleep(rx))
    }

    /// Whether the doorbell has rung since it was last looked at; if not, the runtime will wake who
    /// waits for it.
    fn listen(&self) -> Result<bool, Broken> {
        let Some(ready) = self.listener.listen()? else { return Ok(false) };
        self.after_bell(ready)?;
        Ok(true)
    }

    /// The doorbell has rung, or the peer has hung up.
    fn after_bell(&self, state: Ready) -> Result<(), Broken> {
        let mut rx = self.inbound.lock();
        self.inbound.awake(&mut rx);
        if state.is_read_closed() || state.is_error() {
            let why = self.bell().drain().err().unwrap_or(LinkError::Dead);
            return unless_records(&rx, why);
        }
        Ok(())
    }
}

/// After a hang-up: the end, unless records are left to take.
fn unless_records(rx: &Rx, why: LinkError) -> Result<(), Broken> {
    if matches!(why, LinkError::Dead) && rx.ready() {
        // The hang-up stays readable: it is seen again when they are taken.
        return Ok(());
    }
    Err(why.into())
}
