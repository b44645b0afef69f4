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
//! reached over the network is an error here. Between two domains of one launcher the calling thread goes
//! into the service, as an async channel's does.
//!
//! Clients that `partywall-build` generates with its feature `blocking` call by [`native`]: a request that is
//! one plain frame is encoded into the reserved record, and its answer is decoded from the buffer into which
//! all records are copied. Such a call allocates what its messages do, and nothing else.
//!
//! Nobody reads the link between two calls, so each call first takes what has come meanwhile: the
//! word that the server drains, and credit. A call whose first record the server never took, because
//! it had ended, goes to the next server; any other call on a link that ends is UNAVAILABLE.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderMap;
use partywall_abi::control::Terms;
use partywall_abi::domain::GateStatus;
use partywall_abi::frame::{self, END, HEAD, Metadata, MethodName, PLAIN_REQUEST};
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_call::{Blocked, Connection, Event, Key, Record, Want};
use partywall_shm::link::{Link, LinkError};
use partywall_shm::ring::Wake;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::backoff::Backoff;
use crate::channel::Endpoint;
use crate::coordinator::{self, Connected, End, Linked, Place, Tracked};
use crate::domain;
use crate::error::Error;
use crate::link::broken::Broken;
use crate::link::caller;
use crate::link::record;
use crate::link::wake::Sent;
use crate::link::wake::gate::{Gate, Visitor};
use crate::peer::Peer;
use crate::status;
use crate::stubs::{Encode, Method};
use crate::telemetry::{self, Route, Side};
use crate::time;
use crate::wire::{self, PREFIX};

mod failed;
pub(crate) mod native;
mod reach;

use failed::Failed;
use reach::{Opening, Reached};

/// A link to one service for one thread at a time.
///
/// When the link has ended, the next call asks the coordinator for a new one.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// // Each thread has its own.
/// let mut channel = partywall::blocking::Channel::connect("partywall:///greeter")?;
/// channel.max_decoding_message_size(1 << 20);
/// let answer = channel.call_bytes("/helloworld.Greeter/SayHello", b"")?;
/// println!("{} bytes from {}", answer.len(), channel.server().expect("it has answered"));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Channel {
    name: ServiceName,
    place: Place,
    endpoint: Endpoint,
    message_limit: usize,
    open: Option<Open>,
    /// The message as it is sent.
    outgoing: Vec<u8>,
}

struct Open {
    /// This end as the coordinator knows it, and how that reaches it.
    tracked: Option<(Tracked, Arc<Reached>)>,
    link: Link,
    server: Peer,
    connection: Connection<()>,
    /// The way into a server of the same launcher.
    gate: Option<Gate>,
    /// Numbers of methods, by their places in the list of the process's.
    numbers: Vec<Option<u16>>,
    /// The head of the call under way, as it is sent.
    block: Vec<u8>,
    /// A record as it is taken, and a control record as it is sent.
    payload: Vec<u8>,
    control: Vec<u8>,
    /// Number of the record that the call under way began with.
    began: u64,
    _metrics: telemetry::Link,
}

/// Instances that a call is offered to, one after the other, if each is about to go.
const INSTANCES: u32 = 8;
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
    head: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// It was one frame without metadata, and its data are so many of the last bytes of [`Open::payload`].
    plain: Option<usize>,
}

impl Answer {
    fn is_over(&self) -> bool {
        self.plain.is_some() || self.trailers.is_some()
    }

    /// The status of a call that has failed.
    fn failed(&self) -> Option<Status> {
        let trailers = self.trailers.as_ref()?;
        // Making a status copies all trailers.
        if trailers.get(wire::GRPC_STATUS).is_some_and(|code| code == "0") {
            return None;
        }
        Status::from_header_map(trailers).filter(|status| status.code() != Code::Ok)
    }

    /// Its metadata, with what HTTP has beside that of the service.
    fn headers(&mut self) -> HeaderMap {
        if self.plain.is_some() {
            let mut headers = wire::response_headers(&Metadata::NONE);
            headers.extend(wire::trailers(0, &Metadata::NONE));
            return headers;
        }
        let mut headers = std::mem::take(&mut self.head);
        headers.extend(self.trailers.take().unwrap_or_default());
        headers
    }
}

/// A request to send.
struct Request<'a> {
    path: &'a str,
    /// The method, if it can have a number.
    method: Option<&'static Method>,
    headers: &'a HeaderMap,
    message: Message<'a>,
}

/// A message with gRPC's prefix.
#[derive(Clone, Copy)]
enum Message<'a> {
    Encoded(&'a [u8]),
    ToEncode(&'a dyn Encode),
}

impl Message<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Encoded(bytes) => bytes.len(),
            Self::ToEncode(message) => message.len(),
        }
    }
}

/// A call under way: its number, if it has one, and the longest answer that is taken.
struct Call {
    key: Option<Key>,
    answer: Answer,
    limit: usize,
    deadline: Option<Instant>,
}

impl Channel {
    /// Connects to `partywall:///name`, a text or an [`Endpoint`] with settings:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn f() -> Result<(), partywall::Error> {
    /// let endpoint = partywall::Endpoint::from_static("partywall:///greeter")
    ///     .timeout(Duration::from_millis(500))
    ///     .wait_for_ready(true);
    /// let channel = partywall::blocking::Channel::connect(&endpoint)?;
    /// # let _ = channel; Ok(()) }
    /// ```
    ///
    /// Of the settings, those for names have effect: `coordinator`, `connect_timeout`, `wait_for_ready`,
    /// `timeout` (to the end of the answer, which is when a blocking call returns), `user_agent` and
    /// `origin`. A concurrency limit is kept, for there is one call at a time. Those of HTTP/2 and TCP have
    /// none, as on every ring.
    ///
    /// # Errors
    /// [`Error`]; [`Error::NoRing`] when the target is not on this host, [`Error::Setting`] for a rate
    /// limit, which needs a runtime.
    pub fn connect<E>(endpoint: E) -> Result<Self, Error>
    where
        E: TryInto<Endpoint>,
        E::Error: Into<Error>,
    {
        let endpoint: Endpoint = endpoint.try_into().map_err(Into::into)?;
        let mut channel = Self {
            name: endpoint.blocking()?.clone(),
            place: endpoint.place(),
            endpoint,
            message_limit: limits::MESSAGE_BYTES,
            open: None,
            outgoing: Vec::new(),
        };
        channel.open = Some(channel.reach(None)?);
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

    /// A link, waited for if the endpoint says so, until then at most.
    fn reach(&self, until: Option<Instant>) -> Result<Open, Error> {
        let mut backoff = Backoff::new();
        loop {
            let left = until.map_or(Duration::MAX, |u| u.saturating_duration_since(Instant::now()));
            match self.attempt(left.min(self.endpoint.connect_timeout)) {
                Err(error)
                    if self.endpoint.wait_for_ready && error.may_pass() && !left.is_zero() =>
                {
                    tracing::debug!(name = %self.name, %error, "not connected; waiting");
                    std::thread::sleep(backoff.pause().min(left));
                }
                reached => return reached,
            }
        }
    }

    fn attempt(&self, within: Duration) -> Result<Open, Error> {
        let deadline = time::after(within);
        let client = coordinator::get(&self.place, within)?;
        let left = deadline.saturating_duration_since(Instant::now());
        match client.connect(&self.name)?.blocking(left)? {
            Connected::Link(linked) => Self::opened(*linked, deadline),
            Connected::Redirect { url, .. } => {
                Err(Error::no_ring(self.name.to_string(), &format!("at {url}")))
            }
        }
    }

    /// Opens the link that the coordinator has introduced.
    fn opened(linked: Linked, deadline: Instant) -> Result<Open, Error> {
        let Terms { link: number, security: reported, capabilities, .. } = linked.terms;
        let peer = linked.terms.peer.clone();
        let (pending, tracked) = caller::fill(linked)?;
        let opening: Arc<dyn End> = Arc::new(Opening::of(&pending)?);
        tracked.attach(Arc::downgrade(&opening));
        tracked.adopted(domain::security(reported, None));
        // A server that has adopted the link and does not open it hangs: the next one may answer.
        let ends = pending.wait(deadline.min(Instant::now() + caller::OPEN_TIME))?;
        let link = Link::new(ends)?;
        let gate = domain::Gate::take(number);
        let security = domain::security(reported, gate.as_ref().map(domain::Gate::isolation));
        let server = Peer::new(peer, number, security);
        let end = Arc::new(Reached { bell: link.bell(), over: OnceLock::new() });
        let reached: Arc<dyn End> = Arc::clone(&end) as _;
        tracked.attach(Arc::downgrade(&reached));
        let mut open = Open::new(link, server, gate.map(Gate::new));
        open.tracked = Some((tracked, end));
        open.connection.agree(capabilities);
        Ok(open)
    }

    /// Calls a unary method, `/package.Service/Method`, with protobuf messages. A deadline is set by
    /// [`tonic::Request::set_timeout`], metadata as in tonic.
    ///
    /// ```no_run
    /// use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
    ///
    /// # fn f(mut channel: partywall::blocking::Channel) -> Result<(), tonic::Status> {
    /// let mut request = tonic::Request::new(HealthCheckRequest::default());
    /// request.set_timeout(std::time::Duration::from_millis(100));
    /// let answer = channel.unary("/grpc.health.v1.Health/Check", request)?;
    /// let answer: HealthCheckResponse = answer.into_inner();
    /// # let _ = answer; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The service's status; UNAVAILABLE when the link or the service is gone,
    /// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED for metadata that is too large, OUT_OF_RANGE for a
    /// reply over the limit, as tonic has it.
    pub fn unary<M: prost::Message, R: prost::Message + Default>(
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
        let answer = self.exchange_encoded(path, &metadata.into_headers(), &mut outgoing);
        self.outgoing = outgoing;
        let mut answer = answer?;
        let message = R::decode(message_of(self.data_of(&answer))?)
            .map_err(|e| Status::internal(format!("decoding the reply: {e}")))?;
        let metadata = MetadataMap::from_headers(answer.headers());
        Ok(tonic::Response::from_parts(metadata, message, http::Extensions::new()))
    }

    /// Calls a unary method, `/package.Service/Method`, with an encoded message. The answer is encoded as
    /// well; neither has gRPC's prefix of five bytes.
    ///
    /// # Errors
    /// As [`Channel::unary`].
    pub fn call_bytes(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        outgoing.resize(PREFIX, 0);
        outgoing.extend_from_slice(message);
        let answer = self.exchange_encoded(path, &HeaderMap::new(), &mut outgoing);
        self.outgoing = outgoing;
        let answer = answer?;
        message_of(self.data_of(&answer)).map(<[u8]>::to_vec)
    }

    /// What an answer brought; of the last call.
    fn data_of<'a>(&'a self, answer: &'a Answer) -> &'a [u8] {
        match (answer.plain, &self.open) {
            (Some(len), Some(open)) => &open.payload[open.payload.len() - len..],
            _ => &answer.data,
        }
    }

    /// The headers of a request with those that the endpoint adds.
    fn with_own<'a>(&self, headers: &'a HeaderMap) -> Cow<'a, HeaderMap> {
        let (program, host) = (&self.endpoint.settings.user_agent, self.endpoint.host());
        if program.is_none() && host.is_none() {
            return Cow::Borrowed(headers);
        }
        let mut headers = headers.clone();
        program.iter().for_each(|program| wire::add_user_agent(&mut headers, program));
        headers.extend(host.map(|host| (http::header::HOST, host)));
        Cow::Owned(headers)
    }

    /// Sends one message, whose prefix is filled in here, and waits for the answer.
    fn exchange_encoded(
        &mut self,
        path: &str,
        headers: &HeaderMap,
        message: &mut [u8],
    ) -> Result<Answer, Status> {
        let len = u32::try_from(message.len() - PREFIX)
            .map_err(|_| Status::resource_exhausted("a request of over 4 GiB"))?;
        message[1..PREFIX].copy_from_slice(&len.to_be_bytes());
        let message = Message::Encoded(message);
        self.exchange(&Request { path, method: None, headers, message })
    }

    /// Sends a request and waits for the answer.
    fn exchange(&mut self, request: &Request<'_>) -> Result<Answer, Status> {
        let Some(call) = telemetry::call_of(request.path) else {
            return self.exchange_untold(request);
        };
        let answer = call.guarded(|| self.exchange_untold(request));
        if let Some(server) = self.server() {
            call.over(Some(server.link()), server.security(), telemetry::RING);
        }
        let received = answer.as_ref().map(|answer| self.data_of(answer).len());
        call.exchanged(request.message.len(), received.map_err(Status::code));
        answer
    }

    fn exchange_untold(&mut self, request: &Request<'_>) -> Result<Answer, Status> {
        let headers = &self.with_own(request.headers);
        let request = &Request { headers, ..*request };
        let timeout = wire::parse_timeout(headers);
        if [timeout, self.endpoint.settings.timeout].contains(&Some(Duration::ZERO)) {
            return Err(status::expired());
        }
        let at = |t: Duration| Instant::now().checked_add(t);
        // That of the request, which the service is told, and that of the endpoint.
        let sent = timeout.and_then(at);
        let own = self.endpoint.settings.timeout.and_then(at);
        let deadline = sent.into_iter().chain(own).min();
        let (mut again, mut instances, mut broken) = (true, 0, None);
        let answer = loop {
            if self.open.as_mut().is_some_and(|open| !open.is_usable()) {
                self.open = None;
            }
            let open = match &mut self.open {
                Some(open) => open,
                None => match self.reach(deadline) {
                    Ok(open) => self.open.insert(open),
                    Err(_) if deadline.is_some_and(|at| Instant::now() >= at) => {
                        return Err(status::expired());
                    }
                    // The instance was about to go; the next introduction is to another one.
                    Err(error @ Error::Link(_)) if std::mem::take(&mut again) => {
                        broken = Some(error);
                        continue;
                    }
                    Err(error) => return Err(broken.unwrap_or(error).into()),
                },
            };
            let timeout = sent.map(|at| at.saturating_duration_since(Instant::now()));
            let limit = self.message_limit.saturating_add(PREFIX);
            let mut call = Call { key: None, answer: Answer::default(), limit, deadline };
            let exchanged = open.exchange(request, timeout, &mut self.outgoing, &mut call);
            let code = match exchanged {
                Err(Failed::Expired) => Code::DeadlineExceeded,
                _ => Code::Cancelled,
            };
            // One whose reset has to wait for room would wait for the next call: the link's end
            // stops the handler as well.
            let is_told = open.release(&call, code);
            let (status, keep) = match exchanged {
                Ok(()) => break call.answer,
                Err(Failed::Status(status)) => (status, true),
                Err(Failed::Abort(status)) => (status, is_told),
                Err(Failed::Expired) => {
                    let status = "the deadline passed before the answer came";
                    (Status::deadline_exceeded(status), is_told)
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
                Err(Failed::Link(why)) => (open.end(&why), false),
                Err(Failed::CutOff(why)) => {
                    let status = open.end(&why);
                    (Status::deadline_exceeded(status.message()), false)
                }
            };
            if !keep {
                self.open = None;
            }
            return Err(status);
        };
        match answer.failed() {
            Some(status) => Err(status),
            None => Ok(answer),
        }
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
    fn new(link: Link, server: Peer, gate: Option<Gate>) -> Self {
        let route = if gate.is_some() { Route::Gate } else { Route::Ring };
        let metrics = telemetry::Link::opened(Side::Client, route, server.security());
        Self {
            _metrics: metrics,
            tracked: None,
            link,
            server,
            connection: Connection::caller(),
            gate,
            numbers: Vec::new(),
            block: Vec::new(),
            payload: Vec::new(),
            control: Vec::new(),
            began: 0,
        }
    }

    /// Takes what has come since the last call; false when the next one needs another link.
    fn is_usable(&mut self) -> bool {
        if self.tracked.as_ref().is_some_and(|(_, end)| end.over.get().is_some()) {
            return false;
        }
        let mut nobodys = Call { key: None, answer: Answer::default(), limit: 0, deadline: None };
        let taken = self.take_turn(&mut nobodys);
        if let Err(Failed::Link(why)) = &taken {
            self.end(why);
        }
        let is_told = taken.is_ok() && self.send_control().is_ok();
        is_told && !self.connection.is_draining() && !self.link.is_dead()
    }

    /// The link has ended: the coordinator is told why, and the call gets this status.
    fn end(&mut self, why: &Broken) -> Status {
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
    fn was_taken(&mut self) -> bool {
        let began = self.began;
        // A server that breaks the rules may have seen it.
        self.link.producer().was_taken(began).unwrap_or(true)
    }

    /// Sends a request and waits for the answer. `buffer` is where a message goes that cannot be encoded where
    /// it is sent from.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        timeout: Option<Duration>,
        buffer: &mut Vec<u8>,
        call: &mut Call,
    ) -> Result<(), Failed> {
        self.began = self.link.producer().position();
        if !self.send_plain(request, timeout, call)? {
            let number = request.method.and_then(|method| self.number(method));
            let name = number.map_or(MethodName::Path(request.path), MethodName::Number);
            self.block.clear();
            wire::write_request_head(&mut self.block, name, request.headers, timeout)
                .map_err(Failed::Abort)?;
            let message = match request.message {
                Message::Encoded(bytes) => bytes,
                Message::ToEncode(message) => {
                    buffer.clear();
                    message.encode_to_vec(buffer).map_err(Failed::Abort)?;
                    buffer
                }
            };
            // This thread is the only one that calls, so what may be short is no place.
            let key = self.connection.open().map_err(|_| Failed::Unsent)?;
            call.key = Some(key);
            self.send(key, request.path, message, call)?;
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

    /// The number of a method, which it gets when it is asked for first.
    fn number(&mut self, method: &'static Method) -> Option<u16> {
        let place = method.place();
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, None);
        }
        if self.numbers[place].is_none() {
            self.numbers[place] = self.connection.name(method.path());
        }
        self.numbers[place]
    }

    /// Sends a request as a plain frame; false, and nothing has changed, where it is none or has to wait for
    /// anything.
    fn send_plain(
        &mut self,
        request: &Request<'_>,
        timeout: Option<Duration>,
        call: &mut Call,
    ) -> Result<bool, Failed> {
        let (Some(method), Message::ToEncode(message)) = (request.method, request.message) else {
            return Ok(false);
        };
        let number = self.numbers.get(method.place()).copied().flatten();
        let (Some(number), None, true) = (number, timeout, request.headers.is_empty()) else {
            return Ok(false);
        };
        let number = frame::Request::plain(number);
        let data = message.len();
        if number.len() + data > record::most(self.link.producer()) {
            return Ok(false);
        }
        let Some(mut frame) = record::reserve(self.link.producer(), &number, data)? else {
            return Ok(false);
        };
        message.encode_to_record(&mut frame.buffer()).map_err(Failed::Abort)?;
        let Some(key) = self.connection.open_whole(data) else { return Ok(false) };
        frame.send(PLAIN_REQUEST, key.number());
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
        path: &str,
        message: &[u8],
        call: &mut Call,
    ) -> Result<(), Failed> {
        let (mut rest, mut head) = (message, true);
        loop {
            let block: &[u8] = if head { &self.block } else { &[] };
            let most = record::most(self.link.producer());
            let mut room = None;
            match self.connection.reserve(key, Want { head, data: rest.len(), end: true, most }) {
                Ok(permit) => {
                    let (piece, after) = rest.split_at(permit.data.min(most - block.len()));
                    let end = after.is_empty();
                    let flags =
                        permit.flags | if head { HEAD } else { 0 } | if end { END } else { 0 };
                    let len = block.len() + piece.len();
                    let frame = record::reserve(self.link.producer(), block, piece.len())?;
                    if let Some(mut frame) = frame {
                        let sent = self.connection.commit(key, flags, piece.len());
                        debug_assert!(sent, "nothing was received meanwhile");
                        frame.write(piece);
                        frame.send(flags, key.number());
                        let whole = head && end;
                        let stream = key.number();
                        self.tell(whole.then_some(Sent { stream, path, due: call.deadline }))?;
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
        let taken = record::take(self.link.consumer(), &mut self.payload)?;
        let Some(d) = taken else { return Ok(false) };
        let payload = &self.payload[..];
        let record = Record { kind: d.kind, flags: d.flags, stream: d.stream, payload };
        match self.connection.handle(record)? {
            Event::Part { key, head, data, trailers, .. } if Some(key) == call.key => {
                let answer = &mut call.answer;
                let is_plain = head.as_ref().is_some_and(Metadata::is_empty)
                    && trailers.as_ref().is_some_and(|t| t.code == 0 && t.metadata.is_empty());
                if is_plain && data <= call.limit {
                    answer.plain = Some(data);
                    // The call is over: nothing more of it counts.
                    return Ok(true);
                }
                if let Some(head) = head {
                    answer.head = wire::response_headers(&head);
                }
                if answer.data.len() + data > call.limit {
                    let most = call.limit - PREFIX;
                    let text = format!("the reply is over the limit of {most} bytes");
                    return Err(Failed::Abort(Status::out_of_range(text)));
                }
                answer.data.extend_from_slice(&payload[payload.len() - data..]);
                answer.trailers = trailers.map(|t| wire::trailers(t.code, &t.metadata));
                self.connection.taken(key, data);
            }
            Event::Reset { key, code, text } if Some(key) == call.key => {
                return Err(Failed::Status(Status::new(Code::from_i32(code.into()), text)));
            }
            // What was granted or said is looked at before the next wait.
            _ => {}
        }
        if self.connection.has_control() {
            self.send_control()?;
        }
        Ok(true)
    }

    /// Sends the control records that are due, as far as there is room.
    fn send_control(&mut self) -> Result<(), Failed> {
        let mut sent = false;
        while let Some(control) = self.connection.control()? {
            control.write(&mut self.control);
            if !record::push_control(self.link.producer(), control, &self.control)? {
                break;
            }
            self.connection.control_sent();
            sent = true;
        }
        if sent { self.tell(None) } else { Ok(()) }
    }

    /// Waits for a record, or for room for `len` bytes or for the control record that is due.
    fn wait(&mut self, len: Option<usize>, call: &Call) -> Result<(), Failed> {
        self.send_control()?;
        let due = self.connection.has_control().then_some(self.control.len());
        Ok(self.link.wait(due.or(len), call.deadline)?)
    }

    /// Forgets a call, which is reset if it is not over; whether the server has been told all that
    /// it is to be told.
    fn release(&mut self, call: &Call, code: Code) -> bool {
        if let Some(key) = call.key {
            self.connection.reset(key, code as i32 as u8, "");
            self.connection.release(key);
        }
        self.send_control().is_ok() && !self.connection.has_control()
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

#[cfg(test)]
mod tests;
