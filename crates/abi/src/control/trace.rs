//! Links that an operator looks into.
//!
//! ```text
//! operator   Trace ->            <- Traced + fds [the caller's outbox, the server's], for reading
//!                                <- Over, when the link is over
//!            Untrace ->          nobody is told any more
//! ```

use super::fields::{geometry, put_geometry};
use super::{start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::layout::Geometry;
use crate::security::Security;

pub(super) const KINDS: u16 = 0x0a00;
const TRACE: u16 = KINDS | 1;
const TRACED: u16 = KINDS | 2;
const OVER: u16 = KINDS | 3;
const UNTRACE: u16 = KINDS | 4;

/// Messages about links that are looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceMessage {
    /// To the coordinator: let me read what crosses this link.
    Trace {
        /// Request number.
        request: u32,
        /// The link.
        link: u64,
    },
    /// To the operator: here is its memory.
    Traced {
        /// Request number.
        request: u32,
        /// How large its outboxes are.
        geometry: Geometry,
        /// What protects it.
        security: Security,
    },
    /// To the operator: it is over.
    Over {
        /// Number of the request by which it is looked into.
        request: u32,
    },
    /// To the coordinator: it is looked into no more.
    Untrace {
        /// Number of the request by which it was.
        request: u32,
    },
}

impl TraceMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Trace { request, link } => {
                start(w, TRACE, *request);
                w.u64(*link);
            }
            Self::Traced { request, geometry, security } => {
                start(w, TRACED, *request);
                put_geometry(w, *geometry);
                security.put(w);
            }
            Self::Over { request } => start(w, OVER, *request),
            Self::Untrace { request } => start(w, UNTRACE, *request),
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            TRACE => Self::Trace { request, link: r.u64("link")? },
            TRACED => {
                Self::Traced { request, geometry: geometry(r)?, security: Security::take(r)? }
            }
            OVER => Self::Over { request },
            UNTRACE => Self::Untrace { request },
            _ => return Err(unknown(kind)),
        })
    }
}
