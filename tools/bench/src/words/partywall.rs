//! The text through Partywall: as one message of the bare link, and as one unary call of the stubs.
//! Both wait as they do by default: they spin for what they have learned, then sleep.
//!
//! Long texts are read straight into owned parcels, by the bare link from the second text on: the
//! first is read into the ring, as shorter ones are.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use partywall::parcel::{Attach as _, Owned};
use partywall_abi::security::Isolation;
use partywall_shm::link::LinkError;
use partywall_shm::parcel::owned::{Memory, Reader};
use tonic::Request;

use super::count::{answer, answer_by_piece, op_code, op_from};
use super::tonic::ask_all;
use super::{cases, contained, control, drive};
use crate::calls::client::TextClient as _;
use crate::calls::partywall::{connect, coordinate, serve, serve_native, settle_waits};
use crate::calls::stubs::{native, ordinary};
use crate::calls::tonic_net::runtime;
use crate::case::{Case, Op, Wait};
use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::row::Figures;
use crate::seat::Seat;
use crate::text::{ANSWER_BYTES, Answer};

/// Stubs over the async channel, between processes.
pub const TONIC: Contender = Contender::new(
    Kind::Ours,
    "partywall-tonic",
    "tonic's generated stubs over Partywall's channel, as programs use it",
    here_and_contained,
    |seat| ask_all(seat, &runtime()?, ordinary::client, connect),
)
.attended(coordinate)
.served(serve);

/// Native stubs on both sides, between processes.
pub const NATIVE: Contender = Contender::new(
    Kind::Ours,
    "partywall-native",
    "partywall-build's generated stubs over Partywall's channel, as programs use it",
    here_and_contained,
    call_native,
)
.attended(coordinate)
.served(serve_native);

/// The same with the text attached as an owned parcel, which the server reads where it lies.
pub const ATTACHED: Contender = Contender::new(
    Kind::Ours,
    "partywall-attached",
    "the same with the text as an owned parcel beside the message",
    || cases(Some(Wait::Spin)),
    call_attached,
)
.attended(coordinate)
.served(serve_native);

/// Between domains without protection keys.
pub const DOMAIN_TONIC: Contender = Contender {
    name: "domain-tonic",
    about: "tonic's stubs between two domains, without protection keys",
    cases: || cases(Some(Wait::Spin)),
    domains: Some(Isolation::None),
    ..TONIC
};

/// Between domains with protection keys, where the machine has them.
pub const DOMAIN_TONIC_KEYS: Contender = Contender {
    name: "domain-tonic-keys",
    about: "the same with protection keys",
    cases: || cases(Some(Wait::Spin)),
    domains: Some(Isolation::ProtectionKeys),
    ..TONIC
};

/// The link without calls: the operation and the text as one message each.
pub const RAW: Contender = Contender::new(
    Kind::Ours,
    "partywall-raw",
    "Partywall's link without gRPC: messages of bytes",
    here_and_contained,
    call_raw,
)
.attended(coordinate)
.served(serve_raw);

fn here_and_contained() -> Vec<Case> {
    [cases(Some(Wait::Spin)), contained(Some(Wait::Spin))].concat()
}

const LIMIT: usize = (2 << 30) - 1;

/// Texts of so many bytes are long, as messages are.
const LONG: u64 = 128 * 1024;

/// How a text comes after its operation: as a message, in the memory of the text before, or in new one
/// whose descriptor is sent.
const MESSAGE: u8 = 0;
const KNOWN: u8 = 1;
const NEW: u8 = 2;

fn call_native(seat: &mut Seat) -> Result<Figures> {
    let runtime = runtime()?;
    let channel = seat.admitted(|seat| runtime.block_on(connect(seat)))?;
    let mut client = native::client(channel.clone());
    drive(seat, |text, op| {
        runtime.block_on(async {
            let mut file = File::open(&text.path)?;
            let mut body = channel.buffer(usize::try_from(text.bytes)?).await;
            file.read_exact(&mut body)?;
            client.count(op, body.freeze()).await
        })
    })
}

fn call_attached(seat: &mut Seat) -> Result<Figures> {
    let runtime = runtime()?;
    let channel = seat.admitted(|seat| runtime.block_on(connect(seat)))?;
    let mut client = native::client(channel);
    let mut owned = None;
    drive(seat, |text, op| {
        let owned = match &mut owned {
            Some(owned) => owned,
            none => none.insert(Owned::new(usize::try_from(text.bytes)?)?),
        };
        let mut file = File::open(&text.path)?;
        owned.write(|bytes| file.read_exact(bytes))?;
        let mut request = Request::new(native::proto::Blob::default());
        request.attach(&*owned);
        runtime.block_on(async {
            let answer = match op {
                Op::Total => client.total(request).await?,
                Op::Counts => client.counts(request).await?,
            };
            let native::proto::Answer { total, distinct, checksum } = answer.into_inner();
            Ok(Answer { total, distinct, checksum })
        })
    })
}

fn serve_raw(seat: &mut Seat) -> Result<()> {
    let (mut link, conversation) = control::serve(seat)?;
    let (_, mut incoming) = control::granted(&conversation)?;
    let (mut ask, mut text) = (Vec::new(), Vec::new());
    let mut reader = None;
    loop {
        match link.receive(&mut ask, Ask::BYTES, None) {
            Ok(()) => {}
            Err(LinkError::Dead) => return Ok(()),
            Err(other) => return Err(other.into()),
        }
        let ask = Ask::decode(&ask)?;
        if ask.way == NEW {
            let descriptor = incoming.receive(ask.packet)?.pop().ok_or("no descriptor")?;
            reader = Some(Reader::accept(descriptor)?);
        }
        let answer = if ask.way == MESSAGE {
            link.receive(&mut text, LIMIT, None)?;
            answer(ask.op, &text)
        } else {
            let reader = reader.as_ref().ok_or("no memory has come")?;
            reader.has(0, ask.bytes)?;
            answer_by_piece(ask.op, usize::try_from(ask.bytes)?, |at, mut to| {
                reader.copy(at as u64, to.len(), &mut to);
                Ok(())
            })?
        };
        link.send(&answer.encode(), None)?;
    }
}

fn call_raw(seat: &mut Seat) -> Result<Figures> {
    settle_waits(seat);
    let (mut link, conversation) = seat.admitted(|seat| control::link(seat.dir()))?;
    let (mut outgoing, _) = control::granted(&conversation)?;
    let (mut reply, mut memory, mut packet, mut is_first) = (Vec::new(), None, 0, true);
    drive(seat, |text, op| {
        let mut file = File::open(&text.path)?;
        let bytes = usize::try_from(text.bytes)?;
        let mut ask = Ask { op, way: MESSAGE, bytes: text.bytes, packet };
        if std::mem::replace(&mut is_first, false) || text.bytes < LONG {
            link.send(&ask.encode(), None)?;
            link.send_from(file.as_fd(), bytes, None)?;
        } else {
            ask.way = KNOWN;
            let memory = match &mut memory {
                Some(memory) => memory,
                none => {
                    ask.way = NEW;
                    let made = none.insert(Memory::new(bytes)?);
                    packet = outgoing.send(&[made.as_fd()])?;
                    ask.packet = packet;
                    made
                }
            };
            file.read_exact(&mut memory[..bytes])?;
            link.send(&ask.encode(), None)?;
        }
        link.receive(&mut reply, ANSWER_BYTES, None)?;
        Answer::decode(&reply)
    })
}

/// What the client says before a text.
struct Ask {
    op: Op,
    way: u8,
    bytes: u64,
    /// The packet that brings the memory.
    packet: u64,
}

impl Ask {
    const BYTES: usize = 18;

    fn encode(&self) -> Vec<u8> {
        let numbers = [self.bytes.to_le_bytes(), self.packet.to_le_bytes()];
        [&[op_code(self.op), self.way], numbers.as_flattened()].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let ([op, way], numbers) = bytes.split_first_chunk().ok_or("no question")?;
        let number = |at: usize| Some(u64::from_le_bytes(*numbers.get(at..)?.first_chunk()?));
        let (bytes, packet) = number(0).zip(number(8)).ok_or("a short question")?;
        Ok(Self { op: op_from(*op)?, way: *way, bytes, packet })
    }
}
