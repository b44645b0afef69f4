//! A server to be killed: the interoperability service at the name `test`.

use std::path::PathBuf;

use clap::Parser;
use partywall_interop::service::{Handle, test_service_with};

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Worker threads; one means a current-thread runtime.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Limit of open descriptors.
    #[arg(long)]
    nofile: Option<u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    partywall_system_tests::limit_descriptors(arguments.nofile)?;
    let runtime = if arguments.threads == 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?
    } else {
        let threads = arguments.threads;
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?
    };
    let service = test_service_with(Handle::default());
    let router = partywall::Server::builder().coordinator(arguments.socket).add_service(service);
    Ok(runtime.block_on(router.serve("test"))?)
}
