//! Sending a head, a body and trailers as frames, with as few records as credit and room allow: a
//! small unary call is one record each way.
//!
//! ```text
//! gather    take from the body what is ready, one step ahead, so that the last data and the end
//!           (or the trailers) travel together
//! reserve   what may be sent: credit of the stream and of the link    else wait for credit
//! encode    head, trailers
//! room      has the ring room for that?                               else wait for room
//! commit    credit is spent; the call may be over now
//! write     the record                                                one copy
//! tell      the peer, if it sleeps
//! ```
//!
//! From `reserve` to `write` this side's ring is locked, so records go out in the order in which they
//! were permitted. Whatever the sender waits for, what it had by then has been sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::uri::PathAndQuery;
use http_body::Body as _;
use partywall_abi::frame::{END, HEAD, TRAILERS};
use partywall_call::{Blocked, Key, Want};
use tokio::task::coop;
use tonic::Status;

use super::Link;
use super::broken::Broken;
use super::outbound::Tx;
use super::record;
use super::wake::Sent;
use crate::telemetry::Waiting;
use crate::wire;

/// What goes out first.
pub(super) enum Head {
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

/// Why a sender ended early.
#[derive(Debug)]
pub(super) enum SendError {
    /// The link is gone or broken.
    Broken(Broken),
    /// The body failed, or cannot be sent.
    Body(Status),
    /// The peer wants no more of it.
    Unwanted,
}

/// One direction of one call.
pub(super) struct Sender {
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
    /// It waits for credit.
    waits: Option<Waiting>,
}

impl Sender {
    pub(super) fn request(
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

    pub(super) fn response(response: http::Response<tonic::body::Body>) -> Self {
        let has_status = wire::find(response.headers(), &wire::GRPC_STATUS).is_some();
        if !has_status && response.status() != http::StatusCode::OK {
            return Self::status(wire::http_status(&response));
        }
        let (parts, body) = response.into_parts();
        if has_status {
            // Trailers only: there is no message.
            let mut sender = Self::new(None, tonic::body::Body::empty(), false);
            sender.body_done = true;
            sender.tail = Tail::Response(parts.headers);
            return sender;
        }
        Self::new(Some(Head::Response(parts.headers)), body, false)
    }

    pub(super) fn status(status: Status) -> Self {
        let mut sender = Self::new(None, tonic::body::Body::empty(), false);
        sender.body_done = true;
        sender.tail = Tail::Status(Box::new(status));
        sender
    }

    fn new(head: Option<Head>, body: tonic::body::Body, is_request: bool) -> Self {
        let (chunk, next) = (Bytes::new(), Bytes::new());
        let (tail, code, looks) = (Tail::Open, 0, false);
        let (due, waits) = (None, None);
        Self {
            head,
            body,
            body_done: false,
            is_request,
            chunk,
            next,
            tail,
            code,
            looks,
            due,
            waits,
        }
    }

    /// From here on nobody looks for an answer after each record.
    pub(super) fn goes_on_alone(&mut self) {
        self.looks = false;
    }

    /// The status code that was sent; meaningful after a response's sender has ended.
    pub(super) fn code(&self) -> u8 {
        self.code
    }

    /// Sends what can be sent; ready when all is.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        key: Key,
    ) -> Poll<Result<(), SendError>> {
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
            let something = self.head.is_some() || !self.chunk.is_empty() || self.at_end();
            if !something {
                return Poll::Pending;
            }
            let mut has_waited = false;
            let polled = self.poll_record(cx, link, key, &mut has_waited);
            if has_waited {
                // Room that was found may not have been used.
                link.serve_stalled()?;
            }
            ready!(polled)?;
        }
    }

    /// Nothing comes after the chunk.
    fn at_end(&self) -> bool {
        self.body_done && self.next.is_empty()
    }

    /// Takes from the body what is ready, at most one chunk ahead.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), SendError> {
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
                        return Err(SendError::Body(status));
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
    fn poll_record(
        &mut self,
        cx: &Context<'_>,
        link: &Link,
        key: Key,
        has_waited: &mut bool,
    ) -> Poll<Result<(), SendError>> {
        if link.closed().is_some() {
            return Poll::Ready(Err(Broken::Closed.into()));
        }
        let mut tx = link.outbound.lock();
        loop {
            let most = record::most(&tx.ring);
            let (head, data) = (self.head.is_some(), self.chunk.len());
            let want = Want { head, data, end: self.at_end(), most };
            let permit = match link.calls.reserve(key, want, cx) {
                Ok(permit) => permit,
                Err(Blocked::Credit { .. }) => {
                    self.waits = self.waits.take().or_else(|| Waiting::begin("credit"));
                    return Poll::Pending;
                }
                Err(Blocked::Control) => {
                    if let Some(len) = tx.push_control(&link.calls)? {
                        tx = ready!(link.poll_room(cx, tx, len, has_waited))?;
                    }
                    continue;
                }
                Err(Blocked::Stopped) => return Poll::Ready(Err(stopped(link))),
            };
            self.waits = None;
            let mut flags = permit.flags;
            tx.block.clear();
            if let Some(head) = &self.head {
                flags |= HEAD;
                if let Err(status) = write_head(&mut tx.block, head) {
                    return Poll::Ready(self.refuse(status));
                }
            }
            let head_len = tx.block.len();
            let len = permit.data.min(most - head_len);
            if self.at_end() && len == data {
                flags |= END;
                self.code = self.write_tail(&mut tx.block);
                flags |= if self.is_request { 0 } else { TRAILERS };
                if tx.block.len() + len > most {
                    // Not together with the data: the next record will have it.
                    tx.block.truncate(head_len);
                    flags &= !(END | TRAILERS);
                }
            }
            let total = tx.block.len() + len;
            let Tx { ring, block, .. } = &mut *tx;
            let Some(slot) = record::reserve(ring, total).map_err(Broken::from)? else {
                tx = ready!(link.poll_room(cx, tx, total, has_waited))?;
                continue;
            };
            let (sent, due) = link.calls.commit(key, flags, len);
            if !sent {
                return Poll::Ready(Err(stopped(link)));
            }
            record::write(slot, flags, key.number(), block, &self.chunk[..len]);
            tx.sent += total as u64;
            self.chunk.advance(len);
            let head = self.head.take();
            if flags & END != 0 {
                self.tail = Tail::Sent;
            }
            if due.0 && tx.push_control(&link.calls)?.is_some() {
                link.outbound.stall(true);
            }
            let request = match &head {
                Some(Head::Request { path, .. }) if self.looks && flags & END != 0 => {
                    Some(Sent { stream: key.number(), path: path.path(), due: self.due })
                }
                _ => None,
            };
            link.tell(tx, request)?;
            // Finding room may have taken back the flag of those who wait for more of it.
            link.serve_stalled()?;
            return Poll::Ready(Ok(()));
        }
    }

    /// The head cannot be sent: a response ends with the reason instead, a request fails.
    fn refuse(&mut self, status: Status) -> Result<(), SendError> {
        if self.is_request {
            return Err(SendError::Body(status));
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

/// Nothing may be sent any more.
fn stopped(link: &Link) -> SendError {
    if link.closed().is_some() { Broken::Closed.into() } else { SendError::Unwanted }
}

impl From<Broken> for SendError {
    fn from(why: Broken) -> Self {
        Self::Broken(why)
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
    use crate::link::wake::Ring;
    use partywall_abi::layout::Geometry;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_body_that_is_always_ready_lets_other_tasks_run() {
        let room = Geometry::new(1024, 1 << 20).unwrap();
        let (ours, _theirs) = local_pair(room).unwrap();
        let link = Link::calling(ours, None, Box::new(Ring)).unwrap();
        let (key, _) = link.calls.open(false).unwrap().unwrap();
        let frames = tokio_stream::iter(0..1000);
        let frames = tokio_stream::StreamExt::map(frames, |_| {
            Ok::<_, Status>(http_body::Frame::data(Bytes::from_static(b"a message")))
        });
        let body = tonic::body::Body::new(http_body_util::StreamBody::new(frames));
        let mut sender =
            Sender::request(PathAndQuery::from_static("/a/b"), HeaderMap::new(), None, body);
        let mut polls = 0;
        let sent = std::future::poll_fn(|cx| {
            polls += 1;
            sender.poll(cx, &link, key)
        });
        sent.await.unwrap();
        // tokio gives a task 128 units; there is room and credit for all records.
        assert!((1000 / 128..20).contains(&polls), "{polls} polls");
    }
}
