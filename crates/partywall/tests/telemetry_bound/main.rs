//! How many methods have a label of their own. A program of its own, for they are the process's.

use std::collections::BTreeSet;

use metrics_exporter_prometheus::PrometheusBuilder;
use partywall::{Routes, Server};
use tonic::body::Body;
use tower::Service;

/// As docs/metrics.md has it.
const MOST: usize = 512;

#[tokio::test]
async fn methods_beyond_the_bound_are_counted_as_one() {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    partywall::record_metrics();
    let fine = || async { tonic::Status::ok("").into_http::<Body>() };
    let router = axum::Router::new().fallback(fine);
    let routes = Routes::from(tonic::service::Routes::from(router));
    let mut channel = Server::builder().add_routes(routes).in_process().unwrap();
    for round in 0..2 {
        for n in 0..=MOST {
            let uri = format!("/test.Many/M{n}");
            let request = http::Request::builder().uri(uri).body(Body::empty()).unwrap();
            let answer = channel.call(request).await.unwrap();
            assert_eq!(answer.headers()["grpc-status"], "0", "{round}: {n}");
        }
    }
    let text = recorder.render();
    for side in ["client", "server"] {
        let begin = format!("rpc_{side}_call_duration_seconds_count{{");
        let lines = text.lines().filter(|line| line.starts_with(&begin));
        let of = |line: &str| {
            let method = line.split_once("rpc_method=\"").unwrap().1.split_once('"').unwrap().0;
            (method.to_owned(), line.rsplit_once(' ').unwrap().1.to_owned())
        };
        let methods: BTreeSet<_> = lines.map(of).collect();
        let mut expected: BTreeSet<_> =
            (0..MOST).map(|n| (format!("test.Many/M{n}"), "2".to_owned())).collect();
        expected.insert(("_OTHER".to_owned(), "2".to_owned()));
        assert_eq!(methods, expected, "{side}");
    }
}
