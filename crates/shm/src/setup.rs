//! Opening a link.
//!
//! Both sides hold, from the coordinator, the link's number, the geometry, their own outbox and
//! their end of a socket pair. Each does the same:
//!
//! ```text
//! adopted   map own outbox, seal it                          [`Pending::start`]
//! offered   send Setup{link} with the outbox's descriptor
//! open      receive the peer's Setup, check, map read-only   [`Pending::poll`]
//! ```
//!
//! A side that dies at any of these steps closes its end of the socket; the other sees the
//! hang-up and fails. After `open` both descriptors of memory are closed: a link holds one
//! descriptor, its socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::Setup;
use partywall_abi::layout::Geometry;

use crate::link::{Bell, LinkError};
use crate::memory;
use crate::region::{Inbox, Outbox};
use crate::ring::{Consumer, Producer};
use crate::socket::{self, LinkSocket};
use crate::stops::stop;

/// A link whose own half is ready and whose peer has not spoken yet.
pub struct Pending {
    link: u64,
    geometry: Geometry,
    socket: LinkSocket,
    own: Arc<Outbox>,
    peer: Option<Arc<Inbox>>,
}

impl Pending {
    /// Adopts the outbox and offers it to the peer.
    ///
    /// # Errors
    /// [`LinkError::Outbox`], [`LinkError::Io`], [`LinkError::Dead`].
    pub fn start(
        link: u64,
        geometry: Geometry,
        memory: OwnedFd,
        socket: OwnedFd,
    ) -> Result<Self, LinkError> {
        let own = Arc::new(memory::adopt(memory.as_fd(), geometry)?);
        socket::send(socket.as_fd(), &Setup { link }.encode(), &[memory.as_fd()])
            .map_err(LinkError::io("sendmsg"))?;
        stop("setup.sent");
        Ok(Self { link, geometry, socket: LinkSocket::new(socket), own, peer: None })
    }

    /// Takes the peer's outbox if it has come, and says whether it has. Does not block.
    ///
    /// # Errors
    /// Everything but [`LinkError::TimedOut`] and what concerns messages.
    pub fn poll(&mut self) -> Result<bool, LinkError> {
        if self.peer.is_some() {
            return Ok(true);
        }
        let mut buffer = [0; Setup::BYTES + 1];
        let packet = match socket::receive(self.socket.as_fd(), &mut buffer, false) {
            Ok(packet) => packet,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(LinkError::io("recvmsg")(e)),
        };
        let memory = match self.check(&packet, &buffer) {
            Ok(()) => memory::accept(packet.fds[0].as_fd(), self.geometry).map_err(Into::into),
            Err(why) => Err(why),
        };
        if memory.is_err() {
            // Whatever that is, it is closed where that may take its time.
            socket::discard(packet.fds);
        }
        self.peer = Some(Arc::new(memory?));
        self.socket.refuse_descriptors().map_err(LinkError::io("recvmsg"))?;
        Ok(true)
    }

    fn check(&self, packet: &socket::Packet, buffer: &[u8]) -> Result<(), LinkError> {
        if packet.len == 0 {
            return Err(LinkError::Dead);
        }
        if packet.truncated {
            return Err(LinkError::SetupShape("too long, or too many descriptors"));
        }
        let setup = Setup::decode(&buffer[..packet.len])?;
        if setup.link != self.link {
            return Err(LinkError::SetupShape("of another link"));
        }
        match packet.fds.len() {
            1 => Ok(()),
            _ => Err(LinkError::SetupShape("without exactly one descriptor")),
        }
    }

    /// The parts of the link, once [`Pending::poll`] has said true.
    pub fn into_ends(self) -> Option<Ends> {
        let (own, peer, geometry) = (self.own, self.peer?, self.geometry);
        Some(Ends {
            link: self.link,
            producer: Producer::new(geometry, Arc::clone(&own), Arc::clone(&peer)),
            consumer: Consumer::new(geometry, Arc::clone(&own), Arc::clone(&peer)),
            bell: Arc::new(Bell::new(self.socket, own, peer)),
        })
    }

    /// Waits for the peer's outbox.
    ///
    /// # Errors
    /// As [`Pending::poll`], and [`LinkError::TimedOut`].
    pub fn wait(mut self, deadline: Instant) -> Result<Ends, LinkError> {
        loop {
            if self.poll()? {
                return Ok(self.into_ends().expect("poll said so"));
            }
            if !socket::wait_readable(self.socket.as_fd(), deadline)
                .map_err(LinkError::io("poll"))?
            {
                return Err(LinkError::TimedOut);
            }
        }
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Pending {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

/// The parts of an open link, for those who wait in their own way.
pub struct Ends {
    /// The link's number.
    pub link: u64,
    /// The ring this side writes.
    pub producer: Producer,
    /// The ring this side reads.
    pub consumer: Consumer,
    /// The socket and what belongs to waiting.
    pub bell: Arc<Bell>,
}

/// Both ends of a fresh link in this process, for tests and benchmarks.
///
/// # Errors
/// As [`Pending::start`] and [`Pending::wait`].
pub fn local_pair(geometry: Geometry) -> Result<(Ends, Ends), LinkError> {
    let (a, b) = socket::pair().map_err(LinkError::io("socketpair"))?;
    let mut a = Pending::start(1, geometry, memory::create(geometry)?, a)?;
    let mut b = Pending::start(1, geometry, memory::create(geometry)?, b)?;
    let (a_open, b_open) = (a.poll()?, b.poll()?);
    debug_assert!(a_open && b_open);
    let missing = || LinkError::SetupShape("missing");
    Ok((a.into_ends().ok_or_else(missing)?, b.into_ends().ok_or_else(missing)?))
}
