//! Metadata there and back.

use http::HeaderMap;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request};

use super::basic::{feed, output, pattern, send, simple};
use super::check::{During, Outcome, body, differs, refused_with, same};
use super::{Env, Transport};
use crate::proto::{EchoStatus, SimpleRequest};
use crate::service::{ECHO_INITIAL, ECHO_TRAILING};

const INITIAL: &str = "test_initial_metadata_value";
const TRAILING: &[u8] = &[0x0a, 0x0b, 0x0a, 0x0b, 0x0a, 0x0b];

fn ask<M>(request: &mut Request<M>) {
    let metadata = request.metadata_mut();
    metadata.insert(ECHO_INITIAL, MetadataValue::from_static(INITIAL));
    metadata.insert_bin(ECHO_TRAILING, MetadataValue::from_bytes(TRAILING));
}

fn initial(what: &'static str, map: &MetadataMap) -> Outcome {
    let values: Vec<_> = map.get_all(ECHO_INITIAL).iter().collect();
    same(what, values, [INITIAL])
}

fn trailing(what: &'static str, map: &MetadataMap, want: &[&[u8]]) -> Outcome {
    let mut values = Vec::new();
    for value in map.get_all_bin(ECHO_TRAILING) {
        let bytes = value.to_bytes().map_err(|_| differs(what, value, "base64"))?;
        values.push(bytes);
    }
    same(what, values, want)
}

/// Holds if each echo is in its own block and not in the other.
fn placed(headers: Option<HeaderMap>, trailers: Option<HeaderMap>) -> Outcome {
    let headers = headers.unwrap_or_default();
    let trailers = trailers.unwrap_or_default();
    let found = (
        headers.contains_key(ECHO_INITIAL),
        headers.contains_key(ECHO_TRAILING),
        trailers.contains_key(ECHO_INITIAL),
        trailers.contains_key(ECHO_TRAILING),
    );
    same("echoes in headers and trailers", found, (true, false, false, true))
}

pub(super) async fn custom_metadata<T: Transport>(env: Env<T>) -> Outcome {
    let tap = env.tap();
    let mut client = env.tapped(&tap);
    let sent = pattern(1, 1);

    let mut request = Request::new(simple(&sent, 1));
    ask(&mut request);
    let response = client.unary_call(request).await.during("UnaryCall")?;
    initial("initial metadata of the unary call", response.metadata())?;
    trailing("trailing metadata of the unary call", response.metadata(), &[TRAILING])?;
    placed(tap.latest().headers, tap.latest().response.trailers())?;
    body("unary response", response.into_inner().payload, 1, &sent)?;

    let (requests, stream) = feed();
    let mut request = Request::new(stream);
    ask(&mut request);
    let response = client.full_duplex_call(request).await.during("FullDuplexCall")?;
    initial("initial metadata of the duplex call", response.metadata())?;
    let mut responses = response.into_inner();
    send(&requests, output(&sent, &[1])).await?;
    let message = responses.message().await.during("response")?;
    body("duplex response", message.unwrap_or_default().payload, 1, &sent)?;
    drop(requests);
    same("end of responses", responses.message().await.during("end")?, None)?;
    let trailers = responses.trailers().await.during("trailers")?.unwrap_or_default();
    trailing("trailing metadata of the duplex call", &trailers, &[TRAILING])?;
    placed(tap.latest().headers, tap.latest().response.trailers())
}

pub(super) async fn binary_metadata<T: Transport>(env: Env<T>) -> Outcome {
    let every_byte: Vec<u8> = (0..=255).collect();
    let samples: [&[&[u8]]; 6] = [
        &[&every_byte],
        &[b"\x00"],
        &[b"\xff\xfe"],
        &[b"a,b", b"\x00,\x00", b""],
        &[&every_byte, &every_byte[128..], b"same", b"same"],
        &[b""],
    ];
    for values in samples {
        let mut request = Request::new(SimpleRequest::default());
        for value in values {
            request.metadata_mut().append_bin(ECHO_TRAILING, MetadataValue::from_bytes(value));
        }
        let response = env.client().unary_call(request).await.during("UnaryCall")?;
        trailing("trailing metadata", response.metadata(), values)?;
    }
    Ok(())
}

pub(super) async fn metadata_on_error<T: Transport>(env: Env<T>) -> Outcome {
    let status = EchoStatus { code: 5, message: "nothing here".to_owned() };
    let mut request =
        Request::new(SimpleRequest { response_status: Some(status), ..SimpleRequest::default() });
    ask(&mut request);
    let call = env.client().unary_call(request).await;
    let status = refused_with("UnaryCall", call, Code::NotFound)?;
    initial("initial metadata of the error", status.metadata())?;
    trailing("trailing metadata of the error", status.metadata(), &[TRAILING])
}
