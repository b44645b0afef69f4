//! An operator looks into a link: its memory, for reading, and whether it is over.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use partywall_abi::control::TraceMessage;
use partywall_abi::layout::Geometry;
use partywall_abi::security::Security;
use partywall_abi::version::Capabilities;
use partywall_shm::follow::{Follower, Found};
use partywall_shm::memory;
use tokio::sync::oneshot;

use super::super::conversation::Parts;
use super::super::{Client, Waiting};
use super::{coordinator_with, wait_here};
use crate::error::Error;
use crate::lock::lock;

/// How long the coordinator may take to hand out a link's memory.
const WITHIN: Duration = Duration::from_secs(30);

type Answer = oneshot::Sender<Result<Memory, Error>>;

/// The memory of a link as an operator gets it: the caller's outbox, and the server's.
struct Memory {
    outboxes: [OwnedFd; 2],
    geometry: Geometry,
    security: Security,
}

/// A link that is looked into, or about to be.
pub(in super::super) struct Tracing {
    /// Until it is answered.
    answer: Option<Answer>,
    over: Arc<AtomicBool>,
}

impl Tracing {
    /// It is over, or will not be.
    pub(in super::super) fn refused(self, why: Error) {
        self.over.store(true, Ordering::Release);
        if let Some(answer) = self.answer {
            let _given_up = answer.send(Err(why));
        }
    }
}

/// What crosses a link, as an operator sees it ([`trace`]).
///
/// Neither end knows of it or waits for it. What is read too late is overwritten, and counted. Dropping it
/// lets go of the link's memory, which counts as held by an end of the link until then.
pub struct Trace {
    asked: Asked,
    security: Security,
    followers: Mutex<[Follower; 2]>,
}

/// A question for a link, until the drop.
struct Asked {
    client: Arc<Client>,
    request: u32,
    over: Arc<AtomicBool>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Trace");
        all.field("security", &self.security).field("over", &self.is_over()).finish_non_exhaustive()
    }
}

/// What crossed a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Crossed {
    /// A record.
    Record(TracedRecord),
    /// So many records that were overwritten before they were read.
    Missed {
        /// Who has sent them.
        from: End,
        /// How many.
        records: u64,
    },
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Who calls.
    Caller,
    /// Who serves.
    Server,
}

/// A record, as it lies in memory: of a sealed link its payload is encrypted.
///
/// All of it is what its sender has written, and nothing of it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedRecord {
    /// Who has sent it.
    pub from: End,
    /// Its number in its direction, from 0 on.
    pub number: u64,
    /// Its kind; none where its slot makes no sense.
    pub kind: Option<u8>,
    /// Its flags.
    pub flags: u8,
    /// The call that it belongs to; 0 for the link itself.
    pub stream: u32,
    /// The length of its payload.
    pub len: u32,
    /// The first bytes of the payload; none where they were overwritten, or are not found: of a long payload
    /// whose place in the ring nobody says while records are under way.
    pub bytes: Option<Vec<u8>>,
}

impl Trace {
    /// What protects the link.
    pub fn security(&self) -> Security {
        self.security
    }

    /// Whether the link is over, or the coordinator has gone. Its memory may have more.
    pub fn is_over(&self) -> bool {
        self.asked.over.load(Ordering::Acquire)
    }

    /// What has crossed since the last call, with at most so many bytes of each payload: at most what both
    /// rings hold. Never blocks.
    pub fn take(&self, bytes: usize) -> Vec<Crossed> {
        let mut followers = lock(&self.followers);
        let mut all = Vec::new();
        for (follower, from) in followers.iter_mut().zip([End::Caller, End::Server]) {
            for _ in 0..follower.slots() {
                match follower.look(bytes) {
                    Found::Nothing => break,
                    Found::Missed(records) => all.push(Crossed::Missed { from, records }),
                    Found::Record(found) => {
                        let d = found.descriptor;
                        all.push(Crossed::Record(TracedRecord {
                            from,
                            number: found.number,
                            kind: d.map(|d| d.kind),
                            flags: d.map_or(0, |d| d.flags),
                            stream: d.map_or(0, |d| d.stream),
                            len: d.map_or(0, |d| d.len),
                            bytes: found.bytes,
                        }));
                    }
                }
            }
        }
        all
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.client.state).waiting.remove(&self.request);
        if !self.over.load(Ordering::Acquire) {
            self.client.say(TraceMessage::Untrace { request: self.request });
        }
    }
}

/// Looks into a link: from here on what crosses it can be read. The coordinator at `socket` writes that into
/// its audit log.
///
/// Root may look into each link whose memory this coordinator has made. The coordinator's user may where both
/// ends are its own processes, and one of them is open to others of its user. `socket`: as for
/// [`links`](super::links).
///
/// # Errors
/// [`Error::NoCoordinator`]; [`Error::Denied`]; [`Error::Refused`] where there is no such open link
/// (NOT_FOUND), where it has no memory of this coordinator's (FAILED_PRECONDITION), and by a coordinator of
/// an older release (UNIMPLEMENTED).
pub fn trace(socket: Option<&Path>, link: u64) -> Result<Trace, Error> {
    let client = coordinator_with(socket, Capabilities::TRACE)?;
    let (tx, mut answer) = oneshot::channel();
    let over = Arc::new(AtomicBool::new(false));
    let waiting = Waiting::Trace(Tracing { answer: Some(tx), over: Arc::clone(&over) });
    let question = |request| TraceMessage::Trace { request, link };
    let request = client.ask(&mut lock(&client.state), waiting, question)?;
    let asked = Asked { client, request, over };
    let Memory { outboxes, geometry, security } = wait_here(&mut answer, WITHIN)?;
    let map = |fd: &OwnedFd| memory::accept(fd.as_fd(), geometry).map(Arc::new);
    let wrong = |_| Error::CoordinatorGone("it sent what is no outbox");
    let [callers, servers] = [map(&outboxes[0]).map_err(wrong)?, map(&outboxes[1]).map_err(wrong)?];
    let followers = Mutex::new([
        Follower::new(geometry, Arc::clone(&callers), Arc::clone(&servers)),
        Follower::new(geometry, servers, callers),
    ]);
    Ok(Trace { asked, security, followers })
}

impl Client {
    pub(in super::super) fn take_traced(
        &self,
        request: u32,
        (geometry, security): (Geometry, Security),
        parts: Parts,
    ) {
        let memory = parts.take(2, false).and_then(|(outboxes, _)| {
            let few = |_| Error::CoordinatorGone("it sent too little of a link");
            Ok(Memory { outboxes: outboxes.try_into().map_err(few)?, geometry, security })
        });
        let mut state = lock(&self.state);
        if let Some(Waiting::Trace(tracing)) = state.waiting.get_mut(&request)
            && let Some(answer) = tracing.answer.take()
        {
            drop(state);
            let _given_up = answer.send(memory);
        }
    }

    pub(in super::super) fn trace_is_over(&self, request: u32) {
        if let Some(Waiting::Trace(tracing)) = lock(&self.state).waiting.get(&request) {
            tracing.over.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Connected, Place};
    use partywall_abi::name::ServiceName;

    /// Who is asked for a link that it does not know says so, and nothing of the question stays.
    #[test]
    fn a_link_that_is_not_there_is_not_traced() {
        let host = partywall_testkit::Host::open();
        let refused = trace(Some(&host.socket), 7).unwrap_err();
        assert!(refused.to_string().contains("there is no open link 7; remedy: see"), "{refused}");
        let client = crate::coordinator::client(&Place::Path(host.socket.clone()));
        assert!(lock(&client.state).waiting.is_empty());
        let name = ServiceName::new("test").unwrap();
        let missing = client.connect(&name).unwrap().blocking(Duration::from_secs(5));
        assert!(!matches!(missing, Ok(Connected::Link(_))));
    }
}
