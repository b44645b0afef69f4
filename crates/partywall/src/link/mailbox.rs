//! What a call has received and not read yet, and who waits for it.
//!
//! It lies in the connection, under the lock of the link's calls: who reads the ring fills it, the
//! call's task empties it. Pieces that wait are kept in no more than twice their bytes: small ones
//! are put together, whatever the peer cuts them into.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::attached::Attached;
use super::parcels::Piece;
use crate::waker::register;
use bytes::{Bytes, BytesMut};
use partywall_abi::frame::{self, Metadata, OwnedMetadata};
use tonic::Status;

/// Pieces below this many bytes are put together while they wait.
const SMALL: usize = 1024;
/// So much is put together at most.
const TOGETHER: usize = 16 * 1024;

/// Trailers as they came.
#[derive(Debug)]
pub(crate) struct Trailers {
    pub(crate) code: u8,
    pub(crate) metadata: OwnedMetadata,
}

impl From<&frame::Trailers<'_>> for Trailers {
    #[inline]
    fn from(trailers: &frame::Trailers<'_>) -> Self {
        Self { code: trailers.code, metadata: OwnedMetadata::from(&trailers.metadata) }
    }
}

/// The head of an answer.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) metadata: OwnedMetadata,
    /// What is attached to it.
    pub(crate) attached: Option<Box<Attached>>,
}

/// All of an answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) head: Head,
    pub(crate) data: Option<Bytes>,
    pub(crate) trailers: Trailers,
}

/// How an answer begins.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All of it, as a plain frame has it: the status is OK, and there is no metadata.
    Plain(Bytes),
    /// All of another one.
    Whole(Box<Whole>),
    /// The head; the rest is to be taken.
    Head(Head),
    /// Trailers without a head: a status alone.
    Trailers(Trailers),
}

/// Whether an answer that begins and ends at once says no more than a plain frame.
#[inline]
pub(super) fn is_plain(head: Option<&Metadata<'_>>, end: Option<&frame::Trailers<'_>>) -> bool {
    let is_good = |end: &frame::Trailers<'_>| end.code == 0 && end.metadata.is_empty();
    head.is_some_and(Metadata::is_empty) && end.is_some_and(is_good)
}

impl Answer {
    pub(super) fn whole(head: Head, data: Bytes, trailers: Trailers) -> Self {
        let is_empty = |metadata: &OwnedMetadata| metadata.get().is_empty();
        let is_bare = is_empty(&head.metadata) && head.attached.is_none();
        if trailers.code == 0 && is_bare && is_empty(&trailers.metadata) {
            return Self::Plain(data);
        }
        let data = (!data.is_empty()).then_some(data);
        Self::Whole(Box::new(Whole { head, data, trailers }))
    }
}

/// What a call finds in its mailbox.
#[derive(Debug)]
pub(crate) enum Taken {
    Data(Piece),
    Trailers(Trailers),
    End,
}

/// What a frame brings.
#[derive(Default)]
pub(super) struct Part {
    pub(super) head: Option<Head>,
    pub(super) data: Piece,
    pub(super) trailers: Option<Trailers>,
    pub(super) end: bool,
}

/// Who is to be woken when the lock is free.
#[must_use = "who waits is to be woken"]
#[derive(Default)]
pub(super) struct Wakers([Option<Waker>; 2]);

impl Wakers {
    pub(super) fn wake(self) {
        let Self([reader, writer]) = self;
        // One after the other: iterators over them cost as much as waking.
        if let Some(waker) = reader {
            waker.wake();
        }
        if let Some(waker) = writer {
            waker.wake();
        }
    }
}

/// What a call has named its method by.
pub(super) enum Named {
    Path(Arc<str>),
    Number(u16),
}

impl Named {
    /// The path, where these are those that have numbers.
    pub(super) fn path<'a>(&'a self, numbered: &'a [Arc<str>]) -> &'a str {
        match self {
            Self::Path(path) => path,
            Self::Number(number) => &numbered[usize::from(*number)],
        }
    }
}

pub(super) struct Mailbox {
    /// How many values refer to the call; with the last one it is released.
    pub(super) users: usize,
    /// What is called, in the service, as soon as that is known.
    pub(super) named: Option<Named>,
    head: Option<Head>,
    /// The first piece, as most calls have one.
    first: Bytes,
    trailers: Option<Trailers>,
    error: Option<Box<Status>>,
    /// Nothing more comes, or nobody takes it.
    ended: bool,
    /// Who waits for any of the above, and who for credit.
    reader: Option<Waker>,
    writer: Option<Waker>,
    rest: Option<Box<Rest>>,
}

/// What most calls have none of.
#[derive(Default)]
struct Rest {
    /// Pieces after the first, and all of which only a part of a parcel has come.
    pieces: VecDeque<Piece>,
    /// Small pieces after those.
    small: BytesMut,
    /// A waker that another one has taken the place of: it is dropped when the lock is free, since that
    /// may end a task which has calls on this link.
    replaced: Option<Waker>,
}

impl Rest {
    fn has_data(&self) -> bool {
        !(self.pieces.is_empty() && self.small.is_empty())
    }

    fn put(&mut self, data: Piece) {
        let small = match &data {
            Piece::Here(data) if data.len() < SMALL => Some(data),
            _ => None,
        };
        if let Some(small) = small {
            self.small.extend_from_slice(small);
            if self.small.len() < TOGETHER {
                return;
            }
        }
        let is_small = small.is_some();
        if !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze().into());
        }
        if !is_small {
            self.pieces.push_back(data);
        }
    }

    fn take(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front();
        piece.or_else(|| (!self.small.is_empty()).then(|| self.small.split().freeze().into()))
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            users: 1,
            named: None,
            head: None,
            first: Bytes::new(),
            trailers: None,
            error: None,
            ended: false,
            reader: None,
            writer: None,
            rest: None,
        }
    }
}

impl Mailbox {
    /// Puts in what a frame brought; whom to wake for it. Of a call that reads for itself, nobody is.
    pub(super) fn fill(&mut self, part: Part, own: bool) -> Wakers {
        if part.head.is_some() {
            self.head = part.head;
        }
        self.put(part.data);
        self.ended |= part.end;
        // An answered call takes no more of the request.
        let stopped = part.trailers.is_some();
        self.trailers = part.trailers;
        if own {
            return Wakers::default();
        }
        Wakers([self.reader.take(), stopped.then(|| self.writer.take()).flatten()])
    }

    fn put(&mut self, data: Piece) {
        match data {
            Piece::Here(data) if data.is_empty() => {}
            Piece::Here(data) if self.first.is_empty() && !self.has_more() => self.first = data,
            data => self.rest().put(data),
        }
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    /// Whether there are pieces after the first.
    fn has_more(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.has_data())
    }

    fn take(&mut self) -> Option<Piece> {
        if !self.first.is_empty() {
            return Some(std::mem::take(&mut self.first).into());
        }
        self.rest.as_mut()?.take()
    }

    fn has_data(&self) -> bool {
        !self.first.is_empty() || self.has_more()
    }

    /// The reader cannot have this yet.
    pub(super) fn put_back(&mut self, piece: Piece) {
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            self.rest().pieces.push_front(first.into());
        }
        match piece {
            Piece::Here(piece) => self.first = piece,
            lent => self.rest().pieces.push_front(lent),
        }
    }

    /// Ends the call with an error; what has come before can still be read.
    pub(super) fn fail(&mut self, status: Status) -> Wakers {
        if !std::mem::replace(&mut self.ended, true) {
            self.error = Some(Box::new(status));
        }
        Wakers([self.reader.take(), self.writer.take()])
    }

    /// A waker to drop when the lock is free.
    pub(super) fn take_replaced(&mut self) -> Option<Waker> {
        self.rest.as_mut()?.replaced.take()
    }

    /// Nothing more is to be put in: all has come, the call has failed, or nobody reads.
    #[inline]
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Throws away what has come. What comes is not to be put in.
    pub(super) fn discard(&mut self) {
        self.ended = true;
        while self.take().is_some() {}
    }

    /// More may be sent.
    pub(super) fn credited(&mut self) -> Wakers {
        Wakers([self.writer.take(), None])
    }

    /// Has the task woken when more may be sent, or nothing ever.
    pub(super) fn wait_to_send(&mut self, cx: &Context<'_>) {
        let replaced = register(&mut self.writer, cx);
        self.keep(replaced);
    }

    /// Has the task woken when there is something to read.
    fn wait_to_read(&mut self, cx: &Context<'_>) {
        let replaced = register(&mut self.reader, cx);
        self.keep(replaced);
    }

    fn keep(&mut self, replaced: Option<Waker>) {
        if replaced.is_some() {
            self.rest().replaced = replaced;
        }
    }

    /// How the answer begins, or what came instead of one.
    pub(super) fn poll_head(&mut self, cx: &Context<'_>) -> Poll<Result<Answer, Status>> {
        if let Some(head) = self.head.take() {
            let one_piece = !self.has_more();
            return Poll::Ready(Ok(match self.trailers.take() {
                Some(trailers) if one_piece => {
                    let data = std::mem::take(&mut self.first);
                    Answer::whole(head, data, trailers)
                }
                trailers => {
                    self.trailers = trailers;
                    Answer::Head(head)
                }
            }));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(*error));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Ok(Answer::Trailers(trailers)));
        }
        if self.ended {
            return Poll::Ready(Err(Status::internal("the call ended without an answer")));
        }
        self.wait_to_read(cx);
        Poll::Pending
    }

    /// The next piece. Data counts as taken when the connection has been told so.
    pub(super) fn poll_take(&mut self, cx: &Context<'_>) -> Poll<Result<Taken, Status>> {
        if let Some(piece) = self.take() {
            return Poll::Ready(Ok(Taken::Data(piece)));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(*error));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Ok(Taken::Trailers(trailers)));
        }
        if self.ended {
            return Poll::Ready(Ok(Taken::End));
        }
        self.wait_to_read(cx);
        Poll::Pending
    }

    /// Ready when the call has failed: what has come of a message that waits is of no use then.
    pub(super) fn poll_failed(&mut self, cx: &Context<'_>) -> Poll<Status> {
        self.wait_to_read(cx);
        self.error.take().map_or(Poll::Pending, |error| Poll::Ready(*error))
    }

    /// Whether nothing is left to take.
    pub(super) fn is_drained(&self) -> bool {
        self.ended && !self.has_data() && self.trailers.is_none() && self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn data(bytes: impl Into<Bytes>) -> Part {
        Part { data: bytes.into().into(), ..Part::default() }
    }

    #[test]
    fn data_comes_before_the_error_and_the_error_once() {
        let mut mailbox = Mailbox::default();
        mailbox.fill(data("x"), false).wake();
        mailbox.fail(Status::unavailable("gone")).wake();
        assert!(matches!(mailbox.poll_take(&cx()), Poll::Ready(Ok(Taken::Data(_)))));
        assert!(matches!(mailbox.poll_take(&cx()), Poll::Ready(Err(_))));
        assert!(matches!(mailbox.poll_take(&cx()), Poll::Ready(Ok(Taken::End))));
        assert!(mailbox.is_drained());
    }

    #[test]
    fn a_piece_that_is_put_back_comes_first() {
        let mut mailbox = Mailbox::default();
        for piece in ["one", "two", "three"] {
            mailbox.fill(data(piece), false).wake();
        }
        let taken = |mailbox: &mut Mailbox| match mailbox.poll_take(&cx()) {
            Poll::Ready(Ok(Taken::Data(Piece::Here(piece)))) => Some(piece),
            _ => None,
        };
        let mut one = taken(&mut mailbox).unwrap();
        mailbox.put_back(one.split_off(1).into());
        let mut all = one.to_vec();
        while let Some(piece) = taken(&mut mailbox) {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all, b"onetwothree");
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

        let mut mailbox = Mailbox::default();
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
            mailbox.fill(data(piece), false).wake();
        }
        let (kept, small) = (kept.load(Ordering::Relaxed), mailbox.rest().small.capacity());
        assert_eq!(kept, 8 * 2 * SMALL, "only large ones are kept as they came");
        let in_order = &mailbox.rest().pieces;
        assert!(in_order.len() < 32, "{} pieces", in_order.len());
        let in_order = in_order.iter().map(Piece::len).sum::<usize>();
        // The small ones, put together.
        let pieces = mailbox.first.len() + in_order;
        let own = pieces - kept;
        assert!(own + small + kept <= 2 * total, "{own}, {small} and {kept} for {total}");
        let mut got = Vec::new();
        while got.len() < total {
            let Poll::Ready(Ok(Taken::Data(Piece::Here(d)))) = mailbox.poll_take(&cx()) else {
                panic!()
            };
            got.extend_from_slice(&d);
        }
        assert!(got == sent);
    }
}
