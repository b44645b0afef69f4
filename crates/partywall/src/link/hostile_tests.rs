//! Peers that break the rules of calls, record by record.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use partywall_abi::frame::{self, END, HEAD, Kind, NO_DEADLINE, ROOM, RequestHead};
use partywall_abi::layout::Geometry;
use partywall_abi::limits;
use partywall_abi::name::MethodSet;
use partywall_shm::setup::{Ends, local_pair};
use tonic::Code;
use tonic::body::Body;

use super::account::{Accounts, Bounds};
use super::caller;
use super::service::{self, Service};
use crate::server::Dispatch;

/// Never answers.
struct Never;

impl Dispatch for Never {
    fn call(
        &self,
        request: http::Request<Body>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Body>> + Send>> {
        Box::pin(async move {
            let _kept = request;
            std::future::pending().await
        })
    }
}

/// A service, and the end of a caller that speaks records.
fn service(bounds: Bounds) -> (Arc<Service>, Ends) {
    let (ours, theirs) = local_pair(Geometry::WIDE).unwrap();
    let account = Accounts::new(bounds).open(1, Some(1));
    let caller = (crate::fuzz::stranger(), account);
    let link = service::start(ours, Arc::new(Never), caller, MethodSet::all(), None).unwrap();
    (link, theirs)
}

fn say(ends: &mut Ends, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    assert!(ends.producer.try_push(kind as u8, flags, stream, &[payload]).unwrap());
    let wake = ends.producer.notify().unwrap();
    ends.bell.carry_out(wake).unwrap();
}

fn head(data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    let head = |out: &mut Vec<u8>| RequestHead::write(out, NO_DEADLINE, "/a.B/C", 0);
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
async fn a_service_says_its_limits_first_and_refuses_a_caller_that_does_not_keep_to_them() {
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

#[tokio::test]
async fn a_caller_that_takes_room_which_nobody_gave_loses_its_link() {
    let stream = 1;
    let bad: [(Kind, u8, u32, Vec<u8>); 5] = [
        (Kind::Frame, ROOM, stream, vec![0; 10]),
        (Kind::Frame, HEAD | ROOM, stream + 1, head(b"x")),
        (Kind::Limits, 0, 0, frame::Limits { streams: 9, window: 1 << 20 }.encode().to_vec()),
        (Kind::Room, 0, stream, vec![0; 7]),
        (Kind::Window, 0, stream, 1_u32.to_le_bytes().to_vec()),
    ];
    for (kind, flags, stream, payload) in bad {
        let (link, mut theirs) = service(Bounds::default());
        say(&mut theirs, Kind::Frame, HEAD, 1, &head(b""));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!link.is_closed());
        say(&mut theirs, kind, flags, stream, &payload);
        for _ in 0..1000 {
            if link.is_closed() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(link.is_closed(), "{kind:?} {flags}");
    }
}

#[tokio::test]
async fn a_service_that_says_limits_twice_or_takes_room_back_loses_its_link() {
    let limits = frame::Limits { streams: 9, window: limits::LINK_WINDOW }.encode();
    let room = |until: u64| until.to_le_bytes().to_vec();
    let bad = [
        [(Kind::Limits, 0, limits.to_vec()), (Kind::Limits, 0, limits.to_vec())],
        [(Kind::Room, 1, room(9)), (Kind::Room, 1, room(8))],
        [(Kind::Limits, 0, limits.to_vec()), (Kind::Window, 0, 1_u32.to_le_bytes().to_vec())],
        [(Kind::Limits, 0, limits.to_vec()), (Kind::Limits, 1, limits.to_vec())],
    ];
    for [first, second] in bad {
        let (ours, mut theirs) = local_pair(Geometry::WIDE).unwrap();
        let link = caller::start(ours, None).unwrap();
        let mut request = http::Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("/a.B/C");
        let call = link.call(request, None);
        assert!(call.is_ok());
        say(&mut theirs, first.0, 0, first.1, &first.2);
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(link.usable(), "{:?} is no fault", first.0);
        say(&mut theirs, second.0, 0, second.1, &second.2);
        for _ in 0..1000 {
            if !link.usable() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!link.usable(), "{:?} after {:?}", second.0, first.0);
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
async fn a_place_goes_on_when_the_call_that_it_was_kept_for_is_dropped() {
    let (ours, _theirs) = local_pair(Geometry::WIDE).unwrap();
    let link = caller::start(ours, None).unwrap();
    let request = || {
        let mut request = http::Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("/a.B/C");
        request
    };
    let Ok(first) = link.call(request(), None) else { panic!("one call has a place") };
    assert!(matches!(link.call(request(), None), Err(caller::Refused::Back(_))));
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(link.place())).collect();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.iter_mut().all(|place| place.as_mut().poll(&mut cx).is_pending()));
    drop(first);
    // The first was told, the second was not, the third has its place and does not use it.
    waiting.drain(..2);
    let place = tokio::time::timeout(Duration::from_secs(10), waiting.remove(0)).await;
    assert!(link.call(request(), None).is_err(), "somebody waits");
    drop(place.expect("the place is lost"));
    let place = tokio::time::timeout(Duration::from_secs(10), waiting.remove(0)).await;
    assert!(link.call(request(), place.expect("the place is lost")).is_ok());
}
