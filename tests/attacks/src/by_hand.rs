//! A hostile end of a link: its steps and its memory, by hand.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partywall_abi::control::{LinkMessage, Message, RegistryMessage, SessionMessage, Setup, Terms};
use partywall_abi::frame::{self, Data, Kind, RequestHead, ResponseHead, Trailers};
use partywall_abi::layout::Geometry;
use partywall_abi::name::ServiceName;
use partywall_abi::version::{Capabilities, Versions};
use partywall_interop::proto::{SimpleRequest, SimpleResponse};
use partywall_shm::memory;
use partywall_shm::region::{Inbox, Outbox};
use partywall_shm::ring::{Consumer, Producer, Wake};
use partywall_shm::socket::{self, Endpoint, Passed};
use partywall_testkit::{Conversation, PATIENCE, Result};
use prost::Message as _;

/// A name.
///
/// # Panics
/// When it is none.
pub fn name(name: &str) -> ServiceName {
    ServiceName::new(name).expect("a name")
}

/// Serves a name.
///
/// # Errors
/// When the coordinator says something else.
pub fn register(by: &Conversation, name: &str) -> Result<u64> {
    by.say(&Message::Registry(RegistryMessage::Register {
        request: 1,
        name: self::name(name),
        places: 1000,
    }))?;
    match by.next()?.0 {
        Message::Registry(RegistryMessage::Registered { registration, .. }) => Ok(registration),
        other => Err(format!("the coordinator says {other:?}").into()),
    }
}

/// A conversation of a process that has no capability.
///
/// # Errors
/// When the coordinator does not take it in.
pub fn silently(socket: &Path) -> Result<Conversation> {
    let this = Conversation::connect(socket)?;
    let nonce = this.challenge()?;
    this.say(&Message::from(SessionMessage::Proof {
        versions: Versions::OWN,
        version: partywall_abi::VERSION,
        capabilities: Capabilities::NONE,
        nonce,
    }))?;
    match this.next()?.0 {
        Message::Session(SessionMessage::Welcome { .. }) => Ok(this),
        other => Err(format!("the coordinator says {other:?}").into()),
    }
}

/// What came on a link: kind, flags, stream, payload.
pub type Answer = (Kind, u8, u32, Vec<u8>);

/// One end of a link.
pub struct Hand {
    /// Its number.
    pub link: u64,
    /// What the ends have been told.
    pub terms: Terms,
    /// What this end writes.
    pub outbox: Arc<Outbox>,
    /// What the victim writes.
    pub inbox: Arc<Inbox>,
    /// The ring in what this end writes.
    pub producer: Producer,
    /// The ring of the victim.
    pub consumer: Consumer,
    /// The link's socket.
    pub socket: Endpoint,
    /// The call of which the last frame was.
    pub stream: u32,
    /// The victim has said that it takes parcels.
    pub takes_parcels: bool,
}

impl std::fmt::Debug for Hand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hand").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Hand {
    /// The caller's end of a new link.
    ///
    /// # Errors
    /// When a step fails.
    pub fn calling(by: &Conversation, to: &str) -> Result<Self> {
        by.say(&Message::Link(LinkMessage::Connect { request: 7, name: name(to) }))?;
        let (terms, fds) = loop {
            match by.next()? {
                (Message::Link(LinkMessage::Linked { terms, .. }), fds) => break (terms, fds),
                // The ends of former links.
                (Message::End(_), _) => {}
                (other, _) => return Err(format!("the coordinator says {other:?}").into()),
            }
        };
        let parts: [Passed; 3] = fds.try_into().map_err(|_| "not three descriptors")?;
        let [own, servers, socket] = parts;
        let (own, servers, socket) = (own.memory()?, servers.memory()?, socket.endpoint());
        let outbox = memory::adopt(own.as_fd(), terms.geometry)?;
        memory::fill_own(&outbox)?;
        memory::begin(&outbox, terms.geometry);
        let inbox = memory::accept(servers.as_fd(), terms.geometry)?;
        memory::fill_peers(&inbox)?;
        adopted(by, &terms)?;
        if !socket::wait_readable(socket.as_fd(), Instant::now() + PATIENCE)? {
            return Err("the service does not open the link".into());
        }
        let mut buffer = [0; Setup::BYTES];
        let packet = socket.receive(&mut buffer)?;
        Setup::decode(&buffer[..packet.len])?;
        Ok(Self::new(terms, outbox, inbox, socket))
    }

    /// The service's end of the next link that somebody asks for.
    ///
    /// # Errors
    /// When a step fails.
    pub fn serving(by: &Conversation) -> Result<Self> {
        let (terms, own, socket) = by.offered()?;
        let outbox = memory::adopt(own.as_fd(), terms.geometry)?;
        adopted(by, &terms)?;
        let (_, callers) = by.opened()?;
        let inbox = memory::accept(callers.as_fd(), terms.geometry)?;
        memory::begin(&outbox, terms.geometry);
        socket::send(socket.as_fd(), &Setup { link: terms.link }.encode(), &[])?;
        Ok(Self::new(terms, outbox, inbox, socket))
    }

    fn new(terms: Terms, outbox: Outbox, inbox: Inbox, socket: Endpoint) -> Self {
        let (outbox, inbox, geometry) = (Arc::new(outbox), Arc::new(inbox), terms.geometry);
        Self {
            link: terms.link,
            producer: Producer::new(geometry, Arc::clone(&outbox), Arc::clone(&inbox)),
            consumer: Consumer::new(geometry, Arc::clone(&outbox), Arc::clone(&inbox)),
            outbox,
            inbox,
            terms,
            socket,
            stream: 0,
            takes_parcels: false,
        }
    }

    /// How large its memory is.
    pub fn geometry(&self) -> Geometry {
        self.terms.geometry
    }

    /// This end's socket for descriptors, which comes when the link is open.
    ///
    /// # Errors
    /// When something else comes.
    pub fn granted(by: &Conversation) -> Result<Passed> {
        loop {
            if let (Message::Link(LinkMessage::Granted { .. }), mut fds) = by.next()? {
                return fds.pop().ok_or_else(|| "a grant without a socket".into());
            }
        }
    }

    /// Sends a record; false when there is no room. The victim is woken.
    ///
    /// # Errors
    /// When the victim has broken a rule.
    pub fn try_say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<bool> {
        let sent = self.producer.try_push(kind, flags, stream, &[payload])?;
        self.wake()?;
        Ok(sent)
    }

    /// Sends a record as soon as there is room, unless the link ends before.
    ///
    /// # Errors
    /// When there is none.
    pub fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let begin = Instant::now();
        while !self.try_say(kind, flags, stream, payload)? && !self.is_ended()? {
            if begin.elapsed() > PATIENCE {
                return Err("the victim takes nothing".into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Sends a record's data in as many records as it takes.
    ///
    /// # Errors
    /// When there is no room.
    pub fn say_long(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let most = self.geometry().record_bytes();
        let count = payload.chunks(most).count().max(1);
        for n in 0..count {
            let piece = &payload[n * most..payload.len().min((n + 1) * most)];
            let first = if n == 0 { flags } else { flags & !frame::HEAD };
            let flags = if n + 1 == count { first } else { first & !frame::END };
            self.say(kind, flags, stream, piece)?;
        }
        Ok(())
    }

    /// Wakes the victim if it sleeps.
    ///
    /// # Errors
    /// When the victim has broken a rule.
    pub fn wake(&mut self) -> Result<()> {
        if self.producer.notify()? == Wake::Doorbell {
            self.ring();
        }
        Ok(())
    }

    /// Rings, whether it sleeps or not; false when there is no room for a bell, or nobody.
    pub fn ring(&self) -> bool {
        socket::ring(self.socket.as_fd()).is_ok()
    }

    /// The next record.
    ///
    /// # Errors
    /// When none comes.
    pub fn hear(&mut self) -> Result<Answer> {
        self.hear_within(PATIENCE)?.ok_or_else(|| "the victim says nothing".into())
    }

    /// The next record that comes within this time.
    ///
    /// # Errors
    /// When the victim has broken a rule.
    pub fn hear_within(&mut self, within: Duration) -> Result<Option<Answer>> {
        let begin = Instant::now();
        loop {
            if let Some(d) = self.consumer.peek()? {
                let mut payload = Vec::with_capacity(d.len as usize);
                self.consumer.read(&mut payload);
                self.consumer.release();
                if self.consumer.notify()? == Wake::Doorbell {
                    self.ring();
                }
                let kind = Kind::from_number(d.kind).ok_or("an unknown kind")?;
                self.takes_parcels |= kind == Kind::Parcels;
                if kind == Kind::Frame {
                    self.stream = d.stream;
                }
                return Ok(Some((kind, d.flags, d.stream, payload)));
            }
            if begin.elapsed() > within {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The next frame of this stream.
    ///
    /// # Errors
    /// When none comes.
    pub fn hear_frame(&mut self, of: u32) -> Result<(u8, Vec<u8>)> {
        loop {
            let (kind, flags, stream, payload) = self.hear()?;
            if kind == Kind::Frame && stream == of {
                return Ok((flags, payload));
            }
        }
    }

    /// The message of the next request that comes in one frame.
    ///
    /// # Errors
    /// When none comes.
    pub fn asked(&mut self) -> Result<SimpleRequest> {
        loop {
            let (kind, flags, _, payload) = self.hear()?;
            if kind == Kind::Frame
                && let Data::Here(data) = frame::Request::decode(flags, &payload)?.data
                && let Some(message) = data.get(5..)
            {
                return Ok(SimpleRequest::decode(message)?);
            }
        }
    }

    /// Answers the next request as an honest service does.
    ///
    /// # Errors
    /// When none comes.
    pub fn answer(&mut self) -> Result<()> {
        let payload = self.asked()?.payload;
        let answer = SimpleResponse { payload, ..SimpleResponse::default() };
        let answer = good_answer(&message(&answer.encode_to_vec()));
        let flags = frame::HEAD | frame::TRAILERS | frame::END;
        self.say(Kind::Frame as u8, flags, self.stream, &answer)
    }

    /// How the answer to a call ends: its code and message.
    ///
    /// # Errors
    /// When no such frame comes.
    pub fn status(&mut self, of: u32) -> Result<(u8, String)> {
        loop {
            let (flags, payload) = self.hear_frame(of)?;
            let answer = frame::Response::decode(flags, &payload)?;
            if let Some(trailers) = answer.trailers {
                let mut entries = trailers.metadata.iter();
                let message = entries.find(|(name, _)| *name == b"grpc-message");
                let message = message.map(|(_, value)| value).unwrap_or_default();
                return Ok((trailers.code, unescaped(message)));
            }
        }
    }

    /// Whether the victim has hung up.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn is_ended(&self) -> Result<bool> {
        use rustix::event::{PollFd, PollFlags};
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty())];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now))?;
        Ok(fds[0].revents().contains(PollFlags::HUP))
    }

    /// Waits until the victim hangs up.
    ///
    /// # Panics
    /// When it does not.
    pub fn until_ended(&self) {
        let begin = Instant::now();
        while !self.is_ended().expect("poll") {
            assert!(begin.elapsed() < PATIENCE, "the victim goes on with link {}", self.link);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The socket, bare.
    pub fn bare(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A `grpc-message`, whose bytes may be written as `%20`.
fn unescaped(message: &[u8]) -> String {
    let (mut text, mut rest) = (Vec::new(), message);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let byte = byte.filter(|_| *first == b'%');
        text.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn adopted(by: &Conversation, terms: &Terms) -> Result<()> {
    let (link, security) = (terms.link, terms.security);
    by.say(&Message::Link(LinkMessage::Adopted { link, security }))
}

/// The head of a request of this method, and what comes after it.
pub fn call_head(path: &str, data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    let head = |out: &mut Vec<u8>| RequestHead::write(out, None, path, 0);
    frame::write_block(&mut payload, head).expect("a short head");
    payload.extend_from_slice(data);
    payload
}

/// A whole answer with the status OK: head, trailers and what comes after them.
pub fn good_answer(data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    frame::write_block(&mut payload, |out| ResponseHead::write(out, 0)).expect("a short head");
    frame::write_block(&mut payload, |out| Trailers::write(out, 0, 0)).expect("short trailers");
    payload.extend_from_slice(data);
    payload
}

/// A message with gRPC's prefix.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}
