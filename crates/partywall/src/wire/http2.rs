//! Limits of heads and trailers over HTTP/2: those of a ring.

use http::HeaderMap;
use partywall_abi::limits;
use tonic::Status;

use super::{GRPC_STATUS, check, check_path, code_of};

/// Most bytes of a list of headers that our ends of HTTP/2 take, as it counts them: no less than
/// what a ring takes.
pub(crate) const LIST_BYTES: u32 =
    (limits::HEAD_BYTES + limits::PATH_BYTES + 32 * limits::METADATA_ENTRIES + 1024) as u32;

/// Whether a request with this path and these headers may be sent over HTTP/2: as on a ring.
pub(crate) fn check_request(path: &str, headers: &HeaderMap) -> Result<(), Status> {
    check_path(path)?;
    check(path.len(), headers, "request")
}

/// Whether deadlines and statuses of gRPC mean something to who has sent this: gRPC, also gRPC-Web.
pub(crate) fn knows_status(headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    content_type.is_some_and(|text| text.starts_with(b"application/grpc"))
}

/// Whether a response with these headers may be sent over HTTP/2: as on a ring.
pub(crate) fn check_response(headers: &HeaderMap) -> Result<(), Status> {
    check(0, headers, "response head")
}

/// Whether these are the trailers of a good answer.
pub(crate) fn is_ok(trailers: &HeaderMap) -> bool {
    trailers.contains_key(GRPC_STATUS) && code_of(trailers) == 0
}
