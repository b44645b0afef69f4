//! The bare link, plain and sealed: a message goes there in one record, or several, and comes back.
//!
//! A piece is sealed from the message into the slot that is reserved for its record, or into a buffer where
//! the slot lies across the end of the arena; it is copied out of the slot, and opened where that copy is.

use partywall_abi::frame::{Kind as Record, MORE};
use partywall_shm::link::{Link, LinkError};
use partywall_trust::handshake::Channel;
use partywall_trust::record::{Opener, Sealer, What};

use super::identity::{World, authority};
use super::on_rings;
use crate::calls::partywall::{CLIENTS, RAW, SERVERS, ends, link};
use crate::case::Case;
use crate::contender::{Contender, Ends, Kind, Side};
use crate::error::Result;
use crate::pattern::copy;
use crate::row::Figures;
use crate::seat::Seat;

/// Without sealing: that of `calls`.
pub const RING_PLAIN_RAW: Contender = Contender {
    name: "ring-plain-raw",
    about: "Partywall's link without gRPC: messages of bytes",
    cases: on_rings,
    ..RAW
};

/// The same, sealed.
pub const RING_SEALED_RAW: Contender = Contender::new(
    Kind::Ours,
    "ring-sealed-raw",
    "the same with each record sealed from the message into its slot, and opened in private memory",
    on_rings,
    call,
)
.opened(open)
.served(serve);

/// The descriptor of the authority, behind those of a link.
const AUTHORITY: usize = 6;

fn open(case: &Case) -> Result<Ends> {
    let Ends(mut all) = ends(case)?;
    all.push((Side::Both, authority()?));
    Ok(Ends(all))
}

/// An end of a sealed link.
struct End {
    link: Link,
    sealer: Sealer,
    opener: Opener,
    /// Of a record across the end of the arena.
    sealed: Vec<u8>,
}

impl End {
    fn new(link: Link, Channel { sealer, opener, .. }: Channel) -> Self {
        Self { link, sealer, opener, sealed: Vec::new() }
    }

    /// Sends a message, in pieces as the ring takes them.
    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let form = self.sealer.form();
        let most = form.most(self.link.producer().record_bytes());
        let mut rest = message;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(most));
            let flags = if after.is_empty() { 0 } else { MORE };
            while !self.push(piece, flags)? {
                self.link.notify()?;
                // Nothing else comes meanwhile: the other end answers whole messages.
                self.link.wait(Some(form.sealed(piece.len())), None)?;
            }
            self.link.notify()?;
            if after.is_empty() {
                return Ok(());
            }
            rest = after;
        }
    }

    #[inline]
    fn push(&mut self, piece: &[u8], flags: u8) -> Result<bool> {
        let what = What { kind: Record::Message as u8, flags, stream: 0 };
        let len = self.sealer.form().sealed(piece.len());
        let Some(mut slot) = self.link.producer().reserve(len)? else { return Ok(false) };
        match slot.whole() {
            Some(whole) => self.sealer.seal(what, [piece, &[]], whole)?,
            None => {
                self.sealed.resize(len, 0);
                self.sealer.seal(what, [piece, &[]], &mut self.sealed)?;
                slot.write(&self.sealed);
            }
        }
        slot.commit(what.kind, what.flags, what.stream);
        Ok(true)
    }

    /// Receives a message into `to`; false once the other end has gone.
    #[inline]
    fn receive(&mut self, to: &mut Vec<u8>) -> Result<bool> {
        to.clear();
        loop {
            let descriptor = loop {
                if let Some(descriptor) = self.link.consumer().peek()? {
                    break descriptor;
                }
                match self.link.wait(None, None) {
                    Err(LinkError::Dead) => return Ok(false),
                    waited => waited?,
                }
            };
            let (at, len) = (to.len(), descriptor.len as usize);
            to.reserve(len);
            self.link.consumer().read(to);
            self.link.consumer().release();
            let (kind, flags, stream) = (descriptor.kind, descriptor.flags, descriptor.stream);
            let opened = self.opener.open(What { kind, flags, stream }, &mut to[at..])?;
            to.truncate(at + opened);
            if flags & MORE == 0 {
                return Ok(true);
            }
        }
    }
}

fn serve(seat: &mut Seat) -> Result<()> {
    let world = World::of(seat.take(AUTHORITY)?)?;
    seat.ready();
    let mut link = link(seat, SERVERS)?;
    let channel = world.serve(&mut link)?;
    let mut end = End::new(link, channel);
    let mut message = Vec::new();
    while end.receive(&mut message)? {
        end.send(&message)?;
    }
    Ok(())
}

fn call(seat: &mut Seat) -> Result<Figures> {
    let world = World::of(seat.take(AUTHORITY)?)?;
    let mut link = link(seat, CLIENTS)?;
    let channel = world.call(&mut link)?;
    let mut end = End::new(link, channel);
    let mut message = Vec::with_capacity(seat.case().bytes());
    seat.meter()?.one_by_one(|request, reply| {
        end.send(request)?;
        if !end.receive(&mut message)? {
            return Err("the server has gone".into());
        }
        copy(&message, reply)
    })
}
