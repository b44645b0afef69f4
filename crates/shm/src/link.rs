//! A link: two rings and the socket that belongs to them.
//!
//! [`crate::setup`] describes how it is opened.
//!
//! # Afterwards
//!
//! The socket carries bells: one byte means "look at your ring". It hangs up when the peer is
//! gone. What a hostile peer sends there is read and thrown away, in bounded portions, and counted:
//! more bells than there were sleeps is a [`LinkError::Flood`].
//!
//! [`Link`] is the blocking form, for threads without a runtime. Its user sleeps on the peer's
//! bell word (futex), where no hang-up wakes it; so the [`crate::reactor`] watches the socket and
//! sees to it that the sleeper wakes ([`crate::death`]). By how much the word rises while it sleeps
//! are bells too, and count as those on the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use partywall_abi::codec::DecodeError;
use partywall_abi::frame::{Kind, MORE};
use partywall_abi::layout::{self, Geometry, SleepMode};
use partywall_abi::limits;
use partywall_abi::sync::{AtomicU64, Ordering, spin_hint};

use rustix::event::{PollFd, PollFlags};

use crate::death::Death;
use crate::memory::OutboxError;
use crate::reactor;
use crate::region::{Inbox, Outbox};
use crate::ring::{Consumer, Producer, Violation, Wake};
use crate::socket::{self, Endpoint};
use crate::spin::{self, Plan, Spin};

/// Why a link could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A system call failed.
    #[error("{call}: {source}")]
    Io {
        /// Which.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// A descriptor is no outbox.
    #[error("outbox: {0}")]
    Outbox(#[from] OutboxError),
    /// The peer's setup message is wrong.
    #[error("setup message: {0}")]
    Setup(#[from] DecodeError),
    /// The peer's setup message has no descriptor, or several, or belongs to another link.
    #[error("setup message: {0}")]
    SetupShape(&'static str),
    /// The peer broke a rule of the ring.
    #[error("the peer broke a rule of the ring: {0}")]
    Violation(#[from] Violation),
    /// The peer rang more often than it was waited for.
    #[error("the peer floods the link: {bells} bells for {sleeps} sleeps")]
    Flood {
        /// Bells received.
        bells: u64,
        /// Times this side slept.
        sleeps: u64,
    },
    /// The peer sent a record that has no place here.
    #[error("the peer sent a record of kind {kind} where a message is due")]
    Kind {
        /// Its kind.
        kind: u8,
    },
    /// The peer is gone.
    #[error("the peer is gone")]
    Dead,
    /// The deadline passed.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A message is over the limit.
    #[error("a message of over {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

/// Who is to blame for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// This process.
    Local,
    /// The process at the other end.
    Peer,
    /// The machine: memory, descriptors.
    Resource,
}

impl LinkError {
    /// Who is to blame.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Io { .. } | Self::Outbox(OutboxError::Io { .. }) => Blame::Resource,
            Self::TimedOut => Blame::Local,
            _ => Blame::Peer,
        }
    }

    pub(crate) fn io(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Dead,
            io::ErrorKind::InvalidData => Self::SetupShape("with descriptors where none belong"),
            _ => Self::Io { call, source },
        }
    }
}

/// How one end of a link is woken, and how it wakes the other.
pub struct Bell {
    socket: Endpoint,
    own: Arc<Outbox>,
    peer: Arc<Inbox>,
    death: Death,
    bells: AtomicU64,
    /// Announcements of this side that could be rung for.
    sleeps: AtomicU64,
    /// How many there were when the socket was last emptied.
    drained: AtomicU64,
    /// The bells and sleeps of the first look that found a flood, which stays one when this side sleeps on.
    flooded: OnceLock<[u64; 2]>,
    /// Whose end it is. A copy that fork(2) has made of this process must not end its link.
    process: u32,
}

impl Bell {
    pub(crate) fn new(socket: Endpoint, own: Arc<Outbox>, peer: Arc<Inbox>) -> Self {
        Self {
            socket,
            own,
            peer,
            death: Death::default(),
            bells: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            flooded: OnceLock::new(),
            process: std::process::id(),
        }
    }

    /// Carries a [`Wake`] out.
    ///
    /// A peer that is gone needs no waking, and is no error: what it sent before may still be
    /// read. Whoever waits for it sees the hang-up.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    #[inline]
    pub fn carry_out(&self, wake: Wake) -> Result<(), LinkError> {
        match wake {
            Wake::Done => Ok(()),
            Wake::Doorbell => self.ring(),
        }
    }

    /// Rings, whether the peer sleeps or not.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn ring(&self) -> Result<(), LinkError> {
        match socket::ring(self.socket.as_fd()).map_err(LinkError::io("send")) {
            Err(LinkError::Dead) => Ok(()),
            rung => rung,
        }
    }

    /// Ends the link for both sides, while other references to it exist.
    pub fn hang_up(&self) {
        if std::process::id() != self.process {
            return;
        }
        // It fails only where the peer has hung up already.
        let _gone = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
    }

    /// Counts an announcement that the peer may ring for, before it is made.
    pub fn slept(&self) {
        let before = self.sleeps.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(CPU_EVERY) {
            self.publish_cpu();
        }
    }

    /// Whether so many bells may be unread that the socket is to be emptied before the next
    /// announcement.
    pub fn must_drain(&self) -> bool {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        sleeps - self.drained.load(Ordering::Relaxed).min(sleeps) >= limits::UNREAD_BELLS.into()
    }

    /// Empties the socket of bells, in one bounded portion, and checks that the peer rings only
    /// for announcements.
    ///
    /// # Errors
    /// [`LinkError::Dead`] after a hang-up, [`LinkError::Flood`], [`LinkError::Io`].
    pub fn drain(&self) -> Result<u32, LinkError> {
        self.drained.store(self.sleeps.load(Ordering::Relaxed), Ordering::Relaxed);
        let most = 4 * limits::UNREAD_BELLS;
        let n = self.socket.drain(most).map_err(LinkError::io("recvmmsg"))?;
        self.bells.fetch_add(n.into(), Ordering::Relaxed);
        self.flood().map_or(Ok(n), Err)
    }

    /// Counts what the peer has rung while a thread slept on its bell word, which was `seen` before, and
    /// checks as [`Bell::drain`].
    fn rung(&self, seen: u32) -> Result<(), LinkError> {
        let bells = self.word().wrapping_sub(seen);
        self.bells.fetch_add(bells.into(), Ordering::Relaxed);
        self.flood().map_or(Ok(()), Err)
    }

    /// What a peer has done that rings more often than it is waited for.
    fn flood(&self) -> Option<LinkError> {
        let [bells, sleeps] = [&self.bells, &self.sleeps].map(|n| n.load(Ordering::Relaxed));
        if bells > 2 * sleeps + FLOOD_SLACK {
            // Another thread's look may have been the first.
            let _first = self.flooded.set([bells, sleeps]);
        }
        self.flooded.get().map(|&[bells, sleeps]| LinkError::Flood { bells, sleeps })
    }

    /// Why a link is over whose death was announced.
    pub fn end(&self) -> LinkError {
        self.flood().unwrap_or(LinkError::Dead)
    }

    /// Whether peer and self were last seen on the same CPU.
    pub fn same_cpu(&self) -> bool {
        let own = self.own.u32(layout::CPU_AT).load(Ordering::Relaxed);
        own != 0 && own == self.peer.load_u32(layout::CPU_AT, Ordering::Relaxed)
    }

    /// Tells the peer which CPU this thread runs on.
    pub fn publish_cpu(&self) {
        let cpu = rustix::thread::sched_getcpu() as u32 + 1;
        let word = self.own.u32(layout::CPU_AT);
        if word.load(Ordering::Relaxed) != cpu {
            word.store(cpu, Ordering::Relaxed);
        }
    }

    /// Gives the CPU to the peer, as [`spin::yield_cpu`]; and tells it where this side runs now.
    pub fn yield_cpu(&self) -> (Instant, Duration) {
        let turn = spin::yield_cpu();
        self.publish_cpu();
        turn
    }

    /// Whether the peer is known to be gone.
    pub fn is_dead(&self) -> bool {
        self.death.announced()
    }

    fn word(&self) -> u32 {
        self.peer.load_u32(layout::BELL_AT, Ordering::Acquire)
    }

    /// Sleeps on the peer's bell word unless it has moved on from `seen` or the peer is gone.
    fn sleep(&self, seen: u32, timeout: Option<Duration>) {
        if self.death.enter() {
            self.peer.futex_wait(layout::BELL_AT, seen, timeout);
        }
        self.death.leave();
    }
}

/// The parts of an open link, for those who wait in their own way.
pub struct Ends {
    /// The link's number.
    pub link: u64,
    /// The ring this side writes.
    pub producer: Producer,
    /// The ring this side reads.
    pub consumer: Consumer,
    /// The socket and what belongs to waiting.
    pub bell: Arc<Bell>,
}

impl Ends {
    pub(crate) fn new(
        link: u64,
        geometry: Geometry,
        socket: Endpoint,
        own: Arc<Outbox>,
        peer: Arc<Inbox>,
    ) -> Self {
        Self {
            link,
            producer: Producer::new(geometry, Arc::clone(&own), Arc::clone(&peer)),
            consumer: Consumer::new(geometry, Arc::clone(&own), Arc::clone(&peer)),
            bell: Arc::new(Bell::new(socket, own, peer)),
        }
    }
}

/// Bells that a peer may be ahead of the sleeps, for those it sent while this side awoke.
const FLOOD_SLACK: u64 = 64;
/// Announcements after which a side tells anew which CPU it runs on.
const CPU_EVERY: u64 = 16;
/// Looks before a spinner asks for the time, and about how long they take.
const QUICK_LOOKS: u32 = 256;
const QUICK: Duration = Duration::from_nanos(500);

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

/// The reactor's view of a blocking link.
struct Watch(Arc<Bell>);

impl reactor::Source for Watch {
    fn ready(&self, hung_up: bool) -> reactor::Next {
        if !hung_up {
            // A blocking link sleeps by futex; bells are not for it, but must not pile up.
            if self.0.drain().is_ok() {
                return reactor::Next::Keep;
            }
        }
        if !self.0.death.announce() {
            return reactor::Next::Done;
        }
        self.0.peer.futex_wake(layout::BELL_AT);
        // The hang-up stays readable, so this comes by again until the sleepers have left.
        std::thread::sleep(Duration::from_micros(100));
        reactor::Next::Keep
    }
}

/// A link for threads that block.
pub struct Link {
    // Before the parts it watches.
    _watch: reactor::Registration,
    producer: Producer,
    consumer: Consumer,
    bell: Arc<Bell>,
    spin: Spin,
    /// What was learned of waiting for room.
    room_spin: Spin,
}

impl Link {
    /// Takes over the parts of an open link.
    ///
    /// # Errors
    /// [`LinkError::Io`] when the reactor cannot watch the socket.
    pub fn new(ends: Ends) -> Result<Self, LinkError> {
        let bell = ends.bell;
        let owner: Arc<dyn AsFd + Send + Sync> = Arc::clone(&bell) as _;
        let watch = reactor::register(owner, Arc::new(Watch(Arc::clone(&bell))))
            .map_err(LinkError::io("epoll_ctl"))?;
        bell.publish_cpu();
        let (producer, consumer) = (ends.producer, ends.consumer);
        Ok(Self {
            producer,
            consumer,
            bell,
            spin: Spin::default(),
            room_spin: Spin::default(),
            _watch: watch,
        })
    }

    /// Whether the peer is known to be gone; what it sent may still be read.
    pub fn is_dead(&self) -> bool {
        self.bell.is_dead()
    }

    /// How this end is woken, and hung up by others than the thread that uses it.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Whether the peer has hung up, which a broken rule alone does not show.
    pub fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&*self.bell, PollFlags::empty())];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok()
            && fds[0].revents().contains(PollFlags::HUP)
    }

    /// The ring this side writes.
    pub fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// The ring this side reads.
    pub fn consumer(&mut self) -> &mut Consumer {
        &mut self.consumer
    }

    /// Wakes the peer if it sleeps and something was done for it.
    ///
    /// # Errors
    /// [`LinkError::Violation`], [`LinkError::Dead`], [`LinkError::Io`].
    #[inline]
    pub fn notify(&mut self) -> Result<(), LinkError> {
        let wake = self.producer.notify()?;
        self.carry_out(wake)
    }

    /// Carries a [`Wake`] out, as [`Bell::carry_out`].
    ///
    /// # Errors
    /// [`LinkError::Io`].
    #[inline]
    pub fn carry_out(&self, wake: Wake) -> Result<(), LinkError> {
        self.bell.carry_out(wake)
    }

    /// Waits until a record is there, or (when `room` is given) until a record of so many bytes
    /// has room.
    ///
    /// Spins or yields as was learned, then sleeps. What the peer waits for is told to it first.
    ///
    /// # Errors
    /// [`LinkError::Dead`] when the peer is gone and nothing is left to read,
    /// [`LinkError::TimedOut`], [`LinkError::Violation`], [`LinkError::Io`].
    pub fn wait(
        &mut self,
        room: Option<usize>,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        if self.satisfied(room)? {
            return Ok(());
        }
        let found = match self.spin.plan(self.bell.same_cpu()) {
            Plan::Sleep => false,
            Plan::Spin(budget) => self.spin(room, budget)?,
            Plan::Yield => self.yield_cpu(room)?,
        };
        if found {
            return Ok(());
        }
        let wake = self.consumer.notify()?;
        self.bell.carry_out(wake)?;
        loop {
            let seen = self.bell.word();
            let timeout = match deadline {
                None => None,
                Some(d) => match d.saturating_duration_since(Instant::now()) {
                    Duration::ZERO => return Err(LinkError::TimedOut),
                    left => Some(left),
                },
            };
            self.bell.slept();
            let asleep = self.consumer.prepare_sleep(SleepMode::Futex)
                && match room {
                    None => true,
                    Some(len) => self.producer.prepare_sleep(len, SleepMode::Futex)?,
                };
            if asleep {
                self.bell.sleep(seen, timeout);
            }
            self.consumer.awake();
            self.producer.awake();
            if self.satisfied(room)? {
                self.bell.publish_cpu();
                return Ok(());
            }
            if self.bell.is_dead() {
                // What it sent before it died counts.
                return if self.satisfied(room)? { Ok(()) } else { Err(self.bell.end()) };
            }
            self.bell.rung(seen)?;
        }
    }

    #[inline]
    fn satisfied(&mut self, room: Option<usize>) -> Result<bool, Violation> {
        if self.consumer.ready() {
            return Ok(true);
        }
        match room {
            None => Ok(false),
            Some(len) => self.producer.has_room(len),
        }
    }

    fn yield_cpu(&mut self, room: Option<usize>) -> Result<bool, LinkError> {
        let wake = self.consumer.notify()?;
        self.bell.carry_out(wake)?;
        let turn = self.bell.yield_cpu();
        let there = self.satisfied(room)?;
        self.spin.yielded(turn, there);
        Ok(there)
    }

    fn spin(&mut self, room: Option<usize>, budget: Duration) -> Result<bool, LinkError> {
        // An awake peer answers within a few cache misses, and a clock costs as much as many
        // looks: the first ones go without, and without the pause that delays the look after it.
        for _ in 0..QUICK_LOOKS {
            if self.satisfied(room)? {
                self.spin.hit(QUICK);
                return Ok(true);
            }
        }
        let start = Instant::now();
        let wake = self.consumer.notify()?;
        self.bell.carry_out(wake)?;
        loop {
            for _ in 0..16 {
                if self.satisfied(room)? {
                    self.spin.hit(QUICK + start.elapsed());
                    return Ok(true);
                }
                spin_hint();
            }
            if start.elapsed() >= budget {
                self.spin.miss();
                return Ok(false);
            }
        }
    }

    /// Sends one message of any length, in pieces as the ring takes them.
    ///
    /// # Errors
    /// As [`Link::wait`].
    #[inline]
    pub fn send(&mut self, message: &[u8], deadline: Option<Instant>) -> Result<(), LinkError> {
        let most = self.producer.record_bytes();
        let mut rest = message;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(most));
            let flags = if after.is_empty() { 0 } else { MORE };
            while !self.producer.try_push(Kind::Message as u8, flags, 0, &[piece])? {
                self.notify()?;
                self.wait_for_room(piece.len(), deadline)?;
            }
            // A consumer that sleeps can start on the first piece already.
            self.notify()?;
            if after.is_empty() {
                return Ok(());
            }
            rest = after;
        }
    }

    /// Sends the next `len` bytes of `from` as one message, read straight into the ring: no copy
    /// beside the kernel's.
    ///
    /// # Errors
    /// As [`Link::wait`], and [`LinkError::Io`] when `from` ends early or cannot be read. Then half
    /// a message may be on the ring, and the link is of no use any more.
    pub fn send_from(
        &mut self,
        from: BorrowedFd<'_>,
        len: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        let most = self.producer.record_bytes();
        let mut left = len;
        while left > 0 {
            let flags = |n: usize| if n < left { MORE } else { 0 };
            if left < most {
                // The last piece, which may be so short that it has no place in the arena.
                let mut rest = vec![0; left];
                let mut at = 0;
                while at < left {
                    match rustix::io::read(from, &mut rest[at..]) {
                        Ok(0) => return Err(ended_early()),
                        Ok(n) => at += n,
                        Err(rustix::io::Errno::INTR) => {}
                        Err(errno) => return Err(LinkError::io("read")(errno.into())),
                    }
                }
                return self.send(&rest, deadline);
            }
            match self.producer.try_push_from(Kind::Message as u8, flags, from, most)? {
                None => {
                    self.notify()?;
                    self.wait_for_room(most, deadline)?;
                }
                Some(Ok(0)) => return Err(ended_early()),
                Some(Ok(n)) => {
                    left -= n;
                    self.notify()?;
                }
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(source)) => return Err(LinkError::Io { call: "read", source }),
            }
        }
        if len == 0 { self.send(&[], deadline) } else { Ok(()) }
    }

    /// Waits until a record of `len` bytes has room, whatever comes meanwhile. The peer has been
    /// told of what is on the ring.
    fn wait_for_room(&mut self, len: usize, deadline: Option<Instant>) -> Result<(), LinkError> {
        // A peer that sends while it is sent to would make `wait` return at once, again and
        // again; so this waits for room alone.
        if self.producer.has_room(len)? {
            return Ok(());
        }
        let there = match self.room_spin.plan(self.bell.same_cpu()) {
            Plan::Sleep => false,
            Plan::Spin(budget) => self.room_spin.spin(budget, || self.producer.has_room(len))?,
            Plan::Yield => {
                let turn = self.bell.yield_cpu();
                let there = self.producer.has_room(len)?;
                self.room_spin.yielded(turn, there);
                there
            }
        };
        if there {
            return Ok(());
        }
        while !self.producer.has_room(len)? {
            let seen = self.bell.word();
            let timeout = match deadline {
                None => None,
                Some(d) => match d.saturating_duration_since(Instant::now()) {
                    Duration::ZERO => return Err(LinkError::TimedOut),
                    left => Some(left),
                },
            };
            self.bell.slept();
            if self.producer.prepare_sleep(len, SleepMode::Futex)? {
                self.bell.sleep(seen, timeout);
            }
            self.producer.awake();
            if self.bell.is_dead() && !self.producer.has_room(len)? {
                return Err(self.bell.end());
            }
            self.bell.rung(seen)?;
        }
        Ok(())
    }

    /// Receives one message into `to`, which is cleared first.
    ///
    /// # Errors
    /// As [`Link::wait`], [`LinkError::TooLarge`], [`LinkError::Kind`].
    #[inline]
    pub fn receive(
        &mut self,
        to: &mut Vec<u8>,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        to.clear();
        loop {
            let d = loop {
                match self.consumer.peek()? {
                    Some(d) => break d,
                    None => self.wait(None, deadline)?,
                }
            };
            if d.kind != Kind::Message as u8 {
                return Err(LinkError::Kind { kind: d.kind });
            }
            if to.len() + d.len as usize > limit {
                return Err(LinkError::TooLarge { limit });
            }
            to.reserve(d.len as usize);
            self.consumer.read(to);
            self.consumer.release();
            if d.flags & MORE == 0 {
                return Ok(());
            }
        }
    }
}

fn ended_early() -> LinkError {
    // Not `UnexpectedEof`, which is a peer's hang-up here.
    LinkError::Io { call: "read", source: io::Error::other("the file ended early") }
}
