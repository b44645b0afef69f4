//! Who this process is to the others of its coordinator: its key, its certificate, and whom it has had
//! handshakes with.
//!
//! ```text
//! none       the first sealed link asks: Certify  -->  Certified: held
//! held       used; after two thirds of its life the next link asks for another one, and goes on with this
//! over       the next link waits for another one
//! Renew, another coordinator: dropped
//! ```
//!
//! The private keys are made here and never leave. The static key lives as long as the process, so that
//! others know it again; the key of the certificate is another one each time. Ages go by CLOCK_BOOTTIME,
//! from the time on that the coordinator has said: the wall's clock has no part in it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use partywall_abi::control::TrustMessage;
#[cfg(feature = "http2")]
use partywall_abi::name::{MethodSet, ServiceName};
use partywall_abi::version::Capabilities;
use partywall_trust::handshake::{Begin, Channel, Checks, Credentials, Resumption, StaticKey};
use partywall_trust::{Certified, Chain, Pin, Roots, SigningKey, TrustDomain};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::take::out_of_place;
use super::{Client, ENDED, State, Waiting};
use crate::error::Error;
use crate::lock::lock;

/// Services whose keys are kept, and channels of callers that can be resumed.
const KNOWN: usize = 256;
/// Of those, the most of one caller.
const OF_ONE: usize = 16;

/// Who this process is, by its coordinator's word.
pub(crate) struct Own {
    pub(crate) credentials: Credentials,
    pub(crate) certified: Certified,
    roots: Roots,
    /// The coordinator's time when this came, and how long this host was up then.
    time: SystemTime,
    up: Duration,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Own").field(&self.certified.id).finish()
    }
}

/// How long this host is up, suspended or not.
fn up() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

impl Own {
    /// The time by the coordinator's clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.time + up().saturating_sub(self.up)
    }

    /// Whom others are checked by, and by which pins.
    pub(crate) fn checks<'a>(&'a self, pins: &'a [Pin]) -> Checks<'a> {
        Checks { roots: &self.roots, now: self.now(), pinned: None, pins }
    }

    fn is_over(&self) -> bool {
        self.now() >= self.certified.not_after
    }

    /// Whether it is time for the next one.
    fn is_old(&self) -> bool {
        // It has held for a while when it came, for clocks that are behind.
        let life = self.certified.not_after.duration_since(self.time).unwrap_or_default();
        up().saturating_sub(self.up) >= life / 3 * 2
    }
}

type Answer = oneshot::Sender<Result<Arc<Own>, Error>>;

/// Who this process is, or where that will be told.
enum Known {
    Now(Arc<Own>),
    Soon(oneshot::Receiver<Result<Arc<Own>, Error>>),
}

/// A question for a certificate.
pub(super) struct CertificateQuestion {
    signer: SigningKey,
    waiting: Vec<Answer>,
}

/// What is kept of certificates.
#[derive(Default)]
pub(super) struct Certificates {
    own: Option<Arc<Own>>,
    static_key: Option<StaticKey>,
    /// The question that is not answered.
    asked: Option<u32>,
}

impl Certificates {
    /// Another authority may certify from here on.
    pub(super) fn forget(&mut self) {
        (self.own, self.asked) = (None, None);
    }
}

/// Keys of services, and what channels can be resumed by. What is too many drops the oldest.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    services: HashMap<Service, Session>,
    /// In the order of their coming.
    order: VecDeque<Service>,
    callers: VecDeque<Resumption>,
}

/// An instance of a service: its ID, its process as the coordinator has it, and the name it was asked for by.
pub(crate) type Service = (String, Option<u32>, String);

#[derive(Debug)]
struct Session {
    static_key: [u8; 32],
    resumption: Option<Resumption>,
}

impl Client {
    /// Who this process is, by what is known or by asking.
    fn own(self: &Arc<Self>) -> Result<Known, Error> {
        let mut state = lock(&self.state);
        let own = state.certificates.own.clone().filter(|own| !own.is_over());
        if let Some(own) = own {
            if own.is_old() && state.certificates.asked.is_none() {
                // Nobody waits; one that fails leaves this one.
                let _later = self.ask_for_certificate(&mut state, Vec::new());
            }
            return Ok(Known::Now(own));
        }
        let (tx, answer) = oneshot::channel();
        let asked = state.certificates.asked;
        match asked.and_then(|request| state.waiting.get_mut(&request)) {
            Some(Waiting::Certificate(question)) => question.waiting.push(tx),
            _ => self.ask_for_certificate(&mut state, vec![tx])?,
        }
        Ok(Known::Soon(answer))
    }

    /// Who this process is, if nobody has to be asked.
    pub(crate) fn certified_now(self: &Arc<Self>) -> Option<Arc<Own>> {
        match self.own() {
            Ok(Known::Now(own)) => Some(own),
            _ => None,
        }
    }

    /// Who this process is.
    pub(crate) async fn certified(self: &Arc<Self>, within: Duration) -> Result<Arc<Own>, Error> {
        match self.own()? {
            Known::Now(own) => Ok(own),
            Known::Soon(answer) => match tokio::time::timeout(within, answer).await {
                Ok(answer) => answer.unwrap_or(Err(ENDED)),
                Err(_) => Err(Error::TimedOut(within)),
            },
        }
    }

    /// The same, on a thread that may block.
    #[cfg(feature = "blocking")]
    pub(crate) fn certified_here(self: &Arc<Self>, within: Duration) -> Result<Arc<Own>, Error> {
        match self.own()? {
            Known::Now(own) => Ok(own),
            Known::Soon(mut answer) => super::operator::wait_here(&mut answer, within),
        }
    }

    fn ask_for_certificate(
        self: &Arc<Self>,
        state: &mut State,
        waiting: Vec<Answer>,
    ) -> Result<(), Error> {
        let can = state.conversation.as_ref().is_some_and(|it| it.has(Capabilities::SEAL));
        if !can && state.conversation.is_some() {
            let text = "the coordinator certifies no keys; remedy: update it";
            return Err(Error::CoordinatorGone(text));
        }
        let signer = SigningKey::generate();
        let key = signer.public().to_der();
        let proof = signer.sign(&[TrustMessage::PROOF, &key].concat());
        let question = Waiting::Certificate(CertificateQuestion { signer, waiting });
        let asked =
            self.ask(state, question, |request| TrustMessage::Certify { request, key, proof });
        state.certificates.asked = Some(asked?);
        Ok(())
    }

    /// The coordinator has answered, or says that what it has answered holds no more.
    pub(super) fn take_of_trust(self: &Arc<Self>, message: TrustMessage) {
        match message {
            TrustMessage::Renew => {
                let mut state = lock(&self.state);
                // What was asked for and has not come is of the other authority.
                state.certificates.own = None;
                drop(state);
                *lock(&self.sessions) = Sessions::default();
            }
            TrustMessage::Certified { request, now, chain, roots } => {
                let mut state = lock(&self.state);
                let waiting = state.waiting.remove(&request);
                let Some(Waiting::Certificate(question)) = waiting else { return };
                state.certificates.asked = None;
                let CertificateQuestion { signer, waiting } = question;
                let static_key =
                    state.certificates.static_key.get_or_insert_with(StaticKey::generate);
                let own = Own::new(static_key.clone(), signer, (now, chain), roots);
                match own.map(Arc::new) {
                    Ok(own) => {
                        state.certificates.own = Some(Arc::clone(&own));
                        drop(state);
                        waiting.into_iter().for_each(|tx| drop(tx.send(Ok(Arc::clone(&own)))));
                    }
                    Err(why) => {
                        drop(state);
                        tracing::error!(why, "the coordinator has sent what is no certificate");
                        let wrong = || Error::CoordinatorGone("it sent what is no certificate");
                        waiting.into_iter().for_each(|tx| drop(tx.send(Err(wrong()))));
                    }
                }
            }
            TrustMessage::Kept { request } => self.receipts_kept(request),
            TrustMessage::Allowed { request, methods } => {
                if let Some(Waiting::MayCall(tx)) = lock(&self.state).waiting.remove(&request) {
                    let _given_up = tx.send(Ok(methods));
                }
            }
            other => out_of_place(&other.into()),
        }
    }

    /// What may be called at a name that this process serves, by whom a certificate names.
    #[cfg(feature = "http2")]
    pub(crate) async fn may_call(
        self: &Arc<Self>,
        name: &ServiceName,
        id: &str,
        within: Duration,
    ) -> Result<MethodSet, Error> {
        let (tx, answer) = oneshot::channel();
        let (name, id) = (name.clone(), id.to_owned());
        let question = |request| TrustMessage::MayCall { request, name, id };
        self.ask(&mut lock(&self.state), Waiting::MayCall(tx), question)?;
        match tokio::time::timeout(within, answer).await {
            Ok(answer) => answer.unwrap_or(Err(ENDED)),
            Err(_) => Err(Error::TimedOut(within)),
        }
    }

    /// The coordinator has refused to certify.
    pub(super) fn not_certified(&self, question: CertificateQuestion, refused: impl Fn() -> Error) {
        lock(&self.state).certificates.asked = None;
        question.waiting.into_iter().for_each(|tx| drop(tx.send(Err(refused()))));
    }

    /// How a handshake with a service begins.
    pub(crate) fn begin_with(&self, service: &Service) -> Begin {
        let mut sessions = lock(&self.sessions);
        match sessions.services.get_mut(service) {
            None => Begin::First,
            // Each is used once, for each channel leaves another one.
            Some(session) => match session.resumption.take() {
                Some(resumption) => Begin::Resumed(Box::new(resumption)),
                None => Begin::Known(session.static_key),
            },
        }
    }

    /// A handshake with a service is done.
    pub(crate) fn keep_service(&self, service: Service, channel: &Channel) {
        let mut sessions = lock(&self.sessions);
        let session = Session {
            static_key: channel.peer.static_key,
            resumption: Some(channel.resumption.clone()),
        };
        if sessions.services.insert(service.clone(), session).is_none() {
            sessions.order.push_back(service);
            if sessions.order.len() > KNOWN
                && let Some(oldest) = sessions.order.pop_front()
            {
                sessions.services.remove(&oldest);
            }
        }
    }

    /// A service does not know any more what it was known by.
    pub(crate) fn forget_service(&self, service: &Service) {
        let mut sessions = lock(&self.sessions);
        sessions.services.remove(service);
        sessions.order.retain(|known| known != service);
    }

    /// A handshake with a caller is done. What it can be resumed by is kept, but not too much of one caller.
    pub(crate) fn keep_caller(&self, channel: &Channel) {
        let mut sessions = lock(&self.sessions);
        let id = &channel.peer.certified.id;
        let is_same = |known: &Resumption| known.peer().certified.id == *id;
        let of_one = sessions.callers.iter().filter(|known| is_same(known)).count();
        let oldest = match of_one >= OF_ONE {
            true => sessions.callers.iter().position(is_same),
            false => (sessions.callers.len() >= KNOWN).then_some(0),
        };
        oldest.map(|at| sessions.callers.remove(at));
        sessions.callers.push_back(channel.resumption.clone());
    }

    /// What a caller's channel can be resumed by, which is taken out: each serves once.
    pub(crate) fn take_caller(&self, name: &[u8; 16]) -> Option<Resumption> {
        let mut sessions = lock(&self.sessions);
        let at = sessions.callers.iter().position(|known| known.name() == *name)?;
        sessions.callers.remove(at)
    }
}

impl Own {
    fn new(
        static_key: StaticKey,
        signer: SigningKey,
        (now, chain): (u64, Vec<Vec<u8>>),
        roots: Vec<partywall_abi::control::Root>,
    ) -> Result<Self, String> {
        let told = |e: &dyn std::fmt::Display| e.to_string();
        let time = UNIX_EPOCH + Duration::from_secs(now);
        let mut known = Roots::default();
        for root in roots {
            let domain = TrustDomain::new(&root.domain).map_err(|e| told(&e))?;
            known.add(&domain, &root.certificate).map_err(|e| told(&e))?;
        }
        let chain = Chain::new(chain).map_err(|e| told(&e))?;
        let certified = known.verify(&chain, time).map_err(|e| told(&e))?;
        if certified.key != signer.public() {
            return Err("it is of another key".into());
        }
        let credentials = Credentials::new(static_key, signer, chain, Vec::new());
        let credentials = credentials.map_err(|e| told(&e))?;
        Ok(Self { credentials, certified, roots: known, time, up: up() })
    }
}

#[cfg(test)]
impl Client {
    /// As a process that has been started again, with the key that it had.
    pub(crate) fn forget_sessions(&self) {
        *lock(&self.sessions) = Sessions::default();
    }

    /// As one that was certified so.
    pub(crate) fn is(&self, own: Arc<Own>) {
        lock(&self.state).certificates.own = Some(own);
    }
}

#[cfg(test)]
impl Own {
    /// A process that an authority certifies so, from `time` on.
    pub(crate) fn certified_by(
        authority: &partywall_trust::Authority,
        id: &partywall_trust::Id,
        dns: &[&str],
        time: SystemTime,
    ) -> Arc<Self> {
        let signer = SigningKey::generate();
        let dns: Vec<_> = dns.iter().map(|name| (*name).to_owned()).collect();
        let issued = authority.issue(id, &dns, &signer.public(), (time, Duration::from_secs(60)));
        let chain = issued.unwrap().certificates().to_vec();
        let now = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let domain = authority.domain().as_str().to_owned();
        let root = partywall_abi::control::Root { domain, certificate: authority.root().to_vec() };
        Arc::new(Self::new(StaticKey::generate(), signer, (now, chain), vec![root]).unwrap())
    }
}
