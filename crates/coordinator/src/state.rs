//! What the coordinator decides: a pure state machine. Time comes in as an argument; what is to be
//! done goes out as [`Effect`]s.
//!
//! ```text
//! connection   opened (identity proven) --> registrations, watches, questions, links --> closed
//! registration name -> connection; gone with its connection, at once
//! watch        due, when the count has changed --> told, when its connection has room
//! link         see `links`; after a restart of the coordinator, `reports`
//! tracing      an operator has a link's memory --> the link is over: told
//! switch       the domains of a name are told -> all have answered, or time is up -> the answer
//! list         of links: counting (the servers are asked) --> telling, a batch of rows each time
//!              that the asker's connection has room --> done; of instances: telling --> done
//! ```
//!
//! A connection that closes takes with it its registrations, watches and questions. Everything that
//! a connection holds is charged to its account before it is there ([`crate::quota`]).
//!
//! What is told to a connection as it changes, the count of a watched name and the rows of a list,
//! is no event but a state: it is pulled by [`State::room`] when the connection has taken what it
//! was sent before, the latest only.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{
    Digest, Identity, Message, Role, SessionMessage, Token, TrustMessage,
};
use partywall_abi::layout::Geometry;
use partywall_abi::name::ServiceName;
use partywall_abi::security::{Confidentiality, Evidence, Security};
use partywall_abi::version::Capabilities;

use crate::audit::Event;
use crate::identity::Facts;
use crate::policy::Policy;
use crate::quota::{Charge, Quotas, Resource, Usage};
use crate::trust::{Name as Certificate, Trust};

mod instances;
mod links;
mod list;
mod memory;
mod names;
mod operators;
mod reload;
mod reports;
mod switch;
mod trace;
mod trust;

use links::{Link, Places, Question};
use list::{Listing, Stage};
use names::{Name, Watch};
pub use reload::Changed;

/// Number of a connection.
pub type Conn = u64;

/// Lists, or orders, that one connection may have under way.
const LISTINGS: usize = 4;
/// Closed links that are remembered.
const REMEMBERED: usize = 256;
// gRPC status codes (https://grpc.github.io/grpc/core/md_doc_statuscodes.html).
const NOT_FOUND: u8 = 5;
const ALREADY_EXISTS: u8 = 6;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const FAILED_PRECONDITION: u8 = 9;
const INTERNAL: u8 = 13;
pub(crate) const UNAVAILABLE: u8 = 14;

/// Something to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a message.
    Send {
        /// To whom.
        to: Conn,
        /// What.
        message: Message,
    },
    /// Make the memory and the socket pair of a link, and send the server its part with this
    /// message. When that fails, [`State::faulty`] is told.
    Offer {
        /// The link's number.
        link: u64,
        /// Size of both outboxes.
        geometry: Geometry,
        /// The serving connection.
        to: Conn,
        /// What it is told.
        message: Message,
    },
    /// The server's outbox is sealed, it says: look, and send the caller its part with this message.
    /// When it is not, [`State::faulty`] is told.
    Link {
        /// The link's number.
        link: u64,
        /// The calling connection.
        to: Conn,
        /// What it is told.
        message: Message,
    },
    /// Both outboxes are whole, and the caller's sealed, it says: look, and send the server the rest
    /// with this message. When it is not so, [`State::faulty`] is told.
    Open {
        /// The link's number.
        link: u64,
        /// The serving connection.
        to: Conn,
        /// What it is told.
        message: Message,
    },
    /// Make the descriptor socket of a link, and send each end its part with its message, or tell
    /// [`State::not_granted`].
    Grant {
        /// The link's number.
        link: u64,
        /// The caller and the server, and what they are told.
        to: [(Conn, Message); 2],
    },
    /// Send an operator the memory of a link for reading, with this message, or tell [`State::not_traced`].
    Trace {
        /// The link's number.
        link: u64,
        /// The operator, and the number of its question.
        to: (Conn, u32),
        /// What it is told.
        message: Message,
    },
    /// A link is over for one end or both: look from now on who holds its memory still, and tell
    /// [`State::let_go`] of each that does not, and [`State::holds`] of one that does after all.
    Over {
        /// The link's number.
        link: u64,
        /// The ends that say so: the caller, the server.
        said: [bool; 2],
    },
    /// Close a connection that broke a rule.
    Close {
        /// Which.
        conn: Conn,
        /// Why.
        reason: &'static str,
    },
    /// An operator wants the policy to be read again; [`State::reload`] is called when it was, or
    /// [`State::reload_failed`].
    Reload {
        /// The asking connection.
        conn: Conn,
        /// The number of its question.
        request: u32,
    },
    /// Something for the audit log.
    Audit(Event),
    /// Receipts for the audit log: [`State::kept`] is told when they are on their way there.
    Receipts {
        /// Whose they are.
        conn: Conn,
        /// The number of its question.
        request: u32,
        /// A line each.
        events: Vec<Event>,
    },
}

/// Whose doing it was that a link could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The coordinator's: it has no descriptors or memory.
    Ours,
    /// An end's.
    Of(Role),
}

/// Who a process is and what follows from that.
#[derive(Debug)]
struct Standing {
    facts: Facts,
    identity: Arc<Identity>,
    usage: Arc<Usage>,
    /// The names that the signature of its program lists, where it has to be signed.
    listed: Vec<String>,
}

/// What a process and the coordinator have agreed on when it proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// The version; both ends of a link have the same.
    pub version: u16,
    /// What the process can do beyond it.
    pub capabilities: Capabilities,
}

/// At which socket a process has connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Socket {
    /// Where all do.
    #[default]
    Common,
    /// The operators'.
    Operators,
    /// That of workloads, who ask for certificates alone ([`crate::workload`]).
    Workload,
}

struct Connection {
    standing: Arc<Standing>,
    spoken: Spoken,
    /// It has said that it is closed to other processes of its user.
    hardened: bool,
    /// It has a certificate of the authority that is in force.
    certified: bool,
    /// Receipts of its are not kept yet.
    receipts: bool,
    /// As whom a workload was certified last, if it was not denied that.
    named: Option<Certificate>,
    came_by: Socket,
    /// It has closed its gate, if it is a domain.
    gate_closed: bool,
    registrations: BTreeMap<u64, (ServiceName, Charge)>,
    watches: BTreeMap<u32, Watch>,
    /// Watches whose count is to be told.
    due: BTreeSet<u32>,
    /// Links of which it is to be told what the policy says now.
    changed: BTreeSet<u64>,
    questions: VecDeque<Question>,
    /// Links that are being made of which it is the caller.
    opening: usize,
    /// When it has let an offer pass; it is asked last for a while, or until it adopts one.
    passed: Option<Instant>,
    places: Places,
    /// Links of which it is an end.
    links: BTreeSet<u64>,
    /// The bytes that it has made for parcels.
    memory: Option<Charge>,
}

/// The coordinator's state.
pub struct State {
    policy: Policy,
    quotas: Quotas,
    /// Who certifies keys, if anybody does.
    trust: Option<Trust>,
    /// Receipts of signed messages are kept.
    keeps_receipts: bool,
    /// Policies so far.
    policies: u64,
    /// Who may ask for the list of links, beside root.
    operator_uid: u32,
    /// The socket at which alone operators' calls are taken, if there is one.
    operators: Option<PathBuf>,
    connections: BTreeMap<Conn, Connection>,
    names: HashMap<ServiceName, Name>,
    links: BTreeMap<u64, Link>,
    /// Numbers of the links that are closed, oldest first.
    closed: VecDeque<u64>,
    /// When links that are being made, or that one end has reported, are given up.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Connections whose questions wait, by account, in turn.
    hungry: links::Turns,
    /// Links that an end has reported, by what both ends know.
    reported: HashMap<Token, u64>,
    /// Until when links are reported.
    grace: Instant,
    /// Connections to which counts or changed links are due.
    due: BTreeSet<Conn>,
    newly_due: Vec<Conn>,
    listings: Vec<Listing>,
    switches: Vec<switch::Switch>,
    tracings: Vec<trace::Tracing>,
    next_conn: Conn,
    next_registration: u64,
    next_link: u64,
    next_question: u32,
    /// Makes what the two ends of a link know it by.
    token: Box<dyn FnMut() -> Token + Send>,
    effects: Vec<Effect>,
}

impl State {
    /// The state of a coordinator that begins, under a policy. `token` gives 16 random bytes each time.
    pub fn new(
        policy: Policy,
        quotas: Quotas,
        operator_uid: u32,
        now: Instant,
        token: impl FnMut() -> Token + Send + 'static,
    ) -> Self {
        quotas.limit(policy.limits().clone());
        Self {
            policy,
            quotas,
            trust: None,
            keeps_receipts: false,
            policies: 1,
            operator_uid,
            operators: None,
            connections: BTreeMap::new(),
            names: HashMap::new(),
            links: BTreeMap::new(),
            closed: VecDeque::new(),
            deadlines: BTreeSet::new(),
            hungry: links::Turns::default(),
            reported: HashMap::new(),
            grace: now + reports::GRACE,
            due: BTreeSet::new(),
            newly_due: Vec::new(),
            listings: Vec::new(),
            switches: Vec::new(),
            tracings: Vec::new(),
            next_conn: 1,
            next_registration: 1,
            next_link: 1,
            next_question: 1,
            token: Box::new(token),
            effects: Vec::new(),
        }
    }

    /// What is to be done since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whose account a process with these facts has.
    pub fn account(&self, facts: &Facts) -> Arc<Usage> {
        let principals = self.policy.principals(facts);
        self.usage(facts, &principals)
    }

    fn usage(&self, facts: &Facts, principals: &[String]) -> Arc<Usage> {
        let (account, limits) = self.policy.account(facts, principals, self.operator_uid);
        self.quotas.account(account, limits)
    }

    /// A process has proven who it is; `usage` is its account.
    pub fn opened(&mut self, facts: Facts, usage: Arc<Usage>, spoken: Spoken) -> Conn {
        self.opened_at(Socket::Common, facts, usage, spoken)
    }

    /// The same, of one that has connected to this socket.
    pub fn opened_at(
        &mut self,
        socket: Socket,
        facts: Facts,
        usage: Arc<Usage>,
        spoken: Spoken,
    ) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let identity = Arc::new(facts.identity(self.policy.principals(&facts)));
        let listed = self.policy.listed(&facts, &identity.principals);
        let you = Identity::clone(&identity);
        let contained = facts.contained.as_deref().filter(|_| facts.container.is_none());
        let no_origin = facts.origin_error.as_deref();
        let admitted = Event::admitted(&identity, usage.account(), contained, no_origin);
        let connection = Connection {
            standing: Arc::new(Standing { facts, identity, usage, listed }),
            spoken,
            hardened: false,
            certified: false,
            receipts: false,
            named: None,
            came_by: socket,
            gate_closed: false,
            registrations: BTreeMap::new(),
            watches: BTreeMap::new(),
            due: BTreeSet::new(),
            changed: BTreeSet::new(),
            questions: VecDeque::new(),
            opening: 0,
            passed: None,
            places: Places::default(),
            links: BTreeSet::new(),
            memory: None,
        };
        self.connections.insert(conn, connection);
        // Before it is welcome, and so before it asks for anything.
        self.harden(conn);
        self.tell_of_operators(conn);
        self.send(conn, SessionMessage::Welcome { you });
        self.audit(admitted);
        conn
    }

    /// A connection's process has ended, and the connection is gone with it. A copy of the process that
    /// fork(2) has made may hold its ends of links, so that the other ends see no hang-up: they are told.
    pub fn died(&mut self, conn: Conn, now: Instant) {
        let links = self.connections.get(&conn).map(|c| c.links.clone());
        for link in links.into_iter().flatten() {
            self.tell_death(link, conn);
        }
        self.closed(conn, now);
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: Conn, now: Instant) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        for (registration, (name, _)) in connection.registrations {
            self.forget_registration(&name, registration);
        }
        for (request, watch) in connection.watches {
            self.forget_watch(conn, request, &watch.name);
        }
        self.due.remove(&conn);
        self.hungry.forget(conn);
        for link in connection.links {
            self.end_is_gone(link, conn, now);
        }
        self.listings.retain(|l| l.to != conn);
        for listing in &mut self.listings {
            if let Stage::Counting { waiting, .. } = &mut listing.stage {
                waiting.remove(&conn);
            }
        }
        self.finish_counting(None);
        self.switch_lost(conn);
        self.trace_lost(conn);
        self.hungry.want(now);
    }

    /// A message has come.
    pub fn message(&mut self, conn: Conn, message: Message, now: Instant) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let asks = matches!(message, Message::Trust(TrustMessage::Certify { .. }));
        if connection.came_by == Socket::Workload && !asks {
            return self.breaks_rule(conn);
        }
        match message {
            Message::Registry(m) => self.registry_message(conn, m, now),
            Message::Link(m) => self.link_message(conn, m, now),
            Message::End(m) => self.end_message(conn, m, now),
            Message::List(m) => self.list_message(conn, m, now),
            Message::Gate(m) => self.gate_message(conn, m, now),
            Message::Policy(m) => self.policy_message(conn, &m),
            Message::Memory(m) => self.memory_message(conn, m),
            Message::Trust(m) => self.trust_message(conn, m),
            Message::Trace(m) => self.trace_message(conn, m),
            // Of itself it can say that: it could give away as well what it has.
            Message::Session(SessionMessage::Hardened) => self.connection(conn).hardened = true,
            _ => self.breaks_rule(conn),
        }
    }

    /// A connection has sent what a process does not say.
    fn breaks_rule(&mut self, conn: Conn) {
        let reason = "a message that only the coordinator sends";
        self.effects.push(Effect::Close { conn, reason });
    }

    /// When [`State::timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = |l: &Listing| match l.stage {
            Stage::Counting { deadline, .. } => Some(deadline),
            Stage::Telling(..) | Stage::Instances(..) => None,
        };
        let switches = self.switches.iter().map(switch::Switch::deadline);
        let links = self.deadlines.first().map(|(at, _)| *at);
        let lists = self.listings.iter().filter_map(deadline);
        lists.chain(switches).chain(links).chain(self.hungry.next_look()).min()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Instant) {
        self.finish_counting(Some(now));
        self.switches_late(now);
        self.links_late(now);
    }

    /// Connections to which something has become due since the last call.
    pub fn take_due(&mut self) -> Vec<Conn> {
        std::mem::take(&mut self.newly_due)
    }

    /// Whether something is due to a connection.
    pub fn is_due(&self, conn: Conn) -> bool {
        let telling = |l: &Listing| l.to == conn && l.is_telling();
        self.due.contains(&conn) || self.listings.iter().any(telling)
    }

    /// A connection has taken all that it was sent: what is due to it, a batch at most.
    pub fn room(&mut self, conn: Conn) {
        if self.due.contains(&conn) {
            self.tell_counts(conn);
            if self.tell_allowed(conn) {
                self.due.remove(&conn);
            }
        }
        self.tell_rows(conn);
    }

    fn something_is_due(&mut self, conn: Conn) {
        if self.due.insert(conn) {
            self.newly_due.push(conn);
        }
    }

    fn connection(&mut self, conn: Conn) -> &mut Connection {
        self.connections.get_mut(&conn).expect("checked on entry")
    }

    fn send(&mut self, to: Conn, message: impl Into<Message>) {
        let message = message.into();
        if self.connections.contains_key(&to) {
            self.effects.push(Effect::Send { to, message });
        }
    }

    fn audit(&mut self, event: Event) {
        self.effects.push(Effect::Audit(event));
    }

    fn refuse(&mut self, to: Conn, request: u32, code: u8, text: String) {
        self.send(to, Message::Session(SessionMessage::Refused { request, code, text }));
    }

    /// Refuses what the policy denies, and says so in the audit log.
    fn deny(&mut self, to: Conn, request: u32, what: &'static str, text: String) {
        if let Some(c) = self.connections.get(&to) {
            let (identity, account) = (Arc::clone(&c.standing.identity), &c.standing.usage);
            let event = Event::denied(&identity, account.account(), what, &text);
            self.audit(event);
        }
        self.refuse(to, request, PERMISSION_DENIED, text);
    }

    /// Has a process close itself to others of its user, if the policy wants that and it has not.
    fn harden(&mut self, conn: Conn) {
        let c = &self.connections[&conn];
        let can = c.spoken.capabilities.contains(Capabilities::HARDEN);
        if can && !c.hardened && self.policy.hardens(&c.standing.facts) {
            self.send(conn, SessionMessage::Harden);
        }
    }

    /// What protects a link through memory between two processes.
    fn security_between(&self, one: Conn, other: Conn) -> Security {
        let facts = |conn: Conn| &self.connections[&conn].standing.facts;
        let mut security = facts(one).security_with(facts(other));
        if ![one, other].into_iter().all(|conn| self.is_closed_to_its_user(conn)) {
            security.confidentiality = security.confidentiality.min(Confidentiality::User);
        }
        match one == other {
            // It is its own peer: nothing separates the two ends.
            true => security.min_per_field(Security::IN_PROCESS.with_evidence(security.evidence)),
            false => security,
        }
    }

    /// What protects a link to a process, as far as that depends on it alone.
    fn security_of(&self, conn: Conn) -> Security {
        let facts = &self.connections[&conn].standing.facts;
        let mut security = facts.security_with(facts);
        if !self.is_closed_to_its_user(conn) {
            security.confidentiality = security.confidentiality.min(Confidentiality::User);
        }
        security
    }

    /// Whether other processes of its user cannot look into it. Whose user is root is open to root alone.
    fn is_closed_to_its_user(&self, conn: Conn) -> bool {
        let c = &self.connections[&conn];
        c.hardened || c.standing.facts.uid == 0
    }

    /// Why the policy does not let these principals have a link to the name with this security, as the
    /// end of a sentence.
    fn too_weak(
        &self,
        principals: &[String],
        name: &ServiceName,
        security: Security,
    ) -> Option<String> {
        let short = security.shortfall(&self.policy.require(principals, name))?;
        Some(format!(
            "the policy requires more of a link to `{name}`: {short}; remedy: {}, or lower {} [service.{name}.call]",
            match short.field {
                "evidence" => {
                    "have the coordinator start both ends, or, for `image`, run them in containers of principals \
                     that go by their image"
                }
                "seal" => "build both ends with a release that can seal, and reach it on this host",
                "sign" => "reach it on this host, where messages are signed",
                _ if security.isolation.is_one_space() =>
                    "run one of the two as a process of its own",
                _ if security.confidentiality < Confidentiality::User
                    || security.evidence == Evidence::None =>
                    "run both as processes of this host that speak with this coordinator",
                _ if self.policy.says_of_hardening() == Some(false) =>
                    "drop `harden = false` from the policy, and start both ends again",
                _ =>
                    "see that both ends are hardened (`harden` in docs/policy.md): of a release that can be, \
                     without a debugger, and known without `evidence = \"observed\"`",
            },
            match short.field {
                "seal" => format!("`seal` under [service.{name}] and"),
                "sign" => format!("`sign` under [service.{name}] and"),
                _ => "`require` under".into(),
            }
        ))
    }

    /// What keeps a process from being a principal that goes by its program, by that one's signature, or by
    /// what its engine says.
    fn unknown_hint(&self, c: &Connection) -> String {
        let engine = c.standing.facts.origin_error.as_ref().filter(|_| self.policy.asks_engines());
        let engine =
            engine.map(|why| format!(" (what its container was made of is unknown: {why})"));
        let facts = &c.standing.facts;
        let unsigned = self.policy.unsigned(facts).into_iter().map(|why| format!(" ({why})"));
        self.digest_hint(c) + &engine.unwrap_or_default() + &unsigned.collect::<String>()
    }

    fn digest_hint(&self, c: &Connection) -> String {
        let why = match (&c.standing.facts.digest_error, c.standing.identity.digest) {
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

impl Connection {
    fn charge(&self, resource: Resource) -> Result<Charge, String> {
        self.standing.usage.charge(resource, 1).map_err(|e| e.to_string())
    }
}

fn who(c: &Connection) -> String {
    let c = &c.standing.identity;
    let pid = c.pid.map_or("of an unproven number".to_string(), |p| p.to_string());
    let known = match &c.principals[..] {
        [] => "known as no principal".to_string(),
        names => format!("known as {}", names.join(", ")),
    };
    format!("process {pid} (uid {}, {known})", c.uid)
}

/// Reports an internal failure with the right code.
pub(crate) fn internal(request: u32, text: String) -> Message {
    Message::Session(SessionMessage::Refused { request, code: INTERNAL, text })
}

#[cfg(test)]
mod tests;
