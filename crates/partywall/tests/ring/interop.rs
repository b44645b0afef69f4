//! One meaning on every route: gRPC's interoperability cases, deadlines of calls of every shape, and
//! what HTTP shows of a call, with one test body over every route there is: by tonic's stubs, and by those of
//! partywall-build, whose unary calls have to be native where they can be. Domains run the same in
//! `tests/system`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Instant;

use partywall::{Channel, Deadline, Endpoint, Route, Routes, Server};
use partywall_interop::Counts;
use partywall_interop::cases::{
    self, BARE_ANSWERED, BARE_ORDINARY, BARE_SERVICES, Case, Env, LAYERED_ANSWERED, Stubs,
    Transport, run,
};
use partywall_interop::service::{Handle, Mounted, Probed, native, probed};
use tonic::transport::server::TcpIncoming;

use super::setup::{Host, Serve};

fn service(handle: Handle) -> Probed<Mounted> {
    probed(handle, |extensions| extensions.get::<Deadline>().map(|at| at.0))
}

/// Whose the two ends of a route are.
#[derive(Clone, Copy)]
struct Ends {
    client: bool,
    server: bool,
}

const OURS: Ends = Ends { client: true, server: true };
const OUR_CLIENT: Ends = Ends { client: true, server: false };
const OUR_SERVER: Ends = Ends { client: false, server: true };

/// Runs every case that these ends are to pass, and reports all that failed.
async fn hold<T: Transport>(link: &str, ends: Ends, env: Env<T>) {
    let mut cases = cases::all();
    assert_eq!(cases.len(), 48);
    cases.extend(cases::timeouts());
    let mut env = env;
    if ends.client {
        cases.extend(cases::of_clients());
        env = env.names_itself("partywall/1");
    } else {
        // What tonic's client says of its own deadline.
        env = env.tonic_deadlines();
    }
    if ends.server {
        cases.extend(cases::of_servers());
    }
    all_hold(link, cases, &env).await;
    assert_eq!(env.counts().native, 0, "by tonic's stubs");
}

async fn all_hold<T: Transport>(link: &str, cases: Vec<Case<T>>, env: &Env<T>) {
    let failed = run(link, cases, env).await;
    let texts: Vec<_> = failed.iter().map(ToString::to_string).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
}

/// Runs the cases for a service by itself, by native stubs, and counts its unary calls at the caller.
async fn bare<T: Transport>(link: &str, env: Env<T>) -> Counts {
    let (env, cases) = (env.by(Stubs::Native), cases::bare());
    assert_eq!(cases.len(), 47 + 16);
    all_hold(link, cases, &env).await;
    env.counts()
}

/// Runs the cases for a service inside layers, by native stubs, and counts its unary calls at the caller.
async fn layered<T: Transport>(link: &str, env: Env<T>) -> Counts {
    let (env, cases) = (env.by(Stubs::Native).names_itself("partywall/1"), cases::layered());
    assert_eq!(cases.len(), 1 + 19);
    all_hold(link, cases, &env).await;
    env.counts()
}

/// A caller's end took all unary calls of [`cases::bare`] natively.
fn all_native(caller: Counts) {
    assert_eq!(caller, Counts { native: BARE_ANSWERED, ordinary: 0 });
}

/// A service's end took all natively but for so many.
fn native_but_for(ordinary: u64, service: Counts) {
    assert!(cases::are_bare(service, ordinary), "{service:?}, not {ordinary} ordinary");
}

type Connecting = Pin<Box<dyn Future<Output = Result<Channel, partywall::Error>> + Send>>;

/// A way to open more channels.
fn again(host: &Host) -> impl Fn() -> Connecting + Send + Sync + 'static {
    let socket = host.socket.clone();
    move || {
        let endpoint = Endpoint::new("partywall:///test").map(|e| e.coordinator(&socket));
        Box::pin(async move { endpoint?.connect().await })
    }
}

async fn over_the_ring(link: &str) {
    over_the_ring_of(link, Host::open()).await;
}

async fn over_the_ring_of(link: &str, host: Host) {
    let handle = Handle::default();
    let running = host.serve(Routes::default().add_service(service(handle.clone()))).await;
    let channel = host.connect().await;
    assert!(matches!(channel.route(), Some(Route::Ring { .. })));
    hold(link, OURS, Env::new(channel, handle, again(&host))).await;
    running.stop().await.unwrap();
}

async fn natively_over_the_ring(link: &str) {
    natively_over_the_ring_of(link, Host::open).await;
}

async fn natively_over_the_ring_of(link: &str, host: impl Fn() -> Host) {
    let (host_of, (host, handle)) = (&host, (host(), Handle::default()));
    let running = host.serve(Routes::default().add_service(native(handle.clone()))).await;
    let env = Env::new(host.connect().await, handle.clone(), again(&host));
    all_native(bare(link, env.clone()).await);
    native_but_for(BARE_ORDINARY, handle.counts());
    let socket = host.socket.clone();
    let links = tokio::task::spawn_blocking(move || partywall::operator::links(Some(&socket)));
    // One request is too long for any handler.
    native_but_for(BARE_ORDINARY + 1, Counts::of(&links.await.unwrap().unwrap()));
    drop(env);
    running.stop().await.unwrap();

    let (host, handle) = (host_of(), Handle::default());
    let running = host.serve(Routes::default().add_service(service(handle.clone()))).await;
    let env = Env::new(host.connect().await, handle, again(&host));
    assert_eq!(layered(link, env).await, Counts { native: LAYERED_ANSWERED, ordinary: 0 });
    running.stop().await.unwrap();
}

/// A host whose links are sealed so.
fn sealing(suite: &str, classes: bool) -> Host {
    let uid = rustix::process::geteuid().as_raw();
    Host::with(&format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nseal = 'required'\n\
         [service.test.call]\nme = ['*']\n[sealing]\nsuite = '{suite}'\nclasses = {classes}\n"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_a_sealed_ring() {
    over_the_ring_of("sealed ring", sealing("aes-128-gcm", false)).await;
    over_the_ring_of("sealed ring, classes", sealing("aes-256-gcm", true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_native_stubs_over_a_sealed_ring() {
    natively_over_the_ring_of("natively, sealed ring", || sealing("aes-128-gcm", false)).await;
    natively_over_the_ring_of("natively, ChaCha20", || sealing("chacha20-poly1305", false)).await;
}

/// A host whose links have signed messages.
fn signing() -> Host {
    let uid = rustix::process::geteuid().as_raw();
    Host::with(&format!(
        "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nsign = 'required'\n\
         [service.test.call]\nme = ['*']\n"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_a_ring_with_signed_messages() {
    over_the_ring_of("signed ring", signing()).await;
    // Native stubs go the ordinary way there.
    let (host, handle) = (signing(), Handle::default());
    let running = host.serve(Routes::default().add_service(native(handle.clone()))).await;
    let counts = bare("signed ring", Env::new(host.connect().await, handle, again(&host))).await;
    assert_eq!(counts, Counts { native: 0, ordinary: BARE_ANSWERED });
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_mutual_tls() {
    let (host, handle) = (Host::open(), Handle::default());
    let routes = Routes::default().add_service(service(handle.clone()));
    let router = Server::builder().coordinator(&host.socket).add_routes(routes);
    let bound = router.bind("test,https://127.0.0.1:0").await.unwrap();
    let target = bound.addresses()[1].to_string();
    let serving = tokio::spawn(bound.serve());
    let socket = host.socket.clone();
    let connect = move || -> Connecting {
        let endpoint = Endpoint::new(target.as_str()).map(|e| e.coordinator(&socket));
        Box::pin(async move { endpoint?.connect().await })
    };
    let channel = connect().await.unwrap();
    hold("mutual TLS", OURS, Env::new(channel, handle, connect)).await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_native_stubs_over_the_ring_multi_thread() {
    natively_over_the_ring("natively, ring, two threads").await;
}

#[tokio::test]
async fn every_case_by_native_stubs_over_the_ring_current_thread() {
    natively_over_the_ring("natively, ring, one thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_the_ring_multi_thread() {
    over_the_ring("ring, two threads").await;
}

#[tokio::test]
async fn every_case_over_the_ring_current_thread() {
    over_the_ring("ring, one thread").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_the_ring_in_one_process() {
    let handle = Handle::default();
    let connect = {
        let handle = handle.clone();
        move || {
            let router = Server::builder().add_service(service(handle.clone()));
            std::future::ready(router.in_process())
        }
    };
    let channel = connect().await.unwrap();
    hold("in process", OURS, Env::new(channel, handle, connect)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_native_stubs_in_one_process() {
    let (link, handle) = ("natively, in process", Handle::default());
    let again = {
        let handle = handle.clone();
        move || {
            let router = Server::builder().add_service(native(handle.clone()));
            std::future::ready(router.in_process())
        }
    };
    let env = Env::new(again().await.unwrap(), handle.clone(), again);
    all_native(bare(link, env).await);
    native_but_for(BARE_ORDINARY + BARE_SERVICES, handle.counts());

    let handle = Handle::default();
    let again = {
        let handle = handle.clone();
        move || {
            let router = Server::builder().add_service(service(handle.clone()));
            std::future::ready(router.in_process())
        }
    };
    let env = Env::new(again().await.unwrap(), handle, again);
    assert_eq!(layered(link, env).await, Counts { native: LAYERED_ANSWERED, ordinary: 0 });
}

/// Serves at `listen` beside the ring, and calls there.
async fn over_http2(link: &str, listen: &str) {
    let host = Host::open();
    let handle = Handle::default();
    let routes = Routes::default().add_service(service(handle.clone()));
    let running = host.serve_at(&format!("test,{listen}"), routes).await;
    let connect = at_address(listen.to_owned());
    let channel = connect().await.unwrap();
    assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
    hold(link, OURS, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

/// A way to open channels to an address.
fn at_address(target: String) -> impl Fn() -> Connecting + Send + Sync + 'static {
    move || {
        let endpoint = Endpoint::new(target.as_str()).map(|e| e.wait_for_ready(true));
        Box::pin(async move { endpoint?.connect().await })
    }
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2() {
    let dir = tempfile::tempdir().unwrap();
    let target = format!("unix:{}", dir.path().join("h2.sock").display());
    over_http2("unix", &target).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_native_stubs_over_http2() {
    let (link, dir) = ("natively, unix", tempfile::tempdir().unwrap());
    let target = format!("unix:{}", dir.path().join("h2.sock").display());
    let (host, handle) = (Host::open(), Handle::default());
    let routes = Routes::default().add_service(native(handle.clone()));
    let running = host.serve_at(&format!("test,{target}"), routes).await;
    let again = at_address(target.clone());
    let env = Env::new(again().await.unwrap(), handle.clone(), again);
    assert_eq!(bare(link, env).await, Counts { native: 0, ordinary: BARE_ANSWERED });
    assert_eq!(handle.counts().native, 0);
    running.stop().await.unwrap();

    let (host, handle) = (Host::open(), Handle::default());
    let routes = Routes::default().add_service(service(handle.clone()));
    let running = host.serve_at(&format!("test,{target}"), routes).await;
    let again = at_address(target);
    let env = Env::new(again().await.unwrap(), handle, again);
    assert_eq!(layered(link, env).await, Counts { native: 0, ordinary: LAYERED_ANSWERED });
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2_by_tcp() {
    over_http2("tcp", &format!("http://{}", free_port())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_a_name_that_is_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("far.sock").display());
    let host = Host::with(&format!(
        "[service.here]\nregister = ['anyone']\n[service.test.call]\nanyone = ['*']\n\
         [names]\ntest = '{url}'\n"
    ));
    let handle = Handle::default();
    let routes = Routes::default().add_service(service(handle.clone()));
    let running = host.serve_at(&format!("here,{url}"), routes).await;
    let socket = host.socket.clone();
    let connect = move || {
        let endpoint = Endpoint::new("partywall:///test").map(|e| e.coordinator(&socket));
        async move { endpoint?.wait_for_ready(true).connect().await }
    };
    let channel = connect().await.unwrap();
    assert!(matches!(channel.route(), Some(Route::Http2 { .. })));
    hold("[names]", OURS, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_a_client_against_a_stock_tonic_server() {
    let handle = Handle::default();
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let target = format!("http://{}", incoming.local_addr().unwrap());
    let mut server = tonic::transport::Server::builder();
    let router = server.add_service(service(handle.clone()));
    let incoming = incoming.with_nodelay(Some(true));
    let server = tokio::spawn(router.serve_with_incoming(incoming));
    let connect = move || Channel::connect(target.clone());
    let channel = connect().await.unwrap();
    hold("to tonic", OUR_CLIENT, Env::new(channel, handle, connect)).await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_a_server_for_a_stock_tonic_client() {
    let handle = Handle::default();
    let address = free_port();
    let router = Server::builder().add_service(service(handle.clone()));
    let serving = tokio::spawn(router.serve(address));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connect = move || {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    };
    let begin = Instant::now();
    let channel = loop {
        match connect().await {
            Ok(channel) => break channel,
            Err(e) => assert!(begin.elapsed().as_secs() < 10, "{e}"),
        }
    };
    hold("from tonic", OUR_SERVER, Env::new(channel, handle, connect)).await;
    serving.abort();
}

/// A crate that takes tonic's channel alone has this between its own end and the ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_by_tonics_channel_over_the_ring() {
    let host = Host::open();
    let handle = Handle::default();
    let running = host.serve(Routes::default().add_service(service(handle.clone()))).await;
    let ring = host.connect().await;
    let connect = move || std::future::ready(Ok::<_, partywall::Error>(ring.clone().into_tonic()));
    let channel = connect().await.unwrap();
    hold("adapter", OUR_SERVER, Env::new(channel, handle, connect)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stock_go_client_passes_against_our_http2_listener() {
    let host = Host::open();
    let address = free_port();
    let routes = Routes::default().add_service(service(Handle::default()));
    let running = host.serve_at(&format!("test,http://{address}"), routes).await;
    host.connect().await;
    let passed =
        tokio::task::spawn_blocking(move || partywall_interop::go_client::run_all(address));
    assert_eq!(passed.await.unwrap().unwrap(), 16);
    running.stop().await.unwrap();
}

/// It names the escaped path as its authority, which is none in HTTP/2's sense, unless it is given another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_of_python_calls_at_a_path_with_an_authority_set() {
    let host = Host::open();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h2.sock");
    let routes = Routes::default().add_service(service(Handle::default()));
    let running = host.serve_at(&format!("test,unix:{}", path.display()), routes).await;
    host.connect().await;
    let python = |options: &'static [&'static str]| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || partywall_interop::python_client::call(&path, options))
    };
    let told = python(&["grpc.default_authority=localhost"]).await.unwrap().unwrap();
    assert_eq!(told, "answered with 104 bytes");
    let untold = python(&[]).await.unwrap().unwrap();
    assert!(!untold.starts_with("answered"), "the option is not needed any more: {untold}");
    running.stop().await.unwrap();
}
