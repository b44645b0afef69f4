//! Calls that are dropped at any moment: each handler ends, and neither a place nor a window is lost.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use partywall::Server;
use partywall_stubs_tests::{Asked, Caller, Calling, Outcome, Settings};
use partywall_testkit::Random;

use super::ways::{LONG, Way};

/// Calls that a link may have open.
const PLACES: usize = 4;
/// More than a window of a stream, and four of them more than that of a link.
const FULL: usize = 3 << 20;

/// A call of the kinds that differ in how far they come before they are dropped.
fn asked(random: &mut Random) -> Asked {
    let name = ["", "slow", "soon", "yields", "5:why", "panics"][random.below(6)];
    let bytes = match random.below(5) {
        0 => 0,
        1 => 32,
        2 => random.below(5000),
        3 => random.below(1 << 18),
        _ => random.below(2 << 20),
    };
    let mut asked = Asked::sized(name, if name == "5:why" { bytes.min(300) } else { bytes });
    // Without metadata and a timeout it is one plain record, if it is short.
    if random.below(4) == 0 {
        asked.ascii.push(("x-one", "v".repeat(random.below(50))));
    }
    if random.below(6) == 0 {
        asked.timeout = Some(Duration::from_micros(random.below(3000) as u64));
    }
    asked
}

/// Polls it so many times, with turns of others in between.
async fn polled(mut call: Calling<'_>, times: usize) -> Option<Outcome> {
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        cx.waker().wake_by_ref();
        call.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Makes calls and drops each at a random moment; how many had ended before.
async fn drop_calls(way: &mut Way, random: &mut Random, calls: usize) -> usize {
    let mut ended = 0;
    for call in 0..calls {
        let asked = asked(random);
        let calling = way.caller.hello(&asked);
        let outcome = match random.below(3) {
            0 => {
                let time = Duration::from_micros(random.below(1500) as u64);
                tokio::time::timeout(time, calling).await.ok()
            }
            _ => polled(calling, random.below(12)).await,
        };
        ended += usize::from(outcome.is_some());
        if asked.name == "slow" {
            way.until_at_work(0).await;
        }
        if call % 10 == 0 {
            answered(way.name, way.caller.as_mut(), 32).await;
        }
    }
    ended
}

/// A call that is answered.
async fn answered(way: &str, caller: &mut dyn Caller, bytes: usize) {
    let asked = Asked::sized("you", bytes);
    let outcome = tokio::time::timeout(LONG, caller.hello(&asked)).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{way}: no answer to {bytes} bytes"));
    let (text, blob, _) = outcome.reply.unwrap_or_else(|| panic!("{way}: {}", outcome.message));
    assert_eq!((text.as_str(), blob.len()), ("hello, you", bytes));
}

/// All places are free, and all windows whole.
async fn nothing_is_lost(way: &Way) {
    way.until_at_work(0).await;
    let slow = Asked::sized("slow", 32);
    let mut callers: Vec<_> = (0..PLACES).map(|_| way.caller.another()).collect();
    let mut calls: Vec<_> = callers.iter_mut().map(|caller| caller.hello(&slow)).collect();
    let all_run = async {
        loop {
            for call in &mut calls {
                assert!(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = way.until_at_work(PLACES) => {}
        () = all_run => {}
    }
    drop(calls);
    way.until_at_work(0).await;
    for caller in &mut callers {
        answered(way.name, caller.as_mut(), FULL).await;
    }
    let (name, mut at_once) = (way.name, tokio::task::JoinSet::new());
    for mut caller in callers {
        at_once.spawn(async move { answered(name, caller.as_mut(), FULL).await });
    }
    at_once.join_all().await;
}

async fn calls_are_dropped_on_each_way(seed: u64, in_company: bool) {
    let server = Server::builder().max_concurrent_streams(PLACES as u32);
    // HTTP/2 ends a connection with more calls that were reset before they were begun: on a busy machine all.
    let server = server.http2_max_pending_accept_reset_streams(Some(10_000));
    let settings = Settings::default();
    for mut way in Way::all(&server, settings, settings).await {
        // Another one calls all the while.
        let stop = Arc::new(AtomicBool::new(!in_company));
        let (mut other, stopped, name) = (way.caller.another(), Arc::clone(&stop), way.name);
        let company = tokio::spawn(async move {
            let mut calls = 0;
            while !stopped.load(Ordering::Relaxed) {
                answered(name, other.as_mut(), [0, 32, 100_000][calls % 3]).await;
                calls += 1;
            }
            calls
        });
        let mut random = Random::new(seed);
        let calls = partywall_testkit::trials(20_000);
        let ended = drop_calls(&mut way, &mut random, calls).await;
        assert!((calls / 50..calls * 9 / 10).contains(&ended), "{}: {ended} ended", way.name);
        stop.store(true, Ordering::Relaxed);
        let others = company.await.unwrap();
        assert_eq!(others > 10, in_company, "{others} calls beside");
        nothing_is_lost(&way).await;
    }
}

#[tokio::test]
async fn calls_dropped_at_any_moment_leave_nothing() {
    calls_are_dropped_on_each_way(11, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_beside_others_leave_nothing() {
    calls_are_dropped_on_each_way(12, true).await;
}
