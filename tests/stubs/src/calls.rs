//! Calls as they are asked for, and what they come to, whatever stubs make them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use tonic::metadata::{AsciiMetadataValue, BinaryMetadataValue, KeyAndValueRef, MetadataMap};
use tonic::{Code, Request, Status};

/// What a client or a server is set to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Most bytes of a message that is sent.
    pub encoded: Option<usize>,
    /// Most bytes of a message that is taken.
    pub decoded: Option<usize>,
    /// Messages are sent compressed, where the peer takes that.
    pub sends_gzip: bool,
    /// Compressed messages are taken.
    pub accepts_gzip: bool,
}

/// A call as it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// It says what the service does.
    pub name: String,
    /// Data that come back.
    pub blob: Vec<u8>,
    /// Metadata.
    pub ascii: Vec<(&'static str, String)>,
    /// Metadata with names in `-bin`.
    pub binary: Vec<(&'static str, Vec<u8>)>,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

impl Asked {
    /// With so many bytes of data, and nothing else.
    pub fn sized(name: &str, bytes: usize) -> Self {
        Self { name: name.into(), blob: vec![7; bytes], ..Self::default() }
    }

    /// A request with its metadata.
    ///
    /// # Panics
    /// At metadata that is none.
    pub fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        for (name, value) in &self.ascii {
            let value = AsciiMetadataValue::try_from(value.as_str()).expect("a value of ASCII");
            request.metadata_mut().append(*name, value);
        }
        for (name, value) in &self.binary {
            request.metadata_mut().append_bin(*name, BinaryMetadataValue::from_bytes(value));
        }
        request
    }
}

/// What a call came to. Those that differ in their way alone are equal.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its status.
    pub code: Code,
    /// That of the status.
    pub message: String,
    /// Those of the status.
    pub details: Vec<u8>,
    /// Of the answer, or of the status.
    pub metadata: BTreeMap<String, Vec<Vec<u8>>>,
    /// The text, the data, and the metadata that the service has seen.
    pub reply: Option<(String, Vec<u8>, BTreeMap<String, String>)>,
    /// Whether it is an answer, and neither the service nor the caller has seen anything of HTTP's.
    pub is_native: bool,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let Self { code, message, details, metadata, reply, is_native: _ } = self;
        (code, message, details, metadata, reply)
            == (&other.code, &other.message, &other.details, &other.metadata, &other.reply)
    }
}

impl Outcome {
    /// Of an answer.
    pub fn of(metadata: &MetadataMap, text: String, blob: Vec<u8>, seen: Vec<String>) -> Self {
        // HTTP's own.
        let https = ["content-type", "te", "user-agent"].map(|name| format!("Ascii({name:?})"));
        let is_native =
            !metadata.contains_key("content-type") && !seen.iter().any(|name| https.contains(name));
        let seen = seen.into_iter().filter(|name| !https.contains(name));
        let reply = Some((text, blob, seen.map(|name| (name, String::new())).collect()));
        let (message, details) = (String::new(), Vec::new());
        Self { code: Code::Ok, message, details, metadata: own(metadata), reply, is_native }
    }

    /// Of a status.
    pub fn failed(status: &Status) -> Self {
        let mut metadata = own(status.metadata());
        metadata.retain(|name, _| name.starts_with("x-"));
        // Both ends have the deadline, and each has words of its own.
        let late = status.code() == Code::DeadlineExceeded;
        Self {
            code: status.code(),
            message: if late { String::new() } else { status.message().into() },
            details: status.details().into(),
            metadata,
            reply: None,
            is_native: false,
        }
    }

    /// Whether it is an answer.
    pub fn is_ok(&self) -> bool {
        self.code == Code::Ok
    }

    /// Whether the service has seen metadata of this name.
    pub fn has_seen(&self, name: &str) -> bool {
        let name = format!("Ascii({name:?})");
        self.reply.as_ref().is_some_and(|(_, _, seen)| seen.contains_key(&name))
    }
}

/// What a status says.
pub fn code_and_text<T>(called: Result<T, Status>) -> (Code, String) {
    called.map_or_else(|status| (status.code(), status.message().into()), |_| (Code::Ok, "".into()))
}

fn own(metadata: &MetadataMap) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for entry in metadata.iter() {
        let (name, value) = match entry {
            KeyAndValueRef::Ascii(name, value) => (name.as_str(), value.as_bytes().to_vec()),
            KeyAndValueRef::Binary(name, value) => {
                (name.as_str(), value.to_bytes().expect("a value in base64").to_vec())
            }
        };
        // HTTP's own: native calls have none of it, and a server over HTTP/2 says when it has answered.
        if !["content-type", "date", "grpc-status"].contains(&name) {
            all.entry(name.to_owned()).or_default().push(value);
        }
    }
    all
}

/// A call under way. Dropping it cancels the call.
pub type Calling<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A client of either kind of stubs.
pub trait Caller: Send + Sync {
    /// Calls `SayHello`.
    fn hello<'a>(&'a mut self, asked: &'a Asked) -> Calling<'a>;

    /// Another one of the same channel.
    fn another(&self) -> Box<dyn Caller>;
}
