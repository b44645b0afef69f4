//! What a call receives: the data of a stream, with room kept for each long message before any of it
//! goes to the reader ([`super::account`]).
//!
//! ```text
//! short, or whole in its piece   passed on
//! in an owned parcel             charged, and copied when there is room; stays there until then
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
use super::parcels::{Lent, Piece};

/// The receiving half of one call; what it does not take is given back when it is dropped.
pub(crate) struct Receiver {
    link: Arc<Link>,
    key: Key,
    messages: Messages,
    charge: Charge,
    /// It is one of the link's calls that wait for room.
    waits: bool,
}

/// What came of a call.
pub(crate) enum Came {
    Data(Bytes),
    Trailers(Trailers),
}

/// What brings a call's data and trailers as they come.
pub(crate) trait Receive {
    /// The next of it; none at the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Came, Status>>>;

    /// Whether nothing is left to take.
    fn is_drained(&self) -> bool;
}

impl Receiver {
    /// Takes over one reference to the call.
    pub(super) fn new(link: Arc<Link>, key: Key) -> Self {
        let charge = Charge::new(Arc::clone(&link.calls.account));
        Self { link, key, messages: Messages::default(), charge, waits: false }
    }

    /// Copies what lies in an owned parcel, when there is room for that.
    fn poll_copy(&mut self, cx: &mut Context<'_>, lent: Box<Lent>) -> Poll<Result<Bytes, Status>> {
        if self.charge.is_passing() {
            // It has room as a part of its message: that can always be finished.
            let left = usize::try_from(self.messages.left()).unwrap_or(usize::MAX);
            let (part, rest) = lent.split(left);
            if let Some(rest) = rest {
                self.link.calls.put_back(self.key, rest.into());
            }
            return Poll::Ready(Ok(part.copy()));
        }
        match self.poll_room(cx, lent.len() as u64) {
            Poll::Pending => {
                self.link.calls.put_back(self.key, lent.into());
                Poll::Pending
            }
            Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
            Poll::Ready(Ok(())) => {
                let copied = lent.copy();
                self.charge.complete();
                Poll::Ready(Ok(copied))
            }
        }
    }

    /// Charges so many bytes; ready when there is room for them, or the call has failed.
    fn poll_room(&mut self, cx: &mut Context<'_>, bytes: u64) -> Poll<Result<(), Status>> {
        let calls = &self.link.calls;
        match self.charge.poll_begin(cx, bytes) {
            Poll::Pending => {
                if let Poll::Ready(status) = calls.poll_failed(self.key, cx) {
                    return Poll::Ready(Err(status));
                }
                if !std::mem::replace(&mut self.waits, true) {
                    self.link.send_control(calls.waits(true));
                }
                Poll::Pending
            }
            Poll::Ready(room) => {
                self.wait_no_more();
                Poll::Ready(room)
            }
        }
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
            Some(_) if seen.pass > 0 => calls.put_back(key, piece.split_off(seen.pass).into()),
            Some(len) => match self.poll_room(cx, len.into()) {
                Poll::Pending => {
                    self.link.calls.put_back(key, piece.into());
                    return Poll::Pending;
                }
                Poll::Ready(room) => {
                    room?;
                    let bytes = self.messages.begin(&piece, len);
                    self.link.send_control(self.link.calls.keep_room(key, bytes));
                }
            },
        }
        self.link.send_control(self.link.calls.taken(key, piece.len()));
        Poll::Ready(Ok(piece))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>, piece: Piece) -> Poll<Result<Bytes, Status>> {
        let piece = match piece {
            Piece::Here(piece) => piece,
            Piece::Lent(lent) => ready!(self.poll_copy(cx, lent))?,
        };
        self.poll_pass(cx, piece)
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

impl Receive for Receiver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Came, Status>>> {
        let turn = ready!(coop::poll_proceed(cx));
        let came = match ready!(self.link.calls.poll_take(self.key, cx)) {
            Ok(Taken::Data(piece)) => ready!(self.poll_data(cx, piece)).map(Came::Data),
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

    fn is_drained(&self) -> bool {
        self.link.calls.is_drained(self.key)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end();
        self.link.send_control(self.link.calls.discard(self.key));
        self.link.release(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::account::{Accounts, Bounds};
    use crate::link::calls::{Accepted, Beside};
    use crate::link::inbound::Record;
    use crate::link::wake::Ring;
    use partywall_abi::control::Grant;
    use partywall_abi::frame::{HEAD, Kind, PARCEL, ParcelRef, RequestHead, ResponseHead};
    use partywall_abi::layout::Geometry;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_stream_that_is_always_ready_lets_other_tasks_run() {
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let link = Arc::new(Link::calling(ours, None, Box::new(Ring)).unwrap());
        let (key, _) = link.calls.open(false).unwrap().unwrap();
        // As long as not to be put together.
        for n in 0..500 {
            let flags = if n == 0 { HEAD } else { 0 };
            let head = |out: &mut Vec<u8>| ResponseHead::write(out, 0);
            drop(
                link.calls
                    .accept(Record::frame(flags, key.number(), head, 1024), Beside::default(), None)
                    .unwrap(),
            );
        }
        link.calls.fail(key, Status::cancelled("the end"));
        let mut receiver = Receiver::new(link, key);
        let (mut polls, mut read) = (0, 0);
        std::future::poll_fn(|cx| {
            polls += 1;
            loop {
                match ready!(receiver.poll(cx)) {
                    Some(Ok(Came::Data(data))) => read += data.len(),
                    Some(Err(_)) | None => return Poll::Ready(()),
                    Some(Ok(Came::Trailers(_))) => panic!("nobody sent trailers"),
                }
            }
        })
        .await;
        assert_eq!(read, 500 * 1024);
        assert!((500 / 128..10).contains(&polls), "{polls} polls");
    }

    /// The data of a message of so many bytes.
    fn message(len: usize) -> Vec<u8> {
        let mut data = vec![0; 5 + len];
        data[1..5].copy_from_slice(&(len as u32).to_be_bytes());
        data[5..].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        data
    }

    #[tokio::test]
    async fn message_with_room_is_finished_by_a_parcel_while_others_wait() {
        const LEN: usize = 200_000;
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let bytes = LEN as u64 + LEN as u64 / 2;
        let accounts = Accounts::new(Bounds { bytes, ..Bounds::default() });
        let link = Arc::new(Link::serving(ours, accounts.open(1, Some(1)), None).unwrap());
        link.send_control(link.calls.take_parcels(Grant { descriptors: 1, leases: false }));
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let open = |stream| {
            let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a/b", 0);
            let record = Record::frame(HEAD, stream, head, 0);
            let (accepted, due) = link.calls.accept(record, Beside::default(), None).unwrap();
            link.send_control(due);
            let Accepted::Opened(opened) = accepted else { panic!("it is refused") };
            Receiver::new(Arc::clone(&link), opened.key)
        };
        let [mut one, mut two] = [open(1), open(2)];
        let data = message(LEN);
        let (begin, rest) = data.split_at(1000);
        let come = |stream, flags, payload: Bytes, beside| {
            let record = Record { kind: Kind::Frame as u8, flags, stream, payload };
            let (_, due) = link.calls.accept(record, beside, None).unwrap();
            link.send_control(due);
        };
        let lent = |data: &[u8]| {
            let piece = Piece::from(Box::new(Lent::of(data)));
            Beside { parcel: Some(Box::new(piece)), attached: None }
        };
        let come_lent = |stream, data: &[u8]| {
            let bytes = data.len() as u64;
            let parcel = ParcelRef { packet: 0, offset: 0, bytes, owned: None };
            let payload = Bytes::copy_from_slice(&parcel.encode());
            come(stream, PARCEL, payload, lent(data));
        };
        let take = |receiver: &mut Receiver, cx: &mut Context<'_>| match receiver.poll(cx) {
            Poll::Ready(Some(Ok(Came::Data(piece)))) => Some(piece),
            Poll::Ready(_) => panic!("it has ended"),
            Poll::Pending => None,
        };
        come(1, 0, Bytes::copy_from_slice(begin), Beside::default());
        assert_eq!(take(&mut one, cx).unwrap(), begin);
        come_lent(2, &data);
        assert_eq!(take(&mut two, cx), None, "there is no room for it");
        // The rest of the first, and a message after it.
        come_lent(1, &[rest, &message(LEN / 4)].concat());
        assert_eq!(take(&mut one, cx).unwrap(), rest);
        assert_eq!(take(&mut one, cx), None, "it waits behind the second");
        drop(one);
        assert_eq!(take(&mut two, cx).unwrap(), data);
        drop(two);
        assert!(link.calls.account.try_charge(bytes).is_some(), "something is still charged");
    }

    /// What comes for a call whose reader is gone, while its handler goes on, in a record or in a parcel.
    #[tokio::test]
    async fn what_comes_when_its_reader_is_gone_is_not_kept() {
        const LEN: usize = 4096;
        struct Counted(#[expect(dead_code, reason = "it counts")] Arc<()>);
        impl AsRef<[u8]> for Counted {
            fn as_ref(&self) -> &[u8] {
                &[0; LEN]
            }
        }
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let accounts = Accounts::new(Bounds::default());
        let link = Arc::new(Link::serving(ours, accounts.open(1, Some(1)), None).unwrap());
        link.send_control(link.calls.take_parcels(Grant { descriptors: 1, leases: false }));
        let come = |flags, payload: Bytes, parcel| {
            let record = Record { kind: Kind::Frame as u8, flags, stream: 1, payload };
            let beside = Beside { parcel, attached: None };
            let (accepted, due) = link.calls.accept(record, beside, None).unwrap();
            link.send_control(due);
            accepted
        };
        let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a/b", 0);
        let head = Record::frame(HEAD, 1, head, 0).payload;
        let Accepted::Opened(opened) = come(HEAD, head, None) else { panic!("it is refused") };
        // The answer that goes on refers to the call as well.
        link.calls.share(opened.key);
        let alive = Arc::new(());
        let data = || Bytes::from_owner(Counted(Arc::clone(&alive)));
        come(0, data(), None);
        assert_eq!(Arc::strong_count(&alive), 2, "it is kept for the reader");
        drop(Receiver::new(Arc::clone(&link), opened.key));
        for packet in 0..500 {
            if packet < 8 {
                come(0, data(), None);
            }
            let parcel = ParcelRef { packet, offset: 0, bytes: LEN as u64, owned: None };
            let payload = Bytes::copy_from_slice(&parcel.encode());
            come(PARCEL, payload, Some(Box::new(Piece::from(data()))));
            assert_eq!(Arc::strong_count(&alive), 1, "of round {packet}");
        }
        link.release(opened.key);
    }
}
