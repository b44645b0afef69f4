//! Memory that this process makes for parcels, as the coordinators see it that it speaks to: each is asked
//! for all of it before more is made, and told again of all of it by a conversation that begins.
//!
//! One that has not answered in time is asked no more before it has: nobody waits for it twice. What it gives
//! then is kept for a moment ([`budget::given_in_vain`]).
//!
//! A coordinator that has gone is not asked: what this process has, the next one hears. One that refuses
//! what is there already takes nothing away; no more is made. A coordinator of an older release knows no
//! such quota.

use std::time::{Duration, Instant};

use partywall_abi::control::MemoryMessage;
use partywall_abi::version::Capabilities;
use partywall_shm::parcel::ParcelError;
use partywall_shm::parcel::budget::{self, Keeper};
use tokio::sync::oneshot;

use super::operator::wait_here;
use super::{AGENTS, Arc, Client, MemoryQuestion, State, Waiting};
use crate::error::Error;
use crate::lock::lock;

/// How long one that has refused is not asked again by who has less time than that.
const REFUSED: Duration = Duration::from_millis(100);

/// All coordinators of this process.
struct Coordinators;

impl Keeper for Coordinators {
    fn want(&self, bytes: usize, within: Duration) -> Result<usize, ParcelError> {
        let mut least = None;
        for client in clients() {
            if let Some(given) = client.want_memory(bytes, within)? {
                least = Some(least.map_or(given, |least: usize| least.min(given)));
            }
        }
        Ok(least.unwrap_or(bytes))
    }

    fn give_back(&self, bytes: usize, more: usize) -> usize {
        let given = clients().into_iter().filter_map(|client| client.give_back(bytes, more));
        given.min().unwrap_or(bytes)
    }
}

fn clients() -> Vec<Arc<Client>> {
    lock(&AGENTS).iter().flat_map(|clients| clients.values().cloned()).collect()
}

impl Client {
    /// Asks for so many bytes in all, if it has given fewer: what it has given; nothing of one that is not
    /// asked.
    pub(super) fn want_memory(
        self: &Arc<Self>,
        bytes: usize,
        within: Duration,
    ) -> Result<Option<usize>, ParcelError> {
        let unanswered = || {
            let why = "the coordinator has not said yet that this process may have more memory";
            Err(ParcelError::Unanswered(why))
        };
        let mut answer = {
            let mut state = lock(&self.state);
            if !state.keeps_memory() {
                return Ok(None);
            }
            if state.memory >= bytes {
                return Ok(Some(state.memory));
            }
            if state.memory_late.is_some_and(|(request, since)| {
                since.elapsed() >= within && state.waiting.contains_key(&request)
            }) {
                return unanswered();
            }
            // A message that could be in a parcel comes often.
            if within < REFUSED
                && let Some((at, why)) = &state.memory_refused
                && at.elapsed() < REFUSED
            {
                return Err(ParcelError::Quota(why.clone()));
            }
            let (tx, answer) = oneshot::channel();
            let Ok(request) = self.ask_for_memory(&mut state, bytes, Some(tx)) else {
                return Ok(None);
            };
            state.memory_late = Some((request, Instant::now()));
            answer
        };
        if within.is_zero() {
            return unanswered();
        }
        match wait_here(&mut answer, within) {
            Ok(given) => Ok(Some(given)),
            Err(Error::CoordinatorGone(_)) => Ok(None),
            Err(Error::TimedOut(_)) => unanswered(),
            Err(Error::QuotaExceeded { text }) => Err(ParcelError::Quota(text)),
            Err(other) => Err(ParcelError::Quota(other.to_string())),
        }
    }

    fn ask_for_memory(
        self: &Arc<Self>,
        state: &mut State,
        bytes: usize,
        answer: Option<oneshot::Sender<Result<usize, Error>>>,
    ) -> Result<u32, Error> {
        let question = MemoryQuestion { answer, bytes, given_back: state.memory_given_back };
        let (bytes, waiting) = (bytes as u64, Waiting::Memory(question));
        self.ask(state, waiting, |request| MemoryMessage::Want { request, bytes })
    }

    fn give_back(&self, bytes: usize, more: usize) -> Option<usize> {
        let mut state = lock(&self.state);
        if !state.keeps_memory() {
            return None;
        }
        let left = bytes.saturating_add(more);
        if state.memory > left {
            state.memory = left;
            state.memory_given_back += 1;
            // With the lock: in the order of the questions, and to the coordinator that has given it.
            if let Some(conversation) = &state.conversation {
                let _ended =
                    conversation.send(MemoryMessage::Want { request: 0, bytes: left as u64 });
            }
            return Some(left);
        }
        Some(state.memory)
    }

    /// A conversation begins: tells the coordinator what this process has.
    pub(super) fn tell_of_memory(self: &Arc<Self>, state: &mut State) {
        // Unit tests share a process with coordinators that answer nothing.
        if !cfg!(test) {
            budget::keep(&Coordinators);
        }
        (state.memory, state.memory_refused) = (0, None);
        budget::void();
        let has = budget::has();
        if has > 0 && state.keeps_memory() {
            let _ended = self.ask_for_memory(state, has, None);
        }
    }

    /// The coordinator has answered.
    pub(super) fn take_of_memory(&self, message: &MemoryMessage) {
        let MemoryMessage::Given { request, bytes } = *message else {
            return super::take::out_of_place(&message.clone().into());
        };
        let mut state = lock(&self.state);
        let waiting = state.waiting.remove(&request);
        let Some(Waiting::Memory(question)) = waiting else { return };
        let MemoryQuestion { answer, given_back, .. } = question;
        let given = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Answers come in the order of the questions. Less may have been given back since this one was asked,
        // or may be asked for by one that is not answered.
        if state.memory_given_back == given_back {
            let asked = |waiting: &Waiting| match waiting {
                Waiting::Memory(question) => Some(question.bytes),
                _ => None,
            };
            let least = state.waiting.values().filter_map(asked).min();
            state.memory = given.min(least.unwrap_or(given));
        }
        drop(state);
        let taken = answer.is_some_and(|answer| answer.send(Ok(given)).is_ok());
        if !taken {
            budget::given_in_vain(given);
        }
    }

    /// The coordinator has said no.
    pub(super) fn memory_is_refused(&self, why: &str) {
        lock(&self.state).memory_refused = Some((Instant::now(), why.into()));
    }
}

impl State {
    /// Whether there is a coordinator that is asked.
    fn keeps_memory(&self) -> bool {
        self.conversation.as_ref().is_some_and(|it| it.has(Capabilities::MEMORY))
    }
}
