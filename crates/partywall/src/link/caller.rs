//! The caller's side of a link.
//!
//! ```text
//! call: open (a number, a place) -> send the request -> head or trailers -> the rest -> done
//!         |                            |                                      |
//!         dropped at any point: Reset(CANCELLED), its place is free, handler dropped
//! ```
//!
//! A call that finds all places of its link taken waits for one ([`Caller::place`]) before it is
//! opened, and goes to another link when this one closes or drains meanwhile.
//!
//! A unary call costs, beside what tonic does: one record each way and one copy of each, one allocation
//! for the record that is read, and when the server sleeps one send(2) to wake it; when this side
//! sleeps one epoll_wait(2). The lock of the calls is taken six times, or four times if both records are
//! plain frames ([`Caller::call_plain`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use partywall_abi::control::{Grant, Identity, LinkStats, PaceStats};
use partywall_abi::name::MethodSet;
use partywall_abi::sync::AtomicU32;
use partywall_abi::version::Capabilities;
use partywall_call::Key;
use partywall_shm::link::Ends;
use partywall_shm::link::LinkError;
use partywall_shm::setup::Pending;
use partywall_shm::socket::Passed;
use tokio::sync::oneshot;
use tokio::task::coop;
use tokio::time::Sleep;
use tonic::{Code, Status};

mod leader;

use leader::Looked;

use super::broken::{self, Broken};
use super::driver::Driver;
use super::mailbox::{Answer, Head, Trailers, Whole};
use super::places;
use super::pool::Blank;
use super::receiver::{Came, Receive, Receiver};
use super::sealed::{self, Calling, LinkEnd};
use super::sender::{Request, SendError, Sender, Source};
use super::signed::Signing;
use super::wake::gate::Gate;
use super::wake::{Ring, Tell};
use super::{Link, watch};
use crate::coordinator::{End, Linked, Tracked};
use crate::domain;
use crate::error::Error;
use crate::on_a_thread::on_a_thread;
use crate::peer::Peer;
use crate::pins::Pins;
use crate::status;
use crate::telemetry::{self, Route, Side};

/// How long a server may take to open a link that it has adopted.
pub(crate) const OPEN_TIME: Duration = Duration::from_secs(2);

/// A link to a service, shared by a channel and its calls; with the last of them it closes.
pub(crate) struct Caller {
    link: Arc<Link>,
    /// Calls since the last that was not the only one: see [`leader`].
    alone: AtomicU32,
}

impl Caller {
    /// How messages are signed here, if they are.
    #[inline]
    pub(crate) fn signing(&self) -> Option<&Arc<Signing>> {
        self.link.signing.as_ref()
    }

    /// Memory for a long field: [`Link::blank`].
    pub(crate) async fn blank(&self, len: usize) -> Option<Blank> {
        self.link.blank(len).await
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.link.close(&Broken::Closed);
    }
}

/// A place that is kept for one call on a link; the next call has it when this is dropped.
pub(crate) struct Place {
    link: Arc<Link>,
    used: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.used {
            self.link.send_control(self.link.calls.unkeep());
        }
    }
}

/// A call that waits for a place.
struct Waiting {
    link: Arc<Link>,
    /// Says that there is one; none when it has been told.
    woken: Option<oneshot::Receiver<()>>,
    _counted: Option<telemetry::Waiting>,
}

impl Future for Waiting {
    type Output = Option<Place>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Place>> {
        let Self { link, woken, .. } = &mut *self;
        let heard = match woken {
            Some(woken) => ready!(Pin::new(woken).poll(cx)),
            None => return Poll::Ready(None),
        };
        *woken = None;
        Poll::Ready(heard.ok().map(|()| Place { link: Arc::clone(link), used: false }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(woken) = &mut self.woken else { return };
        woken.close();
        if woken.try_recv().is_ok() {
            self.link.send_control(self.link.calls.unkeep());
        }
    }
}

/// Opens a link that the coordinator has introduced; says who serves it and what protects it. One that its
/// server does not open within that time is an [`Error::Link`]: another instance may open one.
pub(crate) async fn open(
    linked: Linked,
    pins: &Pins,
    within: Duration,
) -> Result<(Arc<Caller>, Peer), Error> {
    let reported = linked.terms.security;
    let number = linked.terms.link;
    let capabilities = linked.terms.capabilities;
    let start = Instant::now();
    pins.may_open(&linked.terms, linked.tracked.name())?;
    let (terms, client) = (linked.terms.clone(), Arc::clone(linked.tracked.client()));
    let own = match &terms.sealing {
        Some(_) => Some(client.certified(within).await?),
        None => None,
    };
    // Filling the outboxes takes the kernel's time, which is no runtime's.
    let (mut pending, tracked) = on_a_thread("partywall-connect", move || fill(linked)).await?;
    let sealing = terms.sealing.as_ref().zip(own);
    let side = sealing.map(|(sealing, own)| {
        Calling::begin(&client, (own, pins), (&terms, sealing), &mut pending)
    });
    let side = side.transpose()?;
    tracked.adopted(domain::security(reported, None));
    let ends = match opened(pending, within).await {
        Ok(ends) => ends,
        Err(Error::Link(why)) => return Err(broken::not_opened(tracked, why)),
        Err(why) => return Err(why),
    };
    let (ends, tracked): (LinkEnd, _) = match side {
        None => (ends.into(), tracked),
        Some(mut side) => {
            let left = within.saturating_sub(start.elapsed());
            match sealed::finish(&mut side, ends, left).await {
                Ok(opened) => (opened, tracked),
                Err(why) => return Err(broken::not_opened(tracked, why)),
            }
        }
    };
    let gate = domain::Gate::take(number);
    let security = domain::security(reported, gate.as_ref().map(domain::Gate::isolation));
    let route = if gate.is_some() { Route::Gate } else { Route::Ring };
    let tell: Box<dyn Tell> = match gate {
        Some(gate) => Box::new(Gate::new(gate)),
        None => Box::new(Ring),
    };
    let server = Peer::new(terms.peer, number, security).proven(ends.peer.clone());
    let caller = run(ends, Some(tracked), tell, capabilities)?;
    caller.link.tell_of(telemetry::Link::opened(Side::Client, route, security));
    Ok((caller, server))
}

/// Fills both outboxes of a link that this process asked for.
pub(crate) fn fill(linked: Linked) -> Result<(Pending, Tracked), Error> {
    let Linked { terms, own, servers, socket, tracked } = linked;
    Ok((Pending::new(terms.link, terms.geometry, own, servers, socket)?, tracked))
}

/// Drives an open link in the background, which nobody grants descriptors.
pub(crate) fn start(
    ends: impl Into<LinkEnd>,
    tracked: Option<Tracked>,
) -> Result<Arc<Caller>, Error> {
    run(ends, tracked, Box::new(Ring), Capabilities::OWN.without(Capabilities::ATTACHMENTS))
}

/// The same where the two ends have these capabilities.
pub(super) fn run(
    ends: impl Into<LinkEnd>,
    tracked: Option<Tracked>,
    tell: Box<dyn Tell>,
    capabilities: Capabilities,
) -> Result<Arc<Caller>, Error> {
    let link = Link::calling(ends, tracked, tell)
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    link.calls.agree(capabilities);
    let link = link.shared();
    tokio::spawn(Drive { link: Arc::clone(&link), driver: Driver::new(true) });
    let end: Arc<dyn End> = Arc::clone(&link) as _;
    link.attach(Arc::downgrade(&end));
    Ok(Arc::new(Caller { link, alone: AtomicU32::new(leader::ALONE + 1) }))
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

impl End for Link {
    fn stats(&self) -> LinkStats {
        self.stats()
    }

    fn pace(&self) -> Option<PaceStats> {
        Some(self.calls.pace())
    }

    fn end(&self, status: Status) {
        self.close(&Broken::Ended(Box::new(status)));
    }

    // Who reads takes what has come, and sees the end then.
    fn peer_died(&self) {
        self.bell().hang_up();
    }

    // The server's end holds the methods, and what is known of the server is this end's from when it
    // was opened.
    fn allow(&self, _peer: Identity, _methods: MethodSet) {}

    fn grant(&self, socket: Passed, grant: Grant) -> Option<Passed> {
        self.grant(socket, grant);
        None
    }
}

/// The driver's task.
struct Drive {
    link: Arc<Link>,
    driver: Driver,
}

impl Future for Drive {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { link, driver } = &mut *self;
        driver.begin(link);
        loop {
            let delivered = match ready!(driver.poll_record(link, cx)) {
                Ok(next) => link.deliver(next.record, None).map(drop),
                Err(why) => Err(why),
            };
            if let Err(why) = delivered {
                link.close(&why);
                return Poll::Ready(());
            }
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.link.close(&Broken::Runtime);
    }
}

impl Caller {
    /// Whether new calls may be sent here.
    pub(crate) fn usable(&self) -> bool {
        self.link.closed().is_none() && !self.link.calls.is_draining()
    }

    /// Why the link is closed, if it is.
    #[cfg(test)]
    pub(super) fn why(&self) -> Option<&Status> {
        self.link.closed()
    }

    /// How many calls are open, or were a moment ago.
    pub(crate) fn open_calls(&self) -> usize {
        self.link.calls.open_calls()
    }

    /// Waits for a place for a call; none when the link takes no more.
    pub(crate) async fn place(&self) -> Option<Place> {
        let link = Arc::clone(&self.link);
        let woken = match link.calls.ask() {
            places::Place::Free => return Some(Place { link, used: false }),
            places::Place::Later(woken) => woken,
            places::Place::Never => return None,
        };
        let waiting =
            Waiting { link, woken: Some(woken), _counted: telemetry::Waiting::begin("place") };
        // What makes a place is read by somebody else than a call that may be kept unpolled.
        self.depose();
        self.park();
        waiting.await
    }

    /// Opens a call, in a place that was kept for it or in one that is free; none when the link takes no
    /// more calls, or none without a [`Place`].
    ///
    /// # Errors
    /// The call's time is over, or the link has ended.
    pub(crate) fn open(
        self: &Arc<Self>,
        timeout: Option<Duration>,
        place: Option<Place>,
    ) -> Result<Option<OpenCall>, Status> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(status::expired());
        }
        self.look_first();
        let opened = match place {
            None => self.link.calls.open(false),
            Some(mut place) if Arc::ptr_eq(&place.link, &self.link) => {
                place.used = true;
                self.link.calls.open(true)
            }
            Some(_) => unreachable!("a place of another link"),
        };
        let Some((key, open)) = opened? else { return Ok(None) };
        self.opened(open);
        Ok(Some(OpenCall::new(self, key, timeout)))
    }

    /// Makes a call whose request is a plain frame; none, and nothing has changed, where that has to wait for
    /// anything or the method has no number yet: then [`Caller::open`] and [`OpenCall::send`] do it.
    #[inline]
    pub(crate) fn call_plain(
        self: &Arc<Self>,
        index: usize,
        request: &mut impl Source,
    ) -> Option<Reply> {
        self.look_first();
        let (key, open) = self.link.send_plain_request(index, request)?;
        self.opened(open);
        Some(Reply::to(OpenCall::new(self, key, None)))
    }

    /// One call may be kept without being polled, and have been woken for what is there.
    #[inline]
    fn look_first(&self) {
        if self.link.calls.open_calls() <= 1 {
            self.poll_once();
        }
    }
}

/// A call that is open, or was. Dropping it before its end cancels the call.
pub(crate) struct OpenCall {
    caller: Arc<Caller>,
    key: Key,
    timeout: Option<Duration>,
    deadline: Option<Pin<Box<Sleep>>>,
    state: State,
    /// It is the leader, or was.
    leads: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The peer has said its last, or has been told that there is no more.
    Done,
    /// The connection has forgotten it.
    Released,
}

impl OpenCall {
    #[inline]
    fn new(caller: &Arc<Caller>, key: Key, timeout: Option<Duration>) -> Self {
        let caller = Arc::clone(caller);
        let deadline = timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        Self { caller, key, timeout, deadline, state: State::Open, leads: false }
    }

    /// The number of a method on this link, which it gets when it is asked for first; none if it can have
    /// none.
    pub(crate) fn number(&self, index: usize, path: &'static str) -> Option<u16> {
        let link = self.link();
        link.outbound.lock().numbers.get_or_ask(index, || link.calls.name(path))
    }

    /// Begins to send its request.
    pub(crate) fn send<S: Request>(self, request: S) -> Call<S> {
        // Too far away to be said is never.
        let due = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Call { sender: Some(Sender::request(request, due)), reply: Reply::to(self) }
    }

    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.deadline {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    fn link(&self) -> &Arc<Link> {
        &self.caller.link
    }

    /// Looks for the answer, and sees to it that somebody is woken for it. What is returned is all of it: the
    /// call is over then, and released.
    fn look(&mut self, cx: &Context<'_>, spin: bool) -> Option<Answer> {
        match self.caller.lead(cx, self.key, spin, &mut self.leads) {
            Looked::Whole(answer) => {
                self.state = State::Released;
                Some(answer)
            }
            Looked::Reads => None,
            Looked::NotReader => {
                self.caller.park();
                None
            }
        }
    }

    /// It reads no more for itself.
    fn resign(&mut self, answered: bool) {
        if std::mem::take(&mut self.leads) {
            self.caller.resign(self.key, answered);
        }
    }

    /// The peer has said its last.
    fn finished(&mut self) {
        self.state = State::Done;
    }

    fn cancel(&mut self, code: Code) {
        if self.state != State::Open {
            return;
        }
        self.state = State::Done;
        self.resign(false);
        let link = self.link();
        // Its place is free when the reset is on its way: no head comes before that.
        let status = Status::new(code, "the call was cancelled");
        link.send_control(link.calls.give_up(self.key, code, "", status));
        // An answer that nobody will read goes back to the link's window.
        link.send_control(link.calls.discard(self.key));
    }

    /// One more reference to the call.
    fn share(&self) -> Key {
        self.link().calls.share(self.key);
        self.key
    }
}

impl Drop for OpenCall {
    #[inline]
    fn drop(&mut self) {
        if self.state != State::Released {
            self.cancel(Code::Cancelled);
            self.link().release(self.key);
        }
    }
}

/// How an answer begins.
pub(crate) enum Begun {
    /// All of it, as a plain frame has it: the status is OK, and there is no metadata.
    Plain(Bytes),
    /// All of another one.
    Whole(Box<Whole>),
    /// The head, and what brings the rest.
    Head(Head, Box<Rest>),
    /// Trailers without a head: a status alone.
    Trailers(Trailers),
}

/// A call that is sent and whose answer has not begun.
pub(crate) struct Reply {
    open: Option<OpenCall>,
    /// It has spun for its answer.
    spun: bool,
}

impl Reply {
    #[inline]
    fn to(open: OpenCall) -> Self {
        Self { open: Some(open), spun: false }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Begun, Status>> {
        // An answer may be there at once, every time: a task that calls in a loop lets others run.
        ready!(coop::poll_proceed(cx)).made_progress();
        self.poll_answer(cx, true)
    }

    /// `is_sent`: all of the request is.
    fn poll_answer(&mut self, cx: &mut Context<'_>, is_sent: bool) -> Poll<Result<Begun, Status>> {
        let open = self.open.as_mut().expect("polled after the end");
        let spin = is_sent && !std::mem::replace(&mut self.spun, true);
        let answer = match open.look(cx, spin) {
            Some(answer) => Ok(answer),
            None => match open.link().calls.poll_head(open.key, cx) {
                Poll::Ready((answer, due)) => {
                    if !matches!(answer, Ok(Answer::Head(_))) {
                        open.state = State::Released;
                    }
                    open.link().send_control(due);
                    answer
                }
                Poll::Pending if open.poll_expired(cx).is_ready() => {
                    open.cancel(Code::DeadlineExceeded);
                    return Poll::Ready(Err(status::expired()));
                }
                Poll::Pending => return Poll::Pending,
            },
        };
        open.resign(true);
        let open = self.open.take().expect("it was there");
        if let Ok(Answer::Head(head)) = answer {
            let receiver = Receiver::new(Arc::clone(open.link()), open.share());
            let rest = Box::new(Rest { receiver, call: open });
            return Poll::Ready(Ok(Begun::Head(head, rest)));
        }
        Poll::Ready(answer.map(|answer| match answer {
            Answer::Trailers(trailers) => Begun::Trailers(trailers),
            Answer::Plain(data) => Begun::Plain(data),
            Answer::Whole(whole) => Begun::Whole(whole),
            Answer::Head(_) => unreachable!("it has been returned"),
        }))
    }
}

/// A call whose answer has not begun.
pub(crate) struct Call<S> {
    sender: Option<Sender<S>>,
    reply: Reply,
}

impl<S: Request> Call<S> {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Begun, Status>> {
        // As a reply's.
        ready!(coop::poll_proceed(cx)).made_progress();
        self.send(cx)?;
        let unsent = self.sender.as_ref().and(self.reply.open.as_ref());
        let unsent = unsent.map(|open| (Arc::clone(&open.caller), open.key));
        let begun = ready!(self.reply.poll_answer(cx, unsent.is_none()));
        if let (Some(sender), Some((caller, key))) = (self.sender.take(), unsent) {
            // The answer has begun before the request has ended.
            match &begun {
                Ok(Begun::Head(_, rest)) => {
                    rest.call.share();
                    tokio::spawn(Upload { sender: sender.rest(), caller, key });
                }
                _ => caller.link.forget_waiter(key),
            }
        }
        Poll::Ready(begun)
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        let (Some(sender), Some(open)) = (&mut self.sender, &mut self.reply.open) else {
            return Ok(());
        };
        let sent = match sender.poll(cx, open.link(), open.key) {
            Poll::Pending => return Ok(()),
            Poll::Ready(sent) => sent,
        };
        self.sender = None;
        match sent {
            Ok(()) | Err(SendError::Unwanted) => Ok(()),
            Err(SendError::Source(status)) => {
                open.cancel(Code::Cancelled);
                // Others wait, and the flag may have been taken back.
                open.caller.park();
                Err(status)
            }
            Err(SendError::Broken(why)) => {
                // What came before the end still counts; the mailbox holds the reason.
                open.link().broken_by(open.key, &why);
                Ok(())
            }
        }
    }
}

/// What comes of an answer after its head. Dropping it before its end cancels the call.
pub(crate) struct Rest {
    receiver: Receiver,
    call: OpenCall,
}

impl Receive for Rest {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Came, Status>>> {
        let Self { receiver, call } = self;
        if let Poll::Ready(came) = receiver.poll(cx) {
            if !matches!(&came, Some(Ok(Came::Data(_)))) {
                call.finished();
            }
            return Poll::Ready(came);
        }
        if call.poll_expired(cx).is_ready() {
            call.cancel(Code::DeadlineExceeded);
            return Poll::Ready(Some(Err(status::expired())));
        }
        call.caller.park();
        // What that has brought is taken now, not after a wake-up that came before this task
        // waited.
        receiver.poll(cx)
    }

    fn is_drained(&self) -> bool {
        self.receiver.is_drained()
    }
}

/// The rest of a request whose answer has begun.
struct Upload<S> {
    sender: Sender<S>,
    caller: Arc<Caller>,
    key: Key,
}

// Nothing in it is pinned.
impl<S> Unpin for Upload<S> {}

impl<S: Source> Future for Upload<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { sender, caller, key } = &mut *self;
        let link = &caller.link;
        // The body may wait for something that never comes after the call has ended.
        if link.calls.poll_stopped(*key, cx).is_ready() {
            return Poll::Ready(());
        }
        match sender.poll(cx, link, *key) {
            Poll::Pending => {
                caller.park();
                return Poll::Pending;
            }
            Poll::Ready(Ok(()) | Err(SendError::Unwanted)) => {}
            Poll::Ready(Err(SendError::Broken(why))) => link.close(&why),
            Poll::Ready(Err(SendError::Source(status))) => {
                link.send_control(link.calls.give_up(*key, Code::Cancelled, "", status));
            }
        }
        Poll::Ready(())
    }
}

impl<S> Drop for Upload<S> {
    fn drop(&mut self) {
        self.caller.link.release(self.key);
    }
}
