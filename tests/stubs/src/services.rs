// Services and callers as programs write them for tonic.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use partywall::Channel;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Bytes, StdError};
use tonic::metadata::MetadataMap;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

use super::later::greeter_client::GreeterClient as LaterClient;
use super::later::parter_client::ParterClient;
use super::pb::greeter_client::GreeterClient;
use super::pb::greeter_server::{Greeter, GreeterServer};
use super::pb::keeper_client::KeeperClient;
use super::pb::keeper_server::{Keeper, KeeperServer};
use super::pb::{HelloReply, HelloRequest};
use crate::{Asked, Caller, Calling, Outcome, Own, Settings, code_and_text};

/// Answers with what it has seen, and counts its handlers at work.
#[derive(Clone, Debug, Default)]
pub struct Echo(pub Arc<AtomicUsize>);

/// A handler at work.
struct AtWork<'a>(&'a AtomicUsize);

impl<'a> AtWork<'a> {
    fn of(Echo(count): &'a Echo) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(request: &HelloRequest) -> HelloReply {
    let text = format!("hello, {}", request.name);
    HelloReply { text, blob: request.blob.clone(), ..HelloReply::default() }
}

/// Metadata of a program's own.
fn own(metadata: &MetadataMap) -> MetadataMap {
    let mut own = metadata.clone().into_headers();
    let others: Vec<_> = own.keys().filter(|name| !name.as_str().starts_with("x-")).cloned().collect();
    others.iter().for_each(|name| drop(own.remove(name)));
    MetadataMap::from_headers(own)
}

#[tonic::async_trait]
impl Greeter for Echo {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let _at_work = AtWork::of(self);
        let mut reply = answer(request.get_ref());
        let own = own(request.metadata());
        // What has come of HTTP's own is not the same on each way.
        let keys = request.metadata().keys().filter(|_| !request.get_ref().name.contains("quiet"));
        reply.seen.extend(keys.map(|key| (format!("{key:?}"), String::new())));
        match request.get_ref().name.as_str() {
            "panics" => panic!("as it was asked"),
            "slow" => tokio::time::sleep(Duration::from_secs(60)).await,
            "soon" => tokio::time::sleep(Duration::from_millis(2)).await,
            "yields" => tokio::task::yield_now().await,
            name => {
                if let Some((code, text)) = name.split_once(':')
                    && let Ok(code) = code.parse::<i32>()
                {
                    let details = request.get_ref().blob.clone().into();
                    let code = tonic::Code::from_i32(code);
                    return Err(Status::with_details_and_metadata(code, text, details, own));
                }
            }
        }
        Ok(Response::from_parts(own, reply, tonic::Extensions::default()))
    }

    async fn r#type(&self, _request: Request<HelloRequest>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    async fn nothing(&self, _request: Request<()>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    type CountStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn count(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Self::CountStream>, Status> {
        let replies = (0..3).map(move |_| Ok(answer(request.get_ref())));
        Ok(Response::new(Box::pin(tokio_stream::iter(replies.collect::<Vec<_>>()))))
    }

    async fn collect(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        let mut requests = request.into_inner();
        let mut reply = HelloReply::default();
        while let Some(request) = requests.next().await {
            reply.text += &request?.name;
        }
        Ok(Response::new(reply))
    }

    type ChatStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        let replies = request.into_inner().map(|request| request.map(|request| answer(&request)));
        Ok(Response::new(Box::pin(replies)))
    }
}

/// A wrapper that is generic over the transport, with tonic's own bounds.
#[derive(Clone, Debug)]
pub struct Wrapper<T>(pub GreeterClient<T>);

impl<T> Wrapper<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: tonic::codegen::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as tonic::codegen::Body>::Error: Into<StdError> + Send,
{
    /// Calls.
    pub async fn hello(&mut self, name: &str) -> Result<HelloReply, Status> {
        let request = HelloRequest { name: name.into(), ..HelloRequest::default() };
        self.0.say_hello(request).await.map(Response::into_inner)
    }
}

/// An interceptor's type, which has a name.
pub type Refuse = fn(Request<()>) -> Result<Request<()>, Status>;

/// A server that refuses all calls.
pub fn refusing() -> InterceptedService<GreeterServer<Echo>, Refuse> {
    GreeterServer::with_interceptor(Echo::default(), |_| Err(Status::unauthenticated("nobody is let in")))
}

/// A client whose type has the name of its interceptor's.
pub type Tagging = GreeterClient<InterceptedService<Channel, Tag>>;

/// An interceptor that is a value.
#[derive(Clone, Debug)]
pub struct Tag(pub &'static str);

impl tonic::service::Interceptor for Tag {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = self.0.parse().map_err(|_| Status::internal("no value"))?;
        request.metadata_mut().insert("x-tag", value);
        Ok(request)
    }
}

/// A client of that type.
pub fn tagging(channel: Channel, tag: Tag) -> Tagging {
    GreeterClient::with_interceptor(channel, tag)
}

/// A server with these settings.
pub fn greeter(service: Echo, settings: Settings) -> GreeterServer<Echo> {
    let mut server = GreeterServer::new(service);
    if let Some(limit) = settings.encoded {
        server = server.max_encoding_message_size(limit);
    }
    if let Some(limit) = settings.decoded {
        server = server.max_decoding_message_size(limit);
    }
    if settings.sends_gzip {
        server = server.send_compressed(CompressionEncoding::Gzip);
    }
    if settings.accepts_gzip {
        server = server.accept_compressed(CompressionEncoding::Gzip);
    }
    server
}

/// A client with these settings.
pub fn caller(channel: Channel, settings: Settings) -> Box<dyn Caller> {
    let mut client = GreeterClient::new(channel);
    if let Some(limit) = settings.encoded {
        client = client.max_encoding_message_size(limit);
    }
    if let Some(limit) = settings.decoded {
        client = client.max_decoding_message_size(limit);
    }
    if settings.sends_gzip {
        client = client.send_compressed(CompressionEncoding::Gzip);
    }
    if settings.accepts_gzip {
        client = client.accept_compressed(CompressionEncoding::Gzip);
    }
    Box::new(client)
}

/// What a call came to.
pub(super) fn outcome(called: Result<Response<HelloReply>, Status>) -> Outcome {
    match called {
        Ok(reply) => {
            let (metadata, reply, _) = reply.into_parts();
            let seen = reply.seen.into_keys().collect();
            Outcome::of(&metadata, reply.text, reply.blob, seen)
        }
        Err(status) => Outcome::failed(&status),
    }
}

impl Caller for GreeterClient<Channel> {
    fn hello<'a>(&'a mut self, asked: &'a Asked) -> Calling<'a> {
        Box::pin(async move {
            let Asked { name, blob, .. } = asked;
            let message = HelloRequest { name: name.clone(), blob: blob.clone() };
            outcome(self.say_hello(asked.request(message)).await)
        })
    }

    fn another(&self) -> Box<dyn Caller> {
        Box::new(self.clone())
    }
}

/// What calls of a later release come to: of a method and of a service that the earlier one has not, and of
/// one that it has.
pub async fn later_calls(channel: &Channel) -> [(tonic::Code, String); 3] {
    let request = super::later::HelloRequest::default;
    let mut greeter = LaterClient::new(channel.clone());
    let mut parter = ParterClient::new(channel.clone());
    [
        code_and_text(greeter.later(request()).await),
        code_and_text(parter.say_goodbye(request()).await),
        code_and_text(greeter.say_hello(request()).await),
    ]
}

/// Answers with the data that have come, in a message that says what it was asked to.
#[derive(Debug, Default)]
pub struct Keeps;

#[tonic::async_trait]
impl Keeper for Keeps {
    async fn keep(&self, request: Request<Own>) -> Result<Response<Own>, Status> {
        let request = request.into_inner();
        Ok(Response::new(Own { blob: request.blob, answer: 0, says: request.answer }))
    }
}

/// Its server.
pub fn keeper(settings: Settings) -> KeeperServer<Keeps> {
    let server = KeeperServer::new(Keeps);
    match settings.encoded {
        Some(limit) => server.max_encoding_message_size(limit),
        None => server,
    }
}

/// Calls it once.
pub async fn keep(channel: Channel, message: Own, settings: Settings) -> Result<Own, Status> {
    let mut client = KeeperClient::new(channel);
    if let Some(limit) = settings.encoded {
        client = client.max_encoding_message_size(limit);
    }
    client.keep(message).await.map(Response::into_inner)
}
