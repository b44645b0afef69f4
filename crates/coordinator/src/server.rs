//! The coordinator as others in its process see it, and the socket it listens on.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use partywall_abi::name::ServiceName;
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::event_loop::{EventLoop, Order, Orders};
use crate::identity::Domain;
use crate::policy::Policy;
use crate::state::State;

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another one listens at the path.
    #[error("{path}: another coordinator is listening here")]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{path}: {call}: {source}")]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// Which call.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// A process that the coordinator has started, whose identity is strong.
pub struct Started {
    /// The coordinator's end of the socket it was given.
    pub socket: OwnedFd,
    /// A pidfd, opened before the child was waited for.
    pub pidfd: OwnedFd,
    /// Its number.
    pub pid: u32,
    /// The name it was started under.
    pub name: String,
    /// SHA-256 of the sealed copy it runs.
    pub digest: [u8; 32],
    /// Where it runs, if it is a domain.
    pub domain: Option<Domain>,
}

/// A running coordinator; dropping it stops it and removes the socket.
pub struct Coordinator {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
}

impl Coordinator {
    /// Starts a coordinator on a thread of its own; `path` is where processes connect, none when
    /// only those it starts may.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: Option<&Path>, policy: Policy) -> Result<Self, StartError> {
        let shown = path.unwrap_or(Path::new("(no socket)")).to_path_buf();
        let fail = |call: &'static str, source: io::Error| {
            let path = shown.clone();
            StartError::Io { path, call, source }
        };
        let listener = path.map(listen).transpose()?;
        let state = State::new(policy, rustix::process::geteuid().as_raw());
        let (event_loop, orders) =
            EventLoop::new(listener, state).map_err(|(call, errno)| fail(call, errno.into()))?;
        let thread = std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(move || event_loop.run())
            .map_err(|source| fail("spawn", source))?;
        Ok(Self { orders, thread: Some(thread), path: path.map(Path::to_path_buf) })
    }

    /// Takes in a process that was started with a socket of its own.
    pub fn add_started(&self, started: Started) {
        self.orders.send(Order::Add(started));
    }

    /// Tells once when somebody serves `name`.
    pub fn serving(&self, name: &ServiceName) -> Receiver<()> {
        let (told, answer) = channel();
        self.orders.send(Order::Served(name.clone(), told));
        answer
    }

    /// Blocks until the coordinator's thread has ended, which it does only on an error.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
        if let Some(path) = &self.path {
            let _gone = fs::remove_file(path);
        }
    }
}

/// Binds the socket; one left behind by a coordinator that was killed is replaced.
fn listen(path: &Path) -> Result<OwnedFd, StartError> {
    let fail = |call: &'static str| {
        move |source: io::Error| StartError::Io { path: path.to_path_buf(), call, source }
    };
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
        fs::create_dir_all(dir).map_err(fail("mkdir"))?;
    }
    let address = SocketAddrUnix::new(path).map_err(|e| fail("socket path")(e.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let new = || {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| fail("socket")(e.into()))
    };
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::ADDRINUSE) => {
            match rustix::net::connect(new()?, &address) {
                Err(rustix::io::Errno::CONNREFUSED) => {}
                Err(e) if e != rustix::io::Errno::AGAIN => return Err(fail("connect")(e.into())),
                _ => return Err(StartError::Busy { path: path.to_path_buf() }),
            }
            fs::remove_file(path).map_err(fail("unlink"))?;
            rustix::net::bind(&socket, &address).map_err(|e| fail("bind")(e.into()))?;
        }
        Err(e) => return Err(fail("bind")(e.into())),
    }
    // Whoever can reach the path may connect; what they may do is the policy's business.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(fail("chmod"))?;
    // Where the kernel cannot, each packet is looked at.
    let _refuses = socket::refuse_descriptors(socket.as_fd());
    rustix::net::listen(&socket, 128).map_err(|e| fail("listen")(e.into()))?;
    Ok(socket)
}
