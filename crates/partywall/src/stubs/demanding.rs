//! Calls of a generated client whose `.proto` file demands something of their links.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{Codec, Streaming};
use tonic::codegen::tokio_stream;
use tonic::{IntoStreamingRequest, Status};

use super::client::Grpc;
use super::demand::{Demand, Demanded, Kept, Pass};
use super::native;
use super::unary::{Messages, Unary};

type StdError = Box<dyn Error + Send + Sync>;

impl<T> Grpc<T> {
    /// The same client for a call with this demand.
    pub fn demanding(&mut self, demand: &'static Demand) -> Demanding<'_, T> {
        Demanding { grpc: self, demand }
    }
}

/// A client for a call with a demand.
#[derive(Debug)]
pub struct Demanding<'a, T> {
    grpc: &'a mut Grpc<T>,
    demand: &'static Demand,
}

impl<T> Demanding<'_, T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// As [`Grpc::call`].
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub async fn call<M, R>(self, call: &mut Unary<M, R>) -> Result<(), Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        if let Some(channel) = &self.grpc.native
            && let settings = self.grpc.settings
            && let Some(answered) = native::call(channel, call, settings, self.demand).await
        {
            return answered;
        }
        // Kept apart, so that native calls have no room for it.
        Box::pin(self.ordinary_call(call)).await
    }

    async fn ordinary_call(self, call: &mut dyn Messages) -> Result<(), Status> {
        let (request, path, codec) = self.grpc.ordinary_request(call).await?;
        let response = self.unary(request, path, codec).await?;
        call.answered(response);
        Ok(())
    }

    /// As [`tonic::client::Grpc::unary`].
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub async fn unary<C: Codec>(
        self,
        request: tonic::Request<C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<C::Decode>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        self.client_streaming(request.map(tokio_stream::once), path, codec).await
    }

    /// As [`tonic::client::Grpc::client_streaming`].
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub async fn client_streaming<C: Codec>(
        self,
        request: impl IntoStreamingRequest<Message = C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<C::Decode>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        let (request, pass) = self.kept(request.into_streaming_request())?;
        let answer = self.grpc.ordinary.client_streaming(request, path, codec);
        passed(self.demand, &pass, answer).await
    }

    /// As [`tonic::client::Grpc::server_streaming`].
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub async fn server_streaming<C: Codec>(
        self,
        request: tonic::Request<C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<Streaming<C::Decode>>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        self.streaming(request.map(tokio_stream::once), path, codec).await
    }

    /// As [`tonic::client::Grpc::streaming`].
    ///
    /// # Errors
    /// The status of the call; FAILED_PRECONDITION.
    pub async fn streaming<C: Codec>(
        self,
        request: impl IntoStreamingRequest<Message = C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<Streaming<C::Decode>>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        let (request, pass) = self.kept(request.into_streaming_request())?;
        let answer = self.grpc.ordinary.streaming(request, path, codec);
        passed(self.demand, &pass, answer).await
    }

    /// A request that takes the demand along, with its messages kept back.
    fn kept<S>(
        &self,
        request: tonic::Request<S>,
    ) -> Result<(tonic::Request<Kept<S>>, Arc<Pass>), Status> {
        if is_tonics::<T>() {
            return Err(self.demand.refuse_unknown());
        }
        let (demanded, pass) = Demanded::new(self.demand);
        let mut request = request.map(|messages| Kept::new(messages, Arc::clone(&pass)));
        request.extensions_mut().insert(demanded);
        Ok((request, pass))
    }
}

/// Whether this is tonic's own channel, which gets no request. The name is enough to tell: it gets no message
/// in either case.
fn is_tonics<T>() -> bool {
    #[cfg(feature = "http2")]
    let tonics = std::any::type_name::<tonic::transport::Channel>();
    #[cfg(not(feature = "http2"))]
    let tonics = "tonic::transport::channel::Channel";
    std::any::type_name::<T>() == tonics
}

/// Waits for an answer, for which the pass has to be open.
async fn passed<A>(
    demand: &'static Demand,
    pass: &Pass,
    answer: impl Future<Output = Result<A, Status>>,
) -> Result<A, Status> {
    let answer = tokio::select! {
        biased;
        answer = answer => answer?,
        () = pass.asked() => return Err(demand.refuse_unknown()),
    };
    if pass.is_open() { Ok(answer) } else { Err(demand.refuse_unknown()) }
}
