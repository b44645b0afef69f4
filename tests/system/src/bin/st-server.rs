//! A server to be killed, or to be told to fail: the interoperability service at the name `test`. A
//! request whose metadata has `x-fail` makes it fail in the middle of the call.

use std::path::PathBuf;

use clap::Parser;
use partywall::{Deadline, security_of};
use partywall_interop::service::{Handle, Probe, native, probed, test_service_with};
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};
use tower::util::MapFutureLayer;

#[derive(Parser)]
struct Arguments {
    /// The coordinator's socket; else the one that was handed over.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Worker threads; one means a current-thread runtime.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Whether handlers wait for something before they are ready.
    #[arg(long)]
    waits: bool,
    /// Whether to answer to what the interoperability cases ask beside the calls.
    #[arg(long)]
    probed: bool,
    /// Whether to have native stubs with nothing around them, and to answer to the same beside them.
    #[arg(long)]
    native: bool,
    /// Limit of open descriptors.
    #[arg(long)]
    nofile: Option<u64>,
    /// Bytes that requests of one caller may hold.
    #[arg(long)]
    request_bytes: Option<u64>,
    /// Drains, and ends, at the end of its input.
    #[arg(long)]
    until_input_ends: bool,
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
    let mut server = match arguments.socket {
        Some(socket) => partywall::Server::builder().coordinator(socket),
        None => partywall::Server::builder(),
    };
    if let Some(most) = arguments.request_bytes {
        server = server.max_request_bytes_per_caller(most);
    }
    let waiting = MapFutureLayer::new(move |answer| async move {
        if arguments.waits {
            tokio::task::yield_now().await;
        }
        answer.await
    });
    let handle = Handle::default();
    let end = async move {
        match arguments.until_input_ends {
            true => input_ends().await,
            false => std::future::pending().await,
        }
    };
    let deadline = |extensions: &http::Extensions| extensions.get::<Deadline>().map(|at| at.0);
    let probe = Probe::new(handle.clone(), deadline);
    if arguments.native {
        let router = server.add_service(native(handle)).add_service(probe);
        return Ok(runtime.block_on(async { router.serve_with_shutdown("test", end).await })?);
    }
    let router = if arguments.probed {
        server.layer(waiting).add_service(probed(handle, deadline)).add_service(probe)
    } else {
        let service = InterceptedService::new(test_service_with(handle), fail);
        server.layer(waiting).add_service(service)
    };
    Ok(runtime.block_on(async { router.serve_with_shutdown("test", end).await })?)
}

/// A thread of its own waits for that.
async fn input_ends() {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(|| {
        let _read = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _serves_no_more = tell.send(());
    });
    let _told = told.await;
}

/// How long a handler computes that is asked to.
const BURN: std::time::Duration = std::time::Duration::from_millis(50);

/// How long a handler stays in a system call that is asked to.
const SLEEP: std::time::Duration = std::time::Duration::from_millis(250);

/// Fails as the request asks for it, but only in a caller's thread: ABORTED elsewhere.
fn fail(request: Request<()>) -> Result<Request<()>, Status> {
    if request.metadata().get("x-fail").is_some_and(|how| how == "sleep") {
        std::thread::sleep(SLEEP);
        return Ok(request);
    }
    if request.metadata().get("x-fail").is_some_and(|how| how == "burn") {
        let begin = std::time::Instant::now();
        while begin.elapsed() < BURN {
            std::hint::spin_loop();
        }
        return Ok(request);
    }
    if request.metadata().get("x-fail").is_some_and(|how| how == "security") {
        return Err(Status::internal(security_of(request.extensions()).to_string()));
    }
    if request.metadata().get("x-fail").is_some_and(|how| how == "copy") {
        return match leave_a_copy() {
            Ok(()) => Ok(request),
            Err(e) => Err(Status::internal(e.to_string())),
        };
    }
    let thread = std::thread::current();
    let lent = thread.name().is_some_and(|name| name.starts_with("partywall-lent"));
    if request.metadata().contains_key("x-fail") && !lent {
        return Err(Status::aborted("the caller has not come in by itself"));
    }
    match request.metadata().get("x-fail").map(|how| how.as_bytes()) {
        None => Ok(request),
        Some(b"abort") => std::process::abort(),
        Some(b"exit") => std::process::exit(7),
        Some(b"overflow") => Err(Status::internal(deep(1).to_string())),
        Some(b"spin") => loop {
            std::hint::spin_loop();
        },
        Some(_) => Err(Status::invalid_argument("no such way to fail")),
    }
}

/// Starts a process that has all sockets of this one and outlives it, as one that fork(2) makes does.
fn leave_a_copy() -> std::io::Result<()> {
    let numbers = std::fs::read_dir("/proc/self/fd")?.flatten();
    let is_socket = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let sockets: Vec<String> = numbers
        .filter(|entry| is_socket(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // Opened again by their numbers, they would be others; so a helper is given copies that exec keeps.
    let mut kept = Vec::new();
    for number in &sockets {
        let number: i32 = number.parse().map_err(std::io::Error::other)?;
        kept.push(partywall_shm::socket::inherited(number));
    }
    let kept: Vec<_> = kept.into_iter().flatten().collect();
    for socket in &kept {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
    }
    std::process::Command::new("sleep").arg("30").spawn().map(drop)
}

/// Uses up the stack.
fn deep(level: u64) -> u64 {
    let frame = std::hint::black_box([level; 64]);
    if level == 0 { 0 } else { deep(level + 1) + frame[0] }
}
