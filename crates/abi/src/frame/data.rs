//! Where the data of a frame lie.

use super::PARCEL;
use crate::codec::{DecodeError, Reader};
use crate::limits;

/// The data of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// In the record.
    Here(&'a [u8]),
    /// In a parcel.
    InParcel(ParcelRef),
}

impl<'a> Data<'a> {
    #[inline(always)]
    pub(super) fn decode(flags: u8, mut r: Reader<'a>) -> Result<Self, DecodeError> {
        if flags & PARCEL == 0 {
            return Ok(Self::Here(r.rest()));
        }
        let parcel = ParcelRef::decode(&mut r)?;
        r.end()?;
        Ok(Self::InParcel(parcel))
    }

    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Here(data) => data.len(),
            Self::InParcel(parcel) => parcel.bytes as usize,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where data lie in a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParcelRef {
    /// The packet on the descriptor socket that has the parcel's descriptor, or had it.
    pub packet: u64,
    /// Where they begin.
    pub offset: u64,
    /// How many there are; at least one.
    pub bytes: u64,
    /// Of an owned parcel; none of a sealed one.
    pub owned: Option<Owned>,
}

/// An owned parcel that is lent to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its place on the link, below [`limits::OWNED_PARCELS`].
    pub place: u32,
    /// How often the place has been lent with this time.
    pub generation: u32,
}

/// In place of an owned parcel's, where it is a sealed one.
const SEALED: u32 = u32::MAX;

impl ParcelRef {
    /// How long one is in a frame.
    pub const BYTES: usize = 32;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let Self { packet, offset, bytes, owned } = *self;
        let Owned { place, generation } = owned.unwrap_or(Owned { place: SEALED, generation: 0 });
        let last = u64::from(place) | u64::from(generation) << 32;
        let mut out = [0; Self::BYTES];
        for (to, word) in out.chunks_exact_mut(8).zip([packet, offset, bytes, last]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Takes one. Its end has no more than 63 bits.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [packet, offset, bytes] =
            [r.u64("parcel's packet")?, r.u64("parcel's offset")?, r.u64("parcel's bytes")?];
        let (place, generation) = (r.u32("parcel's place")?, r.u32("parcel's generation")?);
        let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
        if bytes == 0 || end.is_none() {
            return Err(DecodeError::Value { field: "parcel's bytes", found: bytes });
        }
        let owned = match (place, generation) {
            (SEALED, 0) => None,
            (SEALED, _) => {
                let found = generation.into();
                return Err(DecodeError::Value { field: "parcel's generation", found });
            }
            (place, generation) if place < limits::OWNED_PARCELS => {
                Some(Owned { place, generation })
            }
            _ => return Err(DecodeError::Value { field: "parcel's place", found: place.into() }),
        };
        Ok(Self { packet, offset, bytes, owned })
    }

    /// The one at the end of a frame that has it.
    ///
    /// # Errors
    /// [`DecodeError`] when it is none.
    pub fn of(payload: &[u8]) -> Result<Self, DecodeError> {
        let at = payload.len().saturating_sub(Self::BYTES);
        Self::decode(&mut Reader::new(&payload[at..]))
    }
}
