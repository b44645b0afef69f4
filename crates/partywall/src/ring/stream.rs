//! One call on one link, as one side sees it: what has come and is not read yet, and how much may
//! be sent.
//!
//! The link's reader fills it, the call's task empties it; both under a mutex that is held for a
//! few instructions, or by a sender while it writes one record. Pieces that wait are kept in no
//! more than twice their bytes: small ones are put together, whatever the peer cuts them into.
//! Flow control: the peer may have [`limits::STREAM_WINDOW`] bytes under way;
//! what the task has taken is granted again in portions of half a window.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use partywall_abi::limits;
use tonic::Status;

/// A peer that sent more than it was granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverWindow;

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

    fn take(&mut self) -> Option<Bytes> {
        self.chunks
            .pop_front()
            .or_else(|| (!self.small.is_empty()).then(|| self.small.split().freeze()))
    }
}

/// What a segment brings.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) head: Option<HeaderMap>,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: bool,
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
        let state = State {
            window: limits::STREAM_WINDOW,
            credit: limits::STREAM_WINDOW,
            ..State::default()
        };
        Self { id, state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts in what a segment brought, and wakes whoever waits for it if `wake` says so; the
    /// number of bytes that nobody will take.
    pub(crate) fn fill(&self, part: Part, wake: bool) -> Result<u32, OverWindow> {
        let mut s = self.lock();
        let len = part.data.len() as u32;
        if s.ended {
            return Ok(len);
        }
        if len > s.window {
            return Err(OverWindow);
        }
        s.window -= len;
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
    pub(crate) fn grant(&self, credit: u32) -> Result<(), OverWindow> {
        let mut s = self.lock();
        s.credit = s.credit.checked_add(credit).ok_or(OverWindow)?;
        let writer = s.writer.take();
        drop(s);
        writer.into_iter().for_each(Waker::wake);
        Ok(())
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

    /// The next piece, and how many bytes are to be granted again to the stream.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<(Taken, u32), Status>> {
        let mut s = self.lock();
        if let Some(chunk) = s.take() {
            s.owed += chunk.len() as u32;
            let grant = if !s.ended && s.owed >= limits::STREAM_WINDOW / 2 {
                let owed = std::mem::take(&mut s.owed);
                s.window += owed;
                owed
            } else {
                0
            };
            return Poll::Ready(Ok((Taken::Data(chunk), grant)));
        }
        if let Some(error) = s.error.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(trailers) = s.trailers.take() {
            return Poll::Ready(Ok((Taken::Trailers(trailers), 0)));
        }
        if s.ended {
            return Poll::Ready(Ok((Taken::End, 0)));
        }
        register(&mut s.reader, cx);
        Poll::Pending
    }

    /// Takes out what nobody will take any more, and says how many bytes that was; later data
    /// is not kept.
    pub(crate) fn unread(&self) -> u32 {
        let mut s = self.lock();
        s.ended = true;
        std::iter::from_fn(|| s.take()).map(|c| c.len() as u32).sum()
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
        let Poll::Ready(Ok((Taken::Data(_), grant))) = s.poll_take(&mut cx()) else { panic!() };
        assert_eq!(grant, limits::STREAM_WINDOW / 2);
        s.fill(Part::data(half, false), true).unwrap();
    }

    #[test]
    fn data_comes_before_the_error_and_the_error_once() {
        let s = Stream::new(1);
        s.fill(Part::data(Bytes::from_static(b"x"), false), true).unwrap();
        s.fail(Status::unavailable("gone"));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok((Taken::Data(_), 0)))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Err(_))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok((Taken::End, 0)))));
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
        let s = Stream::new(1);
        let mut sent = Vec::new();
        let mut total = 0;
        for i in 0..40_000_u32 {
            // Each piece is a sliver of a large buffer, as a hostile peer would have it.
            let large = Bytes::from(vec![i as u8; if i % 5_000 == 0 { 2 * SMALL } else { 8 }]);
            let piece = if i % 5_000 == 0 { large } else { large.slice(3..4) };
            total += piece.len();
            sent.extend_from_slice(&piece);
            s.fill(Part::data(piece, false), true).unwrap();
        }
        assert!(s.lock().chunks.len() < 32, "{} pieces", s.lock().chunks.len());
        let mut got = Vec::new();
        while got.len() < total {
            let Poll::Ready(Ok((Taken::Data(d), _))) = s.poll_take(&mut cx()) else { panic!() };
            got.extend_from_slice(&d);
        }
        assert!(got == sent);
    }
}
