//! The pauses between attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);

/// Pauses of which each is twice as long as the one before, up to a longest.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// No pause is longer unless it is said.
    pub(crate) const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Self {
        Self::up_to(Self::LONGEST)
    }

    pub(crate) fn up_to(longest: Duration) -> Self {
        Self { next: FIRST, longest }
    }

    /// How long the next pause is.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}
