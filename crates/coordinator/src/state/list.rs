//! The list of links, told in batches to whoever asks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, LinkRow, Message};

use super::{Conn, Effect, LISTINGS, Link, RESOURCE_EXHAUSTED, State};

/// How long a list waits for servers to say what they counted.
pub(super) const LIST_WAIT: Duration = Duration::from_millis(250);
/// Rows of one batch.
pub(super) const ROWS: usize = 64;

pub(super) struct Listing {
    pub(super) to: Conn,
    request: u32,
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
}

impl State {
    /// Whom rows of a list are due.
    pub fn lists_to(&self) -> impl Iterator<Item = Conn> {
        let telling = |l: &&Listing| matches!(l.stage, Stage::Telling(..));
        self.listings.iter().filter(telling).map(|l| l.to)
    }

    /// A connection has taken all that it was sent: the next rows of its list.
    pub fn room(&mut self, conn: Conn) {
        let telling = |l: &Listing| l.to == conn && matches!(l.stage, Stage::Telling(..));
        let Some(at) = self.listings.iter().position(telling) else { return };
        let Listing { request, stage: Stage::Telling(from, until), .. } = self.listings[at] else {
            return;
        };
        let mut links = self.links.range(from..until);
        for (link, l) in links.by_ref().take(ROWS) {
            let row = l.row(*link, self);
            self.effects.push(Effect::Send { to: conn, message: Message::Row { request, row } });
        }
        match links.next() {
            Some((&left, _)) => self.listings[at].stage = Stage::Telling(left, until),
            None => {
                self.listings.remove(at);
                self.send(conn, Message::Listed { request });
            }
        }
    }

    pub(super) fn list(&mut self, conn: Conn, request: u32, now: Instant) {
        if !self.is_operator(conn, request, "list links") {
            return;
        }
        if self.listings.iter().filter(|l| l.to == conn).count() >= LISTINGS {
            let text =
                format!("{LISTINGS} lists at once are the most that one process may ask for");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let tellers = self.connections.iter().filter(|(_, c)| !c.told.is_empty());
        let waiting: BTreeSet<Conn> = tellers.map(|(conn, _)| *conn).collect();
        let question = self.next_question;
        self.next_question = self.next_question.wrapping_add(1);
        for &to in &waiting {
            self.send(to, Message::Query { request: question });
        }
        let stage = Stage::Counting { question, waiting, deadline: now + LIST_WAIT };
        self.listings.push(Listing { to: conn, request, stage });
        self.finish_counting(None);
    }

    pub(super) fn finish_counting(&mut self, now: Option<Instant>) {
        let until = self.next_link;
        for listing in &mut self.listings {
            if let Stage::Counting { waiting, deadline, .. } = &listing.stage
                && (waiting.is_empty() || now.is_some_and(|now| now >= *deadline))
            {
                listing.stage = Stage::Telling(0, until);
            }
        }
    }

    /// Whether a domain has closed its gate.
    fn gate_closed(&self, conn: Conn) -> bool {
        self.connections.get(&conn).is_some_and(|c| c.gate_closed)
    }
}

impl Link {
    fn row(&self, link: u64, state: &State) -> LinkRow {
        let url = match &self.server {
            Some(_) => "",
            None => state.policy.url(&self.name).unwrap_or(""),
        };
        LinkRow {
            link,
            name: self.name.as_str().into(),
            caller: Identity::clone(&self.caller.1),
            server: self.server.as_ref().map(|s| Identity::clone(&s.1)),
            url: url.into(),
            isolation: self.isolation,
            gate: self.isolation.is_of_domains()
                && !self.server.as_ref().is_some_and(|s| state.gate_closed(s.0)),
            open: self.open,
            stats: self.stats,
        }
    }
}
