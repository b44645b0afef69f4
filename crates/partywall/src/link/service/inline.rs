//! Running handlers inside the link's reader, and getting the reader's role, and the sockets, away from a
//! handler that stays too long.
//!
//! A handler that answers at its first poll is cheapest when the reader polls it itself: no task,
//! no scheduling. But while it runs, nobody reads the link. So:
//!
//! * A method is polled inline only after [`STREAK`] first polls in a row were short, each measured
//!   in a task of its own.
//! * On a multi-threaded runtime a monitor (a [`Ticker`] on the reactor's thread, which ticks only
//!   while handlers run inline) looks every [`PERIOD`] whether a thread is still in the handler it
//!   was in at the last look. If so it hands the reader's role on: the link's role number goes up
//!   and a new driver is spawned, which another worker runs; the old one sees the new number when
//!   its handler returns, answers its call and ends. The method starts over with its streak.
//! * A handler in a task of its own is looked after in the same way. If it stays, the runtime is given a task
//!   without work: tokio's worker that waits for sockets may be the one that the handler stays on, and
//!   tokio has another one wait for them only once that one has had something to do.
//! * A caller's thread that has come in (`crate::domain`) is nobody's reader: its polls are measured,
//!   and a method that takes a millisecond starts over.
//! * On a current-thread runtime there is no other thread to transfer the role to: a handler that
//!   burns the thread stops everything there, inline or not.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use crate::lock::lock;
use partywall_abi::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use partywall_shm::reactor::Ticker;

/// Short first polls in a row that make a method one to run inline.
const STREAK: u32 = 4;
/// What is short.
const SHORT: Duration = Duration::from_micros(100);
/// How often the monitor looks.
const PERIOD: Duration = Duration::from_micros(500);
/// Looks without any change after which the monitor rests.
const REST: u32 = 40;

/// What is known of a method's first polls.
#[derive(Default)]
pub(crate) struct History(AtomicU32);

impl History {
    pub(crate) fn may_inline(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= STREAK
    }

    pub(crate) fn first_poll_took(&self, time: Duration) {
        if time > SHORT {
            self.0.store(0, Ordering::Relaxed);
        } else if !self.may_inline() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn start_over(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Something whose handlers other threads go on beside.
pub(crate) trait HandOn: Send + Sync {
    /// A handler stays on its thread, which reads the link or only runs the handler's task.
    fn hand_on(self: Arc<Self>, reads: bool);
}

/// One thread that runs handlers. `seq` is odd while it is in one.
#[derive(Default)]
struct Slot {
    seq: AtomicU64,
    reads: AtomicBool,
    who: Mutex<Option<Weak<dyn HandOn>>>,
}

struct Monitor {
    /// Each thread, with its `seq` at the last look and that of the handler it was last relieved of.
    slots: Mutex<Vec<(Weak<Slot>, u64, u64)>>,
    quiet: AtomicU32,
    ticker: OnceLock<Arc<Ticker>>,
}

static MONITOR: Monitor =
    Monitor { slots: Mutex::new(Vec::new()), quiet: AtomicU32::new(0), ticker: OnceLock::new() };

thread_local! {
    static OWN: RefCell<Option<(Arc<Slot>, usize)>> = const { RefCell::new(None) };
}

/// Marks this thread as running a handler of `link`, while it lives.
pub(crate) struct Inside(Arc<Slot>);

impl Inside {
    /// `None` when there can be no monitor; then nothing may run inline. `reads`: the thread reads the link.
    pub(crate) fn enter(link: &Arc<impl HandOn + 'static>, reads: bool) -> Option<Self> {
        let ticker = MONITOR.ticker()?;
        let address = Arc::as_ptr(link).addr();
        let slot = OWN.with_borrow_mut(|own| {
            let (slot, last) = own.get_or_insert_with(|| (MONITOR.new_slot(), 0));
            if *last != address {
                *last = address;
                let who: Weak<dyn HandOn> = Arc::downgrade(link) as _;
                *lock(&slot.who) = Some(who);
            }
            Arc::clone(slot)
        });
        slot.reads.store(reads, Ordering::Relaxed);
        slot.seq.fetch_add(1, Ordering::Release);
        ticker.kick();
        Some(Self(slot))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.seq.fetch_add(1, Ordering::Release);
    }
}

impl Monitor {
    fn ticker(&'static self) -> Option<&'static Arc<Ticker>> {
        if let Some(ticker) = self.ticker.get() {
            return Some(ticker);
        }
        let made = Ticker::new(PERIOD, || self.tick()).ok()?;
        // Should two threads come here at once, the other's ticker rests for ever.
        Some(self.ticker.get_or_init(|| made))
    }

    fn new_slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        let mut slots = lock(&self.slots);
        slots.push((Arc::downgrade(&slot), 0, 0));
        slot
    }

    /// Looks at every thread once; whether to look again.
    fn tick(&self) -> bool {
        let mut overdue = Vec::new();
        let mut change = false;
        let mut slots = lock(&self.slots);
        slots.retain_mut(|(slot, seen, relieved)| {
            let Some(slot) = slot.upgrade() else { return false };
            let seq = slot.seq.load(Ordering::Acquire);
            if seq != *seen {
                change = true;
            } else if seq % 2 == 1 && seq != *relieved {
                *relieved = seq;
                let reads = slot.reads.load(Ordering::Relaxed);
                overdue.extend(lock(&slot.who).clone().map(|who| (who, reads)));
            }
            *seen = seq;
            true
        });
        drop(slots);
        for (who, reads) in overdue {
            if let Some(who) = who.upgrade() {
                who.hand_on(reads);
            }
        }
        if change {
            self.quiet.store(0, Ordering::Relaxed);
            return true;
        }
        self.quiet.fetch_add(1, Ordering::Relaxed) < REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    struct Count(AtomicU32);
    impl HandOn for Count {
        fn hand_on(self: Arc<Self>, _: bool) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn long_handler_is_noticed_in_two_periods_a_short_one_never() {
        let link = Arc::new(Count(AtomicU32::new(0)));
        let mut stayed = 0;
        for _ in 0..1000 {
            let start = Instant::now();
            drop(Inside::enter(&link, true).unwrap());
            // Others may have had the CPU meanwhile.
            stayed += u32::from(start.elapsed() > SHORT);
        }
        let noticed = link.0.swap(0, Ordering::SeqCst);
        assert!(noticed <= stayed, "{noticed} of {stayed} that stayed");
        let start = Instant::now();
        let inside = Inside::enter(&link, true).unwrap();
        while link.0.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < Duration::from_millis(500), "never noticed");
            std::hint::spin_loop();
        }
        drop(inside);
    }

    #[test]
    fn a_method_earns_its_place_and_loses_it() {
        let h = History::default();
        for _ in 0..STREAK {
            assert!(!h.may_inline());
            h.first_poll_took(Duration::from_micros(1));
        }
        assert!(h.may_inline());
        h.first_poll_took(SHORT * 2);
        assert!(!h.may_inline());
    }
}
