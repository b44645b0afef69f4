//! A server to be killed, or to be told to fail: the interoperability service at the name `test`. A
//! request whose metadata has `x-fail` makes it fail in the middle of the call, or stay there.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use partywall::{Deadline, security_of};
use partywall_interop::Counts;
use partywall_interop::proto::SimpleRequest;
use partywall_interop::service::{Handle, Probe, native, probed, test_service_with};
use tonic::{Request, Status};

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
    /// Whether to have native stubs, with nothing around them. It says on its standard error when the first
    /// call has come that way.
    #[arg(long)]
    native: bool,
    /// Addresses to serve at beside the name, with commas between them.
    #[arg(long)]
    at: Option<String>,
    /// Limit of open descriptors.
    #[arg(long)]
    nofile: Option<u64>,
    /// Bytes that requests of one caller may hold.
    #[arg(long)]
    request_bytes: Option<u64>,
    /// Drains, and ends, at the end of its input; prints then how many calls of native stubs went which way.
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
    let calls = Handle::default();
    let (waits, native_is_said) = (arguments.waits, AtomicBool::new(!arguments.native));
    let handle = calls.clone().before(move |request| {
        let is_native = !request.metadata().contains_key("content-type");
        if is_native && !native_is_said.swap(true, Ordering::Relaxed) {
            eprintln!("native");
        }
        let failed = fail(request);
        let how = request.metadata().get("x-fail").map(|how| how.as_bytes().to_owned());
        Box::pin(async move {
            if waits {
                tokio::task::yield_now().await;
            }
            match how.as_deref() {
                Some(b"stay") => {
                    say(if is_native { "stays native" } else { "stays ordinary" });
                    std::future::pending::<()>().await;
                }
                // A service that is polled after a deadline says so itself: its caller may be late as well.
                Some(b"burn" | b"sleep") => tokio::task::yield_now().await,
                _ => {}
            }
            failed
        })
    });
    let end = async move {
        match arguments.until_input_ends {
            true => input_ends().await,
            false => std::future::pending().await,
        }
    };
    let deadline = |extensions: &http::Extensions| extensions.get::<Deadline>().map(|at| at.0);
    let probe = Probe::new(handle.clone(), deadline);
    let router = match (arguments.native, arguments.probed) {
        (true, true) => server.add_service(native(handle)).add_service(probe),
        (true, false) => server.add_service(native(handle)),
        (false, true) => server.add_service(probed(handle, deadline)).add_service(probe),
        (false, false) => server.add_service(test_service_with(handle)),
    };
    let at = arguments.at.map_or("test".to_owned(), |at| format!("test,{at}"));
    runtime.block_on(async { router.serve_with_shutdown(&at, end).await })?;
    let Counts { native, ordinary } = calls.counts();
    say(&format!("native {native} ordinary {ordinary}"));
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Who has started it may have gone.
    let _said = writeln!(out, "{line}").and_then(|()| out.flush());
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

/// Fails as the request asks for it; aborts, exits, overflows and spins only in a caller's thread: ABORTED
/// elsewhere.
fn fail(request: &Request<SimpleRequest>) -> Result<(), Status> {
    let Some(how) = request.metadata().get("x-fail") else { return Ok(()) };
    let lent = || {
        let thread = std::thread::current();
        thread.name().is_some_and(|name| name.starts_with("partywall-lent"))
    };
    match how.as_bytes() {
        b"sleep" => std::thread::sleep(SLEEP),
        b"burn" => {
            let begin = std::time::Instant::now();
            while begin.elapsed() < BURN {
                std::hint::spin_loop();
            }
        }
        b"security" => {
            return Err(Status::internal(security_of(request.extensions()).to_string()));
        }
        // Open again to other processes of its user.
        b"open" => {
            use rustix::process::{DumpableBehavior, set_dumpable_behavior};
            let opened = set_dumpable_behavior(DumpableBehavior::Dumpable);
            return opened.map_err(|e| Status::internal(e.to_string()));
        }
        b"copy" => return leave_a_copy().map_err(|e| Status::internal(e.to_string())),
        b"stay" => {}
        _ if !lent() => {
            return Err(Status::aborted("the caller has not come in by itself"));
        }
        b"abort" => std::process::abort(),
        b"exit" => std::process::exit(7),
        b"overflow" => return Err(Status::internal(deep(1).to_string())),
        b"spin" => loop {
            std::hint::spin_loop();
        },
        _ => return Err(Status::invalid_argument("no such way to fail")),
    }
    Ok(())
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
