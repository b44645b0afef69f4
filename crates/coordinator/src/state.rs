//! What the coordinator decides: a pure state machine. Time comes in as an argument; what is to be
//! done goes out as [`Effect`]s.
//!
//! ```text
//! connection   opened (identity proven) --> registrations, watches, links --> closed
//! registration name -> connection; gone with its connection, at once
//! link         introduced --> open --> closed (told by the server's end, or an end's connection
//!              is gone); the last few closed ones are remembered for `links`
//! ```
//!
//! A connection that closes takes with it its registrations and watches, and closes its links in
//! the books: the ends see the death by their own socket, not by the coordinator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use partywall_abi::control::{Isolation, LinkRow, LinkStats, Message};
use partywall_abi::layout::Geometry;
use partywall_abi::name::{MethodSet, ServiceName};

use crate::identity::Facts;
use crate::policy::Policy;

/// Number of a connection.
pub type Conn = u64;

/// Bounds of what one connection may hold.
const REGISTRATIONS: usize = 64;
const WATCHES: usize = 64;
const LINKS: usize = 4096;
/// Closed links that are remembered.
const REMEMBERED: usize = 256;
/// How long a list waits for servers to say what they counted.
const LIST_WAIT: Duration = Duration::from_millis(250);

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
    Introduce {
        /// The link's number.
        link: u64,
        /// Size of both outboxes.
        geometry: Geometry,
        /// The calling connection and its message.
        caller: (Conn, Box<Message>),
        /// The serving connection and its message.
        server: (Conn, Box<Message>),
    },
    /// Close a connection that broke a rule.
    Close {
        /// Which.
        conn: Conn,
        /// Why.
        reason: &'static str,
    },
}

struct Connection {
    facts: Facts,
    principals: Vec<String>,
    watches: BTreeMap<u32, ServiceName>,
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

struct LinkBook {
    row: LinkRow,
    caller: Conn,
    request: u32,
    server: Option<Conn>,
}

struct Listing {
    to: Conn,
    request: u32,
    question: u32,
    waiting: BTreeSet<Conn>,
    deadline: Instant,
}

/// The coordinator's books.
pub struct State {
    policy: Policy,
    geometry: Geometry,
    /// Who may ask for the list of links, beside root.
    operator_uid: u32,
    connections: BTreeMap<Conn, Connection>,
    names: HashMap<ServiceName, Name>,
    links: BTreeMap<u64, LinkBook>,
    listings: Vec<Listing>,
    next_conn: Conn,
    next_registration: u64,
    next_link: u64,
    next_question: u32,
    effects: Vec<Effect>,
}

impl State {
    /// Empty books under a policy.
    pub fn new(policy: Policy, geometry: Geometry, operator_uid: u32) -> Self {
        Self {
            policy,
            geometry,
            operator_uid,
            connections: BTreeMap::new(),
            names: HashMap::new(),
            links: BTreeMap::new(),
            listings: Vec::new(),
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

    /// A process has proven who it is.
    pub fn opened(&mut self, facts: Facts) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let principals = self.policy.principals(&facts);
        let you = facts.identity(principals.clone());
        self.send(conn, Message::Welcome { you });
        let watches = BTreeMap::new();
        self.connections.insert(conn, Connection { facts, principals, watches });
        conn
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: Conn) {
        if self.connections.remove(&conn).is_none() {
            return;
        }
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
        for link in self.links.values_mut() {
            if link.caller == conn || link.server == Some(conn) {
                link.row.open = false;
            }
        }
        self.forget_old_links();
        self.listings.retain(|l| l.to != conn);
        for i in 0..self.listings.len() {
            self.listings[i].waiting.remove(&conn);
        }
        self.finish_listings(None);
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
                for l in self.listings.iter_mut().filter(|l| l.question == request) {
                    l.waiting.remove(&conn);
                }
                self.finish_listings(None);
            }
            Message::List { request } => self.list(conn, request, now),
            _ => self
                .effects
                .push(Effect::Close { conn, reason: "a message that only the coordinator sends" }),
        }
    }

    /// When [`State::timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.listings.iter().map(|l| l.deadline).min()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Instant) {
        self.finish_listings(Some(now));
    }

    /// A link could not be made, or the server could not be told of it.
    pub fn introduction_failed(&mut self, link: u64, why: &str) {
        if let Some(book) = self.links.remove(&link) {
            let name = book.row.name;
            let text = format!("no link to `{name}`: {why}");
            self.refuse(book.caller, book.request, UNAVAILABLE, text);
        }
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
        if !self.policy.may_register(&c.principals, &name) {
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
        let methods = self.policy.methods(&c.principals, &name);
        if methods.is_empty() {
            let text = format!(
                "the policy lets {} call nothing at `{name}`; remedy: list methods for one of its \
                 principals under [service.{name}.call]{}",
                who(c),
                self.digest_hint(c)
            );
            return self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        let open = self.links.values().filter(|l| l.caller == conn && l.row.open).count();
        if open >= LINKS {
            let text = format!("one process may have at most {LINKS} links open");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let instance = self.names.get_mut(&name).and_then(|entry| {
            let n = entry.registrations.len();
            let r = entry.registrations.get(entry.next.checked_rem(n)?)?;
            entry.next = entry.next.wrapping_add(1);
            Some((r.conn, r.id))
        });
        match instance {
            Some((server, registration)) => {
                self.introduce((conn, request), name, methods, (server, registration))
            }
            None => match self.policy.url(&name).map(str::to_string) {
                Some(url) => self.redirect(conn, request, &name, methods, url),
                None => {
                    let text = format!(
                        "nobody serves `{name}` on this host and [names] has no address for it"
                    );
                    self.refuse(conn, request, UNAVAILABLE, text);
                }
            },
        }
    }

    fn introduce(
        &mut self,
        (conn, request): (Conn, u32),
        name: ServiceName,
        methods: MethodSet,
        (server, registration): (Conn, u64),
    ) {
        let identity = |c: &Connection| c.facts.identity(c.principals.clone());
        let caller_identity = identity(&self.connections[&conn]);
        let server_identity = identity(&self.connections[&server]);
        let link = self.book(
            (conn, request),
            LinkRow {
                link: 0,
                name: name.as_str().into(),
                caller: caller_identity.clone(),
                server: Some(server_identity.clone()),
                url: String::new(),
                isolation: Isolation::Process,
                open: true,
                stats: LinkStats::default(),
            },
            Some(server),
        );
        let geometry = self.geometry;
        let linked = Message::Linked {
            request,
            link,
            geometry,
            server: server_identity,
            methods: methods.clone(),
        };
        let offer =
            Message::Offer { registration, link, geometry, caller: caller_identity, methods };
        self.effects.push(Effect::Introduce {
            link,
            geometry,
            caller: (conn, Box::new(linked)),
            server: (server, Box::new(offer)),
        });
    }

    fn redirect(
        &mut self,
        conn: Conn,
        request: u32,
        name: &ServiceName,
        methods: MethodSet,
        url: String,
    ) {
        let c = &self.connections[&conn];
        let row = LinkRow {
            link: 0,
            name: name.as_str().into(),
            caller: c.facts.identity(c.principals.clone()),
            server: None,
            url: url.clone(),
            isolation: Isolation::Network,
            open: true,
            stats: LinkStats::default(),
        };
        let link = self.book((conn, request), row, None);
        self.send(conn, Message::Redirect { request, link, url, methods });
    }

    fn book(&mut self, by: (Conn, u32), row: LinkRow, server: Option<Conn>) -> u64 {
        let link = self.next_link;
        self.next_link += 1;
        let row = LinkRow { link, ..row };
        self.links.insert(link, LinkBook { row, caller: by.0, request: by.1, server });
        self.forget_old_links();
        link
    }

    fn forget_old_links(&mut self) {
        let closed = self.links.values().filter(|l| !l.row.open).count();
        let mut too_many = closed.saturating_sub(REMEMBERED);
        self.links.retain(|_, l| {
            let forget = !l.row.open && too_many > 0;
            too_many -= usize::from(forget);
            !forget
        });
    }

    fn watch(&mut self, conn: Conn, request: u32, name: ServiceName) {
        let c = &self.connections[&conn];
        let allowed = !self.policy.methods(&c.principals, &name).is_empty();
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

    /// What an end has counted. The server's word counts; of a redirect there is only the caller.
    fn count(&mut self, conn: Conn, link: u64, stats: LinkStats, closing: bool) {
        let Some(book) = self.links.get_mut(&link) else { return };
        if book.caller != conn && book.server != Some(conn) {
            return;
        }
        if book.server.is_none_or(|server| server == conn) {
            book.row.stats = stats;
        }
        if closing {
            book.row.open = false;
            self.forget_old_links();
        }
    }

    fn list(&mut self, conn: Conn, request: u32, now: Instant) {
        let c = &self.connections[&conn];
        if c.facts.uid != 0 && c.facts.uid != self.operator_uid {
            let text = format!(
                "only root and user {} may list links; you are user {}",
                self.operator_uid, c.facts.uid
            );
            return self.refuse(conn, request, PERMISSION_DENIED, text);
        }
        let waiting: BTreeSet<Conn> = self
            .links
            .values()
            .filter(|l| l.row.open)
            .filter_map(|l| l.server.or(Some(l.caller)))
            .filter(|c| self.connections.contains_key(c))
            .collect();
        let question = self.next_question;
        self.next_question = self.next_question.wrapping_add(1);
        for &to in &waiting {
            self.send(to, Message::Query { request: question });
        }
        let deadline = now + LIST_WAIT;
        self.listings.push(Listing { to: conn, request, question, waiting, deadline });
        self.finish_listings(None);
    }

    fn finish_listings(&mut self, now: Option<Instant>) {
        let done = |l: &Listing| l.waiting.is_empty() || now.is_some_and(|now| now >= l.deadline);
        let (finished, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.listings).into_iter().partition(done);
        self.listings = left;
        for Listing { to, request, .. } in finished {
            for book in self.links.values() {
                let message = Message::Row { request, row: book.row.clone() };
                self.effects.push(Effect::Send { to, message });
            }
            self.send(to, Message::Listed { request });
        }
    }

    fn digest_hint(&self, c: &Connection) -> String {
        match &c.facts.digest_error {
            Some(why) if self.policy.asks_for_programs() => {
                format!(" (its program is unknown: {why})")
            }
            _ => String::new(),
        }
    }
}

fn who(c: &Connection) -> String {
    let pid = c.facts.pid.map_or("of an unseen PID namespace".to_string(), |p| p.to_string());
    let known = match &c.principals[..] {
        [] => "known as no principal".to_string(),
        names => format!("known as {}", names.join(", ")),
    };
    format!("process {pid} (uid {}, {known})", c.facts.uid)
}

/// Reports an internal failure with the right code.
pub(crate) fn internal(request: u32, text: String) -> Message {
    Message::Refused { request, code: INTERNAL, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_abi::control::Digest;

    fn facts(uid: u32) -> Facts {
        Facts {
            uid,
            gid: 0,
            pid: Some(uid + 1),
            digest: Digest::Unknown,
            digest_error: None,
            cgroup: String::new(),
            started_as: None,
        }
    }

    fn name() -> ServiceName {
        ServiceName::new("g").unwrap()
    }

    fn state() -> State {
        let policy = "[principal.server]\nuid = 1\n[principal.web]\nuid = 2\n\
                      [service.g]\nregister = ['server']\n[service.g.call]\nweb = ['a.B/*']\n\
                      [service.far.call]\nweb = ['*']\n[names]\nfar = 'http://h:1'\n";
        State::new(Policy::parse("p", policy).unwrap(), Geometry::DEFAULT, 9)
    }

    fn open(s: &mut State, uid: u32) -> Conn {
        let conn = s.opened(facts(uid));
        s.take_effects();
        conn
    }

    fn ask(s: &mut State, conn: Conn, m: Message) -> Vec<Effect> {
        s.message(conn, m, Instant::now());
        s.take_effects()
    }

    fn refused(effects: &[Effect]) -> (u8, &str) {
        match effects {
            [Effect::Send { message: Message::Refused { code, text, .. }, .. }] => (*code, text),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn denied_by_default_with_the_remedy() {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        let e = ask(&mut s, web, Message::Register { request: 1, name: name() });
        let (code, text) = refused(&e);
        assert_eq!(code, PERMISSION_DENIED);
        assert!(text.contains("[service.g] register") && text.contains("known as web"), "{text}");
        let e = ask(&mut s, server, Message::Connect { request: 1, name: name() });
        assert_eq!(refused(&e).0, PERMISSION_DENIED);
        let e = ask(&mut s, web, Message::Connect { request: 1, name: name() });
        assert_eq!(refused(&e).0, UNAVAILABLE);
    }

    fn introduced(effects: &[Effect]) -> (u64, Conn) {
        match effects {
            [Effect::Introduce { link, server, .. }] => (*link, server.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn instances_take_turns_and_a_dead_one_is_out_at_once() {
        let mut s = state();
        let (a, b, web) = (open(&mut s, 1), open(&mut s, 1), open(&mut s, 2));
        for conn in [a, b] {
            ask(&mut s, conn, Message::Register { request: 1, name: name() });
        }
        let mut turns =
            || introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() })).1;
        assert_eq!([turns(), turns(), turns(), turns()], [a, b, a, b]);
        s.closed(a);
        s.take_effects();
        for _ in 0..3 {
            let e = ask(&mut s, web, Message::Connect { request: 2, name: name() });
            assert_eq!(introduced(&e).1, b);
        }
    }

    #[test]
    fn a_watcher_hears_of_each_change() {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        let count = |e: &[Effect]| -> Vec<u32> {
            e.iter()
                .filter_map(|e| match e {
                    Effect::Send { to, message: Message::Watched { request: 5, instances } } => {
                        assert_eq!(*to, web);
                        Some(*instances)
                    }
                    _ => None,
                })
                .collect()
        };
        assert_eq!(count(&ask(&mut s, web, Message::Watch { request: 5, name: name() })), [0]);
        assert_eq!(
            count(&ask(&mut s, server, Message::Register { request: 1, name: name() })),
            [1]
        );
        s.closed(server);
        assert_eq!(count(&s.take_effects()), [0]);
        ask(&mut s, web, Message::Unwatch { request: 5 });
        let server = open(&mut s, 1);
        assert!(
            count(&ask(&mut s, server, Message::Register { request: 1, name: name() })).is_empty()
        );
    }

    #[test]
    fn a_name_elsewhere_is_a_redirect() {
        let mut s = state();
        let web = open(&mut s, 2);
        let far = ServiceName::new("far").unwrap();
        let e = ask(&mut s, web, Message::Connect { request: 1, name: far });
        assert!(
            matches!(&e[..], [Effect::Send { message: Message::Redirect { url, .. }, .. }] if url == "http://h:1")
        );
    }

    #[test]
    fn a_list_asks_the_servers_and_does_not_wait_for_ever() {
        let mut s = state();
        let (server, web, operator) = (open(&mut s, 1), open(&mut s, 2), open(&mut s, 9));
        ask(&mut s, server, Message::Register { request: 1, name: name() });
        let (link, _) =
            introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() }));
        assert_eq!(refused(&ask(&mut s, web, Message::List { request: 3 })).0, PERMISSION_DENIED);
        let e = ask(&mut s, operator, Message::List { request: 3 });
        assert!(matches!(&e[..], [Effect::Send { message: Message::Query { .. }, .. }]));
        let stats = LinkStats { calls: 5, ..LinkStats::default() };
        assert!(ask(&mut s, server, Message::Counted { request: 1, link, stats }).is_empty());
        assert!(
            ask(&mut s, web, Message::Counted { request: 1, link, stats: LinkStats::default() })
                .is_empty()
        );
        s.timeout(Instant::now());
        assert!(s.take_effects().is_empty(), "too early");
        s.timeout(Instant::now() + LIST_WAIT);
        let e = s.take_effects();
        assert!(matches!(&e[..], [
            Effect::Send { message: Message::Row { row, .. }, .. },
            Effect::Send { message: Message::Listed { request: 3 }, .. },
        ] if row.stats.calls == 5 && row.open));
    }

    #[test]
    fn a_failed_introduction_is_told_to_the_caller() {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        ask(&mut s, server, Message::Register { request: 1, name: name() });
        let (link, _) =
            introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() }));
        s.introduction_failed(link, "no memory");
        assert_eq!(refused(&s.take_effects()), (UNAVAILABLE, "no link to `g`: no memory"));
    }

    #[test]
    fn a_process_that_plays_the_coordinator_is_closed() {
        let mut s = state();
        let web = open(&mut s, 2);
        let e = ask(&mut s, web, Message::Listed { request: 1 });
        assert!(matches!(&e[..], [Effect::Close { .. }]));
    }

    #[test]
    fn closed_links_are_remembered_in_bounds() {
        let mut s = state();
        let (server, web) = (open(&mut s, 1), open(&mut s, 2));
        ask(&mut s, server, Message::Register { request: 1, name: name() });
        for _ in 0..REMEMBERED + 50 {
            let (link, _) =
                introduced(&ask(&mut s, web, Message::Connect { request: 2, name: name() }));
            ask(&mut s, server, Message::Closed { link, stats: LinkStats::default() });
        }
        assert_eq!(s.links.len(), REMEMBERED);
    }
}
