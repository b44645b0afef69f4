//! What the coordinator decides: a pure state machine. Time comes in as an argument; what is to be
//! done goes out as [`Effect`]s.
//!
//! ```text
//! connection   opened (identity proven) --> registrations, watches, links --> closed
//! registration name -> connection; gone with its connection, at once
//! link         introduced --> open --> closed; the last few closed ones are remembered for `links`
//! switch       the domains of a name are told -> all have answered, or time is up -> the answer
//! list         counting (the servers are asked) --> telling, a batch of rows each time that the
//!              asker's connection has room --> done
//! ```
//!
//! A connection that closes takes with it its registrations and watches.
//!
//! Whether a link is open is the word of one end: the server's. A caller's word does not count,
//! and neither does its hanging up here: it could hide a link that it goes on using. A server that
//! says nothing keeps no row beyond its own connection. A redirect has no server here, so it is its
//! caller's word that counts. No end hears of a link's end from the coordinator: it sees a death by
//! its own socket.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{Digest, Identity, Isolation, LinkStats, Message};
use partywall_abi::layout::Geometry;
use partywall_abi::name::{MethodSet, ServiceName};

use crate::identity::{Domain, Facts};
use crate::policy::Policy;

mod list;
mod switch;

use list::{Listing, Stage};

/// Number of a connection.
pub type Conn = u64;

/// Bounds of what one connection may hold.
const REGISTRATIONS: usize = 64;
const WATCHES: usize = 64;
const LINKS: usize = 4096;
const LINKS_TO_ONE_NAME: usize = 1024;
const LINKS_OF_ONE_SERVER: usize = 16 * 1024;
const LISTINGS: usize = 4;
/// Closed links that are remembered.
const REMEMBERED: usize = 256;
// gRPC status codes (https://grpc.github.io/grpc/core/md_doc_statuscodes.html).
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;

/// Something to be done.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every effect is a Send")]
pub enum Effect {
    /// Send a message.
    Send {
        /// To whom.
        to: Conn,
        /// What.
        message: Message,
    },
    /// Make the memory and the socket pair of a link and send each side its part.
    ///
    /// When that fails, [`State::introduction_failed`] is told.
    Introduce(Introduction),
    /// Close a connection that broke a rule.
    Close {
        /// Which.
        conn: Conn,
        /// Why.
        reason: &'static str,
    },
}

/// A link that is to be made.
#[derive(Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The link's number.
    pub link: u64,
    /// The name that was asked for.
    pub name: ServiceName,
    /// The number of the caller's question.
    pub request: u32,
    /// Size of both outboxes.
    pub geometry: Geometry,
    /// The calling connection and its message.
    pub caller: (Conn, Box<Message>),
    /// The serving connection and its message.
    pub server: (Conn, Box<Message>),
}

struct Connection {
    identity: Arc<Identity>,
    domain: Option<Domain>,
    /// It has closed its gate, if it is a domain.
    gate_closed: bool,
    digest_error: Option<String>,
    watches: BTreeMap<u32, ServiceName>,
    /// Open links by the name they were asked for.
    calling: BTreeMap<ServiceName, usize>,
    /// Open links on which its word counts: those that it serves, and its redirects.
    told: BTreeSet<u64>,
}

struct Registration {
    id: u64,
    conn: Conn,
}

#[derive(Default)]
struct Name {
    registrations: Vec<Registration>,
    /// Whose turn it is.
    next: usize,
}

struct Link {
    name: ServiceName,
    caller: (Conn, Arc<Identity>),
    /// None when it is a redirect.
    server: Option<(Conn, Arc<Identity>)>,
    isolation: Isolation,
    open: bool,
    stats: LinkStats,
}

/// While fewer links are open, a new one gets wide rings: 16 MiB in all. The others are so small
/// that a thousand of them stay below 200 MiB.
const WIDE_LINKS: usize = 32;

/// The coordinator's books.
pub struct State {
    policy: Policy,
    /// Who may ask for the list of links, beside root.
    operator_uid: u32,
    connections: BTreeMap<Conn, Connection>,
    names: HashMap<ServiceName, Name>,
    links: BTreeMap<u64, Link>,
    /// Numbers of the links that are closed, oldest first.
    closed: VecDeque<u64>,
    listings: Vec<Listing>,
    switches: Vec<switch::Switch>,
    next_conn: Conn,
    next_registration: u64,
    next_link: u64,
    next_question: u32,
    effects: Vec<Effect>,
}

impl State {
    /// Empty books under a policy.
    pub fn new(policy: Policy, operator_uid: u32) -> Self {
        Self {
            policy,
            operator_uid,
            connections: BTreeMap::new(),
            names: HashMap::new(),
            links: BTreeMap::new(),
            closed: VecDeque::new(),
            listings: Vec::new(),
            switches: Vec::new(),
            next_conn: 1,
            next_registration: 1,
            next_link: 1,
            next_question: 1,
            effects: Vec::new(),
        }
    }

    /// What is to be done since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether the facts of a process must say what /proc tells of its program.
    pub fn observes_programs(&self) -> bool {
        self.policy.observes_programs()
    }

    /// A process has proven who it is.
    pub fn opened(&mut self, facts: Facts) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let identity = facts.identity(self.policy.principals(&facts));
        self.send(conn, Message::Welcome { you: identity.clone() });
        let connection = Connection {
            identity: Arc::new(identity),
            domain: facts.domain,
            gate_closed: false,
            digest_error: facts.digest_error,
            watches: BTreeMap::new(),
            calling: BTreeMap::new(),
            told: BTreeSet::new(),
        };
        self.connections.insert(conn, connection);
        conn
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: Conn) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        let mut changed = Vec::new();
        for (name, entry) in &mut self.names {
            let before = entry.registrations.len();
            entry.registrations.retain(|r| r.conn != conn);
            if entry.registrations.len() != before {
                changed.push(name.clone());
            }
        }
        for name in changed {
            self.tell_watchers(&name);
        }
        connection.told.into_iter().for_each(|link| self.end(link));
        self.listings.retain(|l| l.to != conn);
        for listing in &mut self.listings {
            if let Stage::Counting { waiting, .. } = &mut listing.stage {
                waiting.remove(&conn);
            }
        }
        self.finish_counting(None);
        self.switch_lost(conn);
    }

    /// A message has come.
    pub fn message(&mut self, conn: Conn, message: Message, now: Instant) {
        if !self.connections.contains_key(&conn) {
            return;
        }
        match message {
            Message::Register { request, name } => self.register(conn, request, name),
            Message::Unregister { registration } => self.unregister(conn, registration),
            Message::Connect { request, name } => self.connect(conn, request, name),
            Message::Watch { request, name } => self.watch(conn, request, name),
            Message::Unwatch { request } => {
                self.connection(conn).watches.remove(&request);
            }
            Message::Closed { link, stats } => self.count(conn, link, stats, true),
            Message::Counted { link, stats, .. } => self.count(conn, link, stats, false),
            Message::CountedAll { request } => {
                for listing in &mut self.listings {
                    match &mut listing.stage {
                        Stage::Counting { question, waiting, .. } if *question == request => {
                            waiting.remove(&conn);
                        }
                        _ => {}
                    }
                }
                self.finish_counting(None);
            }
            Message::List { request } => self.list(conn, request, now),
            Message::Switch { request, name, open } => {
                self.switch((conn, request), name, open, now);
            }
            Message::GateSet { request, errno } => self.gate_set(conn, request, errno),
            _ => self
                .effects
                .push(Effect::Close { conn, reason: "a message that only the coordinator sends" }),
        }
    }

    /// When [`State::timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = |l: &Listing| match l.stage {
            Stage::Counting { deadline, .. } => Some(deadline),
            Stage::Telling(..) => None,
        };
        let switches = self.switches.iter().map(switch::Switch::deadline);
        self.listings.iter().filter_map(deadline).chain(switches).min()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Instant) {
        self.finish_counting(Some(now));
        self.switches_late(now);
    }

    /// A link could not be made, or one of its ends could not be told of it.
    pub fn introduction_failed(&mut self, introduction: &Introduction, why: &str) {
        let Introduction { link, name, request, caller, .. } = introduction;
        self.end(*link);
        let text = format!("no link to `{name}`: {why}");
        self.refuse(caller.0, *request, UNAVAILABLE, text);
    }

    fn connection(&mut self, conn: Conn) -> &mut Connection {
        self.connections.get_mut(&conn).expect("checked on entry")
    }

    fn send(&mut self, to: Conn, message: Message) {
        self.effects.push(Effect::Send { to, message });
    }

    fn refuse(&mut self, to: Conn, request: u32, code: u8, text: String) {
        self.send(to, Message::Refused { request, code, text });
    }

    fn register(&mut self, conn: Conn, request: u32, name: ServiceName) {
        let c = &self.connections[&conn];
        if !self.policy.may_register(&c.identity.principals, &name) {
            let text = format!(
                "the policy does not let {} serve `{name}`; remedy: list one of its principals \
                 under [service.{name}] register{}",
                who(c),
                self.digest_hint(c)
            );
            return self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        let held: usize = self
            .names
            .values()
            .map(|n| n.registrations.iter().filter(|r| r.conn == conn).count())
            .sum();
        if held >= REGISTRATIONS {
            let text = format!("one process may serve at most {REGISTRATIONS} names");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let id = self.next_registration;
        self.next_registration += 1;
        self.names.entry(name.clone()).or_default().registrations.push(Registration { id, conn });
        self.send(conn, Message::Registered { request, registration: id });
        self.tell_watchers(&name);
    }

    fn unregister(&mut self, conn: Conn, registration: u64) {
        let mut found = None;
        for (name, entry) in &mut self.names {
            let before = entry.registrations.len();
            entry.registrations.retain(|r| (r.id, r.conn) != (registration, conn));
            if entry.registrations.len() != before {
                found = Some(name.clone());
            }
        }
        if let Some(name) = found {
            self.tell_watchers(&name);
        }
    }

    fn connect(&mut self, conn: Conn, request: u32, name: ServiceName) {
        let c = &self.connections[&conn];
        let methods = self.policy.methods(&c.identity.principals, &name);
        if methods.is_empty() {
            let text = format!(
                "the policy lets {} call nothing at `{name}`; remedy: list methods for one of its \
                 principals under [service.{name}.call]{}",
                who(c),
                self.digest_hint(c)
            );
            return self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        let remedy = "remedy: share a channel, which carries many calls at once, or drop those \
                      that are not used";
        let here = c.calling.get(&name).copied().unwrap_or(0);
        if here >= LINKS_TO_ONE_NAME {
            let text = format!(
                "this process has {here} links to `{name}` open, the most that one may have; \
                 {remedy}"
            );
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let open: usize = c.calling.values().sum();
        if open >= LINKS {
            let text =
                format!("this process has {open} links open, the most that one may have; {remedy}");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        match self.next_instance(&name) {
            Some(Ok((server, registration))) => {
                self.introduce((conn, request), name, methods, (server, registration));
            }
            Some(Err(())) => {
                let text = format!(
                    "each instance of `{name}` serves {LINKS_OF_ONE_SERVER} links, the most that \
                     one may; remedy: start another instance"
                );
                self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
            }
            None => match self.policy.url(&name).map(str::to_string) {
                Some(url) => {
                    let link = self.book(conn, name, None);
                    self.send(conn, Message::Redirect { request, link, url, methods });
                }
                None => {
                    let text = format!(
                        "nobody serves `{name}` on this host and [names] has no address for it"
                    );
                    self.refuse(conn, request, UNAVAILABLE, text);
                }
            },
        }
    }

    /// The connection and registration of the instance whose turn it is; an error when all of
    /// them are full.
    fn next_instance(&mut self, name: &ServiceName) -> Option<Result<(Conn, u64), ()>> {
        let entry = self.names.get_mut(name)?;
        let n = entry.registrations.len();
        for _ in 0..n {
            let r = &entry.registrations[entry.next % n];
            entry.next = entry.next.wrapping_add(1);
            if self.connections[&r.conn].told.len() < LINKS_OF_ONE_SERVER {
                return Some(Ok((r.conn, r.id)));
            }
        }
        (n > 0).then_some(Err(()))
    }

    fn introduce(
        &mut self,
        (conn, request): (Conn, u32),
        name: ServiceName,
        methods: MethodSet,
        (server, registration): (Conn, u64),
    ) {
        let identity = |conn| Identity::clone(&self.connections[&conn].identity);
        let (caller_identity, server_identity) = (identity(conn), identity(server));
        let open = self.links.len() - self.closed.len();
        let geometry = if open < WIDE_LINKS { Geometry::WIDE } else { Geometry::DEFAULT };
        let link = self.book(conn, name.clone(), Some(server));
        let isolation = self.links[&link].isolation;
        let linked = Message::Linked {
            request,
            link,
            geometry,
            server: server_identity,
            methods: methods.clone(),
            isolation,
        };
        let offer = Message::Offer {
            registration,
            link,
            geometry,
            caller: caller_identity,
            methods,
            isolation,
        };
        self.effects.push(Effect::Introduce(Introduction {
            link,
            name,
            request,
            geometry,
            caller: (conn, Box::new(linked)),
            server: (server, Box::new(offer)),
        }));
    }

    fn book(&mut self, caller: Conn, name: ServiceName, server: Option<Conn>) -> u64 {
        let number = self.next_link;
        self.next_link += 1;
        *self.connection(caller).calling.entry(name.clone()).or_default() += 1;
        self.connection(server.unwrap_or(caller)).told.insert(number);
        let end = |conn: Conn| (conn, Arc::clone(&self.connections[&conn].identity));
        let domain = |conn: Conn| self.connections[&conn].domain;
        let isolation = match server {
            Some(server) => Domain::between(domain(caller), domain(server)),
            None => Isolation::Network,
        };
        let (caller, server) = (end(caller), server.map(end));
        let stats = LinkStats::default();
        let link = Link { name, caller, server, isolation, open: true, stats };
        self.links.insert(number, link);
        number
    }

    /// Closes a link in the books, if it is open there.
    fn end(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number).filter(|l| l.open) else { return };
        link.open = false;
        if let Some(caller) = self.connections.get_mut(&link.caller.0)
            && let Some(open) = caller.calling.get_mut(&link.name)
        {
            *open -= 1;
            if *open == 0 {
                caller.calling.remove(&link.name);
            }
        }
        if let Some(teller) = self.connections.get_mut(&link.teller()) {
            teller.told.remove(&number);
        }
        self.closed.push_back(number);
        if self.closed.len() > REMEMBERED
            && let Some(oldest) = self.closed.pop_front()
        {
            self.links.remove(&oldest);
        }
    }

    fn watch(&mut self, conn: Conn, request: u32, name: ServiceName) {
        let c = &self.connections[&conn];
        let allowed = !self.policy.methods(&c.identity.principals, &name).is_empty();
        if !allowed {
            let text = format!("the policy lets {} call nothing at `{name}`", who(c));
            return self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        if c.watches.len() >= WATCHES {
            let text = format!("one process may watch at most {WATCHES} names");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let instances = self.instances(&name);
        self.connection(conn).watches.insert(request, name);
        self.send(conn, Message::Watched { request, instances });
    }

    /// How many serve the name.
    pub fn instances(&self, name: &ServiceName) -> u32 {
        self.names.get(name).map_or(0, |n| n.registrations.len() as u32)
    }

    fn tell_watchers(&mut self, name: &ServiceName) {
        let instances = self.instances(name);
        if instances == 0 {
            self.names.remove(name);
        }
        let watchers: Vec<_> = self
            .connections
            .iter()
            .flat_map(|(conn, c)| {
                c.watches.iter().filter(|(_, n)| *n == name).map(|(request, _)| (*conn, *request))
            })
            .collect();
        for (to, request) in watchers {
            self.send(to, Message::Watched { request, instances });
        }
    }

    /// What the end whose word counts has counted; others are not heard.
    fn count(&mut self, conn: Conn, number: u64, stats: LinkStats, closing: bool) {
        let Some(link) = self.links.get_mut(&number).filter(|l| l.teller() == conn) else { return };
        link.stats = stats;
        if closing {
            self.end(number);
        }
    }

    /// Whether the connection's user may see and change how others call; refuses all others.
    fn is_operator(&mut self, conn: Conn, request: u32, what: &str) -> bool {
        let (uid, operator) = (self.connections[&conn].identity.uid, self.operator_uid);
        let may = uid == 0 || uid == operator;
        if !may {
            let text = format!("only root and user {operator} may {what}; you are user {uid}");
            self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        may
    }

    fn digest_hint(&self, c: &Connection) -> String {
        let why = match (&c.digest_error, c.identity.digest) {
            (Some(why), _) => why,
            (None, Digest::Unknown) => {
                "the coordinator did not start it, and no principal has `evidence = \"observed\"`"
            }
            (None, _) => return String::new(),
        };
        if self.policy.asks_for_programs() {
            format!(" (its program is unknown: {why})")
        } else {
            String::new()
        }
    }
}

impl Link {
    /// The connection whose word on this link counts.
    fn teller(&self) -> Conn {
        self.server.as_ref().map_or(self.caller.0, |s| s.0)
    }
}

fn who(c: &Connection) -> String {
    let c = &c.identity;
    let pid = c.pid.map_or("of an unseen PID namespace".to_string(), |p| p.to_string());
    let known = match &c.principals[..] {
        [] => "known as no principal".to_string(),
        names => format!("known as {}", names.join(", ")),
    };
    format!("process {pid} (uid {}, {known})", c.uid)
}

/// Reports an internal failure with the right code.
pub(crate) fn internal(request: u32, text: String) -> Message {
    Message::Refused { request, code: INTERNAL, text }
}

#[cfg(test)]
mod tests;
