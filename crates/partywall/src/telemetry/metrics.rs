//! The names of the metrics, and whether they are recorded.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use partywall_abi::frame::CODES;
use tonic::Code;

/// Durations of calls, by the names of OpenTelemetry's conventions for RPC with units.
pub(super) const CLIENT_DURATION: &str = "rpc_client_call_duration_seconds";
pub(super) const SERVER_DURATION: &str = "rpc_server_call_duration_seconds";
pub(super) const BEGUN: &str = "partywall_calls_begun_total";
pub(super) const UNDER_WAY: &str = "partywall_calls_under_way";
pub(super) const WAITING: &str = "partywall_calls_waiting";
pub(super) const BYTES: &str = "partywall_call_bytes_total";
pub(super) const MESSAGES: &str = "partywall_call_messages_total";
pub(super) const LINKS: &str = "partywall_links";
pub(super) const LINKS_OPENED: &str = "partywall_links_opened_total";

/// The value of `rpc_system_name`.
pub(super) const SYSTEM: &str = "grpc";
/// The label of all methods that have none of their own.
pub(super) const OTHER: &str = "_OTHER";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The description of a metric for the recorder.
struct Metric {
    name: &'static str,
    kind: Kind,
    unit: Unit,
    meaning: &'static str,
}

const fn metric(name: &'static str, kind: Kind, unit: Unit, meaning: &'static str) -> Metric {
    Metric { name, kind, unit, meaning }
}

/// docs/metrics.md has their labels.
const ALL: [Metric; 9] = [
    metric(
        CLIENT_DURATION,
        Kind::Histogram,
        Unit::Seconds,
        "Time of calls, as their clients see it",
    ),
    metric(SERVER_DURATION, Kind::Histogram, Unit::Seconds, "Time of calls in the server"),
    metric(BEGUN, Kind::Counter, Unit::Count, "Calls that have begun"),
    metric(UNDER_WAY, Kind::Gauge, Unit::Count, "Calls that have begun and not ended"),
    metric(
        WAITING,
        Kind::Gauge,
        Unit::Count,
        "Calls that wait for something of the link or the runtime",
    ),
    metric(
        BYTES,
        Kind::Counter,
        Unit::Bytes,
        "Data of requests and answers, with message prefixes",
    ),
    metric(MESSAGES, Kind::Counter, Unit::Count, "Messages of requests and answers"),
    metric(LINKS, Kind::Gauge, Unit::Count, "Links and HTTP/2 routes that are open"),
    metric(LINKS_OPENED, Kind::Counter, Unit::Count, "Links and HTTP/2 routes that were opened"),
];

static RECORDED: AtomicBool = AtomicBool::new(false);

/// Whether calls are recorded.
#[inline]
pub(super) fn are_recorded() -> bool {
    RECORDED.load(Ordering::Relaxed)
}

/// Has calls and links recorded from here on, for the life of the process, by the recorder of the crate
/// [`metrics`](https://docs.rs/metrics) that is installed. Call it once, after a recorder was installed and
/// before channels and servers are made: calls that go on are not recorded, nor are links that are open.
///
/// The metrics are in the project's docs/metrics.md.
///
/// ```
/// // A program installs an exporter first, say metrics_exporter_prometheus::PrometheusBuilder's.
/// partywall::record_metrics();
/// ```
pub fn record_metrics() {
    static DESCRIBED: Once = Once::new();
    DESCRIBED.call_once(|| {
        for Metric { name, kind, unit, meaning } in ALL {
            match kind {
                Kind::Counter => describe_counter!(name, unit, meaning),
                Kind::Gauge => describe_gauge!(name, unit, meaning),
                Kind::Histogram => describe_histogram!(name, unit, meaning),
            }
        }
    });
    RECORDED.store(true, Ordering::Relaxed);
}

/// The name of a status code in gRPC.
pub(super) fn name_of(code: Code) -> &'static str {
    CODES[code as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_the_name_of_the_variant_in_tonic() {
        for (number, name) in (0..).zip(CODES) {
            let variant = format!("{:?}", Code::from(number)).to_uppercase();
            assert_eq!(name.replace('_', ""), variant);
        }
    }

    /// The rows of docs/metrics.md that are about this crate.
    #[test]
    fn documented_metrics_are_those_that_exist() {
        let there_are = ALL.map(|m| {
            let kind = format!("{:?}", m.kind).to_lowercase();
            [m.name.to_owned(), kind, m.unit.as_str().to_owned(), m.meaning.to_owned()]
        });
        assert_eq!(partywall_testkit::documented_metrics("Calls and links"), there_are);
    }
}
