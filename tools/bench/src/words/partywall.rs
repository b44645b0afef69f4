//! The text through Partywall: as one message of the bare link, which the file is read straight
//! into, and as one unary call of the stubs. Both wait as they do by default: they spin for what
//! they have learned, then sleep.

use std::fs::File;
use std::os::fd::AsFd;

use partywall_abi::security::Isolation;
use partywall_shm::link::LinkError;

use super::count::{answer, op_code, op_from};
use super::tonic::Asker;
use super::{cases, control, drive};
use crate::calls::partywall::{connect, coordinate, serve, settle_waits};
use crate::calls::tonic_net::runtime;
use crate::case::{Case, Wait};
use crate::contender::{Attendant, Contender};
use crate::error::Result;
use crate::seat::Seat;
use crate::text::{ANSWER_BYTES, Answer};

/// The link without calls: the operation and the text as one message each.
#[derive(Debug)]
pub struct Raw;

/// Stubs over the async channel.
#[derive(Debug)]
pub struct Tonic {
    name: &'static str,
    domains: Option<Isolation>,
}

/// Between processes.
pub static TONIC: Tonic = Tonic { name: "partywall-tonic", domains: None };

/// Between domains without protection keys.
pub static DOMAIN_TONIC: Tonic = Tonic { name: "domain-tonic", domains: Some(Isolation::None) };

/// Between domains with protection keys, where the machine has them.
pub static DOMAIN_TONIC_KEYS: Tonic =
    Tonic { name: "domain-tonic-keys", domains: Some(Isolation::ProtectionKeys) };

const LIMIT: usize = (2 << 30) - 1;

impl Contender for Raw {
    fn name(&self) -> &'static str {
        "partywall-raw"
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Spin))
    }

    fn attendant(&self) -> Option<Attendant> {
        Some(coordinate)
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
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

    fn call(&self, seat: &mut Seat) -> Result<()> {
        settle_waits(seat);
        let dir = seat.dir().to_owned();
        let (mut link, _conversation) = seat.admitted(|| control::link(&dir))?;
        let mut reply = Vec::new();
        drive(seat, |text, op| {
            let file = File::open(&text.path)?;
            link.send(&[op_code(op)], None)?;
            link.send_from(file.as_fd(), usize::try_from(text.bytes)?, None)?;
            link.receive(&mut reply, ANSWER_BYTES, None)?;
            let reply: [u8; ANSWER_BYTES] =
                reply.as_slice().try_into().map_err(|_| "an answer of another length")?;
            Ok(Answer::decode(&reply))
        })
    }
}

impl Contender for Tonic {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cases(&self, sizes: &[u64]) -> Vec<Case> {
        cases(sizes, Some(Wait::Spin))
    }

    fn attendant(&self) -> Option<Attendant> {
        Some(coordinate)
    }

    fn domains(&self) -> Option<Isolation> {
        self.domains
    }

    fn serve(&self, seat: &mut Seat) -> Result<()> {
        serve(seat)
    }

    fn call(&self, seat: &mut Seat) -> Result<()> {
        settle_waits(seat);
        let runtime = runtime()?;
        let dir = seat.dir().to_owned();
        let channel = seat.admitted(|| runtime.block_on(connect(&dir)))?;
        let mut asker = Asker::new(channel);
        drive(seat, |text, op| runtime.block_on(asker.ask(text, op)))
    }
}
