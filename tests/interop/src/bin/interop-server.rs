//! Serves the interoperability service over HTTP/2 on the loopback interface.

use std::error::Error;
use std::io::Write;
use std::net::Ipv4Addr;

use clap::Parser;
use partywall_interop::service::{Handle, mounted};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Serves grpc.testing.TestService over HTTP/2 on the loopback interface.
#[derive(Parser)]
struct Args {
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 10_000)]
    port: u16,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let incoming =
        TcpIncoming::bind((Ipv4Addr::LOCALHOST, args.port).into())?.with_nodelay(Some(true));
    let addr = incoming.local_addr()?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {addr}")?;
    out.flush()?;
    let stop = async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            eprintln!("cannot wait for an interrupt: {error}");
            std::future::pending::<()>().await;
        }
    };
    Server::builder()
        .add_service(mounted(Handle::default()))
        .serve_with_incoming_shutdown(incoming, stop)
        .await?;
    Ok(())
}
