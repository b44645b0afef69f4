//! The pauses between attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);

/// Pauses of which each is twice as long as the one before, up to a second.
pub(crate) struct Backoff(Duration);

impl Backoff {
    /// No pause is longer.
    pub(crate) const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// How long the next pause is.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LONGEST);
        pause
    }
}
