//! What the policy lets cross on a link's descriptor socket.

use core::fmt;

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;

/// The bit beside the number of descriptors: leases may be among them.
const LEASES: u32 = 1 << 31;

/// What the policy lets cross on a link, in both directions, beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Most descriptors beside one message, at most [`limits::PACKET_FDS`]; with 0 none crosses.
    pub descriptors: u32,
    /// Whether leases may be among them: memory that both ends write.
    pub leases: bool,
}

impl Grant {
    /// No descriptor may cross.
    pub const NONE: Self = Self { descriptors: 0, leases: false };

    /// Whether no descriptor may cross.
    pub const fn is_none(self) -> bool {
        self.descriptors == 0
    }

    /// Whether all that may cross by the other one may cross by this one.
    pub const fn covers(self, other: Self) -> bool {
        self.descriptors >= other.descriptors && (self.leases || !other.leases)
    }

    pub(super) fn put(self, w: &mut Writer<'_>) {
        w.u32(self.descriptors | if self.leases { LEASES } else { 0 });
    }

    /// One that is there: where no descriptor may cross it is left out.
    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bits = r.u32("descriptors")?;
        let descriptors = bits & !LEASES;
        if !(1..=limits::PACKET_FDS as u32).contains(&descriptors) {
            return Err(DecodeError::Value { field: "descriptors", found: bits.into() });
        }
        Ok(Self { descriptors, leases: bits & LEASES != 0 })
    }
}

/// `3`, or `3 with leases`.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases = if self.leases { " with leases" } else { "" };
        write!(f, "{}{leases}", self.descriptors)
    }
}
