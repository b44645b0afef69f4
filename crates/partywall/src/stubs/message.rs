//! Messages of gRPC: five bytes of prefix, and what prost makes of a value.

use bytes::{Buf, BufMut, Bytes};
use partywall_shm::slot::SlotBuf;
use prost::Message;
use tonic::Status;

use crate::wire::PREFIX;

/// tonic's limit of a message that is received.
const MOST_RECEIVED: usize = 4 << 20;

/// Most bytes of a message that is taken, and of one that is sent; tonic's own limits unless set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Of one that is taken.
    pub decoded: Option<usize>,
    /// Of one that is sent.
    pub encoded: Option<usize>,
}

/// A message to send, whose length is known. A message of a program's own making may have another one than it
/// has said; then it is not encoded in place, and has the length that it has.
pub(crate) struct Outgoing<M> {
    message: M,
    len: u32,
    most: Option<usize>,
    is_taken: bool,
}

impl<M: Message> Outgoing<M> {
    /// # Errors
    /// The message is over a limit, as tonic has it.
    pub(crate) fn new(message: M, most: Option<usize>) -> Result<Self, Status> {
        let len = check(message.encoded_len(), most)?;
        Ok(Self { message, len, most, is_taken: false })
    }

    pub(super) fn into_inner(self) -> M {
        self.message
    }

    /// With its prefix, as it has said.
    pub(super) fn len(&self) -> usize {
        PREFIX + self.len as usize
    }

    /// Encodes it where it is sent from; false when it has more bytes than it has said, or fewer.
    #[inline]
    pub(super) fn encode_in_place(&self, out: &mut SlotBuf<'_>) -> bool {
        out.put_u8(0);
        out.put_u32(self.len);
        self.message.encode_raw(out);
        out.is_filled()
    }

    /// Appends its bytes, however many they are.
    ///
    /// # Errors
    /// It is over a limit.
    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        let start = out.len();
        out.reserve(self.len());
        out.extend_from_slice(&[0; PREFIX]);
        self.message.encode_raw(out);
        let len = check(out.len() - start - PREFIX, self.most)?;
        out[start + 1..][..4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// Its bytes, once: for where it cannot be encoded in place.
    pub(super) fn take(&mut self) -> Option<Result<Bytes, Status>> {
        if std::mem::replace(&mut self.is_taken, true) {
            return None;
        }
        let mut out = Vec::new();
        Some(self.append_to(&mut out).map(|()| out.into()))
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

/// A message to send, with its prefix, whatever its type is.
#[cfg(feature = "blocking")]
pub(crate) trait Encode {
    /// As it has said.
    fn len(&self) -> usize;

    /// Encodes it where it is sent from; false when it has another length than it has said.
    fn encode_in_place(&self, out: &mut SlotBuf<'_>) -> bool;

    /// # Errors
    /// It is over a limit.
    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Status>;
}

#[cfg(feature = "blocking")]
impl<M: Message> Encode for Outgoing<M> {
    fn len(&self) -> usize {
        self.len()
    }

    fn encode_in_place(&self, out: &mut SlotBuf<'_>) -> bool {
        self.encode_in_place(out)
    }

    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        self.append_to(out)
    }
}

/// Whether these data are one message, which is not compressed.
pub(crate) fn is_sole(data: &Bytes) -> bool {
    data.first_chunk::<PREFIX>().is_some_and(|prefix| {
        let [compressed, len @ ..] = *prefix;
        compressed == 0 && u32::from_be_bytes(len) as usize == data.len() - PREFIX
    })
}

/// The message that these data are, behind its prefix ([`is_sole`]).
///
/// # Errors
/// It is over the limit or no such message, as tonic has it.
pub(crate) fn decode<M: Message + Default>(
    mut data: impl Buf,
    most: Option<usize>,
) -> Result<M, Status> {
    data.advance(PREFIX);
    let message = data;
    let (len, limit) = (message.remaining(), most.unwrap_or(MOST_RECEIVED));
    if len > limit {
        return Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {len} bytes, the limit is: {limit} bytes"
        )));
    }
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}
