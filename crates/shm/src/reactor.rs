//! The one thread of this process that waits for what no task and no blocked caller can see.
//!
//! It sleeps in epoll_wait(2) without a time-out and so costs nothing while nothing happens. It
//! serves three kinds of customers: the hang-up of a link whose user is blocked on a futex, the
//! control socket to the coordinator, and tickers, which ask to be called every few hundred
//! microseconds *while they say so*.
//!
//! A customer that panics is taken out; the others are served on.
//!
//! The thread starts with the first customer and lives as long as the process. It does not
//! survive fork(2): a child that goes on without exec has no reactor.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use partywall_abi::sync::{AtomicBool, AtomicU64, Ordering, fence};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::{socket, threads};

/// Whether a source stays registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It does.
    Keep,
    /// It is taken out.
    Done,
}

/// Something that a descriptor's events are told to; called on the reactor's thread, so it must
/// not block.
pub trait Source: Send + Sync {
    /// The descriptor is readable, or writable when [`Registration::wants_room`] said so, or its
    /// peer has hung up. Level-triggered.
    fn ready(&self, hung_up: bool) -> Next;
}

/// A registered source; dropping it takes the source out.
pub struct Registration {
    token: u64,
}

impl Registration {
    /// Whether the source is called, too, while the descriptor takes data.
    pub fn wants_room(&self, wants: bool) {
        if let Some(reactor) = REACTOR.get() {
            reactor.modify(self.token, if wants { EventFlags::OUT } else { EventFlags::empty() });
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(reactor) = REACTOR.get() {
            reactor.remove(self.token);
        }
    }
}

/// A function that is called every `period` while it returns true, and again after a kick.
pub struct Ticker {
    active: AtomicBool,
    period: Duration,
    tick: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Ticker {
    /// Registers the function, at rest; tickers live as long as the process.
    ///
    /// # Errors
    /// When the reactor cannot be started.
    pub fn new(
        period: Duration,
        tick: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let reactor = Reactor::get()?;
        let ticker =
            Arc::new(Self { active: AtomicBool::new(false), period, tick: Box::new(tick) });
        lock(&reactor.tickers).push(Arc::clone(&ticker));
        Ok(ticker)
    }

    /// Makes it tick; one load when it ticks already.
    #[inline]
    pub fn kick(&self) {
        fence(Ordering::SeqCst); // What the caller wrote before is seen by the last look of `tick`.
        if !self.active.load(Ordering::Relaxed) && !self.active.swap(true, Ordering::SeqCst) {
            Reactor::get().expect("it runs, since Ticker::new").wake();
        }
    }
}

struct Reactor {
    epoll: OwnedFd,
    wake: OwnedFd,
    sources: Mutex<HashMap<u64, Entry>>,
    tickers: Mutex<Vec<Arc<Ticker>>>,
    next: AtomicU64,
    /// Its thread has ended: its descriptors were closed under it.
    failed: AtomicBool,
}

struct Entry {
    /// Keeps the descriptor open until it is out of epoll.
    owner: Arc<dyn AsFd + Send + Sync>,
    source: Arc<dyn Source>,
}

/// Set once its thread runs.
static REACTOR: OnceLock<Arc<Reactor>> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());
const WAKE: u64 = 0;
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A source that panicked has left the maps whole: they change in single calls.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers `source` for the descriptor of `owner`, which stays open while it is registered.
///
/// # Errors
/// When the reactor cannot be started or epoll_ctl(2) fails.
pub fn register(
    owner: Arc<dyn AsFd + Send + Sync>,
    source: Arc<dyn Source>,
) -> io::Result<Registration> {
    Reactor::get()?.add(owner, source)
}

impl Reactor {
    fn get() -> io::Result<&'static Self> {
        if let Some(reactor) = REACTOR.get() {
            return Ok(reactor);
        }
        let _only_one = lock(&START);
        if let Some(reactor) = REACTOR.get() {
            return Ok(reactor);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let reactor = Arc::new(Self {
            epoll,
            wake,
            sources: Mutex::default(),
            tickers: Mutex::default(),
            next: AtomicU64::new(WAKE + 1),
            failed: AtomicBool::new(false),
        });
        let runs = Arc::clone(&reactor);
        let thread = std::thread::Builder::new().name("partywall".into()).stack_size(256 * 1024);
        threads::spawn(thread, move || runs.run())?;
        // Where there is no thread there is no reactor, and the next one tries again.
        Ok(REACTOR.get_or_init(|| reactor))
    }

    fn add(
        &self,
        owner: Arc<dyn AsFd + Send + Sync>,
        source: Arc<dyn Source>,
    ) -> io::Result<Registration> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "the thread that waits for sockets has ended: its descriptors were closed",
            ));
        }
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { owner: Arc::clone(&owner), source };
        lock(&self.sources).insert(token, entry);
        let registration = Registration { token };
        let fd: BorrowedFd<'_> = (*owner).as_fd();
        epoll::add(&self.epoll, fd, EventData::new_u64(token), READABLE)?;
        Ok(registration)
    }

    fn modify(&self, token: u64, more: EventFlags) {
        let owner = lock(&self.sources).get(&token).map(|e| Arc::clone(&e.owner));
        if let Some(owner) = owner {
            let data = EventData::new_u64(token);
            // It may just have been taken out: then nobody is to be called.
            let _absent = epoll::modify(&self.epoll, (*owner).as_fd(), data, READABLE | more);
        }
    }

    fn remove(&self, token: u64) {
        // What the entry drops may take itself out of the map.
        let entry = lock(&self.sources).remove(&token);
        if let Some(entry) = entry {
            // It may not have been added (add failed half-way): then this fails, rightly.
            let _absent = epoll::delete(&self.epoll, (*entry.owner).as_fd());
        }
    }

    fn wake(&self) {
        // EAGAIN: the counter is full of wake-ups, which serves as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.tick().map(socket::timespec);
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "epoll_wait failed; links may not see a peer's death");
                    self.failed.store(true, Ordering::Release);
                    return;
                }
            }
            for event in &events {
                self.dispatch(event.data.u64(), event.flags);
            }
        }
    }

    fn dispatch(&self, token: u64, flags: EventFlags) {
        if token == WAKE {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            return;
        }
        let Some(source) = lock(&self.sources).get(&token).map(|e| Arc::clone(&e.source)) else {
            return;
        };
        let hung_up = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
        let ready = std::panic::catch_unwind(AssertUnwindSafe(|| source.ready(hung_up)));
        if ready.unwrap_or(Next::Done) == Next::Done {
            self.remove(token);
        }
    }

    /// Calls the tickers that are due and says how long to sleep.
    fn tick(&self) -> Option<Duration> {
        let tickers = lock(&self.tickers).clone();
        let mut sleep = None;
        for ticker in tickers.iter().filter(|t| t.active.load(Ordering::SeqCst)) {
            let start = Instant::now();
            let tick =
                || std::panic::catch_unwind(AssertUnwindSafe(&*ticker.tick)).unwrap_or(false);
            if !tick() {
                ticker.active.store(false, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                // A kick between the tick and the store is not lost: look once more.
                if !tick() {
                    continue;
                }
                ticker.active.store(true, Ordering::SeqCst);
            }
            let left = ticker.period.saturating_sub(start.elapsed());
            sleep = Some(sleep.map_or(left, |s: Duration| s.min(left)));
        }
        sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Tell(mpsc::SyncSender<bool>, OwnedFd);
    impl Source for Tell {
        fn ready(&self, hung_up: bool) -> Next {
            if !hung_up {
                socket::drain(self.1.as_fd(), 10).unwrap();
            }
            self.0.send(hung_up).unwrap();
            if hung_up { Next::Done } else { Next::Keep }
        }
    }

    #[test]
    fn source_is_notified_of_bells_and_the_end() {
        let (a, b) = socket::pair().unwrap();
        let (tx, rx) = mpsc::sync_channel(10);
        let tell = Arc::new(Tell(tx, b.try_clone().unwrap()));
        let _r = register(Arc::new(b), tell).unwrap();
        socket::ring(a.as_fd()).unwrap();
        assert!(!rx.recv_timeout(Duration::from_secs(5)).unwrap());
        drop(a);
        assert!(rx.recv_timeout(Duration::from_secs(5)).unwrap());
    }

    struct Holds(Registration);
    impl Source for Holds {
        fn ready(&self, _hung_up: bool) -> Next {
            let Self(_inner) = self;
            Next::Keep
        }
    }

    #[test]
    fn a_source_may_hold_another_ones_registration() {
        let ((_a, b), (_c, d)) = (socket::pair().unwrap(), socket::pair().unwrap());
        let (tx, _rx) = mpsc::sync_channel(1);
        let tell = Arc::new(Tell(tx, b.try_clone().unwrap()));
        let inner = register(Arc::new(b), tell).unwrap();
        let outer = register(Arc::new(d), Arc::new(Holds(inner))).unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            drop(outer);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(5)).unwrap();
    }

    struct Room(mpsc::Sender<()>);
    impl Source for Room {
        fn ready(&self, _hung_up: bool) -> Next {
            let _ended = self.0.send(());
            std::thread::sleep(Duration::from_millis(1));
            Next::Keep
        }
    }

    #[test]
    fn source_is_notified_of_room_while_it_asks() {
        let (_a, b) = socket::pair().unwrap();
        let (tx, rx) = mpsc::channel();
        let r = register(Arc::new(b), Arc::new(Room(tx))).unwrap();
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
        r.wants_room(true);
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
        r.wants_room(false);
        std::thread::sleep(Duration::from_millis(20));
        while rx.try_recv().is_ok() {}
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn a_ticker_ticks_while_it_says_so_and_after_a_kick() {
        let (tx, rx) = mpsc::sync_channel(100);
        let work = Arc::new(AtomicU64::new(0));
        let left = Arc::clone(&work);
        let ticker = Ticker::new(Duration::from_micros(200), move || {
            let more = left.load(Ordering::SeqCst) > 0;
            if more {
                left.fetch_sub(1, Ordering::SeqCst);
                tx.try_send(()).unwrap();
            }
            more
        })
        .unwrap();
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
        for _ in 0..2 {
            work.store(4, Ordering::SeqCst);
            ticker.kick();
            for _ in 0..4 {
                rx.recv_timeout(Duration::from_secs(5)).unwrap();
            }
            assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
        }
    }
}
