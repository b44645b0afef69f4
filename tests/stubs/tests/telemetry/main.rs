//! Calls are recorded alike by whichever stubs they are made and answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use partywall::{Endpoint, Server, blocking};
use partywall_stubs_tests::{Asked, Caller, Settings, ours, tonics};
use partywall_testkit::Host;

/// What is recorded: each metric with its labels.
type Recorded = BTreeMap<String, f64>;

/// A kind of calls, and what is not the same for all stubs in the names of metrics.
type Kind = (&'static str, Asked, Option<&'static str>);

/// The counts of calls, and of what passes in them.
fn recorded(recorder: &PrometheusHandle) -> Recorded {
    let text = recorder.render();
    let lines = text.lines().filter(|line| {
        line.contains("call_duration_seconds_count") || line.starts_with("partywall_call")
    });
    let values = lines.filter_map(|line| line.rsplit_once(' '));
    values.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// Waits until no call is under way.
async fn settled(recorder: &PrometheusHandle) -> Recorded {
    let begin = Instant::now();
    loop {
        let now = recorded(recorder);
        let mut under_way = now.iter().filter(|(name, _)| name.contains("calls_under_way"));
        if under_way.all(|(_, calls)| *calls == 0.0) {
            return now;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "calls stay under way: {now:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What one kind of calls adds.
async fn added(recorder: &PrometheusHandle, caller: &mut dyn Caller, asked: &Asked) -> Recorded {
    let before = settled(recorder).await;
    for _ in 0..4 {
        caller.hello(asked).await;
    }
    let mut after = settled(recorder).await;
    for (name, value) in &mut after {
        *value -= before.get(name).copied().unwrap_or_default();
    }
    after.retain(|_, value| *value != 0.0);
    after
}

/// Calls of each kind, with these limits.
fn kinds() -> (Settings, Settings, Vec<Kind>) {
    let served = Settings { encoded: Some(400_000), decoded: Some(600_000), ..Settings::default() };
    let called = Settings { encoded: Some(800_000), decoded: Some(300_000), ..Settings::default() };
    let with_metadata = Asked { ascii: vec![("x-one", "v".into())], ..Asked::sized("quiet", 10) };
    let late = Asked { timeout: Some(Duration::from_millis(20)), ..Asked::sized("slow", 0) };
    let kinds = vec![
        ("short", Asked::sized("quiet", 10), None),
        ("with metadata", with_metadata, None),
        ("long", Asked::sized("quiet", 200_000), None),
        ("a status", Asked::sized("5:nobody", 0), None),
        ("a panic", Asked::sized("panics", 0), None),
        // Either end may be the first to find it so.
        ("late", late, Some("rpc_server")),
        // tonic stops reading, and nobody knows why.
        ("an answer that its client refuses", Asked::sized("quiet", 350_000), Some("client")),
        ("an answer that is not sent", Asked::sized("quiet", 500_000), None),
        // As much has come as tonic had read by then.
        ("a request that its server refuses", Asked::sized("quiet", 700_000), Some("bytes")),
        ("a request that is not sent", Asked::sized("quiet", 900_000), None),
    ];
    (served, called, kinds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_recorded_alike_by_whichever_stubs() {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    partywall::record_metrics();
    let (served, called, kinds) = kinds();
    let mut expected = BTreeMap::<&str, Recorded>::new();
    for by_tonics in [true, false] {
        let host = Host::open();
        let mut server = Server::builder().coordinator(&host.socket);
        let router = match by_tonics {
            true => server.add_service(tonics::greeter(tonics::Echo::default(), served)),
            false => server.add_service(ours::greeter(ours::Echo::default(), served)),
        };
        let serving = tokio::spawn(router.bind("test").await.unwrap().serve().into_future());
        let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
        let channel = endpoint.clone().connect().await.unwrap();
        let connect = move || blocking::Channel::connect(endpoint).unwrap();
        let blocking = tokio::task::spawn_blocking(connect).await.unwrap();
        let callers: [(&str, Box<dyn Caller>); 3] = [
            ("tonic's", tonics::caller(channel.clone(), called)),
            ("ours", ours::caller(channel, called)),
            ("blocking", Box::new(ours::Threaded::new(blocking, called))),
        ];
        for (stubs, mut caller) in callers {
            // Methods have their labels, and it is known which way they go.
            caller.hello(&Asked::sized("quiet", 0)).await;
            for (kind, asked, not_alike) in &kinds {
                let mut added = added(&recorder, &mut *caller, asked).await;
                added.retain(|name, _| not_alike.is_none_or(|part| !name.contains(part)));
                let expected = expected.entry(kind).or_insert_with(|| added.clone());
                assert_eq!(added, *expected, "{kind}: {stubs}, of tonic's server: {by_tonics}");
                assert!(added.values().any(|value| *value == 4.0), "{kind}: {added:?}");
            }
        }
        serving.abort();
    }
}
