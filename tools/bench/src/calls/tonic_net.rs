//! gRPC as it is: tonic over a Unix socket and over TCP, one thread on each side.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use super::cases;
use super::stubs::{self, BenchClient};
use crate::case::{Case, Wait};
use crate::contender::Contender;
use crate::error::Result;
use crate::meter;
use crate::seat::Seat;

/// Which sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// `SOCK_STREAM` in the sample's directory.
    Unix,
    /// Loopback with `TCP_NODELAY`.
    Tcp,
}

/// The contender.
#[derive(Debug)]
pub struct TonicNet {
    name: &'static str,
    net: Net,
}

/// Over a Unix socket.
pub static TONIC_UDS: TonicNet = TonicNet { name: "tonic-uds", net: Net::Unix };

/// Over TCP.
pub static TONIC_TCP: TonicNet = TonicNet { name: "tonic-tcp", net: Net::Tcp };

const SOCKET: &str = "socket";
const WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;

/// A runtime of one thread.
///
/// # Errors
/// If the system refuses it.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Resolves when the other end of `lifeline` has closed.
///
/// # Errors
/// If it cannot be watched.
pub fn closed(lifeline: OwnedFd) -> Result<impl Future<Output = ()>> {
    let mut lifeline = Receiver::from_owned_fd(lifeline)?;
    Ok(async move {
        // An error ends the sample just as the end of the pipe does.
        let _ = lifeline.read(&mut [0]).await;
    })
}

/// Serves until the client has gone.
///
/// # Errors
/// Those of the socket.
pub async fn serve(seat: &mut Seat, net: Net) -> Result<()> {
    let gone = closed(seat.lifeline()?)?;
    let router = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .add_service(stubs::service());
    match net {
        Net::Unix => {
            let listener = UnixListener::bind(seat.dir().join(SOCKET))?;
            seat.ready();
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), gone).await?;
        }
        Net::Tcp => {
            let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?;
            let incoming = incoming.with_nodelay(Some(true));
            seat.set_number(incoming.local_addr()?.port().into());
            seat.ready();
            router.serve_with_incoming_shutdown(incoming, gone).await?;
        }
    }
    Ok(())
}

/// Connects to a server of [`serve`] in the sample's directory or at port `number`.
///
/// # Errors
/// If there is none.
pub async fn connect(dir: &Path, number: u32, net: Net) -> Result<Channel> {
    let address = match net {
        Net::Unix => format!("unix://{}", dir.join(SOCKET).display()),
        Net::Tcp => format!("http://{}:{number}", Ipv4Addr::LOCALHOST),
    };
    let endpoint = Endpoint::from_shared(address)?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    Ok(endpoint.connect().await?)
}

impl Contender for TonicNet {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cases(&self, _: &[u64]) -> Vec<Case> {
        cases(&[Wait::Block])
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        runtime()?.block_on(serve(seat, self.net))
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        let runtime = runtime()?;
        let (dir, number) = (seat.dir().to_owned(), seat.number());
        let channel = seat.admitted(|| runtime.block_on(connect(&dir, number, self.net)))?;
        let client = BenchClient::new(channel);
        let mut meter = seat.meter()?;
        if meter::pipelined(&seat.case()) {
            meter = runtime.block_on(stubs::pipelined(client, meter))?;
        } else {
            runtime.block_on(stubs::one_by_one(client, &mut meter))?;
        }
        seat.finish(meter.figures());
        Ok(())
    }
}
