//! Calls of few words, for tests of links.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use partywall_abi::frame::{self, RequestHead};
use tonic::Status;

use super::caller::{Begun, Call};
use super::receiver::{Came, Receive};
use super::sender::{Request, Source};
use super::service::{Data, Dispatch, Incoming};

/// A request of some pieces of data.
pub(super) struct Pieces {
    piece: &'static [u8],
    left: usize,
}

impl Pieces {
    pub(super) fn new(piece: &'static [u8], left: usize) -> Self {
        Self { piece, left }
    }
}

impl Source for Pieces {
    fn method(&self) -> Option<&str> {
        Some("/a.B/C")
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a.B/C", 0);
        frame::write_block(block, head).expect("a short head");
        Ok(())
    }

    fn head_sent(&mut self) {}

    fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or_default();
        Poll::Ready(left.map(|_| Ok(Bytes::from_static(self.piece))))
    }

    fn write_trailers(&self, _block: &mut Vec<u8>) -> u8 {
        unreachable!("a request has no trailers")
    }
}

impl Request for Pieces {
    type Rest = Self;

    fn rest(self) -> Self {
        self
    }
}

/// Waits for the end of a call's answer.
pub(super) async fn end(mut call: Call<Pieces>) -> Result<(), Status> {
    let Begun::Head(_, mut rest) = std::future::poll_fn(|cx| call.poll(cx)).await? else {
        return Ok(());
    };
    while let Some(came) = std::future::poll_fn(|cx| rest.poll(cx)).await {
        if let Came::Trailers(_) = came? {
            return Ok(());
        }
    }
    Ok(())
}

/// Answers no call.
pub(super) struct Never;

impl Dispatch for Never {
    type Method = ();
    type Handler = Kept;

    fn method(&self, _path: &str) -> Option<()> {
        Some(())
    }

    fn call(&self, incoming: Incoming<'_, ()>) -> Kept {
        Kept { _data: incoming.data }
    }
}

/// Keeps what came of a request, and answers nothing.
pub(super) struct Kept {
    _data: Data,
}

impl Future for Kept {
    type Output = Pieces;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Pieces> {
        Poll::Pending
    }
}
