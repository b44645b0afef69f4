//! Budgets from objectives: how long functions may run so that most calls end in time.
//!
//! There are `c` workers, and calls that begin at once where one is idle. The one that has to wait for the
//! first of `c` functions to end, each of which has a rest of its budget `B` that is uniformly distributed,
//! waits for the least of `c` such rests. Within a wait of `L` it begins with
//!
//! ```text
//! exact:  p = 1 - (1 - L/B)^c     B = L / (1 - (1 - p)^(1/c))
//! paper:  p = c * L / B           B = c * L / p
//! ```
//!
//! The second one is equation (1) of "Putting the 'Micro' Back in Microservice" (USENIX ATC 2018, section 4),
//! which adds probabilities of events that do not exclude each other. Its own example, 14 cores, 8 us and
//! 99 %, gives 113 us, with which 64 % begin in time; 99 % do with 28.5 us.

/// An objective: so many of all calls wait no longer than `latency_us`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Workers.
    pub cores: u32,
    /// The longest wait, in microseconds.
    pub latency_us: f64,
    /// The part of all calls, above 0 and below 1.
    pub part: f64,
}

/// What an objective is wrong in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveError {
    /// No core.
    #[error("there is no core; give at least 1")]
    Cores,
    /// No time.
    #[error("the latency is no time; give microseconds above 0")]
    Latency,
    /// No part.
    #[error("the percentile is none; give one above 0 and below 100")]
    Part,
}

impl Objective {
    /// One that can be met.
    ///
    /// # Errors
    /// [`ObjectiveError`].
    pub fn new(cores: u32, latency_us: f64, part: f64) -> Result<Self, ObjectiveError> {
        if cores == 0 {
            return Err(ObjectiveError::Cores);
        }
        if !(latency_us > 0.0 && latency_us.is_finite()) {
            return Err(ObjectiveError::Latency);
        }
        if !(part > 0.0 && part < 1.0) {
            return Err(ObjectiveError::Part);
        }
        Ok(Self { cores, latency_us, part })
    }

    /// The budget in microseconds with which the objective is met.
    pub fn budget_us(&self) -> f64 {
        let late = (1.0 - self.part).powf(1.0 / f64::from(self.cores));
        self.latency_us / (1.0 - late)
    }

    /// The budget by the paper's formula, with which it is not.
    pub fn published_us(&self) -> f64 {
        f64::from(self.cores) * self.latency_us / self.part
    }

    /// The part of all calls that begin in time with a budget.
    pub fn part_with(&self, budget_us: f64) -> f64 {
        1.0 - (1.0 - (self.latency_us / budget_us).min(1.0)).powi(self.cores as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    #[test]
    fn the_papers_example_by_both_formulas() {
        let objective = Objective::new(14, 8.0, 0.99).unwrap();
        assert!((objective.published_us() - 113.1).abs() < 0.1, "{}", objective.published_us());
        assert!((objective.budget_us() - 28.5).abs() < 0.1, "{}", objective.budget_us());
        assert!((objective.part_with(113.0) - 0.64).abs() < 0.01);
        assert!((objective.part_with(objective.budget_us()) - 0.99).abs() < 1e-9);
        // With one worker both are the same.
        let one = Objective::new(1, 8.0, 0.99).unwrap();
        assert!((one.budget_us() - one.published_us()).abs() < 1e-9);
    }

    /// The right formula against the process that it describes.
    #[test]
    fn waits_are_as_the_formula_says() {
        let (mut random, trials) = (Random::of_this_run(), 100_000);
        let objective = Objective::new(4, 10.0, 0.9).unwrap();
        let budget = objective.budget_us();
        let in_time = (0..trials).filter(|_| {
            let rest = || budget * random.below(1 << 24) as f64 / f64::from(1 << 24);
            std::iter::repeat_with(rest).take(4).fold(f64::MAX, f64::min) <= objective.latency_us
        });
        let part = in_time.count() as f64 / f64::from(trials);
        assert!((part - 0.9).abs() < 0.005, "{part}");
    }

    #[test]
    fn an_objective_that_is_none_says_which_part() {
        assert_eq!(Objective::new(0, 1.0, 0.5), Err(ObjectiveError::Cores));
        for latency in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Objective::new(1, latency, 0.5), Err(ObjectiveError::Latency));
        }
        for part in [0.0, 1.0, f64::NAN] {
            assert_eq!(Objective::new(1, 1.0, part), Err(ObjectiveError::Part));
        }
    }
}
