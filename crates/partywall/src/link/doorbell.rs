//! The link's socket, on which the peer rings: who is woken for it.
//!
//! The runtime knows one waker per link, the [`Doorbell`]'s, which wakes the leader, if a call is
//! that ([`super::caller`]) and waits, else the driver.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use partywall_abi::sync::{AtomicBool, Ordering};
use partywall_call::Key;
use partywall_shm::link::Bell;
use tokio::io::Ready;
use tokio::io::unix::AsyncFd;

use super::broken::Broken;
use super::watch;
use crate::lock::lock;
use crate::waker::register;

/// Who is woken when the link's socket becomes readable.
#[derive(Default)]
struct Doorbell {
    sleepers: Mutex<Sleepers>,
    /// The runtime will wake this when the socket becomes readable.
    armed: AtomicBool,
}

#[derive(Default)]
struct Sleepers {
    /// The leader, and its task while it waits.
    leader: Option<(Key, Option<Waker>)>,
    driver: Option<Waker>,
    /// The driver was to be woken while it did not wait: it looks once more before it does.
    look: bool,
}

impl Sleepers {
    fn take_driver(&mut self) -> Option<Waker> {
        let driver = self.driver.take();
        self.look |= driver.is_none();
        driver
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        let mut sleepers = lock(&self.sleepers);
        // A leader that was woken already may have found `rx` taken and wait for the driver.
        let leader = sleepers.leader.as_mut().and_then(|(_, leader)| leader.take());
        let waker = leader.or_else(|| sleepers.take_driver());
        drop(sleepers);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The socket and those who wait for it.
pub(super) struct Listener {
    io: AsyncFd<Arc<Bell>>,
    doorbell: Arc<Doorbell>,
    /// The doorbell, as the runtime knows it.
    waker: Waker,
}

impl Listener {
    pub(super) fn new(bell: Arc<Bell>) -> std::io::Result<Self> {
        let doorbell = Arc::<Doorbell>::default();
        let waker = Arc::clone(&doorbell).into();
        Ok(Self { io: watch(bell)?, doorbell, waker })
    }

    pub(super) fn bell(&self) -> &Bell {
        self.io.get_ref()
    }

    /// Whether the doorbell has rung since it was last looked at, and how; if not, the runtime will
    /// wake whoever waits.
    pub(super) fn listen(&self) -> Result<Option<Ready>, Broken> {
        let mut cx = Context::from_waker(&self.waker);
        // Before the runtime can wake it.
        self.doorbell.armed.store(true, Ordering::Relaxed);
        let Poll::Ready(ready) = self.io.poll_read_ready(&mut cx) else { return Ok(None) };
        self.doorbell.armed.store(false, Ordering::Relaxed);
        let mut ready = ready.map_err(|_| Broken::Runtime)?;
        let state = ready.ready();
        ready.clear_ready();
        Ok(Some(state))
    }

    /// Whether the runtime will wake whoever waits when the socket becomes readable.
    pub(super) fn is_armed(&self) -> bool {
        self.doorbell.armed.load(Ordering::Relaxed)
    }

    /// Has the socket looked at, as if it had rung.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Wakes everybody who waits: the link has ended.
    pub(super) fn wake_all(&self) {
        let sleepers = std::mem::take(&mut *lock(&self.doorbell.sleepers));
        let leader = sleepers.leader.and_then(|(_, waker)| waker);
        [leader, sleepers.driver].into_iter().flatten().for_each(Waker::wake);
    }

    // ---- the driver --------------------------------------------------------------------

    /// Lets the driver look: whoever gives up reading half-way calls this.
    pub(super) fn wake_driver(&self) {
        let driver = lock(&self.doorbell.sleepers).take_driver();
        driver.into_iter().for_each(Waker::wake);
    }

    /// A new driver begins: the one before it, if any, is woken no more.
    pub(super) fn forget_driver(&self) {
        lock(&self.doorbell.sleepers).driver = None;
    }

    /// Has the driver's task woken; false when it is to look first.
    pub(super) fn wait_as_driver(&self, cx: &Context<'_>) -> bool {
        let mut sleepers = lock(&self.doorbell.sleepers);
        if std::mem::take(&mut sleepers.look) {
            return false;
        }
        // The driver is a task of the runtime's: dropping its waker runs nothing of a program's.
        register(&mut sleepers.driver, cx);
        true
    }

    // ---- the leader --------------------------------------------------------------------

    /// Makes a call the leader, whose task is woken.
    pub(super) fn lead(&self, call: Key, cx: &Context<'_>) {
        let mut sleepers = lock(&self.doorbell.sleepers);
        let replaced = match &mut sleepers.leader {
            Some((leader, waker)) if *leader == call => register(waker, cx),
            leader => leader.replace((call, Some(cx.waker().clone()))).and_then(|(_, old)| old),
        };
        // Dropping it may end a task which has calls on this link.
        drop(sleepers);
        drop(replaced);
    }

    /// Leads no more; whether the call did.
    pub(super) fn resign(&self, call: Key) -> bool {
        let mut sleepers = lock(&self.doorbell.sleepers);
        if !matches!(sleepers.leader, Some((leader, _)) if leader == call) {
            return false;
        }
        let leader = sleepers.leader.take();
        drop(sleepers);
        drop(leader);
        true
    }

    /// Nobody leads any more; whether somebody did.
    pub(super) fn depose(&self) -> bool {
        let leader = lock(&self.doorbell.sleepers).leader.take();
        leader.is_some()
    }
}
