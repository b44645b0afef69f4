//! Signed messages of a link: each message of each call, in both directions, is followed by its sender's
//! signature, and passed on only when that fits.
//!
//! ```text
//! data of a call     [0 or 1, u32 length, message] [64, u32 length, signature] [0 or 1, ...] ...
//!
//! sender             hashes what passes; at a message's end signs, and puts the signature behind it
//! receiver           passes on what is no end of a message; keeps the piece with the end back until the
//!                    signature has come and fits; then hands in a receipt, and passes the piece on
//! ```
//!
//! What is signed, and what a receiver compares, [`partywall_trust::message`] says. Nobody but the two ends
//! can put anything into the link, which is sealed: a signature that does not fit is the sender's fault,
//! and ends the link ([`Broken::Signed`]). A stream that ends between a message and its signature ends so
//! as well.
//!
//! Each signature has its sender's certificate at that time, so links go on when certificates are renewed.
//! The receiver keeps the last chain of the link that was verified, and verifies one that is another.
//!
//! # Replies and their requests
//!
//! A reply has how many requests of its call its sender had checked, and their digest. The caller keeps the
//! digests of the last [`KEPT`] requests of a call that no reply has spoken of. A reply before any request
//! is bound to the channel and the method alone, and says so.
//!
//! # Cost
//!
//! For each message the sender has one SHA-256 of it and one ECDSA signature, the receiver one SHA-256 and
//! one verification. The signature travels in the record of its message where there is room. Messages of up
//! to [`JOINED`] bytes are copied once more, to be in one piece with it.

mod stream;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, UNIX_EPOCH};

use partywall_abi::sync::{AtomicU64, Ordering};
use partywall_trust::message::{MessageError, Receipt, Requests, Said, Signature, Way};
use partywall_trust::{Certified, Chain, Id};
use tonic::Status;

use super::Link;
use super::broken::Broken;
use crate::coordinator::{Client, Own};
use crate::lock::lock;
use crate::pins::Pins;

pub(crate) use stream::{Came, Incoming, Outgoing};
#[cfg(feature = "blocking")]
pub(crate) use stream::{signed, verified};

/// Digests of requests that a caller keeps of a call.
const KEPT: usize = 1 << 14;
/// Messages of so many bytes travel in one piece with their signature.
pub(crate) const JOINED: usize = 16 << 10;

/// What all calls of a link with signed messages have in common, at one end.
pub(crate) struct Signing {
    client: Arc<Client>,
    /// The channel, as both ends know it.
    channel: [u8; 32],
    /// The name that the caller has asked for.
    name: Arc<str>,
    /// Who is at the other end.
    peer: Id,
    /// Keys of which one is to be among those of its certificates.
    pins: Pins,
    /// Receipts are handed in.
    receipts: bool,
    /// Calls that this end has numbered.
    calls: AtomicU64,
    /// The last chain of the other end that was verified.
    known: Mutex<Option<(Arc<Chain>, Arc<Certified>)>>,
    /// What is ended when a signature does not fit.
    link: OnceLock<Weak<Link>>,
}

impl std::fmt::Debug for Signing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Signing").field(&self.peer).finish()
    }
}

impl Signing {
    pub(crate) fn new(
        client: &Arc<Client>,
        channel: [u8; 32],
        name: &str,
        (peer, pins): (&Id, &Pins),
        receipts: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: Arc::clone(client),
            channel,
            name: name.into(),
            peer: peer.clone(),
            pins: pins.clone(),
            receipts,
            calls: AtomicU64::new(0),
            known: Mutex::new(None),
            link: OnceLock::new(),
        })
    }

    /// The link that it is of.
    pub(super) fn of(&self, link: Weak<Link>) {
        let _first = self.link.set(link);
    }

    /// A call of this method that this end makes.
    pub(crate) fn call(self: &Arc<Self>, method: &str) -> Arc<Call> {
        // Each has a number of its own; nothing else goes by it.
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        Call::new(self, method, number)
    }

    /// A call of this method that the other end makes, and numbers.
    pub(crate) fn called(self: &Arc<Self>, method: &str) -> Arc<Call> {
        Call::new(self, method, 0)
    }

    /// Whether receipts are handed in.
    pub(crate) fn has_receipts(&self) -> bool {
        self.receipts
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The last chain that was verified.
    #[cfg(test)]
    pub(crate) fn verified(&self) -> Option<Arc<Chain>> {
        lock(&self.known).as_ref().map(|(chain, _)| Arc::clone(chain))
    }

    /// Whom this chain certifies: the other end, or this is an error.
    fn certified(&self, chain: &Arc<Chain>, own: &Own) -> Result<Arc<Certified>, MessageError> {
        let known = lock(&self.known).clone();
        if let Some((_, certified)) = known.filter(|(known, _)| Arc::ptr_eq(known, chain)) {
            return Ok(certified);
        }
        let checks = own.checks(self.pins.all());
        let certified = checks.roots.verify(chain, checks.now)?;
        certified.is_pinned(checks.pins)?;
        if certified.id != self.peer {
            let (expected, found) = (self.peer.to_string(), certified.id.to_string());
            return Err(MessageError::Identity { expected, found });
        }
        let certified = Arc::new(certified);
        *lock(&self.known) = Some((Arc::clone(chain), Arc::clone(&certified)));
        Ok(certified)
    }

    /// Ends the link: the other end has signed nothing that fits.
    pub(crate) fn broken(&self, why: &MessageError) -> Status {
        let status = Status::unauthenticated(why.to_string());
        if let Some(link) = self.link.get().and_then(Weak::upgrade) {
            link.close(&Broken::Signed(why.clone()));
        }
        status
    }
}

/// One call of a link with signed messages, at one end.
pub(crate) struct Call {
    signing: Arc<Signing>,
    method: Arc<str>,
    state: Mutex<State>,
}

struct State {
    /// Its number; 0 until the first request has come.
    number: u64,
    /// The requests that were signed here, or checked.
    requests: Requests,
    /// At the caller, the digests before those of the last requests, oldest first, and how many there were
    /// before the first of them.
    before: VecDeque<[u8; 32]>,
    from: u64,
}

impl Call {
    fn new(signing: &Arc<Signing>, method: &str, number: u64) -> Arc<Self> {
        let (requests, before) = (Requests::default(), VecDeque::new());
        let state = Mutex::new(State { number, requests, before, from: 0 });
        Arc::new(Self { signing: Arc::clone(signing), method: method.into(), state })
    }

    pub(crate) fn signing(&self) -> &Arc<Signing> {
        &self.signing
    }

    /// What this end says by a message.
    fn said(
        &self,
        (way, number): (Way, u64),
        (compressed, message): (bool, [u8; 32]),
        time: u64,
    ) -> Said {
        let state = lock(&self.state);
        Said {
            way,
            channel: self.signing.channel,
            call: state.number,
            number,
            time,
            name: Arc::clone(&self.signing.name),
            method: Arc::clone(&self.method),
            compressed,
            message,
            requests: match way {
                Way::Request => Requests::default(),
                Way::Reply => state.requests,
            },
        }
    }

    /// Signs a message.
    fn sign(&self, what: (Way, u64), message: (bool, [u8; 32]), own: &Own) -> Signature {
        let since = own.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let said = self.said(what, message, since.as_millis() as u64);
        if said.way == Way::Request {
            lock(&self.state).sent(&said);
        }
        said.sign(&own.credentials)
    }

    /// Checks the signature of a message that has come.
    fn check(
        &self,
        (way, number): (Way, u64),
        message: (bool, [u8; 32]),
        signature: &[u8],
        own: &Own,
    ) -> Result<Receipt, MessageError> {
        let known = lock(&self.signing.known).as_ref().map(|(chain, _)| Arc::clone(chain));
        let signature = Signature::take(signature, known.as_ref())?;
        let certified = self.signing.certified(signature.chain(), own)?;
        let mut said = self.said((way, number), message, signature.time);
        match way {
            Way::Request if number == 0 => said.call = signature.call,
            Way::Request => {}
            Way::Reply => {
                said.requests = lock(&self.state).answered(signature.requests)?;
                if said.requests.count == 0 {
                    said.call = 0;
                }
            }
        }
        if (said.call, said.requests.count) != (signature.call, signature.requests) {
            return Err(MessageError::Malformed("it is of another call"));
        }
        let receipt = signature.check(said, &certified, own.now())?;
        if way == Way::Request {
            let mut state = lock(&self.state);
            state.number = receipt.said.call;
            state.requests = state.requests.and(&receipt.said);
        }
        Ok(receipt)
    }
}

impl State {
    /// A request was signed.
    fn sent(&mut self, said: &Said) {
        self.before.push_back(self.requests.digest);
        if self.before.len() > KEPT {
            self.before.pop_front();
            self.from += 1;
        }
        self.requests = self.requests.and(said);
    }

    /// The first so many requests, of which a reply speaks.
    fn answered(&mut self, count: u64) -> Result<Requests, MessageError> {
        const MORE: MessageError =
            MessageError::Malformed("it speaks of requests that were not made");
        const OLD: MessageError = MessageError::Malformed(
            "it speaks of requests before those that the caller still knows",
        );
        if count == self.requests.count {
            self.before.clear();
            self.from = count;
            return Ok(self.requests);
        }
        if count > self.requests.count {
            return Err(MORE);
        }
        let at = count.checked_sub(self.from).ok_or(OLD)?;
        self.before.drain(..at as usize);
        self.from = count;
        let digest = *self.before.front().expect("there are requests after these");
        Ok(Requests { count, digest })
    }
}

/// How long a certificate of its own may take this process.
pub(crate) const CERTIFIED: Duration = Duration::from_secs(5);
