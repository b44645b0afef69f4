//! Servers that stop while calls run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint, Server, blocking};
use partywall_stubs_tests::{Asked, Caller, Outcome, Settings, ours, tonics};
use partywall_testkit::{Host, Random};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::Code;

use super::ways::LONG;

/// A server that is told to stop.
struct Running {
    stop: oneshot::Sender<()>,
    ends: JoinHandle<Result<(), partywall::Error>>,
}

impl Running {
    async fn at(server: Server, at: &str, service: ours::Echo) -> (Self, Vec<partywall::Target>) {
        let mut server = server;
        let router = server.add_service(ours::greeter(service, Settings::default()));
        let bound = router.bind(at).await.unwrap();
        let addresses = bound.addresses().to_vec();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = bound.serve_with_shutdown(async { drop(stopped.await) });
        (Self { stop, ends: tokio::spawn(serving.into_future()) }, addresses)
    }

    async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(LONG, self.ends).await.expect("an end").unwrap().unwrap();
    }
}

fn endpoint(socket: &Path) -> Endpoint {
    Endpoint::from_static("partywall:///test").coordinator(socket)
}

/// The native callers of a channel and the ordinary ones.
fn callers(channel: &Channel) -> [(&'static str, Box<dyn Caller>); 2] {
    let settings = Settings::default();
    [
        ("native", ours::caller(channel.clone(), settings)),
        ("ordinary", tonics::caller(channel.clone(), settings)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_native_call_is_lost_when_an_instance_drains() {
    let host = Host::open();
    let serve =
        || Running::at(Server::builder().coordinator(&host.socket), "test", Default::default());
    let (mut old, _) = serve().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for _ in 0..2 {
        let channel = endpoint(&host.socket).connect().await.unwrap();
        for (way, bytes) in [(0, 0), (0, 3000), (0, 200_000), (1, 0), (1, 200_000)] {
            let (way, mut caller) = callers(&channel).into_iter().nth(way).expect("two ways");
            let stop = Arc::clone(&stop);
            running.spawn(async move {
                let asked = Asked::sized("you", bytes);
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let outcome = caller.hello(&asked).await;
                    assert!(outcome.is_ok(), "{way} call {calls} of {bytes} bytes: {outcome:?}");
                    calls += 1;
                }
                calls
            });
        }
    }
    let (endpoint, stopped) = (endpoint(&host.socket), Arc::clone(&stop));
    let without_a_runtime = std::thread::spawn(move || {
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let mut client = ours::pb::greeter_blocking::GreeterClient::new(channel);
        let mut calls = 0;
        while !stopped.load(Ordering::Relaxed) {
            let request = ours::pb::HelloRequest { name: "you".into(), blob: vec![7; 32] };
            client.say_hello(request).unwrap();
            calls += 1;
        }
        calls
    });
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let (new, _) = serve().await;
        // It is there before the other one goes.
        tokio::time::sleep(Duration::from_millis(20)).await;
        std::mem::replace(&mut old, new).stop().await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(calls) = running.join_next().await {
        assert!(calls.unwrap() > 10);
    }
    assert!(without_a_runtime.join().unwrap() > 10);
    old.stop().await;
}

/// This one runs during its calls alone, so that each call finds the drain itself, when it has begun.
#[test]
fn native_calls_of_an_idle_runtime_find_the_next_instance() {
    let host = Host::open();
    let servers = tokio::runtime::Runtime::new().unwrap();
    let serve =
        || Running::at(Server::builder().coordinator(&host.socket), "test", Default::default());
    let (mut old, _) = servers.block_on(serve());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let channel = |runtime: &tokio::runtime::Runtime| {
        runtime.block_on(endpoint(&host.socket).connect()).unwrap()
    };
    let [(_, mut native), _] = callers(&channel(&one));
    let [_, (_, mut ordinary)] = callers(&channel(&other));
    let asked = Asked::sized("you", 32);
    for round in 0..10 {
        for _ in 0..2 {
            let outcomes =
                [one.block_on(native.hello(&asked)), other.block_on(ordinary.hello(&asked))];
            assert!(outcomes.iter().all(Outcome::is_ok), "{round}: {outcomes:?}");
        }
        let (new, _) = servers.block_on(serve());
        std::thread::sleep(Duration::from_millis(20));
        let _running = servers.enter();
        let stopped = servers.spawn(std::mem::replace(&mut old, new).stop());
        // The drain waits for the callers' word 250 ms at most; some calls come before, and some after.
        std::thread::sleep(Duration::from_millis([5, 300][round % 2]));
        let outcomes = [one.block_on(native.hello(&asked)), other.block_on(ordinary.hello(&asked))];
        assert!(outcomes.iter().all(Outcome::is_ok), "{round}: {outcomes:?}");
        servers.block_on(stopped).unwrap();
    }
}

/// Whatever moment it stops at, a call is answered or UNAVAILABLE, on each way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_server_that_stops_answer_or_are_unavailable() {
    let mut random = Random::new(31);
    let (mut answered, mut unavailable) = ([0; 3], [0; 3]);
    for _ in 0..partywall_testkit::trials(200) {
        let host = Host::open();
        let grace = Duration::from_millis(random.below(30) as u64);
        let server = Server::builder().coordinator(&host.socket).drain_timeout(grace);
        let at = "test,http://127.0.0.1:0";
        let (server, addresses) = Running::at(server, at, ours::Echo::default()).await;
        let ring = endpoint(&host.socket).connect().await.unwrap();
        let http2 = Channel::connect(addresses[1].to_string()).await.unwrap();
        let [native, ordinary] = callers(&ring);
        let ways = [native, ordinary, ("HTTP/2", ours::caller(http2, Settings::default()))];
        let mut running = JoinSet::new();
        for (way, (name, caller)) in ways.iter().enumerate() {
            for kind in ["you", "soon", "slow"] {
                let mut caller = caller.another();
                let asked = Asked::sized(kind, random.below(100_000));
                let name = *name;
                running.spawn(async move {
                    let mut answered = 0;
                    loop {
                        let outcome = caller.hello(&asked).await;
                        if !outcome.is_ok() {
                            let code = outcome.code;
                            assert_eq!(code, Code::Unavailable, "{name}, {kind}: {outcome:?}");
                            return (way, answered);
                        }
                        answered += 1;
                    }
                });
            }
        }
        tokio::time::sleep(Duration::from_micros(random.below(20_000) as u64)).await;
        let begin = Instant::now();
        server.stop().await;
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        let ended = tokio::time::timeout(LONG, running.join_all()).await.expect("an end of each");
        for (way, calls) in ended {
            answered[way] += calls;
            unavailable[way] += 1;
        }
        // They are alike afterwards.
        let mut words = Vec::new();
        for (_, mut caller) in callers(&ring) {
            words.push(caller.hello(&Asked::default()).await);
        }
        assert_eq!(words[0], words[1]);
        assert_eq!(words[0].code, Code::Unavailable);
    }
    assert!(answered.iter().chain(&unavailable).all(|n| *n > 10), "{answered:?} {unavailable:?}");
}
