//! What HTTP shows of a call, on both sides, and what becomes of answers that are none of gRPC's.
//! The server is one that answers to [`PROBE`].

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request};

use super::basic::{feed, output, parameters, pattern, send};
use super::check::{During, Failure, Outcome, differs, holds, refused, same};
use super::observer::call;
use super::{Env, Transport};
use crate::proto::{Empty, Payload, ResponseParameters, SimpleRequest};
use crate::service::{DEADLINE, End, PROBE, SEEN};

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect()
}

/// The headers that the service's layers see of a request with these.
async fn seen<T: Transport>(env: &Env<T>, headers: HeaderMap) -> Result<HeaderMap, Failure> {
    let answer = call(env.channel(), HeaderValue::from_static("head"), headers).await?;
    same("status", values(answer.headers(), "grpc-status"), ["0"])?;
    Ok(answer.headers().clone())
}

/// How a call ends that the service answers as `probe` says.
async fn probed<T: Transport>(env: &Env<T>, probe: &str) -> Result<tonic::Status, Failure> {
    let mut request = Request::new(Empty {});
    let value = probe.parse().map_err(|_| differs("probe", probe, "a header's value"))?;
    request.metadata_mut().insert(PROBE, value);
    refused("EmptyCall", env.client().empty_call(request).await)
}

fn one(name: &'static str, value: &'static str) -> HeaderMap {
    let name = HeaderName::from_static(name);
    HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
}

pub(super) async fn requests_have_a_content_type<T: Transport>(env: Env<T>) -> Outcome {
    let name = format!("{SEEN}content-type");
    same("usual", values(&seen(&env, HeaderMap::new()).await?, &name), ["application/grpc"])?;
    for own in ["application/grpc+proto", "application/grpc+json"] {
        same("own", values(&seen(&env, one("content-type", own)).await?, &name), [own])?;
    }
    Ok(())
}

pub(super) async fn requests_have_a_user_agent<T: Transport>(env: Env<T>) -> Outcome {
    let name = format!("{SEEN}user-agent");
    let head = seen(&env, HeaderMap::new()).await?;
    let usual = values(&head, &name).join(" and ");
    holds("the library names itself", usual.contains(env.user_agent()), &usual)?;
    let head = seen(&env, one("user-agent", "mine/2")).await?;
    same("all after one's own", values(&head, &name), [format!("mine/2 {usual}")])
}

pub(super) async fn responses_have_a_content_type<T: Transport>(env: Env<T>) -> Outcome {
    for probe in ["head", "trailers 10", "aborted 10", "aborted-later 10"] {
        let answer = call(env.channel(), HeaderValue::from_static(probe), HeaderMap::new()).await?;
        same(probe, values(answer.headers(), "content-type"), ["application/grpc"])?;
    }
    Ok(())
}

pub(super) async fn handlers_are_told_the_deadline<T: Transport>(env: Env<T>) -> Outcome {
    let without = seen(&env, HeaderMap::new()).await?;
    same("without", values(&without, DEADLINE), [""; 0])?;
    let with = seen(&env, one("grpc-timeout", "20S")).await?;
    let left: u64 = match values(&with, DEADLINE)[..] {
        [left] => left.parse().unwrap_or_default(),
        ref other => return Err(differs("deadline", other, "one")),
    };
    let left = Duration::from_nanos(left);
    let sensible = left > Duration::from_secs(10) && left <= Duration::from_secs(20);
    holds("what is left of 20 s", sensible, left)?;
    let odd = seen(&env, one("grpc-timeout", "soon")).await?;
    same("one that means nothing", values(&odd, DEADLINE), [""; 0])
}

pub(super) async fn a_panic_is_internal<T: Transport>(env: Env<T>) -> Outcome {
    for probe in ["panic", "panic-later"] {
        for _ in 0..3 {
            let status = probed(&env, probe).await?;
            same(probe, status.code(), Code::Internal)?;
            same("its words", status.message(), "the handler panicked")?;
            env.client().empty_call(Empty {}).await.during("the next call")?;
        }
    }
    Ok(())
}

pub(super) async fn an_error_of_a_body_is_the_status<T: Transport>(env: Env<T>) -> Outcome {
    let status = probed(&env, "broken").await?;
    same("code", status.code(), Code::DataLoss)?;
    same("message", status.message(), "as asked")
}

/// See <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>.
pub(super) async fn answers_that_are_no_grpc<T: Transport>(env: Env<T>) -> Outcome {
    for (status, code) in [
        ("200", Code::Unknown),
        ("400", Code::Internal),
        ("401", Code::Unauthenticated),
        ("403", Code::PermissionDenied),
        ("404", Code::Unimplemented),
        ("418", Code::Unknown),
        ("429", Code::Unavailable),
        ("500", Code::Unknown),
        ("503", Code::Unavailable),
    ] {
        let found = probed(&env, &format!("plain {status}")).await?;
        holds("code", found.code() == code, (status, found))?;
    }
    Ok(())
}

/// Over HTTP/2 they are an error, or make a message seem to be cut off.
pub(super) async fn headers_of_a_connection_do_not_travel<T: Transport>(env: Env<T>) -> Outcome {
    for name in ["connection", "keep-alive", "proxy-connection", "upgrade", "content-length"] {
        let head = seen(&env, one(name, "7")).await?;
        same(name, values(&head, &format!("{SEEN}{name}")), [""; 0])?;
    }
    Ok(())
}

/// What HTTP/2 needs of each call says nothing to a handler.
pub(super) async fn te_does_not_reach_a_handler<T: Transport>(env: Env<T>) -> Outcome {
    let head = seen(&env, HeaderMap::new()).await?;
    same("te", values(&head, &format!("{SEEN}te")), [""; 0])
}

pub(super) async fn a_deadline_of_zero_has_passed<T: Transport>(env: Env<T>) -> Outcome {
    let mut request = Request::new(Empty {});
    request.set_timeout(Duration::ZERO);
    let status = refused("EmptyCall", env.client().empty_call(request).await)?;
    same("code", status.code(), Code::DeadlineExceeded)
}

/// The body of a request fails in the caller: over HTTP/2 that resets the stream.
pub(super) async fn a_request_that_fails_keeps_its_status<T: Transport>(env: Env<T>) -> Outcome {
    let mut client = env.client().max_encoding_message_size(100);
    let payload = Payload { body: vec![0; 2000].into(), ..Payload::default() };
    let request = SimpleRequest { payload: Some(payload), ..SimpleRequest::default() };
    let status = refused("UnaryCall", client.unary_call(request).await)?;
    same("code", status.code(), Code::OutOfRange)?;
    holds("message", status.message().contains("the limit is: 100 bytes"), status.message())
}

/// So many resets end a connection over HTTP/2, unless its server allows for them.
pub(super) async fn calls_that_are_given_up_together_end_no_others<T: Transport>(
    env: Env<T>,
) -> Outcome {
    let wait = |probe: &'static str| {
        let channel = env.channel();
        async move { call(channel, HeaderValue::from_static(probe), HeaderMap::new()).await }
    };
    let innocent = wait("started nobody 600");
    let given_up = async {
        for _ in 0..2 {
            let mut calls = JoinSet::new();
            for _ in 0..300 {
                calls.spawn(timeout(Duration::from_millis(5), wait("started nobody 9000")));
            }
            while calls.join_next().await.is_some() {}
        }
    };
    let (answer, ()) = tokio::join!(innocent, given_up);
    same("status", values(answer?.headers(), "grpc-status"), ["0"])
}

/// A status of gRPC's own counts whatever HTTP's is, with its metadata.
pub(super) async fn a_status_beside_one_of_http<T: Transport>(env: Env<T>) -> Outcome {
    for http in ["200", "403", "503"] {
        let status = probed(&env, &format!("told {http}")).await?;
        same("code", status.code(), Code::Unauthenticated)?;
        same("message", status.message(), "no token")?;
        let why = status.metadata().get("x-why").map(|why| why.as_bytes().to_vec());
        same("metadata", why, Some(b"asked".to_vec()))?;
    }
    Ok(())
}

/// tonic panics at details that are no base64.
pub(super) async fn details_that_are_no_base64_are_left_out<T: Transport>(env: Env<T>) -> Outcome {
    for probe in ["details", "details-later"] {
        for (text, details) in [("!!", &b""[..]), ("aGVsbG8", b"hello"), ("aGVsbG8=", b"hello")] {
            let status = probed(&env, &format!("{probe} {text}")).await?;
            same("code", status.code(), Code::NotFound)?;
            same("message", status.message(), "lost")?;
            same("details", status.details(), details)?;
        }
    }
    Ok(())
}

/// A message of over 20 KiB cost the status its code.
pub(super) async fn a_long_status_keeps_its_code<T: Transport>(env: Env<T>) -> Outcome {
    for probe in ["aborted", "aborted-later"] {
        for bytes in [10, 10_000, 15_000, 17_000, 24 << 10, 1 << 20] {
            let status = probed(&env, &format!("{probe} {bytes}")).await?;
            same("code", status.code(), Code::Aborted)?;
            let whole = status.message().len() == bytes;
            let cut = bytes > 7_000 && status.message().len() >= 7_000;
            holds("the message, or most of it", whole || cut, (bytes, status.message().len()))?;
        }
    }
    Ok(())
}

/// As much as tonic takes.
pub(super) async fn metadata_in_many_entries<T: Transport>(env: Env<T>) -> Outcome {
    let entries = (0..300).map(|n| {
        let name: HeaderName = format!("x-{n}").parse().map_err(|_| differs("name", n, "one"))?;
        Ok((name, HeaderValue::from(n)))
    });
    let headers: HeaderMap = entries.collect::<Result<_, Failure>>()?;
    // Back they would be too many for HTTP/2: one name is as good as another.
    let answer = call(env.channel(), HeaderValue::from_static("aborted 3"), headers).await?;
    same("status", values(answer.headers(), "grpc-status"), ["10"])
}

pub(super) async fn metadata_that_is_too_long<T: Transport>(env: Env<T>) -> Outcome {
    let long = HeaderValue::try_from("x".repeat(30 << 10));
    let long = long.map_err(|_| differs("value", "none", "ASCII"))?;
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-long"), long)]);
    match call(env.channel(), HeaderValue::from_static("head"), headers).await {
        Err(Failure::Call { status, .. }) => same("code", status.code(), Code::ResourceExhausted)?,
        Err(other) => return Err(other),
        Ok(_) => return Err(differs("call", "an answer", Code::ResourceExhausted)),
    }
    env.client().empty_call(Empty {}).await.during("the next call").map(drop)
}

pub(super) async fn trailing_metadata_that_is_too_long<T: Transport>(env: Env<T>) -> Outcome {
    let status = probed(&env, "trailers 30000").await?;
    same("code", status.code(), Code::ResourceExhausted)?;
    env.client().empty_call(Empty {}).await.during("the next call").map(drop)
}

/// The response alone is dropped; HTTP/2 by itself would let the request go on.
pub(super) async fn a_dropped_response_ends_the_call<T: Transport>(env: Env<T>) -> Outcome {
    let (requests, stream) = feed();
    let mut request = Request::new(stream);
    let tag = super::env::tag(&mut request)?;
    let mut first = output(&pattern(10, 0), &[9]);
    let late = ResponseParameters { interval_us: 60_000_000, ..parameters(1) };
    first.response_parameters.push(late);
    send(&requests, first).await?;
    let call = env.client().full_duplex_call(request).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    responses.message().await.during("first response")?;
    drop(responses);
    let released = timeout(Duration::from_secs(1), requests.closed()).await;
    holds("the request stream is closed", released.is_ok(), released)?;
    same("handler", env.handle().ended(&tag, Duration::from_secs(1)).await, Some(End::Dropped))
}
