//! A stream over a Unix socket to a process that is not trusted: HTTP/2 at a path, either end.
//!
//! Nobody asks for descriptors here, and one that came would be closed on the thread that reads, for as
//! long as its sender likes (crate `shm`, module `socket`). From Linux 6.16 on the kernel refuses them to
//! their sender. Before, what has come is looked at before it is received, which costs a second copy and
//! system call: a stream with descriptors fails, and is closed where nobody waits for that.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use partywall_shm::listen::BoundPath;
use partywall_shm::socket;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// One end.
pub(crate) struct Stream {
    /// Taken when it is dropped only.
    io: Option<UnixStream>,
    /// The kernel lets no descriptors in.
    plain: bool,
}

/// How long who connects waits before it tries again where the backlog is full.
const FULL: Duration = Duration::from_millis(5);

const TAKEN: &str = "it is taken only when the value goes";

impl Stream {
    /// Connects to a path; waits while too many others wait there to be accepted.
    pub(crate) async fn connect(path: &Path) -> io::Result<Self> {
        loop {
            let socket = UnixSocket::new_stream()?;
            let plain = socket::refuse_descriptors(socket.as_fd());
            match socket.connect(path).await {
                Ok(io) => return Self::of(io, plain),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(FULL).await,
                Err(e) => return Err(e),
            }
        }
    }

    /// Before anything is read. A byte out of band (`MSG_OOB`) brings descriptors as well, and is not seen
    /// by who looks before it reads, unless it comes in line.
    fn of(io: UnixStream, plain: bool) -> io::Result<Self> {
        if !plain {
            rustix::net::sockopt::set_socket_oobinline(&io, true)?;
        }
        Ok(Self { io: Some(io), plain })
    }

    fn io(&mut self) -> Pin<&mut UnixStream> {
        Pin::new(self.io.as_mut().expect(TAKEN))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.plain
            && let Some(socket) = self.io.take().and_then(|io| io.into_std().ok())
        {
            // Its peer hears of it now.
            let _gone = socket.shutdown(std::net::Shutdown::Both);
            socket::close_elsewhere(socket.into());
        }
    }
}

impl Connected for Stream {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.io.as_ref().expect(TAKEN).connect_info()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.plain {
            return self.io().poll_read(cx, buffer);
        }
        let io = self.io();
        loop {
            ready!(io.poll_read_ready(cx))?;
            let into = buffer.initialize_unfilled();
            let read = io.try_io(Interest::READABLE, || socket::receive_plain(io.as_fd(), into));
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().expect(TAKEN).is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_shutdown(cx)
    }
}

/// Where streams come in. What has been sent on those that nobody has accepted goes with it.
pub(crate) struct Listener {
    /// Taken when it is dropped only.
    io: Option<UnixListener>,
    /// Removes the path.
    _own: BoundPath,
    plain: bool,
}

impl Listener {
    /// Of a socket that listens; `plain` where it refuses descriptors ([`socket::refuse_descriptors`]).
    pub(crate) fn new(io: UnixListener, own: BoundPath, plain: bool) -> Self {
        Self { io: Some(io), _own: own, plain }
    }
}

impl tokio_stream::Stream for Listener {
    type Item = io::Result<Stream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = ready!(self.io.as_ref().expect(TAKEN).poll_accept(cx));
        Poll::Ready(Some(accepted.and_then(|(io, _)| Stream::of(io, self.plain))))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.plain
            && let Some(socket) = self.io.take().and_then(|io| io.into_std().ok())
        {
            socket::close_elsewhere(socket.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use partywall_testkit::lingering;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LINGER: Duration = Duration::from_secs(5);

    /// An end, and the other process's.
    fn pair(plain: bool) -> (Stream, UnixStream) {
        let (io, peer) = UnixStream::pair().unwrap();
        let plain = plain && socket::refuse_descriptors(io.as_fd());
        (Stream::of(io, plain).unwrap(), peer)
    }

    #[tokio::test]
    async fn a_stream_is_read_and_written_as_others_are() {
        for plain in [true, false] {
            let (mut own, mut peer) = pair(plain);
            let text: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
            let (mut got, sent) = (Vec::new(), text.clone());
            let write = tokio::spawn(async move {
                peer.write_all(&sent).await.unwrap();
                peer.shutdown().await.unwrap();
                let mut back = String::new();
                peer.read_to_string(&mut back).await.unwrap();
                back
            });
            own.read_to_end(&mut got).await.unwrap();
            assert!(got == text);
            own.write_all(b"back").await.unwrap();
            drop(own);
            assert_eq!(write.await.unwrap(), "back");
        }
    }

    /// A byte out of band, which who looks before it reads did not see.
    fn send_out_of_band(peer: &UnixStream, fd: std::os::fd::BorrowedFd<'_>) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let fds = [fd];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let data = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(peer, &data, &mut ancillary, SendFlags::OOB).unwrap();
    }

    /// The thread that read one closed it, for as long as its sender liked.
    #[tokio::test]
    async fn descriptor_in_a_stream_blocks_its_reader_never() {
        let begin = Instant::now();
        let all = [(&b""[..], false), (b"before it", false), (b"", true), (b"before it", true)];
        for (before, out_of_band) in all {
            let (mut own, peer) = pair(false);
            let sends = |slow: std::os::fd::BorrowedFd<'_>| match out_of_band {
                true => send_out_of_band(&peer, slow),
                false => socket::send(peer.as_fd(), b"x", &[slow]).unwrap(),
            };
            let (slow, _other) = lingering(LINGER).unwrap();
            peer.writable().await.unwrap();
            peer.try_write(before).unwrap();
            sends(slow.as_fd());
            drop(slow);
            let mut got = Vec::new();
            let refused = own.read_to_end(&mut got).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            drop(own);
            // The other end hears of it though its descriptor is still to be closed.
            let end = loop {
                peer.readable().await.unwrap();
                match peer.try_read(&mut [0; 1]) {
                    // It may be called readable when it is not.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    end => break end,
                }
            };
            // A reset where bytes were left unread.
            let is_end = matches!(&end, Ok(0));
            let is_reset = end.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset);
            assert!(is_end || is_reset, "{end:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        // From Linux 6.16 on it is not even sent.
        let (own, peer) = pair(true);
        let (slow, _other) = lingering(LINGER).unwrap();
        let sent = socket::send(peer.as_fd(), b"x", &[slow.as_fd()]);
        assert_eq!(sent.is_err(), own.plain);
        // It would linger here.
        let _kept = std::mem::ManuallyDrop::new(slow);
    }
}
