//! What can go wrong before a call is under way.

use partywall_abi::codec::DecodeError;
use partywall_shm::link::LinkError;
use partywall_shm::listen::ListenError;

use crate::target::TargetError;

/// Why there is no channel, no registration or no list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no target or no address to serve at.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// There is no coordinator to ask.
    #[error(
        "no coordinator at {place}: {source}; start one with `partywall coordinator`, or name its socket \
         by PARTYWALL_SOCKET (looked for there, else under $XDG_RUNTIME_DIR/partywall, else under \
         /run/partywall)"
    )]
    NoCoordinator {
        /// Where it was looked for.
        place: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// What answers is not the coordinator this process may trust.
    #[error(
        "the coordinator at {place} runs as user {found}; expected {expected} (set \
         PARTYWALL_COORDINATOR_UID={found} if user {found} is right)"
    )]
    WrongCoordinator {
        /// Where.
        place: String,
        /// Its user.
        found: u32,
        /// Whose it should be.
        expected: String,
    },
    /// The coordinator and this process cannot talk, and waiting will not help.
    #[error("the coordinator at {place} does not take this process in: {why}")]
    NotTakenIn {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// The coordinator went away or broke off.
    #[error("the coordinator has gone: {0}")]
    CoordinatorGone(&'static str),
    /// The coordinator sent what is no message.
    #[error("the coordinator's message: {0}")]
    Protocol(#[from] DecodeError),
    /// The coordinator said no.
    #[error("{text}")]
    Refused {
        /// gRPC status code.
        code: tonic::Code,
        /// Its words.
        text: String,
    },
    /// The link could not be opened.
    #[error("link: {0}")]
    Link(#[from] LinkError),
    /// The HTTP/2 side.
    #[error("http2: {}", cause(.0))]
    Http2(#[from] tonic::transport::Error),
    /// A path cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Connecting took too long.
    #[error("no answer within {0:?}")]
    TimedOut(std::time::Duration),
    /// Input or output of this process.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
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

/// The status of a call to a method that the policy keeps from a caller. What is no method's path
/// cannot be listed in a policy, and is nothing that a service has.
pub(crate) fn denied(who: &str, path: &str) -> tonic::Status {
    let method = path.trim_start_matches('/');
    if partywall_abi::name::MethodPattern::new(method).is_err() || !method.contains('/') {
        return tonic::Status::unimplemented(format!(
            "{path} is no path of a method, /package.Service/Method"
        ));
    }
    tonic::Status::permission_denied(format!(
        "the policy does not let {who} call {path}; remedy: list `{method}` for one of its principals \
         under [service.NAME.call] of the policy, or, with `partywall up`, under the `calls` of its \
         service"
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
