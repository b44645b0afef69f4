//! Throughput under a quantum: blocks of 64 bytes hashed per second (SHA-512), called in pieces.
//!
//! A call hashes [`BLOCKS`] blocks, which takes less than the shortest quantum, and [`WINDOW`] calls are
//! under way. All contenders have the same source of the hash, and a dispatcher that looks for answers all
//! the time. Each sum is checked.
//!
//! | contender | the quantum is |
//! |---|---|
//! | `partywall-fn` | the function's budget: its dispatcher looks, and signals only a worker that is beyond it |
//! | `partywall-fn-timer` | the function's budget, and the period of the worker's own timer (timer_create(2)) |
//! | `sigalrm` | the period of the worker's timer |
//!
//! A worker that gets nothing done for two seconds is ended, and has hashed nothing: a period that is shorter
//! than its handler takes.

use std::time::Duration;

use partywall_functions::dispatcher::{Event, Id, Outcome, Preemption};

use super::cell::{Cell, Measure, More};
use super::link::Link;
use super::load::Serves as _;
use super::ours::Ours;
use super::task::Task;
use super::{QUANTA, prepared, program, sha512};
use crate::case::{Case, Mode};
use crate::error::Result;
use crate::row::Figures;
use crate::sys::clock::Stamps;

/// The blocks of a call.
pub const BLOCKS: u64 = 6;
/// Calls under way.
const WINDOW: u32 = 16;
/// How long a worker may get nothing done.
const STUCK_NS: u64 = 2_000_000_000;
/// The budget that stands for none.
const NO_QUANTUM: Duration = Duration::from_secs(10);

/// Who hashes.
pub trait Hashes {
    /// Asks for the sum of [`BLOCKS`] blocks.
    fn ask(&mut self, now: u64) -> Result<()>;
    /// What calls have come to since: a sum each, or nothing of one that was stopped.
    fn take(&mut self, now: u64, ended: &mut Vec<Option<u64>>) -> Result<()>;
}

/// The rows of a contender.
pub fn rows(task: &Task) -> Result<Vec<(Case, Figures)>> {
    let mut rows = Vec::new();
    for quantum in std::iter::once(None).chain(QUANTA.map(Some)) {
        let figures = match task.contender.as_str() {
            "sigalrm" => under_timer(task, quantum)?,
            "partywall-fn-timer" => {
                let every = quantum.map_or(NO_QUANTUM, |us| Duration::from_micros(us.into()));
                under_budget(task, quantum, Preemption::Timer(every))?
            }
            _ => under_budget(task, quantum, Preemption::Dispatcher)?,
        };
        let cell = Cell::of(Measure::Hashes).every(quantum);
        rows.push((Case::functions(Mode::Warm, task.count.into(), cell), figures));
    }
    Ok(rows)
}

fn under_timer(task: &Task, quantum: Option<u32>) -> Result<Figures> {
    let stamps = serde_json::to_string(&task.stamps)?;
    let program = program("alarm", &[&quantum.unwrap_or(0).to_string(), &stamps])?;
    let (link, _) = Link::start(&program, task.cpus[1], task.seed, std::iter::empty())?;
    let mut timer = UnderTimer(link.of_numbers(1));
    let figures = measure(&mut timer, task.stamps, task.span)?;
    timer.0.stop()?;
    Ok(figures)
}

struct UnderTimer(Link);

impl Hashes for UnderTimer {
    fn ask(&mut self, _: u64) -> Result<()> {
        self.0.submit(0, [BLOCKS, 0, 0], 0);
        Ok(())
    }

    fn take(&mut self, _: u64, ended: &mut Vec<Option<u64>>) -> Result<()> {
        while let Some(answer) = self.0.receive()? {
            ended.push(Some(answer.which));
        }
        Ok(())
    }
}

fn under_budget(task: &Task, quantum: Option<u32>, preemption: Preemption) -> Result<Figures> {
    let mut ours = Ours::start_with(task, preemption)?;
    let budget = quantum.map_or(NO_QUANTUM, |us| Duration::from_micros(us.into()));
    let image = prepared::image(&task.files, "hash")?;
    let id = ours.register(image, ours.owner, budget)?;
    let stamps = ours.stamps;
    measure(&mut UnderBudget { ours, id }, stamps, task.span)
}

struct UnderBudget {
    ours: Ours,
    id: Id,
}

impl Hashes for UnderBudget {
    fn ask(&mut self, now: u64) -> Result<()> {
        let request = BLOCKS.to_le_bytes().to_vec();
        match self.ours.dispatcher.call(self.id, request, 0, (now, None)) {
            Ok(_) => Ok(()),
            Err(done) => Err(format!("a call was not taken: {:?}", done.outcome).into()),
        }
    }

    fn take(&mut self, _: u64, ended: &mut Vec<Option<u64>>) -> Result<()> {
        self.ours.poll()?;
        for event in self.ours.events.drain(..) {
            let Event::Done(done) = event else { return Err("a function calls a service".into()) };
            ended.push(sum(&done.outcome)?);
        }
        Ok(())
    }
}

/// The sum that a call has come to, or nothing of one that was stopped.
pub fn sum(outcome: &Outcome) -> Result<Option<u64>> {
    match outcome {
        Outcome::Reply(reply) => {
            let sum = reply.first_chunk().ok_or("a reply without a sum")?;
            Ok(Some(u64::from_le_bytes(*sum)))
        }
        Outcome::Budget(_) => Ok(None),
        other => Err(format!("a call has ended with {other:?}").into()),
    }
}

fn measure(hashes: &mut impl Hashes, stamps: Stamps, span: Duration) -> Result<Figures> {
    let expected = sha512::sum(BLOCKS);
    let span = span.as_nanos() as u64;
    let begun = stamps.now();
    let (mut warm, mut heard) = (None, begun);
    let (mut under_way, mut done, mut stopped, mut errors) = (0, 0_u64, 0_u64, 0);
    let mut ended = Vec::with_capacity(1 << 10);
    let last = loop {
        let now = stamps.now();
        if now > heard + STUCK_NS || warm.is_some_and(|warm| now >= warm + span) {
            break now;
        }
        while under_way < WINDOW {
            hashes.ask(now)?;
            under_way += 1;
        }
        hashes.take(now, &mut ended)?;
        for sum in ended.drain(..) {
            under_way -= 1;
            heard = now;
            // The first answer comes when the worker has begun; the warm-up is behind it.
            let begin = *warm.get_or_insert(now + span / 6);
            if now < begin {
                continue;
            }
            match sum {
                Some(sum) => {
                    done += 1;
                    errors += u64::from(sum != expected);
                }
                None => stopped += 1,
            }
        }
    };
    let took = last.saturating_sub(warm.unwrap_or(begun)).max(1) as f64;
    let more = More {
        calls: Some((done + stopped) as f64),
        stopped: Some(stopped as f64),
        ..More::default()
    };
    let per_s = Some((done * BLOCKS) as f64 * 1e9 / took);
    Ok(Figures { per_s, errors, functions: Some(more), ..Figures::default() })
}
