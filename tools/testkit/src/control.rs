//! The control protocol, spoken by hand: what a program's library says to the coordinator, for tests
//! and benches that want to say less, more, or something else.
//!
//! ```text
//! Conversation::connect --prove--> may ask for anything that the policy lets it
//! server  adopt (an offer) ... open (after the caller has filled the link)
//! caller  fill (what it was given) ... poll or wait
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use partywall_abi::control::{Identity, LinkMessage, Message, SessionMessage, Terms};
use partywall_abi::limits;
use partywall_abi::version::{Capabilities, Versions};
use partywall_shm::link::Ends;
use partywall_shm::setup::{Adopted, Pending};
use partywall_shm::socket::{self, Endpoint, Packet, Passed};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What went wrong.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;
/// A result of this crate's.
pub type Result<T> = std::result::Result<T, Fault>;

/// One control socket.
#[derive(Debug)]
pub struct Conversation {
    socket: OwnedFd,
    you: Option<Identity>,
}

/// The proof of a process of this release, but for one thing: it is not to be told to harden itself.
pub fn proof(nonce: [u8; 16]) -> Message {
    let (versions, version) = (Versions::OWN, partywall_abi::VERSION);
    let harden = Capabilities::HARDEN.bits();
    let capabilities = Capabilities::from_bits(Capabilities::OWN.bits() & !harden);
    SessionMessage::Proof { versions, version, capabilities, nonce }.into()
}

impl From<OwnedFd> for Conversation {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, you: None }
    }
}

impl AsFd for Conversation {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Conversation {
    /// Connects, and says nothing. As a program's library it waits in turn for a busy coordinator.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(path: &Path) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self::from(socket))
    }

    /// Connects and proves who this process is.
    ///
    /// # Errors
    /// When the coordinator does not welcome it.
    pub fn open(path: &Path) -> Result<Self> {
        let mut this = Self::connect(path)?;
        this.prove()?;
        Ok(this)
    }

    /// Proves who this process is.
    ///
    /// # Errors
    /// When the coordinator does not welcome it.
    pub fn prove(&mut self) -> Result<()> {
        let nonce = self.challenge()?;
        self.say(&proof(nonce))?;
        loop {
            match self.next()?.0 {
                // Of a coordinator that has another socket for operators.
                Message::Session(SessionMessage::Operators { .. }) => {}
                Message::Session(SessionMessage::Welcome { you }) => self.you = Some(you),
                other => return Err(unexpected(&other)),
            }
            if self.you.is_some() {
                return Ok(());
            }
        }
    }

    /// Whom the coordinator takes this process for.
    ///
    /// # Panics
    /// Before the proof.
    pub fn you(&self) -> &Identity {
        self.you.as_ref().expect("proven")
    }

    /// Waits to be asked who this is; the nonce.
    ///
    /// # Errors
    /// When something else comes.
    pub fn challenge(&self) -> Result<[u8; 16]> {
        match self.next()?.0 {
            Message::Session(SessionMessage::Challenge { nonce, .. }) => Ok(nonce),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends, and waits while the coordinator does not read.
    ///
    /// # Errors
    /// Those of sendmsg(2); none of ten seconds without room.
    pub fn say(&self, message: &Message) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.try_say(message)? {
            if Instant::now() > deadline {
                return Err("the coordinator does not read".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends; false when there is no room.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn try_say(&self, message: &Message) -> Result<bool> {
        match socket::send(self.as_fd(), &message.encode(), &[]) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// What is there now; nothing after a hang-up.
    ///
    /// # Errors
    /// Those of recvmsg(2), EAGAIN (`WouldBlock`) too.
    ///
    /// # Panics
    /// At a packet that is no message.
    pub fn now(&self) -> std::io::Result<Option<(Message, Vec<Passed>)>> {
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        let packet: Packet = socket::receive(self.as_fd(), &mut buffer)?;
        if packet.len == 0 {
            return Ok(None);
        }
        let message = Message::decode(&buffer[..packet.len]).expect("the coordinator's messages");
        Ok(Some((message, packet.fds)))
    }

    /// What comes next.
    ///
    /// # Errors
    /// When nothing comes, or a hang-up.
    pub fn next(&self) -> Result<(Message, Vec<Passed>)> {
        Ok(self.next_or_end()?.ok_or("the coordinator has closed the connection")?)
    }

    /// What comes next; nothing after a hang-up.
    ///
    /// # Errors
    /// When nothing comes.
    pub fn next_or_end(&self) -> Result<Option<(Message, Vec<Passed>)>> {
        if !socket::wait_readable(self.as_fd(), Instant::now() + PATIENCE)? {
            return Err("the coordinator does not answer".into());
        }
        match self.now() {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            other => Ok(other?),
        }
    }

    /// A server's part of the next link, which it has been offered; says that it has adopted it.
    ///
    /// # Errors
    /// When something else comes.
    pub fn adopt(&self) -> Result<Adopted> {
        let (terms, own, end) = self.offered()?;
        let adopted = Adopted::new(terms.link, terms.geometry, own, end)?;
        self.say(&Message::Link(LinkMessage::Adopted {
            link: terms.link,
            security: terms.security,
        }))?;
        Ok(adopted)
    }

    /// A server's part of the next link as it comes: its own outbox, its end.
    ///
    /// # Errors
    /// When something else comes.
    pub fn offered(&self) -> Result<(Terms, OwnedFd, Endpoint)> {
        let (terms, fds) = match self.next()? {
            (Message::Link(LinkMessage::Offer { terms, .. }), fds) => (terms, fds),
            (other, _) => return Err(unexpected(&other)),
        };
        let [own, end] = parts(fds)?;
        Ok((terms, own.memory()?, end.endpoint()))
    }

    /// A server's part of all links, until the coordinator says nothing for a while: adopts and opens each,
    /// and hands it over.
    ///
    /// # Errors
    /// When the coordinator goes, or a link cannot be made.
    pub fn serve(&self, mut take: impl FnMut(Ends)) -> Result<()> {
        let mut adopted = Vec::new();
        while let Some((message, fds)) = self.next_or_end()? {
            match message {
                Message::Link(LinkMessage::Offer { terms, .. }) => {
                    let [own, end] = parts(fds)?;
                    let (link, security) = (terms.link, terms.security);
                    adopted.push(Adopted::new(
                        link,
                        terms.geometry,
                        own.memory()?,
                        end.endpoint(),
                    )?);
                    self.say(&Message::Link(LinkMessage::Adopted { link, security }))?;
                }
                Message::Link(LinkMessage::Open { link, .. }) => {
                    let [callers] = parts(fds)?;
                    let at = adopted.iter().position(|adopted| adopted.link() == link);
                    let at = at.ok_or("a link that was not adopted")?;
                    take(adopted.remove(at).open(callers.memory()?)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A caller's part of the next link that it has asked for; says that it has filled it.
    ///
    /// # Errors
    /// When something else comes, the refusal too.
    pub fn fill(&self) -> Result<(u64, Pending)> {
        let (terms, own, servers, end) = self.linked()?;
        let pending = Pending::new(terms.link, terms.geometry, own, servers, end)?;
        self.say(&Message::Link(LinkMessage::Adopted {
            link: terms.link,
            security: terms.security,
        }))?;
        Ok((terms.link, pending))
    }

    /// A caller's part of the next link as it comes: its own outbox, the server's, its end.
    ///
    /// # Errors
    /// When something else comes, the refusal too.
    pub fn linked(&self) -> Result<(Terms, OwnedFd, OwnedFd, Endpoint)> {
        let (terms, fds) = match self.next()? {
            (Message::Link(LinkMessage::Linked { terms, .. }), fds) => (terms, fds),
            (other, _) => return Err(unexpected(&other)),
        };
        let [own, servers, end] = parts(fds)?;
        Ok((terms, own.memory()?, servers.memory()?, end.endpoint()))
    }

    /// The caller's outbox of an adopted link that the caller has filled now.
    ///
    /// # Errors
    /// When something else comes.
    pub fn opened(&self) -> Result<(u64, OwnedFd)> {
        match self.next()? {
            (Message::Link(LinkMessage::Open { link, .. }), fds) => {
                let [callers] = parts(fds)?;
                Ok((link, callers.memory()?))
            }
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// A link of `caller`'s, which it asks for, made the whole way: its number, the caller's and the
/// server's ends.
///
/// # Errors
/// When something else comes to either.
pub fn open(
    caller: &Conversation,
    server: &Conversation,
    connect: &Message,
) -> Result<(u64, Ends, Ends)> {
    caller.say(connect)?;
    let adopted = server.adopt()?;
    let (link, pending) = caller.fill()?;
    let (_, callers) = server.opened()?;
    let served = adopted.open(callers)?;
    Ok((link, pending.wait(Instant::now() + PATIENCE)?, served))
}

fn parts<const N: usize>(fds: Vec<Passed>) -> Result<[Passed; N]> {
    fds.try_into().map_err(|fds: Vec<_>| format!("{} descriptors, not {N}", fds.len()).into())
}

fn unexpected(message: &Message) -> Fault {
    match message {
        Message::Session(SessionMessage::Refused { code, text, .. }) => {
            format!("refused with code {code}: {text}").into()
        }
        other => format!("the coordinator says {other:?}").into(),
    }
}
