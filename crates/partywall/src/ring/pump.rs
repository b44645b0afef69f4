//! Sending a head, a body and trailers as frames, with as few records as credit and room allow:
//! a small unary call is one record each way.
//!
//! The pump looks one step ahead in the body, so that the last data and the end (or the trailers)
//! travel together. It waits for credit of the stream, credit of the link, or room in the ring,
//! and for the body itself; whatever it has by then has been sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::uri::PathAndQuery;
use http_body::Body as _;
use partywall_abi::frame::{END, HEAD, Kind, ROOM, TRAILERS};
use tokio::task::coop;
use tonic::Status;

use super::core::{Broken, Core, Push, Tx};
use super::stream::{Stream, register};
use crate::{domain, wire};

/// What goes out first.
pub(crate) enum Head {
    Request { path: PathAndQuery, headers: HeaderMap, timeout: Option<Duration> },
    Response(HeaderMap),
}

/// The body's end.
enum Tail {
    /// Not reached yet.
    Open,
    /// A request ends without trailers.
    Request,
    /// A response ends with them.
    Response(HeaderMap),
    /// A response ends with a status of our own making.
    Status(Box<Status>),
    /// It has been sent.
    Sent,
}

/// Why a pump ended early.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// The link is gone or broken.
    Broken(Broken),
    /// The body failed, or cannot be sent.
    Body(Status),
    /// The peer wants no more of it.
    Unwanted,
}

/// One direction of one call.
pub(crate) struct Pump {
    head: Option<Head>,
    body: tonic::body::Body,
    /// The body has said all.
    body_done: bool,
    is_request: bool,
    chunk: Bytes,
    next: Bytes,
    tail: Tail,
    /// The status code that went out with the trailers.
    code: u8,
    /// Its task looks for an answer afterwards.
    looks: bool,
    /// When its call's time is over, of a request.
    due: Option<Instant>,
}

impl Pump {
    pub(crate) fn request(
        path: PathAndQuery,
        headers: HeaderMap,
        timeout: Option<Duration>,
        body: tonic::body::Body,
    ) -> Self {
        let head = Head::Request { path, headers, timeout };
        // Too far away to be said is never.
        let due = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { looks: true, due, ..Self::new(Some(head), body, true) }
    }

    pub(crate) fn response(response: http::Response<tonic::body::Body>) -> Self {
        let told = wire::find(response.headers(), &wire::GRPC_STATUS).is_some();
        if !told && response.status() != http::StatusCode::OK {
            return Self::status(wire::http_status(&response));
        }
        let (parts, body) = response.into_parts();
        if told {
            // Trailers only: there is no message.
            let mut pump = Self::new(None, tonic::body::Body::empty(), false);
            pump.body_done = true;
            pump.tail = Tail::Response(parts.headers);
            return pump;
        }
        Self::new(Some(Head::Response(parts.headers)), body, false)
    }

    pub(crate) fn status(status: Status) -> Self {
        let mut pump = Self::new(None, tonic::body::Body::empty(), false);
        pump.body_done = true;
        pump.tail = Tail::Status(Box::new(status));
        pump
    }

    fn new(head: Option<Head>, body: tonic::body::Body, is_request: bool) -> Self {
        let (chunk, next) = (Bytes::new(), Bytes::new());
        let (tail, code, looks, due) = (Tail::Open, 0, false, None);
        Self { head, body, body_done: false, is_request, chunk, next, tail, code, looks, due }
    }

    /// Whether the head is on the ring.
    pub(crate) fn has_begun(&self) -> bool {
        self.head.is_none()
    }

    /// From here on nobody looks for an answer after each record.
    pub(crate) fn goes_on_alone(&mut self) {
        self.looks = false;
    }

    /// The status code that was sent; meaningful after a response's pump has ended.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Sends what can be sent; ready when all is.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        core: &Core,
        stream: &Stream,
    ) -> Poll<Result<(), PumpError>> {
        let mut more = false;
        loop {
            if matches!(self.tail, Tail::Sent) {
                return Poll::Ready(Ok(()));
            }
            if more {
                // A body may be ready every time: the task lets others run after some records.
                ready!(coop::poll_proceed(cx)).made_progress();
            }
            more = true;
            self.gather(cx)?;
            let at_end = self.body_done && self.next.is_empty();
            let something = self.head.is_some() || !self.chunk.is_empty() || at_end;
            if !something {
                return Poll::Pending;
            }
            match core.poll_push(cx, |tx| self.push(cx, tx, stream)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Broken::Closed)) if core.closed().is_none() => {
                    return Poll::Ready(Err(PumpError::Unwanted));
                }
                Poll::Ready(Err(Broken::Unsendable(status))) => self.refuse(*status)?,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(PumpError::Broken(why))),
            }
        }
    }

    /// Takes from the body what is ready, at most one chunk ahead.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), PumpError> {
        loop {
            if self.chunk.is_empty() {
                self.chunk = std::mem::take(&mut self.next);
            }
            if self.body_done || !self.next.is_empty() {
                return Ok(());
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if self.chunk.is_empty() => self.chunk = data,
                    Ok(data) => self.next = data,
                    Err(frame) => {
                        self.body_done = true;
                        if let Ok(trailers) = frame.into_trailers()
                            && !self.is_request
                        {
                            self.tail = Tail::Response(trailers);
                        }
                    }
                },
                Poll::Ready(None) => self.body_done = true,
                Poll::Ready(Some(Err(status))) => {
                    self.body_done = true;
                    if self.is_request {
                        return Err(PumpError::Body(status));
                    }
                    self.tail = Tail::Status(Box::new(status));
                }
            }
            if self.body_done && matches!(self.tail, Tail::Open) {
                self.tail = if self.is_request {
                    Tail::Request
                } else {
                    Tail::Status(Box::new(wire::no_trailers()))
                };
            }
        }
    }

    /// Puts one record on the ring.
    fn push(&mut self, cx: &Context<'_>, tx: &mut Tx, stream: &Stream) -> Result<Push, Broken> {
        let mut state = stream.lock();
        if state.send_closed {
            return Err(Broken::Closed);
        }
        if self.head.is_some() && !tx.push_pending()? {
            // What ends other calls comes before what begins one.
            return Ok(Push::NoRoom(tx.next_pending()));
        }
        let want = self.chunk.len();
        let record = tx.producer.record_bytes();
        let whole = self.head.is_some() && self.body_done && self.next.is_empty();
        // Too long for one record together with a head of any length.
        let reserve = if whole && want <= record / 2 { 0 } else { tx.reserve() };
        let (credit, room) = state.may_send(tx.credit.saturating_sub(reserve));
        if want > 0 && credit == 0 && self.head.is_none() {
            register(&mut state.writer, cx);
            return Ok(Push::NoCredit);
        }
        let mut block = std::mem::take(&mut tx.block);
        block.clear();
        let mut flags = if room { ROOM } else { 0 };
        if let Some(head) = &self.head {
            flags |= HEAD;
            if let Err(status) = write_head(&mut block, head) {
                tx.block = block;
                return Err(Broken::Unsendable(Box::new(status)));
            }
        }
        let head_len = block.len();
        let len = want.min(credit).min(record - head_len);
        let at_end = self.body_done && self.next.is_empty() && len == want;
        if at_end {
            flags |= END;
            self.code = self.write_tail(&mut block);
            flags |= if self.is_request { 0 } else { TRAILERS };
            if block.len() + len > record {
                // Not together with the data: the next record will have it.
                block.truncate(head_len);
                flags &= !(END | TRAILERS);
            }
        }
        let pushed = tx.producer.try_push(
            Kind::Frame as u8,
            flags,
            stream.id,
            &[&block, &self.chunk[..len]],
        );
        let total = block.len() + len;
        tx.block = block;
        if !pushed? {
            return Ok(Push::NoRoom(total));
        }
        if !room {
            tx.credit -= len as u64;
            state.credit -= len as u32;
        }
        state.sent += len as u64;
        state.begun = true;
        state.answered = flags & END != 0;
        self.chunk.advance(len);
        let visit = match (&self.head, &mut tx.habits) {
            (Some(Head::Request { path, .. }), Some(habits))
                if self.looks && flags & END != 0 && domain::has_time(self.due) =>
            {
                habits.goes_in(path.path()).map(|method| (method, stream.id))
            }
            _ => None,
        };
        self.head = None;
        if flags & END != 0 {
            self.tail = Tail::Sent;
        }
        Ok(Push::Done { bytes: total, visit })
    }

    /// The head cannot be sent: a response ends with the reason instead, a request fails.
    fn refuse(&mut self, status: Status) -> Result<(), PumpError> {
        if self.is_request {
            return Err(PumpError::Body(status));
        }
        self.head = None;
        self.chunk = Bytes::new();
        self.next = Bytes::new();
        self.body_done = true;
        self.tail = Tail::Status(Box::new(status));
        Ok(())
    }

    fn write_tail(&self, block: &mut Vec<u8>) -> u8 {
        match &self.tail {
            Tail::Open | Tail::Request | Tail::Sent => 0,
            Tail::Response(trailers) => wire::write_trailers(block, trailers),
            Tail::Status(status) => wire::write_status(block, status),
        }
    }
}

fn write_head(block: &mut Vec<u8>, head: &Head) -> Result<(), Status> {
    match head {
        Head::Request { path, headers, timeout } => {
            wire::write_request_head(block, path.path(), headers, *timeout)
        }
        Head::Response(headers) => wire::write_response_head(block, headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_abi::layout::Geometry;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_body_that_is_always_ready_lets_other_tasks_run() {
        let room = Geometry::new(1024, 1 << 20).unwrap();
        let (ours, _theirs) = local_pair(room).unwrap();
        let core = Core::calling(ours, None).unwrap();
        let (stream, _) = core.open(false).unwrap().unwrap();
        let frames = tokio_stream::iter(0..1000);
        let frames = tokio_stream::StreamExt::map(frames, |_| {
            Ok::<_, Status>(http_body::Frame::data(Bytes::from_static(b"a message")))
        });
        let body = tonic::body::Body::new(http_body_util::StreamBody::new(frames));
        let mut pump =
            Pump::request(PathAndQuery::from_static("/a/b"), HeaderMap::new(), None, body);
        let mut polls = 0;
        let sent = std::future::poll_fn(|cx| {
            polls += 1;
            pump.poll(cx, &core, &stream)
        });
        sent.await.unwrap();
        // tokio gives a task 128 units; there is room and credit for all records.
        assert!((1000 / 128..20).contains(&polls), "{polls} polls");
    }
}
