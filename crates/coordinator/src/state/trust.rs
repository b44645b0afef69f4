//! Certificates of processes, and which links are sealed.
//!
//! A link is sealed where the policy says so ([`crate::policy::Wish`]) and both ends can. The coordinator
//! tells both what their handshake has to agree on ([`Sealing`]), and has no part in it: it knows the
//! certificates, and no key.
//!
//! A workload ([`Way::Workload`]) is certified as a principal or not at all, and is told (`Renew`) when it is
//! another one by a new policy, or none any more.

use std::time::SystemTime;

use partywall_abi::control::{Sealing, TrustMessage};
use partywall_abi::name::ServiceName;
use partywall_abi::security::Seal;
use partywall_abi::version::Capabilities;
use partywall_trust::Id;

use super::{Conn, FAILED_PRECONDITION, State, Way};
use crate::policy::Wish;
use crate::trust::{Name, Trust};

impl State {
    /// From here on this authority certifies, and who was certified by another one is told.
    pub fn trust(&mut self, trust: Trust) {
        self.trust = Some(trust);
        let certified = self.connections.iter_mut().filter(|(_, c)| c.certified);
        let told: Vec<Conn> = certified
            .map(|(conn, c)| {
                c.certified = false;
                *conn
            })
            .collect();
        told.into_iter().for_each(|conn| self.send(conn, TrustMessage::Renew));
    }

    /// The time by which certificates and signatures are over.
    pub(crate) fn time(&self) -> SystemTime {
        self.trust.as_ref().map_or_else(|| self.policy.clock().time(), Trust::time)
    }

    pub(super) fn trust_message(&mut self, conn: Conn, message: TrustMessage) {
        match message {
            TrustMessage::Certify { request, key, proof } => {
                self.certify(conn, request, &key, &proof);
            }
            TrustMessage::MayCall { request, name, id } => {
                self.may_call(conn, request, &name, &id);
            }
            _ => self.breaks_rule(conn),
        }
    }

    /// What somebody may call at a name, by what a certificate of this trust domain says: its service is a
    /// principal. Of another domain, or no service, it is one of `anyone`.
    fn may_call(&mut self, conn: Conn, request: u32, name: &ServiceName, id: &str) {
        let principals = &self.connections[&conn].standing.identity.principals;
        if !self.policy.may_register(principals, name) {
            let text = format!("only who may serve `{name}` may ask who may call there");
            return self.deny(conn, request, "ask who may call", text);
        }
        let own = self.trust.as_ref().map(Trust::domain);
        let id: Option<Id> = id.parse().ok();
        let id = id.filter(|id| Some(&id.domain()) == own);
        let service = id.as_ref().and_then(Id::service);
        let known = service.filter(|service| self.policy.has_principal(service));
        let principals: Vec<String> = known.map(String::from).into_iter().collect();
        let methods = self.policy.methods(&principals, name);
        self.send(conn, TrustMessage::Allowed { request, methods });
    }

    fn certify(&mut self, conn: Conn, request: u32, key: &[u8], proof: &[u8]) {
        if self.connections[&conn].way == Way::Workload {
            self.connection(conn).named = self.workload(conn);
            if self.principal(conn).is_none() {
                let text = "this process is no principal of the policy, and has no SPIFFE ID here; remedy: \
                            add [principal.NAME] with what is true of it";
                return self.deny(conn, request, "ask for an X.509-SVID", text.into());
            }
        }
        let certified = match (&self.trust, self.name_of(conn)) {
            (Some(trust), Some(name)) => trust.certify(request, &name, key, proof),
            _ => Err("this coordinator has no authority".into()),
        };
        match certified {
            Ok(message) => {
                self.connection(conn).certified = true;
                self.send(conn, message);
            }
            Err(text) => self.refuse(conn, request, FAILED_PRECONDITION, text),
        }
    }

    /// Who a connection's process is to others, if keys are certified here.
    fn name_of(&self, conn: Conn) -> Option<Name> {
        let standing = &self.connections[&conn].standing;
        let serves = self.policy.names_served_by(&standing.identity.principals, &standing.listed);
        let (trust, uid) = (self.trust.as_ref()?, standing.identity.uid);
        Some(trust.name(self.principal(conn), uid, serves))
    }

    /// The principal as which a connection's process is certified.
    fn principal(&self, conn: Conn) -> Option<&str> {
        let standing = &self.connections[&conn].standing;
        let principals = &standing.identity.principals;
        let started = standing.facts.started_as.as_ref();
        let started = started.filter(|name| principals.contains(name)).map(String::as_str);
        started.or_else(|| self.policy.certified_as(principals))
    }

    /// Who a workload is to others: nobody, unless it is a principal.
    fn workload(&self, conn: Conn) -> Option<Name> {
        self.principal(conn).and_then(|_| self.name_of(conn))
    }

    /// Tells a workload that is somebody else by the policy that is in force now.
    pub(super) fn renew(&mut self, conn: Conn) {
        let c = &self.connections[&conn];
        if c.way == Way::Workload && c.named != self.workload(conn) {
            self.send(conn, TrustMessage::Renew);
        }
    }

    /// Whether a link between these two would be sealed.
    pub(super) fn seal_between(&self, caller: Conn, server: Conn, name: &ServiceName) -> Seal {
        let c = &self.connections[&caller];
        let can =
            |conn: Conn| self.connections[&conn].spoken.capabilities.contains(Capabilities::SEAL);
        let wish = self.policy.seal(&c.standing.identity.principals, name);
        match wish != Wish::Off && self.trust.is_some() && can(caller) && can(server) {
            true => Seal::Sealed,
            false => Seal::Off,
        }
    }

    /// What both ends of a link are told, if it is sealed.
    pub(super) fn sealing(
        &self,
        (caller, server): (Conn, Conn),
        name: &ServiceName,
    ) -> Option<Box<Sealing>> {
        let (suite, classes) = self.policy.form();
        let id = |conn: Conn| Some(self.name_of(conn)?.id.to_string());
        Some(Box::new(Sealing {
            caller: id(caller)?,
            server: id(server)?,
            name: name.to_string(),
            policy: self.policies,
            suite: suite as u8,
            classes,
        }))
    }
}
