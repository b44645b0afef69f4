//! What has come of a function's calls, and how long they took.
//!
//! Times are counted in buckets whose bounds are a quarter of a power of two apart, so that a quantile is at
//! most a quarter above what it was. When a bucket is full, all are halved: later calls weigh more than early
//! ones. A function has buckets (320 bytes) once a call of it has ended.

use std::time::Duration;

use super::outcome::Outcome;

/// Buckets of a power of two.
const PARTS: u32 = 4;
/// All of them: up to 2^40 ns, a quarter of an hour.
const BUCKETS: usize = 40 * PARTS as usize;

/// Counts of a function's calls; those that each call changes come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Calls that have ended, one way or the other.
    pub calls: u64,
    /// Those that ended with a reply.
    pub replies: u64,
    /// The CPU time of all of them, in nanoseconds.
    pub cpu_ns: u64,
    times: Option<Box<[u16; BUCKETS]>>,
    /// Those that ended with the function's own error.
    pub errors: u64,
    /// Those that were stopped for their budget.
    pub overruns: u64,
    /// Those that ended by what the function did wrong: a panic, a fault, too much memory or stack.
    pub failures: u64,
    /// Those that were not taken: by its owner's limits, or with the function banned.
    pub refused: u64,
    /// How often its image was loaded for a call.
    pub cold: u64,
}

impl Counts {
    /// Counts a call that was taken, and ended so long after.
    pub(super) fn ended(&mut self, outcome: &Outcome, cpu_ns: u64, taken_ns: u64) {
        self.calls += 1;
        self.cpu_ns += cpu_ns;
        match outcome {
            Outcome::Reply(_) => self.replies += 1,
            Outcome::Error(..) => self.errors += 1,
            Outcome::Budget(_) | Outcome::Deaf => self.overruns += 1,
            Outcome::Panic(_)
            | Outcome::Memory
            | Outcome::Stack
            | Outcome::Fault(..)
            | Outcome::Long(_) => self.failures += 1,
            Outcome::Refused(_)
            | Outcome::LongRequest(_)
            | Outcome::Banned
            | Outcome::Gone
            | Outcome::Cancelled
            | Outcome::Deadline
            | Outcome::Unstarted(_)
            | Outcome::Lost(_)
            | Outcome::Held(_)
            | Outcome::NotLoaded(_) => {}
        }
        let times = self.times.get_or_insert_with(|| Box::new([0; BUCKETS]));
        let at = bucket(taken_ns);
        if times[at] == u16::MAX {
            times.iter_mut().for_each(|count| *count /= 2);
        }
        times[at] += 1;
    }

    /// The time in which this part of the calls that were taken have ended, waiting included; none before the
    /// first one.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        reached(&self.times.as_ref()?.map(f64::from), part)
    }
}

/// The times of several functions together, each of which weighs as much as it has had calls.
#[derive(Debug, Clone)]
pub struct Times([f64; BUCKETS]);

impl Default for Times {
    fn default() -> Self {
        Self([0.0; BUCKETS])
    }
}

impl Times {
    /// Adds those of a function.
    pub fn add(&mut self, counts: &Counts) {
        let Some(times) = &counts.times else { return };
        let kept = times.iter().map(|count| f64::from(*count)).sum::<f64>();
        for (sum, count) in self.0.iter_mut().zip(&**times) {
            *sum += f64::from(*count) * counts.calls as f64 / kept;
        }
    }

    /// As [`Counts::quantile`].
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        reached(&self.0, part)
    }
}

/// The bound of the bucket in which this part of all is reached; none if they are empty.
fn reached(times: &[f64; BUCKETS], part: f64) -> Option<Duration> {
    let wanted = times.iter().sum::<f64>() * part;
    let mut seen = 0.0;
    let at = times.iter().position(|count| {
        seen += count;
        seen > 0.0 && seen >= wanted
    })?;
    Some(Duration::from_nanos(bound(at)))
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(PARTS.into());
    let power = ns.ilog2();
    let part = ns >> (power - PARTS.ilog2()) & u64::from(PARTS - 1);
    (power as usize * PARTS as usize + part as usize).min(BUCKETS - 1)
}

/// The time below which all of a bucket are.
fn bound(bucket: usize) -> u64 {
    let (power, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
    (1 << power) + ((part + 1) << power) / u64::from(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    #[test]
    fn a_time_is_within_a_quarter_below_its_buckets_bound() {
        let mut random = Random::of_this_run();
        for _ in 0..10_000 {
            let ns = 4 + (1_u64 << random.below(39)) + random.below(1000) as u64;
            let bound = bound(bucket(ns));
            assert!(ns < bound && bound <= ns + ns / 4 + 1, "{ns} {bound}");
        }
        assert_eq!(bucket(0), bucket(4));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut counts = Counts::default();
        assert_eq!(counts.quantile(0.5), None);
        for micros in 1..=1000 {
            counts.ended(&Outcome::Reply(Vec::new()), 10, micros * 1000);
        }
        for (part, micros) in [(0.5, 500), (0.99, 990), (1.0, 1000), (0.0, 1)] {
            let found = counts.quantile(part).unwrap();
            let (least, most) =
                (Duration::from_micros(micros), Duration::from_nanos(micros * 1250));
            assert!(found >= least && found <= most, "{part}: {found:?}");
        }
        assert_eq!((counts.calls, counts.replies, counts.cpu_ns), (1000, 1000, 10_000));
    }

    /// Of a function that has had many calls the buckets are halved, and it weighs as much as they were.
    #[test]
    fn functions_together_weigh_as_much_as_their_calls() {
        let of = |calls, micros: u64| {
            let mut counts = Counts::default();
            for _ in 0..calls {
                counts.ended(&Outcome::Reply(Vec::new()), 0, micros * 1000);
            }
            counts
        };
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        let (many, few) = (of(900_000, 10), of(60_000, 1000));
        times.add(&many);
        times.add(&few);
        times.add(&Counts::default());
        assert_eq!([0.5, 0.9].map(|part| times.quantile(part)), [many.quantile(0.5); 2]);
        assert_eq!([0.95, 1.0].map(|part| times.quantile(part)), [few.quantile(0.5); 2]);
    }
}
