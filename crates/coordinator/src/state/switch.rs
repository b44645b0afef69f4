//! Opening and closing the gates of domains, for an operator.
//!
//! ```text
//! operator   Switch ->                         <- Switched, when all have, or Refused
//! domains              Set -> ... <- IsSet   (a domain that ends answers by that)
//! ```
//!
//! The coordinator closes nothing itself: a gate is its domain's, which says so in the launcher's
//! tables. A domain that does not answer in time is named in the refusal; what it was told stays.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use partywall_abi::control::GateMessage;
use partywall_abi::name::ServiceName;

use super::{
    Conn, FAILED_PRECONDITION, LISTINGS, NOT_FOUND, RESOURCE_EXHAUSTED, State, UNAVAILABLE,
};

/// How long domains may take to answer.
const WITHIN: Duration = Duration::from_secs(2);

const DEADLINE_EXCEEDED: u8 = 4;

/// An order under way.
pub(super) struct Switch {
    to: (Conn, u32),
    name: ServiceName,
    question: u32,
    open: bool,
    waiting: BTreeSet<Conn>,
    done: u32,
    /// Why the last one that did not do it has not.
    failed: String,
    deadline: Instant,
}

impl Switch {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl State {
    pub(super) fn gate_message(&mut self, conn: Conn, message: GateMessage, now: Instant) {
        match message {
            GateMessage::Switch { request, name, open } => {
                self.switch((conn, request), name, open, now);
            }
            GateMessage::IsSet { request, errno } => self.gate_set(conn, request, errno),
            _ => self.breaks_rule(conn),
        }
    }

    fn switch(
        &mut self,
        (conn, request): (Conn, u32),
        name: ServiceName,
        open: bool,
        now: Instant,
    ) {
        if !self.is_operator(conn, request, "open and close gates") {
            return;
        }
        if self.switches.iter().filter(|s| s.to.0 == conn).count() >= LISTINGS {
            let text = format!("{LISTINGS} orders at once are the most that one process may give");
            return self.refuse(conn, request, RESOURCE_EXHAUSTED, text);
        }
        let served = self.names.get(&name).map_or(&[][..], |n| &n.registrations[..]);
        let servers: BTreeSet<Conn> = served.iter().map(|r| r.conn).collect();
        if servers.is_empty() {
            return self.refuse(conn, request, NOT_FOUND, self.unknown(&name));
        }
        let is_domain = |conn: &Conn| self.connections[conn].standing.facts.domain.is_some();
        let waiting: BTreeSet<Conn> = servers.iter().copied().filter(is_domain).collect();
        if waiting.is_empty() {
            let text = format!(
                "`{name}` is served by a process of its own, which has no gate; remedy: give it \
                 `link: domain` in the Compose file"
            );
            return self.refuse(conn, request, FAILED_PRECONDITION, text);
        }
        let question = self.next_question;
        self.next_question = self.next_question.wrapping_add(1);
        for &to in &waiting {
            self.send(to, GateMessage::Set { request: question, open });
        }
        let deadline = now + WITHIN;
        let (done, failed) = (0, String::new());
        let to = (conn, request);
        self.switches.push(Switch { to, name, question, open, waiting, done, failed, deadline });
    }

    fn unknown(&self, name: &ServiceName) -> String {
        let served = self.names.iter().filter(|(_, n)| !n.registrations.is_empty());
        let mut served: Vec<&str> = served.map(|(name, _)| name.as_str()).collect();
        served.sort_unstable();
        match &served[..] {
            [] => format!("nobody serves `{name}` here, nor any other name"),
            served => format!("nobody serves `{name}` here; served are {}", served.join(", ")),
        }
    }

    /// A domain has answered.
    fn gate_set(&mut self, conn: Conn, question: u32, errno: u32) {
        let asked = |s: &&mut Switch| s.question == question && s.waiting.contains(&conn);
        let Some(switch) = self.switches.iter_mut().find(asked) else { return };
        switch.waiting.remove(&conn);
        match errno {
            0 => {
                switch.done += 1;
                let closed = !switch.open;
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.gate_closed = closed;
                }
            }
            errno => {
                let why = std::io::Error::from_raw_os_error(errno as i32);
                switch.failed = format!("`{}` has not changed its gate: {why}", switch.name);
            }
        }
        self.finish_switches();
    }

    /// A connection is gone: as a domain that was asked, and as one that asks.
    pub(super) fn switch_lost(&mut self, conn: Conn) {
        self.switches.retain(|s| s.to.0 != conn);
        for switch in &mut self.switches {
            if switch.waiting.remove(&conn) {
                switch.failed = format!("`{}` has ended meanwhile", switch.name);
            }
        }
        self.finish_switches();
    }

    /// Time has passed.
    pub(super) fn switches_late(&mut self, now: Instant) {
        let late = |s: &mut Switch| now >= s.deadline;
        for s in self.switches.extract_if(.., late).collect::<Vec<_>>() {
            let text = format!(
                "`{}` does not answer within {WITHIN:?}; {} of {} domains have",
                s.name,
                s.done,
                s.done as usize + s.waiting.len()
            );
            self.refuse(s.to.0, s.to.1, DEADLINE_EXCEEDED, text);
        }
    }

    fn finish_switches(&mut self) {
        let answered = |s: &mut Switch| s.waiting.is_empty();
        for s in self.switches.extract_if(.., answered).collect::<Vec<_>>() {
            let (to, request) = s.to;
            match s.done {
                0 => self.refuse(to, request, UNAVAILABLE, s.failed),
                domains => self.send(to, GateMessage::Switched { request, domains }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Effect;
    use super::super::PERMISSION_DENIED;
    use super::super::tests::{
        admit, ask, connect, facts, name, open, refused, register, state, take,
    };
    use super::*;
    use crate::identity::{Domain, Facts};
    use partywall_abi::control::{LinkMessage, Message};
    use partywall_abi::security::{Confidentiality, Evidence, Isolation, Security};

    fn domain(s: &mut State, uid: u32, launcher: u32) -> Conn {
        let domain = Some(Domain { launcher, isolation: Isolation::None });
        admit(s, Facts { domain, ..facts(uid) })
    }

    fn set_gate(effects: &[Effect], expected: Conn) -> u32 {
        match effects {
            [
                Effect::Send {
                    to,
                    message: Message::Gate(GateMessage::Set { request, open: false }),
                },
            ] => {
                assert_eq!(*to, expected);
                *request
            }
            other => panic!("{other:?}"),
        }
    }

    fn close(request: u32) -> Message {
        Message::Gate(GateMessage::Switch { request, name: name(), open: false })
    }

    #[test]
    fn switch_reaches_the_domain_and_its_answer_the_operator() {
        let mut s = state();
        let (server, operator) = (domain(&mut s, 1, 1), open(&mut s, 0));
        register(&mut s, server);
        let question = set_gate(&ask(&mut s, operator, close(3)), server);
        assert!(
            ask(
                &mut s,
                operator,
                Message::Gate(GateMessage::IsSet { request: question, errno: 0 })
            )
            .is_empty()
        );
        let answer =
            ask(&mut s, server, Message::Gate(GateMessage::IsSet { request: question, errno: 0 }));
        assert!(s.connections[&server].gate_closed);
        let switched = Message::Gate(GateMessage::Switched { request: 3, domains: 1 });
        assert_eq!(answer, [Effect::Send { to: operator, message: switched }]);
        let question = set_gate(&ask(&mut s, operator, close(4)), server);
        let answer =
            ask(&mut s, server, Message::Gate(GateMessage::IsSet { request: question, errno: 3 }));
        assert_eq!(refused(&answer).0, UNAVAILABLE);
        assert!(s.next_timeout().is_none());
    }

    #[test]
    fn switch_without_operator_name_or_domain_is_refused() {
        let mut s = state();
        let (server, operator) = (open(&mut s, 1), open(&mut s, 9));
        let answer = ask(&mut s, operator, close(1));
        assert_eq!(refused(&answer), (NOT_FOUND, "nobody serves `g` here, nor any other name"));
        register(&mut s, server);
        assert_eq!(refused(&ask(&mut s, server, close(1))).0, PERMISSION_DENIED);
        let answer = ask(&mut s, operator, close(1));
        let (code, text) = refused(&answer);
        assert_eq!(code, FAILED_PRECONDITION);
        assert!(text.contains("no gate") && text.contains("link: domain"), "{text}");
    }

    #[test]
    fn domains_that_end_or_stay_silent_are_reported() {
        let mut s = state();
        let (server, operator) = (domain(&mut s, 1, 1), open(&mut s, 0));
        register(&mut s, server);
        ask(&mut s, operator, close(1));
        s.timeout(s.next_timeout().unwrap());
        let effects = take(&mut s);
        assert_eq!(refused(&effects).0, DEADLINE_EXCEEDED);
        ask(&mut s, operator, close(2));
        s.closed(server, Instant::now());
        let effects = take(&mut s);
        assert_eq!(refused(&effects), (UNAVAILABLE, "`g` has ended meanwhile"));
    }

    #[test]
    fn links_have_the_isolation_of_their_ends() {
        let mut s = state();
        let server = domain(&mut s, 1, 1);
        register(&mut s, server);
        for (launcher, expected) in
            [(Some(1), Isolation::None), (Some(2), Isolation::Process), (None, Isolation::Process)]
        {
            let web = match launcher {
                Some(launcher) => domain(&mut s, 2, launcher),
                None => open(&mut s, 2),
            };
            let effects = connect(&mut s, web);
            let [
                Effect::Offer {
                    link,
                    message: Message::Link(LinkMessage::Offer { terms: offer, .. }),
                    ..
                },
            ] = &effects[..]
            else {
                panic!("{effects:?}")
            };
            let effects = ask(
                &mut s,
                server,
                Message::Link(LinkMessage::Adopted { link: *link, security: Security::HIGHEST }),
            );
            let [
                Effect::Link {
                    message: Message::Link(LinkMessage::Linked { terms: linked, .. }),
                    ..
                },
            ] = &effects[..]
            else {
                panic!("{effects:?}")
            };
            // The outbox of a domain lies in its launcher's address space, whoever is at the other end.
            let space = Confidentiality::Space;
            let expected = Security::new(expected, space, Evidence::Observed);
            assert_eq!([offer.security, linked.security], [expected; 2]);
            assert_eq!(s.links[link].security, expected);
        }
    }
}
