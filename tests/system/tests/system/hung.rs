//! A server that hangs, and another one that answers.

use std::time::{Duration, Instant};

use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_system_tests::request;
use rustix::process::{Pid, Signal, kill_process};

use super::host::{Host, alone};

/// Each instance is asked in turn, so that some of these meet the one that hangs.
const CONNECTS: u32 = 6;

#[test]
fn a_connect_to_an_instance_that_hangs_is_tried_with_the_next() {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(tried_with_the_next(&Host::new()));
}

async fn tried_with_the_next(host: &Host) {
    let hung = host.server(&[]);
    host.until_served();
    drop(host.connect().await);
    kill_process(Pid::from_raw(hung.pid() as i32).unwrap(), Signal::STOP).unwrap();
    let _other = host.server(&[]);
    // Once it serves, somebody answers; until then a connect waits.
    let start = Instant::now();
    for n in 0..CONNECTS {
        let channel = host.connect().await;
        let mut call = tonic::Request::new(request(u64::from(n), 32));
        call.set_timeout(Duration::from_secs(5));
        TestServiceClient::new(channel).unary_call(call).await.unwrap();
    }
    // One offer is waited for, for a second; then the instance is asked last.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}
