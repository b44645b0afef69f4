//! A view of the gRPC messages inside an HTTP body.
//!
//! tonic decodes messages without saying whether each was compressed; the flag is in the five
//! bytes before it. A [`Watched`] body notes those prefixes as its frames pass.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

const PREFIX: usize = 5;

/// The prefix of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Whether the message is compressed.
    pub compressed: bool,
    /// Length of the message on the wire.
    pub len: usize,
}

/// Finds message prefixes in a byte stream, however it is cut into chunks.
#[derive(Debug, Default)]
pub struct Scanner {
    prefix: [u8; PREFIX],
    held: usize,
    body_left: usize,
}

impl Scanner {
    /// Takes the next chunk and reports each prefix that it completes.
    pub fn feed(&mut self, mut chunk: &[u8], mut found: impl FnMut(Prefix)) {
        while !chunk.is_empty() {
            if self.body_left > 0 {
                let step = self.body_left.min(chunk.len());
                self.body_left -= step;
                chunk = &chunk[step..];
                continue;
            }
            let step = (PREFIX - self.held).min(chunk.len());
            self.prefix[self.held..self.held + step].copy_from_slice(&chunk[..step]);
            self.held += step;
            chunk = &chunk[step..];
            if self.held == PREFIX {
                let [flag, a, b, c, d] = self.prefix;
                let len = u32::from_be_bytes([a, b, c, d]) as usize;
                self.held = 0;
                self.body_left = len;
                found(Prefix { compressed: flag != 0, len });
            }
        }
    }
}

#[derive(Debug, Default)]
struct Notes {
    prefixes: VecDeque<Prefix>,
    trailers: Option<HeaderMap>,
}

/// What a [`Watched`] body has carried so far; clones share it.
#[derive(Clone, Debug, Default)]
pub struct BodyLog {
    notes: Arc<Mutex<Notes>>,
}

impl BodyLog {
    fn with<V>(&self, f: impl FnOnce(&mut Notes) -> V) -> V {
        f(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes and returns the oldest prefix.
    pub fn pop(&self) -> Option<Prefix> {
        self.with(|n| n.prefixes.pop_front())
    }

    /// All prefixes that have not been popped, oldest first.
    pub fn prefixes(&self) -> Vec<Prefix> {
        self.with(|n| n.prefixes.iter().copied().collect())
    }

    /// The trailers, once they have passed.
    pub fn trailers(&self) -> Option<HeaderMap> {
        self.with(|n| n.trailers.clone())
    }
}

/// A body that notes prefixes and trailers in a [`BodyLog`] and changes nothing.
#[derive(Debug)]
pub struct Watched {
    inner: Body,
    scanner: Scanner,
    log: BodyLog,
}

impl Watched {
    /// Wraps `inner`, writing to `log`.
    pub fn new(inner: Body, log: BodyLog) -> Self {
        Self { inner, scanner: Scanner::default(), log }
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, scanner, log } = self.get_mut();
        let polled = Pin::new(inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            log.with(|notes| {
                if let Some(data) = frame.data_ref() {
                    scanner.feed(data, |prefix| notes.prefixes.push_back(prefix));
                } else if let Some(trailers) = frame.trailers_ref() {
                    notes.trailers.get_or_insert_default().extend(trailers.clone());
                }
            });
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_at_every_cut() {
        let mut wire = vec![0, 0, 0, 0, 3, 1, 2, 3];
        wire.extend([1, 0, 0, 0, 0]);
        wire.extend([1, 0, 0, 1, 0]);
        wire.extend([7; 256]);
        wire.extend([0, 0, 0, 0, 1, 9]);
        let want = [(false, 3), (true, 0), (true, 256), (false, 1)]
            .map(|(compressed, len)| Prefix { compressed, len });
        for cut in 1..=wire.len() {
            let mut scanner = Scanner::default();
            let mut found = Vec::new();
            for chunk in wire.chunks(cut) {
                scanner.feed(chunk, |prefix| found.push(prefix));
            }
            assert_eq!(found, want, "chunks of {cut}");
        }
    }

    #[test]
    fn an_incomplete_prefix_is_not_reported() {
        let mut scanner = Scanner::default();
        let mut count = 0;
        scanner.feed(&[1, 0, 0, 0], |_| count += 1);
        assert_eq!(count, 0);
        scanner.feed(&[0], |_| count += 1);
        assert_eq!(count, 1);
    }
}
