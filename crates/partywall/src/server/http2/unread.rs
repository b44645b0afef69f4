//! Callers that do not read what they are sent: a stream whose writes have a time, if the server sets one.
//!
//! | what | then |
//! | --- | --- |
//! | the kernel takes no more bytes | the time begins |
//! | all that there was to write is written | it is over; it begins anew when the kernel takes no more again |
//! | it is over, and the kernel takes no more | the write is an error, by which the connection ends |
//!
//! Who reads a little now and then gains nothing by that: the time is for all that there is to write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The stream of a connection.
#[derive(Debug)]
pub(super) struct Timed<S> {
    stream: S,
    /// None is for ever.
    within: Option<Duration>,
    /// When what waits must be written.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Timed<S> {
    pub(super) fn new(stream: S, within: Option<Duration>) -> Self {
        Self { stream, within, until: None }
    }

    /// What comes of a write, which may have waited too long.
    fn written<R>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let written = write(Pin::new(&mut self.stream), cx);
        let Some(within) = self.within.filter(|_| written.is_pending()) else { return written };
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(within)));
        let over = || {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the caller reads nothing of what it is sent",
            ))
        };
        until.as_mut().poll(cx).map(|()| over())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.written(cx, |stream, cx| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Asked for when nothing is left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.until = None;
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.written(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const WITHIN: Duration = Duration::from_millis(300);

    /// Writes two kilobytes through a pipe of 64 bytes, whose other end reads so many bytes so often.
    async fn write(read: usize, every: Duration) -> io::Result<()> {
        let (own, mut other) = tokio::io::duplex(64);
        let reader = tokio::spawn(async move {
            let mut bytes = vec![0; read];
            loop {
                tokio::time::sleep(every).await;
                if other.read(&mut bytes).await.is_err() {
                    return;
                }
            }
        });
        let mut stream = Timed::new(own, Some(WITHIN));
        let done = async {
            stream.write_all(&[7; 2048]).await?;
            stream.flush().await
        };
        let done = done.await;
        reader.abort();
        done
    }

    #[tokio::test]
    async fn who_does_not_read_or_hardly_is_given_up() {
        for (read, every) in [(1, Duration::from_secs(60)), (1, Duration::from_millis(10))] {
            let begun = std::time::Instant::now();
            let why = write(read, every).await.unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::TimedOut, "{read} {every:?}");
            assert!(begun.elapsed() >= WITHIN, "{read} {every:?}");
        }
        write(64, Duration::ZERO).await.unwrap();
    }

    /// What was written within its time leaves all of it to what comes next.
    #[tokio::test]
    async fn each_reply_has_a_time_of_its_own() {
        let (own, mut other) = tokio::io::duplex(64);
        let mut stream = Timed::new(own, Some(WITHIN));
        for _ in 0..4 {
            let (written, read) = tokio::join!(
                async {
                    stream.write_all(&[7; 128]).await?;
                    stream.flush().await
                },
                async {
                    tokio::time::sleep(WITHIN / 3).await;
                    other.read_exact(&mut [0; 128]).await
                }
            );
            written.unwrap();
            read.unwrap();
        }
    }
}
