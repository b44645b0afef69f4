//! One call on one side: its span, and its part of the metrics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use partywall_abi::security::Security;
use tonic::Code;
use tracing::field::Empty;
use tracing::{Level, Span};

use super::methods::{self, Direction, Early, Method, Side};
use super::metrics::{self, SYSTEM, name_of};

/// The target of spans.
const TARGET: &str = "partywall::rpc";

/// Whether a subscriber may want spans of calls.
#[inline]
pub(super) fn has_span() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
}

/// A call that somebody wants to know of. With the last reference it ends, if it has not: as one whose
/// deadline has passed, or as one that its side has given up.
pub(crate) struct Call {
    side: Side,
    /// `package.Service/Method`.
    name: Box<str>,
    begun: Instant,
    /// Of a server's call; of a client's, when its answer is to begin at the latest.
    deadline: Option<Instant>,
    answers: AtomicBool,
    span: Span,
    meters: Option<Meters>,
    ended: AtomicBool,
}

/// What is recorded of a call: when its method is known, else what has passed until it is.
#[derive(Default)]
struct Meters {
    method: OnceLock<Arc<Method>>,
    early: Early,
}

impl Call {
    pub(super) fn begin(side: Side, path: &str, deadline: Option<Instant>) -> Arc<Self> {
        let name = Box::<str>::from(path.strip_prefix('/').unwrap_or(path));
        let meters = metrics::are_recorded().then(Meters::default);
        if let Some(meters) = &meters {
            methods::other(side).under_way.increment(1.0);
            if let Some(method) = methods::known(side, &name) {
                meters.set(method);
            }
        }
        let span = tracing::span!(
            target: TARGET,
            Level::DEBUG,
            "rpc",
            otel.name = &*name,
            otel.kind = side.word(),
            otel.status_code = Empty,
            rpc.system.name = SYSTEM,
            rpc.method = &*name,
            rpc.response.status_code = Empty,
            error.type = Empty,
            network.transport = Empty,
            partywall.link = Empty,
            partywall.isolation = Empty,
            partywall.confidentiality = Empty,
            partywall.evidence = Empty,
            partywall.seal = Empty,
            partywall.sign = Empty,
        );
        let (begun, [answers, ended]) = (Instant::now(), [const { AtomicBool::new(false) }; 2]);
        Arc::new(Self { side, name, begun, deadline, answers, span, meters, ended })
    }

    /// What the call goes over: a link, if it is one; what protects it; `network.transport`.
    pub(crate) fn over(&self, link: Option<u64>, security: Security, transport: &'static str) {
        let span = &self.span;
        if let Some(link) = link {
            span.record("partywall.link", link);
        }
        span.record("network.transport", transport);
        span.record("partywall.isolation", security.isolation.word());
        span.record("partywall.confidentiality", security.confidentiality.word());
        span.record("partywall.evidence", security.evidence.word());
        span.record("partywall.seal", security.seal.word());
        span.record("partywall.sign", security.sign.word());
    }

    /// Runs a part of the call within its span. A panic ends the call.
    pub(crate) fn guarded<T>(&self, part: impl FnOnce() -> T) -> T {
        struct Panics<'a>(&'a Call);
        impl Drop for Panics<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.end(Code::Internal);
                }
            }
        }
        let _panics = Panics(self);
        self.span.in_scope(part)
    }

    /// Whether what passes is to be counted.
    pub(super) fn is_counted(&self) -> bool {
        self.meters.is_some()
    }

    /// Data have passed, in which so many messages begin.
    pub(super) fn passed(&self, direction: Direction, bytes: u64, messages: u64) {
        let Some(meters) = &self.meters else { return };
        match meters.method.get() {
            Some(method) => method.passed(direction, bytes, messages),
            None => {
                let (early_bytes, early_messages) = &meters.early[direction as usize];
                early_bytes.fetch_add(bytes, Ordering::Relaxed);
                early_messages.fetch_add(messages, Ordering::Relaxed);
            }
        }
    }

    /// A request of one message of so many bytes has come.
    pub(crate) fn received(&self, bytes: usize) {
        self.passed(Direction::Request, bytes as u64, 1);
    }

    /// The answer has one message of so many bytes.
    pub(crate) fn answered_with(&self, bytes: usize) {
        self.has_begun_to_answer();
        self.passed(Direction::Answer, bytes as u64, 1);
    }

    /// A call is over that had one message of so many bytes each way; or this status.
    pub(crate) fn exchanged(&self, request: usize, answer: Result<usize, Code>) {
        self.passed(Direction::Request, request as u64, 1);
        if let Ok(bytes) = answer {
            self.passed(Direction::Answer, bytes as u64, 1);
        }
        self.end(answer.err().unwrap_or(Code::Ok));
    }

    /// A handler answers with messages.
    pub(super) fn has_begun_to_answer(&self) {
        self.answers.store(true, Ordering::Relaxed);
        if let Some(meters) = &self.meters
            && meters.method.get().is_none()
        {
            meters.set(methods::learn(self.side, &self.name)).passed_early(&meters.early);
        }
    }

    /// The call has ended with this status; the first one counts.
    pub(crate) fn end(&self, code: Code) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(meters) = &self.meters {
            let method = meters.method.get().unwrap_or_else(|| {
                meters.set(match is_of_a_handler(code) {
                    true => methods::learn(self.side, &self.name),
                    false => methods::other(self.side),
                })
            });
            method.passed_early(&meters.early);
            method.ended(code, self.begun.elapsed().as_secs_f64());
            method.under_way.decrement(1.0);
        }
        self.span.record("rpc.response.status_code", name_of(code));
        if is_error(self.side, code) {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", name_of(code));
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let counts = self.side == Side::Server || !*self.answers.get_mut();
        let late = counts && self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        self.end(if late { Code::DeadlineExceeded } else { Code::Cancelled });
    }
}

impl Meters {
    fn set(&self, method: Arc<Method>) -> &Arc<Method> {
        self.method.get_or_init(|| {
            method.begun.increment(1);
            method
        })
    }
}

/// Whether only a handler ends a call so, and neither what is before it nor one that has no such method.
fn is_of_a_handler(code: Code) -> bool {
    !matches!(
        code,
        Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
    )
}

/// Whether a status is an error of this side, by OpenTelemetry's conventions.
fn is_error(side: Side, code: Code) -> bool {
    match side {
        Side::Client => code != Code::Ok,
        Side::Server => matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        ),
    }
}
