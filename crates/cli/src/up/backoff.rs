//! How long a service that has ended waits before it is started again.

use std::time::{Duration, Instant};

/// After the first end, and after one that was long in coming.
const SHORTEST: Duration = Duration::from_millis(100);
/// After many ends in a row.
const LONGEST: Duration = Duration::from_secs(5);
/// What has run for so long begins anew.
const FORGIVEN: Duration = Duration::from_secs(10);

/// Delays that double with each end.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The last delay, and when it was over.
    last: Option<(Duration, Instant)>,
}

impl Backoff {
    /// The delay after an end at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Duration {
        let delay = match self.last {
            Some((last, over)) if now.saturating_duration_since(over) < FORGIVEN => {
                (2 * last).min(LONGEST)
            }
            _ => SHORTEST,
        };
        self.last = Some((delay, now + delay));
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_reset_after_a_long_run() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..8 {
            let delay = backoff.next(now);
            delays.push(delay.as_millis());
            now += delay + Duration::from_millis(50);
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.next(now + FORGIVEN), SHORTEST);
        assert_eq!(backoff.next(now + FORGIVEN), 2 * SHORTEST);
    }
}
