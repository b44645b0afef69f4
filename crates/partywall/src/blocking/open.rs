//! A blocking channel's end of a link: one call at a time.
//!
//! A request that is one plain frame is encoded into the reserved record, and its answer is decoded from the
//! buffer into which all records are copied.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use partywall_abi::domain::GateStatus;
use partywall_abi::frame::{
    self, ATTACHED, END, HEAD, Kind, Metadata, MethodName, PARCEL, PLAIN_REQUEST, ParcelRef,
};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU32, Ordering};
use partywall_call::{Blocked, Connection, Event, Key, Record, Want};
use partywall_shm::link::{Link, LinkError};
use partywall_shm::ring::Wake;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::failed::Failed;
use super::reach::Reached;
use crate::coordinator::{End, Tracked};
use crate::link::account::Account;
use crate::link::attached::{Attached, Attaching, Unread};
use crate::link::broken::Broken;
use crate::link::caller::Begun;
use crate::link::counters::SentParcels;
use crate::link::mailbox::{Head, Trailers, Whole};
use crate::link::parcels::{self, Filled, InParcel, Packed, Parcels, Piece};
use crate::link::pool::Blank;
use crate::link::record;
use crate::link::signed::Signing;
use crate::link::wake::Sent;
use crate::link::wake::gate::{Gate, Visitor};
use crate::peer::Peer;
use crate::stubs::message::{self, Outgoing};
use crate::stubs::method::{Method, Numbers};
use crate::telemetry::{self, Route, Side};
use crate::wire::{self, PREFIX};

/// An open link.
pub(super) struct Open {
    /// This end as the coordinator knows it, and how that reaches it.
    pub(super) tracked: Option<(Tracked, Arc<Reached>)>,
    pub(super) link: Link,
    /// How what is sent on it is sealed, and what comes is opened.
    sealing: record::Outgoing,
    opening: record::Incoming,
    /// How messages are signed, if they are.
    pub(super) signing: Option<Arc<Signing>>,
    pub(super) server: Peer,
    pub(super) connection: Connection<()>,
    parcels: Parcels,
    /// The way into a server of the same launcher.
    gate: Option<Gate>,
    numbers: Numbers,
    /// The head of the call under way, as it is sent.
    block: Vec<u8>,
    /// A record as it is taken, and a control record as it is sent.
    pub(super) payload: Vec<u8>,
    control: Vec<u8>,
    /// Number of the record that the call under way began with.
    began: u64,
    /// What was attached to answers and is read, which the server has not been told of.
    attached_read: Arc<AtomicU32>,
    /// Answers whose attachments the server has not been told of.
    unread: u32,
    _metrics: telemetry::Link,
}

/// How often a thread that waits looks what has come to others.
const LOOK: Duration = Duration::from_millis(1);
/// Records taken between two looks at the clock.
const TURN: u32 = 128;

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("server", &self.server).finish()
    }
}

/// The answer to one call.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) head: Option<Head>,
    pub(super) data: Vec<u8>,
    /// Its data, where all of them lie in a parcel.
    pub(super) parcel: Option<Bytes>,
    pub(super) trailers: Option<Trailers>,
    /// It was one frame without metadata, and its data are so many of the last bytes of [`Open::payload`].
    pub(super) plain: Option<usize>,
}

impl Answer {
    pub(super) fn is_over(&self) -> bool {
        self.plain.is_some() || self.trailers.is_some()
    }

    /// Its data, but for those of a plain one.
    pub(super) fn data(&self) -> &[u8] {
        self.parcel.as_deref().unwrap_or(&self.data)
    }

    fn append(&mut self, piece: &[u8]) {
        if let Some(parcel) = self.parcel.take() {
            self.data.extend_from_slice(&parcel);
        }
        self.data.extend_from_slice(piece);
    }

    /// The status of a call that has failed.
    pub(super) fn failed(&self) -> Option<Status> {
        let trailers = self.trailers.as_ref().filter(|trailers| trailers.code != 0)?;
        Status::from_header_map(&wire::trailers(trailers.code, &trailers.metadata.get()))
    }

    /// As a channel with a runtime has it; `plain` is what came of a plain one.
    pub(super) fn begun(self, plain: &[u8]) -> Begun {
        let data = self.parcel.or_else(|| (!self.data.is_empty()).then(|| self.data.into()));
        match (self.plain, self.head, self.trailers) {
            (None, Some(head), Some(trailers)) => {
                Begun::Whole(Box::new(Whole { head, data, trailers }))
            }
            (None, None, Some(trailers)) => Begun::Trailers(trailers),
            (_, _, _) => Begun::Plain(Bytes::copy_from_slice(plain)),
        }
    }

    /// What is attached to it.
    pub(super) fn take_attached(&mut self) -> Option<Box<Attached>> {
        self.head.as_mut()?.attached.take()
    }

    /// Its metadata, with what HTTP has beside that of the service.
    pub(super) fn headers(&mut self) -> HeaderMap {
        if self.plain.is_some() {
            let mut headers = wire::response_headers(&Metadata::NONE);
            headers.extend(wire::trailers(0, &Metadata::NONE));
            return headers;
        }
        let mut headers = match self.head.take() {
            Some(head) => wire::response_headers(&head.metadata.get()),
            None => HeaderMap::new(),
        };
        if let Some(trailers) = self.trailers.take() {
            headers.extend(wire::trailers(trailers.code, &trailers.metadata.get()));
        }
        headers
    }
}

/// A request to send.
pub(super) struct Request<'a> {
    pub(super) path: &'a str,
    /// The method, if it can have a number.
    pub(super) method: Option<&'static Method>,
    pub(super) headers: &'a HeaderMap,
    /// What is attached to it.
    pub(super) attached: Option<&'a Attaching>,
    pub(super) message: Message<'a>,
}

/// A message with gRPC's prefix.
#[derive(Clone, Copy)]
pub(super) enum Message<'a> {
    Encoded(&'a [u8]),
    ToEncode(Outgoing<'a>),
}

/// A call under way: its number, if it has one, and the longest answer that is taken.
pub(super) struct Call {
    pub(super) key: Option<Key>,
    pub(super) answer: Answer,
    pub(super) limit: usize,
    pub(super) deadline: Option<Instant>,
}

impl Open {
    pub(super) fn new(link: Link, server: Peer, gate: Option<Gate>) -> Self {
        let route = if gate.is_some() { Route::Gate } else { Route::Ring };
        let metrics = telemetry::Link::opened(Side::Client, route, server.security());
        Self {
            _metrics: metrics,
            tracked: None,
            link,
            sealing: record::Outgoing::default(),
            opening: record::Incoming::default(),
            signing: None,
            server,
            connection: Connection::caller(),
            parcels: Parcels::new(Account::own(), Arc::default()),
            gate,
            numbers: Numbers::default(),
            block: Vec::new(),
            payload: Vec::new(),
            control: Vec::new(),
            began: 0,
            attached_read: Arc::default(),
            unread: 0,
        }
    }

    /// The same, whose records pass so.
    pub(super) fn sealed(self, sealing: record::Outgoing, opening: record::Incoming) -> Self {
        Self { sealing, opening, ..self }
    }

    /// Takes what has come since the last call; false when the next one needs another link.
    pub(super) fn is_usable(&mut self) -> bool {
        if self.tracked.as_ref().is_some_and(|(_, end)| end.over.get().is_some()) {
            return false;
        }
        self.take_grant();
        self.give_back();
        let mut nobodys = Call { key: None, answer: Answer::default(), limit: 0, deadline: None };
        let taken = self.take_turn(&mut nobodys);
        if let Err(Failed::Link(why)) = &taken {
            self.end(why);
        }
        let is_told = taken.is_ok() && self.send_control().is_ok();
        is_told && !self.connection.is_draining() && !self.link.is_dead()
    }

    /// Whether descriptors are going to be granted.
    fn awaits_grant(&self) -> bool {
        self.connection.may_attach() && !self.parcels.are_granted()
    }

    /// Descriptors may cross, if they have been granted.
    fn take_grant(&mut self) {
        if let Some((_, end)) = &self.tracked
            && let Some((socket, grant)) = end.take_granted()
        {
            self.parcels.grant(socket, grant);
            self.connection.take_parcels(limits::UNREAD_PARCELS);
        }
    }

    /// Memory for a long field of so many bytes, if descriptors cross and there is some.
    pub(super) fn blank(&mut self, len: usize) -> Option<Blank> {
        self.take_grant();
        self.parcels.are_granted().then(|| self.parcels.pool.make_blank(len))?
    }

    /// Whether this may be attached to a request, now or when descriptors are granted.
    fn may_attach(&self, attached: &Attaching) -> Result<(), Failed> {
        let agreed = self.connection.may_attach();
        self.parcels.may_attach(agreed, attached).map_err(Failed::Abort)
    }

    /// So many calls are under way: one, or none.
    pub(super) fn under_way(&self, calls: usize) {
        if let Some((_, end)) = &self.tracked {
            end.open.set(calls);
        }
    }

    #[cfg(test)]
    pub(super) fn granted(&self) -> partywall_abi::control::Grant {
        self.parcels.granted()
    }

    /// What this end counts of the parcels that it sends.
    pub(super) fn sent(&self) -> Arc<SentParcels> {
        Arc::clone(self.parcels.sent())
    }

    /// The link has ended: the coordinator is told why, and the call gets this status.
    pub(super) fn end(&mut self, why: &Broken) -> Status {
        let link = self.server.link();
        if !matches!(why, Broken::Link(LinkError::Dead)) {
            tracing::warn!(link, blame = ?why.blame(), %why, "link closed");
        }
        if let Some((tracked, end)) = self.tracked.take() {
            tracked.close(why.reported(), end.stats());
        }
        why.status(link)
    }

    /// Whether the server has taken the first record of the call under way.
    pub(super) fn was_taken(&mut self) -> bool {
        let began = self.began;
        // A server that breaks the rules may have seen it.
        self.link.producer().was_taken(began).unwrap_or(true)
    }

    /// Sends a request and waits for the answer. `buffer` is where a message goes that cannot be encoded
    /// where it is sent from.
    pub(super) fn exchange(
        &mut self,
        request: &Request<'_>,
        timeout: Option<Duration>,
        buffer: &mut Vec<u8>,
        call: &mut Call,
    ) -> Result<(), Failed> {
        if !self.send_plain(request, timeout, call)? {
            let Self { numbers, connection, .. } = self;
            let number = request.method.and_then(|method| {
                numbers.get_or_ask(method.index(), || connection.name(method.path()))
            });
            let name = number.map_or(MethodName::Path(request.path), MethodName::Number);
            self.block.clear();
            wire::write_request_head(&mut self.block, name, request.headers, timeout)
                .map_err(Failed::Abort)?;
            let packed = self.packed(request.message);
            let (bytes, owned) = packed.map_or((None, None), |p| (Some(p.bytes), p.owned));
            let message = match (request.message, &bytes) {
                (_, Some(bytes)) => bytes,
                (Message::Encoded(bytes), None) => bytes,
                (Message::ToEncode(message), None) => {
                    buffer.clear();
                    message.append_to(buffer).map_err(Failed::Abort)?;
                    buffer
                }
            };
            // This thread is the only one that calls, so what may be short is no place.
            let key = self.connection.open().map_err(|_| Failed::Unsent)?;
            call.key = Some(key);
            let path = request.path;
            self.send(key, (path, request.attached), (message, owned), call)?;
        }
        while !call.answer.is_over() {
            if !self.take_turn(call)? {
                self.wait(None, call)?;
            } else if !call.answer.is_over() {
                call.expired()?;
            }
        }
        Ok(())
    }

    /// A long message in a parcel, where the server takes one.
    fn packed(&self, message: Message<'_>) -> Option<Packed> {
        let len = match message {
            Message::Encoded(bytes) => bytes.len(),
            Message::ToEncode(message) => message.len(),
        };
        let goes = parcels::is_long(len)
            && self.parcels.are_granted()
            && self.connection.may_send_parcel();
        goes.then(|| match message {
            Message::Encoded(bytes) => self.parcels.pack(len, true, parcels::copied(bytes)),
            Message::ToEncode(message) => {
                self.parcels.pack(len, true, |out| message.encode_in_place(out))
            }
        })?
    }

    /// Sends a request as a plain frame; false, and nothing has changed, where it is none, has another length
    /// than it has said, or has to wait for anything.
    fn send_plain(
        &mut self,
        request: &Request<'_>,
        timeout: Option<Duration>,
        call: &mut Call,
    ) -> Result<bool, Failed> {
        let (Some(method), Message::ToEncode(message)) = (request.method, request.message) else {
            return Ok(false);
        };
        let is_alone = request.headers.is_empty() && request.attached.is_none();
        let number = self.numbers.get(method.index());
        let (Some(number), None, true) = (number, timeout, is_alone) else {
            return Ok(false);
        };
        let number = frame::Request::plain(number);
        let data = message.len();
        if number.len() + data > self.sealing.most(self.link.producer()) {
            return Ok(false);
        }
        self.began = self.link.producer().position();
        let Some(mut frame) = self.sealing.reserve(self.link.producer(), &number, data)? else {
            return Ok(false);
        };
        if !message.encode_in_place(&mut frame.buffer()) {
            return Ok(false);
        }
        let Some(key) = self.connection.open_whole(data) else { return Ok(false) };
        frame.send(PLAIN_REQUEST, key.number())?;
        call.key = Some(key);
        self.tell(Some(Sent { stream: key.number(), path: request.path, due: call.deadline }))?;
        Ok(true)
    }

    /// Tells the server of what was written.
    #[inline]
    fn tell(&mut self, sent: Option<Sent<'_>>) -> Result<(), Failed> {
        match (self.link.producer().notify()?, &self.gate) {
            (Wake::Done, _) => Ok(()),
            (Wake::Doorbell, None) => Ok(self.link.carry_out(Wake::Doorbell)?),
            (Wake::Doorbell, Some(gate)) => {
                let told = gate.tell_of(&mut Inside(&mut self.link), sent);
                told.map_err(|why| match why {
                    Broken::Callee(GateStatus::Deadline) => Failed::CutOff(why),
                    why => why.into(),
                })
            }
        }
    }

    fn send(
        &mut self,
        key: Key,
        (path, mut attached): (&str, Option<&Attaching>),
        (message, owned): (&[u8], Option<Filled>),
        call: &mut Call,
    ) -> Result<(), Failed> {
        let (mut rest, mut head) = (message, true);
        let mut parcel = match owned {
            Some(owned) => Some(InParcel::Owned(owned)),
            None => InParcel::of(message),
        };
        let (attached_at, mut placed) = (self.block.len(), None);
        if let Some(attached) = attached {
            self.may_attach(attached)?;
            attached.make_room(&mut self.block);
        }
        loop {
            let block: &[u8] = if head { &self.block } else { &[] };
            let most = self.sealing.most(self.link.producer());
            let mut room = None;
            // What goes in a parcel follows the head then.
            let goes_later = attached.is_some() && parcel.is_some();
            let (in_parcel, end) = (parcel.is_some() && !goes_later, !goes_later);
            let data = if goes_later { 0 } else { rest.len() };
            let want = Want { head, data, end, most, in_parcel, attached: attached.is_some() };
            match self.connection.reserve(key, want) {
                Ok(permit) if permit.flags & PARCEL != 0 => {
                    let flags = permit.flags | if head { HEAD } else { 0 } | END;
                    if head {
                        self.began = self.link.producer().position();
                    }
                    let here = ParcelRef::BYTES;
                    let frame = self.sealing.reserve(self.link.producer(), block, here)?;
                    room = Some(block.len() + here);
                    if let Some(frame) = frame {
                        // Else it goes as bytes.
                        let Some(parcel) = parcel.take() else { continue };
                        let lend = |place| self.connection.lend(place);
                        let sent = self.parcels.send(&parcel, rest.len(), lend);
                        let Some(sent) = sent else { continue };
                        if let InParcel::Owned(owned) = &parcel {
                            owned.lend();
                        }
                        let is_open = self.connection.commit(key, flags, rest.len());
                        debug_assert!(is_open, "nothing was received meanwhile");
                        frame.send_data(flags, key.number(), &sent.encode())?;
                        self.parcels.sent().count(rest.len());
                        return self.tell(None);
                    }
                }
                Ok(permit) => {
                    if !goes_later {
                        parcel = None;
                    }
                    let (piece, after) = rest.split_at(permit.data.min(most - block.len()));
                    let end = after.is_empty();
                    let mut flags =
                        permit.flags | if head { HEAD } else { 0 } | if end { END } else { 0 };
                    let len = block.len() + piece.len();
                    if head {
                        self.began = self.link.producer().position();
                    }
                    if let Some(what) = attached {
                        self.may_attach(what)?;
                        if !self.sealing.has_room(self.link.producer(), len)? {
                            self.wait(Some(len), call)?;
                            self.take_turn(call)?;
                            call.expired()?;
                            continue;
                        }
                        let [places, _] = self.connection.attached_places();
                        let said = self.parcels.send_attached(what, places);
                        let said = said.map_err(Failed::Abort)?;
                        self.block[attached_at..].copy_from_slice(&said.block);
                        flags |= said.flags;
                        placed = Some(said.placed);
                        attached = None;
                    }
                    let block: &[u8] = if head { &self.block } else { &[] };
                    let frame = self.sealing.reserve(self.link.producer(), block, piece.len())?;
                    if let Some(frame) = frame {
                        let sent = self.connection.commit(key, flags, piece.len());
                        debug_assert!(sent, "nothing was received meanwhile");
                        frame.send_data(flags, key.number(), piece)?;
                        let lost = placed.take().map(|placed| self.parcels.attached_sent(placed));
                        let whole = head && end;
                        let stream = key.number();
                        self.tell(whole.then_some(Sent { stream, path, due: call.deadline }))?;
                        // What has lost its place is unmapped beside the server's work.
                        drop(lost);
                        if end {
                            return Ok(());
                        }
                        (head, rest) = (false, after);
                        continue;
                    }
                    room = Some(len);
                }
                Err(Blocked::Control) => {
                    self.send_control()?;
                    if !self.connection.has_control() {
                        continue;
                    }
                }
                Err(Blocked::Credit { .. }) => {}
                // Answered early: the rest is not wanted.
                Err(Blocked::Stopped) => return Ok(()),
            }
            self.wait(room, call)?;
            self.take_turn(call)?;
            call.expired()?;
            if head && self.connection.is_draining() {
                return Err(Failed::Unsent);
            }
        }
    }

    /// Tells the peer of what is read.
    fn give_back(&mut self) {
        for place in self.parcels.read() {
            self.connection.give_back_owned(place);
        }
        for _read in 0..self.attached_read.swap(0, Ordering::Relaxed) {
            self.unread -= 1;
            self.connection.attached_read();
        }
    }

    /// Takes what is there, as much as belongs to one turn; false when nothing was.
    fn take_turn(&mut self, call: &mut Call) -> Result<bool, Failed> {
        for taken in 0..TURN {
            if call.answer.is_over() || !self.take_one(call)? {
                return Ok(taken > 0);
            }
        }
        Ok(true)
    }

    /// Takes one record; false when none is there.
    fn take_one(&mut self, call: &mut Call) -> Result<bool, Failed> {
        let taken = self.opening.take(self.link.consumer(), &mut self.payload)?;
        let Some(d) = taken else { return Ok(false) };
        let payload = &self.payload[..];
        let is_frame = d.kind == Kind::Frame as u8;
        let parcel = match is_frame && d.flags & PARCEL != 0 {
            true => self.parcels.receive(payload)?,
            false => None,
        };
        let mut attached = match is_frame && d.flags & ATTACHED != 0 {
            true => {
                self.unread += 1;
                let unread = || Unread::counted(&self.attached_read);
                let [_, places] = self.connection.attached_places();
                self.parcels.receive_attached(d.flags, payload, places, unread)?.map(Box::new)
            }
            false => None,
        };
        let record = Record { kind: d.kind, flags: d.flags, stream: d.stream, payload };
        match self.connection.handle(record)? {
            Event::Part { key, head, data, trailers, .. } if Some(key) == call.key => {
                let answer = &mut call.answer;
                let is_plain = head.as_ref().is_some_and(Metadata::is_empty)
                    && trailers.as_ref().is_some_and(|t| t.code == 0 && t.metadata.is_empty());
                let is_alone = parcel.is_none() && attached.is_none();
                if is_plain && data <= call.limit && is_alone {
                    answer.plain = Some(data);
                    // The call is over: nothing more of it counts.
                    return Ok(true);
                }
                if let Some(head) = &head {
                    let attached = attached.take();
                    answer.head = Some(Head { metadata: head.into(), attached });
                }
                if answer.data().len() + data > call.limit {
                    // What says the message's length may be in this piece.
                    let most = PREFIX.min(data);
                    match &parcel {
                        Some(Piece::Here(bytes)) => answer.append(&bytes[..most]),
                        Some(Piece::Lent(lent)) => answer.append(&lent.begin(most)),
                        None => answer.append(&payload[payload.len() - data..][..most]),
                    }
                    let said = message::said(answer.data()).unwrap_or_default();
                    let mut status = message::too_long(said, call.limit - PREFIX);
                    if let Some(head) = &answer.head {
                        let headers = wire::own_headers(None, &head.metadata.get());
                        *status.metadata_mut() = MetadataMap::from_headers(headers);
                    }
                    return Err(Failed::Abort(status));
                }
                match parcel.map(Piece::here) {
                    Some(parcel) if answer.data().is_empty() => answer.parcel = Some(parcel),
                    Some(parcel) => answer.append(&parcel),
                    None => answer.append(&payload[payload.len() - data..]),
                }
                answer.trailers = trailers.as_ref().map(Trailers::from);
                self.connection.taken(key, data);
            }
            Event::Reset { key, code, text } if Some(key) == call.key => {
                return Err(Failed::Status(Status::new(Code::from_i32(code.into()), text)));
            }
            Event::Released(place) => self.parcels.pool.released(place),
            // What was granted or said is looked at before the next wait.
            _ => {}
        }
        // Of an answer that nobody waits for.
        drop(attached);
        self.give_back();
        if self.connection.has_control() {
            self.send_control()?;
        }
        Ok(true)
    }

    /// Sends the control records that are due, as far as there is room.
    pub(super) fn send_control(&mut self) -> Result<(), Failed> {
        let mut sent = false;
        while let Some(control) = self.connection.control()? {
            control.write(&mut self.control);
            if !self.sealing.push_control(self.link.producer(), control, &self.control)? {
                break;
            }
            self.connection.control_sent();
            sent = true;
        }
        if sent { self.tell(None) } else { Ok(()) }
    }

    /// Waits for a record, for room for `len` bytes or for the control record that is due, or for descriptors
    /// to be granted.
    fn wait(&mut self, len: Option<usize>, call: &Call) -> Result<(), Failed> {
        let len = len.map(|len| self.sealing.room(len));
        let awaited = self.awaits_grant();
        if awaited {
            self.take_grant();
        }
        self.give_back();
        self.send_control()?;
        if awaited && !self.awaits_grant() {
            // Whatever else it has waited for may have come before.
            return Ok(());
        }
        let due = self.sealing.room(self.control.len());
        let due = self.connection.has_control().then_some(due);
        if self.unread == 0 && !self.awaits_grant() {
            return Ok(self.link.wait(due.or(len), call.deadline)?);
        }
        // The grant comes to another thread, and another thread may take what is attached to an answer; the
        // server may wait for either, and nobody wakes this thread for it.
        let look = Instant::now() + LOOK;
        match self.link.wait(due.or(len), Some(call.deadline.map_or(look, |at| at.min(look)))) {
            Err(LinkError::TimedOut) => Ok(call.expired()?),
            waited => Ok(waited?),
        }
    }

    /// Forgets a call, which is reset if it is not over; whether the server has been told all that
    /// it is to be told.
    pub(super) fn release(&mut self, call: &Call, code: Code) -> bool {
        if let Some(key) = call.key {
            self.connection.reset(key, code as i32 as u8, "");
            self.connection.release(key);
        }
        self.send_control().is_ok() && !self.connection.has_control()
    }
}

/// This end, while its thread is inside the service.
struct Inside<'a>(&'a mut Link);

impl Visitor for Inside<'_> {
    // It is awake: it sets the flag when it waits, and takes it back itself.
    fn awake(&mut self) {}

    fn untaken(&mut self) -> Result<Option<u64>, Broken> {
        Ok(self.0.producer().untaken()?)
    }

    fn ring(&mut self) -> Result<(), Broken> {
        Ok(self.0.carry_out(Wake::Doorbell)?)
    }

    fn is_closed(&self) -> bool {
        self.0.is_dead()
    }
}

impl Call {
    fn expired(&self) -> Result<(), Failed> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Failed::Expired),
            _ => Ok(()),
        }
    }
}
