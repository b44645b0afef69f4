//! Calls of few words, for tests of links.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use partywall_abi::frame::{self, RequestHead, ResponseHead};
use partywall_abi::sync::{AtomicUsize, Ordering};
use partywall_shm::slot::SlotBuf;
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

/// Answers each call with one byte. After so many, what it answers panics where it is encoded and where it is
/// dropped.
pub(super) struct Panics(pub(super) AtomicUsize);

impl Dispatch for Panics {
    type Method = ();
    type Handler = Ready<Byte>;

    fn method(&self, _path: &str) -> Option<()> {
        Some(())
    }

    fn call(&self, _incoming: Incoming<'_, ()>) -> Ready<Byte> {
        let is_bad = self.0.load(Ordering::Relaxed) == 0;
        self.0.fetch_sub(usize::from(!is_bad), Ordering::Relaxed);
        ready(Byte { is_bad })
    }
}

pub(super) struct Byte {
    is_bad: bool,
}

impl Source for Byte {
    fn method(&self) -> Option<&str> {
        None
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        frame::write_block(block, |out| ResponseHead::write(out, 0)).expect("a short head");
        Ok(())
    }

    fn head_sent(&mut self) {}

    fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        unreachable!("it is encoded where it is sent from")
    }

    fn whole(&self) -> Option<usize> {
        Some(1)
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn write_whole(&mut self, out: &mut SlotBuf<'_>) -> bool {
        assert!(!self.is_bad, "as it was asked");
        out.put_u8(7);
        true
    }

    fn write_trailers(&self, _block: &mut Vec<u8>) -> u8 {
        unreachable!("it is plain")
    }
}

impl Drop for Byte {
    fn drop(&mut self) {
        assert!(!self.is_bad || std::thread::panicking(), "as it was asked, again");
    }
}
