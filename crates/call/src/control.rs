//! Control records: all but frames. They wait in the order in which they are to be sent.

use std::sync::Arc;

use partywall_abi::frame::{self, Kind, Limits};

/// A control record that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// What the service lets this link have.
    Limits(Limits),
    /// A stream ends out of turn: its number, a gRPC code, a text, which many may share.
    Reset(u32, u8, Arc<str>),
    /// More credit for a stream, or for the whole link (stream 0).
    Window(u32, u32),
    /// Memory is kept for a stream's data up to an offset.
    Room(u32, u64),
    /// So many more parcels may be sent.
    Parcels(u32),
    /// An owned parcel goes back: its place and generation.
    Release(u32, u32),
    /// A method has a number: that, and its path.
    Method(u16, &'static str),
    /// No new streams: the service's wish, or the caller's word.
    Drain,
}

impl Control {
    /// The record's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Limits(_) => Kind::Limits,
            Self::Reset(..) => Kind::Reset,
            Self::Window(..) => Kind::Window,
            Self::Room(..) => Kind::Room,
            Self::Parcels(_) => Kind::Parcels,
            Self::Release(..) => Kind::Release,
            Self::Method(..) => Kind::Method,
            Self::Drain => Kind::Drain,
        }
    }

    /// The stream it belongs to, 0 for the link; or the number of a method; or the place of a parcel.
    pub fn stream(&self) -> u32 {
        match self {
            Self::Method(number, _) => (*number).into(),
            Self::Limits(_) | Self::Parcels(_) | Self::Drain => 0,
            Self::Reset(stream, ..) | Self::Window(stream, _) | Self::Room(stream, _) => *stream,
            Self::Release(place, _) => *place,
        }
    }

    /// Replaces `out` by the record's payload.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Limits(limits) => out.extend_from_slice(&limits.encode()),
            Self::Reset(_, code, text) => frame::write_reset(out, *code, text),
            Self::Window(_, word) | Self::Parcels(word) | Self::Release(_, word) => {
                out.extend_from_slice(&word.to_le_bytes());
            }
            Self::Room(_, until) => out.extend_from_slice(&until.to_le_bytes()),
            Self::Method(_, path) => out.extend_from_slice(path.as_bytes()),
            Self::Drain => {}
        }
    }
}
