//! Statuses, with all that they carry.

use bytes::Bytes;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::basic::{feed, output, pattern, send};
use super::check::{During, Failure, Outcome, body, refused, refused_with, same};
use super::client::Client;
use super::{Env, Transport};
use crate::proto::{EchoStatus, SimpleRequest, StreamingOutputCallRequest};
use crate::service::DETAILS;

fn echo(code: i32, message: &str) -> Option<EchoStatus> {
    Some(EchoStatus { code, message: message.to_owned() })
}

fn unary(code: i32, message: &str) -> SimpleRequest {
    SimpleRequest { response_status: echo(code, message), ..SimpleRequest::default() }
}

fn streamed(code: i32, message: &str) -> StreamingOutputCallRequest {
    let response_status = echo(code, message);
    StreamingOutputCallRequest { response_status, ..StreamingOutputCallRequest::default() }
}

fn check(what: &'static str, status: &Status, code: i32, message: &str) -> Outcome {
    same(what, status.code(), Code::from_i32(code))?;
    same(what, status.message(), message)
}

/// Has a duplex call fail and returns its status.
async fn fail_duplex<T: Transport>(
    mut client: Client<T>,
    request: Request<StreamingOutputCallRequest>,
) -> Result<Status, Failure> {
    let request = request.map(tokio_stream::once);
    let mut responses = client.full_duplex_call(request).await.during("call")?.into_inner();
    refused("duplex call", responses.message().await)
}

pub(super) async fn status_code_and_message<T: Transport>(env: Env<T>) -> Outcome {
    let message = "test status message";
    let status = refused("unary call", env.client().unary_call(unary(2, message)).await)?;
    check("unary call", &status, 2, message)?;
    let status = fail_duplex(env.client(), Request::new(streamed(2, message))).await?;
    check("duplex call", &status, 2, message)
}

pub(super) async fn special_status_message<T: Transport>(env: Env<T>) -> Outcome {
    let samples = [
        "\t\ntest with whitespace\r\nand Unicode BMP \u{263a} and non-BMP \u{1f608}\t\n",
        " leading and trailing ",
        "per cent: %, %25, %zz",
        "\u{0}\u{1}\u{7f}\u{80}",
        "",
    ];
    for message in samples {
        let status = refused("unary call", env.client().unary_call(unary(2, message)).await)?;
        check("unary call", &status, 2, message)?;
        let status = fail_duplex(env.client(), Request::new(streamed(2, message))).await?;
        check("duplex call", &status, 2, message)?;
    }
    Ok(())
}

pub(super) async fn every_status_code<T: Transport>(env: Env<T>) -> Outcome {
    for code in 1..=16 {
        let message = format!("status {code}");
        let status = refused("unary call", env.client().unary_call(unary(code, &message)).await)?;
        check("unary call", &status, code, &message)?;
        let status = fail_duplex(env.client(), Request::new(streamed(code, &message))).await?;
        check("duplex call", &status, code, &message)?;
    }
    Ok(())
}

pub(super) async fn status_details<T: Transport>(env: Env<T>) -> Outcome {
    let every_byte: Bytes = (0..=255).collect();
    for details in [every_byte, pattern(1, 0), pattern(2, 0), pattern(3, 0), pattern(4000, 1)] {
        let value = MetadataValue::from_bytes(&details);
        let mut request = Request::new(unary(9, "look inside"));
        request.metadata_mut().insert_bin(DETAILS, value.clone());
        let status = refused("unary call", env.client().unary_call(request).await)?;
        check("unary call", &status, 9, "look inside")?;
        same("details of the unary call", status.details(), &details)?;
        let mut request = Request::new(streamed(9, "look inside"));
        request.metadata_mut().insert_bin(DETAILS, value);
        let status = fail_duplex(env.client(), request).await?;
        check("duplex call", &status, 9, "look inside")?;
        same("details of the duplex call", status.details(), &details)?;
    }
    Ok(())
}

pub(super) async fn error_before_first_response<T: Transport>(env: Env<T>) -> Outcome {
    let call = env.client().streaming_output_call(streamed(10, "not today")).await;
    check("server stream", &refused("server stream", call)?, 10, "not today")?;

    // The duplex call's headers come first, and its request stream stays open all the while.
    let (requests, stream) = feed();
    let call = env.client().full_duplex_call(stream).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    send(&requests, streamed(10, "not today")).await?;
    let status = refused("duplex call", responses.message().await)?;
    check("duplex call", &status, 10, "not today")?;
    same("after the error", responses.message().await.during("end")?, None)
}

pub(super) async fn error_after_responses<T: Transport>(env: Env<T>) -> Outcome {
    let sent = pattern(50, 3);
    let requests = [output(&sent, &[100, 70_000, 0]), streamed(15, "gone")];
    let call = env.client().full_duplex_call(tokio_stream::iter(requests)).await;
    let mut responses = call.during("FullDuplexCall")?.into_inner();
    for size in [100, 70_000, 0] {
        let message = responses.message().await.during("response")?;
        body("response", message.unwrap_or_default().payload, size, &sent)?;
    }
    let status = refused("end of responses", responses.message().await)?;
    check("end of responses", &status, 15, "gone")
}

pub(super) async fn invalid_request<T: Transport>(env: Env<T>) -> Outcome {
    let request = SimpleRequest { response_size: -1, ..SimpleRequest::default() };
    let call = env.client().unary_call(request).await;
    refused_with("negative size", call, Code::InvalidArgument)?;
    let request = SimpleRequest { response_type: 5, ..SimpleRequest::default() };
    let call = env.client().unary_call(request).await;
    refused_with("unknown payload type", call, Code::InvalidArgument).map(drop)
}
