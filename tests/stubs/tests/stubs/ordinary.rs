//! Clients whose unary calls go in tonic's way, since that has to do something for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use partywall::{Endpoint, Server};
use partywall_stubs_tests::{Own, code_and_text, ours, tonics};
use partywall_testkit::Host;
use tokio::task::JoinSet;
use tonic::codegen::http::Uri;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use ours::pb::HelloRequest;
use ours::pb::greeter_client::GreeterClient;
use ours::pb::greeter_server::GreeterServer;
use ours::pb::keeper_client::KeeperClient;
use ours::pb::keeper_server::{Keeper, KeeperServer};

use super::requests::{NOT_SENT, names, seeing};
use super::ways::{LONG, Serving, named};

/// Enough for a service to take calls natively.
const CALLS: usize = 4;

/// Whether a call has gone in tonic's way at its client: its answer has HTTP's content type then.
fn is_ordinary(answer: &Response<Own>) -> bool {
    answer.metadata().contains_key("content-type")
}

/// A service that takes calls natively.
async fn greeting(host: &Host) -> (Endpoint, Serving) {
    let mut server = Server::builder().coordinator(&host.socket);
    named(server.add_service(GreeterServer::new(ours::Echo::default())), host).await
}

#[tokio::test]
async fn a_timeout_of_an_endpoint_ends_calls_of_native_stubs() {
    let host = Host::open();
    let (endpoint, _serving) = greeting(&host).await;
    let timed = endpoint.clone().timeout(Duration::from_millis(20));
    let mut other = GreeterClient::new(endpoint.connect().await.unwrap());
    let mut timed = GreeterClient::new(timed.connect().await.unwrap());
    for _ in 0..CALLS {
        other.say_hello(HelloRequest::default()).await.unwrap();
        let slow = HelloRequest { name: "slow".into(), ..HelloRequest::default() };
        let late = tokio::time::timeout(LONG, timed.say_hello(slow)).await.expect("a timeout");
        assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    }
}

/// Knows how many of its handlers were at work together.
#[derive(Clone, Debug, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Keeper for Crowd {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        // The calls that are there meanwhile begin.
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Response::new(request.into_inner()))
    }
}

#[tokio::test]
async fn a_concurrency_limit_of_an_endpoint_holds_for_native_stubs() {
    const LIMIT: usize = 2;
    let host = Host::open();
    let crowd = Crowd::default();
    let mut server = Server::builder().coordinator(&host.socket);
    let (endpoint, _serving) =
        named(server.add_service(KeeperServer::new(crowd.clone())), &host).await;
    let limited = endpoint.concurrency_limit(LIMIT).connect().await.unwrap();
    for _ in 0..CALLS {
        let mut calls = JoinSet::new();
        for _ in 0..10 * LIMIT {
            let mut client = KeeperClient::new(limited.clone());
            calls.spawn(async move { client.keep(Own::default()).await.unwrap() });
        }
        assert!(calls.join_all().await.iter().all(is_ordinary));
        let most = crowd.most.load(Ordering::SeqCst);
        assert!(most <= LIMIT, "{most} at once");
    }
}

#[tokio::test]
async fn a_user_agent_of_an_endpoint_arrives_from_native_stubs() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let named = endpoint.user_agent("mine/1").unwrap().connect().await.unwrap();
    let mut client = KeeperClient::new(named);
    for _ in 0..CALLS {
        assert!(is_ordinary(&client.keep(Own::default()).await.unwrap()));
        assert_eq!(sees.take().metadata.get("user-agent").unwrap(), "mine/1 partywall/1");
    }
}

#[tokio::test]
async fn an_origin_of_a_client_is_tonics_business() {
    let host = Host::open();
    let (endpoint, _sees, _serving) = seeing(&host).await;
    let channel = endpoint.connect().await.unwrap();
    let origin = Uri::from_static("http://example.com");
    let mut client = KeeperClient::with_origin(channel.clone(), origin);
    // Its path is part of that of each call, and there is no such service.
    let below = Uri::from_static("http://example.com/below");
    let mut native = KeeperClient::with_origin(channel.clone(), below.clone());
    let mut ordinary = tonics::pb::keeper_client::KeeperClient::with_origin(channel, below);
    for _ in 0..CALLS {
        assert!(is_ordinary(&client.keep(Own::default()).await.unwrap()));
        let called = code_and_text(native.keep(Own::default()).await);
        assert_eq!(called.0, Code::Unimplemented);
        assert_eq!(called, code_and_text(ordinary.keep(Own::default()).await));
    }
}

#[tokio::test]
async fn requests_with_extensions_go_in_tonics_way() {
    let host = Host::open();
    let (endpoint, _sees, _serving) = seeing(&host).await;
    let mut client = KeeperClient::new(endpoint.connect().await.unwrap());
    for _ in 0..CALLS {
        let mut request = Request::new(Own::default());
        request.extensions_mut().insert(7_u8);
        assert!(is_ordinary(&client.keep(request).await.unwrap()));
        // The client is as it was.
        assert!(!is_ordinary(&client.keep(Own::default()).await.unwrap()));
    }
}

/// Metadata with a meaning for tonic's clients, which have the last word on them.
#[tokio::test]
async fn metadata_of_tonics_clients_go_in_tonics_way() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let mut client = KeeperClient::new(endpoint.connect().await.unwrap());
    client.keep(Own::default()).await.unwrap();
    let travel = ["user-agent", "grpc-encoding", "grpc-accept-encoding"];
    for name in NOT_SENT.into_iter().chain(travel) {
        let with = |names: &[&'static str]| {
            let mut request = Request::new(Own::default());
            for name in names {
                request.metadata_mut().insert(*name, MetadataValue::from_static("identity"));
            }
            request
        };
        assert!(is_ordinary(&client.keep(with(&["x-one", name])).await.unwrap()), "{name}");
        let seen = sees.take().metadata;
        assert_eq!(names(&seen).contains(name), travel.contains(&name), "{seen:?}");
        assert!(!is_ordinary(&client.keep(with(&["x-one"])).await.unwrap()));
    }
}
