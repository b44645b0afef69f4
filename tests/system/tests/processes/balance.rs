//! A channel with a balance spreads its calls over several processes that come, go and hang.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use partywall::{Balance, Channel, Endpoint, Error};
use partywall_interop::Ways;
use partywall_interop::cases::{Client, Stubs};
use partywall_interop::proto::SimpleRequest;
use partywall_interop::service::DELAY_MS;
use partywall_system_tests::{counted, went, with};
use partywall_testkit::{Host, OPEN, Process};
use tonic::{Request, Status};

use super::SERVER;

/// Less than the 10 s after which a channel looks for instances of which nobody has told it.
const SOON: Duration = Duration::from_secs(6);

fn endpoint(host: &Host, balance: Balance) -> Endpoint {
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    endpoint.wait_for_ready(true).balance(balance)
}

/// The process that answers a call.
async fn answerer(client: &mut Client<Channel>) -> Result<u32, Status> {
    let request = SimpleRequest { fill_server_id: true, ..SimpleRequest::default() };
    let answer = client.unary_call(request).await?;
    Ok(answer.into_inner().server_id.parse().expect("a process number"))
}

/// How many of so many calls each process answers.
async fn spread(client: &Client<Channel>, calls: usize) -> Result<BTreeMap<u32, usize>, Status> {
    let (mut client, mut spread) = (client.clone(), BTreeMap::new());
    for _ in 0..calls {
        *spread.entry(answerer(&mut client).await?).or_default() += 1;
    }
    Ok(spread)
}

/// Calls until the answers come from these processes and no others, each its share; calls that fail are
/// counted.
async fn until_even(client: &Client<Channel>, servers: &[&Process]) -> usize {
    let n = servers.len();
    let expected: BTreeMap<u32, usize> = servers.iter().map(|s| (s.pid(), 4)).collect();
    let (begin, mut failed) = (Instant::now(), 0);
    loop {
        match spread(client, 4 * n).await {
            Ok(found) if found == expected => return failed,
            Ok(found) => assert!(begin.elapsed() < SOON, "{found:?}, and not {expected:?}"),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
                failed += 1;
            }
        }
    }
}

/// Waits until so many links are open, and no others.
fn until_linked(host: &Host, expected: usize) {
    let begin = Instant::now();
    loop {
        let links = partywall::operator::links(Some(&host.socket)).unwrap();
        let open = links.iter().filter(|link| link.open).count();
        if open == expected {
            return;
        }
        assert!(begin.elapsed() < SOON, "{open} links, and not {expected}: {links:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_evenly_to_all_instances_as_they_come_and_go() {
    instances_come_and_go(Stubs::Tonics).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_calls_go_evenly_as_instances_come_and_go() {
    instances_come_and_go(Stubs::Native).await;
}

async fn instances_come_and_go(stubs: Stubs) {
    let host = Host::open();
    let ways = Ways::default();
    let connect = async |balance| {
        let channel = endpoint(&host, balance).connect().await.unwrap();
        Client::new(stubs, channel, ways.clone())
    };
    let start = || host.start(SERVER, &with(stubs, &["--until-input-ends"]));
    let [mut a, mut b, mut c] = [(); 3].map(|()| start());
    for balance in [Balance::RoundRobin, Balance::LeastOutstanding] {
        let client = connect(balance).await;
        until_even(&client, &[&a, &b, &c]).await;
        let spread = spread(&client, 300).await.unwrap();
        assert_eq!(spread.into_values().collect::<Vec<_>>(), [100, 100, 100], "{balance:?}");
    }
    let client = connect(Balance::RoundRobin).await;
    until_even(&client, &[&a, &b, &c]).await;
    until_linked(&host, 3);
    // One comes. Another caller has had one of the links that the coordinator gives in turn, so that the
    // channel gets a second one to an instance first, which it gives back.
    let another = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    let another = another.connect().await.unwrap();
    let d = start();
    assert_eq!(until_even(&client, &[&a, &b, &c, &d]).await, 0);
    until_linked(&host, 5);
    drop(another);
    until_linked(&host, 4);
    // One drains while calls are under way, and fails none of them.
    let called = || ways.counts().native + ways.counts().ordinary;
    let (before, begin) = (called(), Instant::now());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        calls.spawn(async move { spread(&client, 500).await });
    }
    while called() < before + 100 {
        assert!(begin.elapsed() < SOON, "no call is answered");
        tokio::task::yield_now().await;
    }
    c.end_input();
    for spread in calls.join_all().await {
        let spread = spread.expect("a drain fails no call");
        assert!(spread.len() >= 3, "{spread:?}");
    }
    went(counted(&c.line()), stubs);
    assert_eq!(until_even(&client, &[&a, &b, &d]).await, 0);
    until_linked(&host, 3);
    // One is killed: calls that were on their way to it fail, and no others.
    tokio::task::spawn_blocking(move || d.kill()).await.unwrap();
    let failed = until_even(&client, &[&a, &b]).await;
    assert!(failed <= 1, "{failed} calls one after the other have failed");
    until_linked(&host, 2);
    for server in [&mut a, &mut b] {
        server.end_input();
        went(counted(&server.line()), stubs);
    }
    // Ordinary are calls that find no link at once.
    went(ways.counts(), stubs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_instance_is_preferred_to_one_with_an_open_call() {
    let host = Host::open();
    let [a, b] = [(); 2].map(|()| host.start(SERVER, &[]));
    for (balance, all) in [(Balance::LeastOutstanding, false), (Balance::RoundRobin, true)] {
        let channel = endpoint(&host, balance).connect().await.unwrap();
        let mut client = Client::new(Stubs::Tonics, channel, Ways::default());
        until_even(&client, &[&a, &b]).await;
        let mut request = Request::new(SimpleRequest::default());
        request.metadata_mut().insert(DELAY_MS, "60000".parse().unwrap());
        let others = client.clone();
        let mut slow = Box::pin(client.unary_call(request));
        let polled = slow.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
        let spread = spread(&others, 40).await.unwrap();
        assert_eq!(spread.len(), if all { 2 } else { 1 }, "{balance:?}: {spread:?}");
        drop::<Pin<Box<_>>>(slow);
    }
}

/// The calls go to the instances to which there are links.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_of_links_leaves_a_channel_with_fewer_instances() {
    let host = Host::with(&format!("[quota]\nlinks = 2\n{OPEN}"));
    let servers = [(); 3].map(|()| host.start(SERVER, &[]));
    let channel = endpoint(&host, Balance::RoundRobin).connect().await.unwrap();
    let client = Client::new(Stubs::Tonics, channel, Ways::default());
    let begin = Instant::now();
    while spread(&client, 4).await.unwrap().len() < 2 {
        assert!(begin.elapsed() < SOON);
    }
    let spread = spread(&client, 40).await.unwrap();
    assert_eq!(spread.into_values().collect::<Vec<_>>(), [20, 20]);
    let refused = endpoint(&host, Balance::RoundRobin).connect().await.unwrap_err();
    assert!(matches!(refused, Error::QuotaExceeded { .. }), "{refused}");
    assert_eq!(refused.blame(), partywall::Blame::Policy);
    drop(servers);
}
