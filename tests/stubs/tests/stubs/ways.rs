//! The ways of a unary call, and what both kinds of stubs do over a ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint, Router, Server, blocking};
use partywall_stubs_tests::{Asked, Caller, Outcome, Settings, ours, tonics};
use partywall_testkit::Host;
use tokio::task::JoinHandle;
use tonic::Code;

use super::links;

/// How long anything may take.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// One way of a call.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) caller: Box<dyn Caller>,
    /// Handlers of its service at work.
    pub(crate) at_work: Arc<AtomicUsize>,
    /// Answers that have come natively, of calls by [`same`].
    pub(crate) natives: u64,
    /// What listens, which ends with it, and the coordinator that knows of that.
    _serving: Option<Serving>,
    host: Option<Host>,
}

pub(crate) struct Serving(pub(crate) JoinHandle<Result<(), partywall::Error>>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves over HTTP/2.
pub(crate) async fn listening(router: Router) -> (Channel, Serving) {
    let bound = router.bind("http://127.0.0.1:0").await.unwrap();
    let address = bound.addresses()[0].to_string();
    let serving = Serving(tokio::spawn(bound.serve().into_future()));
    (Channel::connect(address).await.unwrap(), serving)
}

/// Serves at a name.
pub(crate) async fn named(router: Router, host: &Host) -> (Endpoint, Serving) {
    let bound = router.bind("test").await.unwrap();
    let endpoint = Endpoint::from_static("partywall:///test").coordinator(&host.socket);
    (endpoint, Serving(tokio::spawn(bound.serve().into_future())))
}

impl Way {
    /// All of them, with these settings of servers and of clients. The first three are to one service:
    /// natively, by tonic's stubs over the same ring, and over HTTP/2. The last two are to tonic's server.
    pub(crate) async fn all(server: &Server, served: Settings, called: Settings) -> Vec<Self> {
        let (native, tonics_own) = (ours::Echo::default(), tonics::Echo::default());
        let router = || server.clone().add_service(ours::greeter(native.clone(), served));
        let ring = router().in_process().unwrap();
        let (http2, serving) = listening(router()).await;
        let other = server.clone().add_service(tonics::greeter(tonics_own.clone(), served));
        let other = other.in_process().unwrap();
        let way = |name, caller, at_work: &Arc<AtomicUsize>, serving| {
            let at_work = Arc::clone(at_work);
            Self { name, caller, at_work, natives: 0, _serving: serving, host: None }
        };
        vec![
            way("native", ours::caller(ring.clone(), called), &native.0, None),
            way("ordinary", tonics::caller(ring, called), &native.0, None),
            way("HTTP/2", ours::caller(http2, called), &native.0, Some(serving)),
            way("to tonic's server", ours::caller(other.clone(), called), &tonics_own.0, None),
            way("tonic's alone", tonics::caller(other, called), &tonics_own.0, None),
        ]
    }

    /// One without a runtime, to such a service. A call that is dropped goes on.
    pub(crate) async fn blocking(server: &Server, served: Settings, called: Settings) -> Self {
        let (host, native) = (Host::open(), ours::Echo::default());
        let router = server.clone().coordinator(&host.socket);
        let router = { router }.add_service(ours::greeter(native.clone(), served));
        let (endpoint, serving) = named(router, &host).await;
        let connect = move || blocking::Channel::connect(endpoint).unwrap();
        let channel = tokio::task::spawn_blocking(connect).await.unwrap();
        let caller = Box::new(ours::Threaded::new(channel, called));
        Self {
            name: "blocking",
            caller,
            at_work: native.0,
            natives: 0,
            _serving: Some(serving),
            host: Some(host),
        }
    }

    /// How many calls went natively, and how many ordinarily, as the list of its coordinator has it: once the
    /// ends of closed links have told theirs, at least so many natively.
    pub(crate) async fn counted(&self, least: u64) -> (u64, u64) {
        let socket = &self.host.as_ref().expect("a coordinator").socket;
        let begin = Instant::now();
        loop {
            let links = links::links(socket).await;
            let methods = links.iter().flat_map(|link| &link.methods.most_called);
            let counts = methods.fold((0, 0), |(native, ordinary), method| {
                (native + method.native, ordinary + method.ordinary)
            });
            if counts.0 >= least {
                return counts;
            }
            assert!(begin.elapsed() < LONG, "{}: {links:?}, not {least} native calls", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many handlers are at work.
    pub(crate) async fn until_at_work(&self, handlers: usize) {
        let begin = Instant::now();
        while self.at_work.load(Ordering::SeqCst) != handlers {
            let at_work = self.at_work.load(Ordering::SeqCst);
            assert!(begin.elapsed() < LONG, "{}: {at_work}, not {handlers}", self.name);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

/// The call comes to the same on all ways.
pub(crate) async fn same(ways: &mut [Way], asked: &Asked, trial: usize) -> Outcome {
    let shown = Asked { blob: Vec::new(), ..asked.clone() };
    let (first, others) = ways.split_first_mut().expect("a way");
    let expected = first.caller.hello(asked).await;
    first.natives += u64::from(expected.is_native);
    for way in others {
        let outcome = way.caller.hello(asked).await;
        way.natives += u64::from(outcome.is_native);
        let bytes = asked.blob.len();
        assert_eq!(outcome, expected, "{trial}: {}, {shown:?} with {bytes} bytes", way.name);
    }
    expected
}

#[tokio::test]
async fn generated_stubs_call_over_a_ring() {
    use ours::pb::{HelloRequest, greeter_client::GreeterClient, greeter_server::GreeterServer};
    let service = GreeterServer::new(ours::Echo::default());
    let channel = Server::builder().add_service(service).in_process().unwrap();
    let mut client = GreeterClient::new(channel);
    for round in 0..5 {
        let request = HelloRequest { name: "ring".into(), blob: vec![7; 10 * round] };
        let reply = client.say_hello(request).await.unwrap();
        assert_eq!(reply.get_ref().text, "hello, ring");
        assert_eq!(reply.get_ref().blob.len(), 10 * round);
    }
    let failed =
        client.say_hello(HelloRequest { name: "5:nobody".into(), ..Default::default() }).await;
    assert_eq!(failed.unwrap_err().code(), Code::NotFound);
    let panicked =
        client.say_hello(HelloRequest { name: "panics".into(), ..Default::default() }).await;
    assert_eq!(panicked.unwrap_err().code(), Code::Internal);
    client.r#type(HelloRequest::default()).await.unwrap();
    #[expect(deprecated, reason = "as its proto says")]
    client.nothing(()).await.unwrap();
    let long = HelloRequest { name: "ring".into(), blob: vec![7; 3 << 20] };
    assert_eq!(client.say_hello(long).await.unwrap().into_inner().blob.len(), 3 << 20);
}
