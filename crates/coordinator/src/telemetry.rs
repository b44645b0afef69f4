//! What the coordinator tells by the crate [`metrics`](https://docs.rs/metrics), if it is asked to
//! ([`crate::Options::metrics`]): what happens, as it happens, and what accounts have, at most once a
//! [`PERIOD`] and only when something was done meanwhile.
//!
//! Labels are words of this program, resources and accounts. The first [`ACCOUNTS`] accounts have labels of
//! their own, all others are one, `_OTHER`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::audit::{Event, LEFT_OUT};
use crate::quota::{Quotas, RESOURCES, Resource};

/// How often what accounts have is recorded.
const PERIOD: Duration = Duration::from_secs(1);
/// Accounts with labels of their own.
const ACCOUNTS: usize = 256;
/// The label of all others.
const OTHER: &str = "_OTHER";

const EVENTS: &str = "partywall_coordinator_events_total";
const LINKS_MADE: &str = "partywall_coordinator_links_made_total";
const INTRODUCTIONS: &str = "partywall_coordinator_introduction_duration_seconds";
const USED: &str = "partywall_coordinator_used";
const ACCOUNT_USED: &str = "partywall_coordinator_account_used";
const ACCOUNT_LIMIT: &str = "partywall_coordinator_account_limit";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// docs/metrics.md has their labels.
const ALL: [(&str, Kind, Unit, &str); 7] = [
    (EVENTS, Kind::Counter, Unit::Count, "What the audit log has, before its limits"),
    (LINKS_MADE, Kind::Counter, Unit::Count, "Links whose memory was made"),
    (
        INTRODUCTIONS,
        Kind::Histogram,
        Unit::Seconds,
        "Time from the making of a link to its opening",
    ),
    (USED, Kind::Gauge, Unit::Count, "What all accounts have of a resource"),
    (ACCOUNT_USED, Kind::Gauge, Unit::Count, "What an account has of a resource"),
    (ACCOUNT_LIMIT, Kind::Gauge, Unit::Count, "The most that an account may have of a resource"),
    (LEFT_OUT, Kind::Counter, Unit::Count, "Lines that the audit log has no room for"),
];

/// What is recorded of one coordinator.
pub(crate) struct Telemetry {
    quotas: Quotas,
    /// When what accounts have is recorded next; none while nothing is done.
    pub(crate) at: Option<Instant>,
    recorded: Instant,
    /// Accounts with labels, and whether the last look has found them.
    labels: BTreeMap<String, bool>,
    /// When links that are being made were begun.
    made: HashMap<u64, Instant>,
}

impl Telemetry {
    pub(crate) fn new(quotas: Quotas, now: Instant) -> Self {
        for (name, kind, unit, meaning) in ALL {
            match kind {
                Kind::Counter => describe_counter!(name, unit, meaning),
                Kind::Gauge => describe_gauge!(name, unit, meaning),
                Kind::Histogram => describe_histogram!(name, unit, meaning),
            }
        }
        let (labels, made) = (BTreeMap::new(), HashMap::new());
        Self { quotas, at: Some(now), recorded: now, labels, made }
    }

    /// Something was done.
    pub(crate) fn changed(&mut self) {
        let next = self.recorded + PERIOD;
        self.at.get_or_insert(next);
    }

    /// So many events of a kind.
    pub(crate) fn event(&self, event: &Event, count: u64) {
        let (event, what) = match event {
            Event::Admitted { .. } => ("admitted", ""),
            Event::Registered { .. } => ("registered", ""),
            Event::Introduced { server: Some(_), .. } => ("introduced", "link"),
            Event::Introduced { server: None, .. } => ("introduced", "redirect"),
            Event::Traced { .. } => ("traced", ""),
            Event::Granted { .. } => ("granted", ""),
            Event::Denied { what, .. } => ("denied", *what),
            Event::Revoked { .. } => ("revoked", ""),
            Event::Blamed { said_by: None, .. } => ("blamed", "by the coordinator"),
            Event::Blamed { said_by: Some(_), .. } => ("blamed", "by the other end"),
            Event::Signed { .. } => ("signed", ""),
            Event::Reloaded { .. } => ("reloaded", ""),
            Event::NotReloaded { .. } => ("not_reloaded", ""),
        };
        counter!(EVENTS, "event" => event, "what" => what).increment(count);
    }

    /// The memory of a link is made.
    pub(crate) fn made(&mut self, link: u64) {
        counter!(LINKS_MADE).increment(1);
        self.made.insert(link, Instant::now());
    }

    /// Both ends have what they need.
    pub(crate) fn introduced(&mut self, link: u64) {
        if let Some(begun) = self.made.remove(&link) {
            histogram!(INTRODUCTIONS).record(begun.elapsed().as_secs_f64());
        }
    }

    /// A link is over.
    pub(crate) fn over(&mut self, link: u64) {
        self.made.remove(&link);
    }

    /// Tells what accounts have, if it is time.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.at.is_none_or(|at| at > now) {
            return;
        }
        (self.at, self.recorded) = (None, now);
        for (resource, used) in Resource::ALL.into_iter().zip(self.quotas.used()) {
            gauge!(USED, "resource" => resource.word()).set(used as f64);
        }
        self.labels.values_mut().for_each(|found| *found = false);
        let mut others = [0; RESOURCES];
        for usage in self.quotas.accounts() {
            let account = usage.account().to_string();
            let is_known = self.labels.contains_key(&account);
            if !is_known && self.labels.len() == ACCOUNTS {
                for (of_all, resource) in others.iter_mut().zip(Resource::ALL) {
                    *of_all += usage.used(resource);
                }
                continue;
            }
            for resource in Resource::ALL {
                self.tell(&account, resource, usage.used(resource), Some(usage.limit(resource)));
            }
            self.labels.insert(account, true);
        }
        for (resource, used) in Resource::ALL.into_iter().zip(others) {
            self.tell(OTHER, resource, used, None);
        }
        // What nobody has a handle to has nothing.
        for account in self.labels.iter().filter(|(_, found)| !**found).map(|(name, _)| name) {
            for resource in Resource::ALL {
                self.tell(account, resource, 0, None);
            }
        }
    }

    fn tell(&self, account: &str, resource: Resource, used: usize, limit: Option<usize>) {
        let labels = [("account", account.to_owned()), ("resource", resource.word().to_owned())];
        gauge!(ACCOUNT_USED, &labels).set(used as f64);
        if let Some(limit) = limit {
            gauge!(ACCOUNT_LIMIT, &labels).set(limit as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Account, Limits, Totals};
    use metrics_exporter_prometheus::PrometheusBuilder;

    /// The rows of docs/metrics.md that are about this crate.
    #[test]
    fn documented_metrics_of_the_coordinator_are_those_that_exist() {
        let there_are = ALL.map(|(name, kind, unit, meaning)| {
            let kind = format!("{kind:?}").to_lowercase();
            [name.to_owned(), kind, unit.as_str().to_owned(), meaning.to_owned()]
        });
        assert_eq!(partywall_testkit::documented_metrics("The coordinator"), there_are);
    }

    #[test]
    fn later_accounts_share_a_label_and_gone_ones_have_none() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let _here = metrics::set_default_local_recorder(&recorder);
        let now = Instant::now();
        let quotas = Quotas::new(Totals::for_descriptors(1 << 20), Limits::default(), 7);
        let mut telemetry = Telemetry::new(quotas.clone(), now);
        let first = quotas.account(Account::User(1), None);
        let charge = first.charge(Resource::Watches, 3).unwrap();
        telemetry.look(now);
        let used = |account: &str| {
            let line = format!("{ACCOUNT_USED}{{account=\"{account}\",resource=\"watches\"}} ");
            let text = handle.render();
            let value = text.lines().find_map(|found| found.strip_prefix(&line).map(str::to_owned));
            value.map(|value| value.parse::<f64>().unwrap())
        };
        assert_eq!(used("user 1"), Some(3.0));
        let limit = format!("{ACCOUNT_LIMIT}{{account=\"user 1\",resource=\"watches\"}} 1024");
        assert!(handle.render().contains(&limit), "{}", handle.render());
        let many: Vec<_> = (0..300)
            .map(|n| quotas.account(Account::User(1000 + n), None))
            .map(|usage| usage.charge(Resource::Watches, 1).unwrap())
            .collect();
        drop(charge);
        drop(first);
        // Not before a period has passed.
        telemetry.changed();
        telemetry.look(now + PERIOD / 2);
        assert_eq!(used("user 1"), Some(3.0));
        telemetry.look(now + PERIOD);
        assert_eq!(used("user 1"), Some(0.0));
        assert_eq!(used(OTHER), Some((many.len() + 1 - ACCOUNTS) as f64));
        let labels = handle.render().matches(&format!("{ACCOUNT_USED}{{")).count();
        assert_eq!(labels, (ACCOUNTS + 1) * RESOURCES);
        let all = format!("{USED}{{resource=\"watches\"}} 300");
        assert!(handle.render().contains(&all), "{}", handle.render());
    }
}
