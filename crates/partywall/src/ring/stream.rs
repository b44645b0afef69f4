//! One call on one link, as one side sees it: what has come and is not read yet, and how much may
//! be sent.
//!
//! The link's reader fills it, the call's task empties it; both under a mutex that is held for a
//! few instructions. Flow control: the peer may have [`limits::STREAM_WINDOW`] bytes under way;
//! what the task has taken is granted again in portions of half a window.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use partywall_abi::limits;
use tonic::Status;

/// A peer that sent more than it was granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverWindow;

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
    trailers: Option<HeaderMap>,
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
    /// Nothing may be sent any more: the stream was reset, or has been answered.
    pub(crate) send_closed: bool,
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

    /// Puts in what a segment brought and wakes whoever waits for it; the number of bytes that
    /// nobody will take.
    pub(crate) fn fill(
        &self,
        head: Option<HeaderMap>,
        data: Bytes,
        trailers: Option<HeaderMap>,
        end: bool,
    ) -> Result<u32, OverWindow> {
        let mut s = self.lock();
        let len = data.len() as u32;
        if s.ended {
            return Ok(len);
        }
        if len > s.window {
            return Err(OverWindow);
        }
        s.window -= len;
        if head.is_some() {
            s.head = head;
        }
        if len > 0 {
            s.chunks.push_back(data);
        }
        s.ended = end || trailers.is_some();
        // An answered call takes no more of the request.
        s.send_closed |= trailers.is_some();
        s.trailers = trailers;
        let (reader, writer) = (s.reader.take(), s.ended.then(|| s.writer.take()).flatten());
        drop(s);
        [reader, writer].into_iter().flatten().for_each(Waker::wake);
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

    /// Whether there is an answer: a head, trailers, the end or an error.
    pub(crate) fn answered(&self) -> bool {
        let s = self.lock();
        s.head.is_some() || s.ended
    }

    /// The head of the answer, or what came instead of one. `Ok(None)` means trailers only.
    pub(crate) fn poll_head(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<HeaderMap, HeaderMap>, Status>> {
        let mut s = self.lock();
        if let Some(head) = s.head.take() {
            return Poll::Ready(Ok(Ok(head)));
        }
        if let Some(error) = s.error.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(trailers) = s.trailers.take() {
            return Poll::Ready(Ok(Err(trailers)));
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
        if let Some(chunk) = s.chunks.pop_front() {
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
        s.chunks.drain(..).map(|c| c.len() as u32).sum()
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
        s.ended && s.chunks.is_empty() && s.trailers.is_none() && s.error.is_none()
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
        s.fill(None, half.clone(), None, false).unwrap();
        s.fill(None, half.clone(), None, false).unwrap();
        assert_eq!(s.fill(None, Bytes::from_static(b"x"), None, false), Err(OverWindow));
        let Poll::Ready(Ok((Taken::Data(_), grant))) = s.poll_take(&mut cx()) else { panic!() };
        assert_eq!(grant, limits::STREAM_WINDOW / 2);
        s.fill(None, half, None, false).unwrap();
    }

    #[test]
    fn data_comes_before_the_error_and_the_error_once() {
        let s = Stream::new(1);
        s.fill(None, Bytes::from_static(b"x"), None, false).unwrap();
        s.fail(Status::unavailable("gone"));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok((Taken::Data(_), 0)))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Err(_))));
        assert!(matches!(s.poll_take(&mut cx()), Poll::Ready(Ok((Taken::End, 0)))));
        assert!(s.lock().send_closed);
    }

    #[test]
    fn discarded_bytes_are_counted() {
        let s = Stream::new(1);
        s.fill(None, Bytes::from_static(b"abc"), None, false).unwrap();
        assert_eq!(s.unread(), 3);
        assert_eq!(s.fill(None, Bytes::from_static(b"late"), None, false), Ok(4));
        assert!(s.is_drained());
    }
}
