//! Messages of a program's own making that have another length than they say, or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use partywall::{Channel, Server, blocking};
use partywall_stubs_tests::{Own, PANICS, Settings, code_and_text, ours, tonics};
use partywall_testkit::{Host, Random};
use tonic::{Code, Response, Status};

use ours::pb::keeper_blocking::KeeperClient;

use super::ways::{Serving, listening, named};

/// A server of ours over a ring and over HTTP/2, and one of tonic's over a ring.
struct Servers {
    ring: Channel,
    http2: Channel,
    other: Channel,
    /// Without a runtime, to a server of ours.
    blocking: Arc<Mutex<Option<blocking::Channel>>>,
    _serving: [Serving; 2],
    _host: Host,
}

impl Servers {
    async fn new(served: Settings) -> Self {
        let router = || Server::builder().add_service(ours::keeper(served));
        let other = Server::builder().add_service(tonics::keeper(served)).in_process().unwrap();
        let (http2, serving) = listening(router()).await;
        let ring = router().in_process().unwrap();
        let host = Host::open();
        let mut server = Server::builder().coordinator(&host.socket);
        let (endpoint, at_name) = named(server.add_service(ours::keeper(served)), &host).await;
        let connect = move || blocking::Channel::connect(endpoint).unwrap();
        let channel = tokio::task::spawn_blocking(connect).await.unwrap();
        let blocking = Arc::new(Mutex::new(Some(channel)));
        Self { ring, http2, other, blocking, _serving: [serving, at_name], _host: host }
    }

    /// What a call comes to without a runtime; none if its message panics.
    async fn call_blocking(&self, message: &Own, called: Settings) -> Option<Result<Own, Status>> {
        let (channel, message) = (Arc::clone(&self.blocking), message.clone());
        let call = move || {
            let mut channel = channel.lock().unwrap();
            let mut client = KeeperClient::new(channel.take().expect("one call at a time"));
            if let Some(limit) = called.encoded {
                client = client.max_encoding_message_size(limit);
            }
            let kept = catch_unwind(AssertUnwindSafe(|| client.keep(message)));
            *channel = Some(client.into_inner());
            kept.ok().map(|kept| kept.map(Response::into_inner))
        };
        tokio::task::spawn_blocking(call).await.unwrap()
    }

    /// What a call comes to on all ways.
    async fn call(&self, message: &Own, called: Settings) -> Result<Own, Status> {
        let Self { ring, http2, other, .. } = self;
        let native = ours::keep(ring.clone(), message.clone(), called).await;
        let mut others = Vec::new();
        others.push(tonics::keep(ring.clone(), message.clone(), called).await);
        others.push(ours::keep(http2.clone(), message.clone(), called).await);
        others.push(ours::keep(other.clone(), message.clone(), called).await);
        others.push(tonics::keep(other.clone(), message.clone(), called).await);
        others.push(self.call_blocking(message, called).await.expect("no panic"));
        let said = |called: &Result<Own, Status>| match called {
            Ok(kept) => Ok(kept.clone()),
            Err(_) => Err(code_and_text(called.clone())),
        };
        for (way, other) in others.iter().enumerate() {
            assert_eq!(
                said(other),
                said(&native),
                "way {way}, {} {}",
                message.says,
                message.answer
            );
        }
        native
    }
}

/// What a message says beside its length: nothing, a little, or much.
fn lie(random: &mut Random, len: usize) -> i64 {
    match random.below(5) {
        0 => 0,
        1 => 1 + random.below(300) as i64,
        2 => 100_000 + random.below(1000) as i64,
        3 => -(1 + random.below(3) as i64),
        _ => -(random.below(len + 1) as i64),
    }
}

#[tokio::test]
async fn messages_that_lie_about_their_length_arrive() {
    let servers = Servers::new(Settings::default()).await;
    let mut random = Random::new(17);
    for _ in 0..partywall_testkit::trials(4000) {
        let len = [0, 1, 20, 47, 48, 1000, 70_000, 300_000][random.below(8)];
        let says = lie(&mut random, len);
        let answer = lie(&mut random, len);
        let message = Own { blob: random.bytes(len + 1), answer, says };
        let kept = servers.call(&message, Settings::default()).await.unwrap();
        assert!(kept.blob == message.blob, "{len} bytes, {says} and {answer} more said");
    }
}

/// A limit is one of the length that a message has, but for one that says that it is longer than the limit:
/// it is refused by its word on our way, and encoded and sent on tonic's.
#[tokio::test]
async fn limits_are_those_of_the_length_that_a_message_has() {
    let limit = Settings { encoded: Some(1000), ..Settings::default() };
    let servers = Servers::new(limit).await;
    for (bytes, code) in [(900, Code::Ok), (1100, Code::OutOfRange)] {
        for lies in [0, -700] {
            // By the client, and by the server alone.
            for (says, answer, called) in [(lies, 0, limit), (0, lies, Settings::default())] {
                let message = Own { blob: vec![7; bytes], answer, says };
                for _ in 0..3 {
                    let called = servers.call(&message, called).await;
                    assert_eq!(code_and_text(called).0, code, "{bytes} bytes, {says} {answer}");
                }
            }
        }
    }
    let long = Own { blob: vec![7; 100], says: 2000, answer: 0 };
    let native = ours::keep(servers.ring.clone(), long.clone(), limit).await;
    assert_eq!(native.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(tonics::keep(servers.ring, long, limit).await.unwrap().blob.len(), 100);
}

#[tokio::test]
async fn messages_that_panic_end_their_own_call_on_each_way() {
    let servers = Servers::new(Settings::default()).await;
    let good = Own { blob: vec![7; 100], ..Own::default() };
    for _ in 0..3 {
        // In the service.
        let bad = Own { answer: PANICS, ..good.clone() };
        let status = servers.call(&bad, Settings::default()).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        // In the caller, whose own panic it is.
        for channel in [&servers.ring, &servers.http2, &servers.other] {
            let bad = Own { says: PANICS, ..good.clone() };
            let native = ours::keep(channel.clone(), bad.clone(), Settings::default());
            let ordinary = tonics::keep(channel.clone(), bad, Settings::default());
            let ended = [tokio::spawn(native).await, tokio::spawn(ordinary).await];
            // Over HTTP/2 another task encodes.
            if !std::ptr::eq(channel, &servers.http2) {
                assert!(ended.iter().all(|ended| ended.is_err()), "{ended:?}");
            }
        }
        let bad = Own { says: PANICS, ..good.clone() };
        assert!(servers.call_blocking(&bad, Settings::default()).await.is_none());
        assert_eq!(servers.call(&good, Settings::default()).await.unwrap().blob, good.blob);
    }
}
