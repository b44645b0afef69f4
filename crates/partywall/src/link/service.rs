//! The service's side of a link.
//!
//! ```text
//! HEAD -> allowed? -> handler, polled by the reader or in a task -> answer pumped -> done
//!           no: PERMISSION_DENIED before the handler is made
//! Reset from the caller, or its death: the handler is dropped at its next await
//! deadline passed: the handler is dropped, DEADLINE_EXCEEDED
//! panic: INTERNAL, the link goes on
//! ```
//!
//! A call is open from its head to the end of its answer ([`partywall_call`]), so that a reset finds it
//! wherever its handler runs.
//!
//! # The reader's role
//!
//! One driver reads the link. [`Service::role`] is its number, doubled, and odd while it is inside a
//! handler. Only then can the role be transferred ([`inline`]), by a compare-and-swap to the
//! next even number; the driver leaves the handler by another one, and where that fails it reads
//! no more. So never do two of them hand records over, and records keep their order.
//!
//! [`partywall_call`] describes how a server drains.

use std::cell::Cell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use partywall_abi::control::{Grant, Identity, LinkMethods, LinkStats, PaceStats, Terms};
use partywall_abi::frame::{Metadata, PLAIN_REQUEST};
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;
use partywall_abi::sync::{AtomicU64, Ordering};
use partywall_abi::version::Capabilities;
use partywall_shm::setup::Adopted;
use partywall_shm::socket::Passed;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tonic::{Code, Status};

mod inline;
mod rights;
pub(crate) mod task;

use inline::{HandOn, Inside};
use rights::{Method, Rights};
use task::{Step, Task};

use super::Link;
use super::TURN;
use super::account::{Account, Accounts};
use super::attached::Attached;
use super::broken::{self, Broken};
use super::calls::{Accepted, Called, Opened};
use super::driver::Driver;
use super::inbound::Record;
use super::parcels::Piece;
use super::receiver::Receiver;
use super::sealed::{self, HANDSHAKE_TIME, LinkEnd, Serving, Side as _};
use super::sender::{Sender, Source};
use super::signed::Signing;
use super::ways::Ways;
use super::whole::Whole;
use crate::coordinator::{End, Offer, Tracked};
use crate::domain::{self, Offered, Visit, Visited};
use crate::error::Error;
use crate::lock::lock;
use crate::peer::Peer;
use crate::pins::Pins;
use crate::telemetry::{self, Route, Side};

/// How long a caller's thread takes records for the service; what is left then is the driver's, and
/// a method whose poll has taken longer is one for tasks again.
const VISIT: Duration = Duration::from_millis(1);
/// How often a draining link is looked at, beside being told of each call that ends.
const DRAINING: Duration = Duration::from_millis(50);

/// What answers the calls of a link.
pub(crate) trait Dispatch: Send + Sync + 'static {
    /// What is to be known of a method before it is called; a link remembers it.
    type Method: Send + Sync;
    /// A call at work, which becomes its answer.
    type Handler: Future<Output: Source + Send + Unpin> + Send + Unpin;

    /// What a path names; none if nothing can have that path.
    fn method(&self, path: &str) -> Option<Self::Method>;

    /// Begins to answer a call.
    fn call(&self, incoming: Incoming<'_, Self::Method>) -> Self::Handler;
}

/// A request as it comes in.
pub(crate) struct Incoming<'a, M> {
    pub(crate) method: &'a M,
    pub(crate) peer: Peer,
    pub(crate) metadata: Metadata<'a>,
    /// The time that its caller gives it, and when that is over; too far away to be said is never.
    pub(crate) timeout: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) data: Data,
    /// What is attached to it.
    pub(crate) attached: Option<Box<Attached>>,
    /// Hears of an ordinary call.
    pub(crate) ways: Option<&'a Arc<Ways>>,
    /// How its messages are signed, if they are.
    pub(crate) signing: Option<&'a Arc<Signing>>,
}

/// The message data of a request.
pub(crate) enum Data {
    /// All of it has come.
    Whole(Whole),
    /// It is to be received.
    Stream(Receiver),
}

/// A link to one caller.
pub(crate) struct Service<D: Dispatch> {
    link: Arc<Link>,
    dispatch: D,
    rights: Mutex<Rights<D::Method>>,
    runtime: Handle,
    /// Whether the reader's role can be transferred.
    hands_on: bool,
    role: AtomicU64,
    /// A draining link has a call less, or the caller's word that none comes.
    idle: Notify,
    /// Callers of the same launcher come in by themselves.
    offered: OnceLock<Offered>,
}

/// Who hands a record over.
#[derive(Clone, Copy)]
enum Reader<'a> {
    Driver,
    /// A caller's thread, which nobody else waits for.
    Visitor(&'a Handled),
}

/// The outcome of a record that a caller's thread has passed on.
#[derive(Default)]
struct Handled {
    /// It has polled a handler.
    polled: Cell<bool>,
    /// It has left one to a task.
    left: Cell<bool>,
}

impl<D: Dispatch> Visit for Service<D> {
    fn visit(self: Arc<Self>, stream: u32) -> Visited {
        self.try_visit(stream).unwrap_or_else(|why| {
            self.close(&why);
            Visited { taken: true, waits: None }
        })
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// A link that was offered, and whose caller is not ready yet.
pub(crate) struct Adopting {
    adopted: Adopted,
    terms: Terms,
    offered: Option<Offered>,
    tracked: Tracked,
}

impl Adopting {
    /// Whether the link is to be sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.terms.sealing.is_some()
    }
}

/// Takes an offer, and says so to the coordinator.
pub(crate) fn adopt(offer: Offer, pins: &Pins) -> Result<Adopting, Error> {
    pins.may_open(&offer.terms, offer.tracked.name())?;
    let Offer { mut terms, memory, socket, tracked } = offer;
    // Before the caller can see that the link is open.
    let offered = Offered::new(terms.peer.pid, terms.link).map_err(|source| {
        // The caller gets the next instance.
        let what = "opening a link: a call here was cut off, and this service is to be ended";
        Error::Io { what: what.into(), source }
    })?;
    let adopted = Adopted::new(terms.link, terms.geometry, memory, socket)?;
    terms.security = domain::security(terms.security, offered.as_ref().map(Offered::isolation));
    tracked.adopted(terms.security);
    Ok(Adopting { adopted, terms, offered, tracked })
}

/// Opens a link that was adopted, with its caller's outbox and what both ends find to protect it, and serves
/// it in the background.
pub(crate) fn open<D: Dispatch>(
    adopting: Adopting,
    (callers, security): (OwnedFd, Security),
    dispatch: D,
    accounts: &Arc<Accounts>,
) -> Result<Arc<Service<D>>, Error> {
    let Adopting { adopted, terms, offered, tracked } = adopting;
    match adopted.open(callers) {
        Ok(ends) => opened(ends.into(), (terms, offered, tracked), security, dispatch, accounts),
        Err(why) => Err(broken::not_opened(tracked, why)),
    }
}

/// The same of a link that is sealed, once its caller has proven who it is.
pub(crate) async fn open_sealed<D: Dispatch>(
    (adopting, pins): (Adopting, Pins),
    (callers, security): (OwnedFd, Security),
    dispatch: D,
    accounts: Arc<Accounts>,
) -> Result<Arc<Service<D>>, Error> {
    let Adopting { adopted, terms, offered, tracked } = adopting;
    let client = tracked.client();
    let sealing = terms.sealing.as_ref().expect("the link is sealed");
    let own = client.certified(HANDSHAKE_TIME).await?;
    let mut side = Serving::new(client, (own, &pins), (&terms, sealing))?;
    let done = match adopted.open_after(callers, |ends| side.step(ends)) {
        Ok((ends, Some(channel))) => Ok(LinkEnd::sealed(ends, channel, &side)),
        Ok((ends, None)) => sealed::finish(&mut side, ends, HANDSHAKE_TIME).await,
        Err(why) => Err(why),
    };
    match done {
        Ok(done) => opened(done, (terms, offered, tracked), security, dispatch, &accounts),
        Err(why) => Err(broken::not_opened(tracked, why)),
    }
}

/// Serves an open link in the background, whose ends find it to be protected so.
fn opened<D: Dispatch>(
    ends: LinkEnd,
    (terms, offered, tracked): (Terms, Option<Offered>, Tracked),
    security: Security,
    dispatch: D,
    accounts: &Arc<Accounts>,
) -> Result<Arc<Service<D>>, Error> {
    let security = terms.security.min_per_field(security);
    let account = accounts.open(terms.peer.uid, terms.peer.pid);
    let peer = Peer::new(terms.peer, terms.link, security).proven(ends.peer.clone());
    let caller = (peer, account);
    let service = run(ends, dispatch, caller, terms.methods, Some(tracked), terms.capabilities)?;
    let route = if offered.is_some() { Route::Gate } else { Route::Ring };
    service.link.tell_of(telemetry::Link::opened(Side::Server, route, security));
    if let Some(offered) = offered {
        let visited: Arc<dyn Visit> = Arc::clone(&service) as _;
        offered.open(Arc::downgrade(&visited));
        let _first = service.offered.set(offered);
    }
    Ok(service)
}

/// Serves an open link in the background, which nobody grants descriptors.
pub(crate) fn start<D: Dispatch>(
    ends: impl Into<LinkEnd>,
    dispatch: D,
    (peer, account): (Peer, Arc<Account>),
    methods: MethodSet,
    tracked: Option<Tracked>,
) -> Result<Arc<Service<D>>, Error> {
    let common = Capabilities::OWN.without(Capabilities::ATTACHMENTS);
    run(ends, dispatch, (peer, account), methods, tracked, common)
}

/// The same where the two ends have these capabilities.
pub(super) fn run<D: Dispatch>(
    ends: impl Into<LinkEnd>,
    dispatch: D,
    (peer, account): (Peer, Arc<Account>),
    methods: MethodSet,
    tracked: Option<Tracked>,
    capabilities: Capabilities,
) -> Result<Arc<Service<D>>, Error> {
    let link = Link::serving(ends, account, tracked)
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    link.calls.agree(capabilities);
    let runtime = Handle::current();
    let counted = Arc::clone(&link.methods);
    let service = Arc::new(Service {
        link: link.shared(),
        dispatch,
        rights: Mutex::new(Rights::new(peer, methods, counted)),
        hands_on: runtime.runtime_flavor() == RuntimeFlavor::MultiThread,
        runtime,
        role: AtomicU64::new(0),
        idle: Notify::new(),
        offered: OnceLock::new(),
    });
    tokio::spawn(Drive::new(Arc::clone(&service), 0));
    let end: Arc<dyn End> = Arc::clone(&service) as _;
    service.link.attach(Arc::downgrade(&end));
    Ok(service)
}

impl<D: Dispatch> End for Service<D> {
    fn stats(&self) -> LinkStats {
        self.link.stats()
    }

    fn methods(&self) -> LinkMethods {
        self.link.methods.counted()
    }

    fn pace(&self) -> Option<PaceStats> {
        Some(self.link.calls.pace())
    }

    fn end(&self, status: Status) {
        self.close(&Broken::Ended(Box::new(status)));
    }

    // Who reads takes what has come, and sees the end then.
    fn peer_died(&self) {
        self.link.bell().hang_up();
    }

    fn allow(&self, peer: Identity, methods: MethodSet) {
        lock(&self.rights).change(peer, methods.clone());
        // A call that began under the old policy does not outlive it.
        let text = "the policy does not let this caller call this method any more";
        self.reset_all(|path| !methods.covers(path), &Status::permission_denied(text));
    }

    fn grant(&self, socket: Passed, grant: Grant) -> Option<Passed> {
        self.link.grant(socket, grant);
        None
    }
}

/// The driver's task.
struct Drive<D: Dispatch> {
    service: Arc<Service<D>>,
    driver: Driver,
    role: u64,
}

impl<D: Dispatch> Drive<D> {
    fn new(service: Arc<Service<D>>, role: u64) -> Self {
        Self { service, driver: Driver::new(false), role }
    }
}

impl<D: Dispatch> Future for Drive<D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { service, driver, role } = &mut *self;
        driver.begin(&service.link);
        loop {
            let delivered = match ready!(driver.poll_record(&service.link, cx)) {
                Ok(next) => service.deliver(next.record, Reader::Driver),
                Err(why) => Err(why),
            };
            if let Err(why) = delivered {
                service.close(&why);
                return Poll::Ready(());
            }
            if service.role.load(Ordering::Acquire) != *role {
                // The next driver has been started.
                return Poll::Ready(());
            }
        }
    }
}

impl<D: Dispatch> Drop for Drive<D> {
    fn drop(&mut self) {
        // Odd: it is unwinding out of a handler.
        if self.service.role.load(Ordering::Acquire) & !1 == self.role {
            self.service.close(&Broken::Runtime);
        }
    }
}

impl<D: Dispatch> HandOn for Service<D> {
    fn hand_on(self: Arc<Self>, reads: bool) {
        if !reads {
            self.runtime.spawn(std::future::ready(()));
            return;
        }
        let inside = self.role.load(Ordering::Acquire);
        let role = inside + 1;
        let ours = inside % 2 == 1
            && self
                .role
                .compare_exchange(inside, role, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !ours {
            // The handler has returned meanwhile.
            return;
        }
        let link = self.link.number;
        tracing::debug!(link, "a handler stays; the reader's role is transferred");
        let runtime = self.runtime.clone();
        runtime.spawn(Drive::new(self, role));
    }
}

impl<D: Dispatch> Service<D> {
    /// Ends the link.
    pub(crate) fn close(&self, why: &Broken) {
        self.link.close(why);
        self.idle.notify_waiters();
    }

    /// Whether the link is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.link.closed().is_some()
    }

    /// Why the link is closed, if it is.
    #[cfg(test)]
    pub(super) fn why(&self) -> Option<&Status> {
        self.link.closed()
    }

    /// Calls that are open.
    #[cfg(test)]
    pub(super) fn open_calls(&self) -> usize {
        self.link.calls.open_now()
    }

    /// Asks the caller for no more calls.
    pub(crate) fn drain(&self) {
        self.link.send_control(self.link.calls.drain());
        // A caller without calls may be awake by its word, and not look.
        let _dead = self.link.bell().ring();
    }

    /// Waits until a draining link has no call under way and none to come, at most so long, and ends
    /// it; calls that are open then end with UNAVAILABLE, and `why`.
    pub(crate) async fn finish(&self, within: Duration, why: &str) {
        if tokio::time::timeout(within, self.finished()).await.is_err() {
            let text = format!("{why}, {within:?} after it was told to");
            let calls = self.end_all(&Status::unavailable(text));
            let link = self.link.number;
            tracing::warn!(link, calls, ?within, "calls are open after the drain");
        }
        self.close(&Broken::Closed);
    }

    /// Ends the link at once; calls that are open end with UNAVAILABLE, and `why`.
    pub(crate) fn abort(&self, why: &str) {
        if !self.is_closed() {
            self.end_all(&Status::unavailable(why));
            self.close(&Broken::Closed);
        }
    }

    async fn finished(&self) {
        while !self.is_closed()
            && let Err(again) = self.link.calls.is_finished()
        {
            let look = Instant::now() + DRAINING;
            let look = again.map_or(look, |again| again.min(look));
            let _look = tokio::time::timeout_at(look.into(), self.idle.notified()).await;
        }
    }

    /// Ends all open calls, on both sides; how many those were.
    fn end_all(&self, status: &Status) -> usize {
        let (ended, due) = self.link.calls.reset_all(|_| true, status);
        self.link.send_control(due);
        ended
    }

    /// Ends the calls whose path says so, as ones that the policy denies.
    fn reset_all(&self, ends: impl Fn(&str) -> bool, status: &Status) {
        let (ended, due) = self.link.calls.reset_all(ends, status);
        self.link.send_control(due);
        self.link.counters.denied(ended);
    }

    /// Takes what is there for a caller that has come in by itself; less, when somebody else takes
    /// it, or after a while. The driver sleeps on.
    ///
    /// The end of the ring is held all the while, handlers included, so that records are handed over
    /// in order; a driver that is woken meanwhile comes back later.
    fn try_visit(self: &Arc<Self>, stream: u32) -> Result<Visited, Broken> {
        let (link, begin) = (&self.link, Instant::now());
        let Some(mut rx) = link.inbound.try_lock() else { return Ok(Visited::default()) };
        if link.inbound.is_handing_over() {
            return Ok(Visited::default());
        }
        let (mut last, mut forwards) = (begin, None);
        let mut visited = Visited::default();
        for _ in 0..TURN {
            let Some(record) = link.inbound.take(&mut rx)? else {
                visited.taken = true;
                break;
            };
            let first = forwards.is_none();
            let forwards = forwards.get_or_insert_with(domain::forwards);
            let (own, handled) = (record.stream == stream, Handled::default());
            let delivered = self.deliver(record, Reader::Visitor(&handled));
            let now = Instant::now();
            if handled.polled.get() && now - last > VISIT {
                self.was_slow();
            }
            self.count_visit(first, now - last, forwards);
            if own {
                visited.waits = Some(handled.left.get());
            }
            last = now;
            delivered?;
            if now - begin > VISIT {
                break;
            }
        }
        link.after_release(&mut rx)?;
        drop(rx);
        link.serve_stalled()?;
        Ok(visited)
    }

    /// Counts what a caller's thread has done with one record; `forwards` is what its context had
    /// forwarded before that.
    fn count_visit(&self, first: bool, took: Duration, forwards: &mut u64) {
        let now = domain::forwards();
        self.link.counters.visited(first, now.saturating_sub(*forwards), took);
        *forwards = now;
    }

    /// Hands a record to the call it belongs to.
    fn deliver(self: &Arc<Self>, record: Record, reader: Reader<'_>) -> Result<(), Broken> {
        match record.if_plain(PLAIN_REQUEST) {
            Ok(plain) => self.deliver_any(plain, reader),
            Err(record) => self.deliver_other(record, reader),
        }
    }

    #[inline(never)]
    fn deliver_other(self: &Arc<Self>, other: Record, reader: Reader<'_>) -> Result<(), Broken> {
        self.deliver_any(other, reader)
    }

    #[inline(always)]
    fn deliver_any(self: &Arc<Self>, record: Record, reader: Reader<'_>) -> Result<(), Broken> {
        match self.link.accept(record, None)? {
            Accepted::Opened(opened) => {
                self.link.inbound.handed_over();
                self.begin(opened, reader);
                return Ok(());
            }
            Accepted::Named(path) => {
                lock(&self.rights).number(path);
            }
            Accepted::Drained => self.idle.notify_waiters(),
            Accepted::Refused(path) => telemetry::refused(&path, Code::ResourceExhausted),
            Accepted::Done | Accepted::Answered | Accepted::Whole(_) | Accepted::Released(_) => {}
        }
        self.link.inbound.handed_over();
        Ok(())
    }

    /// A new request.
    #[inline(always)]
    fn begin(self: &Arc<Self>, mut opened: Opened, reader: Reader<'_>) {
        let (link, key) = (&self.link, opened.key);
        // Held until the call has its path: it has the rights of a policy that comes now, or is reset. A call
        // by number has had that before.
        let mut rights = lock(&self.rights);
        let named = |path: &str| self.dispatch.method(path);
        let called = opened.method();
        let is_numbered = matches!(called, Called::Number(_));
        let (method, peer) = rights.method(called, named);
        let admitted = match is_numbered {
            true => Ok(()),
            false => link.calls.admit(key, Arc::clone(&method.path)),
        };
        if admitted.is_ok() {
            // Now: a caller that has its answer can end the link before its call has ended here.
            link.counters.called();
            if let Some(ways) = &method.ways {
                ways.begun();
            }
        }
        drop(rights);
        if let Err(due) = admitted {
            telemetry::refused(&method.path, Code::ResourceExhausted);
            return link.send_control(due);
        }
        let whole = opened.whole;
        let mut call = Task {
            service: Arc::clone(self),
            key,
            method,
            step: Step::Done,
            deadline: None,
            whole,
            spawned: false,
            first: true,
            released: false,
        };
        let Some(method) = &call.method.allowed else {
            // A policy that came meanwhile may have ended it, and counted that.
            link.counters.denied(link.calls.deny(key).into());
            let methods = &lock(&self.rights).methods;
            let denied = crate::error::denied("this caller", &call.method.path, methods);
            telemetry::refused(&call.method.path, denied.code());
            call.step = Step::Answer(Box::new(Sender::status(denied)));
            return self.run(call, true, reader);
        };
        let (data, in_parcel) = (opened.take_data(), opened.in_parcel);
        // What lies in an owned parcel is copied by its call's own task, not by who reads.
        let inline = whole && !data.is_lent() && call.method.history.may_inline();
        let data = match data {
            Piece::Here(data) if whole => Data::Whole(Whole::new(link, key, data, in_parcel)),
            data => {
                link.calls.deliver(key, data, whole);
                link.calls.share(key);
                Data::Stream(Receiver::new(Arc::clone(link), key))
            }
        };
        let attached = opened.attached.take();
        let timeout = opened.timeout;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        call.deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let metadata = opened.metadata.get();
        let ways = call.method.ways.as_ref();
        let signing = link.signing.as_ref();
        let incoming =
            Incoming { method, peer, metadata, timeout, deadline, data, attached, ways, signing };
        let handler = self.dispatch.call(incoming);
        call.step = Step::Handle(handler);
        self.run(call, inline, reader);
    }

    /// Polls a call here if that is wise, else in a task.
    #[inline(always)]
    fn run(self: &Arc<Self>, mut call: Task<D>, inline: bool, reader: Reader<'_>) {
        if inline && self.poll_inline(&mut call, reader) {
            return;
        }
        if let Reader::Visitor(handled) = reader {
            handled.left.set(true);
        }
        call.spawned = true;
        tokio::spawn(call);
    }

    /// Polls a call in who reads; whether it is done.
    fn poll_inline(self: &Arc<Self>, call: &mut Task<D>, reader: Reader<'_>) -> bool {
        let mut poll = || Pin::new(&mut *call).poll(&mut Context::from_waker(Waker::noop()));
        if let Reader::Visitor(handled) = reader {
            handled.polled.set(true);
            return poll().is_ready();
        }
        if !self.hands_on {
            return poll().is_ready();
        }
        // Before the monitor can see this thread inside: it asks for the role once per handler.
        let role = self.role.load(Ordering::Relaxed);
        self.role.store(role + 1, Ordering::Release);
        let inside = Inside::enter(self, true);
        let polled = inside.is_some() && poll().is_ready();
        let left = self.role.compare_exchange(role + 1, role, Ordering::AcqRel, Ordering::Relaxed);
        drop(inside);
        if left.is_err() {
            call.method.history.start_over();
        }
        polled
    }

    /// The method that was called last is not to be polled by who reads.
    fn was_slow(&self) {
        if let Some(method) = &lock(&self.rights).last {
            method.history.start_over();
        }
    }

    /// A call has ended with this status code.
    fn ended(&self, code: u8) {
        if code != 0 {
            self.link.counters.failed();
        }
    }
}
