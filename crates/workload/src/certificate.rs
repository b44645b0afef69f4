//! The certificate of one connection, for all its calls.
//!
//! ```text
//! none      a call asks: Certify  --> Certified: held     --> Refused: the call fails, the next one asks
//! held      given to calls; after two thirds of its life, and on Renew, another key and another certificate
//! Refused   as PERMISSION_DENIED: none from here on, and the calls that are open end with that
//!           else: the one that is held goes on while it holds, and it is asked again
//! ```
//!
//! Calls see the latest ([`tokio::sync::watch`]). One that does not keep up misses those between.

use std::sync::Arc;
use std::time::Duration;

use partywall_abi::control::{Message, SessionMessage, TrustMessage};
use partywall_trust::SigningKey;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Code, Status};

use crate::session::{Ended, Session};
use crate::svid::Svid;

/// The longest sleep: a host that was suspended finds a certificate that is old soon after.
const LOOK: Duration = Duration::from_secs(30);
/// The shortest one before it is asked again; twice as long each time that it is refused.
const LEAST: Duration = Duration::from_millis(100);

/// What calls are to say now.
pub(crate) type Shown = Result<Arc<Svid>, Status>;
type Want = oneshot::Sender<Shown>;

/// A connection's certificate, for its calls.
#[derive(Clone)]
pub(crate) struct Certificate {
    wants: mpsc::Sender<Want>,
    shown: watch::Receiver<Option<Shown>>,
}

/// The part of it that asks.
pub(crate) struct Keeper {
    session: Session,
    wants: mpsc::Receiver<Want>,
    shown: watch::Sender<Option<Shown>>,
    waiting: Vec<Want>,
    asked: Option<(u32, SigningKey)>,
    requests: u32,
    held: Option<Arc<Svid>>,
    /// The last one that was held, by which versions are counted.
    last: Option<Arc<Svid>>,
    /// The shortest sleep now.
    pause: Duration,
}

/// Of a workload that was admitted.
pub(crate) fn keep(session: Session) -> (Certificate, Keeper) {
    let ((tx, wants), (shown, rx)) = (mpsc::channel(1), watch::channel(None));
    let keeper = Keeper {
        session,
        wants,
        shown,
        waiting: Vec::new(),
        asked: None,
        requests: 0,
        held: None,
        last: None,
        pause: LEAST,
    };
    (Certificate { wants: tx, shown: rx }, keeper)
}

fn ended() -> Status {
    Status::unavailable("the coordinator has ended, or this process has")
}

impl Certificate {
    /// The one that holds now.
    pub(crate) async fn now(&self) -> Shown {
        let (tx, rx) = oneshot::channel();
        self.wants.send(tx).await.map_err(|_| ended())?;
        rx.await.unwrap_or_else(|_| Err(ended()))
    }

    /// The latest from here on: after [`Self::now`] there is one.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<Shown>> {
        self.shown.clone()
    }
}

impl Keeper {
    /// Asks and answers until the conversation is over.
    pub(crate) async fn run(mut self) -> Ended {
        loop {
            if let Err(ended) = self.step().await {
                return ended;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Ended> {
        let until_old = self.held.as_ref().map(|held| held.until_old());
        let due = until_old.filter(|_| self.asked.is_none());
        let sleep = due.unwrap_or(LOOK).clamp(self.pause, LOOK);
        tokio::select! {
            message = self.session.next() => self.take(message?).await,
            Some(want) = self.wants.recv() => self.want(want).await,
            () = tokio::time::sleep(sleep), if due.is_some() => self.look().await,
        }
    }

    async fn look(&mut self) -> Result<(), Ended> {
        match self.held.as_ref().is_some_and(|held| held.until_old().is_zero()) {
            true => self.ask().await,
            false => Ok(()),
        }
    }

    async fn want(&mut self, want: Want) -> Result<(), Ended> {
        if let Some(held) = self.held.as_ref().filter(|held| !held.is_over()) {
            let _given_up = want.send(Ok(Arc::clone(held)));
            return Ok(());
        }
        // Who has given up meanwhile is not kept.
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push(want);
        match self.asked {
            Some(_) => Ok(()),
            None => self.ask().await,
        }
    }

    async fn ask(&mut self) -> Result<(), Ended> {
        // Zero stands for the whole conversation.
        self.requests = self.requests.wrapping_add(1).max(1);
        let signer = SigningKey::generate();
        let key = signer.public().to_der();
        let proof = signer.sign(&[TrustMessage::PROOF, &key].concat());
        let request = self.requests;
        self.asked = Some((request, signer));
        self.session.send(TrustMessage::Certify { request, key, proof }).await
    }

    async fn take(&mut self, message: Message) -> Result<(), Ended> {
        match message {
            Message::Trust(TrustMessage::Certified { request, now, chain, roots }) => {
                let asked = self.asked.take_if(|(asked, _)| *asked == request);
                let Some((_, signer)) = asked else { return Ok(()) };
                let svid = Svid::new(&signer, (now, chain), roots, self.last.as_deref());
                match svid.map(Arc::new) {
                    Ok(svid) => {
                        self.pause = LEAST;
                        (self.held, self.last) = (Some(Arc::clone(&svid)), Some(Arc::clone(&svid)));
                        self.show(&Ok(svid));
                    }
                    Err(why) => {
                        tracing::error!(why, "the coordinator has sent what is no certificate");
                        self.fails(Status::internal(
                            "the coordinator has sent what is no certificate",
                        ));
                    }
                }
                Ok(())
            }
            // Who never asked does not now. An answer that is awaited is of the time after this message.
            Message::Trust(TrustMessage::Renew) if self.last.is_some() && self.asked.is_none() => {
                self.ask().await
            }
            Message::Session(SessionMessage::Refused { request: 0, text, .. }) => {
                Err(Ended::Refused(text))
            }
            Message::Session(SessionMessage::Refused { request, code, text }) => {
                if self.asked.take_if(|(asked, _)| *asked == request).is_some() {
                    self.fails(Status::new(Code::from_i32(code.into()), text));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// There is no other certificate.
    fn fails(&mut self, status: Status) {
        let denied = status.code() == Code::PermissionDenied;
        self.pause = LOOK.min(2 * self.pause);
        if let Some(held) = self.held.take_if(|held| denied || held.is_over()) {
            tracing::debug!(?held, %status, "workload API: its certificate is not given out any more");
        }
        match &self.held {
            Some(held) => tracing::warn!(?held, %status, "workload API: no other certificate yet"),
            None => self.show(&Err(status)),
        }
    }

    fn show(&mut self, shown: &Shown) {
        self.shown.send_replace(Some(shown.clone()));
        for want in self.waiting.drain(..) {
            let _given_up = want.send(shown.clone());
        }
    }
}
