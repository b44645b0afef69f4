#![allow(unsafe_code, reason = "ancillary data that rustix does not know: SCM_PIDFD")]
//! `SOCK_SEQPACKET` Unix sockets: packets, descriptors, and who sent them.
//!
//! See unix(7). Every receive bounds the descriptors it takes; what does not fit is closed by the
//! kernel and reported as [`Packet::truncated`]. Nothing here blocks unless its name says so.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use partywall_abi::limits;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Since Linux 6.5; not in the libc crate for every target yet.
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PEERPIDFD: libc::c_int = 77;
const SCM_PIDFD: libc::c_int = 4;

/// What the kernel says of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process, zero when this PID namespace cannot see it.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// One received packet.
#[derive(Debug, Default)]
pub struct Packet {
    /// Length of the data in the caller's buffer.
    pub len: usize,
    /// Data or descriptors did not fit and are lost.
    pub truncated: bool,
    /// Descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// Sender, when the socket was set to [`pass_credentials`].
    pub credentials: Option<Credentials>,
    /// Sender as a pidfd, when the kernel can (6.5) and the socket was set so.
    pub pidfd: Option<OwnedFd>,
}

/// A connected pair, close-on-exec and non-blocking.
///
/// # Errors
/// What socketpair(2) says.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Sends one packet, or fails at once.
///
/// # Errors
/// What sendmsg(2) says: EAGAIN when the buffer is full, EPIPE when the peer has hung up.
pub fn send(socket: BorrowedFd<'_>, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space =
        [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(limits::CONTROL_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[io::IoSlice::new(data)], &mut ancillary, flags)?;
    Ok(())
}

/// Rings: one byte, without waiting.
///
/// A full buffer means that bells are waiting to be read, so the peer is being woken already.
///
/// # Errors
/// What send(2) says, EPIPE or ECONNRESET when the peer has hung up.
pub fn ring(socket: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::net::send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads up to `most` bells, whatever they say, and returns how many there were.
///
/// One system call per 32 of them.
///
/// # Errors
/// What recvmmsg(2) says; `UnexpectedEof` when the peer has hung up, `InvalidData` when a
/// descriptor came with a bell: no room is given for it, so the kernel has closed it.
pub fn drain(socket: BorrowedFd<'_>, most: u32) -> io::Result<u32> {
    const BATCH: usize = 32;
    let mut byte = 0_u8;
    let mut into = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let mut total = 0;
    while total < most {
        // SAFETY: all zero is a valid mmsghdr: no name, no buffers, no control data.
        let mut packets: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for packet in &mut packets {
            packet.msg_hdr.msg_iov = &raw mut into;
            packet.msg_hdr.msg_iovlen = 1;
        }
        let want = BATCH.min((most - total) as usize);
        // SAFETY: `packets` has `want` headers, each with one buffer, `byte`, that outlives the
        // call; that they share it only means that it ends up with the last one's content.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                packets.as_mut_ptr(),
                want as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if got < 0 {
            return match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(total),
                e if e.kind() == io::ErrorKind::Interrupted => continue,
                e => Err(e),
            };
        }
        let packets = &packets[..got as usize];
        if packets.iter().any(|p| p.msg_hdr.msg_flags & libc::MSG_CTRUNC != 0) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A hang-up reads as an empty packet; bells are not empty.
        if packets.iter().any(|p| p.msg_len == 0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        total += got as u32;
        if (got as usize) < want {
            return Ok(total);
        }
    }
    Ok(total)
}

/// Receives one packet into `buffer`; `wait` allows it to block.
///
/// A packet of length zero with nothing else means that the peer has hung up.
///
/// # Errors
/// What recvmsg(2) says; EAGAIN (`WouldBlock`) when nothing is there.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: bool) -> io::Result<Packet> {
    // Room for the descriptors, credentials and a pidfd, aligned for the headers.
    let mut control = [0_u64; 16];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: `message` points at live buffers of the lengths it states.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut packet = Packet { len: len as usize, ..Packet::default() };
    // SAFETY: the kernel filled `control` and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !header.is_null() {
        take_ancillary(header, &mut packet);
        // SAFETY: `header` came from the same message.
        header = unsafe { libc::CMSG_NXTHDR(&message, header) };
    }
    packet.truncated = message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
    Ok(packet)
}

fn take_ancillary(header: *const libc::cmsghdr, packet: &mut Packet) {
    // SAFETY: a header that CMSG_FIRSTHDR or CMSG_NXTHDR returned is whole.
    let (level, kind, len) = unsafe {
        let h = header.read_unaligned();
        (h.cmsg_level, h.cmsg_type, h.cmsg_len)
    };
    // SAFETY: as above.
    let data = unsafe { libc::CMSG_DATA(header) };
    let bytes = len - (data as usize - header as usize);
    let fd_at = |i: usize| {
        // SAFETY: the kernel wrote `bytes` bytes of descriptors, and i * 4 + 4 <= bytes.
        let at = unsafe { data.cast::<libc::c_int>().add(i) };
        // SAFETY: as above; of any alignment.
        let raw = unsafe { at.read_unaligned() };
        // SAFETY: a descriptor that was just received belongs to nobody else.
        (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) })
    };
    match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_RIGHTS) => packet.fds.extend((0..bytes / 4).filter_map(fd_at)),
        (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= 4 => packet.pidfd = fd_at(0),
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
            // SAFETY: the kernel wrote a ucred there.
            let c = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            packet.credentials =
                Some(Credentials { pid: c.pid.max(0) as u32, uid: c.uid, gid: c.gid });
        }
        _ => {}
    }
}

/// Asks the kernel to say with each packet who sent it; with a pidfd too where it can.
///
/// # Errors
/// What setsockopt(2) says of `SO_PASSCRED`.
pub fn pass_credentials(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::sockopt::set_socket_passcred(socket, true)?;
    let on: libc::c_int = 1;
    // SAFETY: an int of the stated size. Kernels before 6.5 say ENOPROTOOPT, and then packets
    // come without a pidfd, which receivers see.
    let _maybe = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    Ok(())
}

/// The process that created the peer's end (called connect, listen or socketpair).
///
/// # Errors
/// What getsockopt(2) says.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut c = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&c) as libc::socklen_t;
    // SAFETY: a ucred of the stated size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut c).cast(),
            &mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // rustix refuses a pid of zero, which is what an unreachable PID namespace gives.
    Ok(Credentials { pid: c.pid.max(0) as u32, uid: c.uid, gid: c.gid })
}

/// The same process as a pidfd; none before Linux 6.5, or when it is gone.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut raw: libc::c_int = -1;
    let mut len = size_of_val(&raw) as libc::socklen_t;
    // SAFETY: an int of the stated size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut raw).cast(),
            &mut len,
        )
    };
    // SAFETY: a descriptor that was just made belongs to nobody else.
    (done == 0 && raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Whether two pidfds name the same process.
///
/// Kernels from 6.9 number pidfds by process (pidfs); before, descriptors of one process cannot
/// be told from those of another, and the answer is `None`.
pub fn same_process(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Option<bool> {
    let id = |fd: BorrowedFd<'_>| {
        let fs = rustix::fs::fstatfs(fd).ok()?;
        let stat = rustix::fs::fstat(fd).ok()?;
        (fs.f_type as u64 == PIDFS_MAGIC).then_some((stat.st_dev, stat.st_ino))
    };
    Some(id(a)? == id(b)?)
}

/// `f_type` of pidfs, from linux/magic.h.
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// Whether the process of a pidfd has not ended yet. A pidfd is readable from the end on.
pub fn alive(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// Takes over a descriptor that was inherited under a number, checking that it is a Unix
/// `SOCK_SEQPACKET` socket, and makes it close-on-exec.
///
/// # Errors
/// When no such descriptor is open or it is something else.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_string());
    if number <= 2 {
        return Err(wrong("a socket is never handed over as descriptor 0, 1 or 2"));
    }
    // SAFETY: only borrowed for the checks below, which fail when it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let kind = rustix::net::sockopt::socket_type(borrowed)?;
    let family = rustix::net::sockopt::socket_domain(borrowed)?;
    if kind != SocketType::SEQPACKET || family != AddressFamily::UNIX {
        return Err(wrong("not a Unix SOCK_SEQPACKET socket"));
    }
    // A copy is owned by the caller; the inherited number itself stays open, so that a wrong
    // number in the environment can never close somebody else's descriptor.
    let copy = rustix::io::fcntl_dupfd_cloexec(borrowed.as_fd(), 3)?;
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::PidfdFlags;

    #[test]
    fn a_packet_carries_descriptors_and_its_sender() {
        let (a, b) = pair().unwrap();
        pass_credentials(b.as_fd()).unwrap();
        send(a.as_fd(), b"hello", &[a.as_fd(), b.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let p = receive(b.as_fd(), &mut buffer, false).unwrap();
        assert_eq!((&buffer[..p.len], p.fds.len(), p.truncated), (&b"hello"[..], 2, false));
        let me = std::process::id();
        assert_eq!(p.credentials.unwrap().pid, me);
        let mine =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        assert!(alive(mine.as_fd()));
        if let Some(pidfd) = p.pidfd {
            assert_ne!(same_process(pidfd.as_fd(), mine.as_fd()), Some(false));
        }
    }

    #[test]
    fn more_descriptors_than_fit_are_a_truncated_packet_and_none_leaks() {
        let (a, b) = pair().unwrap();
        // Other tests open descriptors meanwhile; those of this socket are this test's.
        let link = |fd: &str| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let own = link(&a.as_raw_fd().to_string());
        let count = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            let names = all.map(|e| e.unwrap().file_name().into_string().unwrap());
            names.filter(|fd| link(fd) == own).count()
        };
        assert_eq!(count(), 1);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let many = [a.as_fd(); 64];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        let data = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&a, &data, &mut ancillary, SendFlags::empty()).unwrap();
        let p = receive(b.as_fd(), &mut [0; 4], false).unwrap();
        assert!(p.truncated);
        drop(p);
        assert_eq!(count(), 1);
    }

    #[test]
    fn bells_are_counted_and_a_hang_up_is_seen() {
        let (a, b) = pair().unwrap();
        for _ in 0..5 {
            ring(a.as_fd()).unwrap();
        }
        assert_eq!(drain(b.as_fd(), 3).unwrap(), 3);
        assert_eq!(drain(b.as_fd(), 100).unwrap(), 2);
        drop(a);
        assert_eq!(drain(b.as_fd(), 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(ring(b.as_fd()).is_err());
    }

    #[test]
    fn a_full_socket_is_no_error_and_holds_more_than_the_unread_bells() {
        let (a, b) = pair().unwrap();
        for _ in 0..10_000 {
            ring(a.as_fd()).unwrap();
        }
        assert!(drain(b.as_fd(), 10_000).unwrap() > 4 * limits::UNREAD_BELLS);
    }

    #[test]
    fn what_was_not_handed_over_is_refused() {
        assert!(inherited(0).is_err());
        assert!(inherited(1_000_000).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(inherited(file.as_raw_fd()).is_err());
    }
}
