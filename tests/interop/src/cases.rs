//! The client side: one body for each case, over any transport.
//!
//! The cases of gRPC's interoperability descriptions that need no credentials, balancer or load
//! reports, and this crate's own, which look at deadlines, cancellation, limits and order. The
//! cases need a server with [`EchoHeaders`](crate::service::EchoHeaders) whose
//! [`Handle`](crate::service::Handle) is in the same process.
//!
//! # Which way unary calls go
//!
//! By tonic's stubs ([`Stubs::Tonics`]) each is a message of HTTP. By those of partywall-build
//! ([`Stubs::Native`]) on a `partywall::Channel` over a ring, unary calls are native at the caller, and at a
//! service that is mounted by itself ([`native`](crate::service::native())) natively handled as well:
//!
//! | cases | caller | service |
//! | --- | --- | --- |
//! | [`bare`]: those of gRPC but for `custom_metadata`, and the [`timeouts()`] | native | native |
//! | of these, requests that are compressed, or whose answers may be, which a [`Tap`] looks at | ordinary | ordinary |
//! | `compression_not_accepted`, which a [`Tap`] looks at as well | ordinary | native |
//! | [`layered`]: those that need a layer around the service | native | ordinary |
//! | of these, `custom_metadata`, which a [`Tap`] looks at, and heads that a case has made itself | ordinary | ordinary |
//!
//! The first call to a service is ordinary there, and so is one to a method that it has not. Streams, and
//! calls on any other route, are ordinary at both ends. Both ends count ([`Env::counts`],
//! [`Handle::counts`](crate::service::Handle::counts), [`Counts::of`](crate::Counts::of)), and the tests
//! hold them to [`BARE_ANSWERED`] and [`BARE_ORDINARY`].

mod basic;
mod cancel;
mod check;
mod client;
mod compression;
mod env;
mod heads;
mod limits;
mod metadata;
mod observer;
mod status;
mod streams;
mod tap;
mod timeouts;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::GrpcService;

use crate::{BoxError, BoxFuture, Counts};

pub use self::check::Failure;
pub use self::client::{Client, Stubs};
pub use self::env::Env;
use self::limits::CHANNELS;
pub use self::tap::{CallLog, Tap};

/// The longest that a case may take: in the emulated machine of `cargo xtask vm-test` everything takes
/// thirty times as long.
#[must_use]
pub fn limit() -> Duration {
    let emulated = std::env::var("PARTYWALL_VM").as_deref() == Ok("1");
    Duration::from_secs(if emulated { 300 } else { 10 })
}

/// What tonic's generated clients need of a transport, under one name.
pub trait Transport:
    GrpcService<
        Body,
        ResponseBody: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + 'static,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Transport for T where
    T: GrpcService<
            Body,
            ResponseBody: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send>
                              + Send
                              + 'static,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// A case that did not hold.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {failure}")]
pub struct CaseError {
    /// Name of the case.
    pub case: &'static str,
    /// What differed.
    pub failure: Failure,
}

/// A named case.
pub struct Case<T> {
    name: &'static str,
    body: fn(Env<T>) -> BoxFuture<Result<(), Failure>>,
}

impl<T: Transport> Case<T> {
    /// The name, as gRPC's descriptions have it where they do.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case. After [`limit`] it fails with [`Failure::TimedOut`].
    pub async fn run(&self, env: Env<T>) -> Result<(), CaseError> {
        let limit = limit();
        timeout(limit, (self.body)(env))
            .await
            .unwrap_or(Err(Failure::TimedOut { limit }))
            .map_err(|failure| CaseError { case: self.name, failure })
    }
}

macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($(Case {
            name: stringify!($name),
            body: |env| Box::pin($module::$name(env)),
        }),*),*]
    };
}

/// All cases, in the order in which they are best run.
pub fn all<T: Transport>() -> Vec<Case<T>> {
    cases! {
        basic {
            empty_unary,
            large_unary,
            cacheable_unary,
            client_streaming,
            server_streaming,
            ping_pong,
            empty_stream,
            pick_first_unary,
            unimplemented_method,
            unimplemented_service,
        }
        status {
            status_code_and_message,
            special_status_message,
            every_status_code,
            status_details,
            error_before_first_response,
            error_after_responses,
            invalid_request,
        }
        metadata { custom_metadata, binary_metadata, metadata_on_error }
        streams {
            response_intervals,
            half_close_order,
            requests_end_while_responses_flow,
            many_messages,
        }
        cancel {
            timeout_on_sleeping_server,
            deadline_reaches_handler,
            deadline_ends_open_stream,
            cancel_after_begin,
            cancel_after_first_response,
            dropped_unary_stops_handler,
            dropped_stream_stops_handler,
            dropped_upload_stops_handler,
        }
        compression {
            client_compressed_unary_gzip,
            client_compressed_unary_zstd,
            server_compressed_unary_gzip,
            server_compressed_unary_zstd,
            client_compressed_streaming_gzip,
            client_compressed_streaming_zstd,
            server_compressed_streaming_gzip,
            server_compressed_streaming_zstd,
            compression_not_accepted,
        }
        limits {
            decode_limit,
            default_limit_on_requests,
            default_limit_on_responses,
            concurrent_calls,
            concurrent_streams,
            rpc_soak,
            channel_soak,
        }
    }
}

/// Deadlines of calls of each shape. They hold where the client or the server ends a call whose
/// deadline passes after its response has begun; tonic's own do not.
pub fn timeouts<T: Transport>() -> Vec<Case<T>> {
    cases! {
        timeouts {
            unary_while_the_handler_waits,
            client_stream_that_stalls,
            client_stream_that_goes_on,
            client_stream_while_the_handler_waits,
            server_stream_before_its_head,
            server_stream_before_its_first_message,
            server_stream_after_some_messages,
            server_stream_that_goes_on,
            server_stream_that_nobody_reads,
            duplex_before_its_head,
            duplex_that_nobody_feeds,
            duplex_after_some_messages,
            duplex_whose_requests_have_ended,
            half_duplex_that_stays_open,
            deadlines_that_have_passed,
            deadlines_that_are_far,
        }
    }
}

/// What a client's library does beyond tonic's own.
pub fn of_clients<T: Transport>() -> Vec<Case<T>> {
    cases! {
        heads {
            requests_have_a_content_type,
            requests_have_a_user_agent,
            metadata_in_many_entries,
            metadata_that_is_too_long,
            a_dropped_response_ends_the_call,
            headers_of_a_connection_do_not_travel,
            a_deadline_of_zero_has_passed,
            a_request_that_fails_keeps_its_status,
        }
    }
}

/// What a server's library does beyond tonic's own.
pub fn of_servers<T: Transport>() -> Vec<Case<T>> {
    cases! {
        heads {
            responses_have_a_content_type,
            handlers_are_told_the_deadline,
            te_does_not_reach_a_handler,
            a_panic_is_internal,
            an_error_of_a_body_is_the_status,
            answers_that_are_no_grpc,
            a_status_beside_one_of_http,
            details_that_are_no_base64_are_left_out,
            a_long_status_keeps_its_code,
            calls_that_are_given_up_together_end_no_others,
            trailing_metadata_that_is_too_long,
        }
    }
}

/// The one of gRPC's cases that needs a layer around the service.
const ECHOED: &str = "custom_metadata";

/// The cases for a service by itself, whose calls can be native at both ends.
pub fn bare<T: Transport>() -> Vec<Case<T>> {
    let own = all().into_iter().filter(|case| case.name != ECHOED);
    own.chain(timeouts()).collect()
}

/// The cases for a service inside layers, of which no call is native at the service: all that are not
/// [`bare`].
pub fn layered<T: Transport>() -> Vec<Case<T>> {
    find(ECHOED).into_iter().chain(of_clients()).chain(of_servers()).collect()
}

/// Unary calls of the [`bare`] cases that are answered with a message, but for those that a [`Tap`] looks
/// at.
pub const BARE_ANSWERED: u64 = 370;

/// The same of the [`layered`] cases: those that come after calls which fail.
pub const LAYERED_ANSWERED: u64 = 8;

/// Requests of the [`bare`] cases that are ordinary where handlers of a service by itself see them: the first
/// of all, and two of each case of unary compression, which are compressed, or whose answers may be.
pub const BARE_ORDINARY: u64 = 1 + 4 * 2;

/// The first ones of the channels of `channel_soak`, where each has a service of its own.
pub const BARE_SERVICES: u64 = CHANNELS;

/// Whether a service's end of the [`bare`] cases took so many requests the ordinary way, and the others
/// natively.
pub fn are_bare(service: Counts, ordinary: u64) -> bool {
    service.ordinary == ordinary && service.native >= BARE_ANSWERED - ordinary
}

/// Runs the cases one after the other, says how each went, and returns all that did not hold.
pub async fn run<T: Transport>(link: &str, cases: Vec<Case<T>>, env: &Env<T>) -> Vec<CaseError> {
    let mut failed = Vec::new();
    for case in cases {
        let start = std::time::Instant::now();
        let result = case.run(env.clone()).await;
        let (word, took) = (if result.is_ok() { "ok" } else { "FAILED" }, start.elapsed());
        println!("{link} {:<40} {word} {:>6} ms", case.name(), took.as_millis());
        failed.extend(result.err());
    }
    failed
}

/// The case with this name.
pub fn find<T: Transport>(name: &str) -> Option<Case<T>> {
    all().into_iter().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use tower::service_fn;

    use super::*;
    use crate::service::Handle;

    #[tokio::test(start_paused = true)]
    async fn a_case_that_hangs_fails_by_name() {
        let silent = service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let connect = move || async move { Ok::<_, Infallible>(silent) };
        let env = Env::new(silent, Handle::default(), connect);
        let error = find("ping_pong").unwrap().run(env).await.unwrap_err();
        assert_eq!(error.to_string(), "ping_pong: not done within 10s");
    }
}
