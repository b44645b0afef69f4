//! One call on one link, as one side sees it: what has come and is not read yet, and how much may
//! be sent.
//!
//! The link's reader fills it, the call's task empties it; both under a mutex that is held for a
//! few instructions, or by a sender while it writes one record. Pieces that wait are kept in no
//! more than twice their bytes: small ones are put together, whatever the peer cuts them into.
//! Flow control: the peer may have [`limits::STREAM_WINDOW`] bytes under way;
//! what the task has taken is granted again in portions of half a window.
//!
//! A message that has room ([`super::account`]) may come outside of the windows, where the peer has
//! been told so ([`partywall_abi::frame::Kind::Room`]): from the first byte that is flagged to the
//! message's last. The next message gets room only when all of that has been taken, so one such
//! stretch is all that a stream has to remember.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use partywall_abi::limits;
use tonic::Status;

/// A peer that sent more than it was granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverWindow;

/// A peer that granted more than it may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverCredit;

/// Pieces below this many bytes are put together while they wait.
const SMALL: usize = 1024;
/// So much is put together at most.
const TOGETHER: usize = 16 * 1024;

/// How an answer begins.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All of it: head, data, trailers.
    Whole(HeaderMap, Option<Bytes>, HeaderMap),
    /// The head; the rest is to be taken.
    Head(HeaderMap),
    /// Trailers without a head: a status alone.
    Trailers(HeaderMap),
}

/// What the reader of a stream finds.
#[derive(Debug)]
pub(crate) enum Taken {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) head: Option<HeaderMap>,
    chunks: VecDeque<Bytes>,
    /// Small pieces after those.
    small: BytesMut,
    trailers: Option<HeaderMap>,
    /// The peer's head has come.
    pub(crate) headed: bool,
    /// The peer sends nothing more.
    pub(crate) ended: bool,
    error: Option<Status>,
    /// Who waits for any of the above.
    reader: Option<Waker>,
    /// What the peer may still send.
    window: u32,
    /// Taken by the task and not granted again yet.
    owed: u32,
    /// What this side may still send.
    pub(crate) credit: u32,
    /// Who waits for credit.
    pub(crate) writer: Option<Waker>,
    /// The head of this side is on the ring.
    pub(crate) begun: bool,
    /// Nothing may be sent any more: the stream was reset, or has been answered.
    pub(crate) send_closed: bool,
    /// The last record of this side is on the ring.
    pub(crate) answered: bool,
    /// What is called, at the service's end, as soon as that is known.
    pub(crate) path: Option<Arc<str>>,
    /// Bytes of data that have come, and of those, what the task has taken.
    came: u64,
    taken: u64,
    /// Where the message that has room ends.
    message_end: u64,
    /// What comes outside of the windows: from the first such byte, if one has come, up to here.
    room: (Option<u64>, u64),
    /// Bytes of data that were sent, and up to where that needs no credit.
    pub(crate) sent: u64,
    pub(crate) room_there: u64,
}

impl State {
    fn put(&mut self, data: Bytes) {
        let waits = !self.chunks.is_empty() || !self.small.is_empty();
        if waits && data.len() < SMALL {
            self.small.extend_from_slice(&data);
            if self.small.len() < TOGETHER {
                return;
            }
        }
        if !self.small.is_empty() {
            self.chunks.push_back(self.small.split().freeze());
        }
        if !(data.is_empty() || waits && data.len() < SMALL) {
            self.chunks.push_back(data);
        }
    }

    /// How many bytes of data may be sent, by the stream's credit and the link's or, where that is
    /// said, by room that needs neither.
    pub(crate) fn may_send(&self, link: u64) -> (usize, bool) {
        let room = self.room_there.saturating_sub(self.sent);
        let (bytes, by_room) =
            if room > 0 { (room, true) } else { (link.min(self.credit.into()), false) };
        (usize::try_from(bytes).unwrap_or(usize::MAX), by_room)
    }

    /// How many of `len` bytes from an offset on came by the windows.
    fn windowed(&self, from: u64, len: u64) -> u32 {
        let (Some(room), until) = self.room else { return len as u32 };
        let outside = (from + len).min(until).saturating_sub(from.max(room));
        (len - outside) as u32
    }

    fn take(&mut self) -> Option<Bytes> {
        self.chunks
            .pop_front()
            .or_else(|| (!self.small.is_empty()).then(|| self.small.split().freeze()))
    }
}

/// What a frame brings.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) head: Option<HeaderMap>,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: bool,
    /// The data counts against no window.
    pub(crate) room: bool,
}

impl Part {
    /// Data alone.
    pub(crate) fn data(data: Bytes, end: bool) -> Self {
        Self { data, end, ..Self::default() }
    }
}

/// One call.
pub(crate) struct Stream {
    pub(crate) id: u32,
    state: Mutex<State>,
}

impl Stream {
    pub(crate) fn new(id: u32) -> Self {
        Self::of(id, false)
    }

    /// One of which nothing more is to come if it is `whole`.
    pub(crate) fn of(id: u32, whole: bool) -> Self {
        let state = State {
            window: limits::STREAM_WINDOW,
            credit: limits::STREAM_WINDOW,
            ended: whole,
            ..State::default()
        };
        Self { id, state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts in what a frame brought, and wakes whoever waits for it if `wake` says so; the
    /// number of bytes of the windows that nobody will take.
    pub(crate) fn fill(&self, part: Part, wake: bool) -> Result<u32, OverWindow> {
        let mut s = self.lock();
        let len = part.data.len() as u32;
        if s.ended {
            return Ok(if part.room { 0 } else { len });
        }
        let came = s.came + u64::from(len);
        if part.room {
            if came > s.room.1 {
                return Err(OverWindow);
            }
            let came = s.came;
            s.room.0.get_or_insert(came);
        } else {
            // What has room comes without a gap.
            if len > s.window || (s.room.0.is_some() && s.came < s.room.1 && len > 0) {
                return Err(OverWindow);
            }
            s.window -= len;
        }
        s.came = came;
        if part.head.is_some() {
            s.head = part.head;
            s.headed = true;
        }
        s.put(part.data);
        s.ended = part.end || part.trailers.is_some();
        // An answered call takes no more of the request.
        s.send_closed |= part.trailers.is_some();
        s.trailers = part.trailers;
        if wake {
            let (reader, writer) = (s.reader.take(), s.ended.then(|| s.writer.take()).flatten());
            drop(s);
            [reader, writer].into_iter().flatten().for_each(Waker::wake);
        }
        Ok(0)
    }

    /// Ends the stream with an error; what has come before can still be read.
    pub(crate) fn fail(&self, status: Status) {
        let mut s = self.lock();
        if !s.ended {
            s.ended = true;
            s.error = Some(status);
        }
        s.send_closed = true;
        let wakers = [s.reader.take(), s.writer.take()];
        drop(s);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// More may be sent.
    pub(crate) fn grant(&self, credit: u32) -> Result<(), OverCredit> {
        let mut s = self.lock();
        let most = limits::STREAM_WINDOW;
        s.credit = s.credit.checked_add(credit).filter(|c| *c <= most).ok_or(OverCredit)?;
        let writer = s.writer.take();
        drop(s);
        writer.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// What comes before the offset `until` may be sent without credit.
    pub(crate) fn grant_room(&self, until: u64) -> Result<(), OverCredit> {
        let mut s = self.lock();
        if until < s.room_there {
            return Err(OverCredit);
        }
        s.room_there = until;
        let writer = s.writer.take();
        drop(s);
        writer.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The message whose first bytes are taken next has room, so many bytes.
    pub(crate) fn has_room(&self, bytes: u64) {
        let mut s = self.lock();
        s.message_end = s.taken + bytes;
    }

    /// Up to where the peer is to be told that there is room, if that is news.
    pub(crate) fn room_to_tell(&self) -> Option<u64> {
        let mut s = self.lock();
        let end = s.message_end;
        let news = !s.ended && end > s.came && end > s.room.1;
        news.then(|| {
            s.room = (None, end);
            end
        })
    }

    /// How the answer begins, or what came instead of one.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<Answer, Status>> {
        let mut s = self.lock();
        if let Some(head) = s.head.take() {
            let one_piece = s.chunks.len() <= 1 && s.small.is_empty();
            return Poll::Ready(Ok(match s.trailers.take() {
                Some(trailers) if one_piece => Answer::Whole(head, s.chunks.pop_front(), trailers),
                trailers => {
                    s.trailers = trailers;
                    Answer::Head(head)
                }
            }));
        }
        if let Some(error) = s.error.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(trailers) = s.trailers.take() {
            return Poll::Ready(Ok(Answer::Trailers(trailers)));
        }
        if s.ended {
            return Poll::Ready(Err(Status::internal("the call ended without an answer")));
        }
        register(&mut s.reader, cx);
        Poll::Pending
    }

    /// The next piece. Data counts as taken when [`Stream::taken`] says so, or is put back.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<Taken, Status>> {
        let mut s = self.lock();
        if let Some(chunk) = s.take() {
            return Poll::Ready(Ok(Taken::Data(chunk)));
        }
        if let Some(error) = s.error.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(trailers) = s.trailers.take() {
            return Poll::Ready(Ok(Taken::Trailers(trailers)));
        }
        if s.ended {
            return Poll::Ready(Ok(Taken::End));
        }
        register(&mut s.reader, cx);
        Poll::Pending
    }

    /// The reader has taken so many bytes: how many of them came by the windows, and how many are
    /// to be granted again to the stream.
    pub(crate) fn taken(&self, len: usize) -> (u32, u32) {
        let mut s = self.lock();
        let windowed = s.windowed(s.taken, len as u64);
        s.taken += len as u64;
        s.owed += windowed;
        if s.ended || s.owed < limits::STREAM_WINDOW / 2 {
            return (windowed, 0);
        }
        let owed = std::mem::take(&mut s.owed);
        s.window += owed;
        (windowed, owed)
    }

    /// The reader cannot have this yet.
    pub(crate) fn put_back(&self, piece: Bytes) {
        self.lock().chunks.push_front(piece);
    }

    /// Ready when the stream has failed: what has come of a message that waits is of no use then.
    pub(crate) fn poll_failed(&self, cx: &Context<'_>) -> Poll<Status> {
        let mut s = self.lock();
        register(&mut s.reader, cx);
        s.error.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes out what nobody will take any more, and says how many bytes of the windows that was;
    /// later data is not kept.
    pub(crate) fn unread(&self) -> u32 {
        let mut s = self.lock();
        s.ended = true;
        let len = std::iter::from_fn(|| s.take()).map(|c| c.len() as u64).sum();
        let windowed = s.windowed(s.taken, len);
        s.taken += len;
        windowed
    }

    /// Ready when nothing may be sent any more: the call was reset or answered.
    pub(crate) fn poll_send_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut s = self.lock();
        if s.send_closed {
            return Poll::Ready(());
        }
        register(&mut s.writer, cx);
        Poll::Pending
    }

    /// Whether nothing is left to take.
    pub(crate) fn is_drained(&self) -> bool {
        let s = self.lock();
        s.ended
            && s.chunks.is_empty()
            && s.small.is_empty()
            && s.trailers.is_none()
            && s.error.is_none()
    }
}

/// Remembers a waker, without cloning one that is there already.
pub(crate) fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    if !slot.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn a_peer_cannot_send_more_than_its_window() {
        let s = Stream::new(1);
        let half = Bytes::from(vec![0; limits::STREAM_WINDOW as usize / 2]);
        s.fill(Part::data(half.clone(), false), true).unwrap();
        s.fill(Part::data(half.clone(), false), true).unwrap();
        assert_eq!(s.fill(Part::data(Bytes::from_static(b"x"), false), true), Err(OverWindow));
        let Poll::Ready(Ok(Taken::Data(data))) = s.poll_take(&mut cx()) else { panic!() };
        assert_eq!(s.taken(data.len()), (limits::STREAM_WINDOW / 2, limits::STREAM_WINDOW / 2));
        s.fill(Part::data(half, false), true).unwrap();
    }

    #[test]
    fn what_has_room_counts_against_no_window() {
        let s = Stream::new(1);
        let part = |len: usize, room| Part { room, ..Part::data(vec![0; len].into(), false) };
        let whole = limits::STREAM_WINDOW as usize;
        s.fill(part(whole, false), true).unwrap();
        assert_eq!(s.fill(part(1, true), true), Err(OverWindow), "nobody has given room");
        s.has_room(whole as u64 + 100);
        assert_eq!(s.room_to_tell(), Some(whole as u64 + 100));
        assert_eq!(s.room_to_tell(), None, "told twice");
        s.fill(part(60, true), true).unwrap();
        assert_eq!(s.fill(part(1, false), true), Err(OverWindow), "the window is used up");
        s.fill(part(40, true), true).unwrap();
        assert_eq!(s.fill(part(1, true), true), Err(OverWindow), "more than there is room for");
        assert_eq!(s.taken(whole - 10), (whole as u32 - 10, whole as u32 - 10));
        s.fill(part(5, false), true).unwrap();
        // Ten of the window, a hundred beside it, and five of the window again.
        assert_eq!(s.taken(50), (10, 0));
        s.lock().small.clear();
        s.lock().chunks.clear();
        s.lock().chunks.push_back(vec![0; 65].into());
        assert_eq!(s.unread(), 5);
    }

    #[test]
    fn room_is_never_taken_back_and_credit_is_no_more_than_the_window() {
        let s = Stream::new(1);
        s.grant_room(10).unwrap();
        assert_eq!(s.grant_room(9), Err(OverCredit));
        assert_eq!(s.grant(1), Err(OverCredit));
        s.lock().credit -= 2;
        assert_eq!(s.grant(2), Ok(()));
    }

    #[test]
    fn data_comes_before_the_error_and_the_error_once() {
        let s = Stream::new(1);
        s.fill(Part::data(Bytes::from_static(b"x"), false), true).unwrap();
        s.fail(Status::unavailable("gone"));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok(Taken::Data(_)))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Err(_))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok(Taken::End))));
        assert!(s.lock().send_closed);
    }

    #[test]
    fn discarded_bytes_are_counted() {
        let s = Stream::new(1);
        s.fill(Part::data(Bytes::from_static(b"abc"), false), true).unwrap();
        assert_eq!(s.unread(), 3);
        assert_eq!(s.fill(Part::data(Bytes::from_static(b"late"), false), true), Ok(4));
        assert!(s.is_drained());
    }

    #[test]
    fn small_pieces_keep_no_large_ones_alive_and_come_in_order() {
        /// What a piece came in, which counts while it is kept.
        struct Slot(Vec<u8>, Arc<AtomicUsize>);

        impl AsRef<[u8]> for Slot {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Drop for Slot {
            fn drop(&mut self) {
                self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
            }
        }

        let s = Stream::new(1);
        let mut sent = Vec::new();
        let mut total = 0;
        let kept = Arc::new(AtomicUsize::new(0));
        for i in 0..40_000_u32 {
            // Each piece is a sliver of a large buffer, as a hostile peer would have it.
            let slot = Slot(vec![i as u8; 2 * SMALL], Arc::clone(&kept));
            kept.fetch_add(2 * SMALL, Ordering::Relaxed);
            let slot = Bytes::from_owner(slot);
            let piece = if i % 5_000 == 0 { slot } else { slot.slice(3..4) };
            total += piece.len();
            sent.extend_from_slice(&piece);
            s.fill(Part::data(piece, false), true).unwrap();
        }
        let (kept, small) = (kept.load(Ordering::Relaxed), s.lock().small.capacity());
        assert_eq!(kept, 8 * 2 * SMALL, "only large ones are kept as they came");
        assert!(s.lock().chunks.len() < 32, "{} pieces", s.lock().chunks.len());
        // The small ones, put together.
        let own = s.lock().chunks.iter().map(Bytes::len).sum::<usize>() - kept;
        assert!(own + small + kept <= 2 * total, "{own}, {small} and {kept} for {total}");
        let mut got = Vec::new();
        while got.len() < total {
            let Poll::Ready(Ok(Taken::Data(d))) = s.poll_take(&mut cx()) else { panic!() };
            got.extend_from_slice(&d);
        }
        assert!(got == sent);
    }
}
