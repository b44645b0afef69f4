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
use partywall_abi::frame::{self, MethodName, OwnedMetadata, RequestHead};
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
use crate::link::mailbox::Whole;
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
        let ring = self.native.as_ref().filter(|_| is_plain(&request)).and_then(Channel::ring);
        let request = match ring {
            None => request,
            Some(ring) => match begin(&ring, method, request, self.settings).await {
                Err(back) => back,
                Ok((begun, told)) => {
                    let most = self.settings.decoded;
                    let answer = match begun.map(|begun| sole_answer(begun, most)) {
                        Ok(Ok(answer)) => answer,
                        // Kept apart, so that other calls have no room for it.
                        Ok(Err(begun)) => Box::pin(other_answer(begun, most)).await,
                        Err(status) => Err(status),
                    };
                    told.end(answer.as_ref().map(|(_, received)| *received));
                    return answer.map(|(answer, _)| answer);
                }
            },
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

/// Who is told of a call.
struct Told {
    call: Option<Arc<telemetry::Call>>,
    /// Bytes of the request, if it has gone out.
    sent: Option<usize>,
}

impl Told {
    /// Polls a part of the call, within its span if it has one.
    #[inline]
    fn guarded<T>(&self, part: impl FnOnce() -> T) -> T {
        match &self.call {
            None => part(),
            Some(call) => call.guarded(part),
        }
    }

    /// The call has ended with so many bytes.
    #[inline]
    fn end(&self, received: Result<usize, &Status>) {
        match (&self.call, self.sent) {
            (None, _) => {}
            (Some(call), Some(sent)) => call.exchanged(sent, received.map_err(Status::code)),
            (Some(call), None) => call.end(received.map_or_else(Status::code, |_| Code::Ok)),
        }
    }
}

/// Begins a call over a ring, up to where its answer begins; the request comes back when its link takes no
/// more.
async fn begin<M>(
    ring: &Connection,
    method: &'static Method,
    request: tonic::Request<M>,
    settings: Settings,
) -> Result<(Result<Begun, Status>, Told), tonic::Request<M>>
where
    M: Message + Send + Sync + 'static,
{
    let Some(link) = ring.link() else { return Err(request) };
    let mut told = Told { call: telemetry::call_of(method.path), sent: None };
    if let Some(call) = &told.call {
        ring.route().tell(call);
    }
    let (metadata, message) = match request.metadata().is_empty() {
        true => (None, request.into_inner()),
        false => {
            let (metadata, _none, message) = request.into_parts();
            (Some(Box::new(metadata.into_headers())), message)
        }
    };
    let timeout = metadata.as_ref().and_then(|metadata| wire::parse_timeout(metadata));
    let message = match Outgoing::new(message, settings.encoded) {
        Ok(message) => message,
        Err(status) => return Ok((Err(status), told)),
    };
    let sent = Some(message.len());
    let mut request = Request { method, number: None, metadata, timeout, message };
    let begun = match link.call_plain(method.place(), &mut request) {
        Some(mut reply) => {
            told.sent = sent;
            poll_fn(|cx| told.guarded(|| reply.poll(cx))).await
        }
        None => match link.open(timeout, None) {
            Ok(Some(open)) => {
                told.sent = sent;
                request.number = open.number(method.place(), method.path);
                let mut answer = open.send(request);
                poll_fn(|cx| told.guarded(|| answer.poll(cx))).await
            }
            Ok(None) => return Err(request.back(told.call)),
            Err(status) => Err(status),
        },
    };
    Ok((begun, told))
}

/// An answer that is one good message in one record, and how many bytes it had; its metadata is what the
/// service has set. Another one comes back.
#[inline]
fn sole_answer<R: Message + Default>(
    begun: Begun,
    most: Option<usize>,
) -> Result<Result<(tonic::Response<R>, usize), Status>, Begun> {
    let (data, metadata) = match begun {
        Begun::Plain(data) if message::is_sole(&data) => (data, None),
        Begun::Whole(whole) if is_sole(&whole) => {
            let Whole { head, data, trailers } = *whole;
            (data.unwrap_or_default(), Some((head, trailers.metadata)))
        }
        begun => return Err(begun),
    };
    let received = data.len();
    let own = |metadata: &OwnedMetadata| {
        MetadataMap::from_headers(wire::own_headers(None, &metadata.get()))
    };
    let head = metadata.as_ref().map(|(head, _)| own(head));
    let message = match message::decode(data, most) {
        Ok(message) => message,
        Err(mut status) => {
            if let Some(head) = head {
                merge(status.metadata_mut(), head);
            }
            return Ok(Err(status));
        }
    };
    let mut response = tonic::Response::new(message);
    if let (Some(mut headers), Some((_, trailers))) = (head, metadata) {
        if !trailers.get().is_empty() {
            merge(&mut headers, own(&trailers));
        }
        *response.metadata_mut() = headers;
    }
    Ok(Ok((response, received)))
}

fn is_sole(whole: &Whole) -> bool {
    whole.trailers.code == 0 && whole.data.as_ref().is_some_and(message::is_sole)
}

/// An answer that is not one good message in one record, as tonic takes one.
async fn other_answer<R: Message + Default + 'static>(
    begun: Begun,
    most: Option<usize>,
) -> Result<(tonic::Response<R>, usize), Status> {
    let response = http_calls::caller::response(begun);
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
    metadata: Option<Box<HeaderMap>>,
    timeout: Option<Duration>,
    message: Outgoing<M>,
}

impl<M: Message> Request<M> {
    /// As it was, with the call that goes on elsewhere.
    #[cold]
    fn back(self, call: Option<Arc<telemetry::Call>>) -> tonic::Request<M> {
        let mut request = tonic::Request::new(self.message.into_inner());
        if let Some(metadata) = self.metadata {
            *request.metadata_mut() = MetadataMap::from_headers(*metadata);
        }
        if let Some(call) = call {
            // Its span and its metrics go on there.
            request.extensions_mut().insert(telemetry::Underway(call));
        }
        request
    }
}

impl<M: Message> Source for Request<M> {
    #[inline]
    fn is_plain(&self) -> bool {
        self.metadata.is_none()
    }

    fn method(&self) -> Option<&str> {
        Some(self.method.path)
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        let path = MethodName::Path(self.method.path);
        let name = self.number.map_or(path, MethodName::Number);
        let Some(metadata) = &self.metadata else {
            let head = |out: &mut Vec<u8>| RequestHead::write(out, self.timeout, name, 0);
            return match frame::write_block(block, head) {
                Some(_len) => Ok(()),
                None => Err(Status::internal("a path that is too long")),
            };
        };
        wire::write_request_head(block, name, metadata, self.timeout)
    }

    fn head_sent(&mut self) {
        self.metadata = None;
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
