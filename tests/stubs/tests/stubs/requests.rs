//! What a request has beside its message, at a service that takes it natively.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use partywall::{Deadline, Endpoint, Peer, Server, blocking};
use partywall_stubs_tests::{Own, ours};
use partywall_testkit::Host;
use tokio::sync::Semaphore;
use tonic::metadata::{KeyRef, MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use ours::pb::keeper_blocking;
use ours::pb::keeper_client::KeeperClient;
use ours::pb::keeper_server::{Keeper, KeeperServer};

use super::links;
use super::ways::{LONG, Serving, named};

const KEEP: &str = "/stubs.v1.Keeper/Keep";
/// Names that tonic does not let a program send as metadata.
pub(crate) const NOT_SENT: [&str; 5] =
    ["te", "content-type", "grpc-message", "grpc-message-type", "grpc-status"];

/// What a handler has seen of a request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) metadata: MetadataMap,
    peer: Option<Peer>,
    deadline: Option<Deadline>,
    at: Instant,
}

/// Notes what it sees, and answers with the message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sees(Arc<Mutex<Option<Seen>>>);

impl Sees {
    /// The latest request, once.
    pub(crate) fn take(&self) -> Seen {
        self.0.lock().unwrap().take().expect("a request")
    }

    fn note(&self, request: &Request<Own>) {
        let (metadata, extensions) = (request.metadata().clone(), request.extensions());
        let (peer, deadline) = (extensions.get().cloned(), extensions.get().copied());
        *self.0.lock().unwrap() = Some(Seen { metadata, peer, deadline, at: Instant::now() });
    }
}

#[tonic::async_trait]
impl Keeper for Sees {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        self.note(&request);
        Ok(Response::new(request.into_inner()))
    }
}

/// The names of metadata.
pub(crate) fn names(metadata: &MetadataMap) -> BTreeSet<String> {
    let name = |key: KeyRef<'_>| match key {
        KeyRef::Ascii(name) => name.to_string(),
        KeyRef::Binary(name) => name.to_string(),
    };
    metadata.keys().map(name).collect()
}

/// Such a service at a name.
pub(crate) async fn seeing(host: &Host) -> (Endpoint, Sees, Serving) {
    let sees = Sees::default();
    let mut server = Server::builder().coordinator(&host.socket);
    let (endpoint, serving) =
        named(server.add_service(KeeperServer::new(sees.clone())), host).await;
    (endpoint, sees, serving)
}

/// All calls of the only link but the service's first went natively.
async fn all_native_but_the_first(socket: &Path, calls: u64) {
    links::only(&links::methods(socket).await, KEEP, calls - 1, 1);
}

#[tokio::test]
async fn a_native_request_has_the_peer_of_its_link() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = KeeperClient::new(endpoint.clone().connect().await.unwrap());
        client.keep(Own::default()).await.unwrap();
        clients.push((client, sees.take().peer.expect("a peer")));
    }
    let [(_, one), (_, other)] = &clients[..] else { unreachable!("there are two") };
    assert_ne!(one.link(), other.link());
    // The first of them was ordinary.
    for _ in 0..3 {
        for (client, expected) in &mut clients {
            client.keep(Own::default()).await.unwrap();
            let seen = sees.take();
            assert!(names(&seen.metadata).is_empty(), "{seen:?} has come natively");
            let peer = seen.peer.expect("a peer");
            assert_eq!(peer.pid(), Some(std::process::id()));
            assert_eq!(format!("{peer:?}"), format!("{expected:?}"));
        }
    }
}

#[tokio::test]
async fn a_native_request_has_its_deadline_and_none_without() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let mut client = KeeperClient::new(endpoint.connect().await.unwrap());
    client.keep(Own::default()).await.unwrap();
    let timeouts = [None, Some(LONG), None, Some(2 * LONG)];
    for timeout in timeouts {
        let mut request = Request::new(Own::default());
        timeout.iter().for_each(|timeout| request.set_timeout(*timeout));
        let begin = Instant::now();
        client.keep(request).await.unwrap();
        let seen = sees.take();
        match (timeout, seen.deadline) {
            (None, None) => {}
            (Some(timeout), Some(Deadline(at))) => {
                assert!(begin + timeout <= at && at <= seen.at + timeout, "{at:?}, {seen:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    all_native_but_the_first(&host.socket, 1 + timeouts.len() as u64).await;
}

/// A request with a timeout, with metadata, or with both.
fn request(timeout: bool, metadata: bool) -> Request<Own> {
    let mut request = Request::new(Own::default());
    if timeout {
        request.set_timeout(LONG);
    }
    if metadata {
        request.metadata_mut().insert("x-one", MetadataValue::from_static("1"));
        request.metadata_mut().insert_bin("x-two-bin", MetadataValue::from_bytes(b"\0\xff"));
    }
    request
}

#[tokio::test]
async fn a_native_request_has_the_metadata_that_were_set_alone() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let mut client = KeeperClient::new(endpoint.connect().await.unwrap());
    client.keep(Own::default()).await.unwrap();
    for (timeout, metadata) in [(false, false), (true, false), (false, true), (true, true)] {
        let set = names(request(timeout, metadata).metadata());
        client.keep(request(timeout, metadata)).await.unwrap();
        assert_eq!(names(&sees.take().metadata), set);
    }
    all_native_but_the_first(&host.socket, 5).await;
}

#[tokio::test]
async fn a_blocking_client_leaves_out_what_is_not_to_be_sent() {
    let host = Host::open();
    let (endpoint, sees, _serving) = seeing(&host).await;
    let calls = move || {
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let mut client = keeper_blocking::KeeperClient::new(channel);
        client.keep(Own::default()).unwrap();
        for name in NOT_SENT {
            let mut request = request(false, true);
            request.metadata_mut().insert(name, MetadataValue::from_static("7"));
            client.keep(request).unwrap();
            let expected = ["x-one", "x-two-bin"].map(str::to_owned);
            assert_eq!(names(&sees.take().metadata), expected.into(), "{name}");
        }
        client
    };
    // Its link is open until it is dropped.
    let _client = tokio::task::spawn_blocking(calls).await.unwrap();
    all_native_but_the_first(&host.socket, 1 + NOT_SENT.len() as u64).await;
}

/// Keeps calls with data until it is told to let one go.
#[derive(Clone, Debug)]
struct Holds {
    sees: Sees,
    began: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Keeper for Holds {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        self.sees.note(&request);
        if !request.get_ref().blob.is_empty() {
            self.began.add_permits(1);
            self.go.acquire().await.expect("it is not closed").forget();
        }
        Ok(Response::new(request.into_inner()))
    }
}

/// It begins natively, finds that the link takes no more calls, and waits in tonic's way.
#[tokio::test]
async fn a_call_keeps_metadata_and_deadline_where_its_link_is_full() {
    let none = || Arc::new(Semaphore::new(0));
    let holds = Holds { sees: Sees::default(), began: none(), go: none() };
    let mut server = Server::builder().max_concurrent_streams(1);
    let service = KeeperServer::new(holds.clone());
    let channel = server.add_service(service).in_process().unwrap();
    let mut client = KeeperClient::new(channel.clone());
    // By then the method has its number, and the caller knows the limit.
    for _ in 0..2 {
        client.keep(Own::default()).await.unwrap();
    }
    for _ in 0..3 {
        let mut first = KeeperClient::new(channel.clone());
        let held = Own { blob: vec![7], ..Own::default() };
        let first = tokio::spawn(async move { first.keep(held).await });
        holds.began.acquire().await.unwrap().forget();
        // A deadline that passes while the call waits.
        let mut short = request(true, true);
        short.set_timeout(Duration::from_millis(20));
        let late = tokio::time::timeout(LONG, client.keep(short)).await.expect("a deadline");
        assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
        // And one that does not.
        drop(holds.sees.take());
        let set = names(request(true, true).metadata());
        let mut second = pin!(client.keep(request(true, true)));
        let waits = second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(waits && !first.is_finished());
        holds.go.add_permits(1);
        let answer = second.await.unwrap();
        assert!(answer.metadata().contains_key("content-type"), "it has gone in tonic's way");
        first.await.unwrap().unwrap();
        let seen = holds.sees.take();
        assert_eq!(names(&seen.metadata), set);
        assert_eq!(seen.metadata.get("x-one").unwrap(), "1");
        assert!(seen.deadline.is_some(), "{seen:?}");
    }
}
