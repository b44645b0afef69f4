//! The service's side: requests made of what comes in, and responses to send.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use partywall_abi::frame::{Metadata, OwnedMetadata};
use partywall_shm::slot::SlotBuf;
use partywall_trust::message::Way;
use tonic::Status;
use tonic::body::Body;

use super::signed::{SigningBody, VerifyingBody};
use super::{Received, Replayed};
use crate::attach;
use crate::dispatch::{self, HttpDispatch, Services};
use crate::link::attached::{Attached, Attaching};
use crate::link::receiver::{Came, Receive as _, Receiver};
use crate::link::sender::Source;
use crate::link::service::{Data, Dispatch, Incoming};
use crate::link::ways::Ways;
use crate::link::whole::Whole;
use crate::peer::{Deadline, Peer};
use crate::server::routes::Routes;
use crate::stubs::gather::Gather;
use crate::stubs::message::is_sole;
use crate::stubs::{Begun, Call, Entry, Offer, Table};
use crate::telemetry;
use crate::wire;

/// Answers the calls of a link by a service of HTTP, and those that its generated services know by these.
pub(crate) struct HttpCalls {
    dispatch: Arc<dyn HttpDispatch>,
    bare: Option<Routes>,
}

impl HttpCalls {
    /// For one more link.
    pub(crate) fn of(services: &Services) -> Self {
        Self { dispatch: services.for_one(), bare: services.bare().cloned() }
    }
}

/// What a path names.
pub(crate) struct Method {
    /// That of its requests.
    uri: http::Uri,
    /// Where its service puts its table, if it may.
    table: Option<Arc<Table>>,
    /// The method in that, once it is there.
    entry: OnceLock<Option<Arc<Entry>>>,
}

impl Method {
    /// The way of its own of a call, if there is one.
    #[inline]
    fn entry(&self) -> Option<&Arc<Entry>> {
        let table = self.table.as_ref()?;
        if let Some(entry) = self.entry.get() {
            return entry.as_ref();
        }
        if !table.is_settled() {
            return None;
        }
        self.entry.get_or_init(|| table.entry(self.uri.path())).as_ref()
    }
}

impl Dispatch for HttpCalls {
    type Method = Method;
    type Handler = Handler;

    fn method(&self, path: &str) -> Option<Method> {
        // What has more than a path in it is none.
        let uri = path.parse::<http::Uri>().ok().filter(|uri| uri.path() == path)?;
        let table = self.bare.as_ref().and_then(|routes| routes.table(path)).cloned();
        Some(Method { uri, table, entry: OnceLock::new() })
    }

    fn call(&self, incoming: Incoming<'_, Method>) -> Handler {
        let Incoming { method, peer, metadata, timeout, deadline, data, attached, ways, signing } =
            incoming;
        // Signed messages are those of bodies.
        let entry = if signing.is_none() { method.entry() } else { None };
        let body = match (data, entry) {
            (Data::Stream(receiver), Some(entry)) if says_nothing_for_tonic(&metadata) => {
                let request = Parts {
                    uri: method.uri.clone(),
                    metadata: OwnedMetadata::from(&metadata),
                    timeout,
                    deadline,
                    peer,
                    attached,
                };
                return Handler::Gathering(Some(Box::new(Gathering {
                    receiver: Box::new(receiver),
                    gather: entry.gather(),
                    entry: Arc::clone(entry),
                    request,
                    dispatch: Arc::clone(&self.dispatch),
                    ways: ways.cloned(),
                })));
            }
            (Data::Whole(data), Some(entry)) if is_native(&data, &metadata) => {
                let bytes = data.data().map_or(0, Bytes::len);
                let told = telemetry::served(method.uri.path(), deadline, &peer, bytes);
                let has_own = timeout.is_some() || !metadata.is_empty();
                let headers = has_own.then(|| Box::new(wire::own_headers(timeout, &metadata)));
                let answering = entry.begin(Call { data, headers, peer, deadline, attached });
                return Handler::Native(Some(Native { answering, told }));
            }
            (Data::Whole(data), _) => Body::new(WholeBody(data)),
            (Data::Stream(receiver), _) => Body::new(Received(receiver)),
        };
        if let Some(ways) = ways {
            ways.ordinary();
        }
        let signed = signing.map(|signing| signing.called(method.uri.path()));
        let body = match &signed {
            Some(call) => VerifyingBody::of(call, Way::Request, body),
            None => body,
        };
        let mut request = request(&method.uri, (timeout, deadline), &metadata, peer, body);
        attach::put(request.extensions_mut(), attached);
        let offered = method.table.as_ref().filter(|table| !table.is_settled()).cloned();
        if let Some(table) = &offered {
            request.extensions_mut().insert(Offer(Arc::clone(table)));
        }
        let answer = self.dispatch.call(request);
        let answer: dispatch::Answer = match signed {
            Some(call) => Box::pin(async move {
                answer.await.map(|body| SigningBody::of(&call, Way::Reply, body))
            }),
            None => answer,
        };
        Handler::Http(answer, offered)
    }
}

/// A request as HTTP has it.
fn request(
    uri: &http::Uri,
    (timeout, deadline): (Option<Duration>, Option<Instant>),
    metadata: &Metadata<'_>,
    peer: Peer,
    body: Body,
) -> http::Request<Body> {
    let mut uri = uri.clone();
    let headers = wire::request_headers(timeout, metadata, &mut uri);
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    *request.uri_mut() = uri;
    request.extensions_mut().insert(peer);
    if let Some(at) = deadline {
        request.extensions_mut().insert(Deadline(at));
    }
    request
}

/// Whether a request is one message that a table takes.
#[inline]
fn is_native(data: &Whole, metadata: &Metadata<'_>) -> bool {
    data.data().is_some_and(|data| is_sole(data)) && says_nothing_for_tonic(metadata)
}

#[inline]
fn says_nothing_for_tonic(metadata: &Metadata<'_>) -> bool {
    metadata.is_empty() || metadata.iter().all(|(name, _)| !wire::OF_TONICS_SERVERS.contains(&name))
}

/// What a request says beside its message.
struct Parts {
    uri: http::Uri,
    metadata: OwnedMetadata,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    peer: Peer,
    attached: Option<Box<Attached>>,
}

/// A request that comes in several records, for a method in a table.
pub(crate) struct Gathering {
    receiver: Box<Receiver>,
    gather: Gather,
    entry: Arc<Entry>,
    request: Parts,
    dispatch: Arc<dyn HttpDispatch>,
    ways: Option<Arc<Ways>>,
}

/// How a request has come.
enum Gathered {
    /// As one message that the table takes.
    Whole,
    /// As anything else, with what came last if that was no data.
    Other(Option<Result<Came, Status>>),
}

impl Gathering {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Gathered> {
        loop {
            match ready!(self.receiver.poll(cx)) {
                Some(Ok(Came::Data(piece))) => {
                    if !self.gather.take(piece) {
                        return Poll::Ready(Gathered::Other(None));
                    }
                }
                Some(other) => return Poll::Ready(Gathered::Other(Some(other))),
                None if self.gather.is_whole() => return Poll::Ready(Gathered::Whole),
                None => return Poll::Ready(Gathered::Other(None)),
            }
            if self.gather.is_whole() && self.receiver.is_drained() {
                return Poll::Ready(Gathered::Whole);
            }
        }
    }

    /// What answers it.
    fn handler(self, gathered: Gathered) -> Handler {
        let Self { receiver, gather, entry, request: parts, dispatch, ways } = self;
        let Parts { uri, metadata, timeout, deadline, peer, attached } = parts;
        let (metadata, bytes) = (metadata.get(), gather.into_bytes());
        match gathered {
            Gathered::Whole => {
                let told = telemetry::served(uri.path(), deadline, &peer, bytes.len());
                let has_own = timeout.is_some() || !metadata.is_empty();
                let headers = has_own.then(|| Box::new(wire::own_headers(timeout, &metadata)));
                let data = Whole::gathered(bytes, receiver);
                let answering = entry.begin(Call { data, headers, peer, deadline, attached });
                Handler::Native(Some(Native { answering, told }))
            }
            Gathered::Other(came) => {
                if let Some(ways) = ways {
                    ways.ordinary();
                }
                let body = Body::new(Replayed { before: bytes, came, rest: receiver });
                let mut request = request(&uri, (timeout, deadline), &metadata, peer, body);
                attach::put(request.extensions_mut(), attached);
                Handler::Http(dispatch.call(request), None)
            }
        }
    }
}

const GONE: &str = "polled after the end";

/// A handler at work.
pub(crate) enum Handler {
    /// With the table that its request has offered to fill.
    Http(dispatch::Answer, Option<Arc<Table>>),
    Native(Option<Native>),
    Gathering(Option<Box<Gathering>>),
}

/// A handler in the table of a generated service.
pub(crate) struct Native {
    answering: Begun,
    told: Option<Box<telemetry::Handling>>,
}

impl Handler {
    /// Ready when all of a request has come: it is a handler at work then.
    #[inline(never)]
    fn poll_gathered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Gathering(gathering) = self {
            let gathered = ready!(gathering.as_mut().expect(GONE).poll(cx));
            *self = gathering.take().expect(GONE).handler(gathered);
        }
        Poll::Ready(())
    }
}

impl Future for Handler {
    type Output = Answer;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        if let Self::Gathering(_) = &*self {
            ready!(self.poll_gathered(cx));
        }
        match &mut *self {
            Self::Http(handler, offered) => {
                let response = ready!(handler.as_mut().poll(cx));
                if let Some(table) = offered.take() {
                    table.settle();
                }
                Poll::Ready(Answer::Http(Box::new(HttpAnswer::new(response))))
            }
            Self::Gathering(_) => unreachable!("it is gathered"),
            Self::Native(handler) => {
                let native = handler.as_mut().expect(GONE);
                let mut poll = || native.answering.poll_answer(cx);
                ready!(match &mut native.told {
                    None => poll(),
                    Some(told) => told.handle(poll),
                });
                Poll::Ready(Answer::Native(handler.take().expect("it was there")))
            }
        }
    }
}

/// An answer on its way.
pub(crate) enum Answer {
    // It is large, and a call is moved a few times.
    Http(Box<HttpAnswer>),
    Native(Native),
}

impl Source for Answer {
    fn method(&self) -> Option<&str> {
        None
    }

    fn has_head(&self) -> bool {
        match self {
            Self::Http(answer) => answer.head.is_some(),
            Self::Native(native) => native.answering.has_head(),
        }
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        match self {
            Self::Http(answer) => answer.write_head(block),
            Self::Native(native) => native.answering.write_head(block),
        }
    }

    fn attached(&self) -> Option<&Attaching> {
        match self {
            Self::Http(answer) => answer.attached.as_deref(),
            Self::Native(native) => native.answering.attached(),
        }
    }

    fn head_sent(&mut self) {
        match self {
            Self::Http(answer) => (answer.head, answer.attached) = (None, None),
            Self::Native(native) => native.answering.head_sent(),
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            Self::Http(answer) => answer.poll_data(cx),
            Self::Native(native) => {
                let data = native.answering.take_data();
                // As by the ordinary way: who gives the message away has answered, whoever takes it.
                if let Some(Ok(data)) = &data
                    && let Some(told) = native.told.take()
                {
                    told.answered(0, data.len());
                }
                Poll::Ready(data)
            }
        }
    }

    fn whole(&self) -> Option<usize> {
        match self {
            Self::Http(_) => None,
            Self::Native(native) => native.answering.whole(),
        }
    }

    fn write_whole(&mut self, out: &mut SlotBuf<'_>) -> bool {
        match self {
            Self::Http(_) => unreachable!("it has no data that are whole"),
            Self::Native(native) => native.answering.write_whole(out),
        }
    }

    fn encoded(&mut self) {
        if let Self::Native(native) = self {
            native.answering.encoded();
        }
    }

    fn is_plain(&self) -> bool {
        match self {
            Self::Http(_) => false,
            Self::Native(native) => native.answering.is_plain(),
        }
    }

    fn answered(&mut self, code: u8, data: usize) {
        if let Self::Native(Native { told: Some(told), .. }) = self {
            told.answered(code, data);
        }
    }

    fn write_trailers(&self, block: &mut Vec<u8>) -> u8 {
        match self {
            Self::Http(answer) => answer.write_trailers(block),
            Self::Native(native) => native.answering.write_trailers(block),
        }
    }
}

/// A response on its way.
pub(crate) struct HttpAnswer {
    /// None of a status alone.
    head: Option<HeaderMap>,
    attached: Option<Box<Attaching>>,
    body: Body,
    trailers: Option<HeaderMap>,
}

impl HttpAnswer {
    #[inline]
    fn new(response: http::Response<Body>) -> Self {
        let has_status = wire::find(response.headers(), &wire::GRPC_STATUS).is_some();
        if !has_status && response.status() != http::StatusCode::OK {
            return Self::status(wire::headers_of(&wire::http_status(&response)));
        }
        let (mut parts, body) = response.into_parts();
        if has_status {
            // Trailers only: there is no message.
            return Self::status(parts.headers);
        }
        let attached = match attach::attached(&mut parts.extensions) {
            Ok(attached) => attached,
            Err(status) => return Self::status(wire::headers_of(&status)),
        };
        Self { head: Some(parts.headers), attached, body, trailers: None }
    }

    fn status(trailers: HeaderMap) -> Self {
        Self { head: None, attached: None, body: Body::empty(), trailers: Some(trailers) }
    }

    fn write_head(&self, block: &mut Vec<u8>) -> Result<(), Status> {
        self.head.as_ref().map_or(Ok(()), |head| wire::write_response_head(block, head))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Some(Ok(data)),
                Err(frame) => {
                    self.trailers = frame.into_trailers().ok();
                    None
                }
            },
            Some(Err(status)) => Some(Err(status)),
            None => None,
        })
    }

    fn write_trailers(&self, block: &mut Vec<u8>) -> u8 {
        match &self.trailers {
            Some(trailers) => wire::write_trailers(block, trailers),
            None => wire::write_status(block, &wire::no_trailers()),
        }
    }
}

/// The body of a request that came at once.
struct WholeBody(Whole);

impl http_body::Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}
