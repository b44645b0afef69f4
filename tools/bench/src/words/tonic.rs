//! gRPC as it is: tonic over a Unix socket, one unary call per text.
//!
//! Limits and windows are raised so that a text fits; frames of 1 MiB were fastest. The client gets
//! its buffer back from the message once the call is over.

use std::mem;

use bytes::Bytes;
use tokio::runtime::Runtime;

use super::{Text, cases, contained, drive, read_into};
use crate::calls::client::TextClient;
use crate::calls::stubs::ordinary::client;
use crate::calls::tonic_net::{Net, connect, runtime, serve};
use crate::case::{Op, Wait};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::Answer;

/// gRPC over a Unix socket.
pub const TONIC_UDS: Contender = Contender::new(
    Kind::Other,
    "tonic-uds",
    "gRPC with tonic over a Unix socket",
    || [cases(Some(Wait::Block)), contained(Some(Wait::Block))].concat(),
    |seat| ask_all(seat, &runtime()?, client, async |seat| connect(seat, Net::Unix).await),
)
.served(|seat| serve(seat, Net::Unix));

/// Runs a client that asks through stubs over what `connect` returns.
pub fn ask_all<T, C: TextClient>(
    seat: &mut Seat,
    runtime: &Runtime,
    client: fn(T) -> C,
    connect: impl AsyncFnOnce(&Seat) -> Result<T>,
) -> Result<Figures> {
    let transport = seat.admitted(|seat| runtime.block_on(connect(seat)))?;
    let mut asker = Asker { client: client(transport), buffer: Vec::new() };
    drive(seat, |text, op| runtime.block_on(asker.ask(text, op)))
}

/// Asks through generated stubs over any transport.
#[derive(Debug)]
struct Asker<C> {
    client: C,
    buffer: Vec<u8>,
}

impl<C: TextClient> Asker<C> {
    /// Reads the text, sends it, and returns the answer.
    async fn ask(&mut self, text: &Text, op: Op) -> Result<Answer> {
        let mut buffer = mem::take(&mut self.buffer);
        read_into(&text.path, text.bytes, &mut buffer)?;
        let mut body = Bytes::from(buffer);
        let answer = self.client.count(op, body.clone()).await?;
        // The message is gone, so this is the only handle left, and its memory can be used again.
        body.clear();
        self.buffer = body.into();
        Ok(answer)
    }
}
