//! A link on its way: offered to its server, filled by its caller, open.

use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{Grant, Identity, LinkMessage, Role};
use partywall_abi::layout::Geometry;
use partywall_abi::name::MethodSet;
use partywall_abi::security::{Seal, Security, Sign};
use partywall_abi::version::Capabilities;

use super::{Conn, Effect, FILL_TIME, Link, Making, PERMISSION_DENIED, Phase, State, UNAVAILABLE};
use crate::quota::{Charge, Resource};

impl State {
    pub(super) fn offer(
        &mut self,
        conn: Conn,
        (server, registration): (Conn, u64),
        making: Making,
        methods: MethodSet,
        [caller_charge, server_charge]: [Charge; 2],
    ) {
        let usage = Arc::clone(&self.connections[&conn].standing.usage);
        let wide = usage.charge(Resource::Wide, 1).ok();
        let geometry = if wide.is_some() { Geometry::WIDE } else { Geometry::DEFAULT };
        let spoken = |conn: Conn| self.connections[&conn].spoken.capabilities;
        let capabilities = spoken(conn).common(spoken(server));
        let (name, deadline) = (making.question.name.clone(), making.deadline);
        let security = self.protected_between((conn, server), &name);
        let sealing = match security.seal {
            Seal::Off => None,
            _ => self.sealing((conn, server), &name, security.sign == Sign::Signed),
        };
        let token = (self.token)();
        let caller = self.end(conn, [caller_charge].into_iter().chain(wide).collect());
        let identity = Identity::clone(&caller.standing.identity);
        let link = Link {
            caller: Some(caller),
            server: Some(self.end(server, vec![server_charge])),
            geometry,
            capabilities,
            sealing,
            phase: Phase::Offered(making),
            place: Some(usage.account().clone()),
            pending: Some(usage.account().clone()),
            ..Link::new(name, token, security, methods)
        };
        let number = self.record(link);
        let promised = self.promises(number);
        self.links.get_mut(&number).expect("just recorded").promised = promised;
        self.deadlines.insert((deadline, number));
        self.connection(conn).opening += 1;
        let places = &mut self.connection(server).places;
        places.all.take(usage.account());
        places.pending.take(usage.account());
        let terms = self.links[&number].terms(number, identity);
        let message = LinkMessage::Offer { registration, terms }.into();
        self.effects.push(Effect::Offer { link: number, geometry, to: server, message });
    }

    /// An end has adopted its part.
    pub(in crate::state) fn adopted(
        &mut self,
        conn: Conn,
        (number, security): (u64, Security),
        now: Instant,
    ) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let (asked, by_server) = match &link.phase {
            Phase::Offered(_) => (link.server_conn(), true),
            Phase::Filling(_) => (link.caller_conn(), false),
            Phase::Open | Phase::Reported(_) | Phase::Over => return,
        };
        if asked != Some(conn) {
            return;
        }
        // It knows what this coordinator may not: that it shares an address space.
        link.security = link.security.min_per_field(security);
        if let Some(why) = self.is_too_weak(number) {
            return match by_server {
                true => self.next_instance(number, &why, now),
                false => self.fail(number, PERMISSION_DENIED, &why),
            };
        }
        let Some(link) = self.links.get_mut(&number) else { return };
        let security = link.security;
        match std::mem::replace(&mut link.phase, Phase::Over) {
            Phase::Offered(making) => {
                self.deadlines.remove(&(making.deadline, number));
                let deadline = now + FILL_TIME;
                let request = making.question.request;
                link.phase = Phase::Filling(Making { deadline, ..making });
                let to = link.caller_conn().expect("it is being made");
                let peer = &link.server.as_ref().expect("it is being made").standing.identity;
                let terms = link.terms(number, Identity::clone(peer));
                self.deadlines.insert((deadline, number));
                self.connection(conn).passed = None;
                let message = LinkMessage::Linked { request, terms }.into();
                self.effects.push(Effect::Link { link: number, to, message });
            }
            Phase::Filling(making) => {
                let to = link.server_conn().expect("it is being made");
                link.phase = Phase::Open;
                self.made(number, &making);
                self.not_pending(number);
                let message = LinkMessage::Open { link: number, security }.into();
                self.effects.push(Effect::Open { link: number, to, message });
                self.hungry.want(now);
            }
            other => link.phase = other,
        }
    }

    /// What the caller has filled is whole, and goes to the server now.
    pub fn introduced(&mut self, number: u64) {
        if let Some(link) = self.links.get_mut(&number) {
            (link.open, link.opened) = (true, true);
            self.grant(number);
            self.audit_introduced(number);
        }
    }

    /// Has descriptors cross on an open link, if they may.
    pub(in crate::state) fn grant(&mut self, number: u64) {
        let grant = self.may_cross(number);
        let link = self.links.get_mut(&number).expect("the caller has it");
        let (Some(caller), Some(server)) = (link.caller_conn(), link.server_conn()) else { return };
        if grant.is_none() {
            return;
        }
        link.grant = grant;
        let message = |role| LinkMessage::Granted { link: number, role, grant }.into();
        let ends = [(caller, Role::Caller), (server, Role::Server)];
        let to = ends.map(|(conn, role)| (conn, message(role)));
        self.effects.push(Effect::Grant { link: number, to });
    }

    /// What the policy lets cross on a link, as far as both ends know how. What a launcher's programs send
    /// would come in whichever of them has the thread.
    fn may_cross(&self, number: u64) -> Grant {
        let link = &self.links[&number];
        let (Some(caller), Some(server)) = (&link.caller, &link.server) else { return Grant::NONE };
        let is_domain = [caller, server].iter().any(|end| end.standing.facts.domain.is_some());
        // What lies in a parcel is not sealed.
        let is_sealed = link.security.seal != Seal::Off;
        if is_domain || is_sealed || !link.capabilities.contains(Capabilities::PARCELS) {
            return Grant::NONE;
        }
        let principals = self.principals_of(caller.conn, &caller.standing);
        let Grant { descriptors, leases } = self.policy.grant(&principals, &link.name);
        // An end that knows of no leases takes their bit for more descriptors.
        let leases = leases && link.capabilities.contains(Capabilities::ATTACHMENTS);
        Grant { descriptors, leases }
    }

    /// Whether the ends of a link that is being made are told that descriptors are going to be granted, so
    /// that they wait for that.
    pub(in crate::state) fn promises(&self, number: u64) -> bool {
        let attaches = self.links[&number].capabilities.contains(Capabilities::ATTACHMENTS);
        attaches && !self.may_cross(number).is_none()
    }

    /// The descriptor socket of a link could not be made. A link whose ends wait for it ends.
    pub fn not_granted(&mut self, number: u64, why: &std::io::Error) {
        tracing::warn!(link = number, %why, "a link without its descriptor socket");
        let Some(link) = self.links.get_mut(&number) else { return };
        link.grant = Grant::NONE;
        if link.promised {
            let text =
                format!("no descriptor socket for a link to `{}`: {why}; ask again", link.name);
            self.give_up(number, UNAVAILABLE, &text, None);
        }
    }

    /// A link is not being made any more.
    pub(super) fn made(&mut self, number: u64, making: &Making) {
        self.deadlines.remove(&(making.deadline, number));
        let caller = self.links[&number].caller_conn();
        if let Some(c) = caller.and_then(|caller| self.connections.get_mut(&caller)) {
            c.opening -= 1;
        }
    }

    /// Its server has adopted it, or holds nothing of it.
    pub(super) fn not_pending(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if let Some(account) = link.pending.take()
            && let Some(c) = link.server_conn().and_then(|s| self.connections.get_mut(&s))
        {
            c.places.pending.give_back(&account);
        }
    }
}
