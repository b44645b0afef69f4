//! Message limits, many calls at once, and calls by the dozen.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::basic::{LARGE_REQUEST, LARGE_RESPONSE, feed, output, pattern, payload, send, simple};
use super::check::{During, Outcome, body, differs, holds, refused_with, same};
use super::client::Client;
use super::{Env, Transport};
use crate::proto::{Empty, SimpleRequest, SimpleResponse};

/// tonic's limit for messages it decodes, unless told otherwise.
const DEFAULT_LIMIT: usize = 4 * 1024 * 1024;

/// Holds if tonic refused to decode a message of `found` bytes.
fn too_large(
    what: &'static str,
    result: Result<(), Status>,
    found: usize,
    limit: usize,
) -> Outcome {
    let status = refused_with(what, result, Code::OutOfRange)?;
    let want = format!("found {found} bytes, the limit is: {limit} bytes");
    holds("the message names both sizes", status.message().ends_with(&want), (status, want))
}

pub(super) async fn decode_limit<T: Transport>(env: Env<T>) -> Outcome {
    let sent = pattern(10, 0);
    let response = SimpleResponse {
        payload: payload(&Bytes::from(vec![0; 4_096])),
        ..SimpleResponse::default()
    };
    let found = response.encoded_len();
    let mut strict = env.client().max_decoding_message_size(found - 1);
    let call = strict.unary_call(simple(&sent, 4_096)).await.map(drop);
    too_large("one byte too long", call, found, found - 1)?;
    let mut exact = env.client().max_decoding_message_size(found);
    let response = exact.unary_call(simple(&sent, 4_096)).await.during("at the limit")?;
    body("at the limit", response.into_inner().payload, 4_096, &sent)?;

    // In a stream, the messages before the long one still arrive.
    let mut strict = env.client().max_decoding_message_size(1_024);
    let call = strict.streaming_output_call(output(&sent, &[100, 4_096, 100])).await;
    let mut responses = call.during("StreamingOutputCall")?.into_inner();
    let first = responses.message().await.during("first response")?;
    body("first response", first.unwrap_or_default().payload, 100, &sent)?;
    let second = responses.message().await.map(drop);
    refused_with("second response", second, Code::OutOfRange).map(drop)
}

pub(super) async fn default_limit_on_requests<T: Transport>(env: Env<T>) -> Outcome {
    let sized = |len: usize| {
        let request = |body| SimpleRequest { payload: payload(&body), ..SimpleRequest::default() };
        let extra = request(Bytes::from(vec![0; len])).encoded_len() - len;
        request(pattern(len - extra, 0))
    };
    let exact = sized(DEFAULT_LIMIT);
    same("encoded length", exact.encoded_len(), DEFAULT_LIMIT)?;
    env.client().unary_call(exact).await.during("at the limit")?;
    let over = sized(DEFAULT_LIMIT + 1);
    let found = over.encoded_len();
    let call = env.client().unary_call(over).await.map(drop);
    too_large("one byte too long", call, found, DEFAULT_LIMIT)?;
    env.client().empty_call(Empty {}).await.during("the next call").map(drop)
}

pub(super) async fn default_limit_on_responses<T: Transport>(env: Env<T>) -> Outcome {
    let sent = pattern(1_000, 0);
    let encoded = |len: usize| {
        let payload = payload(&Bytes::from(vec![0; len]));
        SimpleResponse { payload, ..SimpleResponse::default() }.encoded_len()
    };
    let len = 2 * DEFAULT_LIMIT - encoded(DEFAULT_LIMIT);
    same("encoded length", encoded(len), DEFAULT_LIMIT)?;
    let response = env.client().unary_call(simple(&sent, len)).await.during("at the limit")?;
    body("at the limit", response.into_inner().payload, len, &sent)?;
    let call = env.client().unary_call(simple(&sent, len + 1)).await.map(drop);
    too_large("one byte too long", call, DEFAULT_LIMIT + 1, DEFAULT_LIMIT)?;
    env.client().empty_call(Empty {}).await.during("the next call").map(drop)
}

pub(super) async fn concurrent_calls<T: Transport>(env: Env<T>) -> Outcome {
    let mut calls = JoinSet::new();
    for n in 0..CALLS as usize {
        let mut client = env.client();
        calls.spawn(async move {
            let sent = pattern(1 + n * 613, n);
            let size = 1 + (100 - n) * 977;
            let response = client.unary_call(simple(&sent, size)).await.during("UnaryCall")?;
            body("response", response.into_inner().payload, size, &sent)
        });
    }
    let mut done = 0_u64;
    while let Some(result) = calls.join_next().await {
        result.map_err(|error| differs("call", error, "done"))??;
        done += 1;
    }
    same("calls", done, CALLS)
}

/// All streams are open before the first is used.
pub(super) async fn concurrent_streams<T: Transport>(env: Env<T>) -> Outcome {
    let mut open = Vec::new();
    for _ in 0..100 {
        let (requests, stream) = feed();
        let call = env.client().full_duplex_call(stream).await;
        open.push((requests, call.during("FullDuplexCall")?.into_inner()));
    }
    for round in 0..3 {
        for (n, (requests, _)) in open.iter().enumerate() {
            let sent = pattern(1 + n * 31, n + round);
            send(requests, output(&sent, &[500 + n])).await?;
        }
        for (n, (_, responses)) in open.iter_mut().enumerate() {
            let message = responses.message().await.during("response")?;
            let payload = message.unwrap_or_default().payload;
            body("response", payload, 500 + n, &pattern(1 + n * 31, n + round))?;
        }
    }
    for (requests, mut responses) in open {
        drop(requests);
        same("end of responses", responses.message().await.during("end")?, None)?;
    }
    Ok(())
}

/// Calls of [`rpc_soak`].
pub(super) const RPCS: u64 = 100;
/// Calls at once.
pub(super) const CALLS: u64 = 100;
/// Calls of [`channel_soak`], each on a channel of its own.
pub(super) const CHANNELS: u64 = 50;

async fn soak_once<T: Transport>(mut client: Client<T>, n: usize) -> Outcome {
    let sent = pattern(LARGE_REQUEST, n);
    let start = Instant::now();
    let response = client.unary_call(simple(&sent, LARGE_RESPONSE)).await.during("UnaryCall")?;
    let took = start.elapsed();
    body("response", response.into_inner().payload, LARGE_RESPONSE, &sent)?;
    holds("the call takes less than a second", took < Duration::from_secs(1), (n, took))
}

pub(super) async fn rpc_soak<T: Transport>(env: Env<T>) -> Outcome {
    for n in 0..RPCS as usize {
        soak_once(env.client(), n).await?;
    }
    Ok(())
}

pub(super) async fn channel_soak<T: Transport>(env: Env<T>) -> Outcome {
    for n in 0..CHANNELS as usize {
        let channel = env.connect().await?;
        soak_once(env.client_of(channel), n).await?;
    }
    Ok(())
}
