//! Methods that the coordinator's policy denies, and rights that are taken back and given again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint, Server, blocking};
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use partywall_stubs_tests::{Asked, Caller, Outcome, Settings, ours, tonics};
use partywall_testkit::OPEN;
use tonic::{Code, Status};

use super::ways::{LONG, Serving};

/// A coordinator whose policy changes.
pub(crate) struct Changing {
    pub(crate) socket: PathBuf,
    file: PathBuf,
    _coordinator: Coordinator,
    _dir: tempfile::TempDir,
}

impl Changing {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("c.sock"), dir.path().join("policy.toml"));
        std::fs::write(&file, OPEN).unwrap();
        let (listen, policy_file) = (Listen::At(socket.clone()), Some(file.clone()));
        let options = Options { listen, policy_file, ..Options::default() };
        let policy = Policy::parse("test", OPEN).unwrap();
        let _coordinator = Coordinator::start_with(policy, options).unwrap();
        Self { socket, file, _coordinator, _dir: dir }
    }

    /// Lets everybody call these methods and no others; how many links that changes.
    pub(crate) async fn allow(&self, methods: &str) -> u32 {
        std::fs::write(&self.file, OPEN.replace('*', methods)).unwrap();
        let socket = self.socket.clone();
        let reload = move || partywall::operator::reload_policy(Some(&socket));
        tokio::task::spawn_blocking(reload).await.unwrap().unwrap().changed
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::from_static("partywall:///test").coordinator(&self.socket)
    }

    async fn connect(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    /// Serves natively, or by tonic's stubs; counts handlers at work.
    async fn serve(&self, by_tonics: bool) -> (Serving, Arc<AtomicUsize>) {
        let mut server = Server::builder().coordinator(&self.socket);
        let at_work = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&at_work);
        let router = match by_tonics {
            false => server.add_service(ours::greeter(ours::Echo(counted), Settings::default())),
            true => server.add_service(tonics::greeter(tonics::Echo(counted), Settings::default())),
        };
        let bound = router.bind("test").await.unwrap();
        (Serving(tokio::spawn(bound.serve().into_future())), at_work)
    }
}

/// The method `Type`, which has a right of its own.
async fn called_type(channel: &Channel) -> Result<(), Status> {
    let mut client = ours::pb::greeter_client::GreeterClient::new(channel.clone());
    client.r#type(ours::pb::HelloRequest::default()).await.map(drop)
}

/// The callers natively and by tonic's stubs.
fn callers(channel: &Channel) -> [Box<dyn Caller>; 2] {
    let settings = Settings::default();
    [ours::caller(channel.clone(), settings), tonics::caller(channel.clone(), settings)]
}

#[tokio::test]
async fn denied_methods_are_alike_natively_and_ordinarily() {
    for by_tonics in [false, true] {
        let coordinator = Changing::new();
        coordinator.allow("stubs.v1.Greeter/Type").await;
        let (_serving, at_work) = coordinator.serve(by_tonics).await;
        let channel = coordinator.connect().await;
        let mut denied = Vec::new();
        for (bytes, metadata) in [(0, false), (32, true), (100_000, false), (3 << 20, false)] {
            let mut asked = Asked::sized("you", bytes);
            if metadata {
                asked.ascii.push(("x-one", "v".into()));
            }
            for mut caller in callers(&channel) {
                denied.push(caller.hello(&asked).await);
                called_type(&channel).await.unwrap();
            }
        }
        assert!(denied.iter().all(|outcome| *outcome == denied[0]), "{denied:?}");
        assert_eq!(denied[0].code, Code::PermissionDenied, "{denied:?}");
        assert_eq!(at_work.load(Ordering::SeqCst), 0);
    }
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is().await {
        assert!(begin.elapsed() < LONG, "it never comes: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Calls under way of each client, and how they end.
fn slow_calls(coordinator: &Changing, channel: &Channel) -> Vec<tokio::task::JoinHandle<Outcome>> {
    let slow = || Asked::sized("slow", 32);
    let mut calls: Vec<_> = callers(channel)
        .into_iter()
        .map(|mut caller| tokio::spawn(async move { caller.hello(&slow()).await }))
        .collect();
    let endpoint = coordinator.endpoint();
    calls.push(tokio::task::spawn_blocking(move || {
        let channel = blocking::Channel::connect(endpoint).unwrap();
        let mut client = ours::pb::greeter_blocking::GreeterClient::new(channel);
        let request = |name: &str| ours::pb::HelloRequest { name: name.into(), blob: vec![7; 32] };
        // It has its number then.
        client.say_hello(request("you")).unwrap();
        let ended = client.say_hello(request("slow")).unwrap_err();
        // So it is with the next one.
        let next = client.say_hello(request("you")).unwrap_err();
        assert_eq!(next.code(), Code::PermissionDenied);
        Outcome::failed(&ended)
    }));
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_taken_back_ends_native_calls_until_given_again() {
    for by_tonics in [false, true] {
        let coordinator = Changing::new();
        let (_serving, at_work) = coordinator.serve(by_tonics).await;
        let at_work = || at_work.load(Ordering::SeqCst);
        let channel = coordinator.connect().await;
        for round in 0..3 {
            for mut caller in callers(&channel) {
                assert!(caller.hello(&Asked::sized("you", 32)).await.is_ok());
            }
            called_type(&channel).await.unwrap();
            let calls = slow_calls(&coordinator, &channel);
            until("three calls", async || at_work() == calls.len()).await;
            coordinator.allow("stubs.v1.Greeter/Type").await;
            for call in calls {
                let ended = tokio::time::timeout(LONG, call).await.expect("an end").unwrap();
                assert_eq!(ended.code, Code::PermissionDenied, "{round}: {ended:?}");
            }
            // Their handlers are gone; the number of the method is worth nothing, and another's is.
            until("no call", async || at_work() == 0).await;
            let mut denied = Vec::new();
            for mut caller in callers(&channel) {
                denied.push(caller.hello(&Asked::sized("you", 32)).await);
            }
            assert_eq!(denied[0], denied[1]);
            assert_eq!(denied[0].code, Code::PermissionDenied, "{denied:?}");
            called_type(&channel).await.unwrap();
            coordinator.allow("*").await;
            for mut caller in callers(&channel) {
                until("the right", async || {
                    let outcome = caller.hello(&Asked::sized("you", 32)).await;
                    let code = outcome.code;
                    assert!([Code::Ok, Code::PermissionDenied].contains(&code), "{outcome:?}");
                    outcome.is_ok()
                })
                .await;
            }
        }
    }
}
