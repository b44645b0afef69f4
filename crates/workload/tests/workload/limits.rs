//! What one user may have, and who waits for whom.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use partywall_workload::Limits;
use partywall_workload::proto::X509svidRequest;
use partywall_workload::proto::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use tonic::Code;

use crate::rig::{Rig, SOON, asks, principal, within};
use crate::senders::begin;

#[test]
fn a_connection_more_than_a_user_may_have_is_closed() {
    let rig = Rig::limited(&principal("me"), Limits { connections: 2, ..Limits::default() });
    let (mut one, mut two) = (rig.stream(), rig.stream());
    begin(&mut one);
    begin(&mut two);
    let closed = |stream: &mut UnixStream| stream.read(&mut [0]).map_or(true, |read| read == 0);
    assert!(closed(&mut rig.stream()));
    drop(one);
    let until = Instant::now() + SOON;
    while closed(&mut rig.stream()) {
        assert!(Instant::now() < until, "the place of one that is gone is free");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_call_more_than_a_user_may_have_is_refused() {
    let rig = Rig::limited(&principal("me"), Limits { streams: 2, ..Limits::default() });
    let (mut client, mut another) = (rig.client().await, rig.client().await);
    let one = within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap();
    let _two = within(another.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap();
    let refused = within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("as many open calls"), "{refused:?}");
    drop(one);
    let until = Instant::now() + SOON;
    while let Err(refused) = within(another.fetch_x509svid(asks(X509svidRequest {}))).await {
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(Instant::now() < until, "the place of one that is over is free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Connections that begin and go no further, some in the middle of a frame, keep nobody waiting.
#[tokio::test]
async fn connections_that_say_no_more_keep_nobody_waiting() {
    let rig = Rig::new(&principal("me"));
    let half_open = |said: &[u8]| {
        let mut stream = rig.stream();
        stream.write_all(said).unwrap();
        stream
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x40\0\0\0\0\0\x01and so";
    let _held: Vec<_> =
        (0..8).flat_map(|_| [&[][..], &preface[..7], &preface[..]].map(half_open)).collect();
    for _ in 0..8 {
        let start = Instant::now();
        let mut client = rig.client().await;
        let mut svids =
            within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
        within(svids.message()).await.unwrap().unwrap();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}

/// What a client does not read holds up nobody, and is not kept: it gets the latest.
#[tokio::test]
async fn a_client_that_does_not_read_gets_the_latest() {
    let rig = Rig::new(&principal("p0"));
    let narrow = rig.endpoint().initial_stream_window_size(1).initial_connection_window_size(1);
    let mut slow = SpiffeWorkloadApiClient::new(within(narrow.connect()).await.unwrap());
    let mut unread =
        within(slow.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
    let mut client = rig.client().await;
    let mut read =
        within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
    let of = |n: u32| format!("spiffe://partywall.local/service/p{n}");
    let mut next = async |n| {
        let svid = within(read.message()).await.unwrap().unwrap().svids.remove(0);
        assert_eq!(svid.spiffe_id, of(n));
    };
    next(0).await;
    for n in 1..=40 {
        rig.reload(&principal(&format!("p{n}")));
        next(n).await;
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&of(40)) {
        seen.push(within(unread.message()).await.unwrap().unwrap().svids.remove(0).spiffe_id);
    }
    // One in the stream, one that is encoded, one that waits, and the latest.
    assert!(seen.len() <= 6, "{seen:?}");
}
