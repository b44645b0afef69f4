//! gRPC as it is: tonic over a Unix socket and over TCP, one thread on each side.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use super::client::measure;
use super::stubs::ordinary;
use super::{contained_with, sleeping};
use crate::case::Wait;
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Which sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// `SOCK_STREAM` in the sample's directory for sockets.
    Unix,
    /// The sample's address with `TCP_NODELAY`.
    Tcp,
}

/// Over a Unix socket.
pub const TONIC_UDS: Contender = Contender::new(
    Kind::Other,
    "tonic-uds",
    "gRPC with tonic over a Unix socket",
    sleeping,
    |seat| call(seat, Net::Unix),
)
.served(|seat| serve(seat, Net::Unix));

/// Over TCP.
pub const TONIC_TCP: Contender = Contender::new(
    Kind::Other,
    "tonic-tcp",
    "gRPC with tonic over TCP on the loopback interface, or the engine's bridge",
    || sleeping().into_iter().chain(contained_with(Wait::Block)).collect(),
    |seat| call(seat, Net::Tcp),
)
.served(|seat| serve(seat, Net::Tcp));

/// The Unix socket in the directory of a sample.
pub const SOCKET: &str = "socket";
const WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;

/// A runtime of one thread.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Resolves when the other end of `lifeline` has closed.
pub fn closed(lifeline: OwnedFd) -> Result<impl Future<Output = ()>> {
    let mut lifeline = Receiver::from_owned_fd(lifeline)?;
    Ok(async move {
        // An error ends the sample just as the end of the pipe does.
        let _ = lifeline.read(&mut [0]).await;
    })
}

/// Serves until the client has gone.
pub fn serve(seat: &mut Seat, net: Net) -> Result<()> {
    serve_on(&runtime()?, seat, net)
}

/// Serves on the threads of `runtime` until the client has gone.
pub fn serve_on(runtime: &Runtime, seat: &mut Seat, net: Net) -> Result<()> {
    serve_with(runtime, seat, net, server())
}

/// A server with windows and frames for long messages.
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
}

/// The same by this server.
pub fn serve_with(runtime: &Runtime, seat: &mut Seat, net: Net, mut server: Server) -> Result<()> {
    runtime.block_on(async {
        let gone = closed(seat.lifeline()?)?;
        let router = server.add_service(ordinary::service());
        match net {
            Net::Unix => {
                let path = seat.sockets().join(SOCKET);
                let listener = UnixListener::bind(&path)?;
                // The user of a container is another one.
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
                seat.ready();
                let incoming = UnixListenerStream::new(listener);
                Ok(router.serve_with_incoming_shutdown(incoming, gone).await?)
            }
            Net::Tcp => {
                let incoming = TcpIncoming::bind((seat.address(), 0).into())?;
                let incoming = incoming.with_nodelay(Some(true));
                seat.set_number(incoming.local_addr()?.port().into());
                seat.ready();
                Ok(router.serve_with_incoming_shutdown(incoming, gone).await?)
            }
        }
    })
}

/// Where a sample's server is.
#[derive(Clone, Debug)]
pub struct Address(String);

impl Address {
    /// Of the server of `seat`, once that is ready.
    pub fn of(seat: &Seat, net: Net) -> Self {
        Self(match net {
            Net::Unix => format!("unix://{}", seat.sockets().join(SOCKET).display()),
            Net::Tcp => format!("http://{}:{}", seat.address(), seat.number()),
        })
    }
}

/// Connects to the sample's server.
pub async fn connect(seat: &Seat, net: Net) -> Result<Channel> {
    connect_to(&Address::of(seat, net)).await
}

/// Connects to the server at `address`.
pub async fn connect_to(address: &Address) -> Result<Channel> {
    Ok(tuned(Endpoint::from_shared(address.0.clone())?).connect().await?)
}

/// An endpoint with windows for long messages.
pub fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
}

fn call(seat: &mut Seat, net: Net) -> Result<Figures> {
    let runtime = runtime()?;
    let channel = seat.admitted(|seat| runtime.block_on(connect(seat, net)))?;
    runtime.block_on(measure(ordinary::client(channel), seat))
}
