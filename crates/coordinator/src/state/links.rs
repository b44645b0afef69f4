//! Links, from the question for one until nobody holds its memory.
//!
//! ```text
//! question   waits in its connection's queue for its turn
//!              | an instance that has a place for one more, and is asked in turn
//! offered    the server has its part; says Adopted in OFFER_TIME  -- no: the next instance
//! filling    the caller has its part; says Adopted in FILL_TIME   -- no: over
//! open       an end says Closed, or is gone, or the policy takes the link away
//! over       while an end holds memory of the link by the kernel's word, it is charged; when none
//!            does, the row is closed, and remembered for the list
//! ```
//!
//! Whether a link is open in the list is the word of one end: the server's. A caller's word does
//! not count, and neither does its hanging up here: it could hide a link that it goes on using.
//! What an end is charged for is the word of nobody: it is given back when the kernel says that
//! the end has let go. A redirect has no memory and no server here, so its caller's word counts;
//! so does each end's of a link that was reported to this coordinator.
//!
//! A link that its server has not adopted keeps its place among those that are being made at that server
//! until the server holds nothing of it: a server that does not read is asked for few at once, however
//! often its callers change their minds.
//!
//! An end that dies is seen by its connection; the other end is told, for as long as the link is
//! being made, and sees it by its own socket afterwards.
//!
//! # Turns
//!
//! Questions are taken in turn, one of each account, and of an account one of each connection. An
//! account has a share of the links that are being made, of those at each server, and of each
//! server's places ([`Places`]); what has no room waits, at most [`WAIT_TIME`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::control::{
    Blame, EndMessage, Grant, Identity, LinkMethods, LinkStats, PaceStats, ParcelStats, Role,
    Sealing, Terms, Token,
};
use partywall_abi::layout::Geometry;
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::security::{Seal, Security};
use partywall_abi::version::Capabilities;

use super::{
    Conn, Effect, FAILED_PRECONDITION, Fault, NOT_FOUND, PERMISSION_DENIED, REMEMBERED,
    RESOURCE_EXHAUSTED, Standing, State, UNAVAILABLE, who,
};
use crate::quota::{Account, Charge, Exceeded, Resource, Usage};

mod audited;
mod counted;
mod making;
mod messages;
mod questions;

use counted::Counted;
pub(super) use questions::{Places, Turns, of_address};

/// How long a server may take to adopt what it is offered.
pub(super) const OFFER_TIME: Duration = Duration::from_secs(1);
/// How long a caller may take to fill a link.
const FILL_TIME: Duration = Duration::from_secs(5);
/// How long a question may wait for its turn; less than callers wait for the answer.
const WAIT_TIME: Duration = Duration::from_secs(4);
/// How long until questions that found no room are looked at again without a cause.
const LOOK: Duration = Duration::from_millis(10);
/// Questions that are looked at in one pass.
const PASS: usize = 32;
/// Links of one caller's connection that are being made at once: each has descriptors under way.
pub(super) const OPENING: usize = 16;
/// Links of one server that are being made at once.
const PENDING: usize = 32;
/// Links that an account may have to one server.
const TO_ONE_SERVER: usize = 1024;
/// How long an instance that has left an offer unanswered is asked after the others.
const PASSED: Duration = Duration::from_secs(10);
/// An account of which so many instances have left offers unanswered lately is asked last.
const SILENT: usize = 2;
/// Instances of a name that one question is offered to.
const TRIED: usize = 8;
/// Links that one server may serve.
const PLACES: usize = 16 * 1024;

/// A question for a link.
pub(super) struct Question {
    pub(super) request: u32,
    name: ServiceName,
    since: Instant,
    /// Instances that have let the offer pass, and why the last one has.
    tried: BTreeSet<Conn>,
    why: Option<String>,
    /// Until it is answered.
    charge: Option<Charge>,
}

/// One end of a link.
pub(super) struct End {
    pub(super) conn: Conn,
    pub(super) standing: Arc<Standing>,
    /// It has said that it is over, or its connection is gone.
    over: bool,
    /// What it is charged for while it holds the link's memory.
    charges: Vec<Charge>,
    holds: bool,
}

impl End {
    /// Whether it holds the link's memory, and so is charged for it.
    fn set_holds(&mut self, holds: bool) {
        self.holds = holds;
        for charge in &mut self.charges {
            charge.force(usize::from(holds));
        }
    }
}

/// A link that is being made.
struct Making {
    question: Question,
    deadline: Instant,
    /// Of its caller's account.
    _charge: Charge,
}

enum Phase {
    Offered(Making),
    Filling(Making),
    Open,
    /// One end has reported it, and the other one has not yet.
    Reported(Instant),
    Over,
}

/// One link.
pub(super) struct Link {
    pub(super) name: ServiceName,
    pub(super) token: Token,
    pub(super) geometry: Geometry,
    pub(super) methods: MethodSet,
    pub(super) capabilities: Capabilities,
    pub(super) security: Security,
    /// What its ends are told of how it is sealed.
    sealing: Option<Box<Sealing>>,
    /// What may cross; where that is none it has no socket for descriptors.
    pub(super) grant: Grant,
    /// Its ends are told that descriptors are going to be granted.
    pub(super) promised: bool,
    /// None while only its server has reported it.
    pub(super) caller: Option<End>,
    /// None when it is a redirect, and while only its caller has reported it.
    pub(super) server: Option<End>,
    phase: Phase,
    /// Whose place it has at its server.
    place: Option<Account>,
    /// Likewise among those that are being made there.
    pending: Option<Account>,
    /// Where a redirect leads.
    pub(super) url: Option<String>,
    /// For the list.
    pub(super) open: bool,
    /// It was open once.
    pub(super) opened: bool,
    /// The coordinator has made its memory.
    memory: bool,
    pub(super) stats: LinkStats,
    pub(super) counted: Counted,
    /// What each end says that it has sent in parcels: the caller, the server.
    pub(super) sent: [ParcelStats; 2],
    /// What each end says that it has measured, likewise.
    pub(super) pace: [Option<PaceStats>; 2],
}

impl State {
    pub(super) fn end(&self, conn: Conn, charges: Vec<Charge>) -> End {
        let standing = Arc::clone(&self.connections[&conn].standing);
        End { conn, standing, over: false, charges, holds: true }
    }

    /// Records a link.
    pub(super) fn record(&mut self, link: Link) -> u64 {
        let number = self.next_link;
        self.next_link += 1;
        for conn in [link.caller_conn(), link.server_conn()].into_iter().flatten() {
            self.connection(conn).links.insert(number);
        }
        self.links.insert(number, link);
        number
    }

    /// A link could not be made, or a part of it could not be handed out.
    pub fn faulty(&mut self, number: u64, fault: Fault, why: &str, now: Instant) {
        let Some(link) = self.links.get(&number) else { return };
        let text = format!("no link to `{}`: {why}", link.name);
        match fault {
            Fault::Ours => self.fail(number, UNAVAILABLE, &text),
            Fault::Of(role) => {
                self.audit_blame(number, role, None, why);
                match role {
                    Role::Server => self.next_instance(number, why, now),
                    Role::Caller | Role::Redirected => {
                        self.fail(number, FAILED_PRECONDITION, &text)
                    }
                }
            }
        }
        self.hungry.want(now);
    }

    /// Time is up for links that are being made, or that only one end has reported.
    pub(super) fn links_late(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            let Some(link) = self.links.get(&number) else { continue };
            match &link.phase {
                Phase::Offered(_) => {
                    let server = link.server.as_ref().and_then(|end| end.standing.identity.pid);
                    let process =
                        server.map_or("its process".into(), |pid| format!("process {pid}"));
                    let why = format!(
                        "{process} does not answer within {OFFER_TIME:?}; remedy: look whether it is stopped \
                         or overloaded"
                    );
                    self.next_instance(number, &why, now);
                }
                Phase::Filling(_) => self.fail(number, UNAVAILABLE, "its caller took too long"),
                Phase::Reported(_) => {
                    let text = "its other end has not reported it to the coordinator, which is new";
                    self.give_up(number, UNAVAILABLE, text, None);
                }
                Phase::Open | Phase::Over => {}
            }
            self.hungry.want(now);
        }
        self.hungry.late(now);
    }

    /// Takes an offer back, and has the question wait for another instance.
    fn next_instance(&mut self, number: u64, why: &str, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let (caller, server) = (link.caller_conn(), link.server_conn());
        let making = match std::mem::replace(&mut link.phase, Phase::Over) {
            Phase::Offered(making) => making,
            Phase::Filling(making) => {
                self.not_pending(number);
                making
            }
            phase => {
                link.phase = phase;
                return self.give_up(number, UNAVAILABLE, why, None);
            }
        };
        self.made(number, &making);
        if let Some(c) = server.and_then(|s| self.connections.get_mut(&s)) {
            c.passed = Some(now);
        }
        let mut question = making.question;
        question.tried.extend(server);
        question.why = Some(why.to_string());
        self.end_it(number, UNAVAILABLE, why, Some(Role::Server));
        if let Some(conn) = caller
            && let Some(c) = self.connections.get_mut(&conn)
        {
            c.questions.push_front(question);
            self.hunger(conn);
        }
    }

    /// Refuses a link that is being made, or ends it where its caller has its part already.
    pub(super) fn fail(&mut self, number: u64, code: u8, text: &str) {
        let Some(link) = self.links.get(&number) else { return };
        if let Phase::Offered(making) = &link.phase
            && let Some(caller) = link.caller_conn()
        {
            let request = making.question.request;
            self.give_up(number, code, text, Some(Role::Server));
            return self.refuse(caller, request, code, text.to_string());
        }
        self.give_up(number, code, text, None);
    }

    /// Ends a link, whatever its phase; `only` is the one end that is told, else both are.
    pub(super) fn give_up(&mut self, number: u64, code: u8, text: &str, only: Option<Role>) {
        let Some(link) = self.links.get_mut(&number) else { return };
        match std::mem::replace(&mut link.phase, Phase::Over) {
            Phase::Offered(making) => self.made(number, &making),
            Phase::Filling(making) => {
                self.made(number, &making);
                self.not_pending(number);
            }
            Phase::Reported(deadline) => {
                self.reported.remove(&link.token);
                self.deadlines.remove(&(deadline, number));
            }
            Phase::Open | Phase::Over => {}
        }
        self.end_it(number, code, text, only);
    }

    /// Tells the ends that their link is over; what they hold is looked at.
    fn end_it(&mut self, number: u64, code: u8, text: &str, only: Option<Role>) {
        let link = &self.links[&number];
        let notified = |role, conn: Option<Conn>| conn.filter(|_| only.is_none_or(|o| o == role));
        let callers = if link.url.is_some() { Role::Redirected } else { Role::Caller };
        let ends = [
            (callers, notified(Role::Caller, link.caller_conn())),
            (Role::Server, notified(Role::Server, link.server_conn())),
        ];
        for (role, to) in ends {
            if let Some(to) = to {
                let text = text.to_string();
                self.send(to, EndMessage::Ended { link: number, role, code, text });
            }
        }
        self.is_over(number, [Role::Caller, Role::Server]);
    }

    /// An end says that the link is over.
    pub(super) fn end_says_closed(
        &mut self,
        (conn, role): (Conn, Role),
        number: u64,
        blame: Blame,
        stats: LinkStats,
        now: Instant,
    ) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.end_of(role).is_none_or(|end| end.conn != conn) {
            return;
        }
        let teller = if link.server.is_some() { Role::Server } else { role };
        if role == teller {
            link.stats = stats;
        }
        // Once: what an end says after its own end is over is heard no more.
        if blame == Blame::Peer && link.end_of(role).is_some_and(|end| !end.over) {
            let culprit = if role == Role::Server { Role::Caller } else { Role::Server };
            let why = "the other end says that it broke a rule";
            self.audit_blame(number, culprit, Some(role), why);
        }
        if matches!(link_phase(&self.links, number), Some(Phase::Offered(_)))
            && role == Role::Server
        {
            self.next_instance(number, "the server has not taken it", now);
        } else {
            self.over_for(number, &[role], "the other end has given it up");
        }
        self.hungry.want(now);
    }

    /// Tells the server of an open link that its caller's process has ended; a caller is told of its
    /// server's by [`State::is_over`].
    pub(super) fn tell_death(&mut self, number: u64, conn: Conn) {
        let Some(link) = self.links.get(&number) else { return };
        let server = link.server_conn().filter(|to| *to != conn);
        if let (Phase::Open, Some(to)) = (&link.phase, server) {
            self.send(to, EndMessage::Died { link: number, role: Role::Server });
        }
    }

    /// An end's connection is gone.
    pub(super) fn end_is_gone(&mut self, number: u64, conn: Conn, now: Instant) {
        let Some(link) = self.links.get(&number) else { return };
        let roles = link.roles_of(conn);
        if matches!(link.phase, Phase::Offered(_)) && roles == [Role::Server] {
            return self.next_instance(number, "the server has gone", now);
        }
        self.over_for(number, &roles, "the other end has gone");
    }

    fn over_for(&mut self, number: u64, roles: &[Role], why: &str) {
        let Some(link) = self.links.get(&number) else { return };
        if !matches!(link.phase, Phase::Open | Phase::Over) {
            // It is being made: the other end is told.
            let other = if roles.contains(&Role::Server) { Role::Caller } else { Role::Server };
            return self.give_up(number, UNAVAILABLE, why, Some(other));
        }
        self.is_over(number, roles.iter().copied());
    }

    /// A link is over for these ends. A server may say so, or close its connection, and go on answering:
    /// its caller takes what has come, and then ends it.
    fn is_over(&mut self, number: u64, roles: impl IntoIterator<Item = Role>) {
        let Some(link) = self.links.get_mut(&number) else { return };
        for role in roles {
            let Some(end) = link.end_mut(role).filter(|end| !end.over) else { continue };
            end.over = true;
            if role == Role::Server {
                link.open = false;
            }
            if link.server.is_none() {
                link.open = false;
            }
        }
        let (memory, is_open) = (link.memory, link.open);
        let server_is_over = link.server.as_ref().is_some_and(|server| server.over);
        let caller = link.caller.as_ref().filter(|caller| !caller.over).map(|caller| caller.conn);
        let notified = caller.filter(|_| server_is_over && matches!(link.phase, Phase::Open));
        let said = [&link.caller, &link.server].map(|end| end.as_ref().is_none_or(|end| end.over));
        self.free_place(number);
        if !is_open {
            self.trace_is_over(number);
        }
        if let Some(to) = notified {
            self.send(to, EndMessage::Died { link: number, role: Role::Caller });
        }
        if memory {
            self.effects.push(Effect::Over { link: number, said });
        } else {
            // No memory that the kernel could tell of: the word counts.
            for role in [Role::Caller, Role::Server] {
                let link = self.links.get(&number);
                if link.and_then(|l| l.end_of(role)).is_some_and(|end| end.over) {
                    self.let_go(number, role);
                }
            }
        }
    }

    /// Takes a place at the server of a link that was made elsewhere, whether there is one or not.
    pub(super) fn take_place(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number).filter(|l| l.place.is_none()) else { return };
        if let (Some(caller), Some(server)) = (&link.caller, &link.server)
            && let Some(c) = self.connections.get_mut(&server.conn)
        {
            let account = caller.standing.usage.account().clone();
            c.places.all.take(&account);
            link.place = Some(account);
        }
    }

    /// Gives a link's place at its server back, once the server does not serve it any more.
    fn free_place(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.server.as_ref().is_some_and(|server| server.over)
            && let Some(account) = link.place.take()
            && let Some(c) = link.server_conn().and_then(|s| self.connections.get_mut(&s))
        {
            c.places.all.give_back(&account);
        }
    }

    /// An end that had let go, by all that could be seen, holds the link's memory after all.
    pub fn holds(&mut self, number: u64, role: Role) {
        if let Some(end) = self.links.get_mut(&number).and_then(|link| link.end_mut(role)) {
            end.set_holds(true);
        }
    }

    /// An end holds nothing of the link any more, by all that can be seen.
    pub fn let_go(&mut self, number: u64, role: Role) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if let Some(end) = link.end_mut(role) {
            end.set_holds(false);
            end.over = true;
        }
        if role == Role::Server {
            link.open = false;
            self.not_pending(number);
        }
        self.free_place(number);
        let Some(link) = self.links.get_mut(&number) else { return };
        let held = |end: &Option<End>| end.as_ref().is_some_and(|e| e.holds);
        let waits = matches!(link.phase, Phase::Reported(_));
        if held(&link.caller) || held(&link.server) || waits {
            return;
        }
        link.open = false;
        let (token, opened) = (link.token, link.opened);
        let ends = [link.caller_conn(), link.server_conn()];
        self.trace_is_over(number);
        for conn in ends.into_iter().flatten() {
            if let Some(c) = self.connections.get_mut(&conn) {
                c.links.remove(&number);
            }
        }
        self.reported.remove(&token);
        if !opened {
            self.links.remove(&number);
        } else if !self.closed.contains(&number) {
            self.remember(number);
        }
    }

    /// Keeps a closed link for the list. Of those that are too many, one goes of the account that has
    /// most as a caller: one without calls if it has any, so that these hide no others, else the oldest.
    fn remember(&mut self, number: u64) {
        self.closed.push_back(number);
        if self.closed.len() <= REMEMBERED {
            return;
        }
        let mut of_each: HashMap<&Account, usize> = HashMap::new();
        let account = |n: &u64| self.links.get(n).and_then(Link::callers_account);
        for account in self.closed.iter().filter_map(account) {
            *of_each.entry(account).or_default() += 1;
        }
        let most = of_each.into_iter().max_by_key(|(_, n)| *n).map(|(account, _)| account);
        let has_calls = |n: &u64| self.links.get(n).is_some_and(|link| link.stats.calls > 0);
        let of_most = self.closed.iter().enumerate().filter(|(_, n)| account(n) == most);
        let at = of_most.min_by_key(|(_, n)| has_calls(n)).map_or(0, |(at, _)| at);
        if let Some(oldest) = self.closed.remove(at) {
            self.links.remove(&oldest);
        }
    }

    /// What an end says that it has sent in parcels; its word counts for itself, where descriptors may cross.
    pub(super) fn sent(&mut self, (conn, role): (Conn, Role), number: u64, parcels: ParcelStats) {
        let Some(link) = self.links.get_mut(&number).filter(|l| !l.grant.is_none()) else { return };
        if link.end_of(role).is_some_and(|end| end.conn == conn) {
            link.sent[usize::from(role == Role::Server)] = parcels;
        }
    }

    /// What an end says that it has measured; its word counts for itself.
    pub(super) fn measured(&mut self, (conn, role): (Conn, Role), number: u64, pace: PaceStats) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.end_of(role).is_some_and(|end| end.conn == conn) {
            link.pace[usize::from(role == Role::Server)] = Some(pace);
        }
    }

    /// What the end whose word counts has counted; others are not heard.
    pub(super) fn count(
        &mut self,
        conn: Conn,
        number: u64,
        stats: LinkStats,
        methods: LinkMethods,
    ) {
        if let Some(link) = self.links.get_mut(&number).filter(|l| l.teller() == Some(conn)) {
            link.stats = stats;
            if let (Some(server), Some(caller)) = (&link.server, &link.caller) {
                link.counted.keep(methods, &server.standing.usage, &caller.standing.usage);
            }
        }
    }
}

impl Link {
    pub(super) fn new(
        name: ServiceName,
        token: Token,
        security: Security,
        methods: MethodSet,
    ) -> Self {
        Self {
            name,
            token,
            geometry: Geometry::DEFAULT,
            methods,
            capabilities: Capabilities::NONE,
            security,
            sealing: None,
            grant: Grant::NONE,
            promised: false,
            caller: None,
            server: None,
            phase: Phase::Over,
            place: None,
            pending: None,
            url: None,
            open: false,
            opened: false,
            memory: true,
            stats: LinkStats::default(),
            counted: Counted::default(),
            sent: [ParcelStats::default(); 2],
            pace: [None; 2],
        }
    }

    /// A link that one end has reported; the other one has time until `deadline`.
    pub(super) fn reported(name: ServiceName, token: Token, deadline: Instant) -> Self {
        // Its ends say what it has, and what this coordinator knows of them lowers that.
        let (security, methods) = (Security::HIGHEST, MethodSet::default());
        let phase = Phase::Reported(deadline);
        Self { phase, memory: false, ..Self::new(name, token, security, methods) }
    }

    /// What an end is told of it.
    fn terms(&self, link: u64, peer: Identity) -> Terms {
        let Self { token, geometry, mut capabilities, security, .. } = *self;
        if !self.promised {
            capabilities = capabilities.without(Capabilities::ATTACHMENTS);
        }
        let methods = self.methods.clone();
        let sealing = self.sealing.clone().filter(|_| security.seal != Seal::Off);
        Terms { link, token, geometry, peer, methods, capabilities, security, sealing }
    }

    /// Charges both ends for a link that was reported.
    pub(super) fn charge_ends(&mut self) -> Result<(), Exceeded> {
        let ends = [(&mut self.caller, Resource::Links), (&mut self.server, Resource::Served)];
        for (end, resource) in ends {
            if let Some(end) = end {
                end.charges = vec![end.standing.usage.charge_own(resource, 1)?];
            }
        }
        Ok(())
    }

    /// The other end has reported it, too, or there is none here.
    pub(super) fn is_open_again(&mut self) {
        self.phase = Phase::Open;
        (self.open, self.opened) = (true, true);
    }

    pub(super) fn waits_for_its_other_end(&self) -> Option<Instant> {
        match self.phase {
            Phase::Reported(deadline) => Some(deadline),
            _ => None,
        }
    }

    /// Whether calls can go on, whatever its server has said.
    pub(super) fn goes_on(&self) -> bool {
        self.open || self.opened && self.caller.as_ref().is_some_and(|caller| !caller.over)
    }

    pub(super) fn is_being_made(&self) -> bool {
        matches!(self.phase, Phase::Offered(_) | Phase::Filling(_))
    }

    pub(super) fn caller_conn(&self) -> Option<Conn> {
        self.caller.as_ref().map(|end| end.conn)
    }

    pub(super) fn server_conn(&self) -> Option<Conn> {
        self.server.as_ref().map(|end| end.conn)
    }

    fn callers_account(&self) -> Option<&Account> {
        self.caller.as_ref().map(|end| end.standing.usage.account())
    }

    fn end_of(&self, role: Role) -> Option<&End> {
        match role {
            Role::Caller | Role::Redirected => self.caller.as_ref(),
            Role::Server => self.server.as_ref(),
        }
    }

    fn end_mut(&mut self, role: Role) -> Option<&mut End> {
        match role {
            Role::Caller | Role::Redirected => self.caller.as_mut(),
            Role::Server => self.server.as_mut(),
        }
    }

    fn roles_of(&self, conn: Conn) -> Vec<Role> {
        let is = |role: &Role| self.end_of(*role).is_some_and(|end| end.conn == conn);
        [Role::Caller, Role::Server].into_iter().filter(is).collect()
    }

    /// Whether the coordinator has made its memory.
    pub(super) fn has_memory(&self) -> bool {
        self.memory
    }

    /// As one that another coordinator has made.
    #[cfg(test)]
    pub(super) fn forget_memory(&mut self) {
        self.memory = false;
    }

    /// Who is at an end of it.
    pub(super) fn identity_of(&self, role: Role) -> Option<&Identity> {
        self.end_of(role).map(|end| &*end.standing.identity)
    }

    /// Its caller, while that holds the link.
    pub(super) fn held_by_caller(&self) -> Option<Conn> {
        self.caller.as_ref().filter(|caller| caller.holds).map(|caller| caller.conn)
    }

    /// Bytes of its memory that an end holds, as far as the coordinator has made it.
    pub(super) fn held_bytes(&self) -> u64 {
        let held = [&self.caller, &self.server].into_iter().flatten().any(|end| end.holds);
        if held && self.memory { 2 * self.geometry.outbox_bytes() as u64 } else { 0 }
    }

    /// The connections that are asked what was counted.
    pub(super) fn tellers(&self) -> impl Iterator<Item = Conn> {
        let sends_parcels = self.caller_conn().filter(|_| !self.grant.is_none());
        self.teller().into_iter().chain(sends_parcels)
    }

    /// The connection whose word on this link counts.
    pub(super) fn teller(&self) -> Option<Conn> {
        self.server_conn().or_else(|| self.caller_conn())
    }
}

fn link_phase(links: &BTreeMap<u64, Link>, number: u64) -> Option<&Phase> {
    links.get(&number).map(|link| &link.phase)
}
