//! A message of a program's own making, which may have another length than it says.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

/// What a message says that panics when it is encoded.
pub const PANICS: i64 = i64::MAX;

/// `stubs.v1.Own`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Data.
    pub blob: Vec<u8>,
    /// What the answer is to say.
    pub answer: i64,
    /// So many bytes more than it has, it says; or [`PANICS`]. It does not travel.
    pub says: i64,
}

impl Message for Own {
    fn encode_raw(&self, out: &mut impl BufMut) {
        assert!(self.says != PANICS, "as it was asked");
        encoding::bytes::encode(1, &self.blob, out);
        encoding::sint64::encode(2, &self.answer, out);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => encoding::bytes::merge(wire_type, &mut self.blob, from, context),
            2 => encoding::sint64::merge(wire_type, &mut self.answer, from, context),
            _ => encoding::skip_field(wire_type, tag, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let len = encoding::bytes::encoded_len(1, &self.blob)
            + encoding::sint64::encoded_len(2, &self.answer);
        match self.says {
            PANICS => len,
            more => len.saturating_add_signed(more as isize),
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}
