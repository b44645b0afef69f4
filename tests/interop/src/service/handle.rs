//! What became of the service's calls, for cases that must see the server's side.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::CALL_TAG;
use crate::proto::SimpleRequest;
use crate::{BoxFuture, Counts, Ways};

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It ran to its end, well or with an error.
    Finished,
    /// It was dropped before its end.
    Dropped,
}

/// What is known of a tagged call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallState {
    /// The time left, as the request's `grpc-timeout` gave it.
    pub deadline: Option<Duration>,
    /// How the handler ended, once it has.
    pub end: Option<End>,
}

#[derive(Debug, Default)]
struct Calls {
    live: usize,
    finished: u64,
    dropped: u64,
    tagged: HashMap<String, CallState>,
}

/// Watches the calls of a [`TestService`](super::TestService); clones watch the same service.
///
/// Calls that carry [`CALL_TAG`] are remembered by it for the life of the handle.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: watch::Sender<Calls>,
    pub(super) ways: Ways,
    before: Before,
}

/// What a handler does first.
#[derive(Clone, Default)]
struct Before(Option<Arc<Does>>);

type Does = dyn Fn(&Request<SimpleRequest>) -> First + Send + Sync;

type First = BoxFuture<Result<(), Status>>;

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Before").field(&self.0.is_some()).finish()
    }
}

impl Default for Handle {
    fn default() -> Self {
        let calls = watch::Sender::new(Calls::default());
        Self { calls, ways: Ways::default(), before: Before::default() }
    }
}

impl Handle {
    /// Before `UnaryCall` does anything, it does this; it fails where this does.
    #[must_use]
    pub fn before(
        mut self,
        first: impl Fn(&Request<SimpleRequest>) -> First + Send + Sync + 'static,
    ) -> Self {
        self.before = Before(Some(Arc::new(first)));
        self
    }

    pub(super) async fn first(&self, request: &Request<SimpleRequest>) -> Result<(), Status> {
        match &self.before.0 {
            Some(first) => first(request).await,
            None => Ok(()),
        }
    }

    /// Number of handlers now running.
    pub fn live(&self) -> usize {
        self.calls.borrow().live
    }

    /// Number of handlers that ran to their end.
    pub fn finished(&self) -> u64 {
        self.calls.borrow().finished
    }

    /// Number of handlers dropped before their end.
    pub fn dropped(&self) -> u64 {
        self.calls.borrow().dropped
    }

    /// Which way unary calls came to the handlers of [`native`](super::native()).
    pub fn counts(&self) -> Counts {
        self.ways.counts()
    }

    /// The state of the call with this tag, if it has reached its handler.
    pub fn call(&self, tag: &str) -> Option<CallState> {
        self.calls.borrow().tagged.get(tag).copied()
    }

    /// Waits until the call with this tag reaches its handler. `None` if it does not within
    /// `limit`.
    pub async fn started(&self, tag: &str, limit: Duration) -> Option<CallState> {
        self.wait(limit, |calls| calls.tagged.get(tag).copied()).await
    }

    /// Waits until the handler of the call with this tag ends. `None` if it does not within
    /// `limit`.
    pub async fn ended(&self, tag: &str, limit: Duration) -> Option<End> {
        self.wait(limit, |calls| calls.tagged.get(tag)?.end).await
    }

    async fn wait<V>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&Calls) -> Option<V>,
    ) -> Option<V> {
        let mut found = None;
        let mut changes = self.calls.subscribe();
        let seen = changes.wait_for(|calls| {
            found = look(calls);
            found.is_some()
        });
        let waited = timeout(limit, seen).await.is_ok_and(|seen| seen.is_ok());
        if waited { found } else { None }
    }

    /// Notes that a handler starts.
    pub(super) fn begin(&self, metadata: &MetadataMap) -> Call {
        let tag = metadata.get(CALL_TAG).and_then(|v| v.to_str().ok()).map(str::to_owned);
        self.calls.send_modify(|calls| {
            calls.live += 1;
            if let Some(tag) = &tag {
                let state = CallState { deadline: deadline(metadata), end: None };
                calls.tagged.insert(tag.clone(), state);
            }
        });
        Call { handle: self.clone(), tag, end: End::Dropped }
    }
}

/// A running handler: dropped unless [`finish`](Call::finish) was called.
#[derive(Debug)]
pub(super) struct Call {
    handle: Handle,
    tag: Option<String>,
    end: End,
}

impl Call {
    pub(super) fn finish(mut self) {
        self.end = End::Finished;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.handle.calls.send_modify(|calls| {
            calls.live -= 1;
            match self.end {
                End::Finished => calls.finished += 1,
                End::Dropped => calls.dropped += 1,
            }
            if let Some(state) = self.tag.as_ref().and_then(|tag| calls.tagged.get_mut(tag)) {
                state.end = Some(self.end);
            }
        });
    }
}

/// The time left to a call, if it says so in a form that gRPC allows.
pub(super) fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let value = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(key: &'static str, value: &str) -> MetadataMap {
        let mut map = MetadataMap::new();
        map.insert(key, value.parse().unwrap());
        map
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        let read = |text: &str| deadline(&metadata("grpc-timeout", text));
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("4S"), Some(Duration::from_secs(4)));
        assert_eq!(read("5m"), Some(Duration::from_millis(5)));
        assert_eq!(read("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "m", "5", "5x", "-5m", "+5m", "123456789m", "5 m", "1.5S"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        assert_eq!(deadline(&MetadataMap::new()), None);
    }

    #[tokio::test]
    async fn calls_are_counted_and_found_by_tag() {
        let handle = Handle::default();
        let one = handle.begin(&metadata(CALL_TAG, "one"));
        let two = handle.begin(&metadata(CALL_TAG, "two"));
        assert_eq!(handle.live(), 2);
        assert_eq!(handle.call("one"), Some(CallState::default()));
        one.finish();
        drop(two);
        assert_eq!((handle.live(), handle.finished(), handle.dropped()), (0, 1, 1));
        let limit = Duration::from_secs(1);
        assert_eq!(handle.ended("one", limit).await, Some(End::Finished));
        assert_eq!(handle.ended("two", limit).await, Some(End::Dropped));
        assert_eq!(handle.started("three", Duration::from_millis(5)).await, None);
    }
}
