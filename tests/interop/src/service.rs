//! The server side: `grpc.testing.TestService` and the layers it needs.
//!
//! Beyond what gRPC's descriptions ask for, the service repeats the request's payload in its
//! response bodies, so that a client can check content as well as length; a request payload of
//! zeros, or none, gives zeros. The headers [`CALL_TAG`], [`DELAY_MS`] and [`DETAILS`] drive this
//! crate's own cases.

mod echo;
mod flags;
mod handle;
mod native;
mod probe;
mod producer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};
use tower::Layer;

pub use self::producer::Producer;
use crate::proto::test_service_server::{TestService as TestServiceApi, TestServiceServer};
use crate::proto::{
    BoolValue, EchoStatus, Empty, Payload, PayloadType, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse,
};

pub use self::echo::{EchoHeaders, Echoed};
pub use self::flags::{Flagged, RequestFlags};
pub use self::handle::{CallState, End, Handle};
pub use self::native::native;
pub(crate) use self::probe::state;
pub use self::probe::{DEADLINE, FindDeadline, PROBE, Probe, Probed, SEEN};

/// Request header that comes back as initial metadata.
pub const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
/// Request header that comes back as trailing metadata.
pub const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";
/// Request header that names a call, to find it again through a [`Handle`].
pub const CALL_TAG: &str = "x-interop-tag";
/// Request header that makes a handler wait this many milliseconds before it answers.
pub const DELAY_MS: &str = "x-interop-delay-ms";
/// Request header that keeps the service's streams from ending themselves at the deadline.
pub const NO_DEADLINE: &str = "x-interop-no-deadline";
/// Request header whose bytes become the details of an echoed status.
pub const DETAILS: &str = "x-interop-details-bin";

/// The server with its own layers.
pub type Mounted = Echoed<Flagged<TestServiceServer<TestService>>>;

/// The service by itself. It needs [`EchoHeaders`] around it for the metadata cases.
pub fn test_service() -> TestServiceServer<TestService> {
    test_service_with(Handle::default())
}

/// The service by itself, reporting to `handle`.
pub fn test_service_with(handle: Handle) -> TestServiceServer<TestService> {
    let mut server = TestServiceServer::new(TestService { handle });
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        server = server.accept_compressed(encoding).send_compressed(encoding);
    }
    server
}

/// The service with [`EchoHeaders`] and [`RequestFlags`] around it, reporting to `handle`.
pub fn mounted(handle: Handle) -> Mounted {
    EchoHeaders.layer(RequestFlags.layer(test_service_with(handle)))
}

/// As [`mounted`], and answers to [`PROBE`]; `deadline` finds the deadline that the transport tells.
pub fn probed(handle: Handle, deadline: FindDeadline) -> Probed<Mounted> {
    Probed::new(mounted(handle.clone()), Probe::new(handle, deadline))
}

/// The handlers.
#[derive(Clone, Debug, Default)]
pub struct TestService {
    handle: Handle,
}

impl TestService {
    /// A service that reports its calls to `handle`.
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Waits before a stream's head if that is asked for, as a handler of its own.
    async fn wait(&self, metadata: &MetadataMap) -> Result<(), Status> {
        if let Some(delay) = delay(metadata)? {
            let call = self.handle.begin(metadata);
            sleep(delay).await;
            call.finish();
        }
        Ok(())
    }

    fn stream<F, Fut>(&self, metadata: &MetadataMap, body: F) -> Response<Responses>
    where
        F: FnOnce(mpsc::Sender<StreamingOutputCallResponse>) -> Fut,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let call = self.handle.begin(metadata);
        let own = !metadata.contains_key(NO_DEADLINE);
        let left = own.then(|| handle::deadline(metadata)).flatten();
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        Response::new(Producer::new(deadline, call, body))
    }
}

type Responses = Producer<StreamingOutputCallResponse>;

#[tonic::async_trait]
impl TestServiceApi for TestService {
    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.handle.begin(request.metadata()).finish();
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let call = self.handle.begin(request.metadata());
        self.handle.first(&request).await?;
        if let Some(delay) = delay(request.metadata())? {
            sleep(delay).await;
        }
        call.finish();
        let compressed = flags::next_compressed(&flags::source(&request));
        expect_compression(compressed, request.get_ref().expect_compressed)?;
        refuse(request.get_ref().response_status.as_ref(), request.metadata())?;
        let message = request.into_inner();
        let body = payload(message.response_type, message.response_size, &message.payload)?;
        let server_id =
            if message.fill_server_id { std::process::id().to_string() } else { String::new() };
        let mut response = Response::new(SimpleResponse {
            payload: Some(body),
            server_id,
            ..SimpleResponse::default()
        });
        if !message.response_compressed.is_some_and(|b| b.value) {
            response.disable_compression();
        }
        Ok(response)
    }

    async fn cacheable_unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        self.handle.begin(request.metadata()).finish();
        let body = Bytes::from(time_stamp().to_string());
        let payload = Payload { r#type: PayloadType::Compressable.into(), body };
        let mut response =
            Response::new(SimpleResponse { payload: Some(payload), ..SimpleResponse::default() });
        let policy = MetadataValue::from_static("max-age=60, public");
        response.metadata_mut().insert("cache-control", policy);
        Ok(response)
    }

    type StreamingOutputCallStream = Responses;

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Responses>, Status> {
        refuse(request.get_ref().response_status.as_ref(), request.metadata())?;
        self.wait(request.metadata()).await?;
        let peer = peer(&request);
        let (metadata, _, message) = request.into_parts();
        Ok(self.stream(&metadata, |out| async move { answer(message, &peer, &out).await }))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let call = self.handle.begin(request.metadata());
        let source = flags::source(&request);
        let delay = delay(request.metadata())?;
        let mut input = request.into_inner();
        let mut sum = 0;
        let read = loop {
            match input.message().await {
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
                Ok(Some(message)) => {
                    let compressed = flags::next_compressed(&source);
                    if let Err(status) = expect_compression(compressed, message.expect_compressed) {
                        break Err(status);
                    }
                    sum += message.payload.map_or(0, |p| p.body.len());
                }
            }
        };
        if let Some(delay) = delay {
            sleep(delay).await;
        }
        call.finish();
        read?;
        let aggregated_payload_size = i32::try_from(sum)
            .map_err(|_| Status::out_of_range(format!("{sum} bytes do not fit in 32 bits")))?;
        Ok(Response::new(StreamingInputCallResponse { aggregated_payload_size }))
    }

    type FullDuplexCallStream = Responses;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Responses>, Status> {
        self.wait(request.metadata()).await?;
        let peer = peer(&request);
        let (metadata, _, mut input) = request.into_parts();
        let headers = metadata.clone();
        Ok(self.stream(&metadata, |out| async move {
            while let Some(message) = input.message().await? {
                refuse(message.response_status.as_ref(), &headers)?;
                answer(message, &peer, &out).await?;
            }
            Ok(())
        }))
    }

    type HalfDuplexCallStream = Responses;

    async fn half_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Responses>, Status> {
        self.wait(request.metadata()).await?;
        let peer = peer(&request);
        let (metadata, _, mut input) = request.into_parts();
        let headers = metadata.clone();
        Ok(self.stream(&metadata, |out| async move {
            let mut held = Vec::new();
            while let Some(message) = input.message().await? {
                held.push(message);
            }
            for message in held {
                refuse(message.response_status.as_ref(), &headers)?;
                answer(message, &peer, &out).await?;
            }
            Ok(())
        }))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented("UnimplementedCall is not implemented"))
    }
}

/// Sends one response for each parameter of `request`.
async fn answer(
    request: StreamingOutputCallRequest,
    peer: &str,
    out: &mpsc::Sender<StreamingOutputCallResponse>,
) -> Result<(), Status> {
    for wanted in &request.response_parameters {
        if let Ok(pause @ 1..) = u64::try_from(wanted.interval_us) {
            sleep(Duration::from_micros(pause)).await;
        }
        let payload = payload(request.response_type, wanted.size, &request.payload)?;
        let named = wanted.fill_peer_socket_address.is_some_and(|b| b.value);
        let peer_socket_address = if named { peer.to_owned() } else { String::new() };
        let response = StreamingOutputCallResponse { payload: Some(payload), peer_socket_address };
        out.send(response).await.map_err(|_| Status::cancelled("the response was dropped"))?;
    }
    Ok(())
}

/// Fails with the status asked for, if one is.
fn refuse(wanted: Option<&EchoStatus>, metadata: &MetadataMap) -> Result<(), Status> {
    let Some(EchoStatus { code: code @ 1.., message }) = wanted else { return Ok(()) };
    let details = match metadata.get_bin(DETAILS) {
        Some(value) => value
            .to_bytes()
            .map_err(|_| Status::invalid_argument(format!("{DETAILS} is not base64")))?,
        None => Bytes::new(),
    };
    Err(Status::with_details(Code::from_i32(*code), message.clone(), details))
}

/// Fails if the sender expected other compression than the message had.
fn expect_compression(compressed: bool, expected: Option<BoolValue>) -> Result<(), Status> {
    match expected {
        Some(BoolValue { value }) if value != compressed => Err(Status::invalid_argument(format!(
            "message expected with compressed={value}, received with compressed={compressed}"
        ))),
        _ => Ok(()),
    }
}

fn payload(kind: i32, size: i32, pattern: &Option<Payload>) -> Result<Payload, Status> {
    if PayloadType::try_from(kind).is_err() {
        return Err(Status::invalid_argument(format!("unknown payload type {kind}")));
    }
    let size = usize::try_from(size)
        .map_err(|_| Status::invalid_argument(format!("response of {size} bytes asked for")))?;
    let body = match pattern {
        Some(sent) if !sent.body.is_empty() => repeat(&sent.body, size),
        _ => Bytes::from(vec![0; size]),
    };
    Ok(Payload { r#type: kind, body })
}

/// `pattern`, repeated and cut to `size`.
pub fn repeat(pattern: &Bytes, size: usize) -> Bytes {
    if pattern.len() >= size {
        return pattern.slice(..size);
    }
    let mut body = BytesMut::with_capacity(size);
    while body.len() < size {
        let step = pattern.len().min(size - body.len());
        body.extend_from_slice(&pattern[..step]);
    }
    body.freeze()
}

fn delay(metadata: &MetadataMap) -> Result<Option<Duration>, Status> {
    let Some(value) = metadata.get(DELAY_MS) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let millis = number
        .ok_or_else(|| Status::invalid_argument(format!("{DELAY_MS} is not a whole number")))?;
    Ok(Some(Duration::from_millis(millis)))
}

fn peer<M>(request: &Request<M>) -> String {
    request.remote_addr().map(|addr| addr.to_string()).unwrap_or_default()
}

/// Nanoseconds since the epoch, and never the same number twice.
fn time_stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let next = |last: u64| now.max(last.saturating_add(1));
    match LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))) {
        Ok(last) | Err(last) => next(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_repeated_and_cut() {
        let pattern = Bytes::from_static(b"abc");
        assert_eq!(repeat(&pattern, 0), "");
        assert_eq!(repeat(&pattern, 2), "ab");
        assert_eq!(repeat(&pattern, 8), "abcabcab");
    }

    #[test]
    fn payloads_follow_the_request() {
        let sent = Some(Payload { r#type: 0, body: Bytes::from_static(b"xy") });
        assert_eq!(payload(0, 3, &sent).unwrap().body, "xyx");
        assert_eq!(payload(0, 2, &None).unwrap().body, &[0u8; 2][..]);
        assert_eq!(payload(0, -1, &None).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(payload(7, 1, &None).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn time_stamps_increase() {
        let stamps: Vec<_> = (0..100).map(|_| time_stamp()).collect();
        assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    }
}
