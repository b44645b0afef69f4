//! The caller's side: requests to send, and responses made of what comes back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use http_body::{Body as _, Frame};
use partywall_abi::frame::Metadata;
use partywall_trust::message::Way;
use tonic::Status;
use tonic::body::Body;

use super::signed::{SigningBody, VerifyingBody};
use super::{Received, Replayed};
use crate::attach;
use crate::link::attached::{Attached, Attaching};
use crate::link::caller::{self, Begun, Caller, Place, Rest};
use crate::link::mailbox::{self, Whole};
use crate::link::receiver::Came;
use crate::link::sender::{self, Source};
use crate::link::signed;
use crate::wire;

/// Why a call was not begun.
pub(crate) enum Refused {
    /// The link takes no more calls, or none without a [`Place`]; the request comes back.
    Back(Box<http::Request<Body>>),
    Status(Status),
}

/// Begins a call, in a place that was kept for it or in one that is free.
pub(crate) fn call(
    link: &Arc<Caller>,
    request: http::Request<Body>,
    place: Option<Place>,
) -> Result<Box<Call>, Refused> {
    let timeout = wire::parse_timeout(request.headers());
    let Some(open) = link.open(timeout, place).map_err(Refused::Status)? else {
        return Err(Refused::Back(Box::new(request)));
    };
    let (mut parts, body) = request.into_parts();
    let attached = attach::attached(&mut parts.extensions).map_err(Refused::Status)?;
    let path = parts.uri.into_parts().path_and_query;
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    let signed = link.signing().map(|signing| signing.call(path.path()));
    let body = match &signed {
        Some(call) => SigningBody::of(call, Way::Request, body),
        None => body,
    };
    let head = Some(Head { path, headers: parts.headers, attached });
    Ok(Box::new(Call { call: open.send(Request { head, timeout, body }), signed }))
}

struct Head {
    path: PathAndQuery,
    headers: HeaderMap,
    attached: Option<Box<Attaching>>,
}

/// A request on its way.
struct Request {
    /// Until it is sent.
    head: Option<Head>,
    timeout: Option<Duration>,
    body: Body,
}

impl Source for Request {
    fn method(&self) -> Option<&str> {
        self.head.as_ref().map(|head| head.path.path())
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        let Some(Head { path, headers, .. }) = &self.head else { return Ok(()) };
        wire::write_request_head(block, path.path(), headers, self.timeout)
    }

    fn attached(&self) -> Option<&Attaching> {
        self.head.as_ref()?.attached.as_deref()
    }

    #[inline]
    fn head_sent(&mut self) {
        self.head = None;
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            // A request ends with its data: gRPC has no trailers for it.
            Some(Ok(frame)) => frame.into_data().ok().map(Ok),
            Some(Err(status)) => Some(Err(status)),
            None => None,
        })
    }

    fn write_trailers(&self, _block: &mut Vec<u8>) -> u8 {
        unreachable!("a request has no trailers")
    }
}

impl sender::Request for Request {
    type Rest = Self;

    fn rest(self) -> Self {
        self
    }
}

/// A call whose response has not begun.
pub(crate) struct Call {
    call: caller::Call<Request>,
    /// Its messages are signed.
    signed: Option<Arc<signed::Call>>,
}

impl Call {
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<http::Response<Body>, Status>> {
        let response = ready!(self.call.poll(cx)).map(response);
        Poll::Ready(match &self.signed {
            Some(call) => response
                .map(|response| response.map(|body| VerifyingBody::of(call, Way::Reply, body))),
            None => response,
        })
    }
}

#[inline]
pub(crate) fn response(begun: Begun) -> http::Response<Body> {
    let (headers, body, attached) = match begun {
        Begun::Trailers(trailers) => {
            let mut trailers = wire::trailers(trailers.code, &trailers.metadata.get());
            trailers.entry(http::header::CONTENT_TYPE).or_insert(wire::GRPC);
            (trailers, Body::empty(), None)
        }
        Begun::Plain(data) => {
            let data = (!data.is_empty()).then_some(data);
            let whole = WholeBody { data, trailers: Some(wire::trailers(0, &Metadata::NONE)) };
            (wire::response_headers(&Metadata::NONE), Body::new(whole), None)
        }
        Begun::Whole(whole) => {
            let Whole { head, data, trailers } = *whole;
            let trailers = wire::trailers(trailers.code, &trailers.metadata.get());
            let whole = WholeBody { data, trailers: Some(trailers) };
            (wire::response_headers(&head.metadata.get()), Body::new(whole), head.attached)
        }
        Begun::Head(head, rest) => {
            let body = Body::new(Received(*rest));
            (wire::response_headers(&head.metadata.get()), body, head.attached)
        }
    };
    of(headers, body, attached)
}

/// The response whose head this is, and of whose body these bytes have come, and what came last.
pub(crate) fn replayed(
    head: mailbox::Head,
    before: Bytes,
    came: Option<Result<Came, Status>>,
    rest: Box<Rest>,
) -> http::Response<Body> {
    let body = Replayed { before, came, rest };
    of(wire::response_headers(&head.metadata.get()), Body::new(body), head.attached)
}

fn of(headers: HeaderMap, body: Body, attached: Option<Box<Attached>>) -> http::Response<Body> {
    let mut response = http::Response::new(body);
    *response.version_mut() = http::Version::HTTP_2;
    *response.headers_mut() = headers;
    attach::put(response.extensions_mut(), attached);
    response
}

/// The body of a response that came at once.
struct WholeBody {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl http_body::Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(match self.data.take() {
            Some(data) => Some(Ok(Frame::data(data))),
            None => self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }
}
