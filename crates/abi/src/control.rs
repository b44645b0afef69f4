//! Messages between a process and the coordinator.
//!
//! One `SOCK_SEQPACKET` Unix socket per process; every message is one packet: a kind, the number
//! of the request it belongs to (zero when it belongs to none), then the fields of that kind,
//! little-endian. File descriptors travel beside it (`SCM_RIGHTS`).
//!
//! Each subject has a module with one enum, which encodes and decodes itself, and a range of 256 kinds:
//! the high byte of a kind is the subject, the low byte the message. A new subject is a module and a
//! line in each of [`Message`], [`Message::encode`] and [`Message::decode`].
//!
//! ```text
//! process                                coordinator
//!          <------------------ Challenge   nonce, versions, capabilities
//!  Proof   ------------------>             the nonce, with SCM_CREDENTIALS of the sender
//!                                          the version chosen, capabilities
//!          <------------------ Harden      close yourself to other processes of your user
//! Hardened ------------------>             (both where the policy has it so)
//!          <------------------ Operators   where operators' calls are taken, if not here
//!          <------------------ Welcome     who the coordinator takes the process for
//!          or <--------------- Refused     at any point before that, and the end
//!
//!  Register ----------------->             serve a name
//!          <---------------- Registered
//!  Connect ------------------>             a link to a name
//!  Cancel  ------------------>             or no longer
//!            (the server gets) Offer       + fds [its outbox, its socket]
//!            (and says)        Adopted
//!          <-------------------- Linked    + fds [its outbox, the server's outbox, its socket]
//!  Adopted ------------------>
//!            (the server gets) Open        + fd  [the caller's outbox]
//!            (each end gets)   Granted     + fd  [its descriptor socket], where the policy grants that
//!          or <--------------- Redirect    the name is reached over the network
//!          or <------------------ Refused  a gRPC code and a text
//!
//!            (each end gets)   Allowed     other methods may be called from now on
//!            (each end gets)   Ended       the link is over
//!            (an end gets)     Died        the other end is over, or its process has ended
//!  Closed  ------------------>             this end is over, and what it counted
//!
//!  Report  ------------------>             to a new coordinator: this link is open
//!          <------------------ Reported
//!
//!  Want --------------------->             so much memory for parcels in all
//!          <------------------- Given
//!
//!  Certify ------------------>             a certificate for this key
//!          <----------------- Certified
//!
//!  Trace -------------------->             look into a link
//!          <------------------- Traced     + fds [both outboxes, for reading]
//!          <--------------------- Over     it is over
//!
//!  Switch ------------------->             open or close the gate of a domain
//!            (the domain gets) Set     and says IsSet
//!          <------------------ Switched
//! ```
//!
//! Only the coordinator sends descriptors. Who writes an outbox has it for writing, who reads it
//! for reading, and only when it is sealed against every other writer. After `Open` the two ends
//! speak over their socket alone, and the server begins with a [`Setup`]. Descriptors of parcels cross on
//! a socket of their own, which they get only where the policy grants it.

use alloc::vec::Vec;

use crate::codec::{DecodeError, Reader, Writer};

mod end;
mod fields;
mod gate;
mod grant;
mod link;
mod list;
mod memory;
mod policy;
mod registry;
mod session;
mod setup;
mod terms;
mod trace;
mod trust;

pub use end::EndMessage;
pub use fields::{Digest, Identity};
pub use gate::GateMessage;
pub use grant::Grant;
pub use link::LinkMessage;
pub use list::{
    InstanceRow, LinkMethods, LinkRow, LinkStats, ListMessage, MethodStats, PaceStats, ParcelStats,
};
pub use memory::MemoryMessage;
pub use policy::PolicyMessage;
pub use registry::RegistryMessage;
pub use session::SessionMessage;
pub use setup::Setup;
pub use terms::{Blame, Role, Sealing, Terms, Token};
pub use trace::TraceMessage;
pub use trust::{Root, TrustMessage};

/// Both sides of the control conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// Who speaks, and whether a question is refused.
    Session(SessionMessage),
    /// Names that are served and watched.
    Registry(RegistryMessage),
    /// Links that are made or reported.
    Link(LinkMessage),
    /// One end of a link that is there.
    End(EndMessage),
    /// The lists of links and of instances, and what is counted for them.
    List(ListMessage),
    /// Gates of domains.
    Gate(GateMessage),
    /// The policy itself.
    Policy(PolicyMessage),
    /// Memory for parcels.
    Memory(MemoryMessage),
    /// Certificates.
    Trust(TrustMessage),
    /// Links that an operator looks into.
    Trace(TraceMessage),
}

impl Message {
    /// The packet.
    ///
    /// Texts over their limits are cut, for a peer would refuse them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        let w = &mut Writer(&mut out);
        match self {
            Self::Session(m) => m.put(w),
            Self::Registry(m) => m.put(w),
            Self::Link(m) => m.put(w),
            Self::End(m) => m.put(w),
            Self::List(m) => m.put(w),
            Self::Gate(m) => m.put(w),
            Self::Policy(m) => m.put(w),
            Self::Memory(m) => m.put(w),
            Self::Trust(m) => m.put(w),
            Self::Trace(m) => m.put(w),
        }
        out
    }

    /// The number of the request that an encoded message belongs to; zero when it belongs to none.
    pub fn request_of(packet: &[u8]) -> u32 {
        let number = packet.get(4..8).and_then(|n| n.try_into().ok());
        number.map_or(0, u32::from_le_bytes)
    }

    /// The message in a copied packet.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(packet);
        let r = &mut reader;
        let kind = r.u16("kind")?;
        let zero = r.u16("reserved")?;
        if zero != 0 {
            return Err(DecodeError::Value { field: "reserved", found: zero.into() });
        }
        let request = r.u32("request")?;
        let message = match kind & 0xff00 {
            session::KINDS => SessionMessage::take(kind, request, r).map(Self::Session),
            registry::KINDS => RegistryMessage::take(kind, request, r).map(Self::Registry),
            link::KINDS => LinkMessage::take(kind, request, r).map(Self::Link),
            end::KINDS => EndMessage::take(kind, r).map(Self::End),
            list::KINDS => ListMessage::take(kind, request, r).map(Self::List),
            gate::KINDS => GateMessage::take(kind, request, r).map(Self::Gate),
            policy::KINDS => PolicyMessage::take(kind, request, r).map(Self::Policy),
            memory::KINDS => MemoryMessage::take(kind, request, r).map(Self::Memory),
            trust::KINDS => TrustMessage::take(kind, request, r).map(Self::Trust),
            trace::KINDS => TraceMessage::take(kind, request, r).map(Self::Trace),
            _ => Err(unknown(kind)),
        }?;
        reader.end()?;
        Ok(message)
    }
}

macro_rules! joins {
    ($($subject:ident($message:ident),)*) => {
        $(impl From<$message> for Message {
            fn from(message: $message) -> Self {
                Self::$subject(message)
            }
        })*
    };
}

joins! {
    Session(SessionMessage),
    Registry(RegistryMessage),
    Link(LinkMessage),
    End(EndMessage),
    List(ListMessage),
    Gate(GateMessage),
    Policy(PolicyMessage),
    Memory(MemoryMessage),
    Trust(TrustMessage),
    Trace(TraceMessage),
}

/// Begins a message.
fn start(w: &mut Writer<'_>, kind: u16, request: u32) {
    w.u16(kind);
    w.u16(0);
    w.u32(request);
}

/// A kind that no message has.
fn unknown(kind: u16) -> DecodeError {
    DecodeError::Value { field: "kind", found: kind.into() }
}

#[cfg(test)]
mod tests;
