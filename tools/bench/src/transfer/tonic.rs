//! gRPC as it is: tonic over a Unix socket and over TCP. A client has one call for all of its blocks, with a
//! stream each way, and a thread and a connection of its own; the server has one thread, or one for each CPU
//! where there are several clients.

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::chunks::{Chunks, greeting};
use super::drive::{End, measure};
use super::turn::{Reader, Turn};
use super::{clients, sleeping_here_and_contained};
use crate::calls::stubs::ordinary::client;
use crate::calls::stubs::ordinary::proto::Blob;
use crate::calls::tonic_net::{Address, Net, connect_to, runtime, serve_on};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Over TCP.
pub const TONIC_TCP: Contender = Contender::new(
    Kind::Other,
    "tonic-tcp",
    "gRPC with tonic over TCP on the loopback interface or the engine's bridge, 1 MiB in a message of a stream",
    sleeping_here_and_contained,
    |seat| call(seat, Net::Tcp),
)
.served(|seat| serve(seat, Net::Tcp));

/// Over a Unix socket.
pub const TONIC_UDS: Contender = Contender::new(
    Kind::Other,
    "tonic-uds",
    "gRPC with tonic over a Unix socket, 1 MiB in a message of a stream",
    sleeping_here_and_contained,
    |seat| call(seat, Net::Unix),
)
.served(|seat| serve(seat, Net::Unix));

/// It has one iteration where others have five.
const FEWER: u64 = 5;

fn serve(seat: &mut Seat, net: Net) -> Result<()> {
    seat.note_idle()?;
    let several = clients(&seat.case()) > 1;
    let threads =
        if several { Builder::new_multi_thread().enable_all().build()? } else { runtime()? };
    serve_on(&threads, seat, net)
}

fn call(seat: &mut Seat, net: Net) -> Result<Figures> {
    seat.take_fewer(FEWER);
    let (case, address) = (seat.case(), Address::of(seat, net));
    let make = |client| {
        let address = address.clone();
        move || Caller::new(&address, case.bytes(), client)
    };
    measure(seat, (0..clients(&case)).map(make).collect())
}

struct Caller {
    runtime: Runtime,
    chunks: Chunks,
    to: Sender<Blob>,
    from: Streaming<Blob>,
}

impl Caller {
    fn new(address: &Address, bytes: usize, number: usize) -> Result<Self> {
        let runtime = runtime()?;
        let (to, sent) = channel(1);
        let from = runtime.block_on(async {
            let mut client = client(connect_to(address).await?);
            to.send(Blob { body: greeting(bytes, number) }).await?;
            Result::<_>::Ok(client.pass(ReceiverStream::new(sent)).await?.into_inner())
        })?;
        Ok(Self { runtime, chunks: Chunks::new(bytes), to, from })
    }
}

impl End for Caller {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        let chunks = self.chunks.set(turn);
        self.runtime.block_on(async {
            for body in chunks {
                self.to.send(Blob { body }).await?;
            }
            Ok(())
        })
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        while !reader.is_over() {
            let body: Bytes = match self.runtime.block_on(self.from.message())? {
                Some(blob) => blob.body,
                None => return Ok(false),
            };
            reader.read(&body);
        }
        Ok(true)
    }
}
