//! Times from now on.

use std::time::{Duration, Instant};

/// What a time is cut to that the clock or a timer cannot hold: a hundred years.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// When so much time has passed.
pub(crate) fn after(within: Duration) -> Instant {
    Instant::now() + within.min(FAR)
}
