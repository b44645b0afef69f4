//! Bodies of calls whose bytes and messages are counted.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

use super::call::Call;
use super::methods::Direction;
use crate::wire;

/// The body of a request or an answer.
pub(super) struct Counted {
    body: Body,
    of: Of,
    messages: Messages,
}

enum Of {
    /// The call can end before its request.
    Request(Weak<Call>),
    /// The call ends with its answer.
    Answer(Arc<Call>),
}

impl Counted {
    pub(super) fn request(call: Weak<Call>, body: Body) -> Self {
        Self { body, of: Of::Request(call), messages: Messages::default() }
    }

    pub(super) fn answer(call: Arc<Call>, body: Body) -> Self {
        Self { body, of: Of::Answer(call), messages: Messages::default() }
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, of, messages } = &mut *self;
        let mut poll = || Pin::new(&mut *body).poll_frame(cx);
        let polled = match of {
            Of::Request(_) => poll(),
            Of::Answer(call) => call.guarded(poll),
        };
        let frame = std::task::ready!(polled);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let (bytes, messages) = (data.len() as u64, messages.begun_in(data));
            match of {
                Of::Answer(call) => call.passed(Direction::Answer, bytes, messages),
                Of::Request(call) => {
                    if let Some(call) = call.upgrade() {
                        call.passed(Direction::Request, bytes, messages);
                    }
                }
            }
        } else if let Of::Answer(call) = of {
            call.end(match &frame {
                Some(Ok(frame)) => {
                    frame.trailers_ref().and_then(wire::status_code).unwrap_or(Code::Unknown)
                }
                Some(Err(status)) => status.code(),
                None => wire::no_trailers().code(),
            });
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Finds the begins of messages in a stream of data: each has a prefix of five bytes, a flag and a length.
#[derive(Default)]
struct Messages {
    /// Bytes of the prefix that have come, and those of the length among them.
    prefix: (u8, [u8; 4]),
    /// Bytes of the message that are to come.
    left: usize,
}

impl Messages {
    /// How many messages begin in these bytes.
    fn begun_in(&mut self, mut data: &[u8]) -> u64 {
        let mut begun = 0;
        while !data.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(data.len());
                self.left -= skipped;
                data = &data[skipped..];
                continue;
            }
            let (come, length) = &mut self.prefix;
            if *come > 0 {
                length[usize::from(*come) - 1] = data[0];
            }
            *come += 1;
            data = &data[1..];
            if *come == 5 {
                *come = 0;
                self.left = u32::from_be_bytes(*length) as usize;
                begun += 1;
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_the_data_are_cut() {
        let lengths = [0_u32, 1, 300, 5, 0, 70_000];
        let mut data = Vec::new();
        for length in lengths {
            data.push(0);
            data.extend(length.to_be_bytes());
            data.resize(data.len() + length as usize, 0xff);
        }
        for piece in [1, 2, 3, 5, 7, 304, data.len()] {
            let mut messages = Messages::default();
            let begun: u64 = data.chunks(piece).map(|piece| messages.begun_in(piece)).sum();
            assert_eq!(begun, 6, "in pieces of {piece} bytes");
        }
    }
}
