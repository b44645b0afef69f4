//! Peers that break the rules of calls, record by record.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use partywall_abi::control::Blame;
use partywall_abi::frame::{self, END, HEAD, Kind, RequestHead};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_abi::version::Capabilities;
use partywall_call::cases::{self, Case};
use partywall_shm::link::Ends;
use partywall_shm::setup::local_pair;
use tonic::Code;

use super::account::{Accounts, Bounds};
use super::caller::{self, Call};
use super::scripted::{self, Never, Panics, Pieces};
use super::service::{self, Dispatch, Service};
use super::wake::Ring;
use crate::domain::Visit;

/// A service that never answers, and the end of a caller that speaks records.
fn service(bounds: Bounds) -> (Arc<Service<Never>>, Ends) {
    serving(bounds, Never)
}

fn serving<D: Dispatch>(bounds: Bounds, dispatch: D) -> (Arc<Service<D>>, Ends) {
    let (ours, theirs) = local_pair(Geometry::WIDE).unwrap();
    let account = Accounts::new(bounds).open(1, Some(1));
    let caller = (crate::fuzz::stranger(), account);
    let link = service::start(ours, dispatch, caller, MethodSet::all(), None).unwrap();
    (link, theirs)
}

fn say(ends: &mut Ends, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    assert!(ends.producer.try_push(kind as u8, flags, stream, &[payload]).unwrap());
    let wake = ends.producer.notify().unwrap();
    ends.bell.carry_out(wake).unwrap();
}

fn head(data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    let head = |out: &mut Vec<u8>| RequestHead::write(out, None, "/a.B/C", 0);
    frame::write_block(&mut payload, head).unwrap();
    payload.extend_from_slice(data);
    payload
}

/// The next record that is there within a second.
async fn hear(ends: &mut Ends) -> Option<(Kind, u32, Vec<u8>)> {
    for _ in 0..1000 {
        if let Some(d) = ends.consumer.peek().unwrap() {
            let mut payload = Vec::with_capacity(d.len as usize);
            ends.consumer.read(&mut payload);
            ends.consumer.release();
            return Some((Kind::from_number(d.kind).unwrap(), d.stream, payload));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    None
}

#[tokio::test]
async fn limits_are_announced_and_enforced() {
    let (link, mut theirs) = service(Bounds { calls_per_link: 3, ..Bounds::default() });
    let (kind, stream, limits) = hear(&mut theirs).await.unwrap();
    assert_eq!((kind, stream), (Kind::Limits, 0));
    let said = frame::Limits { streams: 3, window: limits::LINK_WINDOW };
    assert_eq!(frame::Limits::decode(&limits), Ok(said));
    for stream in 1..=5 {
        say(&mut theirs, Kind::Frame, HEAD | END, stream, &head(b""));
    }
    for refused in 4..=5 {
        let (kind, stream, why) = hear(&mut theirs).await.unwrap();
        assert_eq!((kind, stream), (Kind::Reset, refused));
        let (code, text) = frame::decode_reset(&why).unwrap();
        assert_eq!(Code::from_i32(code.into()), Code::ResourceExhausted);
        assert!(text.contains("max_concurrent_streams"), "{text}");
    }
    // One that is over makes a place.
    let mut reset = Vec::new();
    frame::write_reset(&mut reset, Code::Cancelled as u8, "");
    say(&mut theirs, Kind::Reset, 0, 2, &reset);
    say(&mut theirs, Kind::Frame, HEAD | END, 6, &head(b""));
    say(&mut theirs, Kind::Frame, HEAD | END, 7, &head(b""));
    assert!(matches!(hear(&mut theirs).await, Some((Kind::Reset, 7, _))));
    assert!(!link.is_closed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_that_panics_twice_ends_its_own_call() {
    const GOOD: u32 = 10;
    let dispatch = Panics((GOOD as usize).into());
    let (link, mut theirs) = serving(Bounds::default(), dispatch);
    assert!(matches!(hear(&mut theirs).await, Some((Kind::Limits, 0, _))));
    // After these its reader polls handlers itself.
    for stream in 1..=GOOD {
        say(&mut theirs, Kind::Frame, HEAD | END, stream, &head(b""));
        let (kind, answered, data) = hear(&mut theirs).await.unwrap();
        assert_eq!((kind, answered, data.last()), (Kind::Frame, stream, Some(&7)));
    }
    for stream in GOOD + 1..GOOD + 3 {
        say(&mut theirs, Kind::Frame, HEAD | END, stream, &head(b""));
        let (kind, ended, why) = hear(&mut theirs).await.unwrap();
        assert_eq!((kind, ended), (Kind::Reset, stream));
        let (code, text) = frame::decode_reset(&why).unwrap();
        assert_eq!(Code::from_i32(code.into()), Code::Internal, "{text}");
    }
    assert!(!link.is_closed());
}

/// Ends as the coordinator hears of them: whether the peer broke the rule that it is to break.
fn check(case: &Case, why: &tonic::Status, coordinator: &OwnedFd) {
    let expected = match case.rule {
        Some(rule) => partywall_call::Error::from(rule).to_string(),
        None => "the peer sent a record that cannot be read".into(),
    };
    assert!(why.message().contains(&expected), "{why} is not {expected}");
    assert_eq!(crate::coordinator::tests::blamed(coordinator), Blame::Peer, "{why}");
}

/// One record holds more than a link's window.
fn wide() -> (Ends, Ends) {
    local_pair(Geometry::new(64, 20 << 20).unwrap()).unwrap()
}

/// Waits until somebody else has done something.
async fn until(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..1000 {
        if done() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

#[tokio::test]
async fn service_ends_a_link_on_each_broken_rule_with_blame() {
    for case in cases::callers() {
        // Its driver reads, or the caller's own thread, which has come in through the gate.
        for gate in [false, true] {
            let (ours, mut theirs) = wide();
            let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
            let calls_per_link = cases::STREAMS as usize;
            let account =
                Accounts::new(Bounds { calls_per_link, ..Bounds::default() }).open(1, Some(1));
            let caller = (crate::fuzz::stranger(), account);
            let methods = MethodSet::all();
            let common = case.capabilities();
            let service =
                service::run(ours, Never, caller, methods, Some(tracked), common).unwrap();
            if case.drains {
                service.drain();
            }
            for (kind, flags, stream, payload) in &case.records {
                while !service.is_closed()
                    && !theirs.producer.try_push(*kind, *flags, *stream, &[payload]).unwrap()
                {
                    if gate {
                        Arc::clone(&service).visit(1);
                    } else {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                    }
                }
                if !gate {
                    let wake = theirs.producer.notify().unwrap();
                    theirs.bell.carry_out(wake).unwrap();
                }
            }
            // A visit is over after a millisecond, whatever is left.
            let mut visits = 0;
            while gate && !service.is_closed() && visits < 1000 {
                Arc::clone(&service).visit(1);
                visits += 1;
            }
            assert!(until(|| service.is_closed()).await, "{case:?}");
            check(&case, service.why().unwrap(), &coordinator);
        }
    }
}

#[tokio::test]
async fn a_caller_ends_a_link_on_each_broken_rule_with_the_same_blame() {
    let begin = |ours, tracked, common| {
        let caller = caller::run(ours, Some(tracked), Box::new(Ring), common).unwrap();
        let open = caller.open(None, None).unwrap().expect("the first call has a place");
        let call = tokio::spawn(scripted::end(open.send(Pieces::new(b"x", 1))));
        (caller, call)
    };
    for case in cases::services() {
        let (ours, mut theirs) = wide();
        let (tracked, coordinator) = crate::coordinator::tests::tracked(7);
        let (caller, call) = begin(ours, tracked, case.capabilities());
        assert!(hear(&mut theirs).await.is_some());
        for (kind, flags, stream, payload) in &case.records {
            assert!(theirs.producer.try_push(*kind, *flags, *stream, &[payload]).unwrap());
        }
        let wake = theirs.producer.notify().unwrap();
        theirs.bell.carry_out(wake).unwrap();
        assert!(until(|| !caller.usable()).await, "{case:?}");
        check(&case, caller.why().unwrap(), &coordinator);
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
    }
    for records in cases::honest_services() {
        let (ours, mut theirs) = wide();
        let (tracked, _coordinator) = crate::coordinator::tests::tracked(7);
        let (caller, call) = begin(ours, tracked, Capabilities::OWN);
        assert!(hear(&mut theirs).await.is_some());
        for (kind, flags, stream, payload) in &records {
            assert!(theirs.producer.try_push(*kind, *flags, *stream, &[payload]).unwrap());
        }
        let wake = theirs.producer.notify().unwrap();
        theirs.bell.carry_out(wake).unwrap();
        call.await.unwrap().unwrap();
        assert!(caller.usable());
    }
}

/// A caller opens calls that announce the largest message, over many links: what they may have under
/// way together is bounded, by smaller windows for links beyond a few.
#[tokio::test]
async fn windows_of_many_links_of_one_caller_are_bounded_together() {
    let accounts = Accounts::new(Bounds::default());
    let windows =
        |n: usize, pid| -> Vec<_> { (0..n).map(|_| accounts.open(1, Some(pid))).collect() };
    let sum = |links: &[Arc<super::account::Account>]| -> u64 {
        links.iter().map(|account| u64::from(account.window)).sum()
    };
    let first = u64::from(limits::FIRST_WINDOW);
    let one = windows(1000, 1);
    assert_eq!(one[0].window, limits::LINK_WINDOW);
    assert!(sum(&one) <= (64 << 20) + 1000 * first, "{}", sum(&one));
    // Another process of the same user has its own, and all together have four times as much.
    let others: Vec<_> = (2..12).flat_map(|pid| windows(100, pid)).collect();
    assert_eq!(others[0].window, limits::LINK_WINDOW);
    assert!(sum(&one) + sum(&others) <= (256 << 20) + 2000 * first);
    drop(one);
    assert_eq!(windows(1, 1)[0].window, limits::LINK_WINDOW);
}

/// A place that is kept for a call which is given up at that moment is the next one's.
#[tokio::test]
async fn place_kept_for_a_dropped_call_goes_to_the_next_one() {
    let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
    let link = caller::start(ours, None).unwrap();
    let begin = |place| -> Option<Call<Pieces>> {
        Some(link.open(None, place).unwrap()?.send(Pieces::new(b"", 0)))
    };
    let first = begin(None).expect("one call has a place");
    assert!(begin(None).is_none());
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(link.place())).collect();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.iter_mut().all(|place| place.as_mut().poll(&mut cx).is_pending()));
    drop(first);
    // The first was told, the second was not, the third has its place and does not use it.
    waiting.drain(..2);
    let place = tokio::time::timeout(Duration::from_secs(10), waiting.remove(0)).await;
    assert!(begin(None).is_none(), "somebody waits");
    drop(place.expect("the place is lost"));
    let place = tokio::time::timeout(Duration::from_secs(10), waiting.remove(0)).await;
    assert!(begin(place.expect("the place is lost")).is_some());
}
