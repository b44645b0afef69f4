#![allow(unsafe_code, reason = "process_vm_readv(2) and ptrace(2) have no safe wrapper")]
//! A process that takes what it can from another one: copies of its descriptors, and bytes of its memory; or,
//! asked to, traces it until its own input ends.
//!
//! It says `sockets: NUMBER` of links or the error, and `memory: BYTES` of an outbox or the error.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
use rustix::net::{SocketAddrUnix, SocketType, getpeername};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Descriptors that are looked at; those of a link come early.
const NUMBERS: i32 = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number: i32 = std::env::args().nth(1).ok_or("the number of a process")?.parse()?;
    let pid = Pid::from_raw(number).ok_or("a number from 1 on")?;
    if std::env::args().nth(2).is_some_and(|what| what == "trace") {
        return Ok(trace(number)?);
    }
    match sockets(pid) {
        Ok(taken) => println!("sockets: {taken}"),
        Err(errno) => println!("sockets: {}", io::Error::from(errno)),
    }
    match memory(number) {
        Ok(bytes) => println!("memory: {bytes:?}"),
        Err(error) => println!("memory: {error}"),
    }
    Ok(())
}

fn trace(pid: i32) -> io::Result<()> {
    // SAFETY: this one's memory is no matter of it.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0_usize, 0_usize) };
    if seized < 0 {
        return Err(io::Error::last_os_error());
    }
    println!("ready");
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// How many sockets of links can be taken: they are pairs, and the coordinator's has a path.
fn sockets(pid: Pid) -> Result<usize, Errno> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let taken = |number| match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
        Err(Errno::BADF) => None,
        other => Some(other),
    };
    let taken = (3..NUMBERS).filter_map(taken).collect::<Result<Vec<OwnedFd>, _>>()?;
    let is_a_links = |fd: &OwnedFd| {
        let peer =
            getpeername(fd).ok().flatten().and_then(|peer| SocketAddrUnix::try_from(peer).ok());
        socket_type(fd) == Ok(SocketType::SEQPACKET)
            && peer.is_some_and(|peer| peer.path().is_none())
    };
    Ok(taken.iter().filter(|fd| is_a_links(fd)).count())
}

/// The first bytes of an outbox, or those at an address where nothing is if it does not say where that is.
fn memory(pid: i32) -> io::Result<[u8; 4]> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let outbox = maps.lines().find(|line| line.contains("/memfd:partywall-outbox"));
    let begin = outbox.and_then(|line| line.split('-').next());
    let begin = begin.and_then(|begin| usize::from_str_radix(begin, 16).ok());
    let mut bytes = [0_u8; 4];
    let own = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: begin.unwrap_or(4096) as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel writes into `bytes` alone, as many as it has.
    let read = unsafe { libc::process_vm_readv(pid, &raw const own, 1, &raw const theirs, 1, 0) };
    if read < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}
