//! Names: who serves them, and who wants to know how many do.

use std::collections::BTreeSet;
use std::time::Instant;

use partywall_abi::control::RegistryMessage;
use partywall_abi::name::ServiceName;

use super::{ALREADY_EXISTS, Conn, RESOURCE_EXHAUSTED, State, who};
use crate::audit::Event;
use crate::quota::{Charge, Resource};

/// One that serves a name.
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) conn: Conn,
}

/// What is known of a name. It is there while somebody serves or watches it.
#[derive(Default)]
pub(super) struct Name {
    pub(super) registrations: Vec<Registration>,
    /// Whose turn it is.
    pub(super) next: usize,
    watchers: BTreeSet<(Conn, u32)>,
}

/// One watch; a connection has one for each name.
pub(super) struct Watch {
    pub(super) name: ServiceName,
    _charge: Charge,
}

impl State {
    pub(super) fn registry_message(&mut self, conn: Conn, message: RegistryMessage, now: Instant) {
        match message {
            RegistryMessage::Register { request, name, places } => {
                self.register(conn, request, name, places);
                self.hungry.want(now);
            }
            RegistryMessage::Unregister { registration } => self.unregister(conn, registration),
            RegistryMessage::Watch { request, name } => self.watch(conn, request, name),
            RegistryMessage::Unwatch { request } => self.unwatch(conn, request),
            _ => self.breaks_rule(conn),
        }
    }

    fn register(&mut self, conn: Conn, request: u32, name: ServiceName, places: u32) {
        let c = &self.connections[&conn];
        let principals = &c.standing.identity.principals;
        if !self.policy.may_serve(principals, &c.standing.listed, &name) {
            let text = match self.policy.may_register(principals, &name) {
                true => self.policy.unlisted(&c.standing.facts, &c.standing.listed, &name),
                false => format!(
                    "the policy does not let {} serve `{name}`; remedy: {}{}",
                    who(c),
                    self.policy.remedy_to_serve(principals, &name),
                    self.unknown_hint(c)
                ),
            };
            return self.deny(conn, request, "register", text);
        }
        let charge = match c.charge(Resource::Registrations) {
            Ok(charge) => charge,
            Err(text) => return self.refuse(conn, request, RESOURCE_EXHAUSTED, text),
        };
        let event = Event::registered(&c.standing.identity, c.standing.usage.account(), &name);
        self.audit(event);
        let id = self.next_registration;
        self.next_registration += 1;
        let c = self.connection(conn);
        c.places.set_capacity(places as usize);
        c.registrations.insert(id, (name.clone(), charge));
        self.send(conn, RegistryMessage::Registered { request, registration: id });
        let entry = self.names.entry(name.clone()).or_default();
        entry.registrations.push(Registration { id, conn });
        self.count_changed(&name);
    }

    pub(super) fn unregister(&mut self, conn: Conn, registration: u64) {
        if let Some((name, _)) = self.connection(conn).registrations.remove(&registration) {
            self.forget_registration(&name, registration);
        }
    }

    /// A registration is gone from its connection.
    pub(super) fn forget_registration(&mut self, name: &ServiceName, registration: u64) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.registrations.retain(|r| r.id != registration);
        }
        self.count_changed(name);
    }

    /// Who calls something at a name wants to know whether somebody serves it; who serves it, whether it is
    /// alone.
    pub(super) fn may_watch(&self, principals: &[String], name: &ServiceName) -> bool {
        self.policy.may_register(principals, name)
            || !self.policy.methods(principals, name).is_empty()
    }

    fn watch(&mut self, conn: Conn, request: u32, name: ServiceName) {
        let c = &self.connections[&conn];
        if !self.may_watch(&c.standing.identity.principals, &name) {
            let text = format!(
                "the policy lets {} call nothing at `{name}`; remedy: {}",
                who(c),
                self.policy.remedy_to_call(&c.standing.identity.principals, &name)
            );
            return self.deny(conn, request, "watch", text);
        }
        if c.watches.contains_key(&request) || c.watches.values().any(|w| w.name == name) {
            let text = format!("this process watches `{name}` already");
            return self.refuse(conn, request, ALREADY_EXISTS, text);
        }
        let charge = match c.charge(Resource::Watches) {
            Ok(charge) => charge,
            Err(text) => return self.refuse(conn, request, RESOURCE_EXHAUSTED, text),
        };
        self.names.entry(name.clone()).or_default().watchers.insert((conn, request));
        self.connection(conn).watches.insert(request, Watch { name, _charge: charge });
        self.count_is_due(conn, request);
    }

    pub(super) fn unwatch(&mut self, conn: Conn, request: u32) {
        let c = self.connection(conn);
        c.due.remove(&request);
        if let Some(watch) = c.watches.remove(&request) {
            self.forget_watch(conn, request, &watch.name);
        }
    }

    /// A watch is gone from its connection.
    pub(super) fn forget_watch(&mut self, conn: Conn, request: u32, name: &ServiceName) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.watchers.remove(&(conn, request));
        }
        self.forget_name(name);
    }

    fn forget_name(&mut self, name: &ServiceName) {
        let unused = |n: &Name| n.registrations.is_empty() && n.watchers.is_empty();
        if self.names.get(name).is_some_and(unused) {
            self.names.remove(name);
        }
    }

    /// How many serve the name.
    pub fn instances(&self, name: &ServiceName) -> u32 {
        self.names.get(name).map_or(0, |n| n.registrations.len() as u32)
    }

    fn count_changed(&mut self, name: &ServiceName) {
        let watchers = self
            .names
            .get(name)
            .map_or_else(Vec::new, |n| n.watchers.iter().copied().collect::<Vec<_>>());
        for (conn, request) in watchers {
            self.count_is_due(conn, request);
        }
        self.forget_name(name);
    }

    fn count_is_due(&mut self, conn: Conn, request: u32) {
        if let Some(c) = self.connections.get_mut(&conn) {
            c.due.insert(request);
            self.something_is_due(conn);
        }
    }

    /// Tells a connection the counts that have changed since it was told.
    pub(super) fn tell_counts(&mut self, conn: Conn) {
        let c = self.connection(conn);
        let due = std::mem::take(&mut c.due);
        let names: Vec<_> =
            due.into_iter().filter_map(|r| Some((r, c.watches.get(&r)?.name.clone()))).collect();
        for (request, name) in names {
            let instances = self.instances(&name);
            self.send(conn, RegistryMessage::Watched { request, instances });
        }
    }
}
