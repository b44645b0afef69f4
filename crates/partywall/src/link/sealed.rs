//! The handshake of a sealed link, in the first records of its rings.
//!
//! It takes no message of its own where the two know each other: what the caller says lies on its ring when
//! the server gets it, and what the server answers when the caller hears that the link is open.
//!
//! ```text
//! caller                                 coordinator         server
//! fills its outbox: message 1
//! Adopted ------------------------------->
//!                                         Open ------------->  takes message 1, writes message 2
//! takes message 2  <===================================== Setup
//!                  first contact: message 3 ================>  waits for it, at most [`HANDSHAKE_TIME`]
//!                  after a Retry: message 1 ================>  message 2 ... message 3
//! ```
//!
//! Each message is a record of the kind [`HANDSHAKE`]; those that come after the last one are sealed. What
//! does not fit ends the link, and the peer is to blame. A side that dies leaves the other one with a
//! hang-up, as in the set-up of each link; the time for all of it is the set-up's.

#[cfg(feature = "blocking")]
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "blocking")]
use std::time::Instant;

use partywall_abi::control::{Sealing, Terms};
use partywall_abi::frame::HANDSHAKE;
use partywall_abi::layout::SleepMode;
use partywall_shm::link::{Ends, LinkError};
use partywall_shm::ring::{Consumer, Producer};
use partywall_shm::setup::Pending;
use partywall_trust::handshake::{
    self, Answer, Begin, Caller, Channel, HandshakeError, MESSAGE_BYTES, Next, Peer,
};
use partywall_trust::record::{Form, Suite};

use super::broken::Broken;
use super::record::{Incoming, Outgoing};
use super::signed::Signing;
use super::watch;
use crate::coordinator::{Client, Own, Service};
use crate::error::Error;
use crate::pins::Pins;

/// How long a caller may take for the last message of a handshake.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(2);

/// An open link's end, and how its records are sealed and opened.
pub(crate) struct LinkEnd {
    pub(crate) ends: Ends,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// Who is at the other end, as it has proven.
    pub(crate) peer: Option<Arc<Peer>>,
    /// How its messages are signed, if they are.
    pub(crate) signing: Option<Arc<Signing>>,
}

impl From<Ends> for LinkEnd {
    /// One whose records are plain.
    fn from(ends: Ends) -> Self {
        let (outgoing, incoming) = (Outgoing::default(), Incoming::default());
        Self { ends, outgoing, incoming, peer: None, signing: None }
    }
}

impl LinkEnd {
    pub(super) fn sealed(ends: Ends, channel: Channel, side: &impl Side) -> Self {
        let Channel { sealer, opener, peer, number, .. } = channel;
        let With { client, terms, receipts, pins, .. } = side.with();
        let signing = receipts.map(|receipts| {
            Signing::new(client, number, &terms.name, (&peer.certified.id, pins), receipts)
        });
        let (outgoing, incoming) = (Outgoing::sealed(sealer), Incoming::sealed(opener));
        Self { ends, outgoing, incoming, peer: Some(Arc::new(peer)), signing }
    }
}

/// What a handshake has to agree on.
fn agreed(terms: &Terms, sealing: &Sealing) -> Result<handshake::Terms, Error> {
    let wrong = |_| Error::CoordinatorGone("it told of a sealed link what makes no sense");
    let suite = Suite::of(sealing.suite);
    let suite = suite.ok_or(Error::CoordinatorGone(
        "it told of a sealed link a cipher suite that this release does not know",
    ))?;
    Ok(handshake::Terms {
        channel: terms.token.0,
        caller: sealing.caller.parse().map_err(wrong)?,
        service: sealing.server.parse().map_err(wrong)?,
        name: sealing.name.clone(),
        policy: sealing.policy,
        form: Form { suite, classes: sealing.classes },
    })
}

/// What both sides need of a handshake.
pub(crate) struct With {
    client: Arc<Client>,
    own: Arc<Own>,
    terms: handshake::Terms,
    /// Whether receipts are kept, where messages are signed.
    receipts: Option<bool>,
    pins: Pins,
}

impl With {
    fn new(
        client: &Arc<Client>,
        (own, pins): (Arc<Own>, &Pins),
        (terms, sealing): (&Terms, &Sealing),
    ) -> Result<Self, Error> {
        let terms = agreed(terms, sealing)?;
        let receipts = sealing.sign.then_some(sealing.receipts);
        Ok(Self { client: Arc::clone(client), own, terms, receipts, pins: pins.clone() })
    }
}

/// The caller's side.
pub(crate) struct Calling {
    with: With,
    service: Service,
    state: Option<Caller>,
}

/// The server's side.
pub(crate) struct Serving {
    with: With,
    state: Option<handshake::Service>,
    retried: bool,
}

/// Writes a message; there is room for those few of a handshake.
fn push(ring: &mut Producer, message: &[u8]) -> Result<(), Broken> {
    match ring.try_push(HANDSHAKE, 0, 0, &[message])? {
        true => Ok(()),
        // More than a handshake has: the peer has asked for one retry after another.
        false => Err(HandshakeError::Length(message.len()).into()),
    }
}

/// Takes a message, if one is there.
fn take(ring: &mut Consumer) -> Result<Option<Vec<u8>>, Broken> {
    let Some(descriptor) = ring.peek()? else { return Ok(None) };
    if descriptor.kind != HANDSHAKE || descriptor.flags != 0 || descriptor.stream != 0 {
        return Err(Broken::NoHandshake(descriptor.kind));
    }
    if descriptor.len as usize > MESSAGE_BYTES {
        return Err(HandshakeError::Length(descriptor.len as usize).into());
    }
    let mut message = Vec::with_capacity(descriptor.len as usize);
    ring.read(&mut message);
    ring.release();
    Ok(Some(message))
}

impl Calling {
    /// Begins: the first message lies on the caller's ring. None where the link is plain.
    pub(crate) fn begin(
        client: &Arc<Client>,
        (own, pins): (Arc<Own>, &Pins),
        (terms, sealing): (&Terms, &Sealing),
        pending: &mut Pending,
    ) -> Result<Self, Error> {
        let with = With::new(client, (own, pins), (terms, sealing))?;
        let service = (sealing.server.clone(), terms.peer.pid, sealing.name.clone());
        let begin = client.begin_with(&service);
        let (state, message) = Caller::begin(&with.own.credentials, &with.terms, begin, false);
        push(pending.producer(), &message).map_err(|_| Error::Link(LinkError::TimedOut))?;
        Ok(Self { with, service, state: Some(state) })
    }
}

impl Serving {
    /// For a link that was offered.
    pub(crate) fn new(
        client: &Arc<Client>,
        (own, pins): (Arc<Own>, &Pins),
        (terms, sealing): (&Terms, &Sealing),
    ) -> Result<Self, Error> {
        let with = With::new(client, (own, pins), (terms, sealing))?;
        Ok(Self { with, state: None, retried: false })
    }
}

/// One side of a handshake.
pub(crate) trait Side {
    fn with(&self) -> &With;

    /// Takes what has come, and answers. None while more is to come.
    fn step(&mut self, ends: &mut Ends) -> Result<Option<Channel>, Broken>;
}

impl Side for Calling {
    fn with(&self) -> &With {
        &self.with
    }

    fn step(&mut self, ends: &mut Ends) -> Result<Option<Channel>, Broken> {
        let With { client, own, terms, pins, .. } = &self.with;
        while let Some(message) = take(&mut ends.consumer)? {
            let state = self.state.take().expect("it is there until the handshake is over");
            match state.answer(&own.credentials, terms, &message, &own.checks(pins.all()))? {
                Next::Done(channel, last) => {
                    last.map_or(Ok(()), |last| push(&mut ends.producer, &last))?;
                    client.keep_service(self.service.clone(), &channel);
                    return Ok(Some(channel));
                }
                Next::Retry => {
                    client.forget_service(&self.service);
                    let (state, message) =
                        Caller::begin(&own.credentials, terms, Begin::First, true);
                    push(&mut ends.producer, &message)?;
                    self.state = Some(state);
                }
            }
        }
        Ok(None)
    }
}

impl Side for Serving {
    fn with(&self) -> &With {
        &self.with
    }

    fn step(&mut self, ends: &mut Ends) -> Result<Option<Channel>, Broken> {
        let With { client, own, terms, pins, .. } = &self.with;
        while let Some(message) = take(&mut ends.consumer)? {
            let checks = own.checks(pins.all());
            if let Some(state) = self.state.take() {
                let channel = state.finish(terms, &message, &checks)?;
                client.keep_caller(&channel);
                return Ok(Some(channel));
            }
            let find = |name: &[u8; 16]| client.take_caller(name);
            let message = (&message[..], self.retried);
            let own = &own.credentials;
            match handshake::Service::answer(own, terms, message, find, &checks)? {
                Answer::Done(channel, answer) => {
                    push(&mut ends.producer, &answer)?;
                    client.keep_caller(&channel);
                    return Ok(Some(channel));
                }
                Answer::Waits(state, answer) => {
                    push(&mut ends.producer, &answer)?;
                    self.state = Some(state);
                }
                Answer::Retry(answer) => {
                    push(&mut ends.producer, &answer)?;
                    self.retried = true;
                }
            }
        }
        Ok(None)
    }
}

/// Takes what has come, tells the peer of what was written, and asks to be rung for what comes next, if
/// there is more to come.
fn step(side: &mut impl Side, ends: &mut Ends) -> Result<Option<Channel>, Broken> {
    loop {
        let done = side.step(ends)?;
        let wakes = [ends.producer.notify()?, ends.consumer.notify()?];
        for wake in wakes {
            ends.bell.carry_out(wake)?;
        }
        if done.is_some() {
            return Ok(done);
        }
        ends.bell.slept();
        if ends.consumer.prepare_sleep(SleepMode::Doorbell) {
            return Ok(None);
        }
    }
}

/// What the bell says once it is readable.
fn woken(ends: &mut Ends) -> Result<(), Broken> {
    ends.consumer.awake();
    match ends.bell.drain() {
        // What it has sent before may be all that is needed.
        Err(LinkError::Dead) if ends.consumer.ready() => Ok(()),
        drained => Ok(drained.map(drop)?),
    }
}

/// Goes on with a handshake until it is done, within that time.
pub(crate) async fn finish(
    side: &mut impl Side,
    mut ends: Ends,
    within: Duration,
) -> Result<LinkEnd, Broken> {
    let io = |source| LinkError::Io { call: "epoll_ctl", source };
    if let Some(channel) = step(side, &mut ends)? {
        return Ok(LinkEnd::sealed(ends, channel, side));
    }
    let bell = watch(Arc::clone(&ends.bell)).map_err(io)?;
    let going_on = async {
        loop {
            bell.readable().await.map_err(io)?.clear_ready();
            woken(&mut ends)?;
            if let Some(channel) = step(side, &mut ends)? {
                return Ok::<_, Broken>(channel);
            }
        }
    };
    let done = tokio::time::timeout(within, going_on).await;
    drop(bell);
    let channel = done.map_err(|_| LinkError::TimedOut)??;
    Ok(LinkEnd::sealed(ends, channel, side))
}

/// The same on a thread that may block.
#[cfg(feature = "blocking")]
pub(crate) fn finish_here(
    side: &mut impl Side,
    mut ends: Ends,
    deadline: Instant,
) -> Result<LinkEnd, Broken> {
    loop {
        if let Some(channel) = step(side, &mut ends)? {
            return Ok(LinkEnd::sealed(ends, channel, side));
        }
        let readable = partywall_shm::socket::wait_readable(ends.bell.as_fd(), deadline);
        if !readable.map_err(|source| LinkError::Io { call: "poll", source })? {
            return Err(LinkError::TimedOut.into());
        }
        woken(&mut ends)?;
    }
}

#[cfg(test)]
mod tests;
