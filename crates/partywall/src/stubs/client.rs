//! What a generated client calls by.

use std::error::Error;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};

use bytes::Bytes;
use castaway::cast;
use http::Uri;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{Codec, CompressionEncoding, Streaming};
use tonic::{GrpcMethod, IntoStreamingRequest, Status};

use super::codec::Codec as Untyped;
use super::demand::Nothing;
use super::message::{Encode, Settings};
use super::native;
use super::unary::{Messages, Unary};
use crate::Channel;

type StdError = Box<dyn Error + Send + Sync>;
/// A message on tonic's way.
type Encoding = Box<dyn Encode>;

/// In place of [`tonic::client::Grpc`]: the same, and a way of its own for unary calls over a ring.
#[derive(Clone, Debug)]
pub struct Grpc<T> {
    pub(super) ordinary: tonic::client::Grpc<T>,
    /// The channel, if its calls may go the native way.
    pub(super) native: Option<Channel>,
    pub(super) settings: Settings,
}

// A panic of a caller leaves the channel whole: its links are shared with other callers, which go on as well.
// So a client may be seen after a panic whenever tonic's may.
impl<T> UnwindSafe for Grpc<T> where tonic::client::Grpc<T>: UnwindSafe {}
impl<T> RefUnwindSafe for Grpc<T> where tonic::client::Grpc<T>: RefUnwindSafe {}

impl<T> Grpc<T> {
    /// A client of a service.
    pub fn new(inner: T) -> Self {
        let native = cast!(&inner, &Channel).ok().cloned();
        Self { ordinary: tonic::client::Grpc::new(inner), native, settings: Settings::default() }
    }

    /// A client whose requests have this origin.
    pub fn with_origin(inner: T, origin: Uri) -> Self {
        // What the origin adds to a request is tonic's business.
        let ordinary = tonic::client::Grpc::with_origin(inner, origin);
        Self { ordinary, native: None, settings: Settings::default() }
    }

    /// Compresses requests.
    #[must_use]
    pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
        self.ordinary = self.ordinary.send_compressed(encoding);
        self.native = None;
        self
    }

    /// Takes compressed answers.
    #[must_use]
    pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
        self.ordinary = self.ordinary.accept_compressed(encoding);
        self.native = None;
        self
    }

    /// Limits messages that are received.
    #[must_use]
    pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
        self.ordinary = self.ordinary.max_decoding_message_size(limit);
        self.settings.decoded = Some(limit);
        self
    }

    /// Limits messages that are sent.
    #[must_use]
    pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
        self.ordinary = self.ordinary.max_encoding_message_size(limit);
        self.settings.encoded = Some(limit);
        self
    }
}

impl<T> Grpc<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// Waits until the service takes a request.
    ///
    /// # Errors
    /// The service's.
    pub async fn ready(&mut self) -> Result<(), T::Error> {
        self.ordinary.ready().await
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// The status of the call.
    #[inline]
    pub fn call<M, R>(&mut self, call: &mut Unary<M, R>) -> impl Future<Output = Result<(), Status>>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        self.exchange(call)
    }

    async fn exchange(&mut self, call: &mut dyn Messages) -> Result<(), Status> {
        if let Some(channel) = &self.native
            && let Some(answered) = native::call(channel, call, self.settings, Nothing).await
        {
            return answered;
        }
        // Kept apart, so that native calls have no room for it.
        Box::pin(self.ordinary_call(call)).await
    }

    async fn ordinary_call(&mut self, call: &mut dyn Messages) -> Result<(), Status> {
        let (request, path, codec) = self.ordinary_request(call).await?;
        let response = self.ordinary.unary(request, path, codec).await?;
        call.answered(response);
        Ok(())
    }

    /// What tonic's way takes of a call, once the service takes one.
    pub(super) async fn ordinary_request(
        &mut self,
        call: &mut dyn Messages,
    ) -> Result<(tonic::Request<Encoding>, PathAndQuery, Untyped<Encoding>), Status> {
        self.ready()
            .await
            .map_err(|error| Status::unknown(format!("Service was not ready: {}", error.into())))?;
        let method = call.method();
        call.extensions().insert(GrpcMethod::new(method.service, method.name));
        let codec = Untyped::new(call.decoder());
        Ok((call.take(), PathAndQuery::from_static(method.path), codec))
    }

    /// As [`tonic::client::Grpc::client_streaming`].
    ///
    /// # Errors
    /// The status of the call.
    pub async fn client_streaming<C: Codec>(
        &mut self,
        request: impl IntoStreamingRequest<Message = C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<C::Decode>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        self.ordinary.client_streaming(request.into_streaming_request(), path, codec).await
    }

    /// As [`tonic::client::Grpc::server_streaming`].
    ///
    /// # Errors
    /// The status of the call.
    pub async fn server_streaming<C: Codec>(
        &mut self,
        request: tonic::Request<C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<Streaming<C::Decode>>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        self.ordinary.server_streaming(request, path, codec).await
    }

    /// As [`tonic::client::Grpc::streaming`].
    ///
    /// # Errors
    /// The status of the call.
    pub async fn streaming<C: Codec>(
        &mut self,
        request: impl IntoStreamingRequest<Message = C::Encode>,
        path: PathAndQuery,
        codec: C,
    ) -> Result<tonic::Response<Streaming<C::Decode>>, Status>
    where
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        self.ordinary.streaming(request.into_streaming_request(), path, codec).await
    }
}
