//! Spans and metrics of calls and links.
//!
//! ```text
//! Channel, blocking::Channel -- client() --> Call --\
//!                                                    spans of `tracing`, instruments of `metrics`
//! services with their layers -- serve() ---> Call --/
//! link, connection -----------> Link, from its opening to its end
//! wait for a place or credit -> Waiting
//! ```
//!
//! A [`Call`] is there from the begin of a call to its end on one side, whatever its route is. Nothing here
//! makes a call wait or fail.
//!
//! # Spans
//!
//! With a subscriber of `tracing` that takes target `partywall::rpc` at level DEBUG, each call has a span on
//! each side, with the attributes of OpenTelemetry's conventions for gRPC. The server's is entered whenever
//! a handler or the body of its answer is polled, so that it is the parent of what these log; the client's
//! is a child of the caller's current span. What connects the two is metadata (`traceparent`), which passes
//! as it is.
//!
//! # Metrics
//!
//! [`record_metrics`] has calls and links recorded by the recorder that the program has installed. The
//! names are in [`metrics`] and in docs/metrics.md.
//!
//! A method has its own label on a side after a call of it there was answered by what only a handler
//! says ([`call`]), and at most [`methods::MOST`] have one; calls of all others are those of
//! `_OTHER`. So no peer makes labels.
//!
//! # Cost
//!
//! Without a subscriber and a recorder, each side of a call loads two atomics, [`metrics`]'s flag and the
//! greatest level of `tracing`, and makes nothing. With a recorder, instruments are looked up by path, or
//! by a comparison with the last path of the thread; keys are made once per method and status.

mod call;
mod counted;
mod links;
mod methods;
mod metrics;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use partywall_abi::security::Security;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::peer::{Deadline, Peer, security_of};
use crate::wire;

pub(crate) use call::Call;
pub(crate) use links::{Link, Route, Waiting};
pub(crate) use methods::Side;
pub use metrics::record_metrics;

use counted::Counted;

/// Whether somebody wants to know of calls.
#[inline]
fn is_on() -> bool {
    metrics::are_recorded() || call::has_span()
}

/// When the head of a call's answer is due by its channel's endpoint; in the request's extensions.
#[derive(Clone, Copy)]
pub(crate) struct HeadDue(pub(crate) Instant);

/// A call of a client's that has begun in another way; in the request's extensions.
#[derive(Clone)]
pub(crate) struct Underway(pub(crate) Arc<Call>);

/// A call that a client begins; none when nobody wants to know of it.
#[inline]
pub(crate) fn client(request: &http::Request<Body>) -> Option<Arc<Call>> {
    is_on().then(|| {
        if let Some(Underway(call)) = request.extensions().get() {
            return Arc::clone(call);
        }
        let due = request.extensions().get::<HeadDue>().map(|due| due.0);
        Call::begin(Side::Client, request.uri().path(), due)
    })
}

/// The same of a call that is none of HTTP's.
#[inline]
pub(crate) fn call_of(path: &str) -> Option<Arc<Call>> {
    is_on().then(|| Call::begin(Side::Client, path, None))
}

/// A call that was answered before a handler was made.
#[inline]
pub(crate) fn refused(path: &str, code: Code) {
    if is_on() {
        Call::begin(Side::Server, path, None).end(code);
    }
}

/// A call that a server is to handle; none when nobody wants to know of it, or when it is none of gRPC's.
#[inline]
pub(crate) fn server(request: &http::Request<Body>) -> Option<Arc<Call>> {
    if is_on() { called(request) } else { None }
}

#[cold]
fn called(request: &http::Request<Body>) -> Option<Arc<Call>> {
    let peer = request.extensions().get::<Peer>();
    if peer.is_none() && !wire::is_grpc(request.headers()) {
        return None;
    }
    let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
    let call = Call::begin(Side::Server, request.uri().path(), deadline);
    let security = security_of(request.extensions());
    let transport = match peer {
        Some(_) => RING,
        None if security == Security::NETWORK => "tcp",
        None if security == Security::UNIX_SOCKET => "unix",
        None => "pipe",
    };
    call.over(peer.map(Peer::link), security, transport);
    Some(call)
}

/// A call over a ring with one message of so many bytes that a server is to handle without HTTP.
#[inline]
pub(crate) fn served(
    path: &str,
    deadline: Option<Instant>,
    peer: &Peer,
    bytes: usize,
) -> Option<Box<Handling>> {
    is_on().then(|| {
        let call = Call::begin(Side::Server, path, deadline);
        call.over(Some(peer.link()), peer.security(), RING);
        call.received(bytes);
        Box::new(Handling::new(call))
    })
}

/// Has a call handled, and tells of it.
pub(crate) fn serve<F>(
    call: Arc<Call>,
    request: http::Request<Body>,
    handle: impl FnOnce(http::Request<Body>) -> F,
) -> Serve<F> {
    let request = call.request(request);
    let handler = call.guarded(|| handle(request));
    Serve { handler, handling: Handling::new(call) }
}

/// What `network.transport` is called for a ring.
pub(crate) const RING: &str = "shared_memory";

/// A call that is handled.
pub(crate) struct Handling {
    call: Arc<Call>,
    /// Its handler was not polled yet.
    waits: Option<Waiting>,
}

impl Handling {
    fn new(call: Arc<Call>) -> Self {
        Self { call, waits: Waiting::begin("handler") }
    }

    /// Polls the handler, within the call's span.
    pub(crate) fn handle<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        self.waits = None;
        self.call.guarded(poll)
    }

    /// It has been answered with this code, and one message of so many bytes or none.
    pub(crate) fn answered(&self, code: u8, bytes: usize) {
        if bytes > 0 {
            self.call.answered_with(bytes);
        }
        self.call.end(Code::from_i32(code.into()));
    }
}

/// A handler's future with its span and metrics.
pub(crate) struct Serve<F> {
    handler: F,
    handling: Handling,
}

impl<F> Future for Serve<F>
where
    F: Future<Output = http::Response<Body>> + Unpin,
{
    type Output = http::Response<Body>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handler, handling } = &mut *self;
        let polled = handling.handle(|| Pin::new(handler).poll(cx));
        polled.map(|response| handling.call.response(response))
    }
}

impl Call {
    /// The request with a body that is counted.
    pub(crate) fn request(self: &Arc<Self>, request: http::Request<Body>) -> http::Request<Body> {
        if !self.is_counted() {
            return request;
        }
        request.map(|body| Body::new(Counted::request(Arc::downgrade(self), body)))
    }

    /// What a call came to that a client has begun.
    pub(crate) fn answered(
        self: &Arc<Self>,
        answer: Result<http::Response<Body>, Status>,
    ) -> Result<http::Response<Body>, Status> {
        match answer {
            Ok(response) => Ok(self.response(response)),
            Err(status) => {
                self.end(status.code());
                Err(status)
            }
        }
    }

    /// The response with a body that ends the call with its trailers.
    fn response(self: &Arc<Self>, response: http::Response<Body>) -> http::Response<Body> {
        if let Some(code) = wire::status_code(response.headers()) {
            self.end(code);
            return response;
        }
        if response.status() != http::StatusCode::OK {
            self.end(wire::http_status(&response).code());
            return response;
        }
        self.has_begun_to_answer();
        response.map(|body| Body::new(Counted::answer(Arc::clone(self), body)))
    }
}
