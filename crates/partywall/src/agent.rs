//! This process's conversation with the coordinator: one control socket, however many channels and
//! servers there are, read on the reactor's thread.
//!
//! ```text
//! ask() ----- request number ----> coordinator ---- answer ----> the asker's oneshot
//! register() -> registration number -> offers go to that server's queue
//! watch() ----> instances of a name, as they change
//! ```
//!
//! Whoever sends does not wait: what the coordinator does not take at once is queued, and the
//! reactor sends it when there is room. A queue that has grown over its bound ends the conversation.
//!
//! What the coordinator keeps for this process ends with a value here: a registration with
//! [`Registered`], a link that was offered or a redirect with [`Booked`]. The link of a caller
//! needs none: its server hears the caller hang up, and says so.
//!
//! When the coordinator goes, every open question is answered with an error and every watch ends;
//! links go on. The next question opens a new conversation. A server whose coordinator is gone
//! keeps its links and takes no new ones.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, Isolation, LinkRow, LinkStats, Message};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_shm::reactor::{self, Next, Registration, Source};
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Error;

mod operator;

use operator::wait_here;
pub use operator::{LinkInfo, links, switch_gate};

/// How long the proof of identity may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Offers that wait for a server that does not take them.
const OFFERS: usize = 1024;
/// Packets that wait for a coordinator that does not read.
const OUTGOING: usize = 64 * 1024;

/// A link that a caller was given.
pub(crate) struct Linked {
    pub(crate) link: u64,
    pub(crate) geometry: Geometry,
    pub(crate) server: Identity,
    pub(crate) isolation: Isolation,
    pub(crate) memory: OwnedFd,
    pub(crate) socket: OwnedFd,
}

/// What became of a connect.
pub(crate) enum Connected {
    Link(Linked),
    Redirect { url: String, methods: MethodSet, booked: Booked },
}

/// An open link in the coordinator's books, where this process's word on it counts: unless it is
/// handed on to what says so itself, the drop says that it has ended.
pub(crate) struct Booked {
    agent: Arc<Agent>,
    pub(crate) link: u64,
    handed_on: bool,
}

impl Booked {
    fn new(agent: &Arc<Agent>, link: u64) -> Self {
        Self { agent: Arc::clone(agent), link, handed_on: false }
    }

    pub(crate) fn hand_on(mut self) {
        self.handed_on = true;
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        if !self.handed_on {
            self.agent.closed(self.link, LinkStats::default());
        }
    }
}

/// A link that a server is offered.
pub(crate) struct Offer {
    pub(crate) link: u64,
    pub(crate) geometry: Geometry,
    pub(crate) caller: Identity,
    pub(crate) methods: MethodSet,
    pub(crate) isolation: Isolation,
    pub(crate) memory: OwnedFd,
    pub(crate) socket: OwnedFd,
}

/// A name that this process serves, until the drop.
pub(crate) struct Registered {
    pub(crate) agent: Arc<Agent>,
    registration: u64,
    pub(crate) offers: mpsc::Receiver<(Offer, Booked)>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.agent.unregister(self.registration);
    }
}

enum Waiting {
    Answer(oneshot::Sender<Result<Connected, Error>>),
    Register(oneshot::Sender<Result<Registered, Error>>),
    Rows(Vec<LinkRow>, oneshot::Sender<Result<Vec<LinkRow>, Error>>),
    Watch(watch::Sender<u32>),
    Switch(oneshot::Sender<Result<u32, Error>>),
}

/// Something whose counters the coordinator may ask for.
pub(crate) trait Counted: Send + Sync {
    fn stats(&self) -> LinkStats;
}

#[derive(Default)]
struct Books {
    next_request: u32,
    waiting: HashMap<u32, Waiting>,
    offers: HashMap<u64, mpsc::Sender<(Offer, Booked)>>,
    counted: HashMap<u64, Weak<dyn Counted>>,
    gone: bool,
}

/// Packets that the socket did not take; while there are any, the reactor waits for room.
#[derive(Default)]
struct Outgoing {
    packets: VecDeque<Vec<u8>>,
    waiting: bool,
}

/// One conversation.
pub(crate) struct Agent {
    socket: OwnedFd,
    books: Mutex<Books>,
    outgoing: Mutex<Outgoing>,
    registered: OnceLock<Registration>,
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the coordinator is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Path(PathBuf),
    Handed(i32),
}

impl Place {
    /// Looks in the environment: a socket handed over, a path given, else the usual places.
    pub(crate) fn find() -> Self {
        if let Some(n) = std::env::var("PARTYWALL_FD").ok().and_then(|n| n.parse().ok()) {
            return Self::Handed(n);
        }
        if let Some(path) = std::env::var_os("PARTYWALL_SOCKET") {
            return Self::Path(path.into());
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR")
            .map(|d| Path::new(&d).join("partywall/coordinator.sock"));
        match own.filter(|p| p.exists()) {
            Some(path) => Self::Path(path),
            None => Self::Path("/run/partywall/coordinator.sock".into()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Path(p) => p.display().to_string(),
            Self::Handed(n) => format!("descriptor {n} (PARTYWALL_FD)"),
        }
    }
}

static AGENTS: Mutex<Option<HashMap<Place, Arc<Agent>>>> = Mutex::new(None);

/// The conversation with the coordinator at `place`, opened if there is none. Blocks for at most
/// five seconds, as a rule for much less than one millisecond.
pub(crate) fn get(place: &Place) -> Result<Arc<Agent>, Error> {
    let mut agents = lock(&AGENTS);
    let agents = agents.get_or_insert_default();
    if let Some(agent) = agents.get(place).filter(|a| !lock(&a.books).gone) {
        return Ok(Arc::clone(agent));
    }
    let agent = Agent::open(place)?;
    agents.insert(place.clone(), Arc::clone(&agent));
    Ok(agent)
}

/// As [`get`], from async code.
pub(crate) async fn get_async(place: &Place) -> Result<Arc<Agent>, Error> {
    let known = AGENTS.try_lock().ok().and_then(|a| a.as_ref()?.get(place).cloned());
    if let Some(agent) = known.filter(|a| !lock(&a.books).gone) {
        return Ok(agent);
    }
    // A thread for this once: one of the runtime's would linger, and wake up to end.
    let (tx, rx) = oneshot::channel();
    let place = place.clone();
    std::thread::Builder::new()
        .name("partywall-connect".into())
        .spawn(move || drop(tx.send(get(&place))))
        .map_err(|source| Error::Io { what: "starting a thread".into(), source })?;
    rx.await.unwrap_or(Err(Error::CoordinatorGone("the attempt to connect panicked")))
}

impl Agent {
    fn open(place: &Place) -> Result<Arc<Self>, Error> {
        let nowhere =
            |source: std::io::Error| Error::NoCoordinator { place: place.shown(), source };
        let socket = match place {
            Place::Handed(n) => socket::inherited(*n).map_err(nowhere)?,
            Place::Path(path) => connect(path).map_err(nowhere)?,
        };
        let owner = socket::peer_credentials(socket.as_fd()).map_err(nowhere)?.uid;
        check_owner(place, owner)?;
        prove(&socket)?;
        Self::start(socket).map_err(nowhere)
    }

    /// Listens to the coordinator that this process has proven itself to.
    fn start(socket: OwnedFd) -> std::io::Result<Arc<Self>> {
        let agent = Arc::new(Self {
            socket,
            books: Mutex::default(),
            outgoing: Mutex::default(),
            registered: OnceLock::new(),
        });
        let owner: Arc<dyn AsFd + Send + Sync> = Arc::clone(&agent) as _;
        let registration = reactor::register(owner, Arc::new(Listener(Arc::clone(&agent))))?;
        let _first = agent.registered.set(registration);
        // The reactor may have had something to say that found no room, before it could be told;
        // when that fails, it has heard of the end.
        let _ended = agent.flush(&mut lock(&agent.outgoing));
        Ok(agent)
    }

    fn send(&self, message: &Message) -> Result<(), Error> {
        let mut outgoing = lock(&self.outgoing);
        outgoing.packets.push_back(message.encode());
        if outgoing.packets.len() > OUTGOING {
            outgoing.packets.clear();
            // The reactor hears of it and ends the conversation.
            let _ended = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            return Err(Error::CoordinatorGone("it does not read"));
        }
        if outgoing.waiting { Ok(()) } else { self.flush(&mut outgoing) }
    }

    /// Sends what waits, as far as the socket takes it.
    fn flush(&self, outgoing: &mut Outgoing) -> Result<(), Error> {
        while let Some(packet) = outgoing.packets.front() {
            match socket::send(self.socket.as_fd(), packet, &[]) {
                Ok(()) => drop(outgoing.packets.pop_front()),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    outgoing.packets.clear();
                    return Err(Error::CoordinatorGone("it has ended"));
                }
            }
        }
        let waiting = !outgoing.packets.is_empty();
        if waiting != outgoing.waiting
            && let Some(registration) = self.registered.get()
        {
            registration.wants_room(waiting);
            outgoing.waiting = waiting;
        }
        Ok(())
    }

    fn begin(&self, waiting: Waiting) -> Result<u32, Error> {
        let mut books = lock(&self.books);
        if books.gone {
            return Err(Error::CoordinatorGone("it has ended"));
        }
        loop {
            books.next_request = books.next_request.wrapping_add(1).max(1);
            let request = books.next_request;
            if let std::collections::hash_map::Entry::Vacant(slot) = books.waiting.entry(request) {
                slot.insert(waiting);
                return Ok(request);
            }
        }
    }

    /// Sends the question with this number, or forgets who waits for its answer.
    fn ask(&self, request: u32, question: &Message) -> Result<(), Error> {
        self.send(question).inspect_err(|_| drop(self.forget(request)))
    }

    fn forget(&self, request: u32) -> Option<Waiting> {
        lock(&self.books).waiting.remove(&request)
    }

    /// Asks for a link.
    pub(crate) fn connect(&self, name: &ServiceName) -> Result<Connecting, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Answer(tx))?;
        self.ask(request, &Message::Connect { request, name: name.clone() })?;
        Ok(Connecting(rx))
    }

    /// Asks to serve a name.
    pub(crate) async fn register(&self, name: &ServiceName) -> Result<Registered, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Register(tx))?;
        self.ask(request, &Message::Register { request, name: name.clone() })?;
        rx.await.unwrap_or(Err(Error::CoordinatorGone("it has ended")))
    }

    /// Stops serving; offers that are under way are dropped, which their callers see.
    fn unregister(&self, registration: u64) {
        let queue = lock(&self.books).offers.remove(&registration);
        drop(queue);
        // When the coordinator is gone, so is the registration.
        let _ = self.send(&Message::Unregister { registration });
    }

    /// Watches a name: a value that is the number of instances.
    pub(crate) fn watch(&self, name: &ServiceName) -> Result<(u32, watch::Receiver<u32>), Error> {
        let (tx, rx) = watch::channel(0);
        let request = self.begin(Waiting::Watch(tx))?;
        self.ask(request, &Message::Watch { request, name: name.clone() })?;
        Ok((request, rx))
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&self, request: u32) {
        drop(self.forget(request));
        let _ = self.send(&Message::Unwatch { request });
    }

    /// Makes an end's counters known to those who ask.
    pub(crate) fn count(&self, link: u64, end: Weak<dyn Counted>) {
        lock(&self.books).counted.insert(link, end);
    }

    /// Tells the coordinator that an end has closed.
    pub(crate) fn closed(&self, link: u64, stats: LinkStats) {
        lock(&self.books).counted.remove(&link);
        let _ = self.send(&Message::Closed { link, stats });
    }
}

/// A connect under way.
pub(crate) struct Connecting(oneshot::Receiver<Result<Connected, Error>>);

impl Connecting {
    pub(crate) fn blocking(self, within: Duration) -> Result<Connected, Error> {
        wait_here(self.0, within)
    }

    pub(crate) async fn wait(self) -> Result<Connected, Error> {
        self.0.await.unwrap_or(Err(Error::CoordinatorGone("it has ended")))
    }
}

fn two(fds: Vec<OwnedFd>) -> Result<(OwnedFd, OwnedFd), Error> {
    let fds: [OwnedFd; 2] = fds
        .try_into()
        .map_err(|_| Error::CoordinatorGone("no room for its descriptors (see `ulimit -n`)"))?;
    let [memory, socket] = fds;
    Ok((memory, socket))
}

/// The reactor's view of an agent.
struct Listener(Arc<Agent>);

impl Source for Listener {
    fn ready(&self, _hung_up: bool) -> Next {
        // When it fails, so does the receive.
        let _ = self.0.flush(&mut lock(&self.0.outgoing));
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        for _ in 0..64 {
            let packet = match socket::receive(self.0.socket.as_fd(), &mut buffer, false) {
                Ok(packet) if packet.len > 0 => packet,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Next::Keep,
                _ => {
                    self.end();
                    return Next::Done;
                }
            };
            match Message::decode(&buffer[..packet.len]) {
                Ok(message) => self.take(message, packet.fds),
                Err(error) => {
                    tracing::error!(%error, "the coordinator sent what is no message");
                    self.end();
                    return Next::Done;
                }
            }
        }
        Next::Keep
    }
}

impl Listener {
    fn end(&self) {
        let waiting = {
            let mut books = lock(&self.0.books);
            books.gone = true;
            books.offers.clear();
            std::mem::take(&mut books.waiting)
        };
        for (_, w) in waiting {
            let gone = Error::CoordinatorGone("it has ended");
            match w {
                Waiting::Answer(tx) => drop(tx.send(Err(gone))),
                Waiting::Register(tx) => drop(tx.send(Err(gone))),
                Waiting::Rows(_, tx) => drop(tx.send(Err(gone))),
                Waiting::Switch(tx) => drop(tx.send(Err(gone))),
                Waiting::Watch(_) => {}
            }
        }
    }

    fn take(&self, message: Message, fds: Vec<OwnedFd>) {
        let fds = match message {
            Message::Offer { .. } | Message::Linked { .. } => fds,
            _ => {
                socket::discard(fds);
                Vec::new()
            }
        };
        match message {
            Message::Offer { registration, link, geometry, caller, methods, isolation } => {
                let booked = Booked::new(&self.0, link);
                match two(fds) {
                    Ok((memory, socket)) => {
                        let offer =
                            Offer { link, geometry, caller, methods, isolation, memory, socket };
                        self.offer(registration, offer, booked);
                    }
                    Err(why) => tracing::warn!(link, %why, "a link is lost"),
                }
            }
            Message::Watched { request, instances } => {
                if let Some(Waiting::Watch(tx)) = lock(&self.0.books).waiting.get(&request) {
                    let _unwatched = tx.send(instances);
                }
            }
            Message::Row { request, row } => {
                if let Some(Waiting::Rows(rows, _)) = lock(&self.0.books).waiting.get_mut(&request)
                {
                    rows.push(row);
                }
            }
            Message::Listed { request } => {
                let waiting = lock(&self.0.books).waiting.remove(&request);
                if let Some(Waiting::Rows(rows, tx)) = waiting {
                    let _given_up = tx.send(Ok(rows));
                }
            }
            Message::Query { request } => self.count(request),
            Message::SetGate { request, open } => {
                let errno = crate::domain::accept(open).err().unwrap_or(0);
                let _ = self.0.send(&Message::GateSet { request, errno });
            }
            Message::Switched { request, domains } => {
                if let Some(Waiting::Switch(tx)) = self.0.forget(request) {
                    let _given_up = tx.send(Ok(domains));
                }
            }
            Message::Refused { request, code, text } => {
                let code = tonic::Code::from_i32(code.into());
                let refused = Error::Refused { code, text };
                match lock(&self.0.books).waiting.remove(&request) {
                    Some(Waiting::Answer(tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Register(tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Rows(_, tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Switch(tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Watch(_)) | None => {}
                }
            }
            Message::Registered { request, registration } => {
                if let Some(Waiting::Register(tx)) = self.0.forget(request) {
                    // The queue is there before the first offer, which comes after this message.
                    let (queue, offers) = mpsc::channel(OFFERS);
                    lock(&self.0.books).offers.insert(registration, queue);
                    let registered =
                        Registered { agent: Arc::clone(&self.0), registration, offers };
                    let _given_up = tx.send(Ok(registered));
                }
            }
            Message::Linked { request, link, geometry, server, isolation, .. } => {
                let linked = two(fds).map(|(memory, socket)| {
                    Connected::Link(Linked { link, geometry, server, isolation, memory, socket })
                });
                self.answer(request, linked);
            }
            Message::Redirect { request, link, url, methods } => {
                let booked = Booked::new(&self.0, link);
                self.answer(request, Ok(Connected::Redirect { url, methods, booked }));
            }
            other => tracing::warn!(?other, "a message that has no place here"),
        }
    }

    fn answer(&self, request: u32, connected: Result<Connected, Error>) {
        let given_up = match self.0.forget(request) {
            Some(Waiting::Answer(tx)) => tx.send(connected).err(),
            _ => Some(connected),
        };
        // What its server has sent on the socket is nobody's any more.
        if let Some(Ok(Connected::Link(Linked { memory, socket, .. }))) = given_up {
            socket::discard(vec![memory, socket]);
        }
    }

    fn offer(&self, registration: u64, offer: Offer, booked: Booked) {
        let link = offer.link;
        let queue = lock(&self.0.books).offers.get(&registration).cloned();
        let refused = match queue {
            None => Some((offer, "there is no server for it")),
            Some(queue) => {
                let full = queue.try_send((offer, booked)).err();
                full.map(|e| (e.into_inner().0, "the server does not take its offers"))
            }
        };
        if let Some((Offer { memory, socket, .. }, why)) = refused {
            tracing::warn!(link, why, "a link is dropped");
            socket::discard(vec![memory, socket]);
        }
    }

    fn count(&self, request: u32) {
        if lock(&self.0.outgoing).packets.len() > OUTGOING / 4 {
            // Who does not read the answers to the last questions gets no more of them.
            return;
        }
        let ends: Vec<_> = {
            let mut books = lock(&self.0.books);
            books.counted.retain(|_, end| end.strong_count() > 0);
            books.counted.iter().filter_map(|(l, e)| Some((*l, e.upgrade()?))).collect()
        };
        for (link, end) in ends.into_iter().take(OUTGOING / 2) {
            let _ = self.0.send(&Message::Counted { request, link, stats: end.stats() });
        }
        let _ = self.0.send(&Message::CountedAll { request });
    }
}

fn connect(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    let deadline = Instant::now() + HANDSHAKE;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            // The queue of waiting connections is full.
            Err(rustix::io::Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn check_owner(place: &Place, found: u32) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    let set = std::env::var("PARTYWALL_COORDINATOR_UID").ok();
    let (ok, expected) = match set.as_deref().map(str::parse::<u32>) {
        Some(Ok(uid)) => (found == uid, uid.to_string()),
        Some(Err(_)) => (false, "a number in PARTYWALL_COORDINATOR_UID".to_string()),
        None => (found == own || found == 0, format!("{own} or 0")),
    };
    if ok {
        return Ok(());
    }
    Err(Error::WrongCoordinator { place: place.shown(), found, expected })
}

/// The process's part of the proof of identity.
fn prove(socket: &OwnedFd) -> Result<(), Error> {
    let deadline = Instant::now() + HANDSHAKE;
    let next = || -> Result<Message, Error> {
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        loop {
            match socket::receive(socket.as_fd(), &mut buffer, false) {
                Ok(packet) if packet.len > 0 => {
                    return Ok(Message::decode(&buffer[..packet.len])?);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return Err(Error::CoordinatorGone("it refused this process")),
            }
            if !socket::wait_readable(socket.as_fd(), deadline).unwrap_or(false) {
                return Err(Error::TimedOut(HANDSHAKE));
            }
        }
    };
    let Message::Challenge { version, nonce } = next()? else {
        return Err(Error::CoordinatorGone("it does not begin with a challenge"));
    };
    if version != partywall_abi::VERSION {
        return Err(Error::CoordinatorGone("it speaks another version of Partywall"));
    }
    let proof = Message::Proof { version, nonce };
    socket::send(socket.as_fd(), &proof.encode(), &[])
        .map_err(|_| Error::CoordinatorGone("it closed during the proof"))?;
    match next()? {
        Message::Welcome { .. } => Ok(()),
        _ => Err(Error::CoordinatorGone("it does not welcome after the proof")),
    }
}

#[cfg(test)]
mod tests;
