// Services and callers as programs write them for tonic.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Bytes, StdError};
use tonic::metadata::MetadataMap;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

use super::pb::greeter_client::GreeterClient;
use super::pb::greeter_server::{Greeter, GreeterServer};
use super::pb::{HelloReply, HelloRequest};

/// Answers with what it has seen.
#[derive(Debug, Default)]
pub struct Echo;

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
        let mut reply = answer(request.get_ref());
        let own = own(request.metadata());
        for key in request.metadata().keys() {
            reply.seen.insert(format!("{key:?}"), String::new());
        }
        match request.get_ref().name.as_str() {
            "panics" => panic!("as it was asked"),
            "slow" => tokio::time::sleep(std::time::Duration::from_secs(60)).await,
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
    GreeterServer::with_interceptor(Echo, |_| Err(Status::unauthenticated("nobody is let in")))
}
