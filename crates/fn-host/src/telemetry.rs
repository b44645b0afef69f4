//! What a host tells by the crate [`metrics`](https://docs.rs/metrics): what has come of each function's
//! calls, read once a [`PERIOD`] from the dispatcher's counts. A call pays nothing for it.
//!
//! The first [`FUNCTIONS`] functions that are called have labels of their own; all others are one, `_OTHER`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use partywall_functions::dispatcher::Times;

use crate::host::{Host, Listed};

/// How often counts are read.
const PERIOD: Duration = Duration::from_secs(1);
/// Functions with labels of their own.
const FUNCTIONS: usize = 512;
const OTHER: &str = "_OTHER";

const CALLS: &str = "partywall_function_calls_total";
const COLD: &str = "partywall_function_cold_starts_total";
const CPU: &str = "partywall_function_cpu_microseconds_total";
const STRIKES: &str = "partywall_function_strikes";
const LATENCY: &str = "partywall_function_latency_seconds";
const OF_OWNER: &str = "partywall_functions_latency_seconds";
const DEPLOYED: &str = "partywall_functions";
const IMAGES: &str = "partywall_function_image_bytes";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
}

/// docs/metrics.md has their labels.
const ALL: [(&str, Kind, Unit, &str); 8] = [
    (CALLS, Kind::Counter, Unit::Count, "Calls of a function that have ended, or were not taken"),
    (COLD, Kind::Counter, Unit::Count, "Calls for which the image had to be loaded"),
    (CPU, Kind::Counter, Unit::Microseconds, "CPU time that is billed to a function"),
    (STRIKES, Kind::Gauge, Unit::Count, "Strikes against a function"),
    (
        LATENCY,
        Kind::Gauge,
        Unit::Seconds,
        "Time from a call's admission to its end, waiting included",
    ),
    (OF_OWNER, Kind::Gauge, Unit::Seconds, "The same of all functions of an owner together"),
    (DEPLOYED, Kind::Gauge, Unit::Count, "Functions of an owner"),
    (IMAGES, Kind::Gauge, Unit::Bytes, "Images of an owner, of all versions"),
];

/// Tells what there is of a host, for ever.
pub async fn tell(host: Arc<Host>) {
    let mut telemetry = Telemetry::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        let of = host.clone();
        // The dispatcher may have ended; the host says so elsewhere.
        if let Ok(Ok(listed)) = tokio::task::spawn_blocking(move || of.list()).await {
            telemetry.look(&listed);
        }
    }
}

/// Parts of all calls, as the label `quantile` has them.
const QUANTILES: [(&str, f64); 2] = [("0.5", 0.5), ("0.99", 0.99)];

/// Ends of calls, as the label `end` has them.
const ENDS: [&str; 6] = ["reply", "error", "failure", "overrun", "refused", "other"];

/// What one function adds to a label.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    ends: [u64; ENDS.len()],
    cold: u64,
    cpu_us: u64,
}

impl Sums {
    fn of(listed: &Listed) -> Option<Self> {
        let counts = &listed.report.as_ref()?.counts;
        let known = counts.replies + counts.errors + counts.failures + counts.overruns;
        Some(Self {
            ends: [
                counts.replies,
                counts.errors,
                counts.failures,
                counts.overruns,
                counts.refused,
                counts.calls - known,
            ],
            cold: counts.cold,
            cpu_us: counts.cpu_ns / 1000,
        })
    }

    /// Whether they may have become of these.
    fn are_behind(&self, before: &Self) -> bool {
        self.ends.iter().zip(before.ends).all(|(count, had)| *count >= had)
    }

    fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        for (count, had) in since.ends.iter_mut().zip(before.ends) {
            *count = count.saturating_sub(had);
        }
        since.cold = since.cold.saturating_sub(before.cold);
        since.cpu_us = since.cpu_us.saturating_sub(before.cpu_us);
        since
    }
}

struct Telemetry {
    /// What each function had at the last look, with the version that was called.
    functions: HashMap<String, (u32, Sums)>,
    /// Functions with a label, for good.
    labelled: HashSet<String>,
    /// Owners that had functions.
    owners: BTreeMap<String, OfOwner>,
}

/// What an owner has.
#[derive(Default)]
struct OfOwner {
    functions: u64,
    image_bytes: u64,
    times: Times,
}

impl Telemetry {
    fn new() -> Self {
        for (name, kind, unit, meaning) in ALL {
            match kind {
                Kind::Counter => describe_counter!(name, unit, meaning),
                Kind::Gauge => describe_gauge!(name, unit, meaning),
            }
        }
        Self { functions: HashMap::new(), labelled: HashSet::new(), owners: BTreeMap::new() }
    }

    fn look(&mut self, listed: &[Listed]) {
        self.owners.values_mut().for_each(|of_owner| *of_owner = OfOwner::default());
        let mut before = std::mem::take(&mut self.functions);
        for one in listed {
            let owner = &one.record.owner;
            let of_owner = self.owners.entry(owner.clone()).or_default();
            of_owner.functions += 1;
            of_owner.image_bytes += one.record.image_bytes();
            if let Some(report) = &one.report {
                of_owner.times.add(&report.counts);
            }
            let Some(sums) = Sums::of(one) else { continue };
            // A new version counts from 0, and so does one that is registered anew.
            let had = before
                .remove(&one.name)
                .filter(|(version, had)| *version == one.record.current && sums.are_behind(had));
            let since = sums.since(&had.map_or(Sums::default(), |(_, had)| had));
            let is_called = since.ends.iter().any(|count| *count > 0);
            if is_called && self.labelled.len() < FUNCTIONS && !self.labelled.contains(&one.name) {
                self.labelled.insert(one.name.clone());
            }
            let has_label = self.labelled.contains(&one.name);
            count(if has_label { &one.name } else { OTHER }, owner, &since);
            if let Some(report) = one.report.as_ref().filter(|_| has_label) {
                let labels = [("function", one.name.clone()), ("owner", owner.clone())];
                gauge!(STRIKES, &labels).set(f64::from(report.strikes));
                for (quantile, part) in QUANTILES {
                    let [function, owner] = labels.clone();
                    let labels = [function, owner, ("quantile", quantile.to_owned())];
                    let time = report.counts.quantile(part).unwrap_or_default();
                    gauge!(LATENCY, &labels).set(time.as_secs_f64());
                }
            }
            self.functions.insert(one.name.clone(), (one.record.current, sums));
        }
        for (owner, OfOwner { functions, image_bytes, times }) in &self.owners {
            gauge!(DEPLOYED, "owner" => owner.clone()).set(*functions as f64);
            gauge!(IMAGES, "owner" => owner.clone()).set(*image_bytes as f64);
            for (quantile, part) in QUANTILES {
                let labels = [("owner", owner.clone()), ("quantile", quantile.to_owned())];
                let time = times.quantile(part).unwrap_or_default();
                gauge!(OF_OWNER, &labels).set(time.as_secs_f64());
            }
        }
    }
}

fn count(function: &str, owner: &str, since: &Sums) {
    let labels = [("function", function.to_owned()), ("owner", owner.to_owned())];
    for (end, number) in ENDS.into_iter().zip(since.ends).filter(|(_, number)| *number > 0) {
        let [function, owner] = labels.clone();
        counter!(CALLS, &[function, owner, ("end", end.to_owned())]).increment(number);
    }
    for (name, number) in [(COLD, since.cold), (CPU, since.cpu_us)] {
        if number > 0 {
            counter!(name, &labels).increment(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Deployed, Record, Version};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use partywall_functions::dispatcher::{Counts, Share};
    use partywall_functions::runtime::Report;

    /// The rows of docs/metrics.md that are about this crate.
    #[test]
    fn documented_metrics_of_functions_are_those_that_exist() {
        let there_are = ALL.map(|(name, kind, unit, meaning)| {
            let kind = format!("{kind:?}").to_lowercase();
            [name.to_owned(), kind, unit.as_str().to_owned(), meaning.to_owned()]
        });
        assert_eq!(partywall_testkit::documented_metrics("Functions"), there_are);
    }

    fn listed(name: &str, version: u32, replies: u64) -> Listed {
        let deployed = Deployed {
            image: [0; 32],
            image_bytes: 100,
            sources: String::new(),
            key: String::new(),
            deployed_ms: 0,
            budget_us: 1,
            idempotent: false,
            parameters: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        let version = Version { number: version, deployed };
        let mut counts = Counts::default();
        (counts.calls, counts.replies, counts.cold) = (replies + 1, replies, 1);
        Listed {
            name: name.into(),
            record: Record::first("o", version).into(),
            share: "owner",
            report: Some(Report {
                is_banned: false,
                strikes: 2,
                is_loaded: true,
                share: Share::Owner,
                counts,
            }),
        }
    }

    #[test]
    fn counters_go_on_over_versions_and_late_functions_share_a_label() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let _here = metrics::set_default_local_recorder(&recorder);
        let mut telemetry = Telemetry::new();
        telemetry.look(&[listed("f", 1, 5)]);
        telemetry.look(&[listed("f", 1, 7)]);
        telemetry.look(&[listed("f", 2, 1)]);
        let text = handle.render();
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("partywall_function_calls_total{function=\"f\",owner=\"o\",end=\"reply\"} 8");
        has("partywall_function_calls_total{function=\"f\",owner=\"o\",end=\"other\"} 2");
        has("partywall_function_strikes{function=\"f\",owner=\"o\"} 2");
        has("partywall_functions{owner=\"o\"} 1");
        // No time of a call is known to these counts.
        has("partywall_functions_latency_seconds{owner=\"o\",quantile=\"0.99\"} 0");
        has("partywall_function_image_bytes{owner=\"o\"} 100");
        let many: Vec<_> = (0..FUNCTIONS + 5).map(|n| listed(&format!("f{n}"), 1, 1)).collect();
        telemetry.look(&many);
        let text = handle.render();
        let others = text
            .lines()
            .find(|line| line.contains("function=\"_OTHER\"") && line.contains("end=\"reply\""));
        // `f` has one of the labels, and the first 511 of these have the others.
        assert!(others.is_some_and(|line| line.ends_with(" 6")), "{others:?}");
        telemetry.look(&[]);
        assert!(handle.render().contains("partywall_functions{owner=\"o\"} 0"));
    }
}
