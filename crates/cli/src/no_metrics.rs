//! `--metrics` in a build without the feature `prometheus`: whoever writes it is told of the feature.

use std::convert::Infallible;
use std::error::Error;

/// The choice, flattened into the arguments of a command.
#[derive(clap::Args)]
pub(crate) struct Exporter {
    /// Show what is counted to Prometheus; this command was built without that (the feature
    /// `prometheus`).
    #[arg(long, value_name = "ADDRESS", value_parser = refuse)]
    metrics: Option<Infallible>,
}

fn refuse(_address: &str) -> Result<Infallible, &'static str> {
    Err(
        "this command was built without the feature `prometheus`; install it by `cargo install --locked \
         --path crates/cli --features prometheus`",
    )
}

/// Serves nothing, for no address is taken.
pub(crate) fn serve(exporter: &Exporter) -> Result<Option<Infallible>, Box<dyn Error>> {
    Ok(exporter.metrics)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn an_address_for_metrics_is_refused_with_the_feature_to_install() {
        let command = Exporter::augment_args(Command::new("coordinator"));
        let given = ["coordinator", "--metrics", "http://127.0.0.1:9464"];
        let refused = command.clone().try_get_matches_from(given).unwrap_err().to_string();
        assert!(refused.contains("'--metrics <ADDRESS>'"), "{refused}");
        assert!(refused.contains("--features prometheus`"), "{refused}");
        command.try_get_matches_from(["coordinator"]).unwrap();
    }
}
