#![allow(unsafe_code, reason = "ancillary data that rustix does not know: SCM_PIDFD")]
//! `SOCK_SEQPACKET` Unix sockets: packets, descriptors, and who sent them.
//!
//! See unix(7). Nothing here blocks unless its name says so.
//!
//! # Descriptors that nobody asked for
//!
//! close(2) can take as long as the sender likes: a TCP socket lingers, a file of FUSE is flushed.
//! So a socket that expects no descriptors is set to [`refuse_descriptors`]; and where the kernel
//! cannot do that, a receive takes every descriptor that a packet can carry, so that the kernel
//! closes none of them on this thread, and the receiver hands what it did not ask for to
//! [`discard`]. A [`LinkSocket`] does all this for its owner.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partywall_abi::limits;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Since Linux 6.5; not in the libc crate for every target yet.
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PEERPIDFD: libc::c_int = 77;
const SCM_PIDFD: libc::c_int = 4;
/// Since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Most descriptors that one packet can carry (`SCM_MAX_FD`, see unix(7)).
const PACKET_FDS: usize = 253;
/// Words of ancillary data: the descriptors, credentials and a pidfd, each with its header.
const CONTROL_WORDS: usize = 3 * 2 + (PACKET_FDS * 4).div_ceil(8) + 2 + 1;
/// Descriptors that wait to be closed before their senders are to be dropped.
const UNWANTED: usize = 256;
/// Threads that close; each may hang as long as a sender likes.
const CLOSERS: usize = 8;

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
    /// Data did not fit, or this process has no room for the descriptors: they are lost.
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
    // Aligned for the headers.
    let mut control = [0_u64; CONTROL_WORDS];
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
    // Before Linux 6.5 packets come without a pidfd, which receivers see.
    let _maybe = set(socket, SO_PASSPIDFD, 1);
    Ok(())
}

/// Lets no packet with descriptors in: who sends one gets EPERM. What is accepted from a listening
/// socket inherits it. False where the kernel cannot (before Linux 6.16).
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    set(socket, SO_PASSRIGHTS, 0)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: an int of the stated size; a kernel that does not know the option says ENOPROTOOPT.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    done == 0
}

/// Bytes of sent packets that the peer has not received, with the kernel's overhead; zero when it
/// has received everything.
///
/// # Errors
/// What ioctl(2) says.
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ by its other name) writes one int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.max(0) as usize)
}

/// A duration as system calls take it.
pub fn timespec(d: Duration) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

/// Blocks until the descriptor is readable or its peer has hung up; false when `deadline` passes
/// first.
///
/// # Errors
/// What poll(2) says.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match rustix::event::poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Descriptors on their way out.
struct Closer {
    waiting: Vec<OwnedFd>,
    threads: usize,
}

static CLOSER: Mutex<Closer> = Mutex::new(Closer { waiting: Vec::new(), threads: 0 });

fn closer() -> MutexGuard<'static, Closer> {
    CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes descriptors that nobody asked for, on threads that end when nothing is left.
///
/// False when so many wait already that whoever sends more is to be dropped.
pub fn discard(fds: Vec<OwnedFd>) -> bool {
    if fds.is_empty() {
        return true;
    }
    let mut closer = closer();
    closer.waiting.extend(fds);
    if closer.threads < CLOSERS {
        let thread = std::thread::Builder::new().name("partywall-close".into());
        // Without a thread they wait for the next one.
        closer.threads += usize::from(thread.stack_size(64 * 1024).spawn(close_all).is_ok());
    }
    closer.waiting.len() <= UNWANTED
}

fn close_all() {
    loop {
        let mut closer = closer();
        let Some(next) = closer.waiting.pop() else {
            closer.threads -= 1;
            return;
        };
        drop(closer);
        drop(next);
    }
}

/// A link's socket: bells come by it, and no descriptors once [`LinkSocket::refuse_descriptors`]
/// was called. Where the kernel lets some through, they and what is unread at the end are
/// discarded.
pub struct LinkSocket {
    /// Taken when it is dropped only.
    fd: Option<OwnedFd>,
    /// The kernel lets no descriptors in, so that nothing unread on it takes time to close.
    plain: bool,
}

impl LinkSocket {
    /// A socket that may receive descriptors.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), plain: false }
    }

    /// Wants none from now on. Bells that came before are lost: they mean nothing yet.
    ///
    /// # Errors
    /// What recvmsg(2) says; `UnexpectedEof` when the peer has hung up or sent an empty packet,
    /// `InvalidData` when it sends more than a socket holds.
    pub fn refuse_descriptors(&mut self) -> io::Result<()> {
        if !refuse_descriptors(self.as_fd()) {
            return Ok(());
        }
        // What was under way before may still bring some.
        for _ in 0..1024 {
            match receive(self.as_fd(), &mut [0; 8], false) {
                Ok(packet) => {
                    discard(packet.fds);
                    if packet.len == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.plain = true;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Reads up to `most` bells, as [`drain`] does. Without the kernel's help that costs a system
    /// call for each.
    ///
    /// # Errors
    /// As [`drain`].
    pub fn drain(&self, most: u32) -> io::Result<u32> {
        if self.plain {
            return drain(self.as_fd(), most);
        }
        for total in 0..most {
            match receive(self.as_fd(), &mut [0; 8], false) {
                Ok(packet) => {
                    let with_descriptors = !packet.fds.is_empty() || packet.truncated;
                    discard(packet.fds);
                    if with_descriptors {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if packet.len == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(most)
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("taken when it is dropped only").as_fd()
    }
}

impl Drop for LinkSocket {
    fn drop(&mut self) {
        if !self.plain
            && let Some(fd) = self.fd.take()
        {
            // The peer hears of the end now, whenever a thread comes to close it.
            let _gone = rustix::net::shutdown(&fd, rustix::net::Shutdown::Both);
            discard(vec![fd]);
        }
    }
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
    matches!(rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO))), Ok(0))
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

    /// Sends a packet with as many copies of one descriptor.
    fn send_copies(socket: &OwnedFd, fd: &OwnedFd, copies: usize) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let many = vec![fd.as_fd(); copies];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        let data = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(socket, &data, &mut ancillary, SendFlags::empty())?;
        Ok(())
    }

    #[test]
    fn every_descriptor_of_a_packet_comes_to_the_receiver() {
        let (a, b) = pair().unwrap();
        pass_credentials(b.as_fd()).unwrap();
        send_copies(&a, &a, PACKET_FDS).unwrap();
        let p = receive(b.as_fd(), &mut [0; 4], false).unwrap();
        assert_eq!((p.fds.len(), p.truncated), (PACKET_FDS, false));
        assert!(p.credentials.is_some());
    }

    #[test]
    fn a_socket_that_refuses_descriptors_takes_none() {
        let (a, b) = pair().unwrap();
        if refuse_descriptors(b.as_fd()) {
            let errno = rustix::io::Errno::PERM.raw_os_error();
            assert_eq!(send_copies(&a, &a, 1).unwrap_err().raw_os_error(), Some(errno));
        } else {
            send_copies(&a, &a, 1).unwrap();
            assert_eq!(receive(b.as_fd(), &mut [0; 4], false).unwrap().fds.len(), 1);
        }
        send(a.as_fd(), b"data", &[]).unwrap();
        assert_eq!(receive(b.as_fd(), &mut [0; 4], false).unwrap().len, 4);
    }

    #[test]
    fn a_lingering_descriptor_is_closed_elsewhere() {
        let (slow, _other) = lingering();
        let (ours, theirs) = pair().unwrap();
        let start = Instant::now();
        assert!(discard(vec![slow]));
        assert!(discard(vec![theirs]));
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        // The second one does not wait for the first.
        assert!(wait_readable(ours.as_fd(), start + Duration::from_millis(1500)).unwrap());
    }

    #[test]
    fn more_unwanted_descriptors_than_the_bound_are_reported() {
        let (ours, theirs) = pair().unwrap();
        let many = (0..=UNWANTED).map(|_| theirs.try_clone().unwrap()).collect();
        drop(theirs);
        assert!(!discard(many));
        assert!(wait_readable(ours.as_fd(), Instant::now() + Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn what_the_peer_has_not_received_is_known() {
        let (a, b) = pair().unwrap();
        assert_eq!(unread(a.as_fd()).unwrap(), 0);
        send(a.as_fd(), b"hello", &[]).unwrap();
        assert!(unread(a.as_fd()).unwrap() > 0);
        receive(b.as_fd(), &mut [0; 8], false).unwrap();
        assert_eq!(unread(a.as_fd()).unwrap(), 0);
    }

    #[test]
    fn a_wait_ends_with_the_deadline_or_with_data() {
        let (a, b) = pair().unwrap();
        let start = Instant::now();
        assert!(!wait_readable(b.as_fd(), start + Duration::from_millis(20)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        send(a.as_fd(), b"x", &[]).unwrap();
        assert!(wait_readable(b.as_fd(), start + Duration::from_secs(60)).unwrap());
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

    /// A descriptor whose closing takes two seconds while the other one is there.
    fn lingering() -> (OwnedFd, OwnedFd) {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&out, Some(Duration::from_secs(2))).unwrap();
        out.set_nonblocking(true).unwrap();
        while out.write(&[0; 65536]).is_ok() {}
        (out.into(), other.into())
    }

    #[test]
    fn a_bell_with_a_descriptor_ends_the_link_and_holds_nobody_up() {
        for kernel_helps in [true, false] {
            let (a, b) = pair().unwrap();
            let mut link = LinkSocket::new(b);
            if kernel_helps {
                link.refuse_descriptors().unwrap();
            }
            for _ in 0..3 {
                ring(a.as_fd()).unwrap();
            }
            assert_eq!(link.drain(100).unwrap(), 3);
            for _ in 0..3 {
                ring(a.as_fd()).unwrap();
            }
            assert_eq!(link.drain(2).unwrap(), 2);
            let (slow, _other) = lingering();
            let sent = send(a.as_fd(), b"x", &[slow.as_fd()]);
            // And one more, which stays unread.
            let again = send(a.as_fd(), b"x", &[slow.as_fd()]);
            assert_eq!(sent.is_err(), link.plain);
            assert_eq!(again.is_err(), link.plain);
            let start = Instant::now();
            if link.plain {
                assert_eq!(link.drain(100).unwrap(), 1);
                drop(a);
                let end = link.drain(100).unwrap_err();
                assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
                continue;
            }
            // The link's is the last one.
            drop(slow);
            assert_eq!(link.drain(100).unwrap_err().kind(), io::ErrorKind::InvalidData);
            drop(link);
            assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        }
    }

    #[test]
    fn an_empty_packet_hides_no_descriptor() {
        for with_descriptor in [false, true] {
            let (a, b) = pair().unwrap();
            let (slow, _other) = lingering();
            let fds = [slow.as_fd()];
            send(a.as_fd(), b"", if with_descriptor { &fds } else { &[] }).unwrap();
            send(a.as_fd(), b"x", &fds).unwrap();
            drop(slow);
            let start = Instant::now();
            let mut link = LinkSocket::new(b);
            let refused = link.refuse_descriptors();
            if refused.is_ok() {
                // A kernel that cannot: then it is seen when bells are drained.
                link.drain(100).unwrap_err();
            }
            assert!(!link.plain);
            drop(link);
            assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        }
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
