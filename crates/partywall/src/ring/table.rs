//! The calls that are open on a link, and who waits for a place among them.
//!
//! On the caller's side a link has as many places as the service has said. A call that finds none
//! waits: each place that becomes free is kept for the first in the queue, which takes it, or gives
//! it on by being dropped. Whoever comes meanwhile waits behind. So calls begin in the order in
//! which they began to wait, and one that is given up costs nobody a place. When the link closes or
//! drains, all of them are told to go elsewhere.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::stream::Stream;

/// The calls of a link.
pub(crate) struct Table {
    /// Open calls by number. Numbers are the caller's choice, and there are at most
    /// [`partywall_abi::limits::STREAMS_MAX`], so a plain multiplication hashes well enough.
    pub(crate) calls: HashMap<u32, Arc<Stream>, BuildHasherDefault<IdHasher>>,
    /// How many calls may be open; of a service's link, how many are leased.
    pub(crate) places: usize,
    /// Places that are kept for calls which waited.
    kept: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
    /// No call begins here any more.
    shut: bool,
    /// Places are leased.
    pub(crate) leases: bool,
}

/// What became of a wish for a place.
pub(crate) enum Place {
    /// There is one.
    Free,
    /// There will be one when this says so; none when that is dropped.
    Later(oneshot::Receiver<()>),
    /// There will be none.
    Never,
}

impl Default for Table {
    /// The table of a service's link.
    fn default() -> Self {
        Self { leases: true, ..Self::with_places(FREE_PLACES) }
    }
}

/// Places that a service's link has without leasing them.
pub(crate) const FREE_PLACES: usize = 1;

impl Table {
    /// The table of a caller's link.
    pub(crate) fn with_places(places: usize) -> Self {
        let (calls, waiting) = (HashMap::default(), VecDeque::new());
        Self { calls, places, kept: 0, waiting, shut: false, leases: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether there is one call, and nobody who waits to begin another one.
    pub(crate) fn is_lone(&self) -> bool {
        self.calls.len() == 1 && self.waiting.is_empty()
    }

    /// Whether a call may begin that has not waited.
    pub(crate) fn is_free(&self) -> bool {
        self.calls.len() + self.kept < self.places && self.waiting.is_empty()
    }

    /// Asks for a place; one that is free is kept.
    pub(crate) fn ask(&mut self) -> Place {
        if self.shut {
            return Place::Never;
        }
        if self.is_free() {
            self.kept += 1;
            return Place::Free;
        }
        if self.waiting.len() == self.waiting.capacity() {
            self.waiting.retain(|other| !other.is_closed());
        }
        let (told, heard) = oneshot::channel();
        self.waiting.push_back(told);
        Place::Later(heard)
    }

    /// A place that was kept is used, or is not wanted.
    pub(crate) fn unkeep(&mut self) {
        self.kept -= 1;
    }

    /// Keeps a place for the first who waits, if there is one for it.
    pub(crate) fn next(&mut self) -> Option<oneshot::Sender<()>> {
        if self.waiting.is_empty() || self.calls.len() + self.kept >= self.places {
            return None;
        }
        self.kept += 1;
        self.waiting.pop_front()
    }

    /// Takes out leased places that are more than this link will soon need again.
    pub(crate) fn spare(&mut self) -> usize {
        let open = self.calls.len();
        let needed = if open <= FREE_PLACES { FREE_PLACES } else { open + 1 + open / 2 };
        let spare = self.places.saturating_sub(needed);
        self.places -= spare;
        spare
    }

    /// Lets no call begin any more; who waits is told by the drop.
    pub(crate) fn shut(&mut self) -> VecDeque<oneshot::Sender<()>> {
        self.shut = true;
        std::mem::take(&mut self.waiting)
    }
}

#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
