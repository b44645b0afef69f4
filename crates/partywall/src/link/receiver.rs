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
//! While any call of the link waits, the link's window may be used up by those that do. So the room of
//! each message that has some is announced to the peer then, whose rest needs no window
//! ([`partywall_call::Connection::begin_to_wait`]).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use partywall_call::{Key, Messages};
use tokio::task::coop;
use tonic::Status;

use super::Link;
use super::account::Charge;
use super::mailbox::{Taken, Trailers};

/// The receiving half of one call; what it does not take is given back when it is dropped.
pub(super) struct Receiver {
    link: Arc<Link>,
    key: Key,
    messages: Messages,
    charge: Charge,
    /// It is one of the link's calls that wait for room.
    waits: bool,
}

/// What came of a call.
pub(super) enum Came {
    Data(Bytes),
    Trailers(Trailers),
}

impl Receiver {
    /// Takes over one reference to the call.
    pub(super) fn new(link: Arc<Link>, key: Key) -> Self {
        let charge = Charge::new(Arc::clone(&link.calls.account));
        Self { link, key, messages: Messages::default(), charge, waits: false }
    }

    /// Whether nothing is left to take.
    pub(super) fn is_drained(&self) -> bool {
        self.link.calls.is_drained(self.key)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Came, Status>>> {
        let turn = ready!(coop::poll_proceed(cx));
        let came = match ready!(self.link.calls.poll_take(self.key, cx)) {
            Ok(Taken::Data(piece)) => ready!(self.poll_pass(cx, piece)).map(Came::Data),
            Ok(Taken::Trailers(trailers)) => {
                self.end();
                Ok(Came::Trailers(trailers))
            }
            Ok(Taken::End) => {
                self.end();
                return Poll::Ready(None);
            }
            Err(status) => Err(status),
        };
        if came.is_err() {
            self.end();
        }
        turn.made_progress();
        Poll::Ready(Some(came))
    }

    /// Passes a piece on, or what of it comes before a long message.
    fn poll_pass(&mut self, cx: &mut Context<'_>, mut piece: Bytes) -> Poll<Result<Bytes, Status>> {
        let (calls, key) = (&self.link.calls, self.key);
        let seen = self.messages.see(&piece);
        if seen.ended {
            self.charge.complete();
        }
        match seen.long {
            None => {}
            Some(_) if seen.pass > 0 => calls.put_back(key, piece.split_off(seen.pass)),
            Some(len) => match self.charge.poll_begin(cx, len.into()) {
                Poll::Pending => {
                    calls.put_back(key, piece);
                    if let Poll::Ready(status) = calls.poll_failed(key, cx) {
                        return Poll::Ready(Err(status));
                    }
                    if !std::mem::replace(&mut self.waits, true) {
                        self.link.send_control(calls.waits(true));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(room) => {
                    self.wait_no_more();
                    room?;
                    let bytes = self.messages.begin(&piece, len);
                    self.link.send_control(self.link.calls.keep_room(key, bytes));
                }
            },
        }
        self.link.send_control(self.link.calls.taken(key, piece.len()));
        Poll::Ready(Ok(piece))
    }

    fn wait_no_more(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.link.send_control(self.link.calls.waits(false));
        }
    }

    /// Nothing more is taken.
    fn end(&mut self) {
        self.wait_no_more();
        self.charge.end();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end();
        self.link.send_control(self.link.calls.discard(self.key));
        self.link.release(self.key);
    }
}
