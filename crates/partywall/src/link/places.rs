//! Who waits for a place for a call.
//!
//! A caller's link has as many places as the service has said. A call that finds none waits: each
//! place that becomes free is kept for the first in the queue, which takes it, or gives it on by being
//! dropped. Whoever comes meanwhile waits behind. So calls begin in the order in which they
//! began to wait, and one that is given up costs nobody a place. When the link closes or drains,
//! all of them are told to go elsewhere.

use std::collections::VecDeque;

use tokio::sync::oneshot;

/// What became of a wish for a place.
pub(super) enum Place {
    /// There is one.
    Free,
    /// There will be one when this says so; none when that is dropped.
    Later(oneshot::Receiver<()>),
    /// There will be none.
    Never,
}

/// Those who wait.
#[derive(Default)]
pub(super) struct Queue {
    /// Places that are kept for calls which waited.
    kept: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
    /// No call begins here any more.
    shut: bool,
}

impl Queue {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a call may begin that has not waited, where so many places are free.
    pub(super) fn lets_begin(&self, free: usize) -> bool {
        free > self.kept && self.waiting.is_empty()
    }

    /// Asks for a place; one that is free is kept.
    pub(super) fn ask(&mut self, free: usize) -> Place {
        if self.shut {
            return Place::Never;
        }
        if self.lets_begin(free) {
            self.kept += 1;
            return Place::Free;
        }
        if self.waiting.len() == self.waiting.capacity() {
            self.waiting.retain(|other| !other.is_closed());
        }
        let (wake, woken) = oneshot::channel();
        self.waiting.push_back(wake);
        Place::Later(woken)
    }

    /// A place that was kept is used, or is not wanted.
    pub(super) fn unkeep(&mut self) {
        self.kept -= 1;
    }

    /// Keeps a place for the first who waits, if there is one for it.
    pub(super) fn next(&mut self, free: usize) -> Option<oneshot::Sender<()>> {
        if free <= self.kept {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.kept += 1;
        Some(first)
    }

    /// Lets no call begin any more; who waits is told by the drop.
    #[must_use = "the drop tells those who wait, and belongs outside of the lock"]
    pub(super) fn shut(&mut self) -> VecDeque<oneshot::Sender<()>> {
        self.shut = true;
        std::mem::take(&mut self.waiting)
    }
}
