//! Deadlines of calls of every shape, wherever the call stands when its deadline passes. The
//! handlers do not look at the deadline themselves: whoever carries the call ends it.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};

use super::basic::{feed, output, parameters, pattern, payload, send, simple};
use super::check::{Failure, Outcome, differs, holds, refused};
use super::env::tag;
use super::{Env, Transport};
use crate::proto::{
    Payload, ResponseParameters, StreamingInputCallRequest, StreamingOutputCallRequest,
};
use crate::service::{DELAY_MS, NO_DEADLINE};

const LIMIT: Duration = Duration::from_millis(250);
/// How much later than its deadline a call may end on a busy machine. A call that nobody ends takes
/// a minute.
const LATE: Duration = Duration::from_secs(1);
/// How soon afterwards its handler must be gone.
const PROMPT: Duration = Duration::from_secs(1);

/// A request with a deadline, whose handler knows nothing of that.
fn limited<M>(message: M) -> Result<(Request<M>, String), Failure> {
    let mut request = Request::new(message);
    request.set_timeout(LIMIT);
    request.metadata_mut().insert(NO_DEADLINE, 1.into());
    let tag = tag(&mut request)?;
    Ok((request, tag))
}

/// As [`limited`], and the handler waits for a minute before it answers.
fn waiting<M>(message: M) -> Result<(Request<M>, String), Failure> {
    let (mut request, tag) = limited(message)?;
    request.metadata_mut().insert(DELAY_MS, 60_000.into());
    Ok((request, tag))
}

/// Asks for `now` responses at once, and one in a minute.
fn late(now: usize) -> StreamingOutputCallRequest {
    let mut request = output(&pattern(10, 0), &vec![100; now]);
    let late = ResponseParameters { interval_us: 60_000_000, ..parameters(1) };
    request.response_parameters.push(late);
    request
}

fn part() -> StreamingInputCallRequest {
    let payload = payload(&pattern(9, 0));
    StreamingInputCallRequest { payload, ..Default::default() }
}

/// Holds if the call ended by its deadline, in time, and its handler is gone.
async fn ended<T: Transport>(
    env: &Env<T>,
    begun: Instant,
    tag: &str,
    status: Result<Status, Failure>,
) -> Outcome {
    let took = begun.elapsed();
    env.deadline_status("status", &status?)?;
    let in_time = took >= LIMIT && took < LIMIT + LATE;
    holds("the call lasts as long as its deadline", in_time, took)?;
    let end = env.handle().ended(tag, PROMPT).await;
    holds("the handler is gone", end.is_some(), end)
}

/// Reads to the end: `some` messages, and the status.
async fn read<M>(
    call: Result<Response<Streaming<M>>, Status>,
    some: usize,
) -> Result<Status, Failure> {
    let mut responses = match call {
        Err(status) if some == 0 => return Ok(status),
        Err(status) => return Err(Failure::Call { what: "call", status }),
        Ok(response) => response.into_inner(),
    };
    let mut read = 0;
    loop {
        match responses.message().await {
            Ok(Some(_)) => read += 1,
            Ok(None) => return Err(differs("end of responses", "OK", Code::DeadlineExceeded)),
            Err(status) if read == some => return Ok(status),
            Err(_) => return Err(differs("responses", read, some)),
        }
    }
}

pub(super) async fn unary_while_the_handler_waits<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = waiting(simple(&pattern(8, 0), 8))?;
    let begun = Instant::now();
    let call = env.client().unary_call(request).await;
    ended(&env, begun, &tag, refused("UnaryCall", call)).await
}

pub(super) async fn client_stream_that_stalls<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = limited(stream)?;
    send(&requests, part()).await?;
    let begun = Instant::now();
    let call = env.client().streaming_input_call(request).await;
    ended(&env, begun, &tag, refused("StreamingInputCall", call)).await?;
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

pub(super) async fn client_stream_that_goes_on<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = limited(stream)?;
    let begun = Instant::now();
    let mut client = env.client();
    let call = tokio::spawn(async move { client.streaming_input_call(request).await });
    while requests.send(part()).await.is_ok() && begun.elapsed() < LIMIT + LATE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let call = call.await.map_err(|e| differs("call", e, "done"))?;
    ended(&env, begun, &tag, refused("StreamingInputCall", call)).await
}

pub(super) async fn client_stream_while_the_handler_waits<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = waiting(tokio_stream::iter([part(), part()]))?;
    let begun = Instant::now();
    let call = env.client().streaming_input_call(request).await;
    ended(&env, begun, &tag, refused("StreamingInputCall", call)).await
}

pub(super) async fn server_stream_before_its_head<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = waiting(late(0))?;
    let begun = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    ended(&env, begun, &tag, read(call, 0).await).await
}

pub(super) async fn server_stream_before_its_first_message<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = limited(late(0))?;
    let begun = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    ended(&env, begun, &tag, read(call, 0).await).await
}

pub(super) async fn server_stream_after_some_messages<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = limited(late(3))?;
    let begun = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    ended(&env, begun, &tag, read(call, 3).await).await
}

pub(super) async fn server_stream_that_goes_on<T: Transport>(env: Env<T>) -> Outcome {
    let mut message = output(&pattern(10, 0), &[100; 5_000]);
    for wanted in &mut message.response_parameters {
        wanted.interval_us = 3_000;
    }
    let (request, tag) = limited(message)?;
    let begun = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    let mut responses = call.map_err(|status| Failure::Call { what: "call", status })?.into_inner();
    let mut some = 0;
    let status = loop {
        match responses.message().await {
            Ok(Some(_)) => some += 1,
            Ok(None) => return Err(differs("end", "OK", Code::DeadlineExceeded)),
            Err(status) => break status,
        }
    };
    holds("responses come until then", some > 0, some)?;
    ended(&env, begun, &tag, Ok(status)).await
}

/// The reader does something else when the deadline passes.
pub(super) async fn server_stream_that_nobody_reads<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = limited(late(1))?;
    let call = env.client().streaming_output_call(request).await;
    tokio::time::sleep(LIMIT * 2).await;
    let end = env.handle().ended(&tag, PROMPT).await;
    holds("the handler is gone", end.is_some(), end)?;
    env.deadline_status("status", &read(call, 1).await?)
}

pub(super) async fn duplex_before_its_head<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = waiting(stream)?;
    let begun = Instant::now();
    let call = env.client().full_duplex_call(request).await;
    ended(&env, begun, &tag, read(call, 0).await).await?;
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

pub(super) async fn duplex_that_nobody_feeds<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = limited(stream)?;
    let begun = Instant::now();
    let call = env.client().full_duplex_call(request).await;
    ended(&env, begun, &tag, read(call, 0).await).await?;
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

pub(super) async fn duplex_after_some_messages<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = limited(stream)?;
    let begun = Instant::now();
    send(&requests, late(2)).await?;
    let call = env.client().full_duplex_call(request).await;
    ended(&env, begun, &tag, read(call, 2).await).await?;
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

pub(super) async fn duplex_whose_requests_have_ended<T: Transport>(env: Env<T>) -> Outcome {
    let (request, tag) = limited(tokio_stream::iter([late(2)]))?;
    let begun = Instant::now();
    let call = env.client().full_duplex_call(request).await;
    ended(&env, begun, &tag, read(call, 2).await).await
}

pub(super) async fn half_duplex_that_stays_open<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let (request, tag) = limited(stream)?;
    let begun = Instant::now();
    send(&requests, late(2)).await?;
    let call = env.client().half_duplex_call(request).await;
    ended(&env, begun, &tag, read(call, 0).await).await?;
    let released = timeout(PROMPT, requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)
}

/// A deadline that has passed before anything is sent.
pub(super) async fn deadlines_that_have_passed<T: Transport>(env: Env<T>) -> Outcome {
    for limit in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(900)] {
        let mut request = Request::new(simple(&pattern(8, 0), 8));
        request.set_timeout(limit);
        request.metadata_mut().insert(DELAY_MS, 1_000.into());
        let begun = Instant::now();
        let call = env.client().unary_call(request).await;
        env.deadline_status("UnaryCall", &refused("UnaryCall", call)?)?;
        holds("at once", begun.elapsed() < LATE, begun.elapsed())?;
        let mut request = Request::new(late(1));
        request.set_timeout(limit);
        let call = env.client().streaming_output_call(request).await;
        let status = match call {
            Err(status) => status,
            Ok(response) => {
                let mut responses = response.into_inner();
                match responses.message().await {
                    Ok(_) => refused("second response", responses.message().await)?,
                    Err(status) => status,
                }
            }
        };
        env.deadline_status("StreamingOutputCall", &status)?;
    }
    Ok(())
}

/// A deadline that is far away changes nothing.
pub(super) async fn deadlines_that_are_far<T: Transport>(env: Env<T>) -> Outcome {
    let hours = Duration::from_secs(99_999_999 * 3600);
    for limit in [Duration::from_secs(5), Duration::from_secs(1 << 20), hours] {
        let mut request = Request::new(simple(&pattern(8, 0), 8));
        request.set_timeout(limit);
        let call = env.client().unary_call(request).await;
        let call = call.map_err(|status| Failure::Call { what: "UnaryCall", status })?;
        let body = call.into_inner().payload.unwrap_or_else(Payload::default).body;
        holds("the answer is whole", body.len() == 8, body.len())?;
    }
    Ok(())
}
