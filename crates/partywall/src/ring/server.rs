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

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use partywall_abi::control::Isolation;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_abi::segment::{self, END, Kind, NO_DEADLINE, RequestHead, Segment};
use partywall_abi::sync::{AtomicBool, AtomicU64, Ordering};
use partywall_shm::link::Ends;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::body::{Incoming, RequestBody, WholeBody};
use super::client::set_up;
use super::core::{Broken, Core, Drive, Flow, Record};
use super::inline::{HandOn, History, Inside};
use super::pump::{Pump, PumpError};
use super::stream::Stream;
use crate::agent::{Agent, Counted, Offer};
use crate::error::Error;
use crate::peer::{Deadline, Peer};
use crate::server::Dispatch;
use crate::wire;

/// Paths that a link remembers; a caller that uses more of them pays for the look-up each time.
const PATHS: usize = 256;
/// How long a caller may take to send its outbox.
const SETUP: Duration = Duration::from_secs(10);

type Handler = Pin<Box<dyn Future<Output = http::Response<tonic::body::Body>> + Send>>;

/// One path that was called.
struct Method {
    uri: http::Uri,
    allowed: bool,
    history: History,
}

/// A link to one caller.
pub(crate) struct Link {
    core: Arc<Core>,
    dispatch: Arc<dyn Dispatch>,
    peer: Peer,
    methods: MethodSet,
    paths: Mutex<HashMap<Box<str>, Arc<Method>>>,
    runtime: Handle,
    /// Whether the reader's role can be handed on.
    hands_on: bool,
    role: AtomicU64,
    draining: AtomicBool,
    pub(crate) idle: Notify,
}

/// Opens the link that was offered and serves it in the background.
pub(crate) async fn open(
    offer: Offer,
    dispatch: Arc<dyn Dispatch>,
    agent: Arc<Agent>,
) -> Result<Arc<Link>, Error> {
    let Offer { link, geometry, caller, methods, memory, socket } = offer;
    let ends = set_up(link, geometry, memory, socket, SETUP).await?;
    let peer = Peer::new(caller, link, Isolation::Process);
    start(ends, dispatch, peer, methods, Some(agent))
}

/// Serves an open link in the background.
pub(crate) fn start(
    ends: Ends,
    dispatch: Arc<dyn Dispatch>,
    peer: Peer,
    methods: MethodSet,
    agent: Option<Arc<Agent>>,
) -> Result<Arc<Link>, Error> {
    let number = ends.link;
    let core = Core::new(ends, agent.clone())
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    let runtime = Handle::current();
    let core = Arc::new(core);
    if let Some(agent) = agent {
        let counted: Arc<dyn Counted> = Arc::clone(&core) as _;
        agent.count(number, Arc::downgrade(&counted));
    }
    let link = Arc::new(Link {
        core,
        dispatch,
        peer,
        methods,
        paths: Mutex::default(),
        hands_on: runtime.runtime_flavor() == RuntimeFlavor::MultiThread,
        runtime,
        role: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        idle: Notify::new(),
    });
    tokio::spawn(Driver { link: Arc::clone(&link), drive: Drive::default(), role: 0 });
    Ok(link)
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
        let has_role = || link.role.load(Ordering::Acquire) == *role;
        if !has_role() {
            link.core.wake_driver();
            return Poll::Ready(());
        }
        let on_record = |record| {
            link.deliver(record)?;
            Ok(if has_role() { Flow::Continue } else { Flow::HandedOn })
        };
        match ready!(link.core.poll_drive(cx, drive, || true, has_role, on_record)) {
            Ok(Flow::Continue | Flow::HandedOn) => link.core.wake_driver(),
            Err(why) => link.close(&why),
        }
        Poll::Ready(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.link.role.load(Ordering::Acquire) == self.role {
            self.link.close(&Broken::Runtime);
        }
    }
}

impl HandOn for Link {
    fn hand_on(self: Arc<Self>) {
        let role = self.role.fetch_add(1, Ordering::AcqRel) + 1;
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

    /// Whether the link is closed or has no call under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.core.closed().is_some() || self.core.open_calls() == 0
    }

    /// Whether the link is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.core.closed().is_some()
    }

    /// Ends the link in good order.
    pub(crate) fn finish(&self) {
        self.close(&Broken::Closed);
    }

    /// Asks the caller for no more calls.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.core.push_control(Kind::Drain, 0, &[]);
    }

    fn deliver(self: &Arc<Self>, record: Record) -> Result<(), Broken> {
        let Record { kind, flags, stream, payload } = record;
        match kind {
            Kind::Segment => {
                let s = Segment::decode(flags, &payload)?;
                if stream == 0 || s.trailers.is_some() {
                    return Err(Broken::Rule("a request on no stream, or with trailers"));
                }
                self.core.charge(s.data.len())?;
                let data = payload.slice_ref(s.data);
                match s.head {
                    Some(head) => self.begin(stream, RequestHead::decode(head)?, data, flags),
                    None => self.go_on(stream, data, flags),
                }
            }
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
            Kind::Drain | Kind::Message => Err(Broken::Rule("a record that only a server sends")),
        }
    }

    /// More of a request.
    fn go_on(&self, stream: u32, data: Bytes, flags: u8) -> Result<(), Broken> {
        let len = data.len() as u32;
        let unwanted = match self.core.find(stream) {
            Some(stream) => stream.fill(None, data, None, flags & END != 0)?,
            None => len,
        };
        self.core.give_back(unwanted);
        Ok(())
    }

    /// A new request.
    fn begin(
        self: &Arc<Self>,
        id: u32,
        head: RequestHead<'_>,
        data: Bytes,
        flags: u8,
    ) -> Result<(), Broken> {
        if self.core.find(id).is_some() {
            return Err(Broken::Rule("a second head on one stream"));
        }
        let len = data.len() as u32;
        if self.draining.load(Ordering::SeqCst) {
            self.core.push_reset(id, Code::Unavailable, "the server is draining");
            self.core.give_back(len);
            return Ok(());
        }
        if self.core.open_calls() >= limits::STREAMS {
            let text = format!("{} calls are open on this link", limits::STREAMS);
            self.core.push_reset(id, Code::ResourceExhausted, &text);
            self.core.give_back(len);
            return Ok(());
        }
        let method = self.method(head.path);
        let stream = Arc::new(Stream::new(id));
        let whole = flags & END != 0;
        self.core.admit(Arc::clone(&stream));
        let mut call = Task {
            link: Arc::clone(self),
            stream: Arc::clone(&stream),
            method: Arc::clone(&method),
            step: Step::Done,
            deadline: None,
            spawned: false,
            first: true,
        };
        if !method.allowed {
            self.core.counters.denied.fetch_add(1, Ordering::Relaxed);
            self.core.give_back(len);
            let text = format!("the policy does not let this caller call {}", head.path);
            call.step = Step::Answer(Box::new(Pump::status(Status::permission_denied(text))));
            return self.run(call, true);
        }
        let headers = wire::request_headers(&head)?;
        let body = if whole {
            self.core.give_back(len);
            tonic::body::Body::new(WholeBody((len > 0).then_some(data)))
        } else {
            stream.fill(None, data, None, false)?;
            tonic::body::Body::new(RequestBody(Incoming::new(Arc::clone(&self.core), stream)))
        };
        let mut request = http::Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = method.uri.clone();
        *request.headers_mut() = headers;
        request.extensions_mut().insert(self.peer.clone());
        if head.deadline_ns != NO_DEADLINE {
            let left = Duration::from_nanos(head.deadline_ns);
            if let Some(at) = Instant::now().checked_add(left) {
                request.extensions_mut().insert(Deadline(at));
                call.deadline = Some(Box::pin(tokio::time::sleep_until(at.into())));
            }
        }
        let inline = whole && method.history.may_inline();
        call.step = Step::Handle(self.dispatch.call(request));
        self.run(call, inline)
    }

    /// Polls a call here if that is wise, else in a task.
    fn run(self: &Arc<Self>, mut call: Task, inline: bool) -> Result<(), Broken> {
        let inside = if inline && self.hands_on { Inside::enter(self) } else { None };
        if inline && (inside.is_some() || !self.hands_on) {
            let role = self.role.load(Ordering::Acquire);
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
            drop(inside);
            if self.role.load(Ordering::Acquire) != role {
                call.method.history.start_over();
            }
            if polled.is_ready() {
                return Ok(());
            }
        }
        call.spawned = true;
        tokio::spawn(call);
        Ok(())
    }

    fn method(&self, path: &str) -> Arc<Method> {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(method) = paths.get(path) {
            return Arc::clone(method);
        }
        let uri = path.parse::<http::Uri>();
        let method = Arc::new(Method {
            allowed: uri.as_ref().is_ok_and(|u| u.path() == path) && self.methods.covers(path),
            uri: uri.unwrap_or_default(),
            history: History::default(),
        });
        if paths.len() < PATHS {
            paths.insert(path.into(), Arc::clone(&method));
        }
        method
    }

    fn ended(&self, code: u8) {
        let c = &self.core.counters;
        c.calls.fetch_add(1, Ordering::Relaxed);
        if code != 0 {
            c.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

enum Step {
    Handle(Handler),
    Answer(Box<Pump>),
    Done,
}

/// One call.
struct Task {
    link: Arc<Link>,
    stream: Arc<Stream>,
    method: Arc<Method>,
    step: Step,
    deadline: Option<Pin<Box<Sleep>>>,
    /// It runs in a task of its own.
    spawned: bool,
    /// Its handler has not been polled.
    first: bool,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if this.stream.poll_send_closed(cx).is_ready() {
                return this.end(Code::Cancelled as u8);
            }
            if let Some(deadline) = &mut this.deadline
                && deadline.as_mut().poll(cx).is_ready()
            {
                this.deadline = None;
                let status = Status::deadline_exceeded("the deadline passed in the service");
                this.step = Step::Answer(Box::new(Pump::status(status)));
            }
            match &mut this.step {
                Step::Handle(handler) => {
                    // Only the polls that are made in a task are measured: see `inline`.
                    let start = (this.first && this.spawned).then(Instant::now);
                    this.first = false;
                    let polled =
                        std::panic::catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx)));
                    if let Some(start) = start {
                        this.method.history.first_poll_took(start.elapsed());
                    }
                    this.step = Step::Answer(Box::new(match polled {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(response)) => Pump::response(response),
                        Err(_) => Pump::status(Status::internal("the handler panicked")),
                    }));
                }
                Step::Answer(pump) => {
                    let (core, stream) = (&this.link.core, &this.stream);
                    let pumped =
                        std::panic::catch_unwind(AssertUnwindSafe(|| pump.poll(cx, core, stream)));
                    match pumped {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(Ok(()))) => {
                            let code = pump.code();
                            return this.end(code);
                        }
                        Ok(Poll::Ready(Err(PumpError::Broken(why)))) => {
                            this.link.close(&why);
                            return this.end(Code::Unavailable as u8);
                        }
                        Ok(Poll::Ready(Err(_))) => return this.end(Code::Cancelled as u8),
                        Err(_) => {
                            core.push_reset(stream.id, Code::Internal, "the service panicked");
                            return this.end(Code::Internal as u8);
                        }
                    }
                }
                Step::Done => return Poll::Ready(()),
            }
        }
    }
}

impl Task {
    fn end(&mut self, code: u8) -> Poll<()> {
        self.step = Step::Done;
        self.link.ended(code);
        Poll::Ready(())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.link.core.forget_exactly(&self.stream);
        // What came for a handler that never read it goes back to the link's window.
        self.link.core.give_back(self.stream.unread());
        if !matches!(self.step, Step::Done) {
            // Dropped by the runtime's end, or because the caller has gone.
            self.link.ended(Code::Cancelled as u8);
        }
        if self.link.draining.load(Ordering::SeqCst) {
            self.link.idle.notify_waiters();
        }
    }
}
