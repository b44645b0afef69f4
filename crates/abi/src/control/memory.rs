//! Memory that a process makes for parcels: a part of what its account may have.

use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};

pub(super) const KINDS: u16 = 0x0800;
const WANT: u16 = KINDS | 1;
const GIVEN: u16 = KINDS | 2;

/// Messages about memory for parcels; for whoever has
/// [`Capabilities::MEMORY`](crate::version::Capabilities::MEMORY).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryMessage {
    /// To the coordinator: this process wants to have so many bytes in all, or has them. With fewer than
    /// before the rest is given back.
    Want {
        /// Request number; with 0 nothing is answered.
        request: u32,
        /// All that it makes or has made.
        bytes: u64,
    },
    /// To the process: it may.
    Given {
        /// Request number.
        request: u32,
        /// What it may have in all.
        bytes: u64,
    },
}

impl MemoryMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        let (kind, request, bytes) = match self {
            Self::Want { request, bytes } => (WANT, *request, *bytes),
            Self::Given { request, bytes } => (GIVEN, *request, *bytes),
        };
        start(w, kind, request);
        w.u64(bytes);
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            WANT => Self::Want { request, bytes: r.u64("bytes")? },
            GIVEN => Self::Given { request, bytes: r.u64("bytes")? },
            _ => return Err(unknown(kind)),
        })
    }
}
