//! Between `http`'s types and the blocks of a frame.
//!
//! What both ends can tell without words does not travel: `te: trailers`, the content type
//! `application/grpc` and the user agent of a caller that adds nothing to [`USER_AGENT`]. The
//! receiver puts the latter two back, so that a layer sees the headers that it sees over HTTP/2. A
//! content type of the caller's own travels and is the only one; a user agent of its own travels
//! with ours behind it. The authority of a request, if its channel has an origin, travels as `host`.
//! `grpc-timeout` travels as a number of nanoseconds. What belongs to a
//! connection of HTTP, and not to a call, does not travel on any route ([`OF_CONNECTIONS`]). Everything
//! else, `-bin` values in their base64 form included, goes as it is; but for details of a status that are
//! no base64, at which tonic panics: they are left out wherever they come from ([`without_bad_details`]).
//!
//! # What does not fit
//!
//! A head that is over the limits is RESOURCE_EXHAUSTED, on every route. A status that is not OK
//! keeps its code whatever its length: [`fit`] cuts its message, and leaves out its details and
//! metadata only where they alone are too long.

#[cfg(feature = "http2")]
mod http2;

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{self, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use partywall_abi::frame::{self, Metadata, MethodName, RequestHead, ResponseHead, Trailers};
use partywall_abi::limits;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

#[cfg(feature = "http2")]
pub(crate) use http2::{LIST_BYTES, check_request, check_response, is_ok, knows_status};

/// The content type of a call that names no other.
pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Who calls, as HTTP has it: the library and the version of what travels on a link, which both
/// ends have in common.
pub(crate) const USER_AGENT: HeaderValue = HeaderValue::from_static("partywall/1");
/// Bytes before a message of gRPC: whether it is compressed, and its length.
pub(crate) const PREFIX: usize = 5;
/// Name of the timeout header.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Headers that say something of a connection (RFC 9110, section 7.6.1; RFC 9113, section 8.2.2), or of
/// a body that is none of a call's.
const OF_CONNECTIONS: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Most bytes of the trailers of a failed call, as HTTP/2 counts them ([`list_size`]): gRPC's C core, and
/// with it Python's grpcio, loses the code of more and more calls from 8 KiB on, with what comes
/// before the trailers (`grpc.max_metadata_size`).
const FAILED_BYTES: usize = 7_900;
/// A message is not cut below so many bytes for the sake of details and metadata.
const MESSAGE_BYTES: usize = 1024;

fn travels(name: &HeaderName, value: &HeaderValue) -> bool {
    !(never_travels(name) || (name == CONTENT_TYPE && value == GRPC))
}

/// What only a peer of its own making sends: it is left out where it comes.
fn never_travels(name: &HeaderName) -> bool {
    name == TE || name == GRPC_TIMEOUT || OF_CONNECTIONS.contains(name)
}

/// Leaves out what belongs to a connection.
pub(crate) fn of_a_call(headers: &mut HeaderMap) {
    for name in &OF_CONNECTIONS {
        headers.remove(name);
    }
}

/// Names that tonic does not let a program send as metadata.
pub(crate) const NOT_SENT: [&str; 5] =
    ["te", "content-type", "grpc-message", "grpc-message-type", "grpc-status"];

/// Others that have a meaning for tonic's clients: a request with one goes the ordinary way.
pub(crate) const OF_TONICS_CLIENTS: [&str; 3] =
    ["grpc-accept-encoding", "grpc-encoding", "user-agent"];

/// Those of an answer that have one for them.
pub(crate) const OF_ANSWERS: [&[u8]; 2] = [b"grpc-encoding", b"grpc-status"];

/// Those that have one for tonic's servers.
pub(crate) const OF_TONICS_SERVERS: [&[u8]; 3] =
    [b"content-type", b"grpc-accept-encoding", b"grpc-encoding"];

/// Leaves out what tonic does not let a program send.
pub(crate) fn without_not_sent(headers: &mut HeaderMap) {
    if !headers.is_empty() {
        NOT_SENT.iter().for_each(|name| drop(headers.remove(*name)));
    }
}

/// As tonic reads base64.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn are_bad_details(name: &HeaderName, value: &HeaderValue) -> bool {
    name == GRPC_DETAILS && BASE64.decode(value.as_bytes()).is_err()
}

/// Leaves out details of a status that [`Status::from_header_map`] would panic at.
pub(crate) fn without_bad_details(headers: &mut HeaderMap) {
    if headers.get_all(GRPC_DETAILS).iter().any(|value| are_bad_details(&GRPC_DETAILS, value)) {
        headers.remove(GRPC_DETAILS);
    }
}

/// The first value of a header. In a few headers looking at each takes less than hashing a name.
pub(crate) fn find<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    const FEW: usize = 6;
    if headers.len() > FEW {
        return headers.get(name);
    }
    headers.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
}

/// The entries of a block: the headers that are kept, as bytes.
fn entries(
    headers: &HeaderMap,
    keep: impl Fn(&HeaderName, &HeaderValue) -> bool,
) -> impl Iterator<Item = (&[u8], &[u8])> {
    let kept = headers.iter().filter(move |(name, value)| keep(name, value));
    kept.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// Appends a block of these entries; `fixed` writes what is before them, with a count of 0.
fn write_block<'h, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    what: &str,
    entries: impl Iterator<Item = (&'h [u8], V)>,
    fixed: impl FnOnce(&mut Vec<u8>),
) -> Result<(), Status> {
    let (before, mut written) = (out.len(), 0);
    let fits = frame::write_block(out, |out| {
        fixed(out);
        written = frame::write_entries(out, entries);
    });
    let checked = check_entries(written, what);
    match checked.and(fits.ok_or_else(|| too_large(what))) {
        Ok(_bytes) => Ok(()),
        Err(why) => {
            out.truncate(before);
            Err(why)
        }
    }
}

fn too_large(what: &str) -> Status {
    let limit = limits::HEAD_BYTES;
    Status::resource_exhausted(format!("{what}: the metadata is over {limit} bytes"))
}

fn check_entries(entries: usize, what: &str) -> Result<(), Status> {
    if entries > limits::METADATA_ENTRIES {
        let limit = limits::METADATA_ENTRIES;
        return Err(Status::resource_exhausted(format!("{what}: over {limit} metadata entries")));
    }
    Ok(())
}

fn check_path(path: &str) -> Result<(), Status> {
    if path.len() > limits::PATH_BYTES {
        return Err(Status::unimplemented(format!("a path of {} bytes", path.len())));
    }
    Ok(())
}

/// Appends a request's head block.
pub(crate) fn write_request_head<'a>(
    out: &mut Vec<u8>,
    method: impl Into<MethodName<'a>>,
    headers: &HeaderMap,
    timeout: Option<Duration>,
) -> Result<(), Status> {
    let method = method.into();
    if let MethodName::Path(path) = method {
        check_path(path)?;
    }
    let entries = entries(headers, travels).map(|(name, value)| match name == b"user-agent" {
        true => (name, Cow::Owned([value, b" ", USER_AGENT.as_bytes()].concat())),
        false => (name, Cow::Borrowed(value)),
    });
    write_block(out, "request", entries, |out| RequestHead::write(out, timeout, method, 0))
}

/// Appends a response's head block.
pub(crate) fn write_response_head(out: &mut Vec<u8>, headers: &HeaderMap) -> Result<(), Status> {
    write_block(out, "response head", entries(headers, travels), |out| ResponseHead::write(out, 0))
}

fn check(before: usize, headers: &HeaderMap, what: &str) -> Result<(), Status> {
    check_entries(entries(headers, travels).count(), what)?;
    // What a block has beside names and values: two lengths an entry, and less than 16 bytes.
    let bytes: usize = entries(headers, travels).map(|(n, v)| n.len() + v.len() + 6).sum();
    if before + bytes + 16 > limits::HEAD_BYTES { Err(too_large(what)) } else { Ok(()) }
}

/// Appends the trailers block of an answer and returns the status code in it. Trailers that do
/// not fit are replaced by those that say so.
pub(crate) fn write_trailers(out: &mut Vec<u8>, trailers: &HeaderMap) -> u8 {
    let code = code_of(trailers);
    if code != 0
        && let Some(fitting) = fit(trailers)
    {
        return write_trailers_of(out, &fitting, code)
            .unwrap_or_else(|status| write_short(out, &status));
    }
    write_trailers_of(out, trailers, code).unwrap_or_else(|status| write_short(out, &status))
}

fn code_of(trailers: &HeaderMap) -> u8 {
    let code = match find(trailers, &GRPC_STATUS).map(HeaderValue::as_bytes) {
        Some(b"0") => return Code::Ok as u8,
        Some(code) => std::str::from_utf8(code).ok().and_then(|code| code.parse().ok()),
        None => None,
    };
    code.filter(|code| *code <= 16).unwrap_or(Code::Unknown as u8)
}

/// The status in an answer's head or trailers, if there is one.
pub(crate) fn status_code(headers: &HeaderMap) -> Option<Code> {
    find(headers, &GRPC_STATUS)?;
    Some(Code::from_i32(code_of(headers).into()))
}

/// Whether a message with this content type is one of gRPC's own, whose answer ends with trailers.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|text| text.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn write_trailers_of(out: &mut Vec<u8>, trailers: &HeaderMap, code: u8) -> Result<u8, Status> {
    let keep = |n: &HeaderName, v: &HeaderValue| *n != GRPC_STATUS && travels(n, v);
    let fixed = |out: &mut Vec<u8>| Trailers::write(out, code, 0);
    write_block(out, "trailers", entries(trailers, keep), fixed).map(|()| code)
}

/// A status of a few words, which always fits.
fn write_short(out: &mut Vec<u8>, status: &Status) -> u8 {
    let code = status.code() as i32 as u8;
    write_trailers_of(out, &headers_of(status), code).expect("a short ASCII message")
}

/// Appends the trailers block of a status and returns its code.
pub(crate) fn write_status(out: &mut Vec<u8>, status: &Status) -> u8 {
    write_trailers(out, &headers_of(status))
}

/// The trailers of a status.
pub(crate) fn headers_of(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if status.add_header(&mut headers).is_err() {
        // Its message is no header's value: the code is what counts.
        headers.clear();
        headers.insert(GRPC_STATUS, HeaderValue::from(status.code() as i32));
    }
    headers
}

/// Bytes of a list of headers as HTTP/2 counts them: RFC 9113, section 6.5.2.
fn list_size<'a>(headers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>) -> usize {
    headers.map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// Trailers in a form that every receiver takes; none if they are that already: see
/// [`without_bad_details`], and what does not fit. Of a failed call
/// the code stays, the message is cut, and details and metadata are left out where they leave it no
/// room. Of a good one, metadata that does not fit is RESOURCE_EXHAUSTED.
pub(crate) fn fit(trailers: &HeaderMap) -> Option<HeaderMap> {
    if find(trailers, &GRPC_DETAILS).is_some() {
        let mut sound = trailers.clone();
        without_bad_details(&mut sound);
        if sound.len() != trailers.len() {
            return Some(fit(&sound).unwrap_or(sound));
        }
    }
    if code_of(trailers) == 0 {
        return check(0, trailers, "trailers").err().map(|status| headers_of(&status));
    }
    let fits = |headers: &HeaderMap| {
        list_size(headers.iter()) <= FAILED_BYTES && headers.len() <= limits::METADATA_ENTRIES
    };
    if fits(trailers) {
        return None;
    }
    let status = Status::from_header_map(trailers)?;
    let others = trailers.iter().filter(|(name, _)| **name != GRPC_MESSAGE);
    let room = FAILED_BYTES.saturating_sub(list_size(others) + GRPC_MESSAGE.as_str().len() + 32);
    if room >= MESSAGE_BYTES && trailers.len() <= limits::METADATA_ENTRIES {
        let mut fitting = trailers.clone();
        let cut = headers_of(&Status::new(status.code(), cut(status.message(), room)));
        fitting.extend(cut);
        if fits(&fitting) {
            return Some(fitting);
        }
    }
    let room = FAILED_BYTES - 1024;
    let text = cut(status.message(), room - LEFT_OUT.len());
    Some(headers_of(&Status::new(status.code(), format!("{text}{LEFT_OUT}"))))
}

const LEFT_OUT: &str = " (details and metadata were too long and are left out)";

/// The beginning of a message that, in the form it has in a header, takes at most `room` bytes.
fn cut(message: &str, room: usize) -> &str {
    let mut used = 0;
    let end = message.char_indices().find_map(|(at, c)| {
        let plain = c.is_ascii_graphic() && !"\"#%<>`?{}".contains(c);
        used += if plain { 1 } else { 3 * c.len_utf8() };
        (used > room).then_some(at)
    });
    &message[..end.unwrap_or(message.len())]
}

/// What a layer's plain HTTP answer, which has no status of gRPC's, means to a gRPC caller. Its headers
/// are the status's metadata.
///
/// See <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>.
pub(crate) fn http_status<B>(response: &http::Response<B>) -> Status {
    let status = response.status();
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let mut headers = response.headers().clone();
    of_a_call(&mut headers);
    headers.remove(GRPC_DETAILS);
    let text = format!("the service answered with HTTP status {status}");
    Status::with_metadata(code, text, MetadataMap::from_headers(headers))
}

/// What an answer means that ends without trailers: that is unknown, it may have been cut off.
pub(crate) fn no_trailers() -> Status {
    Status::unknown("the service sent no trailers")
}

/// Which of the headers that need not travel did.
#[derive(Default)]
struct Named {
    content_type: bool,
    user_agent: bool,
    host: bool,
}

/// Reads metadata that [`partywall_call`] has checked.
fn read_into(headers: &mut HeaderMap, metadata: &Metadata<'_>) -> Named {
    let mut named = Named::default();
    for (name, value) in metadata.iter() {
        let pair = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
        let (Ok(name), Ok(value)) = pair else {
            debug_assert!(false, "metadata that was not checked");
            continue;
        };
        named.content_type |= name == CONTENT_TYPE;
        named.user_agent |= name == header::USER_AGENT;
        named.host |= name == header::HOST;
        if are_bad_details(&name, &value) || never_travels(&name) {
            continue;
        }
        headers.append(name, value);
    }
    named
}

/// Headers of a request without any of its own: a copy takes less than putting them together again.
static PLAIN_REQUEST: LazyLock<HeaderMap> = LazyLock::new(|| {
    HeaderMap::from_iter([(CONTENT_TYPE, GRPC), (header::USER_AGENT, USER_AGENT)])
});

/// The headers that a service sees for a request. An authority, which travels as `host`, goes into `uri`,
/// where HTTP/2 has it.
pub(crate) fn request_headers(
    timeout: Option<Duration>,
    metadata: &Metadata<'_>,
    uri: &mut http::Uri,
) -> HeaderMap {
    if metadata.is_empty() && timeout.is_none() {
        return PLAIN_REQUEST.clone();
    }
    let mut headers = HeaderMap::with_capacity(metadata.len() + 3);
    let named = read_into(&mut headers, metadata);
    if !named.content_type {
        headers.insert(CONTENT_TYPE, GRPC);
    }
    if !named.user_agent {
        headers.insert(header::USER_AGENT, USER_AGENT);
    }
    if let Some(timeout) = timeout {
        headers.insert(GRPC_TIMEOUT, format_timeout(timeout));
    }
    if named.host {
        take_authority(&mut headers, uri);
    }
    headers
}

/// Headers that a program has set, and the timeout of a request, for an end that knows nothing of HTTP: the
/// authority, which travels as `host`, is none of them.
#[inline]
pub(crate) fn own_headers(timeout: Option<Duration>, metadata: &Metadata<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if !metadata.is_empty() {
        headers.reserve(metadata.len() + 1);
        if read_into(&mut headers, metadata).host && authority(&headers).is_some() {
            headers.remove(header::HOST);
        }
    }
    if let Some(timeout) = timeout {
        headers.insert(GRPC_TIMEOUT, format_timeout(timeout));
    }
    headers
}

/// Metadata of an answer without what HTTP has beside that of its service.
pub(crate) fn without_https(metadata: MetadataMap) -> MetadataMap {
    let mut headers = metadata.into_headers();
    headers.remove(GRPC_STATUS);
    if headers.get(CONTENT_TYPE) == Some(&GRPC) {
        headers.remove(CONTENT_TYPE);
    }
    MetadataMap::from_headers(headers)
}

/// The headers of a response.
pub(crate) fn response_headers(metadata: &Metadata<'_>) -> HeaderMap {
    // With room for the trailers, which a unary call of tonic's adds.
    let mut headers = HeaderMap::with_capacity(metadata.len() + 3);
    if !read_into(&mut headers, metadata).content_type {
        headers.insert(CONTENT_TYPE, GRPC);
    }
    headers
}

/// Trailers of an answer without any of its own.
static PLAIN_TRAILERS: LazyLock<HeaderMap> =
    LazyLock::new(|| HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]));

/// The trailers of a response.
pub(crate) fn trailers(code: u8, metadata: &Metadata<'_>) -> HeaderMap {
    if code == 0 && metadata.is_empty() {
        return PLAIN_TRAILERS.clone();
    }
    let mut headers = HeaderMap::with_capacity(metadata.len() + 1);
    let status = match code {
        0 => HeaderValue::from_static("0"),
        code => HeaderValue::from(u16::from(code)),
    };
    headers.insert(GRPC_STATUS, status);
    read_into(&mut headers, metadata);
    headers
}

/// The time in a `grpc-timeout` header: up to eight digits and a unit.
///
/// See "Requests" in <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.
pub(crate) fn parse_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = find(headers, &GRPC_TIMEOUT)?.to_str().ok()?;
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

/// Names a program in the user agent of a request, behind what the request itself names.
pub(crate) fn add_user_agent(headers: &mut HeaderMap, program: &HeaderValue) {
    let both = headers.get(header::USER_AGENT).map(|own| {
        let both = [own.as_bytes(), b" ", program.as_bytes()].concat();
        HeaderValue::from_bytes(&both).expect("two values and a space")
    });
    headers.insert(header::USER_AGENT, both.unwrap_or_else(|| program.clone()));
}

/// The authority that came as `host`.
fn authority(headers: &HeaderMap) -> Option<http::uri::Authority> {
    find(headers, &header::HOST)?.as_bytes().try_into().ok()
}

/// Moves the authority that came as `host` into the URI of a request.
fn take_authority(headers: &mut HeaderMap, uri: &mut http::Uri) {
    let Some(authority) = authority(headers) else { return };
    let mut parts = uri.clone().into_parts();
    (parts.scheme, parts.authority) = (Some(http::uri::Scheme::HTTP), Some(authority));
    if let Ok(whole) = http::Uri::from_parts(parts) {
        *uri = whole;
        headers.remove(header::HOST);
    }
}

/// Sets the time in a `grpc-timeout` header.
pub(crate) fn set_timeout(headers: &mut HeaderMap, t: Duration) {
    headers.insert(GRPC_TIMEOUT, format_timeout(t));
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
mod tests;
