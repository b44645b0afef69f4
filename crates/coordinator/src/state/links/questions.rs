//! Questions for links: whose turn it is, and what room there is.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{LinkMessage, Role};
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::Security;
use partywall_shm::address::Addresses;

use super::*;

/// Places for links at one server, and how many of them are being made.
pub(in crate::state) struct Places {
    pub(super) all: Shares,
    pub(super) pending: Shares,
}

impl Default for Places {
    fn default() -> Self {
        let all = Shares { capacity: PLACES, of_one: TO_ONE_SERVER, ..Shares::default() };
        Self { all, pending: Shares { capacity: PENDING, of_one: PENDING, ..Shares::default() } }
    }
}

impl Places {
    #[cfg(test)]
    pub(in crate::state) fn has_room_for(&self, account: &Account) -> bool {
        self.all.has_room(account)
    }

    pub(in crate::state) fn set_capacity(&mut self, places: usize) {
        self.all.capacity = places.clamp(1, PLACES);
    }
}

/// So many of something, shared by accounts as [`crate::quota`] does it.
#[derive(Default)]
pub(super) struct Shares {
    capacity: usize,
    of_one: usize,
    used: usize,
    by: HashMap<Account, usize>,
}

impl Shares {
    pub(super) fn has_room(&self, account: &Account) -> bool {
        let has = self.by.get(account).copied().unwrap_or(0);
        let left = self.capacity.saturating_sub(self.used - has);
        // The last one of a server with few places is for whoever comes first.
        has < self.of_one.min((left / 2).max(1)) && self.used < self.capacity
    }

    pub(super) fn take(&mut self, account: &Account) {
        self.used += 1;
        *self.by.entry(account.clone()).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, account: &Account) {
        if let Some(has) = self.by.get_mut(account) {
            self.used -= 1;
            *has -= 1;
            if *has == 0 {
                self.by.remove(account);
            }
        }
    }
}

/// Whose questions wait.
#[derive(Default)]
pub(in crate::state) struct Turns {
    accounts: VecDeque<Account>,
    waiting: HashMap<Account, VecDeque<Conn>>,
    of: BTreeMap<Conn, Account>,
    /// Accounts that are left out of this pass.
    resting: Vec<Account>,
    /// Their connections whose questions found no room in it.
    again: Vec<Conn>,
    /// Questions that this pass has had.
    had: usize,
    /// Since when there is a cause to look at questions.
    wanted: Option<Instant>,
    /// Of these, the cause of the pass under way: one that comes later is one for the next pass.
    cause: Option<Instant>,
    look: Option<Instant>,
}

impl Turns {
    /// There may be room for a question now.
    pub(in crate::state) fn want(&mut self, now: Instant) {
        self.wanted = Some(now);
    }

    /// Time has passed: questions that found no room are looked at again.
    pub(in crate::state) fn late(&mut self, now: Instant) {
        if self.look.is_some_and(|look| look <= now) {
            self.want(now);
        }
    }

    pub(super) fn push(&mut self, account: &Account, conn: Conn) {
        // Its account may have changed: it stays where it waits until its turn.
        if self.of.contains_key(&conn) {
            return;
        }
        self.of.insert(conn, account.clone());
        if !self.waiting.contains_key(account) && !self.resting.contains(account) {
            self.accounts.push_back(account.clone());
        }
        self.waiting.entry(account.clone()).or_default().push_back(conn);
    }

    /// The next one, and for which account it has waited; it is to be pushed again while it has
    /// questions.
    fn pop(&mut self) -> Option<(Account, Conn)> {
        let account = self.accounts.pop_front()?;
        let waiting = self.waiting.get_mut(&account).expect("it goes with its account");
        let conn = waiting.pop_front().expect("it goes with the last one");
        self.of.remove(&conn);
        if waiting.is_empty() {
            self.waiting.remove(&account);
        } else {
            self.accounts.push_back(account.clone());
        }
        Some((account, conn))
    }

    /// Leaves an account out until [`Turns::wake`].
    fn rest(&mut self, account: Account) {
        self.accounts.retain(|a| *a != account);
        self.resting.push(account);
    }

    fn wake(&mut self) {
        let waiting = &self.waiting;
        self.accounts.extend(self.resting.drain(..).filter(|a| waiting.contains_key(a)));
    }

    pub(in crate::state) fn forget(&mut self, conn: Conn) {
        let Some(account) = self.of.remove(&conn) else { return };
        if let Some(waiting) = self.waiting.get_mut(&account) {
            waiting.retain(|c| *c != conn);
            if waiting.is_empty() {
                self.waiting.remove(&account);
                self.accounts.retain(|a| *a != account);
            }
        }
    }

    /// Whether nothing is to be looked at now.
    #[cfg(test)]
    pub(in crate::state) fn rests(&self) -> bool {
        self.wanted.is_none()
    }

    /// When questions are to be looked at.
    pub(in crate::state) fn next_look(&self) -> Option<Instant> {
        self.wanted.or(self.look).filter(|_| !self.of.is_empty())
    }
}

/// What became of a question.
pub(super) enum Asked {
    /// It is answered, or on its way.
    Done,
    /// It waits for room.
    Waits,
}

/// An instance, or why there is none.
pub(super) enum Instance {
    Found(Conn, u64),
    /// Nobody serves the name.
    None,
    /// None of those that serve it can have a link with the caller.
    Unfit(Unfit),
    /// So many were asked, and none has answered the offer.
    Tried(usize),
    /// None has a place for another link of this account.
    Full,
    /// Those that have are making as many links as they can at once.
    Busy,
}

/// Why an instance can have no link with a caller.
pub(super) enum Unfit {
    /// It speaks this version, and the caller another one.
    Version(u16),
    /// What protects the link would be too little.
    TooWeak(String),
}

/// What protects a connection to addresses of the policy; they were checked when that was read.
pub(in crate::state) fn of_address(url: &str) -> Security {
    Addresses::parse(url).map_or(Security::LOWEST, |addresses| addresses.security())
}

impl State {
    pub(in crate::state) fn connect(
        &mut self,
        conn: Conn,
        request: u32,
        name: ServiceName,
        now: Instant,
    ) {
        let c = &self.connections[&conn];
        if self.policy.methods(&c.standing.identity.principals, &name).is_empty() {
            let text = format!(
                "the policy lets {} call nothing at `{name}`; remedy: {}{}",
                who(c),
                self.policy.remedy_to_call(&c.standing.identity.principals, &name),
                self.unknown_hint(c)
            );
            return self.deny(conn, request, "connect", text);
        }
        let charge = match c.charge(Resource::Waiting) {
            Ok(charge) => charge,
            Err(text) => return self.refuse(conn, request, RESOURCE_EXHAUSTED, text),
        };
        let tried = BTreeSet::new();
        let (why, charge) = (None, Some(charge));
        let question = Question { request, name, since: now, tried, why, charge };
        self.connection(conn).questions.push_back(question);
        self.hunger(conn);
        self.hungry.want(now);
    }

    pub(super) fn hunger(&mut self, conn: Conn) {
        let c = &self.connections[&conn];
        let account = c.standing.usage.account().clone();
        self.hungry.push(&account, conn);
    }

    /// The caller does not wait any more.
    pub(in crate::state) fn cancel(&mut self, conn: Conn, request: u32, now: Instant) {
        let c = self.connection(conn);
        c.questions.retain(|q| q.request != request);
        let links: Vec<u64> = c.links.iter().copied().collect();
        let being_made = |link: &u64| {
            self.links.get(link).is_some_and(|l| match &l.phase {
                Phase::Offered(m) | Phase::Filling(m) => {
                    m.question.request == request && l.caller_conn() == Some(conn)
                }
                _ => false,
            })
        };
        if let Some(link) = links.into_iter().find(being_made) {
            self.give_up(link, UNAVAILABLE, "its caller has cancelled it", Some(Role::Server));
            self.hungry.want(now);
        }
    }

    /// Answers the question whose turn it is, as far as there is room, and says whose it is; none
    /// when all have been looked at. An account whose question finds no room waits for the next
    /// pass, and that question for the others of its connection.
    pub fn serve_question(&mut self) -> Option<Arc<Usage>> {
        let now = *self.hungry.cause.get_or_insert(self.hungry.wanted?);
        if self.hungry.had == PASS {
            // The others have their turns, and the pass goes on.
            self.hungry.had = 0;
            return None;
        }
        let Some((account, conn)) = self.hungry.pop() else {
            self.end_pass(now);
            return None;
        };
        self.hungry.had += 1;
        let c = self.connections.get_mut(&conn).expect("who is gone was forgotten");
        let usage = Arc::clone(&c.standing.usage);
        let Some(mut question) = c.questions.pop_front() else { return Some(usage) };
        match self.ask(conn, &mut question, now) {
            Asked::Done => {
                if self.connections.get(&conn).is_some_and(|c| !c.questions.is_empty()) {
                    self.hunger(conn);
                }
            }
            Asked::Waits => {
                self.connection(conn).questions.push_back(question);
                self.hungry.rest(account);
                self.hungry.again.push(conn);
            }
        }
        Some(usage)
    }

    fn end_pass(&mut self, now: Instant) {
        self.hungry.had = 0;
        // What found no room is looked at when there is another cause, or in a while.
        self.hungry.wanted = self.hungry.wanted.filter(|wanted| *wanted != now);
        self.hungry.cause = None;
        self.hungry.wake();
        for conn in std::mem::take(&mut self.hungry.again) {
            if self.connections.contains_key(&conn) {
                self.hunger(conn);
            }
        }
        self.hungry.look = Some(now + LOOK);
    }

    pub(super) fn ask(&mut self, conn: Conn, question: &mut Question, now: Instant) -> Asked {
        let c = &self.connections[&conn];
        let (request, name) = (question.request, question.name.clone());
        let refuse = |state: &mut Self, code, text| {
            state.refuse(conn, request, code, text);
            Asked::Done
        };
        let late = now.saturating_duration_since(question.since) > WAIT_TIME;
        let usage = Arc::clone(&c.standing.usage);
        let methods = self.policy.methods(&c.standing.identity.principals, &name);
        if methods.is_empty() {
            let text = format!("the policy lets {} call nothing at `{name}` any more", who(c));
            self.deny(conn, request, "connect", text);
            return Asked::Done;
        }
        let (busy, version) = (c.opening >= OPENING, c.spoken.version);
        let instance = match self.instance(conn, &name, &question.tried, now) {
            Instance::None => return self.redirect(conn, request, name, methods),
            Instance::Unfit(Unfit::TooWeak(text)) => {
                self.deny(conn, request, "connect", text);
                return Asked::Done;
            }
            Instance::Unfit(Unfit::Version(theirs)) => {
                let text = format!(
                    "`{name}` speaks version {theirs} of Partywall's protocol, and this program version \
                     {version}; remedy: build both from the same release"
                );
                return refuse(self, FAILED_PRECONDITION, text);
            }
            Instance::Tried(n) => {
                let of = match n {
                    1 => "the one instance".into(),
                    n => format!("none of {n} instances that were asked"),
                };
                let not = if n == 1 { " not" } else { "" };
                let why = question.why.as_deref().unwrap_or("it was asked before");
                let text = format!("{of} of `{name}` has{not} taken the link: {why}");
                return refuse(self, UNAVAILABLE, text);
            }
            Instance::Full => {
                let text = format!(
                    "no instance of `{name}` has a place for another link of {}; remedy: share a \
                     channel, which carries many calls at once, let the service have more \
                     descriptors (`ulimit -n`), or start another instance",
                    usage.account()
                );
                return refuse(self, RESOURCE_EXHAUSTED, text);
            }
            Instance::Busy if late => {
                let text = format!(
                    "`{name}` makes as many links for {} at once as it may, and an end of theirs \
                     does not read what it is sent",
                    usage.account()
                );
                return refuse(self, UNAVAILABLE, text);
            }
            Instance::Found(..) if busy && late => {
                let text = "one of its ends does not read what it is sent".to_string();
                return refuse(self, UNAVAILABLE, format!("no link to `{name}`: {text}"));
            }
            Instance::Busy => return Asked::Waits,
            Instance::Found(..) if busy => return Asked::Waits,
            Instance::Found(server, registration) => (server, registration),
        };
        let caller_charge = match usage.charge(Resource::Links, 1) {
            Ok(charge) => charge,
            Err(e) => return refuse(self, RESOURCE_EXHAUSTED, many_links(&e)),
        };
        let server = &self.connections[&instance.0].standing.usage;
        let server_charge = match server.charge_served(&usage) {
            Ok(charge) => charge,
            Err(e @ Exceeded::ToServers { .. }) => {
                return refuse(self, RESOURCE_EXHAUSTED, many_links(&e));
            }
            Err(e) => {
                let text =
                    format!("`{name}` takes no more links: {e}; remedy: start another instance");
                return refuse(self, RESOURCE_EXHAUSTED, text);
            }
        };
        let making = match usage.charge(Resource::Opening, 1) {
            Ok(making) => making,
            Err(e) if late => {
                return refuse(self, RESOURCE_EXHAUSTED, format!("no link to `{name}`: {e}"));
            }
            Err(_) => return Asked::Waits,
        };
        let tried = std::mem::take(&mut question.tried);
        let charge = question.charge.take();
        let (since, why) = (question.since, question.why.take());
        let question = Question { request, name, since, tried, why, charge };
        let making = Making { question, deadline: now + OFFER_TIME, _charge: making };
        self.offer(conn, instance, making, methods, [caller_charge, server_charge]);
        Asked::Done
    }

    /// The instance whose turn it is.
    pub(super) fn instance(
        &mut self,
        caller: Conn,
        name: &ServiceName,
        tried: &BTreeSet<Conn>,
        now: Instant,
    ) -> Instance {
        let Some(entry) = self.names.get(name) else { return Instance::None };
        let n = entry.registrations.len();
        if n == 0 {
            return Instance::None;
        }
        let mut unfit = None;
        let mut left: Vec<usize> = (0..n).map(|i| entry.next.wrapping_add(i) % n).collect();
        left.retain(|&at| {
            let why = self.unfit(caller, entry.registrations[at].conn, name);
            let fits = why.is_none();
            unfit = unfit.take().or(why);
            fits
        });
        if let (true, Some(why)) = (left.is_empty(), unfit) {
            return Instance::Unfit(why);
        }
        let usage = Arc::clone(&self.connections[&caller].standing.usage);
        let account = usage.account();
        left.retain(|&at| !tried.contains(&entry.registrations[at].conn));
        // Each offer costs time and descriptors, and whoever serves the name decides how many pass.
        if left.is_empty() || tried.len() >= TRIED {
            return Instance::Tried(tried.len());
        }
        let server = |at: usize| &self.connections[&entry.registrations[at].conn];
        let passed = |at: usize| server(at).passed.is_some_and(|when| now < when + PASSED);
        let answers: Vec<usize> = left.iter().copied().filter(|&at| !passed(at)).collect();
        let mut left = if answers.is_empty() { left } else { answers };
        // Whoever has many that do not answer keeps callers from nobody else's: after one of an
        // account's another account's is asked, and those of an account with several that do not come last.
        let mut silent: HashMap<&Account, usize> = HashMap::new();
        for at in (0..n).filter(|&at| passed(at)) {
            *silent.entry(server(at).standing.usage.account()).or_default() += 1;
        }
        if !silent.is_empty() {
            let of_tried = tried.iter().filter_map(|conn| self.connections.get(conn));
            let tried: BTreeSet<_> = of_tried.map(|c| c.standing.usage.account()).collect();
            left.sort_by_key(|&at| {
                let account = server(at).standing.usage.account();
                (tried.contains(account), silent.get(account).is_some_and(|&n| n >= SILENT))
            });
        }
        let with_place: Vec<usize> =
            left.into_iter().filter(|&at| server(at).places.all.has_room(account)).collect();
        if with_place.is_empty() {
            return Instance::Full;
        }
        let free = with_place.into_iter().find(|&at| server(at).places.pending.has_room(account));
        let Some(at) = free else { return Instance::Busy };
        let r = &entry.registrations[at];
        let found = Instance::Found(r.conn, r.id);
        if let Some(entry) = self.names.get_mut(name) {
            entry.next = at + 1;
        }
        found
    }

    /// Why there can be no link between a caller and one that serves the name.
    fn unfit(&self, caller: Conn, server: Conn, name: &ServiceName) -> Option<Unfit> {
        let [ours, theirs] = [caller, server].map(|conn| self.connections[&conn].spoken.version);
        if ours != theirs {
            return Some(Unfit::Version(theirs));
        }
        let principals = &self.connections[&caller].standing.identity.principals;
        let security = self.protected_between((caller, server), name);
        self.too_weak(principals, name, security).map(Unfit::TooWeak)
    }

    pub(super) fn redirect(
        &mut self,
        conn: Conn,
        request: u32,
        name: ServiceName,
        methods: MethodSet,
    ) -> Asked {
        let Some(url) = self.policy.url(&name).map(str::to_string) else {
            let text = format!(
                "nobody serves `{name}` on this host and [names] has no address for it; remedy: start \
                 the service, or wait for it: `wait_for_ready`, or `--wait` of `partywall call`"
            );
            self.refuse(conn, request, NOT_FOUND, text);
            return Asked::Done;
        };
        let (security, standing) = (of_address(&url), &self.connections[&conn].standing);
        if let Some(why) = self.too_weak(&standing.identity.principals, &name, security) {
            let text = format!("nobody serves `{name}` here, and over {url} {why}");
            match self.policy.may_be_served(&name) {
                // Somebody may yet.
                true => self.refuse(conn, request, NOT_FOUND, text),
                false => self.deny(conn, request, "connect", text),
            }
            return Asked::Done;
        }
        let charge = match standing.usage.charge(Resource::Links, 1) {
            Ok(charge) => charge,
            Err(e) => {
                self.refuse(conn, request, RESOURCE_EXHAUSTED, many_links(&e));
                return Asked::Done;
            }
        };
        let token = (self.token)();
        let link = self.record(Link {
            caller: Some(self.end(conn, vec![charge])),
            open: true,
            opened: true,
            memory: false,
            phase: Phase::Open,
            url: Some(url.clone()),
            ..Link::new(name, token, security, methods.clone())
        });
        self.audit_introduced(link);
        let url = match Addresses::parse(&url) {
            // An older process knows of one.
            Ok(all) if !self.takes(conn, Capabilities::ADDRESSES) => all.texts().take(1).collect(),
            _ => url,
        };
        self.send(conn, LinkMessage::Redirect { request, link, token, url, methods });
        Asked::Done
    }
}

fn many_links(e: &crate::quota::Exceeded) -> String {
    format!(
        "{e}; remedy: share a channel, which carries many calls at once, or drop those that are \
         not used"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever comes in whatever order, each connection that waits has its turn.
    #[test]
    fn each_waiting_connection_has_one_turn() {
        let mut random = partywall_testkit::Random::new(1);
        let mut next = |below: usize| random.below(below) as u64;
        let mut turns = Turns::default();
        let mut waits = BTreeSet::new();
        for _ in 0..100_000 {
            let (conn, account) = (next(20), Account::User(next(5) as u32));
            match next(5) {
                0 | 1 => {
                    turns.push(&account, conn);
                    waits.insert(conn);
                }
                2 => {
                    turns.forget(conn);
                    waits.remove(&conn);
                }
                3 => {
                    if let Some((account, conn)) = turns.pop() {
                        assert!(waits.remove(&conn), "{conn} had a turn already");
                        if next(2) == 0 {
                            turns.rest(account);
                        }
                    }
                }
                _ => turns.wake(),
            }
        }
        turns.wake();
        while let Some((_, conn)) = turns.pop() {
            assert!(waits.remove(&conn), "{conn} had a turn already");
        }
        assert!(waits.is_empty() && turns.waiting.is_empty(), "{waits:?} were lost");
    }

    /// It was looked for where its new account waits, and had its turn when it was gone: a panic.
    #[test]
    fn waiting_connection_whose_account_changes_is_forgotten() {
        let mut turns = Turns::default();
        let (user, principal) = (Account::User(2), Account::Principal("web".into()));
        for (account, conn) in [(&user, 1), (&user, 2), (&principal, 1)] {
            turns.push(account, conn);
        }
        turns.forget(1);
        assert_eq!(turns.pop(), Some((user, 2)));
        assert_eq!(turns.pop(), None);
    }
}
