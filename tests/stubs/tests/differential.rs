//! Random calls go three ways: by the native way, by tonic's stubs over the same ring, and over HTTP/2. They
//! come to the same.

use std::collections::BTreeMap;
use std::time::Duration;

use partywall::{Channel, Server};
use partywall_stubs_tests::{ours, tonics};
use partywall_testkit::Random;
use tonic::metadata::{AsciiMetadataValue, BinaryMetadataValue, KeyAndValueRef, MetadataMap};
use tonic::{Code, Status};

/// A call as it is asked for.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    blob: Vec<u8>,
    ascii: Vec<(&'static str, String)>,
    binary: Vec<(&'static str, Vec<u8>)>,
    timeout: Option<Duration>,
}

/// What a call came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Code,
    message: String,
    details: Vec<u8>,
    metadata: BTreeMap<String, Vec<Vec<u8>>>,
    reply: Option<(String, Vec<u8>, BTreeMap<String, String>)>,
}

impl Asked {
    fn random(random: &mut Random) -> Self {
        let length = |random: &mut Random| match random.below(6) {
            0 => 0,
            1 => 32,
            2 => random.below(200),
            3 => 4000 + random.below(200),
            4 => random.below(1 << 16),
            _ => random.below(1 << 20),
        };
        let text = |random: &mut Random| "a word \u{e4} ".repeat(random.below(4));
        let name = match random.below(8) {
            0 => format!("{}:{}", random.below(19), text(random)),
            1 => "panics".into(),
            2 => "slow".into(),
            _ => text(random),
        };
        let timeout = match random.below(4) {
            _ if name == "slow" => Some(Duration::from_millis(1 + random.below(20) as u64)),
            0 => Some(Duration::from_secs(40)),
            _ => None,
        };
        let len = if name.contains(':') { random.below(300) } else { length(random) };
        let blob = random.bytes(len + 1);
        let (mut ascii, mut binary) = (Vec::new(), Vec::new());
        for _ in 0..random.below(3) {
            ascii.push((["x-one", "x-two"][random.below(2)], format!("v{}", random.below(99))));
            let len = random.below(40);
            binary.push((["x-a-bin", "x-b-bin"][random.below(2)], random.bytes(len + 1)));
        }
        Self { name, blob, ascii, binary, timeout }
    }

    fn request<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        for (name, value) in &self.ascii {
            let value = AsciiMetadataValue::try_from(value.as_str()).unwrap();
            request.metadata_mut().append(*name, value);
        }
        for (name, value) in &self.binary {
            request.metadata_mut().append_bin(*name, BinaryMetadataValue::from_bytes(value));
        }
        request
    }
}

fn own(metadata: &MetadataMap) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for entry in metadata.iter() {
        let (name, value) = match entry {
            KeyAndValueRef::Ascii(name, value) => (name.as_str(), value.as_bytes().to_vec()),
            KeyAndValueRef::Binary(name, value) => {
                (name.as_str(), value.to_bytes().unwrap().to_vec())
            }
        };
        // HTTP's own: native calls have none of it, and a server over HTTP/2 says when it has answered.
        if !["content-type", "date", "grpc-status"].contains(&name) {
            all.entry(name.to_owned()).or_default().push(value);
        }
    }
    all
}

fn failed(status: &Status) -> Outcome {
    let mut metadata = own(status.metadata());
    metadata.retain(|name, _| name.starts_with("x-"));
    // Both ends have the deadline, and each has words of its own.
    let late = status.code() == Code::DeadlineExceeded;
    Outcome {
        code: status.code(),
        message: if late { String::new() } else { status.message().into() },
        details: status.details().into(),
        metadata,
        reply: None,
    }
}

macro_rules! call {
    ($stubs:ident, $client:expr, $asked:expr) => {{
        let asked: &Asked = $asked;
        let message =
            $stubs::pb::HelloRequest { name: asked.name.clone(), blob: asked.blob.clone() };
        match $client.say_hello(asked.request(message)).await {
            Ok(reply) => {
                let metadata = own(reply.metadata());
                let reply = reply.into_inner();
                let mut seen: BTreeMap<_, _> = reply.seen.into_iter().collect();
                // HTTP's own.
                for name in ["content-type", "te", "user-agent"] {
                    seen.remove(&format!("Ascii({name:?})"));
                }
                let reply = Some((reply.text, reply.blob, seen));
                let (message, details) = (String::new(), Vec::new());
                Outcome { code: Code::Ok, message, details, metadata, reply }
            }
            Err(status) => failed(&status),
        }
    }};
}

#[tokio::test]
async fn random_calls_come_to_the_same_on_three_ways() {
    use ours::pb::greeter_client::GreeterClient;
    use ours::pb::greeter_server::GreeterServer;
    let router = || Server::builder().add_service(GreeterServer::new(ours::Echo));
    let bound = router().bind("http://127.0.0.1:0").await.unwrap();
    let address = bound.addresses()[0].to_string();
    tokio::spawn(bound.serve());
    let ring = router().in_process().unwrap();
    let mut native = GreeterClient::new(ring.clone());
    let mut ordinary = tonics::pb::greeter_client::GreeterClient::new(ring);
    let mut http2 = GreeterClient::new(Channel::connect(address).await.unwrap());
    let mut random = Random::new(7);
    let mut codes = BTreeMap::<i32, usize>::new();
    for trial in 0..partywall_testkit::trials(20_000) {
        let asked = Asked::random(&mut random);
        let one = call!(ours, native, &asked);
        let two = call!(tonics, ordinary, &asked);
        let three = call!(ours, http2, &asked);
        let shown = Asked { blob: Vec::new(), ..asked.clone() };
        assert_eq!(one, two, "{trial}: native and ordinary, {shown:?}");
        assert_eq!(two, three, "{trial}: ring and HTTP/2, {shown:?}");
        *codes.entry(one.code as i32).or_default() += 1;
    }
    assert!(codes.len() > 15, "{codes:?}");
}
