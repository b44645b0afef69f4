//! Certificates of processes, and which links are sealed.
//!
//! A link is sealed where the policy says so ([`crate::policy::Wish`]) and both ends can. The coordinator
//! tells both what their handshake has to agree on ([`Sealing`]), and has no part in it: it knows the
//! certificates, and no key.
//!
//! A workload ([`Socket::Workload`]) is certified as a principal or not at all, and is told (`Renew`) when it
//! is another one by a new policy, or none any more.

use std::time::SystemTime;

use partywall_abi::control::{Sealing, TrustMessage};
use partywall_abi::name::ServiceName;
use partywall_abi::security::{Seal, Security, Sign};
use partywall_abi::version::Capabilities;
use partywall_trust::message::Receipt;
use partywall_trust::{Certified, Id};

use super::{Conn, Effect, FAILED_PRECONDITION, Socket, State};
use crate::audit::Event;
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
            TrustMessage::Receipts { request, receipts } => {
                self.receipts(conn, request, &receipts);
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
        if self.connections[&conn].came_by == Socket::Workload {
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
        if c.came_by == Socket::Workload && c.named != self.workload(conn) {
            self.send(conn, TrustMessage::Renew);
        }
    }

    /// From here on receipts of signed messages are kept.
    pub fn keep_receipts(&mut self) {
        self.keeps_receipts = true;
    }

    /// Receipts of messages that an end of a link has got, for the audit log. They are not verified here: who
    /// reads the log does that, and what an end makes up does not hold then.
    fn receipts(&mut self, conn: Conn, request: u32, receipts: &[Vec<u8>]) {
        let c = &self.connections[&conn];
        let identity = &c.standing.identity;
        // The link of those may have ended meanwhile.
        if !self.policy.signs(&identity.principals) {
            let text = "the policy has no link of this process sign its messages".to_owned();
            return self.deny(conn, request, "hand in receipts", text);
        }
        let read = |bytes: &Vec<u8>| {
            let receipt = Receipt::from_json(&serde_json::from_slice(bytes).ok()?).ok()?;
            let signer = Certified::read(&receipt.chain().certificates()[0]).ok()?;
            Some((signer.id.to_string(), receipt))
        };
        let read: Option<Vec<_>> = receipts.iter().map(read).collect();
        // The next ones come after the answer to those before.
        let Some(receipts) = read.filter(|_| !c.receipts) else {
            return self.breaks_rule(conn);
        };
        let account = c.standing.usage.account();
        let events = receipts
            .into_iter()
            .map(|(signer, receipt)| Event::signed(identity, account, signer, receipt.to_json()));
        let events = events.collect();
        self.connection(conn).receipts = true;
        self.effects.push(Effect::Receipts { conn, request, events });
    }

    /// Receipts are on their way to the log.
    pub fn kept(&mut self, conn: Conn, request: u32) {
        if let Some(c) = self.connections.get_mut(&conn) {
            c.receipts = false;
            self.send(conn, TrustMessage::Kept { request });
        }
    }

    /// A link between these two to the name, sealed and with signed messages as it would be.
    pub(super) fn protected_between(
        &self,
        (caller, server): (Conn, Conn),
        name: &ServiceName,
    ) -> Security {
        let seal = self.seal_between(caller, server, name);
        let principals = &self.connections[&caller].standing.identity.principals;
        let sign = match seal {
            Seal::Sealed if self.policy.sign(principals, name) => Sign::Signed,
            _ => Sign::Off,
        };
        self.security_between(caller, server).with_seal(seal).with_sign(sign)
    }

    /// Whether a link between these two would be sealed.
    fn seal_between(&self, caller: Conn, server: Conn, name: &ServiceName) -> Seal {
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
        sign: bool,
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
            sign,
            receipts: self.keeps_receipts,
        }))
    }
}
