//! This process's conversation with the coordinator, however many channels and servers there are:
//! one control socket at a time, read on the reactor's thread.
//!
//! ```text
//! ask() ----- request number ----> coordinator ---- answer ----> the asker's oneshot
//! register() -> registration number -> offers go to that server's queue
//! watch() ----> instances of a name, as they change
//! ```
//!
//! What the coordinator keeps for this process ends with a value here: a registration with
//! [`Registered`], an end of a link with [`Tracked`], a watch with [`Watching`].
//!
//! # When the coordinator goes
//!
//! Links go on. What this process has at the coordinator stays here, and a thread
//! (`Client::again`) looks for the next one for as long as there is any of it:
//!
//! ```text
//! names that are served    registered again; links that were being made are given up
//! names that are watched   watched again; until then nobody is known to serve them
//! open links               reported; one that is refused ends
//! questions for links      asked again; the asker's own time goes on
//! memory for parcels       told again; one that refuses it has no more made
//! receipts                 handed in again, those that are not kept
//! other questions          answered with an error
//! ```
//!
//! A socket that was handed over leads to one coordinator only: its end is the end of all of this.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use partywall_abi::control::{
    Blame, EndMessage, InstanceRow, LinkMessage, LinkMethods, LinkRow, LinkStats, ListMessage,
    Message, ParcelStats, RegistryMessage, Role,
};
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::Security;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Error;
use crate::lock::lock;
use crate::on_a_thread::on_a_thread;

mod again;
mod certificates;
mod conversation;
mod links;
mod memory;
pub mod operator;
mod place;
mod receipts;
mod take;

use certificates::{CertificateQuestion, Certificates, Sessions};
pub(crate) use certificates::{Own, Service};
use conversation::{Conversation, OUTGOING};
use links::Entry;
pub(crate) use links::{Connected, End, Linked, Offer, Tracked};
use operator::trace::Tracing;
use operator::{Observed, Reloaded};
pub(crate) use place::Place;
pub(crate) use receipts::Room;
use receipts::{Permit, Receipts};

/// What a server hears of its registration.
pub(crate) enum Event {
    /// A link; it is to be adopted.
    Offer(Box<Offer>),
    /// A link that was adopted is open: what protects it, the caller's outbox.
    Open((u64, Security), std::os::fd::OwnedFd),
    /// A link that was adopted is over, and never was open.
    Over(u64),
    /// The coordinator has gone: all links that were adopted and are not open are over.
    Lost,
    /// No link will come any more.
    Ended(Error),
}

/// A name that this process serves, until the drop.
pub(crate) struct Registered {
    client: Arc<Client>,
    key: u64,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
}

impl Registered {
    /// Whether the coordinator knows of it now, and can make links.
    pub(crate) fn is_known(&self) -> bool {
        let state = lock(&self.client.state);
        state.served.get(&self.key).is_some_and(|served| served.number.is_some())
    }

    /// Watches the name, this registration among those that are counted.
    pub(crate) fn watch(&self, name: &ServiceName) -> Result<Watching, Error> {
        self.client.watch(name)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.client.unregister(self.key);
    }
}

/// A name that is watched, until the drop.
pub(crate) struct Watching {
    client: Arc<Client>,
    name: ServiceName,
    /// How many serve it, as far as is known.
    pub(crate) instances: watch::Receiver<u32>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.client.unwatch(&self.name);
    }
}

enum Waiting {
    Connect(ServiceName, oneshot::Sender<Result<Connected, Error>>),
    Register(u64),
    Watch(ServiceName),
    Report(Arc<Entry>),
    Rows(Vec<LinkRow>, oneshot::Sender<Result<Vec<LinkRow>, Error>>),
    Instances(Vec<InstanceRow>, oneshot::Sender<Result<Vec<InstanceRow>, Error>>),
    Observed(Vec<Observed>, oneshot::Sender<Result<Vec<Observed>, Error>>),
    Switch(oneshot::Sender<Result<u32, Error>>),
    Reload(oneshot::Sender<Result<Reloaded, Error>>),
    Memory(MemoryQuestion),
    Certificate(CertificateQuestion),
    Trace(Tracing),
    #[cfg_attr(not(feature = "http2"), expect(dead_code, reason = "nobody asks"))]
    MayCall(oneshot::Sender<Result<MethodSet, Error>>),
    Receipts(Vec<(Vec<u8>, Permit)>),
}

/// A question for memory for parcels.
struct MemoryQuestion {
    /// Nobody waits for what a new coordinator is told.
    answer: Option<oneshot::Sender<Result<usize, Error>>>,
    bytes: usize,
    /// How often some was given back before it.
    given_back: u64,
}

/// A name that is served.
struct Served {
    name: ServiceName,
    places: u32,
    events: mpsc::UnboundedSender<Event>,
    /// The coordinator's number for it, when it is registered there.
    number: Option<u64>,
    /// Who waits for the first registration.
    first: Option<oneshot::Sender<Result<(), Error>>>,
    /// When it is tried again, after the policy said no.
    again: Option<Instant>,
}

/// A name that is watched, by however many.
struct Watched {
    /// The number of the request, when it is watched at the coordinator.
    request: Option<u32>,
    instances: watch::Sender<u32>,
    users: usize,
}

#[derive(Default)]
struct State {
    conversation: Option<Arc<Conversation>>,
    /// Why there is none, and there will not be one.
    over: bool,
    /// A thread looks for the coordinator.
    looking: bool,
    /// A thread proves this process.
    proving: bool,
    /// How often one has, and what the last attempt came to.
    attempts: u64,
    outcome: Option<Error>,
    /// What the last attempt to reach the coordinator came to.
    failure: Option<Error>,
    next_request: u32,
    next_key: u64,
    waiting: HashMap<u32, Waiting>,
    served: HashMap<u64, Served>,
    watched: HashMap<ServiceName, Watched>,
    /// Ends of links that the coordinator knows, by its numbers.
    links: HashMap<(u64, Role), Arc<Entry>>,
    /// Those that the coordinator does not know yet: they are reported.
    lost: Vec<Arc<Entry>>,
    /// Links that were adopted and are not open, and whose they are.
    adopted: HashMap<u64, u64>,
    /// Bytes that the coordinator has given this process for parcels.
    memory: usize,
    /// How often some of it was given back.
    memory_given_back: u64,
    /// The last question that somebody has waited for, and when it was asked.
    memory_late: Option<(u32, Instant)>,
    /// When it was refused last, and why.
    memory_refused: Option<(Instant, String)>,
    certificates: Certificates,
    receipts: Receipts,
}

/// This process at one coordinator.
pub(crate) struct Client {
    place: Place,
    state: Mutex<State>,
    /// Of sealed links.
    sessions: Mutex<Sessions>,
    /// A thread has done with [`State::proving`].
    proven: Condvar,
}

/// How long a first registration may take, a restart of the coordinator included.
const REGISTER: Duration = Duration::from_secs(30);

const ENDED: Error = Error::CoordinatorGone("it has ended");

static AGENTS: Mutex<Option<HashMap<Place, Arc<Client>>>> = Mutex::new(None);

/// The client for the coordinator at `place`, whether there is one or not.
fn client(place: &Place) -> Arc<Client> {
    let mut clients = lock(&AGENTS);
    let clients = clients.get_or_insert_default();
    let known = clients.get(place).filter(|a| !lock(&a.state).over);
    if let Some(client) = known {
        return Arc::clone(client);
    }
    let client = Arc::new(Client::new(place.clone()));
    clients.insert(place.clone(), Arc::clone(&client));
    client
}

/// The client at `place`, in conversation with the coordinator, or looking for the one that was there.
/// Blocks for so long at most, as a rule for much less than one millisecond.
///
/// # Errors
/// [`Error::NoCoordinator`] when none was ever there: the path leads nowhere, and this process has
/// spoken to none.
pub(crate) fn get(place: &Place, within: Duration) -> Result<Arc<Client>, Error> {
    let client = client(place);
    match client.open(within) {
        Ok(()) => Ok(client),
        Err(error) if client.was_there(&error) => Ok(client),
        Err(error) => Err(error),
    }
}

/// As [`get`], from async code.
pub(crate) async fn get_async(place: &Place, within: Duration) -> Result<Arc<Client>, Error> {
    let known = client(place);
    if lock(&known.state).conversation.is_some() {
        return Ok(known);
    }
    let place = place.clone();
    on_a_thread("partywall-connect", move || get(&place, within)).await
}

impl State {
    /// Takes out an end that the coordinator does not know yet.
    fn find_lost(&mut self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let at = self.lost.iter().position(|e| Arc::ptr_eq(e, entry))?;
        Some(self.lost.swap_remove(at))
    }
}

impl Client {
    pub(crate) fn new(place: Place) -> Self {
        let (state, sessions) = (Mutex::default(), Mutex::default());
        Self { place, state, sessions, proven: Condvar::new() }
    }

    /// Whether the coordinator's absence is a gap: one was there before, for this process or for
    /// others, and has left its socket.
    fn was_there(&self, error: &Error) -> bool {
        let state = lock(&self.state);
        let refused = matches!(error, Error::NoCoordinator { source, .. }
            if source.kind() == std::io::ErrorKind::ConnectionRefused);
        matches!(self.place, Place::Path(_)) && (state.failure.is_some() || refused)
    }

    /// Sends what is no question; nobody hears it where there is no coordinator.
    fn say(&self, message: impl Into<Message>) {
        let conversation = lock(&self.state).conversation.clone();
        if let Some(conversation) = conversation {
            let _ended = conversation.send(message);
        }
    }

    /// Enters a question and sends it, or keeps it for the next coordinator if that makes sense.
    fn ask<M: Into<Message>>(
        self: &Arc<Self>,
        state: &mut State,
        waiting: Waiting,
        question: impl FnOnce(u32) -> M,
    ) -> Result<u32, Error> {
        if state.over {
            return Err(ENDED);
        }
        let request = loop {
            state.next_request = state.next_request.wrapping_add(1).max(1);
            if !state.waiting.contains_key(&state.next_request) {
                break state.next_request;
            }
        };
        let lasting = matches!(waiting, Waiting::Connect(..) | Waiting::Receipts(_));
        match &state.conversation {
            Some(conversation) => {
                // When that fails, the end is told on the reactor's thread.
                let sent = conversation.send(question(request));
                if !lasting {
                    sent?;
                }
            }
            None if !lasting => return Err(state.failure.take().unwrap_or(ENDED)),
            None => {}
        }
        state.waiting.insert(request, waiting);
        self.look(state);
        Ok(request)
    }

    /// Asks for a link.
    pub(crate) fn connect(self: &Arc<Self>, name: &ServiceName) -> Result<Connecting, Error> {
        let (tx, answer) = oneshot::channel();
        let waiting = Waiting::Connect(name.clone(), tx);
        let question = |request| LinkMessage::Connect { request, name: name.clone() };
        let request = self.ask(&mut lock(&self.state), waiting, question)?;
        Ok(Connecting { client: Arc::clone(self), request, answer })
    }

    /// Asks to serve a name, with places for so many links. A coordinator that has gone is waited
    /// for.
    ///
    /// # Errors
    /// [`Error::TimedOut`] without an answer in [`REGISTER`], beside the coordinator's own.
    pub(crate) async fn register(
        self: &Arc<Self>,
        name: &ServiceName,
        places: u32,
    ) -> Result<Registered, Error> {
        let (tx, first) = oneshot::channel();
        let (events, receiver) = mpsc::unbounded_channel();
        let registered = {
            let mut state = lock(&self.state);
            if state.over {
                return Err(ENDED);
            }
            state.next_key += 1;
            let key = state.next_key;
            let (name, number, first, again) = (name.clone(), None, Some(tx), None);
            state.served.insert(key, Served { name, places, events, number, first, again });
            self.register_now(&mut state, key);
            self.look(&mut state);
            Registered { client: Arc::clone(self), key, events: receiver }
        };
        match tokio::time::timeout(REGISTER, first).await {
            Ok(answer) => answer.unwrap_or(Err(ENDED))?,
            Err(_) => return Err(Error::TimedOut(REGISTER)),
        }
        Ok(registered)
    }

    fn register_now(self: &Arc<Self>, state: &mut State, key: u64) {
        let Some(served) = state.served.get_mut(&key) else { return };
        (served.number, served.again) = (None, None);
        let (name, places) = (served.name.clone(), served.places);
        // Where that fails, there is no coordinator, and the next one is told.
        let _later = self.ask(state, Waiting::Register(key), |request| RegistryMessage::Register {
            request,
            name,
            places,
        });
    }

    /// Stops serving; links that are being made are dropped, which their callers see.
    fn unregister(&self, key: u64) {
        let mut state = lock(&self.state);
        let served = state.served.remove(&key);
        state.adopted.retain(|_, of| *of != key);
        let conversation = state.conversation.clone();
        drop(state);
        if let (Some(registration), Some(conversation)) =
            (served.and_then(|s| s.number), conversation)
        {
            let _gone = conversation.send(RegistryMessage::Unregister { registration });
        }
    }

    /// Watches a name.
    pub(crate) fn watch(self: &Arc<Self>, name: &ServiceName) -> Result<Watching, Error> {
        let mut state = lock(&self.state);
        if state.over {
            return Err(ENDED);
        }
        let new = !state.watched.contains_key(name);
        let watched = state.watched.entry(name.clone()).or_insert_with(|| Watched {
            request: None,
            instances: watch::channel(0).0,
            users: 0,
        });
        watched.users += 1;
        let instances = watched.instances.subscribe();
        if new {
            self.watch_now(&mut state, name);
            self.look(&mut state);
        }
        Ok(Watching { client: Arc::clone(self), name: name.clone(), instances })
    }

    fn watch_now(self: &Arc<Self>, state: &mut State, name: &ServiceName) {
        let question = |request| RegistryMessage::Watch { request, name: name.clone() };
        let request = self.ask(state, Waiting::Watch(name.clone()), question).ok();
        if let Some(watched) = state.watched.get_mut(name) {
            watched.request = request;
        }
    }

    fn unwatch(&self, name: &ServiceName) {
        let mut state = lock(&self.state);
        let Some(watched) = state.watched.get_mut(name) else { return };
        watched.users -= 1;
        if watched.users > 0 {
            return;
        }
        let request = state.watched.remove(name).and_then(|w| w.request);
        if let Some(request) = request {
            state.waiting.remove(&request);
            let conversation = state.conversation.clone();
            drop(state);
            if let Some(conversation) = conversation {
                let _gone = conversation.send(RegistryMessage::Unwatch { request });
            }
        }
    }

    /// Says something of an end, if the coordinator that is there knows it.
    fn say_of(&self, entry: &Arc<Entry>, message: impl Into<Message>) {
        let known = {
            let state = lock(&self.state);
            state.links.get(&entry.key()).is_some_and(|known| Arc::ptr_eq(known, entry))
        };
        if known {
            self.say(message);
        }
    }

    /// Says what an end that is about to be over has counted for its methods.
    fn count_last(&self, entry: &Arc<Entry>, stats: LinkStats, methods: LinkMethods) {
        if methods == LinkMethods::default() {
            return;
        }
        let conversation = {
            let state = lock(&self.state);
            let known =
                state.links.get(&entry.key()).is_some_and(|known| Arc::ptr_eq(known, entry));
            state.conversation.clone().filter(|it| known && it.takes_methods())
        };
        if let Some(conversation) = conversation {
            let (request, link) = (0, entry.number());
            let _ended = conversation.send(ListMessage::Counted { request, link, stats, methods });
        }
    }

    /// Says what an end that is about to be over has sent in parcels.
    fn say_of_parcels(&self, entry: &Arc<Entry>, message: ListMessage) {
        let takes = |it: &Arc<Conversation>| it.takes_parcels();
        if lock(&self.state).conversation.as_ref().is_some_and(takes) {
            self.say_of(entry, message);
        }
    }

    fn enter(&self, entry: &Arc<Entry>) {
        lock(&self.state).links.insert(entry.key(), Arc::clone(entry));
    }

    /// An end is over; says so.
    fn left(&self, entry: &Arc<Entry>, blame: Blame, stats: LinkStats) {
        let key @ (link, role) = entry.key();
        if stats.parcels != ParcelStats::default() {
            let parcels = stats.parcels;
            self.say_of_parcels(entry, ListMessage::Sent { request: 0, link, role, parcels });
        }
        let known = {
            let mut state = lock(&self.state);
            match state.links.get(&key) {
                // Another coordinator may have given its number to another link.
                Some(known) if Arc::ptr_eq(known, entry) => {
                    if role == Role::Server {
                        state.adopted.remove(&link);
                    }
                    state.links.remove(&key).is_some()
                }
                _ => {
                    let _unknown = state.find_lost(entry);
                    false
                }
            }
        };
        if known {
            self.say(EndMessage::Closed { link, role, blame, stats });
        }
    }
}

/// A connect under way. Its drop says that nobody waits for it any more.
pub(crate) struct Connecting {
    client: Arc<Client>,
    request: u32,
    answer: oneshot::Receiver<Result<Connected, Error>>,
}

impl Connecting {
    /// Waits on this thread.
    #[cfg(any(test, feature = "blocking"))]
    pub(crate) fn blocking(mut self, within: Duration) -> Result<Connected, Error> {
        let answer = operator::wait_here(&mut self.answer, within);
        self.or_nobody(answer)
    }

    /// Waits for the answer; a coordinator that has gone meanwhile is waited for as well.
    pub(crate) async fn wait(mut self, within: Duration) -> Result<Connected, Error> {
        let answer = match tokio::time::timeout(within, &mut self.answer).await {
            Ok(answer) => answer.unwrap_or(Err(ENDED)),
            Err(_) => Err(Error::TimedOut(within)),
        };
        self.or_nobody(answer)
    }

    /// Where time is up and there is no coordinator, that is what there is to tell.
    fn or_nobody(&self, answer: Result<Connected, Error>) -> Result<Connected, Error> {
        let Err(Error::TimedOut(_)) = answer else { return answer };
        let state = lock(&self.client.state);
        match (&state.conversation, &state.failure) {
            (None, Some(why @ (Error::NoCoordinator { .. } | Error::Io { .. }))) => {
                Err(again::again(why))
            }
            _ => answer,
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let waited = lock(&self.client.state).waiting.remove(&self.request).is_some();
        if waited {
            self.client.say(LinkMessage::Cancel { request: self.request });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
