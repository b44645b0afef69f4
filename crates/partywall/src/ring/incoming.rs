//! What a call receives: the data of a stream, with room kept for each long message before any of it
//! goes to the reader ([`super::account`]).
//!
//! ```text
//! short, or whole in its piece   passed on
//! long, and there is room        charged, passed on; the rest is passed on as it comes
//! long, and there is none        the piece stays on the stream, from the message's head on, and
//!                                counts against the windows; the reader waits
//! complete                       the charge stays with a request, and ends with an answer's message
//! the end, an error, the drop    what is left goes back to the window, the charge to the account
//! ```
//!
//! While any stream of the link waits, the link's window may be used up by those that do. So each
//! message that has room is told to the peer then ([`Kind::Room`]), and its rest needs no window: those
//! that had room before, by the first that begins to wait, and others as they get it. Both look after
//! they have said what they do, so one of them sees the other.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use partywall_abi::frame::Kind;
use partywall_abi::sync::{Ordering, fence};
use tokio::task::coop;
use tonic::Status;

use super::account::Charge;
use super::core::{Core, guard};
use super::stream::{Stream, Taken};
use partywall_call::Messages;

/// The receiving half of one call; what it does not take is given back when it is dropped.
pub(crate) struct Incoming {
    core: Arc<Core>,
    stream: Arc<Stream>,
    messages: Messages,
    charge: Charge,
    /// It is one of the link's streams that wait for room.
    waits: bool,
}

impl Incoming {
    pub(crate) fn new(core: Arc<Core>, stream: Arc<Stream>) -> Self {
        let charge = Charge::new(Arc::clone(&core.account));
        Self { core, stream, messages: Messages::default(), charge, waits: false }
    }

    /// Whether nothing is left to take.
    pub(crate) fn is_drained(&self) -> bool {
        self.stream.is_drained()
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let turn = ready!(coop::poll_proceed(cx));
        let taken = match ready!(self.stream.poll_take(cx)) {
            Ok(Taken::Data(piece)) => ready!(self.poll_pass(cx, piece)).map(Frame::data),
            Ok(Taken::Trailers(trailers)) => {
                self.end();
                Ok(Frame::trailers(trailers))
            }
            Ok(Taken::End) => {
                self.end();
                return Poll::Ready(None);
            }
            Err(status) => Err(status),
        };
        if taken.is_err() {
            self.end();
        }
        turn.made_progress();
        Poll::Ready(Some(taken))
    }

    /// Passes a piece on, or what of it comes before a long message.
    fn poll_pass(&mut self, cx: &mut Context<'_>, mut piece: Bytes) -> Poll<Result<Bytes, Status>> {
        let seen = self.messages.see(&piece);
        if seen.ended {
            self.charge.complete();
        }
        match seen.long {
            None => {}
            Some(_) if seen.pass > 0 => self.stream.put_back(piece.split_off(seen.pass)),
            Some(len) => match self.charge.poll_begin(cx, len.into()) {
                Poll::Pending => {
                    self.stream.put_back(piece);
                    if let Poll::Ready(status) = self.stream.poll_failed(cx) {
                        return Poll::Ready(Err(status));
                    }
                    if !std::mem::replace(&mut self.waits, true) {
                        self.core.begin_to_wait();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(room) => {
                    self.wait_no_more();
                    room?;
                    let bytes = self.messages.begin(&piece, len);
                    self.core.has_room(&self.stream, bytes);
                }
            },
        }
        let (windowed, grant) = self.stream.taken(piece.len());
        if grant > 0 {
            self.core.push_control(Kind::Window, self.stream.id, &grant.to_le_bytes());
        }
        self.core.give_back(windowed);
        Poll::Ready(Ok(piece))
    }

    fn wait_no_more(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.core.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Nothing more is taken.
    fn end(&mut self) {
        self.wait_no_more();
        self.charge.end();
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.end();
        self.core.give_back(self.stream.unread());
    }
}

impl Core {
    /// A stream begins to wait for room: the link's window may be used up before it has some.
    fn begin_to_wait(&self) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        fence(Ordering::SeqCst);
        let streams: Vec<_> = guard(&self.streams).calls.values().cloned().collect();
        streams.iter().for_each(|stream| self.tell_room(stream));
    }

    /// There is room for so many bytes of a stream, from what is taken next on.
    fn has_room(&self, stream: &Stream, bytes: u64) {
        stream.has_room(bytes);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.tell_room(stream);
        }
    }

    fn tell_room(&self, stream: &Stream) {
        if let Some(until) = stream.room_to_tell() {
            self.push_control(Kind::Room, stream.id, &until.to_le_bytes());
        }
    }
}
