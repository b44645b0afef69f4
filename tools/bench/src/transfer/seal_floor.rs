//! The least that a block costs that nobody can change any more: a new memory file for each, which is mapped,
//! set, unmapped, sealed and sent over a Unix socket; the receiver looks for the seals, maps the file for
//! reading, reads, unmaps and closes.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::drive::{End, measure_pairs, serve_pairs};
use super::turn::{Reader, Turn};
use super::{pairs, sleeping_here_and_contained};
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind};
use crate::error::Result;
use crate::sys::shared::{Fresh, Sealed};

/// A sealed file for each block.
pub const SEAL_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "seal-floor",
    "a new memory file for each block, sealed and sent over a Unix socket",
    sleeping_here_and_contained,
    |seat| measure_pairs(seat, make),
)
.opened(open)
.served(|seat| serve_pairs(seat, make));

fn open(case: &Case) -> Result<Ends> {
    let flags = SocketFlags::CLOEXEC;
    pairs(case, || Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?))
}

fn make(socket: OwnedFd, bytes: usize) -> Result<Sealing> {
    Ok(Sealing { socket, bytes })
}

struct Sealing {
    socket: OwnedFd,
    bytes: usize,
}

impl End for Sealing {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        let mut fresh = Fresh::create(self.bytes)?;
        turn.fill(fresh.bytes());
        let file = [fresh.seal()?];
        let file = file.each_ref().map(std::os::fd::AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&file)) {
            return Err("no room for a descriptor".into());
        }
        sendmsg(&self.socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let found = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        if found.bytes == 0 {
            return Ok(false);
        }
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let block = Sealed::map(file.ok_or("no descriptor has come")?)?;
        reader.read(block.bytes());
        Ok(true)
    }
}
