//! Between `http`'s types and the blocks of a segment.
//!
//! `te: trailers` and `content-type: application/grpc` say nothing on a ring and do not travel;
//! the content type is put back where a service receives it. `grpc-timeout` travels as a number
//! of nanoseconds. Everything else, `-bin` values in their base64 form included, goes as it is.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use partywall_abi::codec::DecodeError;
use partywall_abi::limits;
use partywall_abi::segment::{self, Metadata, NO_DEADLINE, RequestHead, ResponseHead, Trailers};
use tonic::{Code, Status};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Name of the timeout header.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

fn travels(name: &HeaderName, value: &HeaderValue) -> bool {
    !(name == TE || name == GRPC_TIMEOUT || (name == CONTENT_TYPE && value == GRPC))
}

fn count(headers: &HeaderMap, keep: impl Fn(&HeaderName, &HeaderValue) -> bool) -> u16 {
    headers.iter().filter(|(n, v)| keep(n, v)).count().min(usize::from(u16::MAX)) as u16
}

fn write_all(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    keep: impl Fn(&HeaderName, &HeaderValue) -> bool,
) {
    for (name, value) in headers.iter().filter(|(n, v)| keep(n, v)) {
        segment::write_entry(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

fn too_large(what: &str) -> Status {
    let limit = limits::HEAD_BYTES;
    Status::resource_exhausted(format!("{what}: the metadata is over {limit} bytes"))
}

fn check_entries(entries: u16, what: &str) -> Result<(), Status> {
    if usize::from(entries) > limits::METADATA_ENTRIES {
        let limit = limits::METADATA_ENTRIES;
        return Err(Status::resource_exhausted(format!("{what}: over {limit} metadata entries")));
    }
    Ok(())
}

/// Appends a request's head block.
pub(crate) fn write_request_head(
    out: &mut Vec<u8>,
    path: &str,
    headers: &HeaderMap,
    timeout: Option<Duration>,
) -> Result<(), Status> {
    if path.len() > limits::PATH_BYTES {
        return Err(Status::unimplemented(format!("a path of {} bytes", path.len())));
    }
    let deadline = timeout.map_or(NO_DEADLINE, |t| {
        u64::try_from(t.as_nanos()).unwrap_or(NO_DEADLINE - 1).min(NO_DEADLINE - 1)
    });
    let entries = count(headers, travels);
    check_entries(entries, "request")?;
    segment::write_block(out, |out| {
        RequestHead::write(out, deadline, path, entries);
        write_all(out, headers, travels);
    })
    .map(drop)
    .ok_or_else(|| too_large("request"))
}

/// Appends a response's head block.
pub(crate) fn write_response_head(out: &mut Vec<u8>, headers: &HeaderMap) -> Result<(), Status> {
    let entries = count(headers, travels);
    check_entries(entries, "response head")?;
    segment::write_block(out, |out| {
        ResponseHead::write(out, entries);
        write_all(out, headers, travels);
    })
    .map(drop)
    .ok_or_else(|| too_large("response head"))
}

/// Appends a trailers block and returns the status code in it.
pub(crate) fn write_trailers(out: &mut Vec<u8>, trailers: &HeaderMap) -> Result<u8, Status> {
    let code = trailers
        .get(GRPC_STATUS)
        .and_then(|v| v.to_str().ok()?.parse::<u8>().ok())
        .filter(|c| *c <= 16)
        .unwrap_or(Code::Unknown as u8);
    let keep = |n: &HeaderName, v: &HeaderValue| *n != GRPC_STATUS && travels(n, v);
    let entries = count(trailers, keep);
    check_entries(entries, "trailers")?;
    segment::write_block(out, |out| {
        Trailers::write(out, code, entries);
        write_all(out, trailers, keep);
    })
    .ok_or_else(|| too_large("trailers"))?;
    Ok(code)
}

/// Appends the trailers block of a status; its message is shortened if it must be.
pub(crate) fn write_status(out: &mut Vec<u8>, status: &Status) {
    let mut headers = HeaderMap::new();
    let written = status
        .add_header(&mut headers)
        .map_err(|_| ())
        .and_then(|()| write_trailers(out, &headers).map_err(|_| ()));
    if written.is_err() {
        let short = Status::new(status.code(), "(the status was too large for a ring)");
        headers.clear();
        short.add_header(&mut headers).expect("a short ASCII message");
        write_trailers(out, &headers).expect("a short block");
    }
}

fn invalid(field: &'static str) -> DecodeError {
    DecodeError::Text { field }
}

fn read_into(headers: &mut HeaderMap, metadata: &Metadata<'_>) -> Result<(), DecodeError> {
    for (name, value) in metadata.iter() {
        let name = HeaderName::from_bytes(name).map_err(|_| invalid("metadata name"))?;
        let value = HeaderValue::from_bytes(value).map_err(|_| invalid("metadata value"))?;
        headers.append(name, value);
    }
    Ok(())
}

/// The headers that a service sees for a request.
pub(crate) fn request_headers(head: &RequestHead<'_>) -> Result<HeaderMap, DecodeError> {
    let mut headers = HeaderMap::with_capacity(head.metadata.len() + 2);
    headers.insert(CONTENT_TYPE, GRPC);
    read_into(&mut headers, &head.metadata)?;
    if head.deadline_ns != NO_DEADLINE {
        headers.insert(GRPC_TIMEOUT, format_timeout(Duration::from_nanos(head.deadline_ns)));
    }
    Ok(headers)
}

/// The headers of a response.
pub(crate) fn response_headers(metadata: &Metadata<'_>) -> Result<HeaderMap, DecodeError> {
    let mut headers = HeaderMap::new();
    read_into(&mut headers, metadata)?;
    Ok(headers)
}

/// The trailers of a response.
pub(crate) fn trailers(block: &Trailers<'_>) -> Result<HeaderMap, DecodeError> {
    let mut headers = HeaderMap::with_capacity(block.metadata.len() + 1);
    let status = match block.code {
        0 => HeaderValue::from_static("0"),
        code => HeaderValue::from(u16::from(code)),
    };
    headers.insert(GRPC_STATUS, status);
    read_into(&mut headers, &block.metadata)?;
    Ok(headers)
}

/// The time in a `grpc-timeout` header: up to eight digits and a unit.
///
/// See "Requests" in <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.
pub(crate) fn parse_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

fn format_timeout(t: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let (n, unit) = [
        (t.as_nanos(), 'n'),
        (t.as_micros(), 'u'),
        (t.as_millis(), 'm'),
        (u128::from(t.as_secs()), 'S'),
        (u128::from(t.as_secs() / 60), 'M'),
        (u128::from(t.as_secs() / 3600), 'H'),
    ]
    .into_iter()
    .find(|(n, _)| *n <= MOST)
    .unwrap_or((MOST, 'H'));
    HeaderValue::try_from(format!("{n}{unit}")).expect("digits and a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(text: &'static str) -> Option<Duration> {
        let mut h = HeaderMap::new();
        h.insert(GRPC_TIMEOUT, HeaderValue::from_bytes(text.as_bytes()).unwrap());
        parse_timeout(&h)
    }

    #[test]
    fn timeouts_of_every_unit() {
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("1M"), Some(Duration::from_secs(60)));
        assert_eq!(timeout("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(timeout("5u"), Some(Duration::from_micros(5)));
        assert_eq!(timeout("7n"), Some(Duration::from_nanos(7)));
        for bad in ["", "S", "1", "-1S", "123456789S", "1s", "1é"] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
        for t in [1_u64, 99_999_999, 100_000_000, 3_600_000_000_000, u64::MAX] {
            let t = Duration::from_nanos(t);
            let mut h = HeaderMap::new();
            h.insert(GRPC_TIMEOUT, format_timeout(t));
            let back = parse_timeout(&h).unwrap();
            assert!(back <= t && (t - back).as_nanos() * 1000 <= t.as_nanos(), "{t:?} {back:?}");
        }
    }

    #[test]
    fn a_request_head_keeps_what_matters() {
        let mut h = HeaderMap::new();
        h.insert(TE, HeaderValue::from_static("trailers"));
        h.insert(CONTENT_TYPE, GRPC);
        h.insert(GRPC_TIMEOUT, HeaderValue::from_static("1S"));
        h.append("x-a", HeaderValue::from_static("1"));
        h.append("x-a", HeaderValue::from_static("2"));
        let mut out = Vec::new();
        write_request_head(&mut out, "/a.B/C", &h, Some(Duration::from_secs(1))).unwrap();
        let head = RequestHead::decode(&out[4..]).unwrap();
        assert_eq!(head.metadata.len(), 2);
        let back = request_headers(&head).unwrap();
        assert_eq!(back.get_all("x-a").iter().count(), 2);
        assert_eq!(back[CONTENT_TYPE], GRPC);
        assert_eq!(parse_timeout(&back), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_status_with_message_and_details_round_trips() {
        let status = Status::with_details(Code::NotFound, "weg ä\n", "d".repeat(100).into());
        let mut out = Vec::new();
        write_status(&mut out, &status);
        let headers = trailers(&Trailers::decode(&out[4..]).unwrap()).unwrap();
        let back = Status::from_header_map(&headers).unwrap();
        assert_eq!((back.code(), back.message()), (Code::NotFound, "weg ä\n"));
        assert_eq!(back.details(), status.details());
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let status = Status::internal("x".repeat(limits::HEAD_BYTES));
        let mut out = Vec::new();
        write_status(&mut out, &status);
        let headers = trailers(&Trailers::decode(&out[4..]).unwrap()).unwrap();
        assert_eq!(Status::from_header_map(&headers).unwrap().code(), Code::Internal);
        let mut h = HeaderMap::new();
        h.insert("x", HeaderValue::try_from("x".repeat(limits::HEAD_BYTES)).unwrap());
        let e = write_request_head(&mut out, "/a.B/C", &h, None).unwrap_err();
        assert_eq!(e.code(), Code::ResourceExhausted);
    }
}
