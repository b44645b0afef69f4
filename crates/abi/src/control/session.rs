//! Who speaks: the proof of identity, versions and capabilities, and what is refused.
//!
//! ```text
//! process                                coordinator
//!          <------------------ Challenge   the versions that it speaks
//!  Proof   ------------------>             the versions of the process, and the highest in common
//!          <------------------ Harden      or later, where the policy says so later; or never
//!  Hardened ----------------->
//!          <------------------ Operators   to an operator, where another socket takes operators' calls
//!          <------------------ Welcome
//!          or <--------------- Refused     at any point before that, and the end
//! ```
//!
//! A process has its first descriptor of a link after the welcome, so one that is hardened before it has
//! been hardened for all of them. Only a process with the capability [`Capabilities::HARDEN`] is told.
//!
//! Where the coordinator has an operators' socket, it takes operators' calls there alone. It tells operators
//! with the capability [`Capabilities::OPERATORS`] where that is; they prove themselves there anew.
//!
//! These messages are the same in every version, so that two sides of different versions can tell each
//! other so. A process without a version in common says zero for the one that it has chosen, for the
//! coordinator's log, and gives up.

use alloc::string::String;

use super::fields::{code, identity, put_identity, put_text};
use super::{Identity, start, unknown};
use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;
use crate::version::{Capabilities, Versions};

pub(super) const KINDS: u16 = 0x0100;
const CHALLENGE: u16 = KINDS | 1;
const PROOF: u16 = KINDS | 2;
const WELCOME: u16 = KINDS | 3;
const REFUSED: u16 = KINDS | 4;
const HARDEN: u16 = KINDS | 5;
const HARDENED: u16 = KINDS | 6;
const OPERATORS: u16 = KINDS | 7;

/// Messages about who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionMessage {
    /// To the process: prove who you are.
    Challenge {
        /// Versions that the coordinator speaks.
        versions: Versions,
        /// What it can do beyond its version.
        capabilities: Capabilities,
        /// Sixteen random bytes.
        nonce: [u8; 16],
    },
    /// To the coordinator: here I am.
    Proof {
        /// Versions that the process speaks.
        versions: Versions,
        /// The version chosen: the highest that both speak; zero when there is none.
        version: u16,
        /// What the process can do beyond its version.
        capabilities: Capabilities,
        /// The nonce of the challenge.
        nonce: [u8; 16],
    },
    /// To the process: this is who you are.
    Welcome {
        /// Its identity.
        you: Identity,
    },
    /// To the process: no.
    Refused {
        /// Request number.
        request: u32,
        /// gRPC status code.
        code: u8,
        /// What, where and the remedy.
        text: String,
    },
    /// To the process: close yourself to other processes of your user (PR_SET_DUMPABLE(2const)).
    Harden,
    /// To the coordinator: that is done. Who has not said so is open to them.
    Hardened,
    /// To the process, which is an operator's: operators' calls are taken at another socket alone.
    Operators {
        /// Its path, where the coordinator sees it.
        path: String,
        /// The coordinator's user, who listens there.
        uid: u32,
    },
}

impl SessionMessage {
    pub(super) fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::Challenge { versions, capabilities, nonce } => {
                start(w, CHALLENGE, 0);
                versions.put(w);
                w.u64(capabilities.bits());
                w.raw(nonce);
            }
            Self::Proof { versions, version, capabilities, nonce } => {
                start(w, PROOF, 0);
                versions.put(w);
                w.u16(*version);
                w.u64(capabilities.bits());
                w.raw(nonce);
            }
            Self::Welcome { you } => {
                start(w, WELCOME, 0);
                put_identity(w, you);
            }
            Self::Refused { request, code, text } => {
                start(w, REFUSED, *request);
                w.u8(*code);
                put_text(w, text, limits::ERROR_TEXT_BYTES);
            }
            Self::Harden => start(w, HARDEN, 0),
            Self::Hardened => start(w, HARDENED, 0),
            Self::Operators { path, uid } => {
                start(w, OPERATORS, 0);
                put_text(w, path, limits::SOCKET_PATH_BYTES);
                w.u32(*uid);
            }
        }
    }

    pub(super) fn take(kind: u16, request: u32, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            CHALLENGE => Self::Challenge {
                versions: Versions::take(r)?,
                capabilities: Capabilities::from_bits(r.u64("capabilities")?),
                nonce: r.array("nonce")?,
            },
            PROOF => Self::Proof {
                versions: Versions::take(r)?,
                version: r.u16("version")?,
                capabilities: Capabilities::from_bits(r.u64("capabilities")?),
                nonce: r.array("nonce")?,
            },
            WELCOME => Self::Welcome { you: identity(r)? },
            REFUSED => Self::Refused {
                request,
                code: code(r)?,
                text: r.short_text("text", limits::ERROR_TEXT_BYTES)?,
            },
            HARDEN => Self::Harden,
            HARDENED => Self::Hardened,
            OPERATORS => Self::Operators {
                path: r.short_text("path", limits::SOCKET_PATH_BYTES)?,
                uid: r.u32("uid")?,
            },
            _ => return Err(unknown(kind)),
        })
    }
}
