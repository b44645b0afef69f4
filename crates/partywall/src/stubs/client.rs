//! What a generated client calls by.

use std::error::Error;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use castaway::cast;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use partywall_abi::frame::{self, MethodName, RequestHead};
use partywall_shm::slot::SlotBuf;
use prost::Message;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{Codec, CompressionEncoding, Streaming};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, GrpcMethod, IntoStreamingRequest, Status};
use tonic_prost::ProstCodec;

use super::message::Settings;
use super::message::{self, Outgoing};
use super::method::Method;
use crate::Channel;
use crate::channel::Connection;
use crate::http_calls;
use crate::link::caller::Begun;
use crate::link::sender::Source;
use crate::telemetry;
use crate::wire;

type StdError = Box<dyn Error + Send + Sync>;

/// In place of [`tonic::client::Grpc`]: the same, and a way of its own for unary calls over a ring.
#[derive(Clone, Debug)]
pub struct Grpc<T> {
    ordinary: tonic::client::Grpc<T>,
    /// The channel, if its calls may go the native way.
    native: Option<Channel>,
    settings: Settings,
}

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

    /// A unary call of messages of prost's.
    ///
    /// # Errors
    /// The status of the call.
    pub async fn call<M, R>(
        &mut self,
        method: &'static Method,
        request: tonic::Request<M>,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let request = match &self.native {
            Some(channel) if is_plain(&request) => match channel.ring() {
                None => request,
                Some(ring) => match call(&ring, method, request, self.settings).await {
                    Ok(answer) => return answer,
                    Err(back) => back,
                },
            },
            _ => request,
        };
        self.ordinary_call(method, request).await
    }

    async fn ordinary_call<M, R>(
        &mut self,
        method: &'static Method,
        mut request: tonic::Request<M>,
    ) -> Result<tonic::Response<R>, Status>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        self.ready()
            .await
            .map_err(|error| Status::unknown(format!("Service was not ready: {}", error.into())))?;
        request.extensions_mut().insert(GrpcMethod::new(method.service, method.name));
        let path = PathAndQuery::from_static(method.path);
        self.ordinary.unary(request, path, ProstCodec::default()).await
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

/// What tonic says of an answer without one.
const NO_MESSAGE: &str = "Missing response message.";

/// Names of metadata that have a meaning for tonic, beside those that it does not send.
const TONICS: [&str; 3] = ["grpc-accept-encoding", "grpc-encoding", "user-agent"];

/// Whether a request has nothing that only tonic's way knows of.
fn is_plain<M>(request: &tonic::Request<M>) -> bool {
    let metadata = request.metadata();
    request.extensions().is_empty()
        && (metadata.is_empty()
            || wire::NOT_SENT.iter().chain(&TONICS).all(|name| !metadata.contains_key(*name)))
}

/// A call over a ring; the request comes back when its link takes no more.
async fn call<M, R>(
    ring: &Connection,
    method: &'static Method,
    request: tonic::Request<M>,
    settings: Settings,
) -> Result<Result<tonic::Response<R>, Status>, tonic::Request<M>>
where
    M: Message + Send + Sync + 'static,
    R: Message + Default + Send + Sync + 'static,
{
    let Some(link) = ring.link() else { return Err(request) };
    let call = telemetry::call_of(method.path);
    if let Some(call) = &call {
        ring.route().tell(call);
    }
    let failed = |status: Status| {
        if let Some(call) = &call {
            call.end(status.code());
        }
        Ok(Err(status))
    };
    let (metadata, mut extensions, message) = request.into_parts();
    let metadata = metadata.into_headers();
    let timeout = if metadata.is_empty() { None } else { wire::parse_timeout(&metadata) };
    let message = match Outgoing::new(message, settings.encoded) {
        Ok(message) => message,
        Err(status) => return failed(status),
    };
    let sent = message.len();
    let mut request = Request { method, number: None, metadata, timeout, message };
    let begun = match link.call_plain(method.place(), &mut request) {
        Some(mut reply) => poll_fn(|cx| guarded(&call, || reply.poll(cx))).await,
        None => match link.open(timeout, None) {
            Ok(Some(open)) => {
                request.number = open.number(method.place(), method.path);
                let mut answer = open.send(request);
                poll_fn(|cx| guarded(&call, || answer.poll(cx))).await
            }
            Ok(None) => {
                // Its span and its metrics go on there.
                if let Some(call) = call {
                    extensions.insert(telemetry::Underway(call));
                }
                let Request { metadata, message, .. } = request;
                let metadata = MetadataMap::from_headers(metadata);
                let message = message.into_inner();
                return Err(tonic::Request::from_parts(metadata, extensions, message));
            }
            Err(status) => return failed(status),
        },
    };
    let answer = match begun {
        Ok(begun) => answered(begun, settings.decoded).await,
        Err(status) => Err(status),
    };
    if let Some(call) = &call {
        let received = answer.as_ref().map(|(_, received)| *received);
        call.exchanged(sent, received.map_err(Status::code));
    }
    Ok(answer.map(|(answer, _)| answer))
}

/// Polls a part of a call, within its span if it has one.
#[inline]
fn guarded<T>(call: &Option<Arc<telemetry::Call>>, part: impl FnOnce() -> T) -> T {
    match call {
        None => part(),
        Some(call) => call.guarded(part),
    }
}

/// The answer, and how many bytes it had. Its metadata is what the service has set.
async fn answered<R: Message + Default + 'static>(
    begun: Begun,
    most: Option<usize>,
) -> Result<(tonic::Response<R>, usize), Status> {
    let (head, data, trailers) = match begun {
        Begun::Whole(head, Some(data), trailers)
            if trailers.code == 0 && message::is_sole(&data) =>
        {
            (head, data, trailers)
        }
        begun => return ordinary_answer(http_calls::caller::response(begun), most).await,
    };
    let received = data.len();
    let mut headers = wire::own_headers(None, &head.get());
    let message = message::decode(data, most).map_err(|mut status| {
        merge(status.metadata_mut(), MetadataMap::from_headers(headers.clone()));
        status
    })?;
    if !trailers.metadata.get().is_empty() {
        headers.extend(wire::own_headers(None, &trailers.metadata.get()));
    }
    let metadata = MetadataMap::from_headers(headers);
    Ok((tonic::Response::from_parts(metadata, message, http::Extensions::new()), received))
}

/// An answer that is not one good message in one record, as tonic takes one.
async fn ordinary_answer<R: Message + Default + 'static>(
    response: http::Response<Body>,
    most: Option<usize>,
) -> Result<(tonic::Response<R>, usize), Status> {
    if let Some(encoding) = response.headers().get("grpc-encoding").filter(|e| *e != "identity") {
        let text = String::from_utf8_lossy(encoding.as_bytes());
        let text = format!("Content is compressed with `{text}` which isn't supported");
        let mut status = Status::unimplemented(text);
        let identity = MetadataValue::from_static("identity");
        status.metadata_mut().insert("grpc-accept-encoding", identity);
        return Err(status);
    }
    if let Some(status) = Status::from_header_map(response.headers()) {
        let is_good = status.code() == Code::Ok;
        return Err(if is_good { Status::internal(NO_MESSAGE) } else { status });
    }
    let (parts, body) = response.into_parts();
    let mut metadata = MetadataMap::from_headers(parts.headers);
    let decoder = ProstCodec::<R, R>::default().decoder();
    let mut stream = Streaming::new_response(decoder, body, parts.status, None, most);
    let message = stream.message().await.map_err(|mut status| {
        merge(status.metadata_mut(), metadata.clone());
        status
    })?;
    let message = message.ok_or_else(|| Status::internal(NO_MESSAGE))?;
    if let Some(trailers) = stream.trailers().await? {
        merge(&mut metadata, trailers);
    }
    let received = message.encoded_len();
    let metadata = wire::without_https(metadata);
    Ok((tonic::Response::from_parts(metadata, message, parts.extensions), received))
}

fn merge(metadata: &mut MetadataMap, more: MetadataMap) {
    let mut headers = std::mem::take(metadata).into_headers();
    headers.extend(more.into_headers());
    *metadata = MetadataMap::from_headers(headers);
}

/// A request on its way.
struct Request<M> {
    method: &'static Method,
    number: Option<u16>,
    metadata: HeaderMap,
    timeout: Option<Duration>,
    message: Outgoing<M>,
}

impl<M: Message> Source for Request<M> {
    #[inline]
    fn is_plain(&self) -> bool {
        self.metadata.is_empty() && self.timeout.is_none()
    }

    fn method(&self) -> Option<&str> {
        Some(self.method.path)
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        let path = MethodName::Path(self.method.path);
        let name = self.number.map_or(path, MethodName::Number);
        if self.metadata.is_empty() {
            let head = |out: &mut Vec<u8>| RequestHead::write(out, self.timeout, name, 0);
            return match frame::write_block(block, head) {
                Some(_len) => Ok(()),
                None => Err(Status::internal("a path that is too long")),
            };
        }
        wire::write_request_head(block, name, &self.metadata, self.timeout)
    }

    fn head_sent(&mut self) {
        self.metadata = HeaderMap::new();
    }

    fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        Poll::Ready(self.message.take())
    }

    fn whole(&self) -> Option<usize> {
        Some(self.message.len())
    }

    fn write_whole(&mut self, out: &mut SlotBuf<'_>) -> bool {
        self.message.encode_in_place(out)
    }

    fn write_trailers(&self, _block: &mut Vec<u8>) -> u8 {
        unreachable!("a request has no trailers")
    }
}
