//! A stream to one process: the sender of everything that is read is compared with it.
//!
//! The kernel says with all that is received who sent it (SO_PASSCRED, unix(7)), and gives what two senders
//! sent in two pieces. What another process sends is an error, and nothing of it is read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use partywall_shm::socket::{Credentials, Endpoint};
use rustix::net::{SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::authority::Frames;
use crate::preface::PREFACE;

/// Registers a socket with the runtime.
///
/// tokio's successors of this constructor are unsafe, because a type could close its descriptor while it is
/// registered. [`Socket`] and `OwnedFd` own theirs until they are dropped.
#[expect(deprecated, reason = "the safe form; see above")]
pub(crate) fn watch<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

struct Socket(Endpoint);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The stream.
pub(crate) struct Checked {
    fd: AsyncFd<Socket>,
    peer: Credentials,
    /// What was received already, and is read first.
    before: BytesMut,
    /// From the admission on.
    frames: Option<Frames>,
}

impl Checked {
    /// Of a socket that was accepted from this process.
    pub(crate) fn new(mut socket: Endpoint, peer: Credentials) -> io::Result<Self> {
        // It is so already, by its listener: what came before this call has its sender as well.
        socket.pass_credentials()?;
        Ok(Self { fd: watch(Socket(socket))?, peer, before: BytesMut::new(), frames: None })
    }

    /// The same, of which this is to be read first: a preface, and frames.
    pub(crate) fn after(self, come: &[u8]) -> Self {
        let (mut frames, mut before) = (Frames::new(PREFACE.len()), BytesMut::new());
        frames.take(come, &mut before);
        Self { before, frames: Some(frames), ..self }
    }

    /// Receives from the process that connected, and from nobody else.
    fn poll_receive(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.fd.poll_read_ready(cx))?;
            let Ok(received) = ready.try_io(|fd| fd.get_ref().0.receive_stream(into)) else {
                continue;
            };
            let packet = received?;
            let sender = packet.credentials.map(|from| (from.pid, from.uid));
            if packet.len > 0 && sender != Some((self.peer.pid, self.peer.uid)) {
                let text = "it comes from another process than the one that connected";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, text)));
            }
            return Poll::Ready(Ok(packet.len));
        }
    }
}

impl AsyncRead for Checked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.before.has_remaining() {
                let len = self.before.len().min(buffer.remaining());
                buffer.put_slice(&self.before.split_to(len));
                return Poll::Ready(Ok(()));
            }
            let mut come = [0; 4096];
            let len = ready!(self.poll_receive(cx, &mut come))?;
            let Self { before, frames, .. } = &mut *self;
            match frames {
                _ if len == 0 => return Poll::Ready(Ok(())),
                Some(frames) => frames.take(&come[..len], before),
                None => before.extend_from_slice(&come[..len]),
            }
        }
    }
}

impl AsyncWrite for Checked {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.fd.poll_write_ready(cx))?;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let send = |fd: &AsyncFd<Socket>| Ok(rustix::net::send(&fd.get_ref().0, bytes, flags)?);
            if let Ok(sent) = ready.try_io(send) {
                return Poll::Ready(sent);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(&self.fd.get_ref().0, Shutdown::Write)?))
    }
}
