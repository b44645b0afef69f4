//! Why a link ended.

use partywall_abi::control::{self, LinkStats};
use partywall_shm::descriptors::PacketError;
use partywall_shm::link::{Blame, LinkError};
use partywall_shm::parcel::ParcelError;
use partywall_trust::CertificateError;
use partywall_trust::handshake::HandshakeError;
use partywall_trust::message::MessageError;
use partywall_trust::record::RecordError;
use tonic::Status;

use crate::coordinator::Tracked;
use crate::error::Error;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Call(#[from] partywall_call::Error),
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error(transparent)]
    Parcel(#[from] ParcelError),
    /// A record that was not as it was sealed.
    #[error(transparent)]
    Sealed(#[from] RecordError),
    /// A message whose signature does not fit.
    #[error("a signed message of the peer: {0}")]
    Signed(MessageError),
    /// How the two ends come to keys.
    #[error("the handshake of the sealed link: {0}")]
    Handshake(#[from] HandshakeError),
    /// It is not where a handshake should be.
    #[error("the peer sent a record of kind {0} where the handshake of the sealed link is due")]
    NoHandshake(u8),
    #[error("this process is a copy that fork(2) has made of the one whose link it is")]
    Forked,
    #[error("a packet for a parcel does not have one descriptor")]
    NoParcel,
    #[error("{said} descriptors are said to be attached, and {came} come")]
    NotAttached { said: usize, came: usize },
    #[error(
        "{descriptors} descriptors are attached, {leases} of them leases, and the policy has not so many"
    )]
    NotGranted { descriptors: usize, leases: usize },
    #[error("what is attached is said to have come before, and has not")]
    NotKnown,
    #[error("what is attached is said to have a place, and there is none on this link")]
    NoPlace,
    #[error("the runtime that drove the link has ended")]
    Runtime,
    #[error("the link was closed")]
    Closed,
    /// The coordinator has ended it.
    #[error("{}", .0.message())]
    Ended(Box<Status>),
    /// The service has failed while this thread was in it.
    #[error("the service failed inside a call ({0:?}) and is to be started again")]
    Callee(partywall_abi::domain::GateStatus),
}

impl Broken {
    /// Whether the other end is certified, by keys of which none is pinned.
    fn is_unpinned(&self) -> bool {
        match self {
            Self::Handshake(HandshakeError::Certificate(why))
            | Self::Signed(MessageError::Certificate(why)) => {
                matches!(why, CertificateError::NotPinned { .. })
            }
            _ => false,
        }
    }

    /// Who is to blame.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Link(why) => why.blame(),
            Self::Packet(PacketError::Io(_)) => Blame::Resource,
            Self::Parcel(why) if why.is_resource() => Blame::Resource,
            // Who is there is no rule of the link's.
            why if why.is_unpinned() => Blame::Local,
            Self::Sealed(_) | Self::Signed(_) => Blame::Peer,
            Self::Handshake(_) | Self::NoHandshake(_) => Blame::Peer,
            Self::Forked => Blame::Local,
            Self::Call(_) | Self::Packet(_) | Self::Parcel(_) | Self::NoParcel => Blame::Peer,
            Self::NotAttached { .. } | Self::NotGranted { .. } => Blame::Peer,
            Self::NotKnown | Self::NoPlace | Self::Callee(_) => Blame::Peer,
            Self::Runtime | Self::Closed | Self::Ended(_) => Blame::Local,
        }
    }

    /// What the coordinator is told of that.
    pub(crate) fn reported(&self) -> control::Blame {
        match self {
            Self::Link(why) => reported(why),
            why if why.blame() == Blame::Peer => control::Blame::Peer,
            _ => control::Blame::Nobody,
        }
    }

    /// What calls that are under way end with.
    pub(crate) fn status(&self, link: u64) -> Status {
        match self {
            Self::Ended(status) => Status::clone(status),
            _ => Status::unavailable(format!("link {link}: {self}")),
        }
    }
}

/// What the coordinator is told of the end of a link at the level of its rings.
fn reported(why: &LinkError) -> control::Blame {
    match why {
        // Death is no broken rule.
        LinkError::Dead => control::Blame::Nobody,
        why if why.blame() == Blame::Peer => control::Blame::Peer,
        _ => control::Blame::Nobody,
    }
}

/// A link could not be opened: the coordinator is told whose doing that was.
pub(crate) fn not_opened(tracked: Tracked, why: impl Into<Broken>) -> Error {
    let why = why.into();
    tracked.close(why.reported(), LinkStats::default());
    match why {
        Broken::Link(why) => why.into(),
        why if why.is_unpinned() => Error::NotPinned { text: why.to_string() },
        why => Error::NotSealed { text: why.to_string() },
    }
}

impl From<partywall_shm::ring::Violation> for Broken {
    fn from(v: partywall_shm::ring::Violation) -> Self {
        Self::Link(v.into())
    }
}
