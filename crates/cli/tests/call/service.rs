//! The service of `kinds.proto`, which repeats bytes and so needs none of its types.

use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use partywall::{Routes, Server};
use partywall_testkit::Host;
use prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Bytes, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::server_reflection_server::{
    ServerReflection, ServerReflectionServer,
};
use tonic_reflection::pb::v1::{
    FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest, ServerReflectionResponse,
    ServiceResponse,
};
use tonic_reflection::server::Builder;

/// By what a service tells its types.
#[derive(Clone, Copy)]
pub enum Reflection {
    V1,
    V1Alpha,
    None,
    /// A version 1 that answers the question for a file with these files, `N` in an import being the
    /// number of the question.
    Lies(&'static [(&'static str, &'static str)]),
    /// A version 1 that lists these services, and answers each question for a file by these. One without a
    /// name has that of the question.
    Hostile(&'static [&'static str], fn() -> Vec<FileDescriptorProto>),
}

/// The service at the name `test` and at a path, with a coordinator; all end with the value.
pub struct Running {
    pub host: Host,
    /// Says when a call of `Wait` begins and when it is dropped.
    pub calls: Receiver<&'static str>,
    /// Calls of `test.Kinds` that have come.
    pub came: Arc<AtomicUsize>,
    pub path: PathBuf,
    _stop: oneshot::Sender<()>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub fn start(reflection: Reflection) -> Self {
        Self::at(Host::open(), reflection)
    }

    pub fn at(host: Host, reflection: Reflection) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.sock");
        let (calls, told) = channel();
        let came = Arc::default();
        let kinds = Kinds { calls, came: Arc::clone(&came) };
        let (stop, stopped) = oneshot::channel::<()>();
        let at = format!("unix:{},test", path.display());
        let socket = host.socket.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut server = Server::builder().coordinator(socket);
                let served = server.add_routes(routes(reflection, kinds)).serve(at);
                tokio::select! {
                    ended = served => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        host.until_served();
        Self { host, calls: told, came, path, _stop: stop, _dir: dir }
    }
}

fn routes(reflection: Reflection, kinds: Kinds) -> Routes {
    let routes = Routes::default().add_service(kinds);
    let files = protox::compile(
        [proto(), proto().with_file_name("packed.proto")],
        [proto().parent().unwrap()],
    )
    .unwrap();
    let builder = Builder::configure().register_file_descriptor_set(files);
    match reflection {
        Reflection::V1 => routes.add_service(builder.build_v1().unwrap()),
        Reflection::V1Alpha => routes.add_service(builder.build_v1alpha().unwrap()),
        Reflection::None => routes,
        Reflection::Lies(files) => {
            let lies = Own(&["test.Kinds"], move |asked| lies(files, asked));
            routes.add_service(ServerReflectionServer::new(lies))
        }
        Reflection::Hostile(services, files) => {
            let hostile = Own(services, move |asked| named(files(), asked));
            let hostile = ServerReflectionServer::new(hostile);
            routes.add_service(hostile.max_encoding_message_size(usize::MAX))
        }
    }
}

/// The answers of [`Reflection::Lies`]. The question for a symbol is number 0.
fn lies(
    files: &'static [(&'static str, &'static str)],
    asked: Option<String>,
) -> Vec<FileDescriptorProto> {
    let asked = asked.unwrap_or_else(|| "0".into());
    let next = asked.parse::<u32>().map_or(0, |asked| asked + 1).to_string();
    let file = |(name, import): &(&str, &str)| FileDescriptorProto {
        name: Some(name.replace('N', &asked)),
        dependency: vec![import.replace('N', &next)],
        ..Default::default()
    };
    files.iter().map(file).collect()
}

/// The answers of [`Reflection::Hostile`].
fn named(files: Vec<FileDescriptorProto>, asked: Option<String>) -> Vec<FileDescriptorProto> {
    let name = |mut file: FileDescriptorProto| {
        file.name = file.name.or_else(|| asked.clone());
        file
    };
    files.into_iter().map(name).collect()
}

/// Lists these services; tells of files what it wants, by the name that was asked for.
struct Own<F>(&'static [&'static str], F);

#[tonic::async_trait]
impl<F> ServerReflection for Own<F>
where
    F: Fn(Option<String>) -> Vec<FileDescriptorProto> + Clone + Send + Sync + 'static,
{
    type ServerReflectionInfoStream =
        Pin<Box<dyn Stream<Item = Result<ServerReflectionResponse, Status>> + Send>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let (services, files) = (self.0, self.1.clone());
        let answers = request.into_inner().map(move |question| {
            let message_response = match question?.message_request {
                Some(MessageRequest::ListServices(_)) => {
                    let named = |name: &&str| ServiceResponse { name: (*name).into() };
                    let service = services.iter().map(named).collect();
                    MessageResponse::ListServicesResponse(ListServiceResponse { service })
                }
                question => {
                    let asked = match question {
                        Some(MessageRequest::FileByFilename(name)) => Some(name),
                        _ => None,
                    };
                    let files = files(asked);
                    let file_descriptor_proto =
                        files.iter().map(FileDescriptorProto::encode_to_vec).collect();
                    let files = FileDescriptorResponse { file_descriptor_proto };
                    MessageResponse::FileDescriptorResponse(files)
                }
            };
            let message_response = Some(message_response);
            Ok(ServerReflectionResponse { message_response, ..Default::default() })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

pub fn proto() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/call/kinds.proto")
}

#[derive(Clone)]
struct Kinds {
    calls: Sender<&'static str>,
    came: Arc<AtomicUsize>,
}

impl NamedService for Kinds {
    const NAME: &'static str = "test.Kinds";
}

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Kinds {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.came.fetch_add(1, Ordering::SeqCst);
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let method = Method { method, calls: self.calls.clone() };
        Box::pin(async move { Ok(Grpc::new(Raw).streaming(method, request).await) })
    }
}

struct Method {
    method: String,
    calls: Sender<&'static str>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl StreamingService<Bytes> for Method {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (method, calls) = (self.method.clone(), self.calls.clone());
        Box::pin(async move {
            let (metadata, _, mut requests) = request.into_parts();
            let answers: Answers = match method.as_str() {
                "Echo" | "Chat" => Box::pin(requests),
                "Thrice" => {
                    let one = requests.message().await?.unwrap_or_default();
                    Box::pin(tokio_stream::iter([one.clone(), one.clone(), one].map(Ok)))
                }
                "Last" => {
                    let mut last = Bytes::new();
                    while let Some(message) = requests.message().await? {
                        last = message;
                    }
                    Box::pin(tokio_stream::once(Ok(last)))
                }
                "Wait" => {
                    calls.send("begun").unwrap();
                    let waiting = Waiting(calls);
                    Box::pin(tokio_stream::pending().map(move |()| {
                        let _held = &waiting;
                        Ok(Bytes::new())
                    }))
                }
                "Pack" => one(any("packed.Parcel", b"\x0a\x03far")),
                "Strange" => one(any("no.Such", b"")),
                "Bury" => {
                    let inner = |inner: Vec<u8>, _| any("google.protobuf.Any", &inner);
                    one((0..2_000).fold(any("packed.Parcel", b""), inner))
                }
                "Shout" => {
                    return Err(Status::internal("a\u{9b}2J\npartywall: all is well\u{202e}"));
                }
                "Paint" => {
                    let mut answer = Vec::new();
                    prost::encoding::string::encode(1, &HOSTILE.to_owned(), &mut answer);
                    Box::pin(tokio_stream::once(Ok(answer.into())))
                }
                _ => return Err(failure()),
            };
            let mut response = Response::new(answers);
            for key in ["user", "data-bin"] {
                if let Some(value) = metadata.get(key) {
                    response.metadata_mut().insert(key, value.clone());
                }
                if let Some(value) = metadata.get_bin(key) {
                    response.metadata_mut().insert_bin(key, value.clone());
                }
            }
            Ok(response)
        })
    }
}

/// What would move a cursor, set a title and turn text round.
pub const HOSTILE: &str = "\x1b[2J\u{9b}31m\u{9d}0;t\u{9c}\u{7f}\u{202e}\u{2066}\n";

/// An answer with this in its field `any`.
fn one(any: Vec<u8>) -> Answers {
    let mut answer = Vec::new();
    prost::encoding::bytes::encode(19, &any, &mut answer);
    Box::pin(tokio_stream::once(Ok(answer.into())))
}

/// A message in a google.protobuf.Any.
fn any(name: &str, value: &[u8]) -> Vec<u8> {
    let type_url = format!("type.googleapis.com/{name}");
    prost_reflect::prost_types::Any { type_url, value: value.to_vec() }.encode_to_vec()
}

/// Tells of its end.
struct Waiting(Sender<&'static str>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _test_over = self.0.send("dropped");
    }
}

fn failure() -> Status {
    use tonic_types::{ErrorDetails, StatusExt};
    let info = ErrorDetails::with_error_info("GONE", "example.org", [("a".into(), "b".into())]);
    Status::with_error_details(Code::NotFound, "nothing of that name", info)
}

/// Messages as bytes.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        use prost::bytes::Buf;
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
