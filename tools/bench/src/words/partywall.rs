//! The text through Partywall: as one message of the bare link, which the file is read straight
//! into, and as one unary call of the stubs. Both wait as they do by default: they spin for what
//! they have learned, then sleep.

use std::fs::File;
use std::os::fd::AsFd;

use partywall_abi::security::Isolation;
use partywall_shm::link::LinkError;

use super::count::{answer, op_code, op_from};
use super::tonic::ask_all;
use super::{cases, control, drive};
use crate::calls::partywall::{connect, coordinate, serve, serve_native, settle_waits};
use crate::calls::stubs::{native, ordinary};
use crate::calls::tonic_net::runtime;
use crate::case::Wait;
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
    || cases(Some(Wait::Spin)),
    |seat| ask_all(seat, &runtime()?, ordinary::client, connect),
)
.attended(coordinate)
.served(serve);

/// Native stubs on both sides, between processes.
pub const NATIVE: Contender = Contender::new(
    Kind::Ours,
    "partywall-native",
    "partywall-build's generated stubs over Partywall's channel, as programs use it",
    || cases(Some(Wait::Spin)),
    |seat| ask_all(seat, &runtime()?, native::client, connect),
)
.attended(coordinate)
.served(serve_native);

/// Between domains without protection keys.
pub const DOMAIN_TONIC: Contender = Contender {
    name: "domain-tonic",
    about: "tonic's stubs between two domains, without protection keys",
    domains: Some(Isolation::None),
    ..TONIC
};

/// Between domains with protection keys, where the machine has them.
pub const DOMAIN_TONIC_KEYS: Contender = Contender {
    name: "domain-tonic-keys",
    about: "the same with protection keys",
    domains: Some(Isolation::ProtectionKeys),
    ..TONIC
};

/// The link without calls: the operation and the text as one message each.
pub const RAW: Contender = Contender::new(
    Kind::Ours,
    "partywall-raw",
    "Partywall's link without gRPC: messages of bytes",
    || cases(Some(Wait::Spin)),
    call_raw,
)
.attended(coordinate)
.served(serve_raw);

const LIMIT: usize = (2 << 30) - 1;

fn serve_raw(seat: &mut Seat) -> Result<()> {
    let (mut link, _conversation) = control::serve(seat)?;
    let (mut op, mut text) = (Vec::new(), Vec::new());
    loop {
        match link.receive(&mut op, 1, None) {
            Ok(()) => {}
            Err(LinkError::Dead) => return Ok(()),
            Err(other) => return Err(other.into()),
        }
        link.receive(&mut text, LIMIT, None)?;
        let op = op_from(*op.first().ok_or("an empty operation")?)?;
        link.send(&answer(op, &text).encode(), None)?;
    }
}

fn call_raw(seat: &mut Seat) -> Result<Figures> {
    settle_waits(seat);
    let (mut link, _conversation) = seat.admitted(|seat| control::link(seat.dir()))?;
    let mut reply = Vec::new();
    drive(seat, |text, op| {
        let file = File::open(&text.path)?;
        link.send(&[op_code(op)], None)?;
        link.send_from(file.as_fd(), usize::try_from(text.bytes)?, None)?;
        link.receive(&mut reply, ANSWER_BYTES, None)?;
        Answer::decode(&reply)
    })
}
