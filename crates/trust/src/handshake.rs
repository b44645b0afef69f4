//! How two ends of a channel come to secrets that nobody else has, and each knows who the other one is.
//!
//! It is the Noise framework (revision 34; `snow`) with X25519, AES-256-GCM and SHA-256. The caller begins:
//!
//! | messages | when | what the caller knows before |
//! | --- | --- | --- |
//! | XX | first contact | nothing |
//! | IK | the service is known | the service's static key, of an earlier handshake |
//! | NNpsk0 | a channel is resumed | a secret that both have of an earlier handshake |
//!
//! ```text
//! caller                                    service
//! FIRST    XX e              ------------>
//!                            <------------  XX e, ee, s, es, {who}       WAITS
//!          XX s, se, {who}   ------------>                               DONE
//!  DONE
//! KNOWN    IK e, es, s, ss, {who} ------->
//!  DONE                      <------------  IK e, ee, se, {who}          DONE
//! RESUMED  NN psk, e         ------------>
//!  DONE                      <------------  NN e, ee                     DONE
//!
//! KNOWN, RESUMED             <------------  Retry: the key or the secret is not known (any more)
//! FIRST: begins anew
//! ```
//!
//! `{who}` is the chain of certificates, room for evidence, and a signature by the certificate's key over
//! `partywall/noise/1`, the role, the handshake's hash before the message, the own static key and the own
//! ephemeral key. So it is of this handshake, of this end, and of nothing else. Each static key is of a
//! process, and lives as long as that does.
//!
//! The prologue, on which both ends must agree, has the version, the channel, the IDs of both ends, the name
//! of the service, the policy and the form of records. Whoever changes one of them has changed the hash, and
//! the next message is refused.
//!
//! Secrets of records are derived from the raw split by HKDF, and never from the handshake's hash, which is
//! public. What the caller sends in the first message of IK is readable for who has stolen the service's
//! static key later: it is the chain, the evidence and the signature, which are no secrets.
//!
//! What either end sends is hostile until it is checked: a message that does not fit ends the handshake, and
//! the other end is to blame. When either end dies, nothing is left but memory of the other one.

mod who;

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use snow::{Builder, HandshakeState};
use zeroize::{Zeroize as _, Zeroizing};

use crate::certificate::{CHAIN_BYTES, CertificateError, Certified, Chain, Roots};
use crate::id::Id;
use crate::key::SigningKey;
use crate::noise::{AwsLc, KEY, Pair};
use crate::pin::Pin;
use crate::record::{Form, Opener, SECRET, Sealer, derive};

use who::{read_who, who};

/// The first byte of a message.
const VERSION: u8 = 1;
/// The most bytes of a message of a handshake.
pub const MESSAGE_BYTES: usize = 18 << 10;
/// The most bytes of evidence.
pub const EVIDENCE_BYTES: usize = 4 << 10;
/// Bytes of the name of a secret by which channels are resumed.
const NAME: usize = 16;

/// The messages of a handshake, as its second byte has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Pattern {
    First = 1,
    Known = 2,
    Resumed = 3,
    Retry = 4,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::First | Self::Retry => "Noise_XX_25519_AESGCM_SHA256",
            Self::Known => "Noise_IK_25519_AESGCM_SHA256",
            Self::Resumed => "Noise_NNpsk0_25519_AESGCM_SHA256",
        }
    }
}

/// Why a handshake is over. The other end is to blame for each of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// A message of another version.
    #[error("the handshake has version {0}, and this end knows {VERSION}")]
    Version(u8),
    /// A message that has no place there.
    #[error("the handshake has a message of pattern {0}, which has no place there")]
    Pattern(u8),
    /// A message that is too long, or cut.
    #[error("the handshake has a message of {0} bytes")]
    Length(usize),
    /// A message that is not as it was written, or was written for another channel.
    #[error(
        "the handshake was altered, or the two ends do not agree on the channel, the names or the policy"
    )]
    Altered,
    /// What it says of itself is not what it should be.
    #[error("the handshake's payload is malformed: {0}")]
    Payload(&'static str),
    /// Its certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Its signature.
    #[error(
        "{0} has not signed this handshake: the signature is another one's, or of another handshake"
    )]
    Signature(String),
    /// It is not who it should be.
    #[error("the other end is {found}, and {expected} is due")]
    Identity {
        /// Who is due.
        expected: String,
        /// Who it is.
        found: String,
    },
    /// It is not called so.
    #[error("the certificate of {id} is not for the name `{name}`")]
    Name {
        /// Whose certificate it is.
        id: String,
        /// What the caller has asked for.
        name: String,
    },
    /// Its static key is another one than the one that is pinned.
    #[error("the static key of {0} is not the pinned one")]
    Pinned(String),
}

/// The static key of a process. It is overwritten when it is dropped.
#[derive(Clone)]
pub struct StaticKey(Pair);

impl StaticKey {
    /// A new one of random numbers.
    pub fn generate() -> Self {
        Self(Pair::generate())
    }

    /// What others know of it.
    pub fn public(&self) -> [u8; KEY] {
        self.0.public
    }
}

impl std::fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StaticKey(..)")
    }
}

/// Who an end is, and how it proves it.
#[derive(Debug)]
pub struct Credentials {
    static_key: StaticKey,
    signer: SigningKey,
    chain: Arc<Chain>,
    evidence: Vec<u8>,
}

impl Credentials {
    /// An end with this static key, the key that its certificate is for, that certificate, and evidence about
    /// it of whatever kind; empty without.
    ///
    /// # Errors
    /// [`HandshakeError::Payload`] where the evidence has over [`EVIDENCE_BYTES`].
    pub fn new(
        static_key: StaticKey,
        signer: SigningKey,
        chain: Chain,
        evidence: Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        if evidence.len() > EVIDENCE_BYTES {
            return Err(HandshakeError::Payload("its evidence is too long"));
        }
        Ok(Self { static_key, signer, chain: Arc::new(chain), evidence })
    }

    /// What others know of its static key.
    pub fn static_key(&self) -> [u8; KEY] {
        self.static_key.public()
    }

    /// The key that its certificate is for.
    pub fn signer(&self) -> &SigningKey {
        &self.signer
    }

    /// Its certificate.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    pub(crate) fn shared_chain(&self) -> &Arc<Chain> {
        &self.chain
    }
}

// A message has room for all that an end says of itself: the chain with its lengths, evidence, a signature,
// keys and tags.
const _: () = assert!(CHAIN_BYTES + EVIDENCE_BYTES + 512 <= MESSAGE_BYTES);

/// What both ends of a channel have been told of it, and must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// What the channel is known by, and no other one.
    pub channel: [u8; 16],
    /// Who calls.
    pub caller: Id,
    /// Who serves.
    pub service: Id,
    /// The name that the caller has asked for.
    pub name: String,
    /// The policy by which it is made.
    pub policy: u64,
    /// How records are made.
    pub form: Form,
}

impl Terms {
    fn prologue(&self, retried: bool) -> Vec<u8> {
        let mut all = b"partywall/channel/1".to_vec();
        all.extend_from_slice(&self.channel);
        for text in [self.caller.as_str(), self.service.as_str(), &self.name] {
            all.extend_from_slice(&(text.len() as u32).to_le_bytes());
            all.extend_from_slice(text.as_bytes());
        }
        all.extend_from_slice(&self.policy.to_le_bytes());
        all.extend_from_slice(&[self.form.suite as u8, self.form.classes.into(), retried.into()]);
        all
    }
}

/// Whom an end checks the other one by.
#[derive(Debug, Clone, Copy)]
pub struct Checks<'a> {
    /// Who may have signed its certificate.
    pub roots: &'a Roots,
    /// By a clock that nobody turns back.
    pub now: SystemTime,
    /// The static key that it must have, if it is pinned.
    pub pinned: Option<&'a [u8; KEY]>,
    /// Keys of which its certificate, or one of those who have signed it, must have one; none where it is
    /// empty.
    pub pins: &'a [Pin],
}

/// What two ends have in common after a handshake, so that another channel needs a shorter one.
#[derive(Clone)]
pub struct Resumption {
    name: [u8; NAME],
    secret: Zeroizing<[u8; SECRET]>,
    peer: Peer,
}

impl Resumption {
    /// What both ends know it by. It is no secret.
    pub fn name(&self) -> [u8; NAME] {
        self.name
    }

    /// With whom.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl std::fmt::Debug for Resumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resumption").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Who the other end is, as it has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Whom its certificate is for.
    pub certified: Certified,
    /// Its static key.
    pub static_key: [u8; KEY],
    /// What it has said of itself beside that, not checked.
    pub evidence: Vec<u8>,
}

impl Peer {
    /// That what it has proven earlier still holds.
    fn holds(&self, checks: &Checks<'_>) -> Result<(), HandshakeError> {
        self.certified.holds(checks.now)?;
        self.certified.is_pinned(checks.pins)?;
        if checks.pinned.is_some_and(|pinned| *pinned != self.static_key) {
            return Err(HandshakeError::Pinned(self.certified.id.to_string()));
        }
        Ok(())
    }
}

/// How a caller begins.
#[derive(Debug, Clone)]
pub enum Begin {
    /// At first contact.
    First,
    /// With the service's static key.
    Known([u8; KEY]),
    /// With what both have of an earlier channel.
    Resumed(Box<Resumption>),
}

/// How a channel came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// At first contact.
    First,
    /// With a known key.
    Known,
    /// By what both had of an earlier channel.
    Resumed,
}

/// A handshake that is done.
#[derive(Debug)]
pub struct Channel {
    /// Seals what this end sends.
    pub sealer: Sealer,
    /// Opens what the other one sends.
    pub opener: Opener,
    /// Who that is.
    pub peer: Peer,
    /// How it came about.
    pub how: How,
    /// What both ends know the channel by, and nobody could have made alike. It is no secret.
    pub number: [u8; 32],
    /// For another channel.
    pub resumption: Resumption,
}

const CALLER: &[u8] = b"caller";
const SERVICE: &[u8] = b"service";

/// The caller's end of a handshake that waits for the service's message.
pub struct Caller {
    state: HandshakeState,
    pattern: Pattern,
    ephemeral: [u8; KEY],
    resumption: Option<Box<Resumption>>,
}

/// What the caller's end does next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Next {
    /// It is done; this message is to be sent before anything else, if there is one.
    Done(Channel, Option<Vec<u8>>),
    /// The service knows the key or the secret no more: the handshake begins anew, at first contact.
    Retry,
}

/// The service's end of a handshake that waits for the caller's last message.
pub struct Service {
    state: HandshakeState,
    /// The caller's ephemeral key.
    theirs: [u8; KEY],
}

/// What the service's end says first.
#[derive(Debug)]
pub enum Answer {
    /// It is done with this message.
    Done(Channel, Vec<u8>),
    /// It sends this message and waits for another one.
    Waits(Service, Vec<u8>),
    /// It sends this message: the caller begins anew.
    Retry(Vec<u8>),
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

/// A handshake that begins, and the own ephemeral key.
fn state(
    pattern: Pattern,
    is_caller: bool,
    with: (&Credentials, &Terms, bool),
    theirs: Option<&[u8; KEY]>,
    secret: Option<&[u8; SECRET]>,
) -> (HandshakeState, [u8; KEY]) {
    // It is made here and not by `snow`, since what is signed has it, and is written into the same message.
    let ephemeral = Pair::generate();
    (state_of(&ephemeral, (pattern, is_caller), with, theirs, secret), ephemeral.public)
}

fn state_of(
    ephemeral: &Pair,
    (pattern, is_caller): (Pattern, bool),
    (own, terms, retried): (&Credentials, &Terms, bool),
    theirs: Option<&[u8; KEY]>,
    secret: Option<&[u8; SECRET]>,
) -> HandshakeState {
    let parameters = pattern.name().parse().expect("it is a known pattern");
    let prologue = terms.prologue(retried);
    let mut builder = Builder::with_resolver(parameters, Box::new(AwsLc))
        .fixed_ephemeral_key_for_testing_only(&ephemeral.private[..])
        .prologue(&prologue)
        .expect("it is set once");
    if pattern != Pattern::Resumed {
        let key = &own.static_key.0.private[..];
        builder = builder.local_private_key(key).expect("it is set once");
    }
    if let Some(theirs) = theirs {
        builder = builder.remote_public_key(theirs).expect("it is set once");
    }
    if let Some(secret) = secret {
        builder = builder.psk(0, secret).expect("it is set once");
    }
    let state = if is_caller { builder.build_initiator() } else { builder.build_responder() };
    state.expect("all that the pattern needs is there")
}

/// That the other end is who is due.
fn is_due(found: &Certified, expected: &Id) -> Result<(), HandshakeError> {
    if found.id == *expected {
        return Ok(());
    }
    let (expected, found) = (expected.to_string(), found.id.to_string());
    Err(HandshakeError::Identity { expected, found })
}

/// That the other end is the service that the caller has asked for.
fn is_service(found: &Certified, terms: &Terms) -> Result<(), HandshakeError> {
    is_due(found, &terms.service)?;
    if found.dns.contains(&terms.name) {
        return Ok(());
    }
    let (id, name) = (found.id.to_string(), terms.name.clone());
    Err(HandshakeError::Name { id, name })
}

/// A message with this payload. There is none where a key of the other end is a point of low order: the
/// first messages of XX and NNpsk0 have one, and it is used here first.
fn write(
    state: &mut HandshakeState,
    pattern: Pattern,
    name: &[u8],
    payload: &[u8],
) -> Result<Vec<u8>, HandshakeError> {
    let mut message = vec![0; MESSAGE_BYTES];
    (message[0], message[1]) = (VERSION, pattern as u8);
    message[2..2 + name.len()].copy_from_slice(name);
    let at = 2 + name.len();
    let written = state.write_message(payload, &mut message[at..]);
    message.truncate(at + written.map_err(|_| HandshakeError::Altered)?);
    Ok(message)
}

/// What a message says that it is, and what is behind that.
fn opened(message: &[u8]) -> Result<(u8, &[u8]), HandshakeError> {
    if message.len() > MESSAGE_BYTES {
        return Err(HandshakeError::Length(message.len()));
    }
    match message {
        [VERSION, pattern, rest @ ..] => Ok((*pattern, rest)),
        [version, _, ..] => Err(HandshakeError::Version(*version)),
        _ => Err(HandshakeError::Length(message.len())),
    }
}

/// The payload of a message, and the handshake's hash before it.
fn read(
    state: &mut HandshakeState,
    message: &[u8],
) -> Result<(Zeroizing<Vec<u8>>, [u8; 32]), HandshakeError> {
    let hash = state.get_handshake_hash().try_into().expect("SHA-256 has so many bytes");
    let mut payload = Zeroizing::new(vec![0; message.len()]);
    let read = state.read_message(message, &mut payload).map_err(|_| HandshakeError::Altered)?;
    payload.truncate(read);
    Ok((payload, hash))
}

/// The ephemeral key that a message begins with, in each of the patterns' first messages of either end.
fn ephemeral_of(message: &[u8]) -> Result<[u8; KEY], HandshakeError> {
    let key = message.first_chunk().ok_or(HandshakeError::Length(message.len()))?;
    Ok(*key)
}

fn their_static(state: &HandshakeState) -> Result<[u8; KEY], HandshakeError> {
    let key = state.get_remote_static().and_then(|key| key.try_into().ok());
    key.ok_or(HandshakeError::Payload("it has no static key"))
}

/// The channel of a handshake that is done.
fn channel(mut state: HandshakeState, terms: &Terms, how: How, peer: Peer) -> Channel {
    let (mut one, mut other) = state.dangerously_get_raw_split();
    let all = Zeroizing::new([one, other].concat());
    one.zeroize();
    other.zeroize();
    let secret = Salt::new(HKDF_SHA256, b"partywall/records/1").extract(&all);
    let (callers, services) = (derive(&secret, CALLER), derive(&secret, SERVICE));
    let (id, form, is_caller) = (terms.channel, terms.form, state.is_initiator());
    let (own, theirs) = if is_caller { (&callers, &services) } else { (&services, &callers) };
    let resumption = Resumption {
        name: *derive(&secret, b"resumption's name"),
        secret: derive(&secret, b"resumption"),
        peer: peer.clone(),
    };
    Channel {
        sealer: Sealer::new(form, id, is_caller, own),
        opener: Opener::new(form, id, !is_caller, theirs),
        peer,
        how,
        number: *derive(&secret, b"channel's number"),
        resumption,
    }
}

impl Caller {
    /// Begins a handshake: its first message. `retried` is said where the service has answered another one by
    /// [`Next::Retry`].
    pub fn begin(own: &Credentials, terms: &Terms, begin: Begin, retried: bool) -> (Self, Vec<u8>) {
        let with = (own, terms, retried);
        let (pattern, resumption, theirs) = match begin {
            Begin::First => (Pattern::First, None, None),
            Begin::Known(key) => (Pattern::Known, None, Some(key)),
            Begin::Resumed(resumption) => (Pattern::Resumed, Some(resumption), None),
        };
        let secret = resumption.as_ref().map(|resumption| &*resumption.secret);
        let (mut state, ephemeral) = state(pattern, true, with, theirs.as_ref(), secret);
        let payload = match pattern {
            Pattern::Known => who(own, CALLER, &state, &ephemeral),
            _ => Zeroizing::default(),
        };
        let name = resumption.as_ref().map_or(&[][..], |resumption| &resumption.name);
        let Ok(message) = write(&mut state, pattern, name, &payload) else {
            // The known key is a point of low order, and so nobody's.
            return Self::begin(own, terms, Begin::First, retried);
        };
        (Self { state, pattern, ephemeral, resumption }, message)
    }

    /// Takes the service's message. A peer of an earlier channel is refused where its certificate is over
    /// meanwhile: who looks at that first begins at first contact.
    ///
    /// # Errors
    /// [`HandshakeError`]
    pub fn answer(
        self,
        own: &Credentials,
        terms: &Terms,
        message: &[u8],
        checks: &Checks<'_>,
    ) -> Result<Next, HandshakeError> {
        let Self { mut state, pattern, ephemeral, resumption } = self;
        let (said, rest) = opened(message)?;
        if said == Pattern::Retry as u8 && pattern != Pattern::First && rest.is_empty() {
            return Ok(Next::Retry);
        }
        if said != pattern as u8 {
            return Err(HandshakeError::Pattern(said));
        }
        let theirs = ephemeral_of(rest)?;
        let (payload, hash) = read(&mut state, rest)?;
        if let Some(resumption) = resumption {
            if !payload.is_empty() {
                return Err(HandshakeError::Payload("it has one, and none is due"));
            }
            resumption.peer.holds(checks)?;
            is_service(&resumption.peer.certified, terms)?;
            let channel = channel(state, terms, How::Resumed, resumption.peer);
            return Ok(Next::Done(channel, None));
        }
        let static_key = their_static(&state)?;
        let peer = read_who(&payload, (SERVICE, &hash), (&static_key, &theirs), checks)?;
        is_service(&peer.certified, terms)?;
        let (how, last) = match pattern {
            Pattern::First => {
                let payload = who(own, CALLER, &state, &ephemeral);
                (How::First, Some(write(&mut state, Pattern::First, &[], &payload)?))
            }
            _ => (How::Known, None),
        };
        Ok(Next::Done(channel(state, terms, how, peer), last))
    }
}

impl Service {
    /// Takes the caller's first message. `find` has what there is under the name of an earlier channel; it is
    /// this end's to say for how long, and with whom.
    ///
    /// # Errors
    /// [`HandshakeError`]
    pub fn answer(
        own: &Credentials,
        terms: &Terms,
        (message, retried): (&[u8], bool),
        find: impl FnOnce(&[u8; NAME]) -> Option<Resumption>,
        checks: &Checks<'_>,
    ) -> Result<Answer, HandshakeError> {
        let (said, rest) = opened(message)?;
        let with = (own, terms, retried);
        let retry = || Ok(Answer::Retry(vec![VERSION, Pattern::Retry as u8]));
        if said == Pattern::First as u8 {
            let (mut state, ephemeral) = state(Pattern::First, false, with, None, None);
            let theirs = ephemeral_of(rest)?;
            let (payload, _) = read(&mut state, rest)?;
            if !payload.is_empty() {
                return Err(HandshakeError::Payload("it has one, and none is due"));
            }
            let payload = who(own, SERVICE, &state, &ephemeral);
            let message = write(&mut state, Pattern::First, &[], &payload)?;
            return Ok(Answer::Waits(Self { state, theirs }, message));
        }
        // The caller begins anew once.
        if retried {
            return Err(HandshakeError::Pattern(said));
        }
        if said == Pattern::Known as u8 {
            let (mut state, ephemeral) = state(Pattern::Known, false, with, None, None);
            let theirs = ephemeral_of(rest)?;
            // The key may be that of an instance before this one.
            let Ok((payload, hash)) = read(&mut state, rest) else { return retry() };
            let static_key = their_static(&state)?;
            let peer = read_who(&payload, (CALLER, &hash), (&static_key, &theirs), checks)?;
            is_due(&peer.certified, &terms.caller)?;
            let payload = who(own, SERVICE, &state, &ephemeral);
            let message = write(&mut state, Pattern::Known, &[], &payload)?;
            return Ok(Answer::Done(channel(state, terms, How::Known, peer), message));
        }
        if said != Pattern::Resumed as u8 {
            return Err(HandshakeError::Pattern(said));
        }
        let (name, rest) = rest.split_first_chunk().ok_or(HandshakeError::Length(message.len()))?;
        let Some(resumption) = find(name) else { return retry() };
        // What held then need not hold any more.
        let peer = &resumption.peer;
        if peer.holds(checks).is_err() || is_due(&peer.certified, &terms.caller).is_err() {
            return retry();
        }
        let (mut state, _) = state(Pattern::Resumed, false, with, None, Some(&resumption.secret));
        let (payload, _) = read(&mut state, rest)?;
        if !payload.is_empty() {
            return Err(HandshakeError::Payload("it has one, and none is due"));
        }
        let message = write(&mut state, Pattern::Resumed, &[], &[])?;
        let channel = channel(state, terms, How::Resumed, resumption.peer);
        Ok(Answer::Done(channel, message))
    }

    /// Takes the caller's last message.
    ///
    /// # Errors
    /// [`HandshakeError`]
    pub fn finish(
        self,
        terms: &Terms,
        message: &[u8],
        checks: &Checks<'_>,
    ) -> Result<Channel, HandshakeError> {
        let Self { mut state, theirs } = self;
        let (said, rest) = opened(message)?;
        if said != Pattern::First as u8 {
            return Err(HandshakeError::Pattern(said));
        }
        let (payload, hash) = read(&mut state, rest)?;
        let static_key = their_static(&state)?;
        let peer = read_who(&payload, (CALLER, &hash), (&static_key, &theirs), checks)?;
        is_due(&peer.certified, &terms.caller)?;
        Ok(channel(state, terms, How::First, peer))
    }
}

#[cfg(test)]
mod tests;
