//! What an operator asks the coordinator: which links there are, and that a gate be opened or closed.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use partywall_abi::control::{LinkRow, Message};
use partywall_abi::name::ServiceName;
use tokio::sync::oneshot;

use super::{Agent, Place, Waiting, get};
use crate::error::Error;
use crate::target::TargetError;

/// One row of [`links`].
pub type LinkInfo = LinkRow;

/// How long a coordinator may take to answer an operator.
const WITHIN: Duration = Duration::from_secs(30);

/// The links that the coordinator at `socket` knows: open ones and the last that closed.
///
/// Blocks until the servers have said what they counted, at most a quarter of a second.
/// `socket`: where the coordinator listens; none to look in the usual places.
///
/// # Errors
/// [`Error::NoCoordinator`], [`Error::Refused`] for anyone but root and the coordinator's user.
pub fn links(socket: Option<&Path>) -> Result<Vec<LinkInfo>, Error> {
    let place = socket.map_or_else(Place::find, |p| Place::Path(p.into()));
    get(&place)?.list()
}

/// Opens or closes the gates of the domains that serve `name`, and says how many there are. While
/// a gate is closed, callers ring the service's bell, as between two processes; no call is lost.
///
/// Blocks until all of them have answered, at most a few seconds.
/// `socket`: as for [`links`].
///
/// # Errors
/// [`Error::NoCoordinator`]; [`Error::Refused`] when nobody serves the name, when who serves it is
/// no domain, and for anyone but root and the coordinator's user.
pub fn switch_gate(socket: Option<&Path>, name: &str, open: bool) -> Result<u32, Error> {
    let name = ServiceName::new(name).map_err(TargetError::Name)?;
    let place = socket.map_or_else(Place::find, |p| Place::Path(p.into()));
    let agent = get(&place)?;
    let (tx, rx) = oneshot::channel();
    let request = agent.begin(Waiting::Switch(tx))?;
    agent.ask(request, &Message::Switch { request, name, open })?;
    wait_here(rx, WITHIN)
}

impl Agent {
    pub(super) fn list(&self) -> Result<Vec<LinkRow>, Error> {
        let (tx, rx) = oneshot::channel();
        let request = self.begin(Waiting::Rows(Vec::new(), tx))?;
        self.ask(request, &Message::List { request })?;
        wait_here(rx, WITHIN)
    }
}

/// Waits on this thread for an answer.
pub(super) fn wait_here<T>(
    mut answer: oneshot::Receiver<Result<T, Error>>,
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
