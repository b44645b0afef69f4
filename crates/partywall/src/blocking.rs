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
//! Clients that `partywall-build` generates with its feature `blocking` call natively: a request that is
//! one plain frame is encoded into the reserved record, and its answer is decoded from the buffer into which
//! all records are copied. Such a call allocates what its messages do, and nothing else.
//!
//! Nobody reads the link between two calls, so each call first takes what has come meanwhile: the
//! word that the server drains, and credit. A call whose first record the server never took, because
//! it had ended, goes to the next server; any other call on a link that ends is UNAVAILABLE.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use partywall_abi::control::Terms;
use partywall_abi::limits;
use partywall_abi::name::ServiceName;
use partywall_shm::link::{Link, LinkError};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::attach;
use crate::backoff::Backoff;
use crate::buffer::Buffer;
use crate::channel::Endpoint;
use crate::coordinator::{self, Connected, End, Linked, Place};
use crate::domain;
use crate::error::Error;
use crate::link::attached::Attaching;
use crate::link::broken::Broken;
use crate::link::sealed::{self, Calling, LinkEnd};
use crate::link::wake::gate::Gate;
use crate::link::{broken, caller};
use crate::peer::Peer;
use crate::pins::Pins;
use crate::status;
use crate::stubs::demand::{Nothing, Requires};
use crate::telemetry;
use crate::time;
use crate::wire::{self, PREFIX};

mod failed;
pub(crate) mod native;
mod open;
mod reach;
mod signed;

use failed::Failed;
use open::{Answer, Call, Message, Open, Request};
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
    /// A message as it is sent, if it is not encoded where it is sent from.
    outgoing: Vec<u8>,
}

/// Bytes of a call's messages with their prefixes; none of a request that is not encoded.
#[derive(Default)]
struct Counted {
    sent: Option<usize>,
    received: usize,
}

/// Instances that a call is offered to, one after the other, if each is about to go.
const INSTANCES: u32 = 8;
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

    /// On a link that nobody introduced, after which there is no other.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn over(link: Link, server: Peer) -> Self {
        let endpoint = Endpoint::from_static("partywall:///nobody").coordinator("no/coordinator");
        Self {
            name: endpoint.blocking().expect("a name").clone(),
            place: endpoint.place(),
            endpoint,
            message_limit: limits::MESSAGE_BYTES,
            open: Some(Open::new(link, server, None)),
            outgoing: Vec::new(),
        }
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

    /// Memory for a long `bytes` field of a message that is sent on this channel next:
    /// [`Channel::buffer`](crate::Channel::buffer).
    pub fn buffer(&mut self, len: usize) -> Buffer {
        Buffer::of(self.open.as_mut().and_then(|open| open.blank(len)), len)
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
        self.attempt_until(deadline, within).map_err(|error| match error {
            Error::TimedOut(_) => Error::TimedOut(within),
            // The server is not to blame for what the endpoint gives it too little time for.
            Error::Link(LinkError::TimedOut) if deadline <= Instant::now() => {
                Error::TimedOut(within)
            }
            other => other,
        })
    }

    fn attempt_until(&self, deadline: Instant, within: Duration) -> Result<Open, Error> {
        let client = coordinator::get(&self.place, within)?;
        let left = deadline.saturating_duration_since(Instant::now());
        match client.connect(&self.name)?.blocking(left)? {
            Connected::Link(linked) => Self::opened(*linked, &self.endpoint.pins, deadline),
            Connected::Redirect { url, .. } => {
                Err(Error::no_ring(self.name.to_string(), &format!("at {url}")))
            }
        }
    }

    /// Opens the link that the coordinator has introduced.
    fn opened(linked: Linked, pins: &Pins, deadline: Instant) -> Result<Open, Error> {
        pins.may_open(&linked.terms, linked.tracked.name())?;
        let Terms { link: number, security: reported, capabilities, .. } = linked.terms;
        let peer = linked.terms.peer.clone();
        let (terms, client) = (linked.terms.clone(), Arc::clone(linked.tracked.client()));
        let left = || deadline.saturating_duration_since(Instant::now());
        let own = terms.sealing.as_ref().map(|_| client.certified_here(left())).transpose()?;
        let (mut pending, tracked) = caller::fill(linked)?;
        let sealing = terms.sealing.as_ref().zip(own);
        let side = sealing.map(|(sealing, own)| {
            Calling::begin(&client, (own, pins), (&terms, sealing), &mut pending)
        });
        let side = side.transpose()?;
        let opening: Arc<dyn End> = Arc::new(Opening::of(&pending)?);
        tracked.attach(Arc::downgrade(&opening));
        tracked.adopted(domain::security(reported, None));
        // A server that has adopted the link and does not open it hangs: the next one may answer.
        let until = deadline.min(Instant::now() + caller::OPEN_TIME);
        let ends = pending.wait(until).map_err(Broken::from);
        let opened = ends.and_then(|ends| match side {
            None => Ok(ends.into()),
            Some(mut side) => sealed::finish_here(&mut side, ends, until),
        });
        let (opened, tracked) = match opened {
            Ok(opened) => (opened, tracked),
            Err(why) => return Err(broken::not_opened(tracked, why)),
        };
        let LinkEnd { ends, outgoing, incoming, peer: proven, signing } = opened;
        let link = Link::new(ends)?;
        let gate = domain::Gate::take(number);
        let security = domain::security(reported, gate.as_ref().map(domain::Gate::isolation));
        let server = Peer::new(peer, number, security).proven(proven);
        let bell = link.bell();
        let mut open = Open::new(link, server, gate.map(Gate::new)).sealed(outgoing, incoming);
        let end = Arc::new(Reached::new(bell, open.sent()));
        let reached: Arc<dyn End> = Arc::clone(&end) as _;
        tracked.attach(Arc::downgrade(&reached));
        (open.tracked, open.signing) = (Some((tracked, end)), signing);
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
        let (metadata, mut extensions, message) = request.into_parts();
        let attached = attach::attached(&mut extensions)?;
        self.told(path, |channel, counted| {
            let encode = |out: &mut Vec<u8>| message.encode(out);
            let headers = metadata.into_headers();
            let beside = (&headers, attached.as_deref());
            let mut answer = channel.exchange_encoded(path, beside, encode, counted)?;
            let message = R::decode(message_of(channel.data_of(&answer))?)
                .map_err(|e| Status::internal(format!("decoding the reply: {e}")))?;
            let mut extensions = http::Extensions::new();
            attach::put(&mut extensions, answer.take_attached());
            let metadata = MetadataMap::from_headers(answer.headers());
            Ok(tonic::Response::from_parts(metadata, message, extensions))
        })
    }

    /// Calls a unary method, `/package.Service/Method`, with an encoded message. The answer is encoded as
    /// well; neither has gRPC's prefix of five bytes.
    ///
    /// # Errors
    /// As [`Channel::unary`].
    pub fn call_bytes(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        self.told(path, |channel, counted| {
            let encode = |out: &mut Vec<u8>| {
                out.extend_from_slice(message);
                Ok(())
            };
            let beside = (&HeaderMap::new(), None);
            let answer = channel.exchange_encoded(path, beside, encode, counted)?;
            message_of(channel.data_of(&answer)).map(<[u8]>::to_vec)
        })
    }

    /// What an answer brought; of the last call.
    fn data_of<'a>(&'a self, answer: &'a Answer) -> &'a [u8] {
        answer.plain.map_or(answer.data(), |len| self.last(len))
    }

    /// So many of the last bytes of the last record.
    fn last(&self, len: usize) -> &[u8] {
        self.open.as_ref().map_or(&[], |open| &open.payload[open.payload.len() - len..])
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

    /// Sends one message, whose prefix is filled in here, and waits for a good answer.
    fn exchange_encoded(
        &mut self,
        path: &str,
        (headers, attached): (&HeaderMap, Option<&Attaching>),
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), prost::EncodeError>,
        counted: &mut Counted,
    ) -> Result<Answer, Status> {
        let mut message = std::mem::take(&mut self.outgoing);
        message.clear();
        message.resize(PREFIX, 0);
        encode(&mut message).map_err(|e| Status::internal(format!("encoding the request: {e}")))?;
        let len = u32::try_from(message.len() - PREFIX)
            .map_err(|_| Status::resource_exhausted("a request of over 4 GiB"))?;
        message[1..PREFIX].copy_from_slice(&len.to_be_bytes());
        counted.sent = Some(message.len());
        let encoded = Message::Encoded(&message);
        let request = Request { path, method: None, headers, attached, message: encoded };
        let answer = self.exchange(&request, Nothing, self.message_limit);
        self.outgoing = message;
        let answer = answer?;
        counted.received = self.data_of(&answer).len();
        match answer.failed() {
            Some(status) => Err(status),
            None => Ok(answer),
        }
    }

    /// Makes a call, and tells of it.
    fn told<T>(
        &mut self,
        path: &str,
        make: impl FnOnce(&mut Self, &mut Counted) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut counted = Counted::default();
        let Some(call) = telemetry::call_of(path) else { return make(self, &mut counted) };
        let made = call.guarded(|| make(self, &mut counted));
        if let Some(server) = self.server() {
            call.over(Some(server.link()), server.security(), telemetry::RING);
        }
        let Counted { sent, received } = counted;
        let ended = made.as_ref().map(|_| received).map_err(Status::code);
        match sent {
            Some(sent) => call.exchanged(sent, ended),
            None => call.end(ended.err().unwrap_or(Code::Ok)),
        }
        made
    }

    /// Sends a request and waits for the end of its answer, which has at most so long a message. Each link
    /// that it is offered to is good enough for it.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        requires: impl Requires,
        most: usize,
    ) -> Result<Answer, Status> {
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
        loop {
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
            requires.check(|| open.server.security())?;
            let timeout = sent.map(|at| at.saturating_duration_since(Instant::now()));
            let limit = most.saturating_add(PREFIX);
            let mut call = Call { key: None, answer: Answer::default(), limit, deadline };
            open.under_way(1);
            let buffer = &mut self.outgoing;
            let exchanged = match open.signing.clone() {
                None => open.exchange(request, timeout, buffer, &mut call),
                Some(signing) => {
                    open.exchange_signed(&signing, request, timeout, buffer, &mut call)
                }
            };
            open.under_way(0);
            let code = match exchanged {
                Err(Failed::Expired) => Code::DeadlineExceeded,
                _ => Code::Cancelled,
            };
            // One whose reset has to wait for room would wait for the next call: the link's end
            // stops the handler as well.
            let is_told = open.release(&call, code);
            let (status, keep) = match exchanged {
                Ok(()) => return Ok(call.answer),
                Err(Failed::Status(status)) => (status, true),
                Err(Failed::Abort(status)) => (status, is_told),
                Err(Failed::Expired) => (status::expired(), is_told),
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

#[cfg(test)]
mod tests;
