//! Finding the coordinator, the first time and again.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use partywall_abi::control::{Grant, LinkMessage};
use partywall_shm::threads;
use tonic::Status;

use super::conversation::Conversation;
use super::place::Opened;
use super::{Client, ENDED, Event, Place, State, Waiting};
use crate::error::Error;
use crate::lock::lock;
use crate::time;

/// How long between two attempts to find the coordinator, at first and at last. A process that is
/// left alone for ever costs a connect(2) each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// How long after a name was refused it is asked for again: the policy may have changed.
pub(super) const REFUSED: Duration = Duration::from_secs(5);

impl Client {
    /// Opens a conversation if there is none, and waits for so long. One thread at a time proves this
    /// process; those that wait meanwhile have its outcome. A proof that is broken off cannot be gone
    /// on with: at a socket that was handed over it has all its time, whoever waits.
    pub(super) fn open(self: &Arc<Self>, within: Duration) -> Result<(), Error> {
        let deadline = time::after(within);
        let mut state = lock(&self.state);
        let before = state.attempts;
        loop {
            if state.conversation.is_some() {
                return Ok(());
            }
            if state.over {
                return Err(ENDED);
            }
            // One that had less time than this is no outcome for this.
            let broken_off = matches!(state.outcome, Some(Error::TimedOut(_)));
            if state.attempts != before && !state.proving && !broken_off {
                return Err(state.outcome.as_ref().map_or(ENDED, again));
            }
            if !state.proving {
                state.proving = true;
                drop(state);
                let turn = Turn(Arc::clone(self));
                let patience = self.place.patience();
                let left = deadline.saturating_duration_since(Instant::now());
                if !matches!(self.place, Place::Handed(_)) || left >= patience {
                    return turn.prove(left.min(patience));
                }
                let thread = std::thread::Builder::new().name("partywall-again".into());
                let prove = move || drop(turn.prove(patience));
                threads::spawn(thread, prove)
                    .map_err(|source| Error::Io { what: "starting a thread".into(), source })?;
                state = lock(&self.state);
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut(within));
            }
            let waited = self.proven.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes over a socket to which this process has proven itself, and tells the coordinator what
    /// it has to know.
    pub(super) fn begin(self: &Arc<Self>, Opened { socket, said }: Opened) -> Result<(), Error> {
        let conversation = Conversation::new(socket, said);
        {
            let mut state = lock(&self.state);
            state.conversation = Some(Arc::clone(&conversation));
            state.failure = None;
            self.tell_all(&mut state);
        }
        conversation.listen(self).map_err(|source| {
            self.ended(&conversation);
            Error::Io { what: "watching the coordinator's socket".into(), source }
        })
    }

    /// Tells a new coordinator of every end, registration and watch of this process, and of its memory.
    pub(super) fn tell_all(self: &Arc<Self>, state: &mut State) {
        // What another coordinator has certified this one's processes may not believe.
        state.certificates.forget();
        self.tell_of_memory(state);
        let keys: Vec<u64> = state.served.keys().copied().collect();
        for key in keys {
            self.register_now(state, key);
        }
        let names: Vec<_> = state.watched.keys().cloned().collect();
        for name in names {
            self.watch_now(state, &name);
        }
        let conversation = state.conversation.clone();
        let takes_grants = conversation.as_ref().is_some_and(|c| c.takes_parcels());
        for entry in state.lost.clone() {
            let (token, role, name) = (entry.token, entry.role, entry.name.clone());
            let security = entry.security();
            let grant = if takes_grants { entry.granted() } else { Grant::NONE };
            let report =
                |request| LinkMessage::Report { request, token, role, name, security, grant };
            let _ended = self.ask(state, Waiting::Report(entry), report);
        }
        self.hand_in_next(state);
        for (request, waiting) in &state.waiting {
            if let (Waiting::Connect(name, _), Some(conversation)) = (waiting, &conversation) {
                let (request, name) = (*request, name.clone());
                let _ended = conversation.send(LinkMessage::Connect { request, name });
            }
        }
    }

    /// A conversation has ended.
    pub(super) fn ended(self: &Arc<Self>, conversation: &Arc<Conversation>) {
        let mut state = lock(&self.state);
        let current = |c: &Arc<Conversation>| Arc::ptr_eq(c, conversation);
        if !state.conversation.as_ref().is_some_and(current) {
            return;
        }
        state.conversation = None;
        state.failure = Some(ENDED);
        state.over = matches!(self.place, Place::Handed(_));
        let over = state.over;
        let all = std::mem::take(&mut state.waiting);
        let mut all: Vec<_> = all.into_iter().collect();
        for (_, waiting) in all.extract_if(.., |(_, w)| matches!(w, Waiting::Receipts(_))) {
            if let Waiting::Receipts(batch) = waiting {
                state.receipts_not_kept(batch);
            }
        }
        let (lasting, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, w)| !over && matches!(w, Waiting::Connect(..)));
        state.waiting.extend(lasting);
        state.adopted.clear();
        let links = std::mem::take(&mut state.links).into_values();
        let (waiting, lost): (Vec<_>, Vec<_>) = links.partition(|entry| entry.waits_for_grant());
        state.lost.extend(lost);
        for served in state.served.values_mut() {
            served.number = None;
            let _dropped = served.events.send(if over { Event::Ended(ENDED) } else { Event::Lost });
        }
        for watched in state.watched.values_mut() {
            watched.request = None;
            watched.instances.send_replace(0);
        }
        if over {
            state.served.clear();
            state.watched.clear();
        }
        self.look(&mut state);
        drop(state);
        // What the next coordinator grants nobody knows, so its calls would wait for nothing.
        for entry in waiting {
            let text =
                "its coordinator has ended before it granted what it had promised; ask again";
            entry.over(Status::unavailable(text));
        }
        for (_, waiting) in others {
            match waiting {
                Waiting::Connect(_, tx) => drop(tx.send(Err(ENDED))),
                Waiting::Rows(_, tx) => drop(tx.send(Err(ENDED))),
                Waiting::Instances(_, tx) => drop(tx.send(Err(ENDED))),
                Waiting::Observed(_, tx) => drop(tx.send(Err(ENDED))),
                Waiting::Switch(tx) => drop(tx.send(Err(ENDED))),
                Waiting::Reload(tx) => drop(tx.send(Err(ENDED))),
                Waiting::Memory(question) => {
                    drop(question.answer.map(|tx| tx.send(Err(ENDED))));
                }
                Waiting::Trace(tracing) => tracing.refused(ENDED),
                Waiting::Certificate(question) => self.not_certified(question, || ENDED),
                Waiting::MayCall(tx) => drop(tx.send(Err(ENDED))),
                Waiting::Receipts(_) => unreachable!("they are put back"),
                Waiting::Register(_) | Waiting::Watch(_) | Waiting::Report(_) => {}
            }
        }
    }

    /// Has a thread look for the coordinator, where there is none and something waits for it.
    pub(super) fn look(self: &Arc<Self>, state: &mut State) {
        if state.looking || !state.wants_to_look() {
            return;
        }
        let client = Arc::clone(self);
        let looking = std::thread::Builder::new().name("partywall-again".into());
        // Without a thread, the next question tries again.
        state.looking = threads::spawn(looking, move || client.look_until_done()).is_ok();
    }

    fn look_until_done(self: Arc<Self>) {
        let mut pause = PAUSE.0;
        loop {
            let wait = {
                let mut state = lock(&self.state);
                if !state.wants_to_look() {
                    state.looking = false;
                    return;
                }
                state.failure.get_or_insert(ENDED);
                match (&state.conversation, state.next_again()) {
                    (Some(_), Some(at)) => {
                        let now = Instant::now();
                        if at <= now {
                            self.register_refused(&mut state, now);
                        }
                        at.saturating_duration_since(now).min(Duration::from_secs(1))
                    }
                    _ => Duration::ZERO,
                }
            };
            if !wait.is_zero() {
                std::thread::sleep(wait);
                continue;
            }
            match self.open(self.place.patience()) {
                Ok(()) => pause = PAUSE.0,
                Err(error) => {
                    tracing::debug!(%error, "no coordinator yet");
                    std::thread::sleep(pause);
                    pause = PAUSE.1.min(2 * pause);
                }
            }
        }
    }

    fn register_refused(self: &Arc<Self>, state: &mut State, now: Instant) {
        let due = |s: &super::Served| s.again.is_some_and(|at| at <= now);
        let keys: Vec<u64> =
            state.served.iter().filter(|(_, s)| due(s)).map(|(key, _)| *key).collect();
        for key in keys {
            self.register_now(state, key);
        }
    }
}

/// A thread's turn to prove this process, until the drop.
struct Turn(Arc<Client>);

impl Turn {
    fn prove(self, within: Duration) -> Result<(), Error> {
        let client = &self.0;
        let opened = client.place.open(within).and_then(|opened| client.begin(opened));
        let mut state = lock(&client.state);
        state.outcome = opened.as_ref().err().map(again);
        // For those who give up waiting for it.
        if state.failure.is_some() && state.outcome.is_some() {
            state.failure = state.outcome.as_ref().map(again);
        }
        drop(state);
        opened
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.proving = false;
        state.attempts += 1;
        drop(state);
        self.0.proven.notify_all();
    }
}

impl State {
    /// When a name that was refused is asked for again.
    fn next_again(&self) -> Option<Instant> {
        self.served.values().filter_map(|s| s.again).min()
    }

    fn wants_to_look(&self) -> bool {
        if self.over {
            return false;
        }
        let asks = |w: &Waiting| matches!(w, Waiting::Connect(..));
        match self.conversation {
            Some(_) => self.next_again().is_some(),
            None => {
                !self.served.is_empty()
                    || !self.watched.is_empty()
                    || !self.lost.is_empty()
                    || self.has_receipts()
                    || self.waiting.values().any(asks)
            }
        }
    }
}

/// An error, to be told again.
pub(super) fn again(error: &Error) -> Error {
    let copy = |source: &std::io::Error| std::io::Error::new(source.kind(), source.to_string());
    match error {
        Error::NoCoordinator { place, source } => {
            Error::NoCoordinator { place: place.clone(), source: copy(source) }
        }
        Error::WrongCoordinator { place, found, expected } => Error::WrongCoordinator {
            place: place.clone(),
            found: *found,
            expected: expected.clone(),
        },
        Error::NotAdmitted { place, why } => {
            Error::NotAdmitted { place: place.clone(), why: why.clone() }
        }
        Error::Protocol(error) => Error::Protocol(error.clone()),
        Error::Denied { text } => Error::Denied { text: text.clone() },
        Error::QuotaExceeded { text } => Error::QuotaExceeded { text: text.clone() },
        Error::Refused { code, text } => Error::Refused { code: *code, text: text.clone() },
        Error::Io { what, source } => Error::Io { what: what.clone(), source: copy(source) },
        Error::TimedOut(within) => Error::TimedOut(*within),
        Error::CoordinatorGone(why) => Error::CoordinatorGone(why),
        _ => ENDED,
    }
}
