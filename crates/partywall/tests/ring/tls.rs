//! Mutual TLS over a network, with the certificates of a coordinator.

use std::sync::{Arc, Mutex};

use partywall::{
    Channel, Endpoint, Routes, Seal, Security, Server, Target, security_of, spiffe_id_of,
};
use partywall_testkit::Host;
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, ok, request};

/// A principal that may call two methods of `test`, and who serves it is another host's in effect: `far` is
/// that name by its address, which nobody serves here.
fn policy(far: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let names = if far.is_empty() { String::new() } else { format!("[names]\nfar = '{far}'\n") };
    format!(
        "[authority]\ndomain = 'a.example'\n[principal.me]\nuid = {uid}\n\
         [service.test]\nregister = ['me']\n[service.test.call]\nme = ['Any', 'Other']\n\
         [service.far.call]\nme = {{ methods = ['*'], seal = 'required' }}\n{names}"
    )
}

type Seen = Arc<Mutex<Vec<(Option<String>, Security)>>>;

fn noting() -> (Routes, Seen) {
    let seen = Seen::default();
    let keep = Arc::clone(&seen);
    let raw = Raw::new(move |request| {
        let id = spiffe_id_of(request.extensions()).map(String::from);
        keep.lock().unwrap().push((id, security_of(request.extensions())));
        async { ok() }
    });
    (Routes::default().add_service(raw), seen)
}

/// A server at an address of its own, and the address.
async fn serve(host: &Host, at: &str) -> (Seen, String, tokio::task::JoinHandle<()>) {
    let (routes, seen) = noting();
    let router = Server::builder().coordinator(&host.socket).add_routes(routes);
    let bound = router.bind(at).await.unwrap();
    let is_tls = |target: &&Target| matches!(target, Target::Https(_));
    let url = bound.addresses().iter().find(is_tls).unwrap().to_string();
    let serving = tokio::spawn(async move { bound.serve().await.unwrap() });
    (seen, url, serving)
}

async fn connect(host: &Host, url: &str) -> Result<Channel, partywall::Error> {
    Endpoint::from_shared(url.to_owned())?.coordinator(&host.socket).connect().await
}

async fn call(channel: &mut Channel, method: &str) -> tonic::Code {
    let answer = channel.call(request(method, Body::empty())).await.unwrap();
    let status = tonic::Status::from_header_map(answer.headers());
    status.map_or(tonic::Code::Ok, |status| status.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_of_mutual_tls_are_known_and_methods_hold() {
    let host = Host::with(&policy(""));
    let (seen, url, serving) = serve(&host, "test,https://127.0.0.1:0").await;
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let mut channel = connect(&host, &url).await.unwrap();
    assert_eq!(channel.route().unwrap().security(), Security::MUTUAL_TLS);
    assert_eq!(call(&mut channel, "Any").await, tonic::Code::Ok);
    let expected = (Some("spiffe://a.example/service/me".to_owned()), Security::MUTUAL_TLS);
    assert_eq!(seen.lock().unwrap().pop(), Some(expected));
    assert_eq!(Security::MUTUAL_TLS.seal, Seal::Sealed);
    assert_eq!(call(&mut channel, "NotListed").await, tonic::Code::PermissionDenied);
    assert!(seen.lock().unwrap().is_empty(), "a denied call reaches no handler");
    assert_eq!(call(&mut channel, "Other").await, tonic::Code::Ok);
    serving.abort();
}

/// Each of them has certificates, and neither believes the other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_two_authorities_refuse_each_other() {
    let (one, other) = (Host::with(&policy("")), Host::with(&policy("")));
    let (seen, url, serving) = serve(&one, "test,https://127.0.0.1:0").await;
    let refused = connect(&other, &url).await.unwrap_err().to_string();
    assert!(refused.contains("is not signed by a trusted authority"), "{refused}");
    // One that speaks no TLS gets no answer, and one without a certificate none either.
    let plain = url.replacen("https", "http", 1);
    let refused = match connect(&one, &plain).await {
        Err(refused) => refused.to_string(),
        Ok(mut channel) => {
            channel.call(request("Any", Body::empty())).await.unwrap_err().to_string()
        }
    };
    assert!(!refused.is_empty() && seen.lock().unwrap().is_empty(), "{refused}");
    serving.abort();
}

/// The name has the address, so the server is to be certified for the name, whatever its host is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_elsewhere_is_called_by_mutual_tls_as_that_name() {
    // An address of the loopback network that no other test takes.
    let process = std::process::id();
    let url = format!("https://127.{}.{}.7:50051", process >> 8 & 0xff, process & 0xff);
    let host = Host::with(&policy(&url));
    // A server that is not certified for `far`.
    let (seen, served, serving) = serve(&host, &format!("test,{url}")).await;
    assert_eq!(served, url);
    let endpoint = Endpoint::from_static("partywall:///far").coordinator(&host.socket);
    let refused = endpoint.connect().await.unwrap_err().to_string();
    assert!(refused.contains("is not for `far`, but for test, localhost"), "{refused}");
    assert!(seen.lock().unwrap().is_empty());
    serving.abort();
}
