//! One end of a link of calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::frame::{
    self, ATTACHED, Data, END, HEAD, Kind, Limits, Metadata, MethodName, PARCEL, PLAIN, ROOM,
    TRAILERS, Trailers,
};
use partywall_abi::limits;
use partywall_abi::version::Capabilities;
use slab::Slab;

use crate::control::Control;
use crate::error::{Error, Rule, most_pending};
use crate::event::{Blocked, Event, Key, NotOpened, Permit, Record, Want};
use crate::metadata;
use crate::numbers::Numbers;
use crate::window::{LinkCredit, LinkWindow, Receive, Send};
use parcels::{PLACES, Place};

mod drain;
mod parcels;
mod records;
mod room;

/// How long a draining service waits for the caller's word that no more calls come. A caller that
/// does not run then has none under way.
pub const DRAIN_TIME: Duration = Duration::from_millis(250);

/// Codes of gRPC ("Status codes and their use in gRPC", grpc/doc/statuscodes.md).
const CANCELLED: u8 = 1;
const UNKNOWN: u8 = 2;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// The service has asked for it, at this time; the caller has been asked.
    Asked(Instant),
    /// The caller has not acknowledged in time: the service refuses new calls.
    Refusing,
    /// The caller has said that no more calls come.
    Acknowledged,
}

struct Stream<T> {
    number: u32,
    /// It is found by its number, and takes a place.
    open: bool,
    receive: Receive,
    send: Send,
    user: T,
}

/// One end of a link: see the crate's documentation. `T` is what its owner keeps for a call.
pub struct Connection<T> {
    caller: bool,
    streams: Slab<Stream<T>>,
    open: Numbers,
    /// Calls that may be open, and what a service says to one beyond.
    places: usize,
    full: Arc<str>,
    /// The caller's next number.
    next: u32,
    /// Calls of the caller whose heads are not on the ring.
    unbegun: usize,
    window: LinkWindow,
    credit: LinkCredit,
    limited: bool,
    /// Both ends know [`Kind::Room`]; and [`Kind::Method`] with plain frames.
    tells_room: bool,
    tells_methods: bool,
    /// Both ends know [`Kind::Parcels`]; how many parcels may still come, and how many may be sent.
    tells_parcels: bool,
    /// Both ends know what is attached to heads, and descriptors are going to be granted; they are here.
    tells_attached: bool,
    is_granted: bool,
    parcels_in: u32,
    parcels_out: u32,
    /// Parcels that are read, of which the peer has not been told; how many it may leave unread at most, and
    /// how many this end may.
    parcels_read: u32,
    parcels_most: u32,
    parcels_most_out: u32,
    /// Owned parcels, the peer's and this end's.
    owned_in: [Place; PLACES],
    owned_out: [Place; PLACES],
    /// Methods that have numbers, and bytes of their paths.
    methods: u16,
    method_bytes: usize,
    /// Streams that wait for memory to be kept for their messages.
    waiting: usize,
    drain: Drain,
    pending: VecDeque<Control>,
    overfull: bool,
}

impl<T> std::fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("caller", &self.caller)
            .field("open", &self.open.len())
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

impl<T: Default> Connection<T> {
    /// The caller's end.
    pub fn caller() -> Self {
        let mut connection = Self::new(true, limits::LINK_WINDOW);
        connection.places = limits::FIRST_STREAMS;
        connection.credit = LinkCredit::new(limits::FIRST_WINDOW);
        connection
    }

    /// The service's end, which says these limits first; `full` is what a caller is told that does
    /// not keep to the number of streams.
    pub fn service(limits: Limits, full: &str) -> Self {
        let mut connection = Self::new(false, limits.window);
        connection.places = limits.streams as usize;
        connection.full = full.into();
        connection.limited = true;
        connection.pending.push_back(Control::Limits(limits));
        connection
    }

    fn new(caller: bool, window: u32) -> Self {
        Self {
            caller,
            streams: Slab::new(),
            open: Numbers::default(),
            places: 0,
            full: "".into(),
            next: 1,
            unbegun: 0,
            window: LinkWindow::new(window),
            credit: LinkCredit::new(limits::LINK_WINDOW),
            limited: false,
            tells_room: true,
            tells_methods: true,
            tells_parcels: true,
            tells_attached: true,
            is_granted: false,
            parcels_in: 0,
            parcels_out: 0,
            parcels_read: 0,
            parcels_most: 0,
            parcels_most_out: 0,
            owned_in: Default::default(),
            owned_out: Default::default(),
            methods: 0,
            method_bytes: 0,
            waiting: 0,
            drain: Drain::No,
            pending: VecDeque::new(),
            overfull: false,
        }
    }

    /// Announces to the peer only what it knows, as both ends have agreed, and takes nothing else of the kind
    /// from it.
    pub fn agree(&mut self, capabilities: Capabilities) {
        self.tells_room = capabilities.contains(Capabilities::ROOM);
        self.tells_methods = capabilities.contains(Capabilities::METHODS);
        self.tells_parcels = capabilities.contains(Capabilities::PARCELS);
        self.tells_attached =
            self.tells_parcels && capabilities.contains(Capabilities::ATTACHMENTS);
    }

    /// Gives a method its number, of the caller's; none where the service knows no numbers, or where all
    /// are given.
    pub fn name(&mut self, path: &'static str) -> Option<u16> {
        if !self.tells_methods {
            return None;
        }
        let number = self.next_method(path)?;
        self.push(Control::Method(number, path));
        Some(number)
    }

    /// The next number, which this path has from now on; none if all are given.
    fn next_method(&mut self, path: &str) -> Option<u16> {
        let (number, bytes) = (self.methods, self.method_bytes + path.len());
        if u32::from(number) == limits::METHODS || bytes > limits::METHOD_BYTES {
            return None;
        }
        (self.methods, self.method_bytes) = (number + 1, bytes);
        Some(number)
    }

    // ---- calls -------------------------------------------------------------------------

    /// Opens a call of the caller's.
    ///
    /// # Errors
    /// [`NotOpened`].
    pub fn open(&mut self) -> Result<Key, NotOpened> {
        debug_assert!(self.caller, "a service opens no calls");
        if self.drain != Drain::No {
            return Err(NotOpened::Draining);
        }
        if self.free() == 0 {
            return Err(NotOpened::Full);
        }
        let number = loop {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            if number != 0 && !self.open.contains_key(&number) {
                break number;
            }
        };
        self.unbegun += 1;
        Ok(self.insert(number))
    }

    #[inline]
    fn insert(&mut self, number: u32) -> Key {
        let index = self.streams.insert(Stream {
            number,
            open: true,
            receive: Receive::new(),
            send: Send::new(),
            user: T::default(),
        });
        self.open.insert(number, index);
        Key { index, number }
    }

    /// How many calls are open.
    pub fn open_calls(&self) -> usize {
        self.open.len()
    }

    /// How many more calls may be opened.
    pub fn free(&self) -> usize {
        self.places.saturating_sub(self.open.len())
    }

    /// How many calls there are that have not been released.
    pub fn kept(&self) -> usize {
        self.streams.len()
    }

    /// The calls that are open.
    pub fn calls(&self) -> impl Iterator<Item = Key> + '_ {
        self.open.iter().map(|(number, index)| Key { index: *index, number: *number })
    }

    /// What the owner keeps for a call.
    pub fn user(&mut self, key: Key) -> &mut T {
        &mut self.stream(key).user
    }

    /// Whether a call is open: neither ended nor reset.
    pub fn is_open(&self, key: Key) -> bool {
        self.streams.get(key.index).is_some_and(|stream| stream.open)
    }

    /// Whether nothing may be sent on a call any more.
    pub fn is_stopped(&mut self, key: Key) -> bool {
        self.stream(key).send.stopped
    }

    /// Ends a call out of turn, with a gRPC code for the peer (0, which no reset has, goes as UNKNOWN);
    /// whether it was open. What comes for it from now on is thrown away.
    pub fn reset(&mut self, key: Key, code: u8, text: impl Into<Arc<str>>) -> bool {
        let is_caller = self.caller;
        let stream = self.stream(key);
        let tell = stream.open && (stream.send.begun || !is_caller);
        if tell {
            let code = if code == 0 { UNKNOWN } else { code };
            self.push(Control::Reset(key.number, code, text.into()));
        }
        self.close(key)
    }

    /// The program reads nothing more of a call: what has come goes back to the windows.
    #[inline]
    pub fn discard(&mut self, key: Key) {
        if self.stream(key).receive.discard_nothing() {
            return;
        }
        let (windowed, parcels) = self.stream(key).receive.discard();
        self.give_back(windowed);
        self.read_parcels(parcels);
    }

    /// Forgets a call; one that is open is reset with CANCELLED.
    pub fn release(&mut self, key: Key) -> T {
        if self.stream(key).open {
            self.reset(key, CANCELLED, "");
        }
        self.discard(key);
        self.streams.remove(key.index).user
    }

    /// Takes a call out of the open ones; whether it was.
    #[inline]
    fn close(&mut self, key: Key) -> bool {
        let stream = self.stream(key);
        stream.send.stopped = true;
        stream.receive.ended = true;
        let (was_open, begun) = (std::mem::take(&mut stream.open), stream.send.begun);
        if was_open {
            self.open.remove(&key.number);
            if self.caller && !begun {
                self.one_less_unbegun();
            }
        }
        was_open
    }

    fn stream(&mut self, key: Key) -> &mut Stream<T> {
        let stream = &mut self.streams[key.index];
        debug_assert_eq!(stream.number, key.number, "a call that was released");
        stream
    }

    fn one_less_unbegun(&mut self) {
        self.unbegun -= 1;
        self.acknowledge();
    }

    // ---- receiving ---------------------------------------------------------------------

    /// What a record means. Where its kind and flags are known, little of this is compiled.
    ///
    /// # Errors
    /// [`Error`]: the peer has broken a rule, and the link is to end.
    #[inline(always)]
    pub fn handle<'a>(&mut self, record: Record<'a>) -> Result<Event<'a>, Error> {
        let Record { kind, flags, stream, payload } = record;
        match Kind::from_number(kind) {
            Some(Kind::Frame) if self.caller => self.answer(flags, stream, payload),
            Some(Kind::Frame) => self.request(flags, stream, payload),
            Some(Kind::Reset) => self.on_reset(stream, payload),
            Some(Kind::Window) => self.on_window(stream, payload),
            Some(Kind::Room) => self.on_room(stream, payload),
            Some(Kind::Parcels) => self.on_parcels(stream, payload),
            Some(Kind::Release) => self.on_release(stream, payload),
            Some(Kind::Limits) => self.on_limits(stream, payload),
            Some(Kind::Drain) => self.on_drain(stream),
            Some(Kind::Method) => self.on_method(stream, payload),
            Some(Kind::Message) => Err(Rule::RawMessage.into()),
            None => Err(Rule::UnknownKind(kind).into()),
        }
    }

    fn find(&self, number: u32) -> Option<Key> {
        self.open.get(&number).map(|index| Key { index: *index, number })
    }

    /// Takes the data of a frame off the link's window, or the parcels that may come; how many bytes count
    /// there.
    #[inline(always)]
    fn charge(&mut self, flags: u8, number: u32, data: Data<'_>) -> Result<u32, Error> {
        if number == 0 {
            return Err(Rule::WrongStream(number).into());
        }
        if let Data::InParcel(parcel) = data {
            self.came_in_parcel(parcel)?;
            return Ok(0);
        }
        if flags & ATTACHED != 0 {
            self.came_attached()?;
        }
        let windowed = if flags & ROOM == 0 { data.len() as u32 } else { 0 };
        if windowed > 0
            && let Some(credit) = self.window.charge(windowed)?
        {
            self.push(Control::Window(0, credit));
        }
        Ok(windowed)
    }

    #[inline(always)]
    fn request<'a>(
        &mut self,
        flags: u8,
        number: u32,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Error> {
        if flags & TRAILERS != 0 {
            return Err(Rule::WrongSide.into());
        }
        let frame = frame::Request::decode(flags, payload)?;
        if flags & PLAIN != 0 && !self.tells_methods {
            return Err(Rule::NotAgreed.into());
        }
        let windowed = self.charge(flags, number, frame.data)?;
        let end = flags & END != 0;
        let Some(head) = frame.head else {
            let Some(key) = self.find(number) else {
                // A call that is over.
                self.give_back_all(flags, windowed);
                return Ok(Event::Nothing);
            };
            return self.part(key, flags, frame.data.len(), (None, None));
        };
        metadata::check(&head.metadata)?;
        if let MethodName::Number(number) = head.method
            && number >= self.methods
        {
            return Err(Rule::UnknownMethod(number).into());
        }
        if flags & ROOM != 0 {
            return Err(Rule::OverWindow.into());
        }
        if self.drain == Drain::Acknowledged {
            return Err(Rule::AfterDrain.into());
        }
        if self.open.contains_key(&number) {
            return Err(Rule::SecondHead.into());
        }
        if windowed > limits::STREAM_WINDOW {
            return Err(Rule::OverWindow.into());
        }
        let refusal = match self.drain {
            Drain::Refusing => Some((UNAVAILABLE, "the server is draining".into())),
            _ if self.free() == 0 => Some((RESOURCE_EXHAUSTED, Arc::clone(&self.full))),
            _ => None,
        };
        if let Some((code, text)) = refusal {
            self.push(Control::Reset(number, code, text));
            self.give_back_all(flags, windowed);
            return Ok(Event::Nothing);
        }
        let key = self.insert(number);
        let receive = &mut self.stream(key).receive;
        if flags & PARCEL != 0 {
            receive.charge_parcel(frame.data.len() as u64);
        } else {
            receive.charge(windowed, false)?;
        }
        (receive.headed, receive.ended) = (true, end);
        Ok(Event::Opened { key, head, data: frame.data.len(), end })
    }

    #[inline(always)]
    fn answer<'a>(
        &mut self,
        flags: u8,
        number: u32,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Error> {
        let frame = frame::Response::decode(flags, payload)?;
        if flags & PLAIN != 0 && !self.tells_methods {
            return Err(Rule::NotAgreed.into());
        }
        let windowed = self.charge(flags, number, frame.data)?;
        let (head, trailers) = (frame.head, frame.trailers);
        for metadata in head.iter().chain(trailers.iter().map(|trailers| &trailers.metadata)) {
            metadata::check(metadata)?;
        }
        if trailers.is_some() != (flags & END != 0) {
            return Err(Rule::Trailers.into());
        }
        let Some(key) = self.find(number) else {
            // A call that was cancelled.
            self.give_back_all(flags, windowed);
            return Ok(Event::Nothing);
        };
        let receive = &mut self.stream(key).receive;
        if head.is_some() && std::mem::replace(&mut receive.headed, true) {
            return Err(Rule::SecondHead.into());
        }
        if !receive.headed && (trailers.is_none() || !frame.data.is_empty()) {
            return Err(Rule::NoHead.into());
        }
        self.part(key, flags, frame.data.len(), (head, trailers))
    }

    #[inline(always)]
    fn part<'a>(
        &mut self,
        key: Key,
        flags: u8,
        data: usize,
        (head, trailers): (Option<Metadata<'a>>, Option<Trailers<'a>>),
    ) -> Result<Event<'a>, Error> {
        let end = flags & END != 0;
        let receive = &mut self.stream(key).receive;
        if receive.ended {
            return Err(Rule::AfterEnd.into());
        }
        let (unwanted, unread) = match flags & PARCEL {
            0 => (receive.charge(data as u32, flags & ROOM != 0)?, 0),
            _ => (None, receive.charge_parcel(data as u64)),
        };
        receive.ended = end;
        self.read_parcels(unread);
        if trailers.is_some() {
            // An answered call takes no more of the request.
            self.close(key);
        }
        if let Some(unwanted) = unwanted {
            self.give_back(unwanted);
        }
        Ok(Event::Part { key, head, data, trailers, end })
    }

    /// The program has taken data of a call.
    pub fn taken(&mut self, key: Key, bytes: usize) {
        let stream = self.stream(key);
        let (windowed, grant, parcels) = stream.receive.take(bytes);
        let open = stream.open;
        if let Some(credit) = grant.filter(|_| open) {
            self.push(Control::Window(key.number, credit));
        }
        self.give_back(windowed);
        self.read_parcels(parcels);
    }

    /// Nobody takes the data of a frame.
    fn give_back_all(&mut self, flags: u8, windowed: u32) {
        self.give_back(windowed);
        self.read_parcels((flags & PARCEL != 0).into());
    }

    fn give_back(&mut self, bytes: u32) {
        if bytes > 0
            && let Some(credit) = self.window.give_back(bytes)
        {
            self.push(Control::Window(0, credit));
        }
    }

    // ---- sending -----------------------------------------------------------------------

    /// What of `want` may be sent now. Nothing changes before [`Connection::commit`].
    ///
    /// # Errors
    /// [`Blocked`].
    #[inline]
    pub fn reserve(&mut self, key: Key, want: Want) -> Result<Permit, Blocked> {
        let link = self.credit.left(want.is_whole());
        let must_wait = want.head && !self.pending.is_empty();
        let in_parcel = want.in_parcel && self.parcels_out > 0;
        let attached = want.attached;
        let may_attach = self.is_granted && self.parcels_out > 0;
        debug_assert!(!attached || (want.head && !want.in_parcel && self.tells_attached));
        let send = &mut self.stream(key).send;
        if send.stopped {
            return Err(Blocked::Stopped);
        }
        if must_wait {
            return Err(Blocked::Control);
        }
        if attached && !may_attach {
            return Err(Blocked::Credit { link: true });
        }
        if in_parcel {
            return Ok(Permit { data: want.data, flags: PARCEL });
        }
        let (allowed, by_room) = send.allowed(link);
        if allowed == 0 && want.data > 0 && !want.head {
            return Err(Blocked::Credit { link: link == 0 });
        }
        let flags = if by_room { ROOM } else { 0 } | if attached { ATTACHED } else { 0 };
        Ok(Permit { data: allowed.min(want.data), flags })
    }

    /// A frame with these flags and so much data, as was permitted, is going to be written where room
    /// is reserved for it; false, and nothing is to be written, when the stream has been stopped meanwhile.
    #[must_use = "a frame of a stream that is over is not written"]
    #[inline]
    pub fn commit(&mut self, key: Key, flags: u8, data: usize) -> bool {
        let is_windowed = flags & (ROOM | PARCEL) == 0;
        let is_caller = self.caller;
        let send = &mut self.stream(key).send;
        if send.stopped {
            return false;
        }
        send.spend(data as u64, is_windowed);
        let begins = !std::mem::replace(&mut send.begun, true);
        if is_windowed {
            self.credit.spend(data as u32);
        }
        if flags & (PARCEL | ATTACHED) != 0 {
            self.parcels_out -= 1;
        }
        if begins && is_caller {
            self.one_less_unbegun();
        }
        if flags & END != 0 && !is_caller {
            self.close(key);
        }
        true
    }

    /// Opens a call of the caller's whose request is one plain record with so many bytes of data, and spends
    /// the credit for it; none, and nothing has changed, where that has to wait, and where the service knows
    /// no plain records.
    #[inline]
    pub fn open_whole(&mut self, data: usize) -> Option<Key> {
        if !self.tells_methods {
            return None;
        }
        let key = self.open().ok()?;
        if self.send_whole(key, frame::PLAIN_REQUEST, data) {
            return Some(key);
        }
        self.release(key);
        None
    }

    /// The same of a service's answer, whose call is over then.
    #[inline]
    pub fn answer_whole(&mut self, key: Key, data: usize) -> bool {
        self.tells_methods && self.send_whole(key, frame::PLAIN_RESPONSE, data)
    }

    #[inline]
    fn send_whole(&mut self, key: Key, flags: u8, data: usize) -> bool {
        let head = flags & HEAD != 0;
        let (in_parcel, attached) = (false, false);
        let want = Want { head, data, end: true, most: usize::MAX, in_parcel, attached };
        let permit = self.reserve(key, want);
        permit == Ok(Permit { data, flags: 0 }) && self.commit(key, flags, data)
    }

    /// The control record that is to be sent next.
    ///
    /// # Errors
    /// [`Rule::TakesNothing`].
    pub fn control(&self) -> Result<Option<&Control>, Error> {
        if self.overfull {
            return Err(Rule::TakesNothing.into());
        }
        Ok(self.pending.front())
    }

    /// Whether a control record is to be sent.
    pub fn has_control(&self) -> bool {
        !self.pending.is_empty()
    }

    /// That one is on the ring.
    pub fn control_sent(&mut self) {
        self.pending.pop_front();
    }

    fn push(&mut self, control: Control) {
        if self.pending.len() >= most_pending(self.places) {
            self.overfull = true;
            return;
        }
        self.pending.push_back(control);
    }

    // ---- the end -----------------------------------------------------------------------

    /// The link has ended: closes all calls, and says which were open.
    pub fn end(&mut self) -> Vec<Key> {
        let open: Vec<_> = self.calls().collect();
        for key in &open {
            self.close(*key);
        }
        self.pending.clear();
        open
    }
}

#[cfg(test)]
impl<T> Connection<T> {
    /// What may be sent, and what may come or is owed: they are the same when nothing is under way.
    pub(crate) fn link_credit(&self) -> u32 {
        self.credit.left(true)
    }

    pub(crate) fn link_window(&self) -> u32 {
        self.window.left()
    }

    /// Parcels that may be sent, and that may come.
    pub(crate) fn parcels(&self) -> (u32, u32) {
        (self.parcels_out, self.parcels_in)
    }
}
