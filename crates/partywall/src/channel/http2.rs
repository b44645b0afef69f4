//! Calls over HTTP/2, by tonic's own client, with the meaning that they have on a ring.
//!
//! ```text
//! call:    head and body out -> head or status -> body -> trailers
//!            |                     |                 |
//!            the deadline passes, or the call is dropped, at any point:
//!            the request's body fails, which resets the stream, and the response's is dropped
//! ```
//!
//! tonic ends its own timer with the response's head, and calls what it finds then CANCELLED; HTTP/2
//! lets a request go on when nobody wants the response any more, and shows a stream that the server
//! has reset as one that ended well. So this module has a timer of its own for the whole call, a
//! way to end the request's body, and looks at the clock where a call ends otherwise than by
//! trailers: from the deadline on that is DEADLINE_EXCEEDED, as in gRPC's other libraries.
//!
//! Where a name has several addresses ([`super::remotes`]), the call takes the next connection that is up. It
//! takes another one when that proves to be over before anything of the call has been sent.
//!
//! A connection of age is ended by GOAWAY, which can cross a call on its way. Its server has not seen
//! that one (RFC 9113, section 6.8), so it is sent again on the next connection, as gRPC's transparent
//! retries: if its request has begun nowhere, or was taken whole and has at most [`KEPT`] bytes.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tonic::body::Body;
pub(super) use tonic::transport::Channel as Transport;
use tonic::{Code, Status};
use tower::ServiceExt;

use super::remotes::{Remotes, Under};
use super::settings::Answer;
use crate::attach;
use crate::error::{Error, chain};
use crate::lock::lock;
use crate::status::expired;
use crate::tls::Unpinned;
use crate::waker::register;
use crate::wire;

/// How often a call is sent that no server has seen.
const ATTEMPTS: u32 = 8;
/// Bytes of a request that are kept to be sent again.
const KEPT: usize = 64 * 1024;

/// Where calls go.
pub(super) enum Way {
    /// To one address.
    One(Transport),
    /// To the next of those of a name.
    OneOf(Arc<Remotes>),
}

impl Way {
    /// The connection for a call, and what says that the call is under way.
    async fn pick(&self) -> Result<(Transport, Option<Under>), Status> {
        match self {
            Self::One(transport) => Ok((transport.clone(), None)),
            Self::OneOf(remotes) => {
                let (transport, under) = remotes.pick().await?;
                Ok((transport, Some(under)))
            }
        }
    }

    /// Whether nothing of a call was sent, because the connection was over before, and another one may be up.
    fn is_another_up_after(&self, error: &tonic::transport::Error) -> bool {
        matches!(self, Self::OneOf(_)) && chain(error).any(|e| e.is::<tonic::ConnectError>())
    }
}

/// Begins a call.
pub(super) fn begin(way: Way, request: http::Request<Body>) -> Answer {
    let timeout = wire::parse_timeout(request.headers());
    let ends = timeout.and_then(|t| Instant::now().checked_add(t));
    Box::pin(async move {
        let mut request = request;
        attach::refuse_over_http2(request.extensions_mut())?;
        wire::check_request(request.uri().path(), request.headers())?;
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(expired());
        }
        let mut timer = ends.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let (mut head, body) = request.into_parts();
        wire::of_a_call(&mut head.headers);
        let body = Arc::new(Outgoing {
            request: Mutex::new(Request::Whole(body)),
            failure: OnceLock::new(),
        });
        let mut attempts = 0;
        let (mut response, cancel, under) = loop {
            let picked = tokio::select! {
                biased;
                picked = way.pick() => picked,
                () = wait(&mut timer) => return Err(expired()),
            };
            let (transport, under) = picked?;
            let (cancel, gone) = oneshot::channel();
            let cancel = Cancel(Some(cancel));
            let sent = Sent { from: Arc::clone(&body), body: None, gone: Some(gone) };
            let request = http::Request::from_parts(head.clone(), Body::new(sent));
            let answer = tokio::select! {
                biased;
                answer = transport.oneshot(request) => answer,
                () = wait(&mut timer) => return Err(expired()),
            };
            attempts += 1;
            match answer {
                Ok(response) => break (response, cancel, under),
                // The server has not seen the call.
                Err(error)
                    if attempts < ATTEMPTS
                        && (body.can_be_sent_after(&error)
                            || (body.is_whole() && way.is_another_up_after(&error))) => {}
                Err(error) => {
                    let failure = body.failure.get().cloned();
                    return Err(failure.unwrap_or_else(|| meaning(error.into(), ends)));
                }
            }
        };
        wire::without_bad_details(response.headers_mut());
        if response.status() == http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
            return Err(Status::resource_exhausted("the server takes no metadata of this size"));
        }
        let status = Status::from_header_map(response.headers());
        let has_status = status.is_some();
        if !has_status && response.status() == http::StatusCode::OK {
            wire::check_response(response.headers())?;
        }
        match status {
            Some(status) if status.code() == Code::Cancelled && passed(ends) => {
                return Err(expired());
            }
            None if response.status() != http::StatusCode::OK => {
                return Err(wire::http_status(&response));
            }
            _ => {}
        }
        let sent = body;
        Ok(response.map(|body| {
            let (kept, over, ended, reader) = (VecDeque::new(), false, false, None);
            let live = Live { body, sent, cancel, under, kept, over, ended, reader, has_status };
            Body::new(Received::new(live, timer, ends))
        }))
    })
}

/// Whether a connection that ends has given a request back.
fn is_canceled(error: &tonic::transport::Error) -> bool {
    chain(error).any(|e| e.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled))
}

/// Whether a call comes after the last one that its server takes (RFC 9113, section 6.8), or was refused
/// before the server did anything for it (section 8.7).
fn is_refused(error: &tonic::transport::Error) -> bool {
    chain(error).filter_map(|e| e.downcast_ref::<h2::Error>()).any(|e| match e.reason() {
        Some(h2::Reason::NO_ERROR) => e.is_remote() && e.is_go_away(),
        reason => e.is_remote() && reason == Some(h2::Reason::REFUSED_STREAM),
    })
}

async fn wait(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

fn passed(ends: Option<Instant>) -> bool {
    ends.is_some_and(|at| Instant::now() >= at)
}

/// The status of a call that ended without one of the server's.
fn meaning(error: Box<dyn StdError + Send + Sync>, ends: Option<Instant>) -> Status {
    if let Some(unpinned) = chain(&*error).find_map(Unpinned::of) {
        return Error::NotPinned { text: unpinned.to_string() }.into();
    }
    // A connection that is gone says so by any of these.
    let lost = chain(&*error).any(|e| {
        e.is::<io::Error>()
            || e.downcast_ref::<h2::Error>().is_some_and(|e| e.is_io() || e.is_go_away())
            || e.downcast_ref::<hyper::Error>().is_some_and(|e| e.is_closed() || e.is_canceled())
    });
    let status = Status::from_error(error);
    match status.code() {
        Code::Cancelled if passed(ends) => expired(),
        Code::Unavailable => status,
        _ if lost => Status::unavailable(format!("the connection was lost: {}", status.message())),
        _ => status,
    }
}

/// Ends the request's body when it is dropped.
struct Cancel(Option<oneshot::Sender<()>>);

impl Drop for Cancel {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            // All of the body may have been sent.
            let _sent = cancel.send(());
        }
    }
}

/// A request's body, and how it has failed.
struct Outgoing {
    request: Mutex<Request>,
    failure: OnceLock<Status>,
}

/// How far a request's body has been taken.
enum Request {
    /// By no connection.
    Whole(Body),
    /// These pieces are all so far, and this many bytes.
    Begun(Vec<Bytes>, usize),
    /// These pieces are all of it.
    Ended(Vec<Bytes>),
    /// It was too long to keep, or has failed.
    Gone,
}

impl Outgoing {
    /// Whether the call can be sent once more: no server has seen it, and the body is whole, or is made so.
    fn can_be_sent_after(&self, error: &tonic::transport::Error) -> bool {
        if is_refused(error) {
            return self.rewind();
        }
        is_canceled(error) && self.is_whole()
    }

    /// Whether no connection has taken any of it.
    fn is_whole(&self) -> bool {
        matches!(*lock(&self.request), Request::Whole(_))
    }

    /// Makes the body whole again; false when that is impossible.
    fn rewind(&self) -> bool {
        let mut request = lock(&self.request);
        if let Request::Ended(pieces) = &mut *request {
            let pieces = std::mem::take(pieces).into_iter();
            let frames = pieces.map(|piece| Ok::<_, Status>(Frame::data(piece)));
            let body = http_body_util::StreamBody::new(tokio_stream::iter(frames));
            *request = Request::Whole(Body::new(body));
        }
        matches!(*request, Request::Whole(_))
    }

    fn take(&self) -> Body {
        let mut request = lock(&self.request);
        match std::mem::replace(&mut *request, Request::Begun(Vec::new(), 0)) {
            Request::Whole(body) => body,
            _ => Body::empty(),
        }
    }

    /// Notes what a connection has taken, and whether it is the last.
    fn keep(&self, taken: Option<&Result<Frame<Bytes>, Status>>, last: bool) {
        let mut request = lock(&self.request);
        let Request::Begun(pieces, len) = &mut *request else { return };
        let kept = match taken {
            None => true,
            Some(Ok(frame)) => frame.data_ref().is_some_and(|data| {
                *len += data.len();
                pieces.push(data.clone());
                *len <= KEPT
            }),
            Some(Err(_)) => false,
        };
        if !kept {
            *request = Request::Gone;
        } else if last {
            *request = Request::Ended(std::mem::take(pieces));
        }
    }
}

/// The body of a request on a connection, until the call ends.
struct Sent {
    from: Arc<Outgoing>,
    body: Option<Body>,
    gone: Option<oneshot::Receiver<()>>,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(gone) = &mut self.gone
            && Pin::new(gone).poll(cx).is_ready()
        {
            (self.body, self.gone) = (Some(Body::empty()), None);
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        }
        let this = &mut *self;
        let body = this.body.get_or_insert_with(|| this.from.take());
        let polled = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
        let last = polled.is_none() || body.is_end_stream();
        this.from.keep(polled.as_ref(), last);
        if let Some(Err(status)) = &polled {
            // What resets the stream says less.
            let _first = this.from.failure.set(status.clone());
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_some_and(http_body::Body::is_end_stream)
    }
}

/// A response's body until the call ends, for who reads it and for who watches the deadline.
struct Live {
    body: Body,
    sent: Arc<Outgoing>,
    cancel: Cancel,
    /// Says that the call is under way.
    under: Option<Under>,
    /// What had come when the deadline passed.
    kept: VecDeque<Frame<Bytes>>,
    /// The deadline has passed before the end.
    over: bool,
    ended: bool,
    reader: Option<Waker>,
    /// The status is known from the head, so that no trailers come.
    has_status: bool,
}

impl Live {
    fn end(&mut self) {
        self.ended = true;
        self.under = None;
        self.body = Body::empty();
        drop(Cancel(self.cancel.0.take()));
    }

    /// Ends the call; what has come can still be read, as on a ring.
    fn expire(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.body).poll_frame(&mut cx) {
            let last = frame.is_trailers();
            self.kept.push_back(sound(frame));
            if last {
                return self.end();
            }
        }
        self.over = true;
        self.end();
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ends: Option<Instant>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.kept.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.ended {
            let over = std::mem::take(&mut self.over);
            return Poll::Ready(over.then(|| Err(expired())));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if frame.is_trailers() {
                    self.end();
                }
                Poll::Ready(Some(Ok(sound(frame))))
            }
            Poll::Ready(Some(Err(status))) => {
                self.end();
                let failure = self.sent.failure.get().cloned();
                Poll::Ready(Some(Err(failure.unwrap_or_else(|| meaning(status.into(), ends)))))
            }
            // A reset looks like a good end.
            Poll::Ready(None) => {
                self.end();
                let failure = self.sent.failure.get().cloned();
                Poll::Ready(match passed(ends) {
                    true => Some(Err(expired())),
                    false if self.has_status => None,
                    false => Some(Err(failure.unwrap_or_else(|| Status::unknown(NO_STATUS)))),
                })
            }
            Poll::Pending => {
                register(&mut self.reader, cx);
                Poll::Pending
            }
        }
    }
}

fn sound(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            wire::without_bad_details(&mut trailers);
            // As on a ring: what belongs to a good answer is not left out unsaid.
            let good = wire::is_ok(&trailers);
            Frame::trailers(good.then(|| wire::fit(&trailers)).flatten().unwrap_or(trailers))
        }
        Err(data) => data,
    }
}

const NO_STATUS: &str = "the response ended without a status: the server has reset the stream, or speaks \
                         no gRPC";

/// The body of a response. Dropping it before its end cancels the call.
struct Received {
    live: Arc<Mutex<Live>>,
    ends: Option<Instant>,
    /// Ends the call by the deadline, whether anybody reads or not.
    watch: Option<AbortHandle>,
}

impl Received {
    fn new(live: Live, timer: Option<Pin<Box<Sleep>>>, ends: Option<Instant>) -> Self {
        let live = Arc::new(Mutex::new(live));
        let watch = timer.map(|timer| {
            let live = Arc::clone(&live);
            let watch = tokio::spawn(async move {
                timer.await;
                let mut live = lock(&live);
                if !live.ended {
                    live.expire();
                }
                let reader = live.reader.take();
                drop(live);
                reader.into_iter().for_each(Waker::wake);
            });
            watch.abort_handle()
        });
        Self { live, ends, watch }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
        lock(&self.live).end();
    }
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        lock(&self.live).poll(cx, self.ends)
    }

    fn is_end_stream(&self) -> bool {
        let live = lock(&self.live);
        live.ended && !live.over && live.kept.is_empty()
    }
}
