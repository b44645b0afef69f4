//! What an endpoint sets for each call: limits, a time, headers. A channel without any of it does not come
//! here.
//!
//! ```text
//! Limited: queue -> concurrency limit -> rate limit -> Timed: headers, time to the head -> the plain channel
//! ```
//!
//! The queue and the limits are tower's, in tonic's order. One task serves the queue of a channel and all
//! its clones; it ends with the last of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::{HeaderValue, Uri};
use tonic::Status;
use tonic::body::Body;
use tower::buffer::Buffer;
use tower::limit::{ConcurrencyLimitLayer, RateLimitLayer};
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceBuilder};

use crate::status::expired;
use crate::telemetry::HeadDue;
use crate::wire;

/// Calls that wait for a limit, unless it is set.
const BUFFER: usize = 1024;

type Request = http::Request<Body>;
type Response = http::Response<Body>;
/// An answer on its way.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>>;
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What an endpoint sets for each call.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) timeout: Option<Duration>,
    pub(super) concurrency_limit: Option<usize>,
    pub(crate) rate_limit: Option<(u64, Duration)>,
    pub(super) buffer_size: Option<usize>,
    pub(crate) user_agent: Option<HeaderValue>,
    /// The route sends it.
    pub(super) origin: Option<Uri>,
    pub(super) spawn: Spawn,
}

/// What runs tasks.
#[derive(Clone, Default)]
pub(super) struct Spawn(Option<Arc<dyn Fn(Task) + Send + Sync>>);

impl Spawn {
    #[cfg_attr(
        not(feature = "http2"),
        expect(dead_code, reason = "the trait of executors is hyper's")
    )]
    pub(super) fn by(spawn: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(spawn)))
    }

    pub(super) fn spawn(&self, task: Task) {
        match &self.0 {
            Some(spawn) => spawn(task),
            None => drop(tokio::spawn(task)),
        }
    }
}

/// When a call's deadline passes that has waited in the queue; in its extensions.
#[derive(Clone, Copy)]
struct Until(Instant);

/// Sends calls on, each with its headers, and waits for the head of its answer for so long.
#[derive(Clone)]
struct Timed<S> {
    calls: S,
    timeout: Option<Duration>,
    user_agent: Option<HeaderValue>,
}

impl<S> Service<Request> for Timed<S>
where
    S: Service<Request, Response = Response, Error = Status, Future: Send + 'static>,
{
    type Response = Response;
    type Error = Status;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.calls.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Answer {
        if let Some(Until(at)) = request.extensions_mut().remove() {
            // The call has waited: it has less time left.
            let left = at.saturating_duration_since(Instant::now());
            wire::set_timeout(request.headers_mut(), left);
        }
        if let Some(ours) = &self.user_agent {
            wire::add_user_agent(request.headers_mut(), ours);
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Box::pin(std::future::ready(Err(expired())));
        }
        let due = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(due) = due else { return Box::pin(self.calls.call(request)) };
        request.extensions_mut().insert(HeadDue(due));
        let answer = self.calls.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout_at(due.into(), answer).await;
            answer.unwrap_or_else(|_| Err(expired()))
        })
    }
}

/// Calls of a channel whose endpoint has set something for them; clones share the limits.
#[derive(Clone)]
pub(super) struct Limited<S> {
    timed: Timed<S>,
    queue: Option<Buffer<Request, Answer>>,
}

impl<S> Limited<S>
where
    S: Service<Request, Response = Response, Error = Status, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
{
    /// None when nothing is set. Has to be in a runtime when a limit is, for the queue's task.
    pub(super) fn of(settings: &Settings, calls: S) -> Option<Self> {
        let Settings { timeout, concurrency_limit, rate_limit, user_agent, .. } = settings.clone();
        let limited = concurrency_limit.is_some() || rate_limit.is_some();
        if !limited && timeout.is_none() && user_agent.is_none() {
            return None;
        }
        let timed = Timed { calls, timeout, user_agent };
        let queue = limited.then(|| {
            let limits = ServiceBuilder::new()
                .option_layer(concurrency_limit.map(ConcurrencyLimitLayer::new))
                .option_layer(rate_limit.map(|(calls, time)| RateLimitLayer::new(calls, time)))
                .service(timed.clone());
            let bound = settings.buffer_size.unwrap_or(BUFFER);
            let (queue, worker) = Buffer::pair(BoxService::new(limits), bound);
            settings.spawn.spawn(Box::pin(worker));
            queue
        });
        Some(Self { timed, queue })
    }

    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match &mut self.queue {
            Some(queue) => Poll::Ready(ready!(queue.poll_ready(cx)).map_err(status)),
            None => self.timed.poll_ready(cx),
        }
    }

    pub(super) fn call(&mut self, mut request: Request) -> Answer {
        let Some(queue) = &mut self.queue else { return self.timed.call(request) };
        let timeout = wire::parse_timeout(request.headers());
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(until) = until {
            request.extensions_mut().insert(Until(until));
        }
        let answer = queue.call(request);
        let answer = async move { answer.await.map_err(status) };
        match until {
            None => Box::pin(answer),
            Some(until) => Box::pin(async move {
                let answer = tokio::time::timeout_at(until.into(), answer).await;
                answer.unwrap_or_else(|_| Err(expired()))
            }),
        }
    }
}

/// What a call ended with behind the queue: a status, unless the queue's task has ended.
fn status(error: BoxError) -> Status {
    match error.downcast::<Status>() {
        Ok(status) => *status,
        Err(error) => Status::unavailable(format!(
            "the task of the channel's limits has ended, with the runtime or executor that ran it: {error}"
        )),
    }
}
