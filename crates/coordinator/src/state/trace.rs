//! Operators who look into links.
//!
//! ```text
//! operator   Trace ->  may it? --> audit: traced --> <- Traced, with both outboxes for reading
//!            ...       the link is over          --> <- Over
//!            Untrace, or the end of its connection: forgotten
//! ```
//!
//! A link's memory is what the coordinator has made, and of which it keeps a descriptor for reading to see
//! who holds it: the operator gets others like that, and the ends have no part in it. What an operator holds
//! is charged to the ends of the link like what they hold themselves, so it lets go when the link is over.
//!
//! Nobody is shown what it could not read otherwise. Root reads all memory of this host. The coordinator's
//! user reads that of its own processes alone, and not of those that are closed to it: so it may look into
//! links between two of its own processes, where at least one of them is open to it.

use partywall_abi::control::{Role, TraceMessage};
use partywall_abi::security::Confidentiality;

use super::{Conn, Effect, FAILED_PRECONDITION, LISTINGS, NOT_FOUND, RESOURCE_EXHAUSTED, State};
use crate::audit::Event;

const WHAT: &str = "look into links";

/// An operator who looks into a link.
pub(super) struct Tracing {
    to: Conn,
    request: u32,
    link: u64,
}

impl State {
    pub(super) fn trace_message(&mut self, conn: Conn, message: TraceMessage) {
        match message {
            TraceMessage::Trace { request, link } => self.trace(conn, request, link),
            TraceMessage::Untrace { request } => {
                self.tracings.retain(|t| (t.to, t.request) != (conn, request));
            }
            _ => self.breaks_rule(conn),
        }
    }

    fn trace(&mut self, conn: Conn, request: u32, number: u64) {
        if !self.is_operator(conn, request, WHAT) {
            return;
        }
        if self.tracings.iter().filter(|t| t.to == conn).count() >= LISTINGS {
            let text = format!("{LISTINGS} links at once are the most that one process may trace");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let Some(link) = self.links.get(&number).filter(|link| link.open) else {
            let text = format!("there is no open link {number}; remedy: see `partywall links`");
            return self.refuse(conn, request, NOT_FOUND, text);
        };
        if let Some(url) = &link.url {
            let text = format!("link {number} leads to {url}, and has no memory on this host");
            return self.refuse(conn, request, FAILED_PRECONDITION, text);
        }
        if !link.has_memory() {
            let text = format!(
                "another coordinator, before this one, has made link {number}, and this one has no part in its \
                 memory; remedy: have its caller connect again"
            );
            return self.refuse(conn, request, FAILED_PRECONDITION, text);
        }
        if let Some(why) = self.is_closed_to(conn, number) {
            return self.deny(conn, request, WHAT, why);
        }
        let link = &self.links[&number];
        let (geometry, security) = (link.geometry, link.security);
        let standing = &self.connections[&conn].standing;
        let by = (&*standing.identity, standing.usage.account());
        let ends = [Role::Caller, Role::Server].map(|role| link.identity_of(role));
        let event = Event::traced(by, (number, &link.name), ends, security);
        self.audit(event);
        self.tracings.push(Tracing { to: conn, request, link: number });
        let message = TraceMessage::Traced { request, geometry, security }.into();
        self.effects.push(Effect::Trace { link: number, to: (conn, request), message });
    }

    /// Why an operator who is not root is not shown what crosses a link.
    fn is_closed_to(&self, conn: Conn, number: u64) -> Option<String> {
        let uid = self.connections[&conn].standing.facts.uid;
        let link = &self.links[&number];
        let ends = [Role::Caller, Role::Server].map(|role| link.identity_of(role).map(|i| i.uid));
        let is_own = ends.iter().all(|end| *end == Some(uid));
        if uid == 0 || is_own && link.security.confidentiality < Confidentiality::Host {
            return None;
        }
        let why = match is_own {
            false => format!("an end of it is not a process of user {uid}"),
            true => {
                "both of its ends are closed to other processes of their user (`harden`)".into()
            }
        };
        Some(format!("only root may {WHAT} like link {number}: {why}; remedy: do it as root"))
    }

    /// The memory of a link could not be handed to who looks into it.
    pub fn not_traced(&mut self, (conn, request): (Conn, u32), why: &str) {
        self.tracings.retain(|t| (t.to, t.request) != (conn, request));
        self.refuse(conn, request, super::UNAVAILABLE, why.to_owned());
    }

    /// A link is not open any more.
    pub(super) fn trace_is_over(&mut self, number: u64) {
        let over: Vec<_> = self.tracings.extract_if(.., |t| t.link == number).collect();
        for Tracing { to, request, .. } in over {
            self.send(to, TraceMessage::Over { request });
        }
    }

    /// A connection is gone.
    pub(super) fn trace_lost(&mut self, conn: Conn) {
        self.tracings.retain(|t| t.to != conn);
    }
}
