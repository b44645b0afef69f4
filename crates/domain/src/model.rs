//! Models of the three places where a thread on its way into a domain meets one that has to know of it.
//!
//! The gate is assembly, so its steps are written down here once more, with the orders that its plain
//! loads and stores have on this processor at the least: acquire and release. The barrier of the other
//! side (membarrier(2)) interrupts the thread between two of its steps, wherever that is, and is back after
//! it has; so a model runs once for each of these places. The interrupt passes on what both sides have
//! written before it, and orders nothing else.
//!
//! Each property fails without the barrier, which is tried as well.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const FREE: u32 = 1;
const BUSY: u32 = 2;
const PARKING: u32 = 3;

#[derive(Default)]
struct Tables {
    closed: AtomicU32,
    entering: AtomicU32,
    state: AtomicU32,
    /// 1 once what the thread uses inside is freed.
    freed: AtomicU32,
    watchdog: AtomicU32,
    woken: AtomicU32,
    /// The two ends of an interrupt.
    asked: AtomicU32,
    done: AtomicU32,
}

/// Where the gate's thread is interrupted, of [`PLACES`]; nowhere without the barrier.
#[derive(Clone, Copy)]
struct Interrupt(Option<usize>);

const PLACES: usize = 7;

impl Interrupt {
    /// In the thread that runs.
    fn at(self, place: usize, tables: &Tables) {
        if self.0 == Some(place) {
            while tables.asked.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            tables.done.store(1, Ordering::Release);
        }
    }

    /// In the one that asks for it.
    fn barrier(self, tables: &Tables) {
        if self.0.is_some() {
            tables.asked.store(1, Ordering::Release);
            while tables.done.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
        }
    }
}

/// The steps of `partywall_call` on its way in; whether it is inside.
fn enter(interrupt: Interrupt, tables: &Tables) -> bool {
    interrupt.at(0, tables);
    tables.entering.store(1, Ordering::Release);
    interrupt.at(1, tables);
    let closed = tables.closed.load(Ordering::Acquire) != 0;
    interrupt.at(2, tables);
    let enters = !closed && tables.state.load(Ordering::Acquire) == FREE;
    interrupt.at(3, tables);
    if enters {
        // A plain store in the gate. Of one of those and an exchange, loom does not say which came last.
        tables.state.swap(BUSY, Ordering::Release);
    }
    interrupt.at(4, tables);
    tables.entering.store(0, Ordering::Release);
    interrupt.at(5, tables);
    if enters && tables.watchdog.load(Ordering::Acquire) != 0 {
        tables.woken.store(1, Ordering::Relaxed);
    }
    enters
}

/// A call, whose callee uses what is freed when nobody is inside.
fn call(interrupt: Interrupt, tables: &Tables) {
    let inside = enter(interrupt, tables);
    interrupt.at(6, tables);
    if inside {
        let freed = tables.freed.load(Ordering::Relaxed);
        assert_eq!(freed, 0, "freed under a thread that is inside");
        tables.state.store(FREE, Ordering::Release);
    }
}

/// A call that lasts.
fn stay(interrupt: Interrupt, tables: &Tables) {
    let inside = enter(interrupt, tables);
    interrupt.at(6, tables);
    assert!(inside, "nothing keeps it out");
}

type Body = fn(Interrupt, &Tables);

/// Runs two threads with the barrier at each place.
fn at_each_place(calling: Body, other: Body) {
    (0..PLACES).for_each(|place| run(Interrupt(Some(place)), calling, other));
}

fn run(interrupt: Interrupt, calling: Body, other: Body) {
    loom::model(move || {
        let tables = Arc::new(Tables { state: AtomicU32::new(FREE), ..Tables::default() });
        let shared = Arc::clone(&tables);
        let calling = thread::spawn(move || calling(interrupt, &shared));
        other(interrupt, &tables);
        calling.join().unwrap();
        let asleep = tables.watchdog.load(Ordering::Relaxed) != 0;
        let woken = tables.woken.load(Ordering::Relaxed) != 0;
        assert!(!asleep || woken, "a call that nobody watches");
    });
}

/// The launcher, which frees a domain's memory.
fn close(interrupt: Interrupt, tables: &Tables) {
    tables.closed.store(1, Ordering::Release);
    interrupt.barrier(tables);
    let on_the_way = tables.entering.load(Ordering::Acquire) != 0;
    if !on_the_way && tables.state.load(Ordering::Acquire) != BUSY {
        tables.freed.store(1, Ordering::Relaxed);
    }
}

/// The agent, which takes itself out of its context.
fn retire(interrupt: Interrupt, tables: &Tables) {
    let order = (Ordering::AcqRel, Ordering::Acquire);
    let retires = tables.state.compare_exchange(FREE, PARKING, order.0, order.1).is_ok();
    interrupt.barrier(tables);
    if retires {
        while tables.entering.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        if tables.state.load(Ordering::Acquire) == PARKING {
            tables.freed.store(1, Ordering::Relaxed);
        }
    }
}

/// The watchdog, which sleeps unless it sees somebody inside.
fn sleep(interrupt: Interrupt, tables: &Tables) {
    tables.watchdog.store(1, Ordering::Release);
    interrupt.barrier(tables);
    if tables.state.load(Ordering::Acquire) == BUSY {
        tables.watchdog.store(0, Ordering::Release);
    }
}

#[test]
fn loom_gate_enter() {
    at_each_place(call, close);
}

#[test]
#[should_panic(expected = "freed under a thread")]
fn loom_gate_enter_needs_its_barrier() {
    run(Interrupt(None), call, close);
}

#[test]
fn loom_context_retire() {
    at_each_place(call, retire);
}

#[test]
#[should_panic(expected = "freed under a thread")]
fn loom_context_retire_needs_its_barrier() {
    run(Interrupt(None), call, retire);
}

#[test]
fn loom_gate_watchdog() {
    at_each_place(stay, sleep);
}

#[test]
#[should_panic(expected = "a call that nobody watches")]
fn loom_gate_watchdog_needs_its_barrier() {
    run(Interrupt(None), stay, sleep);
}
