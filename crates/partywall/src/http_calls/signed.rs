//! Bodies of requests and responses whose messages are signed on their way, or checked.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use partywall_trust::message::{MessageError, Way};
use tonic::Status;
use tonic::body::Body;

use crate::coordinator::{Client, Own, Room};
use crate::error::Error;
use crate::link::signed::{CERTIFIED, Call, Came, Incoming, Outgoing};

type Asking = Pin<Box<dyn Future<Output = Result<Arc<Own>, Error>> + Send>>;

/// Who this process is, asked for anew for each message: certificates are renewed.
pub(crate) struct Owning {
    client: Arc<Client>,
    asking: Option<Asking>,
}

impl Owning {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        Self { client: Arc::clone(client), asking: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arc<Own>, Status>> {
        if self.asking.is_none()
            && let Some(own) = self.client.certified_now()
        {
            return Poll::Ready(Ok(own));
        }
        let client = &self.client;
        let asking = self.asking.get_or_insert_with(|| {
            let client = Arc::clone(client);
            Box::pin(async move { client.certified(CERTIFIED).await })
        });
        let own = ready!(asking.as_mut().poll(cx));
        self.asking = None;
        Poll::Ready(own.map_err(Status::from))
    }
}

/// A body whose messages are signed.
pub(crate) struct SigningBody {
    inner: Body,
    outgoing: Outgoing,
    owning: Owning,
    ready: VecDeque<Bytes>,
}

impl SigningBody {
    /// Of a request or of a response.
    pub(super) fn of(call: &Arc<Call>, way: Way, inner: Body) -> Body {
        let owning = Owning::new(call.signing().client());
        let outgoing = Outgoing::new(Arc::clone(call), way);
        Body::new(Self { inner, outgoing, owning, ready: VecDeque::new() })
    }
}

impl http_body::Body for SigningBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, outgoing, owning, ready } = &mut *self;
        loop {
            if let Some(piece) = ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let own = ready!(owning.poll(cx))?;
            let Some(frame) = ready!(Pin::new(&mut *inner).poll_frame(cx)?) else {
                return Poll::Ready(outgoing.end().err().map(Err));
            };
            match frame.into_data() {
                Ok(data) => outgoing.push(data, &own, ready)?,
                Err(frame) => return Poll::Ready(Some(outgoing.end().map(|()| frame))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.outgoing.end().is_ok() && self.inner.is_end_stream()
    }
}

/// A body whose messages are checked before they are passed on.
pub(crate) struct VerifyingBody {
    inner: Body,
    call: Arc<Call>,
    incoming: Incoming,
    owning: Owning,
    came: Came,
    /// A receipt waits for room.
    room: Option<Room>,
    /// It has failed: what came before is passed on first.
    failed: Option<MessageError>,
    over: bool,
}

impl VerifyingBody {
    /// Of a request or of a response.
    pub(super) fn of(call: &Arc<Call>, way: Way, inner: Body) -> Body {
        let owning = Owning::new(call.signing().client());
        let (call, incoming) = (Arc::clone(call), Incoming::new(Arc::clone(call), way));
        let (came, room, failed) = (Came::default(), None, None);
        Body::new(Self { inner, call, incoming, owning, came, room, failed, over: false })
    }

    /// The next piece that can be passed on, when its receipt is handed in; none where there is none.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let signing = self.call.signing();
        let has_receipt = matches!(self.came.pieces.front(), Some((_, Some(_))));
        if has_receipt && signing.has_receipts() {
            let client = signing.client();
            let room = self.room.get_or_insert_with(|| client.room_for_receipt());
            let permit = ready!(room.poll(cx));
            self.room = None;
            if let Some((_, Some(receipt))) = self.came.pieces.front() {
                client.hand_in(receipt.to_bytes(), permit);
            }
        }
        Poll::Ready(self.came.pieces.pop_front().map(|(piece, _)| piece))
    }
}

impl http_body::Body for VerifyingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if this.over {
                return Poll::Ready(None);
            }
            if let Some(piece) = ready!(this.poll_piece(cx)) {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some(why) = this.failed.take() {
                this.over = true;
                return Poll::Ready(Some(Err(this.call.signing().broken(&why))));
            }
            let own = ready!(this.owning.poll(cx))?;
            let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx)?);
            let data = match frame.map(Frame::into_data) {
                Some(Ok(data)) => Some(data),
                Some(Err(frame)) => {
                    this.over = true;
                    let ended = this.incoming.end().map_err(|why| this.call.signing().broken(&why));
                    return Poll::Ready(Some(ended.map(|()| frame)));
                }
                None => None,
            };
            let Some(data) = data else {
                this.over = true;
                let ended = this.incoming.end();
                return Poll::Ready(ended.err().map(|why| Err(this.call.signing().broken(&why))));
            };
            this.failed = this.incoming.push(data, &own, &mut this.came).err();
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over
            || (self.came.pieces.is_empty()
                && self.failed.is_none()
                && self.incoming.end().is_ok()
                && self.inner.is_end_stream())
    }
}

#[cfg(test)]
mod tests;
