//! One contender in one round, in a process of its own: the dispatcher, on the first core.
//!
//! It makes what is behind it, measures all rows of the contender, and ends; whatever it has started ends
//! with it (PR_SET_PDEATHSIG). Before and after each part, the distance of the two cores is probed.

use std::process::ExitCode;

use partywall_functions::isolation::Wanted;

use super::cell::{Cell, Measure, Order, Whose};
use super::held::Held;
use super::link::Link;
use super::load::{Caller, Serves, Times};
use super::ours::Ours;
use super::prepared::{Copies, copy_of};
use super::processes::{Waiting, Zygote};
use super::spawned::{How, Spawned};
use super::task::{Task, Told};
use super::udp::Udp;
use super::{LOADS, SPARSE, WINDOW, floor, hashes, kills, link, program, signals, worker};
use crate::case::{Case, Mode};
use crate::control::Control;
use crate::error::Result;
use crate::probe;
use crate::row::Figures;
use crate::sys::clock::Stamps;
use crate::sys::{cpu, parent};

/// Measures what the task in `json` says, and tells it as a line of JSON.
pub fn run(json: &str) -> ExitCode {
    let mut told = Told::default();
    if let Err(error) = follow(json, &mut told) {
        told.error = Some(error.to_string());
    }
    println!("{}", serde_json::to_string(&told).unwrap_or_default());
    if told.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn follow(json: &str, told: &mut Told) -> Result<()> {
    let task: Task = serde_json::from_str(json)?;
    parent::end_with(task.driver)?;
    cpu::pin(task.cpus[0])?;
    let mut rows = Rows { told, open: Vec::new(), before: distance(&task)? };
    // What was measured before something failed is told as well.
    let measured = measure(&task, &mut rows);
    rows.close(&task)?;
    measured
}

/// The rows of a sample, in parts that are short beside the time for which cores stay where they are: those
/// of a part have the tag of the probes before and after it.
struct Rows<'a> {
    told: &'a mut Told,
    open: Vec<(Case, Figures)>,
    before: f64,
}

impl Rows<'_> {
    fn push(&mut self, row: (Case, Figures)) {
        self.open.push(row);
    }

    fn extend(&mut self, rows: Vec<(Case, Figures)>) {
        self.open.extend(rows);
    }

    /// Ends a part, if it has rows.
    fn close(&mut self, task: &Task) -> Result<()> {
        if !self.open.is_empty() {
            let after = distance(task)?;
            let near = probe::tag(self.before, after);
            self.told.rows.extend(self.open.drain(..).map(|(case, figures)| (case, figures, near)));
            self.before = after;
        }
        Ok(())
    }
}

/// A line's round trip between the two cores, in nanoseconds.
fn distance(task: &Task) -> Result<f64> {
    let page = Control::create()?;
    let (near, far) = (Control::map(&page)?, Control::map(&page)?);
    let other = task.cpus[1];
    std::thread::scope(|scope| {
        let answers = scope.spawn(move || {
            cpu::pin(other)?;
            probe::answer(&far, 1)
        });
        let found = probe::ask(&near, 1, task.ticker)?;
        answers.join().map_err(|_| "the probe has panicked")??;
        Ok(found)
    })
}

fn measure(task: &Task, rows: &mut Rows<'_>) -> Result<()> {
    let mut times = Times::new();
    let stamps = task.stamps;
    let held = Held::look()?;
    let exec = |how| Spawned::new(task, how);
    match task.contender.as_str() {
        "partywall-fn" => {
            let mut ours = Ours::start(task)?;
            ours.register_copies(&task.files, task.count)?;
            ours.preload()?;
            let stamps = ours.stamps;
            warm(task, &mut ours, &mut times, (stamps, held), rows)?;
            drop(ours);
            rows.extend(hashes::rows(task)?);
            rows.close(task)?;
            rows.extend(kills::rows(task)?);
            rows.close(task)?;
            rows.push(kills::overruns(task)?);
            rows.close(task)?;
            rows.extend(kills::neighbours(task, &mut times)?);
            rows.close(task)?;
            for order in ORDERS {
                let mut ours = Ours::start(task)?;
                ours.register_copies(&task.files, task.count)?;
                let stamps = ours.stamps;
                cold(task, &mut ours, &mut times, stamps, order, rows)?;
            }
            Ok(())
        }
        "partywall-worker" | "partywall-worker-open" => {
            let copies = Copies::new(&task.files)?;
            let images: Result<Vec<_>> = task.places().map(|which| copies.copy(which)).collect();
            let program = worker()?;
            let mut workers = link::one_worker(program, task.cpus[1]);
            if task.contender == "partywall-worker-open" {
                workers.isolation = Wanted::None;
            }
            let (link, stamps) = Link::start_as(workers, task.seed, images?.into_iter())?;
            let mut bare = Copied(link);
            warm(task, &mut bare, &mut times, (stamps, held), rows)?;
            bare.0.stop()
        }
        "ring-floor" => {
            let images: Vec<_> = task.places().map(floor::image).collect();
            let program = program("floor", &[])?;
            let (mut link, stamps) =
                Link::start(&program, task.cpus[1], task.seed, images.into_iter())?;
            warm(task, &mut link, &mut times, (stamps, held), rows)?;
            link.stop()
        }
        "process-udp" => warm(task, &mut Udp::start(task)?, &mut times, (stamps, held), rows),
        "process-fair" => {
            warm(task, &mut Waiting::start(task)?, &mut times, (stamps, held), rows)?;
            colds(task, || exec(How::Static), &mut times, rows)
        }
        "process-zygote" => {
            for order in ORDERS {
                let mut zygote = Zygote(Waiting::template(task)?);
                cold(task, &mut zygote, &mut times, stamps, order, rows)?;
            }
            Ok(())
        }
        "process-fork-exec" => colds(task, || exec(How::Twice), &mut times, rows),
        "process-fork-exec-once" => colds(task, || exec(How::Once), &mut times, rows),
        "sigalrm" | "partywall-fn-timer" => {
            rows.extend(hashes::rows(task)?);
            Ok(())
        }
        "timer" => {
            rows.extend(signals::of_timer(task)?);
            Ok(())
        }
        "bare-signal" => {
            rows.extend(signals::of_signal(task)?);
            Ok(())
        }
        #[cfg(feature = "opponents")]
        "wasmtime" => of_wasm(task, "wasm", &mut times, held, rows),
        #[cfg(feature = "opponents")]
        "wasmtime-memory" => of_wasm(task, "wasm-memory", &mut times, held, rows),
        other => Err(format!("no contender is called {other}").into()),
    }
}

const ORDERS: [Order; 2] = [Order::RoundRobin, Order::Random];

/// The runtime's worker behind its ring: its functions say numbers of copies.
struct Copied(Link);

impl Serves for Copied {
    #[inline]
    fn send(&mut self, which: u32, tag: u32, now: u64) -> Result<()> {
        self.0.send(which, tag, now)
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<super::load::Answer>> {
        let answer = self.0.receive()?;
        Ok(answer.map(|answer| super::load::Answer { which: copy_of(answer.which), ..answer }))
    }

    fn worker(&self) -> Option<u32> {
        self.0.worker()
    }
}

#[cfg(feature = "opponents")]
fn of_wasm(
    task: &Task,
    file: &str,
    times: &mut Times,
    held: Held,
    rows: &mut Rows<'_>,
) -> Result<()> {
    let module = task.files.join(file);
    let module = module.to_str().ok_or("the directory's path is no text")?;
    let clock = serde_json::to_string(&task.stamps)?;
    let start = |loaded: u32| -> Result<Link> {
        let program = program("wasm", &[module, &loaded.to_string(), &clock])?;
        let (link, _) = Link::start(&program, task.cpus[1], task.seed, std::iter::empty())?;
        Ok(link.of_numbers(task.count))
    };
    let mut link = start(task.count)?;
    warm(task, &mut link, times, (task.stamps, held), rows)?;
    link.stop()?;
    for order in ORDERS {
        let mut link = start(0)?;
        cold(task, &mut link, times, task.stamps, order, rows)?;
        link.stop()?;
    }
    Ok(())
}

/// All rows of functions that are loaded.
fn warm(
    task: &Task,
    serves: &mut impl Serves,
    times: &mut Times,
    (stamps, held): (Stamps, Held),
    rows: &mut Rows<'_>,
) -> Result<()> {
    let case = |cell| Case::functions(Mode::Warm, task.count.into(), cell);
    let mut caller = Caller::new(serves, times, stamps, task.count, task.seed);
    caller.warm_up()?;
    rows.push((case(Cell::of(Measure::Memory)), held.since()?));
    let mut own = None;
    for order in ORDERS {
        for window in [1, WINDOW] {
            let figures = caller.closed(order, window, task.span)?;
            if window == WINDOW {
                own = figures.per_s;
            }
            rows.push((case(Cell::closed(order, window)), figures));
        }
    }
    rows.close(task)?;
    let is_fair = task.contender == "process-fair";
    let fair_per_s = task.fair_per_s.or(own.filter(|_| is_fair));
    let own = LOADS.map(|percent| (percent, Whose::Own, own));
    let fair = [LOADS[0], SPARSE].map(|percent| (percent, Whose::ProcessFair, fair_per_s));
    for (percent, whose, per_s) in own.into_iter().chain(fair) {
        let Some(per_s) = per_s else { continue };
        let per_s = per_s * f64::from(percent) / 100.0;
        let figures = caller.open(Order::Random, per_s, task.span)?;
        rows.push((case(Cell::poisson(percent, whose)), figures));
    }
    rows.close(task)
}

fn colds<S: Serves>(
    task: &Task,
    make: impl Fn() -> Result<S>,
    times: &mut Times,
    rows: &mut Rows<'_>,
) -> Result<()> {
    for order in ORDERS {
        cold(task, &mut make()?, times, task.stamps, order, rows)?;
    }
    Ok(())
}

/// A row of functions that are not.
fn cold(
    task: &Task,
    serves: &mut impl Serves,
    times: &mut Times,
    stamps: Stamps,
    order: Order,
    rows: &mut Rows<'_>,
) -> Result<()> {
    let figures = Caller::new(serves, times, stamps, task.count, task.seed).once(order)?;
    let cell = Cell::closed(order, 1);
    rows.push((Case::functions(Mode::Cold, task.count.into(), cell), figures));
    rows.close(task)
}
