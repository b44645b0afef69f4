//! The one packet on a link's socket that is no bell: the server's word that the link is open.

use crate::codec::{DecodeError, Reader};

/// What the server sends first on a link's socket, when it reads the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The link's number, as the coordinator told both.
    pub link: u64,
}

impl Setup {
    const MAGIC: u32 = u32::from_le_bytes(*b"PWst");

    /// Length of the packet.
    pub const BYTES: usize = 16;

    /// The packet.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&crate::VERSION.to_le_bytes());
        out[8..].copy_from_slice(&self.link.to_le_bytes());
        out
    }

    /// The message in a copied packet.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(packet);
        let magic = r.u32("setup magic")?;
        if magic != Self::MAGIC {
            return Err(DecodeError::Value { field: "setup magic", found: magic.into() });
        }
        let version = r.u32("setup version")?;
        if version != u32::from(crate::VERSION) {
            return Err(DecodeError::Value { field: "setup version", found: version.into() });
        }
        let link = r.u64("setup link")?;
        r.end()?;
        Ok(Self { link })
    }
}
