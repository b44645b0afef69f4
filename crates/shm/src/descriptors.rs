//! The descriptor socket of a link: where descriptors cross between its two ends.
//!
//! The coordinator makes it for links to whose callers the policy grants that, and for no others. What
//! comes on it is a stranger's: each descriptor is a [`Passed`], which is closed where nobody waits for
//! that, unless it turns out to be memory.
//!
//! ```text
//! sender     a packet: u64 number, and the descriptors           [`Outgoing::send`]
//!            then the record that names the number, if its call is not over by then
//! receiver   takes the record off the ring, then the packet      [`Incoming::receive`]
//! ```
//!
//! Numbers rise by one with each packet. A packet is there before the record that names it; one that no
//! record names, because its call was over, is passed over with the next one. Nobody waits on this socket,
//! and nobody watches it: it is read when a record says that there is something.
//!
//! A sender that dies between packet and record leaves a packet that goes with the socket. A receiver that
//! dies leaves all that it has not received, which goes with the socket too ([`socket::Lingering`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use partywall_abi::limits;

use crate::failpoint::failpoint;
use crate::socket::{self, Lingering, Passed};

/// Bytes of a packet.
const BYTES: usize = 8;

/// The sending half.
#[derive(Debug)]
pub struct Outgoing {
    socket: Arc<Lingering>,
    next: u64,
}

/// The receiving half.
#[derive(Debug)]
pub struct Incoming {
    socket: Arc<Lingering>,
    next: u64,
}

/// Why a packet that a record names cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// It is not there, or something else is.
    #[error("descriptor socket: {0}")]
    Shape(&'static str),
    /// A system call failed.
    #[error("descriptor socket: {0}")]
    Io(io::Error),
}

/// The two halves of an end that the coordinator has handed over.
pub fn halves(end: Passed) -> (Outgoing, Incoming) {
    let socket = Arc::new(end.lingering());
    (Outgoing { socket: Arc::clone(&socket), next: 0 }, Incoming { socket, next: 0 })
}

impl Outgoing {
    /// Sends descriptors; the number of their packet. Does not block.
    ///
    /// # Errors
    /// What sendmsg(2) says: EAGAIN when the peer takes none, ETOOMANYREFS when this user has as many
    /// descriptors under way as it may.
    pub fn send(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<u64> {
        let number = self.next;
        socket::send(self.socket.as_fd(), &number.to_le_bytes(), descriptors)?;
        failpoint("packet.sent");
        self.next += 1;
        Ok(number)
    }
}

impl Incoming {
    /// Receives the packet with this number, which a record has named; earlier ones are passed over. Does not
    /// block.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn receive(&mut self, number: u64) -> Result<Vec<Passed>, PacketError> {
        loop {
            let mut buffer = [0; BYTES];
            let packet = match socket::receive(self.socket.as_fd(), &mut buffer) {
                Ok(packet) => packet,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(PacketError::Shape("a packet that a record names is missing"));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(PacketError::Io(e)),
            };
            if packet.len != BYTES || packet.truncated {
                return Err(PacketError::Shape("a packet of another length"));
            }
            let found = u64::from_le_bytes(buffer);
            if found < self.next || found > number {
                return Err(PacketError::Shape("a packet out of turn"));
            }
            self.next = found + 1;
            if packet.fds.len() > limits::PACKET_FDS {
                return Err(PacketError::Shape("too many descriptors in a packet"));
            }
            if packet.stripped {
                // The kernel does not say which of the two it was.
                let why = "descriptors are lost: this process has no room for more, or the peer has sent \
                           too many";
                return Err(PacketError::Io(io::Error::other(why)));
            }
            if found == number {
                failpoint("packet.received");
                return Ok(packet.fds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    fn ends() -> ((Outgoing, Incoming), (Outgoing, Incoming)) {
        let (a, b) = socket::descriptor_pair().unwrap();
        (halves(a), halves(b))
    }

    fn file() -> OwnedFd {
        OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap())
    }

    #[test]
    fn descriptors_come_by_the_numbers_of_their_packets() {
        let ((mut out, mut back), (mut other, mut incoming)) = ends();
        let files: Vec<_> = (0..limits::PACKET_FDS).map(|_| file()).collect();
        let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        for (n, count) in [1, limits::PACKET_FDS, 2].into_iter().enumerate() {
            assert_eq!(out.send(&all[..count]).unwrap(), n as u64);
        }
        assert_eq!(other.send(&all[..1]).unwrap(), 0, "each direction has numbers of its own");
        assert_eq!(incoming.receive(0).unwrap().len(), 1);
        // The one between them belongs to a call that was over.
        assert_eq!(incoming.receive(2).unwrap().len(), 2);
        assert_eq!(back.receive(0).unwrap().len(), 1);
    }

    #[test]
    fn packets_that_nobody_receives_are_few() {
        let ((mut out, _), (_other, _incoming)) = ends();
        let file = file();
        let mut sent = 0;
        let full = loop {
            match out.send(&[file.as_fd()]) {
                Ok(_number) => sent += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let most = 4 * limits::UNREAD_PARCELS;
        assert!((limits::UNREAD_PARCELS..=most).contains(&sent), "{sent} packets");
    }

    #[test]
    fn packets_that_are_not_as_a_record_says_are_refused() {
        let refused = |send: &dyn Fn(BorrowedFd<'_>), number| {
            let (a, b) = socket::descriptor_pair().unwrap();
            send(a.as_fd());
            let (_out, mut incoming) = halves(b);
            incoming.receive(number).expect_err("it is taken").to_string()
        };
        let packet = |number: u64| {
            move |to: BorrowedFd<'_>| socket::send(to, &number.to_le_bytes(), &[]).unwrap()
        };
        assert!(refused(&|_| {}, 0).contains("missing"));
        assert!(refused(&packet(3), 2).contains("out of turn"));
        assert!(refused(&|to| socket::send(to, b"1234567", &[]).unwrap(), 0).contains("length"));
        assert!(refused(&|to| socket::send(to, b"123456789", &[]).unwrap(), 0).contains("length"));
        let twice = |to: BorrowedFd<'_>| {
            packet(1)(to);
            packet(1)(to);
        };
        assert!(refused(&twice, 2).contains("out of turn"));
        let files: Vec<_> = (0..=limits::PACKET_FDS).map(|_| file()).collect();
        let too_many = |to: BorrowedFd<'_>| {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
            let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
            let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&all));
            let number = [io::IoSlice::new(&[0; BYTES])];
            let flags = rustix::net::SendFlags::empty();
            rustix::net::sendmsg(to, &number, &mut ancillary, flags).unwrap();
        };
        assert!(refused(&too_many, 0).contains("too many"));
    }

    #[test]
    fn lingering_sockets_that_come_hold_nobody_up() {
        let start = Instant::now();
        for received in [false, true] {
            let ((mut out, _), (_other, mut incoming)) = ends();
            let (slow, peer) = partywall_testkit::lingering(Duration::from_secs(20)).unwrap();
            out.send(&[slow.as_fd()]).unwrap();
            drop(slow);
            let fds = if received { incoming.receive(0).unwrap() } else { Vec::new() };
            drop((fds, incoming, out));
            drop(peer);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
