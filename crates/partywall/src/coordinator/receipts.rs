//! Receipts of signed messages on their way to the coordinator, which keeps them in its audit log.
//!
//! ```text
//! room       a message that is passed on has room for its receipt: [`MOST`] wait at once
//! waiting    oldest first, until the batch before is kept
//! under way  one batch, until the coordinator says that it is kept; then its room is given back
//! ```
//!
//! A coordinator that has gone gets all that are not kept when there is another one. What this process has
//! when it ends, and the coordinator does not, is lost with it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use partywall_abi::control::TrustMessage;
use partywall_abi::limits;
use partywall_abi::version::Capabilities;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Client, State, Waiting};
use crate::lock::lock;

/// Receipts that are not kept yet, of this process.
const MOST: usize = 1024;
/// Receipts of one batch.
const BATCH: usize = 32;

/// Room for a receipt.
pub(crate) type Permit = OwnedSemaphorePermit;

static ROOM: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MOST)));

type Later = Pin<Box<dyn Future<Output = Permit> + Send>>;

/// Room for a receipt, now or later.
pub(crate) enum Room {
    Now(Option<Permit>),
    Later(Later),
}

impl Room {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Permit> {
        match self {
            Self::Now(permit) => Poll::Ready(permit.take().expect("polled after the end")),
            Self::Later(later) => Poll::Ready(ready!(later.as_mut().poll(cx))),
        }
    }
}

/// A receipt and its room.
type Receipt = (Vec<u8>, Permit);

/// Those that wait.
#[derive(Default)]
pub(super) struct Receipts {
    waiting: VecDeque<Receipt>,
    under_way: bool,
}

impl Client {
    /// Room for a receipt.
    pub(crate) fn room_for_receipt(&self) -> Room {
        match Arc::clone(&ROOM).try_acquire_owned() {
            Ok(permit) => Room::Now(Some(permit)),
            Err(_) => Room::Later(Box::pin(async {
                let room = Arc::clone(&ROOM).acquire_owned().await;
                room.expect("it is never closed")
            })),
        }
    }

    /// Hands a receipt in.
    pub(crate) fn hand_in(self: &Arc<Self>, receipt: Vec<u8>, room: Permit) {
        let mut state = lock(&self.state);
        state.receipts.waiting.push_back((receipt, room));
        self.hand_in_next(&mut state);
        self.look(&mut state);
    }

    /// Sends the next ones, if none are under way.
    pub(super) fn hand_in_next(self: &Arc<Self>, state: &mut State) {
        let takes = state.conversation.as_ref().is_some_and(|it| it.has(Capabilities::SEAL));
        if !takes || state.receipts.under_way {
            return;
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((receipt, _)) = state.receipts.waiting.front() {
            bytes += receipt.len();
            if batch.len() == BATCH || (bytes > limits::RECEIPTS_BYTES && !batch.is_empty()) {
                break;
            }
            batch.extend(state.receipts.waiting.pop_front());
        }
        if batch.is_empty() {
            return;
        }
        let receipts = batch.iter().map(|(receipt, _)| receipt.clone()).collect();
        state.receipts.under_way = true;
        let question = |request| TrustMessage::Receipts { request, receipts };
        // Where that fails the conversation has ended, and these are put back.
        let _ended = self.ask(state, Waiting::Receipts(batch), question);
    }

    /// The coordinator does not take the batch under way.
    pub(super) fn receipts_refused(self: &Arc<Self>, text: &str) {
        tracing::error!(text, "receipts of signed messages are lost");
        let mut state = lock(&self.state);
        state.receipts.under_way = false;
        self.hand_in_next(&mut state);
    }

    /// The batch under way is kept.
    pub(super) fn receipts_kept(self: &Arc<Self>, request: u32) {
        let mut state = lock(&self.state);
        if let Some(Waiting::Receipts(batch)) = state.waiting.remove(&request) {
            state.receipts.under_way = false;
            self.hand_in_next(&mut state);
            drop(state);
            drop(batch);
        }
    }
}

impl State {
    /// The batch under way was not kept.
    pub(super) fn receipts_not_kept(&mut self, batch: Vec<Receipt>) {
        self.receipts.under_way = false;
        batch.into_iter().rev().for_each(|receipt| self.receipts.waiting.push_front(receipt));
    }

    /// Whether there are some that are not kept.
    pub(super) fn has_receipts(&self) -> bool {
        !self.receipts.waiting.is_empty()
    }
}
