//! Order and timing within streams.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::basic::{feed, output, parameters, pattern, send};
use super::check::{During, Outcome, body, differs, holds, same};
use super::{Env, Transport};
use crate::proto::{ResponseParameters, StreamingOutputCallRequest};

pub(super) async fn response_intervals<T: Transport>(env: Env<T>) -> Outcome {
    let pause = Duration::from_millis(60);
    let slow = ResponseParameters { interval_us: 60_000, ..parameters(10) };
    let request = StreamingOutputCallRequest {
        response_parameters: vec![slow; 4],
        ..StreamingOutputCallRequest::default()
    };
    let start = Instant::now();
    let call = env.client().streaming_output_call(request).await;
    let mut responses = call.during("StreamingOutputCall")?.into_inner();
    let mut arrivals = Vec::new();
    while let Some(message) = responses.message().await.during("response")? {
        body("response", message.payload, 10, &pattern(0, 0))?;
        arrivals.push(start.elapsed());
    }
    same("number of responses", arrivals.len(), 4)?;
    for (n, at) in (1..).zip(&arrivals) {
        holds("no response before its time", *at >= pause * n, &arrivals)?;
    }
    // A transport that held responses back would deliver the first with the last.
    let spread = arrivals[3] - arrivals[0];
    holds("responses arrive one by one", spread >= pause * 3 / 2, &arrivals)
}

pub(super) async fn half_close_order<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let call = env.client().half_duplex_call(stream).await;
    let mut responses = call.during("HalfDuplexCall")?.into_inner();
    let batches = [vec![31_415, 9], vec![], vec![2_653], vec![0, 58_979]];
    for (n, sizes) in batches.iter().enumerate() {
        send(&requests, output(&pattern(40, n), sizes)).await?;
    }
    if let Ok(early) = timeout(Duration::from_millis(200), responses.message()).await {
        let early = early.map(|message| message.is_some());
        return Err(differs("before the half-close", early, "nothing"));
    }
    drop(requests);
    for (n, sizes) in batches.iter().enumerate() {
        for size in sizes {
            let message = responses.message().await.during("response")?;
            body("response", message.unwrap_or_default().payload, *size, &pattern(40, n))?;
        }
    }
    same("end of responses", responses.message().await.during("end")?, None)
}

/// The half-close must not end a call whose responses are still to come.
pub(super) async fn requests_end_while_responses_flow<T: Transport>(env: Env<T>) -> Outcome {
    let sent = pattern(64, 9);
    let mut request = output(&sent, &[1_000; 20]);
    for wanted in &mut request.response_parameters {
        wanted.interval_us = 5_000;
    }
    let call = env.client().full_duplex_call(tokio_stream::once(request)).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    for _ in 0..20 {
        let message = responses.message().await.during("response")?;
        body("response", message.unwrap_or_default().payload, 1_000, &sent)?;
    }
    same("end of responses", responses.message().await.during("end")?, None)
}

/// More data than any window or ring holds, in messages of many sizes.
pub(super) async fn many_messages<T: Transport>(env: Env<T>) -> Outcome {
    const COUNT: usize = 400;
    let size = |n: usize| (n * 7_919) % 90_000;
    let (requests, stream) = feed();
    let feeder = tokio::spawn(async move {
        for n in 0..COUNT {
            send(&requests, output(&pattern(size(n), n), &[size(n + 1)])).await?;
        }
        Ok(())
    });
    let call = env.client().full_duplex_call(stream).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    for n in 0..COUNT {
        let message = responses.message().await.during("response")?;
        let message = message.ok_or_else(|| differs("response", "the end", n))?;
        body("response", message.payload, size(n + 1), &pattern(size(n), n))?;
    }
    same("end of responses", responses.message().await.during("end")?, None)?;
    feeder.await.map_err(|error| differs("feeder", error, "done"))?
}
