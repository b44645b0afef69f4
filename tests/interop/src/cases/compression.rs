//! Compression, checked by the flag of each message on the wire.
//!
//! tonic compresses all messages of a stream or none, so a stream that asks for both is checked
//! for content only where it asks for no compression.

use bytes::Bytes;
use tonic::Code;
use tonic::codec::CompressionEncoding::{self, Gzip, Zstd};

use super::basic::{LARGE_REQUEST, LARGE_RESPONSE, output, parameters, pattern, payload, simple};
use super::check::{During, Outcome, body, differs, holds, refused_with, same};
use super::{Env, Transport};
use crate::framing::Prefix;
use crate::proto::{
    BoolValue, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest,
};

fn flag(value: bool) -> Option<BoolValue> {
    Some(BoolValue { value })
}

/// Holds if the messages have these flags, and the compressed ones are shorter than `plain`.
fn flags(what: &'static str, got: &[Prefix], want: &[bool], plain: &[usize]) -> Outcome {
    let found: Vec<_> = got.iter().map(|prefix| prefix.compressed).collect();
    same(what, found, want)?;
    let right = got.iter().zip(plain).all(|(p, len)| (p.len < *len) == p.compressed);
    holds("compressed messages are short, others are not", right, (what, got))
}

async fn client_unary<T: Transport>(env: Env<T>, encoding: CompressionEncoding) -> Outcome {
    let sent = pattern(LARGE_REQUEST, 0);
    let ask = |compressed| SimpleRequest {
        expect_compressed: flag(compressed),
        ..simple(&sent, LARGE_RESPONSE)
    };
    let tap = env.tap();
    let mut plain = env.tapped(&tap);
    let mut packed = env.tapped(&tap).send_compressed(encoding);

    // The server must notice a message that is not what it was told to expect.
    let probe = plain.unary_call(ask(true)).await;
    refused_with("uncompressed probe", probe, Code::InvalidArgument)?;
    let probe = packed.unary_call(ask(false)).await;
    refused_with("compressed probe", probe, Code::InvalidArgument)?;

    let response = packed.unary_call(ask(true)).await.during("compressed call")?;
    flags("compressed request", &tap.latest().request.prefixes(), &[true], &[LARGE_REQUEST])?;
    body("compressed call", response.into_inner().payload, LARGE_RESPONSE, &sent)?;
    let response = plain.unary_call(ask(false)).await.during("uncompressed call")?;
    flags("uncompressed request", &tap.latest().request.prefixes(), &[false], &[LARGE_REQUEST])?;
    body("uncompressed call", response.into_inner().payload, LARGE_RESPONSE, &sent)
}

async fn server_unary<T: Transport>(env: Env<T>, encoding: CompressionEncoding) -> Outcome {
    let sent = pattern(LARGE_REQUEST, 4);
    let tap = env.tap();
    let mut client = env.tapped(&tap).accept_compressed(encoding);
    for compressed in [true, false] {
        let request = SimpleRequest {
            response_compressed: flag(compressed),
            ..simple(&sent, LARGE_RESPONSE)
        };
        let response = client.unary_call(request).await.during("UnaryCall")?;
        body("response", response.into_inner().payload, LARGE_RESPONSE, &sent)?;
        let log = tap.latest();
        flags("response", &log.response.prefixes(), &[compressed], &[LARGE_RESPONSE])?;
        if compressed {
            encoding_named(log.headers.as_ref(), encoding)?;
        }
    }
    Ok(())
}

fn encoding_named(headers: Option<&http::HeaderMap>, encoding: CompressionEncoding) -> Outcome {
    let named = headers.and_then(|h| h.get("grpc-encoding"));
    let named = named.ok_or_else(|| differs("grpc-encoding", "nothing", encoding))?;
    same("grpc-encoding", named, encoding.to_string().as_str())
}

async fn client_streaming<T: Transport>(env: Env<T>, encoding: CompressionEncoding) -> Outcome {
    const SIZES: [usize; 2] = [27_182, 45_904];
    let requests = |compressed| {
        tokio_stream::iter(SIZES.map(|size| StreamingInputCallRequest {
            payload: payload(&pattern(size, 0)),
            expect_compressed: flag(compressed),
        }))
    };
    let tap = env.tap();
    let mut plain = env.tapped(&tap);
    let mut packed = env.tapped(&tap).send_compressed(encoding);

    let probe = plain.streaming_input_call(requests(true)).await;
    refused_with("uncompressed probe", probe, Code::InvalidArgument)?;
    for (client, compressed) in [(&mut packed, true), (&mut plain, false)] {
        let call = client.streaming_input_call(requests(compressed)).await;
        let response = call.during("StreamingInputCall")?.into_inner();
        same("sum", response.aggregated_payload_size, 73_086)?;
        flags("requests", &tap.latest().request.prefixes(), &[compressed; 2], &SIZES)?;
    }
    Ok(())
}

async fn server_streaming<T: Transport>(env: Env<T>, encoding: CompressionEncoding) -> Outcome {
    const SIZES: [usize; 2] = [31_415, 92_653];
    let sent = pattern(1_000, 0);
    let tap = env.tap();
    let mut client = env.tapped(&tap).accept_compressed(encoding);
    for second in [true, false] {
        let request = StreamingOutputCallRequest {
            response_parameters: SIZES
                .into_iter()
                .zip([true, second])
                .map(|(size, compressed)| ResponseParameters {
                    compressed: flag(compressed),
                    ..parameters(size)
                })
                .collect(),
            ..output(&sent, &[])
        };
        let call = client.streaming_output_call(request).await;
        let mut responses = call.during("StreamingOutputCall")?.into_inner();
        for size in SIZES {
            let message = responses.message().await.during("response")?;
            body("response", message.unwrap_or_default().payload, size, &sent)?;
        }
        same("end of responses", responses.message().await.during("end")?, None)?;
        let log = tap.latest();
        encoding_named(log.headers.as_ref(), encoding)?;
        let asked = if second { 2 } else { 1 };
        let prefixes = log.response.prefixes();
        same("number of messages", prefixes.len(), 2)?;
        flags("responses", &prefixes[..asked], &[true, true][..asked], &SIZES)?;
    }
    Ok(())
}

pub(super) async fn client_compressed_unary_gzip<T: Transport>(env: Env<T>) -> Outcome {
    client_unary(env, Gzip).await
}

pub(super) async fn client_compressed_unary_zstd<T: Transport>(env: Env<T>) -> Outcome {
    client_unary(env, Zstd).await
}

pub(super) async fn server_compressed_unary_gzip<T: Transport>(env: Env<T>) -> Outcome {
    server_unary(env, Gzip).await
}

pub(super) async fn server_compressed_unary_zstd<T: Transport>(env: Env<T>) -> Outcome {
    server_unary(env, Zstd).await
}

pub(super) async fn client_compressed_streaming_gzip<T: Transport>(env: Env<T>) -> Outcome {
    client_streaming(env, Gzip).await
}

pub(super) async fn client_compressed_streaming_zstd<T: Transport>(env: Env<T>) -> Outcome {
    client_streaming(env, Zstd).await
}

pub(super) async fn server_compressed_streaming_gzip<T: Transport>(env: Env<T>) -> Outcome {
    server_streaming(env, Gzip).await
}

pub(super) async fn server_compressed_streaming_zstd<T: Transport>(env: Env<T>) -> Outcome {
    server_streaming(env, Zstd).await
}

/// A client that accepts no compression gets none, whatever its messages ask for.
pub(super) async fn compression_not_accepted<T: Transport>(env: Env<T>) -> Outcome {
    let sent = Bytes::new();
    let tap = env.tap();
    let mut client = env.tapped(&tap);
    let request = SimpleRequest { response_compressed: flag(true), ..simple(&sent, 10_000) };
    let response = client.unary_call(request).await.during("UnaryCall")?;
    body("response", response.into_inner().payload, 10_000, &sent)?;
    flags("response", &tap.latest().response.prefixes(), &[false], &[10_000])?;
    let named = tap.latest().headers.is_some_and(|h| h.contains_key("grpc-encoding"));
    holds("no encoding is named", !named, named)
}
