//! Another policy comes into force.
//!
//! Each connection is looked at anew: which principals it is, which names it may go on serving.
//! Each link is: a link that the policy does not allow any more ends at both ends, used or not; one
//! whose methods have changed, or whose end is known by other principals, is told so at both
//! ends. A link that is being made and would be another one now is refused, and so is one to an
//! address that has changed ended: its caller asks again. A link on which fewer descriptors may cross, or
//! leases no more, ends, and one on which some may now gets its socket for them.

use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{PolicyMessage, RegistryMessage};
use partywall_abi::name::ServiceName;

use super::{Conn, Effect, PERMISSION_DENIED, Standing, State, UNAVAILABLE};
use crate::audit::Event;
use crate::policy::Policy;

/// What a reload has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Links that were ended.
    pub ended: u32,
    /// Links whose methods or principals are others now.
    pub changed: u32,
}

impl State {
    pub(super) fn policy_message(&mut self, conn: Conn, message: &PolicyMessage) {
        match *message {
            PolicyMessage::Reload { request } => {
                if self.is_operator(conn, request, "reload the policy") {
                    self.effects.push(Effect::Reload { conn, request });
                }
            }
            _ => self.breaks_rule(conn),
        }
    }

    /// Puts a policy into force; `asked` is who wants to be told.
    pub fn reload(
        &mut self,
        mut policy: Policy,
        asked: Option<(Conn, u32)>,
        now: Instant,
    ) -> Changed {
        policy.again_at(self.time());
        self.quotas.limit(policy.limits().clone());
        self.policy = policy;
        self.policies += 1;
        let all: Vec<Conn> = self.connections.keys().copied().collect();
        for conn in all {
            self.look_again(conn);
        }
        let mut changed = Changed::default();
        let links: Vec<u64> = self.links.keys().copied().collect();
        for link in links {
            self.look_again_at(link, &mut changed);
        }
        let Changed { ended, changed: others } = changed;
        self.audit(Event::reloaded(ended, others));
        if let Some((to, request)) = asked {
            self.send(to, PolicyMessage::Reloaded { request, ended, changed: others });
        }
        self.hungry.want(now);
        changed
    }

    /// The policy could not be read again; the old one stays in force.
    pub fn reload_failed(&mut self, why: &str, asked: Option<(Conn, u32)>) {
        self.audit(Event::not_reloaded(why));
        if let Some((to, request)) = asked {
            self.refuse(to, request, super::FAILED_PRECONDITION, why.to_string());
        }
    }

    fn look_again(&mut self, conn: Conn) {
        let standing = Arc::clone(&self.connections[&conn].standing);
        let principals = self.policy.principals(&standing.facts);
        let usage = self.usage(&standing.facts, &principals);
        let listed = self.policy.listed(&standing.facts, &principals);
        if principals != standing.identity.principals
            || !Arc::ptr_eq(&usage, &standing.usage)
            || listed != standing.listed
        {
            let facts = standing.facts.clone();
            let identity = Arc::new(facts.identity(principals));
            self.connection(conn).standing = Arc::new(Standing { facts, identity, usage, listed });
        }
        self.harden(conn);
        self.renew(conn);
        let c = &self.connections[&conn];
        let principals = &c.standing.identity.principals;
        let serves = c.registrations.iter().map(|(id, (name, _))| (*id, name.clone()));
        let listed = &c.standing.listed;
        let over: Vec<_> =
            serves.filter(|(_, name)| !self.policy.may_serve(principals, listed, name)).collect();
        let watches = c.watches.iter().map(|(request, w)| (*request, w.name.clone()));
        let blind: Vec<_> = watches.filter(|(_, name)| !self.may_watch(principals, name)).collect();
        for (registration, name) in over {
            let text = format!("the policy does not let this process serve `{name}` any more");
            self.unregister(conn, registration);
            self.audit_revoked(conn, &text);
            self.send(conn, RegistryMessage::Unregistered { registration, text });
        }
        for (request, name) in blind {
            let text = format!("the policy lets this process call nothing at `{name}` any more");
            self.unwatch(conn, request);
            self.refuse(conn, request, PERMISSION_DENIED, text);
        }
    }

    fn look_again_at(&mut self, number: u64, changed: &mut Changed) {
        // One that was ended just before may have been the last of those that are remembered.
        let Some(link) = self.links.get(&number) else { return };
        if !link.goes_on() {
            if link.is_being_made() && !self.is_as_asked(number) {
                self.fail(number, UNAVAILABLE, "the policy has changed; ask again");
            }
            return;
        }
        if link.server.is_none() && self.policy.url(&link.name) != link.url.as_deref() {
            let text = format!("the policy has another address for `{}`, or none", link.name);
            link.caller_conn().into_iter().for_each(|caller| self.audit_revoked(caller, &text));
            self.give_up(number, UNAVAILABLE, &text, None);
            changed.ended += 1;
            return;
        }
        if !self.look_at_grant(number) {
            changed.ended += 1;
            return;
        }
        let link = &self.links[&number];
        let methods = link.methods.clone();
        let mut others = false;
        for conn in [link.caller_conn(), link.server_conn()].into_iter().flatten() {
            others |= self.standing_changed(number, conn);
        }
        let caller = &self.links[&number].caller;
        let now = caller.as_ref().map(|c| {
            self.policy.methods(&self.principals_of(c.conn, &c.standing), &self.links[&number].name)
        });
        let weak = self.is_too_weak(number).is_some();
        if !others && !weak && now.as_ref() == Some(&methods) && self.server_may(number) {
            return;
        }
        let conns = [self.links[&number].caller_conn(), self.links[&number].server_conn()];
        match self.tell_terms(number) {
            Ok(()) => changed.changed += 1,
            Err(text) => {
                changed.ended += 1;
                conns.into_iter().flatten().take(1).for_each(|c| self.audit_revoked(c, &text));
            }
        }
    }

    /// Ends a link on which more may cross than the policy has now, and has descriptors cross where none
    /// could; whether it goes on.
    pub(super) fn look_at_grant(&mut self, number: u64) -> bool {
        let link = &self.links[&number];
        let Some(caller) = &link.caller else { return true };
        let principals = self.principals_of(caller.conn, &caller.standing);
        let (granted, now) = (link.grant, self.policy.grant(&principals, &link.name));
        if !now.covers(granted) {
            let text = format!(
                "descriptors beside a message: {now} by the policy, {granted} on this link; ask again"
            );
            let conn = caller.conn;
            self.audit_revoked(conn, &text);
            self.give_up(number, UNAVAILABLE, &text, None);
            return false;
        }
        if granted.is_none() {
            self.grant(number);
            self.audit_granted(number);
        }
        true
    }

    /// Why the policy does not allow a link that is there, if it requires more security of it.
    pub(super) fn is_too_weak(&self, number: u64) -> Option<String> {
        let link = &self.links[&number];
        let caller = link.caller.as_ref()?;
        let principals = self.principals_of(caller.conn, &caller.standing);
        self.too_weak(&principals, &link.name, link.security)
    }

    /// Whether a link that is being made would be the same now.
    fn is_as_asked(&self, number: u64) -> bool {
        let link = &self.links[&number];
        let same = |end: &super::links::End| {
            let now = self.connections.get(&end.conn).map(|c| &c.standing);
            now.is_some_and(|now| Arc::ptr_eq(now, &end.standing))
        };
        let methods = link
            .caller
            .as_ref()
            .map(|c| self.policy.methods(&self.principals_of(c.conn, &c.standing), &link.name));
        [&link.caller, &link.server].into_iter().flatten().all(same)
            && methods.as_ref() == Some(&link.methods)
            && self.is_too_weak(number).is_none()
            && self.promises(number) == link.promised
            && self.server_may(number)
    }

    fn server_may(&self, number: u64) -> bool {
        let link = &self.links[&number];
        link.server.as_ref().is_none_or(|s| self.may_serve(s, &link.name))
    }

    /// Whether an end, gone or not, may serve the name.
    pub(super) fn may_serve(&self, end: &super::links::End, name: &ServiceName) -> bool {
        let now = self.connections.get(&end.conn).map_or(&end.standing, |c| &c.standing);
        let principals = self.principals_of(end.conn, &end.standing);
        self.policy.may_serve(&principals, &now.listed, name)
    }

    /// Takes over who an end is now; whether that has changed.
    fn standing_changed(&mut self, number: u64, conn: Conn) -> bool {
        let Some(now) = self.connections.get(&conn).map(|c| Arc::clone(&c.standing)) else {
            return false;
        };
        let link = self.links.get_mut(&number).expect("the caller has it");
        let mut changed = false;
        for end in [&mut link.caller, &mut link.server].into_iter().flatten() {
            if end.conn == conn && !Arc::ptr_eq(&end.standing, &now) {
                end.standing = Arc::clone(&now);
                changed = true;
            }
        }
        changed
    }

    /// Which principals an end is now, gone or not.
    pub(super) fn principals_of(&self, conn: Conn, standing: &Standing) -> Vec<String> {
        match self.connections.get(&conn) {
            Some(c) => c.standing.identity.principals.clone(),
            None => self.policy.principals(&standing.facts),
        }
    }

    fn audit_revoked(&mut self, conn: Conn, text: &str) {
        if let Some(c) = self.connections.get(&conn) {
            let event = Event::revoked(&c.standing.identity, c.standing.usage.account(), text);
            self.audit(event);
        }
    }
}
