//! Sockets that a hostile process would make.

use std::os::fd::OwnedFd;
use std::time::Duration;

/// A TCP socket whose last close(2) takes so long, and the end that makes it so.
///
/// # Errors
/// Those of the sockets' system calls.
pub fn lingering(linger: Duration) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let slow = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&slow, Some(linger))?;
    slow.set_nonblocking(true)?;
    while std::io::Write::write(&mut &slow, &[0; 64 * 1024]).is_ok() {}
    slow.set_nonblocking(false)?;
    Ok((slow.into(), other.into()))
}
