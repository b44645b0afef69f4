//! The I/O around the state machine: one thread, one epoll, non-blocking sockets.
//!
//! ```text
//! backlog --> looked at --> challenged (nonce sent) --> looked at again --> open --> closed
//!    |            | not through in 5 s, wrong sender, wrong nonce: closed
//!    | no descriptors for the look: waits there
//!    | too many connections: closed
//! introduction: both ends take descriptors --> memory, socket pair, a packet for each
//!    |            | not in 4 s: refused
//! ```
//!
//! Nothing a process does blocks the thread: reads are bounded per turn; what a process does not
//! read is queued up to a limit and then the process is closed; its program is measured on another
//! thread ([`crate::measure`]), and descriptors that it sends are refused, or closed on another
//! one. Links for a process that does not read wait without memory or descriptors
//! ([`crate::peer`]). Each packet's sender is compared with the process that proved itself
//! ([`crate::identity`]).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use partywall_abi::control::Message;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::memory;
use partywall_shm::socket::{self, Credentials};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SocketFlags;

use crate::identity::{Facts, Measured, Programs};
use crate::measure::{Job, Measuring};
use crate::peer::{Challenged, Known, Look, Peer, Sent, Stage};
use crate::server::Started;
use crate::state::{Conn, Effect, Introduction, State, internal};

/// How long a process may take to prove itself.
const PROOF_TIME: Duration = Duration::from_secs(5);
/// Messages that wait for a process that does not read.
const QUEUE: usize = 1024;
/// Packets read from one process before the others get their turn.
const TURN: usize = 32;
/// Connections at once; each needs two descriptors.
const CONNECTIONS: usize = 16 * 1024;
/// Descriptors that a connection takes while its process is looked at: its socket, a pidfd, and
/// files in /proc, one on this thread and one where programs are measured.
const LOOK: usize = 4;
/// How long a link may wait for an end that does not read; less than callers wait for it.
const INTRODUCTION_TIME: Duration = Duration::from_secs(4);
/// Waiting introductions that are looked at in one pass: some milliseconds at most.
const PASS: usize = 256;
/// How often what waits for no event is tried again, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(50));

const WAKE: u64 = 0;
const LISTENER: u64 = 1;

/// What the rest of the process asks of the loop.
pub(crate) enum Order {
    Add(Started),
    Measured(Job, Measured),
    Served(ServiceName, Sender<()>),
    Stop,
}

/// The way to the loop.
#[derive(Clone)]
pub(crate) struct Orders {
    sender: Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Orders {
    pub(crate) fn send(&self, order: Order) {
        // Nobody hears it only when the loop has stopped.
        let _ = self.sender.send(order);
        // EAGAIN: the counter is full of wake-ups, which serves as well.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// One coordinator's connections.
pub(crate) struct EventLoop {
    epoll: OwnedFd,
    listener: Option<OwnedFd>,
    wake: Arc<OwnedFd>,
    orders: Receiver<Order>,
    state: State,
    measuring: Measuring,
    peers: HashMap<u64, Peer>,
    tokens: HashMap<Conn, u64>,
    next_token: u64,
    buffer: Vec<u8>,
    /// Who wants to know when a name is served.
    awaited: Vec<(ServiceName, Sender<()>)>,
    /// Links for ends that do not read, and since when.
    introductions: VecDeque<(Introduction, Instant)>,
    /// Tokens whose queues wait for fewer descriptors to be under way.
    stuck: BTreeSet<u64>,
    /// When these two are tried again, and how long after that.
    retry: Instant,
    pause: Duration,
    /// When connections are accepted again.
    accept_at: Option<Instant>,
}

type CallError = (&'static str, rustix::io::Errno);

impl EventLoop {
    /// An error names the system call.
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        state: State,
    ) -> Result<(Self, Orders), CallError> {
        let io = |call: &'static str| move |errno| (call, errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create1"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(io("eventfd"))?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(io("epoll_ctl"))?;
        if let Some(l) = &listener {
            epoll::add(&epoll, l, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(io("epoll_ctl"))?;
        }
        let (sender, receiver) = channel();
        let orders = Orders { sender, wake };
        let (programs, reports) = (Programs::default(), orders.clone());
        let measuring = Measuring::new(
            move |pid| programs.measure(Some(pid)),
            move |job, measured| reports.send(Order::Measured(job, measured)),
        );
        let event_loop = Self {
            epoll,
            listener,
            wake: Arc::clone(&orders.wake),
            orders: receiver,
            state,
            measuring,
            peers: HashMap::new(),
            tokens: HashMap::new(),
            next_token: LISTENER + 2,
            buffer: vec![0; limits::CONTROL_BYTES],
            awaited: Vec::new(),
            introductions: VecDeque::new(),
            stuck: BTreeSet::new(),
            retry: Instant::now(),
            pause: RETRY.0,
            accept_at: None,
        };
        Ok((event_loop, orders))
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.next_timeout().map(socket::timespec);
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
            self.tell_rows();
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
        if self.state.lists_to().any(|conn| self.has_read(conn)) {
            return Some(Duration::ZERO);
        }
        let proofs = self.peers.values().filter_map(|p| match p.stage {
            Stage::Challenged(ref c) => Some(c.until),
            Stage::Open(_) => None,
        });
        let retry = self.waits().then_some(self.retry);
        let next = proofs.chain(self.state.next_timeout()).chain(retry).chain(self.accept_at);
        Some(next.min()?.saturating_duration_since(Instant::now()))
    }

    /// Whether the queue for a connection is empty.
    fn has_read(&self, conn: Conn) -> bool {
        let peer = self.tokens.get(&conn).and_then(|token| self.peers.get(token));
        peer.is_some_and(|p| p.queue.is_empty())
    }

    /// Sends the next rows of lists, a batch for each that takes them.
    fn tell_rows(&mut self) {
        let lists: Vec<Conn> = self.state.lists_to().collect();
        for conn in lists {
            if self.has_read(conn) {
                self.state.room(conn);
                self.carry_out();
            }
        }
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
        if self.waits() && self.retry <= now {
            self.try_again(now);
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.listen_for(EventFlags::IN);
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
                Order::Measured(job, measured) => {
                    self.measuring.finished(job);
                    self.measured(job.token, measured);
                }
                Order::Add(s) => {
                    let credentials = Credentials {
                        pid: s.pid,
                        uid: rustix::process::geteuid().as_raw(),
                        gid: rustix::process::getegid().as_raw(),
                    };
                    let _refuses = socket::refuse_descriptors(s.socket.as_fd());
                    let known = Known { name: s.name, digest: s.digest, domain: s.domain };
                    self.admit(s.socket, credentials, Some(s.pidfd), Some(known));
                }
            }
        }
        false
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            let Some(listener) = &self.listener else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accepted = room(listener).and_then(|()| rustix::net::accept_with(listener, flags));
            let socket = match accepted {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    tracing::warn!("out of descriptors; connections wait");
                    self.accept_at = Some(Instant::now() + RETRY.1);
                    return self.listen_for(EventFlags::empty());
                }
                Err(_) => continue,
            };
            if self.peers.len() >= CONNECTIONS {
                tracing::warn!("too many connections; one was turned away");
                continue;
            }
            let Ok(credentials) = socket::peer_credentials(socket.as_fd()) else { continue };
            match pidfd(&socket, credentials) {
                Ok(pidfd) => self.admit(socket, credentials, pidfd, None),
                Err(errno) => tracing::warn!(
                    ?credentials,
                    %errno,
                    "no pidfd of a connecting process; the connection is closed"
                ),
            }
        }
    }

    fn listen_for(&self, flags: EventFlags) {
        if let Some(listener) = &self.listener {
            // It fails only when memory has run out, and then connections wait.
            let _ = epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags);
        }
    }

    /// Step 1 of the proof; with what step 2 needs, the others follow.
    fn admit(
        &mut self,
        socket: OwnedFd,
        credentials: Credentials,
        pidfd: Option<OwnedFd>,
        started: Option<Known>,
    ) {
        let token = self.next_token;
        self.next_token += 2;
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
        let challenged = Challenged { nonce, until, look: Look::First };
        let peer = Peer::new(socket, pidfd, credentials, started, challenged);
        let seen = self.look_at(token, &peer);
        self.peers.insert(token, peer);
        if let Some(facts) = seen {
            self.challenge(token, facts);
        }
    }

    /// The facts of a process, unless its program must be measured for that: then
    /// [`EventLoop::measured`] follows.
    fn look_at(&mut self, token: u64, peer: &Peer) -> Option<Facts> {
        let Credentials { pid, uid, .. } = peer.credentials;
        let facts = kernel_facts(peer);
        // What was started is known from before it ran; /proc adds nothing to that.
        if peer.started.is_some() || !self.state.observes_programs() {
            return Some(facts);
        }
        if pid == 0 {
            return Some(facts.observed(Programs::default().measure(None)));
        }
        self.measuring.ask(Job { token, uid, pid });
        None
    }

    /// A program has been measured, for the first look or for the second.
    fn measured(&mut self, token: u64, measured: Measured) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let facts = kernel_facts(peer).observed(measured);
        let Stage::Challenged(challenged) = &mut peer.stage else { return };
        match std::mem::replace(&mut challenged.look, Look::First) {
            Look::Second(before) => {
                if let Err(reason) = self.open(token, &before, facts) {
                    self.close(token, reason);
                }
            }
            Look::First | Look::Asked(_) => self.challenge(token, facts),
        }
    }

    /// Step 3 of the proof.
    fn challenge(&mut self, token: u64, facts: Facts) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        if let Stage::Challenged(challenged) = &mut peer.stage {
            challenged.look = Look::Asked(facts);
            let (version, nonce) = (partywall_abi::VERSION, challenged.nonce);
            self.post(token, &Message::Challenge { version, nonce }, Vec::new());
        }
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
            if let Err(reason) = peer.check_sender(&packet) {
                socket::discard(packet.fds);
                return self.close(token, reason);
            }
            if packet.truncated || !packet.fds.is_empty() {
                socket::discard(packet.fds);
                return self.close(token, "a packet that is too long or carries descriptors");
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

    /// Step 4 of the proof.
    fn prove(&mut self, token: u64, message: &Message) -> Result<(), &'static str> {
        let mut peer = self.peers.remove(&token).expect("the caller has it");
        let answered = answer(&mut peer, message);
        let seen = match &answered {
            Ok(_) => self.look_at(token, &peer),
            Err(_) => None,
        };
        self.peers.insert(token, peer);
        let before = answered?;
        match seen {
            Some(facts) => self.open(token, &before, facts),
            None => {
                let peer = self.peers.get_mut(&token).expect("just put back");
                if let Stage::Challenged(challenged) = &mut peer.stage {
                    challenged.look = Look::Second(before);
                }
                Ok(())
            }
        }
    }

    /// Step 5 of the proof.
    fn open(&mut self, token: u64, before: &Facts, after: Facts) -> Result<(), &'static str> {
        let peer = self.peers.get_mut(&token).expect("the callers have it");
        if peer.pidfd.as_ref().is_some_and(|p| !socket::alive(p.as_fd())) {
            return Err("the process ended while it was being looked at");
        }
        if after != *before {
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
                    Effect::Introduce(introduction) => self.introduce(introduction),
                    Effect::Close { conn, reason } => {
                        if let Some(&token) = self.tokens.get(&conn) {
                            self.close(token, reason);
                        }
                    }
                }
            }
        }
    }

    fn introduce(&mut self, new: Introduction) {
        if !self.try_introduce(&new) {
            let now = Instant::now();
            self.wait_from(now);
            self.introductions.push_back((new, now));
        }
    }

    /// False when one of the ends takes no descriptors now.
    fn try_introduce(&mut self, i: &Introduction) -> bool {
        let mut takes = |conn| {
            let token = *self.tokens.get(conn)?;
            Some((token, self.peers.get_mut(&token)?.takes_descriptors()))
        };
        let (caller, server) = match (takes(&i.caller.0), takes(&i.server.0)) {
            (Some((caller, true)), Some((server, true))) => (caller, server),
            (Some(_), Some(_)) => return false,
            (None, _) => return self.fail(i, "the caller has just gone"),
            (_, None) => return self.fail(i, "the server has just gone"),
        };
        let parts = || -> Result<_, String> {
            let callers = memory::create(i.geometry).map_err(|e| e.to_string())?;
            let servers = memory::create(i.geometry).map_err(|e| e.to_string())?;
            let (a, b) = socket::pair().map_err(|e| format!("socketpair: {e}"))?;
            Ok((vec![callers, a], vec![servers, b]))
        };
        match parts() {
            Ok((callers, servers)) => {
                self.post(server, &i.server.1, servers);
                self.post(caller, &i.caller.1, callers);
                true
            }
            Err(why) => self.fail(i, &why),
        }
    }

    /// Refuses a link; true, because it does not wait.
    fn fail(&mut self, introduction: &Introduction, why: &str) -> bool {
        self.state.introduction_failed(introduction, why);
        true
    }

    /// Whether something waits that no event tells of.
    fn waits(&self) -> bool {
        !self.introductions.is_empty() || !self.stuck.is_empty()
    }

    /// Called before something begins to wait.
    fn wait_from(&mut self, now: Instant) {
        if !self.waits() {
            self.pause = RETRY.0;
            self.retry = now + self.pause;
        }
    }

    fn try_again(&mut self, now: Instant) {
        let (stuck, waiting) = (self.stuck.len(), self.introductions.len());
        for token in std::mem::take(&mut self.stuck) {
            self.flush(token);
        }
        // The others' turn comes in the next passes: they wait in a ring.
        for _ in 0..waiting.min(PASS) {
            let Some((i, since)) = self.introductions.pop_front() else { break };
            if now.saturating_duration_since(since) > INTRODUCTION_TIME {
                self.fail(&i, "one of its ends does not read what it is sent");
            } else if !self.try_introduce(&i) {
                self.introductions.push_back((i, since));
            }
        }
        let moved = (stuck, waiting) != (self.stuck.len(), self.introductions.len());
        self.pause = if moved { RETRY.0 } else { RETRY.1.min(2 * self.pause) };
        self.retry = now + self.pause;
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
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        let sent = peer.send_queued();
        if matches!(sent, Ok(Sent::Full)) {
            flags |= EventFlags::OUT;
        }
        let _ = epoll::modify(&self.epoll, &peer.socket, EventData::new_u64(token), flags);
        match sent {
            Ok(Sent::All | Sent::Full) => {}
            Ok(Sent::TooMany) => {
                self.wait_from(Instant::now());
                self.stuck.insert(token);
            }
            Err(_) => self.close(token, "the process has closed the socket"),
        }
    }

    fn close(&mut self, token: u64, reason: &'static str) {
        let Some(peer) = self.peers.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &peer.socket);
        if let Some(pidfd) = &peer.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        self.measuring.forget(token);
        self.stuck.remove(&token);
        let Credentials { pid, uid, .. } = peer.credentials;
        tracing::debug!(pid, uid, reason, "connection closed");
        if let Stage::Open(conn) = peer.stage {
            self.tokens.remove(&conn);
            self.state.closed(conn);
        }
    }
}

/// Whether a connection that is accepted now can be looked at; otherwise it waits where it is,
/// for what is accepted and not looked at would be lost.
fn room(any: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let spare: [_; LOOK] = std::array::from_fn(|_| rustix::io::fcntl_dupfd_cloexec(any, 0));
    spare.into_iter().try_for_each(|fd| fd.map(drop))
}

/// The process that connected; none in a PID namespace that cannot be seen from here.
fn pidfd(socket: &OwnedFd, of: Credentials) -> Result<Option<OwnedFd>, rustix::io::Errno> {
    if let Some(pidfd) = socket::peer_pidfd(socket.as_fd()) {
        return Ok(Some(pidfd));
    }
    let pid = rustix::process::Pid::from_raw(of.pid as i32);
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    pid.map(open).transpose()
}

/// What the kernel and the coordinator itself know of a process.
fn kernel_facts(peer: &Peer) -> Facts {
    let Credentials { pid, uid, gid } = peer.credentials;
    let facts = Facts::read(uid, gid, (pid != 0).then_some(pid));
    match &peer.started {
        Some(known) => facts.started(known.name.clone(), known.digest, known.domain),
        None => facts,
    }
}

/// What was known of the process when it was asked for the proof that it gives now.
fn answer(peer: &mut Peer, message: &Message) -> Result<Facts, &'static str> {
    let Stage::Challenged(challenged) = &mut peer.stage else {
        return Err("a proof of what was proven");
    };
    let Message::Proof { version, nonce } = message else {
        return Err("a message before the proof of identity");
    };
    if *version != partywall_abi::VERSION {
        return Err("another version of Partywall");
    }
    if *nonce != challenged.nonce {
        return Err("a wrong nonce");
    }
    match std::mem::replace(&mut challenged.look, Look::First) {
        Look::Asked(before) => Ok(before),
        Look::First | Look::Second(_) => Err("a proof that was not asked for"),
    }
}
