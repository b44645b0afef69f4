//! One control socket: what is sent, what comes, and its end.
//!
//! Whoever sends does not wait: what the coordinator does not take at once is queued, and the
//! reactor sends it when there is room. A queue that has grown over its bound ends the conversation.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use partywall_abi::control::Message;
use partywall_abi::limits;
use partywall_abi::version::Capabilities;
use partywall_shm::reactor::{self, Next, Registration, Source};
use partywall_shm::socket::{self, Lingering, Passed};

use super::place::Said;
use super::{Client, Place};
use crate::error::Error;
use crate::lock::lock;

/// Packets that wait for a coordinator that does not read.
pub(super) const OUTGOING: usize = 64 * 1024;

/// Packets that the socket did not take; while there are any, the reactor waits for room.
#[derive(Default)]
struct Outgoing {
    packets: VecDeque<Vec<u8>>,
    waiting: bool,
}

/// One conversation with a coordinator.
pub(super) struct Conversation {
    /// An end of a link that has not been received may be in it, and in that what others have sent.
    socket: Lingering,
    /// What the coordinator says of itself.
    said: Said,
    outgoing: Mutex<Outgoing>,
    registered: OnceLock<Registration>,
    /// Whose conversation it is: the coordinator takes what a copy of this process, made by fork(2),
    /// sends for an attack, and ends the conversation.
    process: u32,
}

impl AsFd for Conversation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Conversation {
    pub(super) fn new(socket: Lingering, said: Said) -> Arc<Self> {
        let (outgoing, registered) = (Mutex::default(), OnceLock::new());
        let process = std::process::id();
        Arc::new(Self { socket, said, outgoing, registered, process })
    }

    /// Where the coordinator takes operators' calls, if not here.
    pub(super) fn operators(&self) -> Option<Place> {
        self.said.operators.clone()
    }

    /// Whether the coordinator takes what was counted for methods.
    pub(super) fn takes_methods(&self) -> bool {
        self.said.capabilities.contains(Capabilities::WAYS)
    }

    /// Whether the coordinator can do that.
    pub(super) fn has(&self, what: Capabilities) -> bool {
        self.said.capabilities.contains(what)
    }

    /// Whether the coordinator takes what is to be said of descriptor sockets and parcels.
    pub(super) fn takes_parcels(&self) -> bool {
        self.said.capabilities.contains(Capabilities::PARCELS)
    }

    /// Listens; what comes goes to the client, and so does the end.
    pub(super) fn listen(self: &Arc<Self>, client: &Arc<Client>) -> std::io::Result<()> {
        let owner: Arc<dyn AsFd + Send + Sync> = Arc::clone(self) as _;
        let listener = Listener { conversation: Arc::clone(self), client: Arc::downgrade(client) };
        let registration = reactor::register(owner, Arc::new(listener))?;
        let _first = self.registered.set(registration);
        // The reactor may have had something to say that found no room, before it could be told;
        // when that fails, it has heard of the end.
        let _ended = self.flush(&mut lock(&self.outgoing));
        Ok(())
    }

    pub(super) fn send(&self, message: impl Into<Message>) -> Result<(), Error> {
        if std::process::id() != self.process {
            return Err(Error::CoordinatorGone(
                "this process is a copy of the one that spoke to it",
            ));
        }
        let mut outgoing = lock(&self.outgoing);
        outgoing.packets.push_back(message.into().encode());
        if outgoing.packets.len() > OUTGOING {
            outgoing.packets.clear();
            // The reactor hears of it and ends the conversation.
            let _ended = rustix::net::shutdown(self, rustix::net::Shutdown::Both);
            return Err(Error::CoordinatorGone("it does not read"));
        }
        if outgoing.waiting { Ok(()) } else { self.flush(&mut outgoing) }
    }

    /// Packets that wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.outgoing).packets.len()
    }

    /// Sends what waits, as far as the socket takes it.
    fn flush(&self, outgoing: &mut Outgoing) -> Result<(), Error> {
        while let Some(packet) = outgoing.packets.front() {
            match socket::send(self.as_fd(), packet, &[]) {
                Ok(()) => drop(outgoing.packets.pop_front()),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    outgoing.packets.clear();
                    return Err(Error::CoordinatorGone("it has ended"));
                }
            }
        }
        let waiting = !outgoing.packets.is_empty();
        if waiting != outgoing.waiting
            && let Some(registration) = self.registered.get()
        {
            registration.wants_room(waiting);
            outgoing.waiting = waiting;
        }
        Ok(())
    }
}

/// The reactor's view of a conversation.
struct Listener {
    conversation: Arc<Conversation>,
    client: Weak<Client>,
}

impl Source for Listener {
    fn ready(&self, _hung_up: bool) -> Next {
        let Some(client) = self.client.upgrade() else { return Next::Done };
        // When it fails, so does the receive.
        let _ = self.conversation.flush(&mut lock(&self.conversation.outgoing));
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        for _ in 0..64 {
            let packet = match socket::receive(self.conversation.as_fd(), &mut buffer) {
                Ok(packet) if packet.len > 0 => packet,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Next::Keep,
                _ => {
                    client.ended(&self.conversation);
                    return Next::Done;
                }
            };
            match Message::decode(&buffer[..packet.len]) {
                Ok(message) => client.take(message, Parts(packet.fds)),
                Err(error) => {
                    tracing::error!(%error, "the coordinator sent what is no message");
                    client.ended(&self.conversation);
                    return Next::Done;
                }
            }
        }
        Next::Keep
    }
}

/// The descriptors that came with a message.
pub(super) struct Parts(Vec<Passed>);

impl Parts {
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// The only one.
    pub(super) fn sole(mut self) -> Option<Passed> {
        self.0.pop().filter(|_| self.0.is_empty())
    }

    /// Outboxes, and an end behind them if there is to be one.
    pub(super) fn take(
        self,
        outboxes: usize,
        end: bool,
    ) -> Result<(Vec<OwnedFd>, Option<socket::Endpoint>), Error> {
        if self.0.len() != outboxes + usize::from(end) {
            let source = rustix::io::Errno::MFILE.into();
            return Err(Error::Io { what: "taking the descriptors of a link".into(), source });
        }
        let mut parts = self.0.into_iter();
        let memory = parts.by_ref().take(outboxes).map(Passed::memory).collect::<Result<_, _>>();
        let memory = memory.map_err(|_| Error::CoordinatorGone("it sent what is no outbox"))?;
        Ok((memory, parts.next().map(Passed::endpoint)))
    }
}
