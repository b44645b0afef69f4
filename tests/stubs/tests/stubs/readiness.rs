//! Calls to a service that is not there, or not yet.

use std::path::Path;
use std::time::Duration;

use partywall::{Endpoint, Server};
use partywall_stubs_tests::{Asked, Caller, Settings, ours, tonics};
use partywall_testkit::Host;
use tonic::Code;

use super::ways::{LONG, Serving};

/// Clients of a name natively and by tonic's stubs, and of an address.
fn callers(socket: &Path, address: &str, waits: bool) -> Vec<(&'static str, Box<dyn Caller>)> {
    let channel = |at: &str| {
        let endpoint = Endpoint::new(at.to_owned()).unwrap().coordinator(socket);
        endpoint.wait_for_ready(waits).connect_lazy()
    };
    let settings = Settings::default();
    let ring = channel("partywall:///test");
    vec![
        ("native", ours::caller(ring.clone(), settings)),
        ("ordinary", tonics::caller(ring, settings)),
        ("HTTP/2", ours::caller(channel(address), settings)),
    ]
}

#[tokio::test]
async fn waiting_calls_are_answered_on_each_way_when_served() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s.sock").display());
    let callers = callers(&host.socket, &address, true);
    // The second server is there after the first one has gone, and links to that have ended.
    for _ in 0..2 {
        let calls = callers.iter().map(|(way, caller)| {
            let mut caller = caller.another();
            let call = tokio::spawn(async move {
                let asked = Asked::sized("you", 100);
                (caller.hello(&asked).await, caller.hello(&asked).await)
            });
            (*way, call)
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(calls.iter().all(|(_, call)| !call.is_finished()), "nobody serves");
        let mut server = Server::builder().coordinator(&host.socket);
        let router = server.add_service(ours::greeter(ours::Echo::default(), Settings::default()));
        let bound = router.bind(format!("test,{address}")).await.unwrap();
        let serving = Serving(tokio::spawn(bound.serve().into_future()));
        for (way, call) in calls {
            let (first, second) = tokio::time::timeout(LONG, call).await.expect(way).unwrap();
            assert!(first.is_ok() && first == second, "{way}: {first:?} {second:?}");
        }
        drop(serving);
        until_unserved(&host, &address).await;
    }
}

/// Waits until nobody is there any more.
async fn until_unserved(host: &Host, address: &str) {
    let served = async {
        loop {
            let mut codes = Vec::new();
            for (_, mut caller) in callers(&host.socket, address, false) {
                codes.push(caller.hello(&Asked::default()).await.code);
            }
            if codes == [Code::Unavailable; 3] {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, served).await.expect("it ends");
}

#[tokio::test]
async fn calls_that_nobody_serves_fail_alike_on_each_way() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s.sock").display());
    let late = Asked { timeout: Some(Duration::from_millis(60)), ..Asked::sized("you", 100) };
    let asked = Asked::sized("you", 100);
    for (waits, asked, code) in [
        (true, &late, Code::DeadlineExceeded),
        (false, &late, Code::Unavailable),
        (false, &asked, Code::Unavailable),
    ] {
        let mut outcomes = Vec::new();
        for (way, mut caller) in callers(&host.socket, &address, waits) {
            for _ in 0..2 {
                let outcome = caller.hello(asked).await;
                assert_eq!(outcome.code, code, "{way}, {waits}: {outcome:?}");
                outcomes.push(outcome);
            }
        }
        // Words about an address are others.
        assert!(outcomes[..4].iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    }
}
