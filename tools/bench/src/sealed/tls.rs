//! tonic's own transport: as in `calls`, and with TLS 1.3 by rustls and AWS-LC, where both sides show
//! certificates.
//!
//! The one cipher suite is AES-128-GCM, as on sealed links; rustls would take AES-256-GCM.

use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio::net::UnixStream;
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig,
};

use super::identity::{NAME, Pem, World, open};
use super::on_sockets;
use crate::calls::client::measure;
use crate::calls::stubs::ordinary;
use crate::calls::tonic_net::{self, Net, SOCKET, runtime, serve_with, server, tuned};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Over a Unix socket, as it is.
pub const TONIC_UDS: Contender = Contender { cases: on_sockets, ..tonic_net::TONIC_UDS };

/// Over a Unix socket with TLS.
pub const TONIC_UDS_TLS: Contender = Contender::new(
    Kind::Other,
    "tonic-uds-tls",
    "gRPC with tonic over a Unix socket, with TLS 1.3 (rustls, AWS-LC) and certificates of both sides",
    on_sockets,
    |seat| call(seat, Net::Unix),
)
.opened(open)
.served(|seat| serve(seat, Net::Unix));

/// Over TCP with TLS.
pub const TONIC_TCP_MTLS: Contender = Contender::new(
    Kind::Other,
    "tonic-tcp-mtls",
    "gRPC with tonic over TCP on the loopback interface, with the same TLS",
    on_sockets,
    |seat| call(seat, Net::Tcp),
)
.opened(open)
.served(|seat| serve(seat, Net::Tcp));

/// Has rustls, in this process, speak TLS 1.3 with one suite and nothing else.
fn settle_suite() -> Result<()> {
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256];
    let provider = CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() };
    provider.install_default().map_err(|_| "rustls has a provider already")?;
    Ok(())
}

fn serve(seat: &mut Seat, net: Net) -> Result<()> {
    settle_suite()?;
    let world = World::of(seat.take(0)?)?;
    let Pem { chain, key, root } = world.pem(&world.service()?)?;
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(chain, key))
        .client_ca_root(Certificate::from_pem(root));
    serve_with(&runtime()?, seat, net, server().tls_config(tls)?)
}

async fn connect(seat: &Seat, net: Net, tls: ClientTlsConfig) -> Result<Channel> {
    let to = |address: String| {
        Ok::<_, tonic::transport::Error>(tuned(Endpoint::from_shared(address)?.tls_config(tls)?))
    };
    match net {
        Net::Tcp => {
            Ok(to(format!("https://{}:{}", seat.address(), seat.number()))?.connect().await?)
        }
        Net::Unix => {
            let path = seat.sockets().join(SOCKET);
            let dial = tower::service_fn(move |_| {
                let path = path.clone();
                async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
            });
            Ok(to(format!("https://{NAME}"))?.connect_with_connector(dial).await?)
        }
    }
}

fn call(seat: &mut Seat, net: Net) -> Result<Figures> {
    settle_suite()?;
    let world = World::of(seat.take(0)?)?;
    let Pem { chain, key, root } = world.pem(&world.caller())?;
    let tls = ClientTlsConfig::new()
        .identity(Identity::from_pem(chain, key))
        .ca_certificate(Certificate::from_pem(root))
        .domain_name(NAME);
    let runtime = runtime()?;
    let channel = seat.admitted(|seat| runtime.block_on(connect(seat, net, tls)))?;
    runtime.block_on(measure(ordinary::client(channel), seat))
}
