//! What is attached to the head of a request or an answer: memory and files, whose descriptors cross in one
//! packet of the link's descriptor socket.

use alloc::vec::Vec;

use super::block;
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;

/// What one descriptor of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes in a sealed parcel.
    Sealed {
        /// Where they begin.
        offset: u64,
        /// How many there are; at least one.
        bytes: u64,
    },
    /// An owned parcel of a program.
    Owned {
        /// How many bytes it has; at least one.
        bytes: u64,
        /// How often its owner has begun and ended to write.
        generation: u64,
    },
    /// A lease, which its receiver has from now on.
    Lease {
        /// How many bytes it has; at least one.
        bytes: u64,
        /// One more than when it was handed over last.
        generation: u64,
    },
    /// Something else.
    File,
}

impl Item {
    /// Its kind, and two words.
    fn parts(self) -> (u8, u64, u64) {
        match self {
            Self::Sealed { offset, bytes } => (1, bytes, offset),
            Self::Owned { bytes, generation } => (2, bytes, generation),
            Self::Lease { bytes, generation } => (3, bytes, generation),
            Self::File => (4, 0, 0),
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = r.u8("attachment's kind")?;
        let (bytes, second) = (r.u64("attachment's bytes")?, r.u64("attachment's second word")?);
        let is_file = kind == 4;
        if (bytes == 0) != is_file || bytes > i64::MAX as u64 {
            return Err(DecodeError::Value { field: "attachment's bytes", found: bytes });
        }
        Ok(match kind {
            1 if second <= i64::MAX as u64 - bytes => Self::Sealed { offset: second, bytes },
            2 => Self::Owned { bytes, generation: second },
            3 => Self::Lease { bytes, generation: second },
            4 if second == 0 => Self::File,
            1 | 4 => {
                return Err(DecodeError::Value {
                    field: "attachment's second word",
                    found: second,
                });
            }
            _ => return Err(DecodeError::Value { field: "attachment's kind", found: kind.into() }),
        })
    }
}

/// How long an item is in a frame.
const ITEM: usize = 17;

/// What is attached, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached<'a> {
    /// The packet on the descriptor socket.
    pub packet: u64,
    items: &'a [u8],
}

impl<'a> Attached<'a> {
    /// Appends 1 to [`limits::PACKET_FDS`] items, whose descriptors are in this packet.
    pub fn write(out: &mut Vec<u8>, packet: u64, items: &[Item]) {
        debug_assert!((1..=limits::PACKET_FDS).contains(&items.len()));
        let mut w = Writer(out);
        w.u64(packet);
        w.u8(items.len() as u8);
        for item in items {
            let (kind, first, second) = item.parts();
            w.u8(kind);
            w.u64(first);
            w.u64(second);
        }
    }

    /// Takes one.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let packet = r.u64("attachments' packet")?;
        let count = usize::from(r.u8("attachments")?);
        if !(1..=limits::PACKET_FDS).contains(&count) {
            return Err(DecodeError::Value { field: "attachments", found: count as u64 });
        }
        let items = r.raw("attachments", count * ITEM)?;
        let mut r = Reader::new(items);
        for _ in 0..count {
            Item::decode(&mut r)?;
        }
        Ok(Self { packet, items })
    }

    /// That of a frame that has it, and so has a head.
    ///
    /// # Errors
    /// [`DecodeError`] when there is none.
    pub fn of(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(payload);
        block(&mut r, super::HEAD, "head length")?;
        Self::decode(&mut r)
    }

    /// What its descriptors are, in their order.
    pub fn items(&self) -> impl Iterator<Item = Item> + use<'a> {
        let mut r = Reader::new(self.items);
        (0..self.items.len() / ITEM).map_while(move |_| Item::decode(&mut r).ok())
    }
}
