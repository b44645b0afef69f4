//! A handler that burns the CPU leaves other calls of the same channel alone. These tests measure how long
//! calls take on both CPUs, so they are a program of their own: cargo runs no other beside it.

use std::time::Duration;

use partywall_interop::service::{Handle, native, test_service_with};
use partywall_system_tests::{Caller, Stubs, connect, is_answer, request, went};
use tonic::{Request, Status};

use partywall_testkit::{Host, Moment, alone};

/// How long the handler burns.
const BURNT: Duration = Duration::from_millis(100);

/// What is asked beside it is answered within this.
const SOON: Duration = Duration::from_millis(2);

const ROUNDS: usize = 20;

/// Burns the CPU where the request asks for it: at once, or in a task, which a handler has once it waits.
async fn burn(asked: bool, waits: bool) -> Result<(), Status> {
    if waits {
        tokio::task::yield_now().await;
    }
    if asked {
        let begun = std::time::Instant::now();
        while begun.elapsed() < BURNT {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// The median of 20 calls is answered within 2 ms, and 18 of them before the one that burns, also when
/// the method was always short before. A call that waits for the handler takes up to 100 ms.
#[test]
fn a_burning_handler_does_not_stop_the_others() {
    others_go_on(Stubs::Tonics, false);
}

#[test]
fn a_burning_native_handler_does_not_stop_the_others() {
    others_go_on(Stubs::Native, false);
}

/// Tokio's worker that waits for sockets may be the one whose task burns.
#[test]
fn a_handler_that_burns_after_a_wait_does_not_stop_the_others() {
    others_go_on(Stubs::Tonics, true);
}

fn others_go_on(stubs: Stubs, waits: bool) {
    let _alone = alone();
    let host = Host::open();
    // The service has a runtime of its own, so that the caller's tasks do not compete with it.
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let (service, caller) = (runtime(), runtime());
    let calls = Handle::default();
    let handle = calls
        .clone()
        .before(move |request| Box::pin(burn(request.metadata().contains_key("x-burn"), waits)));
    let mut server = partywall::Server::builder().coordinator(&host.socket);
    let router = match stubs {
        Stubs::Tonics => server.add_service(test_service_with(handle)),
        Stubs::Native => server.add_service(native(handle)),
    };
    service.spawn(router.serve("test"));
    let (mut waits, in_time) =
        caller.block_on(async { measure(Caller::new(stubs, connect(&host.socket).await)).await });
    went(calls.counts(), stubs);
    waits.sort();
    println!("{waits:?}, {in_time} of {ROUNDS} before the one that burns");
    assert!(waits[ROUNDS / 2] < SOON, "median of {waits:?}");
    assert!(in_time >= 18, "{in_time} of {ROUNDS} in time: {waits:?}");
    service.shutdown_background();
}

/// How long each call takes that is made while another one burns, less what this process waited for a
/// CPU; and how many of them were answered before that one was.
async fn measure(mut client: Caller) -> (Vec<Duration>, usize) {
    let (mut waits, mut in_time) = (Vec::new(), 0);
    for round in 0..ROUNDS as u64 {
        for _ in 0..20 {
            client.call(request(round, 32)).await.unwrap();
        }
        let mut burning = Request::new(request(round, 32));
        burning.metadata_mut().insert("x-burn", "1".parse().unwrap());
        let mut other = client.clone();
        let burn = tokio::spawn(async move { other.call(burning).await });
        tokio::time::sleep(Duration::from_millis(3 + round % 5)).await;
        let (start, asked) = (Moment::here(), request(round, 64));
        let reply = client.call(asked.clone()).await.unwrap();
        waits.push(Moment::here().since(&start));
        in_time += usize::from(!burn.is_finished());
        assert!(is_answer(&asked, reply.get_ref()));
        burn.await.unwrap().unwrap();
    }
    (waits, in_time)
}
