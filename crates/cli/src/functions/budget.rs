//! `partywall fn budget`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use partywall_fn_host::slo::Objective;

/// An objective.
#[derive(clap::Args)]
pub(crate) struct Budget {
    /// Workers, one for each CPU.
    #[arg(long)]
    cores: u32,
    /// The longest that a call may wait for a worker, such as `8us`.
    #[arg(long, value_name = "TIME", value_parser = super::sources::time)]
    latency: Duration,
    /// How many of 100 calls are to begin in that time.
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0)]
    percentile: f64,
}

impl Budget {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let latency_us = self.latency.as_nanos() as f64 / 1000.0;
        let objective = Objective::new(self.cores, latency_us, self.percentile / 100.0)?;
        let (budget, published) = (objective.budget_us(), objective.published_us());
        let with = |budget| objective.part_with(budget) * 100.0;
        crate::say(&format!(
            "budget: {budget:.1} us, with which {:.1} % of the calls begin within {latency_us} us\n\
             by the paper's formula: {published:.1} us, with which {:.1} % do: it adds probabilities of \
             events that do not exclude each other\n",
            with(budget),
            with(published),
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
