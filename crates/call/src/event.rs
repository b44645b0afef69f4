//! What a [`crate::Connection`] and its owner say to each other.

use partywall_abi::frame::{Metadata, RequestHead, Trailers};

/// A call on this link, until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(crate) number: u32,
    pub(crate) index: usize,
}

impl Key {
    /// The number of the stream.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// A record that has come, copied out of the ring.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its kind.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// The stream it names.
    pub stream: u32,
    /// Its payload.
    pub payload: &'a [u8],
}

/// What a record means for the owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Nothing.
    Nothing,
    /// A caller has opened a call. Data that came with the head are the payload's last bytes.
    Opened {
        /// The call.
        key: Key,
        /// Its head.
        head: RequestHead<'a>,
        /// Bytes of data.
        data: usize,
        /// Nothing more comes.
        end: bool,
    },
    /// A caller has given a method the next number, from 0 on.
    Method {
        /// The method's path.
        path: &'a str,
    },
    /// A part of a request or an answer has come.
    Part {
        /// The call.
        key: Key,
        /// The head of an answer.
        head: Option<Metadata<'a>>,
        /// Bytes of data: the payload's last ones.
        data: usize,
        /// The trailers of an answer.
        trailers: Option<Trailers<'a>>,
        /// Nothing more comes.
        end: bool,
    },
    /// The peer has ended a call.
    Reset {
        /// The call.
        key: Key,
        /// gRPC's code.
        code: u8,
        /// Why.
        text: &'a str,
    },
    /// More may be sent on one stream.
    StreamCredit(Key),
    /// More may be sent on the link.
    LinkCredit,
    /// The peer has given an owned parcel back: its place.
    Released(u32),
    /// The service has said its limits: more calls may be opened, and more may be sent.
    Limits,
    /// The service wants no more calls ([`crate::Connection::open`]).
    Draining,
    /// The caller opens no more calls.
    Drained,
}

/// What a side would like to send next on a stream.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// With the head.
    pub head: bool,
    /// So many bytes of data.
    pub data: usize,
    /// Nothing follows these data but, of an answer, trailers.
    pub end: bool,
    /// The longest payload of one record, in bytes.
    pub most: usize,
    /// The data lie in a parcel. Where the peer takes one more the permit says so
    /// ([`partywall_abi::frame::PARCEL`]) and is for all of them; else it is as for any data.
    pub in_parcel: bool,
    /// Something is attached to the head. Then the data lie in no parcel, and it waits as for the link's
    /// credit until the peer takes one more.
    pub attached: bool,
}

impl Want {
    /// Whether one record holds all of the request or the answer: data that take more than half of it may be
    /// too long together with a head.
    pub(crate) fn is_whole(self) -> bool {
        self.head && self.end && self.data <= self.most / 2 && !self.in_parcel
    }
}

/// What may be sent of a [`Want`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// So many bytes of data.
    pub data: usize,
    /// The record's flags, as far as they are decided here.
    pub flags: u8,
}

/// Why nothing may be sent on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Nothing ever will: the stream is over.
    Stopped,
    /// Control records come first ([`crate::Connection::control`]): heads do not overtake resets.
    Control,
    /// Credit is missing. The stream's comes with [`Event::StreamCredit`]; if `link` is set, that of
    /// the link is short as well, and comes with [`Event::LinkCredit`] or [`Event::Limits`].
    Credit {
        /// The link's credit is short.
        link: bool,
    },
}

/// Why a caller cannot open a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// As many are open as may: a place comes when one of them ends, or with [`Event::Limits`].
    Full,
    /// The service drains: the call belongs on another link.
    Draining,
}
