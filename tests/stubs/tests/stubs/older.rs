//! Peers of an older release, which has no capability: there are no numbers of methods and no plain frames,
//! and calls come to the same.

use std::path::Path;
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint, Server, blocking};
use partywall_stubs_tests::{Asked, Settings, ours, tonics};
use partywall_testkit::{Host, Older, Random};
use tonic::Code;

use super::random;
use super::ways::{LONG, Serving};

/// The beginning of a request whose method has no number: two lengths, a timeout, a path, a count, a prefix.
const HEAD: u64 = 4 + 8 + 2 + "/stubs.v1.Greeter/SayHello".len() as u64 + 2 + 5;

fn endpoint(socket: &Path) -> Endpoint {
    Endpoint::from_static("partywall:///test").coordinator(socket)
}

/// Serves at the socket by stubs of either kind.
async fn serve(socket: &Path, by_tonics: bool) -> Serving {
    let mut server = Server::builder().coordinator(socket);
    let settings = Settings::default();
    let router = match by_tonics {
        false => server.add_service(ours::greeter(ours::Echo::default(), settings)),
        true => server.add_service(tonics::greeter(tonics::Echo::default(), settings)),
    };
    let bound = router.bind("test").await.unwrap();
    Serving(tokio::spawn(bound.serve().into_future()))
}

/// Bytes that the service of the latest link has received, once it has counted so many calls.
async fn received(host: &Host, calls: u64) -> u64 {
    let begin = Instant::now();
    loop {
        let socket = host.socket.clone();
        let asked = tokio::task::spawn_blocking(move || partywall::operator::links(Some(&socket)));
        let links = asked.await.unwrap().unwrap();
        if let Some(link) = links.last().filter(|link| link.stats.calls == calls) {
            return link.stats.received_bytes;
        }
        assert!(begin.elapsed() < LONG, "not {calls} calls: {links:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bytes of 100 requests without a field.
async fn bytes_of_requests(host: &Host, channel: &Channel, by_tonics: bool) -> u64 {
    let settings = Settings::default();
    let mut caller = match by_tonics {
        false => ours::caller(channel.clone(), settings),
        true => tonics::caller(channel.clone(), settings),
    };
    let asked = Asked::default();
    // By then a method has its number, where it can have one.
    assert!(caller.hello(&asked).await.is_ok());
    let before = received(host, 1).await;
    for _ in 0..100 {
        assert!(caller.hello(&asked).await.is_ok());
    }
    received(host, 101).await - before
}

#[tokio::test]
async fn a_peer_without_numbers_is_called_by_paths() {
    for (older_server, older_caller) in [(false, false), (true, false), (false, true), (true, true)]
    {
        for tonics_server in [false, true] {
            let host = Host::open();
            let older = Older::beside(&host.socket);
            let at = |is_older: bool| if is_older { &older.socket } else { &host.socket };
            let _serving = serve(at(older_server), tonics_server).await;
            let channel = endpoint(at(older_caller)).connect().await.unwrap();
            let bytes = bytes_of_requests(&host, &channel, false).await;
            drop(channel);
            let is_older = older_server || older_caller;
            let each = bytes / 100;
            assert_eq!(each >= HEAD, is_older, "{each} bytes, {older_server} {older_caller}");
            // Tonic's stubs name paths in any case.
            let channel = endpoint(at(older_caller)).connect().await.unwrap();
            assert!(bytes_of_requests(&host, &channel, true).await / 100 >= HEAD);
        }
    }
}

#[tokio::test]
async fn random_calls_of_older_peers_come_to_the_same() {
    let mut random = Random::new(23);
    for (older_server, older_caller) in [(true, false), (false, true)] {
        for tonics_server in [false, true] {
            let host = Host::open();
            let older = Older::beside(&host.socket);
            let at = |is_older: bool| if is_older { &older.socket } else { &host.socket };
            let _serving = serve(at(older_server), tonics_server).await;
            let channel = endpoint(at(older_caller)).connect().await.unwrap();
            let mut native = ours::caller(channel.clone(), Settings::default());
            let mut ordinary = tonics::caller(channel, Settings::default());
            for trial in 0..partywall_testkit::trials(2000) {
                let asked = random::asked(&mut random);
                let one = native.hello(&asked).await;
                let other = ordinary.hello(&asked).await;
                assert_eq!(one, other, "{trial}: {:?}", Asked { blob: Vec::new(), ..asked });
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_client_and_an_older_peer_understand_each_other() {
    for older_server in [true, false] {
        let host = Host::open();
        let older = Older::beside(&host.socket);
        let at = |is_older: bool| if is_older { &older.socket } else { &host.socket };
        let _serving = serve(at(older_server), false).await;
        let endpoint = endpoint(at(!older_server));
        let calls = tokio::task::spawn_blocking(move || {
            let channel = blocking::Channel::connect(endpoint).unwrap();
            let mut client = ours::pb::greeter_blocking::GreeterClient::new(channel);
            for bytes in [0, 32, 100_000, 3 << 20, 32] {
                let request = ours::pb::HelloRequest { name: "you".into(), blob: vec![7; bytes] };
                let reply = client.say_hello(request).unwrap().into_inner();
                assert_eq!((reply.text.as_str(), reply.blob.len()), ("hello, you", bytes));
            }
            let request = ours::pb::HelloRequest { name: "5:why".into(), ..Default::default() };
            assert_eq!(client.say_hello(request).unwrap_err().code(), Code::NotFound);
        });
        calls.await.unwrap();
        assert!(received(&host, 6).await > 6 * HEAD);
    }
}
