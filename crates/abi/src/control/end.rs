//! One end of a link that is there: what it may do, and when it is over.

use alloc::string::String;

use super::fields::{code, identity, methods, put_identity, put_methods, put_text};
use super::list::{put_stats, stats};
use super::terms::{blame, put_blame, put_role, role};
use super::{Blame, Identity, LinkStats, Role, start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::name::MethodSet;

pub(super) const KINDS: u16 = 0x0400;
const ALLOWED: u16 = KINDS | 1;
const ENDED: u16 = KINDS | 2;
const DIED: u16 = KINDS | 3;
const CLOSED: u16 = KINDS | 4;

/// Messages about one end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndMessage {
    /// To each end: this is what the policy says from now on.
    Allowed {
        /// The link's number.
        link: u64,
        /// The end that is told; a process can have both.
        role: Role,
        /// Who is at the other end.
        peer: Identity,
        /// All that may be called.
        methods: MethodSet,
    },
    /// To each end: this link is over.
    Ended {
        /// The link's number.
        link: u64,
        /// The end that is told.
        role: Role,
        /// gRPC status code of the calls under way.
        code: u8,
        /// Why.
        text: String,
    },
    /// To an end: the other end is over, by its word or since its process has ended. What it has sent
    /// counts, and nothing comes any more, though a copy of that process that fork(2) has made may hold
    /// its end of the socket.
    Died {
        /// The link's number.
        link: u64,
        /// The end that is told.
        role: Role,
    },
    /// To the coordinator: a link's end has closed, and this is what it counted.
    Closed {
        /// The link's number.
        link: u64,
        /// The end that says so.
        role: Role,
        /// Whose doing that was.
        blame: Blame,
        /// What was counted.
        stats: LinkStats,
    },
}

impl EndMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Allowed { link, role, peer, methods } => {
                put_end(w, ALLOWED, *link, *role);
                put_identity(w, peer);
                put_methods(w, methods);
            }
            Self::Ended { link, role, code, text } => {
                put_end(w, ENDED, *link, *role);
                w.u8(*code);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Died { link, role } => put_end(w, DIED, *link, *role),
            Self::Closed { link, role, blame, stats } => {
                put_end(w, CLOSED, *link, *role);
                put_blame(w, *blame);
                put_stats(w, stats);
            }
        }
    }

    pub(super) fn take(kind: u16, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (link, role) = (r.u64("link")?, role(r)?);
        Ok(match kind {
            ALLOWED => Self::Allowed { link, role, peer: identity(r)?, methods: methods(r)? },
            ENDED => Self::Ended {
                link,
                role,
                code: code(r)?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            DIED => Self::Died { link, role },
            CLOSED => Self::Closed { link, role, blame: blame(r)?, stats: stats(r)? },
            _ => return Err(unknown(kind)),
        })
    }
}

fn put_end(w: &mut Writer<'_>, kind: u16, link: u64, role: Role) {
    start(w, kind, 0);
    w.u64(link);
    put_role(w, role);
}
