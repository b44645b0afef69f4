//! What a call receives, as an HTTP body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::task::coop;
use tonic::{Code, Status};

use super::client;
use super::core::Core;
use super::stream::{Stream, Taken};

/// The receiving half of one call; what it does not take is given back when it is dropped.
pub(crate) struct Incoming {
    core: Arc<Core>,
    stream: Arc<Stream>,
}

impl Incoming {
    pub(crate) fn new(core: Arc<Core>, stream: Arc<Stream>) -> Self {
        Self { core, stream }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let turn = ready!(coop::poll_proceed(cx));
        let taken = ready!(self.stream.poll_take(cx));
        turn.made_progress();
        let (taken, grant) = match taken {
            Ok(taken) => taken,
            Err(status) => return Poll::Ready(Some(Err(status))),
        };
        if grant > 0 {
            let kind = partywall_abi::segment::Kind::Window;
            self.core.push_control(kind, self.stream.id, &grant.to_le_bytes());
        }
        Poll::Ready(match taken {
            Taken::Data(data) => {
                self.core.give_back(data.len() as u32);
                Some(Ok(Frame::data(data)))
            }
            Taken::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Taken::End => None,
        })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.core.give_back(self.stream.unread());
    }
}

/// The body of a request, as a service reads it.
pub(crate) struct RequestBody(pub(crate) Incoming);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.stream.is_drained()
    }
}

/// The whole of a request that came in one record.
///
/// A long one counts against the link's window until the handler has taken it ([`Core::hold`]);
/// short ones are too little to keep a link waiting for.
pub(crate) struct WholeBody {
    data: Option<Bytes>,
    window: Option<Arc<Core>>,
}

/// Up to so many bytes are short.
const SHORT: usize = 4096;

impl WholeBody {
    pub(crate) fn new(core: &Arc<Core>, data: Bytes) -> Self {
        let len = data.len() as u32;
        let window = (data.len() > SHORT && core.hold(len)).then(|| Arc::clone(core));
        if window.is_none() {
            core.give_back(len);
        }
        Self { data: (!data.is_empty()).then_some(data), window }
    }

    fn take(&mut self) -> Option<Bytes> {
        let data = self.data.take()?;
        if let Some(core) = self.window.take() {
            core.let_go(data.len() as u32);
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

/// The body of a response from a [`crate::Channel`]. Dropping it before its end cancels the call.
pub struct ResponseBody(pub(crate) Inner);

pub(crate) enum Inner {
    Ring {
        incoming: Incoming,
        call: client::OpenCall,
    },
    /// All of it came at once.
    Whole {
        data: Option<Bytes>,
        trailers: Option<http::HeaderMap>,
    },
    Http2(tonic::body::Body),
    Empty,
}

impl Default for ResponseBody {
    /// The empty body.
    fn default() -> Self {
        Self(Inner::Empty)
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Inner::Ring { .. } | Inner::Whole { .. } => "ResponseBody(ring)",
            Inner::Http2(_) => "ResponseBody(http2)",
            Inner::Empty => "ResponseBody(empty)",
        })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.0 {
            Inner::Empty => Poll::Ready(None),
            Inner::Whole { data, trailers } => Poll::Ready(match data.take() {
                Some(data) => Some(Ok(Frame::data(data))),
                None => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            }),
            Inner::Http2(body) => Pin::new(body).poll_frame(cx),
            Inner::Ring { incoming, call } => match incoming.poll(cx) {
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
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Empty => true,
            Inner::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Inner::Http2(body) => body.is_end_stream(),
            Inner::Ring { incoming, .. } => incoming.stream.is_drained(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::stream::Part;
    use partywall_abi::layout::Geometry;
    use partywall_abi::limits;
    use partywall_shm::setup::local_pair;

    #[tokio::test]
    async fn a_stream_that_is_always_ready_lets_other_tasks_run() {
        let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
        let core = Arc::new(Core::new(ours, None).unwrap());
        let (stream, _) = core.open().unwrap();
        // As long as not to be put together.
        for _ in 0..500 {
            stream.fill(Part::data(vec![1; 1024].into(), false), false).unwrap();
        }
        stream.fill(Part::data(Bytes::new(), true), false).unwrap();
        let incoming = Incoming::new(core, stream);
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
    async fn a_long_request_counts_against_the_window_until_it_is_taken() {
        let (ours, theirs) = local_pair(Geometry::WIDE).unwrap();
        let core = Arc::new(Core::new(ours, None).unwrap());
        let mut granted = theirs.consumer;
        let len = limits::LINK_WINDOW / 128;
        let arrive = || {
            core.charge(len as usize).unwrap();
            WholeBody::new(&core, vec![0; len as usize].into())
        };
        let mut kept: Vec<_> = (0..64).map(|_| arrive()).collect();
        assert!(granted.peek().unwrap().is_none(), "nobody has taken anything");
        // Others leave room for what those may wait for.
        let one_more = arrive();
        assert!(one_more.window.is_none());
        drop(one_more);
        // One is read, the others are dropped unread.
        assert_eq!(kept[0].take().map(|data| data.len()), Some(len as usize));
        assert!(kept[0].is_end_stream());
        kept.clear();
        let grant = granted.peek().unwrap().expect("as much as is left");
        let mut payload = Vec::with_capacity(grant.len as usize);
        granted.read(&mut payload);
        assert_eq!(payload, (63 * len).to_le_bytes());
        // The record's own copy is all that a short one needs.
        core.charge(SHORT).unwrap();
        let short = WholeBody::new(&core, vec![0; SHORT].into());
        assert!(short.window.is_none());
    }
}
