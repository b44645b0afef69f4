//! Functions that are stopped beyond their budget, and calls beside them.
//!
//! ```text
//! call of an endless function, submitted at t --> the first poll later than t + budget, at s: the signal
//!                                             --> its end is seen at e: the delay is e - s
//! call of an honest function --> its first block of memory is where it was, and what it echoes is right
//! ```
//!
//! The delay of a bare signal ends with its handler's stamp; this one has also what the worker and the
//! dispatcher do until the end is seen.
//!
//! | figure | what it is |
//! |---|---|
//! | lost | endless calls whose end is none by their budget |
//! | next wrong | honest calls behind them without the right answer |
//! | leaked bytes | how far the first block has moved, and what the worker's memory has grown by (smaps_rollup: anonymous and shared), from the tenth part of all kills on, and at least from the 64th |
//! | kept | honest blocks per second while one call in a hundred is endless, by those without such calls in the time that these have left |

use std::time::Duration;

use partywall_functions::dispatcher::{Event, Id, Outcome};
use partywall_functions::schedule::Limits;

use super::cell::{Cell, Measure, More, Order, Within};
use super::load::{Caller, Times, quantiles};
use super::ours::Ours;
use super::task::Task;
use super::{BUDGET_US, LOADS, hashes, killed, neighbour, prepared, sha512};
use crate::case::{Case, Mode};
use crate::error::Result;
use crate::row::Figures;

const BUDGET: Duration = Duration::from_micros(BUDGET_US as u64);
/// Longer than any end of a call takes.
const PATIENCE_NS: u64 = 3_000_000_000;
/// As many calls as the ring has slots.
const SLOTS: u32 = partywall_abi::function::SLOTS;
/// One call in so many is endless.
const ONE_IN: u64 = 100;
/// Calls under way beside them.
const WINDOW: u64 = 16;
/// Calls per second of the owner whose times are measured, where those of `process-fair` are not known.
const PER_S: f64 = 5_000.0;

/// What kills are made with.
struct Kills {
    ours: Ours,
    endless: Id,
    first: Id,
    /// Where the first block of an honest call is.
    home: Option<u64>,
    delays: Vec<u64>,
    lost: u64,
    wrong: u64,
    moved: u64,
}

impl Kills {
    fn start(task: &Task) -> Result<Self> {
        let mut ours = Ours::start(task)?;
        let owner = ours.owner;
        let endless = prepared::image(&task.files, "endless")?;
        let endless = ours.register(endless, owner, BUDGET)?;
        let first = prepared::image(&task.files, "first")?;
        let first = ours.register(first, owner, Duration::from_secs(1))?;
        let delays = Vec::with_capacity(task.kills as usize);
        let mut kills =
            Self { ours, endless, first, home: None, delays, lost: 0, wrong: 0, moved: 0 };
        kills.next(0)?;
        match kills.home {
            Some(_) => Ok(kills),
            None => Err("an honest call has no answer".into()),
        }
    }

    /// Calls a function and waits for its end: how it has ended, when it was submitted, when a poll was the
    /// first beyond the budget, and when the end was seen.
    fn call(&mut self, id: Id, request: Vec<u8>) -> Result<(Option<Outcome>, Option<u64>, u64)> {
        let Ours { dispatcher, stamps, events, .. } = &mut self.ours;
        let begun = stamps.now();
        if let Err(done) = dispatcher.call(id, request, 0, (begun, None)) {
            return Ok((Some(done.outcome), None, begun));
        }
        dispatcher.poll(begun, events)?;
        let limit = BUDGET.as_nanos() as u64;
        let mut told = None;
        loop {
            let now = stamps.now();
            if now - begun > limit {
                told.get_or_insert(now);
            }
            dispatcher.poll(now, events)?;
            match events.pop() {
                Some(Event::Done(done)) => return Ok((Some(done.outcome), told, stamps.now())),
                Some(Event::Outward(_) | Event::Unwanted(_)) => {
                    return Err("a function calls a service".into());
                }
                None if now > begun + PATIENCE_NS => return Ok((None, told, now)),
                None => {}
            }
        }
    }

    /// Stops an endless function.
    fn kill(&mut self, within: Within) -> Result<()> {
        match self.call(self.endless, vec![within as u8])? {
            (Some(Outcome::Budget(_)), Some(told), end) => self.delays.push(end - told),
            _ => self.lost += 1,
        }
        Ok(())
    }

    /// Calls an honest one.
    fn next(&mut self, number: u64) -> Result<()> {
        let (outcome, ..) = self.call(self.first, number.to_le_bytes().to_vec())?;
        let Some(Outcome::Reply(reply)) = outcome else {
            self.wrong += 1;
            return Ok(());
        };
        let (words, _) = reply.as_chunks::<8>();
        match words {
            [at, _, echo] => {
                self.wrong += u64::from(u64::from_le_bytes(*echo) != number);
                let at = u64::from_le_bytes(*at);
                self.moved = self.moved.max(at.abs_diff(*self.home.get_or_insert(at)));
            }
            _ => self.wrong += 1,
        }
        Ok(())
    }
}

/// The rows of functions that are stopped, each place by itself.
pub fn rows(task: &Task) -> Result<Vec<(Case, Figures)>> {
    let mut rows = Vec::new();
    for within in Within::ALL {
        let mut kills = Kills::start(task)?;
        let mut before = None;
        for number in 0..task.kills {
            kills.kill(within)?;
            kills.next(u64::from(number) + 1)?;
            // All slots of the ring were used once by then.
            if number == (task.kills / 10).max(SLOTS) {
                before = own(kills.ours.pid());
            }
        }
        let grown = before.zip(own(kills.ours.pid())).map(|(old, new)| new.saturating_sub(old));
        let [p50_ns, p99_ns, p999_ns] = quantiles(&mut kills.delays);
        let more = More {
            calls: Some(task.kills.into()),
            stopped: Some(kills.delays.len() as f64),
            lost: Some(kills.lost as f64),
            wrong_next: Some(kills.wrong as f64),
            leaked_bytes: grown.map(|grown| (grown + kills.moved) as f64),
            ..More::default()
        };
        let errors = kills.lost + kills.wrong;
        let figures = Figures {
            p50_ns,
            p99_ns,
            p999_ns,
            errors,
            functions: Some(more),
            ..Figures::default()
        };
        rows.push((killed(task.count.into(), within), figures));
    }
    Ok(rows)
}

/// The memory of a process that is no file's, in bytes: anonymous pages, and its shares of shared ones. None
/// for whoever may not look (CAP_SYS_PTRACE).
fn own(pid: u32) -> Option<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("Pss_Anon:")? + kib("Pss_Shmem:")?) << 10)
}

/// The row of honest work while some calls are endless.
pub fn overruns(task: &Task) -> Result<(Case, Figures)> {
    let mut ours = Ours::start(task)?;
    let owner = ours.owner;
    let hash = prepared::image(&task.files, "hash")?;
    let hash = ours.register(hash, owner, BUDGET)?;
    let endless = prepared::image(&task.files, "endless")?;
    let endless = ours.register(endless, owner, BUDGET)?;
    let mut measure = |one_in: Option<u64>| -> Result<Mixed> {
        let mut mixed = Mixed::default();
        let (mut under_way, mut number) = (0, 0_u64);
        let mut begin = None;
        let span = task.span.as_nanos() as u64;
        let begun = ours.stamps.now();
        loop {
            let now = ours.stamps.now();
            if begin.is_some_and(|begin| now >= begin + span) || now > begun + span + PATIENCE_NS {
                mixed.took_ns = now.saturating_sub(begin.unwrap_or(now));
                break;
            }
            while under_way < WINDOW {
                number += 1;
                let is_endless = one_in.is_some_and(|one_in| number.is_multiple_of(one_in));
                let (id, request) = match is_endless {
                    true => (endless, vec![0]),
                    false => (hash, hashes::BLOCKS.to_le_bytes().to_vec()),
                };
                let taken = ours.dispatcher.call(id, request, is_endless.into(), (now, None));
                taken.map_err(|done| format!("a call was not taken: {:?}", done.outcome))?;
                under_way += 1;
            }
            ours.poll()?;
            for event in ours.events.drain(..) {
                let Event::Done(done) = event else {
                    return Err("a function calls a service".into());
                };
                under_way -= 1;
                if now < *begin.get_or_insert(now + span / 6) {
                    continue;
                }
                match (done.token, hashes::sum(&done.outcome)?) {
                    (0, Some(sum)) => {
                        mixed.honest += 1;
                        mixed.errors += u64::from(sum != sha512::sum(hashes::BLOCKS));
                    }
                    (0, None) => mixed.innocent += 1,
                    (_, Some(_)) => mixed.errors += 1,
                    (_, None) => {
                        (mixed.stopped, mixed.over_ns) =
                            (mixed.stopped + 1, mixed.over_ns + done.cpu_ns)
                    }
                }
            }
        }
        // What is under way belongs to this loop, not to the next.
        while under_way > 0 {
            ours.poll()?;
            under_way -= ours.events.drain(..).count() as u64;
        }
        Ok(mixed)
    };
    // So that a machine that becomes faster or slower meanwhile is no difference.
    let [first, second, third, last] = [None, Some(ONE_IN), Some(ONE_IN), None].map(&mut measure);
    let (alone, beside) = (first?.with(last?), second?.with(third?));
    let rate = |mixed: &Mixed| mixed.honest as f64 * 1e9 / mixed.took_ns.max(1) as f64;
    let left = 1.0 - beside.over_ns as f64 / beside.took_ns.max(1) as f64;
    let more = More {
        calls: Some((beside.honest + beside.stopped + beside.innocent) as f64),
        stopped: Some(beside.stopped as f64),
        // Honest calls that were stopped all the same.
        lost: Some(beside.innocent as f64),
        kept: Some(rate(&beside) / (rate(&alone) * left)),
        ..More::default()
    };
    let figures = Figures {
        per_s: Some(rate(&beside) * hashes::BLOCKS as f64),
        errors: alone.errors + beside.errors,
        functions: Some(more),
        ..Figures::default()
    };
    let cell = Cell::of(Measure::Overruns).every(Some(BUDGET_US));
    Ok((Case::functions(Mode::Warm, task.count.into(), cell), figures))
}

/// What came of honest and endless calls.
#[derive(Clone, Copy, Debug, Default)]
struct Mixed {
    honest: u64,
    /// Honest calls that were stopped.
    innocent: u64,
    stopped: u64,
    errors: u64,
    /// The worker's time that endless calls had, as the dispatcher bills it.
    over_ns: u64,
    took_ns: u64,
}

impl Mixed {
    /// Both together.
    fn with(self, other: Self) -> Self {
        Self {
            honest: self.honest + other.honest,
            innocent: self.innocent + other.innocent,
            stopped: self.stopped + other.stopped,
            errors: self.errors + other.errors,
            over_ns: self.over_ns + other.over_ns,
            took_ns: self.took_ns + other.took_ns,
        }
    }
}

/// The rows of an owner's calls: alone, and beside another owner who is at its limits.
pub fn neighbours(task: &Task, times: &mut Times) -> Result<Vec<(Case, Figures)>> {
    let mut ours = Ours::start(task)?;
    ours.register_copies(&task.files, task.count)?;
    ours.preload()?;
    // Calls that come as fast as they can: all but these are refused.
    let limits =
        Limits { rate: 100_000, burst: 100, queue: 100, concurrency: 1, ..Limits::default() };
    let other = ours.dispatcher.add_owner(limits);
    let image = prepared::Copies::new(&task.files)?.copy(0)?;
    let noisy = ours.register(image, other, Duration::from_secs(1))?;
    let per_s = task.fair_per_s.map_or(PER_S, |fair| fair * f64::from(LOADS[0]) / 100.0);
    let stamps = ours.stamps;
    let mut rows = Vec::new();
    Caller::new(&mut ours, times, stamps, task.count, task.seed).warm_up()?;
    for beside in [false, true] {
        (ours.neighbour, ours.refused) = (beside.then_some(noisy), 0);
        let mut caller = Caller::new(&mut ours, times, stamps, task.count, task.seed);
        let mut figures = caller.open(Order::Random, per_s, task.span)?;
        if let Some(more) = &mut figures.functions {
            more.refused = beside.then_some(ours.refused as f64);
        }
        rows.push((Case::functions(Mode::Warm, task.count.into(), neighbour(beside)), figures));
    }
    Ok(rows)
}
