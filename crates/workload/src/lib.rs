//! The SPIFFE Workload API, and SDS for Envoy and other proxies, at a Unix socket: stock SPIFFE libraries get
//! there what the coordinator certifies.
//!
//! ```text
//! accepted      who connected, by the kernel (SO_PEERCRED, SO_PEERPIDFD)
//!    |          more than its user may have, or than its account: closed
//! challenged    HTTP/2 has begun with SETTINGS and a PING of eight bytes of the coordinator's nonce
//!    |          no answer in 5 s, another sender, another program meanwhile: closed
//! open          calls; one key and one certificate for all of them, asked for by the first
//!    |          after two thirds of its life, or when the coordinator says so: another key and certificate
//! closed        by the workload, or with its process, or with the coordinator
//! ```
//!
//! The identity of a connection is found once, as that of a process at the control socket
//! ([`partywall_coordinator::workload`]), and what a client says of itself is never asked. Every byte must
//! come from the process that connected: a child that holds the socket after its parent has become another
//! program cannot speak for that, and the nonce keeps the parent from having spoken before.
//!
//! All of it runs on a thread of its own. It waits for the coordinator, which waits for nobody here; a stream
//! holds the latest certificate and no queue, so a slow client gets the latest when it reads again. The
//! private keys are made here, since the API has it so, are overwritten when they are dropped, and are in no
//! log. On their way out they pass buffers of HTTP/2 and of the kernel, which are freed as they are.
//!
//! `io` compares senders, `preface` is the challenge over HTTP/2, `authority` corrects what some clients
//! send, `session` is the conversation with the coordinator, `certificate` keeps a connection's certificate,
//! `caller` is what calls share, `api` and `sds` are the two services.
#![forbid(unsafe_code)]

mod api;
mod authority;
mod caller;
mod certificate;
mod connection;
mod io;
mod preface;
pub mod proto;
mod sds;
mod session;
mod svid;
mod users;

use std::fs::Permissions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_coordinator::Workloads;
use partywall_coordinator::workload::Visitor;
use partywall_shm::listen::{self, BoundPath, ListenError};
use partywall_shm::socket::{self, Endpoint};
use rustix::net::{SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

pub use users::Limits;
use users::{Kind, Users};

/// Whoever can reach the path may connect, as at the control socket.
const MODE: u32 = 0o666;
/// Connections that may wait to be accepted: many, since libraries do not wait where there is no room. Who
/// has too many is turned away at once.
const BACKLOG: i32 = 1024;
/// How long none is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is said that none is accepted.
const SAID: Duration = Duration::from_secs(60);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The path cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A system call failed.
    #[error("{}: {call}: {source}", .path.display())]
    Io {
        /// Where it was to listen.
        path: PathBuf,
        /// Which call.
        call: &'static str,
        /// What it said.
        source: std::io::Error,
    },
}

/// The socket, which is served as long as the value is there.
pub struct Serving {
    /// Taken when it is dropped only.
    runtime: Option<Runtime>,
    _path: BoundPath,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Serves the Workload API and SDS at a path, on a thread of its own, to all whom this coordinator certifies.
///
/// # Errors
/// [`ServeError`].
pub fn serve(path: &Path, workloads: Workloads, limits: Limits) -> Result<Serving, ServeError> {
    let fail = |call: &'static str| {
        move |source: std::io::Error| ServeError::Io { path: path.into(), call, source }
    };
    let mut restricted = Ok(());
    let (socket, bound) = listen::listen(path, SocketType::STREAM, BACKLOG, |socket| {
        // What is accepted inherits both. Where the kernel refuses no descriptors, each piece is looked at.
        let _refuses = socket::refuse_descriptors(socket.as_fd());
        // Nobody can connect before it listens.
        restricted = rustix::net::sockopt::set_socket_passcred(socket, true)
            .map_err(std::io::Error::from)
            .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(MODE)));
    })?;
    restricted.map_err(fail("chmod"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("workload-api")
        .enable_all()
        .build()
        .map_err(fail("starting its thread"))?;
    let on = runtime.handle().clone();
    // From here on an error ends it without a wait.
    let serving = Serving { runtime: Some(runtime), _path: bound };
    let entered = on.enter();
    let listener = io::watch(socket).map_err(fail("epoll_ctl"))?;
    drop(entered);
    let server = Server { workloads, users: Arc::new(Users::new(limits)), on: on.clone() };
    on.spawn(server.accept(listener));
    Ok(serving)
}

struct Server {
    workloads: Workloads,
    users: Arc<Users>,
    on: Handle,
}

impl Server {
    async fn accept(self, listener: AsyncFd<OwnedFd>) {
        let mut said: Option<Instant> = None;
        loop {
            match next(&listener).await {
                Ok(socket) => self.came(socket).await,
                Err(error) => {
                    if said.is_none_or(|at| at.elapsed() > SAID) {
                        said = Some(Instant::now());
                        tracing::warn!(%error, "workload API: no connection is accepted for a moment");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // Who was turned away is gone, and who is there had a turn, before the next one comes.
            tokio::task::yield_now().await;
        }
    }

    /// One has connected. Its account is asked before the next one is accepted.
    async fn came(&self, socket: OwnedFd) {
        let socket = Endpoint::new(socket);
        let visitor = match Visitor::of(socket.as_fd()) {
            Ok(visitor) => visitor,
            Err(error) => {
                return tracing::debug!(%error, "workload API: nobody is known to have connected");
            }
        };
        let credentials = visitor.credentials();
        let Some(place) = Users::place(&self.users, credentials.uid, Kind::Connection) else {
            return tracing::debug!(
                ?credentials,
                "workload API: its user has all connections that one may have"
            );
        };
        let (tx, rx) = oneshot::channel();
        self.workloads.take(visitor, |end| {
            let _given_up = tx.send(end);
        });
        match rx.await {
            Ok(Ok(end)) => {
                let users = Arc::clone(&self.users);
                self.on.spawn(async move {
                    let _until_the_end = place;
                    let ended = connection::run(socket, credentials, end, users).await;
                    tracing::debug!(?credentials, why = %ended, "workload API: a connection has ended");
                });
            }
            Ok(Err(why)) => {
                tracing::debug!(?credentials, why, "workload API: a connection was turned away")
            }
            Err(_) => tracing::debug!("workload API: the coordinator has ended"),
        }
    }
}

async fn next(listener: &AsyncFd<OwnedFd>) -> std::io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |fd: &AsyncFd<OwnedFd>| Ok(rustix::net::accept_with(fd.get_ref(), flags)?);
        match ready.try_io(accept) {
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Ok(accepted) => return accepted,
            Err(_would_block) => {}
        }
    }
}
