//! Reading and writing of little-endian fields in a copied slice.

use alloc::string::String;
use alloc::vec::Vec;

/// Why bytes from outside were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end before the field does.
    #[error("{field}: the bytes end at {at} inside the field")]
    Short {
        /// The field being read.
        field: &'static str,
        /// Offset of the field's first byte.
        at: usize,
    },
    /// Bytes are left over after the last field.
    #[error("{left} bytes are left over after the last field")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// A length or a count is over its limit.
    #[error("{field}: {found} is over the limit of {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What it said.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A value has no meaning.
    #[error("{field}: {found} has no meaning here")]
    Value {
        /// The field.
        field: &'static str,
        /// What it said.
        found: u64,
    },
    /// A text is not what the field wants.
    #[error("{field}: not a valid text for this field")]
    Text {
        /// The field.
        field: &'static str,
    },
}

/// Writes fields to the end of a vector.
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    /// Two bytes, little-endian.
    pub fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// Four bytes, little-endian.
    pub fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// Eight bytes, little-endian.
    pub fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// The bytes as they are.
    pub fn raw(&mut self, v: &[u8]) {
        self.0.extend_from_slice(v);
    }
    /// A two-byte length, then the bytes; what is over 65,535 bytes is cut.
    pub fn short_bytes(&mut self, v: &[u8]) {
        let v = &v[..v.len().min(usize::from(u16::MAX))];
        self.u16(v.len() as u16);
        self.raw(v);
    }
}

/// Reads fields from the front of a slice.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`] when there are fewer.
    #[inline]
    pub fn raw(&mut self, field: &'static str, n: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < n {
            return Err(DecodeError::Short { field, at: self.at });
        }
        self.at += n;
        Ok(&rest[..n])
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`DecodeError::Short`] when there are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let raw = self.raw(field, N)?;
        Ok(raw.try_into().expect("raw returned N bytes"))
    }

    /// One byte.
    ///
    /// # Errors
    /// [`DecodeError::Short`] at the end.
    #[inline]
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Short`] at the end.
    #[inline]
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Short`] at the end.
    #[inline]
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// Eight bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Short`] at the end.
    #[inline]
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A two-byte length of at most `limit`, then the bytes.
    ///
    /// # Errors
    /// [`DecodeError::TooLarge`] over the limit, [`DecodeError::Short`] at the end.
    #[inline]
    pub fn short_bytes(
        &mut self,
        field: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let found = usize::from(self.u16(field)?);
        if found > limit {
            return Err(DecodeError::TooLarge { field, found, limit });
        }
        self.raw(field, found)
    }

    /// A two-byte length of at most `limit`, then UTF-8 text.
    ///
    /// # Errors
    /// As [`Reader::short_bytes`], and [`DecodeError::Text`] when it is not UTF-8.
    pub fn short_text(&mut self, field: &'static str, limit: usize) -> Result<String, DecodeError> {
        let raw = self.short_bytes(field, limit)?;
        core::str::from_utf8(raw).map(Into::into).map_err(|_| DecodeError::Text { field })
    }

    /// Everything that has not been read.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] when bytes are left.
    pub fn end(self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }
}
