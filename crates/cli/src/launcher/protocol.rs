//! What `up` and its launcher say to each other.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use partywall_shm::socket::{self, Passed};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest message, in bytes; more than a socket takes in one packet by default is of no use.
pub(super) const LONGEST: usize = 128 * 1024;

/// To the launcher. Descriptors: the sealed image, the coordinator's socket, and what becomes standard
/// output and standard error.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Its number.
    pub(super) service: u32,
    /// `argv`, from `argv[0]` on.
    pub(super) args: Vec<String>,
    /// The whole environment.
    pub(super) environment: Vec<(String, String)>,
    /// Working directory.
    pub(super) directory: PathBuf,
}

/// From the launcher.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// It can hold domains.
    Ready {
        /// What keeps them apart, by its name.
        isolation: String,
    },
    /// It cannot.
    Unfit {
        /// Why.
        text: String,
    },
    /// A domain runs. Descriptor: its pidfd.
    Started {
        /// Its number.
        service: u32,
        /// Its process number.
        pid: u32,
    },
    /// A domain did not start.
    Failed {
        /// Its number.
        service: u32,
        /// Why.
        text: String,
    },
    /// A domain is gone.
    Ended(Ended),
}

/// How a domain ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// Its number.
    pub(super) service: u32,
    /// Its wait status; none when it was ended because a call in it was cut off.
    pub(super) status: Option<i32>,
    /// Whether a call in it was cut off.
    pub(super) poisoned: bool,
    /// Calls into it.
    pub(super) calls: u64,
    /// System calls that were forwarded for them.
    pub(super) forwards: u64,
    /// Time spent in them, in ticks of the time stamp counter.
    pub(super) ticks: u64,
    /// Time that its own threads have spent in calls to others, in the same ticks.
    pub(super) away: u64,
}

/// A message as a packet.
///
/// # Errors
/// How long it is, when that is too long.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, usize> {
    let packet = serde_json::to_vec(message).expect("texts and numbers");
    if packet.len() > LONGEST { Err(packet.len()) } else { Ok(packet) }
}

/// The next message and its descriptors; none when the other side has hung up.
///
/// # Errors
/// What recvmsg(2) says (`WouldBlock` when nothing is there); `InvalidData` for what is no message.
pub(super) fn receive<T: DeserializeOwned>(
    from: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; LONGEST];
    let packet = match socket::receive(from, &mut buffer) {
        Ok(packet) => packet,
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        Err(e) => return Err(e),
    };
    if packet.len == 0 {
        return Ok(None);
    }
    if packet.truncated || packet.stripped {
        let text = "a message is too long, or there is no room for its descriptors (`ulimit -n`)";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let message = serde_json::from_slice(&buffer[..packet.len])?;
    // From `up`, or from the launcher that it has started: sockets to the coordinator and memory.
    let fds = packet.fds.into_iter().map(Passed::trusted).collect();
    Ok(Some((message, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_and_their_descriptors_arrive() {
        let (a, b) = socket::pair().unwrap();
        let start = Start {
            service: 3,
            args: vec!["a".into(), "b c".into()],
            environment: vec![("K".into(), "v=w".into())],
            directory: "/tmp".into(),
        };
        socket::send(a.as_fd(), &encode(&start).unwrap(), &[a.as_fd(), b.as_fd()]).unwrap();
        let (got, fds) = receive::<Start>(b.as_fd()).unwrap().unwrap();
        assert_eq!((got, fds.len()), (start, 2));
        drop(fds);
        assert_eq!(receive::<Start>(b.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let ended = Ended {
            service: 3,
            status: Some(9),
            poisoned: true,
            calls: 1,
            forwards: 2,
            ticks: u64::MAX,
            away: u64::MAX,
        };
        for report in [
            Report::Ready { isolation: "protection-keys".into() },
            Report::Unfit { text: "x".into() },
            Report::Started { service: 1, pid: 2 },
            Report::Failed { service: 1, text: "y".into() },
            Report::Ended(ended),
        ] {
            socket::send(b.as_fd(), &encode(&report).unwrap(), &[]).unwrap();
            assert_eq!(receive::<Report>(a.as_fd()).unwrap().unwrap().0, report);
        }
        socket::send(b.as_fd(), b"{}", &[]).unwrap();
        assert!(receive::<Report>(a.as_fd()).is_err());
        drop(b);
        assert!(receive::<Report>(a.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let start = Start {
            service: 3,
            args: vec!["x".repeat(LONGEST)],
            environment: Vec::new(),
            directory: "/".into(),
        };
        assert!(encode(&start).unwrap_err() > LONGEST);
        // What is not too long fits a socket's buffer.
        let (a, b) = socket::pair().unwrap();
        socket::send(a.as_fd(), &[b' '; LONGEST], &[]).unwrap();
        assert!(receive::<Start>(b.as_fd()).is_err());
    }
}
