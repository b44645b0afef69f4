//! Names with several addresses over the network, whose servers are another host's: it has a coordinator of
//! its own, with the same authority.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use partywall::{Balance, Channel, Endpoint, Route, Security, Server};
use partywall_interop::proto::SimpleRequest;
use partywall_interop::proto::test_service_client::TestServiceClient;
use partywall_interop::service::{DELAY_MS, Handle, test_service_with};
use partywall_testkit::Host;
use partywall_trust::{Authority, TrustDomain};
use tokio::sync::oneshot;
use tonic::{Code, Request};

const DOMAIN: &str = "two.example";

/// An authority that two coordinators have.
fn authority(directory: &Path) {
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let (certificates, key) = Authority::new(&domain, SystemTime::now()).unwrap().to_pem();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    for (file, text) in [("authority.pem", certificates.as_str()), ("authority.key", key.as_str())]
    {
        let mut options = std::fs::OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(directory.join(file));
        made.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

/// A coordinator with that authority, and what else its policy has.
fn host(directory: &Path, policy: &str) -> Host {
    let uid = rustix::process::geteuid().as_raw();
    Host::with(&format!(
        "[authority]\ndomain = '{DOMAIN}'\ndirectory = '{}'\n[principal.me]\nuid = {uid}\n{policy}",
        directory.display()
    ))
}

/// The host of the servers, and that of the callers, who know these addresses.
fn hosts(directory: &Path, urls: &[String]) -> (Host, Host) {
    authority(directory);
    let served = "[service.far]\nregister = ['me']\n[service.far.call]\nme = ['*']\n\
                  [service.other]\nregister = ['me']\n[service.other.call]\nme = ['*']\n";
    let called = format!(
        "[service.far.call]\nme = {{ methods = ['*'], seal = 'required' }}\n[names]\nfar = {urls:?}\n"
    );
    (host(directory, served), host(directory, &called))
}

/// So many addresses of the loopback network that no other test takes.
fn addresses(many: u8) -> Vec<String> {
    static LAST: AtomicUsize = AtomicUsize::new(100);
    let process = std::process::id();
    let own = || {
        let last = LAST.fetch_add(1, Ordering::Relaxed);
        format!("https://127.{}.{}.{last}:50051", process >> 8 & 0xff, process & 0xff)
    };
    (0..many).map(|_| own()).collect()
}

/// A server of a name at an address, what it has answered, and what ends it.
struct Served {
    calls: Arc<AtomicU64>,
    end: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<Result<(), partywall::Error>>,
}

impl Served {
    async fn start(host: &Host, name: &str, url: &str) -> Self {
        let calls = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&calls);
        let handle = Handle::default().before(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        });
        let mut server = Server::builder().coordinator(&host.socket);
        let router = server.add_service(test_service_with(handle));
        let bound = router.bind(&format!("{name},{url}")).await.unwrap();
        let (end, ended) = oneshot::channel();
        let ended = async move { drop(ended.await) };
        let serving = tokio::spawn(bound.serve_with_shutdown(ended));
        Self { calls, end, serving }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

fn endpoint(host: &Host) -> Endpoint {
    Endpoint::from_static("partywall:///far").coordinator(&host.socket)
}

async fn call(channel: &Channel) -> Result<(), tonic::Status> {
    let mut client = TestServiceClient::new(channel.clone());
    client.unary_call(SimpleRequest::default()).await.map(drop)
}

/// Calls until that is so.
async fn until(channel: &Channel, what: &str, so: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        call(channel).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    begin.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_spread_over_the_addresses_of_a_name() {
    let (dir, urls) = (tempfile::tempdir().unwrap(), addresses(2));
    let (far, near) = hosts(dir.path(), &urls);
    let one = Served::start(&far, "far", &urls[0]).await;
    let other = Served::start(&far, "far", &urls[1]).await;
    let channel = endpoint(&near).connect().await.unwrap();
    let Some(Route::Http2 { url, security }) = channel.route() else { panic!("no route") };
    assert_eq!((url, security), (urls.join(", "), Security::MUTUAL_TLS));
    until(&channel, "both have calls", || one.calls() > 0 && other.calls() > 0).await;
    // Now there is a connection to each, and they take turns.
    let before = (one.calls(), other.calls());
    for _ in 0..40 {
        call(&channel).await.unwrap();
    }
    assert_eq!((one.calls() - before.0, other.calls() - before.1), (20, 20));
    // One that goes gets no calls, and no call is lost; one that comes back gets its part again.
    one.stop().await;
    let before = other.calls();
    for _ in 0..40 {
        call(&channel).await.unwrap();
    }
    assert_eq!(other.calls() - before, 40);
    let one = Served::start(&far, "far", &urls[0]).await;
    let took = until(&channel, "it is dialled again", || one.calls() > 0).await;
    println!("the address that was left out has calls after {took:?}");
    other.stop().await;
    for _ in 0..10 {
        call(&channel).await.unwrap();
    }
    // Nobody is left, until somebody is.
    one.stop().await;
    let status = call(&channel).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("Connection refused"), "{status}");
    let other = Served::start(&far, "far", &urls[1]).await;
    call(&channel).await.unwrap();
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_loaded_address_has_the_next_call() {
    let (dir, urls) = (tempfile::tempdir().unwrap(), addresses(2));
    let (far, near) = hosts(dir.path(), &urls);
    let one = Served::start(&far, "far", &urls[0]).await;
    let other = Served::start(&far, "far", &urls[1]).await;
    let least = endpoint(&near).balance(Balance::LeastOutstanding);
    let channel = least.connect().await.unwrap();
    until(&channel, "both have calls", || one.calls() > 0 && other.calls() > 0).await;
    let before = (one.calls(), other.calls());
    let mut slow = Request::new(SimpleRequest::default());
    slow.metadata_mut().insert(DELAY_MS, "60000".parse().unwrap());
    let mut client = TestServiceClient::new(channel.clone());
    let slow = tokio::spawn(async move { client.unary_call(slow).await.map(drop) });
    while one.calls() + other.calls() == before.0 + before.1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (one_is_slow, now) = (one.calls() > before.0, (one.calls(), other.calls()));
    for _ in 0..20 {
        call(&channel).await.unwrap();
    }
    let of = (one.calls() - now.0, other.calls() - now.1);
    assert_eq!(of, if one_is_slow { (0, 20) } else { (20, 0) });
    slow.abort();
}

/// It has a certificate of the same authority, and is not who is called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_another_identity_gets_no_calls() {
    let (dir, urls) = (tempfile::tempdir().unwrap(), addresses(2));
    authority(dir.path());
    let served = |name: &str| {
        format!("[service.{name}]\nregister = ['me']\n[service.{name}.call]\nme = ['*']\n")
    };
    let called = format!("[service.far.call]\nme = ['*']\n[names]\nfar = {urls:?}\n");
    let (far, near) = (host(dir.path(), &served("far")), host(dir.path(), &called));
    let elsewhere = host(dir.path(), &served("other"));
    let impostor = Served::start(&elsewhere, "other", &urls[0]).await;
    let refused = endpoint(&near).connect().await.unwrap_err().to_string();
    assert!(
        refused.contains("is not for `far`, but for other") || refused.contains("refused"),
        "{refused}"
    );
    let right = Served::start(&far, "far", &urls[1]).await;
    let channel = endpoint(&near).connect().await.unwrap();
    for _ in 0..40 {
        call(&channel).await.unwrap();
    }
    assert_eq!((impostor.calls(), right.calls()), (0, 40));
    // It is no way out either.
    right.stop().await;
    let status = call(&channel).await.unwrap_err();
    assert_eq!((status.code(), impostor.calls()), (Code::Unavailable, 0), "{status}");
}

/// Its calls wait for an address, and not beyond their deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_an_address_within_their_deadline() {
    let (dir, urls) = (tempfile::tempdir().unwrap(), addresses(2));
    let (far, near) = hosts(dir.path(), &urls);
    let one = Served::start(&far, "far", &urls[0]).await;
    let channel = endpoint(&near).wait_for_ready(true).connect().await.unwrap();
    call(&channel).await.unwrap();
    one.stop().await;
    let mut request = Request::new(SimpleRequest::default());
    request.set_timeout(Duration::from_millis(300));
    let begin = Instant::now();
    let status = TestServiceClient::new(channel.clone()).unary_call(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let waiting = {
        let channel = channel.clone();
        tokio::spawn(async move { call(&channel).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    let other = Served::start(&far, "far", &urls[1]).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(other.calls(), 1);
    other.stop().await;
}
