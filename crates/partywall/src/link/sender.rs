//! Sending a head, message data and trailers as frames, with as few records as credit and room allow: a
//! small unary call is one record each way.
//!
//! ```text
//! gather    take from the source what is ready, one step ahead, so that the last data and the end
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
//!
//! A request or an answer that is one plain frame needs no [`Sender`], if it has to wait for nothing:
//! [`Link::send_plain_request`] and [`Link::send_plain_answer`] reserve room, encode, ask the connection
//! once, and publish. Where that does not go, nothing has changed, and a sender does it. What encodes a
//! message may be a program's own code, and runs with this side's ring locked: one that panics has sent
//! nothing.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes};
use partywall_abi::domain::GateStatus;
use partywall_abi::frame::{
    self, END, HEAD, PARCEL, PLAIN_REQUEST, PLAIN_RESPONSE, ParcelRef, TRAILERS,
};
use partywall_call::{Blocked, Key, Want};
use partywall_shm::slot::SlotBuf;
use tokio::task::coop;
use tonic::Status;

use super::Link;
use super::attached::Attaching;
use super::broken::Broken;
use super::parcels::{self, Filled, InParcel};
use super::wake::Sent;
use crate::telemetry::Waiting;
use crate::wire;

/// What one direction of a call says, as whoever is above the link has it.
///
/// It writes blocks while this side's ring is locked, perhaps more than once each. It is never dropped there:
/// what it has may be of this or another link.
pub(crate) trait Source {
    /// The method of a request. An answer has none, and ends with trailers.
    fn method(&self) -> Option<&str>;

    /// Whether there is a head. An answer without a message may be trailers alone.
    fn has_head(&self) -> bool {
        true
    }

    /// Appends the block of the head.
    ///
    /// # Errors
    /// It cannot be sent. A request fails with this status then, and an answer ends with it.
    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status>;

    /// What is attached to the head.
    fn attached(&self) -> Option<&Attaching> {
        None
    }

    /// The head is on its way: it is not asked for that or for the method any more.
    fn head_sent(&mut self);

    /// The next bytes of its messages; none at the end. It is not asked after that, or after an error.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;

    /// Bytes of all of its data, if they can be encoded where they are sent from, in one piece.
    fn whole(&self) -> Option<usize> {
        None
    }

    /// Whether a plain frame says all of it beside the data: a request has no timeout, an answer the status
    /// OK, and neither has metadata.
    fn is_plain(&self) -> bool {
        false
    }

    /// An answer has been sent to its end, with this status code and so many bytes of data. It is asked for
    /// nothing more, and nothing is locked.
    fn answered(&mut self, _code: u8, _data: usize) {}

    /// Encodes all of its data; false when it has more or fewer bytes than it has said. Then, and where there
    /// is no room, [`Source::poll_data`] is asked instead.
    fn write_whole(&mut self, _out: &mut SlotBuf<'_>) -> bool {
        unreachable!("it has no data that are whole")
    }

    /// Its data have been encoded elsewhere: it is asked for them no more.
    fn encoded(&mut self) {}

    /// Appends the block of an answer's trailers and returns the status code in it. It is asked after
    /// the end of the data.
    fn write_trailers(&self, block: &mut Vec<u8>) -> u8;
}

/// A request, whose answer may begin before it has ended.
pub(crate) trait Request: Source {
    /// What is left of it then, which goes on by itself.
    type Rest: Source + Send + 'static;

    fn rest(self) -> Self::Rest;
}

/// What is left to say after the data.
enum Tail {
    /// Of a request nothing, of an answer the source's trailers.
    Source,
    /// An answer ends with a status of our own making.
    Status(Box<Status>),
    /// It has been sent.
    Sent,
}

/// Why a sender ended early.
#[derive(Debug)]
pub(super) enum SendError {
    /// The link is gone or broken.
    Broken(Broken),
    /// The source of a request failed, or cannot be sent.
    Source(Status),
    /// The peer wants no more of it.
    Unwanted,
}

/// One direction of one call.
pub(super) struct Sender<S> {
    /// None of an answer that is a status of our own making.
    source: Option<S>,
    /// The head has not been sent.
    has_head: bool,
    /// The source has no more data.
    data_done: bool,
    is_request: bool,
    /// Bytes of data that the source is to encode on the ring, in place of the next two.
    whole: Option<usize>,
    chunk: Bytes,
    next: Bytes,
    tail: Tail,
    /// The status code that went out with the trailers, and bytes of data that went out.
    code: u8,
    sent: usize,
    /// What the chunk lies in, if that is an owned parcel of this end.
    owned: Option<Filled>,
    /// The next data that lie in a parcel go as bytes.
    no_parcel: bool,
    /// Its task looks for an answer afterwards.
    looks: bool,
    /// When its call's time is over, of a request.
    due: Option<Instant>,
    /// It waits for credit.
    waits: Option<Waiting>,
}

impl<S: Source> Sender<S> {
    #[inline]
    pub(super) fn request(source: S, due: Option<Instant>) -> Self {
        Self { looks: true, due, ..Self::new(Some(source), Tail::Source) }
    }

    #[inline]
    pub(super) fn answer(source: S) -> Self {
        Self::new(Some(source), Tail::Source)
    }

    pub(super) fn status(status: Status) -> Self {
        Self::new(None, Tail::Status(Box::new(status)))
    }

    #[inline]
    fn new(source: Option<S>, tail: Tail) -> Self {
        Self {
            has_head: source.as_ref().is_some_and(S::has_head),
            data_done: source.is_none(),
            whole: source.as_ref().and_then(S::whole),
            is_request: source.as_ref().is_some_and(|source| source.method().is_some()),
            source,
            chunk: Bytes::new(),
            next: Bytes::new(),
            tail,
            code: 0,
            sent: 0,
            owned: None,
            no_parcel: false,
            looks: false,
            due: None,
            waits: None,
        }
    }

    /// From here on it goes on by itself, and nobody looks for an answer after each record.
    pub(super) fn rest(self) -> Sender<S::Rest>
    where
        S: Request,
    {
        Sender {
            source: self.source.map(S::rest),
            has_head: self.has_head,
            data_done: self.data_done,
            is_request: self.is_request,
            whole: None,
            chunk: self.chunk,
            next: self.next,
            tail: self.tail,
            code: self.code,
            sent: self.sent,
            owned: self.owned,
            no_parcel: self.no_parcel,
            looks: false,
            due: self.due,
            waits: self.waits,
        }
    }

    /// The status code that was sent; meaningful after an answer's sender has ended.
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
                // A source may be ready every time: the task lets others run after some records.
                ready!(coop::poll_proceed(cx)).made_progress();
            }
            more = true;
            self.gather(cx)?;
            self.pack(link);
            let something = self.has_head || !self.chunk.is_empty() || self.at_end();
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
        self.whole.is_some() || (self.data_done && self.next.is_empty())
    }

    /// Takes from the source what is ready, at most one chunk ahead.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), SendError> {
        if self.whole.is_some() {
            return Ok(());
        }
        loop {
            if self.chunk.is_empty() {
                self.chunk = std::mem::take(&mut self.next);
            }
            let Some(source) = &mut self.source else { return Ok(()) };
            if self.data_done || !self.next.is_empty() {
                return Ok(());
            }
            match source.poll_data(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(data))) if self.chunk.is_empty() => self.chunk = data,
                Poll::Ready(Some(Ok(data))) => self.next = data,
                Poll::Ready(None) => self.data_done = true,
                Poll::Ready(Some(Err(status))) => {
                    self.data_done = true;
                    if self.is_request {
                        return Err(SendError::Source(status));
                    }
                    self.tail = Tail::Status(Box::new(status));
                }
            }
        }
    }

    /// Puts a long message into a parcel, where the peer takes one.
    fn pack(&mut self, link: &Link) {
        let len = self.whole.unwrap_or(self.chunk.len());
        if parcels::is_long(len)
            && link.parcels.are_granted()
            && !self.no_parcel
            && self.owned.is_none()
        {
            self.pack_long(link, len);
        }
    }

    #[cold]
    fn pack_long(&mut self, link: &Link, len: usize) {
        if InParcel::of(&self.chunk).is_some() || !link.calls.may_send_parcel() {
            return;
        }
        let packed = match (self.whole, &mut self.source) {
            (Some(_), Some(source)) => link.parcels.pack(len, false, |out| source.write_whole(out)),
            _ => link.parcels.pack(len, false, parcels::copied(&self.chunk)),
        };
        let Some(packed) = packed else {
            // Not again for each piece that is left of it.
            self.no_parcel = true;
            return;
        };
        (self.chunk, self.owned) = (packed.bytes, packed.owned);
        if self.whole.take().is_some() {
            self.data_done = true;
            self.source.as_mut().expect("it has encoded").encoded();
        }
    }

    /// Puts one record on the ring.
    fn poll_record(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        key: Key,
        has_waited: &mut bool,
    ) -> Poll<Result<(), SendError>> {
        if link.closed().is_some() {
            return Poll::Ready(Err(Broken::Closed.into()));
        }
        let mut tx = link.outbound.lock();
        loop {
            let most = tx.most();
            let (head, data) = (self.has_head, self.whole.unwrap_or(self.chunk.len()));
            let parcel = match &self.owned {
                _ if self.no_parcel => None,
                Some(owned) => Some(InParcel::Owned(owned.clone())),
                None if link.parcels.are_granted() => InParcel::of(&self.chunk),
                None => None,
            };
            let attached = match &self.source {
                Some(source) if head => source.attached(),
                _ => None,
            };
            if let Some(attached) = attached
                && let Err(status) = link.may_attach(attached)
            {
                return Poll::Ready(self.refuse(status));
            }
            let has_attached = attached.is_some();
            if has_attached && self.whole.take().is_some() {
                // Nothing is to go wrong any more when the descriptors are sent.
                self.gather(cx)?;
                continue;
            }
            // What goes in a parcel follows the head then.
            let goes_later = has_attached && parcel.is_some();
            let now = if goes_later { 0 } else { data };
            let in_parcel = parcel.is_some() && !goes_later;
            let end = self.at_end() && !goes_later;
            let want = Want { head, data: now, end, most, in_parcel, attached: has_attached };
            let permit = match link.calls.reserve(key, want, cx) {
                Ok(permit) => permit,
                Err(Blocked::Credit { .. }) => {
                    self.waits = self.waits.take().or_else(|| Waiting::begin("credit"));
                    return Poll::Pending;
                }
                Err(Blocked::Control) => {
                    if let Some(len) = tx.push_control(&link.calls)? {
                        tx = ready!(link.poll_room(cx, key, tx, len, has_waited))?;
                    }
                    continue;
                }
                Err(Blocked::Stopped) => return Poll::Ready(Err(stopped(link))),
            };
            self.waits = None;
            let mut flags = permit.flags;
            let parcel = parcel.filter(|_| flags & PARCEL != 0);
            let block = tx.new_block();
            if head && let Some(source) = &self.source {
                flags |= HEAD;
                if let Err(status) = source.write_head(block) {
                    return Poll::Ready(self.refuse(status));
                }
            }
            let attached_at = block.len();
            if let Some(attached) = attached {
                attached.make_room(block);
            }
            let head_len = block.len();
            let len = match parcel {
                Some(_) => permit.data,
                None => permit.data.min(most - head_len),
            };
            let here = if parcel.is_some() { ParcelRef::BYTES } else { len };
            if self.at_end() && len == data {
                flags |= END;
                self.code = self.write_tail(block);
                flags |= if self.is_request { 0 } else { TRAILERS };
                if block.len() + here > most {
                    // Not together with the data: the next record will have it.
                    block.truncate(head_len);
                    flags &= !(END | TRAILERS);
                }
            }
            let total = block.len() + here;
            if self.whole.is_some() && flags & END == 0 {
                // Not in one record: the rest of this turn gathers it in pieces.
                self.whole = None;
                self.gather(cx)?;
                continue;
            }
            // Nobody waits any more once descriptors are sent.
            let sends = attached.is_some() || parcel.is_some();
            if sends && !tx.has_room(total).map_err(Broken::from)? {
                tx = ready!(link.poll_room(cx, key, tx, total, has_waited))?;
                continue;
            }
            let mut placed = None;
            if let Some(attached) = attached {
                // What is granted may have come since.
                let sent = link.may_attach(attached);
                let [places, _] = link.calls.attached_places();
                match sent.and_then(|()| link.parcels.send_attached(attached, places)) {
                    Ok(said) => {
                        let block = &mut tx.block()[attached_at..][..said.block.len()];
                        block.copy_from_slice(&said.block);
                        flags |= said.flags;
                        placed = Some(said.placed);
                    }
                    Err(status) => return Poll::Ready(self.refuse(status)),
                }
            }
            let parcel = match parcel {
                None => None,
                Some(parcel) => {
                    match link.parcels.send(&parcel, len, |place| link.calls.lend(place)) {
                        Some(parcel) => Some(parcel),
                        None => {
                            self.no_parcel = true;
                            continue;
                        }
                    }
                }
            };
            let Some(mut reserved) = tx.reserve(here).map_err(Broken::from)? else {
                tx = ready!(link.poll_room(cx, key, tx, total, has_waited))?;
                continue;
            };
            let encoded = parcel.map(|parcel| parcel.encode());
            let data = match (self.whole, &mut self.source) {
                _ if let Some(encoded) = &encoded => {
                    reserved.count(len);
                    Some(&encoded[..])
                }
                (Some(_), Some(source)) => {
                    if !source.write_whole(&mut reserved.buffer()) {
                        // Of another length than it has said: in pieces as well.
                        self.whole = None;
                        self.gather(cx)?;
                        continue;
                    }
                    None
                }
                _ => Some(&self.chunk[..len]),
            };
            let (sent, due) = link.calls.commit(key, flags, len);
            if let Some(owned) = self.owned.take_if(|_| parcel.is_some()) {
                match sent {
                    true => owned.lend(),
                    false => {
                        link.calls.take_back(owned.place());
                        owned.not_lent();
                    }
                }
            }
            if !sent {
                return Poll::Ready(Err(stopped(link)));
            }
            match data {
                Some(data) => reserved.send_data(flags, key.number(), data)?,
                None => reserved.send(flags, key.number())?,
            }
            // Memory that is forgotten is unmapped at the end of this, where the ring is not locked.
            let _lost = placed.map(|placed| link.parcels.attached_sent(placed));
            if parcel.is_some() {
                link.parcels.sent().count(len);
            }
            if self.whole.take().is_none() {
                self.chunk.advance(len);
                // Where a part has gone as bytes so does the rest.
                self.no_parcel |= len > 0 && parcel.is_none();
                if self.chunk.is_empty() {
                    (self.chunk, self.no_parcel, self.owned) = (Bytes::new(), false, None);
                }
            }
            self.has_head = false;
            self.sent += len;
            if flags & END != 0 {
                self.tail = Tail::Sent;
            }
            if due.0 && tx.push_control(&link.calls)?.is_some() {
                link.outbound.stall(true);
            }
            let whole = head && flags & END != 0 && self.looks;
            let path = self.source.as_ref().filter(|_| whole).and_then(S::method);
            let sent = path.map(|path| Sent { stream: key.number(), path, due: self.due });
            link.tell(tx, sent)?;
            if head && let Some(source) = &mut self.source {
                source.head_sent();
            }
            if flags & TRAILERS != 0
                && let Some(source) = &mut self.source
            {
                source.answered(self.code, self.sent);
            }
            // Finding room may have taken back the flag of those who wait for more of it.
            link.serve_stalled()?;
            return Poll::Ready(Ok(()));
        }
    }

    /// The head cannot be sent: an answer ends with the reason instead, a request fails.
    #[cold]
    fn refuse(&mut self, status: Status) -> Result<(), SendError> {
        if self.is_request {
            return Err(SendError::Source(status));
        }
        (self.has_head, self.whole, self.data_done) = (false, None, true);
        (self.chunk, self.next, self.owned) = (Bytes::new(), Bytes::new(), None);
        self.tail = Tail::Status(Box::new(status));
        Ok(())
    }

    fn write_tail(&self, block: &mut Vec<u8>) -> u8 {
        match (&self.tail, &self.source) {
            (Tail::Source, Some(source)) if !self.is_request => source.write_trailers(block),
            (Tail::Source | Tail::Sent, _) => 0,
            (Tail::Status(status), _) => wire::write_status(block, status),
        }
    }
}

impl Link {
    /// Opens a call by a plain request, and says how many are open with it; none, and nothing has changed,
    /// where that has to wait for anything: then a [`Sender`] sends it.
    #[inline]
    pub(super) fn send_plain_request(
        &self,
        index: usize,
        request: &mut impl Source,
    ) -> Option<(Key, usize)> {
        let data = request.whole().filter(|_| request.is_plain())?;
        let mut tx = self.outbound.lock();
        let number = frame::Request::plain(tx.numbers.get(index)?);
        // A broken ring is met again, and told, by who sends or reads next.
        let Ok(Some(mut reserved)) = tx.reserve_plain(&number, data) else { return None };
        if !request.write_whole(&mut reserved.buffer()) {
            return None;
        }
        let (key, open) = self.calls.open_whole(data)?;
        let sent = reserved.send(PLAIN_REQUEST, key.number());
        let path = request.method().unwrap_or_default();
        let told = Sent { stream: key.number(), path, due: None };
        let told = sent.and_then(|()| self.tell(tx, Some(told)));
        if let Err(why) = told.and_then(|()| self.serve_stalled()) {
            self.broken_by(key, &why);
        }
        Some((key, open))
    }

    /// Sends an answer as a plain frame; false, and nothing has changed, where that has to wait for anything:
    /// then a [`Sender`] sends it. Else one reference to the call is gone, also with an error.
    #[inline]
    pub(super) fn send_plain_answer(
        &self,
        key: Key,
        answer: &mut impl Source,
    ) -> Result<bool, Broken> {
        let Some(data) = answer.whole().filter(|_| answer.is_plain()) else { return Ok(false) };
        let mut tx = self.outbound.lock();
        // A broken ring is met again, and told, by the sender.
        let Ok(Some(mut reserved)) = tx.reserve_plain(&[], data) else { return Ok(false) };
        if !answer.write_whole(&mut reserved.buffer()) {
            return Ok(false);
        }
        let (sent, due) = self.calls.answer_whole(key, data);
        if !sent {
            return Ok(false);
        }
        reserved.send(PLAIN_RESPONSE, key.number())?;
        if due.0 && tx.push_control(&self.calls)?.is_some() {
            self.outbound.stall(true);
        }
        self.tell(tx, None)?;
        answer.answered(0, data);
        self.serve_stalled()?;
        Ok(true)
    }

    /// Whether this may be attached to a head here, now or when descriptors are granted.
    fn may_attach(&self, attached: &Attaching) -> Result<(), Status> {
        self.parcels.may_attach(self.calls.may_attach(), attached)
    }

    /// The link has ended while a request was sent.
    #[cold]
    pub(super) fn broken_by(&self, key: Key, why: &Broken) {
        if matches!(why, Broken::Callee(GateStatus::Deadline)) {
            let text = format!("link {}: {why}", self.number);
            self.calls.fail(key, Status::deadline_exceeded(text));
        }
        self.close(why);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::scripted::Pieces;
    use crate::link::wake::Ring;
    use partywall_abi::layout::Geometry;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_source_that_is_always_ready_lets_other_tasks_run() {
        let room = Geometry::new(1024, 1 << 20).unwrap();
        let (ours, _theirs) = local_pair(room).unwrap();
        let link = Link::calling(ours, None, Box::new(Ring)).unwrap();
        let (key, _) = link.calls.open(false).unwrap().unwrap();
        let mut sender = Sender::request(Pieces::new(b"a message", 1000), None);
        let mut polls = 0;
        let sent = std::future::poll_fn(|cx| {
            polls += 1;
            sender.poll(cx, &link, key)
        });
        sent.await.unwrap();
        // tokio gives a task 128 units; there is room and credit for all records.
        assert!((1000 / 128..20).contains(&polls), "{polls} polls");
    }

    /// Calls by a caller whose peer takes nothing: each sends pieces until it has to wait for room or for
    /// credit, and is dropped.
    #[track_caller]
    fn dropped_calls_leave_no_waiters(room: Geometry, piece: &'static [u8]) {
        let (ours, _theirs) = local_pair(room).unwrap();
        let link = Link::calling(ours, None, Box::new(Ring)).unwrap();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let waiting = || link.outbound.lock().waiters.len() + link.calls.waiting();
        let mut waited = 0;
        for _ in 0..100 {
            let (key, _) = link.calls.open(false).unwrap().expect("a place");
            let mut sender = Sender::request(Pieces::new(piece, 1_000_000), None);
            // A yield, after which it goes on, is none.
            while waiting() == 0 && sender.poll(&mut cx, &link, key).is_pending() {}
            waited += waiting();
            link.send_control(link.calls.reset(key, Status::cancelled("dropped")));
            link.release(key);
            assert_eq!(waiting(), 0);
        }
        assert_eq!(waited, 100);
    }

    #[tokio::test]
    async fn dropped_calls_wait_for_no_room() {
        dropped_calls_leave_no_waiters(Geometry::new(16, 1 << 16).unwrap(), b"a message");
    }

    #[tokio::test]
    async fn dropped_calls_wait_for_no_credit() {
        dropped_calls_leave_no_waiters(Geometry::new(1024, 1 << 20).unwrap(), &[0; 4096]);
    }
}
