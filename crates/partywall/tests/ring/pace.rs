//! What the ends of links measure while somebody observes them.

use std::time::Duration;

use partywall::operator::{Observed, PaceStats};
use partywall::{Channel, Endpoint, Routes, blocking};
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, ok, request};
use super::setup::{Host, Serve};

/// How long a call takes at least.
const TAKES: Duration = Duration::from_millis(20);

fn slow() -> Routes {
    Routes::default().add_service(Raw::new(|_| async {
        tokio::time::sleep(TAKES).await;
        ok()
    }))
}

async fn observe(host: &Host, name: &'static str) -> Vec<Observed> {
    let socket = host.socket.clone();
    let observe = move || partywall::operator::observe(Some(&socket), name).unwrap();
    tokio::task::spawn_blocking(observe).await.unwrap()
}

/// What the ends of the only link say: the caller, the server.
async fn pace(host: &Host) -> [PaceStats; 2] {
    let observed = observe(host, "test").await;
    let [Observed { caller: Some(caller), server: Some(server), .. }] = &observed[..] else {
        panic!("{observed:?}");
    };
    [*caller, *server]
}

async fn call(channel: &mut Channel) {
    channel.call(request("Any", Body::empty())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_measures_its_calls_from_the_first_question_on() {
    let host = Host::open();
    let _serving = host.serve(slow()).await;
    let mut channel = host.connect().await;
    for _ in 0..3 {
        call(&mut channel).await;
    }
    for first in pace(&host).await {
        assert_eq!((first.ended, first.open_ns), (0, 0), "{first:?}");
    }
    for _ in 0..10 {
        call(&mut channel).await;
    }
    let apart = pace(&host).await;
    // The last one may have ended at the caller alone.
    assert!(apart[0].ended == 10 && (9..=10).contains(&apart[1].ended), "{apart:?}");
    for end in apart {
        let mean = Duration::from_nanos(end.open_ns / end.ended);
        assert!(mean >= TAKES && end.open_ns <= end.elapsed_ns, "one after the other: {end:?}");
    }
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut channel = channel.clone();
        calls.spawn(async move { call(&mut channel).await });
    }
    calls.join_all().await;
    for (before, now) in apart.into_iter().zip(pace(&host).await) {
        assert!(now.ended >= before.ended + 7, "{before:?} {now:?}");
        let open = Duration::from_nanos(now.open_ns - before.open_ns);
        assert!(open >= 8 * TAKES, "one beside the other: {before:?} {now:?}");
    }
    assert_eq!(observe(&host, "other").await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_caller_measures_its_calls_as_well() {
    let host = Host::open();
    let _serving = host.serve(slow()).await;
    host.until_served();
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let connect = move || blocking::Channel::connect(&endpoint).unwrap();
    let mut channel = tokio::task::spawn_blocking(connect).await.unwrap();
    let five = |mut channel: blocking::Channel| {
        let calls = move || {
            for _ in 0..5 {
                // It answers without a message.
                channel.call_bytes("/test.Raw/Any", b"").unwrap_err();
            }
            channel
        };
        tokio::task::spawn_blocking(calls)
    };
    channel = five(channel).await.unwrap();
    assert_eq!(pace(&host).await[0].ended, 0);
    let _channel = five(channel).await.unwrap();
    let [caller, server] = pace(&host).await;
    assert!(caller.ended == 5 && (4..=5).contains(&server.ended), "{caller:?} {server:?}");
    let mean = Duration::from_nanos(caller.open_ns / 5);
    assert!(mean >= TAKES && caller.open_ns <= caller.elapsed_ns, "{caller:?}");
}
