//! Where the coordinator is, and how a process proves itself to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use partywall_abi::control::{Message, SessionMessage};
use partywall_abi::limits;
use partywall_abi::version::{Capabilities, Versions};
use partywall_shm::socket::{self, Lingering};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::Error;
use crate::harden;
use crate::time;

/// How long connecting and the proof of identity may take at a path: another coordinator may be
/// there by then.
const AT_A_PATH: Duration = Duration::from_secs(5);
/// How long the proof may take at a socket that was handed over: who handed it over is there, however
/// busy, and there is no other socket.
const HANDED: Duration = Duration::from_secs(60);

/// Where the coordinator is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Path(PathBuf),
    Handed(i32),
    /// Where a coordinator takes operators' calls, by its own word, and as which user.
    Operators(PathBuf, u32),
}

/// A socket to a coordinator, to which this process has proven itself.
pub(super) struct Opened {
    pub(super) socket: Lingering,
    pub(super) said: Said,
}

/// What a coordinator says of itself.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// What it can do.
    pub(super) capabilities: Capabilities,
    /// Where it takes operators' calls, if not here.
    pub(super) operators: Option<Place>,
}

impl Place {
    /// Looks in the environment: a socket handed over, a path given, else the usual places.
    ///
    /// A set-user-ID program does not believe its environment: whoever started it has written it.
    pub(crate) fn find() -> Self {
        let number = socket::variable("PARTYWALL_FD");
        if let Some(n) = number.and_then(|n| n.to_str()?.parse().ok()) {
            return Self::Handed(n);
        }
        if let Some(path) = socket::variable("PARTYWALL_SOCKET") {
            return Self::Path(path.into());
        }
        let own = socket::variable("XDG_RUNTIME_DIR")
            .map(|d| Path::new(&d).join("partywall/coordinator.sock"));
        match own.filter(|p| p.exists()) {
            Some(path) => Self::Path(path),
            None => Self::Path("/run/partywall/coordinator.sock".into()),
        }
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Path(p) => p.display().to_string(),
            Self::Handed(n) => format!("descriptor {n} (PARTYWALL_FD)"),
            Self::Operators(p, _) => format!("{} (for operators)", p.display()),
        }
    }

    /// How long [`Place::open`] may block; as a rule it takes much less than one millisecond.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Path(_) | Self::Operators(..) => AT_A_PATH,
            Self::Handed(_) => HANDED,
        }
    }

    /// A socket to the coordinator, to which this process has proven itself. Two threads must not be here at
    /// once with one socket that was handed over.
    pub(super) fn open(&self, within: Duration) -> Result<Opened, Error> {
        let deadline = time::after(within);
        let nowhere = |source: std::io::Error| Error::NoCoordinator { place: self.shown(), source };
        let socket = Lingering::new(match self {
            Self::Handed(n) => socket::inherited(*n).map_err(nowhere)?,
            Self::Path(path) | Self::Operators(path, _) => {
                connect(path, deadline).map_err(nowhere)?
            }
        });
        let owner = socket::peer_credentials(socket.as_fd()).map_err(nowhere)?.uid;
        check_owner(self, owner)?;
        let said = self.prove(socket.as_fd(), deadline)?;
        Ok(Opened { socket, said })
    }

    /// The process's part of the proof of identity; what the coordinator says of itself.
    pub(super) fn prove(&self, socket: BorrowedFd<'_>, deadline: Instant) -> Result<Said, Error> {
        let never = |why: &str| Error::NotAdmitted { place: self.shown(), why: why.into() };
        let next = || match self.next(socket, deadline)? {
            Message::Session(SessionMessage::Refused { text, .. })
                if matches!(self, Self::Handed(_)) =>
            {
                Err(never(&text))
            }
            Message::Session(SessionMessage::Refused { code, text, .. }) => {
                Err(Error::refused(tonic::Code::from_i32(code.into()), text))
            }
            message => Ok(message),
        };
        let Message::Session(SessionMessage::Challenge {
            versions: theirs,
            capabilities: its_own,
            nonce,
        }) = next()?
        else {
            return Err(never("it does not begin with a challenge"));
        };
        let (versions, capabilities) = (Versions::OWN, Capabilities::OWN);
        let agreed = Versions::agree(versions, theirs);
        // Zero, where there is none, has the coordinator say so as well.
        let version = *agreed.as_ref().unwrap_or(&0);
        let proof = SessionMessage::Proof { versions, version, capabilities, nonce };
        // Where the coordinator has closed meanwhile, it has said why.
        let _closed = socket::send(socket, &Message::from(proof).encode(), &[]);
        agreed.map_err(|why| never(&why.to_string()))?;
        let mut said = Said { capabilities: its_own, operators: None };
        loop {
            match next()? {
                Message::Session(SessionMessage::Welcome { .. }) => return Ok(said),
                Message::Session(SessionMessage::Operators { path, uid }) => {
                    said.operators = Some(Self::Operators(path.into(), uid));
                }
                Message::Session(SessionMessage::Harden) => {
                    if harden::close() {
                        let hardened = Message::from(SessionMessage::Hardened);
                        let _closed = socket::send(socket, &hardened.encode(), &[]);
                    }
                }
                _ => return Err(never("it does not welcome after the proof")),
            }
        }
    }

    /// The coordinator's next message.
    fn next(&self, socket: BorrowedFd<'_>, deadline: Instant) -> Result<Message, Error> {
        let mut buffer = vec![0; limits::CONTROL_BYTES];
        loop {
            match socket::receive(socket, &mut buffer) {
                Ok(packet) if packet.len > 0 => {
                    return Ok(Message::decode(&buffer[..packet.len])?);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return Err(self.closed()),
            }
            if !socket::wait_readable(socket, deadline).unwrap_or(false) {
                return Err(Error::TimedOut(self.patience()));
            }
        }
    }

    /// The coordinator has closed the socket: another one may come at a path, and none to a socket
    /// that was handed over.
    fn closed(&self) -> Error {
        match self {
            Self::Path(_) | Self::Operators(..) => {
                Error::CoordinatorGone("it closed before it took this process in")
            }
            Self::Handed(_) => Error::NotAdmitted {
                place: self.shown(),
                why: "its end of the socket is closed".into(),
            },
        }
    }
}

/// Connects. Who connects waits in the order of their coming while the coordinator is busy.
fn connect(path: &Path, deadline: Instant) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    let timeout = rustix::net::sockopt::Timeout::Send;
    // A time of zero would be none.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(left))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(socket)
}

pub(super) fn check_owner(place: &Place, found: u32) -> Result<(), Error> {
    if let Place::Operators(_, uid) = place {
        let expected = format!("user {uid}, as the coordinator says");
        let wrong = Error::WrongCoordinator { place: place.shown(), found, expected };
        return if found == *uid { Ok(()) } else { Err(wrong) };
    }
    let own = rustix::process::geteuid().as_raw();
    let set = socket::variable("PARTYWALL_COORDINATOR_UID");
    let set = set.as_deref().map(std::ffi::OsStr::to_string_lossy);
    let (ok, expected) = match set.as_deref().map(|text| (text, text.parse::<u32>())) {
        Some((_, Ok(uid))) => (found == uid, format!("user {uid}")),
        Some((text, Err(_))) => {
            (false, format!("a number in PARTYWALL_COORDINATOR_UID, which is `{text}`"))
        }
        None if own == 0 => (found == 0, "user 0".to_string()),
        None => (found == own || found == 0, format!("user {own} or 0")),
    };
    if ok {
        return Ok(());
    }
    Err(Error::WrongCoordinator { place: place.shown(), found, expected })
}
