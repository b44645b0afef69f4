//! The policy: an operator has it read again.

use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};

pub(super) const KINDS: u16 = 0x0700;
const RELOAD: u16 = KINDS | 1;
const RELOADED: u16 = KINDS | 2;

/// Messages about the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyMessage {
    /// To the coordinator: read your policy again.
    Reload {
        /// Request number.
        request: u32,
    },
    /// To the process: that is in force.
    Reloaded {
        /// Request number.
        request: u32,
        /// Links that it has ended.
        ended: u32,
        /// Links whose methods it has changed.
        changed: u32,
    },
}

impl PolicyMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Reload { request } => start(w, RELOAD, *request),
            Self::Reloaded { request, ended, changed } => {
                start(w, RELOADED, *request);
                w.u32(*ended);
                w.u32(*changed);
            }
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            RELOAD => Self::Reload { request },
            RELOADED => {
                Self::Reloaded { request, ended: r.u32("ended")?, changed: r.u32("changed")? }
            }
            _ => return Err(unknown(kind)),
        })
    }
}
