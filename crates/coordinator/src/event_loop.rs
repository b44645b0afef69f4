//! The I/O around the state machine: one thread, one epoll, non-blocking sockets.
//!
//! ```text
//! backlog --> looked at --> challenged (nonce sent) --> looked at again --> open --> closed
//!    |            | no answer in 5 s, wrong sender, wrong nonce: closed; what the coordinator's own
//!    |            | process has started is known and may take its time
//!    | no descriptors for the look: waits there
//!    | more than its account may have: closed
//! ```
//!
//! Nothing a process does blocks the thread, or keeps it from the others: connections that have something to
//! be done take turns by account ([`crate::ready`]). Between two looks at what is new, a few connections are
//! accepted and one has a turn, which is a look at its process or one packet: so who comes anew waits for a
//! turn of each account at most. epoll tells of a connection once (`EPOLLONESHOT`), and again when its last
//! turn has found nothing left: however much a thousand connections send, their events come as often as
//! their turns do. What a process does not read waits up to a limit of its account's, and its own packets
//! wait meanwhile ([`crate::peer`]); its program is measured, and its engine asked, on another thread
//! ([`crate::measure`]); no descriptor of its is received ([`partywall_shm::socket`]). Each packet's sender
//! is compared with the process that proved itself ([`crate::identity`]).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use partywall_abi::control::{Message, Role};
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::socket::{self, Credentials, Lingering};
use partywall_shm::users::Subordinates;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::audit::Audit;
use crate::engine::Answers;
use crate::handout::{Memories, Part, Refused};
use crate::identity::{self, Programs, Reader};
use crate::measure::{Found, Job, Measuring};
use crate::peer::{Look, Peer, Reason, Sent, Stage, Started};
use crate::policy::{Policy, PolicyError};
use crate::quota::{Quotas, Totals, Usage};
use crate::ready::Ready;
use crate::state::{Conn, Effect, State, internal};
use crate::telemetry::Telemetry;
use crate::trust::Trust;
use crate::workload::Visit;

mod admission;
mod log;
mod reading;
mod traces;

use admission::{Listener, random_token, turn_away};
use log::Waiting;

/// How often what waits for no event is tried again, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(50));
/// How often all that an account has not read is weighed again.
const WEIGH: Duration = Duration::from_millis(100);

/// Connections that are accepted between two turns.
const ACCEPTED: usize = 4;

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const OPERATORS: u64 = 3;

/// Who asked for the policy to be read again, if not this process.
type Asked = Option<(Conn, u32)>;

/// What was read: a policy, and the authority if it may be another one.
type Loaded = Result<(Policy, Option<Trust>), PolicyError>;

/// Who of this process waits for it.
type Notify = Option<Box<dyn FnOnce(Result<(), PolicyError>) + Send>>;

/// What the rest of the process asks of the loop.
pub(crate) enum Order {
    Add(Started),
    Workload(Box<Visit>),
    Measured(Job, Found),
    Served(ServiceName, Sender<()>),
    Reload(Notify),
    Loaded(Box<Loaded>),
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

/// What a loop begins with.
pub(crate) struct Begin {
    pub(crate) listener: Option<Lingering>,
    /// The listener was made by another process.
    pub(crate) handed: bool,
    /// The operators' socket, and where it is.
    pub(crate) operators: Option<(Lingering, PathBuf)>,
    pub(crate) policy: Policy,
    pub(crate) trust: Trust,
    /// Where the policy is read again.
    pub(crate) file: Option<PathBuf>,
    pub(crate) audit: Option<Audit>,
    /// See [`crate::telemetry`].
    pub(crate) metrics: bool,
    /// See [`Reader::confines`].
    pub(crate) confines: bool,
}

/// One coordinator's connections.
pub(crate) struct EventLoop {
    epoll: OwnedFd,
    /// The operators' socket comes first.
    listeners: Vec<Listener>,
    wake: Arc<OwnedFd>,
    orders: Receiver<Order>,
    sender: Orders,
    state: State,
    quotas: Quotas,
    reader: Reader,
    file: Option<PathBuf>,
    /// Who asked for the policy to be read again; the first one's turn it is.
    to_read: VecDeque<(Asked, Notify)>,
    audit: Option<Audit>,
    audit_at: Option<Instant>,
    receipts: Waiting,
    telemetry: Option<Telemetry>,
    measuring: Measuring,
    memories: Memories,
    peers: HashMap<u64, Peer>,
    tokens: HashMap<Conn, u64>,
    next_token: u64,
    ready: Ready,
    buffer: Vec<u8>,
    /// Who wants to know when a name is served.
    awaited: Vec<(ServiceName, Sender<()>)>,
    /// Until when processes are to have proven themselves.
    proofs: BTreeSet<(Instant, u64)>,
    /// Tokens whose queues wait for fewer descriptors to be under way.
    stuck: BTreeSet<u64>,
    /// When they are tried again, and how long after that.
    retry: Instant,
    pause: Duration,
    /// When connections are accepted again.
    accept_at: Option<Instant>,
    /// There were no descriptors at the last attempt.
    short: bool,
    /// Kept open so that a look at a process finds descriptors.
    spare: Vec<OwnedFd>,
    weighed: Instant,
}

type CallError = (&'static str, io::Error);

impl EventLoop {
    /// An error names the system call.
    pub(crate) fn new(begin: Begin) -> Result<(Self, Orders), CallError> {
        let io = |call: &'static str| move |errno: rustix::io::Errno| (call, errno.into());
        let Begin { listener, handed, operators, policy, trust, file, audit, metrics, confines } =
            begin;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("epoll_create1"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(io("eventfd"))?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(io("epoll_ctl"))?;
        let (operators, path) = operators.unzip();
        let common = listener.map(|socket| (socket, handed));
        let listeners = Listener::both(&epoll, operators, common).map_err(io("epoll_ctl"))?;
        let (sender, receiver) = channel();
        let orders = Orders { sender, wake: Arc::clone(&wake) };
        let (programs, answers, reports) =
            (Programs::default(), Answers::default(), orders.clone());
        let measuring = Measuring::new(
            move |pid| programs.measure(pid),
            move |question| answers.ask(question),
            move |job, found| reports.send(Order::Measured(job, found)),
        );
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let own = rustix::process::geteuid().as_raw();
        let quotas = Quotas::new(Totals::for_descriptors(most), policy.limits().clone(), own);
        let now = Instant::now();
        let engines = policy.engines().clone();
        let mut state = State::new(policy, quotas.clone(), own, now, random_token);
        state.trust(trust);
        if audit.is_some() {
            state.keep_receipts();
        }
        if let Some(path) = path {
            state.separate_operators(path);
        }
        let mut telemetry = metrics.then(|| Telemetry::new(quotas.clone(), now));
        // Who knows that it has started reads values.
        telemetry.iter_mut().for_each(|telemetry| telemetry.look(now));
        let mut event_loop = Self {
            epoll,
            listeners,
            wake,
            orders: receiver,
            sender: orders.clone(),
            state,
            quotas,
            reader: Reader {
                subordinates: Subordinates::read(),
                engines,
                confines,
                blind: identity::blind(),
            },
            file,
            to_read: VecDeque::new(),
            audit,
            audit_at: None,
            receipts: Waiting::default(),
            telemetry,
            measuring,
            memories: Memories::default(),
            peers: HashMap::new(),
            tokens: HashMap::new(),
            next_token: OPERATORS + 2,
            ready: Ready::default(),
            buffer: vec![0; limits::CONTROL_BYTES],
            awaited: Vec::new(),
            proofs: BTreeSet::new(),
            stuck: BTreeSet::new(),
            retry: now,
            pause: RETRY.0,
            accept_at: None,
            short: false,
            spare: Vec::new(),
            weighed: now,
        };
        let _else_the_first_look_waits = event_loop.room();
        Ok((event_loop, orders))
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let backlog = self.listeners.iter().any(|listener| listener.backlog);
            let timeout = if backlog { Some(Duration::ZERO) } else { self.next_timeout() };
            let timeout = timeout.map(socket::timespec);
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
                    token @ (LISTENER | OPERATORS) => self.has_backlog(Some(token)),
                    token if token.is_multiple_of(2) => {
                        // Tokens of sockets are odd (they begin at OPERATORS + 2 and step by two).
                        self.died(token - 1);
                    }
                    token => self.is_ready(token),
                }
            }
            self.carry_out();
            for _ in 0..ACCEPTED {
                if let Some(at) = self.listeners.iter().position(|listener| listener.backlog) {
                    self.accept(at);
                    // The others are before it next time.
                    self.listeners.rotate_left(at + 1);
                    self.carry_out();
                }
            }
            let start = Instant::now();
            if let Some((token, usage)) = self.ready.pop(start) {
                if let Some(telemetry) = &mut self.telemetry {
                    telemetry.changed();
                }
                self.turn(token);
                self.carry_out();
                self.spent(&usage, start);
            }
            self.expire();
            self.carry_out();
            self.serve_questions();
            let state = &self.state;
            self.awaited.retain(|(name, notify)| {
                state.instances(name) == 0 || {
                    let _heard = notify.send(());
                    false
                }
            });
        }
    }

    /// Answers questions for links, each in the time of who asked it.
    fn serve_questions(&mut self) {
        loop {
            let start = Instant::now();
            let Some(usage) = self.state.serve_question() else { return };
            self.carry_out();
            self.spent(&usage, start);
        }
    }

    /// An account has had the time since `start`.
    fn spent(&mut self, usage: &Usage, start: Instant) {
        let now = Instant::now();
        self.ready.spent(usage, now.saturating_duration_since(start), now);
    }

    fn next_timeout(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let proof = self.proofs.first().map(|(until, _)| *until);
        let retry = (!self.stuck.is_empty()).then_some(self.retry);
        let next = [
            self.ready.next(now),
            proof,
            retry,
            self.state.next_timeout(),
            self.memories.next_look(),
            self.accept_at,
            self.audit_at,
            self.receipts.at,
            self.telemetry.as_ref().and_then(|telemetry| telemetry.at),
        ];
        Some(next.into_iter().flatten().min()?.saturating_duration_since(now))
    }

    fn is_ready(&mut self, token: u64) {
        if let Some(peer) = self.peers.get(&token) {
            self.ready.push(peer.usage(), token);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.state.timeout(now);
        while let Some(&(until, token)) = self.proofs.first()
            && until <= now
        {
            self.proofs.pop_first();
            self.late(token);
        }
        if !self.stuck.is_empty() && self.retry <= now {
            let before = self.stuck.len();
            for token in std::mem::take(&mut self.stuck) {
                self.flush(token);
            }
            self.pause =
                if self.stuck.len() < before { RETRY.0 } else { RETRY.1.min(2 * self.pause) };
            self.retry = now + self.pause;
        }
        for (link, role, holds) in self.memories.look(now) {
            match holds {
                true => self.state.holds(link, role),
                false => self.state.let_go(link, role),
            }
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.has_backlog(None);
        }
        self.write_due(now);
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.look(now);
        }
    }

    /// True when it is time to stop.
    fn take_orders(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => return true,
                Order::Served(name, notify) => self.awaited.push((name, notify)),
                Order::Measured(job, found) => {
                    self.measuring.finished(&job);
                    self.measured(job.token, found);
                }
                Order::Add(started) => self.add(started),
                Order::Workload(visit) => self.visited(*visit),
                Order::Reload(notify) => self.read_policy(None, notify),
                Order::Loaded(loaded) => self.loaded(*loaded),
            }
            self.carry_out();
        }
        false
    }

    /// A connection's turn: what is to be sent, what is due, what has come.
    fn turn(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        if !peer.has_room() {
            self.flush(token);
        }
        let Some(peer) = self.peers.get(&token) else { return };
        match &peer.stage {
            Stage::Open(conn) if peer.has_room() => {
                self.state.room(*conn);
                self.carry_out();
            }
            Stage::Open(_) => {}
            Stage::Challenged(challenged) => {
                if matches!(challenged.look, Look::Due) {
                    self.first_look(token);
                    return self.arm(token);
                }
            }
        }
        let Some(peer) = self.peers.get(&token) else { return };
        if !peer.listens() {
            // The end of the queue makes it ready again.
            return self.arm(token);
        }
        let packet = match peer.socket.receive(&mut self.buffer) {
            Ok(packet) => packet,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return match self.is_due(token) {
                    true => self.is_ready(token),
                    false => self.arm(token),
                };
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return self.close(token, "a packet with descriptors");
            }
            Err(_) => return self.close(token, "the socket failed"),
        };
        if self.peers.get(&token).is_some_and(|peer| !peer.is_alive()) {
            return self.died(token);
        }
        if let Err(reason) = self.packet(token, &packet) {
            return self.close(token, reason);
        }
        self.carry_out();
        self.is_ready(token);
    }

    /// Has epoll tell of a connection once more, when there is something to be done.
    fn arm(&self, token: u64) {
        let Some(peer) = self.peers.get(&token) else { return };
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, peer.listens());
        flags.set(EventFlags::OUT, peer.waits_for_room);
        // It can only fail for want of memory, and then there is not even an epoll(7) to wait for.
        let _in_vain = epoll::modify(&self.epoll, &peer.socket, EventData::new_u64(token), flags);
    }

    /// Whether more is due to a connection that takes it.
    fn is_due(&self, token: u64) -> bool {
        self.peers.get(&token).is_some_and(|peer| match peer.stage {
            Stage::Open(conn) => peer.has_room() && self.state.is_due(conn),
            Stage::Challenged(_) => false,
        })
    }

    fn packet(&mut self, token: u64, packet: &socket::Packet) -> Result<(), Reason> {
        let peer = self.peers.get(&token).expect("the caller has it");
        if packet.len == 0 {
            return Err("the process has closed the socket".into());
        }
        peer.check_sender(packet)?;
        if packet.truncated || packet.stripped {
            return Err("a packet that is too long or carries descriptors".into());
        }
        let decoded = Message::decode(&self.buffer[..packet.len]);
        let message = decoded.map_err(|why| format!("a packet that is no message: {why}"))?;
        match &peer.stage {
            Stage::Open(conn) => {
                self.state.message(*conn, message, Instant::now());
                Ok(())
            }
            Stage::Challenged(_) => self.prove(token, &message),
        }
    }

    fn carry_out(&mut self) {
        // Carrying out can close a connection, which can have effects of its own.
        loop {
            for conn in self.state.take_due() {
                if let Some(&token) = self.tokens.get(&conn) {
                    self.is_ready(token);
                }
            }
            let effects = self.state.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.carry_out_one(effect);
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.send(to, &message, Vec::new()),
            Effect::Offer { link, geometry, to, message } => {
                let parts = self.memories.make(link, geometry);
                if let Some(telemetry) = self.telemetry.as_mut().filter(|_| parts.is_ok()) {
                    telemetry.made(link);
                }
                self.hand_out(link, to, &message, parts);
            }
            Effect::Link { link, to, message } => {
                let parts = self.memories.for_caller(link);
                self.hand_out(link, to, &message, parts);
            }
            Effect::Open { link, to, message } => {
                let parts = self.memories.for_server(link);
                if parts.is_ok() {
                    self.state.introduced(link);
                    if let Some(telemetry) = &mut self.telemetry {
                        telemetry.introduced(link);
                    }
                }
                self.hand_out(link, to, &message, parts);
            }
            Effect::Grant { link, to: [caller, server] } => match socket::descriptor_pair() {
                Ok((callers, servers)) => {
                    self.send(caller.0, &caller.1, vec![Part::End(callers)]);
                    self.send(server.0, &server.1, vec![Part::End(servers)]);
                }
                Err(why) => self.state.not_granted(link, &why),
            },
            Effect::Trace { link, to, message } => self.trace(link, to, &message),
            Effect::Over { link, said } => {
                if let Some(telemetry) = &mut self.telemetry {
                    telemetry.over(link);
                }
                if !self.memories.over(link, said, Instant::now()) {
                    self.state.let_go(link, Role::Caller);
                    self.state.let_go(link, Role::Server);
                }
            }
            Effect::Close { conn, reason } => {
                if let Some(&token) = self.tokens.get(&conn) {
                    self.close(token, reason);
                }
            }
            Effect::Reload { conn, request } => self.read_policy(Some((conn, request)), None),
            Effect::Receipts { conn, request, events } => self.hand_in(conn, request, events),
            Effect::Audit(event) => self.log(&event),
        }
    }

    fn hand_out(
        &mut self,
        link: u64,
        to: Conn,
        message: &Message,
        parts: Result<Vec<Part>, Refused>,
    ) {
        match parts {
            Ok(parts) => self.send(to, message, parts),
            Err((fault, why)) => self.state.faulty(link, fault, &why, Instant::now()),
        }
    }

    fn send(&mut self, to: Conn, message: &Message, parts: Vec<Part>) {
        if let Some(&token) = self.tokens.get(&to) {
            self.post(token, message, parts);
        }
    }

    /// Sends, or queues for a process that does not read just now.
    fn post(&mut self, token: u64, message: &Message, parts: Vec<Part>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let mut packet = message.encode();
        if packet.len() > limits::CONTROL_BYTES {
            // The policy is checked for that; see `policy::read`.
            tracing::error!(bytes = packet.len(), "an answer that does not fit into a packet");
            packet = internal(Message::request_of(&packet), "an answer that is too long".into())
                .encode();
        }
        let waits = !peer.has_room();
        peer.push(packet, parts);
        if !waits {
            self.flush(token);
        } else if peer.weigh().is_err() {
            self.weigh_all(token);
        }
    }

    fn flush(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let listened = peer.listens();
        let sent = peer.send_queued();
        let waits = matches!(sent, Ok(Sent::Full));
        let arms = waits && !peer.waits_for_room;
        peer.waits_for_room = waits;
        let (weighed, listens) = (peer.weigh(), peer.listens());
        match sent {
            Ok(Sent::All | Sent::Full) => {}
            Ok(Sent::TooMany) => {
                if self.stuck.is_empty() {
                    self.pause = RETRY.0;
                    self.retry = Instant::now() + self.pause;
                }
                self.stuck.insert(token);
            }
            Err(_) => return self.close(token, "the process has closed the socket"),
        }
        if arms {
            self.arm(token);
        }
        if listens && (!listened || self.is_due(token)) {
            self.is_ready(token);
        }
        if weighed.is_err() {
            self.weigh_all(token);
        }
    }

    /// An account has too much unread: what it has read meanwhile is taken off; if that does not
    /// help, the connection at hand is closed.
    fn weigh_all(&mut self, token: u64) {
        let Some(peer) = self.peers.get(&token) else { return };
        let usage = Arc::clone(peer.usage());
        let now = Instant::now();
        if now.saturating_duration_since(self.weighed) >= WEIGH {
            self.weighed = now;
            for other in self.peers.values_mut().filter(|p| Arc::ptr_eq(p.usage(), &usage)) {
                let _the_one_at_hand = other.weigh();
            }
        }
        if self.peers.get_mut(&token).is_some_and(|peer| peer.weigh().is_err()) {
            self.close(token, "its account leaves too much unread");
        }
    }

    /// A process has ended.
    fn died(&mut self, token: u64) {
        if let Some(Stage::Open(conn)) = self.peers.get(&token).map(|peer| &peer.stage) {
            self.state.died(*conn, Instant::now());
        }
        self.close(token, "the process has ended");
    }

    fn close(&mut self, token: u64, reason: impl Into<Reason>) {
        let reason = reason.into();
        let Some(peer) = self.peers.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &peer.socket);
        if let Some(pidfd) = &peer.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        self.ready.forget(token);
        self.measuring.forget(token);
        self.stuck.remove(&token);
        let Credentials { pid, uid, .. } = peer.credentials;
        tracing::debug!(pid, uid, %reason, "connection closed");
        match peer.stage {
            Stage::Open(conn) => {
                self.tokens.remove(&conn);
                self.state.closed(conn, Instant::now());
            }
            Stage::Challenged(challenged) => {
                turn_away(&peer.socket, reason.into_owned());
                self.no_longer_due(challenged.until, token);
            }
        }
    }

    /// A proof is no longer waited for.
    fn no_longer_due(&mut self, until: Option<Instant>, token: u64) {
        if let Some(until) = until {
            self.proofs.remove(&(until, token));
        }
    }
}

#[cfg(test)]
mod tests;
