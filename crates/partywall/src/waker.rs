//! Who is woken.

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use partywall_call::Key;

/// Remembers a waker, without cloning one that is there already; the one whose place it takes.
pub(crate) fn register(slot: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    if slot.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
        return None;
    }
    slot.replace(cx.waker().clone())
}

/// Calls that wait for the same thing. What they are woken by is dropped when whatever guards this is free:
/// that may end a task which has calls of its own.
#[derive(Default)]
pub(crate) struct Waiters(BTreeMap<Key, Waker>);

impl Waiters {
    /// Has the task of a call woken with the others; the waker whose place it takes.
    pub(crate) fn wait(&mut self, key: Key, cx: &Context<'_>) -> Option<Waker> {
        match self.0.get(&key) {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => self.0.insert(key, cx.waker().clone()),
        }
    }

    /// A call that is over waits no more.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Waker> {
        self.0.remove(&key)
    }

    /// Those who wait, who do so no more: in the order of their streams.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(crate) fn wake(self) {
        self.0.into_values().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
