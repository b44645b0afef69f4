//! What a call receives, as an HTTP body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::{Code, Status};

use super::account::Charge;
use super::client;
use super::core::Core;
pub(crate) use super::incoming::Incoming;
use partywall_call::SHORT;

/// The body of a request, as a service reads it.
pub(crate) struct RequestBody(pub(crate) Incoming);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_drained()
    }
}

/// The whole of a request that came in one record.
///
/// A long one is charged to its caller's account until the handler has taken it; where that has no
/// room, it counts against the link's window instead. Short ones are too little to keep account of.
pub(crate) struct WholeBody {
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
    Window(Arc<Core>),
}

impl WholeBody {
    pub(crate) fn new(core: &Arc<Core>, data: Bytes) -> Self {
        let len = data.len();
        let held = if len <= SHORT {
            Held::Nothing
        } else if let Some(charge) = core.account.try_charge(len as u64) {
            Held::Account { _charge: charge }
        } else {
            Held::Window(Arc::clone(core))
        };
        if !matches!(held, Held::Window(_)) {
            core.give_back(len as u32);
        }
        Self { data: (len > 0).then_some(data), held }
    }

    fn take(&mut self) -> Option<Bytes> {
        let data = self.data.take()?;
        if let Held::Window(core) = std::mem::replace(&mut self.held, Held::Nothing) {
            core.give_back(data.len() as u32);
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

/// The body of a response. Dropping it before its end cancels the call.
pub(crate) struct ResponseBody {
    pub(crate) incoming: Incoming,
    pub(crate) call: client::OpenCall,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { incoming, call } = &mut *self;
        match incoming.poll(cx) {
            Poll::Ready(frame) => {
                if !matches!(&frame, Some(Ok(f)) if f.is_data()) {
                    call.finished();
                }
                Poll::Ready(frame)
            }
            Poll::Pending => {
                if call.poll_expired(cx).is_ready() {
                    call.cancel(Code::DeadlineExceeded);
                    return Poll::Ready(Some(Err(client::expired())));
                }
                call.settle();
                // What settling has brought is taken now, not after a wake-up that came
                // before this task waited.
                incoming.poll(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_drained()
    }
}

/// The body of a response that came at once.
pub(crate) struct WholeAnswer {
    pub(crate) data: Option<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
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
    use crate::ring::account::{Accounts, Bounds};
    use crate::ring::stream::Part;
    use partywall_abi::frame::Kind;
    use partywall_abi::layout::Geometry;
    use partywall_abi::limits;
    use partywall_shm::setup::local_pair;
    use std::task::ready;

    #[tokio::test]
    async fn a_stream_that_is_always_ready_lets_other_tasks_run() {
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let core = Arc::new(Core::calling(ours, None).unwrap());
        let (stream, _) = core.open(false).unwrap().unwrap();
        // As long as not to be put together.
        for _ in 0..500 {
            stream.fill(Part::data(vec![1; 1024].into(), false), false).unwrap();
        }
        stream.fill(Part::data(Bytes::new(), true), false).unwrap();
        let mut incoming = Incoming::new(core, stream);
        let (mut polls, mut read) = (0, 0);
        std::future::poll_fn(|cx| {
            polls += 1;
            while let Some(frame) = ready!(incoming.poll(cx)) {
                read += frame.unwrap().into_data().unwrap().len();
            }
            Poll::Ready(())
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
        let core = Arc::new(Core::serving(ours, account, None).unwrap());
        let mut granted = theirs.consumer;
        assert_eq!(granted.peek().unwrap().map(|d| d.kind), Some(Kind::Limits as u8));
        granted.release();
        let mut grant = || -> Option<u32> {
            let d = granted.peek().unwrap()?;
            let mut payload = Vec::with_capacity(d.len as usize);
            granted.read(&mut payload);
            granted.release();
            assert_eq!((d.kind, d.stream), (Kind::Window as u8, 0));
            Some(u32::from_le_bytes(payload.try_into().unwrap()))
        };
        let arrive = || {
            core.charge(len as usize).unwrap();
            WholeBody::new(&core, vec![0; len as usize].into())
        };
        // The account has room for so many: the window is given back.
        let mut kept: Vec<_> = (0..64).map(|_| arrive()).collect();
        let granted: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted >= 56 * len, "{granted} bytes granted");
        // And none for more: they hold the window.
        kept.extend((0..8).map(|_| arrive()));
        assert!(kept.iter().skip(64).all(|body| matches!(body.held, Held::Window(_))));
        let before: u32 = std::iter::from_fn(&mut grant).sum();
        // One is read, the others are dropped unread.
        assert_eq!(kept[0].take().map(|data| data.len()), Some(len as usize));
        assert!(kept[0].is_end_stream());
        kept.clear();
        core.charge(0).unwrap();
        let after: u32 = std::iter::from_fn(&mut grant).sum();
        assert!(granted + before + after >= 64 * len, "{granted} {before} {after}");
        assert!(core.account.try_charge(bytes).is_some(), "something is still charged");
        // The record's own copy is all that a short one needs.
        let holds = |bytes: usize| {
            core.charge(bytes).unwrap();
            !matches!(WholeBody::new(&core, vec![0; bytes].into()).held, Held::Nothing)
        };
        assert_eq!([4096, 4097].map(holds), [false, true]);
    }
}
