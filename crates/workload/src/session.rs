//! The conversation with the coordinator about one workload, in the control protocol.
//!
//! This end is given by the coordinator, and is closed by it when the workload's process ends, has not
//! answered in time or is not admitted.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use partywall_abi::control::{Message, SessionMessage};
use partywall_abi::limits;
use partywall_abi::version::{Capabilities, Versions};
use partywall_shm::socket;
use tokio::io::unix::AsyncFd;

use crate::io::watch;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The workload, or its socket.
    #[error("{0}")]
    Workload(#[from] io::Error),
    /// The coordinator has not admitted it.
    #[error("not admitted: {0}")]
    Refused(String),
    /// The coordinator has closed it, or has ended.
    #[error("the coordinator has closed it: {0}")]
    Coordinator(String),
    /// HTTP/2.
    #[error("HTTP/2: {0}")]
    Http(String),
}

fn gone(why: impl ToString) -> Ended {
    Ended::Coordinator(why.to_string())
}

/// The conversation.
pub(crate) struct Session {
    fd: AsyncFd<OwnedFd>,
}

/// Sixteen bytes that only the coordinator and whoever it has asked know.
pub(crate) type Nonce = [u8; 16];

impl Session {
    pub(crate) fn new(end: OwnedFd) -> Result<Self, Ended> {
        let fd = watch(end).map_err(gone)?;
        Ok(Self { fd })
    }

    /// What the coordinator says next. A call that is given up loses nothing.
    pub(crate) async fn next(&self) -> Result<Message, Ended> {
        loop {
            let mut ready = self.fd.readable().await.map_err(gone)?;
            // Few come, and many connections wait.
            let mut buffer = vec![0; limits::CONTROL_BYTES];
            let received = ready.try_io(|fd| socket::receive(fd.get_ref().as_fd(), &mut buffer));
            let Ok(received) = received else { continue };
            let packet = received.map_err(gone)?;
            return match packet.len {
                0 => Err(gone("the end of the socket")),
                len => Message::decode(&buffer[..len]).map_err(gone),
            };
        }
    }

    pub(crate) async fn send(&self, message: impl Into<Message>) -> Result<(), Ended> {
        let packet = message.into().encode();
        loop {
            let mut ready = self.fd.writable().await.map_err(gone)?;
            let sent = ready.try_io(|fd| socket::send(fd.get_ref().as_fd(), &packet, &[]));
            if let Ok(sent) = sent {
                return sent.map_err(gone);
            }
        }
    }

    /// Its facts have been read: what it has to answer.
    pub(crate) async fn challenged(&self) -> Result<Nonce, Ended> {
        loop {
            match self.next().await? {
                Message::Session(SessionMessage::Challenge { nonce, .. }) => return Ok(nonce),
                other => refused(other)?,
            }
        }
    }

    /// Only what ends it is to be heard now: why.
    pub(crate) async fn refused(&self) -> Ended {
        loop {
            match self.next().await {
                Ok(message) => {
                    if let Err(why) = refused(message) {
                        return why;
                    }
                }
                Err(why) => return why,
            }
        }
    }

    /// It has answered. Returns once it is admitted.
    pub(crate) async fn prove(&self, nonce: Nonce) -> Result<(), Ended> {
        let (versions, capabilities) = (Versions::OWN, Capabilities::NONE);
        let version = Versions::agree(versions, versions).map_err(gone)?;
        self.send(SessionMessage::Proof { versions, version, capabilities, nonce }).await?;
        loop {
            match self.next().await? {
                Message::Session(SessionMessage::Welcome { .. }) => return Ok(()),
                other => refused(other)?,
            }
        }
    }
}

/// What is said of the whole conversation.
fn refused(message: Message) -> Result<(), Ended> {
    match message {
        Message::Session(SessionMessage::Refused { request: 0, text, .. }) => {
            Err(Ended::Refused(text))
        }
        _ => Ok(()),
    }
}
