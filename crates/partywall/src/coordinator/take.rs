//! What the coordinator says, and whom it is known to.

use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{
    Blame, EndMessage, GateMessage, LinkMessage, LinkMethods, LinkStats, ListMessage, Message,
    PolicyMessage, RegistryMessage, Role, SessionMessage, Terms, TraceMessage,
};
use partywall_abi::name::ServiceName;
use partywall_abi::security::Security;
use partywall_abi::sync::Ordering;
use tonic::{Code, Status};

use super::again::REFUSED;
use super::conversation::Parts;
use super::links::{Entry, Known};
use super::operator::Observed;
use super::{Client, Connected, Event, Linked, OUTGOING, Offer, Reloaded, Tracked, Waiting};
use crate::error::Error;
use crate::harden;
use crate::lock::lock;

impl Client {
    pub(super) fn take(self: &Arc<Self>, message: Message, parts: Parts) {
        match message {
            Message::Session(SessionMessage::Refused { request, code, text }) => {
                self.take_refused(request, code, text);
            }
            Message::Session(SessionMessage::Harden) => {
                if harden::close() {
                    self.say(SessionMessage::Hardened);
                }
            }
            Message::Registry(m) => self.take_of_names(m),
            Message::Link(m) => self.take_link(m, parts),
            Message::End(m) => self.take_of_end(m),
            Message::List(m) => self.take_of_list(m),
            Message::Gate(m) => self.take_of_gate(m),
            Message::Policy(m) => self.take_of_policy(m),
            Message::Memory(m) => self.take_of_memory(&m),
            Message::Trust(m) => self.take_of_trust(m),
            Message::Trace(TraceMessage::Traced { request, geometry, security }) => {
                self.take_traced(request, (geometry, security), parts);
            }
            Message::Trace(TraceMessage::Over { request }) => self.trace_is_over(request),
            other => out_of_place(&other),
        }
    }

    fn take_of_names(self: &Arc<Self>, message: RegistryMessage) {
        match message {
            RegistryMessage::Registered { request, registration } => {
                self.take_registered(request, registration);
            }
            RegistryMessage::Unregistered { registration, text } => {
                tracing::warn!(text, "this name is not served any more; it is asked for again");
                let mut state = lock(&self.state);
                let served = state.served.values_mut().find(|s| s.number == Some(registration));
                if let Some(served) = served {
                    served.number = None;
                    served.again = Some(Instant::now() + REFUSED);
                }
                self.look(&mut state);
            }
            RegistryMessage::Watched { request, instances } => {
                let state = lock(&self.state);
                if let Some(Waiting::Watch(name)) = state.waiting.get(&request)
                    && let Some(watched) = state.watched.get(name)
                {
                    watched.instances.send_replace(instances);
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn take_of_end(&self, message: EndMessage) {
        let entry = |key: &(u64, Role)| lock(&self.state).links.get(key).cloned();
        match message {
            EndMessage::Ended { link, role, code, text } => {
                let status = Status::new(Code::from_i32(code.into()), text);
                self.take_ended((link, role), &status);
            }
            EndMessage::Died { link, role } => {
                if let Some(entry) = entry(&(link, role)) {
                    entry.peer_died();
                }
            }
            EndMessage::Allowed { link, role, peer, methods } => {
                if let Some(entry) = entry(&(link, role)) {
                    entry.allow(peer, methods);
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn take_of_list(&self, message: ListMessage) {
        match message {
            ListMessage::Row { request, row } => {
                match lock(&self.state).waiting.get_mut(&request) {
                    Some(Waiting::Rows(rows, _)) => rows.push(*row),
                    Some(Waiting::Observed(links, _)) => links.push(Observed::new(*row)),
                    _ => {}
                }
            }
            ListMessage::Instance { request, row } => {
                if let Some(Waiting::Instances(rows, _)) =
                    lock(&self.state).waiting.get_mut(&request)
                {
                    rows.push(*row);
                }
            }
            ListMessage::Listed { request } => match self.forget(request) {
                Some(Waiting::Rows(rows, tx)) => drop(tx.send(Ok(rows))),
                Some(Waiting::Instances(rows, tx)) => drop(tx.send(Ok(rows))),
                Some(Waiting::Observed(links, tx)) => drop(tx.send(Ok(links))),
                _ => {}
            },
            ListMessage::Query { request } => self.count(request, None),
            ListMessage::Measure { request, name } => self.count(request, Some(&name)),
            ListMessage::Pace { request, link, caller, server } => {
                if let Some(Waiting::Observed(links, _)) =
                    lock(&self.state).waiting.get_mut(&request)
                    && let Some(observed) = links.last_mut().filter(|o| o.link.link == link)
                {
                    (observed.caller, observed.server) = (caller, server);
                }
            }
            ListMessage::Unable { request, link, role } => {
                let mut state = lock(&self.state);
                let row = match state.waiting.get_mut(&request) {
                    Some(Waiting::Rows(rows, _)) => rows.last_mut(),
                    Some(Waiting::Observed(links, _)) => links.last_mut().map(|o| &mut o.link),
                    _ => None,
                };
                if let Some(row) = row.filter(|row| row.link == link)
                    && !row.unable.contains(&role)
                {
                    row.unable.push(role);
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn take_of_gate(&self, message: GateMessage) {
        match message {
            GateMessage::Set { request, open } => {
                let errno = crate::domain::accept(open).err().unwrap_or(0);
                self.say(GateMessage::IsSet { request, errno });
            }
            GateMessage::Switched { request, domains } => {
                if let Some(Waiting::Switch(tx)) = self.forget(request) {
                    let _given_up = tx.send(Ok(domains));
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn take_of_policy(&self, message: PolicyMessage) {
        match message {
            PolicyMessage::Reloaded { request, ended, changed } => {
                if let Some(Waiting::Reload(tx)) = self.forget(request) {
                    let _given_up = tx.send(Ok(Reloaded { ended, changed }));
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn forget(&self, request: u32) -> Option<Waiting> {
        lock(&self.state).waiting.remove(&request)
    }

    fn take_link(self: &Arc<Self>, message: LinkMessage, parts: Parts) {
        match message {
            LinkMessage::Offer { registration, terms } => {
                self.take_offer(registration, terms, parts);
            }
            LinkMessage::Linked { request, terms } => {
                let Some(Waiting::Connect(name, tx)) = self.forget(request) else {
                    // The caller has given up, and said so.
                    return self.say(closed(terms.link, Role::Caller));
                };
                let (link, known) = (terms.link, Known::of(&terms));
                let tracked = Tracked::new(self, link, known, Role::Caller, name);
                let linked = parts.take(2, true).and_then(|(mut memory, socket)| {
                    match (memory.pop(), memory.pop(), socket) {
                        (Some(servers), Some(own), Some(socket)) => {
                            Ok(Linked { terms, own, servers, socket, tracked })
                        }
                        _ => Err(Error::CoordinatorGone("it sent too little of a link")),
                    }
                });
                let _given_up = tx.send(linked.map(|l| Connected::Link(Box::new(l))));
            }
            LinkMessage::Redirect { request, link, token, url, methods } => {
                let Some(Waiting::Connect(name, tx)) = self.forget(request) else {
                    return self.say(closed(link, Role::Redirected));
                };
                // What protects it, the address says to both sides.
                let known = Known { token, security: Security::HIGHEST, promised: false };
                let tracked = Tracked::new(self, link, known, Role::Redirected, name);
                let _given_up = tx.send(Ok(Connected::Redirect { url, methods, tracked }));
            }
            LinkMessage::Open { link, security } => self.take_open((link, security), parts),
            LinkMessage::Reported { request, link } => self.take_reported(request, link),
            LinkMessage::Granted { link, role, grant } => {
                let entry = lock(&self.state).links.get(&(link, role)).cloned();
                match (entry, parts.sole()) {
                    (Some(entry), Some(socket)) => entry.grant(socket, grant),
                    (None, _) => {}
                    // A link that has promised what it cannot keep would have calls wait for ever.
                    (Some(entry), None) => {
                        let text = format!(
                            "link {link}: the socket for descriptors has not come; remedy: let this process have \
                             more descriptors (`ulimit -n`)"
                        );
                        tracing::warn!(link, "{text}");
                        entry.over(Status::unavailable(text));
                    }
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    fn take_offer(self: &Arc<Self>, registration: u64, terms: Terms, parts: Parts) {
        let found = {
            let state = lock(&self.state);
            let served = state.served.iter().find(|(_, s)| s.number == Some(registration));
            served.map(|(key, s)| (*key, s.name.clone(), s.events.clone()))
        };
        let link = terms.link;
        let Some((key, name, events)) = found else {
            tracing::warn!(link, "an offer for a name that is not served any more");
            return self.say(closed(link, Role::Server));
        };
        let known = Known::of(&terms);
        let tracked = Tracked::new(self, link, known, Role::Server, name);
        match parts.take(1, true) {
            Ok((mut memory, Some(socket))) if memory.len() == 1 => {
                lock(&self.state).adopted.insert(link, key);
                let memory = memory.remove(0);
                let offer = Offer { terms, memory, socket, tracked };
                let _gone = events.send(Event::Offer(offer.into()));
            }
            Ok(_) => {}
            Err(why) => tracing::warn!(link, %why, "a link is lost"),
        }
    }

    fn take_reported(&self, request: u32, link: u64) {
        let mut state = lock(&self.state);
        let Some(Waiting::Report(entry)) = state.waiting.remove(&request) else { return };
        if state.find_lost(&entry).is_some() {
            entry.number.store(link, Ordering::Relaxed);
            state.links.insert(entry.key(), entry);
        } else {
            // It has ended meanwhile.
            drop(state);
            self.say(closed(link, entry.role));
        }
    }

    fn take_open(&self, (link, security): (u64, Security), parts: Parts) {
        let events = {
            let mut state = lock(&self.state);
            let key = state.adopted.remove(&link);
            key.and_then(|key| Some(state.served.get(&key)?.events.clone()))
        };
        let Some(events) = events else { return };
        let event = match parts.take(1, false) {
            Ok((mut memory, _)) if memory.len() == 1 => {
                Event::Open((link, security), memory.remove(0))
            }
            Ok(_) => Event::Over(link),
            Err(why) => {
                tracing::warn!(link, %why, "a link is lost");
                Event::Over(link)
            }
        };
        let _gone = events.send(event);
    }

    fn take_ended(&self, (link, role): (u64, Role), status: &Status) {
        let (entry, events) = {
            let mut state = lock(&self.state);
            let key = if role == Role::Server { state.adopted.remove(&link) } else { None };
            let events = key.and_then(|key| Some(state.served.get(&key)?.events.clone()));
            (state.links.get(&(link, role)).cloned(), events)
        };
        if let Some(events) = events {
            let _gone = events.send(Event::Over(link));
        }
        if let Some(entry) = entry {
            tracing::debug!(link, %status, "the coordinator ends a link");
            entry.over(status.clone());
        }
    }

    fn take_registered(&self, request: u32, registration: u64) {
        let mut state = lock(&self.state);
        let Some(Waiting::Register(key)) = state.waiting.remove(&request) else { return };
        match state.served.get_mut(&key) {
            Some(served) => {
                served.number = Some(registration);
                if let Some(first) = served.first.take() {
                    let _given_up = first.send(Ok(()));
                } else {
                    tracing::info!(name = %served.name, "registered again");
                }
            }
            None => {
                drop(state);
                self.say(RegistryMessage::Unregister { registration });
            }
        }
    }

    fn take_refused(self: &Arc<Self>, request: u32, code: u8, text: String) {
        let code = Code::from_i32(code.into());
        let refused = || Error::refused(code, text.clone());
        match self.forget(request) {
            Some(Waiting::Connect(_, tx)) => drop(tx.send(Err(Error::no_link(code, text)))),
            Some(Waiting::Rows(_, tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Instances(_, tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Observed(_, tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Switch(tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Reload(tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Memory(question)) => {
                self.memory_is_refused(&text);
                match question.answer {
                    Some(tx) => drop(tx.send(Err(refused()))),
                    None => {
                        tracing::warn!(text, "this process keeps its parcels, and makes no more");
                    }
                }
            }
            Some(Waiting::Trace(tracing)) => tracing.refused(refused()),
            Some(Waiting::Certificate(question)) => self.not_certified(question, refused),
            Some(Waiting::MayCall(tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Receipts(batch)) => {
                drop(batch);
                self.receipts_refused(&text);
            }
            Some(Waiting::Report(entry)) => {
                let _entry = lock(&self.state).find_lost(&entry);
                entry.over(Status::new(code, text));
            }
            Some(Waiting::Register(key)) => {
                let mut state = lock(&self.state);
                let Some(served) = state.served.get_mut(&key) else { return };
                if let Some(first) = served.first.take() {
                    let _given_up = first.send(Err(refused()));
                    return;
                }
                tracing::warn!(name = %served.name, text, "not registered; it is asked for again");
                served.again = Some(Instant::now() + REFUSED);
                self.look(&mut state);
            }
            Some(Waiting::Watch(name)) => {
                // Nobody will tell; whoever waits hears that.
                lock(&self.state).watched.remove(&name);
            }
            None => {}
        }
    }

    /// Tells what the ends in this process have counted; of links to a name, what they measure as well.
    fn count(&self, request: u32, measures: Option<&ServiceName>) {
        let (entries, conversation) = {
            let state = lock(&self.state);
            (state.links.values().cloned().collect::<Vec<_>>(), state.conversation.clone())
        };
        let Some(conversation) = conversation else { return };
        if conversation.waiting() > OUTGOING / 4 {
            // Who does not read the answers to the last questions gets no more of them.
            return;
        }
        let sends_parcels = |e: &Entry| conversation.takes_parcels() && !e.granted().is_none();
        let asked = entries.iter().filter(|e| match measures {
            Some(name) => e.name == *name,
            None => e.role != Role::Caller || sends_parcels(e),
        });
        let ends = asked.filter_map(|e| Some((e, e.end()?)));
        for (entry, end) in ends.take(OUTGOING / 4) {
            let (link, role, stats) = (entry.number(), entry.role, end.stats());
            if sends_parcels(entry) {
                let parcels = stats.parcels;
                let _ended = conversation.send(ListMessage::Sent { request, link, role, parcels });
            }
            if let Some(pace) = measures.and_then(|_| end.pace()) {
                let _ended = conversation.send(ListMessage::Measured { request, link, role, pace });
            }
            // The word of a caller does not count.
            if role != Role::Caller {
                let takes_methods = conversation.takes_methods();
                let methods = if takes_methods { end.methods() } else { LinkMethods::default() };
                let counted = ListMessage::Counted { request, link, stats, methods };
                let _ended = conversation.send(counted);
            }
        }
        let _ended = conversation.send(ListMessage::CountedAll { request });
    }
}

/// A link that nobody here wants.
fn closed(link: u64, role: Role) -> EndMessage {
    let (blame, stats) = (Blame::Nobody, LinkStats::default());
    EndMessage::Closed { link, role, blame, stats }
}

/// A coordinator of a later release may say more.
pub(super) fn out_of_place(message: &Message) {
    tracing::warn!(?message, "a message that has no place here");
}
