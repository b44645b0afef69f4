//! Calls with the types of `http`, as tonic's stubs and tower's layers make and answer them, over a link.
//!
//! ```text
//! caller    http::Request -> Request, a source -> link::caller -> Begun -> http::Response
//! service   Incoming -> http::Request -> link::service::Dispatch -> http::Response -> Answer, a source
//!                    -> stubs::Call   -> a generated service      -> stubs::Begun  -> Answer
//! ```
//!
//! On a link with signed messages both bodies pass [`signed`], on the side of the one who sends and of the
//! one who receives. Which of the two ways a call goes in a service is chosen in [`service`], by what its
//! method's path names.
//!
//! A link knows none of these types. What travels is in [`crate::wire`]. A body is polled by the sender of
//! its link, and message bytes go from it onto the ring without another copy; what a body brings to its
//! reader is the record that was received.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;

pub(crate) mod caller;
pub(crate) mod service;
mod signed;

use crate::link::receiver::{Came, Receive};
use crate::wire;

/// A body that is received: of a request, or of a response.
struct Received<R>(R);

impl<R: Receive + Unpin> Body for Received<R> {
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

/// A body of which something has been received before, and how that ended if it has.
struct Replayed<R> {
    before: Bytes,
    came: Option<Result<Came, Status>>,
    rest: Box<R>,
}

impl<R: Receive + Unpin> Body for Replayed<R> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.before.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.before)))));
        }
        if let Some(came) = self.came.take() {
            return Poll::Ready(Some(came.map(frame)));
        }
        self.rest.poll(cx).map(|came| came.map(|came| came.map(frame)))
    }
}

/// What came, as HTTP has it.
fn frame(came: Came) -> Frame<Bytes> {
    match came {
        Came::Data(data) => Frame::data(data),
        Came::Trailers(trailers) => {
            Frame::trailers(wire::trailers(trailers.code, &trailers.metadata.get()))
        }
    }
}
