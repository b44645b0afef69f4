//! What a server sets for the calls of one link or connection, around the layers of the program.
//!
//! ```text
//! span -> load shedding -> concurrency limit -> timeout -> layers -> routes
//! ```
//!
//! The order and the layers are tonic's. Where nothing is set there is nothing around.

use std::sync::Arc;
use std::time::Duration;

use tonic::body::Body;
use tower::ServiceBuilder;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tracing::{Instrument, Span};

use super::{Answer, BoxError, HttpDispatch, HttpService, Stacked};

/// Makes the span of a call.
type MakeSpan = Arc<dyn Fn(&http::Request<()>) -> Span + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Limits {
    pub(crate) timeout: Option<Duration>,
    /// Handlers of one link or connection at a time.
    pub(crate) concurrency: Option<usize>,
    pub(crate) load_shed: bool,
    pub(crate) span: Option<MakeSpan>,
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { timeout, concurrency, load_shed, span } = self;
        f.debug_struct("Limits")
            .field("timeout", timeout)
            .field("concurrency", concurrency)
            .field("load_shed", load_shed)
            .field("span", &span.is_some())
            .finish()
    }
}

impl Limits {
    /// Whether nothing is set.
    pub(super) fn are_none(&self) -> bool {
        matches!(self, Self { timeout: None, concurrency: None, load_shed: false, span: None })
    }

    /// The service with these limits, for one link or connection.
    pub(super) fn around(&self, service: impl HttpService) -> Arc<dyn HttpDispatch> {
        let limited: Arc<dyn HttpDispatch> = match self {
            Self { timeout: None, concurrency: None, load_shed: false, .. } => {
                Arc::new(Stacked::new(service))
            }
            Self { timeout, concurrency, load_shed, .. } => {
                let stack = ServiceBuilder::new()
                    .option_layer(load_shed.then(LoadShedLayer::new))
                    .option_layer(concurrency.map(ConcurrencyLimitLayer::new))
                    .option_layer(timeout.map(TimeoutLayer::new))
                    .map_err(Into::<BoxError>::into);
                Arc::new(Stacked::new(stack.service(service)))
            }
        };
        match &self.span {
            None => limited,
            Some(span) => Arc::new(Traced { inner: limited, span: Arc::clone(span) }),
        }
    }
}

/// Answers each request in a span of its own.
struct Traced {
    inner: Arc<dyn HttpDispatch>,
    span: MakeSpan,
}

impl HttpDispatch for Traced {
    fn call(&self, request: http::Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let request = http::Request::from_parts(parts, ());
        let span = (self.span)(&request);
        // What the service makes at once, the span of the call among it, is made in it as well.
        let answer = span.in_scope(|| self.inner.call(request.map(|()| body)));
        Box::pin(answer.instrument(span))
    }
}
