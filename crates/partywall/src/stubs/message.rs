//! Messages of gRPC: five bytes of prefix, and what prost makes of a value.

use bytes::{Buf, BufMut, Bytes, BytesMut};
#[cfg(feature = "blocking")]
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

/// A message to send, whose length is known.
pub(crate) struct Outgoing<M> {
    message: M,
    len: u32,
    is_taken: bool,
}

impl<M: Message> Outgoing<M> {
    /// # Errors
    /// The message is over a limit, as tonic has it.
    pub(crate) fn new(message: M, most: Option<usize>) -> Result<Self, Status> {
        let len = message.encoded_len();
        if most.is_some_and(|limit| len > limit) {
            let limit = most.unwrap_or_default();
            return Err(Status::out_of_range(format!(
                "Error, encoded message length too large: found {len} bytes, the limit is: {limit} bytes"
            )));
        }
        let too_long = |_| {
            let text = format!("Cannot return body with more than 4GB of data but got {len} bytes");
            Status::resource_exhausted(text)
        };
        let len = u32::try_from(len).map_err(too_long)?;
        Ok(Self { message, len, is_taken: false })
    }

    pub(super) fn into_inner(self) -> M {
        self.message
    }

    /// With its prefix.
    pub(super) fn len(&self) -> usize {
        PREFIX + self.len as usize
    }

    /// # Errors
    /// It is longer than it has said.
    #[inline]
    pub(super) fn encode(&self, out: &mut impl BufMut) -> Result<(), Status> {
        out.put_u8(0);
        out.put_u32(self.len);
        self.message.encode(out).map_err(|error| Status::internal(error.to_string()))
    }

    /// Its bytes, once: for where it cannot be encoded in place.
    pub(super) fn take(&mut self) -> Option<Result<Bytes, Status>> {
        if std::mem::replace(&mut self.is_taken, true) {
            return None;
        }
        let mut out = BytesMut::with_capacity(self.len());
        Some(self.encode(&mut out).map(|()| out.freeze()))
    }
}

/// A message to send, with its prefix, whatever its type is.
#[cfg(feature = "blocking")]
pub(crate) trait Encode {
    fn len(&self) -> usize;

    /// # Errors
    /// It is longer or shorter than it has said.
    fn encode_to_record(&self, out: &mut SlotBuf<'_>) -> Result<(), Status>;

    /// # Errors
    /// As above.
    fn encode_to_vec(&self, out: &mut Vec<u8>) -> Result<(), Status>;
}

#[cfg(feature = "blocking")]
impl<M: Message> Encode for Outgoing<M> {
    fn len(&self) -> usize {
        self.len()
    }

    fn encode_to_record(&self, out: &mut SlotBuf<'_>) -> Result<(), Status> {
        self.encode(out)?;
        if out.has_remaining_mut() { Err(too_short()) } else { Ok(()) }
    }

    fn encode_to_vec(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        let before = out.len();
        self.encode(out)?;
        if out.len() - before < self.len() { Err(too_short()) } else { Ok(()) }
    }
}

/// A message of a program's own making has said that it has more bytes.
pub(crate) fn too_short() -> Status {
    Status::internal("a message is shorter than it has said")
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
