//! rapace over its shared memory: a hub of rings, whose host is the server here and whose one peer is the
//! client. Each is told of a frame by a byte on a socket that its runtime watches; no side of it spins.
//!
//! Programs use rapace by the client and the server that it generates of a trait, and so does this one.
//! The host sends a peer its end of the socket when it starts it; here both are there before.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use rapace::RpcSession;
use rapace::rapace_core::Transport;
use rapace::rapace_core::shm::{
    Doorbell, HubConfig, HubHost, HubPeer, ShmTransport, close_peer_fd,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::client::{Client, echoes};
use super::tonic_net::{closed, runtime};
use super::{SHARED_MEMORY, prefix, sleeping, sweep};
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// The calls of rapace.
pub const RAPACE: Contender = Contender::new(
    Kind::Other,
    "rapace",
    "rapace's generated client and server over its shared memory",
    sleeping,
    call,
)
.opened(doorbells)
.served(serve)
.swept(sweep);

/// What rapace generates.
#[allow(dead_code, missing_docs, reason = "generated")]
mod service {
    /// The service.
    #[rapace::service]
    pub trait Bench {
        async fn echo(&self, body: Vec<u8>) -> Vec<u8>;
    }
}

use service::{Bench, BenchClient, BenchServer};

struct Service;

impl Bench for Service {
    async fn echo(&self, body: Vec<u8>) -> Vec<u8> {
        body
    }
}

fn doorbells(_: &Case) -> Result<Ends> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(Ends(vec![(Side::Server, pair.0), (Side::Client, pair.1)]))
}

/// The file of the hub.
fn hub(seat: &Seat) -> PathBuf {
    PathBuf::from(SHARED_MEMORY).join(prefix(seat.label()) + "hub")
}

fn doorbell(socket: OwnedFd) -> Result<Doorbell> {
    Ok(Doorbell::from_raw_fd(socket.into_raw_fd())?)
}

fn serve(seat: &mut Seat) -> Result<()> {
    runtime()?.block_on(async {
        let gone = closed(seat.lifeline()?)?;
        let host = Arc::new(HubHost::create(hub(seat), HubConfig::default())?);
        let peer = host.add_peer()?;
        // Its own pair is one for a process that it starts.
        close_peer_fd(peer.peer_doorbell_fd);
        let bell = doorbell(seat.take(0)?)?;
        let link = Transport::Shm(ShmTransport::hub_host_peer(host, peer.peer_id, bell));
        seat.set_number(peer.peer_id.into());
        seat.ready();
        tokio::select! {
            served = BenchServer::new(Service).serve(link) => Ok(served?),
            () = gone => Ok(()),
        }
    })
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let bell = seat.take(1)?;
    runtime()?.block_on(async {
        let client = seat.admitted(|seat| {
            let peer = HubPeer::open(hub(seat), seat.number().try_into()?)?;
            peer.register();
            let link = ShmTransport::hub_peer(Arc::new(peer), doorbell(bell)?, seat.label());
            let session = Arc::new(RpcSession::new(Transport::Shm(link)));
            tokio::spawn(Arc::clone(&session).run());
            Ok(Caller(Arc::new(BenchClient::new(session))))
        })?;
        echoes(client, seat).await
    })
}

#[derive(Clone)]
struct Caller(Arc<BenchClient>);

impl Client for Caller {
    async fn echo(&mut self, body: Bytes) -> Result<Bytes> {
        Ok(self.0.echo(body.into()).await?.into())
    }
}
