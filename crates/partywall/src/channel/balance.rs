//! The links of one channel to a name, and which of them a call takes: one link without a balance, else one
//! to each instance.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::lock::lock;

/// How calls of a channel are spread over the instances of a name.
///
/// It has effect on rings, and over the network on the addresses that a name of the policy has. A channel to
/// an address has that one alone, and whatever spreads the calls is behind it.
///
/// ```no_run
/// # async fn f() -> Result<(), partywall::Error> {
/// let channel = partywall::Endpoint::from_static("partywall:///greeter")
///     .balance(partywall::Balance::LeastOutstanding)
///     .connect()
///     .await?;
/// # let _ = channel; Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// Each call goes to the next instance.
    RoundRobin,
    /// Each call goes to an instance with the fewest calls of this channel under way.
    LeastOutstanding,
}

/// What calls are spread over.
pub(super) trait Link {
    /// Whether it takes calls.
    fn usable(&self) -> bool;

    /// Calls under way on it.
    fn outstanding(&self) -> usize;

    /// Whether both lead to one process that the coordinator can tell from others.
    fn is_to_the_instance_of(&self, other: &Self) -> bool;
}

/// Links of a channel, and the task that keeps them.
pub(super) struct Links<L> {
    balance: Option<Balance>,
    all: Mutex<All<L>>,
    /// A call has found a link over.
    pub(super) wanted: Arc<Notify>,
    keeper: Mutex<Option<AbortHandle>>,
}

struct All<L> {
    links: Vec<Arc<L>>,
    /// Which is the next one's turn.
    turn: usize,
}

impl<L: Link> Links<L> {
    pub(super) fn new(balance: Option<Balance>) -> Self {
        let all = Mutex::new(All { links: Vec::new(), turn: 0 });
        Self { balance, all, wanted: Arc::default(), keeper: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, All<L>> {
        lock(&self.all)
    }

    /// The link for a call.
    pub(super) fn pick(&self) -> Option<Arc<L>> {
        let mut all = self.all();
        let Some(balance) = self.balance else {
            return all.links.first().filter(|c| c.usable()).cloned();
        };
        let before = all.links.len();
        all.links.retain(|c| c.usable());
        if all.links.len() < before {
            self.wanted.notify_one();
        }
        let n = all.links.len();
        let mut turns = (0..n).map(|i| all.turn.wrapping_add(i) % n);
        let at = match balance {
            Balance::RoundRobin => turns.next(),
            Balance::LeastOutstanding => turns.min_by_key(|at| all.links[*at].outstanding()),
        }?;
        all.turn = at + 1;
        Some(Arc::clone(&all.links[at]))
    }

    /// A link that a call may take; it is not taken for one.
    pub(super) fn peek(&self) -> Option<Arc<L>> {
        self.all().links.iter().find(|c| c.usable()).cloned()
    }

    /// Takes a link in; false when there is one to the same instance.
    pub(super) fn add(&self, link: L) -> bool {
        let mut all = self.all();
        // The old link ends with its last call.
        all.links.retain(|c| c.usable());
        if all.links.iter().any(|c| c.is_to_the_instance_of(&link)) {
            return false;
        }
        all.links.push(Arc::new(link));
        true
    }

    /// Has the task that `start` starts keep the links, if there is a balance and none does yet.
    pub(super) fn keep(&self, start: impl FnOnce() -> AbortHandle) {
        let mut keeper = lock(&self.keeper);
        if self.balance.is_some() && keeper.as_ref().is_none_or(AbortHandle::is_finished) {
            *keeper = Some(start());
        }
    }

    /// How many take calls.
    pub(super) fn usable(&self) -> usize {
        let mut all = self.all();
        all.links.retain(|c| c.usable());
        all.links.len()
    }
}

impl<L> Drop for Links<L> {
    fn drop(&mut self) {
        lock(&self.keeper).iter().for_each(AbortHandle::abort);
    }
}
