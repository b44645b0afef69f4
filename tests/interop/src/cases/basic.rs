//! The plain calls of each kind.

use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::check::{During, Failure, Outcome, body, differs, holds, refused_with, same};
use super::{Env, Stubs, Transport};
use crate::proto::native::unimplemented_service_client as native;
use crate::proto::unimplemented_service_client::UnimplementedServiceClient;
use crate::proto::{
    Empty, Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest,
};
use crate::service::repeat;

pub(super) const LARGE_REQUEST: usize = 271_828;
pub(super) const LARGE_RESPONSE: usize = 314_159;
pub(super) const REQUESTS: [usize; 4] = [27_182, 8, 1_828, 45_904];
pub(super) const RESPONSES: [usize; 4] = [31_415, 9, 2_653, 58_979];

/// `size` bytes with a period of 251, so that no lost or doubled block of a usual size goes
/// unnoticed; `seed` shifts them.
pub(super) fn pattern(size: usize, seed: usize) -> Bytes {
    let period: Bytes = (0..251).map(|n| ((n + seed) % 251) as u8).collect();
    repeat(&period, size)
}

pub(super) fn payload(body: &Bytes) -> Option<Payload> {
    Some(Payload { body: body.clone(), ..Payload::default() })
}

pub(super) fn simple(sent: &Bytes, response_size: usize) -> SimpleRequest {
    let response_size = i32::try_from(response_size).unwrap_or(i32::MAX);
    SimpleRequest { response_size, payload: payload(sent), ..SimpleRequest::default() }
}

pub(super) fn parameters(size: usize) -> ResponseParameters {
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    ResponseParameters { size, ..ResponseParameters::default() }
}

pub(super) fn output(sent: &Bytes, sizes: &[usize]) -> StreamingOutputCallRequest {
    StreamingOutputCallRequest {
        response_parameters: sizes.iter().copied().map(parameters).collect(),
        payload: payload(sent),
        ..StreamingOutputCallRequest::default()
    }
}

/// A request stream fed by hand; dropping the sender half-closes the call.
pub(super) fn feed<M>() -> (mpsc::Sender<M>, ReceiverStream<M>) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, ReceiverStream::new(receiver))
}

pub(super) async fn send<M: Send>(sender: &mpsc::Sender<M>, message: M) -> Outcome {
    sender.send(message).await.map_err(|_| differs("request stream", "closed", "open"))
}

pub(super) async fn empty_unary<T: Transport>(env: Env<T>) -> Outcome {
    let response = env.client().empty_call(Empty {}).await.during("EmptyCall")?;
    same("response", response.into_inner(), Empty {})
}

pub(super) async fn large_unary<T: Transport>(env: Env<T>) -> Outcome {
    for sent in [Bytes::from(vec![0; LARGE_REQUEST]), pattern(LARGE_REQUEST, 0)] {
        let request = simple(&sent, LARGE_RESPONSE);
        let response = env.client().unary_call(request).await.during("UnaryCall")?;
        body("response", response.into_inner().payload, LARGE_RESPONSE, &sent)?;
    }
    Ok(())
}

pub(super) async fn cacheable_unary<T: Transport>(env: Env<T>) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let call = env.client().cacheable_unary_call(SimpleRequest::default()).await;
        let response = call.during("CacheableUnaryCall")?;
        let policy = response.metadata().get("cache-control").cloned();
        let policy = policy.ok_or_else(|| differs("cache-control", "nothing", "a policy"))?;
        same("cache-control", policy, "max-age=60, public")?;
        seen.push(response.into_inner().payload.unwrap_or_default().body);
    }
    let digits = seen.iter().all(|s| !s.is_empty() && s.iter().all(u8::is_ascii_digit));
    if digits && seen[0] != seen[1] {
        return Ok(());
    }
    Err(differs("time stamps", seen, "two different numbers"))
}

pub(super) async fn client_streaming<T: Transport>(env: Env<T>) -> Outcome {
    let requests = REQUESTS.map(|size| StreamingInputCallRequest {
        payload: payload(&pattern(size, 0)),
        expect_compressed: None,
    });
    let stream = tokio_stream::iter(requests);
    let call = env.client().streaming_input_call(stream).await;
    let response = call.during("StreamingInputCall")?.into_inner();
    same("sum", response.aggregated_payload_size, 74_922)
}

pub(super) async fn server_streaming<T: Transport>(env: Env<T>) -> Outcome {
    let sent = pattern(100, 7);
    let call = env.client().streaming_output_call(output(&sent, &RESPONSES)).await;
    let mut responses = call.during("StreamingOutputCall")?.into_inner();
    for size in RESPONSES {
        let message = responses.message().await.during("response")?;
        body("response", message.unwrap_or_default().payload, size, &sent)?;
    }
    same("end of responses", responses.message().await.during("end")?, None)
}

pub(super) async fn ping_pong<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let call = env.client().full_duplex_call(stream).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    for (n, (ask, answer)) in REQUESTS.into_iter().zip(RESPONSES).enumerate() {
        let sent = pattern(ask, n);
        send(&requests, output(&sent, &[answer])).await?;
        let message = responses.message().await.during("response")?;
        body("response", message.unwrap_or_default().payload, answer, &sent)?;
    }
    drop(requests);
    same("end of responses", responses.message().await.during("end")?, None)
}

pub(super) async fn empty_stream<T: Transport>(env: Env<T>) -> Outcome {
    let call = env.client().full_duplex_call(tokio_stream::empty()).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    same("responses", responses.message().await.during("end")?, None)
}

/// All calls of a channel go to one server, and only those that ask are told which.
pub(super) async fn pick_first_unary<T: Transport>(env: Env<T>) -> Outcome {
    let mut first = None;
    for _ in 0..100 {
        let request = SimpleRequest { fill_server_id: true, ..simple(&pattern(1, 0), 1) };
        let response = env.client().unary_call(request).await.during("UnaryCall")?;
        let id = response.into_inner().server_id;
        holds("the server names itself", !id.is_empty(), &id)?;
        let first = first.get_or_insert_with(|| id.clone());
        same("server", &id, &*first)?;
    }
    let call = env.client().unary_call(SimpleRequest::default()).await;
    same("server", call.during("UnaryCall")?.into_inner().server_id, "")
}

pub(super) async fn unimplemented_method<T: Transport>(env: Env<T>) -> Outcome {
    let declared = env.client().unimplemented_call(Empty {}).await;
    refused_with("declared method", declared, Code::Unimplemented)?;
    let undeclared = call_path(env, "/grpc.testing.TestService/NoSuchMethod").await?;
    refused_with("undeclared method", undeclared, Code::Unimplemented).map(drop)
}

pub(super) async fn unimplemented_service<T: Transport>(env: Env<T>) -> Outcome {
    let channel = env.channel();
    let result = match env.stubs() {
        Stubs::Tonics => {
            UnimplementedServiceClient::new(channel).unimplemented_call(Empty {}).await
        }
        Stubs::Native => {
            native::UnimplementedServiceClient::new(channel).unimplemented_call(Empty {}).await
        }
    };
    refused_with("UnimplementedCall", result, Code::Unimplemented).map(drop)
}

async fn call_path<T: Transport>(
    env: Env<T>,
    path: &'static str,
) -> Result<Result<tonic::Response<Empty>, tonic::Status>, Failure> {
    let mut grpc = Grpc::new(env.channel());
    grpc.ready().await.map_err(|error| Failure::Connect { source: error.into() })?;
    let codec = ProstCodec::<Empty, Empty>::default();
    Ok(grpc.unary(Request::new(Empty {}), PathAndQuery::from_static(path), codec).await)
}
