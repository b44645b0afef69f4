//! Comparisons that say what differed.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};

use crate::BoxError;
use crate::proto::Payload;
use crate::service::repeat;

/// Why a case did not hold.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A value was not the one wanted.
    #[error("{what}: got {got}, want {want}")]
    Differs {
        /// What was looked at.
        what: &'static str,
        /// The value found.
        got: String,
        /// The value wanted.
        want: String,
    },
    /// A call failed that should not have.
    #[error("{what}: {status}")]
    Call {
        /// Which call.
        what: &'static str,
        /// How it ended.
        status: Status,
    },
    /// A fresh channel could not be opened.
    #[error("connecting: {source}")]
    Connect {
        /// The connector's error.
        source: BoxError,
    },
    /// The case did not end in time.
    #[error("not done within {limit:?}")]
    TimedOut {
        /// The time allowed.
        limit: Duration,
    },
}

pub(super) type Outcome = Result<(), Failure>;

pub(super) fn differs(what: &'static str, got: impl Debug, want: impl Debug) -> Failure {
    Failure::Differs { what, got: format!("{got:?}"), want: format!("{want:?}") }
}

pub(super) fn same<G: PartialEq<W> + Debug, W: Debug>(
    what: &'static str,
    got: G,
    want: W,
) -> Outcome {
    if got == want { Ok(()) } else { Err(differs(what, got, want)) }
}

pub(super) fn holds(what: &'static str, condition: bool, got: impl Debug) -> Outcome {
    if condition { Ok(()) } else { Err(differs(what, got, "what the name says")) }
}

/// Names the call that a status came from.
pub(super) trait During<V> {
    /// Turns a status into a [`Failure::Call`].
    fn during(self, what: &'static str) -> Result<V, Failure>;
}

impl<V> During<V> for Result<V, Status> {
    fn during(self, what: &'static str) -> Result<V, Failure> {
        self.map_err(|status| Failure::Call { what, status })
    }
}

/// The status of a call that must fail.
pub(super) fn refused<V>(what: &'static str, result: Result<V, Status>) -> Result<Status, Failure> {
    match result {
        Err(status) => Ok(status),
        Ok(_) => Err(differs(what, "a response", "an error status")),
    }
}

/// The status of a call that must fail with `code`.
pub(super) fn refused_with<V>(
    what: &'static str,
    result: Result<V, Status>,
    code: Code,
) -> Result<Status, Failure> {
    let status = refused(what, result)?;
    if status.code() == code { Ok(status) } else { Err(differs(what, status, code)) }
}

/// Holds if the payload is `size` bytes of `pattern`, repeated, or of zeros if that is empty.
pub(super) fn body(
    what: &'static str,
    got: Option<Payload>,
    size: usize,
    pattern: &Bytes,
) -> Outcome {
    let got = got.ok_or_else(|| differs(what, "no payload", size))?.body;
    same(what, got.len(), size)?;
    let zero = Bytes::from_static(&[0]);
    let want = repeat(if pattern.is_empty() { &zero } else { pattern }, size);
    if got == want {
        return Ok(());
    }
    let at = got.iter().zip(&want).position(|(a, b)| a != b).unwrap_or_default();
    let got = format!("byte {at} is {:#04x}", got[at]);
    Err(Failure::Differs { what, got, want: format!("{:#04x}", want[at]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_compared_byte_by_byte() {
        let pattern = Bytes::from_static(b"abc");
        let check = |sent: &'static [u8], size, pattern: &Bytes| {
            let payload = Payload { body: Bytes::from_static(sent), ..Payload::default() };
            body("body", Some(payload), size, pattern).map_err(|failure| failure.to_string())
        };
        assert_eq!(check(b"abcab", 5, &pattern), Ok(()));
        assert_eq!(check(b"\0\0", 2, &Bytes::new()), Ok(()));
        assert_eq!(check(b"abc", 4, &pattern), Err("body: got 3, want 4".to_owned()));
        let wrong = "body: got byte 3 is 0x63, want 0x61".to_owned();
        assert_eq!(check(b"abcca", 5, &pattern), Err(wrong));
        assert!(body("body", None, 0, &pattern).is_err());
    }
}
