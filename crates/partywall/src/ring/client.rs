//! The caller's side of a link.
//!
//! ```text
//! call: open (number, table) -> pump the request -> head or trailers -> body -> done
//!         |                        |                                      |
//!         dropped at any point: Reset(CANCELLED), out of the table, handler dropped
//! ```
//!
//! A unary call costs, beside what tonic does: one `Arc`, one record each way, and when the server
//! sleeps one send(2) to wake it; when this side sleeps one epoll_wait(2).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderMap;
use partywall_abi::segment::{self, Kind, ResponseHead, Segment, Trailers};
use partywall_abi::sync::{AtomicBool, Ordering};
use partywall_shm::link::{Ends, Pending};
use tokio::time::Sleep;
use tonic::{Code, Status};

use super::body::{Incoming, Inner, ResponseBody};
use super::core::{Broken, Core, Drive, Flow, Record, watch};
use super::pump::{Pump, PumpError};
use super::stream::Stream;
use crate::agent::{Agent, Linked};
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
    /// The server takes no new calls.
    draining: AtomicBool,
}

/// Opens a link that the coordinator has introduced.
pub(crate) async fn open(
    linked: Linked,
    agent: Arc<Agent>,
    within: Duration,
) -> Result<Arc<Link>, Error> {
    let ends = set_up(linked.link, linked.geometry, linked.memory, linked.socket, within).await?;
    start(ends, Some(agent))
}

/// Drives an open link in the background.
pub(crate) fn start(ends: Ends, agent: Option<Arc<Agent>>) -> Result<Arc<Link>, Error> {
    let core = Core::new(ends, agent)
        .map_err(|source| Error::Io { what: "watching the link's socket".into(), source })?;
    let client = Arc::new(Client { core: Arc::new(core), draining: AtomicBool::new(false) });
    tokio::spawn(Driver { client: Arc::clone(&client), drive: Drive::shared() });
    Ok(Arc::new(Link { client }))
}

/// Exchanges outboxes with the peer.
pub(crate) async fn set_up(
    link: u64,
    geometry: partywall_abi::layout::Geometry,
    memory: std::os::fd::OwnedFd,
    socket: std::os::fd::OwnedFd,
    within: Duration,
) -> Result<Ends, Error> {
    let pending = Pending::start(link, geometry, memory, socket)?;
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
    tokio::time::timeout(within, opened).await.map_err(|_| Error::TimedOut(within))??;
    Ok(io.into_inner().into_ends().expect("poll said that it is open"))
}

struct Driver {
    client: Arc<Client>,
    drive: Drive,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { client, drive } = &mut *self;
        let waiting = || client.core.open_calls() > 0;
        let on_record = |record| client.deliver(record).map(|()| Flow::Continue);
        match ready!(client.core.poll_drive(cx, drive, waiting, || true, on_record)) {
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

    /// Begins a call.
    pub(crate) fn call(
        self: &Arc<Self>,
        request: http::Request<tonic::body::Body>,
    ) -> Result<Call, Status> {
        if let Some(status) = self.client.core.closed() {
            return Err(status.clone());
        }
        let stream = self.client.core.open().ok_or_else(|| {
            let most = partywall_abi::limits::STREAMS;
            Status::resource_exhausted(format!("{most} calls are open on this link already"))
        })?;
        let (parts, body) = request.into_parts();
        let timeout = wire::parse_timeout(&parts.headers);
        let path = parts.uri.into_parts().path_and_query;
        let path = path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let deadline = timeout.map(|t| Box::pin(tokio::time::sleep(t)));
        Ok(Call {
            pump: Some(Pump::request(path, parts.headers, timeout, body)),
            open: Some(OpenCall { link: Arc::clone(self), stream, deadline, done: false }),
            spun: false,
        })
    }
}

impl Client {
    /// Hands one record to the call it belongs to.
    fn deliver(&self, record: Record) -> Result<(), Broken> {
        let Record { kind, flags, stream, payload } = record;
        match kind {
            Kind::Segment => self.segment(flags, stream, &payload),
            Kind::Reset => {
                let (code, text) = segment::decode_reset(&payload)?;
                if let Some(stream) = self.core.forget(stream) {
                    stream.fail(Status::new(Code::from_i32(code.into()), text));
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
            Kind::Drain => {
                self.draining.store(true, Ordering::Relaxed);
                Ok(())
            }
            Kind::Message => Err(Broken::Rule("a raw message on a link of calls")),
        }
    }

    fn segment(&self, flags: u8, id: u32, payload: &bytes::Bytes) -> Result<(), Broken> {
        let s = Segment::decode(flags, payload)?;
        self.core.charge(s.data.len())?;
        let data = payload.slice_ref(s.data);
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
        let Some(stream) = self.core.find(id) else {
            // A call that was cancelled meanwhile.
            self.core.give_back(data.len() as u32);
            return Ok(());
        };
        let end = trailers.is_some();
        let unwanted = stream.fill(head, data, trailers, end)?;
        if end {
            self.core.forget(id);
        }
        self.core.give_back(unwanted);
        Ok(())
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
        client.core.settle(|record| client.deliver(record));
    }

    /// The peer has said its last.
    pub(crate) fn finished(&mut self) {
        self.done = true;
    }

    pub(crate) fn cancel(&mut self, code: Code) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let core = &self.link.client.core;
        // Only a call that is still in the table is unfinished on the other side.
        if core.forget(self.stream.id).is_some() {
            core.push_reset(self.stream.id, code, "");
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
    ) -> Poll<Result<http::Response<ResponseBody>, Status>> {
        self.send(cx)?;
        let open = self.open.as_mut().expect("polled after the end");
        let (core, stream) = (&open.link.client.core, &open.stream);
        if !self.spun && self.pump.is_none() {
            self.spun = true;
            core.spin_for(stream, |record| open.link.client.deliver(record));
        }
        if let Poll::Ready(answer) = stream.poll_head(cx) {
            return Poll::Ready(self.answer(answer));
        }
        if open.poll_expired(cx).is_ready() {
            open.cancel(Code::DeadlineExceeded);
            return Poll::Ready(Err(expired()));
        }
        open.settle();
        // What settling has brought is looked at once more.
        let answer = ready!(open.stream.poll_head(cx));
        Poll::Ready(self.answer(answer))
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        let (Some(pump), Some(open)) = (&mut self.pump, &mut self.open) else { return Ok(()) };
        match pump.poll(cx, &open.link.client.core, &open.stream) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) | Poll::Ready(Err(PumpError::Unwanted)) => {
                self.pump = None;
                Ok(())
            }
            Poll::Ready(Err(PumpError::Body(status))) => {
                self.pump = None;
                open.cancel(Code::Cancelled);
                Err(status)
            }
            Poll::Ready(Err(PumpError::Broken(why))) => {
                self.pump = None;
                let core = &open.link.client.core;
                core.close(&why);
                // What came before the end still counts; the stream holds the reason.
                Ok(())
            }
        }
    }

    fn answer(
        &mut self,
        answer: Result<Result<HeaderMap, HeaderMap>, Status>,
    ) -> Result<http::Response<ResponseBody>, Status> {
        let mut open = self.open.take().expect("answered once");
        let (headers, body) = match answer {
            Err(status) => {
                open.finished();
                self.pump = None;
                return Err(status);
            }
            Ok(Err(trailers)) => {
                open.finished();
                self.pump = None;
                (trailers, Inner::Empty)
            }
            Ok(Ok(head)) => {
                if let Some(pump) = self.pump.take() {
                    // The answer has begun before the request has ended.
                    let (link, stream) = (Arc::clone(&open.link), Arc::clone(&open.stream));
                    tokio::spawn(Upload { pump, link, stream });
                }
                let incoming =
                    Incoming::new(Arc::clone(&open.link.client.core), Arc::clone(&open.stream));
                (head, Inner::Ring { incoming, call: open })
            }
        };
        let mut response = http::Response::new(ResponseBody(body));
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
                client.core.settle(|record| client.deliver(record));
                return Poll::Pending;
            }
            Poll::Ready(Ok(()) | Err(PumpError::Unwanted)) => {}
            Poll::Ready(Err(PumpError::Broken(why))) => client.core.close(&why),
            Poll::Ready(Err(PumpError::Body(status))) => {
                if client.core.forget(stream.id).is_some() {
                    client.core.push_reset(stream.id, Code::Cancelled, "");
                }
                stream.fail(status);
            }
        }
        Poll::Ready(())
    }
}
