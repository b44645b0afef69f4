//! What travels on a link between a caller and a service: frames of calls.
//!
//! There is no HTTP/2 on a ring. A call is a *head* (path, metadata, timeout), message data and
//! *trailers* (status, metadata), and one record, a [`Kind::Frame`], carries any of them in
//! that order, so that a small unary call is one record each way:
//!
//! ```text
//! flags  bit 0 HEAD      the payload begins with a u32 length and a head block
//!        bit 1 TRAILERS  then comes a u32 length and a trailers block (server to client only)
//!        bit 2 END       the sender sends no more data on this stream
//!        bit 3 ROOM      the data counts against no window: see [`Kind::Room`]
//!        bit 4 PLAIN     a whole request or response whose blocks would say the least; they are left out,
//!                        and a request begins with its method's u16 number instead
//!        bit 5 PARCEL    the data lie in a parcel: 32 bytes stand for them, u64 number of the packet on the
//!                        link's descriptor socket that has its descriptor, u64 offset, u64 bytes, and
//!                        u32 place and u32 generation of an owned parcel (2^32 - 1 and 0 of a sealed one)
//!        bit 6 ATTACHED  with HEAD and without PARCEL. What is attached comes after the head block: u64
//!                        number of a packet on the descriptor socket, and u8 count of its descriptors.
//!                        Each has u8 kind, u64 and u64. The kinds are 1 sealed parcel (bytes, offset), 2
//!                        owned parcel and 3 lease (bytes, generation), 4 file (0, 0). The upper half of
//!                        the kind is one more than the place of an owned parcel or a lease, or 0.
//!        bit 7 KNOWN     with ATTACHED. All that is attached has a place, and is the memory that came last
//!                        for that place: there are no descriptors, and the packet is 0
//! the rest of the payload is message data: a piece of gRPC's length-prefixed message stream
//! ```
//!
//! States of a stream, as seen by one side (`open` after the head):
//!
//! ```text
//! idle --HEAD--> open --END sent--> half-closed --TRAILERS/RESET received--> closed
//!                  \--RESET sent or received---------------------------------> closed
//! ```
//!
//! * The client opens a stream with a number of its own choice that is not zero and not open.
//! * An answer begins with its head, or is trailers alone without data. Its trailers and its END come in
//!   one record. Nothing follows END.
//! * Frames, [`Kind::Reset`] and [`Kind::Room`] name a stream. [`Kind::Limits`] and [`Kind::Drain`] name
//!   stream 0.
//! * The name of a metadata entry is a token in lower case (RFC 9110, section 5.6.2); its value has no
//!   control characters but the tab (RFC 9110, section 5.5).
//! * [`Kind::Reset`] ends a stream at once in both directions; payload: u8 gRPC code, u16
//!   length, text.
//! * [`Kind::Window`] grants the receiver of it so many more bytes of message data: u32 payload,
//!   on a stream, or with stream 0 on the whole link. Heads and trailers are not counted. A sender
//!   never has more credit than the window at the start.
//! * [`Kind::Drain`] (stream 0, no payload) goes both ways. The server asks for no more streams by
//!   it, and goes on to serve those that are opened. The client answers with its own when the heads
//!   of all streams that it has begun are on the ring, and opens none afterwards: one that it does
//!   open breaks a rule. To a client that does not answer in time, the server refuses new streams
//!   by `Reset` with UNAVAILABLE before any handler saw them. A client's that was not asked for
//!   breaks a rule.
//! * [`Kind::Limits`] (server to client, stream 0, once, its first record): how many streams may be
//!   open, and the link's window for requests. Until the client has read it, it may have
//!   [`limits::FIRST_STREAMS`] open and [`limits::FIRST_WINDOW`] bytes under way.
//! * [`Kind::Room`]: the receiver keeps memory for the data of a stream up to an offset (u64, bytes
//!   of data since the head). What comes before the offset may be sent flagged `ROOM`, without regard
//!   to windows; once that has begun, all up to the offset is. Offsets do not fall.
//! * [`Kind::Method`] (client to server) gives a method a number, in place of the stream's, by which heads
//!   may name it from then on. Payload: its path. Numbers are given in turn, from 0 on, and up to
//!   [`limits::METHODS`]; their paths have at most [`limits::METHOD_BYTES`] together.
//! * PLAIN comes with HEAD and END, from the server with TRAILERS as well, and with no other flag. What is
//!   left out is: no timeout, status OK, and no metadata.
//! * Data in a parcel count against no window, but against the parcels that its receiver takes:
//!   [`Kind::Parcels`] (stream 0, u32) says how many more than before. A sender begins without any, and
//!   never has more than [`limits::UNREAD_PARCELS`] unread.
//! * What is attached counts as one parcel more, which its receiver has read when the program has taken it.
//!   Generations are the programs' own, of owned parcels and leases that they have made.
//! * Each sender has [`limits::ATTACHED_PLACES`] places for owned parcels and leases. One that comes with its
//!   descriptor and a place has that from then on, until another one comes for it. What is KNOWN has come for
//!   its place in a frame before, as the same kind.
//! * An *owned* parcel has one of [`limits::OWNED_PARCELS`] places in its direction. Its descriptor comes
//!   with the first frame that names its packet, and stays until another packet is named for the place. A
//!   frame lends the place to its receiver, with a generation that is one more than the last (from 1 on,
//!   and over from 2^32 - 1 to 0). [`Kind::Release`] (the place in the stream's, u32 generation) gives it
//!   back: no place is lent twice, and none is given back that is not lent with that generation.
//! * [`Kind::Room`], and [`Kind::Method`] with PLAIN, are sent and taken only where both ends have the
//!   capability for it; PARCEL, [`Kind::Parcels`] and [`Kind::Release`] where both have a descriptor
//!   socket, and ATTACHED where the terms say besides that one is going to be granted.
//! * [`Kind::Message`]: a whole message, or a piece of one (flag `MORE`), of the raw interface
//!   that knows no calls.

use alloc::vec::Vec;
use core::time::Duration;

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits;

mod attached;
mod data;

pub use attached::{Attached, Item, Place};
pub use data::{Data, Owned, ParcelRef};

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A piece of a call.
    Frame = 1,
    /// The end of a stream out of turn.
    Reset = 2,
    /// More credit.
    Window = 3,
    /// No new streams: the server's wish, and the client's word.
    Drain = 4,
    /// A message of the raw interface.
    Message = 5,
    /// What the service lets this link have.
    Limits = 6,
    /// Memory is kept for a message.
    Room = 7,
    /// A method has a number.
    Method = 8,
    /// More parcels may be sent.
    Parcels = 9,
    /// An owned parcel goes back to its owner.
    Release = 10,
}

impl Kind {
    /// The kind with this number.
    #[inline]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Frame,
            2 => Self::Reset,
            3 => Self::Window,
            4 => Self::Drain,
            5 => Self::Message,
            6 => Self::Limits,
            7 => Self::Room,
            8 => Self::Method,
            9 => Self::Parcels,
            10 => Self::Release,
            _ => return None,
        })
    }
}

/// Kind of a record that is part of the handshake of a sealed link: it comes before all others, and is none
/// of the protocol of calls.
pub const HANDSHAKE: u8 = 32;

/// Frame flag: a head block comes first.
pub const HEAD: u8 = 1;
/// Frame flag: a trailers block comes (after the head block, when there is one).
pub const TRAILERS: u8 = 2;
/// Frame flag: the last data of this stream in this direction.
pub const END: u8 = 4;
/// Frame flag: the receiver keeps memory for the data; it counts against no window.
pub const ROOM: u8 = 8;
/// Message flag: the message goes on in the next record.
pub const MORE: u8 = 1;

/// Timeout field of a call that has none.
const NO_TIMEOUT: u64 = u64::MAX;

/// Frame flag: the blocks would say the least, and are left out.
pub const PLAIN: u8 = 16;

/// Frame flag: the data lie in a parcel, and a [`ParcelRef`] stands for them.
pub const PARCEL: u8 = 32;

/// Frame flag: memory or files are attached to the head.
pub const ATTACHED: u8 = 64;

/// Frame flag: what is attached is memory that has come before.
pub const KNOWN: u8 = 128;

/// In the data of a call of a link with signed messages: what the prefix of a signature begins with, where
/// that of a message has 0 or 1.
pub const SIGNATURE: u8 = 64;

/// Flags of a plain request.
pub const PLAIN_REQUEST: u8 = HEAD | END | PLAIN;
/// Flags of a plain response.
pub const PLAIN_RESPONSE: u8 = HEAD | TRAILERS | END | PLAIN;

/// A frame of a request, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its head, in the first frame.
    pub head: Option<RequestHead<'a>>,
    /// What is attached to that.
    pub attached: Option<Attached<'a>>,
    /// Message data, possibly none.
    pub data: Data<'a>,
}

impl<'a> Request<'a> {
    /// What comes before the data of a plain request.
    pub fn plain(method: u16) -> [u8; 2] {
        method.to_le_bytes()
    }

    /// Takes a copied payload apart.
    ///
    /// # Errors
    /// [`DecodeError`] when a flag has no meaning here or a block cannot be read.
    #[inline(always)]
    pub fn decode(flags: u8, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(payload);
        if flags == PLAIN_REQUEST {
            let method = MethodName::Number(r.u16("method number")?);
            let head = Some(RequestHead { timeout: None, method, metadata: Metadata::NONE });
            return Ok(Self { head, attached: None, data: Data::Here(r.rest()) });
        }
        check_flags(flags, HEAD | END | ROOM | PARCEL | ATTACHED | KNOWN)?;
        let head =
            block(&mut r, flags & HEAD, "head length")?.map(RequestHead::decode).transpose()?;
        Ok(Self { head, attached: attached(flags, &mut r)?, data: Data::decode(flags, r)? })
    }
}

/// A frame of a response, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The metadata of its head.
    pub head: Option<Metadata<'a>>,
    /// What is attached to that.
    pub attached: Option<Attached<'a>>,
    /// Its trailers, in the last frame.
    pub trailers: Option<Trailers<'a>>,
    /// Message data, possibly none.
    pub data: Data<'a>,
}

impl<'a> Response<'a> {
    /// Takes a copied payload apart.
    ///
    /// # Errors
    /// [`DecodeError`] when a flag has no meaning here or a block cannot be read.
    #[inline(always)]
    pub fn decode(flags: u8, payload: &'a [u8]) -> Result<Self, DecodeError> {
        if flags == PLAIN_RESPONSE {
            let trailers = Trailers { code: 0, metadata: Metadata::NONE };
            return Ok(Self {
                head: Some(Metadata::NONE),
                attached: None,
                trailers: Some(trailers),
                data: Data::Here(payload),
            });
        }
        check_flags(flags, HEAD | TRAILERS | END | ROOM | PARCEL | ATTACHED | KNOWN)?;
        let mut r = Reader::new(payload);
        let head = block(&mut r, flags & HEAD, "head length")?;
        let attached = attached(flags, &mut r)?;
        let trailers = block(&mut r, flags & TRAILERS, "trailers length")?;
        Ok(Self {
            head: head.map(ResponseHead::decode).transpose()?,
            attached,
            trailers: trailers.map(Trailers::decode).transpose()?,
            data: Data::decode(flags, r)?,
        })
    }
}

/// Takes what is attached, if the flag for it is set.
#[inline]
fn attached<'a>(flags: u8, r: &mut Reader<'a>) -> Result<Option<Attached<'a>>, DecodeError> {
    if flags & ATTACHED == 0 { Ok(None) } else { Attached::decode(r, flags).map(Some) }
}

#[inline]
fn check_flags(flags: u8, known: u8) -> Result<(), DecodeError> {
    let is_both = |one: u8, other: u8| flags & one != 0 && flags & other != 0;
    let lacks = |flag: u8, other: u8| flags & (flag | other) == flag;
    if is_both(ROOM, PARCEL)
        || is_both(ATTACHED, PARCEL)
        || lacks(ATTACHED, HEAD)
        || lacks(KNOWN, ATTACHED)
    {
        return Err(DecodeError::Value { field: "frame flags", found: flags.into() });
    }
    match flags & !known {
        0 => Ok(()),
        _ => Err(DecodeError::Value { field: "frame flags", found: flags.into() }),
    }
}

/// Takes a block with its length in front, if the flag for it is set.
#[inline]
fn block<'a>(
    r: &mut Reader<'a>,
    flag: u8,
    field: &'static str,
) -> Result<Option<&'a [u8]>, DecodeError> {
    if flag == 0 {
        return Ok(None);
    }
    let found = r.u32(field)? as usize;
    if found > limits::HEAD_BYTES {
        return Err(DecodeError::TooLarge { field, found, limit: limits::HEAD_BYTES });
    }
    r.raw(field, found).map(Some)
}

/// Writes a block of at most [`limits::HEAD_BYTES`] with its length in front.
///
/// The writer is called with the vector to append to. Returns the block's length, or `None`
/// (with everything taken back) when it is over the limit.
pub fn write_block(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let len = out.len() - start - 4;
    if len > limits::HEAD_BYTES {
        out.truncate(start);
        return None;
    }
    out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
    Some(len)
}

/// What a request names its method by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodName<'a> {
    /// The path, `/package.Service/Method`.
    Path(&'a str),
    /// The number that a [`Kind::Method`] has given it.
    Number(u16),
}

impl<'a> From<&'a str> for MethodName<'a> {
    fn from(path: &'a str) -> Self {
        Self::Path(path)
    }
}

/// Set in the length of a path that is a number instead.
const NUMBERED: u16 = 1 << 15;

/// The head block of a request: timeout, method, metadata.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The time that was left when it was sent, up to 584 years; none without a deadline.
    pub timeout: Option<Duration>,
    /// What is called.
    pub method: MethodName<'a>,
    /// The metadata.
    pub metadata: Metadata<'a>,
}

impl<'a> RequestHead<'a> {
    /// Where the path lies in the payload of a frame with this head: after the block's length, the
    /// timeout and the path's length.
    pub const PATH_AT: usize = 4 + 8 + 2;

    /// Appends the fixed part; the metadata entries follow by [`write_entry`].
    pub fn write(
        out: &mut Vec<u8>,
        timeout: Option<Duration>,
        method: impl Into<MethodName<'a>>,
        entries: u16,
    ) {
        let longest = NO_TIMEOUT - 1;
        let nanoseconds = timeout.map_or(NO_TIMEOUT, |timeout| {
            u64::try_from(timeout.as_nanos())
                .map_or(longest, |nanoseconds| nanoseconds.min(longest))
        });
        let mut w = Writer(out);
        w.u64(nanoseconds);
        match method.into() {
            MethodName::Path(path) => w.short_bytes(path.as_bytes()),
            MethodName::Number(number) => w.u16(number | NUMBERED),
        }
        w.u16(entries);
    }

    /// Takes a copied block apart; every entry has been checked for its place when it returns.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    #[inline]
    pub fn decode(block: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(block);
        let timeout = match r.u64("timeout")? {
            NO_TIMEOUT => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        };
        let method = match r.u16("path length")? {
            len if len & NUMBERED == 0 => MethodName::Path(checked_path(&mut r, len.into())?),
            number => MethodName::Number(number & !NUMBERED),
        };
        Ok(Self { timeout, method, metadata: Metadata::decode(r)? })
    }
}

/// Takes the path of a [`Kind::Method`].
///
/// # Errors
/// [`DecodeError`] when it is none.
pub fn decode_method(payload: &[u8]) -> Result<&str, DecodeError> {
    checked_path(&mut Reader::new(payload), payload.len())
}

#[inline]
pub(crate) fn checked_path<'a>(r: &mut Reader<'a>, len: usize) -> Result<&'a str, DecodeError> {
    if len > limits::PATH_BYTES {
        let (field, limit) = ("path", limits::PATH_BYTES);
        return Err(DecodeError::TooLarge { field, found: len, limit });
    }
    let path = r.raw("path", len)?;
    let path = core::str::from_utf8(path).map_err(|_| DecodeError::Text { field: "path" })?;
    // What is judged must be what is dispatched: a `?` or `#` would end an HTTP path early.
    // Without a branch for each byte.
    let is_bad = |byte: &u8| !byte.is_ascii() | (*byte == b'?') | (*byte == b'#');
    let bad = path.as_bytes().iter().fold(false, |bad, byte| bad | is_bad(byte));
    if bad || !path.starts_with('/') {
        return Err(DecodeError::Text { field: "path" });
    }
    Ok(path)
}

/// The head block of a response: metadata alone.
pub struct ResponseHead;

impl ResponseHead {
    /// Appends the fixed part; the metadata entries follow by [`write_entry`].
    pub fn write(out: &mut Vec<u8>, entries: u16) {
        Writer(out).u16(entries);
    }

    /// Takes a copied block apart.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    #[inline]
    pub fn decode(block: &[u8]) -> Result<Metadata<'_>, DecodeError> {
        Metadata::decode(Reader::new(block))
    }
}

/// The names of gRPC's status codes; the code is the index.
pub const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The trailers block: a gRPC status code and metadata (message and details among it).
#[derive(Debug, PartialEq, Eq)]
pub struct Trailers<'a> {
    /// The gRPC status code, an index of [`CODES`].
    pub code: u8,
    /// `grpc-message`, `grpc-status-details-bin` and the trailing metadata.
    pub metadata: Metadata<'a>,
}

impl<'a> Trailers<'a> {
    /// Appends the fixed part; the metadata entries follow by [`write_entry`].
    pub fn write(out: &mut Vec<u8>, code: u8, entries: u16) {
        let mut w = Writer(out);
        w.u8(code);
        w.u16(entries);
    }

    /// Takes a copied block apart.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field.
    #[inline]
    pub fn decode(block: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(block);
        let code = status_code(&mut r, "status code")?;
        Ok(Self { code, metadata: Metadata::decode(r)? })
    }
}

#[inline]
fn status_code(r: &mut Reader<'_>, field: &'static str) -> Result<u8, DecodeError> {
    match r.u8(field)? {
        code if usize::from(code) < CODES.len() => Ok(code),
        code => Err(DecodeError::Value { field, found: code.into() }),
    }
}

/// Appends one metadata entry.
pub fn write_entry(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let mut w = Writer(out);
    w.short_bytes(name);
    w.u32(value.len() as u32);
    w.raw(value);
}

/// Appends entries behind a fixed part that was written just before with a count of 0, its last field, and
/// sets the count; how many there are. A block with more than [`limits::METADATA_ENTRIES`] is to be dropped.
#[inline]
pub fn write_entries<'e, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    entries: impl Iterator<Item = (&'e [u8], V)>,
) -> usize {
    let count = out.len() - 2..out.len();
    let mut written = 0;
    for (name, value) in entries {
        write_entry(out, name, value.as_ref());
        written += 1;
    }
    out[count].copy_from_slice(&(written as u16).to_le_bytes());
    written
}

/// Checked metadata entries; iterate to read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    entries: u16,
}

impl<'a> Metadata<'a> {
    /// No entries.
    pub const NONE: Self = Self { bytes: &[], entries: 0 };

    fn decode(mut r: Reader<'a>) -> Result<Self, DecodeError> {
        let entries = r.u16("metadata count")?;
        if usize::from(entries) > limits::METADATA_ENTRIES {
            return Err(DecodeError::TooLarge {
                field: "metadata count",
                found: entries.into(),
                limit: limits::METADATA_ENTRIES,
            });
        }
        let bytes = r.rest();
        let mut r = Reader::new(bytes);
        for _ in 0..entries {
            entry(&mut r)?;
        }
        r.end()?;
        Ok(Self { bytes, entries })
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.into()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The entries in the order they were sent, name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut r = Reader::new(self.bytes);
        (0..self.entries).map_while(move |_| entry(&mut r).ok())
    }
}

/// Metadata that outlives the record it came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedMetadata {
    bytes: Vec<u8>,
    entries: u16,
}

impl OwnedMetadata {
    /// The entries.
    #[inline]
    pub fn get(&self) -> Metadata<'_> {
        Metadata { bytes: &self.bytes, entries: self.entries }
    }
}

impl From<&Metadata<'_>> for OwnedMetadata {
    /// Allocates nothing where there are no entries.
    #[inline]
    fn from(metadata: &Metadata<'_>) -> Self {
        Self { bytes: metadata.bytes.to_vec(), entries: metadata.entries }
    }
}

fn entry<'a>(r: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
    let name = r.short_bytes("metadata name", limits::HEAD_BYTES)?;
    if name.is_empty() {
        return Err(DecodeError::Value { field: "metadata name length", found: 0 });
    }
    let len = r.u32("metadata value length")? as usize;
    Ok((name, r.raw("metadata value", len)?))
}

/// The payload of a [`Kind::Window`].
///
/// # Errors
/// [`DecodeError`] when it is not four bytes or grants nothing.
pub fn decode_window(payload: &[u8]) -> Result<u32, DecodeError> {
    let mut r = Reader::new(payload);
    let credit = r.u32("window credit")?;
    r.end()?;
    if credit == 0 {
        return Err(DecodeError::Value { field: "window credit", found: 0 });
    }
    Ok(credit)
}

/// Takes the generation of a [`Kind::Release`].
///
/// # Errors
/// [`DecodeError`] when the payload is none.
pub fn decode_release(payload: &[u8]) -> Result<u32, DecodeError> {
    let mut r = Reader::new(payload);
    let generation = r.u32("parcel's generation")?;
    r.end()?;
    Ok(generation)
}

/// The payload of a [`Kind::Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that may be open at a time, 1 to [`limits::STREAMS_MAX`].
    pub streams: u32,
    /// Bytes of request data that may be under way, [`limits::FIRST_WINDOW`] to
    /// [`limits::LINK_WINDOW`].
    pub window: u32,
}

impl Limits {
    /// The payload.
    pub fn encode(self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.streams.to_le_bytes());
        out[4..].copy_from_slice(&self.window.to_le_bytes());
        out
    }

    /// Reads a copied payload.
    ///
    /// # Errors
    /// [`DecodeError`] naming the field that is short or out of its range.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(payload);
        let (streams, window) = (r.u32("limit of streams")?, r.u32("limit of the window")?);
        r.end()?;
        if streams == 0 || streams as usize > limits::STREAMS_MAX {
            return Err(DecodeError::Value { field: "limit of streams", found: streams.into() });
        }
        if !(limits::FIRST_WINDOW..=limits::LINK_WINDOW).contains(&window) {
            return Err(DecodeError::Value { field: "limit of the window", found: window.into() });
        }
        Ok(Self { streams, window })
    }
}

/// The payload of a [`Kind::Room`]: up to which offset of the stream's data memory is kept.
///
/// # Errors
/// [`DecodeError`] when it is not eight bytes.
pub fn decode_room(payload: &[u8]) -> Result<u64, DecodeError> {
    let mut r = Reader::new(payload);
    let until = r.u64("room")?;
    r.end()?;
    Ok(until)
}

/// Appends the payload of a [`Kind::Reset`].
pub fn write_reset(out: &mut Vec<u8>, code: u8, text: &str) {
    let mut w = Writer(out);
    w.u8(code);
    let cut = (0..=limits::ERROR_TEXT_BYTES.min(text.len()))
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0);
    w.short_bytes(&text.as_bytes()[..cut]);
}

/// The payload of a [`Kind::Reset`]: gRPC code, which is no success, and text.
///
/// # Errors
/// [`DecodeError`] naming the field.
pub fn decode_reset(payload: &[u8]) -> Result<(u8, &str), DecodeError> {
    let mut r = Reader::new(payload);
    let code = status_code(&mut r, "reset code")?;
    if code == 0 {
        return Err(DecodeError::Value { field: "reset code", found: 0 });
    }
    let text = r.short_bytes("reset text", limits::ERROR_TEXT_BYTES)?;
    r.end()?;
    let text = core::str::from_utf8(text).map_err(|_| DecodeError::Text { field: "reset text" })?;
    Ok((code, text))
}

#[cfg(test)]
mod tests;
