//! Where a case learns what became of the server's calls.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Version};
use tonic::body::Body;

use super::Transport;
use super::check::{Failure, differs};
use crate::service::{CallState, End, Handle, PROBE, state};

/// A path of the service around which something answers to [`PROBE`].
const PROBED: &str = "/grpc.testing.TestService/EmptyCall";
/// A path of [`Probe`](crate::service::Probe).
const BESIDE: &str = "/partywall.interop.Probe/Ask";

/// Where a case learns what became of the server's calls: here, or by asking the server.
#[derive(Clone)]
pub(super) enum Observer<T> {
    Here(Handle),
    There(T),
}

impl<T: Transport> Observer<T> {
    /// The call's state, if it reaches its handler within `limit`.
    pub(super) async fn started(&self, tag: &str, limit: Duration) -> Option<CallState> {
        match self {
            Self::Here(handle) => handle.started(tag, limit).await,
            Self::There(channel) => ask(channel, "started", tag, limit).await,
        }
    }

    /// How the handler of the call ended, if it does within `limit`.
    pub(super) async fn ended(&self, tag: &str, limit: Duration) -> Option<End> {
        match self {
            Self::Here(handle) => handle.ended(tag, limit).await,
            Self::There(channel) => ask(channel, "ended", tag, limit).await?.end,
        }
    }
}

async fn ask<T: Transport>(
    channel: &T,
    what: &str,
    tag: &str,
    limit: Duration,
) -> Option<CallState> {
    let asked = HeaderValue::try_from(format!("{what} {tag} {}", limit.as_millis())).ok()?;
    let answer = call_at(BESIDE, channel.clone(), asked, HeaderMap::new()).await.ok()?;
    state(answer.headers())
}

/// Sends a request that [`PROBE`] answers, with these headers beside what tonic would send.
pub(super) async fn call<T: Transport>(
    channel: T,
    probe: HeaderValue,
    headers: HeaderMap,
) -> Result<http::Response<T::ResponseBody>, Failure> {
    call_at(PROBED, channel, probe, headers).await
}

async fn call_at<T: Transport>(
    path: &str,
    mut channel: T,
    probe: HeaderValue,
    headers: HeaderMap,
) -> Result<http::Response<T::ResponseBody>, Failure> {
    let mut request = Request::post(path).version(Version::HTTP_2).body(Body::empty());
    let request = request.as_mut().map_err(|e| differs("request", e.to_string(), "a request"))?;
    let mut request = std::mem::take(request);
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().extend(headers);
    request.headers_mut().insert(PROBE, probe);
    let failed = |error: crate::BoxError| {
        let status = tonic::Status::from_error(error);
        Failure::Call { what: "a call that is probed", status }
    };
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|e| failed(e.into()))?;
    channel.call(request).await.map_err(|e| failed(e.into()))
}
