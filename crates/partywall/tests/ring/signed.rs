//! Links whose messages are signed: the same calls by each channel, and what both ends and the audit log
//! have.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use partywall::{Channel, Endpoint, Peer, Route, Routes, Seal, Sign, blocking};
use partywall_coordinator::{Coordinator, Listen, Options, Policy};
use tonic::body::Body;
use tower::Service;

use super::service::{Raw, request};

/// A coordinator that keeps receipts in a file, and signs what goes to `test`.
struct Signing {
    dir: tempfile::TempDir,
    socket: std::path::PathBuf,
    _coordinator: Coordinator,
}

impl Signing {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let policy = format!(
            "[principal.me]\nuid = {uid}\n[service.test]\nregister = ['me']\nsign = 'required'\n\
             [service.test.call]\nme = ['*']\n"
        );
        let socket = dir.path().join("c.sock");
        let file = dir.path().join("audit.jsonl");
        let options = Options {
            listen: Listen::At(socket.clone()),
            audit: Some(partywall_coordinator::audit::open(&file).unwrap()),
            ..Options::default()
        };
        let coordinator =
            Coordinator::start_with(Policy::parse("policy.toml", &policy).unwrap(), options)
                .unwrap();
        Self { dir, socket, _coordinator: coordinator }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::from_static("partywall:///test").coordinator(&self.socket).wait_for_ready(true)
    }

    /// The lines of receipts that have these words, once there are so many.
    async fn receipts(&self, words: &[&str], count: usize) -> Vec<String> {
        let file = self.dir.path().join("audit.jsonl");
        for _ in 0..1000 {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text.lines().filter(|line| line.contains("\"event\":\"signed\""));
            let lines: Vec<_> = lines
                .filter(|line| words.iter().all(|word| line.contains(word)))
                .map(str::to_owned)
                .collect();
            if lines.len() >= count {
                return lines;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no {count} receipts with {words:?}: {}", std::fs::read_to_string(&file).unwrap());
    }
}

fn message(text: &[u8]) -> Bytes {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat().into()
}

/// A service that answers with what it has got, and keeps who has called.
fn echo() -> (Routes, Arc<Mutex<Vec<Peer>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let raw = Raw::new(move |request| {
        let peer = request.extensions().get::<Peer>().expect("a call over a ring").clone();
        keep.lock().unwrap().push(peer);
        async move {
            let came = request.into_body().collect().await;
            match came {
                Ok(came) => {
                    let body = http_body_util::Full::new(came.to_bytes());
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                    let body = body.with_trailers(async { Some(Ok(trailers)) });
                    let mut response = http::Response::new(Body::new(body));
                    let grpc = http::HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
                    response
                }
                Err(status) => status.into_http(),
            }
        }
    });
    (Routes::default().add_service(raw), seen)
}

async fn call(channel: &mut Channel, text: &[u8]) {
    let body = Body::new(http_body_util::Full::new(message(text)));
    let answer = channel.call(request("Any", body)).await.unwrap();
    let answer = answer.into_body().collect().await.unwrap();
    assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(answer.to_bytes(), message(text));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_signed_link_have_receipts_of_both_ways() {
    let host = Signing::new();
    let (routes, seen) = echo();
    let router = partywall::Server::builder().coordinator(&host.socket).add_routes(routes);
    let serving = tokio::spawn(router.serve("test"));
    let mut channel = host.endpoint().connect().await.unwrap();
    for text in [&b"one"[..], b"", &[7; 300_000]] {
        call(&mut channel, text).await;
    }
    let peer = seen.lock().unwrap().pop().unwrap();
    assert_eq!((peer.security().seal, peer.security().sign), (Seal::Sealed, Sign::Signed));
    let Some(Route::Ring { server, .. }) = channel.route() else { panic!("a ring") };
    assert_eq!(server.security().sign, Sign::Signed);
    let digest = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    for way in ["\"way\":\"request\"", "\"way\":\"reply\""] {
        host.receipts(&[way], 3).await;
        let [one] = &host.receipts(&[way, digest], 1).await[..] else { panic!("twice") };
        for word in [
            "\"signer\":\"spiffe://partywall.local/service/me\"",
            "\"name\":\"test\"",
            "\"method\":\"/test.Raw/Any\"",
            "\"chain\":[\"MII",
        ] {
            assert!(one.contains(word), "{one} lacks {word}");
        }
    }
    let endpoint = host.endpoint();
    let blocking = move || {
        let mut channel = blocking::Channel::connect(endpoint).unwrap();
        for text in [&b"by a thread"[..], b"", &[8; 300_000]] {
            let answer = channel.call_bytes("/test.Raw/Any", text).unwrap();
            assert_eq!(answer, text);
        }
        assert_eq!(channel.server().unwrap().security().sign, Sign::Signed);
    };
    tokio::task::spawn_blocking(blocking).await.unwrap();
    host.receipts(&["\"way\":\"reply\""], 6).await;
    host.receipts(&["\"way\":\"request\""], 6).await;
    let socket = host.socket.clone();
    let list = move || partywall::operator::links(Some(&socket)).unwrap();
    let links = tokio::task::spawn_blocking(list).await.unwrap();
    assert!(links.iter().all(|link| link.security.sign == Sign::Signed), "{links:?}");
    serving.abort();
}

/// More at once than there is room for receipts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_are_kept_of_all_of_many_calls() {
    const EACH: usize = 400;
    let host = Signing::new();
    let (routes, _) = echo();
    let router = partywall::Server::builder().coordinator(&host.socket).add_routes(routes);
    let serving = tokio::spawn(router.serve("test"));
    let channel = host.endpoint().connect().await.unwrap();
    let callers: Vec<_> = (0..8_u8)
        .map(|caller| {
            let mut channel = channel.clone();
            tokio::spawn(async move {
                for number in 0..EACH as u16 {
                    call(&mut channel, &[&[caller][..], &number.to_le_bytes()].concat()).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    for way in ["\"way\":\"request\"", "\"way\":\"reply\""] {
        let lines = host.receipts(&[way], 8 * EACH).await;
        assert_eq!(lines.len(), 8 * EACH);
        let digest = |line: &String| {
            let at = line.find("\"message\":\"").unwrap() + 11;
            line[at..at + 64].to_owned()
        };
        let digests: std::collections::HashSet<_> = lines.iter().map(digest).collect();
        assert_eq!(digests.len(), 8 * EACH, "{way}");
    }
    serving.abort();
}
