//! The list of links, or of those to one name with what their ends measure, told in batches to whoever
//! asks; see [`super::instances`] for that of instances.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use partywall_abi::control::{Grant, Identity, LinkRow, ListMessage, Role};
use partywall_abi::name::ServiceName;
use partywall_abi::security::Seal;
use partywall_abi::version::Capabilities;

use super::links::{End, Link};
use super::{Conn, Effect, State};

/// How long a list waits for servers to say what they counted.
pub(super) const LIST_WAIT: Duration = Duration::from_millis(250);
/// Rows of one batch.
pub(super) const ROWS: usize = 64;
/// Links that are looked at for one batch.
const LOOKED: usize = 4096;

pub(super) struct Listing {
    pub(super) to: Conn,
    pub(super) request: u32,
    /// Links to this name alone, with what their ends measure.
    pub(super) observes: Option<ServiceName>,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    Counting {
        question: u32,
        waiting: BTreeSet<Conn>,
        deadline: Instant,
    },
    /// The links from the first number to before the second are left.
    Telling(u64, u64),
    /// The instances from this registration of this connection on are left.
    Instances(Conn, u64),
}

impl Listing {
    /// Whether rows are due to its asker.
    pub(super) fn is_telling(&self) -> bool {
        !matches!(self.stage, Stage::Counting { .. })
    }
}

impl State {
    pub(super) fn list_message(&mut self, conn: Conn, message: ListMessage, now: Instant) {
        match message {
            ListMessage::List { request } => self.list(conn, request, None, now),
            ListMessage::Observe { request, name } => self.list(conn, request, Some(name), now),
            ListMessage::Measured { link, role, pace, .. } => {
                self.measured((conn, role), link, pace);
            }
            ListMessage::Instances { request } => self.list_instances(conn, request),
            ListMessage::Counted { link, stats, methods, .. } => {
                self.count(conn, link, stats, methods);
            }
            ListMessage::Sent { link, role, parcels, .. } => self.sent((conn, role), link, parcels),
            ListMessage::CountedAll { request } => self.counted_all(conn, request),
            _ => self.breaks_rule(conn),
        }
    }

    /// A connection has taken all that it was sent: the next rows of its list.
    pub(super) fn tell_rows(&mut self, conn: Conn) {
        let telling = |l: &Listing| l.to == conn && l.is_telling();
        let Some(at) = self.listings.iter().position(telling) else { return };
        let request = self.listings[at].request;
        let (from, until) = match self.listings[at].stage {
            Stage::Telling(from, until) => (from, until),
            Stage::Instances(conn, registration) => {
                return self.tell_instances(at, (conn, registration));
            }
            Stage::Counting { .. } => return,
        };
        let takes = |what| self.takes(conn, what);
        let (ways, containers) = (takes(Capabilities::WAYS), takes(Capabilities::CONTAINERS));
        let (parcels, origins) = (takes(Capabilities::PARCELS), takes(Capabilities::ORIGINS));
        let leases = takes(Capabilities::ATTACHMENTS);
        let seals = takes(Capabilities::SEAL);
        let observes = self.listings[at].observes.clone();
        let is_told = |l: &Link| l.opened && observes.as_ref().is_none_or(|name| *name == l.name);
        let (mut told, mut left) = (0, None);
        for (looked, (link, l)) in self.links.range(from..until).enumerate() {
            if told == ROWS || looked == LOOKED {
                left = Some(*link);
                break;
            }
            let Some(mut row) = l.row(*link, self).filter(|_| is_told(l)) else { continue };
            told += 1;
            if ways {
                row.methods = l.counted.methods().clone();
            }
            if !parcels {
                row.grant = Grant::NONE;
            }
            row.grant.leases &= leases;
            let ends = std::iter::once(&mut row.caller).chain(&mut row.server);
            for end in ends {
                if !containers {
                    end.container.clear();
                }
                if !origins {
                    without_origin(end);
                }
            }
            let message = ListMessage::Row { request, row: row.into() }.into();
            self.effects.push(Effect::Send { to: conn, message });
            let unable = if seals { self.unable(l) } else { Vec::new() };
            for role in unable {
                let message = ListMessage::Unable { request, link: *link, role }.into();
                self.effects.push(Effect::Send { to: conn, message });
            }
            if observes.is_some() {
                let ([caller, server], link) = (l.pace, *link);
                let message = ListMessage::Pace { request, link, caller, server }.into();
                self.effects.push(Effect::Send { to: conn, message });
            }
        }
        match left {
            Some(left) => self.listings[at].stage = Stage::Telling(left, until),
            None => {
                self.listings.remove(at);
                self.send(conn, ListMessage::Listed { request });
            }
        }
    }

    /// The ends of an open link that keep it from being sealed, as far as they are connected.
    fn unable(&self, link: &Link) -> Vec<Role> {
        let ends = [(Role::Caller, link.caller_conn()), (Role::Server, link.server_conn())];
        let is_plain = link.open && link.security.seal == Seal::Off;
        let cannot = |conn: Conn| {
            let there = self.connections.get(&conn);
            there.is_some_and(|c| !c.spoken.capabilities.contains(Capabilities::SEAL))
        };
        let of_a_ring = ends.into_iter().filter(|_| is_plain && link.server.is_some());
        of_a_ring.filter_map(|(role, conn)| cannot(conn?).then_some(role)).collect()
    }

    fn list(&mut self, conn: Conn, request: u32, observes: Option<ServiceName>, now: Instant) {
        if !self.is_operator(conn, request, "list links") || self.has_lists(conn, request) {
            return;
        }
        let is_asked = |l: &&Link| l.open && observes.as_ref().is_none_or(|name| *name == l.name);
        let open = self.links.values().filter(is_asked);
        let known = |conn: &Conn| self.connections.contains_key(conn);
        let both = observes.is_some();
        let ends = |l: &Link| {
            let other = l.caller_conn().filter(|_| both);
            l.tellers().chain(other).collect::<Vec<_>>()
        };
        let waiting: BTreeSet<Conn> = open.flat_map(ends).filter(known).collect();
        let question = self.next_question;
        self.next_question = self.next_question.wrapping_add(1);
        for &to in &waiting {
            let measures = self.connections[&to].spoken.capabilities.contains(Capabilities::PACE);
            let message = match observes.clone().filter(|_| measures) {
                Some(name) => ListMessage::Measure { request: question, name },
                None => ListMessage::Query { request: question },
            };
            self.send(to, message);
        }
        let stage = Stage::Counting { question, waiting, deadline: now + LIST_WAIT };
        self.listings.push(Listing { to: conn, request, observes, stage });
        self.finish_counting(None);
    }

    fn counted_all(&mut self, conn: Conn, request: u32) {
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

    pub(super) fn finish_counting(&mut self, now: Option<Instant>) {
        let until = self.next_link;
        for listing in &mut self.listings {
            if let Stage::Counting { waiting, deadline, .. } = &listing.stage
                && (waiting.is_empty() || now.is_some_and(|now| now >= *deadline))
            {
                listing.stage = Stage::Telling(0, until);
                self.newly_due.push(listing.to);
            }
        }
    }

    /// What whoever is told of processes takes.
    pub(super) fn takes(&self, conn: Conn, what: Capabilities) -> bool {
        self.connections.get(&conn).is_some_and(|c| c.spoken.capabilities.contains(what))
    }

    /// Whether a domain has closed its gate.
    fn gate_closed(&self, conn: Conn) -> bool {
        self.connections.get(&conn).is_some_and(|c| c.gate_closed)
    }
}

/// Leaves out what an older process does not take.
pub(super) fn without_origin(end: &mut Identity) {
    end.image.clear();
    end.compose.clear();
}

impl Link {
    fn row(&self, link: u64, state: &State) -> Option<LinkRow> {
        let identity = |end: &End| Identity::clone(&end.standing.identity);
        let (caller, server) = (self.caller.as_ref()?, self.server.as_ref());
        let mut row =
            LinkRow::new(link, self.name.as_str(), identity(caller), server.map(identity));
        row.url = self.url.clone().unwrap_or_default();
        row.security = self.security;
        row.gate = server.is_some_and(|server| {
            caller.standing.facts.shares_launcher(&server.standing.facts)
                && !state.gate_closed(server.conn)
        });
        row.open = self.open;
        row.stats = self.stats;
        row.grant = self.grant;
        [row.caller_parcels, row.stats.parcels] = self.sent;
        Some(row)
    }
}
