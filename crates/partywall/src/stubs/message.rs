//! Messages of gRPC: five bytes of prefix, and what prost makes of a value.
//!
//! Each type of message is compiled for one buffer to be encoded into, and one to be decoded from.

use bytes::{Buf, BufMut, Bytes};
use partywall_abi::limits;
use partywall_shm::slot::{self, SlotBuf};
use prost::Message;
use tonic::Status;

use crate::wire::PREFIX;

/// Most bytes of a message that is taken, and of one that is sent; tonic's own limits unless set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Of one that is taken.
    pub decoded: Option<usize>,
    /// Of one that is sent.
    pub encoded: Option<usize>,
}

/// A message to send, whatever its type is.
pub(crate) trait Encode: Send + Sync {
    /// How many bytes it says that it has.
    fn said(&self) -> usize;

    /// Encodes it, without a prefix.
    fn encode(&self, out: &mut SlotBuf<'_>);
}

impl<M: Message> Encode for M {
    fn said(&self) -> usize {
        self.encoded_len()
    }

    fn encode(&self, out: &mut SlotBuf<'_>) {
        self.encode_raw(out);
    }
}

/// Appends a message without a prefix; how long it is. It may be of a program's own making, and have another
/// length than it has said.
///
/// # Errors
/// Its length is not one that `check` lets pass, or another one each time.
pub(super) fn append<B: BufMut>(
    out: &mut B,
    reserve: impl Fn(&mut B, usize),
    message: &dyn Encode,
    said: usize,
    check: impl FnOnce(usize) -> Result<(), Status>,
) -> Result<usize, Status> {
    let mut append = |len| {
        reserve(out, len);
        slot::append(out, len, |out| message.encode(out))
    };
    let Err(len) = append(said) else { return Ok(said) };
    check(len)?;
    append(len).map(|()| len).map_err(|again| {
        let text = format!("a message of {len} bytes has {again} when it is encoded again");
        Status::internal(text)
    })
}

/// A message to send, whose length is known. One that has another length than it has said is not encoded in
/// place, and has the length that it has.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    message: &'a dyn Encode,
    len: u32,
    most: Option<usize>,
}

impl<'a> Outgoing<'a> {
    /// # Errors
    /// The message is over a limit, as tonic has it.
    pub(crate) fn new(message: &'a dyn Encode, most: Option<usize>) -> Result<Self, Status> {
        let len = check(message.said(), most)?;
        Ok(Self { message, len, most })
    }

    /// As one that has been found within the limit.
    #[inline]
    pub(super) fn again(message: &'a dyn Encode, len: u32, most: Option<usize>) -> Self {
        Self { message, len, most }
    }

    /// What it has said, without its prefix.
    #[inline]
    pub(super) fn said(&self) -> u32 {
        self.len
    }

    /// With its prefix, as it has said.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        PREFIX + self.len as usize
    }

    /// Encodes it where it is sent from; false when it has more bytes than it has said, or fewer.
    #[inline]
    pub(crate) fn encode_in_place(&self, out: &mut SlotBuf<'_>) -> bool {
        out.put_u8(0);
        out.put_u32(self.len);
        self.message.encode(out);
        out.is_filled()
    }

    /// Appends its bytes, however many they are.
    ///
    /// # Errors
    /// It is over a limit.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        let start = out.len();
        out.reserve(self.len());
        out.extend_from_slice(&[0; PREFIX]);
        let passes = |len| check(len, self.most).map(drop);
        let len = append(out, Vec::reserve, self.message, self.len as usize, passes)?;
        let len = check(len, self.most)?;
        out[start + 1..][..4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// Its bytes, for where it cannot be encoded in place.
    ///
    /// # Errors
    /// It is over a limit.
    pub(super) fn bytes(&self) -> Result<Bytes, Status> {
        let mut out = Vec::new();
        self.append_to(&mut out).map(|()| out.into())
    }
}

/// A length that may be sent.
fn check(len: usize, most: Option<usize>) -> Result<u32, Status> {
    if let Some(limit) = most.filter(|limit| len > *limit) {
        return Err(Status::out_of_range(format!(
            "Error, encoded message length too large: found {len} bytes, the limit is: {limit} bytes"
        )));
    }
    u32::try_from(len).map_err(|_| {
        let text = format!("Cannot return body with more than 4GB of data but got {len} bytes");
        Status::resource_exhausted(text)
    })
}

/// Whether these data are one message, which is not compressed.
pub(crate) fn is_sole(data: &[u8]) -> bool {
    data.first() == Some(&0) && said(data).is_some_and(|len| len == data.len() - PREFIX)
}

/// The length that the first message of these data says.
#[inline]
pub(crate) fn said(data: &[u8]) -> Option<usize> {
    let [_compressed, len @ ..] = data.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*len) as usize)
}

/// What is to be decoded of data that are one message ([`is_sole`]).
///
/// # Errors
/// It is over the limit.
#[inline]
pub(crate) fn unprefixed<B: Buf>(mut data: B, most: Option<usize>) -> Result<B, Status> {
    data.advance(PREFIX);
    let (len, limit) = (data.remaining(), most.unwrap_or(limits::MESSAGE_BYTES));
    if len > limit { Err(too_long(len, limit)) } else { Ok(data) }
}

/// What tonic says of a message of so many bytes that is over the limit.
#[cold]
pub(crate) fn too_long(len: usize, limit: usize) -> Status {
    Status::out_of_range(format!(
        "Error, decoded message length too large: found {len} bytes, the limit is: {limit} bytes"
    ))
}

/// What tonic says of data that are no such message.
#[cold]
pub(crate) fn undecoded(error: prost::DecodeError) -> Status {
    Status::internal(error.to_string())
}
