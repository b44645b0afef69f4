//! Opening a link.
//!
//! The coordinator makes both outboxes and the socket pair; see [`crate::memory`] for who pays and
//! who can write. The server comes first, so that a caller is never given an outbox that somebody
//! else could still open for writing:
//!
//! ```text
//! server    adopted   map own outbox, seal it; nothing is touched       [`Adopted::new`]
//! caller    filled    map own outbox, seal it; fill it and the server's [`Pending::new`]
//! server    open      both are whole: map the caller's, say Setup       [`Adopted::open`]
//! caller    open      Setup has come                                    [`Pending::poll`]
//! ```
//!
//! Between the steps each side tells the coordinator, which looks and tells the other one
//! ([`partywall_abi::control`]). A side that dies is seen by the coordinator until both are open,
//! which tells the other one; and by its hang-up on the link's socket. After `open` the
//! descriptors of memory are closed: a link holds one descriptor, its socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use partywall_abi::control::Setup;
use partywall_abi::layout::Geometry;

use crate::failpoint::failpoint;
use crate::link::{Ends, LinkError};
use crate::memory::{self, Handout};
use crate::region::{Inbox, Outbox};
use crate::ring::Producer;
use crate::socket::{self, Endpoint};

/// The server's end of a link whose caller is not ready yet.
pub struct Adopted {
    link: u64,
    geometry: Geometry,
    socket: Endpoint,
    own: Arc<Outbox>,
    /// To see whether it is whole.
    memory: OwnedFd,
}

impl Adopted {
    /// Maps and seals the server's outbox.
    ///
    /// # Errors
    /// [`LinkError::Outbox`].
    pub fn new(
        link: u64,
        geometry: Geometry,
        memory: OwnedFd,
        socket: Endpoint,
    ) -> Result<Self, LinkError> {
        let own = Arc::new(memory::adopt(memory.as_fd(), geometry)?);
        Ok(Self { link, geometry, socket, own, memory })
    }

    /// The link's number.
    pub fn link(&self) -> u64 {
        self.link
    }

    /// Opens the link with the caller's outbox.
    ///
    /// # Errors
    /// [`LinkError::Outbox`] when one of the two is not whole, or the caller's not sealed;
    /// [`LinkError::Dead`], [`LinkError::Io`].
    pub fn open(self, callers: OwnedFd) -> Result<Ends, LinkError> {
        self.open_after(callers, |_| Ok::<_, LinkError>(())).map(|(ends, ())| ends)
    }

    /// The same; before the caller is told that it is open, `before` takes what it has written, and answers.
    ///
    /// # Errors
    /// As [`Adopted::open`], and those of `before`.
    pub fn open_after<T, E: From<LinkError>>(
        self,
        callers: OwnedFd,
        before: impl FnOnce(&mut Ends) -> Result<T, E>,
    ) -> Result<(Ends, T), E> {
        let Self { link, geometry, socket, own, memory } = self;
        memory::whole(memory.as_fd(), geometry).map_err(LinkError::from)?;
        memory::whole(callers.as_fd(), geometry).map_err(LinkError::from)?;
        let peer = memory::accept(callers.as_fd(), geometry).map_err(LinkError::from)?;
        let peer = Arc::new(peer);
        memory::begun(&peer, geometry).map_err(LinkError::from)?;
        memory::begin(&own, geometry);
        let mut ends = Ends::new(link, geometry, socket, own, peer);
        let done = before(&mut ends)?;
        let sent = socket::send(ends.bell.as_fd(), &Setup { link }.encode(), &[]);
        sent.map_err(LinkError::io("sendmsg"))?;
        failpoint("setup.sent");
        Ok((ends, done))
    }
}

/// The caller's end of a link that its server has not opened yet.
pub struct Pending {
    link: u64,
    geometry: Geometry,
    socket: Endpoint,
    peer: Arc<Inbox>,
    own: Arc<Outbox>,
    producer: Producer,
    open: bool,
}

impl Pending {
    /// Maps and seals the caller's outbox, and fills both. Blocks for as long as the kernel takes to
    /// clear the pages: under a millisecond for a small link, some milliseconds for a wide one.
    ///
    /// # Errors
    /// [`LinkError::Outbox`].
    pub fn new(
        link: u64,
        geometry: Geometry,
        own: OwnedFd,
        servers: OwnedFd,
        socket: Endpoint,
    ) -> Result<Self, LinkError> {
        let outbox = Arc::new(memory::adopt(own.as_fd(), geometry)?);
        memory::fill_own(&outbox)?;
        memory::begin(&outbox, geometry);
        let peer = Arc::new(memory::accept(servers.as_fd(), geometry)?);
        memory::fill_peers(&peer)?;
        failpoint("setup.filled");
        let producer = Producer::new(geometry, Arc::clone(&outbox), Arc::clone(&peer));
        Ok(Self { link, geometry, socket, own: outbox, peer, producer, open: false })
    }

    /// The ring that this side writes: what is on it before the server opens the link is there for it then.
    pub fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Whether the server has opened the link. Does not block.
    ///
    /// # Errors
    /// Everything but [`LinkError::TimedOut`] and what concerns messages.
    pub fn poll(&mut self) -> Result<bool, LinkError> {
        if self.open {
            return Ok(true);
        }
        let mut buffer = [0; Setup::BYTES + 1];
        let packet = match self.socket.receive(&mut buffer) {
            Ok(packet) => packet,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(LinkError::io("recvmsg")(e)),
        };
        if packet.len == 0 {
            return Err(LinkError::Dead);
        }
        let setup = Setup::decode(&buffer[..packet.len])?;
        if setup.link != self.link {
            return Err(LinkError::SetupShape("of another link"));
        }
        memory::begun(&self.peer, self.geometry)?;
        self.open = true;
        Ok(true)
    }

    /// The parts of the link, once [`Pending::poll`] has said true.
    pub fn into_ends(self) -> Option<Ends> {
        let Self { link, geometry, socket, own, peer, producer, open } = self;
        open.then(|| Ends { producer, ..Ends::new(link, geometry, socket, own, peer) })
    }

    /// Waits until the server has opened the link.
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

/// Both ends of a fresh link in this process, the caller's first: for tests, benchmarks and pairs
/// without a coordinator.
///
/// # Errors
/// As [`Pending::new`] and [`Adopted::open`].
pub fn local_pair(geometry: Geometry) -> Result<(Ends, Ends), LinkError> {
    let (a, b) = socket::link_pair().map_err(LinkError::io("socketpair"))?;
    let (callers, servers) = (memory::create(geometry)?, memory::create(geometry)?);
    let Handout { writer, reader, .. } = servers;
    let server = Adopted::new(1, geometry, writer, b.endpoint())?;
    let mut caller = Pending::new(1, geometry, callers.writer, reader, a.endpoint())?;
    let server = server.open(callers.reader)?;
    let open = caller.poll()?;
    debug_assert!(open, "the server has said so");
    Ok((caller.into_ends().ok_or(LinkError::SetupShape("missing"))?, server))
}
