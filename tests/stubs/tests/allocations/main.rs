//! Allocations of a unary call, of both sides together.
//!
//! Both sides are in one process, each on one thread, and an allocation counts for the thread that makes it.
//! The first calls do not count: a link learns its methods then, and handlers run in tasks until their polls
//! were short.

mod counting;
/// By partywall-build.
mod ours {
    use partywall_stubs_tests::ours as stubs;
    include!("keeper.rs");
}
/// By tonic-prost-build.
mod tonics {
    use partywall_stubs_tests::tonics as stubs;
    include!("keeper.rs");
}

use std::sync::Arc;

use partywall::blocking::Channel;
use partywall::{Endpoint, Server};
use partywall_stubs_tests::Own;
use partywall_stubs_tests::ours::pb::keeper_blocking::KeeperClient;
use partywall_stubs_tests::ours::pb::keeper_server::KeeperServer;
use partywall_testkit::Host;

use counting::Counts;

/// Calls that do not count.
const WARM: u64 = 1000;
/// Calls that do.
const CALLS: u64 = 1000;

/// Of a native call: the two records as they are copied off their rings; what begins and answers the call in
/// the service; three of the request's extensions, which are a map, its table and the caller in it; the
/// handler's future, which `async_trait` boxes.
const NATIVE: Counts = of(7);
/// Of such a call by a client without a runtime, which takes all answers into one buffer.
const NATIVE_BLOCKING: Counts = of(6);
/// Of such a call by tonic's stubs, at both sides: 41 are of tonic, `http` and what is between.
const ORDINARY: Counts = of(47);

/// What a `Vec<u8>` in both messages adds: that of the request and the one that each side decodes. Each side
/// has prost make `Bytes` first, which share a short record.
const BYTES: Counts = of(3);
/// At a client without a runtime they are a copy.
const BYTES_BLOCKING: Counts = of(4);

const fn of(allocations: u64) -> Counts {
    Counts { allocations, deallocations: allocations, reallocations: 0 }
}

/// Runs on one thread, on which a task has yielded before: tokio's list of such tasks grows then.
fn on_one_thread<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::task::yield_now().await;
        run.await
    })
}

/// Calls of a client without a runtime, and its server on a thread of its own.
fn blocking(calls: u64, message: &Own) -> Counts {
    let host = Host::open();
    let socket = host.socket.clone();
    let service = ours::Echo::default();
    let seen = Arc::clone(&service.0);
    std::thread::spawn(move || {
        on_one_thread(async {
            let mut server = Server::builder().coordinator(socket);
            server.add_service(KeeperServer::new(service)).serve("test").await.unwrap();
        });
    });
    let endpoint = Endpoint::from_static("partywall:///test").wait_for_ready(true);
    let channel = Channel::connect(endpoint.coordinator(&host.socket)).unwrap();
    let mut client = KeeperClient::new(channel);
    let mut counted = |calls| {
        let before = Counts::here();
        for _ in 0..calls {
            let answer = client.keep(message.clone()).unwrap();
            assert_eq!(answer.get_ref(), message);
        }
        // The service ends a call after its caller has the answer, but before its next handler.
        (Counts::here() - before, *seen.lock().unwrap())
    };
    let (_, warm) = counted(WARM);
    let (here, there) = counted(calls);
    here + (there - warm)
}

#[test]
fn a_unary_call_allocates_as_often_as_stated() {
    let number = Own { answer: 7, ..Own::default() };
    let bytes = Own { blob: vec![7; 32], ..number.clone() };
    type Way = fn(u64, &Own) -> Counts;
    let ways: [(_, Way, _, _); 3] = [
        ("native", ours::in_process, NATIVE, BYTES),
        ("native without a runtime", blocking, NATIVE_BLOCKING, BYTES_BLOCKING),
        ("ordinary", tonics::in_process, ORDINARY, BYTES),
    ];
    for (way, calls, stated, more) in ways {
        for (message, each) in [(&number, stated), (&bytes, stated + more)] {
            let counted = calls(CALLS, message);
            let bytes = message.blob.len();
            assert_eq!(counted, each.times(CALLS), "{way}, {bytes} bytes: {CALLS} calls");
        }
    }
}
