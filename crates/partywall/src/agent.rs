//! This process's conversation with the coordinator: one control socket, however many channels and
//! servers there are, read on the reactor's thread.
//!
//! ```text
//! ask() ----- request number ----> coordinator ---- answer ----> the asker's oneshot
//! register() -> registration number -> offers go to that server's queue
//! watch() ----> instances of a name, as they change
//! ```
//!
//! When the coordinator goes, every open question is answered with an error and every watch ends;
//! links go on. The next question opens a new conversation. A server whose coordinator is gone
//! keeps its links and takes no new ones.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, LinkRow, LinkStats, Message};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_shm::reactor::{self, Next, Registration, Source};
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Error;

/// One row of [`links`].
pub type LinkInfo = LinkRow;

/// How long the proof of identity may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Offers that wait for a server that does not take them.
const OFFERS: usize = 1024;

/// A link that a caller was given.
pub(crate) struct Linked {
    pub(crate) link: u64,
    pub(crate) geometry: Geometry,
    pub(crate) server: Identity,
    pub(crate) memory: OwnedFd,
    pub(crate) socket: OwnedFd,
}

/// What became of a connect.
pub(crate) enum Connected {
    Link(Linked),
    Redirect { link: u64, url: String, methods: MethodSet },
}

/// A link that a server is offered.
pub(crate) struct Offer {
    pub(crate) link: u64,
    pub(crate) geometry: Geometry,
    pub(crate) caller: Identity,
    pub(crate) methods: MethodSet,
    pub(crate) memory: OwnedFd,
    pub(crate) socket: OwnedFd,
}

/// A registration's number and the links that it is offered.
pub(crate) type Registered = (u64, mpsc::Receiver<Offer>);

enum Waiting {
    Answer(oneshot::Sender<Result<(Message, Vec<OwnedFd>), Error>>),
    Register(oneshot::Sender<Result<Registered, Error>>),
    Rows(Vec<LinkRow>, oneshot::Sender<Result<Vec<LinkRow>, Error>>),
    Watch(watch::Sender<u32>),
}

/// Something whose counters the coordinator may ask for.
pub(crate) trait Counted: Send + Sync {
    fn stats(&self) -> LinkStats;
}

#[derive(Default)]
struct Books {
    next_request: u32,
    waiting: HashMap<u32, Waiting>,
    offers: HashMap<u64, mpsc::Sender<Offer>>,
    counted: HashMap<u64, Weak<dyn Counted>>,
    gone: bool,
}

/// One conversation.
pub(crate) struct Agent {
    socket: OwnedFd,
    books: Mutex<Books>,
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

/// The links that the coordinator at `socket` knows: open ones and the last that closed.
///
/// Blocks until the servers have said what they counted, at most a quarter of a second.
/// `socket`: where the coordinator listens; none to look in the usual places.
///
/// # Errors
/// [`Error::NoCoordinator`], [`Error::Refused`] for anyone but root and the coordinator's user.
pub fn links(socket: Option<&Path>) -> Result<Vec<LinkInfo>, Error> {
    let place = socket.map_or_else(Place::find, |p| Place::Path(p.into()));
    get(&place)?.list()
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
        let agent = Arc::new(Self { socket, books: Mutex::default(), registered: OnceLock::new() });
        let owner: Arc<dyn AsFd + Send + Sync> = Arc::clone(&agent) as _;
        let registration =
            reactor::register(owner, Arc::new(Listener(Arc::clone(&agent)))).map_err(nowhere)?;
        let _first = agent.registered.set(registration);
        Ok(agent)
    }

    fn send(&self, message: &Message) -> Result<(), Error> {
        // A packet that does not fit now fits soon: the coordinator reads all the time.
        for _ in 0..1000 {
            match socket::send(self.socket.as_fd(), &message.encode(), &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => break,
            }
        }
        Err(Error::CoordinatorGone("it does not read, or has ended"))
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

    fn ask(&self, message: impl FnOnce(u32) -> Message) -> Result<Answer, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Answer(tx))?;
        self.send(&message(request)).inspect_err(|_| {
            lock(&self.books).waiting.remove(&request);
        })?;
        Ok(Answer(rx))
    }

    /// Asks for a link.
    pub(crate) fn connect(&self, name: &ServiceName) -> Result<Connecting, Error> {
        self.ask(|request| Message::Connect { request, name: name.clone() }).map(Connecting)
    }

    /// Asks to serve a name.
    pub(crate) async fn register(&self, name: &ServiceName) -> Result<Registered, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Register(tx))?;
        self.send(&Message::Register { request, name: name.clone() })?;
        rx.await.unwrap_or(Err(Error::CoordinatorGone("it has ended")))
    }

    /// Stops serving; offers that are under way are dropped, which their callers see.
    pub(crate) fn unregister(&self, registration: u64) {
        lock(&self.books).offers.remove(&registration);
        // When the coordinator is gone, so is the registration.
        let _ = self.send(&Message::Unregister { registration });
    }

    /// Watches a name: a value that is the number of instances.
    pub(crate) fn watch(&self, name: &ServiceName) -> Result<(u32, watch::Receiver<u32>), Error> {
        let (tx, rx) = watch::channel(0);
        let request = self.begin(Waiting::Watch(tx))?;
        self.send(&Message::Watch { request, name: name.clone() })?;
        Ok((request, rx))
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&self, request: u32) {
        lock(&self.books).waiting.remove(&request);
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

    fn list(&self) -> Result<Vec<LinkRow>, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Rows(Vec::new(), tx))?;
        self.send(&Message::List { request })?;
        rx.blocking_recv().unwrap_or(Err(Error::CoordinatorGone("it has ended")))
    }
}

struct Answer(oneshot::Receiver<Result<(Message, Vec<OwnedFd>), Error>>);

impl Answer {
    fn blocking(self) -> Result<(Message, Vec<OwnedFd>), Error> {
        self.0.blocking_recv().unwrap_or(Err(Error::CoordinatorGone("it has ended")))
    }
}

/// A connect under way.
pub(crate) struct Connecting(Answer);

impl Connecting {
    pub(crate) fn blocking(self) -> Result<Connected, Error> {
        Self::read(self.0.blocking()?)
    }

    pub(crate) async fn wait(self) -> Result<Connected, Error> {
        let answer = self.0.0.await.unwrap_or(Err(Error::CoordinatorGone("it has ended")))?;
        Self::read(answer)
    }

    fn read((message, fds): (Message, Vec<OwnedFd>)) -> Result<Connected, Error> {
        match message {
            Message::Linked { link, geometry, server, .. } => {
                let (memory, socket) = two(fds)?;
                Ok(Connected::Link(Linked { link, geometry, server, memory, socket }))
            }
            Message::Redirect { link, url, methods, .. } => {
                Ok(Connected::Redirect { link, url, methods })
            }
            _ => Err(Error::CoordinatorGone("it answers what was not asked")),
        }
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
                Waiting::Watch(_) => {}
            }
        }
    }

    fn take(&self, message: Message, fds: Vec<OwnedFd>) {
        match message {
            Message::Offer { registration, link, geometry, caller, methods } => match two(fds) {
                Ok((memory, socket)) => {
                    let offer = Offer { link, geometry, caller, methods, memory, socket };
                    self.offer(registration, offer);
                }
                Err(why) => tracing::warn!(link, %why, "a link is lost"),
            },
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
            Message::Refused { request, code, text } => {
                let code = tonic::Code::from_i32(code.into());
                let refused = Error::Refused { code, text };
                match lock(&self.0.books).waiting.remove(&request) {
                    Some(Waiting::Answer(tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Register(tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Rows(_, tx)) => drop(tx.send(Err(refused))),
                    Some(Waiting::Watch(_)) | None => {}
                }
            }
            Message::Registered { request, registration } => {
                // The queue is there before the first offer, which comes after this message.
                let mut books = lock(&self.0.books);
                if let Some(Waiting::Register(tx)) = books.waiting.remove(&request) {
                    let (queue, offers) = mpsc::channel(OFFERS);
                    books.offers.insert(registration, queue);
                    let _given_up = tx.send(Ok((registration, offers)));
                }
            }
            Message::Linked { request, .. } | Message::Redirect { request, .. } => {
                let waiting = lock(&self.0.books).waiting.remove(&request);
                if let Some(Waiting::Answer(tx)) = waiting {
                    let _given_up = tx.send(Ok((message, fds)));
                }
            }
            other => tracing::warn!(?other, "a message that has no place here"),
        }
    }

    fn offer(&self, registration: u64, offer: Offer) {
        let link = offer.link;
        let queue = lock(&self.0.books).offers.get(&registration).cloned();
        let Some(queue) = queue else {
            tracing::warn!(link, "an offer for which there is no server");
            return;
        };
        if queue.try_send(offer).is_err() {
            tracing::warn!(link, "the server does not take its offers; the link is dropped");
        }
    }

    fn count(&self, request: u32) {
        let ends: Vec<_> = {
            let mut books = lock(&self.0.books);
            books.counted.retain(|_, end| end.strong_count() > 0);
            books.counted.iter().filter_map(|(l, e)| Some((*l, e.upgrade()?))).collect()
        };
        for (link, end) in ends {
            let message = Message::Counted { request, link, stats: end.stats() };
            let _ = socket::send(self.0.socket.as_fd(), &message.encode(), &[]);
        }
        let all = Message::CountedAll { request };
        let _ = socket::send(self.0.socket.as_fd(), &all.encode(), &[]);
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
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut(HANDSHAKE));
            }
            let left = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
            // Interrupted or timed out: the loop looks again.
            let _ready = rustix::event::poll(&mut fds, Some(&left));
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
