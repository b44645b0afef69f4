//! Calls without a runtime: one call, one reply, on the calling thread.
//!
//! ```no_run
//! # fn f() -> Result<(), Box<dyn std::error::Error>> {
//! # let request = Vec::new();
//! let mut channel = partywall::blocking::Channel::connect("partywall:///greeter")?;
//! let reply: Vec<u8> = channel.call_bytes("/helloworld.Greeter/SayHello", &request)?;
//! # let _ = reply; Ok(()) }
//! ```
//!
//! A thread spins for the learned budget and then sleeps on a futex. Against the async channel it
//! saves the runtime's part: no task, no waker, no epoll. It speaks rings alone: a name that is
//! reached over the network is an error here.
//!
//! Nobody reads the link between two calls, so each call first takes what has come meanwhile: the
//! word that the server drains, and credit. A call whose first record the server never took, because
//! it had ended, goes to the next server; any other call on a link that ends is UNAVAILABLE.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderMap;
use partywall_abi::control::Terms;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_abi::segment::{self, END, HEAD, Kind, ROOM, ResponseHead, Segment, Trailers};
use partywall_shm::link::{Link, LinkError};
use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::agent::{self, Booked, Connected, End, Linked, Place};
use crate::error::Error;
use crate::peer::Peer;
use crate::ring;
use crate::ring::broken::Broken;
use crate::ring::stream::{OverCredit, OverWindow};
use crate::target::Target;
use crate::wire;

mod failed;
mod reach;

use failed::Failed;
use reach::{Opening, Reached};

/// Length of gRPC's message prefix: a compression flag and a length.
const PREFIX: usize = 5;
/// How long connecting may take unless it is set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A link to one service for one thread at a time.
///
/// When the link has ended, the next call asks the coordinator for a new one.
#[derive(Debug)]
pub struct Channel {
    name: ServiceName,
    place: Place,
    connect_timeout: Duration,
    message_limit: usize,
    open: Option<Open>,
    /// The message as it is sent.
    outgoing: Vec<u8>,
}

struct Open {
    /// The link in the coordinator's books, and how that reaches this end.
    booked: Option<(Booked, Arc<Reached>)>,
    link: Link,
    server: Peer,
    next: u32,
    /// What may be sent on the link, and what that was at the start.
    credit: u64,
    window: u64,
    /// The service has said what this link may have.
    limited: bool,
    /// Taken and not granted again yet.
    owed: u32,
    /// Control records that had no room yet: kind, call, payload.
    pending: VecDeque<(Kind, u32, Vec<u8>)>,
    block: Vec<u8>,
    payload: Vec<u8>,
    /// Number of the record that the call under way began with.
    began: u64,
    /// Its head is on the ring.
    begun: bool,
    /// The server wants no more calls.
    draining: bool,
}

/// How long a server may take to open a link that it has adopted.
const OPEN_TIME: Duration = Duration::from_secs(2);
/// Instances that a call is offered to, one after the other, if each is about to go.
const INSTANCES: u32 = 8;
/// Control records that may wait for room; a server that takes its records leaves none waiting.
const PENDING: usize = 256;
/// Records taken between two looks at the clock.
const TURN: u32 = 128;

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("server", &self.server).finish()
    }
}

/// The answer to one call.
#[derive(Default)]
struct Answer {
    headed: bool,
    head: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// Taken of the stream's window and not granted again.
    owed: u32,
    /// What may be sent on the stream, and up to where the service keeps memory for it.
    credit: u64,
    room: u64,
}

impl Channel {
    /// Connects to `partywall:///name`.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Refused`] with FAILED_PRECONDITION when the name is not on this host.
    pub fn connect(target: &str) -> Result<Self, Error> {
        Self::connect_at(target, None)
    }

    /// As [`Channel::connect`], by the coordinator that listens at `socket`.
    ///
    /// # Errors
    /// As there.
    pub fn connect_at(target: &str, socket: Option<PathBuf>) -> Result<Self, Error> {
        let Target::Name(name) = Target::parse(target)? else {
            return Err(only_rings(target));
        };
        let mut channel = Self {
            name,
            place: socket.map_or_else(Place::find, Place::Path),
            connect_timeout: CONNECT_TIMEOUT,
            message_limit: limits::MESSAGE_BYTES,
            open: None,
            outgoing: Vec::new(),
        };
        let open = Self::open(&channel.name, &channel.place, channel.connect_timeout)?;
        channel.open = Some(open);
        Ok(channel)
    }

    /// The largest reply that is taken, in bytes; 4 MiB unless set, at most 2 GiB - 1.
    pub fn max_decoding_message_size(&mut self, limit: usize) -> &mut Self {
        self.message_limit = limit.min(limits::MESSAGE_BYTES_MAX);
        self
    }

    /// Who serves; none between two links.
    pub fn server(&self) -> Option<&Peer> {
        self.open.as_ref().map(|o| &o.server)
    }

    fn open(name: &ServiceName, place: &Place, within: Duration) -> Result<Open, Error> {
        let deadline = Instant::now() + within;
        let agent = agent::get(place, within)?;
        let left = deadline.saturating_duration_since(Instant::now());
        match agent.connect(name)?.blocking(left)? {
            Connected::Link(linked) => Self::opened(*linked, deadline),
            Connected::Redirect { url, .. } => Err(only_rings(&url)),
        }
    }

    /// Opens the link that the coordinator has introduced.
    fn opened(linked: Linked, deadline: Instant) -> Result<Open, Error> {
        let Terms { link, security, .. } = linked.terms;
        let security = crate::domain::security(security, None);
        let server = Peer::new(linked.terms.peer.clone(), link, security);
        let (pending, booked) = ring::client::fill(linked)?;
        let opening: Arc<dyn End> = Arc::new(Opening::of(&pending)?);
        booked.attach(Arc::downgrade(&opening));
        booked.adopted(security);
        // A server that has adopted the link and does not open it hangs: the next one may answer.
        let ends = pending.wait(deadline.min(Instant::now() + OPEN_TIME))?;
        let link = Link::new(ends)?;
        let end = Arc::new(Reached { bell: link.bell(), over: OnceLock::new() });
        let reached: Arc<dyn End> = Arc::clone(&end) as _;
        booked.attach(Arc::downgrade(&reached));
        Ok(Open { booked: Some((booked, end)), ..Open::new(link, server) })
    }

    /// Calls a unary method with protobuf messages. A deadline is set by
    /// [`tonic::Request::set_timeout`], metadata as in tonic.
    ///
    /// # Errors
    /// The service's status; UNAVAILABLE when the link or the service is gone,
    /// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED for metadata that is too large, OUT_OF_RANGE for a
    /// reply over the limit, as tonic has it.
    pub fn unary<M: Message, R: Message + Default>(
        &mut self,
        path: &str,
        request: tonic::Request<M>,
    ) -> Result<tonic::Response<R>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        outgoing.resize(PREFIX, 0);
        let encoded = message.encode(&mut outgoing);
        drop(extensions);
        encoded.map_err(|e| Status::internal(format!("encoding the request: {e}")))?;
        let answer = self.exchange(path, &metadata.into_headers(), &mut outgoing);
        self.outgoing = outgoing;
        let answer = answer?;
        let message = R::decode(message_of(&answer.data)?)
            .map_err(|e| Status::internal(format!("decoding the reply: {e}")))?;
        let mut headers = answer.head;
        headers.extend(answer.trailers.unwrap_or_default());
        let metadata = MetadataMap::from_headers(headers);
        Ok(tonic::Response::from_parts(metadata, message, http::Extensions::new()))
    }

    /// Calls a unary method with encoded messages.
    ///
    /// # Errors
    /// As [`Channel::unary`].
    pub fn call_bytes(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        outgoing.resize(PREFIX, 0);
        outgoing.extend_from_slice(message);
        let answer = self.exchange(path, &HeaderMap::new(), &mut outgoing);
        self.outgoing = outgoing;
        let mut data = answer?.data;
        message_of(&data)?;
        data.drain(..PREFIX);
        Ok(data)
    }

    /// Sends one message, whose prefix is filled in here, and waits for the answer.
    fn exchange(
        &mut self,
        path: &str,
        headers: &HeaderMap,
        message: &mut [u8],
    ) -> Result<Answer, Status> {
        let len = u32::try_from(message.len() - PREFIX)
            .map_err(|_| Status::resource_exhausted("a request of over 4 GiB"))?;
        message[1..PREFIX].copy_from_slice(&len.to_be_bytes());
        let timeout = wire::parse_timeout(headers);
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(ring::client::expired());
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        // What is left of the call's time, and of another one.
        let left = |other: Duration| {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            left.map_or(other, |left| left.min(other))
        };
        let (mut again, mut instances, mut broken) = (true, 0, None);
        let answer = loop {
            if self.open.as_mut().is_some_and(|open| !open.is_usable()) {
                self.open = None;
            }
            let open = match &mut self.open {
                Some(open) => open,
                none => match Self::open(&self.name, &self.place, left(self.connect_timeout)) {
                    Ok(open) => none.insert(open),
                    Err(_) if left(Duration::MAX).is_zero() => return Err(ring::client::expired()),
                    // The instance was about to go; the next introduction is to another one.
                    Err(error @ Error::Link(_)) if std::mem::take(&mut again) => {
                        broken = Some(error);
                        continue;
                    }
                    Err(error) => return Err(broken.unwrap_or(error).into()),
                },
            };
            open.block.clear();
            let timeout = timeout.map(|_| left(Duration::MAX));
            wire::write_request_head(&mut open.block, path, headers, timeout)?;
            let limit = self.message_limit.saturating_add(PREFIX);
            let (id, exchanged) = open.exchange(message, limit, deadline);
            let (status, keep) = match exchanged {
                Ok(answer) => break answer,
                Err(Failed::Status(status)) => (status, true),
                Err(Failed::Abort(status)) => (status, open.reset(id, Code::Cancelled)),
                Err(Failed::Expired) => {
                    let status = "the deadline passed before the answer came";
                    (Status::deadline_exceeded(status), open.reset(id, Code::DeadlineExceeded))
                }
                Err(Failed::Unsent) if instances < INSTANCES => {
                    self.open = None;
                    instances += 1;
                    continue;
                }
                Err(Failed::Unsent) => {
                    (Status::unavailable("each instance that was asked is draining"), false)
                }
                // A server that has hung up takes nothing any more: what it had not taken by then
                // it never will.
                Err(Failed::Link(why)) if again && open.link.hung_up() && !open.was_taken() => {
                    tracing::debug!(link = open.server.link(), %why, "the call goes elsewhere");
                    broken = Some(Error::Link(LinkError::Dead));
                    (again, self.open) = (false, None);
                    continue;
                }
                Err(Failed::Link(why)) => {
                    let link = open.server.link();
                    if !matches!(why, Broken::Link(LinkError::Dead)) {
                        tracing::warn!(link, blame = ?why.blame(), %why, "link closed");
                    }
                    (Status::unavailable(format!("link {link}: {why}")), false)
                }
            };
            if !keep {
                self.open = None;
            }
            return Err(status);
        };
        let trailers = answer.trailers.as_ref().expect("receive ends with trailers");
        // Making a status copies all trailers.
        if trailers.get(wire::GRPC_STATUS).is_some_and(|code| code == "0") {
            return Ok(answer);
        }
        match Status::from_header_map(trailers) {
            Some(status) if status.code() != Code::Ok => Err(status),
            _ => Ok(answer),
        }
    }
}

fn only_rings(where_to: &str) -> Error {
    Error::Refused {
        code: Code::FailedPrecondition,
        text: format!(
            "`{where_to}` is reached over the network; blocking channels speak rings only"
        ),
    }
}

fn message_of(data: &[u8]) -> Result<&[u8], Status> {
    let [compressed, l0, l1, l2, l3, message @ ..] = data else {
        return Err(Status::internal("a reply without a message"));
    };
    if *compressed != 0 {
        return Err(Status::internal("a compressed reply, which was not asked for"));
    }
    if u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize != message.len() {
        return Err(Status::internal("a reply with more or less than one message"));
    }
    Ok(message)
}

impl Open {
    fn new(link: Link, server: Peer) -> Self {
        Self {
            booked: None,
            link,
            server,
            next: 1,
            credit: limits::FIRST_WINDOW.into(),
            window: limits::FIRST_WINDOW.into(),
            limited: false,
            owed: 0,
            pending: VecDeque::new(),
            block: Vec::new(),
            payload: Vec::new(),
            began: 0,
            begun: false,
            draining: false,
        }
    }

    /// Takes what has come since the last call; false when the next one needs another link.
    fn is_usable(&mut self) -> bool {
        if self.booked.as_ref().is_some_and(|(_, end)| end.over.get().is_some()) {
            return false;
        }
        let nobodys = 0;
        let taken = self.take_turn(nobodys, &mut Answer::default(), 0);
        taken.is_ok() && self.send_pending().is_ok() && !self.draining && !self.link.is_dead()
    }

    /// Whether the server has taken the first record of the call under way.
    fn was_taken(&mut self) -> bool {
        let began = self.began;
        // A server that breaks the rules may have seen it.
        self.link.producer().was_taken(began).unwrap_or(true)
    }

    /// Sends one message and waits for the answer; the call's number, for its reset.
    fn exchange(
        &mut self,
        message: &[u8],
        limit: usize,
        deadline: Option<Instant>,
    ) -> (u32, Result<Answer, Failed>) {
        let id = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.began = self.link.producer().position();
        self.begun = false;
        let mut answer = Answer { credit: limits::STREAM_WINDOW.into(), ..Answer::default() };
        let done = self
            .send(id, message, &mut answer, limit, deadline)
            .and_then(|()| self.receive(id, &mut answer, limit, deadline));
        (id, done.map(|()| answer))
    }

    fn send(
        &mut self,
        id: u32,
        message: &[u8],
        answer: &mut Answer,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed> {
        let mut rest = message;
        let mut flags = HEAD;
        loop {
            let block: &[u8] = if flags & HEAD != 0 { &self.block } else { &[] };
            let credit = usize::try_from(self.credit.min(answer.credit)).unwrap_or(usize::MAX);
            let most = self.link.producer().record_bytes() - block.len();
            let (piece, after) = rest.split_at(rest.len().min(credit).min(most));
            let end = if after.is_empty() { END } else { 0 };
            if piece.is_empty() && block.is_empty() && end == 0 {
                self.wait(None, deadline)?;
                self.take_turn(id, answer, limit)?;
                expired(deadline)?;
            } else if self.link.producer().try_push(
                Kind::Segment as u8,
                flags | end,
                id,
                &[block, piece],
            )? {
                self.begun = true;
                self.credit -= piece.len() as u64;
                answer.credit -= piece.len() as u64;
                self.link.notify()?;
                if end != 0 {
                    return Ok(());
                }
                flags = 0;
                rest = after;
            } else {
                let len = block.len() + piece.len();
                self.wait(Some(len), deadline)?;
                self.take_turn(id, answer, limit)?;
                expired(deadline)?;
            }
            if flags & HEAD != 0 && self.draining {
                return Err(Failed::Unsent);
            }
            if answer.trailers.is_some() {
                // Answered early: the rest is not wanted.
                return Ok(());
            }
        }
    }

    fn receive(
        &mut self,
        id: u32,
        answer: &mut Answer,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed> {
        while answer.trailers.is_none() {
            if !self.take_turn(id, answer, limit)? {
                self.wait(None, deadline)?;
            } else if answer.trailers.is_none() {
                expired(deadline)?;
            }
        }
        Ok(())
    }

    /// Takes what is there, as much as belongs to one turn; false when nothing was.
    fn take_turn(&mut self, id: u32, answer: &mut Answer, limit: usize) -> Result<bool, Failed> {
        for taken in 0..TURN {
            if answer.trailers.is_some() || !self.take_one(id, answer, limit)? {
                return Ok(taken > 0);
            }
        }
        Ok(true)
    }

    /// Takes one record; false when none is there.
    fn take_one(&mut self, id: u32, answer: &mut Answer, limit: usize) -> Result<bool, Failed> {
        let Some(d) = self.link.consumer().peek()? else { return Ok(false) };
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        payload.reserve(d.len as usize);
        self.link.consumer().read(&mut payload);
        self.link.consumer().release();
        let taken = self.record(
            d.kind,
            d.flags,
            id != 0 && d.stream == id,
            d.stream,
            &payload,
            answer,
            limit,
        );
        self.payload = payload;
        taken.map(|()| true)
    }

    #[expect(clippy::too_many_arguments, reason = "one record and where it goes")]
    fn record(
        &mut self,
        kind: u8,
        flags: u8,
        mine: bool,
        stream: u32,
        payload: &[u8],
        answer: &mut Answer,
        limit: usize,
    ) -> Result<(), Failed> {
        match Kind::from_number(kind) {
            Some(Kind::Segment) => {
                self.segment(flags, mine.then_some(stream), payload, answer, limit)
            }
            Some(Kind::Window) => {
                let credit = u64::from(segment::decode_window(payload)?);
                let (own, most) = match (stream, mine) {
                    (0, _) => (&mut self.credit, self.window),
                    (_, true) => (&mut answer.credit, limits::STREAM_WINDOW.into()),
                    (_, false) => return Ok(()),
                };
                *own += credit;
                if *own > most { Err(OverCredit.into()) } else { Ok(()) }
            }
            Some(Kind::Limits) => {
                let limits = segment::Limits::decode(payload)?;
                if stream != 0 || std::mem::replace(&mut self.limited, true) {
                    let rule = "limits of a stream, or that were said before";
                    return Err(Broken::Rule(rule).into());
                }
                self.window = limits.window.into();
                self.credit += u64::from(limits.window - limits::FIRST_WINDOW);
                Ok(())
            }
            // Nobody else uses up this link's window: it does without.
            Some(Kind::Room) => {
                let until = segment::decode_room(payload)?;
                if mine && until < std::mem::replace(&mut answer.room, until) {
                    return Err(OverCredit.into());
                }
                Ok(())
            }
            Some(Kind::Reset) => {
                let (code, text) = segment::decode_reset(payload)?;
                if mine {
                    return Err(Failed::Status(Status::new(Code::from_i32(code.into()), text)));
                }
                Ok(())
            }
            Some(Kind::Drain) => {
                self.draining = true;
                // A call whose head is not on the ring goes elsewhere, and this link ends.
                if self.begun { self.control(Kind::Drain, 0, &[]) } else { Ok(()) }
            }
            Some(Kind::Message) => Err(Broken::Rule("a raw message on a link of calls").into()),
            None => Err(Broken::Rule("a record of unknown kind").into()),
        }
    }

    /// A piece of an answer; of which call, if it is that of the call under way.
    fn segment(
        &mut self,
        flags: u8,
        mine: Option<u32>,
        payload: &[u8],
        answer: &mut Answer,
        limit: usize,
    ) -> Result<(), Failed> {
        let s = Segment::decode(flags, payload)?;
        let len = s.data.len() as u32;
        // Room was given to nobody, and what is owed was not granted.
        if flags & ROOM != 0 || len > limits::LINK_WINDOW - self.owed {
            return Err(OverWindow.into());
        }
        let head = s.head.map(ResponseHead::decode).transpose()?;
        let head = head.map(|head| wire::response_headers(&head)).transpose()?;
        let trailers = s.trailers.map(Trailers::decode).transpose()?;
        let trailers = trailers.map(|trailers| wire::trailers(&trailers)).transpose()?;
        if flags & END != 0 && trailers.is_none() {
            return Err(Broken::Rule("a response without trailers").into());
        }
        self.give_back(len)?;
        let Some(stream) = mine else { return Ok(()) };
        if let Some(head) = head {
            if std::mem::replace(&mut answer.headed, true) {
                return Err(Broken::Rule("a second head on one stream").into());
            }
            answer.head = head;
        }
        if len > limits::STREAM_WINDOW - answer.owed {
            return Err(OverWindow.into());
        }
        if answer.data.len() + s.data.len() > limit {
            let text = format!("the reply is over the limit of {} bytes", limit - PREFIX);
            return Err(Failed::Abort(Status::out_of_range(text)));
        }
        answer.data.extend_from_slice(s.data);
        if trailers.is_some() {
            answer.trailers = trailers;
            return Ok(());
        }
        answer.owed += len;
        if answer.owed >= limits::STREAM_WINDOW / 2 {
            let owed = std::mem::take(&mut answer.owed);
            self.control(Kind::Window, stream, &owed.to_le_bytes())?;
        }
        Ok(())
    }

    fn give_back(&mut self, bytes: u32) -> Result<(), Failed> {
        self.owed += bytes;
        if self.owed >= limits::LINK_WINDOW / 2 {
            let owed = std::mem::take(&mut self.owed);
            self.control(Kind::Window, 0, &owed.to_le_bytes())?;
        }
        Ok(())
    }

    /// Sends a control record, now or when there is room.
    fn control(&mut self, kind: Kind, stream: u32, payload: &[u8]) -> Result<(), Failed> {
        if self.pending.len() >= PENDING {
            return Err(Broken::Rule("it takes nothing off its ring").into());
        }
        self.pending.push_back((kind, stream, payload.to_vec()));
        self.send_pending()
    }

    fn send_pending(&mut self) -> Result<(), Failed> {
        let mut sent = false;
        while let Some((kind, stream, payload)) = self.pending.front() {
            if !self.link.producer().try_push(*kind as u8, 0, *stream, &[payload])? {
                break;
            }
            self.pending.pop_front();
            sent = true;
        }
        if sent { Ok(self.link.notify()?) } else { Ok(()) }
    }

    /// Waits for a record, or for room for `len` bytes or for what is pending.
    fn wait(&mut self, len: Option<usize>, deadline: Option<Instant>) -> Result<(), Failed> {
        self.send_pending()?;
        let pending = self.pending.front().map(|(_, _, payload)| payload.len());
        Ok(self.link.wait(pending.or(len), deadline)?)
    }

    /// Gives a call up; whether the link is of use afterwards.
    fn reset(&mut self, id: u32, code: Code) -> bool {
        let mut payload = Vec::new();
        segment::write_reset(&mut payload, code as i32 as u8, "");
        // One that has to wait for room would wait for the next call: the link's end stops the
        // handler as well.
        self.control(Kind::Reset, id, &payload).is_ok() && self.pending.is_empty()
    }
}

fn expired(deadline: Option<Instant>) -> Result<(), Failed> {
    match deadline {
        Some(deadline) if Instant::now() >= deadline => Err(Failed::Expired),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
