//! The rules of the protocol. Each is checked in this crate and nowhere else; who breaks one loses
//! the link.

use partywall_abi::codec::DecodeError;
use partywall_abi::limits;

/// A rule of the protocol that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A record's kind has no meaning.
    #[error("a record of unknown kind {0}")]
    UnknownKind(u8),
    /// The raw interface and calls do not share a link.
    #[error("a raw message on a link of calls")]
    RawMessage,
    /// A caller sends no limits, a service no request, a caller no trailers.
    #[error("a record that only the other side sends")]
    WrongSide,
    /// Calls have numbers from 1 on; limits and drains belong to the link.
    #[error("stream {0}, where such a record has no place")]
    WrongStream(u32),
    /// A stream has one head in each direction.
    #[error("a second head on one stream")]
    SecondHead,
    /// Data of an answer comes after its head.
    #[error("data of an answer before its head")]
    NoHead,
    /// An answer ends with trailers, and trailers end an answer.
    #[error("an answer whose end has no trailers, or trailers that do not end it")]
    Trailers,
    /// Nothing follows the end of a stream.
    #[error("data after the end of a stream")]
    AfterEnd,
    /// Data needs credit, or room that the receiver has announced.
    #[error("more data than was granted")]
    OverWindow,
    /// A parcel needs the receiver's word that it takes one more.
    #[error("a parcel more than its receiver takes")]
    OverParcels,
    /// An owned parcel is lent once at a time, with the next generation.
    #[error("owned parcel {0}, which is lent already or has another generation")]
    LentTwice(u32),
    /// What is lent is given back once, with its generation.
    #[error("the release of owned parcel {0}, which is not lent or has another generation")]
    NotLent(u32),
    /// Credit never exceeds the window at the start, and announced room is not taken back.
    #[error("more credit than there is window")]
    OverCredit,
    /// Limits are said once.
    #[error("limits that were said before")]
    SecondLimits,
    /// A caller acknowledges a drain that the service has asked for.
    #[error("an acknowledged drain that was not asked for")]
    DrainNotAsked,
    /// A caller that has acknowledged a drain opens no more streams.
    #[error("a call after the last one")]
    AfterDrain,
    /// Control records do not pile up at an end whose peer takes its records.
    #[error("it takes nothing off its ring")]
    TakesNothing,
    /// Methods get their numbers in turn, each one, up to as many as there may be and with paths as long.
    #[error("a method that gets number {0} out of turn")]
    MethodNumber(u32),
    /// A head names no method by a number that none has.
    #[error("a call of method {0}, which has no path")]
    UnknownMethod(u16),
    /// What an end can do beyond its version is used where both ends can, and nowhere else.
    #[error("a record of a capability that the two ends do not have in common")]
    NotAgreed,
    /// The name of a metadata entry is a token in lower case (RFC 9110, section 5.6.2).
    #[error("a metadata name that is no token in lower case")]
    MetadataName,
    /// The value of a metadata entry has no control characters (RFC 9110, section 5.5).
    #[error("a metadata value with control characters")]
    MetadataValue,
}

impl Rule {
    /// How many rules there are.
    #[cfg(test)]
    pub(crate) const COUNT: usize = 22;
}

/// Why a peer's record ends the link. The blame is always the peer's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The record cannot be read.
    #[error("the peer sent a record that cannot be read: {0}")]
    Decode(#[from] DecodeError),
    /// The record breaks a rule.
    #[error("the peer broke a rule of the call protocol: {0}")]
    Rule(#[from] Rule),
}

/// Control records that may wait for room, beside four for each call that may be open: its method's number,
/// a reset, a grant, announced room. Releases are few.
pub(crate) fn most_pending(places: usize) -> usize {
    64 + 4 * places.min(limits::STREAMS_MAX)
}
