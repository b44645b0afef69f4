//! What a call receives, as an HTTP body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use partywall_call::{Key, SHORT};
use tonic::Status;

use super::Link;
use super::account::Charge;
use super::receiver::{Came, Receiver};
use crate::wire;

/// What came, as HTTP has it.
pub(super) fn frame(came: Came) -> Frame<Bytes> {
    match came {
        Came::Data(data) => Frame::data(data),
        Came::Trailers(trailers) => {
            Frame::trailers(wire::trailers(trailers.code, &trailers.metadata.get()))
        }
    }
}

/// The body of a request, as a service reads it.
pub(super) struct RequestBody(pub(super) Receiver);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll(cx).map(|came| came.map(|came| came.map(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_drained()
    }
}

/// The whole of a request that came in one record.
///
/// A long one is charged to its caller's account until the handler has taken it; where that has no
/// room, it counts against the link's window instead. Short ones are too little to keep account of.
pub(super) struct WholeBody {
    data: Option<Bytes>,
    held: Held,
}

/// What counts a whole request that is not taken.
enum Held {
    Nothing,
    /// Given back by its drop.
    Account {
        _charge: Charge,
    },
    /// With a reference to the call.
    Window(Arc<Link>, Key),
}

impl WholeBody {
    pub(super) fn new(link: &Arc<Link>, key: Key, data: Bytes) -> Self {
        let len = data.len();
        let held = if len <= SHORT {
            // It counted as taken when it came.
            Held::Nothing
        } else if let Some(charge) = link.calls.account.try_charge(len as u64) {
            link.send_control(link.calls.taken(key, len));
            Held::Account { _charge: charge }
        } else {
            link.calls.share(key);
            Held::Window(Arc::clone(link), key)
        };
        Self { data: (len > 0).then_some(data), held }
    }

    fn take(&mut self) -> Option<Bytes> {
        let data = self.data.take()?;
        if let Held::Window(link, key) = std::mem::replace(&mut self.held, Held::Nothing) {
            link.send_control(link.calls.taken(key, data.len()));
            link.release(key);
        }
        Some(data)
    }
}

impl Drop for WholeBody {
    fn drop(&mut self) {
        self.take();
    }
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }
}

/// The body of a response that came at once.
pub(super) struct WholeAnswer {
    pub(super) data: Option<Bytes>,
    pub(super) trailers: Option<HeaderMap>,
}

impl Body for WholeAnswer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(match self.data.take() {
            Some(data) => Some(Ok(Frame::data(data))),
            None => self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::account::{Accounts, Bounds};
    use crate::link::calls::Accepted;
    use crate::link::inbound::Record;
    use crate::link::wake::Ring;
    use partywall_abi::frame::{self as frames, END, HEAD, Kind, RequestHead, ResponseHead};
    use partywall_abi::layout::Geometry;
    use partywall_abi::limits;
    use partywall_shm::setup::local_pair;
    use std::task::ready;

    fn record(flags: u8, stream: u32, head: impl FnOnce(&mut Vec<u8>), data: usize) -> Record {
        let mut payload = Vec::new();
        if flags & HEAD != 0 {
            frames::write_block(&mut payload, head).unwrap();
        }
        payload.resize(payload.len() + data, 7);
        Record { kind: Kind::Frame as u8, flags, stream, payload: payload.into() }
    }

    #[tokio::test]
    async fn a_stream_that_is_always_ready_lets_other_tasks_run() {
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let link = Arc::new(Link::calling(ours, None, Box::new(Ring)).unwrap());
        let (key, _) = link.calls.open(false).unwrap().unwrap();
        // As long as not to be put together.
        for n in 0..500 {
            let flags = if n == 0 { HEAD } else { 0 };
            let head = |out: &mut Vec<u8>| ResponseHead::write(out, 0);
            drop(link.calls.accept(record(flags, key.number(), head, 1024), None).unwrap());
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

    #[tokio::test]
    async fn a_long_request_counts_until_it_is_taken() {
        let (ours, theirs) = local_pair(Geometry::WIDE).unwrap();
        let len = limits::LINK_WINDOW / 128;
        let bytes = 64 * u64::from(len);
        let accounts = Accounts::new(Bounds { bytes, ..Bounds::default() });
        let account = accounts.open(1, Some(1));
        assert_eq!(account.window, len * 16);
        let link = Arc::new(Link::serving(ours, account, None).unwrap());
        let mut granted = theirs.consumer;
        assert_eq!(granted.peek().unwrap().map(|d| d.kind), Some(Kind::Limits as u8));
        granted.release();
        let mut grant = || -> Option<u32> {
            loop {
                let d = granted.peek().unwrap()?;
                let mut payload = Vec::with_capacity(d.len as usize);
                granted.read(&mut payload);
                granted.release();
                // Calls end without an answer here.
                if d.kind != Kind::Reset as u8 {
                    assert_eq!((d.kind, d.stream), (Kind::Window as u8, 0));
                    return Some(u32::from_le_bytes(payload.try_into().unwrap()));
                }
            }
        };
        let mut stream = 0;
        let mut arrive = |len: u32| {
            stream += 1;
            let head = |out: &mut Vec<u8>| RequestHead::write(out, frames::NO_DEADLINE, "/a/b", 0);
            let record = record(HEAD | END, stream, head, len as usize);
            let (accepted, due) = link.calls.accept(record, None).unwrap();
            link.send_control(due);
            let Accepted::Opened(mut opened) = accepted else { panic!("it is refused") };
            let body = WholeBody::new(&link, opened.key, opened.take_data());
            link.release(opened.key);
            body
        };
        // The account has room for so many: the window is given back.
        let mut kept: Vec<_> = (0..64).map(|_| arrive(len)).collect();
        let granted: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted >= 56 * len, "{granted} bytes granted");
        // And none for more: they hold the window.
        kept.extend((0..8).map(|_| arrive(len)));
        assert!(kept.iter().skip(64).all(|body| matches!(body.held, Held::Window(..))));
        let before: u32 = std::iter::from_fn(&mut grant).sum();
        // One is read, the others are dropped unread.
        assert_eq!(kept[0].take().map(|data| data.len()), Some(len as usize));
        assert!(kept[0].is_end_stream());
        kept.clear();
        let last = arrive(1);
        let after: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted + before + after >= 64 * len, "{granted} {before} {after}");
        drop(last);
        assert!(link.calls.account.try_charge(bytes).is_some(), "something is still charged");
        // The record's own copy is all that a short one needs.
        let held = [4096, 4097].map(|len| !matches!(arrive(len).held, Held::Nothing));
        assert_eq!(held, [false, true]);
    }
}
