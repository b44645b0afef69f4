//! Mutual TLS over a network, with the certificates of a coordinator.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use partywall::{
    Channel, Endpoint, Routes, Seal, Security, Server, Target, security_of, spiffe_id_of,
};
use partywall_abi::control::{Message, TrustMessage};
use partywall_interop::service::{Handle, probed};
use partywall_testkit::Host;
use partywall_trust::{Chain, SigningKey};
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

/// One call whose answer has a payload of 100 bytes, with a certificate; without generated code.
const PYTHON: &str = r#"
import sys, grpc
address, roots, chain, key = sys.argv[1:]
read = lambda file: open(file, "rb").read()
credentials = grpc.ssl_channel_credentials(read(roots), read(key), read(chain))
options = [("grpc.ssl_target_name_override", "localhost")]
with grpc.secure_channel(address, credentials, options=options) as channel:
    call = channel.unary_unary("/grpc.testing.TestService/UnaryCall")
    print("answered with", len(call(b"\x10\x64", timeout=10)), "bytes")
    try:
        channel.unary_unary("/grpc.testing.TestService/EmptyCall")(b"", timeout=10)
    except grpc.RpcError as error:
        print(error.code().name)
"#;

/// A certificate that the coordinator has issued, as files for other programs.
fn written(host: &Host, dir: &std::path::Path) {
    let key = SigningKey::generate();
    let der = key.public().to_der();
    let proof = key.sign(&[TrustMessage::PROOF, &der].concat());
    let process = host.process();
    process.say(&TrustMessage::Certify { request: 1, key: der, proof }.into()).unwrap();
    let (message, _) = process.next().unwrap();
    let Message::Trust(TrustMessage::Certified { chain, roots, .. }) = message else {
        panic!("{message:?}")
    };
    let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
    write("chain.pem", &Chain::new(chain).unwrap().to_pem());
    write("key.pem", &key.to_pem());
    let roots = roots.into_iter().map(|root| root.certificate).collect();
    write("roots.pem", &Chain::new(roots).unwrap().to_pem());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_programs_call_with_certificates_of_a_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let text = policy("").replace("'Any', 'Other'", "'grpc.testing.TestService/UnaryCall'");
    let host = Host::with(&text);
    written(&host, dir.path());
    let mounted = probed(Handle::default(), |_| None);
    let router = Server::builder().coordinator(&host.socket).add_service(mounted);
    let bound = router.bind("test,https://127.0.0.1:0").await.unwrap();
    let at = bound.addresses()[1].to_string().replacen("https://", "", 1);
    let serving = tokio::spawn(bound.serve());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [roots, chain, key] = ["roots.pem", "chain.pem", "key.pem"].map(file);
    let openssl = {
        let (at, roots) = (at.clone(), roots.clone());
        let with = [&["-cert", &chain, "-key", &key].map(str::to_owned)[..], &[]].concat();
        tokio::task::spawn_blocking(move || {
            let mut openssl = Command::new("openssl");
            openssl
                .args(["s_client", "-connect", &at, "-CAfile", &roots, "-tls1_3", "-alpn", "h2"]);
            openssl.args(["-verify_hostname", "test", "-verify_return_error"]).args(with);
            openssl
                .stdin(Stdio::null())
                .output()
                .expect("openssl, of Debian's package of that name")
        })
    };
    let said = openssl.await.unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
    assert!(said.contains("ALPN protocol: h2"), "{said}");
    let python = tokio::task::spawn_blocking(move || {
        partywall_interop::python_client::says(PYTHON, &[&at, &roots, &chain, &key])
    });
    assert_eq!(python.await.unwrap().unwrap(), "answered with 104 bytes\nPERMISSION_DENIED");
    serving.abort();
}
