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
//! A call is in the table of calls from its head to the end of its answer, so that a reset finds it
//! wherever its handler runs.
//!
//! # The reader's role
//!
//! One driver reads the link. [`Link::role`] is its number, doubled, and odd while it is inside a
//! handler. Only then can the role be handed on ([`super::inline`]), by a compare-and-swap to the
//! next even number; the driver leaves the handler by another one, and where that fails it reads
//! no more. So never do two of them hand records over, and records keep their order.
//!
//! How a server drains is told in [`super::client`].

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use partywall_abi::control::{Identity, LinkStats, Terms};
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;
use partywall_abi::segment::{self, END, HEAD, Kind, NO_DEADLINE, ROOM, RequestHead, Segment};
use partywall_abi::sync::{AtomicBool, AtomicU64, Ordering};
use partywall_shm::setup::{Adopted, Ends};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tonic::Status;

mod task;

use task::{Step, Task};
pub(crate) use task::{expired, panicked};

use super::account::{Account, Accounts};
use super::body::{Incoming, RequestBody, WholeBody};
use super::client::rest;
use super::core::{Broken, Core, Counters};
use super::inline::{HandOn, History, Inside};
use super::pump::Pump;
use super::reader::{Drive, Flow, Record};
use super::stream::Part;
use crate::agent::{Booked, End, Offer};
use crate::domain::{self, Offered, Visit, Visited};
use crate::error::Error;
use crate::peer::{Deadline, Peer};
use crate::server::Dispatch;
use crate::wire;

/// Paths that a link remembers; a caller that uses more of them pays for the look-up each time.
const PATHS: usize = 256;
/// How long a draining server waits for a caller's word that no more calls come. A caller that
/// does not run then has none under way.
const PROMISE: Duration = Duration::from_millis(250);
/// How long a caller's thread takes records for the service; what is left then is the driver's, and
/// a method whose poll has taken longer is one for tasks again.
const VISIT: Duration = Duration::from_millis(1);
/// How often a draining link is looked at, beside being told of each call that ends.
const DRAINING: Duration = Duration::from_millis(50);

type Handler = Pin<Box<dyn Future<Output = http::Response<tonic::body::Body>> + Send>>;

/// One path that was called.
struct Method {
    path: Arc<str>,
    uri: http::Uri,
    allowed: bool,
    history: History,
}

/// Who calls and what it may call, with the paths that a link remembers.
struct Rights {
    peer: Peer,
    methods: MethodSet,
    last: Option<Arc<Method>>,
    all: HashMap<Arc<str>, Arc<Method>>,
}

/// A link to one caller.
pub(crate) struct Link {
    core: Arc<Core>,
    dispatch: Arc<dyn Dispatch>,
    rights: Mutex<Rights>,
    runtime: Handle,
    /// Whether the reader's role can be handed on.
    hands_on: bool,
    role: AtomicU64,
    draining: AtomicBool,
    /// The caller has said that no more calls come.
    promised: AtomicBool,
    /// New calls are reset.
    refusing: AtomicBool,
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

/// What a record has come to that a caller's thread has handed over.
#[derive(Default)]
struct Handled {
    /// It has polled a handler.
    polled: Cell<bool>,
    /// It has left one to a task.
    left: Cell<bool>,
}

impl Visit for Link {
    fn visit(self: Arc<Self>, stream: u32) -> Visited {
        let begin = Instant::now();
        let mut last = begin;
        let mut forwards = None;
        let mut waits = None;
        let visited = self.core.visit(|record| {
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
                waits = Some(handled.left.get());
            }
            last = now;
            delivered.map(|()| now - begin > VISIT)
        });
        let taken = visited.unwrap_or_else(|why| {
            self.close(&why);
            true
        });
        Visited { taken, waits }
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
    booked: Booked,
}

/// Takes an offer, and says so to the coordinator.
pub(crate) fn adopt(offer: Offer) -> Result<Adopting, Error> {
    let Offer { mut terms, memory, socket, booked } = offer;
    // Before the caller can see that the link is open.
    let offered = Offered::new(terms.peer.pid, terms.link).map_err(|source| {
        // The caller gets the next instance.
        let what = "opening a link: a call here was cut off, and this service is to be ended";
        Error::Io { what: what.into(), source }
    })?;
    let adopted = Adopted::new(terms.link, terms.geometry, memory, socket)?;
    terms.security = domain::security(terms.security, offered.as_ref().map(Offered::isolation));
    booked.adopted(terms.security);
    Ok(Adopting { adopted, terms, offered, booked })
}

/// Opens a link that was adopted, with its caller's outbox and what both ends find to protect it, and serves
/// it in the background.
pub(crate) fn open(
    adopting: Adopting,
    (callers, security): (OwnedFd, Security),
    dispatch: Arc<dyn Dispatch>,
    accounts: &Arc<Accounts>,
) -> Result<Arc<Link>, Error> {
    let Adopting { adopted, terms, offered, booked } = adopting;
    let ends = adopted.open(callers)?;
    let security = terms.security.min_per_field(security);
    let account = accounts.open(terms.peer.uid, terms.peer.pid);
    let peer = Peer::new(terms.peer, terms.link, security);
    let link = start(ends, dispatch, (peer, account), terms.methods, Some(booked))?;
    if let Some(offered) = offered {
        let visited: Arc<dyn Visit> = Arc::clone(&link) as _;
        offered.open(Arc::downgrade(&visited));
        let _first = link.offered.set(offered);
    }
    Ok(link)
}

/// Serves an open link in the background.
pub(crate) fn start(
    ends: Ends,
    dispatch: Arc<dyn Dispatch>,
    (peer, account): (Peer, Arc<Account>),
    methods: MethodSet,
    booked: Option<Booked>,
) -> Result<Arc<Link>, Error> {
    let core = Core::serving(ends, account, booked)
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    let runtime = Handle::current();
    let core = Arc::new(core);
    let link = Arc::new(Link {
        core,
        dispatch,
        rights: Mutex::new(Rights { peer, methods, last: None, all: HashMap::new() }),
        hands_on: runtime.runtime_flavor() == RuntimeFlavor::MultiThread,
        runtime,
        role: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        promised: AtomicBool::new(false),
        refusing: AtomicBool::new(false),
        idle: Notify::new(),
        offered: OnceLock::new(),
    });
    tokio::spawn(Driver { link: Arc::clone(&link), drive: Drive::default(), role: 0 });
    let end: Arc<dyn End> = Arc::clone(&link) as _;
    link.core.attach(Arc::downgrade(&end));
    Ok(link)
}

impl End for Link {
    fn stats(&self) -> LinkStats {
        self.core.stats()
    }

    fn end(&self, status: Status) {
        self.close(&Broken::Ended(Box::new(status)));
    }

    // Who reads takes what has come, and sees the end then.
    fn peer_died(&self) {
        self.core.bell().hang_up();
    }

    fn allow(&self, peer: Identity, methods: MethodSet) {
        let mut rights = self.rights();
        rights.peer = rights.peer.known_as(peer);
        rights.methods = methods.clone();
        rights.last = None;
        rights.all.clear();
        drop(rights);
        // A call that began under the old policy does not outlive it.
        let text = "the policy does not let this caller call this method any more";
        let ended =
            self.core.end_calls(|path| !methods.covers(path), &Status::permission_denied(text));
        self.core.counters.denied.fetch_add(ended as u64, Ordering::Relaxed);
    }
}

struct Driver {
    link: Arc<Link>,
    drive: Drive,
    role: u64,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { link, drive, role } = &mut *self;
        let on_record = |record| {
            link.deliver(record, Reader::Driver)?;
            let still = link.role.load(Ordering::Acquire) == *role;
            Ok(if still { Flow::Continue } else { Flow::HandedOn })
        };
        match ready!(link.core.poll_drive(cx, drive, on_record)) {
            // The next driver has been started.
            Ok(Flow::Continue | Flow::HandedOn) => {}
            Err(why) => link.close(&why),
        }
        Poll::Ready(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Odd: it is unwinding out of a handler.
        if self.link.role.load(Ordering::Acquire) & !1 == self.role {
            self.link.close(&Broken::Runtime);
        }
    }
}

impl HandOn for Link {
    fn hand_on(self: Arc<Self>) {
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
        tracing::debug!(link = self.core.link, "a handler stays; the reader's role is handed on");
        let runtime = self.runtime.clone();
        runtime.spawn(Driver { link: self, drive: Drive::default(), role });
    }
}

impl Link {
    /// Ends the link.
    pub(crate) fn close(&self, why: &Broken) {
        self.core.close(why);
        self.idle.notify_waiters();
    }

    /// Whether the link is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.core.closed().is_some()
    }

    /// Asks the caller for no more calls.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.core.push_control(Kind::Drain, 0, &[]);
        // A caller without calls may be awake by its word, and not look.
        let _dead = self.core.bell().ring();
    }

    /// Waits until a draining link has no call under way and none to come, at most so long, and ends
    /// it; calls that are open then end with UNAVAILABLE.
    pub(crate) async fn finish(&self, within: Duration) {
        if tokio::time::timeout(within, self.finished()).await.is_err() {
            let text = format!("the server has ended, {within:?} after it was told to");
            let calls = self.core.give_up(&Status::unavailable(text));
            tracing::warn!(link = self.core.link, calls, ?within, "calls are open after the drain");
        }
        self.close(&Broken::Closed);
    }

    async fn finished(&self) {
        let told = async {
            while !(self.is_closed() || self.promised.load(Ordering::SeqCst)) {
                let _look = tokio::time::timeout(DRAINING, self.idle.notified()).await;
            }
        };
        if tokio::time::timeout(PROMISE, told).await.is_err() {
            self.refusing.store(true, Ordering::SeqCst);
        }
        while !(self.is_closed() || self.core.open_calls() == 0) {
            let _look = tokio::time::timeout(DRAINING, self.idle.notified()).await;
        }
    }

    /// Counts what a caller's thread has done with one record; `forwards` is what its context had
    /// forwarded before that.
    fn count_visit(&self, first: bool, took: Duration, forwards: &mut u64) {
        let c = &self.core.counters;
        let now = domain::forwards();
        Counters::add(&c.visits, first.into());
        Counters::add(&c.forwards, now.saturating_sub(*forwards));
        Counters::add(&c.inside_ns, took.as_nanos() as u64);
        *forwards = now;
    }

    fn deliver(self: &Arc<Self>, record: Record, reader: Reader<'_>) -> Result<(), Broken> {
        let Record { kind, flags, stream, payload } = record;
        match kind {
            Kind::Segment if flags & HEAD != 0 => self.begin(stream, payload, flags, reader),
            Kind::Segment => self.go_on(stream, payload, flags),
            Kind::Reset => {
                segment::decode_reset(&payload)?;
                if let Some(stream) = self.core.forget(stream) {
                    stream.fail(Status::cancelled("the caller has cancelled the call"));
                }
                Ok(())
            }
            Kind::Window => {
                let credit = segment::decode_window(&payload)?;
                if stream == 0 {
                    return self.core.grant_link(credit);
                }
                match self.core.find(stream) {
                    Some(stream) => Ok(stream.grant(credit)?),
                    None => Ok(()),
                }
            }
            Kind::Room => {
                let until = segment::decode_room(&payload)?;
                match self.core.find(stream) {
                    Some(stream) => Ok(stream.grant_room(until)?),
                    None => Ok(()),
                }
            }
            Kind::Limits => Err(Broken::Rule("limits from a caller")),
            Kind::Drain => {
                if !self.draining.load(Ordering::SeqCst) {
                    return Err(Broken::Rule("a promise that was not asked for"));
                }
                self.promised.store(true, Ordering::SeqCst);
                self.idle.notify_waiters();
                Ok(())
            }
            Kind::Message => Err(Broken::Rule("a raw message on a link of calls")),
        }
    }

    /// Takes a segment apart, and its data off the link's window if it counts against that.
    fn segment<'a>(&self, id: u32, flags: u8, payload: &'a [u8]) -> Result<Segment<'a>, Broken> {
        let s = Segment::decode(flags, payload)?;
        if id == 0 || s.trailers.is_some() {
            return Err(Broken::Rule("a request on no stream, or with trailers"));
        }
        if flags & ROOM == 0 {
            self.core.charge(s.data.len())?;
        } else if s.head.is_some() {
            return Err(Broken::Rule("a head with room that nobody has given"));
        }
        Ok(s)
    }

    /// More of a request.
    fn go_on(&self, stream: u32, data: Bytes, flags: u8) -> Result<(), Broken> {
        // Without a head, all of it is data.
        let len = self.segment(stream, flags, &data)?.data.len() as u32;
        let room = flags & ROOM != 0;
        let part = Part { room, ..Part::data(data, flags & END != 0) };
        let unwanted = match self.core.find(stream) {
            Some(stream) => stream.fill(part, true)?,
            None if room => 0,
            None => len,
        };
        self.core.give_back(unwanted);
        Ok(())
    }

    /// A new request.
    fn begin(
        self: &Arc<Self>,
        id: u32,
        payload: Bytes,
        flags: u8,
        reader: Reader<'_>,
    ) -> Result<(), Broken> {
        let s = self.segment(id, flags, &payload)?;
        let head = RequestHead::decode(s.head.unwrap_or_default())?;
        let len = s.data.len() as u32;
        let whole = flags & END != 0;
        if self.promised.load(Ordering::SeqCst) {
            return Err(Broken::Rule("a call after the last one"));
        }
        let admitted = match self.refusing.load(Ordering::SeqCst) {
            false => self.core.admit(id, whole)?,
            true => Err(Status::unavailable("the server is draining")),
        };
        let stream = match admitted {
            Ok(stream) => stream,
            Err(status) => {
                self.core.push_reset(id, status.code(), status.message());
                self.core.give_back(len);
                return Ok(());
            }
        };
        // Counted now: a caller that has its answer can end the link before its call has ended here.
        self.core.counters.calls.fetch_add(1, Ordering::Relaxed);
        let (method, peer) = self.method(head.path);
        stream.lock().path = Some(Arc::clone(&method.path));
        let mut call = Task {
            link: Arc::clone(self),
            stream: Arc::clone(&stream),
            method,
            step: Step::Done,
            deadline: None,
            whole,
            spawned: false,
            first: true,
        };
        if !call.method.allowed {
            self.core.counters.denied.fetch_add(1, Ordering::Relaxed);
            self.core.give_back(len);
            let denied = crate::error::denied("this caller", head.path, &self.rights().methods);
            call.step = Step::Answer(Pump::status(denied));
            return self.run(call, true, reader);
        }
        let headers = wire::request_headers(&head)?;
        let deadline_ns = head.deadline_ns;
        let data = rest(payload, len as usize);
        let body = if whole {
            tonic::body::Body::new(WholeBody::new(&self.core, data))
        } else {
            stream.fill(Part::data(data, false), true)?;
            tonic::body::Body::new(RequestBody(Incoming::new(Arc::clone(&self.core), stream)))
        };
        let mut request = http::Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = call.method.uri.clone();
        *request.headers_mut() = headers;
        request.extensions_mut().insert(peer);
        if deadline_ns != NO_DEADLINE {
            let left = Duration::from_nanos(deadline_ns);
            if let Some(at) = Instant::now().checked_add(left) {
                request.extensions_mut().insert(Deadline(at));
                call.deadline = Some(Box::pin(tokio::time::sleep_until(at.into())));
            }
        }
        let inline = whole && call.method.history.may_inline();
        call.step = Step::Handle(self.dispatch.call(request));
        self.run(call, inline, reader)
    }

    /// Polls a call here if that is wise, else in a task.
    fn run(
        self: &Arc<Self>,
        mut call: Task,
        inline: bool,
        reader: Reader<'_>,
    ) -> Result<(), Broken> {
        if inline && self.poll_inline(&mut call, reader) {
            return Ok(());
        }
        if let Reader::Visitor(handled) = reader {
            handled.left.set(true);
        }
        call.spawned = true;
        tokio::spawn(call);
        Ok(())
    }

    /// Polls a call in who reads; whether it is done.
    fn poll_inline(self: &Arc<Self>, call: &mut Task, reader: Reader<'_>) -> bool {
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
        let inside = Inside::enter(self);
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
        if let Some(method) = &self.rights().last {
            method.history.start_over();
        }
    }

    fn rights(&self) -> MutexGuard<'_, Rights> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a path, and who calls it.
    fn method(&self, path: &str) -> (Arc<Method>, Peer) {
        let mut rights = self.rights();
        let peer = rights.peer.clone();
        if let Some(last) = rights.last.as_ref().filter(|m| *m.path == *path) {
            return (Arc::clone(last), peer);
        }
        if let Some(method) = rights.all.get(path).cloned() {
            rights.last = Some(Arc::clone(&method));
            return (method, peer);
        }
        let uri = path.parse::<http::Uri>();
        let path = Arc::<str>::from(path);
        let method = Arc::new(Method {
            allowed: uri.as_ref().is_ok_and(|u| u.path() == &*path) && rights.methods.covers(&path),
            path: Arc::clone(&path),
            uri: uri.unwrap_or_default(),
            history: History::default(),
        });
        if rights.all.len() < PATHS {
            rights.all.insert(path, Arc::clone(&method));
        }
        (method, peer)
    }

    fn ended(&self, code: u8) {
        if code != 0 {
            self.core.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
