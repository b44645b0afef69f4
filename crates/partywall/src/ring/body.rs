//! What a call receives, as an HTTP body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
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
        let (taken, grant) = match ready!(self.stream.poll_take(cx)) {
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

/// The whole of a small request.
pub(crate) struct WholeBody(pub(crate) Option<Bytes>);

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
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
