//! What can go wrong before a call is under way.
//!
//! An error says all in its text, what caused it and the remedy as well, and so has no
//! [`source`](std::error::Error::source): a chain of causes would say it twice. Its `Debug` is that text
//! too, for that is what a `main` that gives `Result` prints, and what `unwrap` does.

use std::fmt;
use std::io;

use partywall_abi::codec::DecodeError;
use partywall_abi::name::{EXAMPLE, MethodPattern, MethodSet};
use partywall_shm::link::LinkError;
use partywall_shm::listen::ListenError;

use crate::target::TargetError;

/// Why there is no channel, no registration or no list.
#[non_exhaustive]
pub enum Error {
    /// The text is no target or no address to serve at.
    Target(TargetError),
    /// There is no coordinator to ask, or this process may not reach it.
    NoCoordinator {
        /// Where it was looked for.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// What answers is not the coordinator this process may trust.
    WrongCoordinator {
        /// Where.
        place: String,
        /// Its user.
        found: u32,
        /// Whose it should be.
        expected: String,
    },
    /// The coordinator and this process cannot talk, and waiting will not help.
    NotTakenIn {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// The coordinator went away or broke off.
    CoordinatorGone(&'static str),
    /// The coordinator sent what is no message.
    Protocol(DecodeError),
    /// The coordinator said no.
    Refused {
        /// gRPC status code.
        code: tonic::Code,
        /// Its words.
        text: String,
    },
    /// The link could not be opened.
    Link(LinkError),
    /// The HTTP/2 side.
    Http2(tonic::transport::Error),
    /// A path cannot be listened at.
    Listen(ListenError),
    /// Connecting took too long.
    TimedOut(std::time::Duration),
    /// Input or output of this process.
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(error) => error.fmt(f),
            Self::NoCoordinator { place, source }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                let own = rustix::process::geteuid().as_raw();
                write!(
                    f,
                    "the coordinator at {place}: user {own} may not reach it, if there is one: \
                     {source}; let this user into each directory of the path and write to the socket, \
                     or name another one by PARTYWALL_SOCKET"
                )
            }
            Self::NoCoordinator { place, source } => write!(
                f,
                "no coordinator at {place}: {source}; run this under `partywall up`, start one with \
                 `partywall coordinator --policy FILE`, or name its socket by PARTYWALL_SOCKET (looked \
                 for there, else under $XDG_RUNTIME_DIR/partywall, else under /run/partywall)"
            ),
            Self::WrongCoordinator { place, found, expected } => write!(
                f,
                "the coordinator at {place} runs as user {found}; expected {expected} (set \
                 PARTYWALL_COORDINATOR_UID={found} if user {found} is right)"
            ),
            Self::NotTakenIn { place, why } => {
                write!(f, "the coordinator at {place} does not take this process in: {why}")
            }
            Self::CoordinatorGone(why) => write!(f, "the coordinator has gone: {why}"),
            Self::Protocol(error) => write!(f, "the coordinator's message: {error}"),
            Self::Refused { text, .. } => f.write_str(text),
            Self::Link(error) => write!(f, "link: {error}"),
            Self::Http2(error) => write!(f, "http2: {}", cause(error)),
            Self::Listen(error) => error.fmt(f),
            Self::TimedOut(within) => write!(f, "no answer within {within:?}"),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        Self::Target(error)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error)
    }
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl From<tonic::transport::Error> for Error {
    fn from(error: tonic::transport::Error) -> Self {
        Self::Http2(error)
    }
}

impl From<ListenError> for Error {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl Error {
    /// The gRPC code that fits.
    pub fn code(&self) -> tonic::Code {
        match self {
            Self::Target(_) => tonic::Code::InvalidArgument,
            Self::Refused { code, .. } => *code,
            Self::WrongCoordinator { .. } => tonic::Code::Unauthenticated,
            _ => tonic::Code::Unavailable,
        }
    }
}

impl Error {
    /// Whether waiting may help.
    pub(crate) fn may_pass(&self) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
        match self {
            Self::NoCoordinator { source, .. } => {
                matches!(source.kind(), NotFound | ConnectionRefused | ConnectionReset | WouldBlock)
            }
            Self::CoordinatorGone(_) | Self::Link(_) | Self::Http2(_) | Self::TimedOut(_) => true,
            Self::Refused { code, .. } => *code == tonic::Code::Unavailable,
            _ => false,
        }
    }
}

/// The status of a call to a method that is not among those that a caller may call. What is no
/// method's path cannot be listed in a policy, and is nothing that a service has.
pub(crate) fn denied(who: &str, path: &str, may_call: &MethodSet) -> tonic::Status {
    let method = path.trim_start_matches('/');
    if MethodPattern::new(method).is_err() || !method.contains('/') {
        return tonic::Status::unimplemented(format!(
            "{path} is no path of a method, /package.Service/Method"
        ));
    }
    let remedy = may_call.remedy().replace(EXAMPLE, method);
    tonic::Status::permission_denied(format!(
        "the policy does not let {who} call {path}; remedy: {remedy}"
    ))
}

/// What an error comes from in the end: tonic's own says "transport error".
fn cause(error: &tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl From<Error> for tonic::Status {
    fn from(e: Error) -> Self {
        Self::new(e.code(), e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_says_all_in_its_text_once_and_main_prints_that() {
        let source = || io::Error::from(io::ErrorKind::NotFound);
        let error = Error::NoCoordinator { place: "/x".into(), source: source() };
        assert!(error.to_string().contains("/x: entity not found; "), "{error}");
        assert!(error.to_string().contains("partywall coordinator --policy FILE"), "{error}");
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.source().is_none(), "its text has it");
        let kind = io::ErrorKind::PermissionDenied;
        let error = Error::NoCoordinator { place: "/x".into(), source: kind.into() };
        assert!(error.to_string().contains("may not reach it"), "{error}");
    }
}
