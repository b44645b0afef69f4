//! Deadlines and cancellation, seen from both ends.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tonic::{Code, Request};

use super::basic::{feed, output, parameters, pattern, payload, send, simple};
use super::check::{During, Failure, Outcome, body, differs, holds, refused, refused_with};
use super::env::tag;
use super::observer::Observer;
use super::{Env, Transport};
use crate::proto::{
    ResponseParameters, SimpleRequest, StreamingInputCallRequest, StreamingOutputCallRequest,
};
use crate::service::{CallState, DELAY_MS, End};

/// How soon the handler of a call that is over must be gone.
const PROMPT: Duration = Duration::from_secs(1);
/// A pause that no case waits for.
const LONG_US: i32 = 60_000_000;

async fn reached<T: Transport>(handle: &Observer<T>, tag: &str) -> Result<CallState, Failure> {
    let state = handle.started(tag, Duration::from_secs(5)).await;
    state.ok_or_else(|| differs("handler", "not reached", "running"))
}

async fn dropped<T: Transport>(handle: &Observer<T>, tag: &str) -> Outcome {
    let end = handle.ended(tag, PROMPT).await;
    if end == Some(End::Dropped) { Ok(()) } else { Err(differs("handler", end, End::Dropped)) }
}

/// A unary request whose handler sleeps for a minute.
fn slow_unary() -> Result<(Request<SimpleRequest>, String), Failure> {
    let mut request = Request::new(simple(&pattern(8, 0), 8));
    request.metadata_mut().insert(DELAY_MS, 60_000.into());
    let tag = tag(&mut request)?;
    Ok((request, tag))
}

/// Asks for one response at once, and another in a minute.
fn slow_stream(size: usize) -> StreamingOutputCallRequest {
    let late = ResponseParameters { interval_us: LONG_US, ..parameters(1) };
    let mut request = output(&pattern(27_182, 2), &[size]);
    request.response_parameters.push(late);
    request
}

pub(super) async fn timeout_on_sleeping_server<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    send(&requests, output(&pattern(27_182, 0), &[])).await?;
    let mut request = Request::new(stream);
    request.set_timeout(Duration::from_millis(1));
    let status = match env.client().full_duplex_call(request).await {
        Err(status) => status,
        Ok(response) => refused("duplex call", response.into_inner().message().await)?,
    };
    env.deadline_status("duplex call", &status)
}

pub(super) async fn deadline_reaches_handler<T: Transport>(env: Env<T>) -> Outcome {
    let limit = Duration::from_millis(300);
    let (mut request, tag) = slow_unary()?;
    request.set_timeout(limit);
    let start = Instant::now();
    let call = env.client().unary_call(request).await;
    let took = start.elapsed();
    env.deadline_status("UnaryCall", &refused("UnaryCall", call)?)?;
    holds("the call lasts as long as its deadline", took >= limit && took < limit * 4, took)?;
    let handle = env.handle();
    let deadline = reached(&handle, &tag).await?.deadline;
    let sensible = deadline.is_some_and(|left| !left.is_zero() && left <= limit);
    holds("the handler knows the deadline", sensible, deadline)?;
    dropped(&handle, &tag).await
}

pub(super) async fn deadline_ends_open_stream<T: Transport>(env: Env<T>) -> Outcome {
    let limit = Duration::from_millis(400);
    let mut request = Request::new(slow_stream(31_415));
    request.set_timeout(limit);
    let tag = tag(&mut request)?;
    let start = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    let mut responses = call.during("StreamingOutputCall")?.into_inner();
    let first = responses.message().await.during("first response")?;
    body("first response", first.unwrap_or_default().payload, 31_415, &pattern(27_182, 2))?;
    let status = refused("second response", responses.message().await)?;
    let took = start.elapsed();
    env.deadline_status("second response", &status)?;
    holds("the call lasts as long as its deadline", took >= limit && took < limit * 4, took)?;
    dropped(&env.handle(), &tag).await
}

/// Cancels through tonic's handle, which fails the request body.
pub(super) async fn cancel_after_begin<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed::<StreamingInputCallRequest>();
    let mut request = Request::new(stream);
    let tag = tag(&mut request)?;
    let cancel = request.cancellation_handle();
    let mut client = env.client();
    let call = tokio::spawn(async move { client.streaming_input_call(request).await });
    let handle = env.handle();
    reached(&handle, &tag).await?;
    cancel.cancel();
    let ended = timeout(PROMPT, call).await;
    let result = match ended {
        Ok(Ok(result)) => result,
        other => return Err(differs("the call ends within a second", other, "a status")),
    };
    refused_with("StreamingInputCall", result, Code::Cancelled)?;
    // tonic shows a cancelled request stream to its handler as one that ended well, so the
    // handler may have finished before it could be dropped.
    let end = handle.ended(&tag, PROMPT).await;
    drop(requests);
    holds("the handler is gone", end.is_some(), end)
}

pub(super) async fn cancel_after_first_response<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let mut request = Request::new(stream);
    let tag = tag(&mut request)?;
    let cancel = request.cancellation_handle();
    send(&requests, slow_stream(31_415)).await?;
    let call = env.client().full_duplex_call(request).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    let first = responses.message().await.during("first response")?;
    body("first response", first.unwrap_or_default().payload, 31_415, &pattern(27_182, 2))?;
    let handle = env.handle();
    holds("the handler runs on", reached(&handle, &tag).await?.end.is_none(), "its end")?;
    cancel.cancel();
    let ended = timeout(PROMPT, responses.message()).await;
    let ended = ended.map_err(|_| differs("cancelled call", "still open", "ended"))?;
    refused_with("second response", ended, Code::Cancelled)?;
    dropped(&handle, &tag).await?;
    // The request stream must be let go as well, or its producer would wait for ever.
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

pub(super) async fn dropped_unary_stops_handler<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = slow_unary()?;
    let mut client = env.client();
    let call = tokio::spawn(async move { client.unary_call(request).await });
    let handle = env.handle();
    let state = reached(&handle, &tag).await?;
    holds("no deadline was sent", state.deadline.is_none(), state)?;
    call.abort();
    dropped(&handle, &tag).await
}

pub(super) async fn dropped_stream_stops_handler<T: Transport>(env: Env<T>) -> Outcome {
    let mut request = Request::new(slow_stream(9));
    let first = tag(&mut request)?;
    let call = env.client().streaming_output_call(request).await;
    let mut responses = call.during("StreamingOutputCall")?.into_inner();
    responses.message().await.during("first response")?;
    drop(responses);
    dropped(&env.handle(), &first).await?;

    // With HTTP/2, tonic keeps a duplex call alive until both its streams are dropped.
    let (requests, stream) = feed();
    let mut request = Request::new(stream);
    let second = tag(&mut request)?;
    send(&requests, slow_stream(9)).await?;
    let call = env.client().full_duplex_call(request).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    responses.message().await.during("first response")?;
    drop((requests, responses));
    dropped(&env.handle(), &second).await
}

pub(super) async fn dropped_upload_stops_handler<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let mut request = Request::new(stream);
    let tag = tag(&mut request)?;
    let mut client = env.client();
    let call = tokio::spawn(async move { client.streaming_input_call(request).await });
    let part = StreamingInputCallRequest { payload: payload(&pattern(9, 0)), ..Default::default() };
    send(&requests, part).await?;
    reached(&env.handle(), &tag).await?;
    call.abort();
    let end = env.handle().ended(&tag, PROMPT).await;
    holds("the handler is gone", end.is_some(), end)
}
