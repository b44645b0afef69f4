#![allow(unsafe_code, reason = "socket options and ancillary data that rustix does not know")]
//! `SOCK_SEQPACKET` Unix sockets: packets, descriptors, and who sent them.
//!
//! See unix(7). Nothing here blocks unless its name says so.
//!
//! # Descriptors that nobody asked for
//!
//! Descriptors travel from the coordinator to a process, and to the other end of a link only on a
//! socket of their own, which the policy grants ([`crate::descriptors`]). What another process could
//! send the other way, or on the link's own socket, would be closed here, and close(2) can take
//! as long as the sender likes: a TCP socket lingers, a file of FUSE is flushed. So an [`Endpoint`]
//! never receives one. From Linux 6.16 on the kernel refuses them to their sender (`SO_PASSRIGHTS`).
//! Before, each packet is looked at (`MSG_PEEK`) before it is received, and one with descriptors
//! ends the conversation: they stay in the socket's queue, and the `closer` closes the socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use partywall_abi::limits;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::closer;

/// Since Linux 6.5; not in the libc crate for every target yet.
const SO_PEERPIDFD: libc::c_int = 77;
/// Since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Words of ancillary data: the descriptors and credentials, each with its header.
const CONTROL_WORDS: usize = CREDENTIAL_WORDS + 2 + (MOST_FDS * 4).div_ceil(8);
/// Most descriptors beside any packet.
const MOST_FDS: usize =
    if limits::CONTROL_FDS > limits::PACKET_FDS { limits::CONTROL_FDS } else { limits::PACKET_FDS };
/// Words of ancillary data that credentials alone fill: a descriptor beside them has no room.
const CREDENTIAL_WORDS: usize = 2 + size_of::<libc::ucred>().div_ceil(8);

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
    /// Data did not fit into the buffer; the rest is lost.
    pub truncated: bool,
    /// Descriptors are lost: there was no room for them in this process, or there were more than a
    /// packet of ours has.
    pub stripped: bool,
    /// Descriptors, close-on-exec; none at an [`Endpoint`].
    pub fds: Vec<Passed>,
    /// Sender, after [`Endpoint::pass_credentials`].
    pub credentials: Option<Credentials>,
}

/// A socket into which other processes can send descriptors, or out of which such a socket can come.
///
/// What is unread on it goes with it, and can take as long to close as its sender likes; so it is
/// closed where nobody waits for that.
#[derive(Debug)]
pub struct Lingering {
    /// Taken when the value goes only.
    fd: Option<OwnedFd>,
    /// Nothing that is unread on it takes time to close.
    plain: bool,
}

impl Lingering {
    /// Of a socket into which others may have sent already.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), plain: false }
    }

    /// Of a socket into which nobody could send before, or one that refuses descriptors already: it
    /// does from here on, where the kernel can.
    pub fn refusing(fd: OwnedFd) -> Self {
        Self { plain: refuse_descriptors(fd.as_fd()), fd: Some(fd) }
    }

    fn take(&mut self) -> OwnedFd {
        self.fd.take().expect(TAKEN)
    }
}

impl AsFd for Lingering {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect(TAKEN).as_fd()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if !self.plain {
            self.fd.take().into_iter().for_each(closer::close);
        }
    }
}

/// A descriptor that has come, or is on its way. It may be the end of a link, or whatever a peer has sent.
#[derive(Debug)]
pub struct Passed(Lingering);

impl Passed {
    /// As an outbox, or other memory whose closing takes no time.
    ///
    /// # Errors
    /// EINVAL when it is no memfd.
    pub fn memory(mut self) -> io::Result<OwnedFd> {
        rustix::fs::fcntl_get_seals(self.as_fd())?;
        Ok(self.0.take())
    }

    /// As a socket into which others send descriptors.
    pub(crate) fn lingering(self) -> Lingering {
        self.0
    }

    /// As what it is, from a process that is a part of this program: its close(2) is not waited for
    /// by anybody that matters.
    pub fn trusted(mut self) -> OwnedFd {
        self.0.take()
    }

    /// As an end of a link.
    pub fn endpoint(mut self) -> Endpoint {
        Endpoint::new(self.0.take())
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const TAKEN: &str = "it is taken only when the value goes";

/// The two ends of a link. Where the kernel can refuse descriptors, they take none from their first
/// moment on.
///
/// # Errors
/// As [`pair`].
pub fn link_pair() -> io::Result<(Passed, Passed)> {
    let (a, b) = pair()?;
    let [a, b] = [a, b].map(|fd| Passed(Lingering::refusing(fd)));
    Ok((a, b))
}

/// The two ends of a link's descriptor socket, into which anything can be sent.
///
/// What a receiver leaves there counts against its sender's limit of descriptors, and keeps what they are of.
/// So each end has the kernel's smallest buffer, which is full after a few packets.
///
/// # Errors
/// As [`pair`], and what setsockopt(2) says.
pub fn descriptor_pair() -> io::Result<(Passed, Passed)> {
    let (a, b) = pair()?;
    for end in [&a, &b] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, 0)?;
    }
    let [a, b] = [a, b].map(|fd| Passed(Lingering::new(fd)));
    Ok((a, b))
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
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
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

/// Receives one packet, with its descriptors. Does not block.
///
/// A packet of length zero means that the peer has hung up.
///
/// # Errors
/// What recvmsg(2) says; EAGAIN (`WouldBlock`) when nothing is there.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Packet> {
    receive_with(socket, buffer, &mut [0; CONTROL_WORDS], 0)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [u64],
    flags: libc::c_int,
) -> io::Result<Packet> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // Shorter in musl's structures, and likewise below.
    message.msg_controllen = size_of_val(control) as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
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
    packet.truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    packet.stripped = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(packet)
}

fn take_ancillary(header: *const libc::cmsghdr, packet: &mut Packet) {
    // SAFETY: a header that CMSG_FIRSTHDR or CMSG_NXTHDR returned is whole.
    let (level, kind, len): (_, _, usize) = unsafe {
        let h = header.read_unaligned();
        (h.cmsg_level, h.cmsg_type, h.cmsg_len as _)
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
        (raw >= 0).then(|| Passed(Lingering::new(unsafe { OwnedFd::from_raw_fd(raw) })))
    };
    match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_RIGHTS) => packet.fds.extend((0..bytes / 4).filter_map(fd_at)),
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
            // SAFETY: the kernel wrote a ucred there.
            let c = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            packet.credentials =
                Some(Credentials { pid: c.pid.max(0) as u32, uid: c.uid, gid: c.gid });
        }
        _ => {}
    }
}

/// Receives from a stream, if no descriptors are among what has come. Does not block.
///
/// # Errors
/// What recvmsg(2) says; EAGAIN (`WouldBlock`) when nothing is there, `InvalidData` when there are
/// descriptors: then nothing has been received.
pub fn receive_plain(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // Descriptors end what one look sees, so that there are none in the bytes before them.
    let seen = receive_with(socket, buffer, &mut [], libc::MSG_PEEK)?;
    if seen.stripped {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(rustix::io::read(socket, &mut buffer[..seen.len])?)
}

/// Has a socket closed as a [`Lingering`] one is.
pub fn close_elsewhere(socket: OwnedFd) {
    drop(Lingering::new(socket));
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

/// Whether the environment was written by this process's own user: not in a set-user-ID program, or
/// one that was given capabilities with its file (`AT_SECURE`, getauxval(3)).
fn environment_is_ours() -> bool {
    // SAFETY: reads a word that the kernel wrote before the program began.
    unsafe { libc::getauxval(libc::AT_SECURE) == 0 }
}

/// A variable of the environment that is set and not empty, where the environment is believed:
/// not in a program that was given rights with its file.
pub fn variable(name: &str) -> Option<std::ffi::OsString> {
    let set = if environment_is_ours() { std::env::var_os(name) } else { None };
    set.filter(|value| !value.is_empty())
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

/// An end of a conversation with a process that is not trusted: a link's, or the coordinator's of
/// a control socket. No descriptor comes by it.
#[derive(Debug)]
pub struct Endpoint {
    socket: Lingering,
    /// Each packet says who sent it.
    credentials: bool,
    /// Held from the look at a packet until it is received, where the kernel lets descriptors in.
    looking: Mutex<()>,
}

impl Endpoint {
    /// An end into which nobody could send before, or one that refuses descriptors already.
    pub fn new(fd: OwnedFd) -> Self {
        Self::of(Lingering::refusing(fd))
    }

    /// An end into which others could send before: descriptors may be there already.
    pub fn used(fd: OwnedFd) -> Self {
        let _none_from_here_on = refuse_descriptors(fd.as_fd());
        Self::of(Lingering::new(fd))
    }

    fn of(socket: Lingering) -> Self {
        Self { socket, credentials: false, looking: Mutex::new(()) }
    }

    /// Asks the kernel to say with each packet who sent it.
    ///
    /// # Errors
    /// What setsockopt(2) says of `SO_PASSCRED`.
    pub fn pass_credentials(&mut self) -> io::Result<()> {
        rustix::net::sockopt::set_socket_passcred(self.as_fd(), true)?;
        self.credentials = true;
        Ok(())
    }

    /// Receives one packet. Does not block.
    ///
    /// A packet of length zero means that the peer has hung up.
    ///
    /// # Errors
    /// What recvmsg(2) says; EAGAIN (`WouldBlock`) when nothing is there, `InvalidData` when
    /// there are descriptors: then nothing has been received.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Packet> {
        // No word more than what is wanted, so that there is no room for a descriptor.
        let mut control = [0; CREDENTIAL_WORDS];
        let control = if self.credentials { &mut control[..] } else { &mut [] };
        if self.socket.plain {
            return receive_with(self.as_fd(), buffer, control, 0);
        }
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if receive_with(self.as_fd(), &mut [], control, libc::MSG_PEEK)?.stripped {
            return Err(io::ErrorKind::InvalidData.into());
        }
        receive_with(self.as_fd(), buffer, control, 0)
    }

    /// Receives what one sender has sent to a stream. Does not block.
    ///
    /// A length of zero means that the peer has hung up.
    ///
    /// # Errors
    /// As [`Endpoint::receive`].
    pub fn receive_stream(&self, buffer: &mut [u8]) -> io::Result<Packet> {
        let mut control = [0; CREDENTIAL_WORDS];
        let control = if self.credentials { &mut control[..] } else { &mut [] };
        if self.socket.plain {
            return receive_with(self.as_fd(), buffer, control, 0);
        }
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = receive_with(self.as_fd(), buffer, control, libc::MSG_PEEK)?;
        if seen.stripped {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // What has come meanwhile is not received: there may be descriptors.
        receive_with(self.as_fd(), &mut buffer[..seen.len], control, 0)
    }

    /// Reads up to `most` bells, as [`drain`] does. Without the kernel's help that costs system
    /// calls for each.
    ///
    /// # Errors
    /// As [`drain`].
    pub fn drain(&self, most: u32) -> io::Result<u32> {
        if self.socket.plain {
            return drain(self.as_fd(), most);
        }
        for total in 0..most {
            match self.receive(&mut [0; 8]) {
                Ok(packet) if packet.len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(most)
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
mod tests;
