//! The coordinator as others in its process see it, and the socket it listens on.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use partywall_abi::name::ServiceName;
use partywall_shm::listen::{self, BoundPath, ListenError};
use partywall_shm::socket::{self, Lingering};
use partywall_shm::threads;
use rustix::net::{AddressFamily, SocketType};

use crate::audit::Audit;
use crate::event_loop::{Begin, EventLoop, Order, Orders};
pub use crate::peer::Started;
use crate::policy::{Policy, PolicyError};
use crate::trust::TrustError;
use crate::workload::{Visit, Visitor};

/// Descriptors with which one link at a time can be made.
const LEAST: u64 = 28;

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The socket's path cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no authority for certificates.
    #[error("[authority]: {0}")]
    Trust(#[from] TrustError),
    /// What was handed over is no listening socket for a coordinator.
    #[error(
        "the socket that was handed over: {0}; remedy: ListenSequentialPacket= in the socket unit"
    )]
    Handed(&'static str),
    /// The process may have too few descriptors to serve anybody.
    #[error(
        "{0} descriptors are too few for a coordinator, which needs {LEAST}; remedy: `ulimit -n`"
    )]
    Descriptors(u64),
    /// A system call failed.
    #[error("{call}: {source}")]
    Io {
        /// Which call.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Where processes connect.
#[derive(Debug, Default)]
pub enum Listen {
    /// Nowhere: only those that the coordinator starts are there.
    #[default]
    Nowhere,
    /// At a path, whose directory is made if it is missing.
    At(PathBuf),
    /// At a socket that listens already, as a service manager hands it over.
    Handed(OwnedFd),
}

/// What a coordinator may be given beside its policy.
#[derive(Default)]
pub struct Options {
    /// Where processes connect.
    pub listen: Listen,
    /// Where operators' calls are taken, and nowhere else: a socket that root and this process's user alone
    /// may connect to. None to take them where processes connect.
    pub operators: Option<PathBuf>,
    /// The policy's file, to be read again by [`Coordinator::reload`] or on an operator's word.
    pub policy_file: Option<PathBuf>,
    /// Where the audit log goes; see [`crate::audit`].
    pub audit: Option<File>,
    /// Tells what happens and what accounts have by the crate `metrics`, whose recorder is installed
    /// before. The metrics are in the project's docs/metrics.md.
    pub metrics: bool,
    /// Every child of this process, and every child's, is a service and no operator. This process
    /// is to be their reaper then (PR_SET_CHILD_SUBREAPER(2const)).
    pub children_are_services: bool,
    /// Dropped when the coordinator's thread ends: by [`Coordinator`]'s drop, an error or a panic.
    pub while_running: Option<Box<dyn Send>>,
}

/// A running coordinator; dropping it stops it and removes the socket.
///
/// Other processes of this one's user can take its descriptors, unless this process makes itself not dumpable
/// (PR_SET_DUMPABLE(2const)), as `partywall coordinator` does.
pub struct Coordinator {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
    _paths: [Option<BoundPath>; 2],
}

impl Coordinator {
    /// Starts a coordinator on a thread of its own; `path` is where processes connect, none when
    /// only those it starts may.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: Option<&Path>, policy: Policy) -> Result<Self, StartError> {
        let listen = path.map_or(Listen::Nowhere, |path| Listen::At(path.to_path_buf()));
        Self::start_with(policy, Options { listen, ..Options::default() })
    }

    /// As [`Coordinator::start`], with all choices.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(policy: Policy, options: Options) -> Result<Self, StartError> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if let Some(few) = limit.filter(|limit| *limit < LEAST) {
            return Err(StartError::Descriptors(few));
        }
        let fail = |call: &'static str| move |source: io::Error| StartError::Io { call, source };
        let handed = matches!(options.listen, Listen::Handed(_));
        let (listener, path) = match options.listen {
            Listen::Nowhere => (None, None),
            Listen::At(path) => {
                let (socket, path) = listen(&path, ANYBODY)?;
                (Some(Lingering::refusing(socket)), Some(path))
            }
            Listen::Handed(socket) => {
                check_handed(&socket)?;
                (Some(Lingering::new(socket)), None)
            }
        };
        let operators = options.operators.map(|path| {
            let path = std::path::absolute(&path).unwrap_or(path);
            let (socket, bound) = listen(&path, OWN_USER)?;
            Ok::<_, StartError>((Lingering::refusing(socket), path, bound))
        });
        let operators = operators.transpose()?;
        let (operators, operators_path) = match operators {
            Some((socket, path, bound)) => (Some((socket, path)), Some(bound)),
            None => (None, None),
        };
        let new_audit = |file: File| {
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let name = name.map_or_else(|_| "audit".into(), |path| path.display().to_string());
            Audit::new(name, file)
        };
        let audit = options.audit.map(new_audit).transpose().map_err(fail("spawn"))?;
        let (file, confines) = (options.policy_file, options.children_are_services);
        let while_running = options.while_running;
        let metrics = options.metrics;
        let trust = policy.authority().open(policy.clock())?;
        let begin =
            Begin { listener, handed, operators, policy, trust, file, audit, metrics, confines };
        let (event_loop, orders) =
            EventLoop::new(begin).map_err(|(call, source)| StartError::Io { call, source })?;
        let runs = move || {
            let _until_here = while_running;
            event_loop.run();
        };
        let thread = std::thread::Builder::new().name("coordinator".into());
        let thread = threads::spawn(thread, runs).map_err(fail("spawn"))?;
        Ok(Self { orders, thread: Some(thread), _paths: [path, operators_path] })
    }

    /// Reads the policy's file again and puts it into force. A file that cannot be used changes
    /// nothing.
    ///
    /// `done` is called on the coordinator's thread, and dropped where that ends first.
    pub fn reload(&self, done: impl FnOnce(Result<(), PolicyError>) + Send + 'static) {
        self.orders.send(Order::Reload(Some(Box::new(done))));
    }

    /// Takes in a process that was started with a socket of its own.
    pub fn add_started(&self, started: Started) {
        self.orders.send(Order::Add(started));
    }

    /// The way in for processes that ask for certificates at another socket.
    pub fn workloads(&self) -> Workloads {
        Workloads { orders: self.orders.clone() }
    }

    /// Tells once when somebody serves `name`.
    pub fn serving(&self, name: &ServiceName) -> Receiver<()> {
        let (notify, answer) = channel();
        self.orders.send(Order::Served(name.clone(), notify));
        answer
    }

    /// Blocks until the coordinator's thread has ended, which it does only on an error.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// The way to a coordinator for processes that know no control protocol; see [`crate::workload`].
#[derive(Clone)]
pub struct Workloads {
    orders: Orders,
}

impl Workloads {
    /// Takes a workload in. `answer` has the end at which to speak for it, a `SOCK_SEQPACKET` socket of the
    /// control protocol, or why its account gets none. It is called on the coordinator's thread, and dropped
    /// where that has ended.
    pub fn take(
        &self,
        visitor: Visitor,
        answer: impl FnOnce(Result<OwnedFd, String>) + Send + 'static,
    ) {
        self.orders.send(Order::Workload(Box::new(Visit { visitor, answer: Box::new(answer) })));
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Connections that may wait to be accepted. They are taken in the order of their coming, so that
/// this is how many of others a process waits for.
const BACKLOG: i32 = 16;

/// Whoever can reach the path may connect; what they may do is the policy's business.
const ANYBODY: u32 = 0o666;
/// Root and the coordinator's user.
const OWN_USER: u32 = 0o600;

fn listen(path: &Path, mode: u32) -> Result<(OwnedFd, BoundPath), StartError> {
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
        let fail = |source| ListenError::Io { path: dir.into(), call: "mkdir", source };
        fs::create_dir_all(dir).map_err(fail)?;
    }
    let mut chmod = Ok(());
    let (socket, bound) = listen::listen(path, SocketType::SEQPACKET, BACKLOG, |socket| {
        // What is accepted inherits it. Where the kernel cannot, each packet is looked at.
        let _refuses = socket::refuse_descriptors(socket.as_fd());
        // Nobody can connect before it listens.
        chmod = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    })?;
    chmod.map_err(|source| ListenError::Io { path: path.into(), call: "chmod", source })?;
    Ok((socket, bound))
}

/// Makes a socket that was handed over as good as one of ours.
fn check_handed(socket: &OwnedFd) -> Result<(), StartError> {
    let wrong = |_| StartError::Handed("it is no socket");
    if rustix::net::sockopt::socket_domain(socket).map_err(wrong)? != AddressFamily::UNIX
        || rustix::net::sockopt::socket_type(socket).map_err(wrong)? != SocketType::SEQPACKET
    {
        return Err(StartError::Handed("it is no Unix SOCK_SEQPACKET socket"));
    }
    if !rustix::net::sockopt::socket_acceptconn(socket).map_err(wrong)? {
        return Err(StartError::Handed("it does not listen"));
    }
    let _refuses = socket::refuse_descriptors(socket.as_fd());
    let fail = |call| move |e: rustix::io::Errno| StartError::Io { call, source: e.into() };
    let flags = rustix::fs::fcntl_getfl(socket).map_err(fail("fcntl"))?;
    rustix::fs::fcntl_setfl(socket, flags | rustix::fs::OFlags::NONBLOCK).map_err(fail("fcntl"))?;
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).map_err(fail("fcntl"))
}
