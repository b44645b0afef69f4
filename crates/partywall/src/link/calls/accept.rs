//! Records that have come: what they mean, and the calls that they belong to.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use partywall_abi::frame::{MethodName, OwnedMetadata, RequestHead};
use partywall_abi::sync::Ordering;
use partywall_call::{Event, Key, SHORT};
use tonic::{Code, Status};

use super::{Calls, Due};
use crate::link::attached::Attached;
use crate::link::inbound::Record;
use crate::link::mailbox::{self, Answer, Head, Named, Part, Trailers};
use crate::link::parcels::Piece;
use crate::lock::lock;

/// A head of more bytes than this is not kept alive by the data behind it.
const LONG_HEAD: usize = 1024;

/// A call that the peer has opened.
pub(in crate::link) struct Opened {
    pub(in crate::link) key: Key,
    /// The time that is left to it.
    pub(in crate::link) timeout: Option<Duration>,
    pub(in crate::link) metadata: OwnedMetadata,
    /// Nothing more comes.
    pub(in crate::link) whole: bool,
    /// Its data lie in a parcel.
    pub(in crate::link) in_parcel: bool,
    payload: Bytes,
    method: Result<usize, u16>,
    data: usize,
    parcel: Option<Box<Piece>>,
    /// What is attached to its head.
    pub(in crate::link) attached: Option<Box<Attached>>,
}

/// What has come beside a record.
#[derive(Default)]
pub(in crate::link) struct Beside {
    /// Its data.
    pub(in crate::link) parcel: Option<Box<Piece>>,
    /// What is attached to its head.
    pub(in crate::link) attached: Option<Box<Attached>>,
}

/// What a call names its method by.
pub(in crate::link) enum Called<'a> {
    /// A path in ASCII.
    Path(&'a [u8]),
    Number(u16),
}

impl Opened {
    /// What is called.
    pub(in crate::link) fn method(&self) -> Called<'_> {
        match self.method {
            Ok(len) => Called::Path(&self.payload[RequestHead::PATH_AT..][..len]),
            Err(number) => Called::Number(number),
        }
    }

    /// The data that came with the head.
    pub(in crate::link) fn take_data(&mut self) -> Piece {
        data_of(std::mem::take(&mut self.payload), self.data, self.parcel.take())
    }
}

/// The outcome of a record.
pub(in crate::link) enum Accepted {
    /// What it brought is where it belongs.
    Done,
    /// The call that reads for itself has a part of its answer.
    Answered,
    /// The call that reads for itself has all of its answer, and is over and released.
    Whole(Answer),
    Opened(Opened),
    /// A call of this path was opened, and its caller has too many: it is reset and released.
    Refused(Arc<str>),
    /// The method with this path has the next number.
    Named(Arc<str>),
    /// The peer has given an owned parcel back.
    Released(u32),
    /// The caller opens no more calls.
    Drained,
}

/// The last `len` bytes of a record.
fn rest(mut record: Bytes, len: usize) -> Bytes {
    let head = record.len() - len;
    if head > LONG_HEAD {
        return Bytes::copy_from_slice(&record[head..]);
    }
    record.advance(head);
    record
}

/// The data of a frame, which has so many bytes of them if they lie in no parcel.
#[inline(always)]
fn data_of(record: Bytes, len: usize, parcel: Option<Box<Piece>>) -> Piece {
    match parcel {
        Some(parcel) => *parcel,
        None => rest(record, len).into(),
    }
}

impl Calls {
    /// Hands a record to the call it belongs to, with what has come beside it, and wakes that one unless it
    /// is `own`, which reads for itself. What nobody wants is dropped when the lock is free.
    #[inline(always)]
    pub(in crate::link) fn accept(
        &self,
        record: Record,
        beside: Beside,
        own: Option<Key>,
    ) -> Result<(Accepted, Due), partywall_call::Error> {
        let Beside { mut parcel, attached } = beside;
        let Record { kind, flags, stream, payload } = record;
        let record = partywall_call::Record { kind, flags, stream, payload: &payload };
        let mut state = lock(&self.state);
        let open = state.connection.open_calls();
        let event = state.connection.handle(record)?;
        let (accepted, wakers) = match event {
            Event::Nothing => (Accepted::Done, mailbox::Wakers::default()),
            Event::Part { key, head, data, trailers, end } => {
                let is_own = own == Some(key);
                // What is to be copied out of an owned parcel is not copied here.
                let is_lent = parcel.as_deref().is_some_and(Piece::is_lent);
                let is_plain = mailbox::is_plain(head.as_ref(), trailers.as_ref());
                if is_own && !is_lent && is_plain && attached.is_none() {
                    let _left = state.release(key);
                    let due = self.changed_from(open, state);
                    let data = data_of(payload, data, parcel.take()).here();
                    return Ok((Accepted::Whole(Answer::Plain(data)), due));
                }
                let head = head.as_ref().map(OwnedMetadata::from);
                let head = head.map(|metadata| Head { metadata, attached });
                let trailers = trailers.as_ref().map(Trailers::from);
                // The data are the payload's rest; a long head is not kept for their sake. What a handler has
                // turned away stays in `parcel`.
                let is_wanted = !state.connection.user(key).is_ended();
                let data = match is_wanted {
                    true => data_of(payload, data, parcel.take()),
                    false => Piece::default(),
                };
                match (head, trailers) {
                    (Some(head), Some(trailers)) if is_own && !is_lent => {
                        let _left = state.release(key);
                        let due = self.changed_from(open, state);
                        let answer = Answer::whole(head, data.here(), trailers);
                        return Ok((Accepted::Whole(answer), due));
                    }
                    (head, trailers) => {
                        let answered = is_own && (head.is_some() || trailers.is_some());
                        let part = Part { head, data, trailers, end };
                        let wakers = state.connection.user(key).fill(part, is_own);
                        (if answered { Accepted::Answered } else { Accepted::Done }, wakers)
                    }
                }
            }
            Event::Method { path } => {
                let path = Arc::<str>::from(path);
                state.numbered.push(Arc::clone(&path));
                (Accepted::Named(path), mailbox::Wakers::default())
            }
            Event::Opened { key, head, data, end } => {
                let timeout = head.timeout;
                let method = match head.method {
                    MethodName::Path(path) => Ok(path.len()),
                    MethodName::Number(number) => Err(number),
                };
                let is_lent = parcel.as_deref().is_some_and(Piece::is_lent);
                if end && (1..=SHORT).contains(&data) && !is_lent {
                    // Too little to keep account of.
                    state.connection.taken(key, data);
                }
                let metadata = OwnedMetadata::from(&head.metadata);
                if let Err(number) = method
                    && !self.admit_to(&mut state, key, Named::Number(number))
                {
                    let path = Arc::clone(&state.numbered[usize::from(number)]);
                    return Ok((Accepted::Refused(path), self.changed(state)));
                }
                let (whole, in_parcel) = (end, parcel.is_some());
                let opened = Opened {
                    key,
                    timeout,
                    metadata,
                    whole,
                    in_parcel,
                    payload,
                    method,
                    data,
                    parcel: parcel.take(),
                    attached,
                };
                (Accepted::Opened(opened), mailbox::Wakers::default())
            }
            Event::Reset { key, code, text } => {
                let text = match state.leased {
                    Some(_) => "the caller has cancelled the call",
                    None => text,
                };
                let status = Status::new(Code::from_i32(code.into()), text);
                let wakers = state.connection.user(key).fail(status);
                let answered = own == Some(key);
                (if answered { Accepted::Answered } else { Accepted::Done }, wakers)
            }
            Event::Released(place) => (Accepted::Released(place), mailbox::Wakers::default()),
            Event::StreamCredit(key) => (Accepted::Done, state.connection.user(key).credited()),
            Event::LinkCredit | Event::Limits => {
                let waiters = state.waiters.take();
                let due = self.changed(state);
                waiters.wake();
                return Ok((Accepted::Done, due));
            }
            Event::Draining => {
                self.draining.store(true, Ordering::Relaxed);
                // Those who wait for a place go elsewhere.
                let waiting = state.queue.shut();
                let due = self.changed(state);
                drop(waiting);
                return Ok((Accepted::Done, due));
            }
            Event::Drained => (Accepted::Drained, mailbox::Wakers::default()),
        };
        // What nobody wants of an owned parcel is given back at once.
        parcel = parcel.filter(|piece| !piece.is_lent());
        self.give_back(&mut state);
        let due = self.changed_from(open, state);
        drop(parcel);
        wakers.wake();
        Ok((accepted, due))
    }
}
