//! What can go wrong before a call is under way.
//!
//! An error says all in its text, what caused it and the remedy as well, and so has no
//! [`source`](std::error::Error::source): a chain of causes would say it twice. Its `Debug` is that text
//! too, for that is what a `main` that gives `Result` prints, and what `unwrap` does.

use std::convert::Infallible;
use std::fmt;
use std::io;

use partywall_abi::codec::DecodeError;
use partywall_abi::name::{EXAMPLE, MethodPattern, MethodSet};
use partywall_shm::link::LinkError;
use partywall_shm::listen::ListenError;
use tonic::Code;

use crate::target::TargetError;

/// Why there is no channel, no registration or no list.
///
/// Each variant has a gRPC code ([`Error::code`]) and somebody who has to act ([`Error::blame`]); its text
/// names the remedy.
///
/// ```
/// use partywall::{Blame, Endpoint, Error};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let endpoint = Endpoint::from_static("partywall:///greeter").coordinator("/none/coordinator.sock");
/// let error = endpoint.connect().await.unwrap_err();
/// assert!(matches!(error, Error::NoCoordinator { .. }));
/// assert_eq!((error.code(), error.blame()), (tonic::Code::Unavailable, Blame::Coordinator));
/// assert!(error.to_string().contains("start one with `partywall coordinator"));
/// // A call that fails for this reason has the same code and text.
/// assert_eq!(tonic::Status::from(error).code(), tonic::Code::Unavailable);
/// # }
/// ```
#[non_exhaustive]
pub enum Error {
    /// The text is no target or no address to serve at.
    Target(TargetError),
    /// A setting of an endpoint that cannot be had.
    Setting {
        /// Its name.
        name: &'static str,
        /// Why not, and what to write.
        why: String,
    },
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
    NotAdmitted {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// The coordinator went away or broke off.
    CoordinatorGone(&'static str),
    /// The coordinator sent what is no message.
    Protocol(DecodeError),
    /// The policy does not let this process call or serve the name.
    Denied {
        /// The coordinator's words: who may not do what, and what to write where.
        text: String,
    },
    /// Nobody serves the name on this host, and the policy has no address for it.
    NotServed {
        /// The coordinator's words.
        text: String,
    },
    /// Somebody serves the name, and no instance has taken the link.
    NotTaken {
        /// The coordinator's words: how many were asked, and why the last one has not.
        text: String,
    },
    /// A quota of this process's account is used up, or the places of all instances.
    QuotaExceeded {
        /// The coordinator's words: which quota, and how much of it there is.
        text: String,
    },
    /// The calls would leave this host, and only a ring was asked for.
    NoRing {
        /// What was to be called.
        target: String,
        /// What it is instead.
        what: String,
    },
    /// The coordinator said no for another reason.
    Refused {
        /// gRPC status code.
        code: Code,
        /// Its words.
        text: String,
    },
    /// The link could not be opened.
    Link(LinkError),
    /// The handshake of a sealed link has failed: the other end is not who it should be, or broke a rule.
    NotSealed {
        /// Why.
        text: String,
    },
    /// No key of the other end, or of who has signed its certificate, is pinned
    /// ([`Endpoint::pin`](crate::Endpoint::pin), [`Server::pin`](crate::Server::pin)), or it proves none.
    NotPinned {
        /// Who it is, and what was found.
        text: String,
    },
    /// Nothing answers at an address, or what answers speaks no HTTP/2.
    Http2(Box<dyn std::error::Error + Send + Sync>),
    /// A path cannot be listened at.
    Listen(ListenError),
    /// An address of a host and a port cannot be listened at.
    Bind {
        /// The address, as http://HOST:PORT.
        url: String,
        /// What the system said.
        source: io::Error,
    },
    /// Connecting or registering took too long.
    TimedOut(std::time::Duration),
    /// Input or output of this process.
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Who has to act, so that what has failed succeeds another time ([`Error::blame`]).
///
/// ```
/// use partywall::{Blame, Endpoint};
///
/// let error = Endpoint::new("greeter").unwrap_err(); // a target is partywall:///greeter
/// let whom = match error.blame() {
///     Blame::ThisProcess => "the programmer",
///     Blame::Policy | Blame::Coordinator => "the operator of this host",
///     _ => "whoever runs the service",
/// };
/// assert_eq!(whom, "the programmer");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// This process: its target, its settings, its descriptors.
    ThisProcess,
    /// The service: it is not there, takes no links or breaks rules.
    Peer,
    /// The coordinator, or who runs it.
    Coordinator,
    /// The operator's rules: the policy and the quotas.
    Policy,
    /// The network, or the server at an address.
    Network,
    /// Nobody who is known: time has passed.
    Unknown,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(error) => error.fmt(f),
            Self::Setting { name, why } => write!(f, "the setting `{name}`: {why}"),
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
            Self::NotAdmitted { place, why } => {
                write!(f, "the coordinator at {place} refuses this process: {why}")
            }
            Self::CoordinatorGone(why) => {
                write!(f, "the coordinator has gone: {why}; remedy: try again once it runs again")
            }
            Self::Protocol(error) => write!(
                f,
                "the coordinator's message: {error}; remedy: build it and this program from the same \
                 release"
            ),
            Self::Denied { text }
            | Self::NotServed { text }
            | Self::NotTaken { text }
            | Self::QuotaExceeded { text }
            | Self::Refused { text, .. } => f.write_str(text),
            Self::NoRing { target, what } => write!(
                f,
                "`{target}` is {what} over the network, and only a ring was asked for; remedy: start the \
                 service on this host, or call it by a channel of tasks without `ring_only`"
            ),
            Self::NotSealed { text } => write!(
                f,
                "link: {text}; remedy: see that both ends are of one coordinator, and their clocks and \
                 certificates are right (`partywall links --wide`)"
            ),
            Self::NotPinned { text } => write!(
                f,
                "{text}; remedy: find out who stands there (`partywall links --wide`, `partywall ca show`), and pin \
                 its key if it is who it should be"
            ),
            Self::Link(error) => write!(f, "link: {error}; remedy: {}", of_link(error)),
            Self::Http2(error) => write!(
                f,
                "http2: {}; remedy: start the server, or wait for it: `wait_for_ready`, \
                 or `--wait` of `partywall call`",
                cause(&**error)
            ),
            Self::Listen(error) => error.fmt(f),
            Self::Bind { url, source } => {
                write!(f, "listening at {url}: {source}; remedy: {}", of_bind(source))
            }
            Self::TimedOut(within) => write!(
                f,
                "no answer within {within:?}; remedy: see by ps(1) whether the service and the \
                 coordinator run and are not stopped (state T); a program allows more time by `connect_timeout`"
            ),
            Self::Io { what, source } => {
                write!(f, "{what}: {source}; remedy: see `ulimit -n` and `ulimit -u`")
            }
        }
    }
}

/// What to do about an address that cannot be listened at.
fn of_bind(error: &io::Error) -> &'static str {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    match error.kind() {
        AddrInUse => "stop who listens there, or take another port",
        AddrNotAvailable => "take an address of this host",
        PermissionDenied => "take a port from 1024 on",
        // The resolver has errors of its own, not the kernel's.
        _ if error.raw_os_error().is_none() => {
            "take a host name that can be resolved, or an address"
        }
        _ => "see `ulimit -n`",
    }
}

/// What to do about a link that was not opened.
fn of_link(error: &LinkError) -> &'static str {
    match (error, Blame::from(error.blame())) {
        (LinkError::Dead | LinkError::TimedOut, _) => {
            "start the service again, or another instance"
        }
        (_, Blame::ThisProcess) => "give this process more memory and descriptors (`ulimit -n`)",
        _ => "build the service and this program from the same release",
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

impl From<ListenError> for Error {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

/// There is no such error: an [`Endpoint`](crate::Endpoint) becomes one without fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<partywall_shm::link::Blame> for Blame {
    fn from(blame: partywall_shm::link::Blame) -> Self {
        match blame {
            partywall_shm::link::Blame::Peer => Self::Peer,
            partywall_shm::link::Blame::Local | partywall_shm::link::Blame::Resource => {
                Self::ThisProcess
            }
        }
    }
}

impl Error {
    /// A limit of zero.
    pub(crate) fn lets_no_call_begin(name: &'static str) -> Self {
        Self::Setting { name, why: "it lets no call begin; write at least 1".into() }
    }

    /// What the coordinator's refusal of a link means.
    pub(crate) fn no_link(code: Code, text: String) -> Self {
        match code {
            Code::NotFound => Self::NotServed { text },
            Code::Unavailable => Self::NotTaken { text },
            code => Self::refused(code, text),
        }
    }

    /// Only a ring was asked for, and this is something else.
    pub(crate) fn no_ring(target: String, what: &str) -> Self {
        Self::NoRing { target, what: what.into() }
    }

    /// What a refusal of the coordinator's means.
    pub(crate) fn refused(code: Code, text: String) -> Self {
        match code {
            Code::PermissionDenied => Self::Denied { text },
            Code::ResourceExhausted => Self::QuotaExceeded { text },
            code => Self::Refused { code, text },
        }
    }

    /// The gRPC code that fits: that of a call that fails for this reason.
    pub fn code(&self) -> Code {
        match self {
            Self::Target(_) | Self::Setting { .. } => Code::InvalidArgument,
            Self::WrongCoordinator { .. } | Self::NotPinned { .. } => Code::Unauthenticated,
            Self::Denied { .. } => Code::PermissionDenied,
            Self::QuotaExceeded { .. } => Code::ResourceExhausted,
            Self::NoRing { .. } => Code::FailedPrecondition,
            Self::Refused { code, .. } => *code,
            Self::NoCoordinator { .. }
            | Self::NotAdmitted { .. }
            | Self::CoordinatorGone(_)
            | Self::Protocol(_)
            | Self::NotServed { .. }
            | Self::NotTaken { .. }
            | Self::Link(_)
            | Self::NotSealed { .. }
            | Self::Http2(_)
            | Self::Listen(_)
            | Self::Bind { .. }
            | Self::TimedOut(_)
            | Self::Io { .. } => Code::Unavailable,
        }
    }

    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Target(_)
            | Self::Setting { .. }
            | Self::NoRing { .. }
            | Self::Listen(_)
            | Self::Bind { .. }
            | Self::Io { .. } => Blame::ThisProcess,
            Self::NoCoordinator { .. }
            | Self::WrongCoordinator { .. }
            | Self::NotAdmitted { .. }
            | Self::CoordinatorGone(_)
            | Self::Protocol(_)
            | Self::Refused { .. } => Blame::Coordinator,
            Self::Denied { .. } | Self::QuotaExceeded { .. } => Blame::Policy,
            Self::NotServed { .. } | Self::NotTaken { .. } => Blame::Peer,
            Self::NotSealed { .. } | Self::NotPinned { .. } => Blame::Peer,
            // It is the server that does not open it.
            Self::Link(LinkError::TimedOut) => Blame::Peer,
            Self::Link(error) => error.blame().into(),
            Self::Http2(_) => Blame::Network,
            Self::TimedOut(_) => Blame::Unknown,
        }
    }

    /// Whether waiting may help.
    pub(crate) fn may_pass(&self) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
        match self {
            Self::NoCoordinator { source, .. } => {
                matches!(source.kind(), NotFound | ConnectionRefused | ConnectionReset | WouldBlock)
            }
            Self::CoordinatorGone(_)
            | Self::NotServed { .. }
            | Self::NotTaken { .. }
            | Self::Link(_)
            | Self::Http2(_)
            | Self::TimedOut(_) => true,
            Self::Refused { code, .. } => *code == Code::Unavailable,
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

type Cause<'a> = &'a (dyn std::error::Error + 'static);

/// An error, what caused it, what caused that.
pub(crate) fn chain<'a>(error: Cause<'a>) -> impl Iterator<Item = Cause<'a>> {
    std::iter::successors(Some(error), |e: &Cause<'a>| -> Option<Cause<'a>> { (*e).source() })
}

/// What an error comes from in the end: tonic's own says "transport error".
pub(crate) fn cause(error: Cause<'_>) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
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

    /// Who each error blames, its code, and what its text says to do.
    #[test]
    fn errors_have_a_code_a_blame_and_a_remedy() {
        let io = || io::Error::from(io::ErrorKind::NotFound);
        let text = || "remedy: ask".to_owned();
        let place = || "/x".to_owned();
        let link = |error| Error::Link(error);
        let http2 = || Error::Http2(io().into());
        let target = || crate::Target::parse("nothing").unwrap_err();
        let (name, what) = ("origin", "an address".to_owned());
        let within = std::time::Duration::from_secs(5);
        let broken = DecodeError::Trailing { left: 7 };
        let table = [
            (target().into(), Code::InvalidArgument, Blame::ThisProcess, "write "),
            (
                Error::Setting { name, why: "none; write http://HOST".into() },
                Code::InvalidArgument,
                Blame::ThisProcess,
                "write ",
            ),
            (
                Error::NoCoordinator { place: place(), source: io() },
                Code::Unavailable,
                Blame::Coordinator,
                "`partywall up`",
            ),
            (
                Error::WrongCoordinator { place: place(), found: 7, expected: "user 8".into() },
                Code::Unauthenticated,
                Blame::Coordinator,
                "PARTYWALL_COORDINATOR_UID=7",
            ),
            (
                Error::NotAdmitted { place: place(), why: text() },
                Code::Unavailable,
                Blame::Coordinator,
                "remedy: ",
            ),
            (Error::CoordinatorGone("it has"), Code::Unavailable, Blame::Coordinator, "remedy: "),
            (Error::Protocol(broken), Code::Unavailable, Blame::Coordinator, "same release"),
            (Error::Denied { text: text() }, Code::PermissionDenied, Blame::Policy, "remedy: "),
            (Error::NotServed { text: text() }, Code::Unavailable, Blame::Peer, "remedy: "),
            (Error::NotTaken { text: text() }, Code::Unavailable, Blame::Peer, "remedy: "),
            (
                Error::QuotaExceeded { text: text() },
                Code::ResourceExhausted,
                Blame::Policy,
                "remedy: ",
            ),
            (
                Error::no_ring(place(), &what),
                Code::FailedPrecondition,
                Blame::ThisProcess,
                "`ring_only`",
            ),
            (
                Error::Refused { code: Code::AlreadyExists, text: text() },
                Code::AlreadyExists,
                Blame::Coordinator,
                "remedy: ",
            ),
            (link(LinkError::Dead), Code::Unavailable, Blame::Peer, "start the service again"),
            (link(LinkError::TimedOut), Code::Unavailable, Blame::Peer, "start the service again"),
            (
                link(LinkError::Kind { kind: 9 }),
                Code::Unavailable,
                Blame::Peer,
                "from the same release",
            ),
            (
                link(LinkError::Io { call: "mmap", source: io() }),
                Code::Unavailable,
                Blame::ThisProcess,
                "`ulimit -n`",
            ),
            (
                Error::NotPinned { text: text() },
                Code::Unauthenticated,
                Blame::Peer,
                "`partywall ca show`",
            ),
            (http2(), Code::Unavailable, Blame::Network, "`--wait` of `partywall call`"),
            (
                Error::Listen(ListenError::Busy { path: "/x".into() }),
                Code::Unavailable,
                Blame::ThisProcess,
                "remedy: ",
            ),
            (
                Error::Bind {
                    url: "http://h:1".into(),
                    source: std::io::ErrorKind::AddrInUse.into(),
                },
                Code::Unavailable,
                Blame::ThisProcess,
                "listening at http://h:1: address in use; remedy: stop who listens there",
            ),
            (Error::TimedOut(within), Code::Unavailable, Blame::Unknown, "ps(1)"),
            (
                Error::Io { what: "starting a thread".into(), source: io() },
                Code::Unavailable,
                Blame::ThisProcess,
                "`ulimit -u`",
            ),
        ];
        for (error, code, blame, remedy) in table {
            assert_eq!((error.code(), error.blame()), (code, blame), "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
            let text = error.to_string();
            let status = tonic::Status::from(error);
            assert_eq!((status.code(), status.message()), (code, &*text));
        }
    }

    /// The coordinator's refusals, by code, of a link and of other things.
    #[test]
    fn refusals_become_variants_by_their_code() {
        let of = |code| Error::no_link(code, String::new());
        assert!(matches!(of(Code::NotFound), Error::NotServed { .. }));
        assert!(matches!(of(Code::Unavailable), Error::NotTaken { .. }));
        assert!(matches!(of(Code::PermissionDenied), Error::Denied { .. }));
        assert!(matches!(of(Code::ResourceExhausted), Error::QuotaExceeded { .. }));
        assert!(matches!(of(Code::FailedPrecondition), Error::Refused { .. }));
        assert!(matches!(Error::refused(Code::NotFound, String::new()), Error::Refused { .. }));
    }

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
