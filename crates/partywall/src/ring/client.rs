//! The caller's side of a link.
//!
//! ```text
//! call: open (number, table) -> pump the request -> head or trailers -> body -> done
//!         |                        |                                      |
//!         dropped at any point: Reset(CANCELLED), out of the table, handler dropped
//! ```
//!
//! A call that finds all places of its link taken waits for one ([`Link::place`]) before it is
//! opened, and goes to another link when this one closes or drains meanwhile.
//!
//! A unary call costs, beside what tonic does: one `Arc`, one record each way, and when the server
//! sleeps one send(2) to wake it; when this side sleeps one epoll_wait(2).
//!
//! # Draining
//!
//! ```text
//! server   Drain ->                  takes calls on until the caller has said Drain too
//! caller   no new calls; when the heads of those that were begun are on the ring: <- Drain
//! server   finishes the calls it has, and closes
//! ```
//!
//! So no call is lost between a caller that has begun it and a server that ends. A call that finds
//! its link draining goes to another one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf as _;
use partywall_abi::control::{Identity, LinkStats};
use partywall_abi::name::MethodSet;
use partywall_abi::security::Security;
use partywall_abi::segment::{self, Kind, ResponseHead, Segment, Trailers};
use partywall_abi::sync::{AtomicBool, Ordering, fence};
use partywall_shm::link::LinkError;
use partywall_shm::setup::{Ends, Pending};
use tokio::sync::oneshot;
use tokio::task::coop;
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::body::{Incoming, ResponseBody, WholeAnswer};
use super::core::{Broken, Core, watch};
use super::pump::{Pump, PumpError};
use super::reader::{Drive, Flow, Record};
use super::stream::{Answer, Part, Stream};
use super::table;
use crate::agent::{self, Booked, End, Linked};
use crate::domain::{self, Gate};
use crate::error::Error;
use crate::wire;

/// A link to a service, shared by a channel and its calls; with the last of them it closes.
pub(crate) struct Link {
    client: Arc<Client>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.client.core.close(&Broken::Closed);
    }
}

/// What the link's driver needs of it.
struct Client {
    core: Arc<Core>,
    /// The server wants no new calls.
    draining: AtomicBool,
    /// The server was told that no more heads come.
    promised: AtomicBool,
}

/// A head of more bytes than this is not kept alive by the data behind it.
const LONG_HEAD: usize = 1024;

/// The last `len` bytes of a record.
pub(super) fn rest(mut record: bytes::Bytes, len: usize) -> bytes::Bytes {
    let head = record.len() - len;
    if head > LONG_HEAD {
        return bytes::Bytes::copy_from_slice(&record[head..]);
    }
    record.advance(head);
    record
}

/// Why a call was not begun.
pub(crate) enum Refused {
    /// The link takes no more calls, or none without a [`Place`]; the request comes back.
    Back(Box<http::Request<tonic::body::Body>>),
    Status(Status),
}

/// A place that is kept for one call on a link; the next call has it when this is dropped.
pub(crate) struct Place {
    client: Arc<Client>,
    used: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.used {
            self.client.core.unkeep();
        }
    }
}

/// A call that waits for a place.
struct Waiting {
    client: Arc<Client>,
    /// Says that there is one; none when it has been told.
    told: Option<oneshot::Receiver<()>>,
}

impl Future for Waiting {
    type Output = Option<Place>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Place>> {
        let Self { client, told } = &mut *self;
        let heard = match told {
            Some(told) => ready!(Pin::new(told).poll(cx)),
            None => return Poll::Ready(None),
        };
        *told = None;
        Poll::Ready(heard.ok().map(|()| Place { client: Arc::clone(client), used: false }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(told) = &mut self.told else { return };
        told.close();
        if told.try_recv().is_ok() {
            self.client.core.unkeep();
        }
    }
}

/// Opens a link that the coordinator has introduced; says what protects it. One that its server
/// does not open within that time is an [`Error::Link`]: another instance may open one.
pub(crate) async fn open(linked: Linked, within: Duration) -> Result<(Arc<Link>, Security), Error> {
    let told = linked.terms.security;
    let number = linked.terms.link;
    // Filling the outboxes takes the kernel's time, which is no runtime's.
    let (pending, booked) = agent::on_a_thread(move || fill(linked)).await?;
    booked.adopted(domain::security(told, None));
    let ends = opened(pending, within).await?;
    let link = start(ends, Some(booked))?;
    let gate = Gate::take(number);
    let security = domain::security(told, gate.as_ref().map(Gate::isolation));
    if let Some(gate) = gate {
        link.client.core.visit_by(gate);
    }
    Ok((link, security))
}

/// Fills both outboxes of a link that this process asked for.
pub(crate) fn fill(linked: Linked) -> Result<(Pending, Booked), Error> {
    let Linked { terms, own, servers, socket, booked } = linked;
    Ok((Pending::new(terms.link, terms.geometry, own, servers, socket)?, booked))
}

/// Drives an open link in the background.
pub(crate) fn start(ends: Ends, booked: Option<Booked>) -> Result<Arc<Link>, Error> {
    let core = Core::calling(ends, booked)
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    let client = Arc::new(Client {
        core: Arc::new(core),
        draining: AtomicBool::new(false),
        promised: AtomicBool::new(false),
    });
    tokio::spawn(Driver { client: Arc::clone(&client), drive: Drive::with_calls() });
    let end: Arc<dyn End> = Arc::clone(&client) as _;
    client.core.attach(Arc::downgrade(&end));
    Ok(Arc::new(Link { client }))
}

/// Waits until the server has opened the link.
async fn opened(pending: Pending, within: Duration) -> Result<Ends, Error> {
    let watching = |source| Error::Io { what: "watching the link's socket".into(), source };
    let mut io = watch(pending).map_err(watching)?;
    let opened = async {
        loop {
            if io.get_mut().poll()? {
                return Ok::<_, Error>(());
            }
            io.readable().await.map_err(watching)?.clear_ready();
        }
    };
    let opened = tokio::time::timeout(within, opened).await;
    opened.map_err(|_| Error::Link(LinkError::TimedOut))??;
    Ok(io.into_inner().into_ends().expect("poll said that it is open"))
}

impl End for Client {
    fn stats(&self) -> LinkStats {
        self.core.stats()
    }

    fn end(&self, status: Status) {
        self.core.close(&Broken::Ended(Box::new(status)));
    }

    // Who reads takes what has come, and sees the end then.
    fn peer_died(&self) {
        self.core.bell().hang_up();
    }

    // The server's end holds the methods, and what is known of the server is this end's from when it
    // was opened.
    fn allow(&self, _peer: Identity, _methods: MethodSet) {}
}

struct Driver {
    client: Arc<Client>,
    drive: Drive,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { client, drive } = &mut *self;
        let on_record = |record| client.deliver(record, None).map(|_| Flow::Continue);
        match ready!(client.core.poll_drive(cx, drive, on_record)) {
            Ok(_) => {}
            Err(why) => client.core.close(&why),
        }
        Poll::Ready(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.client.core.close(&Broken::Runtime);
    }
}

impl Link {
    /// Whether new calls may be sent here.
    pub(crate) fn usable(&self) -> bool {
        self.client.core.closed().is_none() && !self.client.draining.load(Ordering::Relaxed)
    }

    /// Waits for a place for a call; none when the link takes no more.
    pub(crate) async fn place(&self) -> Option<Place> {
        let client = &self.client;
        let told = match client.core.ask() {
            table::Place::Free => {
                return Some(Place { client: Arc::clone(client), used: false });
            }
            table::Place::Later(told) => told,
            table::Place::Never => return None,
        };
        let waiting = Waiting { client: Arc::clone(client), told: Some(told) };
        // What makes a place is read by somebody else than a call that may be kept unpolled.
        client.core.revoke();
        client.core.settle(|record| client.deliver(record, None));
        waiting.await
    }

    /// Begins a call, in a place that was kept for it or in one that is free.
    pub(crate) fn call(
        self: &Arc<Self>,
        request: http::Request<tonic::body::Body>,
        place: Option<Place>,
    ) -> Result<Call, Refused> {
        let client = &self.client;
        let timeout = wire::parse_timeout(request.headers());
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Refused::Status(expired()));
        }
        // One call may be kept without being polled, and have been woken for what is there.
        if client.core.open_calls() <= 1 {
            client.core.glance(|record| client.deliver(record, None));
        }
        let opened = match place {
            None => client.core.open(false),
            Some(mut place) if Arc::ptr_eq(&place.client, client) => {
                place.used = true;
                client.core.open(true)
            }
            Some(_) => unreachable!("a place of another link"),
        };
        let Some((stream, open)) = opened.map_err(Refused::Status)? else {
            return Err(Refused::Back(Box::new(request)));
        };
        if open == 2 {
            client.core.revoke();
        }
        // In the table first: either this sees the draining, or the draining sees this.
        if client.draining.load(Ordering::SeqCst) {
            client.core.forget(stream.id);
            client.promise();
            return Err(Refused::Back(Box::new(request)));
        }
        let (parts, body) = request.into_parts();
        let path = parts.uri.into_parts().path_and_query;
        let path = path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let deadline = timeout.map(|t| Box::pin(tokio::time::sleep(t)));
        let link = Arc::clone(self);
        Ok(Call {
            pump: Some(Pump::request(path, parts.headers, timeout, body)),
            open: Some(OpenCall { link, stream, deadline, done: false, alone: false }),
            spun: false,
        })
    }
}

impl Client {
    /// Hands one record to the call it belongs to. The call `reading`, which does this itself, is
    /// not woken; whether it has its answer now.
    fn deliver(&self, record: Record, reading: Option<u32>) -> Result<bool, Broken> {
        let Record { kind, flags, stream, payload } = record;
        let own = reading == Some(stream);
        match kind {
            Kind::Segment => return Ok(self.segment(flags, stream, payload, !own)? && own),
            Kind::Reset => {
                let (code, text) = segment::decode_reset(&payload)?;
                if let Some(stream) = self.core.forget(stream) {
                    stream.fail(Status::new(Code::from_i32(code.into()), text));
                }
                return Ok(own);
            }
            Kind::Window => {
                let credit = segment::decode_window(&payload)?;
                if stream == 0 {
                    self.core.grant_link(credit)?;
                } else if let Some(stream) = self.core.find(stream) {
                    stream.grant(credit)?;
                }
            }
            Kind::Drain => {
                self.draining.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                self.core.shut();
                self.promise();
            }
            Kind::Limits => {
                let limits = segment::Limits::decode(&payload)?;
                if stream != 0 {
                    return Err(Broken::Rule("limits of a stream"));
                }
                self.core.limited(limits)?;
            }
            Kind::Room => {
                let until = segment::decode_room(&payload)?;
                if let Some(stream) = self.core.find(stream) {
                    stream.grant_room(until)?;
                }
            }
            Kind::Message => return Err(Broken::Rule("a raw message on a link of calls")),
        }
        Ok(false)
    }

    /// Tells a draining server that no more calls come, once all heads are on the ring.
    fn promise(&self) {
        if self.core.all_begun() && !self.promised.swap(true, Ordering::SeqCst) {
            self.core.push_control(Kind::Drain, 0, &[]);
        }
    }

    /// Whether the call was answered.
    fn segment(
        &self,
        flags: u8,
        id: u32,
        payload: bytes::Bytes,
        wake: bool,
    ) -> Result<bool, Broken> {
        let s = Segment::decode(flags, &payload)?;
        let len = s.data.len();
        let room = flags & segment::ROOM != 0;
        // What counts against the windows.
        let windowed = if room { 0 } else { len };
        self.core.charge(windowed)?;
        // All is checked before the call is taken out of the table: a call that is in it when a
        // rule turns out to be broken ends with the link.
        let head = match s.head {
            Some(block) => Some(wire::response_headers(&ResponseHead::decode(block)?)?),
            None => None,
        };
        let trailers = match s.trailers {
            Some(block) => Some(wire::trailers(&Trailers::decode(block)?)?),
            None if flags & segment::END != 0 => {
                return Err(Broken::Rule("a response without trailers"));
            }
            None => None,
        };
        // The data are the payload's rest; a long head is not kept for their sake.
        let data = rest(payload, len);
        let end = trailers.is_some();
        let answered = head.is_some() || end;
        let stream = if end { self.core.forget(id) } else { self.core.find(id) };
        let Some(stream) = stream else {
            // A call that was cancelled meanwhile.
            self.core.give_back(windowed as u32);
            return Ok(false);
        };
        if head.is_some() && stream.lock().headed {
            stream.fail(Status::unavailable("the peer broke a rule of the call protocol"));
            return Err(Broken::Rule("a second head on one stream"));
        }
        match stream.fill(Part { head, data, trailers, end, room }, wake) {
            Ok(unwanted) => self.core.give_back(unwanted),
            Err(over) => {
                stream.fail(Status::unavailable("the peer broke a rule of the call protocol"));
                return Err(over.into());
            }
        }
        Ok(answered)
    }
}

/// The status of a call whose deadline has passed here.
pub(crate) fn expired() -> Status {
    Status::deadline_exceeded("the deadline passed before the answer came")
}

/// A call in the table. Dropping it before its end cancels the call.
pub(crate) struct OpenCall {
    link: Arc<Link>,
    stream: Arc<Stream>,
    deadline: Option<Pin<Box<Sleep>>>,
    done: bool,
    /// It may be the link's lone call.
    alone: bool,
}

impl OpenCall {
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.deadline {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    pub(crate) fn settle(&self) {
        let client = &self.link.client;
        client.core.settle(|record| client.deliver(record, None));
    }

    /// Looks for the answer, and sees to it that somebody is woken for it.
    fn look(&mut self, cx: &Context<'_>, spin: bool) {
        let (client, id) = (&self.link.client, self.stream.id);
        // It may become the lone call even where it does not stay the reader.
        self.alone = true;
        if !client.core.read_alone(cx, id, spin, |record| client.deliver(record, Some(id))) {
            self.settle();
        }
    }

    /// Its head is on the ring, or never will be.
    fn begun(&self) {
        let client = &self.link.client;
        if client.draining.load(Ordering::SeqCst) {
            client.promise();
        }
    }

    /// It reads no more for itself.
    fn leave(&mut self, answered: bool) {
        if std::mem::take(&mut self.alone) {
            self.link.client.core.leave_alone(self.stream.id, answered);
        }
    }

    /// The peer has said its last.
    pub(crate) fn finished(&mut self) {
        self.done = true;
    }

    pub(crate) fn cancel(&mut self, code: Code) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        self.leave(false);
        let core = &self.link.client.core;
        // Only a call that is still in the table is unfinished on the other side. Its place is free
        // when the reset is on its way: no head comes before that.
        if core.find(self.stream.id).is_some() {
            if self.stream.lock().begun {
                core.push_reset(self.stream.id, code, "");
            }
            core.forget(self.stream.id);
            self.begun();
        }
        self.stream.fail(Status::new(code, "the call was cancelled"));
        // An answer that nobody will read goes back to the link's window.
        core.give_back(self.stream.unread());
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.cancel(Code::Cancelled);
    }
}

/// A call whose answer has not begun.
pub(crate) struct Call {
    pump: Option<Pump>,
    open: Option<OpenCall>,
    /// It has spun for its answer.
    spun: bool,
}

impl Call {
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<http::Response<tonic::body::Body>, Status>> {
        // An answer may be there at once, every time: a task that calls in a loop lets others run.
        ready!(coop::poll_proceed(cx)).made_progress();
        self.send(cx)?;
        let open = self.open.as_mut().expect("polled after the end");
        let spin = self.pump.is_none() && !std::mem::replace(&mut self.spun, true);
        open.look(cx, spin);
        if let Poll::Ready(answer) = open.stream.poll_head(cx) {
            open.leave(true);
            return Poll::Ready(self.answer(answer));
        }
        if open.poll_expired(cx).is_ready() {
            open.cancel(Code::DeadlineExceeded);
            return Poll::Ready(Err(expired()));
        }
        Poll::Pending
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        let (Some(pump), Some(open)) = (&mut self.pump, &mut self.open) else { return Ok(()) };
        let polled = pump.poll(cx, &open.link.client.core, &open.stream);
        if pump.has_begun() {
            open.begun();
        }
        match polled {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) | Poll::Ready(Err(PumpError::Unwanted)) => {
                self.pump = None;
                Ok(())
            }
            Poll::Ready(Err(PumpError::Body(status))) => {
                self.pump = None;
                open.cancel(Code::Cancelled);
                // Others wait, and what they had announced may have been taken back.
                open.settle();
                Err(status)
            }
            Poll::Ready(Err(PumpError::Broken(why))) => {
                self.pump = None;
                let core = &open.link.client.core;
                if matches!(why, Broken::Callee(partywall_abi::domain::Status::Deadline)) {
                    open.stream
                        .fail(Status::deadline_exceeded(format!("link {}: {why}", core.link)));
                }
                core.close(&why);
                // What came before the end still counts; the stream holds the reason.
                Ok(())
            }
        }
    }

    fn answer(
        &mut self,
        answer: Result<Answer, Status>,
    ) -> Result<http::Response<tonic::body::Body>, Status> {
        let mut open = self.open.take().expect("answered once");
        let (headers, body) = match answer {
            Err(status) => {
                open.finished();
                self.pump = None;
                return Err(status);
            }
            Ok(Answer::Trailers(mut trailers)) => {
                open.finished();
                self.pump = None;
                trailers.entry(http::header::CONTENT_TYPE).or_insert(wire::GRPC);
                (trailers, tonic::body::Body::empty())
            }
            Ok(Answer::Whole(head, data, trailers)) => {
                open.finished();
                self.pump = None;
                let len = data.as_ref().map_or(0, bytes::Bytes::len);
                let (windowed, _ended) = open.stream.taken(len);
                open.link.client.core.give_back(windowed);
                let whole = WholeAnswer { data, trailers: Some(trailers) };
                (head, tonic::body::Body::new(whole))
            }
            Ok(Answer::Head(head)) => {
                if let Some(mut pump) = self.pump.take() {
                    pump.goes_on_alone();
                    // The answer has begun before the request has ended.
                    let (link, stream) = (Arc::clone(&open.link), Arc::clone(&open.stream));
                    tokio::spawn(Upload { pump, link, stream });
                }
                let incoming =
                    Incoming::new(Arc::clone(&open.link.client.core), Arc::clone(&open.stream));
                (head, tonic::body::Body::new(ResponseBody { incoming, call: open }))
            }
        };
        let mut response = http::Response::new(body);
        *response.version_mut() = http::Version::HTTP_2;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// The rest of a request whose answer has begun.
struct Upload {
    pump: Pump,
    link: Arc<Link>,
    stream: Arc<Stream>,
}

impl Future for Upload {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { pump, link, stream } = &mut *self;
        let client = &link.client;
        // The body may wait for something that never comes after the call has ended.
        if stream.poll_send_closed(cx).is_ready() {
            return Poll::Ready(());
        }
        match pump.poll(cx, &client.core, stream) {
            Poll::Pending => {
                client.core.settle(|record| client.deliver(record, None));
                return Poll::Pending;
            }
            Poll::Ready(Ok(()) | Err(PumpError::Unwanted)) => {}
            Poll::Ready(Err(PumpError::Broken(why))) => client.core.close(&why),
            Poll::Ready(Err(PumpError::Body(status))) => {
                if client.core.find(stream.id).is_some() {
                    client.core.push_reset(stream.id, Code::Cancelled, "");
                    client.core.forget(stream.id);
                }
                stream.fail(status);
            }
        }
        Poll::Ready(())
    }
}
