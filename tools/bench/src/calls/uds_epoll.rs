//! A Unix stream socket with epoll on both sides, as an event loop uses it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::sleeping;
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// Sockets and epoll.
pub const UDS_EPOLL: Contender = Contender::new(
    Kind::Other,
    "uds-epoll",
    "a Unix stream socket with epoll(7) on both sides, as an event loop uses it",
    sleeping,
    call,
)
.opened(open)
.served(serve);

const BUFFER: usize = 1 << 20;

/// Gives a socket buffers of 1 MiB, or as much of that as this process may have.
pub fn tune(socket: impl AsFd) -> Result<()> {
    if sockopt::set_socket_send_buffer_size_force(&socket, BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
    }
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    }
    Ok(())
}

fn open(_: &Case) -> Result<Ends> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(Ends(vec![(Side::Server, pair.0), (Side::Client, pair.1)]))
}

fn serve(seat: &mut Seat) -> Result<()> {
    let mut link = Link::new(seat.take(0)?)?;
    let case = seat.case();
    let mut buffer = vec![0; case.bytes() * case.window()];
    let least = if case.is_pipelined() { 1 } else { buffer.len() };
    seat.ready();
    loop {
        let len = link.receive(&mut buffer, least)?;
        if len == 0 {
            return Ok(());
        }
        link.exchange(&buffer[..len], &mut [])?;
    }
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let mut link = Link::new(seat.take(1)?)?;
    seat.meter()?.exchange(|request, reply| link.exchange(request, reply))
}

/// A non-blocking socket and the epoll instance that watches it, level-triggered.
struct Link {
    socket: OwnedFd,
    epoll: OwnedFd,
    watched: EventFlags,
    events: Vec<epoll::Event>,
}

impl Link {
    fn new(socket: OwnedFd) -> Result<Self> {
        tune(&socket)?;
        ioctl_fionbio(&socket, true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watched = EventFlags::IN;
        epoll::add(&epoll, &socket, EventData::new_u64(0), watched)?;
        Ok(Self { socket, epoll, watched, events: Vec::with_capacity(1) })
    }

    /// Sleeps until the socket is ready for one of `wanted`.
    fn sleep(&mut self, wanted: EventFlags) -> Result<()> {
        if wanted != self.watched {
            epoll::modify(&self.epoll, &self.socket, EventData::new_u64(0), wanted)?;
            self.watched = wanted;
        }
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives at least `least` bytes; fewer only at the end of the stream.
    fn receive(&mut self, buffer: &mut [u8], least: usize) -> Result<usize> {
        let mut len = 0;
        while len < least {
            self.sleep(EventFlags::IN)?;
            match read(&self.socket, &mut buffer[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(len)
    }

    /// Sends all of `request` and fills `reply`, whichever the socket is ready for.
    fn exchange(&mut self, request: &[u8], reply: &mut [u8]) -> Result<()> {
        let (mut sent, mut received) = (0, 0);
        loop {
            if sent < request.len() {
                match write(&self.socket, &request[sent..]) {
                    Ok(written) => sent += written,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if sent == request.len() && received == reply.len() {
                return Ok(());
            }
            let mut wanted = EventFlags::empty();
            wanted.set(EventFlags::OUT, sent < request.len());
            wanted.set(EventFlags::IN, received < reply.len());
            self.sleep(wanted)?;
            if received == reply.len() {
                continue;
            }
            match read(&self.socket, &mut reply[received..]) {
                Ok(0) => return Err("the server has gone".into()),
                Ok(read) => received += read,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
