//! Telling a thread that sleeps on a futex that its peer is gone.
//!
//! The word it sleeps on is the peer's, and the peer no longer writes. So whoever learns of the
//! death announces it and then wakes the sleepers until there are none:
//!
//! ```text
//! sleeper                                   announcer
//! sleepers += 1                             dead = true
//! fence(SeqCst)           SYNC(link.dead)   fence(SeqCst)
//! dead? -> do not sleep                     sleepers > 0? -> wake, look again
//! futex_wait
//! sleepers -= 1
//! ```
//!
//! By the fences, either the sleeper sees `dead`, or the announcer sees the sleeper
//! and goes on waking; a wake-up that comes before the futex_wait is repeated.

use partywall_abi::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The state of one link.
#[derive(Debug)]
pub struct Death {
    dead: AtomicBool,
    sleepers: AtomicU32,
}

impl Default for Death {
    fn default() -> Self {
        Self { dead: AtomicBool::new(false), sleepers: AtomicU32::new(0) }
    }
}

impl Death {
    /// Counts a sleeper in; false when it must not sleep. [`Death::leave`] follows either way.
    pub fn enter(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC(link.dead)
        !self.announced()
    }

    /// Counts a sleeper out.
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::Release);
    }

    /// Announces the death; true while there are sleepers to wake.
    pub fn announce(&self) -> bool {
        self.dead.store(true, Ordering::Release);
        fence(Ordering::SeqCst); // SYNC(link.dead)
        self.sleepers.load(Ordering::Acquire) > 0
    }

    /// Whether the death has been announced.
    pub fn announced(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}
