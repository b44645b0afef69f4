//! Calls of operators to the coordinator: the list of links, the gates of domains, the reload of the policy.
//!
//! An operator is a process of root or of the coordinator's user that the coordinator has not started. All
//! others are refused. Where the coordinator has an operators' socket, it says so to operators, and their
//! calls go there. The command `partywall` makes these calls; a program needs none of them to call or
//! to serve. Each blocks its thread for the time that it names: a task calls it by
//! [`tokio::task::spawn_blocking`].
//!
//! ```no_run
//! for link in partywall::operator::links(None)? {
//!     println!("{} {}: {} calls", link.link, link.name, link.stats.calls);
//!     for method in &link.methods.most_called {
//!         println!("  {}: {} native, {} ordinary", method.path, method.native, method.ordinary);
//!     }
//! }
//! # Ok::<(), partywall::Error>(())
//! ```

pub(super) mod trace;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use partywall_abi::control::{
    GateMessage, InstanceRow, LinkRow, ListMessage, Message, PolicyMessage,
};
pub use partywall_abi::control::{
    Grant, LinkMethods, LinkStats, MethodStats, PaceStats, ParcelStats,
};
use partywall_abi::name::ServiceName;
use partywall_abi::security::Seal;
use partywall_abi::version::Capabilities;
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;
use tonic::Code;

use super::{Client, Place, Waiting};
use crate::error::Error;
use crate::lock::lock;
use crate::target::TargetError;
pub use trace::{Crossed, End, Trace, TracedRecord, trace};

/// One row of [`links`].
pub type LinkInfo = LinkRow;

/// One row of [`instances`].
pub type InstanceInfo = InstanceRow;

/// How long a coordinator may take to answer an operator.
const WITHIN: Duration = Duration::from_secs(30);

/// The links that the coordinator at `socket` knows: open ones and the last that closed.
///
/// Blocks until the servers have reported their counts, at most a quarter of a second.
/// `socket`: where the coordinator listens; none to look in the usual places.
///
/// # Errors
/// [`Error::NoCoordinator`], [`Error::Denied`] for anyone but root and the coordinator's user.
pub fn links(socket: Option<&Path>) -> Result<Vec<LinkInfo>, Error> {
    let (client, answer) =
        order(socket, |tx| Waiting::Rows(Vec::new(), tx), |request| ListMessage::List { request })?;
    answer_of(&client, answer)
}

/// The open links of the coordinator at `socket` that are not sealed, with the ends that cannot seal
/// ([`LinkInfo::unable`](LinkInfo)).
///
/// Blocks as [`links`] does. `socket`: as for [`links`].
///
/// # Errors
/// As [`instances`].
pub fn plain_links(socket: Option<&Path>) -> Result<Vec<LinkInfo>, Error> {
    let client = coordinator_with(socket, Capabilities::SEAL)?;
    let waiting = |tx| Waiting::Rows(Vec::new(), tx);
    let (client, answer) = ask(client, waiting, |request| ListMessage::List { request })?;
    let is_plain = |link: &LinkInfo| link.open && link.security.seal == Seal::Off;
    Ok(answer_of(&client, answer)?.into_iter().filter(is_plain).collect())
}

/// The instances that the coordinator at `socket` knows: each process that serves a name, called or not, with
/// how many refer to it.
///
/// `socket`: as for [`links`].
///
/// ```no_run
/// for instance in partywall::operator::instances(None)? {
///     println!("{}: {} links of {} processes", instance.name, instance.links, instance.callers);
/// }
/// # Ok::<(), partywall::Error>(())
/// ```
///
/// # Errors
/// [`Error::NoCoordinator`], [`Error::Denied`] for anyone but root and the coordinator's user;
/// [`Error::Refused`] (UNIMPLEMENTED) by a coordinator of an older release.
pub fn instances(socket: Option<&Path>) -> Result<Vec<InstanceInfo>, Error> {
    let client = coordinator_with(socket, Capabilities::INSTANCES)?;
    let waiting = |tx| Waiting::Instances(Vec::new(), tx);
    let (client, answer) = ask(client, waiting, |request| ListMessage::Instances { request })?;
    answer_of(&client, answer)
}

/// A link as its ends are observed by [`observe`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// The link.
    pub link: LinkInfo,
    /// What the caller says that it has measured since it was first asked; none of one that says nothing.
    pub caller: Option<PaceStats>,
    /// What the server says that it has measured, likewise.
    pub server: Option<PaceStats>,
}

impl Observed {
    /// A link whose ends have said nothing.
    pub fn new(link: LinkInfo) -> Self {
        Self { link, caller: None, server: None }
    }
}

/// The links to a name, with what both ends of each measure. An end begins to measure when it is asked, and
/// ends ten seconds after it was last asked; two answers have the calls between them.
///
/// Blocks until the ends have answered, at most a quarter of a second. `socket`: as for [`links`].
///
/// # Errors
/// As [`instances`].
pub fn observe(socket: Option<&Path>, name: &str) -> Result<Vec<Observed>, Error> {
    let name = ServiceName::new(name).map_err(TargetError::Name)?;
    let client = coordinator_with(socket, Capabilities::PACE)?;
    let waiting = |tx| Waiting::Observed(Vec::new(), tx);
    let (client, answer) = ask(client, waiting, |request| ListMessage::Observe { request, name })?;
    answer_of(&client, answer)
}

/// Opens or closes the gates of the domains that serve `name`, and says how many there are. While
/// a gate is closed, callers ring the service's bell, as between two processes; no call is lost.
///
/// Blocks until all of them have answered, at most a few seconds.
/// `socket`: as for [`links`].
///
/// ```no_run
/// let domains = partywall::operator::switch_gate(None, "greeter", false)?;
/// println!("{domains} gates are closed");
/// # Ok::<(), partywall::Error>(())
/// ```
///
/// # Errors
/// [`Error::NoCoordinator`]; [`Error::Denied`] for anyone but root and the coordinator's user;
/// [`Error::Refused`] when nobody serves the name (NOT_FOUND) and when who serves it is no domain.
pub fn switch_gate(socket: Option<&Path>, name: &str, open: bool) -> Result<u32, Error> {
    let name = ServiceName::new(name).map_err(TargetError::Name)?;
    let (client, answer) =
        order(socket, Waiting::Switch, |request| GateMessage::Switch { request, name, open })?;
    answer_of(&client, answer)
}

/// What [`reload_policy`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Links that were ended, since the policy does not allow them any more.
    pub ended: u32,
    /// Links whose methods, or whose ends' principals, are others now.
    pub changed: u32,
}

/// Has the coordinator read its policy again. A file that cannot be used changes nothing.
///
/// Blocks until it is in force, at most 30 s. `socket`: as for [`links`].
///
/// ```no_run
/// let reloaded = partywall::operator::reload_policy(None)?;
/// println!("{} links have ended, {} have changed", reloaded.ended, reloaded.changed);
/// # Ok::<(), partywall::Error>(())
/// ```
///
/// # Errors
/// [`Error::NoCoordinator`]; [`Error::Denied`] for anyone but root and the coordinator's user;
/// [`Error::Refused`] with the file, the line and the remedy when the policy cannot be used.
pub fn reload_policy(socket: Option<&Path>) -> Result<Reloaded, Error> {
    let (client, answer) =
        order(socket, Waiting::Reload, |request| PolicyMessage::Reload { request })?;
    answer_of(&client, answer)
}

type Answer<T> = oneshot::Receiver<Result<T, Error>>;

/// Gives an order to a coordinator that is there.
fn order<T, M: Into<Message>>(
    socket: Option<&Path>,
    waiting: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Waiting,
    question: impl FnOnce(u32) -> M,
) -> Result<(Arc<Client>, Answer<T>), Error> {
    ask(coordinator(socket)?, waiting, question)
}

/// A coordinator that is there and can do that.
fn coordinator_with(socket: Option<&Path>, what: Capabilities) -> Result<Arc<Client>, Error> {
    let client = coordinator(socket)?;
    if lock(&client.state).conversation.as_ref().is_some_and(|it| it.has(what)) {
        return Ok(client);
    }
    let text = format!("this coordinator is too old for that ({what}); remedy: update it");
    Err(Error::Refused { code: Code::Unimplemented, text })
}

/// A coordinator that is there, at the socket at which it takes operators' calls.
fn coordinator(socket: Option<&Path>) -> Result<Arc<Client>, Error> {
    let place = socket.map_or_else(Place::find, |p| Place::Path(p.into()));
    let client = super::client(&place);
    client.open(place.patience())?;
    let conversation = lock(&client.state).conversation.clone();
    let Some(operators) = conversation.and_then(|it| it.operators()) else { return Ok(client) };
    let client = super::client(&operators);
    client.open(operators.patience()).map_err(|error| match error {
        Error::NoCoordinator { place, source } => Error::Refused {
            code: Code::FailedPrecondition,
            text: format!(
                "the coordinator takes operators' calls at {place} alone, where it is not reached: {source}; \
                 remedy: ask outside of containers"
            ),
        },
        other => other,
    })?;
    Ok(client)
}

fn ask<T, M: Into<Message>>(
    client: Arc<Client>,
    waiting: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Waiting,
    question: impl FnOnce(u32) -> M,
) -> Result<(Arc<Client>, Answer<T>), Error> {
    let (tx, answer) = oneshot::channel();
    client.ask(&mut lock(&client.state), waiting(tx), question)?;
    Ok((client, answer))
}

fn answer_of<T>(_client: &Arc<Client>, mut answer: Answer<T>) -> Result<T, Error> {
    wait_here(&mut answer, WITHIN)
}

/// Waits on this thread for an answer.
pub(super) fn wait_here<T>(
    answer: &mut oneshot::Receiver<Result<T, Error>>,
    within: Duration,
) -> Result<T, Error> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let start = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    // A task of tokio that blocks here has not yielded, and might have no budget left to poll with.
    let mut answer = unconstrained(answer);
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut answer).poll(&mut cx) {
            return answer.unwrap_or(Err(Error::CoordinatorGone("it has ended")));
        }
        match within.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::park_timeout(left),
            _ => return Err(Error::TimedOut(within)),
        }
    }
}
