//! Gates of domains, which an operator opens and closes.

use super::fields::{flag, name, put_name};
use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::name::ServiceName;

pub(super) const KINDS: u16 = 0x0600;
const SWITCH: u16 = KINDS | 1;
const SWITCHED: u16 = KINDS | 2;
const SET: u16 = KINDS | 3;
const IS_SET: u16 = KINDS | 4;

/// Messages about gates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateMessage {
    /// To the coordinator: open or close the gates of the domains that serve this name.
    Switch {
        /// Request number.
        request: u32,
        /// The name.
        name: ServiceName,
        /// Whether callers may come in by the gate.
        open: bool,
    },
    /// To the process: it is done.
    Switched {
        /// Request number.
        request: u32,
        /// How many domains have done it.
        domains: u32,
    },
    /// To a domain: open or close your gate.
    Set {
        /// Number of the order.
        request: u32,
        /// Whether callers may come in.
        open: bool,
    },
    /// To the coordinator: that is done, or cannot be.
    IsSet {
        /// Number of the order.
        request: u32,
        /// 0, or an error number.
        errno: u32,
    },
}

impl GateMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Switch { request, name, open } => {
                start(w, SWITCH, *request);
                put_name(w, name);
                w.u8((*open).into());
            }
            Self::Switched { request, domains } => {
                start(w, SWITCHED, *request);
                w.u32(*domains);
            }
            Self::Set { request, open } => {
                start(w, SET, *request);
                w.u8((*open).into());
            }
            Self::IsSet { request, errno } => {
                start(w, IS_SET, *request);
                w.u32(*errno);
            }
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            SWITCH => Self::Switch { request, name: name(r)?, open: flag(r, "open")? },
            SWITCHED => Self::Switched { request, domains: r.u32("domains")? },
            SET => Self::Set { request, open: flag(r, "open")? },
            IS_SET => Self::IsSet { request, errno: r.u32("errno")? },
            _ => return Err(unknown(kind)),
        })
    }
}
