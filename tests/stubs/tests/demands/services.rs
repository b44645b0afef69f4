// The services and their callers, by the stubs of the module `pb`: compiled once for each of the two files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_stream::{Iter, StreamExt as _, iter};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::{Request, Response, Status, Streaming};

use pb::Text;
pub(crate) use pb::partly_client::PartlyClient;
use pb::partly_server::{Partly, PartlyServer};
pub(crate) use pb::wholly_client::WhollyClient;
use pb::wholly_server::{Wholly, WhollyServer};

/// Counts its calls.
#[derive(Clone, Default)]
pub(crate) struct Counting(Arc<AtomicUsize>);

impl Counting {
    /// Calls since this was asked last.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn answer(&self) -> Result<Response<Text>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(text()))
    }

    async fn read(&self, request: Request<Streaming<Text>>) -> Result<Response<Text>, Status> {
        let (mut messages, mut came) = (request.into_inner(), 0);
        while let Some(message) = messages.next().await {
            message?;
            came += 1;
        }
        // To tonic's server a call that is dropped looks like one without messages.
        if came == 0 { Err(Status::cancelled("no message")) } else { self.answer() }
    }

    pub(crate) fn partly(&self) -> PartlyServer<Self> {
        PartlyServer::new(self.clone()).accept_compressed(tonic::codec::CompressionEncoding::Gzip)
    }

    pub(crate) fn wholly(&self) -> WhollyServer<Self> {
        WhollyServer::new(self.clone())
    }

    pub(crate) fn routes(&self) -> partywall::Routes {
        partywall::Routes::default().add_service(self.partly()).add_service(self.wholly())
    }
}

type Answers = Iter<std::vec::IntoIter<Result<Text, Status>>>;

#[tonic::async_trait]
impl Partly for Counting {
    async fn free(&self, _request: Request<Text>) -> Result<Response<Text>, Status> {
        self.answer()
    }

    async fn one(&self, _request: Request<Text>) -> Result<Response<Text>, Status> {
        self.answer()
    }

    async fn up(&self, request: Request<Streaming<Text>>) -> Result<Response<Text>, Status> {
        self.read(request).await
    }

    type DownStream = Answers;

    async fn down(&self, _request: Request<Text>) -> Result<Response<Answers>, Status> {
        Ok(self.answer()?.map(|text| iter(vec![Ok(text)])))
    }

    type BothStream = Answers;

    async fn both(&self, request: Request<Streaming<Text>>) -> Result<Response<Answers>, Status> {
        Ok(self.read(request).await?.map(|text| iter(vec![Ok(text)])))
    }
}

#[tonic::async_trait]
impl Wholly for Counting {
    async fn one(&self, _request: Request<Text>) -> Result<Response<Text>, Status> {
        self.answer()
    }

    async fn weaker(&self, _request: Request<Text>) -> Result<Response<Text>, Status> {
        self.answer()
    }

    async fn started(&self, _request: Request<Text>) -> Result<Response<Text>, Status> {
        self.answer()
    }

    async fn signed(&self, request: Request<Streaming<Text>>) -> Result<Response<Text>, Status> {
        self.read(request).await
    }
}

pub(crate) fn text() -> Text {
    Text { text: "a text".into() }
}

/// Whether each call to the end came to one, by its kind: those that demand a sealed link.
pub(crate) async fn sealed_calls<T>(channel: &T) -> Vec<(&'static str, Result<(), Status>)>
where
    T: GrpcService<Body> + Clone,
    T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let mut partly = PartlyClient::new(channel.clone());
    let mut wholly = WhollyClient::new(channel.clone());
    let mut came = Vec::new();
    // The first call of a service goes another way than the next one does.
    for _ in 0..2 {
        came.push(("one", partly.one(text()).await.map(drop)));
        came.push(("one of all", wholly.one(text()).await.map(drop)));
        came.push(("weaker", wholly.weaker(text()).await.map(drop)));
    }
    let mut request = Request::new(text());
    request.metadata_mut().insert("x-some", "1".parse().expect("a value"));
    came.push(("with metadata", partly.one(request).await.map(drop)));
    let mut compressed = partly.clone().send_compressed(tonic::codec::CompressionEncoding::Gzip);
    came.push(("compressed", compressed.one(text()).await.map(drop)));
    came.push(("up", partly.up(iter([text(), text()])).await.map(drop)));
    let down = partly.down(text()).await;
    came.push(("down", to_end(down).await));
    let both = partly.both(iter([text()])).await;
    came.push(("both", to_end(both).await));
    came
}

async fn to_end(answer: Result<Response<Streaming<Text>>, Status>) -> Result<(), Status> {
    let mut messages = answer?.into_inner();
    while let Some(message) = messages.next().await {
        message?;
    }
    Ok(())
}
