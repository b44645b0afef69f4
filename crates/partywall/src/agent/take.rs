//! What the coordinator says, and whom it is told to.

use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::{Message, Role};
use partywall_abi::sync::Ordering;
use tonic::{Code, Status};

use super::again::REFUSED;
use super::conversation::Parts;
use super::{Agent, Booked, Connected, Event, Linked, OUTGOING, Offer, Reloaded, Waiting, lock};
use crate::error::Error;

impl Agent {
    pub(super) fn take(self: &Arc<Self>, message: Message, parts: Parts) {
        match message {
            Message::Offer { .. } | Message::Linked { .. } | Message::Redirect { .. } => {
                self.take_link(message, parts);
            }
            Message::Open { link } => self.take_open(link, parts),
            Message::Ended { link, role, code, text } => {
                let status = Status::new(Code::from_i32(code.into()), text);
                self.take_ended((link, role), &status);
            }
            Message::Died { link, role } => {
                let entry = lock(&self.books).links.get(&(link, role)).cloned();
                if let Some(entry) = entry {
                    entry.peer_died();
                }
            }
            Message::Allowed { link, role, peer, methods } => {
                let entry = lock(&self.books).links.get(&(link, role)).cloned();
                if let Some(entry) = entry {
                    entry.allow(peer, methods);
                }
            }
            Message::Watched { request, instances } => {
                let books = lock(&self.books);
                if let Some(Waiting::Watch(name)) = books.waiting.get(&request)
                    && let Some(watched) = books.watched.get(name)
                {
                    watched.instances.send_replace(instances);
                }
            }
            Message::Registered { request, registration } => {
                self.take_registered(request, registration);
            }
            Message::Unregistered { registration, text } => {
                tracing::warn!(text, "this name is not served any more; it is asked for again");
                let mut books = lock(&self.books);
                let served = books.served.values_mut().find(|s| s.number == Some(registration));
                if let Some(served) = served {
                    served.number = None;
                    served.again = Some(Instant::now() + REFUSED);
                }
                self.look(&mut books);
            }
            Message::Reported { request, link } => {
                let mut books = lock(&self.books);
                let Some(Waiting::Report(entry)) = books.waiting.remove(&request) else { return };
                if books.find_lost(&entry).is_some() {
                    entry.number.store(link, Ordering::Relaxed);
                    books.links.insert(entry.key(), entry);
                } else {
                    // It has ended meanwhile.
                    drop(books);
                    self.say(&closed(link, entry.role));
                }
            }
            Message::Row { request, row } => {
                if let Some(Waiting::Rows(rows, _)) = lock(&self.books).waiting.get_mut(&request) {
                    rows.push(row);
                }
            }
            Message::Listed { request } => {
                if let Some(Waiting::Rows(rows, tx)) = self.forget(request) {
                    let _given_up = tx.send(Ok(rows));
                }
            }
            Message::Query { request } => self.count(request),
            Message::SetGate { request, open } => {
                let errno = crate::domain::accept(open).err().unwrap_or(0);
                self.say(&Message::GateSet { request, errno });
            }
            Message::Switched { request, domains } => {
                if let Some(Waiting::Switch(tx)) = self.forget(request) {
                    let _given_up = tx.send(Ok(domains));
                }
            }
            Message::Reloaded { request, ended, changed } => {
                if let Some(Waiting::Reload(tx)) = self.forget(request) {
                    let _given_up = tx.send(Ok(Reloaded { ended, changed }));
                }
            }
            Message::Refused { request, code, text } => self.take_refused(request, code, text),
            other => tracing::warn!(?other, "a message that has no place here"),
        }
    }

    fn forget(&self, request: u32) -> Option<Waiting> {
        lock(&self.books).waiting.remove(&request)
    }

    fn take_link(self: &Arc<Self>, message: Message, parts: Parts) {
        match message {
            Message::Offer { registration, terms } => {
                let found = {
                    let books = lock(&self.books);
                    let served = books.served.iter().find(|(_, s)| s.number == Some(registration));
                    served.map(|(key, s)| (*key, s.name.clone(), s.events.clone()))
                };
                let link = terms.link;
                let Some((key, name, events)) = found else {
                    tracing::warn!(link, "an offer for a name that is not served any more");
                    return self.say(&closed(link, Role::Server));
                };
                let booked = Booked::new(self, link, terms.token, Role::Server, name);
                match parts.take(1, true) {
                    Ok((mut memory, Some(socket))) if memory.len() == 1 => {
                        lock(&self.books).adopted.insert(link, key);
                        let memory = memory.remove(0);
                        let _gone =
                            events.send(Event::Offer(Offer { terms, memory, socket, booked }));
                    }
                    Ok(_) => {}
                    Err(why) => tracing::warn!(link, %why, "a link is lost"),
                }
            }
            Message::Linked { request, terms } => {
                let Some(Waiting::Connect(name, tx)) = self.forget(request) else {
                    // The caller has given up, and said so.
                    return self.say(&closed(terms.link, Role::Caller));
                };
                let booked = Booked::new(self, terms.link, terms.token, Role::Caller, name);
                let linked = parts.take(2, true).and_then(|(mut memory, socket)| {
                    match (memory.pop(), memory.pop(), socket) {
                        (Some(servers), Some(own), Some(socket)) => {
                            Ok(Linked { terms, own, servers, socket, booked })
                        }
                        _ => Err(Error::CoordinatorGone("it sent too little of a link")),
                    }
                });
                let _given_up = tx.send(linked.map(|l| Connected::Link(Box::new(l))));
            }
            Message::Redirect { request, link, token, url, methods } => {
                let Some(Waiting::Connect(name, tx)) = self.forget(request) else {
                    return self.say(&closed(link, Role::Redirected));
                };
                let booked = Booked::new(self, link, token, Role::Redirected, name);
                let _given_up = tx.send(Ok(Connected::Redirect { url, methods, booked }));
            }
            _ => {}
        }
    }

    fn take_open(&self, link: u64, parts: Parts) {
        let events = {
            let mut books = lock(&self.books);
            let key = books.adopted.remove(&link);
            key.and_then(|key| Some(books.served.get(&key)?.events.clone()))
        };
        let Some(events) = events else { return };
        let event = match parts.take(1, false) {
            Ok((mut memory, _)) if memory.len() == 1 => Event::Open(link, memory.remove(0)),
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
            let mut books = lock(&self.books);
            let key = if role == Role::Server { books.adopted.remove(&link) } else { None };
            let events = key.and_then(|key| Some(books.served.get(&key)?.events.clone()));
            (books.links.get(&(link, role)).cloned(), events)
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
        let mut books = lock(&self.books);
        let Some(Waiting::Register(key)) = books.waiting.remove(&request) else { return };
        match books.served.get_mut(&key) {
            Some(served) => {
                served.number = Some(registration);
                if let Some(first) = served.first.take() {
                    let _given_up = first.send(Ok(()));
                } else {
                    tracing::info!(name = %served.name, "registered again");
                }
            }
            None => {
                drop(books);
                self.say(&Message::Unregister { registration });
            }
        }
    }

    fn take_refused(self: &Arc<Self>, request: u32, code: u8, text: String) {
        let code = Code::from_i32(code.into());
        let refused = || Error::Refused { code, text: text.clone() };
        match self.forget(request) {
            Some(Waiting::Connect(_, tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Rows(_, tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Switch(tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Reload(tx)) => drop(tx.send(Err(refused()))),
            Some(Waiting::Report(entry)) => {
                let _entry = lock(&self.books).find_lost(&entry);
                entry.over(Status::new(code, text));
            }
            Some(Waiting::Register(key)) => {
                let mut books = lock(&self.books);
                let Some(served) = books.served.get_mut(&key) else { return };
                if let Some(first) = served.first.take() {
                    let _given_up = first.send(Err(refused()));
                    return;
                }
                tracing::warn!(name = %served.name, text, "not registered; it is asked for again");
                served.again = Some(Instant::now() + REFUSED);
                self.look(&mut books);
            }
            Some(Waiting::Watch(name)) => {
                // Nobody will tell; whoever waits hears that.
                lock(&self.books).watched.remove(&name);
            }
            None => {}
        }
    }

    /// Tells what the ends in this process have counted.
    fn count(&self, request: u32) {
        let (entries, conversation) = {
            let books = lock(&self.books);
            (books.links.values().cloned().collect::<Vec<_>>(), books.conversation.clone())
        };
        let Some(conversation) = conversation else { return };
        if conversation.waiting() > OUTGOING / 4 {
            // Who does not read the answers to the last questions gets no more of them.
            return;
        }
        // The word of a caller does not count.
        let told = entries.iter().filter(|e| e.role != Role::Caller);
        let counts = told.filter_map(|e| Some((e.number(), e.stats()?)));
        for (link, stats) in counts.take(OUTGOING / 2) {
            let _ended = conversation.send(&Message::Counted { request, link, stats });
        }
        let _ended = conversation.send(&Message::CountedAll { request });
    }
}

/// A link that nobody here wants.
fn closed(link: u64, role: Role) -> Message {
    let (blame, stats) = (partywall_abi::control::Blame::Nobody, Default::default());
    Message::Closed { link, role, blame, stats }
}
