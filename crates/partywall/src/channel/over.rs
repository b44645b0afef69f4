//! A connection that says when it is over.
//!
//! ```text
//! socket   whoever speaks HTTP/2 has it, and drops it with the connection
//! Over     is set then, or by who finds the connection of no more use, and wakes who keeps connections
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Whether a connection is over: it takes no calls then, and those under way may go on.
pub(super) struct Over {
    is: AtomicBool,
    wakes: Arc<Notify>,
}

impl Over {
    /// That of a new connection.
    pub(super) fn new(wakes: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { is: AtomicBool::new(false), wakes })
    }

    pub(super) fn is(&self) -> bool {
        self.is.load(Ordering::Acquire)
    }

    pub(super) fn set(&self) {
        if !self.is.swap(true, Ordering::AcqRel) {
            self.wakes.notify_one();
        }
    }
}

/// A socket that tells of its end.
pub(super) struct Watched<S> {
    socket: S,
    over: Arc<Over>,
}

impl<S> Watched<S> {
    pub(super) fn new(socket: S, over: Arc<Over>) -> Self {
        Self { socket, over }
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.over.set();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
