//! What is attached to the head of a request or an answer: memory and files, whose descriptors cross in one
//! packet of the link's descriptor socket. Memory that its receiver has from an earlier packet crosses by its
//! place alone.

use alloc::vec::Vec;

use super::block;
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;

/// What one attachment is.
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
        /// Which place of its sender's it has, if it has one.
        place: Option<Place>,
    },
    /// A lease, which its receiver has from now on.
    Lease {
        /// How many bytes it has; at least one.
        bytes: u64,
        /// One more than when it was handed over last.
        generation: u64,
        /// Which place of its sender's it has, if it has one.
        place: Option<Place>,
    },
    /// Something else.
    File,
}

/// One of the [`limits::ATTACHED_PLACES`] places that a sender has for memory on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u8);

impl Place {
    /// The place with this number, if there is one.
    pub const fn new(number: usize) -> Option<Self> {
        if number < limits::ATTACHED_PLACES { Some(Self(number as u8)) } else { None }
    }

    /// Its number, less than [`limits::ATTACHED_PLACES`].
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

impl Item {
    /// Which place of its sender's it has, if it is memory that may come again by that.
    pub fn place(self) -> Option<Place> {
        match self {
            Self::Owned { place, .. } | Self::Lease { place, .. } => place,
            Self::Sealed { .. } | Self::File => None,
        }
    }

    /// Its kind, with the number of its place and one in the upper half, and two words.
    fn parts(self) -> (u8, u64, u64) {
        let (kind, first, second) = match self {
            Self::Sealed { offset, bytes } => (1, bytes, offset),
            Self::Owned { bytes, generation, .. } => (2, bytes, generation),
            Self::Lease { bytes, generation, .. } => (3, bytes, generation),
            Self::File => (4, 0, 0),
        };
        let place = self.place().map_or(0, |place| place.0 + 1);
        (kind | place << 4, first, second)
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let both = r.u8("attachment's kind")?;
        let (kind, number) = (both & 15, usize::from(both >> 4));
        let place = number.checked_sub(1).and_then(Place::new);
        if place.is_some() != (number > 0) || (place.is_some() && !matches!(kind, 2 | 3)) {
            let found = number as u64;
            return Err(DecodeError::Value { field: "attachment's place", found });
        }
        let (bytes, second) = (r.u64("attachment's bytes")?, r.u64("attachment's second word")?);
        let is_file = kind == 4;
        if (bytes == 0) != is_file || bytes > i64::MAX as u64 {
            return Err(DecodeError::Value { field: "attachment's bytes", found: bytes });
        }
        Ok(match kind {
            1 if second <= i64::MAX as u64 - bytes => Self::Sealed { offset: second, bytes },
            2 => Self::Owned { bytes, generation: second, place },
            3 => Self::Lease { bytes, generation: second, place },
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
    /// The packet on the descriptor socket; 0 where all of it is known.
    pub packet: u64,
    items: &'a [u8],
}

impl<'a> Attached<'a> {
    /// Appends 1 to [`limits::PACKET_FDS`] items, whose descriptors are in this packet; in packet 0 none,
    /// where the frame says that all are known.
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
    pub(super) fn decode(r: &mut Reader<'a>, flags: u8) -> Result<Self, DecodeError> {
        let is_known = flags & super::KNOWN != 0;
        let packet = r.u64("attachments' packet")?;
        let count = usize::from(r.u8("attachments")?);
        if !(1..=limits::PACKET_FDS).contains(&count) {
            return Err(DecodeError::Value { field: "attachments", found: count as u64 });
        }
        if is_known && packet != 0 {
            return Err(DecodeError::Value { field: "attachments' packet", found: packet });
        }
        let items = r.raw("attachments", count * ITEM)?;
        let mut r = Reader::new(items);
        for _ in 0..count {
            if Item::decode(&mut r)?.place().is_none() && is_known {
                return Err(DecodeError::Value { field: "attachment's place", found: 0 });
            }
        }
        Ok(Self { packet, items })
    }

    /// That of a frame with these flags, which has it, and so has a head.
    ///
    /// # Errors
    /// [`DecodeError`] when there is none.
    pub fn of(flags: u8, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(payload);
        block(&mut r, super::HEAD, "head length")?;
        Self::decode(&mut r, flags)
    }

    /// What it is, in the order of the descriptors.
    pub fn items(&self) -> impl Iterator<Item = Item> + use<'a> {
        let mut r = Reader::new(self.items);
        (0..self.items.len() / ITEM).map_while(move |_| Item::decode(&mut r).ok())
    }
}
