//! The data of one direction of a call, with the signatures in it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use partywall_abi::frame::SIGNATURE;
use partywall_trust::message::{Hash, MessageError, Receipt, SIGNATURE_BYTES, Way};
use tonic::Status;

use super::{Call, JOINED};
use crate::coordinator::Own;
use crate::wire::PREFIX;

/// Where in the data of a call somebody is.
#[derive(Default)]
struct Framing {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that are there.
    have: usize,
    /// Bytes that are left of what is behind it.
    left: usize,
}

/// What comes next.
enum Step<'a> {
    /// A prefix is whole now.
    Begun(u8, usize),
    /// A part of what is behind it.
    Part(&'a [u8]),
    /// The data are over.
    More,
}

impl Framing {
    /// Takes the next of the data.
    fn step<'a>(&mut self, data: &mut &'a [u8]) -> Step<'a> {
        if self.have < PREFIX {
            let (now, rest) = data.split_at((PREFIX - self.have).min(data.len()));
            self.prefix[self.have..][..now.len()].copy_from_slice(now);
            (self.have, *data) = (self.have + now.len(), rest);
            if self.have < PREFIX {
                return Step::More;
            }
            let [flag, length @ ..] = self.prefix;
            self.left = u32::from_be_bytes(length) as usize;
            return Step::Begun(flag, self.left);
        }
        let (now, rest) = data.split_at(self.left.min(data.len()));
        (self.left, *data) = (self.left - now.len(), rest);
        if now.is_empty() { Step::More } else { Step::Part(now) }
    }

    /// Whether what is behind the prefix is over; then the next one begins.
    fn is_over(&mut self) -> bool {
        let over = self.have == PREFIX && self.left == 0;
        if over {
            self.have = 0;
        }
        over
    }

    /// Whether nothing has begun.
    fn is_between(&self) -> bool {
        self.have == 0
    }
}

/// What this end sends.
pub(crate) struct Outgoing {
    call: Arc<Call>,
    way: Way,
    number: u64,
    framing: Framing,
    hash: Option<Hash>,
}

impl Outgoing {
    pub(crate) fn new(call: Arc<Call>, way: Way) -> Self {
        Self { call, way, number: 0, framing: Framing::default(), hash: None }
    }

    /// Passes data on, with the signatures of the messages that end in them.
    ///
    /// # Errors
    /// They are no messages of gRPC.
    pub(crate) fn push(
        &mut self,
        mut data: Bytes,
        own: &Own,
        out: &mut VecDeque<Bytes>,
    ) -> Result<(), Status> {
        while !data.is_empty() {
            let mut left = &data[..];
            let mut end = false;
            while !left.is_empty() && !end {
                match self.framing.step(&mut left) {
                    Step::Begun(0 | 1, _) => self.hash = Some(Hash::new()),
                    Step::Begun(flag, _) => {
                        let text = format!("a message that begins with {flag} cannot be signed");
                        return Err(Status::internal(text));
                    }
                    Step::Part(part) => self.hash.as_mut().expect("it has begun").update(part),
                    Step::More => {}
                }
                end = self.framing.is_over();
            }
            let piece = data.split_to(data.len() - left.len());
            if end {
                let hash = self.hash.take().expect("it has begun");
                let message = (self.framing.prefix[0] == 1, hash.finish());
                let signature = self.call.sign((self.way, self.number), message, own);
                self.number += 1;
                let bytes = signature.bytes();
                let joined = if piece.len() <= JOINED { &piece[..] } else { &[] };
                let mut behind = Vec::with_capacity(joined.len() + PREFIX + bytes);
                behind.extend_from_slice(joined);
                behind.put_u8(SIGNATURE);
                behind.put_u32(bytes as u32);
                signature.put(&mut behind);
                if joined.is_empty() {
                    out.push_back(piece);
                }
                out.push_back(behind.into());
            } else {
                out.push_back(piece);
            }
        }
        Ok(())
    }

    /// That the data may end here.
    ///
    /// # Errors
    /// A message is there in part.
    pub(crate) fn end(&self) -> Result<(), Status> {
        match self.framing.is_between() {
            true => Ok(()),
            false => Err(Status::internal("the last message is cut, and cannot be signed")),
        }
    }
}

/// What this end receives.
pub(crate) struct Incoming {
    call: Arc<Call>,
    way: Way,
    number: u64,
    framing: Framing,
    state: State,
}

enum State {
    /// A message is due, or has begun.
    Message(Option<Hash>),
    /// One has come, whose last piece this is, and its signature is due.
    Due { message: (bool, [u8; 32]), last: Bytes, signature: Option<BytesMut> },
}

/// What was signed and has come.
#[derive(Default)]
pub(crate) struct Came {
    /// Data that can be passed on, each with the receipt that is to be handed in before.
    pub(crate) pieces: VecDeque<(Bytes, Option<Receipt>)>,
}

impl Incoming {
    pub(crate) fn new(call: Arc<Call>, way: Way) -> Self {
        Self { call, way, number: 0, framing: Framing::default(), state: State::Message(None) }
    }

    /// Takes data.
    ///
    /// # Errors
    /// [`MessageError`]: a signature is missing, or does not fit.
    pub(crate) fn push(
        &mut self,
        mut data: Bytes,
        own: &Own,
        came: &mut Came,
    ) -> Result<(), MessageError> {
        const MISSING: MessageError = MessageError::Malformed("it is missing");
        while !data.is_empty() {
            let mut left = &data[..];
            let mut end = false;
            while !left.is_empty() && !end {
                match (self.framing.step(&mut left), &mut self.state) {
                    (Step::Begun(0 | 1, _), State::Message(hash)) => {
                        *hash = Some(Hash::new());
                    }
                    (Step::Begun(SIGNATURE, _), State::Message(_)) => {
                        return Err(MessageError::Malformed("it has no message"));
                    }
                    (Step::Begun(SIGNATURE, len), State::Due { signature, .. }) => {
                        if len > SIGNATURE_BYTES {
                            return Err(MessageError::Malformed("it is too long"));
                        }
                        *signature = Some(BytesMut::with_capacity(len));
                    }
                    (Step::Begun(..), _) => return Err(MISSING),
                    (Step::Part(part), State::Message(hash)) => {
                        hash.as_mut().expect("it has begun").update(part);
                    }
                    (Step::Part(part), State::Due { signature, .. }) => {
                        signature.as_mut().expect("it has begun").extend_from_slice(part);
                    }
                    (Step::More, _) => {}
                }
                end = self.framing.is_over();
            }
            let piece = data.split_to(data.len() - left.len());
            let state = std::mem::replace(&mut self.state, State::Message(None));
            self.state = match state {
                State::Message(Some(hash)) if end => State::Due {
                    message: (self.framing.prefix[0] == 1, hash.finish()),
                    last: piece,
                    signature: None,
                },
                // The end of its message is still to come.
                State::Message(hash) => {
                    came.pieces.push_back((piece, None));
                    State::Message(hash)
                }
                State::Due { message, last, signature: Some(signature) } if end => {
                    let what = (self.way, self.number);
                    let receipt = self.call.check(what, message, &signature, own)?;
                    self.number += 1;
                    came.pieces.push_back((last, Some(receipt)));
                    State::Message(None)
                }
                due => due,
            };
        }
        Ok(())
    }

    /// That the data may end here.
    ///
    /// # Errors
    /// A message is there in part, or without its signature.
    pub(crate) fn end(&self) -> Result<(), MessageError> {
        match &self.state {
            State::Message(None) if self.framing.is_between() => Ok(()),
            State::Message(_) => Err(MessageError::Malformed("its message is cut")),
            State::Due { .. } => Err(MessageError::Malformed("it is missing")),
        }
    }
}

/// A request of one message, with its prefix, and its signature behind it.
#[cfg(feature = "blocking")]
pub(crate) fn signed(call: &Arc<Call>, message: &[u8], own: &Own) -> Result<Vec<u8>, Status> {
    let mut pieces = VecDeque::new();
    let data = Bytes::copy_from_slice(message);
    Outgoing::new(Arc::clone(call), Way::Request).push(data, own, &mut pieces)?;
    Ok(pieces.into_iter().flatten().collect())
}

/// What was signed of an answer.
#[cfg(feature = "blocking")]
pub(crate) struct Verified {
    /// Its messages, without signatures.
    pub(crate) data: Vec<u8>,
    /// What is to be handed in for them.
    pub(crate) receipts: Vec<Receipt>,
}

/// The messages of an answer that has come to its end.
///
/// # Errors
/// [`MessageError`].
#[cfg(feature = "blocking")]
pub(crate) fn verified(call: &Arc<Call>, data: &[u8], own: &Own) -> Result<Verified, MessageError> {
    let (mut incoming, mut came) = (Incoming::new(Arc::clone(call), Way::Reply), Came::default());
    incoming.push(Bytes::copy_from_slice(data), own, &mut came)?;
    incoming.end()?;
    let mut verified = Verified { data: Vec::with_capacity(data.len()), receipts: Vec::new() };
    for (piece, receipt) in came.pieces {
        verified.data.extend_from_slice(&piece);
        verified.receipts.extend(receipt);
    }
    Ok(verified)
}
