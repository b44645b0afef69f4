//! A test that measures time, alone in its binary so that no other test competes with it.

#[path = "ring_suite/service.rs"]
mod service;
#[allow(dead_code, reason = "shared with the other binary")]
#[path = "ring_suite/setup.rs"]
mod setup;

use std::time::{Duration, Instant};

use partywall::{Channel, Routes, Server};
use tonic::body::Body;
use tower::Service;

use service::{Raw, ok, request};
use setup::Host;

/// What is answered beside a handler that burns, is answered within this.
const SOON: Duration = Duration::from_millis(2);

/// A handler that burns the CPU for 100 ms leaves another call on the same channel answered
/// within 2 ms, also when its method was always short before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burning_handler_does_not_stop_the_others() {
    let host = Host::open();
    let raw = Raw::new(|r| async move {
        if r.headers().contains_key("x-burn") {
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        ok()
    });
    // The service has a runtime of its own, so that the caller's tasks do not compete with it.
    let service =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let router =
        Server::builder().coordinator(&host.socket).add_routes(Routes::default().add_service(raw));
    service.spawn(router.serve("test"));
    let channel = host.connect().await;
    // What else runs on the machine can only make it longer.
    let mut measured = Vec::new();
    let is_good = |(median, in_time): &(Duration, usize)| *median < SOON && *in_time >= 18;
    while measured.len() < 6 && !measured.iter().any(is_good) {
        measured.push(beside_a_burning_call(&channel).await);
    }
    println!("{measured:?}");
    assert!(measured.iter().any(is_good), "median of 20, and how many in time: {measured:?}");
    service.shutdown_background();
}

/// How long a call takes that is made while another one burns: the median of 20, and how many of them
/// were answered before that one was.
async fn beside_a_burning_call(channel: &Channel) -> (Duration, usize) {
    let (mut waits, mut in_time) = (Vec::new(), 0);
    for round in 0..20 {
        for _ in 0..20 {
            channel.clone().call(request("Any", Body::empty())).await.unwrap();
        }
        let mut burning = request("Any", Body::empty());
        burning.headers_mut().insert("x-burn", "1".parse().unwrap());
        let burn = tokio::spawn(channel.clone().call(burning));
        tokio::time::sleep(Duration::from_millis(3 + round % 5)).await;
        let start = Instant::now();
        channel.clone().call(request("Any", Body::empty())).await.unwrap();
        waits.push(start.elapsed());
        in_time += usize::from(!burn.is_finished());
        burn.await.unwrap().unwrap();
    }
    waits.sort();
    (waits[waits.len() / 2], in_time)
}
