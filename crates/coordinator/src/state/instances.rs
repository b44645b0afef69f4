//! The list of instances, told in batches to whoever asks.
//!
//! An instance is a name and a process that serves it. It is there while its server holds it: from
//! *registered* until *unregister*, or the end of that process's connection.
//!
//! References to it are links that their callers hold. No process counts them: the memory of a link is freed
//! from the count when the kernel says that its caller has no descriptor and no mapping of it any more
//! ([`crate::handout`]). Of a link that another coordinator has made, the caller's word counts.

use std::collections::{BTreeSet, HashMap};

use partywall_abi::control::{Identity, InstanceRow, ListMessage};
use partywall_abi::name::ServiceName;
use partywall_abi::version::Capabilities;

use super::list::{Listing, ROWS, Stage, without_origin};
use super::{Conn, Connection, Effect, LISTINGS, RESOURCE_EXHAUSTED, State};

/// Links that are looked at for one batch, but for those of its last process.
const LOOKED: usize = 4096;

/// What refers to an instance.
#[derive(Default)]
struct References {
    links: u32,
    callers: BTreeSet<Conn>,
    memory: u64,
}

impl State {
    pub(super) fn list_instances(&mut self, conn: Conn, request: u32) {
        if !self.is_operator(conn, request, "list instances") || self.has_lists(conn, request) {
            return;
        }
        let stage = Stage::Instances(0, 0);
        self.listings.push(Listing { to: conn, request, observes: None, stage });
        self.newly_due.push(conn);
    }

    /// Whether a connection has as many lists as it may have; it is refused then.
    pub(super) fn has_lists(&mut self, conn: Conn, request: u32) -> bool {
        let has = self.listings.iter().filter(|l| l.to == conn).count();
        if has >= LISTINGS {
            let text =
                format!("{LISTINGS} lists at once are the most that one process may ask for");
            self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        has >= LISTINGS
    }

    /// A batch of instances, from this registration of this connection on.
    pub(super) fn tell_instances(&mut self, at: usize, from: (Conn, u64)) {
        let Listing { to, request, .. } = self.listings[at];
        let (mut rows, mut looked, mut passed, mut left) = (Vec::new(), 0, 0, None);
        'batch: for (&conn, c) in self.connections.range(from.0..) {
            let first = if conn == from.0 { from.1 } else { 0 };
            let mut references = None;
            for (&registration, (name, _)) in c.registrations.range(first..) {
                let is_over = looked >= LOOKED && references.is_none() || passed >= LOOKED;
                if rows.len() == ROWS || is_over {
                    left = Some((conn, registration));
                    break 'batch;
                }
                // A process may serve a name twice.
                let instances = &self.names[name].registrations;
                let own = instances.iter().position(|r| r.conn == conn);
                passed += own.map_or(0, |before| before + 1);
                if own.is_some_and(|own| instances[own].id != registration) {
                    continue;
                }
                let references = references.get_or_insert_with(|| {
                    looked += c.links.len();
                    self.references(conn, c)
                });
                rows.push(self.instance_row(conn, name, references.get(name)));
            }
        }
        let origins = self.takes(to, Capabilities::ORIGINS);
        let memory = self.takes(to, Capabilities::MEMORY);
        for mut row in rows {
            if !memory {
                row.parcel_bytes = 0;
            }
            if !origins {
                without_origin(&mut row.server);
            }
            let message = ListMessage::Instance { request, row: row.into() }.into();
            self.effects.push(Effect::Send { to, message });
        }
        match left {
            Some((conn, registration)) => {
                self.listings[at].stage = Stage::Instances(conn, registration);
            }
            None => {
                self.listings.remove(at);
                self.send(to, ListMessage::Listed { request });
            }
        }
    }

    fn instance_row(
        &self,
        conn: Conn,
        name: &ServiceName,
        references: Option<&References>,
    ) -> InstanceRow {
        let identity = Identity::clone(&self.connections[&conn].standing.identity);
        let mut row = InstanceRow::new(name.as_str(), identity, self.security_of(conn));
        row.parcel_bytes = self.parcel_bytes(conn);
        if let Some(references) = references {
            row.links = references.links;
            row.callers = references.callers.len() as u32;
            row.memory = references.memory;
        }
        row
    }

    /// What refers to the names that a process serves.
    fn references(&self, conn: Conn, c: &Connection) -> HashMap<&ServiceName, References> {
        let mut all: HashMap<&ServiceName, References> = HashMap::new();
        let links = c.links.iter().filter_map(|number| self.links.get(number));
        for link in links.filter(|l| l.opened && l.server_conn() == Some(conn)) {
            let of_name = all.entry(&link.name).or_default();
            of_name.memory += link.held_bytes();
            if let Some(caller) = link.held_by_caller() {
                of_name.links += 1;
                of_name.callers.insert(caller);
            }
        }
        all
    }
}
