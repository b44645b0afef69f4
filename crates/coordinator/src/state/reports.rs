//! Links that an earlier coordinator has made: their ends report them.
//!
//! ```text
//! one end      Report{token, role, name} ->   <- Reported{number}     within GRACE of the start
//! other end    Report{token, role, name} ->   <- Reported{number}
//!              both: <- Allowed, what this coordinator's policy says
//!          or  after GRACE: <- Ended, to the end that is alone
//! ```
//!
//! The token is what the two ends know and nobody else, so two reports of one token in the two
//! roles are the two ends of one link. An end whose policy does not let it call, or serve, is
//! refused, and the other one then is alone. An end that is alone is counted apart, so who reports what
//! is not there takes nothing from the others; when both are there, each is charged for the link, up
//! to its account's own limits. No memory is known here, so the word of each end counts for its own
//! charge. Both say what protected the link; that can lower what this coordinator finds itself.
//!
//! ```text
//! what each end says it was granted                  what becomes of the link
//! the same, and no more than the policy has          it goes on, with its descriptor socket
//! none                                               it is granted what the policy has, as a new one
//! more than the policy has; not the same             it is ended, at both ends
//! ```
//!
//! A coordinator that dies between the two ends' sockets leaves ends that do not say the same. What an end
//! says of it costs its own link alone.

use std::time::{Duration, Instant};

use partywall_abi::control::{EndMessage, Grant, Identity, LinkMessage, Role, Token};
use partywall_abi::name::ServiceName;
use partywall_abi::security::{Seal, Security, Sign};

use super::links::{End, Link, of_address};
use super::{
    Conn, FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, State, UNAVAILABLE,
};
use crate::quota::Resource;

/// How long after its start a coordinator hears reports.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Changed links that a connection is told of at once.
const BATCH: usize = 16;

/// What an end says of a link that was made by another coordinator.
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) role: Role,
    pub(super) name: ServiceName,
    /// What protects it, as the end was told.
    pub(super) security: Security,
    /// What it was granted.
    pub(super) grant: Grant,
}

impl State {
    pub(super) fn report(&mut self, conn: Conn, request: u32, claim: Claim, now: Instant) {
        let Claim { token, role, name, security, grant } = claim;
        let principals = self.connections[&conn].standing.identity.principals.clone();
        let methods = self.policy.methods(&principals, &name);
        let allowed = match role {
            Role::Server => {
                let listed = &self.connections[&conn].standing.listed;
                self.policy.may_serve(&principals, listed, &name)
            }
            Role::Caller => !methods.is_empty(),
            Role::Redirected => !methods.is_empty() && self.policy.url(&name).is_some(),
        };
        if !allowed {
            let text = format!("the policy does not let this link to `{name}` go on");
            return self.deny(conn, request, "report", text);
        }
        if now >= self.grace {
            let text = format!("this coordinator is over {GRACE:?} old, and knows no such link");
            return self.refuse(conn, request, NOT_FOUND, text);
        }
        let charge = match self.connections[&conn].charge(Resource::Reported) {
            Ok(charge) => charge,
            Err(text) => return self.refuse(conn, request, RESOURCE_EXHAUSTED, text),
        };
        let end = self.end(conn, vec![charge]);
        let mut agreed = true;
        let number = match self.reported.get(&token).copied() {
            None => {
                let mut link = Link::reported(name, token, self.grace);
                if role == Role::Redirected {
                    link.methods = methods;
                    link.url = self.policy.url(&link.name).map(str::to_string);
                    link.security = link.url.as_deref().map_or(Security::LOWEST, of_address);
                }
                match role {
                    Role::Server => link.server = Some(end),
                    Role::Caller | Role::Redirected => link.caller = Some(end),
                }
                link.security = link.security.min_per_field(security);
                link.grant = grant;
                let number = self.record(link);
                self.reported.insert(token, number);
                self.deadlines.insert((self.grace, number));
                number
            }
            Some(number) => {
                let link = self.links.get_mut(&number).expect("it goes with its row");
                let alone = link.waits_for_its_other_end().is_some() && link.name == name;
                let place = match role {
                    Role::Server => &mut link.server,
                    Role::Caller | Role::Redirected => &mut link.caller,
                };
                if place.is_some() || !alone {
                    let text = "another process has reported this end of the link".to_string();
                    return self.refuse(conn, request, FAILED_PRECONDITION, text);
                }
                *place = Some(end);
                link.security = link.security.min_per_field(security);
                agreed = link.grant == grant;
                let ends = [link.caller_conn(), link.server_conn()];
                if let [Some(caller), Some(server)] = ends {
                    // Whether it is sealed they know alone.
                    let found = self.security_between(caller, server);
                    let found = found.with_seal(Seal::HIGHEST).with_sign(Sign::HIGHEST);
                    let spoken = |conn: Conn| self.connections[&conn].spoken.capabilities;
                    let capabilities = spoken(caller).common(spoken(server));
                    let link = self.links.get_mut(&number).expect("just looked up");
                    link.security = link.security.min_per_field(found);
                    link.capabilities = capabilities;
                }
                self.connection(conn).links.insert(number);
                number
            }
        };
        self.send(conn, LinkMessage::Reported { request, link: number });
        let link = self.links.get_mut(&number).expect("just looked up");
        if link.caller.is_some() && (link.server.is_some() || role == Role::Redirected) {
            if let Err(e) = link.charge_ends() {
                return self.give_up(number, RESOURCE_EXHAUSTED, &e.to_string(), None);
            }
            link.is_open_again();
            self.take_place(number);
            self.deadlines.remove(&(self.grace, number));
            if !agreed {
                let text =
                    "its ends do not say the same of descriptors beside a message; ask again";
                self.give_up(number, UNAVAILABLE, text, None);
            } else if self.tell_terms(number).is_ok() {
                self.look_at_grant(number);
            }
        }
    }

    /// Tells both ends of a link what the policy says of it; an error is why there is to be none, which
    /// they are told as well.
    pub(super) fn tell_terms(&mut self, number: u64) -> Result<(), String> {
        let link = &self.links[&number];
        let (Some(caller), server) = (&link.caller, &link.server) else { return Ok(()) };
        let (callers, name) = (&caller.standing, link.name.clone());
        let methods = self.policy.methods(&self.principals_of(caller.conn, callers), &name);
        let serves = server.as_ref().is_none_or(|s| self.may_serve(s, &name));
        let refused = match methods.is_empty() || !serves {
            true => Some(format!("the policy does not allow this link to `{name}` any more")),
            false => self.is_too_weak(number),
        };
        if let Some(text) = refused {
            self.give_up(number, PERMISSION_DENIED, &text, None);
            return Err(text);
        }
        let conns = [server.as_ref().map(|s| s.conn), Some(caller.conn)];
        self.links.get_mut(&number).expect("just looked up").methods = methods;
        for conn in conns.into_iter().flatten() {
            if let Some(c) = self.connections.get_mut(&conn) {
                c.changed.insert(number);
                self.something_is_due(conn);
            }
        }
        Ok(())
    }

    /// Tells a connection what the policy says of its links that have changed, a batch at most;
    /// whether that was all.
    pub(super) fn tell_allowed(&mut self, conn: Conn) -> bool {
        for _ in 0..BATCH {
            let Some(number) = self.connection(conn).changed.pop_first() else { return true };
            let Some(link) = self.links.get(&number).filter(|link| link.goes_on()) else {
                continue;
            };
            let Some(caller) = &link.caller else { continue };
            let server = link.server.as_ref();
            let of_caller = if server.is_some() { Role::Caller } else { Role::Redirected };
            let ends = [
                (Role::Server, server, caller),
                (of_caller, Some(caller), server.unwrap_or(caller)),
            ];
            let of_this = |(role, end, peer): (Role, Option<&End>, &End)| {
                let peer = Identity::clone(&peer.standing.identity);
                let methods = link.methods.clone();
                let message = EndMessage::Allowed { link: number, role, peer, methods };
                end.filter(|end| end.conn == conn).map(|_| message)
            };
            let messages: Vec<EndMessage> = ends.into_iter().filter_map(of_this).collect();
            messages.into_iter().for_each(|message| self.send(conn, message));
        }
        self.connection(conn).changed.is_empty()
    }
}
