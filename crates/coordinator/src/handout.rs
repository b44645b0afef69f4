//! The memory of links: made here, handed out part by part, and watched until nobody holds it.
//!
//! ```text
//! make        both outboxes without a page, the socket pair
//!   to the server   its outbox for writing, its end        (with Offer)
//!   to the caller   its outbox for writing, the server's   (with Linked: the server's is sealed)
//!                   for reading, its end
//!   to the server   the caller's for reading               (with Open: both are sealed and whole)
//! over        what was not handed out is closed; from now on the kernel is asked who holds what
//! ```
//!
//! Two descriptors are kept for a link until nobody else holds its memory. While its writer holds
//! an outbox, the kernel does not say whether its reader does as well. So the reader is let go once
//! it does not write any more, that a peer which keeps its outbox keeps nobody else charged; and
//! when the writer has gone as well and the outbox is still held, then by its reader, which holds
//! it again. What is held is always charged to one of the two, and at last to the one that holds it:
//!
//! ```text
//! an end holds a link   it holds its outbox for writing, or the other outbox has no writer any
//!                       more and is held for reading
//! ```
//!
//! An operator who looks into a link has descriptors for reading as well, and is then taken for an end.
//!
//! A process of the coordinator's own user can open its outbox for reading through /proc, and is
//! then taken for its peer.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use partywall_abi::control::Role;
use partywall_abi::layout::Geometry;
use partywall_shm::kept::{Holder, Kept};
use partywall_shm::memory::{self, Handout};
use partywall_shm::socket::{self, Passed};

use crate::state::Fault;

/// How long until the kernel is asked again who holds a link's memory, at first and at last.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(5));
/// Links that are looked at in one pass.
const PASS: usize = 64;

/// A descriptor on its way to a process.
pub(crate) enum Part {
    Memory(OwnedFd),
    End(Passed),
}

impl AsFd for Part {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Memory(fd) => fd.as_fd(),
            Self::End(end) => end.as_fd(),
        }
    }
}

struct Memory {
    geometry: Geometry,
    callers: Kept,
    servers: Kept,
    parts: Option<Parts>,
    /// When it is looked at next, and how long after that.
    look: Option<(Instant, Duration)>,
    /// Which ends say that it is over: the caller, the server.
    said: [bool; 2],
    /// Which ends hold it by the last look, likewise.
    hold: [bool; 2],
}

/// What is not handed out yet.
struct Parts {
    to_caller: Option<(OwnedFd, OwnedFd, Passed)>,
    to_server: OwnedFd,
}

/// The memory of all links that this coordinator has made.
#[derive(Default)]
pub(crate) struct Memories {
    links: HashMap<u64, Memory>,
    looks: BTreeSet<(Instant, u64)>,
}

/// Why a part is not handed out, and whose fault that is.
pub(crate) type Refused = (Fault, String);

fn ours(e: impl std::fmt::Display) -> Refused {
    (Fault::Ours, e.to_string())
}

fn of(role: Role) -> impl Fn(memory::OutboxError) -> Refused {
    move |e| {
        let whose = if role == Role::Server { "server" } else { "caller" };
        (Fault::Of(role), format!("its {whose} says that an outbox is ready, and it is not: {e}"))
    }
}

const GONE: &str = "the link is over";

impl Memories {
    /// Makes a link's memory; the server's first part.
    pub(crate) fn make(&mut self, link: u64, geometry: Geometry) -> Result<Vec<Part>, Refused> {
        let callers = memory::create(geometry).map_err(ours)?;
        let servers = memory::create(geometry).map_err(ours)?;
        let (callers_end, servers_end) =
            socket::link_pair().map_err(|e| ours(format!("socketpair: {e}")))?;
        let Handout { writer, reader: to_server, kept } = callers;
        let parts = Parts { to_caller: Some((writer, servers.reader, callers_end)), to_server };
        let memory = Memory {
            geometry,
            callers: kept,
            servers: servers.kept,
            parts: Some(parts),
            look: None,
            said: [false; 2],
            hold: [true; 2],
        };
        self.links.insert(link, memory);
        Ok(vec![Part::Memory(servers.writer), Part::End(servers_end)])
    }

    /// The caller's part, once the server's outbox is sealed.
    pub(crate) fn for_caller(&mut self, link: u64) -> Result<Vec<Part>, Refused> {
        let memory = self.links.get_mut(&link).ok_or_else(|| ours(GONE))?;
        memory.servers.sealed(memory.geometry).map_err(of(Role::Server))?;
        let parts = memory.parts.as_mut().and_then(|p| p.to_caller.take());
        let (own, servers, end) = parts.ok_or_else(|| ours(GONE))?;
        Ok(vec![Part::Memory(own), Part::Memory(servers), Part::End(end)])
    }

    /// The server's second part, once the caller has sealed its outbox and filled both.
    pub(crate) fn for_server(&mut self, link: u64) -> Result<Vec<Part>, Refused> {
        let memory = self.links.get_mut(&link).ok_or_else(|| ours(GONE))?;
        let g = memory.geometry;
        memory.callers.sealed(g).map_err(of(Role::Caller))?;
        memory.callers.whole(g).map_err(of(Role::Caller))?;
        memory.servers.whole(g).map_err(of(Role::Caller))?;
        let parts = memory.parts.take().ok_or_else(|| ours(GONE))?;
        Ok(vec![Part::Memory(parts.to_server)])
    }

    /// Both outboxes for reading, the caller's first, for an operator who looks into the link.
    pub(crate) fn for_operator(&self, link: u64) -> Result<Vec<Part>, String> {
        let memory = self.links.get(&link).ok_or(GONE)?;
        let again = |kept: &Kept| kept.again().map(Part::Memory);
        let both = [&memory.callers, &memory.servers].into_iter().map(again);
        both.collect::<Result<_, _>>().map_err(|e| format!("no memory of link {link}: {e}"))
    }

    /// A link is over for the ends that have `said` so, the caller and the server. False when there
    /// is no memory of it.
    pub(crate) fn over(&mut self, link: u64, said: [bool; 2], now: Instant) -> bool {
        let Some(memory) = self.links.get_mut(&link) else { return false };
        memory.parts = None;
        memory.said = said;
        if let Some((at, _)) = memory.look.replace((now, LOOK.0)) {
            self.looks.remove(&(at, link));
        }
        self.looks.insert((now, link));
        true
    }

    /// When [`Memories::look`] wants to be called.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Asks the kernel about links that are over: each end that has let go since they were last
    /// looked at, or that holds a link again (`true`).
    pub(crate) fn look(&mut self, now: Instant) -> Vec<(u64, Role, bool)> {
        let mut found = Vec::new();
        for _ in 0..PASS {
            let Some(&(at, link)) = self.looks.first().filter(|(at, _)| *at <= now) else { break };
            self.looks.remove(&(at, link));
            let Some(memory) = self.links.get_mut(&link) else { continue };
            found.extend(memory.look().map(|(role, holds)| (link, role, holds)));
            if memory.hold == [false; 2] {
                self.links.remove(&link);
                continue;
            }
            let pause = memory.look.map_or(LOOK.0, |(_, pause)| LOOK.1.min(2 * pause));
            memory.look = Some((now + pause, pause));
            self.looks.insert((now + pause, link));
        }
        found
    }
}

impl Memory {
    /// The ends that have let go, or hold it again, since this was last called.
    fn look(&mut self) -> impl Iterator<Item = (Role, bool)> + use<> {
        let hold = match (self.callers.holder(), self.servers.holder()) {
            (Ok(callers), Ok(servers)) => [
                callers == Holder::Writer || servers == Holder::Reader,
                servers == Holder::Writer || callers == Holder::Reader,
            ],
            // Where there are no leases, the word of each end counts, for itself.
            _ => self.said.map(|said| !said),
        };
        let before = std::mem::replace(&mut self.hold, hold);
        let changed = move |at: usize| (before[at] != hold[at]).then_some(hold[at]);
        // Who holds it again is charged before the other one is let go.
        let mut changes: Vec<_> = [(Role::Caller, changed(0)), (Role::Server, changed(1))]
            .into_iter()
            .filter_map(|(role, change)| Some((role, change?)))
            .collect();
        changes.sort_by_key(|(_, holds)| !holds);
        changes.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_shm::link::Ends;
    use partywall_shm::setup::{Adopted, Pending};

    const G: Geometry = Geometry::DEFAULT;

    fn memory(part: Part) -> OwnedFd {
        match part {
            Part::Memory(fd) => fd,
            Part::End(_) => panic!("an end"),
        }
    }

    fn end(part: Part) -> socket::Endpoint {
        match part {
            Part::End(end) => end.endpoint(),
            Part::Memory(_) => panic!("memory"),
        }
    }

    /// A link, made the whole way.
    fn link(m: &mut Memories, number: u64) -> (Ends, Ends) {
        let (caller, server, _) = link_and_inboxes(m, number);
        (caller, server)
    }

    /// A link, and a descriptor more of what each of its ends reads, the caller and the server.
    fn link_and_inboxes(m: &mut Memories, number: u64) -> (Ends, Ends, [OwnedFd; 2]) {
        let mut parts = m.make(number, G).unwrap().into_iter();
        let (own, socket) = (memory(parts.next().unwrap()), end(parts.next().unwrap()));
        assert!(matches!(m.for_caller(number), Err((Fault::Of(Role::Server), _))), "not sealed");
        let server = Adopted::new(number, G, own, socket).unwrap();
        let mut parts = m.for_caller(number).unwrap().into_iter();
        let own = memory(parts.next().unwrap());
        let (servers, socket) = (memory(parts.next().unwrap()), end(parts.next().unwrap()));
        let callers_inbox = servers.try_clone().unwrap();
        assert!(matches!(m.for_server(number), Err((Fault::Of(Role::Caller), _))), "not filled");
        let mut caller = Pending::new(number, G, own, servers, socket).unwrap();
        let callers = memory(m.for_server(number).unwrap().pop().unwrap());
        let servers_inbox = callers.try_clone().unwrap();
        let server = server.open(callers).unwrap();
        assert!(caller.poll().unwrap());
        (caller.into_ends().unwrap(), server, [callers_inbox, servers_inbox])
    }

    /// What the next looks find, `count` at least: for a moment the thread that closes sockets has
    /// copies of all descriptors (`closer` of crate `shm`).
    fn look(m: &mut Memories, count: usize) -> Vec<(u64, Role, bool)> {
        let end = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        while found.len() < count && Instant::now() < end {
            found.extend(m.next_look().into_iter().flat_map(|at| m.look(at)));
        }
        for _ in 0..4 {
            found.extend(m.next_look().into_iter().flat_map(|at| m.look(at)));
        }
        found
    }

    const LETS_GO: bool = false;
    const HOLDS: bool = true;

    #[test]
    fn end_is_released_when_it_holds_no_memory() {
        let mut m = Memories::default();
        let (caller, server) = link(&mut m, 1);
        m.over(1, [true, false], Instant::now());
        assert_eq!(look(&mut m, 0), []);
        drop(caller);
        assert_eq!(look(&mut m, 1), [(1, Role::Caller, LETS_GO)]);
        assert_eq!(look(&mut m, 0), []);
        drop(server);
        assert_eq!(look(&mut m, 1), [(1, Role::Server, LETS_GO)]);
        assert!(m.links.is_empty() && m.looks.is_empty());
    }

    #[test]
    fn handout_unused_counts_as_held() {
        let mut m = Memories::default();
        let parts = m.make(1, G).unwrap();
        m.over(1, [true, false], Instant::now());
        assert_eq!(look(&mut m, 1), [(1, Role::Caller, LETS_GO)]);
        drop(parts);
        assert_eq!(look(&mut m, 1), [(1, Role::Server, LETS_GO)]);
        let parts = m.make(2, G).unwrap();
        drop(parts);
        m.over(2, [true, false], Instant::now());
        assert_eq!(look(&mut m, 2), [(2, Role::Caller, LETS_GO), (2, Role::Server, LETS_GO)]);
    }

    #[test]
    fn reader_that_keeps_memory_is_charged_and_its_peer_is_not() {
        let both = [
            (Role::Caller, Role::Server, [true, false]),
            (Role::Server, Role::Caller, [false, true]),
        ];
        for (bad, good, said) in both {
            let mut m = Memories::default();
            let (caller, server, [callers, servers]) = link_and_inboxes(&mut m, 1);
            let (bads, goods, kept, other) = match bad {
                Role::Server => (server, caller, servers, callers),
                _ => (caller, server, callers, servers),
            };
            drop(other);
            drop(bads);
            m.over(1, said, Instant::now());
            assert_eq!(look(&mut m, 1), [(1, bad, LETS_GO)], "its peer writes still");
            drop(goods);
            assert_eq!(look(&mut m, 2), [(1, bad, HOLDS), (1, good, LETS_GO)]);
            assert_eq!(look(&mut m, 0), []);
            drop(kept);
            assert_eq!(look(&mut m, 1), [(1, bad, LETS_GO)]);
            assert!(m.links.is_empty() && m.looks.is_empty());
        }
    }

    #[test]
    fn memory_that_could_not_be_made_is_not_waited_for() {
        assert!(!Memories::default().over(1, [true; 2], Instant::now()));
    }
}
