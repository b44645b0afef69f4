//! Byte streams: TCP on the loopback interface, or on an engine's bridge where the client is in a container;
//! and Unix sockets. Each side has a block of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::drive::{End, measure, measure_pairs, serve, serve_pairs};
use super::turn::{Reader, Turn};
use super::{pairs, sleeping, sleeping_here_and_contained};
use crate::calls::uds_epoll::tune;
use crate::case::Place;
use crate::contender::{Contender, Ends, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;

/// TCP, whose buffers the kernel sizes.
pub const TCP: Contender = Contender::new(
    Kind::Other,
    "tcp",
    "TCP on the loopback interface or the engine's bridge, with TCP_NODELAY",
    sleeping_here_and_contained,
    call_tcp,
)
.opened(|case| match case.place {
    Place::Host => pairs(case, tcp),
    _ => Ok(Ends::default()),
})
.served(serve_tcp);

/// A Unix socket as it is.
pub const UDS_DEFAULT: Contender = Contender::new(
    Kind::Other,
    "uds-default",
    "a Unix stream socket with the buffer that it has",
    sleeping,
    |seat| measure_pairs(seat, make::<UnixStream>),
)
.opened(|case| pairs(case, unix))
.served(|seat| serve_pairs(seat, make::<UnixStream>));

/// A Unix socket with more room.
pub const UDS: Contender = Contender {
    name: "uds",
    about: "a Unix stream socket with a buffer of 1 MiB",
    cases: sleeping_here_and_contained,
    open: |case| pairs(case, tuned),
    ..UDS_DEFAULT
};

fn tcp() -> Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    Ok((server.into(), client.into()))
}

fn serve_tcp(seat: &mut Seat) -> Result<()> {
    if seat.case().place == Place::Host {
        return serve_pairs(seat, make::<TcpStream>);
    }
    let (bytes, listener) = (seat.case().bytes(), TcpListener::bind((seat.address(), 0))?);
    seat.set_number(listener.local_addr()?.port().into());
    serve(seat, vec![move || Ok(Awaited { listener, bytes, stream: None })])
}

fn call_tcp(seat: &mut Seat) -> Result<Figures> {
    if seat.case().place == Place::Host {
        return measure_pairs(seat, make::<TcpStream>);
    }
    let (bytes, port) = (seat.case().bytes(), u16::try_from(seat.number())?);
    let server = (seat.address(), port);
    let connect = move || {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        make::<TcpStream>(stream.into(), bytes)
    };
    measure(seat, vec![connect])
}

/// The server's end of a connection that the client makes.
struct Awaited {
    listener: TcpListener,
    bytes: usize,
    stream: Option<Stream<TcpStream>>,
}

impl End for Awaited {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        self.stream.as_mut().ok_or("the client passes first")?.pass(turn)
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let (stream, _) = self.listener.accept()?;
                stream.set_nodelay(true)?;
                none.insert(make(stream.into(), self.bytes)?)
            }
        };
        stream.receive(reader)
    }
}

fn unix() -> Result<(OwnedFd, OwnedFd)> {
    let (server, client) = UnixStream::pair()?;
    Ok((server.into(), client.into()))
}

fn tuned() -> Result<(OwnedFd, OwnedFd)> {
    let (server, client) = unix()?;
    tune(&server)?;
    tune(&client)?;
    Ok((server, client))
}

fn make<S: From<OwnedFd>>(socket: OwnedFd, bytes: usize) -> Result<Stream<S>> {
    Ok(Stream { socket: socket.into(), block: vec![0; bytes] })
}

struct Stream<S> {
    socket: S,
    block: Vec<u8>,
}

impl<S: Read + Write> End for Stream<S> {
    fn pass(&mut self, turn: Turn) -> Result<()> {
        turn.fill(&mut self.block);
        Ok(self.socket.write_all(&self.block)?)
    }

    fn receive(&mut self, reader: &mut Reader) -> Result<bool> {
        let mut received = 0;
        while received < self.block.len() {
            match self.socket.read(&mut self.block[received..]) {
                Ok(0) if received == 0 => return Ok(false),
                Ok(0) => return Err("the other side has gone amid a block".into()),
                Ok(more) => received += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        reader.read(&self.block);
        Ok(true)
    }
}
