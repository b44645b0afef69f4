//! The I/O around the state machine: one thread, one epoll, non-blocking sockets.
//!
//! ```text
//! accept --> challenged (nonce sent) --> open --> closed
//!    |            | no proof in 5 s, wrong sender, wrong nonce: closed
//!    | too many connections: closed
//! ```
//!
//! Nothing a process does blocks the thread: reads are bounded per turn, and what a process does
//! not read is queued up to a limit and then the process is closed. Each packet's sender is
//! compared with the process that proved itself ([`crate::identity`]).

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use partywall_abi::control::{Digest, Message};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::memory;
use partywall_shm::socket::{self, Credentials};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::identity::{Facts, Reader};
use crate::policy::Policy;
use crate::state::{Conn, Effect, State, internal};

/// How long a process may take to prove itself.
const PROOF_TIME: Duration = Duration::from_secs(5);
/// Messages that wait for a process that does not read.
const QUEUE: usize = 1024;
/// Packets read from one process before the others get their turn.
const TURN: usize = 32;
/// Connections at once; each needs two descriptors.
const CONNECTIONS: usize = 16 * 1024;

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
}

/// A running coordinator; dropping it stops it and removes the socket.
pub struct Coordinator {
    wake: Arc<OwnedFd>,
    started: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
}

enum Order {
    Add(Started),
    Served(ServiceName, Sender<()>),
    Stop,
}

impl Coordinator {
    /// Starts a coordinator on a thread of its own; `path` is where processes connect, none when
    /// only those it starts may.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: Option<&Path>, policy: Policy) -> Result<Self, StartError> {
        Self::start_with(path, policy, Geometry::DEFAULT)
    }

    /// As [`Coordinator::start`], with rings of another size.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        path: Option<&Path>,
        policy: Policy,
        geometry: Geometry,
    ) -> Result<Self, StartError> {
        let shown = path.unwrap_or(Path::new("(no socket)")).to_path_buf();
        let io = |call: &'static str| {
            let path = shown.clone();
            move |e: rustix::io::Errno| StartError::Io { path, call, source: e.into() }
        };
        let listener = path.map(listen).transpose()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create1"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(io("eventfd"))?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(io("epoll_ctl"))?;
        if let Some(l) = &listener {
            epoll::add(&epoll, l, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(io("epoll_ctl"))?;
        }
        let (started, orders) = channel();
        let uid = rustix::process::geteuid().as_raw();
        let server = Server {
            epoll,
            listener,
            wake: Arc::clone(&wake),
            orders,
            state: State::new(policy, geometry, uid),
            reader: Reader::default(),
            peers: HashMap::new(),
            tokens: HashMap::new(),
            next_token: LISTENER + 2,
            buffer: vec![0; limits::CONTROL_BYTES],
            awaited: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(move || server.run())
            .map_err(|source| StartError::Io { path: shown.clone(), call: "spawn", source })?;
        Ok(Self { wake, started, thread: Some(thread), path: path.map(Path::to_path_buf) })
    }

    /// Takes in a process that was started with a socket of its own.
    pub fn add_started(&self, started: Started) {
        // The thread lives until this value is dropped.
        let _ = self.started.send(Order::Add(started));
        self.wake();
    }

    /// Waits until somebody serves `name`; false when that takes longer than `within`.
    pub fn served(&self, name: &ServiceName, within: Duration) -> bool {
        let (told, answer) = channel();
        let _ = self.started.send(Order::Served(name.clone(), told));
        self.wake();
        answer.recv_timeout(within).is_ok()
    }

    /// Blocks until the coordinator's thread has ended, which it does only on an error.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.started.send(Order::Stop);
        self.wake();
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
    rustix::net::listen(&socket, 128).map_err(|e| fail("listen")(e.into()))?;
    Ok(socket)
}

const WAKE: u64 = 0;
const LISTENER: u64 = 1;

/// One process. Its token is even for the socket; the next odd number is its pidfd.
struct Peer {
    socket: OwnedFd,
    pidfd: Option<OwnedFd>,
    /// As the kernel gave them with the socket; what every packet must carry.
    credentials: Credentials,
    stage: Stage,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

enum Stage {
    Challenged(Box<Challenged>),
    Open(Conn),
}

/// A process that has not proven itself yet.
struct Challenged {
    nonce: [u8; 16],
    facts: Facts,
    until: Instant,
    started: Option<(String, [u8; 32])>,
}

struct Server {
    epoll: OwnedFd,
    listener: Option<OwnedFd>,
    wake: Arc<OwnedFd>,
    orders: Receiver<Order>,
    state: State,
    reader: Reader,
    peers: HashMap<u64, Peer>,
    tokens: HashMap<Conn, u64>,
    next_token: u64,
    buffer: Vec<u8>,
    /// Who wants to know when a name is served.
    awaited: Vec<(ServiceName, Sender<()>)>,
}

impl Server {
    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.next_timeout().map(|d| rustix::time::Timespec {
                tv_sec: d.as_secs() as i64,
                tv_nsec: d.subsec_nanos().into(),
            });
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "epoll_wait failed; the coordinator stops");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        if self.take_orders() {
                            return;
                        }
                    }
                    LISTENER => self.accept(),
                    token => self.peer_event(token, event.flags),
                }
                self.carry_out();
            }
            self.expire();
            self.carry_out();
            let state = &self.state;
            self.awaited.retain(|(name, told)| {
                state.instances(name) == 0 || {
                    let _heard = told.send(());
                    false
                }
            });
        }
    }

    fn next_timeout(&self) -> Option<Duration> {
        let proofs = self.peers.values().filter_map(|p| match p.stage {
            Stage::Challenged(ref c) => Some(c.until),
            Stage::Open(_) => None,
        });
        let next = proofs.chain(self.state.next_timeout()).min()?;
        // A little later than the deadline, so that it has passed on waking.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.state.timeout(now);
        let late: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, p)| matches!(&p.stage, Stage::Challenged(c) if c.until <= now))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            self.close(token, "no proof of identity in time");
        }
    }

    /// True when it is time to stop.
    fn take_orders(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => return true,
                Order::Served(name, told) => self.awaited.push((name, told)),
                Order::Add(s) => {
                    let credentials = Credentials {
                        pid: s.pid,
                        uid: rustix::process::geteuid().as_raw(),
                        gid: rustix::process::getegid().as_raw(),
                    };
                    self.admit(s.socket, credentials, Some(s.pidfd), Some((s.name, s.digest)));
                }
            }
        }
        false
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            let Some(listener) = &self.listener else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    tracing::warn!("out of descriptors; connections wait");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => continue,
            };
            if self.peers.len() >= CONNECTIONS {
                tracing::warn!("too many connections; one was turned away");
                continue;
            }
            let Ok(credentials) = socket::peer_credentials(socket.as_fd()) else { continue };
            let pidfd = socket::peer_pidfd(socket.as_fd()).or_else(|| {
                let pid = rustix::process::Pid::from_raw(credentials.pid as i32)?;
                rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
            });
            self.admit(socket, credentials, pidfd, None);
        }
    }

    /// Steps 1 to 3 of the proof.
    fn admit(
        &mut self,
        socket: OwnedFd,
        credentials: Credentials,
        pidfd: Option<OwnedFd>,
        started: Option<(String, [u8; 32])>,
    ) {
        let token = self.next_token;
        self.next_token += 2;
        let pid = (credentials.pid != 0).then_some(credentials.pid);
        if pid.is_some() && pidfd.is_none() {
            tracing::warn!(?credentials, "a connecting process was gone before it was looked at");
            return;
        }
        let facts = self.facts(credentials, &started);
        let mut nonce = [0; 16];
        let random = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
        if random != Ok(nonce.len()) || socket::pass_credentials(socket.as_fd()).is_err() {
            tracing::error!("no randomness, or SO_PASSCRED failed; a connection is refused");
            return;
        }
        let flags = EventFlags::IN | EventFlags::RDHUP;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags).is_err() {
            return;
        }
        if let Some(pidfd) = &pidfd {
            let data = EventData::new_u64(token + 1);
            if epoll::add(&self.epoll, pidfd, data, EventFlags::IN).is_err() {
                return;
            }
        }
        let until = Instant::now() + PROOF_TIME;
        let stage = Stage::Challenged(Box::new(Challenged { nonce, facts, until, started }));
        let peer = Peer { socket, pidfd, credentials, stage, queue: VecDeque::new() };
        self.peers.insert(token, peer);
        let version = partywall_abi::VERSION;
        self.post(token, &Message::Challenge { version, nonce }, Vec::new());
    }

    fn facts(&mut self, c: Credentials, started: &Option<(String, [u8; 32])>) -> Facts {
        let pid = (c.pid != 0).then_some(c.pid);
        let mut facts = self.reader.read(c.uid, c.gid, pid);
        if let Some((name, digest)) = started {
            // What was started is known from before it ran; /proc adds nothing to that.
            facts.digest = Digest::Started(*digest);
            facts.digest_error = None;
            facts.started_as = Some(name.clone());
        }
        facts
    }

    fn peer_event(&mut self, token: u64, flags: EventFlags) {
        if token.is_multiple_of(2) {
            // Tokens of sockets are odd (they begin at LISTENER + 2 and step by two).
            return self.close(token - 1, "the process has ended");
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(token);
        }
        for _ in 0..TURN {
            let Some(peer) = self.peers.get(&token) else { return };
            let packet = match socket::receive(peer.socket.as_fd(), &mut self.buffer, false) {
                Ok(packet) => packet,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.close(token, "the socket failed"),
            };
            if packet.len == 0 {
                return self.close(token, "the process has closed the socket");
            }
            if packet.truncated || !packet.fds.is_empty() {
                return self.close(token, "a packet that is too long or carries descriptors");
            }
            if let Err(reason) = check_sender(peer, &packet) {
                return self.close(token, reason);
            }
            let Ok(message) = Message::decode(&self.buffer[..packet.len]) else {
                return self.close(token, "a packet that is no message");
            };
            match &peer.stage {
                Stage::Open(conn) => self.state.message(*conn, message, Instant::now()),
                Stage::Challenged(_) => {
                    if let Err(reason) = self.prove(token, &message) {
                        return self.close(token, reason);
                    }
                }
            }
            self.carry_out();
        }
    }

    /// Steps 4 and 5 of the proof.
    fn prove(&mut self, token: u64, message: &Message) -> Result<(), &'static str> {
        let peer = self.peers.get(&token).expect("the caller has it");
        let Stage::Challenged(challenged) = &peer.stage else { return Ok(()) };
        let Challenged { nonce, facts, started, .. } = &**challenged;
        let Message::Proof { version, nonce: answered } = message else {
            return Err("a message before the proof of identity");
        };
        if *version != partywall_abi::VERSION {
            return Err("another version of Partywall");
        }
        if nonce != answered {
            return Err("a wrong nonce");
        }
        let (credentials, before, started) = (peer.credentials, facts.clone(), started.clone());
        let after = self.facts(credentials, &started);
        let peer = self.peers.get_mut(&token).expect("the caller has it");
        if peer.pidfd.as_ref().is_some_and(|p| !socket::alive(p.as_fd())) {
            return Err("the process ended while it was being looked at");
        }
        if after != before {
            return Err("the process changed while it proved itself");
        }
        let conn = self.state.opened(after);
        peer.stage = Stage::Open(conn);
        self.tokens.insert(conn, token);
        Ok(())
    }

    fn carry_out(&mut self) {
        // Carrying out can close a connection, which can have effects of its own.
        loop {
            let effects = self.state.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Send { to, message } => {
                        if let Some(&token) = self.tokens.get(&to) {
                            self.post(token, &message, Vec::new());
                        }
                    }
                    Effect::Introduce { link, geometry, caller, server } => {
                        self.introduce(link, geometry, caller, server);
                    }
                    Effect::Close { conn, reason } => {
                        if let Some(&token) = self.tokens.get(&conn) {
                            self.close(token, reason);
                        }
                    }
                }
            }
        }
    }

    fn introduce(
        &mut self,
        link: u64,
        geometry: Geometry,
        caller: (Conn, Box<Message>),
        server: (Conn, Box<Message>),
    ) {
        let parts = || -> Result<_, String> {
            let callers = memory::create(geometry).map_err(|e| e.to_string())?;
            let servers = memory::create(geometry).map_err(|e| e.to_string())?;
            let (a, b) = socket::pair().map_err(|e| format!("socketpair: {e}"))?;
            Ok((vec![callers, a], vec![servers, b]))
        };
        let (callers, servers) = match parts() {
            Ok(parts) => parts,
            Err(why) => return self.state.introduction_failed(link, &why),
        };
        let Some(&server_token) = self.tokens.get(&server.0) else {
            return self.state.introduction_failed(link, "the server has just gone");
        };
        let backlog = self.peers.get(&server_token).map_or(0, |p| p.queue.len());
        if backlog > QUEUE / 2 {
            return self.state.introduction_failed(link, "the server does not take connections");
        }
        self.post(server_token, &server.1, servers);
        if let Some(&token) = self.tokens.get(&caller.0) {
            self.post(token, &caller.1, callers);
        }
    }

    /// Sends, or queues for a process that does not read just now.
    fn post(&mut self, token: u64, message: &Message, fds: Vec<OwnedFd>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let mut packet = message.encode();
        if packet.len() > limits::CONTROL_BYTES {
            packet = internal(0, "an answer that is too long".into()).encode();
        }
        peer.queue.push_back((packet, fds));
        if peer.queue.len() > QUEUE {
            return self.close(token, "it does not read what it is sent");
        }
        if peer.queue.len() == 1 {
            self.flush(token);
        }
    }

    fn flush(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        while let Some((packet, fds)) = peer.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match socket::send(peer.socket.as_fd(), packet, &borrowed) {
                Ok(()) => {
                    peer.queue.pop_front();
                }
                // ETOOMANYREFS: too many descriptors are under way to this user's sockets.
                Err(e)
                    if e.kind() == io::ErrorKind::WouldBlock
                        || e.raw_os_error()
                            == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error()) =>
                {
                    break;
                }
                Err(_) => return self.close(token, "the process has closed the socket"),
            }
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        if !peer.queue.is_empty() {
            flags |= EventFlags::OUT;
        }
        let _ = epoll::modify(&self.epoll, &peer.socket, EventData::new_u64(token), flags);
    }

    fn close(&mut self, token: u64, reason: &'static str) {
        let Some(peer) = self.peers.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &peer.socket);
        if let Some(pidfd) = &peer.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        let Credentials { pid, uid, .. } = peer.credentials;
        tracing::debug!(pid, uid, reason, "connection closed");
        if let Stage::Open(conn) = peer.stage {
            self.tokens.remove(&conn);
            self.state.closed(conn);
        }
    }
}

/// Every packet must come from the process of the pidfd.
fn check_sender(peer: &Peer, packet: &socket::Packet) -> Result<(), &'static str> {
    let Some(sender) = packet.credentials else {
        return Err("a packet without a sender");
    };
    if sender.uid != peer.credentials.uid || sender.pid != peer.credentials.pid {
        return Err("a packet from another process than the one that connected");
    }
    if let (Some(expected), Some(found)) = (&peer.pidfd, &packet.pidfd)
        && socket::same_process(expected.as_fd(), found.as_fd()) == Some(false)
    {
        return Err("a packet from another process than the one that connected");
    }
    Ok(())
}
