//! A coordinator as processes of an older release have it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::control::{Message, SessionMessage};
use partywall_abi::limits;
use partywall_abi::version::Capabilities;
use partywall_shm::socket;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::control::Conversation;

/// A socket beside a coordinator's: whoever connects to it has no capability in that coordinator's eyes.
/// What is said both ways passes it as it is otherwise. It serves the process that makes it alone: the
/// coordinator takes who speaks for that one.
pub struct Older {
    /// Where it is.
    pub socket: PathBuf,
    listener: Arc<OwnedFd>,
    _dir: tempfile::TempDir,
}

impl Older {
    /// Beside the socket of a coordinator.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn beside(coordinator: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("older.sock");
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let listener = rustix::net::socket_with(family, SocketType::SEQPACKET, flags, None);
        let listener = Arc::new(listener.expect("a socket"));
        let address = SocketAddrUnix::new(&at).expect("a short path");
        rustix::net::bind(&*listener, &address).expect("a path of its own");
        rustix::net::listen(&*listener, 16).expect("a socket that is bound");
        let (accepts, coordinator) = (Arc::clone(&listener), coordinator.to_owned());
        std::thread::spawn(move || {
            // Until it is shut down.
            while let Ok(process) = rustix::net::accept_with(&*accepts, flags) {
                let coordinator = Conversation::connect(&coordinator).expect("a coordinator");
                let both = Arc::new((process, coordinator));
                let other = Arc::clone(&both);
                std::thread::spawn(move || pass_on(both.0.as_fd(), both.1.as_fd(), without));
                std::thread::spawn(move || pass_on(other.1.as_fd(), other.0.as_fd(), |_| None));
            }
        });
        Self { socket: at, listener, _dir: dir }
    }
}

impl Drop for Older {
    fn drop(&mut self) {
        let _ended = rustix::net::shutdown(&*self.listener, Shutdown::Both);
    }
}

/// The proof of a process that has no capabilities.
fn without(packet: &[u8]) -> Option<Vec<u8>> {
    let Ok(Message::Session(SessionMessage::Proof { versions, version, nonce, .. })) =
        Message::decode(packet)
    else {
        return None;
    };
    let capabilities = Capabilities::NONE;
    let proof = SessionMessage::Proof { versions, version, capabilities, nonce };
    Some(Message::from(proof).encode())
}

/// Passes packets with their descriptors on, until either socket has ended, and ends both.
fn pass_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>, change: fn(&[u8]) -> Option<Vec<u8>>) {
    let mut buffer = vec![0; limits::CONTROL_BYTES];
    loop {
        let soon = Instant::now() + Duration::from_secs(60);
        match socket::wait_readable(from, soon) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(_) => break,
        }
        let packet = match socket::receive(from, &mut buffer) {
            Ok(packet) if packet.len > 0 => packet,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            _ => break,
        };
        let bytes = &buffer[..packet.len];
        let changed = change(bytes);
        let bytes = changed.as_deref().unwrap_or(bytes);
        let descriptors: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
        if !sent(to, bytes, &descriptors) {
            break;
        }
    }
    for socket in [from, to] {
        let _ended = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

/// Sends when there is room; false when there is nobody.
fn sent(to: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    loop {
        match socket::send(to, bytes, descriptors) {
            Ok(()) => return true,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return false,
        }
    }
}
