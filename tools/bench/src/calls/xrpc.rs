//! xrpc-rs over its shared memory: a ring each way, and events for which threads of tokio's blocking pool
//! wait. No side of it spins.
//!
//! The calls are its raw ones, of bytes, which leave out its codec.

use std::sync::Arc;

use bytes::Bytes;
use xrpc::{
    Message, MessageChannelAdapter, MessageType, RpcClient, RpcServer, SharedMemoryConfig,
    SharedMemoryFrameTransport,
};

use super::client::{Client, echoes};
use super::tonic_net::{closed, runtime};
use super::{sleeping, sweep};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// The calls of xrpc-rs.
pub const XRPC: Contender = Contender::new(
    Kind::Other,
    "xrpc",
    "xrpc-rs's raw calls over its shared memory",
    sleeping,
    call,
)
.served(serve)
.swept(sweep);

const METHOD: &str = "echo";

type Link = MessageChannelAdapter<SharedMemoryFrameTransport>;

fn serve(seat: &mut Seat) -> Result<()> {
    runtime()?.block_on(async {
        let gone = closed(seat.lifeline()?)?;
        let memory = SharedMemoryConfig::default();
        let link = SharedMemoryFrameTransport::create_server(seat.label(), memory)?;
        let server = RpcServer::new();
        server.register_fn(METHOD, |call| async move {
            Ok(Message::new(call.id, MessageType::Reply, "", call.payload, call.metadata))
        });
        let _served = server.spawn_handler(Link::new(link));
        seat.ready();
        // Serving ends with an error of some kind when the client goes; a client that stays has its own.
        gone.await;
        Ok(())
    })
}

fn call(seat: &mut Seat) -> Result<Figures> {
    runtime()?.block_on(async {
        let client = seat.admitted(|seat| {
            let link = SharedMemoryFrameTransport::connect_client(seat.label())?;
            let client = RpcClient::new(Link::new(link));
            client.try_start()?;
            Ok(Caller(Arc::new(client)))
        })?;
        echoes(client, seat).await
    })
}

#[derive(Clone)]
struct Caller(Arc<RpcClient<Link>>);

impl Client for Caller {
    async fn echo(&mut self, body: Bytes) -> Result<Bytes> {
        Ok(self.0.call_raw(METHOD, body.into()).await?.into())
    }
}
