#![allow(unsafe_code, reason = "reads a file into memory that is not zeroed first")]
//! gRPC as it is: tonic over a Unix socket, one unary call per text.
//!
//! Limits and windows are raised so that a text fits; frames of 1 MiB were fastest. The client gets
//! its buffer back from the message once the call is over.

use std::fs::File;
use std::{io, mem};

use bytes::{Bytes, BytesMut};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, StdError};

use super::{Text, cases, drive};
use crate::calls::stubs::{BenchClient, proto};
use crate::calls::tonic_net::{Net, connect, runtime, serve};
use crate::case::{Case, Op, Wait};
use crate::contender::Contender;
use crate::error::Result;
use crate::seat::Seat;
use crate::text::Answer;

/// The contender.
#[derive(Debug)]
pub struct TonicUds;

impl Contender for TonicUds {
    fn name(&self) -> &'static str {
        "tonic-uds"
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Block))
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        runtime()?.block_on(serve(seat, Net::Unix))
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let runtime = runtime()?;
        let (dir, number) = (seat.dir().to_owned(), seat.number());
        let channel = seat.admitted(|| runtime.block_on(connect(&dir, number, Net::Unix)))?;
        let mut asker = Asker::new(channel);
        drive(seat, |text, op| runtime.block_on(asker.ask(text, op)))
    }
}

/// Asks through generated stubs over any transport.
#[derive(Debug)]
pub struct Asker<T> {
    client: BenchClient<T>,
    buffer: BytesMut,
}

impl<T> Asker<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    /// Sends over `transport`.
    pub fn new(transport: T) -> Self {
        let client = BenchClient::new(transport)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        Self { client, buffer: BytesMut::new() }
    }

    /// Reads the text, sends it, and returns the answer.
    ///
    /// # Errors
    /// Those of the file and of the call.
    pub async fn ask(&mut self, text: &Text, op: Op) -> Result<Answer> {
        let body = self.read(text)?;
        let request = proto::Blob { body: body.clone() };
        let reply = match op {
            Op::Total => self.client.total(request).await?,
            Op::Counts => self.client.counts(request).await?,
        };
        // The message is gone, so this is the only handle left, and its memory can be used again.
        self.buffer = body.try_into_mut().unwrap_or_default();
        let proto::Answer { total, distinct, checksum } = reply.into_inner();
        Ok(Answer { total, distinct, checksum })
    }

    fn read(&mut self, text: &Text) -> Result<Bytes> {
        let len = usize::try_from(text.bytes)?;
        let file = File::open(&text.path)?;
        let mut buffer = mem::take(&mut self.buffer);
        buffer.clear();
        buffer.reserve(len);
        while buffer.len() < len {
            let (read, _) = rustix::io::read(&file, buffer.spare_capacity_mut())?;
            let read = read.len();
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let end = buffer.len() + read;
            // SAFETY: the bytes up to the old length were there, and the kernel wrote the rest.
            unsafe { buffer.set_len(end) };
        }
        Ok(buffer.freeze())
    }
}
