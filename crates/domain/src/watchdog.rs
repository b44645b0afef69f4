//! The watchdog: a thread of the launcher that cancels calls whose limit has passed, or whose
//! callee has died.
//!
//! A call sets no timer and reads no clock. The gate writes down how long it may last, and this
//! thread looks at all contexts every [`TICK`] while calls are made, and sooner when one that it sees
//! is about to have lasted that long, but not twice within [`SHORT_TICK`]. So a call is found late up
//! to a tick of each after its limit. A look takes the CPU from a caller for some 50 us in a virtual
//! machine: one every millisecond would be what every hundredth call of ten microseconds takes longest
//! for.
//!
//! When nobody has been inside for a while it sleeps, and the gate wakes it (`watchdog` in the tables:
//! set here before a last look, read there after the context is busy, with a barrier in all threads
//! between setting and looking, so one of them sees the other).
//!
//! A call that is made from a call has a limit of its own; the outer one ends after it.
//!
//! What is found late is marked in its context by number and its thread signalled
//! ([`crate::sigaction::CANCEL_SIGNAL`]); the signalled thread looks again itself, and is signalled again
//! at the next short tick, until it is out. If it does not exist any more it has died inside: its
//! context is poisoned and the callee's domain restarted.
//!
//! | label | what pairs | shown by |
//! | --- | --- | --- |
//! | SYNC(gate.watchdog) | A thread writes BUSY, then reads `watchdog`; the watchdog writes 1, has the barrier put into all threads, then looks at the states. Either it sees the call, or the call wakes it. | model `loom_gate_watchdog`; `a_call_that_takes_too_long_is_ended` |
//! | SYNC(watchdog.stop) | Dropping writes `stop`, then 0 into `watchdog`, and wakes; the thread writes 1, then reads `stop`, then waits while it is 1. All are sequentially consistent: it sees `stop`, or does not find 1, or is woken. | by the order of the four, all in this file |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::callers;
use crate::contexts::CLOSED;
use crate::sigaction::CANCEL_SIGNAL;
use crate::sys;
use crate::table::{CONTEXTS_EACH, Context, SLOTS, TABLES};

/// How often it looks.
pub(crate) const TICK: Duration = Duration::from_micros(2500);
/// How often at most.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// How long a thread may take to leave a call whose time is over before the callee is to be started
/// again without it: it may be stopped, and the callee's locks with it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many times it looks without seeing anybody before it sleeps.
const QUIET: u32 = 40;

/// The thread; dropping this ends it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name("domain-watchdog".into());
        // A thread begins with its maker's mask, and the launcher's signals are for its own threads.
        let before = sys::set_mask(CLOSED);
        let thread = builder.spawn(move || run(&stopping));
        sys::set_mask(before);
        Ok(Self { stop, thread: Some(thread?) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst); // SYNC(watchdog.stop)
        TABLES.watchdog.store(0, Ordering::SeqCst); // SYNC(watchdog.stop)
        let _woken = futex::wake(&TABLES.watchdog, futex::Flags::PRIVATE, 1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// What the watchdog knows of a context: the call it saw there last, and since when.
#[derive(Clone, Copy)]
struct Seen {
    call: u64,
    since: Instant,
}

type Sights = Vec<[Option<Seen>; CONTEXTS_EACH]>;

fn run(stop: &AtomicBool) {
    let mut sights: Sights = vec![[None; CONTEXTS_EACH]; SLOTS];
    let mut quiet = 0;
    // SYNC(watchdog.stop)
    while !stop.load(Ordering::SeqCst) {
        // A caller that was slow to wake it may have written this after it woke.
        if TABLES.watchdog.load(Ordering::Relaxed) != 0 {
            TABLES.watchdog.store(0, Ordering::SeqCst); // SYNC(gate.watchdog)
        }
        let due = look(&mut sights);
        quiet = if due.is_some() { 0 } else { quiet + 1 };
        if quiet < QUIET {
            std::thread::sleep(due.unwrap_or(TICK).clamp(SHORT_TICK, TICK));
            continue;
        }
        TABLES.watchdog.store(1, Ordering::SeqCst); // SYNC(gate.watchdog), SYNC(watchdog.stop)
        sys::barrier();
        // SYNC(watchdog.stop)
        if look(&mut sights).is_some() || stop.load(Ordering::SeqCst) {
            TABLES.watchdog.store(0, Ordering::SeqCst); // SYNC(gate.watchdog)
        } else {
            let _woken = futex::wait(&TABLES.watchdog, futex::Flags::PRIVATE, 1, None);
            TABLES.watchdog.store(0, Ordering::SeqCst); // SYNC(gate.watchdog)
        }
        quiet = 0;
    }
}

/// How long until the first of those that are inside a context will have been there for too long; none
/// if nobody is.
fn look(sights: &mut Sights) -> Option<Duration> {
    let mut due: Option<Duration> = None;
    let now = Instant::now();
    for ((domain, contexts), sights) in TABLES.domains.iter().zip(&TABLES.contexts).zip(sights) {
        let parked = domain.contexts.load(Ordering::Acquire) as usize; // SYNC(context.park)
        let is_dead = || domain.dead.load(Ordering::Acquire) != 0; // SYNC(domain.dead)
        for (context, sight) in contexts.iter().zip(sights).take(parked) {
            if !context.is_entered() {
                *sight = None;
                continue;
            }
            let call = context.calls.load(Ordering::Acquire); // SYNC(context.calls)
            let seen = sight.filter(|seen| seen.call == call).unwrap_or(Seen { call, since: now });
            *sight = Some(seen);
            let limit = Duration::from_nanos(context.limit.load(Ordering::Relaxed));
            let stayed = now - seen.since;
            let left = limit.saturating_sub(stayed);
            due = Some(due.map_or(left, |due| due.min(left)));
            if stayed > limit {
                context.expired.store(call, Ordering::Release); // SYNC(context.expired)
                cancel(context);
                let known = domain.poisoned.load(Ordering::Relaxed) != 0;
                if stayed > limit + PATIENCE && !known {
                    // Its thread does not run, or not here.
                    TABLES.poisoned(context);
                }
            } else if is_dead() {
                due = Some(Duration::ZERO);
                cancel(context);
            }
        }
    }
    due
}

fn cancel(context: &Context) {
    if !callers::is_entered(context) {
        return;
    }
    // SYNC(context.bind)
    let Some(caller) = TABLES.caller_at(context.owner.load(Ordering::Acquire)) else { return };
    // SYNC(caller.entry)
    let [pid, tid] = [&caller.pid, &caller.tid].map(|number| number.load(Ordering::Acquire));
    // One at a time: a thread that does not run would hear of all at once.
    // SYNC(caller.cancelling)
    let sends = pid > 0 && tid > 0 && caller.cancelling.swap(1, Ordering::AcqRel) == 0;
    if sends && sys::tgkill(pid, tid, CANCEL_SIGNAL).is_err() {
        // It has just ended: what that comes to is seen at the next tick.
        caller.cancelling.store(0, Ordering::Release); // SYNC(caller.cancelling)
    }
}
