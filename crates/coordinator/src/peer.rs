//! One process at the other end of a control socket: how far its proof is, and what waits for it.
//!
//! Descriptors in packets that a process has not received count against the coordinator's user;
//! beyond its limit sendmsg(2) says ETOOMANYREFS, for everybody. So a process has at most
//! [`CARRIED`] packets with descriptors unread, and where the limit is reached all the same, what
//! is to be sent waits for a timer: no event tells when it falls.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use partywall_shm::socket::{self, Credentials};

use crate::identity::{Domain, Facts};
use crate::state::Conn;

/// Packets with descriptors that a process may leave unread.
pub(crate) const CARRIED: usize = 16;

/// One process. Its token is odd; the next even number is its pidfd's.
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
    /// As the kernel gave them with the socket; what every packet must carry.
    pub(crate) credentials: Credentials,
    /// What is known of it because the coordinator started it.
    pub(crate) started: Option<Known>,
    pub(crate) stage: Stage,
    pub(crate) queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Packets with descriptors that were sent since the process was last seen to have read all.
    carried: usize,
}

/// What is known of a process from before it ran.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) digest: [u8; 32],
    pub(crate) domain: Option<Domain>,
}

pub(crate) enum Stage {
    Challenged(Box<Challenged>),
    Open(Conn),
}

/// A process that has not proven itself yet.
pub(crate) struct Challenged {
    pub(crate) nonce: [u8; 16],
    pub(crate) until: Instant,
    pub(crate) look: Look,
}

/// What is known of a process that has not proven itself.
pub(crate) enum Look {
    /// Its program is being measured; the nonce is not sent yet.
    First,
    /// What was known when the nonce was sent.
    Asked(Facts),
    /// The same; the nonce has come back, and its program is being measured again.
    Second(Facts),
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
        socket: OwnedFd,
        pidfd: Option<OwnedFd>,
        credentials: Credentials,
        started: Option<Known>,
        challenged: Challenged,
    ) -> Self {
        let stage = Stage::Challenged(Box::new(challenged));
        let queue = VecDeque::new();
        Self { socket, pidfd, credentials, started, stage, queue, carried: 0 }
    }

    /// Every packet must come from the process of the pidfd.
    pub(crate) fn check_sender(&self, packet: &socket::Packet) -> Result<(), &'static str> {
        let Some(sender) = packet.credentials else {
            return Err("a packet without a sender");
        };
        if sender.uid != self.credentials.uid || sender.pid != self.credentials.pid {
            return Err("a packet from another process than the one that connected");
        }
        if let (Some(expected), Some(found)) = (&self.pidfd, &packet.pidfd)
            && socket::same_process(expected.as_fd(), found.as_fd()) == Some(false)
        {
            return Err("a packet from another process than the one that connected");
        }
        Ok(())
    }

    /// Whether a packet with descriptors may be sent now.
    pub(crate) fn takes_descriptors(&mut self) -> bool {
        if self.carried >= CARRIED && socket::unread(self.socket.as_fd()).is_ok_and(|n| n == 0) {
            self.carried = 0;
        }
        self.queue.is_empty() && self.carried < CARRIED
    }

    /// Sends what waits, as far as it can be sent now.
    pub(crate) fn send_queued(&mut self) -> io::Result<Sent> {
        while let Some((packet, fds)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match socket::send(self.socket.as_fd(), packet, &borrowed) {
                Ok(()) => {
                    self.carried += usize::from(!fds.is_empty());
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
    use std::time::Duration;

    fn peer() -> (Peer, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        let credentials = Credentials { pid: 1, uid: 2, gid: 3 };
        let until = Instant::now() + Duration::from_secs(5);
        let challenged = Challenged { nonce: [0; 16], until, look: Look::First };
        (Peer::new(ours, None, credentials, None, challenged), theirs)
    }

    #[test]
    fn a_process_leaves_so_many_descriptors_unread_and_no_more() {
        let (mut peer, theirs) = peer();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        for _ in 0..CARRIED {
            assert!(peer.takes_descriptors());
            peer.queue.push_back((b"x".to_vec(), vec![file(), file()]));
            assert_eq!(peer.send_queued().unwrap(), Sent::All);
        }
        assert!(!peer.takes_descriptors());
        for _ in 0..CARRIED {
            assert!(!peer.takes_descriptors());
            assert_eq!(socket::receive(theirs.as_fd(), &mut [0; 4], false).unwrap().fds.len(), 2);
        }
        assert!(peer.takes_descriptors());
    }

    #[test]
    fn the_order_of_packets_is_kept_when_the_socket_is_full() {
        let (mut peer, theirs) = peer();
        for n in 0..5_000_u32 {
            peer.queue.push_back((n.to_le_bytes().to_vec(), Vec::new()));
        }
        let mut seen = 0_u32;
        let mut rounds = 0;
        while peer.send_queued().unwrap() == Sent::Full || seen < 5_000 {
            assert_eq!(peer.takes_descriptors(), peer.queue.is_empty());
            let mut buffer = [0; 4];
            while let Ok(packet) = socket::receive(theirs.as_fd(), &mut buffer, false) {
                assert_eq!((packet.len, u32::from_le_bytes(buffer)), (4, seen));
                seen += 1;
            }
            rounds += 1;
        }
        assert!(rounds > 2, "the socket was never full");
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
