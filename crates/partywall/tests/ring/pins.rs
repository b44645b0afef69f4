//! Pins: a coordinator that certifies itself stands between two ends that have not met, and an end that knows
//! a key of the other one refuses it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use partywall::{Channel, Endpoint, Error, Pin, Routes, Server, Target, blocking};
use partywall_abi::control::{Message, TrustMessage};
use partywall_testkit::Host;
use partywall_trust::SigningKey;
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, ok, request};

/// One user's services, whose links are sealed so.
fn policy(seal: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!(
        "[authority]\ndomain = 'a.example'\n[principal.me]\nuid = {uid}\n\
         [service.test]\nregister = ['me']\nseal = '{seal}'\n[service.test.call]\nme = ['*']\n\
         [service.far.call]\nme = ['*']\n[names]\nfar = 'http://127.0.0.1:1'\n"
    )
}

/// The pin of a coordinator's authority, as `partywall ca show` prints that of one in a directory.
fn pin_of(host: &Host) -> Pin {
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    let process = host.process();
    process.say(&TrustMessage::Certify { request: 1, key: der, proof }.into()).unwrap();
    match process.next().unwrap().0 {
        Message::Trust(TrustMessage::Certified { roots, .. }) => {
            Pin::of_certificate(&roots[0].certificate).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// The words that a service was called with.
type Heard = Arc<Mutex<Vec<String>>>;

/// A service that notes what it is told, and hands it on if there is somewhere to.
fn noting(on: Option<Channel>) -> (Routes, Heard) {
    let heard = Heard::default();
    let keep = Arc::clone(&heard);
    let raw = Raw::new(move |request: http::Request<Body>| {
        let word = request.headers()["word"].to_str().unwrap().to_owned();
        keep.lock().unwrap().push(word);
        let on = on.clone();
        async move {
            match on {
                Some(mut channel) => channel.call(request).await.unwrap(),
                None => ok(),
            }
        }
    });
    (Routes::default().add_service(raw), heard)
}

async fn serve(host: &Host, at: &str, routes: Routes) -> Vec<Target> {
    let router = Server::builder().coordinator(&host.socket).add_routes(routes);
    let bound = router.bind(at).await.unwrap();
    let addresses = bound.addresses().to_vec();
    tokio::spawn(bound.serve());
    addresses
}

fn endpoint(host: &Host, target: &str) -> Endpoint {
    Endpoint::from_shared(target.to_owned()).unwrap().coordinator(&host.socket)
}

async fn say(channel: &mut Channel, word: &str) -> tonic::Code {
    let mut said = request("Any", Body::empty());
    said.headers_mut().insert("word", word.parse().unwrap());
    match channel.call(said).await {
        Ok(answer) => tonic::Status::from_header_map(answer.headers()).unwrap().code(),
        Err(status) => status.code(),
    }
}

fn all(heard: &Heard) -> Vec<String> {
    std::mem::take(&mut heard.lock().unwrap())
}

fn not_pinned(refused: Error, words: &[&str]) {
    assert!(matches!(refused, Error::NotPinned { .. }), "{refused}");
    let said = refused.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

/// A service, and a coordinator with another authority that lets callers find one of its own in the place of
/// that. The pin of the first one's authority, and what both services hear.
async fn town(at: &str) -> ([Host; 2], Pin, [Heard; 2], [String; 2]) {
    let hosts = [(), ()].map(|()| Host::with(&policy("required")));
    let (routes, heard) = noting(None);
    let real = serve(&hosts[0], at, routes).await;
    let on = endpoint(&hosts[0], "partywall:///test").connect().await.unwrap();
    let (routes, overheard) = noting(Some(on));
    let middle = serve(&hosts[1], at, routes).await;
    let last = |addresses: Vec<Target>| addresses.last().unwrap().to_string();
    let pin = pin_of(&hosts[0]);
    (hosts, pin, [heard, overheard], [last(real), last(middle)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_in_the_middle_is_refused_by_a_pin() {
    for at in ["test", "test,https://127.0.0.1:0"] {
        let (hosts, pin, [heard, overheard], targets) = town(at).await;
        let [real, middle] = [0, 1].map(|n: usize| endpoint(&hosts[n], &targets[n]));
        // Pinned, at first contact.
        let found = pin_of(&hosts[1]).to_string();
        let words = ["spiffe://a.example/service/me", &found, "no key of", "remedy: find out who"];
        not_pinned(middle.clone().pin(pin).connect().await.unwrap_err(), &words);
        let mut lazy = middle.clone().pin(pin).connect_lazy();
        assert_eq!(say(&mut lazy, "lazily").await, tonic::Code::Unauthenticated);
        assert_eq!(all(&overheard), [""; 0], "{at}");
        // Without a pin the attack works: both are certified, and who is in the middle reads all.
        let mut fooled = middle.connect().await.unwrap();
        assert_eq!(say(&mut fooled, "secret").await, tonic::Code::Ok);
        assert_eq!((all(&overheard), all(&heard)), (vec!["secret".into()], vec!["secret".into()]));
        // What both have of that link is of no use to one with a pin.
        for _ in 0..2 {
            not_pinned(middle.clone().pin(pin).connect().await.unwrap_err(), &words);
        }
        // Where nobody is in between, the pinned end is the one that answers.
        let other = Pin::of_key(b"of a key that is not there");
        let mut safe = real.clone().pin(other).pin(pin).connect().await.unwrap();
        assert_eq!(say(&mut safe, "safe").await, tonic::Code::Ok);
        assert_eq!((all(&overheard), all(&heard)), (vec![], vec!["safe".to_owned()]));
        not_pinned(real.pin(other).connect().await.unwrap_err(), &[&pin.to_string()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_channel_keeps_to_its_pin() {
    let (hosts, pin, [_, overheard], targets) = town("test").await;
    let endpoints = [0, 1].map(|n: usize| endpoint(&hosts[n], &targets[n]).pin(pin));
    let plain = Host::with(&policy("off"));
    let (routes, _) = noting(None);
    serve(&plain, "test", routes).await;
    let plain = endpoint(&plain, "partywall:///test").pin(pin);
    let connect = move || {
        let [real, middle] = endpoints;
        assert!(blocking::Channel::connect(real).is_ok());
        not_pinned(blocking::Channel::connect(middle).unwrap_err(), &["no key of"]);
        not_pinned(blocking::Channel::connect(plain).unwrap_err(), &["to `test` is plain"]);
    };
    tokio::task::spawn_blocking(connect).await.unwrap();
    assert!(all(&overheard).is_empty());
}

/// Nothing is proven there, so there is nothing that a pin could be compared with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_channel_takes_no_plain_route() {
    let host = Host::with(&policy("off"));
    let (routes, heard) = noting(None);
    let at = format!("test,http://127.0.0.1:0,unix:{}", host.socket.with_file_name("s").display());
    let addresses = serve(&host, &at, routes).await;
    let pin = pin_of(&host);
    for (at, word) in [
        (&addresses[0].to_string(), "the link to `test` is plain"),
        (&addresses[1].to_string(), "speaks no TLS"),
        (&addresses[2].to_string(), "speaks no TLS"),
        (&"partywall:///far".to_owned(), "`http://127.0.0.1:1` speaks no TLS"),
    ] {
        for wait in [false, true] {
            let endpoint = endpoint(&host, at).pin(pin).wait_for_ready(wait);
            let words = [word, "seal = \"required\"", "https://"];
            not_pinned(endpoint.connect().await.unwrap_err(), &words);
            let mut lazy = endpoint.connect_lazy();
            assert_eq!(say(&mut lazy, "lazily").await, tonic::Code::Unauthenticated, "{at}");
        }
    }
    let connector = tower::service_fn(|_: http::Uri| async {
        Err::<hyper_util::rt::TokioIo<tokio::net::TcpStream>, _>(std::io::Error::other("asked"))
    });
    let own = endpoint(&host, "https://127.0.0.1:1").pin(pin);
    not_pinned(own.connect_with_connector(connector).await.unwrap_err(), &["a connector"]);
    assert!(all(&heard).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_server_refuses_callers_of_another_authority() {
    let hosts = [(), ()].map(|()| Host::with(&policy("required")));
    let plain = Host::with(&policy("off"));
    let pin = pin_of(&hosts[0]);
    let calls = Arc::new(AtomicUsize::new(0));
    let routes = || {
        let calls = Arc::clone(&calls);
        let raw = Raw::new(move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            async { ok() }
        });
        Routes::default().add_service(raw)
    };
    let server = |host: &Host| Server::builder().coordinator(&host.socket).pin(pin);
    let mut urls = Vec::new();
    for host in [&hosts[0], &hosts[1], &plain] {
        let router = server(host).add_routes(routes());
        let bound = router.bind("test,https://127.0.0.1:0").await.unwrap();
        urls.push(bound.addresses()[1].to_string());
        tokio::spawn(bound.serve());
    }
    for target in ["partywall:///test", &urls[0]] {
        let mut channel = endpoint(&hosts[0], target).connect().await.unwrap();
        assert_eq!(say(&mut channel, "hello").await, tonic::Code::Ok, "{target}");
    }
    assert_eq!(calls.swap(0, Ordering::Relaxed), 2);
    for (host, target) in [
        (&hosts[1], "partywall:///test"),
        (&hosts[1], &urls[1]),
        (&plain, "partywall:///test"),
        (&plain, &urls[2]),
    ] {
        // In TLS 1.3 a client has connected before the server has looked at its certificate.
        if let Ok(mut channel) = endpoint(host, target).connect().await {
            assert_eq!(say(&mut channel, "hello").await, tonic::Code::Unavailable, "{target}");
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let path = hosts[0].socket.with_file_name("s");
    for at in ["test,http://127.0.0.1:0", &format!("unix:{}", path.display())] {
        let refused = server(&hosts[0]).add_routes(routes()).bind(at).await.unwrap_err();
        not_pinned(refused, &["speaks no TLS"]);
    }
    let refused = server(&hosts[0]).add_routes(routes()).in_process().unwrap_err();
    not_pinned(refused, &["in one process is plain"]);
}
