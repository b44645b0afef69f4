//! One process at the other end of a control socket: how far its proof is, and what waits for it.
//!
//! What a process does not read waits: in its socket, then in a queue. Both are charged to its
//! account as bytes ([`Peer::weigh`]), and while [`UNREAD`] packets wait in the queue nothing more is
//! read from it, so that it cannot ask for more answers. Packets with descriptors that were not received
//! count against the coordinator's user; beyond its limit sendmsg(2) says ETOOMANYREFS, for
//! everybody. Then what is to be sent waits for a timer: no event tells when the count falls.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use partywall_shm::socket::{self, Credentials, Endpoint};

use crate::handout::Part;
use crate::identity::{Domain, Facts};
use crate::quota::{Charge, Exceeded, Usage};
use crate::signatures::{Beside, Found};
use crate::state::{Conn, Socket, Spoken};

/// Why a connection is closed.
pub(crate) type Reason = Cow<'static, str>;

/// Packets that wait for a process before nothing more is read from it.
pub(crate) const UNREAD: usize = 32;

/// A process that the coordinator has started, whose identity is strong.
pub struct Started {
    /// The coordinator's end of the socket it was given.
    pub socket: Endpoint,
    /// A pidfd, opened before the child was waited for.
    pub pidfd: OwnedFd,
    /// Its number.
    pub pid: u32,
    /// The name it was started under.
    pub name: String,
    /// SHA-256 of the sealed copy it runs.
    pub digest: [u8; 32],
    /// What was found beside its program.
    pub signature: Arc<Found>,
    /// Where it runs, if it is a domain.
    pub domain: Option<Domain>,
}

/// One process. Its token is odd; the next even number is its pidfd's.
pub(crate) struct Peer {
    pub(crate) socket: Endpoint,
    pub(crate) pidfd: Option<OwnedFd>,
    /// As the kernel gave them with the socket; what every packet must carry.
    pub(crate) credentials: Credentials,
    /// What is known of it because the coordinator started it.
    pub(crate) started: Option<Known>,
    /// Where it has connected. For a workload a part of this process speaks.
    pub(crate) came_by: Socket,
    pub(crate) stage: Stage,
    pub(crate) charges: Charges,
    queue: VecDeque<(Vec<u8>, Vec<Part>)>,
    /// Bytes in the queue.
    queued: usize,
    /// epoll tells when the socket takes data again.
    pub(crate) waits_for_room: bool,
}

/// What a connection costs its account.
pub(crate) struct Charges {
    pub(crate) connection: Charge,
    /// While it has not proven who it is.
    pub(crate) unproven: Option<Charge>,
    pub(crate) unread: Charge,
}

/// What is known of a process from before it ran.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) digest: [u8; 32],
    pub(crate) signature: Beside,
    pub(crate) domain: Option<Domain>,
}

pub(crate) enum Stage {
    Challenged(Box<Challenged>),
    Open(Conn),
}

/// A process that has not proven itself yet.
pub(crate) struct Challenged {
    pub(crate) nonce: [u8; 16],
    /// What was agreed on, when the nonce has come back.
    pub(crate) spoken: Option<Spoken>,
    /// Until when it is to have answered.
    pub(crate) until: Option<Instant>,
    pub(crate) look: Look,
}

/// What is known of a process that has not proven itself.
pub(crate) enum Look {
    /// Nothing; it has not been looked at.
    Due,
    /// Its program is being measured; the nonce is not sent yet.
    First(Facts),
    /// What was known when the nonce was sent.
    Asked(Facts),
    /// What was known then and what is now; the nonce has come back, and its program is being
    /// measured again, or its engine asked.
    Second(Box<Facts>, Box<Facts>),
    /// Nothing is awaited.
    Done,
}

/// What became of a queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is empty.
    All,
    /// The socket is full until epoll says otherwise.
    Full,
    /// Too many descriptors are under way to anybody.
    TooMany,
}

impl Peer {
    pub(crate) fn new(
        socket: Endpoint,
        pidfd: Option<OwnedFd>,
        credentials: Credentials,
        started: Option<Known>,
        challenged: Challenged,
        charges: Charges,
    ) -> Self {
        let stage = Stage::Challenged(Box::new(challenged));
        let (queue, queued, waits_for_room) = (VecDeque::new(), 0, false);
        Self {
            socket,
            pidfd,
            credentials,
            started,
            came_by: Socket::Common,
            stage,
            charges,
            queue,
            queued,
            waits_for_room,
        }
    }

    /// Whose it is.
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        self.charges.connection.usage()
    }

    /// Every packet must come from the process of the pidfd: have its number and user, and that
    /// process must live still, so that the number is its own.
    pub(crate) fn check_sender(&self, packet: &socket::Packet) -> Result<(), &'static str> {
        let Some(sender) = packet.credentials else {
            return Err("a packet without a sender");
        };
        if self.came_by == Socket::Workload {
            // Who speaks for it has compared the sender of what the workload has said.
            let own = sender.pid == std::process::id();
            return own
                .then_some(())
                .ok_or("a packet from another process than the coordinator's own");
        }
        if sender.uid != self.credentials.uid || sender.pid != self.credentials.pid {
            return Err("a packet from another process than the one that connected");
        }
        Ok(())
    }

    /// Whether its process lives, or cannot be seen.
    pub(crate) fn is_alive(&self) -> bool {
        self.pidfd.as_ref().is_none_or(|p| socket::alive(p.as_fd()))
    }

    /// Whether more may be read from it, or asked for it.
    pub(crate) fn listens(&self) -> bool {
        self.queue.len() < UNREAD
    }

    /// Whether it has been sent all there is.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, packet: Vec<u8>, parts: Vec<Part>) {
        self.queued += packet.len();
        self.queue.push_back((packet, parts));
    }

    /// Charges what it has not read to its account.
    pub(crate) fn weigh(&mut self) -> Result<(), Exceeded> {
        let in_socket = socket::unread(self.socket.as_fd()).unwrap_or(0);
        self.charges.unread.set(self.queued + in_socket)
    }

    /// Sends what waits, as far as it can be sent now.
    pub(crate) fn send_queued(&mut self) -> io::Result<Sent> {
        while let Some((packet, parts)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = parts.iter().map(AsFd::as_fd).collect();
            match socket::send(self.socket.as_fd(), packet, &borrowed) {
                Ok(()) => {
                    self.queued -= packet.len();
                    self.queue.pop_front();
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Full),
                Err(e) if is_too_many(&e) => return Ok(Sent::TooMany),
                Err(e) => return Err(e),
            }
        }
        Ok(Sent::All)
    }
}

fn is_too_many(e: &io::Error) -> bool {
    e.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Account, Limits, Quotas, Resource, Totals};

    fn peer() -> (Peer, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        let credentials = Credentials { pid: 1, uid: 2, gid: 3 };
        let challenged = Challenged { nonce: [0; 16], spoken: None, until: None, look: Look::Done };
        let quotas = Quotas::new(Totals::for_descriptors(1024), Limits::default(), 0);
        let usage = quotas.account(Account::User(2), None);
        let charges = Charges {
            connection: usage.charge(Resource::Connections, 1).unwrap(),
            unproven: None,
            unread: usage.charge(Resource::Unread, 0).unwrap(),
        };
        let socket = Endpoint::new(ours);
        (Peer::new(socket, None, credentials, None, challenged, charges), theirs)
    }

    #[test]
    fn the_order_of_packets_is_kept_when_the_socket_is_full() {
        let (mut peer, theirs) = peer();
        for n in 0..5_000_u32 {
            peer.push(n.to_le_bytes().to_vec(), Vec::new());
        }
        let mut seen = 0_u32;
        let mut rounds = 0;
        while peer.send_queued().unwrap() == Sent::Full || seen < 5_000 {
            let mut buffer = [0; 4];
            while let Ok(packet) = socket::receive(theirs.as_fd(), &mut buffer) {
                assert_eq!((packet.len, u32::from_le_bytes(buffer)), (4, seen));
                seen += 1;
            }
            rounds += 1;
        }
        assert!(rounds > 2, "the socket was never full");
        assert!(peer.has_room());
    }

    #[test]
    fn unread_bytes_are_charged_until_read() {
        let (mut peer, theirs) = peer();
        let unread = |peer: &Peer| peer.usage().used(Resource::Unread);
        for _ in 0..100 {
            peer.push(vec![1; 2000], Vec::new());
        }
        peer.weigh().unwrap();
        assert_eq!(unread(&peer), 200_000);
        let before = peer.send_queued().unwrap();
        peer.weigh().unwrap();
        assert!(unread(&peer) >= 200_000, "{} {before:?}", unread(&peer));
        while peer.send_queued().unwrap() == Sent::Full {
            while socket::receive(theirs.as_fd(), &mut [0; 2000]).is_ok() {}
        }
        while socket::receive(theirs.as_fd(), &mut [0; 2000]).is_ok() {}
        peer.weigh().unwrap();
        assert_eq!(unread(&peer), 0);
        while peer.weigh().is_ok() {
            peer.push(vec![1; 1 << 20], Vec::new());
        }
        assert!(unread(&peer) <= 8 << 20);
    }

    #[test]
    fn process_with_too_much_unread_is_not_read() {
        let (mut peer, _theirs) = peer();
        for _ in 0..UNREAD {
            assert!(peer.listens());
            peer.push(vec![1], Vec::new());
        }
        assert!(!peer.listens());
        assert_eq!(peer.send_queued().unwrap(), Sent::All);
        assert!(peer.listens());
    }

    #[test]
    fn a_packet_is_only_taken_from_the_process_that_connected() {
        let (peer, _theirs) = peer();
        let packet = |credentials| socket::Packet { credentials, ..socket::Packet::default() };
        let sender = |pid, uid| packet(Some(Credentials { pid, uid, gid: 9 }));
        assert!(peer.check_sender(&sender(1, 2)).is_ok());
        for wrong in [sender(4, 2), sender(1, 4), packet(None)] {
            assert!(peer.check_sender(&wrong).is_err(), "{wrong:?}");
        }
    }
}
