//! Admission to the bare link: the conversation with the coordinator that a program's library has, held
//! by hand, for a link without a channel on top.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use partywall_abi::control::Message;
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::link::Link;
use partywall_shm::setup::Pending;
use partywall_shm::socket;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::calls::partywall::{NAME, SOCKET, settle_waits};
use crate::contender::Result;
use crate::seat::Seat;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A control socket, on which this process has said who it is.
#[derive(Debug)]
pub struct Conversation(OwnedFd);

impl Conversation {
    fn open(path: &Path) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let this = Self(socket);
        let (Message::Challenge { version, nonce }, _) = this.next()? else {
            return Err("the coordinator has not asked for a proof".into());
        };
        this.say(&Message::Proof { version, nonce })?;
        match this.next()? {
            (Message::Welcome { .. }, _) => Ok(this),
            (other, _) => Err(refused(&other)),
        }
    }

    fn say(&self, message: &Message) -> Result<()> {
        Ok(socket::send(self.0.as_fd(), &message.encode(), &[])?)
    }

    fn next(&self) -> Result<(Message, Vec<OwnedFd>)> {
        if !socket::wait_readable(self.0.as_fd(), Instant::now() + PATIENCE)? {
            return Err("the coordinator does not answer".into());
        }
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        let packet = socket::receive(self.0.as_fd(), &mut buffer, false)?;
        Ok((Message::decode(&buffer[..packet.len])?, packet.fds.into_iter().collect()))
    }
}

fn refused(message: &Message) -> crate::contender::Fault {
    match message {
        Message::Refused { text, .. } => text.clone().into(),
        other => format!("the coordinator says {other:?}").into(),
    }
}

fn open(link: u64, geometry: Geometry, fds: Vec<OwnedFd>) -> Result<Link> {
    let [memory, socket] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| "not two descriptors")?;
    let pending = Pending::start(link, geometry, memory, socket)?;
    Ok(Link::new(pending.wait(Instant::now() + PATIENCE)?)?)
}

/// Client: asks the coordinator of the sample in `dir` for a link, and opens it.
///
/// # Errors
/// Those of the coordinator and of the link.
pub fn link(dir: &Path) -> Result<Link> {
    let conversation = Conversation::open(&dir.join(SOCKET))?;
    conversation.say(&Message::Connect { request: 1, name: ServiceName::new(NAME)? })?;
    match conversation.next()? {
        (Message::Linked { link, geometry, .. }, fds) => open(link, geometry, fds),
        (other, _) => Err(refused(&other)),
    }
}

/// Server: registers, says that it is ready, and opens the first link that it is offered. The
/// conversation is to stay as long as the link.
///
/// # Errors
/// Those of the coordinator and of the link.
pub fn serve(seat: &Seat) -> Result<(Link, Conversation)> {
    settle_waits(seat);
    let conversation = Conversation::open(&seat.dir().join(SOCKET))?;
    conversation.say(&Message::Register { request: 1, name: ServiceName::new(NAME)? })?;
    match conversation.next()? {
        (Message::Registered { .. }, _) => seat.ready(),
        (other, _) => return Err(refused(&other)),
    }
    match conversation.next()? {
        (Message::Offer { link, geometry, .. }, fds) => {
            Ok((open(link, geometry, fds)?, conversation))
        }
        (other, _) => Err(refused(&other)),
    }
}
