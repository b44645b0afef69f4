#![allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
//! A bare tokio wake-up: one byte each way over a `SOCK_SEQPACKET` pair watched by `AsyncFd`.
//!
//! tokio watches edges, and every byte that arrives is a new edge. So a byte need not be read to be
//! noticed: each side leaves bytes in the socket and reads them 32 at a time. There are never two
//! bytes on their way in one direction, so the count that each reading finds must be exact.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::bare;
use super::tonic_net::{closed, runtime};
use crate::case::{Case, Wait};
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::pattern::STAMP;
use crate::row::Figures;
use crate::seat::Seat;

/// A wake-up of a task.
pub const ASYNCFD_FLOOR: Contender = Contender::new(
    Kind::Floor,
    "asyncfd-floor",
    "a bare wake-up of a tokio task, there and back",
    || bare(Wait::Block),
    call,
)
.opened(open)
.served(serve);

const BATCH: usize = 32;

fn open(_: &Case) -> Result<Ends> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(Ends(vec![(Side::Server, pair.0), (Side::Client, pair.1)]))
}

fn serve(seat: &mut Seat) -> Result<()> {
    runtime()?.block_on(async {
        let mut bell = Bell::new(seat.take(0)?)?;
        let gone = closed(seat.lifeline()?)?;
        tokio::pin!(gone);
        seat.ready();
        loop {
            let heard = tokio::select! {
                biased;
                heard = bell.hear() => heard?,
                () = &mut gone => false,
            };
            // The client may also go between a ring and the answer.
            if !heard || bell.ring().is_err() {
                return Ok(());
            }
        }
    })
}

fn call(seat: &mut Seat) -> Result<Figures> {
    runtime()?.block_on(async {
        let mut bell = Bell::new(seat.take(1)?)?;
        let ring = async |number: &[u8]| {
            bell.ring()?;
            if !bell.hear().await? {
                return Err("the server has gone".into());
            }
            Ok(<[u8; STAMP]>::try_from(number)?)
        };
        seat.meter()?.one_by_one_async(ring).await
    })
}

struct Bell {
    socket: AsyncFd<OwnedFd>,
    unread: usize,
}

impl Bell {
    fn new(socket: OwnedFd) -> Result<Self> {
        // SAFETY: the descriptor is owned and moves in, so it stays open as long as the watch.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        Ok(Self { socket: socket.map_err(|error| error.into_parts().1)?, unread: 0 })
    }

    fn ring(&self) -> Result<()> {
        send(self.socket.get_ref(), &[1], SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for one ring; false once the peer has gone.
    async fn hear(&mut self) -> Result<bool> {
        self.socket.readable().await?.clear_ready();
        self.unread += 1;
        if self.unread == BATCH { self.drain() } else { Ok(true) }
    }

    /// Reads the bytes of the last rings; false once the peer has gone.
    fn drain(&mut self) -> Result<bool> {
        let mut found = 0;
        loop {
            match recv(self.socket.get_ref(), &mut [0], RecvFlags::DONTWAIT) {
                Ok((_, 1)) => found += 1,
                Ok(_) | Err(Errno::CONNRESET) => return Ok(false),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if found != self.unread {
            return Err(format!("{} rings were heard, {found} were sent", self.unread).into());
        }
        self.unread = 0;
        Ok(true)
    }
}
