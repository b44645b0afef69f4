//! The native way of a call, from its request to its answer.
//!
//! ```text
//! goes natively?    a request with no extension but attachments, and no metadata with a meaning for tonic
//!                     no: tonic's way
//! a ring?           a link that takes calls
//!                     none: tonic's way, with the request as it was
//! a demand?         of that very link                                            [`super::demand`]
//!                     it is below: FAILED_PRECONDITION
//! plain frame       nothing beside the message, its method has a number, and there is room, credit and a
//!                   place: encoded into the reserved record and sent                           [`begin`]
//! other request     a call is opened, and sent in one record or in pieces                [`begin_other`]
//! answer            one good message is decoded here, from one record or several; tonic reads any other one
//! ```
//!
//! | what happens | what the call comes to |
//! |---|---|
//! | its future is dropped | it is reset, and its handler is dropped |
//! | its deadline passes | it is reset: DEADLINE_EXCEEDED |
//! | the right to the method is gone | the service resets it: PERMISSION_DENIED |
//! | the link ends, or the service dies | UNAVAILABLE, or what the link says |
//! | its message is longer or shorter than it has said | it is sent as it is, from other memory |
//! | its message panics | nothing has gone out; the panic is the caller's |

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use partywall_abi::frame::{self, MethodName, OwnedMetadata, RequestHead};
use partywall_shm::slot::SlotBuf;
use tonic::body::Body;
use tonic::codegen::tokio_stream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tower::Service;

use super::codec::Codec;
use super::demand::Requires;
use super::gather::Gather;
use super::message::{self, Encode, Outgoing, Settings};
use super::method::Method;
use super::unary::Messages;
use crate::Channel;
use crate::attach;
use crate::channel::Connection;
use crate::http_calls;
use crate::link::attached::Attaching;
use crate::link::caller::{Begun, Call, Caller, Reply, Rest};
use crate::link::mailbox::{self, Whole};
use crate::link::receiver::{self, Receive as _};
use crate::link::sender::{self, Source};
use crate::telemetry;
use crate::wire::{self, PREFIX};

/// Whether a request has nothing that only tonic's way knows of.
fn goes_natively(call: &mut dyn Messages) -> bool {
    let extensions = call.extensions();
    if !extensions.is_empty() && extensions.len() > attach::count(extensions) {
        return false;
    }
    let metadata = call.metadata();
    metadata.is_empty()
        || wire::NOT_SENT
            .iter()
            .chain(&wire::OF_TONICS_CLIENTS)
            .all(|name| !metadata.contains_key(*name))
}

/// Who is told of a call.
struct Told {
    call: Option<Arc<telemetry::Call>>,
    /// Bytes of the request, if it has gone out.
    sent: Option<usize>,
}

impl Told {
    /// Polls a part of the call, within its span if it has one.
    #[inline]
    fn guarded<T>(&self, part: impl FnOnce() -> T) -> T {
        match &self.call {
            None => part(),
            Some(call) => call.guarded(part),
        }
    }

    /// The call has ended with so many bytes.
    #[inline]
    fn end(&self, received: Result<usize, &Status>) {
        match (&self.call, self.sent) {
            (None, _) => {}
            (Some(call), Some(sent)) => call.exchanged(sent, received.map_err(Status::code)),
            (Some(call), None) => call.end(received.map_or_else(Status::code, |_| Code::Ok)),
        }
    }
}

/// Makes a call, if it may go the native way now; else nothing has changed.
pub(super) async fn call(
    channel: &Channel,
    call: &mut dyn Messages,
    settings: Settings,
    requires: impl Requires,
) -> Option<Result<(), Status>> {
    if !goes_natively(call) {
        return None;
    }
    let ring = channel.ring()?;
    let (sent, told) = begin(&ring, call, settings, requires)?;
    let begun = match sent {
        Ok(Sent::Plain(mut reply)) => poll_fn(|cx| told.guarded(|| reply.poll(cx))).await,
        Ok(Sent::Other(mut answer)) => poll_fn(|cx| told.guarded(|| answer.poll(cx))).await,
        Err(status) => Err(status),
    };
    let most = settings.decoded;
    let answer = match begun.map(|begun| sole_answer(call, begun, most)) {
        Ok(Ok(answer)) => answer,
        // Kept apart, so that other calls have no room for it.
        Ok(Err(begun)) => Box::pin(other_answer(call, begun, most)).await,
        Err(status) => Err(status),
    };
    told.end(answer.as_ref().map(|received| *received));
    Some(answer.map(drop))
}

/// What brings the answer of a call that has begun.
enum Sent<'a> {
    /// Its request has gone out as a plain frame.
    Plain(Reply),
    // It is large: calls that are plain have no room for it.
    Other(Box<Call<Request<'a>>>),
}

/// Begins a call over a ring; none when its link takes no more.
#[inline]
fn begin<'a>(
    ring: &Connection,
    call: &'a mut dyn Messages,
    settings: Settings,
    requires: impl Requires,
) -> Option<(Result<Sent<'a>, Status>, Told)> {
    let link = ring.link()?;
    let method = call.method();
    let mut told = Told { call: telemetry::call_of(method.path), sent: None };
    if let Some(call) = &told.call {
        ring.route().tell(call);
    }
    if let Err(status) = requires.check(|| ring.security()) {
        return Some((Err(status), told));
    }
    if call.metadata().is_empty() && call.extensions().is_empty() {
        let message = match Outgoing::new(call.message(), settings.encoded) {
            Ok(message) => message,
            Err(status) => return Some((Err(status), told)),
        };
        let sent = Some(message.len());
        let head = Head { method, number: None, metadata: None, timeout: None, attached: None };
        let mut request = Request { head, message: Message::ToEncode(message) };
        let plain = told.guarded(|| link.call_plain(method.index(), &mut request));
        if let Some(reply) = plain {
            told.sent = sent;
            return Some((Ok(Sent::Plain(reply)), told));
        }
    }
    begin_other(link, call, settings, told)
}

/// Begins a call whose request is no plain frame, or has to wait.
#[inline(never)]
fn begin_other<'a>(
    link: &Arc<Caller>,
    call: &'a mut dyn Messages,
    settings: Settings,
    mut told: Told,
) -> Option<(Result<Sent<'a>, Status>, Told)> {
    let method = call.method();
    let metadata = call.metadata();
    let metadata = match metadata.is_empty() {
        true => None,
        false => Some(Box::new(mem::take(metadata).into_headers())),
    };
    let timeout = metadata.as_ref().and_then(|metadata| wire::parse_timeout(metadata));
    let said = match Outgoing::new(call.message(), settings.encoded) {
        Ok(message) => message.said(),
        Err(status) => return Some((Err(status), told)),
    };
    let sent = match link.open(timeout, None) {
        Ok(Some(open)) => {
            let attached = match attach::attached(call.extensions()) {
                Ok(attached) => attached,
                Err(status) => return Some((Err(status), told)),
            };
            let message = Outgoing::again(call.message(), said, settings.encoded);
            told.sent = Some(message.len());
            let number = open.number(method.index(), method.path);
            let head = Head { method, number, metadata, timeout, attached };
            let message = Message::ToEncode(message);
            Ok(Sent::Other(Box::new(open.send(Request { head, message }))))
        }
        Ok(None) => {
            give_back(call, metadata, told.call);
            return None;
        }
        Err(status) => Err(status),
    };
    Some((sent, told))
}

/// A call goes on elsewhere as it was.
#[cold]
fn give_back(
    call: &mut dyn Messages,
    metadata: Option<Box<HeaderMap>>,
    told: Option<Arc<telemetry::Call>>,
) {
    if let Some(metadata) = metadata {
        *call.metadata() = MetadataMap::from_headers(*metadata);
    }
    if let Some(told) = told {
        // Its span and its metrics go on there.
        call.extensions().insert(telemetry::Underway(told));
    }
}

/// Takes an answer that is one good message in one record; how many bytes it had. Its metadata is what the
/// service has set. Another one comes back.
#[inline]
fn sole_answer(
    call: &mut dyn Messages,
    begun: Begun,
    most: Option<usize>,
) -> Result<Result<usize, Status>, Begun> {
    let (data, metadata) = match begun {
        Begun::Plain(data) if message::is_sole(&data) => (data, None),
        Begun::Whole(whole) if is_sole(&whole) => {
            let Whole { head, data, trailers } = *whole;
            let mailbox::Head { metadata, attached } = head;
            (data.unwrap_or_default(), Some((metadata, trailers.metadata, attached)))
        }
        begun => return Err(begun),
    };
    let received = data.len();
    let message = match message::unprefixed(data, most) {
        Ok(message) => call.decode(message).map_err(message::undecoded),
        Err(status) => Err(status),
    };
    let own = |metadata: &OwnedMetadata| {
        MetadataMap::from_headers(wire::own_headers(None, &metadata.get()))
    };
    Ok(match (message, metadata) {
        (Ok(_none), None) => Ok(received),
        (Ok(headers), Some((head, trailers, attached))) => {
            *headers = own(&head);
            if !trailers.get().is_empty() {
                merge(headers, own(&trailers));
            }
            call.put(attached);
            Ok(received)
        }
        (Err(mut status), metadata) => {
            if let Some((head, ..)) = metadata {
                merge(status.metadata_mut(), own(&head));
            }
            Err(status)
        }
    })
}

/// Whether metadata say nothing of compression or of a status, which is tonic's business.
fn is_own(metadata: &OwnedMetadata) -> bool {
    metadata.get().iter().all(|(name, _)| !wire::OF_ANSWERS.contains(&name))
}

/// Whether it has one good message, and its metadata say no more.
fn is_sole(whole: &Whole) -> bool {
    whole.trailers.code == 0
        && whole.data.as_ref().is_some_and(|data| message::is_sole(data))
        && is_own(&whole.head.metadata)
        && is_own(&whole.trailers.metadata)
}

/// Takes an answer that has come to its end, for who has no runtime; how many bytes its message had.
#[cfg(feature = "blocking")]
pub(crate) fn whole_answer(
    call: &mut dyn Messages,
    begun: Begun,
    most: Option<usize>,
) -> Result<usize, Status> {
    let begun = match sole_answer(call, begun, most) {
        Ok(answer) => return answer,
        Err(begun) => begun,
    };
    let answer = std::pin::pin!(other_answer(call, begun, most));
    match answer.poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("all of it is there"),
    }
}

/// Takes an answer that does not come in one record, or is not one good message, which tonic reads. How many
/// bytes its message had.
async fn other_answer(
    call: &mut dyn Messages,
    begun: Begun,
    most: Option<usize>,
) -> Result<usize, Status> {
    let response = match begun {
        Begun::Head(head, rest) if is_own(&head.metadata) => match gathered(head, rest, most).await
        {
            Ok(whole) => match sole_answer(call, Begun::Whole(Box::new(whole)), most) {
                Ok(answer) => return answer,
                Err(begun) => http_calls::caller::response(begun),
            },
            Err(response) => response,
        },
        begun => http_calls::caller::response(begun),
    };
    let mut grpc = tonic::client::Grpc::new(Came(Some(response)));
    if let Some(most) = most {
        grpc = grpc.max_decoding_message_size(most);
    }
    let (path, codec) = (PathAndQuery::from_static(call.method().path), Codec::new(call.decoder()));
    // The request has gone out.
    let none = tonic::Request::new(tokio_stream::empty::<Box<dyn Encode>>());
    match grpc.client_streaming(none, path, codec).await {
        Ok(response) => {
            let (metadata, message, extensions) = response.into_parts();
            let (metadata, received) = (wire::without_https(metadata), PREFIX + message.len);
            call.answered(tonic::Response::from_parts(metadata, message, extensions));
            Ok(received)
        }
        Err(mut status) => {
            let metadata = mem::take(status.metadata_mut());
            *status.metadata_mut() = wire::without_https(metadata);
            Err(status)
        }
    }
}

/// Puts an answer together that comes in several records. One that is not one message and good trailers is as
/// HTTP has it.
async fn gathered(
    head: mailbox::Head,
    mut rest: Box<Rest>,
    most: Option<usize>,
) -> Result<Whole, http::Response<Body>> {
    let mut gather = Gather::new(most);
    let came = loop {
        match poll_fn(|cx| rest.poll(cx)).await {
            Some(Ok(receiver::Came::Data(piece))) => {
                if !gather.take(piece) {
                    break None;
                }
            }
            Some(Ok(receiver::Came::Trailers(trailers))) if gather.is_whole() => {
                let data = Some(gather.into_bytes());
                return Ok(Whole { head, data, trailers });
            }
            other => break other,
        }
    };
    Err(http_calls::caller::replayed(head, gather.into_bytes(), came, rest))
}

/// A response that has come, for tonic to take.
struct Came(Option<http::Response<Body>>);

impl Service<http::Request<Body>> for Came {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<Body>) -> Self::Future {
        ready(Ok(self.0.take().expect("it is asked for once")))
    }
}

fn merge(metadata: &mut MetadataMap, more: MetadataMap) {
    let mut headers = mem::take(metadata).into_headers();
    headers.extend(more.into_headers());
    *metadata = MetadataMap::from_headers(headers);
}

/// What a request says beside its message.
struct Head {
    method: &'static Method,
    number: Option<u16>,
    metadata: Option<Box<HeaderMap>>,
    timeout: Option<Duration>,
    attached: Option<Box<Attaching>>,
}

impl Head {
    fn write(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        let path = MethodName::Path(self.method.path);
        let name = self.number.map_or(path, MethodName::Number);
        let Some(metadata) = &self.metadata else {
            let head = |out: &mut Vec<u8>| RequestHead::write(out, self.timeout, name, 0);
            return match frame::write_block(block, head) {
                Some(_len) => Ok(()),
                None => Err(Status::internal("a path that is too long")),
            };
        };
        wire::write_request_head(block, name, metadata, self.timeout)
    }
}

/// A request on its way.
struct Request<'a> {
    head: Head,
    message: Message<'a>,
}

enum Message<'a> {
    ToEncode(Outgoing<'a>),
    /// As it is once its answer has begun; or why there is none.
    Encoded(Result<Bytes, Status>),
    Taken,
}

impl Message<'_> {
    fn take(&mut self) -> Option<Result<Bytes, Status>> {
        match mem::replace(self, Self::Taken) {
            Self::ToEncode(message) => Some(message.bytes()),
            Self::Encoded(bytes) => Some(bytes),
            Self::Taken => None,
        }
    }

    #[inline]
    fn to_encode(&self) -> Option<&Outgoing<'_>> {
        match self {
            Self::ToEncode(message) => Some(message),
            Self::Encoded(_) | Self::Taken => None,
        }
    }
}

impl Source for Request<'_> {
    #[inline]
    fn is_plain(&self) -> bool {
        self.head.metadata.is_none() && self.head.attached.is_none()
    }

    fn method(&self) -> Option<&str> {
        Some(self.head.method.path)
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        self.head.write(block)
    }

    fn attached(&self) -> Option<&Attaching> {
        self.head.attached.as_deref()
    }

    fn head_sent(&mut self) {
        (self.head.metadata, self.head.attached) = (None, None);
    }

    fn poll_data(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        Poll::Ready(self.message.take())
    }

    #[inline]
    fn whole(&self) -> Option<usize> {
        self.message.to_encode().map(Outgoing::len)
    }

    #[inline]
    fn write_whole(&mut self, out: &mut SlotBuf<'_>) -> bool {
        self.message.to_encode().is_some_and(|message| message.encode_in_place(out))
    }

    fn encoded(&mut self) {
        self.message = Message::Taken;
    }

    fn write_trailers(&self, _block: &mut Vec<u8>) -> u8 {
        unreachable!("a request has no trailers")
    }
}

impl sender::Request for Request<'_> {
    type Rest = Request<'static>;

    fn rest(mut self) -> Request<'static> {
        let message = self.message.take().map_or(Message::Taken, Message::Encoded);
        Request { head: self.head, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::mailbox::Trailers;
    use frame::ResponseHead;

    fn metadata(entries: &[(&'static str, &'static str)]) -> OwnedMetadata {
        let entries =
            entries.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let mut block = Vec::new();
        wire::write_response_head(&mut block, &HeaderMap::from_iter(entries)).unwrap();
        OwnedMetadata::from(&ResponseHead::decode(&block[4..]).unwrap())
    }

    #[test]
    fn an_answer_that_says_more_than_its_message_is_tonics() {
        let whole = |head: &[_], trailers: &[_]| Whole {
            head: mailbox::Head { metadata: metadata(head), attached: None },
            data: Some(Bytes::from_static(&[0; PREFIX])),
            trailers: Trailers { code: 0, metadata: metadata(trailers) },
        };
        let own = [("x-own", "yes")];
        assert!(is_sole(&whole(&own, &own)));
        for says in [("grpc-encoding", "gzip"), ("grpc-status", "7")] {
            assert!(!is_sole(&whole(&[own[0], says], &own)), "{says:?}");
            assert!(!is_sole(&whole(&own, &[says])), "{says:?}");
        }
    }
}
