//! What the audit log says of links.

use partywall_abi::control::Role;

use super::{End, State};
use crate::audit::Event;

impl State {
    pub(super) fn audit_introduced(&mut self, number: u64) {
        let link = &self.links[&number];
        let server = link.server.as_ref().map(|s| &*s.standing.identity);
        if let Some(caller) = &link.caller {
            let account = caller.standing.usage.account();
            let caller = (&*caller.standing.identity, account);
            let has = (link.security, link.grant);
            let to = (server, link.url.as_deref());
            let event = Event::introduced(number, &link.name, caller, to, has);
            self.audit(event);
        }
    }

    /// Descriptors may cross on a link that was open before.
    pub(in super::super) fn audit_granted(&mut self, number: u64) {
        let link = &self.links[&number];
        if let Some(caller) = link.caller.as_ref().filter(|_| !link.grant.is_none()) {
            let standing = &caller.standing;
            let caller = (&*standing.identity, standing.usage.account());
            let event = Event::granted(number, &link.name, caller, link.grant);
            self.audit(event);
        }
    }

    /// `by` is the end whose word it is, and whose account the line then is of; none for what the
    /// coordinator has found.
    pub(super) fn audit_blame(&mut self, number: u64, culprit: Role, by: Option<Role>, why: &str) {
        let link = &self.links[&number];
        let by = by.and_then(|role| link.end_of(role));
        if let Some(end) = link.end_of(culprit) {
            let account = |end: &End| end.standing.usage.account().clone();
            let (accused, said_by) = (account(end), by.map(account));
            let identity = &end.standing.identity;
            let event = Event::blamed(number, &link.name, identity, &accused, said_by, why);
            self.audit(event);
        }
    }
}
